"""Heat maps, fits and crossings: every square from a row, sorted axes, what is coloured, pale or outlined."""

import json
import math

import pandas as pd
import pytest

from attnrepro.results.charts import crossed, curves, fitted, grid, panel, rates


def _frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    usual = {"quantity": "lead", "n": 3, "n_failed": 0, "ci_low": float("nan"), "ci_high": float("nan")}
    return pd.DataFrame([{**usual, **row} for row in rows])


def _squares(spec: object) -> dict[tuple[str, str], dict[str, object]]:
    """Data of a heat map by the values of its axes, wherever altair put them."""
    assert isinstance(spec, dict)
    json.dumps(spec, allow_nan=False)
    values = spec.get("data", spec["layer"][0].get("data"))["values"]
    x, y = (spec["layer"][0]["encoding"][axis]["field"] for axis in "xy")
    return {(value[x], value[y]): value for value in values}


def _leads() -> pd.DataFrame:
    return _frame(
        [
            {"n_train": "1000", "q": "0.5", "estimate": 0.4, "ci_low": 0.3, "ci_high": 0.5},
            {"n_train": "100", "q": "0.5", "estimate": -0.2, "ci_low": -0.5, "ci_high": 0.1},
            {"n_train": "100", "q": "0.9", "estimate": -0.2, "ci_low": -0.3, "ci_high": -0.1},
            {"n_train": "1000", "q": "0.9", "estimate": 0.0, "ci_low": 0.0, "ci_high": 0.0},
            {"n_train": "10", "q": "0.9", "estimate": 0.9, "n": 0},
        ]
    )


def _lead_map() -> object:
    return grid(_leads(), "n_train", "q", title="lead", x_title="images", y_title="cue", of="difference", zero=0.0)


def test_a_square_for_each_row_that_was_measured_with_its_number() -> None:
    squares = _squares(_lead_map())
    texts = {place: square["text"] for place, square in squares.items()}
    assert texts == {
        ("1000", "0.5"): "+.400",
        ("100", "0.5"): "-.200",
        ("100", "0.9"): "-.200",
        ("1000", "0.9"): "+.000",
    }


def test_two_colours_from_zero_and_pale_where_the_interval_holds_it() -> None:
    squares = _squares(_lead_map())
    assert squares["1000", "0.5"]["side"] == "above" and squares["100", "0.9"]["side"] == "below"
    assert squares["1000", "0.5"]["strength"] == 1.0 and squares["100", "0.9"]["strength"] == 0.5
    assert squares["100", "0.5"]["strength"] == 0.125, "the same value, but its interval holds zero"
    assert squares["1000", "0.9"]["strength"] == 0.0


def test_numbers_are_sorted_as_numbers() -> None:
    spec = _lead_map()
    assert isinstance(spec, dict)
    encoding = spec["layer"][0]["encoding"]
    assert encoding["x"]["sort"] == ["100", "1000"], "as words 1000 would stand first"
    assert encoding["y"]["sort"] == ["0.9", "0.5"], "the largest on top"


def test_without_a_level_the_more_colour_the_larger_each_kind_for_itself() -> None:
    frame = _frame(
        [
            {"x": "1", "y": "a", "estimate": 10.0},
            {"x": "2", "y": "a", "estimate": 30.0},
            {"x": "1", "y": "b", "estimate": 0.5},
            {"x": "2", "y": "b", "estimate": 0.25},
        ]
    )
    told = {"title": "t", "x_title": "x", "y_title": None, "of": "z"}
    alone = _squares(grid(frame, "x", "y", within="y", **told))  # type: ignore[arg-type]
    assert [alone[p]["strength"] for p in (("1", "a"), ("2", "a"), ("1", "b"), ("2", "b"))] == [0, 1, 1, 0]
    together = _squares(grid(frame, "x", "y", **told))  # type: ignore[arg-type]
    assert together["2", "a"]["strength"] == 1 and together["1", "b"]["strength"] < 0.02
    least = _squares(grid(frame, "x", "y", best="smallest", **told))  # type: ignore[arg-type]
    assert least["2", "a"]["strength"] == 0 and least["2", "b"]["strength"] == 1
    assert alone["1", "a"]["text"] == "10.000" and alone["1", "b"]["text"] == ".500"


def test_equal_values_have_no_range_to_divide_by() -> None:
    frame = _frame([{"x": x, "y": "a", "estimate": 2.0} for x in "12"])
    squares = _squares(grid(frame, "x", "y", title="t", x_title="x", y_title=None, of="z"))
    assert all(square["strength"] == 0 for square in squares.values())


def test_no_rows_no_chart() -> None:
    empty = _leads().iloc[:0]
    assert grid(empty, "n_train", "q", title="t", x_title="x", y_title=None, of="z") is None
    assert rates(empty.assign(learning_rate=""), "q", title="t") is None


def _search(**changes: object) -> pd.DataFrame:
    rows = [
        {"model": "cnn", "learning_rate": "0.01", "weight_decay": "0.5", "estimate": 0.7},
        {"model": "cnn", "learning_rate": "0.01", "weight_decay": "0.05", "estimate": 0.8},
        {"model": "cnn", "learning_rate": "0.002", "weight_decay": "0.5", "estimate": 0.9, **changes},
        {"model": "vit", "learning_rate": "0.01", "weight_decay": "0.5", "estimate": 0.3},
        {"model": "vit", "learning_rate": "0.01", "weight_decay": "0.05", "estimate": 0.2},
        {"model": "vit", "learning_rate": "", "weight_decay": "", "estimate": 0.99},
    ]
    return _frame(rows)


