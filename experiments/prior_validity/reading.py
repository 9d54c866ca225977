"""prior_validity, read: differences paired by seed, controls, the answer and the pictures. Makes no row of a cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import curves, records
from attnrepro.results.pictures import Canvas
from attnrepro.tables.prior_validity.table import AXES, moved_side

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

# Pixels of the pictures, not shown in the table.
HIDDEN = ("map_",)

# An equality holds to so many eps of the largest logit; what breaks it does so by so many, and by this share of it.
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
BROKEN_SHARE = 0.01
# From so many images on every model has to label half of the intact test images right, a tenth being chance.
TRAINED_FROM, TRAINED = 1000, 0.5
# How far a mean loss whose expectation is 0 may lie from it, beside 4 standard errors.
NO_LOSS = 0.01

# Number of images that the answer and two charts speak of, where it was measured.
ANSWERED_AT = "10000"

WORDS = {"none": "intact", "pixel": "pixels permuted"}
FAMILIES = {"cnn": "CNN", "vit": "ViT", "mlp": "MLP"}
NO_POSITION = " without positions"

Line = Mapping[str, Any]
# Data, permutation and number of images; of a model also its name.
Place = tuple[str, str, str]


def word(permutation: str) -> str:
    """A permutation in words."""
    side = moved_side(permutation) or 1
    return WORDS.get(permutation, f"{side} x {side} patches permuted")


def short(name: str) -> str:
    """A model in words."""
    base = name.removesuffix(NO_POSITION)
    return FAMILIES.get(base.partition("_")[0], base) + name[len(base) :]


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Differences between models, what each loses by a permutation, and how much more one loses than another."""
    found = accuracies(frame)
    result: list[dict[str, object]] = []
    for place in dict.fromkeys(place for place, _ in found):
        data, permutation, n_train = place
        names = [name for at, name in found if at == place]
        intact = (data, "none", n_train)
        for name in names if permutation != "none" else ():
            if (intact, name) in found:
                loss = difference("permutation_loss", place, name, "", found[intact, name], found[place, name])
                result.append({**loss, "theory": 0.0 if indifferent(name, permutation) else math.nan})
        for a, b in pairs(names):
            here = found[place, a], found[place, b]
            result.append(difference("accuracy_difference", place, a, b, *here))
            if permutation == "none":
                continue
            if a == "cnn":
                result.append(difference("lead_reversed", place, a, b, *reversed(here)))
            if (intact, a) in found and (intact, b) in found:
                whole = found[intact, a], found[intact, b]
                result.append(difference("double_difference", place, a, b, *whole, *reversed(here)))
    return result


def accuracies(frame: pd.DataFrame) -> dict[tuple[Place, str], Line]:
    """Accuracies over seeds by place and name of the model."""
    rows = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")]
    return {
        ((r["data"], r["permutation"], r["n_train"]), r["model"] + NO_POSITION * (r["position"] == "none")): r
        for r in rows.to_dict("records")
    }


def pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Which models are compared: each with each, one without positions with itself alone."""
    ranked = sorted(names, key=lambda name: ([*FAMILIES].index(name.partition("_")[0]), name))
    for a, b in itertools.combinations(ranked, 2):
        if NO_POSITION not in a + b or b == a + NO_POSITION:
            yield a, b


def indifferent(name: str, permutation: str) -> bool:
    """Whether a permuted start of the model is as likely as the start itself: then it loses nothing on average.

    Columns of an MLP and position rows of a ViT start independent and alike, and training treats each alike.
    """
    side = moved_side(permutation)
    return name.startswith("mlp") or name.removesuffix(NO_POSITION).endswith(f"_patch{side}")


def difference(quantity: str, place: Place, model: str, against: str, *terms: Line) -> dict[str, object]:
    """The first of ``terms`` minus the second, plus the third minus the fourth, over the seeds that all have."""
    from attnrepro import stats

    by_seed = [term["by_seed"] for term in terms]
    common = [seed for seed in by_seed[0] if all(seed in values for values in by_seed)]
    values = [sum((-1) ** k * each[seed] for k, each in enumerate(by_seed)) for seed in common]
    total = max(term["n"] + term["n_failed"] for term in terms)
    position = "" if not model.startswith("vit") else "none" if model.endswith(NO_POSITION) else "learned"
    line: dict[str, object] = dict(zip(("data", "permutation", "n_train"), place, strict=True))
    line |= {"model": model.removesuffix(NO_POSITION), "position": position, "against": against}
    line |= {"quantity": quantity, "statistic": "paired_difference", "theory": math.nan, "sd": math.nan}
    line |= {"n": len(values), "n_failed": total - len(values), "estimate": math.nan}
    if values:
        interval = stats.mean_interval(values)
        line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high}
        line |= {"seeds": tuple(values), "by_seed": dict(zip(common, values, strict=True))}
    if len(values) > 1:
        line["sd"] = math.sqrt(sum((v - interval.value) ** 2 for v in values) / (len(values) - 1))
    return line


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors are in eps of the largest logit already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_anchor_controls(frame), *_training_controls(frame)]


def _anchor_controls(frame: pd.DataFrame) -> Iterator[str]:
    least = {"breakage_eps": BROKEN_EPS, "breakage_relative": BROKEN_SHARE}
    for r in frame[frame.anchor != ""].itertuples():
        at = f"{r.quantity} of {r.anchor} is {r.estimate:.3g}" + f" at shape={r.shape}" * bool(r.shape)
        if r.quantity == "error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"{at}: at most {HOLDS_EPS:g} eps is round-off"
        if r.quantity in least and not r.estimate >= least[r.quantity]:
            yield f"{at}, below {least[r.quantity]:g}: what must break the symmetry did not"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    for ((data, permutation, n_train), name), r in accuracies(frame).items():
        at = f"{short(name)}, {n_train} images of {data}, {word(permutation)}"
        if r["n_failed"]:
            yield f"{at}: {r['n_failed']} of {r['n'] + r['n_failed']} trainings diverged"
        if r["n"] and permutation == "none" and int(n_train) >= TRAINED_FROM and r["estimate"] < TRAINED:
            yield f"{at}: accuracy {r['estimate']:.3f} is below {TRAINED:g}, too little training"
    for r in frame[(frame.quantity == "permutation_loss") & (frame.theory == 0) & (frame.n > 1)].itertuples():
        allowed = NO_LOSS + 4 * r.sd / math.sqrt(r.n)
        if not abs(r.estimate) <= allowed:
            yield (
                f"{short(r.model)}, {r.n_train} images of {r.data}, {word(r.permutation)}: it loses {r.estimate:.4f},"
                f" more than {allowed:.4f}, by what is the same task to it: are all images permuted alike?"
            )


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    lines = frame.to_dict("records")
    sizes = sorted({r["n_train"] for r in lines if r["quantity"] == "accuracy_difference"}, key=int)
    words: list[str] = []
    if sizes:
        at = ANSWERED_AT if ANSWERED_AT in sizes else sizes[-1]
        words += [*_told(lines, at), *_order_in_words(lines, at), *_loss_in_words(lines, at)]
    if len(sizes) > 1:
        words += _sizes_in_words(lines, sizes)
    return " ".join([*words, *_anchors_in_words(lines)])


def _told(lines: Sequence[Line], n_train: str) -> Iterator[str]:
    """Whether the CNN's lead over the MLP is gone or turned without locality, and how much of it that took."""
    sides = {
        permutation: r
        for permutation in ("none", "pixel")
        for r in _pick(
            lines, "accuracy_difference", n_train=n_train, permutation=permutation, model="cnn", against="mlp"
        )
    }
    if len(sides) < 2:
        return
    intact, moved = sides["none"], sides["pixel"]
    more = next(
        _pick(lines, "double_difference", n_train=n_train, permutation="pixel", model="cnn", against="mlp"), None
    )
    if intact["ci_low"] > 0:
        if moved["ci_low"] > 0:
            word = "the CNN keeps a lead over the MLP without locality"
        elif moved["ci_high"] < 0:
            word = "the CNN's lead over the MLP turns without locality"
        else:
            word = "the CNN's lead over the MLP is gone without locality, and whether it turns is open"
    else:
        word = "the CNN has no lead over the MLP that locality could give it"
    took = ""
    if more is not None and intact["ci_low"] > 0:
        sure = (
            "locality takes with it" if more["ci_low"] > 0 else "what goes with locality is not seen to differ from 0,"
        )
        took = f"; {sure} {signed(more)}"
    yield (
        f"{word[0].upper()}{word[1:]}: CNN less MLP is {signed(intact)} on intact images and {signed(moved)} with all"
        f" pixels permuted alike ({n_train} images, {intact['n']} seeds){took}."
    )


def _pick(lines: Sequence[Line], quantity: str, **axes: str) -> Iterator[Line]:
    """Lines of a quantity that have an estimate."""
    for r in lines:
        if r["quantity"] == quantity and r["n"] and all(r[name] == value for name, value in axes.items()):
            yield r


def signed(r: Line) -> str:
    """A difference with its interval."""
    interval = "" if math.isnan(r["ci_low"]) else f" [{r['ci_low']:+.4f}, {r['ci_high']:+.4f}]"
    return f"{r['estimate']:+.4f}{interval}"


