"""The masked autoencoder: what the encoder may see, what the loss counts, and where gradients go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnrepro.nn.masked_autoencoder import MaskedAutoencoder, draw_visible, patch_pixels, visible_count
from attnrepro.nn.vit import ViT

# Not square, neither image nor patch: 4 rows of 6 patches.
SHAPE, PATCH = (3, 12, 12), (3, 2)
COUNT = 24


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(**settings: Any) -> MaskedAutoencoder:
    """In float64, every parameter random."""
    torch.manual_seed(0)
    encoder = ViT(SHAPE, 5, **{"patch": PATCH, "embed_dim": 16, "depth": 2, "num_heads": 2, **settings})
    model = MaskedAutoencoder(encoder, decoder_dim=8, decoder_depth=2, num_heads=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(n: int = 3) -> Tensor:
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def visible(n: int = 3, shown: int = 6) -> Tensor:
    return draw_visible(n, COUNT, shown, torch.Generator().manual_seed(2))


def box(patch: int) -> tuple[slice, slice]:
    """Rows and columns of a patch in its image."""
    row, column = divmod(patch, SHAPE[2] // PATCH[1])
    return slice(row * PATCH[0], (row + 1) * PATCH[0]), slice(column * PATCH[1], (column + 1) * PATCH[1])


def test_masked_patches_cannot_influence_the_encoder() -> None:
    model, given, shown = made(), images(), visible()
    before, painted = model.encode(given, shown), model(given, shown)
    changed = given.clone()
    for index in range(3):
        for patch in set(range(COUNT)) - set(shown[index].tolist()):
            changed[(index, slice(None), *box(patch))] = math.nan if patch % 2 else 1e6
    assert torch.equal(model.encode(changed, shown), before)
    assert torch.equal(model(changed, shown), painted)
    # A visible pixel does change every token of its image, and no other image's.
    changed = given.clone()
    rows, columns = box(int(shown[1, 0]))
    changed[1, 0, rows.start, columns.start] += 1
    moved = (model.encode(changed, shown) - before).abs().amax(-1)
    assert (moved[1] > 1e-6).all() and (moved[[0, 2]] == 0).all()


def test_the_encoder_is_the_vit_without_its_head() -> None:
    model, given = made(), images()
    everything = torch.arange(COUNT).expand(3, -1)
    logits = model.encoder.head(model.encode(given, everything).mean(1))
    assert (logits - model.encoder(given)).abs().max() < 1e-12
    # Post-LN has no norm after its last block.
    model = made(norm_first=False, position="sinusoidal_2d")
    logits = model.encoder.head(model.encode(given, everything).mean(1))
    assert (logits - model.encoder(given)).abs().max() < 1e-12


def test_pixels_are_those_of_each_patch_in_the_order_of_the_patch_embedding() -> None:
    given = images()
    found = patch_pixels(given, *PATCH)
    assert found.shape == (3, COUNT, 18)
    for index in range(3):
        for patch in range(COUNT):
            assert torch.equal(found[index, patch], given[(index, slice(None), *box(patch))].reshape(-1))
    embedding = made().encoder.patches
    assert (embedding.projection(found) - embedding(given)).abs().max() < 1e-12


def test_the_decoder_puts_every_token_in_its_place() -> None:
    model, shown = made(), visible()
    tokens = torch.randn(3, 6, 16, dtype=torch.float64)
    expected = []
    for index in range(3):
        row = []
        for patch in range(COUNT):
            at = [k for k in range(6) if int(shown[index, k]) == patch]
            row.append(model.from_encoder(tokens[index, at[0]]) if at else model.mask_token)
        x = (torch.stack(row) + model.position)[None]
        for block in model.blocks:
            x = block(x)
        expected.append(model.to_pixels(model.norm(x))[0])
    assert (model.decode(tokens, shown) - torch.stack(expected)).abs().max() < 1e-12


def test_the_order_of_visible_patches_does_not_matter() -> None:
    model, given, shown = made(), images(), visible()
    assert (model(given, shown.flip(1)) - model(given, shown)).abs().max() < 1e-12


def test_the_loss_counts_masked_patches_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, shown = made(), images(), visible()
    painted = model(given, shown).tolist()
    squares = []
    for index in range(3):
        for patch in set(range(COUNT)) - set(shown[index].tolist()):
            true = given[(index, slice(None), *box(patch))].reshape(-1).tolist()
            squares += [(a - b) ** 2 for a, b in zip(painted[index][patch], true, strict=True)]
    assert len(squares) == 3 * 18 * 18
    expected = math.fsum(squares) / len(squares)
    assert model.loss(given, shown).item() == pytest.approx(expected, rel=1e-12)
    right = model.decode

    def spoilt(tokens: Tensor, seen: Tensor) -> Tensor:
        return right(tokens, seen).scatter(1, seen[:, :, None].expand(-1, -1, 18), 1e9)

    monkeypatch.setattr(model, "decode", spoilt)
    assert model.loss(given, shown).item() == pytest.approx(expected, rel=1e-12)


def test_gradients_reach_all_of_the_encoder_but_its_head_and_masked_positions() -> None:
    model, shown = made(), visible(1)
    model.loss(images(1), shown).backward()
    for name, parameter in model.named_parameters():
        if name.startswith("encoder.head"):
            assert parameter.grad is None
        # Softmax does not see what a key's bias adds to all scores of a query alike.
        elif not name.endswith("w_key.bias"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-9, name
    position = model.encoder.position
    assert position is not None and position.grad is not None
    reached = position.grad.abs().amax(1) > 0
    assert set(reached.nonzero()[:, 0].tolist()) == set(shown[0].tolist())


def test_training_learns_to_paint() -> None:
    """Images of one grey value each: from any patch all others can be told."""
    torch.manual_seed(0)
    model = MaskedAutoencoder(ViT((1, 8, 8), 5, patch=2, embed_dim=16, depth=1, num_heads=2), decoder_dim=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    stream = torch.Generator().manual_seed(3)

    def loss() -> Tensor:
        grey = torch.randn(32, 1, 1, 1, generator=stream).expand(-1, 1, 8, 8)
        return model.loss(grey, draw_visible(32, 16, 4, stream))

    first = loss().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert first > 0.7 and loss().item() < 0.2


def test_half_precision_differs_by_its_rounding_only() -> None:
    model, given, shown = made().float(), images().float(), visible()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model.loss(given, shown)
    assert half.item() == pytest.approx(model.loss(given, shown).item(), rel=0.05)


def test_visible_patches_are_drawn_without_repetition_and_evenly() -> None:
    found = draw_visible(4000, 16, 4, torch.Generator().manual_seed(0))
    assert found.shape == (4000, 4)
    assert (found.sort(1).values.diff(dim=1) > 0).all()
    counts = torch.bincount(found.flatten(), minlength=16)
    # Each is binomial with mean 1000 and standard deviation sqrt(4000 / 4 * 3 / 4).
    assert (counts - 1000).abs().max() < 5 * math.sqrt(750)
    assert torch.equal(found, draw_visible(4000, 16, 4, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("patches", "share", "shown"), [(16, 0.75, 4), (49, 0.75, 12), (196, 0.75, 49), (10, 0.9, 1)])
def test_masked_shares_as_the_paper_has_them(patches: int, share: float, shown: int) -> None:
    assert visible_count(patches, share) == shown


@pytest.mark.parametrize("share", [0.0, 0.95, 1.0])
def test_something_is_visible_and_something_masked(share: float) -> None:
    with pytest.raises(ValueError, match=f"mask_share={share:g} must leave some of 16"):
        visible_count(16, share)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"pooling": "class"}, "pooling=class"), ({"position": "rotary"}, "rotary"), ({"position": "none"}, "none")],
)
def test_encoders_whose_tokens_cannot_be_left_out_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        made(**settings)
