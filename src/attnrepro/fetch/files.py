"""Where the files of a data set lie: a named folder, a system package, a cache, or, if all else fails, a download."""

import gzip
import hashlib
import importlib.util
import os
import re
import zlib
from pathlib import Path

from attnrepro.config import DataConfig, digest
from attnrepro.fetch.download import DataUnavailable, download

# sha256 of the four files as they are, not of their archives: packages compress them anew.
FASHION_MNIST = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# Where Debian's package dataset-fashion-mnist puts them.
FASHION_MNIST_PACKAGE = Path("/usr/share/datasets/fashion-mnist")
HUB = "https://huggingface.co"
HUB_PACKAGES = ("huggingface_hub", "pyarrow", "PIL")

# What could not be downloaded in this process: the next hundred cells must not each wait for the same dead server.
_given_up: dict[str, str] = {}


def locate(data: DataConfig) -> Path | None:
    """The folder with the files of a set, downloaded first if they are nowhere; None for a set inside this package.

    Raises ``DataUnavailable`` with one sentence that names the three ways to provide the data.
    """
    if data.name in ("none", "digits"):
        return None
    asked = digest([data.science(), data.root])
    try:
        if asked in _given_up:
            raise DataUnavailable(_given_up[asked])
        return _fashion_mnist(data) if data.name == "fashion_mnist" else _snapshot(data)
    except DataUnavailable as error:
        _given_up[asked] = str(error)
        raise unavailable(data, error) from error
    except (ValueError, OSError) as error:
        raise unavailable(data, error) from error


def unavailable(data: DataConfig, problem: object) -> DataUnavailable:
    """The one sentence about a set that cannot be used: what is wrong, and the three ways to provide it."""
    what = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    if data.name == "fashion_mnist":
        ways = "data.root=<folder of its four IDX files>, Debian's package dataset-fashion-mnist, or a network"
    else:
        ways = f"data.root=<folder of its parquet files>, a snapshot of {data.path} in the hub's cache, or a network"
    return DataUnavailable(f"{data.name}: {what}; three ways to provide it: {ways}")


# --- Fashion-MNIST ---


def _fashion_mnist(data: DataConfig) -> Path:
    if data.root is not None:
        folder = Path(data.root).expanduser()
        idx_paths(folder)
        return folder
    cache = _home("XDG_CACHE_HOME", "~/.cache") / "attnrepro" / "fashion_mnist"
    for folder in (FASHION_MNIST_PACKAGE, cache):
        if _complete(folder):
            return folder
    cache.mkdir(parents=True, exist_ok=True)
    for name, sha256 in FASHION_MNIST.items():
        part = cache / f".{name}.gz.{os.getpid()}"
        try:
            download("file", f"{FASHION_MNIST_URL}/{name}.gz", str(part), watched=part, deadline=data.deadline)
            if hashlib.sha256(read_bytes(part)).hexdigest() != sha256:
                raise ValueError(f"{FASHION_MNIST_URL}/{name}.gz is not the file that was published")
            part.replace(cache / f"{name}.gz")
        finally:
            part.unlink(missing_ok=True)
    return cache


def _complete(folder: Path) -> bool:
    try:
        return bool(idx_paths(folder))
    except ValueError:
        return False


def idx_paths(folder: Path) -> dict[str, Path]:
    """Paths of the four files by name, compressed or not. Raises ``ValueError`` naming the first that is missing."""
    found = {}
    for name in FASHION_MNIST:
        paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if not paths:
            raise ValueError(f"{folder} has no {name} or {name}.gz")
        found[name] = paths[0]
    return found


def read_bytes(path: Path) -> bytes:
    """Content of a file, decompressed if it is compressed. Raises ``ValueError`` for a damaged archive."""
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


# --- sets of the hub ---


def _snapshot(data: DataConfig) -> Path:
    missing = [package for package in HUB_PACKAGES if importlib.util.find_spec(package) is None]
    if [package for package in missing if package != "huggingface_hub"]:
        raise ValueError(_extra(missing))
    if data.root is not None:
        folder = Path(data.root).expanduser()
        _check_splits(folder, data)
        return folder
    cache = _hub_cache()
    home = cache / f"datasets--{str(data.path).replace('/', '--')}"
    folder = home / "snapshots" / str(data.revision)
    if not _has_splits(folder, data):
        if missing:
            raise ValueError(_extra(missing))
        arguments = (str(data.path), str(data.revision), str(cache))
        download("snapshot", hub_url(), *arguments, watched=home, deadline=data.deadline)
        _check_splits(folder, data)
    return folder


def _extra(missing: list[str]) -> str:
    return f"{' and '.join(missing)} must be installed: pip install 'attnrepro[hub]'"


def _has_splits(folder: Path, data: DataConfig) -> bool:
    try:
        _check_splits(folder, data)
    except ValueError:
        return False
    return True


def _check_splits(folder: Path, data: DataConfig) -> None:
    for split in (data.train_split, data.test_split):
        parquet_files(folder, str(split))


def parquet_files(folder: Path, split: str) -> list[Path]:
    """The parquet files of ``split`` in their order: ``train-00000-of-00002.parquet``, ``train.parquet``, ``train/*``.

    Raises ``ValueError`` when there are none, a part is missing, or several folders have a split of this name.
    """
    name = re.compile(rf"{re.escape(split)}(-.*)?\.parquet")
    paths = sorted(
        p for p in folder.rglob("*.parquet") if p.is_file() and (name.fullmatch(p.name) or p.parent.name == split)
    )
    if not paths:
        raise ValueError(f"{folder} has no parquet files of a split {split}")
    homes = sorted({str(path.parent.relative_to(folder)) for path in paths})
    if len(homes) > 1:
        raise ValueError(f"{folder} has a split {split} in each of {', '.join(homes)}: name one of them as data.root")
    for path in paths:
        if part := re.search(r"-(\d+)-of-(\d+)", path.name):
            first, total = path.name[: part.start()], part[2]
            for index in range(int(total)):
                wanted = f"{first}-{index:0{len(part[1])}d}-of-{total}"
                if not any(other.name.startswith(wanted) for other in paths):
                    raise ValueError(f"{folder} lacks {wanted}.parquet")
    return paths


def hub_url() -> str:
    """Address of the hub, or of the mirror that the environment names as its library wants it."""
    return os.environ.get("HF_ENDPOINT") or HUB


def _hub_cache() -> Path:
    """Where the hub's library keeps what it downloads, without asking the library."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    return _home("XDG_CACHE_HOME", "~/.cache") / "huggingface" / "hub"


def _home(variable: str, default: str) -> Path:
    try:
        return Path(os.environ.get(variable) or default).expanduser()
    except RuntimeError as error:
        raise ValueError(f"there is no home folder for downloads: set {variable}") from error
