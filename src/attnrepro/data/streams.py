"""Random streams: every use of chance has a name, and names are independent of each other."""

import hashlib

import numpy as np
import torch


def stream_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``.

    Spawned from ``numpy.random.SeedSequence``, so that streams of the same seed (data, initialisation, order, the
    draws of each cell) are independent and none depends on how many others exist.
    """
    if any(not str(name) or "/" in str(name) for name in names):
        raise ValueError(f"a stream has names without '/', not {names!r}")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number, 0 or more")
    words = np.frombuffer(hashlib.sha256("/".join(map(str, names)).encode()).digest(), dtype=np.uint32)
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in words))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, *names: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator on ``device`` for the stream ``names`` of ``seed``."""
    result = torch.Generator(device=device)
    result.manual_seed(stream_seed(seed, *names))
    return result
