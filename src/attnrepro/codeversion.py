"""Which code made a row: a hash that needs no git and does not change with comments or docstrings."""

import ast
import functools
import hashlib
import io
import tokenize
from pathlib import Path

from attnrepro.paths import experiments_dir

# What a measurement can depend on; the house around it (store, report, tracking) cannot change a row.
MEASURING = ("nn", "theory", "data", "training")
_PACKAGE = Path(__file__).resolve().parent


def strip(source: str) -> str:
    """Source without comments, docstrings and blank lines.

    Text is cut out by position rather than rebuilt from the syntax tree: rebuilt code differs between Python
    versions, and the same code must have the same version on all of them.
    """
    lines = source.splitlines(keepends=True)
    cuts: list[tuple[tuple[int, int], tuple[int, int]]] = [
        (token.start, token.end)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not body:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            # ast counts columns in bytes and tokenize in characters; a docstring begins and ends its own line.
            cuts.append(
                (
                    (first.lineno, 0),
                    (first.end_lineno or first.lineno, len(lines[(first.end_lineno or 1) - 1])),
                )
            )
    for (top, left), (bottom, right) in sorted(cuts, reverse=True):
        kept = lines[top - 1][:left] + lines[bottom - 1][right:]
        lines[top - 1 : bottom] = [kept if kept.endswith("\n") else kept + "\n"]
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


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
    """12 hex digits over the table's folder and every measuring module that it imports, directly or not."""
    folder = experiments_dir() / table
    found: dict[str, str] = {}
    pending = [(f"{table}/{path.name}", path) for path in sorted(folder.glob("*.py"))]
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
