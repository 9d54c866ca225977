"""Small pictures side by side as one Vega-Lite chart: images, and maps over them; altair is imported when one is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Distance of one picture from the next, in widths of a picture, and pixels that all may take.
ACROSS, DOWN, WIDEST = 1.06, 1.2, 400

Place = tuple[int, int]


@dataclass(frozen=True)
class Canvas:
    """Pictures in a grid, each 1 wide and high, in proportion at any width of the page.

    Args:
        across: pictures in a row.
        down: rows of pictures.
        widest: pixels that all may take together.
    """

    across: int
    down: int
    widest: int = WIDEST

    def squares(
        self, rows: pd.DataFrame, places: Iterable[Place], mark: Mapping[str, Any], *, over: float = 0.0
    ) -> Any:
        """A square for each of ``rows``, ``over`` of its side larger: the next one hides that, and the seam.

        Args:
            rows: estimates with the axes ``row`` and ``column`` in a picture; all have the same number.
            places: of each row, the picture that it belongs to: how far across and how far down, counted from 0.
            mark: properties of the squares.
            over: share of a side.
        """
        import altair as alt

        down, across = (int(rows[axis].astype(int).max()) + 1 for axis in ("row", "column"))
        found = [
            {
                "x": round(i * ACROSS + int(r["column"]) / across, 4),
                "y": round(k * DOWN + int(r["row"]) / down, 4),
                "value": round(r["estimate"], 4),
            }
            for (i, k), r in zip(places, rows.to_dict("records"), strict=True)
        ]
        return (
            alt.Chart(alt.Data(values=found))  # type: ignore[no-untyped-call]
            .transform_calculate(x2=f"datum.x + {(1 + over) / across}", y2=f"datum.y + {(1 + over) / down}")
            .mark_rect(**mark)
            .encode(x2="x2:Q", y2="y2:Q")
        )

    def grey(self, rows: pd.DataFrame, places: Iterable[Place]) -> Any:
        """Images whose estimates are 0 to 255, black to white whatever the page's colours are."""
        import altair as alt

        return self.squares(rows, places, {"tooltip": None}, over=0.1).encode(
            color=alt.Color("value:Q", legend=None).scale(domain=[0, 255], range=["black", "white"])
        )

    def frames(self, places: Iterable[Place]) -> Any:
        """A thin line about each of the pictures at ``places``, across and down."""
        return _outlines([(i * ACROSS, k * DOWN) for i, k in places], (1, 1), "var(--quiet)", 1)

    def marks(self, found: Iterable[tuple[Place, Place]], sides: Place) -> Any:
        """An outline of single squares.

        Args:
            found: of each square, the picture, across and down, and its row and column in it.
            sides: rows and columns of a picture.
        """
        rows, columns = sides
        corners = [(i * ACROSS + column / columns, k * DOWN + row / rows) for (i, k), (row, column) in found]
        return _outlines(corners, (1 / columns, 1 / rows), "var(--ink)", 2)

    def drawn(
        self, title: str, subtitle: str | Sequence[str], words: Iterable[tuple[Place, str]], *layers: Any
    ) -> Mapping[str, Any]:
        """Layers, with ``words`` above the pictures."""
        import altair as alt

        width, height = self.across * ACROSS, self.down * DOWN
        side = f"min(width, {self.widest})"
        x = alt.X("x:Q", axis=None).scale(domain=[0, width], range=[0, {"expr": side}], nice=False)
        y = alt.Y("y:Q", axis=None).scale(
            domain=[1 - DOWN, height + 1 - DOWN],
            range=[0, {"expr": f"{side} * {height / width:.4f}"}],
            nice=False,
        )
        told = [{"x": i * ACROSS + 0.5, "y": k * DOWN - 0.03, "text": text} for (i, k), text in words]
        above = alt.Chart(alt.Data(values=told))  # type: ignore[no-untyped-call]
        text = above.mark_text(baseline="bottom", fontSize=12, color="var(--ink)").encode(x=x, y=y, text="text:N")
        lines = [subtitle] if isinstance(subtitle, str) else subtitle
        spec: Mapping[str, Any] = (
            alt.layer(*(layer.encode(x=x, y=y) for layer in layers), text)
            .properties(
                title=alt.Title(title, subtitle=subtitle),
                description=f"{title}: {'; '.join(lines)}",
                height=round(self.widest * height / width),
                view=alt.ViewBackground(stroke=None),
            )
            .to_dict()
        )
        return spec


def _outlines(corners: Iterable[tuple[float, float]], size: tuple[float, float], colour: str, width: float) -> Any:
    """Empty rectangles of one size; ``corners`` are their upper left ones."""
    import altair as alt

    values = [{"x": round(x, 4), "y": round(y, 4)} for x, y in corners]
    return (
        alt.Chart(alt.Data(values=values))  # type: ignore[no-untyped-call]
        .transform_calculate(x2=f"datum.x + {size[0]}", y2=f"datum.y + {size[1]}")
        .mark_rect(filled=False, stroke=colour, strokeWidth=width, tooltip=None)
        .encode(x2="x2:Q", y2="y2:Q")
    )
