"""position_strength, the torch-free half: parameters and theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

NAME = "position_strength"
AXES = (
    *("study", "protocol", "encoding", "placement", "strength", "length", "embed_dim"),
    *("n_train", "learning_rate", "steps", "loss", "part"),
)
# What each study varies; the other axes of its rows are blank, unless the command line gives them several values.
STUDIES = {
    "strength": ("protocol", "placement", "strength"),
    "published": ("protocol", "placement", "strength"),
    "alternatives": ("encoding", "strength", "steps"),
    "budget": ("placement", "strength", "n_train", "learning_rate", "steps"),
    "population": ("placement", "strength", "loss"),
    "size": ("strength", "length", "embed_dim"),
    "codes": ("strength", "length", "embed_dim"),
}
# Codes added to the tokens: they have a strength and can be kept out of the values.
ADDED = ("sinusoidal", "one_hot_first", "one_hot_last", "one_hot_unit", "orthogonal", "gaussian", "layer_norm")
# Encodings with a strength that stand beside the tokens, are learned, or act on the logits.
SCALED = ("learned", "concat_sinusoidal", "concat_one_hot", "alibi_near", "alibi_far")
# Encodings that have no strength.
FREE = ("logit_bias", "rotary", "rotary_key_bias")
PLACEMENTS = ("keys_values", "keys")
# Rows of codes, as many as the code has components.
SQUARE = ("one_hot_unit", "orthogonal", "concat_one_hot")
# Tokens of the document's task.
TASK_LENGTH = 8


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/position_strength.yaml`` says what each means."""

    study: str
    protocol: str
    encoding: list[str]
    placement: list[str]
    strength: list[float]
    length: list[int]
    embed_dim: list[int]
    n_train: list[float]
    n_test: int
    optimizer: str
    learning_rate: list[float]
    steps: list[int]
    cooldown: float
    batch_size: int
    loss: list[str]
    n_draws: int

    def __post_init__(self) -> None:
        one_of(self, study=tuple(STUDIES), encoding=(*ADDED, *SCALED, *FREE), placement=PLACEMENTS)
        one_of(self, optimizer=("adam", "gradient_descent"), loss=("cross_entropy", "smooth_error"))
        distinct(self, "encoding", "placement", "strength", "length", "embed_dim", "n_train")
        distinct(self, "learning_rate", "steps", "loss")
        in_range(self, strength=(0, 1e4), length=(1, 4096), embed_dim=(1, 4096), n_test=(1, 10**8))
        in_range(self, learning_rate=(0, 1e3), steps=(1, 10**7), cooldown=(0, 1), batch_size=(1, 10**6))
        in_range(self, n_train=(1, math.inf), n_draws=(0, 10**9))
        if any(math.isfinite(n) and not (float(n).is_integer() and n <= 1e9) for n in self.n_train):
            raise ValueError(f"n_train={self.n_train} must be whole numbers up to 1e9, or inf")
        if self.study == "codes" and (self.n_draws < 2 or any(d % 2 for d in self.embed_dim)):
            raise ValueError("study=codes needs n_draws of at least 2 and an even embed_dim, where |p|² is d/2")
        for encoding in self.encoding:
            for length in self.length:
                for embed_dim in self.embed_dim:
                    _fits(encoding, length, embed_dim)


def _fits(encoding: str, length: int, embed_dim: int) -> None:
    size = f"length={length} and embed_dim={embed_dim}"
    if encoding in (*SQUARE, "one_hot_first", "one_hot_last") and length > embed_dim:
        raise ValueError(f"encoding={encoding} needs a component for each position, which {size} do not give")
    if encoding.startswith("rotary") and embed_dim % 2:
        raise ValueError(f"encoding={encoding} turns pairs of components: embed_dim={embed_dim} must be even")


def shown(p: Params) -> set[str]:
    """Axes that the rows of a cell fill in."""
    listed = ("encoding", "placement", "strength", "length", "embed_dim", "n_train", "learning_rate", "steps", "loss")
    return {"study", *STUDIES[p.study], *(name for name in listed if len(getattr(p, name)) > 1)}


def members(p: Params, encoding: str) -> list[dict[str, object]]:
    """Settings that a seed of one encoding is trained with side by side, as axes of their rows."""
    if encoding in FREE:
        return [{}]
    placements = p.placement if encoding in ADDED else [""]
    return [{"strength": s, **({"placement": at} if at else {})} for at in placements for s in p.strength]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning: 5 ns a step, sequence, position and member at 16 dimensions."""
    p = cell.params
    if p.study == "codes":
        return 1e-5 * p.n_draws * len(cell.seeds)
    count = sum(len(members(p, encoding)) for encoding in p.encoding) * len(p.learning_rate) * len(p.loss)
    work = sum(
        length * (0.7 + d / 50) * (count * n * max(p.steps) + 2 * count * p.n_test * len(p.steps) / 3)
        for length in p.length
        for d in p.embed_dim
        for n in (n if math.isfinite(n) else p.batch_size * (1 + 16 / count) for n in p.n_train)
    )
    return 5e-9 * work * len(cell.seeds)


def theory(cell: Cell) -> list[Row]:
    """Exact facts about the sinusoid, and the limit of linear values without positions."""
    from attnrepro.theory import position_codes
    from attnrepro.theory.set_functions import mean_sign_accuracy

    p = cell.params

    def row(quantity: str, value: float, statistic: str = "exact", **axes: object) -> Row:
        return Row(quantity, value, {"study": p.study, **axes}, source="theory", statistic=statistic)

    result = []
    sizes = [{"length": length, "embed_dim": d} for length in p.length for d in p.embed_dim]
    if p.study in ("size", "codes"):
        for size in sizes:
            if size["length"] > 1:
                result.append(row("margin", position_codes.margin(position_codes.sinusoid(**size)), **size))
    if p.study == "codes":
        for size in sizes:
            result += [row("code_rms", position_codes.rms(size["embed_dim"]), **size), row("code_max", 1.0, **size)]
            for strength in p.strength:
                for part, share in shares(strength).items():
                    at = {**size, "strength": strength, "part": part}
                    result.append(row("logit_share", share, "share", **at))
                ratio = math.sqrt(2) / strength if strength else math.inf
                if math.isfinite(ratio):
                    result.append(row("content_to_position", ratio, "value", **size, strength=strength))
    if p.study == "population" and 0 in p.strength and "cross_entropy" in p.loss and p.length == [TASK_LENGTH]:
        for placement in p.placement:
            at = {"placement": placement, "strength": 0.0, "loss": "cross_entropy"}
            result.append(row("test_accuracy", mean_sign_accuracy(p.length[0]), "mean", **at))
    return result


def shares(strength: float) -> dict[str, float]:
    """Shares of the logit's power: of self-attention by pairs of parts, and of one learned query."""
    from attnrepro.theory.position_codes import logit_power_shares, query_logit_shares

    pair, query = logit_power_shares(strength), query_logit_shares(strength)
    names = ("content_content", "content_position", "position_content", "position_position")
    return {**dict(zip(names, pair, strict=True)), "query_content": query[0], "query_position": query[1]}
