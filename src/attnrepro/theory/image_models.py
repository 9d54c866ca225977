"""Image models on paper: presets, what fits an image, parameters and FLOPs in closed form.

A FLOP count is that of the products in one forward pass of one image, two for each multiply-add; biases, norms,
softmax and activations are left out, as torch's ``FlopCounterMode`` does.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# Channels, height and width.
ImageShape = tuple[int, int, int]

STEM = 5  # side and
STEM_STRIDE = 2  # stride of a CNN's first kernel
GROUPS = 8  # of channels, of a GroupNorm

POSITIONS = ("none", "learned", "sinusoidal", "sinusoidal_2d", "rotary")
POOLINGS = ("mean", "class")
NORMS = ("batch", "group")
HEADS = ("mean", "flatten")
PADDINGS = ("zeros", "circular")

# Family and settings by name. The counts are for images of 1 x 28 x 28 and 10 classes.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    # 77 818 parameters, 5.20 MFLOP; its last map sees the whole image.
    "cnn": ("cnn", {"widths": (16, 32, 64), "strides": (1, 2, 2)}),
    # The same parameters on a finer last map: shifts by 4 pixels are shifts of that map.
    "cnn_circular": ("cnn", {"widths": (16, 32, 64), "strides": (1, 2, 1), "padding": "circular"}),
    # 14 002 parameters, 5.20 MFLOP: as costly as the CNN, since a narrow field needs a fine map.
    "cnn_additive": ("cnn_additive", {"widths": (24, 48)}),
    # 71 946 parameters, 2.33 MFLOP, 16 tokens.
    "vit_patch7": ("vit", {"patch": 7, "embed_dim": 64, "depth": 2, "num_heads": 4}),
    # 60 634 parameters, 6.88 MFLOP, 49 tokens.
    "vit_patch4": ("vit", {"patch": 4, "embed_dim": 48, "depth": 3, "num_heads": 4}),
    # For images of 8 x 8: 69 066 parameters, 16 tokens.
    "vit_patch2": ("vit", {"patch": 2, "embed_dim": 64, "depth": 2, "num_heads": 4}),
    # Any other patch is a setting of this one.
    "vit": ("vit", {"patch": 4, "embed_dim": 64, "depth": 2, "num_heads": 4}),
    # 79 750 parameters, 0.16 MFLOP.
    "mlp": ("mlp", {"hidden": (90, 90)}),
    "logistic_regression": ("mlp", {"hidden": ()}),
    # 94 734 parameters, 9.74 MFLOP.
    "mixer_patch4": (
        "mixer",
        {"patch": 4, "embed_dim": 64, "depth": 4, "token_hidden": 64, "channel_hidden": 128},
    ),
}
# Settings that change neither count.
FREE = ("dropout", "fused")


class Cost(NamedTuple):
    """Trainable parameters, and FLOPs of one forward pass of one image."""

    parameters: int
    flops: int


def settings_of(name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Family of a preset, and its settings after the given ones took their place.

    Raises:
        ValueError: an unknown name, or another patch for a preset that names its patch.
    """
    if name not in PRESETS:
        raise ValueError(f"model={name} must be one of {', '.join(PRESETS)}")
    if "_patch" in name and "patch" in settings:
        raise ValueError(f"patch={settings['patch']} must not be given to model={name}, which names its patch")
    family, sizes = PRESETS[name]
    return family, {**sizes, **settings}


def cost(name: str, image_shape: ImageShape, num_classes: int, **settings: Any) -> Cost:
    """Parameters and FLOPs of a preset, with the settings that ``attnrepro.nn.presets.build_model`` takes.

    Raises:
        ValueError: what does not fit the image or each other, in the sentence that ``build_model`` would raise.
    """
    family, sizes = settings_of(name, settings)
    count: dict[str, Callable[..., Cost]]
    count = {"cnn": cnn, "cnn_additive": cnn_additive, "vit": vit, "mlp": mlp, "mixer": mixer}
    return count[family](image_shape, num_classes, **{k: v for k, v in sizes.items() if k not in FREE})


def patch_grid(image_shape: ImageShape, patch: int | Sequence[int]) -> tuple[int, int]:
    """Rows and columns of patches; ``patch`` is a side, or height and width.

    Raises:
        ValueError: a patch that does not divide the image. (A convolution of that stride would drop the rest.)
    """
    _, height, width = image_shape
    patch_height, patch_width = patch_sides(patch)
    if min(patch_height, patch_width) < 1 or height % patch_height or width % patch_width:
        shown = f"{patch_height}x{patch_width}"
        raise ValueError(f"patch={shown} must divide the image, which is {height} high and {width} wide")
    return height // patch_height, width // patch_width


