"""predecessor_cost, the torch-free half: parameters, what is counted and timed, and costs in closed form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import power_law, resnet50
from attnrepro.theory import predecessor_cost as closed

NAME = "predecessor_cost"
# Settings that reading needs beside the rows.
HIDDEN = ("fit_from",)
AXES = ("block", "places", "shape", "what", "identity", "breaker", "network")

STUDIES = ("counts", "network", "identities", "times")
COUNTED = ("flops", "scores")
# Sub-sampled forms of ``non_local``.
SUBSAMPLED = ("non_local_pooled", "non_local_as_printed")
CROSSES = ("criss_cross", "criss_cross_twice")
# Blocks whose parameters grow with the map.
WIDENING = ("low_rank",)
PLAIN, GATED = "resnet50", "se_resnet50"

# Equalities, and what must break each.
BREAKERS: dict[str, tuple[str, ...]] = {
    # Weights and outputs of a non-local block against torch's attention with scale 1.
    "is_attention": ("scaled", "dot_product"),
    # The same against torch's default scale, queries multiplied by its inverse.
    "scale_made_good": ("queries_as_they_are",),
    # What a non-local block adds to the four places of a square, sub-sampled as printed.
    "squares_alike": ("keys_pooled_only",),
    # How far the weights of channels lie outside 0 and 1.
    "unit_interval": ("without_sigmoid",),
    # Criss-cross attention commutes with permutations of rows and of columns.
    "rows_and_columns": ("any_permutation",),
    # It is attention under the mask of the cross.
    "masked_cross": ("no_mask",),
    # Non-local, SAGAN, global context, squeeze and excitation, relation and map attention commute with permutations.
    "any_permutation": ("keys_pooled", "windows"),
}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/predecessor_cost.yaml`` says what each means."""

    study: str
    channels: int
    num_heads: int
    window: int
    neighbours: int
    mixtures: int
    parents: int
    parent_dim: int
    iterations: int
    sides: list[int]
    shapes: list[str]
    draws: int
    identity_shapes: list[str]
    identity_channels: int
    reduction: int
    image_side: int
    timed_image_side: int
    timed_sides: list[int]
    fit_from: int
    pairs_longest: int
    repeats: int
    places_a_repeat: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES)
        distinct(self, "sides", "shapes", "identity_shapes", "timed_sides")
        in_range(self, channels=(48, 2**12), num_heads=(1, 2**8), window=(2, 64), neighbours=(1, 2**10))
        in_range(self, mixtures=(1, 2**10), parents=(2, 2**10), parent_dim=(1, 2**10), iterations=(1, 99))
        in_range(self, sides=(2, 2**10), draws=(1, 10**4), identity_channels=(4, 2**8), reduction=(1, 64))
        in_range(self, image_side=(32, 2**12), timed_image_side=(32, 2**12), timed_sides=(2, 2**10))
        in_range(self, fit_from=(1, 2**20), pairs_longest=(1, 2**14), repeats=(1, 10**4), places_a_repeat=(1, 2**20))
        if self.channels % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide channels={self.channels}")
        if self.identity_channels % 4:
            raise ValueError(f"identity_channels={self.identity_channels} must be a multiple of 4")
        if self.neighbours % 2 == 0:
            raise ValueError(f"neighbours={self.neighbours} must be odd")
        for name, least in (("sides", 4), ("timed_sides", 3)):
            sides = getattr(self, name)
            if sides != sorted(sides) or len(sides) < least:
                raise ValueError(f"{name}={sides} must be {least} or more, from small to large")
            for side in sides:
                if side % 2 or side % self.window:
                    raise ValueError(f"{name}={side} must be even and a multiple of window={self.window}")
        if sum(side**2 >= self.fit_from for side in self.timed_sides) < 3:
            raise ValueError(f"fit_from={self.fit_from} must leave three sizes or more to fit")
        for shape in self.shapes:
            extent(shape)
        for shape in self.identity_shapes:
            if any(side % 2 or side < 4 for side in extent(shape, "identity_shapes")):
                raise ValueError(f"identity_shapes={shape} must have even sides of 4 or more")

    @property
    def block_sizes(self) -> closed.Sizes:
        """Sizes of all blocks."""
        names = closed.Sizes._fields
        return closed.Sizes(*(getattr(self, name) for name in names))


