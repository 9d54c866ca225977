"""What a sum over local windows can make of the same-or-different task (`attnrepro.data.same_different`).

An additive local read-out is s(x) = b + sum over windows w of g_w(x in w), whatever the functions g_w: a convolutional
network without batch statistics whose last map is averaged or flattened into one linear logit. It says "same" where
s > 0. The windows are small enough that none touches both glyphs (`widest_window`).

Theorem. Let y = +1 (same) or -1 with probability 1/2, z = +1 or -1 the cue, z = y with probability q in (0, 1).
Every additive local read-out has cross-entropy E log(1 + exp(-y s)) >= H(q) = -q ln q - (1 - q) ln(1 - q), and one
that reaches H(q) decides as the cue alone does: its accuracy is max(q, 1 - q).

Proof. Consider the larger class C of all sums of functions h_w(x in w, z), one for each window. Whatever is in a
window besides the cue shows at most one glyph; a single glyph's type is uniform for either label, and places, jitter,
noise and the cue's place do not depend on the label. So given (x in w, z) we have y = z with probability q, exactly as
given z alone. Let s* = z ln(q / (1 - q)), which is in C. With p = sigmoid, the derivative of the cross-entropy at s*
in the direction h_w is -E[y p(-y s*) h_w]. Given (x in w, z), y p(-y s*) is z (1 - q) with probability q and -z q with
probability 1 - q, so its mean is z (q (1 - q) - (1 - q) q) = 0 and every derivative vanishes. The cross-entropy is
strictly convex in s, so s* is its only minimiser over C, with value H(q). QED.

The theorem is about what training aims at, not about every read-out: accuracy is not cross-entropy, and a sum can be
right more often than the cue. Without a cue, s = u(type 1) + v(type 2) with u rising and v falling in some order of
the types can say "same" where type 1 >= type 2, which is right for all equal pairs and half of the others: 3/4.
`accuracy_bound` is what no additive local read-out can exceed.
"""

import math

SIDE, CELLS, CELL, GLYPH = 28, 4, 7, 5


def widest_window(apart: int, jitter: int) -> int:
    """Side of the largest square window that never touches both glyphs.

    Between glyphs in cells ``apart`` rows (or columns) from each other lie at least 7 apart - 5 - 2 jitter rows.
    """
    return CELL * apart - GLYPH - 2 * jitter + 1


def cue_accuracy(cue: float) -> float:
    """Accuracy of the cue alone, which is that of the additive local read-out with the least cross-entropy."""
    return max(cue, 1 - cue)


def least_cross_entropy(cue: float) -> float:
    """H(q) in nats: the least cross-entropy of any additive local read-out."""
    return -sum(p * math.log(p) for p in (cue, 1 - cue) if p > 0)


def accuracy_bound(cue: float, types: int) -> float:
    """An upper bound on the accuracy of every additive local read-out, whatever it was trained for.

    Given the cue and everything but the two types, the read-out says "same" on a set {(a, b): u_a + v_b > 0}. If two
    equal pairs (a, a) and (b, b) are in it, then u_a + v_b + u_b + v_a > 0 and so is (a, b) or (b, a): with m equal
    pairs come at least m (m - 1) / 2 others. Where "same" has probability p given the cue, each equal pair is worth
    p / K and each other one costs (1 - p) / (K (K - 1)), so the best that can be had is

        (1 - p) + max over m = 0..K of [p m / K - (1 - p) m (m - 1) / (2 K (K - 1))],

    averaged over p = q and p = 1 - q. A window that shows the cue beside a glyph may reach it for both at once.
    """
    return sum(_best(p, types) for p in (cue, 1 - cue)) / 2


def _best(p: float, types: int) -> float:
    gains = (p * m / types - (1 - p) * m * (m - 1) / (2 * types * (types - 1)) for m in range(types + 1))
    return 1 - p + max(gains)
