"""The code version changes with what a cell computes, and with nothing else."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnrepro import codeversion, paths
from attnrepro.codeversion import code_version, strip

REPOSITORY = Path(__file__).resolve().parents[1]
OUR_FILES = sorted(p for folder in ("src", "experiments") for p in (REPOSITORY / folder).rglob("*.py"))

FUNCTION = '''\
"""A module."""

import math

RATE = 0.5


@cache
def scaled(x: float, name: str = "a#b") -> float:
    """What it does."""
    y = x * RATE
    return math.sqrt(y)


class Thing:
    """A thing."""

    colour = "red"

    def nothing(self) -> None:
        """Does nothing."""
'''


def changed(old: str, new: str) -> str:
    assert FUNCTION.count(old) == 1
    return FUNCTION.replace(old, new)


@pytest.mark.parametrize(
    "source",
    [
        changed('"""A module."""', '"""Another\n\nmodule, 2.0."""'),
        changed('"""A module."""\n', ""),
        changed('"""A module."""', "# A module."),
        changed('    """What it does."""\n', ""),
        changed('"""What it does."""', "'''What\n\n    # it\n  does.'''"),
        changed('"""What it does."""', '"What it does."  # really'),
        changed('"""What it does."""', 'r"""What \\it does."""'),
        changed('"""What it does."""', '"""Größe, 値, 𝛼 # é."""  # é 値'),
        changed('"""What it does."""', '(\n        "What it "\n        "does."\n    )'),
        changed('    """What it does."""', "\n\n    # nothing to say\n\n"),
        changed("RATE = 0.5", "RATE = 0.5  # a half"),
        changed("RATE = 0.5", 'RATE = 0.5  #: a \'half\' """'),
        changed("RATE = 0.5", "# é 値 𝛼 #\nRATE = 0.5\t \n\n\n\n"),
        changed("@cache", "# before\n@cache  # after"),
        changed("    y = x", "\n    # a line\n\n        # deeper\n    y = x"),
        changed('"a#b") -> float:', '"a#b") -> float:  # é "a#b"'),
        changed("import math\n\nRATE", "import math\nRATE"),
        changed('        """Does nothing."""\n', '        """Does nothing\n        at all."""  # yet\n\n\n'),
        FUNCTION + "\n\n# the end",
        FUNCTION.rstrip("\n"),
        FUNCTION.replace("\n", "\r\n"),
    ],
)
def test_comments_docstrings_and_blank_lines_do_not_count(source: str) -> None:
    assert strip(source.replace("\r\n", "\n")) == strip(FUNCTION)


