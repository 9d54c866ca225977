"""Fixed shifts and changes of size, for tests of what a model makes of moved and rescaled images."""

import torch
from torch import Tensor

from attnrepro.data.streams import generator


def fixed_shifts(n: int, most: int, seed: int) -> Tensor:
    """One (down, right) of up to ``most`` pixels for each of ``n`` images, all alike, ``[n, 2]``; drawn once."""
    return torch.randint(-most, most + 1, (n, 2), generator=generator(seed, "fixed shifts", most))


def rescale(images: Tensor, factor: float) -> Tensor:
    """Images ``[n, c, h, w]`` with their content ``factor`` times as large about the centre, in float32.

    Linear interpolation, its triangle widened by 1/factor where images shrink, so that no pixel is skipped. The canvas
    keeps its size: shrunken content stands on black (0), enlarged content is cut off. Raises ``ValueError`` for a
    factor that is not above 0.
    """
    if not factor > 0:
        raise ValueError(f"factor={factor:g} must be above 0")
    rows, columns = (_interpolation(length, factor).to(images.device) for length in images.shape[2:])
    return rows @ images.float() @ columns.T


def _interpolation(length: int, factor: float) -> Tensor:
    """Weights ``[to, from]`` of the original pixels in each pixel of a line; what a row lacks of 1 is black."""
    centre = (length - 1) / 2
    sharpness = min(factor, 1.0)
    places = (torch.arange(length, dtype=torch.float64) - centre) / factor + centre
    # Far enough beyond both ends for every triangle to be whole.
    reach = 2 + int(length / factor + 1 / sharpness)
    sources = torch.arange(-reach, length + reach, dtype=torch.float64)
    weights = (1 - (places[:, None] - sources).abs() * sharpness).clamp(min=0)
    return (weights / weights.sum(1, keepdim=True))[:, reach : reach + length].float()
