"""Well-known transformers: the same numbers as Hugging Face's with the same weights, reach, and counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from attnrepro.nn.model_shapes import TextModel, TranslationModel, VisionModel, build_shape, inputs_of
from attnrepro.theory import model_shapes as closed

SMALL = {"depth": 2, "embed_dim": 8, "num_heads": 2, "hidden": 12}
GPT = closed.Shape("decoder", **SMALL, vocabulary=11, context=6)
BERT = closed.Shape("encoder", **SMALL, vocabulary=11, context=6, norm_first=False, pretraining=True)
VIT = closed.Shape("vision", **SMALL, side=12, patch=4, classes=5)
TRANSLATION = closed.Shape("translation", **SMALL, vocabulary=11, context=6, norm_first=False)
EVERY = {"gpt": GPT, "bert": BERT, "vit": VIT, "translation": TRANSLATION}
WORDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def shaken(model: Any) -> Any:
    """In float64, every number drawn: zeros and ones of a start would hide a swap."""
    torch.manual_seed(0)
    model = model.double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def copy(parts: dict[nn.Module, nn.Module]) -> None:
    """Weights of theirs into ours; a fused projection of GPT-2 is cut, and its matrices are transposed."""
    with torch.no_grad():
        for ours, theirs in parts.items():
            weight, bias = (getattr(theirs, name) for name in ("weight", "bias"))
            ours.weight.copy_(weight.T if type(theirs).__name__ == "Conv1D" else weight)  # type: ignore[union-attr]
            if getattr(ours, "bias", None) is not None:
                ours.bias.copy_(bias)  # type: ignore[union-attr]


def test_the_decoder_is_hugging_faces_gpt2() -> None:
    config = GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2, n_inner=12, activation_function="gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    theirs, ours = shaken(GPT2LMHeadModel(config)), TextModel(GPT).double().eval()
    inner = theirs.transformer
    with torch.no_grad():
        ours.word.weight.copy_(inner.wte.weight)
        ours.position.weight.copy_(inner.wpe.weight)
    copy({ours.norm: inner.ln_f})
    for block, other in zip(ours.blocks, inner.h, strict=True):
        first, second = block.mlp[0], block.mlp[2]
        copy({block.norms[0]: other.ln_1, block.norms[1]: other.ln_2, block.attention.w_out: other.attn.c_proj})
        copy({first: other.mlp.c_fc, second: other.mlp.c_proj})
        names = ("w_query", "w_key", "w_value")
        weights, biases = other.attn.c_attn.weight.chunk(3, 1), other.attn.c_attn.bias.chunk(3)
        with torch.no_grad():
            for name, weight, bias in zip(names, weights, biases, strict=True):
                getattr(block.attention, name).weight.copy_(weight.T)
                getattr(block.attention, name).bias.copy_(bias)
    expected = theirs(WORDS).logits
    torch.testing.assert_close(ours(WORDS)[1], expected, rtol=1e-10, atol=1e-12)
    assert sum(p.numel() for p in theirs.parameters()) == closed.parameters(GPT)


def test_the_encoder_is_hugging_faces_bert() -> None:
    config = BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=6, layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs, ours = shaken(BertForPreTraining(config)), TextModel(BERT).double().eval()
    bert, heads = theirs.bert, theirs.cls
    with torch.no_grad():
        ours.word.weight.copy_(bert.embeddings.word_embeddings.weight)
        ours.position.weight.copy_(bert.embeddings.position_embeddings.weight)
        ours.segment.weight.copy_(bert.embeddings.token_type_embeddings.weight)
        ours.word_bias.copy_(heads.predictions.bias)
    copy({ours.norm: bert.embeddings.LayerNorm, ours.pooler[0]: bert.pooler.dense})
    copy({ours.masked_word[0]: heads.predictions.transform.dense, ours.next_sentence: heads.seq_relationship})
    copy({ours.masked_word[2]: heads.predictions.transform.LayerNorm})
    for block, other in zip(ours.blocks, bert.encoder.layer, strict=True):
        attention = other.attention
        copy({block.attention.w_query: attention.self.query, block.attention.w_key: attention.self.key})
        copy({block.attention.w_value: attention.self.value, block.attention.w_out: attention.output.dense})
        copy({block.norms[0]: attention.output.LayerNorm, block.norms[1]: other.output.LayerNorm})
        copy({block.mlp[0]: other.intermediate.dense, block.mlp[2]: other.output.dense})
    expected, (words, following) = theirs(WORDS), ours(WORDS)
    torch.testing.assert_close(words, expected.prediction_logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(following, expected.seq_relationship_logits, rtol=1e-10, atol=1e-12)
    assert sum(p.numel() for p in theirs.parameters()) == closed.parameters(BERT)


def test_the_image_model_has_as_many_numbers_as_hugging_faces_vit() -> None:
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=12, patch_size=4,
        num_labels=5,
    )  # fmt: skip
    theirs = ViTForImageClassification(config)
    assert sum(p.numel() for p in theirs.parameters()) == closed.parameters(VIT)


@pytest.mark.parametrize("name", EVERY)
def test_counts_are_those_of_the_modules(name: str) -> None:
    shape = EVERY[name]
    for size in (shape, replace(shape, depth=1, pretraining=False), replace(shape, num_heads=8)):
        made, inputs = build_shape(size), inputs_of(size)
        assert sum(p.numel() for p in made.parameters()) == closed.parameters(size)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            made(*inputs)
        assert counter.get_total_flops() == closed.flops(size)
        assert counter.get_flop_counts()["Global"][torch.ops.aten.bmm] == closed.score_flops(size)


def influence(out: Tensor, source: Tensor) -> list[bool]:
    """Which rows of ``source`` ``[1, length, d]`` an output depends on."""
    (gradient,) = torch.autograd.grad(out.square().sum(), source, retain_graph=True)
    found: list[bool] = (gradient[0].abs().amax(1) > 0).tolist()
    return found


def embedded(made: Any, words: Tensor) -> tuple[Tensor, Any]:
    """Embedded words as a leaf, and a hook that puts them in the place of the embedding's output."""
    leaf = made.word(words).detach().requires_grad_()
    return leaf, made.word.register_forward_hook(lambda *_: leaf)


