"""The vision transformer against one built from torch's own encoder layers, and its symmetries."""

from __future__ import annotations

import cmath
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.vit import AxialRotary, PatchEmbedding, TokenAttention, ViT, sinusoidal_2d

EPS = torch.finfo(torch.float64).eps
# Not square, neither image nor patch: 4 rows of 6 tokens.
SHAPE, PATCH = (3, 12, 12), (3, 2)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def vit(**settings: Any) -> ViT:
    """A small ViT in float64 whose every parameter is random, biases and norms too."""
    torch.manual_seed(0)
    model = ViT(SHAPE, 5, **{"patch": PATCH, "embed_dim": 16, "depth": 2, "num_heads": 2, **settings}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(n: int = 3, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Reference(nn.Module):
    """The same function from torch's convolution and encoder layers."""

    def __init__(self, model: ViT, *, norm_first: bool) -> None:
        super().__init__()
        embed_dim, hidden = 16, 32
        self.patches = nn.Conv2d(SHAPE[0], embed_dim, PATCH, PATCH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(embed_dim, 2, hidden, 0.0, "gelu", batch_first=True, norm_first=norm_first)
            for _ in model.blocks
        )
        self.norm = nn.LayerNorm(embed_dim) if norm_first else nn.Identity()
        self.head = nn.Linear(embed_dim, 5)
        self.double()
        mine = model.state_dict()
        self.class_token, self.position = mine.get("class_token"), mine["position"]
        with torch.no_grad():
            self.patches.weight.copy_(mine["patches.projection.weight"].view(embed_dim, SHAPE[0], *PATCH))
            self.patches.bias.copy_(mine["patches.projection.bias"])
        for index, layer in enumerate(self.layers):
            at = f"blocks.{index}."
            qkv = [at + f"attention.w_{name}" for name in ("query", "key", "value")]
            layer.load_state_dict(
                {
                    "self_attn.in_proj_weight": torch.cat([mine[f"{name}.weight"] for name in qkv]),
                    "self_attn.in_proj_bias": torch.cat([mine[f"{name}.bias"] for name in qkv]),
                    **{
                        f"{theirs}.{kind}": mine[f"{at}{ours}.{kind}"]
                        for kind in ("weight", "bias")
                        for theirs, ours in {
                            "self_attn.out_proj": "attention.w_out",
                            "norm1": "attention_norm",
                            "norm2": "mlp_norm",
                            "linear1": "mlp.0",
                            "linear2": "mlp.3",
                        }.items()
                    },
                }
            )
        self.head.load_state_dict({kind: mine[f"head.{kind}"] for kind in ("weight", "bias")})
        if norm_first:
            self.norm.load_state_dict({kind: mine[f"norm.{kind}"] for kind in ("weight", "bias")})

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT + self.position
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits: Tensor = self.head(x.mean(1) if self.class_token is None else x[:, 0])
        return logits


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "class"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_forward_is_that_of_torchs_encoder(norm_first: bool, pooling: str, training: bool, fused: bool) -> None:
    model = vit(norm_first=norm_first, pooling=pooling, fused=fused).train(training)
    reference, x = Reference(model, norm_first=norm_first).train(training), images()
    torch.testing.assert_close(model(x), reference(x), rtol=1e-10, atol=1e-10)
    with torch.no_grad():  # torch's own layer takes a faster way here
        torch.testing.assert_close(model(x), reference(x), rtol=1e-10, atol=1e-10)
    weights = [model.patches.projection.weight, reference.patches.weight]
    mine, theirs = (
        torch.autograd.grad(m(x).square().sum(), w)[0].flatten(1)
        for m, w in zip((model, reference), weights, strict=True)
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_the_fused_kernel_gives_the_explicit_values_and_gradients(position: str) -> None:
    results = []
    for fused in (True, False):
        model = vit(fused=fused, position=position, embed_dim=16, num_heads=4)
        x = images().requires_grad_()
        logits = model(x)
        results.append([logits, *torch.autograd.grad(logits.square().sum(), [x, *model.parameters()])])
    for fused, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused, explicit, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal", "sinusoidal_2d", "rotary"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_attention_maps_are_those_of_the_forward_pass(norm_first: bool, position: str) -> None:
    model, x = vit(norm_first=norm_first, position=position, pooling="class", num_heads=4), images()
    before = model(x)
    maps = model.attention_maps(x)
    assert torch.equal(model(x), before)
    assert maps.shape == (2, 3, 4, 25, 25)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 3, 4, 25).double(), rtol=1e-12, atol=0)
    # The forward pass from these weights, written out.
    tokens = model.tokens(x)
    for weights, block in zip(maps, model.blocks, strict=True):
        assert isinstance(block.attention, TokenAttention)
        read = block.attention_norm(tokens) if norm_first else tokens
        value = block.attention.w_value(read).view(3, 25, 4, 4)
        mixed = torch.einsum("nhqk,nkhd->nqhd", weights, value).flatten(2)
        tokens = tokens + block.attention.w_out(mixed)
        tokens = tokens if norm_first else block.attention_norm(tokens)
        tokens = tokens + block.mlp(block.mlp_norm(tokens) if norm_first else tokens)
        tokens = tokens if norm_first else block.mlp_norm(tokens)
    torch.testing.assert_close(model.head(model.norm(tokens)[:, 0]), before, rtol=1e-10, atol=1e-12)


def test_patches_are_those_of_a_strided_convolution() -> None:
    """Images 32x48 with patches 8x4, as reported to fail elsewhere."""
    patches = PatchEmbedding((3, 32, 48), 7, (8, 4)).double()
    assert patches.grid == (4, 12)
    x = images(2, (3, 32, 48))
    kernel = patches.projection.weight.view(7, 3, 8, 4)
    expected = nn.functional.conv2d(x, kernel, patches.projection.bias, stride=(8, 4)).flatten(2).mT
    torch.testing.assert_close(patches(x), expected, rtol=1e-12, atol=1e-12)


def test_codes_of_rows_and_columns() -> None:
    code = sinusoidal_2d(3, 4, 8).double()
    for row in range(3):
        for column in range(4):
            for i in range(8):
                at = row if i < 4 else column
                angle = at / 10000 ** (2 * (i % 4 // 2) / 4)
                expected = math.cos(angle) if i % 2 else math.sin(angle)
                assert float(code[4 * row + column, i]) == pytest.approx(expected, abs=1e-6)


def test_rotary_turns_by_row_and_column() -> None:
    """One complex number a pair: head_dim 8 has two pairs for rows and two for columns, of frequencies 1 and 1/10."""
    row, column = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 3])
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    turned = AxialRotary(2, row, column)(x)
    for token in range(3):
        for pair in range(8):
            at = int((row if pair % 4 < 2 else column)[token])
            number = complex(*x[token, 2 * pair : 2 * pair + 2].tolist()) * cmath.exp(1j * at / 10 ** (pair % 2))
            assert complex(*turned[token, 2 * pair : 2 * pair + 2].tolist()) == pytest.approx(number, abs=1e-12)


def test_rotary_attention_depends_on_distances_only() -> None:
    """The same tokens one row down and two columns right: the same weights; and without the turn no use of distance."""
    index = torch.arange(12)
    row, column = index // 4, index % 4
    x = images(1, (1, 12, 16))[:, 0]
    torch.manual_seed(0)
    attention = TokenAttention(16, 2, turn=AxialRotary(2, row, column)).double()
    moved = TokenAttention(16, 2, turn=AxialRotary(2, row + 1, column + 2)).double()
    other = TokenAttention(16, 2, turn=AxialRotary(2, row, 2 * column)).double()
    for layer in (moved, other):
        layer.load_state_dict(attention.state_dict())
    torch.testing.assert_close(moved.weights(x), attention.weights(x), rtol=1e-12, atol=1e-14)
    assert float((other.weights(x) - attention.weights(x)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "class"])
def test_each_token_is_turned_by_its_place_in_the_grid(pooling: str) -> None:
    """Four rows of six patches, numbered row by row; a class token comes first and is not turned."""
    model = vit(position="rotary", pooling=pooling, num_heads=4)
    places = [(0, 0)] * (pooling == "class") + [(row, column) for row in range(4) for column in range(6)]
    for block in model.blocks:
        turn = block.attention.w_key.turn
        assert list(zip(turn.row.tolist(), turn.column.tolist(), strict=True)) == places


def permuted_patches(x: Tensor, order: Tensor) -> Tensor:
    """The image with its patches in another order; patch by patch, so that no code of the model is used."""
    height, width = PATCH
    columns = SHAPE[2] // width

    def box(patch: int) -> tuple[slice, ...]:
        top, left = patch // columns * height, patch % columns * width
        return ..., slice(top, top + height), slice(left, left + width)

    result = torch.empty_like(x)
    for place, patch in enumerate(order.tolist()):
        result[box(place)] = x[box(patch)]
    return result


@pytest.mark.parametrize("pooling", ["mean", "class"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_permuted_patches(norm_first: bool, pooling: str) -> None:
    """With their position rows, or without positions, nothing changes; with positions that stay, much does."""
    x, order = images(), torch.randperm(24, generator=torch.Generator().manual_seed(3))
    moved = permuted_patches(x, order)
    with torch.no_grad():
        for position in ("none", "learned"):
            model = vit(norm_first=norm_first, pooling=pooling, position=position)
            before = model(x)
            if position == "learned":
                assert float((model(moved) - before).abs().max()) > 1e-3
                model.position.copy_(model.position[order])
            error = float((model(moved) - before).abs().max() / before.abs().max())
            assert error <= 32 * EPS


@pytest.mark.parametrize("position", ["sinusoidal", "sinusoidal_2d", "rotary"])
def test_fixed_positions_tell_patches_apart(position: str) -> None:
    model, x = vit(position=position), images()
    moved = permuted_patches(x, torch.arange(24).roll(1))
    assert float((model(moved) - model(x)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "class"])
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_gradients_reach_every_parameter(position: str, pooling: str) -> None:
    model = vit(position=position, pooling=pooling)
    nn.functional.cross_entropy(model(images()), torch.tensor([0, 3, 4])).backward()
    for name, parameter in model.named_parameters():
        largest = float(parameter.grad.abs().max())
        if name.endswith("w_key.bias") and position != "rotary":
            assert largest < 1e-12  # the same logit for every key of a query: softmax does not see it
        else:
            assert 1e-12 < largest < math.inf, name


def test_dropout_acts_in_training_only() -> None:
    model, plain, x = vit(dropout=0.5), vit(), images()
    torch.testing.assert_close(model.eval()(x), plain(x), rtol=0, atol=0)
    assert not torch.allclose(model.train()(x), plain(x))


@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.parametrize("fused", [True, False])
def test_low_precision_is_finite_and_near(fused: bool, position: str) -> None:
    model, x = vit(fused=fused, position=position), images()
    exact = model(x).detach()
    model, low = model.bfloat16(), x.bfloat16()
    loss = model(low).float().square().sum()
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    torch.testing.assert_close(model(low).double(), exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embed_dim": 10, "num_heads": 3}, r"^num_heads=3 must be 1 or more and divide embed_dim=10$"),
        ({"num_heads": 0}, r"^num_heads=0 must be 1 or more"),
        ({"patch": 5}, r"^patch=5x5 must divide the image, which is 12 high and 12 wide$"),
        ({"patch": (5, 2)}, r"^patch=5x2 must divide the image"),
        ({"patch": (3, 5)}, r"^patch=3x5 must divide the image"),
        ({"patch": 0}, r"^patch=0x0 must divide"),
        ({"position": "sine"}, r"^position=sine must be one of none, learned, sinusoidal, sinusoidal_2d, rotary$"),
        ({"pooling": "max"}, r"^pooling=max must be one of mean, class$"),
        ({"position": "rotary", "embed_dim": 12}, r"^embed_dim=12 must be a multiple of 4 x num_heads=2"),
        ({"position": "sinusoidal_2d", "embed_dim": 5, "num_heads": 1}, r"^embed_dim=5 must be even"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vit(**settings)


def test_few_tokens_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="patch=16 leaves 4 tokens, fewer than 16"):
        ViT((3, 32, 32), 10, patch=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ViT((1, 28, 28), 10, patch=7)  # 16
        assert ViT((3, 32, 32), 10).patches.grid == (8, 8)  # patch 4 where none is given
