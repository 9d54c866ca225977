"""symmetry_and_capacity, the torch-free half: parameters, what must hold, and closed forms."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import receptive_field, set_functions
from attnrepro.theory import symmetry_groups as closed

NAME = "symmetry_and_capacity"
AXES = ("network", "property", "shape", "group", "against", "length", "kernel", "channels", "depth", "task")

# An equality holds to so many eps of its scale; what violates it does so by this share of the scale, 4e11 eps: the mean
# over the tokens of a U-Net moves by a hundredth of its largest output or less.
HOLDS_EPS = 32.0
BROKEN_SHARE = 1e-4
EPS = 2.0**-52

STRIDE_ONE = ("convolution_circular", "attention", "attention_relative")
COARSE = ("convolution_pooled", "convolution_strided", "unet")
OF_POSITION = ("mlp", "locally_connected", "convolution_zeros", "attention_position")


def _cells(holds: Sequence[str], broken: Sequence[str]) -> dict[str, bool]:
    return dict.fromkeys(holds, True) | dict.fromkeys(broken, False)


# The tables of assumptions: property by network, True where it must hold and False where it must not.
EXPECTED: dict[str, dict[str, bool]] = {
    "shift_equivariant": _cells(STRIDE_ONE, (*OF_POSITION, *COARSE)),
    "stride_shift_equivariant": _cells(COARSE, ()),
    "inside_shift_equivariant": _cells(["convolution_zeros"], ["locally_connected"]),
    "permutation_equivariant": _cells(
        ["attention"], (*OF_POSITION, "convolution_circular", "unet", "attention_relative")
    ),
    "shift_invariant": _cells(STRIDE_ONE, (*OF_POSITION, *COARSE)),
    "stride_shift_invariant": _cells(COARSE, ()),
    "permutation_invariant": _cells(
        ["attention"], (*OF_POSITION, "convolution_circular", *COARSE, "attention_relative")
    ),
    "unpooled_shift_invariant": _cells((), ["convolution_circular", "attention"]),
    "local": _cells(
        ["locally_connected", "convolution_circular", "convolution_zeros", *COARSE],
        ["mlp", "attention", "attention_position", "attention_relative"],
    ),
    "fixed_mixing": _cells(
        ["mlp", "locally_connected", "convolution_circular", "convolution_zeros"],
        ["attention", "attention_position", "attention_relative"],
    ),
    "length_free": _cells(
        ["convolution_circular", "convolution_zeros", *COARSE, "attention", "attention_position"],
        ["mlp", "locally_connected", "attention_relative"],
    ),
    "distance_free": _cells(["attention"], ["attention_position", "attention_relative"]),
    "repeat_invariant": _cells(["attention"], ["attention_position", "convolution_circular"]),
    "zoom_invariant": _cells((), ["patch_attention"]),
    "zoom_in_patch_invariant": _cells((), ["patch_attention"]),
    "zoom_of_flat_patches_invariant": _cells(["patch_attention"], ()),
    "several_scales": _cells(["unet", "unet_without_skips"], ["convolution_circular", "attention"]),
    "detail_bypass": _cells(["unet"], ["unet_without_skips"]),
    "taps_as_heads": _cells(["convolution_circular", "convolution_zeros"], ["attention"]),
}
# Means over tokens may be close to each other by chance in a single draw.
BY_MEDIAN = tuple(name for name in EXPECTED if name.endswith("_invariant") and name != "unpooled_shift_invariant")
# How much an output changes under a shift, before and after what is said to make it insensitive.
SHIFTED = ("convolution_circular", "convolution_pooled", "convolution_strided")

# Pairs (group, against) of ratios, the larger group first.
GROUP_PAIRS = (("permutations", "shifts"), ("permutations", "none"), ("shifts", "none"))
# Which group a network's symmetry is, of those whose maps are counted.
GROUP_OF = {"attention": "permutations", "attention_position": "none"}
SPANS = ("mlp", "locally_connected", "convolution_wide", "convolution", "attention")
# (network, against, kernel): layers of as many channels whose parameters are compared.
PARAMETER_PAIRS = (
    ("convolution_2d", "attention", 3),
    ("convolution_1d", "attention", 3),
    ("depthwise_2d", "attention", 3),
)
GROWN = ("mlp", "locally_connected", "convolution_circular", "attention")
STACKS = ("stride1", "pooled", "stride_k")
FIELD_KERNEL = 3
# Networks that can do no better than guess: attention without positions sees the same multiset for either ramp, and
# two convolutions of kernel 3 do not reach what is asked for.
BLIND = {"motif": "attention", "recall": "convolution"}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/symmetry_and_capacity.yaml`` says what each means."""

    study: str
    task: str
    draws: int
    shapes: list[str]
    local_shapes: list[str]
    image_shapes: list[str]
    num_heads: int
    lengths: list[int]
    listed_most: int
    span_kernel: int
    kernels: list[int]
    channels: list[int]
    depths: list[int]
    field_length: int
    networks: list[str]
    embed_dim: int
    heads: int
    depth: int
    kernel: int
    strength: float
    learning_rate: float
    batch_size: int
    steps: int
    motif_length: int
    motif_width: int
    motif_norm: float
    motif_sequences: int
    recall_length: int
    n_test: int
    solved_at: float

    def __post_init__(self) -> None:
        one_of(self, study=("symmetry", "counts", "tasks"), task=("motif", "recall"))
        one_of(self, networks=("convolution", "convolution_wide", "attention", "attention_position"))
        distinct(self, "shapes", "local_shapes", "image_shapes", "lengths", "kernels", "channels", "depths", "networks")
        in_range(self, draws=(1, 10**6), num_heads=(1, 64), lengths=(4, 16), listed_most=(4, 9), kernels=(1, 31))
        in_range(self, span_kernel=(3, 4), channels=(1, 2**12), depths=(1, 6), field_length=(64, 2**14))
        in_range(self, embed_dim=(2, 2**10), heads=(1, 64), depth=(1, 16), kernel=(3, 3), strength=(0, 100))
        in_range(self, learning_rate=(1e-6, 1), batch_size=(1, 2**13), steps=(1, 10**6), motif_length=(8, 2**10))
        in_range(self, motif_width=(3, 99), motif_norm=(0, 100), motif_sequences=(1, 10**7), recall_length=(4, 2**10))
        in_range(self, n_test=(10, 10**8), solved_at=(0.5, 1))
        for name, value in (("span_kernel", self.span_kernel), *(("kernels", kernel) for kernel in self.kernels)):
            if value % 2 == 0:
                raise ValueError(f"{name}={value} must be odd")
        for length in self.lengths:
            if length % closed.STEP:
                raise ValueError(f"lengths={length} must be a multiple of {closed.STEP}")
        for name in ("shapes", "local_shapes"):
            for shape in getattr(self, name):
                self._check_shape(name, shape)
        for shape in self.image_shapes:
            side, patch, width = _three("image_shapes", shape)
            if side % patch or patch % 2 or side == patch or width % self.num_heads:
                raise ValueError(
                    f"image_shapes={shape} must have an even patch that divides the side, more than one of them, and"
                    f" num_heads={self.num_heads} must divide its embed_dim"
                )
        if self.embed_dim % self.heads:
            raise ValueError(f"heads={self.heads} must divide embed_dim={self.embed_dim}")
        if self.motif_width >= self.motif_length:
            raise ValueError(f"motif_width={self.motif_width} must be below motif_length={self.motif_length}")
        if self.recall_length < self.depth + 3:
            raise ValueError(f"recall_length={self.recall_length} must be at least {self.depth + 3} at this depth")
        if 2 * receptive_field.field("stride_k", FIELD_KERNEL, max(self.depths)) > self.field_length:
            raise ValueError(f"field_length={self.field_length} must be twice the largest field or more")

    def _check_shape(self, name: str, shape: str) -> None:
        length, width, kernel = _three(name, shape)
        if length % 4 or length < 8 or width % self.num_heads:
            raise ValueError(
                f"{name}={shape} must have a length of 8 or more that is a multiple of 4, and channels that"
                f" num_heads={self.num_heads} divides"
            )
        # The coarsest level of the U-Net is padded around its ring, which it must not be longer than.
        if kernel % 2 == 0 or kernel < 3 or kernel // 2 > length // 4:
            raise ValueError(f"{name}={shape} must have an odd kernel of 3 or more that fits a quarter of the length")


