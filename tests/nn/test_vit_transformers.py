"""Our ViT against that of Hugging Face transformers with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from attnrepro.nn.vit import ViT

SHAPE, CLASSES, PATCH, EMBED_DIM, DEPTH, HEADS = (3, 28, 28), 5, 7, 24, 3, 4


def theirs() -> ViTForImageClassification:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=SHAPE[1],
        patch_size=PATCH,
        num_channels=SHAPE[0],
        hidden_size=EMBED_DIM,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=2 * EMBED_DIM,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        num_labels=CLASSES,
    )
    model = ViTForImageClassification(config).double()
    for parameter in model.parameters():  # theirs starts with zeros in many places, where a swap would not show
        nn.init.normal_(parameter, std=0.3)
    return model


# Ours and theirs, in every block.
PARTS = {
    "attention.w_query": "attention.q_proj",
    "attention.w_key": "attention.k_proj",
    "attention.w_value": "attention.v_proj",
    "attention.w_out": "attention.o_proj",
    "attention_norm": "layernorm_before",
    "mlp_norm": "layernorm_after",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
}
WHOLE = {
    "patches.projection": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "head": "classifier",
}


def with_weights_of(model: ViTForImageClassification) -> ViT:
    ours = ViT(
        SHAPE, CLASSES, patch=PATCH, embed_dim=EMBED_DIM, depth=DEPTH, num_heads=HEADS, mlp_ratio=2, pooling="class"
    ).double()
    names = dict(WHOLE)
    for index in range(DEPTH):
        names |= {f"blocks.{index}.{mine}": f"vit.layers.{index}.{other}" for mine, other in PARTS.items()}
    found: dict[str, Tensor] = model.state_dict()
    state = {f"{mine}.{kind}": found[f"{other}.{kind}"] for mine, other in names.items() for kind in ("weight", "bias")}
    state["patches.projection.weight"] = state["patches.projection.weight"].flatten(1)
    # Theirs adds a position to the class token, ours has it in the token.
    position = found["vit.embeddings.position_embeddings"][0]
    state["class_token"] = found["vit.embeddings.cls_token"][0, 0] + position[0]
    state["position"] = position[1:]
    ours.load_state_dict(state)
    return ours


@pytest.mark.parametrize("training", [True, False])
def test_logits_and_gradients_are_theirs(training: bool) -> None:
    other = theirs().train(training)
    ours = with_weights_of(other).train(training)
    images = torch.randn(6, *SHAPE, dtype=torch.float64)
    one, two = images.clone().requires_grad_(), images.clone().requires_grad_()
    logits, wanted = ours(one), other(two).logits
    torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-10)
    logits.square().sum().backward()
    wanted.square().sum().backward()
    assert one.grad is not None and two.grad is not None
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-9)
