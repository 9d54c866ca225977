"""Where files of a data set are looked for, and what is said where they are not."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnrepro.config import DataConfig
from attnrepro.fetch import download as download_module
from attnrepro.fetch import files
from attnrepro.fetch.download import DataUnavailable
from attnrepro.fetch.files import locate, parquet_files, read_bytes

from .servers import dead, hub_of, serving, silent

CONTENT = {name: name.encode() * 50 for name in files.FASHION_MNIST}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
WAYS = r"; three ways to provide it: data\.root=<folder of its {}>, .*, or a network$"
REVISION = "0123456789" * 4


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Somebody with an empty cache, no system package, no proxy and no memory of earlier tries."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("HF_", "HUGGINGFACE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "FASHION_MNIST_PACKAGE", tmp_path / "package")
    monkeypatch.setattr(files, "FASHION_MNIST", SUMS)
    monkeypatch.setattr(files, "_given_up", {})
    return tmp_path


def lay(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def reason(data: DataConfig) -> str:
    with pytest.raises(DataUnavailable) as caught:
        locate(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def served(url: str) -> DataConfig:
    files.FASHION_MNIST_URL = url
    return DataConfig("fashion_mnist", deadline=30)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For tests that name another place to download from."""
    monkeypatch.setattr(files, "FASHION_MNIST_URL", files.FASHION_MNIST_URL)
    return monkeypatch


# --- Fashion-MNIST ---


def test_what_is_in_the_package_needs_no_files() -> None:
    assert locate(DataConfig("digits")) is None
    assert locate(DataConfig()) is None


@pytest.mark.parametrize("packed", [False, True])
def test_a_named_folder_comes_first_then_the_system_package(tmp_path: Path, packed: bool) -> None:
    package = lay(tmp_path / "package", packed)
    assert locate(DataConfig("fashion_mnist")) == package
    mine = lay(tmp_path / "mine", packed)
    assert locate(DataConfig("fashion_mnist", root=str(mine))) == mine


def test_a_named_folder_that_lacks_a_file_is_not_made_up_for(tmp_path: Path) -> None:
    lay(tmp_path / "package")
    mine = lay(tmp_path / "mine", packed=True)
    (mine / "t10k-labels-idx1-ubyte.gz").unlink()
    said = reason(DataConfig("fashion_mnist", root=str(mine)))
    assert said.startswith(f"fashion_mnist: {mine} has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz; three")
    assert said.endswith(
        "data.root=<folder of its four IDX files>, Debian's package dataset-fashion-mnist, or a network"
    )


