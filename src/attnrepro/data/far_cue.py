"""Objects whose label, place by place, depends on a cue elsewhere in the image: a task of dense prediction.

Images of 28 x 28 pixels with 3 x 3 slots, 8 pixels apart. A cue, one of two glyphs of 5 x 5 pixels, stands in one slot;
as many objects of a third glyph as of a fourth stand in others. The label of an object is 1 where its kind (0 or 1)
differs from the cue's. Labels are given on a map of 7 x 7 places, one each 4 pixels: each glyph's middle is the middle
of one place, and places without an object have none. What can be made of it without looking at places one by one is in
`attnrepro.theory.far_cue`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.config import in_range
from attnrepro.data.same_different import glyphs
from attnrepro.data.streams import generator
from attnrepro.theory.far_cue import GLYPH, PITCH, PLACES, SIDE, SLOTS, slot_place

# The label of a place without an object.
UNLABELLED = -1
KINDS = 2


@dataclass(frozen=True)
class FarCue:
    """The task. ``pairs`` objects of each kind; ``noise`` is the standard deviation of Gaussian noise.

    Raises ``ValueError`` for a value out of range.
    """

    pairs: int = 2
    noise: float = 0.1

    def __post_init__(self) -> None:
        in_range(self, pairs=(1, (SLOTS**2 - 1) // KINDS), noise=(0, 100))

    def draw(self, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """``n`` new images ``[n, 1, 28, 28]`` in float32 and labels ``[n, 7, 7]`` in int64, on the stream's device."""
        device = stream.device
        cue = torch.randint(KINDS, (n,), generator=stream, device=device)
        slots = torch.rand(n, SLOTS**2, generator=stream, device=device).argsort(1)[:, : 1 + KINDS * self.pairs]
        kinds = torch.arange(KINDS, device=device).repeat(self.pairs).expand(n, -1)
        # Two glyphs for the cue, two others for the objects.
        shown = glyphs(2 * KINDS).to(device)[torch.cat([cue[:, None], KINDS + kinds], 1)]
        rows, columns = slots // SLOTS, slots % SLOTS
        images = torch.zeros(n, SIDE, SIDE, device=device)
        along = torch.arange(GLYPH, device=device) + PITCH // 2 - GLYPH // 2
        which = torch.arange(n, device=device)[:, None, None, None]
        images[which, (rows * PITCH)[..., None, None] + along[:, None], (columns * PITCH)[..., None, None] + along] = (
            shown
        )
        if self.noise:
            images += self.noise * torch.randn(images.shape, generator=stream, device=device)
        labels = torch.full((n, PLACES, PLACES), UNLABELLED, device=device)
        places = torch.tensor([slot_place(slot) for slot in range(SLOTS)], device=device)
        labels[which[..., 0, 0], places[rows[:, 1:]], places[columns[:, 1:]]] = (kinds != cue[:, None]).long()
        return images[:, None], labels


def far_cue(
    task: FarCue, n: int, seed: int, *names: object, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """``n`` images and label maps from the stream ``names`` (train, test, ...) of ``seed``; see `FarCue.draw`."""
    return task.draw(n, generator(seed, "far_cue", *names, device=device))
