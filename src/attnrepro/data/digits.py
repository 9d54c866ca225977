"""The 1 797 handwritten digits of 8 x 8 pixels that come with this package.

Test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
1998, doi 10.24432/C50P49, CC BY 4.0), the same images as ``sklearn.datasets.load_digits``. Grey values 0 to 16; the
images of a writer stand together in the file and are not kept together by random splits. ``python -m
attnrepro.data.digits`` makes the file anew where scikit-learn is installed.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from attnrepro.data.imageset import ImageSet

PATH = Path(__file__).with_name("digits.npz")


def load_digits() -> ImageSet:
    """All 1 797 images, ``[1797, 1, 8, 8]``."""
    with np.load(PATH) as file:
        images, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"])
    return ImageSet("digits", images[:, None], labels.long(), tuple("0123456789"))


def main() -> int:
    """Pack scikit-learn's copy."""
    import importlib

    bunch = importlib.import_module("sklearn.datasets").load_digits()
    np.savez_compressed(PATH, images=bunch.images.astype(np.uint8), labels=bunch.target.astype(np.uint8))
    print(f"{PATH}: {PATH.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
