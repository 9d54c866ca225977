"""Post-LN and Pre-LN at the start: sizes of tokens, exactly, and how gradients go with depth.

Setting (Xiong et al. 2020, lemma 2): weights of variance 1 / embed_dim (Xavier's for a hidden layer as wide as the
tokens), ReLU, no biases, tokens with |x|^2 = embed_dim on average. A LayerNorm makes |norm(x)|^2 = embed_dim; attention
of a token to itself alone then adds |W_O W_V norm(x)|^2, embed_dim on average, and the MLP |W_2 relu(W_1 norm(x))|^2,
half of that, since ReLU keeps half of a symmetric law's square. Products with x itself vanish on average: the weights
are independent of it and symmetric.
"""

import math


def pre_square(layer: int) -> float:
    """Mean of |x|^2 / embed_dim after ``layer`` blocks of order pre: 1 + 3/2 layer, from lemma 2."""
    return 1 + 1.5 * layer


def post_square() -> float:
    """Mean of |x + f(x)|^2 / embed_dim before the last LayerNorm of any block of order post: 3/2, from lemma 2."""
    return 1.5


def last_gradient(order: str, depth: int) -> float:
    """Size of the gradient of the last MLP weight, up to a factor that does not depend on ``depth`` (theorem 1).

    It comes through one LayerNorm, which divides by the size of what it reads: 3/2 in order post at any depth, and
    1 + 3/2 depth in order pre.

    Raises:
        ValueError: an order other than post and pre, or a depth below 1.
    """
    if order not in ("post", "pre") or depth < 1:
        raise ValueError(f"order={order} must be post or pre and depth={depth} 1 or more")
    return 1 / math.sqrt(post_square() if order == "post" else pre_square(depth))


def collapse_power(skip: bool) -> int:
    """Power of the distance from equal tokens after one attention layer, for tokens that are nearly equal.

    Logits of tokens x + e r_i are, up to what a softmax over j does not see, e x W r_j + e^2 r_i W r_j: weights of
    different queries differ by e^2, and their means of e r_j by e^3. A skip connection hands e on. Source: Dong et al.
    2021, theorem 2.2 (doubly exponential: the third power in every layer).
    """
    return 1 if skip else 3