def _pair(r: Line) -> str:
    return f"{short(r['model'] + NO_POSITION * (r['position'] == 'none'))} - {short(r['against'])}"


def _order_in_words(lines: Sequence[Line], n_train: str) -> Iterator[str]:
    parts: list[str] = []
    sides: dict[str, Line] = {}
    for permutation in ("none", "pixel"):
        found = list(_pick(lines, "accuracy_difference", n_train=n_train, permutation=permutation))
        if found:
            parts.append(f"{word(permutation)} {', '.join(f'{_pair(r)} {signed(r)}' for r in found)}")
        for r in found:
            if (r["model"], r["against"]) == ("cnn", "mlp"):
                sides[permutation] = r
    if parts:
        first = next(_pick(lines, "accuracy_difference", n_train=n_train))
        failed = max(r["n_failed"] for r in lines if r["quantity"] == "accuracy_difference")
        count = f"{first['n']} seed" + "s" * (first["n"] > 1)
        lost = f", up to {failed} failed" if failed else ""
        yield (f"Accuracy on {n_train} images of {first['data']} ({count}, paired by seed{lost}): {'; '.join(parts)}.")
    if len(sides) == 2:
        yield _turn(sides["none"], sides["pixel"])


def _turn(intact: Line, moved: Line) -> str:
    """Whether the order of CNN and MLP turns, or why that cannot be said."""
    open_ = [word(r["permutation"]) for r in (intact, moved) if not (r["ci_low"] > 0 or r["ci_high"] < 0)]
    if open_:
        return (
            f"The interval of CNN - MLP {' and '.join(open_)} includes 0: {intact['n']} seeds do not show whether their"
            " order turns."
        )
    if intact["ci_low"] > 0 > moved["ci_high"]:
        return "So the CNN is ahead of the MLP while its assumption holds, and behind it when locality is gone."
    if intact["ci_low"] > 0:
        return "So the CNN keeps its lead over the MLP without locality."
    return "So the CNN is behind the MLP with locality too, and the claim fails at this size."


def _loss_in_words(lines: Sequence[Line], n_train: str) -> Iterator[str]:
    for permutation in dict.fromkeys(r["permutation"] for r in _pick(lines, "permutation_loss", n_train=n_train)):
        found = _pick(lines, "permutation_loss", n_train=n_train, permutation=permutation)
        losses = [
            f"{short(r['model'] + NO_POSITION * (r['position'] == 'none'))} {signed(r)}"
            + " (0 on average, by symmetry)" * (r["theory"] == 0)
            for r in found
        ]
        more = _pick(lines, "double_difference", n_train=n_train, permutation=permutation, model="cnn", against="mlp")
        double = "".join(f"; the CNN more than the MLP by {signed(r)}" for r in more)
        yield f"What is lost, {word(permutation)}: {', '.join(losses)}{double}."


def _sizes_in_words(lines: Sequence[Line], sizes: Sequence[str]) -> Iterator[str]:
    for permutation in ("none", "pixel"):
        found = [
            f"{signed(r)} at {n_train}"
            for n_train in sizes
            for r in _pick(
                lines, "accuracy_difference", n_train=n_train, permutation=permutation, model="cnn", against="mlp"
            )
        ]
        if found:
            yield f"CNN - MLP against the number of images, {word(permutation)}: {', '.join(found)}."


def _anchors_in_words(lines: Sequence[Line]) -> Iterator[str]:
    errors = [r for r in _pick(lines, "error_eps", shape="") if r["anchor"]]
    broken = list(_pick(lines, "breakage_relative", shape=""))
    if errors and broken:
        largest, least = max(r["estimate"] for r in errors), min(r["estimate"] for r in broken)
        yield (
            "A ViT with its position rows permuted like the patches, one without positions and an MLP with its columns"
            f" permuted like the pixels are the same functions up to {largest:.1f} eps of the"
            f" largest logit ({errors[0]['n']} draws each); position rows that stay, or a kernel on permuted pixels,"
            f" change logits by {least:.2f} of it or more."
        )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy and differences by permutation, differences against the number of images, and the pictures."""
    return [
        chart
        for chart in (
            _accuracy_chart(frame),
            _difference_chart(frame),
            _size_chart(frame),
            _examples(frame),
            _attention(frame),
        )
        if chart
    ]


def _shown(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Lines of a quantity at the number of images that the answer speaks of, with words for both axes."""
    rows = frame[(frame.quantity == quantity) & (frame.n > 0)].copy()
    if len(rows):
        sizes = set(rows.n_train)
        rows = rows[rows.n_train == (ANSWERED_AT if ANSWERED_AT in sizes else max(sizes, key=int))]
        rows["moved"] = rows.permutation.map(word)
        rows["who"] = [short(r.model + NO_POSITION * (r.position == "none")) for r in rows.itertuples()]
    return rows


