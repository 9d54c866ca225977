"""The dashboard's playground: a view of the same page where attention is computed as the reader drags.

All arithmetic is that of ``assets/playground.js``, in float64. What the page cannot know stands in
``assets/playground.json``: exact expectations, printed numbers, and the weights of trained pools
(``scripts/export_playground.py`` writes it). It is read and not computed when a page is made, which would take seconds
for the expectations and torch for the pools.
"""

from __future__ import annotations

import html
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.published import PublishedLine, load_published

ASSETS = Path(__file__).parent / "assets"
FILE = ASSETS / "playground.json"

# Two steps an octave; the document prints every other power of two.
HEAD_DIMS = tuple(round(2 ** (step / 2)) for step in range(4, 21))
# Queries that the page draws, and keys of each, as many as the document's.
N_QUERIES, N_KEYS = 100, 16
# Tokens of the shuffled sentence, and components of each.
N_TOKENS, EMBED_DIM = 8, 16
# Sequences of the 8-token task that the page draws.
N_SEQUENCES = 4000


def figures() -> dict[str, Any]:
    """Everything of ``playground.json`` that needs no training: theory, printed numbers, sizes (2 s).

    Entropies are in nats. Source: documents 000 (1/sqrt(d), positions) and 003 (the row of "it").
    """
    return {"shuffle": _shuffle(), "entropy": _entropy(), "task": _task(), "cat": _cat()}


def section() -> str:
    """The view as HTML, with its data as an attribute: text that nothing runs."""
    return _section()


@cache
def _section() -> str:
    data = json.dumps(json.loads(FILE.read_text(encoding="utf-8")), ensure_ascii=False, separators=(",", ":"))
    frame = (ASSETS / "playground.html").read_text(encoding="utf-8")
    return frame.replace("{{figures}}", html.escape(data))


def _shuffle() -> dict[str, Any]:
    return {"n_tokens": N_TOKENS, "embed_dim": EMBED_DIM}


def _entropy() -> dict[str, Any]:
    from scipy.stats import t

    from attnrepro.theory.softmax_logits import softmax_statistics

    lines = [r for r in _published("sqrt_d_entropy") if r.quantity == "entropy" and r.has_number]
    theory, printed = {}, {}
    for scaled in (True, False):
        exact = [softmax_statistics(N_KEYS, head_dim, scaled) for head_dim in HEAD_DIMS]
        name = "scaled" if scaled else "unscaled"
        theory[name] = {
            "entropy": [e.entropy for e in exact],
            "max_weight": [e.max_weight for e in exact],
            "logit_sd": [math.sqrt(e.logit_variance) for e in exact],
        }
        marks = {int(dict(r.axes)["head_dim"]): r.printed for r in lines if _at(r, scaled)}
        printed[name] = [[head_dim, text] for head_dim, text in sorted(marks.items())]
    return {
        "n_queries": N_QUERIES,
        "n_keys": N_KEYS,
        "head_dim": HEAD_DIMS,
        "theory": theory,
        "printed": printed,
        # Half width of a 95 % interval of a mean, in standard errors.
        "quantile": float(t.ppf(0.975, N_QUERIES - 1)),
    }


def _at(line: PublishedLine, scaled: bool) -> bool:
    at = dict(line.axes)
    return at["scaled"] == str(scaled).lower() and at["n_keys"] == str(N_KEYS) and at["head_dim"] != ""


def _task() -> dict[str, Any]:
    from attnrepro.theory.set_functions import mean_sign_accuracy

    # Linear values without positions: the best is the sign of the mean.
    return {"n_sequences": N_SEQUENCES, "without_positions": mean_sign_accuracy(N_TOKENS)}


def _cat() -> dict[str, Any]:
    """The row of "it" as it is printed: words, scores, and the weights with what their rounding allows."""
    preset = load_yaml(paths.conf_dir() / "experiment" / "worked_examples.yaml")["presets"]["cat"]
    (query,), (scores,) = preset["query_tokens"], preset["scores"]
    sentence, tokens = preset["sentence"], preset["tokens"]
    lines = {}
    for line in _published("worked_examples"):
        at = dict(line.axes)
        if (at["example"], at["query"], at["mask"], line.quantity) != ("cat", query, "none", "weight"):
            continue
        # A bound alone is a sentence about a weight, not a printed one.
        if all(map(math.isfinite, line.bounds)):
            lines[at["token"]] = line
    rows = []
    for token, score in zip(tokens, scores.split(), strict=True):
        low, high = lines[token].bounds
        rows.append(
            {
                "token": token,
                "score": score,
                "later": sentence.index(token) > sentence.index(query),
                "printed": lines[token].printed,
                "low": low,
                "high": high,
            }
        )
    return {"sentence": sentence, "query": query, "rows": rows}


def _published(table: str) -> list[PublishedLine]:
    return load_published(paths.published_dir() / f"{table}.csv")
