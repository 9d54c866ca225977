"""README and docs: what they point to is there, and every mechanism of the list is tested and measured."""

import re

import pytest

from attnrepro import paths

ROOT = paths.repository()
assert ROOT is not None
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page) -> None:  # type: ignore[no-untyped-def]
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = sorted({link for link in links if not (page.parent / link).exists()})
    assert missing == []


def test_every_mechanism_has_a_test_and_a_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## What is built")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "](" in line]
    assert len(lines) > 20
    for line in lines:
        modules = re.findall(r"\(src/attnrepro/nn/(\w+)\.py\)", line)
        tables = re.findall(r"\(results/tables/(\w+)\.csv\)", line)
        assert modules and tables, line
        assert set(tables) <= set(paths.table_names()), line
        tested = "\n".join(test.read_text(encoding="utf-8") for test in (ROOT / "tests" / "nn").glob("test_*.py"))
        for module in modules:
            imported = rf"from attnrepro\.nn(\.{module} import|.* import .*\b{module}\b)"
            assert re.search(imported, tested), f"{module} has no test in tests/nn"
