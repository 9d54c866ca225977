"""Ways to select one of n items by scores, each with the gradient that it passes to the scores."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

METHODS = ("hard_argmax", "soft", "straight_through", "gumbel_soft", "gumbel_hard", "reinforce")


def gumbel(shape: tuple[int, ...], generator: torch.Generator, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard Gumbel noise, -log(E) of exponential E, on the generator's device.

    The largest of ``scores + noise`` is k with the softmax probability of k (Gumbel 1954; Maddison et al. 2014).
    """
    drawn = torch.empty(shape, dtype=dtype, device=generator.device).exponential_(generator=generator)
    return -drawn.clamp_min(torch.finfo(dtype).tiny).log()


def hard(scores: Tensor) -> Tensor:
    """One-hot weights of the highest score ``[..., n]``, as its own derivative has it: no gradient."""
    return one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


def selection_weights(method: str, scores: Tensor, temperature: Tensor | float, noise: Tensor) -> Tensor:
    """Weights ``[..., n]`` by which values are mixed, from scores and Gumbel noise of a shape that broadcasts to them.

    hard_argmax: `hard`. soft: softmax(scores / T). straight_through: `hard` forward, the gradient of soft backward
    (Bengio, Leonard and Courville 2013). gumbel_soft: softmax((scores + noise) / T); gumbel_hard: one-hot of its
    largest forward, its gradient backward (Jang, Gu and Poole 2017). reinforce: one item sampled with softmax(scores
    / T), without a gradient: its own comes from `score_function`.

    Raises:
        ValueError: a method that is none of `METHODS`.
    """
    if method in ("hard_argmax", "reinforce"):
        return hard(scores if method == "hard_argmax" else scores / temperature + noise)
    if method in ("soft", "straight_through"):
        relaxed = (scores / temperature).softmax(-1)
    elif method in ("gumbel_soft", "gumbel_hard"):
        relaxed = ((scores + noise) / temperature).softmax(-1)
    else:
        raise ValueError(f"method={method} must be one of {', '.join(METHODS)}")
    if method in ("soft", "gumbel_soft"):
        return relaxed
    # In this order the forward value is one-hot to the last bit.
    return hard(relaxed) + (relaxed - relaxed.detach())


def score_function(scores: Tensor, temperature: Tensor | float, chosen: Tensor, advantage: Tensor) -> Tensor:
    """advantage * log p(chosen), whose derivative by the scores is REINFORCE's estimate (Williams 1992).

    Args:
        scores: ``[..., n]``.
        temperature: divides the scores.
        chosen: one-hot weights of the sampled items, ``[..., n]``.
        advantage: loss of the sample less a baseline that does not depend on it, ``[...]``; no gradient goes there.
    """
    log_p = ((scores / temperature).log_softmax(-1) * chosen).sum(-1)
    return advantage.detach() * log_p
