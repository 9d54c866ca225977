"""Image sets that come with the package or as IDX files: pixels, splits, checksums, and what is said of bad files."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from attnrepro.config import DataConfig
from attnrepro.data import fashion_mnist
from attnrepro.data.digits import load_digits
from attnrepro.data.idx import read_idx
from attnrepro.data.images import Splits, hold_out, load
from attnrepro.data.imageset import ImageSet
from attnrepro.fetch import files
from attnrepro.fetch.download import DataUnavailable

# Checksums of the splits that tables are measured on.
DIGITS = "530efd5430ebc9bab11e801a9b57ce82388020d592cb90fe15dea267d3cc0eb9"
FASHION = "79cb46b1c6270848ed4a2eb75c3639538e185172cc7ec0064f67abcd6fbe9905"


def keys(images: ImageSet) -> list[bytes]:
    return [image.numpy().tobytes() for image in images.images]


def small(n: int = 20, classes: int = 4) -> ImageSet:
    pixels = torch.arange(n * 6).remainder(256).to(torch.uint8).view(n, 1, 2, 3)
    return ImageSet("small", pixels, torch.arange(n) % classes, tuple("abcd"[:classes]))


# --- digits ---


def test_digits_are_those_of_scikit_learn() -> None:
    """Its documentation: 1797 images, between 174 and 183 of a class, grey values 0 to 16; the first is a 0."""
    digits = load_digits()
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.counts == (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    assert (int(digits.images.min()), int(digits.images.max())) == (0, 16)
    assert digits.images[0, 0, :2].tolist() == [[0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0]]
    assert digits.labels[:10].tolist() == list(range(10))


def test_digits_split_into_1000_297_and_500_without_overlap() -> None:
    splits = load(DataConfig("digits"))
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [1000, 297, 500]
    assert splits.test.counts == (50,) * 10
    assert set(splits.validation.counts) == {29, 30}
    drawn = keys(splits.train) + keys(splits.validation) + keys(splits.test)
    assert sorted(drawn) == sorted(keys(load_digits())), "every image once"
    assert len(set(drawn)) == 1797, "and no image twice in the set"


def test_splits_stay_what_they_are() -> None:
    """A change of this number changes every row on digits; it holds in every process and on every machine."""
    assert load(DataConfig("digits")).sha256 == DIGITS


def test_no_set_is_no_set() -> None:
    with pytest.raises(ValueError, match=r"data\.name=none must be an image set"):
        load(DataConfig())


# --- image sets ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"images": torch.zeros(20, 2, 3, dtype=torch.uint8)}, "uint8"),
        ({"images": torch.zeros(20, 1, 2, 3)}, "uint8"),
        ({"labels": torch.zeros(19, dtype=torch.int64)}, "one for each of its 20 images"),
        ({"labels": torch.zeros(20, dtype=torch.int32)}, "int64"),
        ({"labels": torch.full((20,), 4)}, "a label 4, but its classes are 0 to 3"),
        ({"labels": torch.full((20,), -1)}, "a label -1"),
        (
            {"images": torch.zeros(0, 1, 2, 3, dtype=torch.uint8), "labels": torch.zeros(0, dtype=torch.int64)},
            "no images",
        ),
    ],
)
def test_what_is_no_image_set(change: dict[str, torch.Tensor], said: str) -> None:
    good = small()
    with pytest.raises(ValueError, match=said):
        ImageSet("small", change.get("images", good.images), change.get("labels", good.labels), good.classes)


def test_the_checksum_sees_pixels_labels_shape_and_names() -> None:
    good = small()
    other = good.images.clone()
    other[19, 0, 1, 2] += 1
    sums = {
        good.sha256,
        ImageSet("small", other, good.labels, good.classes).sha256,
        ImageSet("small", good.images.view(20, 1, 3, 2), good.labels, good.classes).sha256,
        ImageSet("small", good.images, good.labels.roll(1), good.classes).sha256,
        ImageSet("small", good.images, good.labels, ("d", "b", "c", "a")).sha256,
    }
    assert len(sums) == 5
    assert ImageSet("renamed", good.images.clone(), good.labels, good.classes).sha256 == good.sha256


def test_a_subset_keeps_the_classes_that_it_lacks() -> None:
    chosen = small().take(torch.tensor([5, 1]))
    assert (chosen.labels.tolist(), chosen.counts) == ([1, 1], (0, 2, 0, 0))
    assert torch.equal(chosen.images[0], small().images[5])


def test_holding_out_is_disjoint_balanced_and_the_same_every_time() -> None:
    rest, held = hold_out(small(), 8, "validation")
    assert held.counts == (2, 2, 2, 2)
    assert sorted(keys(rest) + keys(held)) == sorted(keys(small()))
    assert keys(hold_out(small(), 8, "validation")[1]) == keys(held)
    assert keys(hold_out(small(), 8, "test")[1]) != keys(held)
    for n in (0, 20):
        with pytest.raises(ValueError, match=f"too few to hold out {n}"):
            hold_out(small(), n, "validation")


# --- IDX files ---


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """Written as the format's page describes it: zero, zero, type 8, number of dimensions, sizes, bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_an_idx_file_is_read_as_it_was_written() -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 3, 2), dtype=np.uint8)
    assert np.array_equal(read_idx(idx(array), "it"), array)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no IDX file of unsigned bytes: it begins with nothing"),
        (b"\x1f\x8b\x08\x00rest", "begins with 1f8b0800"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "begins with 00000d01"),
        (idx(np.zeros((5, 4), np.uint8))[:-1], "it has 31 bytes and must have 32"),
        (idx(np.zeros((5, 4), np.uint8)) + b"\0", "it has 33 bytes and must have 32"),
        (b"\0\0\x08\x03\0\0", "it has 6 bytes and must have"),
    ],
)
def test_what_is_no_idx_file(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_idx(content, "it")


# --- Fashion-MNIST, as a small set of the same form ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four files whose checksums count as the published ones; validation takes 40 of 120."""
    draws = np.random.default_rng(0)
    sums = {}
    for part, n in (("train", 120), ("t10k", 30)):
        images, labels = draws.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            sums[name] = hashlib.sha256(idx(array)).hexdigest()
    monkeypatch.setattr(files, "FASHION_MNIST", sums)
    monkeypatch.setattr(fashion_mnist, "FASHION_MNIST", sums)
    monkeypatch.setattr("attnrepro.data.images.VALIDATION", {"fashion_mnist": 40})
    return tmp_path


def load_from(folder: Path) -> Splits:
    return load(DataConfig("fashion_mnist", root=str(folder)))


def test_splits_of_idx_files(folder: Path) -> None:
    splits = load_from(folder)
    assert splits.train.images.shape == (80, 1, 28, 28)
    assert splits.validation.counts == (4,) * 10
    assert (len(splits.test), splits.test.classes[7]) == (30, "sneaker")
    test = read_idx(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), "it")
    assert np.array_equal(splits.test.images[:, 0].numpy(), test)
    assert len({*keys(splits.train), *keys(splits.validation), *keys(splits.test)}) == 150


