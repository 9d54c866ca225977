"""Where things lie: in the repository, or in the copies that the wheel carries."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_REPOSITORY = _PACKAGE.parents[1]


def repository() -> Path | None:
    """Root of the repository this package was imported from, or None when it comes from a wheel."""
    return _REPOSITORY if (_REPOSITORY / "conf" / "config.yaml").is_file() else None


def _folder(in_repository: str, in_wheel: str) -> Path:
    root = repository()
    return root / in_repository if root else _PACKAGE / in_wheel


def conf_dir() -> Path:
    """Folder of the Hydra configuration."""
    return _folder("conf", "_conf")


def experiments_dir() -> Path:
    """Folder with one folder a table."""
    return _folder("experiments", "_experiments")


def published_dir() -> Path:
    """Folder of the register of published values."""
    return _folder("results/published", "_published")


def results_dir(configured: str | None = None) -> Path:
    """Root of everything that is written, absolute.

    ``configured`` (the configuration key ``results``) wins and is relative to the working directory; then the
    environment variable ``ATTNREPRO_RESULTS``; then ``results/`` of the repository; then ``./results``.
    """
    chosen = configured or os.environ.get("ATTNREPRO_RESULTS")
    if chosen:
        return Path(chosen).expanduser().resolve()
    root = repository()
    return root / "results" if root else Path("results").resolve()


def table_names() -> list[str]:
    """Every table, by its configuration file, in alphabetical order."""
    return sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
