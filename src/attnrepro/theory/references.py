"""A bibliography, what documents print of it, and what follows from both: agreement field by field, order of works.

The file is ``results/published/bibliography.yaml``. Printed months and those of an arXiv number are two witnesses of
when a work first appeared: since April 2007 the first four digits of the number are its year and month.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnrepro.config import load_yaml

# Fields whose printed items must all be among those that are known of the work.
LISTS = ("affiliations", "datasets", "builds_on", "base", "logits", "aggregation", "discusses")
FIELDS = ("authors", "title", "venue", "volume", "year", "month", "award", "section", *LISTS)
_ARXIV = re.compile(r"(\d{2})(0[1-9]|1[0-2])\.\d{4,5}")
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_PLACE = re.compile(r"(00[0-4]) \S.*")


@dataclass(frozen=True)
class Work:
    """A checked reference: names are ``Surname, Given``, ``confirmed`` says in words where it was looked up."""

    key: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    confirmed: str
    arxiv: str = ""
    first_version: str = ""
    volume: str = ""
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As it is cited: ``Cao et al. 2019``, ``Yuan and Wang 2018``."""
        names = [author.partition(",")[0] for author in self.authors]
        return f"{' and '.join(names) if len(names) < 3 else f'{names[0]} et al.'} {self.year}"


@dataclass(frozen=True)
class Printed:
    """One detail of a work as a document prints it, and the claim that it belongs to."""

    claim: str
    place: str
    work: str
    field: str
    value: Any
    et_al: bool = False


@dataclass(frozen=True)
class Bibliography:
    """Works by key, printed details, and what else is known: honoured titles, sections, orders that are asked for."""

    works: Mapping[str, Work]
    printed: tuple[Printed, ...]
    awards: Mapping[str, Sequence[str]]
    sections: Mapping[str, Mapping[str, str]]
    orders: tuple[tuple[str, str], ...]

    def agrees(self, one: Printed) -> bool:
        """Whether the reference bears out a printed detail.

        Names may be cut short with ``et_al`` and given names to initials, a title at its colon; a year may be that of
        the venue or of the first version; a list must be part of what is known.
        """
        work = self.works[one.work]
        if one.field in LISTS:
            return set(one.value) <= set(work.facts[one.field])
        if one.field == "authors":
            return _same_authors(one.value, work.authors, et_al=one.et_al)
        if one.field == "title":
            return _words(one.value) in (_words(work.title), _words(work.title.partition(":")[0]))
        if one.field == "award":
            return _words(work.title) in map(_words, self.awards[one.value])
        if one.field == "section":
            return self.sections[one.place[:3]].get(one.value) == one.work
        known: dict[str, list[object]] = {
            "venue": [f"{work.venue} {work.year}"],
            "volume": [work.volume],
            "year": [work.year, *([int(work.first_version[:4])] if work.first_version else [])],
            "month": [work.first_version],
        }
        return one.value in known[one.field]


def load(path: Path) -> Bibliography:
    """The bibliography of a file.

    Raises:
        ValueError: a field that is missing, unknown or not of its form, or a work that is not listed, with its key.
    """
    data = load_yaml(path)
    works = {str(key): _work(str(key), dict(entry)) for key, entry in data["works"].items()}
    printed = tuple(one for entry in data["printed"] for one in _printed(dict(entry)))
    orders = tuple((work, against) for against, later in data["orders"].items() for work in later)
    sections = {document: dict(listed) for document, listed in data["sections"].items()}
    awards = {name: list(entry["titles"]) for name, entry in data["awards"].items()}
    named = [*(one.work for one in printed), *(key for pair in orders for key in pair)]
    named += [work for listed in sections.values() for work in listed.values()]
    for key in named:
        if key not in works:
            raise ValueError(f"{path.name}: {key} is not among the works")
    at = [(one.place, one.work, one.field) for one in printed]
    if twice := next((place for place in at if at.count(place) > 1), None):
        raise ValueError(f"{path.name}: {' '.join(twice)} is printed twice")
    for one in printed:
        if one.field in LISTS and one.field not in works[one.work].facts:
            raise ValueError(f"{path.name}: {one.claim} prints {one.field} of {one.work}, of which none are known")
    for key in {key for pair in orders for key in pair}:
        if not (works[key].arxiv and works[key].first_version):
            raise ValueError(f"{path.name}: {key} is dated against another work and needs arxiv and first_version")
    return Bibliography(works, printed, awards, sections, orders)


def _work(key: str, entry: dict[str, Any]) -> Work:
    try:
        entry["authors"] = tuple(entry["authors"])
        work = Work(key, **entry)
    except (KeyError, TypeError) as error:
        raise ValueError(f"work {key}: {error}") from error
    empty = [name for name in ("authors", "title", "venue", "confirmed") if not getattr(work, name)]
    if empty:
        raise ValueError(f"work {key}: {', '.join(empty)} must not be empty")
    if unknown := set(work.facts) - set(LISTS):
        raise ValueError(f"work {key}: facts {', '.join(sorted(unknown))} must be among {', '.join(LISTS)}")
    if not all(re.fullmatch(r"[^,]+, [^,]+", author) for author in work.authors):
        raise ValueError(f"work {key}: authors={list(work.authors)} must be written Surname, Given")
    if work.arxiv and not _ARXIV.fullmatch(work.arxiv):
        raise ValueError(f"work {key}: arxiv={work.arxiv} must be a number as in 1706.03762")
    if work.first_version and not _MONTH.fullmatch(work.first_version):
        raise ValueError(f"work {key}: first_version={work.first_version} must be a month as in 2017-06")
    return work


def _printed(entry: dict[str, Any]) -> Iterator[Printed]:
    claim, place, work = (str(entry.pop(name)) for name in ("claim", "place", "work"))
    et_al = bool(entry.pop("et_al", False))
    if not _PLACE.fullmatch(place):
        raise ValueError(f"{claim}: place={place} must begin with a document, as in 004 references")
    if unknown := set(entry) - set(FIELDS):
        raise ValueError(f"{claim}: {', '.join(sorted(unknown))} must be one of {', '.join(FIELDS)}")
    for name, value in entry.items():
        yield Printed(claim, place, work, name, value, et_al)


def dated_month(work: Work) -> int:
    """Month of the first version, counted from year 0, as its dated listing gives it."""
    return _count(_MONTH.fullmatch(work.first_version), 0)


def numbered_month(work: Work) -> int:
    """The same month, from the arXiv number alone."""
    return _count(_ARXIV.fullmatch(work.arxiv), 2000)


def _count(found: "re.Match[str] | None", century: int) -> int:
    if found is None:
        raise ValueError("there is no month")
    return 12 * (century + int(found[1])) + int(found[2])


def _words(text: str) -> list[str]:
    """Letters and digits only, accents and case ignored."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.findall(r"[a-z0-9]+", plain)


def _same_authors(printed: Sequence[str], known: Sequence[str], *, et_al: bool) -> bool:
    """Whether the first names are those printed, and no more are left out than is said."""
    if len(printed) > len(known) or (len(printed) < len(known)) != et_al:
        return False
    for short, full in zip(printed, known, strict=False):
        (surname, _, initial), (last, _, given) = short.partition(","), full.partition(",")
        if _words(surname) != _words(last):
            return False
        if initial and _words(initial)[0] != _words(given)[0][0]:
            return False
    return True
