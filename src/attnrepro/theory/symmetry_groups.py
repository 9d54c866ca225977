"""What a symmetry leaves free: equivariant linear maps and classes of inputs, counted by Burnside's lemma.

Groups act on n positions around a ring, by their names here:

===================  ====================================================================
``none``             only the identity: nothing is declared about positions (MLP)
``shifts_by_4``      cyclic shifts by multiples of 4 (two levels of pooling by 2)
``shifts``           all n cyclic shifts (convolution on a ring)
``shifts_mirrored``  shifts and reflections (convolution with kernels that are their own mirror image)
``permutations``     all n! permutations (attention without positions)
===================  ====================================================================

Sources: Burnside's lemma (for example Rotman 1995, An Introduction to the Theory of Groups, theorem 3.22); Ravanbakhsh,
Schneider and Poczos 2017, Equivariance Through Parameter-Sharing, section 3; Zaheer et al. 2017, Deep Sets, lemma 3
(dimension 2); documents 000 (last section) and 004 (section 2).
"""

import math

GROUPS = ("permutations", "shifts_mirrored", "shifts", "shifts_by_4", "none")
# Step of the group ``shifts_by_4``.
STEP = 4


def group_size(group: str, n: int) -> int:
    """Elements of the group.

    Raises:
        ValueError: an unknown group, or a length that is below 3 or that the group's step does not divide.
    """
    _check(group, n)
    sizes = {"none": 1, "shifts_by_4": n // STEP, "shifts": n, "shifts_mirrored": 2 * n}
    return sizes.get(group) or math.factorial(n)


def equivariant_dimension(group: str, n: int) -> int:
    """Dimension of the linear maps of n numbers that commute with the group.

    They are constant on the orbits of pairs of positions, of which there are, by Burnside's lemma, as many as the mean
    over the group of the squared number of fixed positions.
    """
    _check(group, n)
    if group == "permutations":
        squares = sum(k * k * math.comb(n, k) * _derangements(n - k) for k in range(n + 1))
    else:  # a shift but the identity fixes nothing; the n reflections fix 1 each, or 2 and 0 in turn
        squares = n * n
        if group == "shifts_mirrored":
            squares += n if n % 2 else 2 * n
    return squares // group_size(group, n)


def binary_classes(group: str, n: int) -> int:
    """Classes of the 2^n binary inputs that an invariant function cannot tell apart.

    The mean over the group of 2^cycles. There are 2^classes invariant yes-or-no functions.
    """
    _check(group, n)
    if group == "permutations":  # the sum of 2^cycles over all permutations is 2 (2 + 1) ... (2 + n - 1)
        words = math.prod(2 + k for k in range(n))
    else:
        step = {"none": n, "shifts_by_4": STEP}.get(group, 1)
        words = sum(2 ** math.gcd(n, shift) for shift in range(0, n, step))
        if group == "shifts_mirrored":
            words += n * 2 ** ((n + 1) // 2) if n % 2 else n // 2 * (2 ** (n // 2) + 2 ** (n // 2 + 1))
    return words // group_size(group, n)


def span_dimension(layer: str, n: int, kernel: int) -> int:
    """Dimension of the linear maps of n numbers that one layer of a kind can be, with one channel.

    ``mlp``: any matrix. ``locally_connected``: a kernel of its own for each position. ``convolution``: the same kernel
    everywhere. ``convolution_wide``: a kernel as long as the ring. ``attention``: with no content to go by the weights
    are equal, which leaves a multiple of the input beside a multiple of its mean.

    Raises:
        ValueError: an unknown layer, or a kernel that is not odd or is longer than the ring.
    """
    if kernel < 1 or kernel % 2 == 0 or kernel > n:
        raise ValueError(f"kernel={kernel} must be odd, positive and at most n={n}")
    found = {
        "mlp": n * n,
        "locally_connected": n * kernel,
        "convolution_wide": n,
        "convolution": kernel,
        "attention": 2,
    }
    if layer not in found:
        raise ValueError(f"layer={layer} must be one of {', '.join(found)}")
    return found[layer]


def distance_ratio(group: str, n: int) -> float:
    """How much further a group lies from ``none`` than from ``shifts``, by the logarithm of its dimension.

    Raises:
        ValueError: the group has as many equivariant maps as ``shifts``.
    """
    own, free, shifted = (equivariant_dimension(name, n) for name in (group, "none", "shifts"))
    if own == shifted:
        raise ValueError(f"group={group} must have another dimension than that of shifts")
    return abs(math.log(own / free)) / abs(math.log(own / shifted))


def neighbours(kernel: int) -> int:
    """Positions but its own that an output of a kernel x kernel convolution sees."""
    return kernel * kernel - 1


def _derangements(n: int) -> int:
    """Permutations of n without a fixed point, by inclusion and exclusion."""
    return sum((-1) ** k * math.comb(n, k) * math.factorial(n - k) for k in range(n + 1))


def _check(group: str, n: int) -> None:
    if group not in GROUPS:
        raise ValueError(f"group={group} must be one of {', '.join(GROUPS)}")
    if n < 3 or (group == "shifts_by_4" and n % STEP):
        raise ValueError(f"n={n} must be 3 or more, and a multiple of {STEP} for shifts_by_4")
