"""Well-known transformers as lists of sizes, and their parameters and FLOPs in closed form.

Sizes are those of the papers (and of the published vocabularies); what a paper leaves open says so beside its entry.
FLOPs are those of the products of one forward pass of one sequence of full length, two for each multiply-add.
"""

from dataclasses import dataclass, replace

from attnrepro.theory.image_models import check_attention, patch_grid

KINDS = ("encoder", "decoder", "translation", "vision")
CHANNELS = 3


@dataclass(frozen=True)
class Shape:
    """Sizes of one model.

    ``kind``: an encoder of text with segments and a LayerNorm on its embeddings (BERT); a decoder with a causal mask
    (GPT); encoder and decoder of ``depth`` blocks each, with fixed positions and without biases in attention
    (``translation``, Vaswani et al. 2017); an encoder of image patches with a class token (``vision``). ``hidden``:
    units of a block's MLP. ``context``: tokens; of images it follows from ``side`` and ``patch``. Logits over the
    vocabulary use the embedding's weights again. ``pretraining``: the two heads of BERT's pre-training. ``classes`` 0:
    no head on an image model.

    Raises ``ValueError`` for sizes that do not fit each other.
    """

    kind: str
    depth: int
    embed_dim: int
    num_heads: int
    hidden: int
    vocabulary: int = 0
    context: int = 0
    norm_first: bool = True
    pretraining: bool = False
    side: int = 224
    patch: int = 0
    classes: int = 1000

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind} must be one of {', '.join(KINDS)}")
        check_attention(self.embed_dim, self.num_heads, "none", "class")
        sizes = {"depth": self.depth, "hidden": self.hidden}
        sizes |= {"patch": self.patch} if self.kind == "vision" else {"vocabulary": self.vocabulary}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if self.tokens < 1:
            raise ValueError(f"context={self.context} must be 1 or more")

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence; of an image its patches and the class token."""
        if self.kind != "vision":
            return self.context
        rows, columns = patch_grid((CHANNELS, self.side, self.side), self.patch)
        return rows * columns + 1

    @property
    def head_dim(self) -> int:
        """Components of a query, a key or a value."""
        return self.embed_dim // self.num_heads


def _gpt(depth: int, embed_dim: int, num_heads: int, context: int) -> Shape:
    return Shape("decoder", depth, embed_dim, num_heads, 4 * embed_dim, vocabulary=50257, context=context)


def _bert(depth: int, embed_dim: int, num_heads: int) -> Shape:
    # Vocabulary of bert-base-uncased; two segments.
    shape = Shape("encoder", depth, embed_dim, num_heads, 4 * embed_dim, vocabulary=30522, context=512)
    return replace(shape, norm_first=False)


def _vit(depth: int, embed_dim: int, num_heads: int, patch: int) -> Shape:
    return Shape("vision", depth, embed_dim, num_heads, 4 * embed_dim, patch=patch)


def _translation(embed_dim: int, num_heads: int) -> Shape:
    # "About 37000 tokens"; the length of a sentence is free.
    shape = Shape("translation", 6, embed_dim, num_heads, 4 * embed_dim, vocabulary=37000, context=512)
    return replace(shape, norm_first=False)


# Vaswani et al. 2017, table 3; Radford et al. 2018, section 4.1; Devlin et al. 2019, section 3; Radford et al. 2019,
# table 2; Brown et al. 2020, table 2.1 (where 24 heads of 128 do not make 2048 components, nor 40 of 128 5140: there
# the number of heads follows the width, and the width the heads); Dosovitskiy et al. 2021, table 1.
MODELS: dict[str, Shape] = {
    "transformer_base": _translation(512, 8),
    "transformer_big": _translation(1024, 16),
    "gpt": Shape("decoder", 12, 768, 12, 3072, vocabulary=40478, context=512, norm_first=False),
    "bert_base": _bert(12, 768, 12),
    "bert_large": _bert(24, 1024, 16),
    "gpt2": _gpt(12, 768, 12, 1024),
    "gpt2_medium": _gpt(24, 1024, 16, 1024),
    "gpt2_large": _gpt(36, 1280, 20, 1024),
    "gpt2_xl": _gpt(48, 1600, 25, 1024),
    "gpt3_small": _gpt(12, 768, 12, 2048),
    "gpt3_medium": _gpt(24, 1024, 16, 2048),
    "gpt3_large": _gpt(24, 1536, 16, 2048),
    "gpt3_xl": _gpt(24, 2048, 16, 2048),
    "gpt3_2.7b": _gpt(32, 2560, 32, 2048),
    "gpt3_6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3_13b": _gpt(40, 5120, 40, 2048),
    "gpt3_175b": _gpt(96, 12288, 96, 2048),
    "vit_b16": _vit(12, 768, 12, 16),
    "vit_l16": _vit(24, 1024, 16, 16),
    "vit_l32": _vit(24, 1024, 16, 32),
    "vit_h14": _vit(32, 1280, 16, 14),
}
# Other ways to count: with BERT's heads of pre-training, with the vocabulary of the first GPT, without the image head,
# at the printed width (its heads halved, which changes no parameter).
VARIANTS = ("", "pretraining", "gpt_vocabulary", "no_head", "printed_width")
GPT_VOCABULARY = 40478
PRINTED_WIDTH = {"gpt3_13b": (5140, 20)}


def shape_of(model: str, variant: str = "") -> Shape:
    """Sizes of a model by name, counted in one of ``VARIANTS``.

    Raises:
        ValueError: an unknown name, or a variant that the model does not have.
    """
    if model not in MODELS:
        raise ValueError(f"model={model} must be one of {', '.join(MODELS)}")
    shape = MODELS[model]
    if variant == "":
        return shape
    if variant == "pretraining" and shape.kind == "encoder":
        return replace(shape, pretraining=True)
    if variant == "gpt_vocabulary" and shape.kind == "decoder":
        return replace(shape, vocabulary=GPT_VOCABULARY)
    if variant == "no_head" and shape.kind == "vision":
        return replace(shape, classes=0)
    if variant == "printed_width" and model in PRINTED_WIDTH:
        width, heads = PRINTED_WIDTH[model]
        return replace(shape, embed_dim=width, num_heads=heads, hidden=4 * width)
    raise ValueError(f"variant={variant} must be one that model={model} has")


def block_parameters(shape: Shape) -> int:
    """All blocks: four projections of every attention, two layers of the MLP, a LayerNorm for each sublayer."""
    d, biased = shape.embed_dim, shape.kind != "translation"
    attention = 4 * d * d + (4 * d if biased else 0)
    mlp = 2 * d * shape.hidden + shape.hidden + d
    if not biased:
        return shape.depth * (3 * attention + 2 * mlp + 5 * 2 * d)
    return shape.depth * (attention + mlp + 2 * 2 * d)


def parameters(shape: Shape) -> int:
    """All trainable parameters, shared ones once."""
    d, total = shape.embed_dim, block_parameters(shape)
    if shape.kind == "vision":
        total += (CHANNELS * shape.patch**2 + 1) * d + (1 + shape.tokens) * d + 2 * d + (d + 1) * shape.classes
        return total
    total += shape.vocabulary * d
    if shape.kind == "translation":
        return total
    total += shape.context * d
    if shape.kind == "encoder":
        # Segments and their LayerNorm; a layer on the first token.
        total += 2 * d + 2 * d + d * d + d
        if shape.pretraining:
            total += d * d + d + 2 * d + shape.vocabulary + 2 * d + 2
        return total
    return total + (2 * d if shape.norm_first else 0)


def attention_units(shape: Shape) -> int:
    """Attention maps of one pass: heads of all layers, of the decoder of ``translation`` twice, for both attentions."""
    return shape.num_heads * shape.depth * (3 if shape.kind == "translation" else 1)


def score_flops(shape: Shape) -> int:
    """Dot products of queries and keys, and sums of values, over all layers: 4 n² d each."""
    attentions = attention_units(shape) // shape.num_heads
    return attentions * 4 * shape.tokens**2 * shape.embed_dim


def flops(shape: Shape) -> int:
    """One forward pass of one sequence of full length; of ``translation``, of as many tokens on either side."""
    n, d = shape.tokens, shape.embed_dim
    attentions = attention_units(shape) // shape.num_heads
    mlps = shape.depth * (2 if shape.kind == "translation" else 1)
    total = score_flops(shape) + attentions * 2 * n * 4 * d * d + mlps * 2 * n * 2 * d * shape.hidden
    if shape.kind == "vision":
        return total + 2 * (n - 1) * CHANNELS * shape.patch**2 * d + 2 * d * shape.classes
    if shape.kind == "encoder":
        total += 2 * d * d
        if not shape.pretraining:
            return total
        total += 2 * n * d * d + 2 * 2 * d
    return total + 2 * n * d * shape.vocabulary
