"""Image sets by configuration: training, validation and test images, the same in every process."""

from dataclasses import dataclass

from attnrepro.config import DataConfig, digest
from attnrepro.data.digits import load_digits
from attnrepro.data.fashion_mnist import load_fashion_mnist
from attnrepro.data.imageset import ImageSet
from attnrepro.data.parquet import load_parquet
from attnrepro.data.subsets import balanced_order
from attnrepro.fetch.files import locate, unavailable

# Images held out of the training set for choosing; for other sets a tenth of it.
VALIDATION = {"digits": 297, "fashion_mnist": 5000, "cifar10": 5000, "cifar100": 5000}
DIGITS_TEST = 500


@dataclass(frozen=True)
class Splits:
    """What a table trains on, chooses on and reports; no image stands in two of them."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet

    @property
    def sha256(self) -> str:
        """Checksum of all three, for ``run.json``."""
        return digest([self.train.sha256, self.validation.sha256, self.test.sha256])


def load(data: DataConfig) -> Splits:
    """The splits of a set; validation (and the digits' test) images are drawn class-balanced, once for all seeds.

    Raises:
        DataUnavailable: the set is nowhere and cannot be fetched, or what is there cannot be used.
        ValueError: ``data.name`` is ``none``.
    """
    if data.name == "none":
        raise ValueError("data.name=none must be an image set: choose one with data=<name>")
    if data.name == "digits":
        rest, test = hold_out(load_digits(), DIGITS_TEST, "test")
        return Splits(*hold_out(rest, VALIDATION["digits"], "validation"), test)
    folder = locate(data)
    assert folder is not None
    try:
        train, test = load_fashion_mnist(folder) if data.name == "fashion_mnist" else load_parquet(folder, data)
        rest, validation = hold_out(train, VALIDATION.get(data.name, max(1, len(train) // 10)), "validation")
    except (ValueError, OSError, MemoryError) as error:
        raise unavailable(data, error) from error
    return Splits(rest, validation, test)


def hold_out(images: ImageSet, n: int, purpose: str) -> tuple[ImageSet, ImageSet]:
    """Part ``images`` into the rest and ``n`` class-balanced ones, by a draw of its own for each ``purpose``.

    Raises ``ValueError`` unless something is left on both sides.
    """
    if not 1 <= n < len(images):
        raise ValueError(f"{images.name} has {len(images)} images, too few to hold out {n} for {purpose}")
    order = balanced_order(images, 0, purpose)
    # Both in the order of the file, so that which images were drawn says nothing in how they lie.
    return images.take(order[n:].sort().values), images.take(order[:n].sort().values)