def test_a_decoder_sees_earlier_words_and_an_encoder_all() -> None:
    gpt = shaken(TextModel(GPT))
    leaf, hook = embedded(gpt, WORDS[:1])
    states = gpt(WORDS[:1])[0]
    hook.remove()
    for place in range(5):
        assert influence(states[0, place], leaf) == [other <= place for other in range(5)]
    bert = shaken(TextModel(replace(BERT, pretraining=False)))
    leaf, hook = embedded(bert, WORDS[:1])
    states, first = bert(WORDS[:1])
    hook.remove()
    assert all(all(influence(states[0, place], leaf)) for place in range(5)) and all(influence(first, leaf))


def test_a_translation_sees_all_of_the_source_and_what_it_has_said() -> None:
    made = shaken(TranslationModel(TRANSLATION))
    words, said = WORDS[:1], WORDS[1:]
    plain = made(words, said)
    for place in range(5):
        changed = said.clone()
        changed[0, place] = 0
        moved = (made(words, changed) - plain).abs().amax(-1)[0] > 1e-12
        assert moved.tolist() == [other >= place for other in range(5)]
        changed = words.clone()
        changed[0, place] = 0
        assert ((made(changed, said) - plain).abs().amax(-1)[0] > 1e-12).all()


def test_an_image_model_reads_every_patch_and_bf16_is_finite() -> None:
    made = shaken(VisionModel(VIT))
    image = torch.randn(1, 3, 12, 12, dtype=torch.float64, requires_grad=True)
    made(image).square().sum().backward()
    assert image.grad is not None and bool((image.grad.abs() > 0).all())
    for name, shape in EVERY.items():
        model = build_shape(shape).bfloat16()
        inputs = [part.bfloat16() if part.is_floating_point() else part for part in inputs_of(shape)]
        out = model(*inputs)
        parts = out if isinstance(out, tuple) else (out,)
        assert all(part.isfinite().all() for part in parts), name


def test_the_largest_takes_no_memory() -> None:
    with torch.device("meta"):
        made = build_shape(replace(closed.MODELS["gpt3_175b"], depth=2))
    assert all(parameter.is_meta for parameter in made.parameters())