def test_what_is_nowhere_is_downloaded_once(tmp_path: Path, at: pytest.MonkeyPatch) -> None:
    with serving({f"/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}) as url:
        folder = locate(served(url))
    assert folder == tmp_path / "cache" / "attnrepro" / "fashion_mnist"
    assert {path.name for path in folder.iterdir()} == {f"{name}.gz" for name in CONTENT}
    with dead() as url:
        assert locate(served(url)) == folder


def test_other_content_than_the_published_is_not_kept(tmp_path: Path, at: pytest.MonkeyPatch) -> None:
    wrong = {f"/{name}.gz": gzip.compress(content + b"!") for name, content in CONTENT.items()}
    with serving(wrong) as url:
        assert "train-images-idx3-ubyte.gz is not the file that was published; three ways" in reason(served(url))
    assert not list((tmp_path / "cache" / "attnrepro" / "fashion_mnist").iterdir())


def test_a_server_that_failed_is_not_asked_again(at: pytest.MonkeyPatch) -> None:
    """A hundred cells must not each wait for it."""
    with dead() as url:
        first = reason(served(url))
    at.setattr(files, "download", lambda *a, **k: pytest.fail("asked again"))
    assert reason(served(url)) == first
    assert first.count("three ways") == 1


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert "Not a directory" in reason(DataConfig("fashion_mnist"))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(1000))
    for name, content in {
        "short": whole[:-20],
        "head": whole[:5],
        "bits": whole[:200] + b"\0" * 50 + whole[250:],
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            read_bytes(path)


# --- sets of the hub ---


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"PAR1")
    return folder


def hub(**more: object) -> DataConfig:
    columns = {"train_split": "train", "test_split": "test", "image_column": "image", "label_column": "label"}
    return DataConfig("hub", **({"path": "owner/name", "revision": REVISION} | columns | more))  # type: ignore[arg-type]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pyarrow and Pillow were installed: finding files needs neither."""
    monkeypatch.setattr(files, "HUB_PACKAGES", ())


@pytest.mark.usefixtures("packages")
def test_a_cached_snapshot_is_found_without_the_hub(tmp_path: Path) -> None:
    home = tmp_path / "cache" / "huggingface" / "hub" / "datasets--owner--name" / "snapshots" / REVISION
    touch(home, "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.parquet")
    assert locate(hub()) == home


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"])
def test_the_cache_is_where_the_environment_says(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    inner = tmp_path / "mine" / "hub" if variable == "HF_HOME" else tmp_path / "mine"
    home = touch(inner / "datasets--owner--name" / "snapshots" / REVISION, "train.parquet", "test.parquet")
    assert locate(hub()) == home


@pytest.mark.usefixtures("packages")
def test_a_named_folder_is_used_as_it_is(tmp_path: Path) -> None:
    mine = touch(tmp_path / "mine", "train.parquet", "test.parquet")
    assert locate(hub(root=str(mine), revision=None)) == mine
    (mine / "test.parquet").unlink()
    said = reason(hub(root=str(mine), revision=None))
    assert said.startswith(f"hub: {mine} has no parquet files of a split test; three ways to provide it: data.root=")
    assert said.endswith("a snapshot of owner/name in the hub's cache, or a network")


def test_parts_come_in_order_and_whole(tmp_path: Path) -> None:
    names = [f"data/train-{i:05d}-of-00012-0a{11 - i}.parquet" for i in range(12)]
    touch(tmp_path, *names, "data/test-00000-of-00001.parquet", "data/trainer.parquet", "data/train.txt")
    assert [str(path.relative_to(tmp_path)) for path in parquet_files(tmp_path, "train")] == names
    (tmp_path / names[7]).unlink()
    with pytest.raises(ValueError, match=r"lacks train-00007-of-00012\.parquet"):
        parquet_files(tmp_path, "train")


def test_a_dangling_link_of_a_broken_download_is_a_missing_part(tmp_path: Path) -> None:
    touch(tmp_path, "train-00000-of-00002.parquet")
    (tmp_path / "train-00001-of-00002.parquet").symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(ValueError, match="lacks train-00001-of-00002"):
        parquet_files(tmp_path, "train")


def test_splits_may_be_folders_but_not_of_two_configurations(tmp_path: Path) -> None:
    touch(tmp_path, "default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet")
    assert [path.name for path in parquet_files(tmp_path, "train")] == ["0000.parquet", "0001.parquet"]
    touch(tmp_path, "large/train/0000.parquet")
    with pytest.raises(ValueError, match=r"split train in each of default/train, large/train: name one"):
        parquet_files(tmp_path, "train")


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HUB_PACKAGES", ("huggingface_hub", "made_up_arrow"))
    mine = touch(tmp_path / "mine", "train.parquet", "test.parquet")
    for data in (hub(), hub(root=str(mine))):
        assert "made_up_arrow must be installed: pip install 'attnrepro[hub]'; three" in reason(data)
    # Of what is there already, nobody needs the library that downloads.
    monkeypatch.setattr(files, "HUB_PACKAGES", ("huggingface_hub",))
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    assert locate(hub(root=str(mine))) == mine
    assert "huggingface_hub must be installed" in reason(hub())


def test_a_snapshot_comes_from_the_hub_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(files, "HUB_PACKAGES", ("huggingface_hub",))
    parquet = {"data/train-00000-of-00001.parquet": b"PAR1 train", "data/test-00000-of-00001.parquet": b"PAR1 test"}
    with hub_of("owner/name", REVISION, {**parquet, "README.md": b"# A set"}) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        folder = locate(hub(deadline=60.0))
    assert folder is not None
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == parquet
    with dead() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert locate(hub()) == folder


@pytest.mark.parametrize(("server", "said"), [(dead, "cannot be used"), (silent, "sent nothing for 2 s")])
def test_a_hub_that_does_not_serve_ends_in_time(server: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library alone waits for minutes, whatever time-outs it is given."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(download_module, "SILENCE", 2.0)
    monkeypatch.setattr(files, "HUB_PACKAGES", ("huggingface_hub",))
    with server() as url:  # type: ignore[operator]
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert said in reason(hub(deadline=20.0))
