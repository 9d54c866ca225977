"""Image-classification sets as the Hugging Face hub stores them: parquet files of encoded images and labels."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnrepro.config import DataConfig
from attnrepro.data.imageset import ImageSet
from attnrepro.fetch.download import DataUnavailable, download
from attnrepro.fetch.files import hub_url, parquet_files, unavailable


def load_parquet(folder: Path, data: DataConfig) -> tuple[ImageSet, ImageSet]:
    """Training and test images of a folder of parquet files.

    Class names come from the training files; where those name none there are as many classes as the largest label of
    the training images says. Grey images keep one channel unless any image of the set has colours.

    Raises ``ValueError`` for a damaged file, an unknown column, a label that is no class, or images of several sizes.
    """
    name = data.name if data.name != "hub" else str(data.path)
    train, classes = _read(folder, data, str(data.train_split))
    test, _ = _read(folder, data, str(data.test_split))
    colour = any(image.ndim == 3 for image, _ in train + test)
    if not train or not test:
        raise ValueError(f"{folder} has no images of {data.test_split if train else data.train_split}")
    classes = classes or tuple(map(str, range(max(label for _, label in train) + 1)))
    size = train[0][0].shape[:2]
    return _image_set(name, train, classes, size, colour), _image_set(name, test, classes, size, colour)


Decoded = tuple[NDArray[np.uint8], int]


def _image_set(
    name: str, found: list[Decoded], classes: tuple[str, ...], size: tuple[int, ...], colour: bool
) -> ImageSet:
    height, width = size
    images = np.empty((len(found), 3 if colour else 1, height, width), np.uint8)
    for index, (image, _) in enumerate(found):
        if image.shape[:2] != size:
            shown = " and ".join(f"{h} x {w}" for h, w in (size, image.shape[:2]))
            raise ValueError(f"{name} has images of {shown} pixels, and all must be of one size")
        images[index] = image.transpose(2, 0, 1) if image.ndim == 3 else image
    labels = torch.tensor([label for _, label in found], dtype=torch.int64)
    return ImageSet(name, torch.from_numpy(images), labels, classes)


def _read(folder: Path, data: DataConfig, split: str) -> tuple[list[Decoded], tuple[str, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: list[Decoded] = []
    classes: tuple[str, ...] = ()
    columns = [str(data.image_column), str(data.label_column)]
    for path in parquet_files(folder, split):
        try:
            with pq.ParquetFile(path) as file:
                _check_columns(path, file.schema_arrow, columns, pa)
                classes = classes or _class_names(file.schema_arrow, columns[1])
                for batch in file.iter_batches(1024, columns=columns):
                    images, labels = (batch.column(column).to_pylist() for column in columns)
                    found += zip(map(decode, images), map(_label, labels), strict=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    return found, classes


def _check_columns(path: Path, schema: Any, columns: list[str], pa: Any) -> None:
    for key, column in zip(("image_column", "label_column"), columns, strict=True):
        if column not in schema.names:
            raise ValueError(f"data.{key}={column} is not among its columns {', '.join(schema.names)}")
    kind = schema.field(columns[1]).type
    if not pa.types.is_integer(kind):
        raise ValueError(f"data.label_column={columns[1]} holds {kind}, not whole numbers")


def _class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Names of a ``ClassLabel``, from what the ``datasets`` library writes beside the schema; none where it did not."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()


def _label(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError("an image has no label")
    return value


def decode(value: Any) -> NDArray[np.uint8]:
    """An encoded image (bytes, or a mapping that has ``bytes``) as ``[height, width]``, in colour ``[.., .., 3]``.

    Raises ``ValueError`` for anything that is no image.
    """
    from PIL import Image, UnidentifiedImageError

    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ValueError("an image is missing or lies in a file of its own")
    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"an image cannot be decoded ({error})") from error


def stream(data: DataConfig, split: str, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a split in its order, for sets larger than memory: images ``[b, c, h, w]`` in uint8, labels ``[b]``.

    Through the ``datasets`` library (``pip install 'attnrepro[stream]'``), from ``data.root`` or from the hub without
    keeping anything; whether images are grey or in colour is decided by the first. The hub is probed before, but what
    has begun to come is used as it comes: a stream has no deadline.

    Raises:
        DataUnavailable: the library is missing, or the hub does not answer.
        ValueError: as `load_parquet`.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise unavailable(data, "datasets must be installed: pip install 'attnrepro[stream]'") from error
    if data.root is not None:
        files = [str(path) for path in parquet_files(Path(data.root).expanduser(), split)]
        rows = datasets.load_dataset("parquet", data_files={split: files}, split=split, streaming=True)
    else:
        try:
            download("probe", hub_url(), watched=Path(), deadline=data.deadline)
        except DataUnavailable as error:
            raise unavailable(data, error) from error
        rows = datasets.load_dataset(data.path, revision=data.revision, split=split, streaming=True)
    columns = [str(data.image_column), str(data.label_column)]
    rows = rows.select_columns(columns).cast_column(columns[0], datasets.Image(decode=False))
    first: tuple[int, ...] = ()
    for batch in rows.iter(batch_size):
        images = [decode(value) for value in batch[columns[0]]]
        first = first or images[0].shape
        found = [(image if image.ndim == len(first) else _as(image, len(first))) for image in images]
        labels = map(_label, batch[columns[1]])
        classes = tuple(map(str, range(max(batch[columns[1]]) + 1)))
        made = _image_set(str(data.path), list(zip(found, labels, strict=True)), classes, first[:2], len(first) == 3)
        yield made.images, made.labels


def _as(image: NDArray[np.uint8], ndim: int) -> NDArray[np.uint8]:
    """Grey as colour by repetition, colour as grey by Pillow's weights."""
    from PIL import Image

    return np.asarray(Image.fromarray(image).convert("RGB" if ndim == 3 else "L"))