def _by_permutation(rows: pd.DataFrame, series: str, title: str, axis: str, zero: bool) -> Mapping[str, Any] | None:
    import altair as alt

    if rows.empty:
        return None
    order = list(dict.fromkeys(rows.moved))
    columns = ["moved", series, "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column in ('moved', series) else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(  # type: ignore[no-untyped-call]
        y=alt.Y("moved:N", title=None, sort=order).axis(labelLimit=140),
        yOffset=alt.YOffset(f"{series}:N", sort=list(dict.fromkeys(rows[series]))),
        color=alt.Color(f"{series}:N", title=None, sort=list(dict.fromkeys(rows[series]))),
    )
    layers: list[Any] = [
        base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q").scale(zero=False), x2="ci_high:Q"),
        base.mark_point(style="measured").encode(
            x=alt.X("estimate:Q", title=axis).scale(zero=False).axis(tickCount=5), tooltip=tip
        ),
    ]
    if zero:
        level = alt.Chart(alt.Data(values=[{"level": 0}]))  # type: ignore[no-untyped-call]
        layers.insert(0, level.mark_rule(style="theory").encode(x=alt.X("level:Q", title=axis)))
    spec: Mapping[str, Any] = (
        alt.layer(*layers).properties(title=title, description=f"{title}: {axis}, by what was permuted").to_dict()
    )
    return spec


def _accuracy_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = _shown(frame, "accuracy")
    size = rows.n_train.iloc[0] if len(rows) else ""
    return _by_permutation(rows, "who", f"{size} training images", "accuracy on test images", zero=False)


def _difference_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = _shown(frame, "accuracy_difference")
    if len(rows):
        rows["pair"] = [_pair(r) for r in rows.to_dict("records")]
    return _by_permutation(rows, "pair", "who is ahead", "difference of accuracies, paired by seed", zero=True)


def _size_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = frame[
        (frame.quantity == "accuracy_difference") & (frame.model == "cnn") & (frame.against == "mlp") & (frame.n > 0)
    ].copy()
    if rows.n_train.nunique() < 2:
        return None
    rows["moved"] = rows.permutation.map(word)
    return curves(
        rows,
        "n_train",
        "moved",
        title="lead of the CNN over the MLP",
        x_title="training images",
        y_title="difference of accuracies",
        log=True,
        zero=0.0,
    )


# --- pictures ---


class Pictures:
    """Test images side by side, intact above permuted."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.rows = frame[frame.quantity.isin(("map_grey", "map_attention")) & (frame.n > 0)]
        self.images = sorted(dict.fromkeys(self.rows.image), key=lambda name: int(name.partition(" ")[0]))
        self.kinds = sorted(dict.fromkeys(self.rows.permutation), key=lambda name: name != "none")
        self.canvas = Canvas(len(self.images), len(self.kinds))

    def of(self, quantity: str) -> tuple[pd.DataFrame, list[tuple[int, int]]]:
        """Rows of a quantity, and the picture that each belongs to."""
        rows = self.rows[self.rows.quantity == quantity]
        return rows, [(self.images.index(r.image), self.kinds.index(r.permutation)) for r in rows.itertuples()]

    def drawn(self, title: str, subtitle: str, *layers: Any) -> Mapping[str, Any]:
        """The images and layers over them, each picture under its name."""
        words = [
            ((i, k), image if kind == "none" else word(kind))
            for i, image in enumerate(self.images)
            for k, kind in enumerate(self.kinds)
        ]
        return self.canvas.drawn(title, subtitle, words, self.canvas.grey(*self.of("map_grey")), *layers)


def _examples(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    pictures = Pictures(frame)
    if pictures.rows.empty:
        return None
    return pictures.drawn("test images, intact and permuted", "mean grey of 2 x 2 pixels")


def _attention(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    pictures = Pictures(frame)
    if "map_attention" not in set(pictures.rows.quantity):
        return None
    tint = pictures.canvas.squares(*pictures.of("map_attention"), {"color": "var(--series-2)"}).encode(
        opacity=alt.Opacity("value:Q", title="share of attention", legend=alt.Legend(tickCount=3)).scale(
            range=[0, 0.8]
        ),
        tooltip=alt.Tooltip("value:Q", title="share of attention"),
    )
    told = frame[frame.quantity == "map_accuracy"]
    right = [f"{r.estimate:.2f} {word(r.permutation)}" for r in told.itertuples()]
    subtitle = f"last layer; validation accuracy {', '.join(right)}"
    return pictures.drawn("attention that each patch receives", subtitle, tint)