@pytest.mark.parametrize(
    "source",
    [
        changed("RATE = 0.5", "RATE = 0.25"),
        changed("x * RATE", "x / RATE"),
        changed("@cache\n", ""),
        changed("@cache", "@cache_more"),
        changed("a#b", "a#c"),
        changed("a#b", "a"),
        changed('    colour = "red"\n', '    colour = "red"\n    size = 3\n'),
        changed('    colour = "red"', '    colour = """red"""'),
        changed("return math.sqrt(y)", "math.sqrt(y)"),
        changed("    return math.sqrt(y)", "    if y:\n        return math.sqrt(y)"),
        changed('"""What it does."""', 'f"""What it does {x}."""'),
        changed('"""What it does."""', 'b"What it does."'),
        changed('"""What it does."""', '"""What it does."""; x = 2 * x'),
        changed('    """What it does."""\n', '    text = """What it does."""\n'),
        changed("def nothing", "def something"),
        changed('        """Does nothing."""', "        raise ValueError"),
        FUNCTION + "Thing.size = 3\n",
    ],
)
def test_code_counts(source: str) -> None:
    assert strip(source) != strip(FUNCTION)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # a definition that stands in one line with its docstring
        ('def f(x): "Doc."\n', 'def f(y): "Doc."\n'),
        ('class A(B): """Doc."""\n', 'class A(C): """Doc."""\n'),
        ('class A: """Doc."""; x = 1\n', 'class A: """Doc."""; x = 2\n'),
        # inside a string nothing is blank and nothing is a comment
        ('x = """a\n\nb"""\n', 'x = """a\nb"""\n'),
        ('x = """a \nb"""\n', 'x = """a\nb"""\n'),
        ('x = """a\n# b\n"""\n', 'x = """a\n# c\n"""\n'),
        ('x = f"""a\n\n{b}"""\n', 'x = f"""a\n{b}"""\n'),
        # a string that is not the first statement is data
        ('x = 1\n"""a"""\n', 'x = 1\n"""b"""\n'),
        # indentation is code
        ("if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n"),
        ("if a:\n\tb()\nc()\n", "if a:\n\tb()\n\tc()\n"),
    ],
)
def test_these_differ(one: str, other: str) -> None:
    assert strip(one) != strip(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('def f(x): "Doc."\n', 'def f(x): "Other."\n'),
        ('def f(x):\n\t"""Doc."""\n\treturn x\t# é\n', "def f(x):\n\treturn x\n"),
        ('async def f(x):\n    """Doc."""\n    return x\n', "async def f(x):\n    return x\n"),
        ('x = "é値#"; y = 2  # é#\n', 'x = "é値#"; y = 2\n'),
        # the form feed and the line separator end a line for str.splitlines, not for Python
        ("x = '\u2028'\ny = 1  # a\nz = 2\n", "x = '\u2028'\ny = 1\nz = 2\n"),
        ("\x0cx = 1\ny = 1  # a\nz = 2\n", "\x0cx = 1\ny = 1\nz = 2\n"),
        ("x = 'a\x85b'  # \x85 a\ny = 1  # b\nz = 2\n", "x = 'a\x85b'\ny = 1\nz = 2\n"),
        ("", "# nothing\n\n"),
        ('"""Doc."""', "\n"),
    ],
)
def test_these_are_the_same(one: str, other: str) -> None:
    assert strip(one) == strip(other)


def code_tokens(source: str, *, docstrings: bool) -> Iterator[str]:
    """Words of a source that count, in order; a string that is a whole statement is a docstring here."""
    previous: tokenize.TokenInfo | None = None
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in skipped]
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        starts = previous is None or previous.type == tokenize.NEWLINE
        alone = token.type == tokenize.STRING and starts and following.type == tokenize.NEWLINE
        previous = token
        if token.type == tokenize.NEWLINE or (alone and not docstrings):
            continue
        yield token.string


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_nothing_else_is_cut_from_our_own_files(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    kept = list(code_tokens(strip(source), docstrings=True))
    assert kept == list(code_tokens(source, docstrings=False))


def test_every_word_of_code_counts() -> None:
    """Each word of a real measurement, changed alone, changes the version."""
    source = (REPOSITORY / "src/attnrepro/nn/attention.py").read_text(encoding="utf-8")
    before = strip(source)
    lines = source.splitlines(keepends=True)
    kinds = (tokenize.NAME, tokenize.NUMBER)
    words = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type in kinds]
    assert len(words) > 50
    for word in words:
        if keyword.iskeyword(word.string):
            continue
        row = word.start[0] - 1
        edited = (
            lines[row][: word.start[1]] + ("x" if word.type == tokenize.NAME else "7") + lines[row][word.start[1] :]
        )
        assert strip("".join([*lines[:row], edited, *lines[row + 1 :]])) != before, word


# --- of a table ---