def _outlined(spec: object) -> set[tuple[str, str]]:
    return {place for place, square in _squares(spec).items() if square["marked"]}


def test_the_best_pair_of_each_model_is_outlined_and_results_are_no_search() -> None:
    spec = rates(_search(), "model", title="search")
    assert _outlined(spec) == {("0.002", "cnn, 0.5"), ("0.01", "vit, 0.5")}
    assert len(_squares(spec)) == 5
    assert isinstance(spec, dict)
    assert spec["layer"][0]["encoding"]["y"]["sort"] == [*("cnn, 0.05", "cnn, 0.5", "vit, 0.05", "vit, 0.5")]


def test_a_pair_with_a_diverged_seed_is_not_the_best() -> None:
    assert ("0.01", "cnn, 0.05") in _outlined(rates(_search(n_failed=1), "model", title="search"))


def test_of_errors_the_smallest_is_best() -> None:
    spec = rates(_search(), "model", title="search", best="smallest", of="error")
    assert _outlined(spec) == {("0.01", "cnn, 0.5"), ("0.01", "vit, 0.05")}


@pytest.mark.parametrize("decay", ["0.5", None])
def test_one_weight_decay_is_not_named(decay: str | None) -> None:
    frame = _search().drop(columns="weight_decay")
    frame = frame.iloc[[0, 2, 3]] if decay is None else frame.iloc[[0, 2, 3]].assign(weight_decay=decay)
    assert {y for _, y in _squares(rates(frame, "model", title="t"))} == {"cnn", "vit"}


def test_narrow_squares_have_no_point() -> None:
    frame = _frame([{"x": str(x), "y": "a", "estimate": x / 10} for x in range(9)])
    told = {"title": "t", "x_title": "x", "y_title": None, "of": "z"}
    spec = grid(frame, "x", "y", **told)  # type: ignore[arg-type]
    assert spec is not None and spec["title"]["subtitle"] == ["in thousandths"]
    assert _squares(spec)["3", "a"]["text"] == "300"


def _lines() -> pd.DataFrame:
    rows = [(n, name, value) for name, value in (("a", 0.5), ("b", 0.7)) for n in ("100", "1000", "10000")]
    return _frame([{"n_train": n, "model": name, "estimate": value} for n, name, value in rows])


def _crossing(**changes: object) -> pd.DataFrame:
    return _frame([{"what": "a = b", "estimate": 400.0, "ci_low": 300.0, "ci_high": 500.0, **changes}])


def _marks(crossings: pd.DataFrame) -> list[dict[str, object]]:
    told = {"title": "t", "x_title": "x", "y_title": "y", "log": True}
    spec = curves(_lines(), "n_train", "model", crossings=crossings, **told)  # type: ignore[arg-type]
    assert spec is not None
    json.dumps(spec, allow_nan=False)
    found = [layer for layer in spec["layer"] if "datasets" not in layer and "data" in layer]
    return [layer["data"]["values"][0] for layer in found if "crossing" in layer["data"]["values"][0]]


def test_a_crossing_has_a_band_a_rule_and_words() -> None:
    marks = _marks(_crossing())
    assert len(marks) == 3 and marks[0]["crossing"] == "a = b: 400 [300, 500]"
    assert (marks[0]["from"], marks[0]["at"], marks[0]["to"]) == (300.0, 400.0, 500.0)
    assert marks[0]["words"] == "a = b: 400"
    (own,) = {mark["words"] for mark in _marks(_crossing(model="a"))}
    assert own == "400", "its colour says of which line"


@pytest.mark.parametrize("changes", [{"estimate": 20.0}, {"ci_high": 9000.0}, {"n": 0}, {"estimate": float("nan")}])
def test_a_crossing_outside_or_anywhere_is_not_marked(changes: dict[str, object]) -> None:
    assert crossed(_crossing(**changes), 100.0, 10000.0, x_title="x") == []


def test_fits_are_lines_from_where_they_were_fitted() -> None:
    told = {"title": "t", "said": "s", "x_title": "x", "y_title": "y"}
    spec = fitted(_lines(), "n_train", "model", {"a": lambda n: n / 4}, since=1000.0, **told)
    assert spec is not None
    points, lines = (layer["data"]["values"] for layer in spec["layer"])
    assert len(points) == 6
    own = [(p["n_train"], p["estimate"]) for p in lines if p["model"] == "a"]
    assert own[0] == (1000.0, 250.0) and own[-1] == (10000.0, 2500.0)
    other = [(p["n_train"], p["estimate"]) for p in lines if p["model"] == "b"]
    assert other == [(100.0, 0.7), (1000.0, 0.7), (10000.0, 0.7)], "without a fit through the points"
    assert fitted(_lines().iloc[:0], "n_train", "model", {}, **told) is None


def test_a_panel_draws_what_its_rows_have() -> None:
    import altair as alt

    whole = pd.DataFrame({"d": [1.0, 2.0], "what": "a", "estimate": [1.0, 2.0], "theory": [1.0, math.nan]})
    ends = whole.assign(ci_low=[0.9, 1.9], ci_high=[1.1, 2.1], published=[math.nan, 2.0])

    def styles(rows: pd.DataFrame) -> list[str]:
        spec = panel(rows, alt.X("d:Q"), alt.Y("estimate:Q", title="value"), "a title", ["a"])
        assert spec["layer"][-1]["encoding"]["y"]["title"] == "value"
        return [layer["mark"]["style"] for layer in spec["layer"]]

    assert styles(ends) == ["theory", "interval", "measured", "published"]
    assert styles(whole) == ["theory", "measured"]
    assert styles(ends.assign(theory=math.nan, published=math.nan)) == ["interval", "measured"]
