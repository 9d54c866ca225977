"""What layers of n tokens and d components cost: FLOPs, exact crossovers, sequential steps, path lengths, memory.

Two FLOPs are a multiply-add; softmax, activations, sums and biases are not counted, as torch's counter does not. ``k``
is ``kernel``: what it means depends on the layer. All layers map ``[n, d]`` to ``[n, d]``, h is the number of heads.

=====================  ======================================================  ==================================
network                layer                                                   FLOPs
=====================  ======================================================  ==================================
``attention``          W_Q, W_K, W_V, W_O and all pairs                        8 n d^2 + 4 n^2 d
``projections``        its four products with a matrix                         8 n d^2
``logits``             its dot products                                        2 n^2 d
``mixing``             its weighted sums of values                             2 n^2 d
``scores``             dot products and weighted sums                          4 n^2 d
``window``             attention to k neighbours                               8 n d^2 + 4 n k d
``linear``             attention with a feature map                            8 n d^2 + 4 n d^2 / h + 2 n d
``low_rank``           attention to k mixtures of the tokens                   8 n d^2 + 8 n k d
``convolution``        k taps along one axis                                   2 n k d^2
``convolution_2d``     k x k taps on a grid of n positions                     2 n k^2 d^2
``depthwise_2d``       the same, each channel by itself                        2 n k^2 d
``graph_convolution``  mean over k neighbours, then one matrix                 2 n d^2 + 2 n k d
``rnn``                W and U of d x d in every step                          4 n d^2
``gru``                three of each                                           12 n d^2
``lstm``               four of each                                            16 n d^2
=====================  ======================================================  ==================================

Sources: Vaswani et al. 2017, section 4 and table 1 (classes, sequential operations, maximum path length); documents 002
(section on GPUs, section on a unified view) and 004 (sections 1.3 and 2.3).
"""

from fractions import Fraction

# Terms as (coefficient, power of n, power of d, power of k, power of h).
_PROJECTIONS = (8, 1, 2, 0, 0)
_TERMS: dict[str, tuple[tuple[int, int, int, int, int], ...]] = {
    "attention": (_PROJECTIONS, (4, 2, 1, 0, 0)),
    "projections": (_PROJECTIONS,),
    "logits": ((2, 2, 1, 0, 0),),
    "mixing": ((2, 2, 1, 0, 0),),
    "scores": ((4, 2, 1, 0, 0),),
    "window": (_PROJECTIONS, (4, 1, 1, 1, 0)),
    "linear": (_PROJECTIONS, (4, 1, 2, 0, -1), (2, 1, 1, 0, 0)),
    "low_rank": (_PROJECTIONS, (8, 1, 1, 1, 0)),
    "convolution": ((2, 1, 2, 1, 0),),
    "convolution_2d": ((2, 1, 2, 2, 0),),
    "depthwise_2d": ((2, 1, 1, 2, 0),),
    "graph_convolution": ((2, 1, 2, 0, 0), (2, 1, 1, 1, 0)),
    "rnn": ((4, 1, 2, 0, 0),),
    "gru": ((12, 1, 2, 0, 0),),
    "lstm": ((16, 1, 2, 0, 0),),
}
NETWORKS = tuple(_TERMS)
RECURRENT = ("rnn", "gru", "lstm")
# Layers that ``kernel`` is a size of.
WITH_KERNEL = tuple(name for name, terms in _TERMS.items() if any(term[3] for term in terms))
VARIABLES = ("tokens", "embed_dim", "kernel")


def flops(network: str, n: int, d: int, k: int = 1, h: int = 1) -> int:
    """FLOPs of one forward pass of one sequence.

    Raises:
        ValueError: an unknown network, a size below 1, or heads that do not divide d.
    """
    if min(n, d, k, h) < 1 or d % h:
        raise ValueError(f"n={n}, d={d}, k={k} and h={h} must be 1 or more, and h divide d")
    total = sum(Fraction(c * n**a * d**b * k**e) * Fraction(h) ** f for c, a, b, e, f in _terms(network))
    return int(total)


def degree(network: str, variable: str) -> int:
    """Largest power of ``tokens``, ``embed_dim`` or ``kernel`` in the FLOPs, the other sizes fixed."""
    return max(term[1 + VARIABLES.index(variable)] for term in _terms(network))


def coefficient(network: str) -> int:
    """Multiply-adds of a layer of one term, in units of its powers of the sizes.

    Raises:
        ValueError: a layer of several terms.
    """
    terms = _terms(network)
    if len(terms) > 1:
        raise ValueError(f"network={network} must have one term")
    return terms[0][0] // 2


def cheaper_up_to(network: str, against: str, d: int, k: int = 1) -> int:
    """Largest n at which ``network`` needs fewer FLOPs than ``against``, one head; 0 if it never does.

    Both are n (s n + c), so that the first is cheaper for n < (c_2 - c_1) / (s_1 - s_2).

    Raises:
        ValueError: no such largest n, because the first does not grow faster than the second.
    """
    (s1, c1), (s2, c2) = (_by_power_of_n(name, d, k) for name in (network, against))
    if s1 <= s2:
        raise ValueError(f"network={network} must grow faster with n than against={against}")
    return max(0, -(-(c2 - c1) // (s1 - s2)) - 1)


def sequential_steps(network: str, n: int) -> int:
    """Matrix products, one after the other, that nothing can shorten: the longest chain from any input or weight.

    Attention: query, dot products, weighted sum, W_O. Low rank mixes the keys besides; linear attention sums key times
    value. A convolution is one product. A recurrent layer needs its state before the next step: n.
    """
    known = {"attention": 4, "window": 4, "linear": 4, "low_rank": 5, "convolution": 1}
    return n if network in RECURRENT else known[network]


def path_length(network: str, distance: int, k: int = 1) -> int:
    """Layers, or steps of a recurrence, between positions ``distance`` apart (output i, input i - distance)."""
    if network in RECURRENT:
        return distance
    return -(-distance // (k // 2)) if network in ("window", "convolution") else 1


def largest_tensor(network: str, n: int, d: int, k: int = 1, h: int = 1) -> int:
    """Entries of the largest tensor that an operation of the forward pass returns.

    ``attention`` writes the h n^2 weights, ``fused`` (blocks of keys, running maximum and sum) nothing larger than the
    tokens, ``window`` the k neighbours of each token.

    Source: Rabe and Staats 2021, Self-attention Does Not Need O(n^2) Memory; Dao et al. 2022, FlashAttention.
    """
    extra = {"attention": h * n * n, "window": n * d * k, "linear": d * d // h, "low_rank": h * n * k}
    return max(n * d, extra.get(network, 0))


def _terms(network: str) -> tuple[tuple[int, int, int, int, int], ...]:
    if network not in _TERMS:
        raise ValueError(f"network={network} must be one of {', '.join(NETWORKS)}")
    return _TERMS[network]


def _by_power_of_n(network: str, d: int, k: int) -> tuple[int, int]:
    """Coefficients of n^2 and n."""
    found = {2: 0, 1: 0}
    for c, a, b, e, _ in _terms(network):
        found[a] += c * d**b * k**e
    return found[2], found[1]
