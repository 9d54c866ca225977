"""The list of claims: which ids the documents give rise to, where each one is printed, and which table owns it."""

import csv
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnrepro.results.published import NOT_MEASURED

CLAIM_COLUMNS = ("claim", "document", "section", "table")


@dataclass(frozen=True)
class Claim:
    """One number or statement of a document; ``table`` is empty until it is decided who measures it."""

    claim: str
    document: str
    section: str
    table: str


def load_claims(path: Path) -> dict[str, Claim]:
    """``results/claims.csv``, in the order of the documents.

    Raises:
        ValueError: wrong columns, a blank field or an id that stands there twice, with the line number.
    """
    found: dict[str, Claim] = {}
    for number, values in _lines(path, CLAIM_COLUMNS):
        claim = Claim(*values)
        if not (claim.claim and claim.document and claim.section):
            raise ValueError(f"line {number}: claim, document and section must not be empty")
        if claim.claim in found:
            raise ValueError(f"line {number}: claim {claim.claim} stands here twice")
        found[claim.claim] = claim
    return found


def register_problems(
    claims: Mapping[str, Claim], answers: Mapping[str, Sequence[str]], tables: Collection[str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with the files of ``results/published`` as a register: (name of the file without .csv, what).

    Every claim that is listed for a table in ``tables`` stands in exactly one file, that of its table or
    ``not_measured``. A table may answer claims that are listed for none yet, and claims of its own; an id that is
    nearly one that nobody answers is a slip of the pen. ``answers`` has the ids of each file by its name.
    """
    aside = Path(NOT_MEASURED).stem
    owner: dict[str, str] = {}
    open_claims = claims.keys() - {claim for ids in answers.values() for claim in ids}
    for name, ids in answers.items():
        for claim in ids:
            if owner.setdefault(claim, name) != name:
                yield name, f"claim {claim} also stands in {owner[claim]}.csv"
            if claim not in claims:
                if near := difflib.get_close_matches(claim, open_claims, n=1, cutoff=0.85):
                    yield name, f"claim {claim} is not in results/claims.csv; did you mean {near[0]}?"
            elif name not in (aside, claims[claim].table) and claims[claim].table:
                yield name, f"claim {claim} is listed in results/claims.csv for {claims[claim].table}"
    for listed in claims.values():
        if listed.table in tables and listed.claim not in owner:
            yield (
                listed.table,
                f"claim {listed.claim} (document {listed.document}) is missing, here and in {NOT_MEASURED}",
            )


def _lines(path: Path, columns: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, [])) != columns:
            raise ValueError(f"line 1: the columns must be {', '.join(columns)}")
        lines = [(reader.line_num, values) for values in reader]
    for number, values in lines:
        if len(values) != len(columns):
            raise ValueError(f"line {number}: {len(values)} values for {len(columns)} columns")
    return lines