def _three(name: str, shape: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,2}x[1-9]\d{0,2}", shape):
        raise ValueError(f"{name}={shape} must be three numbers, as in 8x4x3")
    return sizes(shape)


def sizes(shape: str) -> tuple[int, int, int]:
    """The three numbers of a shape such as ``8x4x3``."""
    first, second, third = map(int, shape.split("x"))
    return first, second, third


def shapes_of(p: Params, name: str, network: str) -> list[str]:
    """Shapes at which a property of a network is tested."""
    if network == "patch_attention":
        return p.image_shapes
    return p.local_shapes if name == "local" else p.shapes


def reach(p: Params) -> int:
    """Positions to either side that the narrow convolutions of the tasks see."""
    return p.depth * (p.kernel // 2)


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "symmetry":
        return 1.0 + p.draws * sum(len(row) for row in EXPECTED.values()) * len(p.shapes) * 1e-3
    if p.study == "counts":
        return 2.0
    length = p.motif_length if p.task == "motif" else p.recall_length
    tokens = len(cell.seeds) * p.batch_size * p.steps * length * len(p.networks)
    return 2.0 + tokens * p.embed_dim**2 * 3e-9


# --- closed forms ---


Made = Iterator[tuple[str, float, dict[str, object]]]


def theory(cell: Cell) -> list[Row]:
    """What must hold, closed forms of every count, and the accuracy of what can only guess."""
    p = cell.params
    if p.study == "tasks":
        return list(_guesses(p))
    made = {"symmetry": _properties, "counts": _counts}[p.study](p)
    return [Row(name, value, axes, source="theory", statistic="exact") for name, value, axes in made]


def _guesses(p: Params) -> Iterator[Row]:
    axes = {"task": p.task, "network": BLIND[p.task]}
    if BLIND[p.task] in p.networks:
        yield Row("accuracy", 0.5, axes, source="theory", statistic="mean")
    if p.task == "recall":
        # Whoever sees all signs that may be asked for, and finds no key, does best by their majority.
        best = set_functions.bayes_accuracy(p.recall_length - 1 - reach(p))
        yield Row("majority_accuracy", best, {"task": p.task}, source="theory", statistic="mean")


def _properties(p: Params) -> Made:
    for name, row in EXPECTED.items():
        for network, holds in row.items():
            yield "has_property", float(holds), {"property": name, "network": network}


def _counts(p: Params) -> Made:
    for n in p.lengths:
        for group in closed.GROUPS:
            at: dict[str, object] = {"group": group, "length": n}
            yield "equivariant_dimension", closed.equivariant_dimension(group, n), at
            yield "classes", closed.binary_classes(group, n), at
            if n <= p.listed_most:
                yield "group_size", closed.group_size(group, n), at
        for group, against in GROUP_PAIRS:
            at = {"group": group, "against": against, "length": n}
            for quantity, count in (
                ("dimension_ratio", closed.equivariant_dimension),
                ("classes_ratio", closed.binary_classes),
            ):
                yield quantity, count(group, n) / count(against, n), at
        if n <= p.listed_most:
            at = {"group": "shifts", "against": "permutations", "length": n}
            yield "share_of_group", closed.group_size("shifts", n) / closed.group_size("permutations", n), at
            yield "outside_group", 0, at
        for layer in SPANS:
            at = {"network": layer, "length": n, "kernel": p.span_kernel}
            yield "span_dimension", closed.span_dimension(layer, n, p.span_kernel), at
            yield "span_share", closed.span_dimension(layer, n, p.span_kernel) / n**2, at
        for network, group in GROUP_OF.items():
            yield "distance_ratio", closed.distance_ratio(group, n), {"network": network, "length": n}
    for kernel in p.kernels:
        yield "neighbours", closed.neighbours(kernel), {"kernel": kernel}
        yield "neighbourhoods", 1, {"kernel": kernel}
    for d in p.channels:
        for network, against, kernel in PARAMETER_PAIRS:
            at = {"network": network, "against": against, "kernel": kernel, "channels": d}
            yield "parameter_ratio", _parameters(network, d, kernel) / _parameters(against, d, kernel), at
    for network in GROWN:
        growth = {"mlp": 4, "locally_connected": 2}.get(network, 1)
        yield "parameters_growth", growth, {"network": network}
    for stack in STACKS:
        fields = [receptive_field.field(stack, FIELD_KERNEL, depth) for depth in p.depths]
        for depth, field in zip(p.depths, fields, strict=True):
            yield "receptive_field", field, {"network": stack, "kernel": FIELD_KERNEL, "depth": depth}
        if len(fields) > 1:
            steps = [after - before for before, after in itertools.pairwise(fields)]
            yield "field_gain", min(steps), {"network": stack, "kernel": FIELD_KERNEL}


def _parameters(network: str, d: int, kernel: int) -> int:
    """Weights of a layer from d to d channels, without biases."""
    if network == "attention":
        return 4 * d * d
    if network == "depthwise_2d":
        return kernel * kernel * d + d * d
    return d * d * (kernel * kernel if network == "convolution_2d" else kernel)
