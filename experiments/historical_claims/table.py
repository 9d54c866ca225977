"""historical_claims: the bibliography, and months between first versions by their arXiv numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from attnrepro import paths
from attnrepro.config import Cell
from attnrepro.results.rows import Row
from attnrepro.theory import references

NAME = "historical_claims"
AXES = ("place", "work", "field", "against")
FILE = "bibliography.yaml"


@dataclass
class Params:
    """Which bibliography: the first digits of the sha256 of its file."""

    bibliography: str

    def __post_init__(self) -> None:
        found = digest()
        if self.bibliography != found:
            raise ValueError(f"bibliography={self.bibliography} must be {found}, as results/published/{FILE} is now")


def digest() -> str:
    """12 hex digits of the sha256 of the file."""
    return hashlib.sha256((paths.published_dir() / FILE).read_bytes()).hexdigest()[:12]


def bibliography() -> references.Bibliography:
    """What is checked and what is printed."""
    return references.load(paths.published_dir() / FILE)


def theory(cell: Cell) -> list[Row]:
    """Months by which a work follows another one, from the numbers of the preprints."""
    known = bibliography()
    return [
        Row(
            "months_after",
            references.numbered_month(known.works[work]) - references.numbered_month(known.works[against]),
            {"work": work, "against": against},
            source="theory",
            statistic="exact",
            unit="months",
        )
        for work, against in known.orders
    ]