def test_compressed_or_not_is_the_same_set(folder: Path) -> None:
    before = load_from(folder).sha256
    for path in list(folder.glob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert load_from(folder).sha256 == before


def refused(folder: Path) -> str:
    with pytest.raises(DataUnavailable) as caught:
        load_from(folder)
    said = str(caught.value)
    assert said.count("three ways to provide it: data.root=<folder of its four IDX files>, Debian's package") == 1
    assert "\n" not in said
    return said


def test_what_cannot_be_used_is_one_sentence(folder: Path) -> None:
    path = folder / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(bytes(content))[:-30])
    assert f"{path} is damaged" in refused(folder)
    path.write_bytes(gzip.compress(bytes(content[:-1])))
    assert f"{path} has {len(content) - 1} bytes and must have {len(content)}" in refused(folder)
    path.write_bytes(b"<html>not found</html>")
    assert f"{path} is no IDX file of unsigned bytes: it begins with 3c68746d" in refused(folder)
    content[1000] ^= 1
    path.write_bytes(content)
    assert f"{path} is not the file that was published: its sha256 is another" in refused(folder)
    path.unlink()
    assert f"{folder} has no t10k-images-idx3-ubyte or" in refused(folder)


@pytest.mark.skipif(not files.FASHION_MNIST_PACKAGE.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_packaged_set_is_the_published_one() -> None:
    splits = load(DataConfig("fashion_mnist"))
    counts = [part.counts for part in (splits.train, splits.validation, splits.test)]
    assert counts == [(5500,) * 10, (500,) * 10, (1000,) * 10]
    # The mean and standard deviation of all 60 000 that everybody quotes: 0.2860 and 0.3530 of 255.
    both = torch.cat([splits.train.images, splits.validation.images]).double() / 255
    assert (float(both.mean()), float(both.std())) == (pytest.approx(0.2860, abs=5e-5), pytest.approx(0.3530, abs=5e-5))
    assert splits.sha256 == FASHION
