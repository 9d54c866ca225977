"""Which code made a row: a hash that needs no git and does not change with comments or docstrings."""

import ast
import functools
import hashlib
import io
import tokenize
from pathlib import Path

from attnrepro.paths import experiments_dir

# What a measurement can depend on; the house around it (store, report, tracking) cannot change a row.
MEASURING = ("nn", "theory", "data", "training", "stats")
READING = "reading.py"
_PACKAGE = Path(__file__).resolve().parent


def strip(source: str) -> str:
    """Source as its tokens, a logical line each, without comments, docstrings and blank lines.

    Tokens keep the text they have: code rebuilt from the syntax tree differs between Python versions, and the same
    code must have the same version on all of them. For the same reason an f-string, which Python 3.12 began to take
    apart, is cut out of the source whole.
    """
    lines = source.split("\n")
    documented = _docstrings(source, lines)
    out: list[str] = []
    line: list[str] = []
    level = depth = 0
    opened = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            opened, depth = (token.start if depth == 0 else opened), depth + 1
        elif name == "FSTRING_END":
            depth -= 1
            if depth == 0:
                line.append(_cut(lines, opened, token.end))
        elif depth or name in ("COMMENT", "NL", "ENDMARKER"):
            continue
        elif name in ("INDENT", "DEDENT"):
            level += 1 if name == "INDENT" else -1
        elif name == "NEWLINE":
            out += [" " * level + " ".join(line)] * bool(line)
            line = []
        elif not any(start <= token.start < end for start, end in documented):
            line.append(token.string)
    return "\n".join(out) + "\n"


def _docstrings(source: str, lines: list[str]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where docstrings stand, from (line, column in characters) to before the same."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not body:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            end = (first.end_lineno or first.lineno, first.end_col_offset or first.col_offset)
            spans.append((_place(lines, first.lineno, first.col_offset), _place(lines, *end)))
    return spans


def _place(lines: list[str], number: int, offset: int) -> tuple[int, int]:
    """ast counts columns in bytes, tokenize in characters."""
    return number, len(lines[number - 1].encode()[:offset].decode())


def _cut(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (top, left), (bottom, right) = start, end
    if top == bottom:
        return lines[top - 1][left:right]
    return "\n".join([lines[top - 1][left:], *lines[top : bottom - 1], lines[bottom - 1][:right]])


def _imports(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _module_files(name: str) -> list[Path]:
    parts = name.split(".")
    if parts[0] != "attnrepro" or len(parts) < 2 or parts[1] not in MEASURING:
        return []
    base = _PACKAGE.joinpath(*parts[1:])
    return [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]


@functools.cache
def code_version(table: str) -> str:
    """12 hex digits over the table's folder and every measuring module that it imports, directly or not.

    ``reading.py`` is left out: it is made of rows and makes none.
    """
    folder = experiments_dir() / table
    found: dict[str, str] = {}
    pending = [(f"{table}/{path.name}", path) for path in sorted(folder.glob("*.py")) if path.name != READING]
    while pending:
        name, path = pending.pop()
        if name in found:
            continue
        source = path.read_text(encoding="utf-8")
        found[name] = strip(source)
        for imported in _imports(source):
            pending += [(str(p.relative_to(_PACKAGE)), p) for p in _module_files(imported)]
    hashed = hashlib.sha256()
    for name in sorted(found):
        hashed.update(f"{name}\0{found[name]}\0".encode())
    return hashed.hexdigest()[:12]
