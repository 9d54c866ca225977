"""The list of claims of the five documents is what it was when they were read: no id goes, none moves."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from attnrepro.results.claims import Claim, load_claims

REGISTER = Path(__file__).parents[2] / "results" / "claims.csv"
# Ids and documents alone: which table answers a claim is decided later.
SHA256 = "928eb10e2813d9c36c302dc7187e3ec45ee3e2dd46288fb6ba532b674003be44"


def fingerprint(claims: dict[str, Claim]) -> str:
    """sha256 over the sorted lines ``id,document``."""
    return hashlib.sha256("".join(sorted(f"{c.claim},{c.document}\n" for c in claims.values())).encode()).hexdigest()


def test_every_claim_of_the_documents_is_listed_once() -> None:
    claims = load_claims(REGISTER)
    ids = [line.partition(",")[0] for line in REGISTER.read_text(encoding="utf-8").splitlines()[1:]]
    assert len(ids) == len(set(ids)) == len(claims) == 381
    assert Counter(c.document for c in claims.values()) == {"000": 129, "001": 26, "002": 61, "003": 41, "004": 124}


def test_no_id_and_no_document_has_changed(tmp_path: Path) -> None:
    assert fingerprint(load_claims(REGISTER)) == SHA256
    for old, new in (
        ("s0-conv-24-neighbours,000", "s0-conv-25-neighbours,000"),
        ("24-neighbours,000", "24-neighbours,001"),
    ):
        text = REGISTER.read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "claims.csv").write_text(text.replace(old, new), encoding="utf-8")
        assert fingerprint(load_claims(tmp_path / "claims.csv")) != SHA256