@dataclass
class Tree:
    """A small table and package on disk."""

    root: Path

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    def version(self, table: str = "first") -> str:
        code_version.cache_clear()
        return code_version(table)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    made = Tree(tmp_path)
    made.write("experiments/first/table.py", "from attnrepro.theory import exact\nfrom attnrepro.config import Cell\n")
    made.write(
        "experiments/first/measure.py",
        "import attnrepro.nn.attention as a\nfrom attnrepro.results.rows import Row\n"
        "from attnrepro.stats import interval\n\n\ndef build(cell):\n    from attnrepro.training.moments import M\n",
    )
    made.write("experiments/second/measure.py", "from attnrepro.data.sets import load\n")
    for name in ("nn", "theory", "data", "training", "results", "app"):
        made.write(f"package/{name}/__init__.py", '"""A package."""\n')
    made.write("package/nn/attention.py", "from attnrepro.nn.blocks import block\nA = 1\n")
    made.write("package/nn/blocks.py", "from attnrepro.nn import attention\nfrom attnrepro.theory.deep import deep\n")
    made.write("package/nn/unused.py", "U = 1\n")
    made.write("package/theory/exact.py", "E = 1\n")
    made.write("package/theory/deep/__init__.py", "from attnrepro.theory.deep.core import deep\n")
    made.write("package/theory/deep/core.py", "D = 1\n")
    made.write("package/data/sets.py", "S = 1\n")
    made.write("package/training/moments.py", "M = 1\n")
    made.write("package/results/rows.py", "R = 1\n")
    made.write("package/config.py", "C = 1\n")
    made.write("package/stats.py", "S = 1\n")
    monkeypatch.setattr(codeversion, "_PACKAGE", made.root / "package")
    monkeypatch.setattr(codeversion, "experiments_dir", lambda: made.root / "experiments")
    yield made
    code_version.cache_clear()


@pytest.mark.parametrize(
    "name",
    [
        "experiments/first/table.py",
        "experiments/first/measure.py",
        "package/nn/attention.py",
        "package/nn/blocks.py",  # imported by attention
        "package/theory/exact.py",
        "package/theory/deep/__init__.py",
        "package/theory/deep/core.py",
        "package/training/moments.py",  # imported in a function
        "package/stats.py",  # medians and their intervals are made there
    ],
)
def test_the_code_of_a_table_and_what_it_measures_with_count(tree: Tree, name: str) -> None:
    before = tree.version()
    content = (tree.root / name).read_text()
    tree.write(name, content + "\n# a comment\n")
    assert tree.version() == before
    tree.write(name, content + "X = 2\n")
    changed_once = tree.version()
    tree.write(name, content + "X = 3\n")
    assert len({before, changed_once, tree.version()}) == 3
    tree.write(name, content)
    assert tree.version() == before


@pytest.mark.parametrize(
    "name",
    [
        "package/nn/unused.py",
        "package/data/sets.py",
        "package/results/rows.py",
        "package/config.py",
        "package/app/main.py",
        "experiments/second/measure.py",
        "experiments/first/notes.md",
    ],
)
def test_other_code_does_not(tree: Tree, name: str) -> None:
    before = tree.version()
    tree.write(name, "X = 2\n")
    assert tree.version() == before


def test_a_new_file_in_the_folder_counts_and_so_does_its_name(tree: Tree) -> None:
    before = tree.version()
    tree.write("experiments/first/more.py", "X = 1\n")
    more = tree.version()
    (tree.root / "experiments/first/more.py").rename(tree.root / "experiments/first/less.py")
    assert len({before, more, tree.version()}) == 3


def test_what_only_reads_rows_does_not_count(tree: Tree) -> None:
    before = tree.version()
    tree.write("experiments/first/reading.py", "def answer(frame):\n    return 'one'\n")
    assert tree.version() == before


def test_two_tables_have_two_versions(tree: Tree) -> None:
    assert tree.version("first") != tree.version("second")


def test_a_version_is_twelve_hex_digits_for_every_table() -> None:
    for table in paths.table_names():
        version = code_version(table)
        assert len(version) == 12 and int(version, 16) >= 0


def test_it_does_not_depend_on_where_the_package_lies(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree.version()
    moved = tree.root.with_name("moved")
    tree.root.rename(moved)
    monkeypatch.setattr(codeversion, "_PACKAGE", moved / "package")
    monkeypatch.setattr(codeversion, "experiments_dir", lambda: moved / "experiments")
    assert tree.version() == before
