"""Stacked encoders against torch's own block, a single member against all, and what codes and masks do."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm

from attnrepro.data.streams import generator
from attnrepro.nn import masks
from attnrepro.nn.coded_encoder import CodedEncoder
from attnrepro.nn.position import rotary, sinusoidal

SIZES = {"vocabulary": 5, "outputs": 3, "embed_dim": 8, "num_heads": 2, "hidden": 6, "depth": 2}
SEEDS = (3, 8)


def made(seeds: tuple[int, ...] = SEEDS, **sizes: int) -> CodedEncoder:
    return CodedEncoder([generator(seed, "coded") for seed in seeds], **{**SIZES, **sizes}).double()


def texts(length: int = 7, n: int = 4) -> torch.Tensor:
    return torch.randint(5, (len(SEEDS), n, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [False, True])
def test_a_member_is_torchs_block(causal: bool) -> None:
    model, tokens, code = made(), texts(), sinusoidal(7, 8, dtype=torch.float64)
    mask = masks.causal(7) if causal else None
    found = model(tokens, code=code, mask=mask)
    for member in range(len(SEEDS)):
        x = model.embed[member][tokens[member]] + code
        for block in model.blocks:
            theirs = torch.nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, norm_first=True, dtype=torch.float64)
            theirs.train()
            for part in theirs.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = 0.0
            theirs.self_attn.dropout = 0.0
            with torch.no_grad():
                names = ("query", "key", "value")
                theirs.self_attn.in_proj_weight.copy_(torch.cat([block[n].weight[member].T for n in names]))  # type: ignore[index]
                theirs.self_attn.in_proj_bias.copy_(torch.cat([block[n].bias[member, 0] for n in names]))  # type: ignore[index]
                pairs = {"out": theirs.self_attn.out_proj, "first": theirs.linear1, "second": theirs.linear2}
                for name, layer in pairs.items():
                    layer.weight.copy_(block[name].weight[member].T)  # type: ignore[index]
                    layer.bias.copy_(block[name].bias[member, 0])  # type: ignore[index]
            x = theirs(x, src_mask=None if mask is None else ~mask)
        expected = layer_norm(x, (8,)) @ model.read.weight[member] + model.read.bias[member]
        torch.testing.assert_close(found[member], expected, rtol=1e-10, atol=1e-12)


def test_rotary_scores_by_hand() -> None:
    model, tokens = made(depth=1), texts()
    found = model(tokens, rotate=True)
    block = model.blocks[0]
    for member in range(len(SEEDS)):
        x = model.embed[member][tokens[member]]
        seen = layer_norm(x, (8,))
        query, key, value = (
            (seen @ block[n].weight[member] + block[n].bias[member]).unflatten(-1, (2, 4)).transpose(1, 2)  # type: ignore[index]
            for n in ("query", "key", "value")
        )
        weights = (rotary(query) @ rotary(key).mT / 2).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        x = x + mixed @ block["out"].weight[member] + block["out"].bias[member]  # type: ignore[index]
        hidden = (layer_norm(x, (8,)) @ block["first"].weight[member] + block["first"].bias[member]).relu()  # type: ignore[index]
        x = x + hidden @ block["second"].weight[member] + block["second"].bias[member]  # type: ignore[index]
        expected = layer_norm(x, (8,)) @ model.read.weight[member] + model.read.bias[member]
        torch.testing.assert_close(found[member], expected, rtol=1e-10, atol=1e-12)


def test_members_do_not_mix() -> None:
    tokens, code = texts(), sinusoidal(7, 8, dtype=torch.float64)
    alone = made((8,))(tokens[1:], code=code)
    torch.testing.assert_close(made()(tokens, code=code)[1:], alone)


def test_order_is_seen_through_codes_and_masks_only() -> None:
    model, tokens = made(), texts()
    order = torch.tensor([3, 0, 6, 1, 2, 5, 4])

    @torch.no_grad()
    def moved(**options: object) -> float:
        change = model(tokens[..., order], **options) - model(tokens, **options)[:, :, order]
        return float(change.abs().max())

    assert moved() < 1e-12
    assert moved(code=sinusoidal(7, 8, dtype=torch.float64)) > 1e-2
    assert moved(rotate=True) > 1e-3
    assert moved(mask=masks.causal(7)) > 1e-2


def test_torch_starts_its_linear_layers_alike() -> None:
    model = made(embed_dim=64, num_heads=4)
    query = model.blocks[0]["query"].weight  # type: ignore[index]
    own = torch.nn.Linear(64, 64).weight
    assert float(query.detach().abs().max()) <= 1 / 8
    assert float(query.detach().std()) == pytest.approx(float(own.std()), rel=0.05)
    assert float(made(vocabulary=4000).embed.square().sum(-1).mean()) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [({"depth": 0}, "depth=0"), ({"num_heads": 3}, "num_heads=3"), ({"vocabulary": 0}, "vocabulary=0")],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        made(**sizes)
    with pytest.raises(ValueError, match="streams"):
        made(())
