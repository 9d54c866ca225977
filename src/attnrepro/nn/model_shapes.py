"""Well-known transformers from their sizes, made of this package's attention; on the meta device they need no memory.

Source: the papers beside each entry of `attnrepro.theory.model_shapes.MODELS`.
"""

import torch
from torch import Tensor, nn

from attnrepro.nn import masks
from attnrepro.nn.cross_attention import CrossAttention
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.vit import PatchEmbedding, TokenAttention
from attnrepro.theory.model_shapes import CHANNELS, Shape


class ModelBlock(nn.Module):
    """Attention, attention to a context where there is one, and an MLP, each with LayerNorm and residual connection.

    Args:
        shape: sizes and order of the model.
        context: with attention to what ``forward`` is given as context.
    """

    def __init__(self, shape: Shape, *, context: bool = False) -> None:
        super().__init__()
        d = shape.embed_dim
        self.norm_first = shape.norm_first
        if shape.kind == "translation":
            self.attention: SelfAttention = SelfAttention(d, shape.num_heads)
        else:
            self.attention = TokenAttention(d, shape.num_heads, fused=False)
        self.cross = CrossAttention(d, d, shape.num_heads) if context else None
        activation = nn.ReLU() if shape.kind == "translation" else nn.GELU()
        self.mlp = nn.Sequential(nn.Linear(d, shape.hidden), activation, nn.Linear(shape.hidden, d))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3 if context else 2))

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Tokens ``[n, length, embed_dim]`` to tokens of the same shape.

        Args:
            x: the tokens.
            mask: boolean ``[length, length]``, True = may attend.
            context: ``[n, others, embed_dim]``, where the block was made for one.
        """
        x = self._sublayer(x, 0, mask, None)
        if self.cross is not None:
            x = self._sublayer(x, 2, None, context)
        return self._sublayer(x, 1, None, None)

    def _sublayer(self, x: Tensor, which: int, mask: Tensor | None, context: Tensor | None) -> Tensor:
        norm = self.norms[which]
        read = norm(x) if self.norm_first else x
        if which == 1:
            out = self.mlp(read)
        elif which == 2:
            assert self.cross is not None and context is not None
            out = self.cross(read, context)
        else:
            out = self.attention(read, mask)
        total: Tensor = x + out
        return total if self.norm_first else norm(total)


class TextModel(nn.Module):
    """BERT's encoder or GPT's decoder: words and learned positions, blocks, and what its kind has at the end.

    An encoder sees all words, starts with segments and a LayerNorm, and ends with a layer on the first token; with
    ``pretraining``, logits of masked words and of the next sentence. A decoder sees earlier words only and ends with
    logits of the next word. Logits of words use the embedding's weights.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.embed_dim
        self.shape = shape
        self.word, self.position = nn.Embedding(shape.vocabulary, d), nn.Embedding(shape.context, d)
        self.blocks = nn.ModuleList(ModelBlock(shape) for _ in range(shape.depth))
        encoder = shape.kind == "encoder"
        self.segment = nn.Embedding(2, d) if encoder else None
        self.norm = nn.LayerNorm(d) if encoder or shape.norm_first else nn.Identity()
        self.pooler = nn.Sequential(nn.Linear(d, d), nn.Tanh()) if encoder else None
        if shape.pretraining:
            self.masked_word = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))
            self.word_bias = nn.Parameter(torch.zeros(shape.vocabulary))
            self.next_sentence = nn.Linear(d, 2)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Words ``[n, length]`` (all of the first segment) to two outputs.

        Returns:
            Of a decoder, tokens ``[n, length, embed_dim]`` and logits ``[n, length, vocabulary]``; of an encoder,
            tokens and the first one's layer ``[n, embed_dim]``, or with ``pretraining`` logits of words and of the next
            sentence ``[n, 2]``.
        """
        x = self.word(words) + self.position.weight[: words.shape[1]]
        if self.segment is not None:
            x = self.norm(x + self.segment.weight[0])
        mask = masks.causal(words.shape[1], device=x.device) if self.pooler is None else None
        for block in self.blocks:
            x = block(x, mask)
        if self.pooler is None:
            x = self.norm(x)
            return x, x @ self.word.weight.T
        first: Tensor = self.pooler(x[:, 0])
        if not self.shape.pretraining:
            return x, first
        return self.masked_word(x) @ self.word.weight.T + self.word_bias, self.next_sentence(first)


class TranslationModel(nn.Module):
    """Encoder and decoder of Vaswani et al. 2017; one embedding for both languages and for the logits (section 3.4)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.vocabulary, shape.embed_dim)
        self.position = nn.Buffer(sinusoidal(shape.context, shape.embed_dim), persistent=False)
        self.encoder = nn.ModuleList(ModelBlock(shape) for _ in range(shape.depth))
        self.decoder = nn.ModuleList(ModelBlock(shape, context=True) for _ in range(shape.depth))

    def forward(self, words: Tensor, translated: Tensor) -> Tensor:
        """Logits ``[n, length, vocabulary]`` of what follows ``translated`` ``[n, length]``, given ``words``
        ``[n, others]``."""
        x = self._embedded(words)
        for block in self.encoder:
            x = block(x)
        y, mask = self._embedded(translated), masks.causal(translated.shape[1], device=x.device)
        for block in self.decoder:
            y = block(y, mask, x)
        return y @ self.word.weight.T

    def _embedded(self, words: Tensor) -> Tensor:
        scaled: Tensor = self.word(words) * self.word.embedding_dim**0.5
        return scaled + self.position[: words.shape[1]]


class VisionModel(nn.Module):
    """ViT as in its paper: patches after a class token, a learned position for each, a head on the class token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.embed_dim
        self.patches = PatchEmbedding((CHANNELS, shape.side, shape.side), d, shape.patch)
        self.class_token = nn.Parameter(torch.zeros(d))
        self.position = nn.Parameter(torch.zeros(shape.tokens, d))
        self.blocks = nn.ModuleList(ModelBlock(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, shape.classes) if shape.classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, classes]``, or the class token ``[n, embed_dim]``, of images ``[n, 3, side, side]``."""
        patches = self.patches(images)
        x = torch.cat([self.class_token.expand(len(patches), 1, -1), patches], 1) + self.position
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)[:, 0])
        return out


def build_shape(shape: Shape) -> nn.Module:
    """The model of a shape; under ``torch.device("meta")`` it takes no memory, whatever its size."""
    kinds = {"vision": VisionModel, "translation": TranslationModel}
    made: nn.Module = kinds.get(shape.kind, TextModel)(shape)
    return made


def inputs_of(shape: Shape) -> tuple[Tensor, ...]:
    """One sequence of full length (of ``translation``, two), or one image, of zeros."""
    if shape.kind == "vision":
        return (torch.zeros(1, CHANNELS, shape.side, shape.side),)
    return (torch.zeros(1, shape.tokens, dtype=torch.long),) * (2 if shape.kind == "translation" else 1)
