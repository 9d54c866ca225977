"""What local windows, and one vector added to all places, can make of the far-cue task (`attnrepro.data.far_cue`).

An image shows one cue, of kind 0 or 1 with probability 1/2, and equally many objects of kind 0 and 1. The label of an
object's place is 1 where its kind differs from the cue's. The logit at place i is said to be *query-independent* if it
is s_i = a(window of i) + t(image), where the window shows no other glyph than that of i and t, any function of the
whole image, is the same for all places: a linear read-out after a block that adds one vector to all places
(GC, a global average) is of this form; a local network is the case t = 0.

Theorem. Every query-independent read-out has cross-entropy E log(1 + exp(-y s)) >= ln 2 (y = +1 or -1, averaged over
the objects of an image), and accuracy at most 3/4.

Proof. The functions s = a + t are a convex cone that contains 0, and the cross-entropy is convex in s, so that 0 is a
minimiser if its derivative in every direction, -E[y (a + t)] / 2, vanishes there. Given its window, an object's kind
and place, its label is decided by the cue, which is independent of the window: E[y a] = 0. In each image as many
objects have y = 1 as have y = -1: E[y t] = 0. At s = 0 the loss is ln 2. For the accuracy take one object of each kind,
i and j, in the same image. Both are labelled right only if s_i < s_j under one cue and s_j < s_i under the other, that
is a_i < a_j and a_j < a_i; the windows have the same law under both cues, so that the chances of both being right add
up to at most 1 over the two cues. Of two places at most 1 + [both right] are right, hence at most (1 + 1/2) / 2. QED.
"""

import math

# Pixels of a side, slots in a row, of which each holds at most one glyph, and pixels from slot to slot.
SIDE, SLOTS, PITCH, GLYPH = 28, 3, 8, 5
# Pixels from one place of the map to the next, and places in a row.
STRIDE, PLACES = 4, 7


def slot_place(slot: int) -> int:
    """Row (or column) of the place whose middle pixel, 4 x place, is the middle of a slot's glyph."""
    return 2 * slot + 1


def widest_window() -> int:
    """Side of the largest square window around a glyph's middle that never touches another glyph: odd."""
    return 2 * (PITCH - GLYPH // 2 - 1) + 1


def least_query_independent_loss() -> float:
    """The least cross-entropy in nats of any query-independent read-out."""
    return math.log(2)


def query_independent_bound() -> float:
    """What no query-independent read-out exceeds in accuracy."""
    return 3 / 4
