"""Sets as the hub stores them, from small folders that are made here."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnrepro.config import DataConfig
from attnrepro.data.images import load
from attnrepro.data.parquet import load_parquet, stream
from attnrepro.fetch import files
from attnrepro.fetch.download import DataUnavailable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

NAMES = ["ant", "bee", "cat"]


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_given_up", {})


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def pixels(n: int, seed: int, *shape: int) -> list[np.ndarray[Any, Any]]:
    draws = np.random.default_rng(seed)
    return [draws.integers(0, 256, shape, dtype=np.uint8) for _ in range(n)]


def write(path: Path, images: list[Any], labels: list[Any], names: list[str] | None = None, **columns: str) -> None:
    """A parquet file as the `datasets` library writes it: images as structures, class names beside the schema."""
    image, label = columns.get("image", "image"), columns.get("label", "label")
    stored = [{"bytes": png(i) if isinstance(i, np.ndarray) else i, "path": None} for i in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(stored, kind), label: pa.array(labels)})
    if names:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def hub(root: Path, **more: Any) -> DataConfig:
    given = {
        "path": "owner/name",
        "train_split": "train",
        "test_split": "test",
        "image_column": "image",
        "label_column": "label",
        "root": str(root),
    }
    return DataConfig("hub", **(given | more))


def folder(root: Path, n: int = 12, *shape: int) -> Path:
    shape = shape or (4, 6, 3)
    write(root / "data" / "train-00000-of-00002.parquet", pixels(n, 0, *shape), [i % 3 for i in range(n)], NAMES)
    write(root / "data" / "train-00001-of-00002.parquet", pixels(n, 1, *shape), [i % 3 for i in range(n)], NAMES)
    write(root / "data" / "test-00000-of-00001.parquet", pixels(5, 2, *shape), [2, 1, 0, 1, 2], NAMES)
    return root


def refused(root: Path, **more: Any) -> str:
    with pytest.raises(DataUnavailable) as caught:
        load(hub(root, **more))
    said = str(caught.value)
    assert said.count("three ways to provide it: data.root=<folder of its parquet files>") == 1
    assert "\n" not in said
    return said


def test_a_folder_is_read_pixel_by_pixel(tmp_path: Path) -> None:
    train, test = load_parquet(folder(tmp_path), hub(tmp_path))
    assert train.images.shape == (24, 3, 4, 6)
    assert train.classes == tuple(NAMES)
    expected = [*pixels(12, 0, 4, 6, 3), *pixels(12, 1, 4, 6, 3)]
    for index, image in enumerate(expected):
        for row, column, channel in np.ndindex(4, 6, 3):
            assert train.images[index, channel, row, column] == image[row, column, channel]
    assert test.labels.tolist() == [2, 1, 0, 1, 2]


def test_grey_images_keep_one_channel_and_mixed_ones_get_three(tmp_path: Path) -> None:
    train, _ = load_parquet(folder(tmp_path / "grey", 6, 5, 5), hub(tmp_path / "grey"))
    assert train.images.shape == (12, 1, 5, 5)
    assert np.array_equal(train.images[3, 0].numpy(), pixels(6, 0, 5, 5)[3])
    write(tmp_path / "mixed" / "train.parquet", [*pixels(1, 0, 5, 5), *pixels(1, 0, 5, 5, 3)], [0, 1])
    write(tmp_path / "mixed" / "test.parquet", pixels(1, 0, 5, 5), [0])
    train, test = load_parquet(tmp_path / "mixed", hub(tmp_path / "mixed"))
    assert train.images.shape[1] == test.images.shape[1] == 3
    assert torch.equal(train.images[0], torch.from_numpy(pixels(1, 0, 5, 5)[0]).expand(3, 5, 5))


def test_splits_of_a_folder_are_the_same_every_time_and_disjoint(tmp_path: Path) -> None:
    one, again = load(hub(folder(tmp_path, 30))), load(hub(tmp_path))
    assert one.sha256 == again.sha256
    assert (len(one.train), len(one.validation), len(one.test)) == (54, 6, 5)
    assert one.validation.counts == (2, 2, 2)
    seen = [image.numpy().tobytes() for part in (one.train, one.validation) for image in part.images]
    assert len(set(seen)) == 60


def test_one_other_pixel_is_another_checksum(tmp_path: Path) -> None:
    before = load(hub(folder(tmp_path))).sha256
    changed = pixels(5, 2, 4, 6, 3)
    changed[4][3, 5, 2] ^= 1
    write(tmp_path / "data" / "test-00000-of-00001.parquet", changed, [2, 1, 0, 1, 2], NAMES)
    assert load(hub(tmp_path)).sha256 != before


def test_without_names_the_training_labels_say_how_many_classes_there_are(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pixels(8, 0, 4, 4), [0, 1, 2, 4] * 2)
    write(tmp_path / "test.parquet", pixels(1, 0, 4, 4), [4])
    train, _ = load_parquet(tmp_path, hub(tmp_path))
    assert train.classes == ("0", "1", "2", "3", "4")
    assert train.counts == (2, 2, 2, 0, 2)


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"image_column": "img"}, "data.image_column=img is not among its columns image, label"),
        ({"label_column": "fine_label"}, "data.label_column=fine_label is not among its columns image, label"),
        ({"test_split": "validation"}, "has no parquet files of a split validation"),
        ({"label_column": "image"}, "data.label_column=image holds struct<bytes: binary, path: string>, not whole"),
    ],
)
def test_an_unknown_column_or_split(tmp_path: Path, more: dict[str, str], said: str) -> None:
    assert said in refused(folder(tmp_path), **more)


@pytest.mark.parametrize(("label", "said"), [(3, "has a label 3, but its classes are 0 to 2"), (-1, "a label -1")])
def test_a_label_out_of_range(tmp_path: Path, label: int, said: str) -> None:
    folder(tmp_path)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", pixels(2, 2, 4, 6, 3), [0, label], NAMES)
    assert said in refused(tmp_path)


def test_a_label_or_an_image_that_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pixels(3, 0, 4, 4), [0, None, 1])
    write(tmp_path / "test.parquet", pixels(1, 0, 4, 4), [0])
    assert "an image has no label" in refused(tmp_path)
    write(tmp_path / "train.parquet", [*pixels(2, 0, 4, 4), None], [0, 1, 1])
    files._given_up.clear()
    assert "an image is missing or lies in a file of its own" in refused(tmp_path)


def test_images_of_several_sizes(tmp_path: Path) -> None:
    folder(tmp_path)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", pixels(1, 2, 6, 4, 3), [0], NAMES)
    assert "owner/name has images of 4 x 6 and 6 x 4 pixels, and all must be of one size" in refused(tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    path = folder(tmp_path) / "data" / "train-00001-of-00002.parquet"
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"nothing of the kind" * 10, whole[:-8] + b"\xff" * 8):
        path.write_bytes(content)
        assert str(path) in refused(tmp_path)
    png_at = whole.index(b"IDAT")
    path.write_bytes(
        whole[: png_at + 10] + bytes(b ^ 255 for b in whole[png_at + 10 : png_at + 30]) + whole[png_at + 30 :]
    )
    assert "cannot be decoded" in refused(tmp_path)


def test_an_empty_split_and_too_few_images(tmp_path: Path) -> None:
    folder(tmp_path)
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [], [], NAMES)
    assert "test-00000-of-00001.parquet" in refused(tmp_path)


# --- streams ---


def test_a_stream_gives_what_a_folder_holds(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    train, _ = load_parquet(folder(tmp_path), hub(tmp_path))
    batches = list(stream(hub(tmp_path), "train", 10))
    assert [len(labels) for _, labels in batches] == [10, 10, 4]
    assert torch.equal(torch.cat([images for images, _ in batches]), train.images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), train.labels)


def test_a_stream_without_its_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataUnavailable, match=r"datasets must be installed: pip install 'attnrepro\[stream\]'; three"):
        next(stream(hub(tmp_path), "train", 10))
