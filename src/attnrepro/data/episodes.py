"""Episodes of few-shot learning: N classes, k labelled images of each, and queries, from classes kept apart.

Source: Vinyals et al. 2016, Matching Networks for One Shot Learning, section 2.2.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Episode(NamedTuple):
    """``support`` ``[ways, shots, channels, h, w]``, ``query`` ``[ways x queries, channels, h, w]`` with its ``labels``
    ``[ways x queries]``: which of the episode's classes, in order."""

    support: Tensor
    query: Tensor
    labels: Tensor


def episode(pool: Tensor, ways: int, shots: int, queries: int, stream: torch.Generator) -> Episode:
    """A new episode from ``pool`` ``[classes, images, channels, h, w]``; no image is in support and query both.

    Raises:
        ValueError: more classes than there are, or more images than a class has.
    """
    classes, images = pool.shape[:2]
    if not 1 <= ways <= classes:
        raise ValueError(f"ways={ways} must lie between 1 and the {classes} classes of the pool")
    if min(shots, queries) < 1 or shots + queries > images:
        raise ValueError(f"shots={shots} and queries={queries} must be 1 or more, together at most {images} images")
    chosen = torch.randperm(classes, generator=stream, device=stream.device)[:ways]
    order = torch.rand(ways, images, generator=stream, device=stream.device).argsort(1)[:, : shots + queries]
    drawn = pool[chosen[:, None], order]
    labels = torch.arange(ways, device=pool.device).repeat_interleave(queries)
    return Episode(drawn[:, :shots], drawn[:, shots:].flatten(0, 1), labels)


def dealt_at_random(found: Episode, stream: torch.Generator) -> Episode:
    """The same episode with its support images dealt to the classes at random: nothing can be known from them."""
    ways, shots = found.support.shape[:2]
    order = torch.randperm(ways * shots, generator=stream, device=stream.device)
    support = found.support.flatten(0, 1)[order].view(found.support.shape)
    return Episode(support, found.query, found.labels)


def split_classes(classes: int, validation: int, test: int) -> tuple[range, range, range]:
    """Training, validation and test classes by number: the first ones, the next and the last; none in two of them.

    Raises:
        ValueError: nothing left for training, or nothing to validate or test on.
    """
    training = classes - validation - test
    if min(training, validation, test) < 1:
        raise ValueError(
            f"validation={validation} and test={test} must be 1 or more and leave some of {classes} classes"
        )
    return range(training), range(training, training + validation), range(training + validation, classes)