def extent(shape: str, name: str = "shapes") -> tuple[int, int]:
    """``height x width`` as two numbers.

    Raises:
        ValueError: another form, or a side of 1 (nothing is off the cross there) or of four digits.
    """
    if not re.fullmatch(r"[1-9]\d{0,2}x[1-9]\d{0,2}", shape) or min(map(int, shape.split("x"))) < 2:
        raise ValueError(f"{name}={shape} must be height x width of 2 or more each, as in 8x16")
    height, width = map(int, shape.split("x"))
    return height, width


def timed(p: Params, block: str) -> list[int]:
    """Sides that a block is timed at: a relation module keeps what it says of every pair."""
    return [side for side in p.timed_sides if block != "relation" or side**2 <= p.pairs_longest]


def calls(p: Params, places: int) -> int:
    """Calls of one repeat."""
    return max(1, p.places_a_repeat // places)


def fitted(what: str) -> list[str]:
    """Blocks whose FLOPs or scores have an exponent."""
    return [block for block in closed.BLOCKS if what == "flops" or block not in closed.WITHOUT_SCORES]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "times":
        pairs = sum(side**4 + 2_000 * side**2 for side in p.timed_sides)
        images = (p.timed_image_side / 224) ** 2
        return 1.0 + len(cell.seeds) * p.repeats * (pairs * 5e-8 + images)
    return 1.0 + p.draws * len(p.identity_shapes) * 0.05 if p.study == "identities" else 5.0


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Costs in closed form (``attnrepro.theory.predecessor_cost`` and ``resnet50``)."""
    made = {"counts": _counts, "network": _network, "identities": _identities, "times": _times}
    return [Row(name, value, axes, "theory", "exact") for name, value, axes in made[cell.params.study](cell.params)]


Made = Iterator[tuple[str, float, dict[str, object]]]


def _counts(p: Params) -> Made:
    s = p.block_sizes
    for block in closed.BLOCKS:
        for side in p.sides:
            at: dict[str, object] = {"block": block, "places": side**2}
            cost = closed.cost(block, side, side, s)
            if block in WIDENING:
                yield "parameters", cost.parameters, at
            elif side == p.sides[0]:
                yield "parameters", cost.parameters, {"block": block}
            yield "flops", cost.flops, at
            yield "scores", closed.scores(block, side, side, s), at
    for what in COUNTED:
        for block in fitted(what):
            yield "exponent", closed.powers(block, what)[0], {"block": block, "what": what}
            last = (p.sides[-2] ** 2, p.sides[-1] ** 2)
            values = [
                closed.cost(block, side, side, s).flops if what == "flops" else closed.scores(block, side, side, s)
                for side in p.sides[-2:]
            ]
            local = power_law.local_exponent(last, (values[0], values[1]))
            yield "local_exponent", local, {"block": block, "what": what, "places": last[1]}
    for block in SUBSAMPLED:
        for side in p.sides:
            at = {"block": block, "places": side**2}
            ratio = closed.scores("non_local", side, side, s) / closed.scores(block, side, side, s)
            yield "scores_ratio", ratio, at
            yield "pairwise_ratio", ratio, at
            yield "query_share", 1 if block == "non_local_pooled" else 1 / 4, at
    for shape in p.shapes:
        height, width = extent(shape)
        for block in CROSSES:
            at = {"block": block, "shape": shape}
            passes = CROSSES.index(block) + 1
            yield "scores", closed.scores(block, height, width, s), at
            yield "scores_over_printed", passes, at
            yield "off_cross_reach", passes - 1, at
        yield "used_weights", closed.used_weights(height, width), {"block": "criss_cross", "shape": shape}


def _network(p: Params) -> Made:
    plain, added = (resnet50.parameters(), resnet50.flops(p.image_side)), resnet50.gate_parameters(p.reduction)
    flops = resnet50.gate_flops(p.reduction)
    for network, more in ((PLAIN, (0, 0)), (GATED, (added, flops))):
        yield "parameters", plain[0] + more[0], {"network": network}
        yield "flops", plain[1] + more[1], {"network": network}
    yield "parameters_share", added / plain[0], {"network": GATED}
    yield "flops_share", flops / plain[1], {"network": GATED}
    operations = flops + 2 * resnet50.gate_entries(p.image_side)
    yield "operations_share", operations / plain[1], {"network": GATED}


def _identities(p: Params) -> Made:
    for identity, breakers in BREAKERS.items():
        for breaker in breakers:
            yield "breaking_share", 1, {"identity": identity, "breaker": breaker}
    for what, value in (("smallest", 0), ("largest", 1)):
        yield "channel_weight", value, {"block": "squeeze_excitation", "what": what}


def _times(p: Params) -> Made:
    yield "fit_from", p.fit_from, {}