def patch_sides(patch: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of a patch."""
    if isinstance(patch, int):
        return patch, patch
    height, width = patch
    return height, width


def check_attention(embed_dim: int, num_heads: int, position: str, pooling: str) -> None:
    """Raise ``ValueError`` unless the sizes and choices of a ViT fit each other."""
    if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
        raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
    check_choice("position", position, POSITIONS)
    check_choice("pooling", pooling, POOLINGS)
    if position == "rotary" and embed_dim // num_heads % 4:
        raise ValueError(f"embed_dim={embed_dim} must be a multiple of 4 x num_heads={num_heads} for rotary positions")
    if position == "sinusoidal_2d" and embed_dim % 2:
        raise ValueError(f"embed_dim={embed_dim} must be even for sinusoids of rows and columns")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value} must be one of {', '.join(choices)}")


def check_cnn(
    image_shape: ImageShape, widths: Sequence[int], strides: Sequence[int], norm: str, head: str, padding: str
) -> None:
    """Raise ``ValueError`` unless the sizes and choices of a CNN fit each other and the image."""
    check_choice("norm", norm, NORMS)
    check_choice("head", head, HEADS)
    check_choice("padding", padding, PADDINGS)
    if not widths or len(strides) != len(widths):
        raise ValueError(f"strides={tuple(strides)} must be one for each of widths={tuple(widths)}, at least one")
    if norm == "group" and any(width % GROUPS for width in widths):
        raise ValueError(f"widths={tuple(widths)} must be multiples of {GROUPS} for norm=group")
    stride = STEM_STRIDE * math.prod(strides)
    _, height, width = image_shape
    if padding == "circular" and (height % stride or width % stride):
        # The steps would not go round the torus in whole numbers, and no shift would be a symmetry.
        raise ValueError(f"padding=circular must have an image that stride {stride} divides, not {height}x{width}")


def vit(
    image_shape: ImageShape,
    num_classes: int,
    *,
    patch: int | Sequence[int],
    embed_dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: int = 2,
    norm_first: bool = True,
    position: str = "learned",
    pooling: str = "mean",
) -> Cost:
    """Cost of ``attnrepro.nn.vit.ViT``; heads, norms and fixed positions multiply nothing."""
    check_attention(embed_dim, num_heads, position, pooling)
    patches = math.prod(patch_grid(image_shape, patch))
    pixels, d, hidden = image_shape[0] * math.prod(patch_sides(patch)), embed_dim, mlp_ratio * embed_dim
    with_class = pooling == "class"
    tokens = patches + with_class
    embedding = linear(pixels, d, patches)
    added = (patches * d if position == "learned" else 0) + (d if with_class else 0)
    norms = 2 * d * (2 * depth + norm_first)
    parts = [linear(d, d, tokens)] * 4 + [linear(d, hidden, tokens), linear(hidden, d, tokens)]
    # Every token by every token, once for the logits and once for the values, whatever the heads.
    attention = Cost(0, 2 * 2 * tokens * tokens * d)
    return total(embedding, Cost(added + norms, 0), *[*parts, attention] * depth, linear(d, num_classes))


def mixer(
    image_shape: ImageShape,
    num_classes: int,
    *,
    patch: int | Sequence[int],
    embed_dim: int,
    depth: int,
    token_hidden: int,
    channel_hidden: int,
) -> Cost:
    """Cost of ``attnrepro.nn.mlp.MLPMixer``."""
    tokens = math.prod(patch_grid(image_shape, patch))
    pixels, d = image_shape[0] * math.prod(patch_sides(patch)), embed_dim
    mixing = [linear(tokens, token_hidden, d), linear(token_hidden, tokens, d)]
    mixing += [linear(d, channel_hidden, tokens), linear(channel_hidden, d, tokens)]
    norms = Cost(2 * d * (2 * depth + 1), 0)
    return total(linear(pixels, d, tokens), *mixing * depth, norms, linear(d, num_classes))


def mlp(image_shape: ImageShape, num_classes: int, *, hidden: Sequence[int]) -> Cost:
    """Cost of ``attnrepro.nn.mlp.MLP``."""
    sizes = [math.prod(image_shape), *hidden, num_classes]
    return total(*(linear(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)))


def cnn(
    image_shape: ImageShape,
    num_classes: int,
    *,
    widths: Sequence[int],
    strides: Sequence[int],
    norm: str = "batch",
    head: str = "mean",
    padding: str = "zeros",
) -> Cost:
    """Cost of ``attnrepro.nn.cnn.ResNet``."""
    check_cnn(image_shape, widths, strides, norm, head, padding)
    channels, *sides = image_shape
    parts = [convolution(channels, widths[0], STEM, sides := strided(sides, STEM_STRIDE)), scale(widths[0])]
    before = widths[0]
    for width, stride in zip(widths, strides, strict=True):
        sides = strided(sides, stride)
        parts += [convolution(before, width, 3, sides), scale(width), convolution(width, width, 3, sides), scale(width)]
        if stride > 1 or width != before:
            parts.append(convolution(before, width, 1, sides))
        before = width
    return total(*parts, linear(before * (math.prod(sides) if head == "flatten" else 1), num_classes))


def cnn_additive(image_shape: ImageShape, num_classes: int, *, widths: Sequence[int]) -> Cost:
    """Cost of ``attnrepro.nn.cnn.AdditiveCNN``."""
    channels, *sides = image_shape
    sides = strided(sides, STEM_STRIDE)
    first, second = widths
    kernels = [(channels, first, STEM), (first, second, 3), (second, second, 1)]
    parts = [part for a, b, k in kernels for part in (convolution(a, b, k, sides), scale(b))]
    return total(*parts, linear(second, num_classes))


def linear(inputs: int, outputs: int, times: int = 1) -> Cost:
    """A linear layer with bias, applied ``times`` times to an image."""
    return Cost(inputs * outputs + outputs, 2 * inputs * outputs * times)


def convolution(inputs: int, outputs: int, side: int, sides: Sequence[int]) -> Cost:
    """A square kernel without bias; ``sides`` are those of its output."""
    weights = inputs * outputs * side**2
    return Cost(weights, 2 * weights * math.prod(sides))


def scale(width: int) -> Cost:
    """Gain and offset of each channel, of any norm."""
    return Cost(2 * width, 0)


def strided(sides: Sequence[int], stride: int) -> list[int]:
    """Sides of a map after a step of an odd kernel that is padded by half its side."""
    return [(side - 1) // stride + 1 for side in sides]


def total(*parts: Cost) -> Cost:
    """Sum of costs."""
    return Cost(sum(part.parameters for part in parts), sum(part.flops for part in parts))
