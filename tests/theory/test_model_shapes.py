"""Closed forms of well-known models, by hand, against published counts of implementations, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnrepro.theory import model_shapes as closed

# Parameters that other implementations report: Hugging Face (bert-base-uncased and bert-large-uncased without heads of
# pre-training, openai-gpt, gpt2 to gpt2-xl) and torchvision (vit_b_16, vit_l_16, vit_l_32, vit_h_14).
KNOWN = {
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "vit_b16": 86_567_656,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
}


@pytest.mark.parametrize("model", KNOWN)
def test_counts_are_those_of_other_implementations(model: str) -> None:
    assert closed.parameters(closed.MODELS[model]) == KNOWN[model]


def test_a_translation_model_by_hand() -> None:
    """Two blocks a side of width 4, MLPs of 6, 10 words."""
    shape = closed.Shape("translation", 2, 4, 2, 6, vocabulary=10, context=3, norm_first=False)
    attention, mlp, norm = 4 * 16, 4 * 6 + 6 + 6 * 4 + 4, 8
    blocks = 2 * (attention + mlp + 2 * norm) + 2 * (2 * attention + mlp + 3 * norm)
    assert closed.block_parameters(shape) == blocks and closed.parameters(shape) == blocks + 40
    assert closed.attention_units(shape) == 2 * 2 + 2 * 2 * 2
    products = 6 * (4 * 3 * 4 * 4 + 2 * 3 * 3 * 4) + 4 * (2 * 3 * 4 * 6) + 3 * 4 * 10
    assert closed.flops(shape) == 2 * products and closed.score_flops(shape) == 2 * 6 * 2 * 3 * 3 * 4


def test_heads_of_pre_training_and_of_images() -> None:
    bert, vit = closed.MODELS["bert_base"], closed.MODELS["vit_b16"]
    whole = closed.parameters(closed.shape_of("bert_base", "pretraining"))
    # A layer and a LayerNorm, a bias for each word, and two logits.
    assert whole - closed.parameters(bert) == 768 * 769 + 2 * 768 + 30522 + 2 * 769
    bare = closed.shape_of("vit_b16", "no_head")
    assert closed.parameters(vit) - closed.parameters(bare) == 1000 * 769
    assert closed.flops(vit) - closed.flops(bare) == 2 * 768 * 1000
    assert vit.tokens == 197 and closed.MODELS["vit_h14"].tokens == 257


def test_parameters_know_nothing_of_heads() -> None:
    shape = closed.MODELS["gpt3_175b"]
    for heads in (1, 8, 128):
        cut = replace(shape, num_heads=heads)
        assert closed.parameters(cut) == closed.parameters(shape) and closed.flops(cut) == closed.flops(shape)
        assert cut.head_dim * heads == shape.embed_dim


@pytest.mark.parametrize("model", [name for name in closed.MODELS if name.startswith("gpt2")])
def test_another_vocabulary_takes_away_whole_rows(model: str) -> None:
    own, other = (closed.shape_of(model, variant) for variant in ("", "gpt_vocabulary"))
    rows = (closed.parameters(own) - closed.parameters(other)) / own.embed_dim
    assert rows == own.vocabulary - closed.MODELS["gpt"].vocabulary == 9779


def test_twelve_d_squared_a_layer() -> None:
    """The rule of thumb: blocks of width d and MLPs of 4 d have 12 d² parameters each, but for biases and norms."""
    for model in ("bert_base", "gpt3_175b", "vit_l16"):
        shape = closed.MODELS[model]
        rule = 12 * shape.embed_dim**2 * shape.depth
        assert math.isclose(closed.block_parameters(shape), rule, rel_tol=0.002)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="kind=recurrent must be one of"):
        closed.Shape("recurrent", 1, 4, 2, 8)
    with pytest.raises(ValueError, match="num_heads=3 must be 1 or more and divide embed_dim=4"):
        closed.Shape("decoder", 1, 4, 3, 8, vocabulary=5, context=2)
    with pytest.raises(ValueError, match="vocabulary=0 must be 1 or more"):
        closed.Shape("decoder", 1, 4, 2, 8, context=2)
    with pytest.raises(ValueError, match="context=0 must be 1 or more"):
        closed.Shape("decoder", 1, 4, 2, 8, vocabulary=5)
    with pytest.raises(ValueError, match="must divide the image"):
        closed.Shape("vision", 1, 4, 2, 8, patch=15)
    with pytest.raises(ValueError, match="model=gpt4 must be one of"):
        closed.shape_of("gpt4")
    with pytest.raises(ValueError, match="variant=no_head must be one that model=gpt2 has"):
        closed.shape_of("gpt2", "no_head")
