"""Fixtures of the tests of whole tables."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of other sizes than smoke count as the table's own."""
    gather = importlib.import_module("attnrepro.app.gather")
    monkeypatch.setattr(gather, "variant", lambda science, axes: "")
