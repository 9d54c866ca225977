"""Key-value retrieval: which of some random keys is the query? The value that stands beside it is the answer."""

from typing import NamedTuple

import torch
from torch import Tensor


class Retrieval(NamedTuple):
    """Sequences of the task: ``keys`` ``[..., n, n_keys, embed_dim]``, ``queries`` ``[..., n, embed_dim]`` and
    ``answers`` ``[..., n]``, the number of the key that the query is a copy of.
    """

    keys: Tensor
    queries: Tensor
    answers: Tensor


def draw(n: int, n_keys: int, embed_dim: int, stream: torch.Generator) -> Retrieval:
    """``n`` sequences of ``n_keys`` keys N(0, I), one of which is asked for, each as likely as the others.

    Keys are new in every sequence, so that nothing but comparing query and key can find the answer.

    Raises:
        ValueError: a size below 1.
    """
    for name, size in (("n", n), ("n_keys", n_keys), ("embed_dim", embed_dim)):
        if size < 1:
            raise ValueError(f"{name}={size} must be 1 or more")
    # Lightning changes the default dtype inside its loops: the same sequences at every precision.
    keys = torch.randn(n, n_keys, embed_dim, generator=stream, device=stream.device, dtype=torch.float32)
    answers = torch.randint(n_keys, (n,), generator=stream, device=stream.device)
    return Retrieval(keys, keys[torch.arange(n, device=keys.device), answers], answers)


def stacked(parts: list[Retrieval]) -> Retrieval:
    """Sequences of several seeds side by side, seeds first."""
    return Retrieval(*(torch.stack(tensors) for tensors in zip(*parts, strict=True)))
