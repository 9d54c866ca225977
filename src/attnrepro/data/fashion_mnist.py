"""Fashion-MNIST from its four IDX files (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; MIT licence)."""

import hashlib
from pathlib import Path

import torch

from attnrepro.data.idx import read_idx
from attnrepro.data.imageset import ImageSet
from attnrepro.fetch.files import FASHION_MNIST, idx_paths, read_bytes

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load_fashion_mnist(folder: Path) -> tuple[ImageSet, ImageSet]:
    """60 000 training and 10 000 test images, ``[n, 1, 28, 28]``.

    Raises ``ValueError`` when a file is missing, damaged, or not the one that was published.
    """
    arrays = {}
    for name, path in idx_paths(folder).items():
        content = read_bytes(path)
        arrays[name] = torch.from_numpy(read_idx(content, str(path)).copy())
        if hashlib.sha256(content).hexdigest() != FASHION_MNIST[name]:
            raise ValueError(f"{path} is not the file that was published: its sha256 is another")
    train, test = (
        ImageSet("fashion_mnist", arrays[f"{part}-images-idx3-ubyte"][:, None], arrays[labels].long(), CLASSES)
        for part in ("train", "t10k")
        for labels in [f"{part}-labels-idx1-ubyte"]
    )
    return train, test
