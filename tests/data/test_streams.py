"""Random streams: named, independent of each other, and the same everywhere."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from attnrepro.data.streams import generator, stream_seed


def test_seeds_stay_what_they_are() -> None:
    """A change of these numbers changes every recorded row; they hold in every process and on every machine."""
    assert stream_seed(0, "data") == 4724658611858677324
    assert stream_seed(7, "sqrt_d_entropy", "own", "64.0", 16) == 8251406047457945952


def test_draws_stay_what_they_are() -> None:
    assert torch.randint(1 << 30, (3,), generator=generator(0, "data")).tolist() == [45226488, 693289997, 571573300]


def test_other_names_and_other_seeds_are_other_streams() -> None:
    names = [(), ("data",), ("init",), ("data", "init"), ("init", "data"), ("data", 1), ("data", 2), ("datainit",)]
    seeds = [0, 1, 2, 2**32, 2**32 + 1, 2**63 - 1]
    found = [stream_seed(seed, *name) for seed, name in itertools.product(seeds, names)]
    assert len(set(found)) == len(seeds) * len(names)
    assert all(0 <= seed < 2**63 for seed in found)


@pytest.mark.parametrize("names", [("a/b",), ("a", "b/"), ("",), ("a", "")])
def test_a_name_that_could_be_taken_for_two_or_none_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="name"):
        stream_seed(0, *names)


def test_a_stream_does_not_depend_on_how_many_others_exist() -> None:
    alone = torch.randn(5, generator=generator(0, "data"))
    others = [generator(0, "init"), generator(1, "data")]
    among = generator(0, "data")
    for other in others:
        torch.randn(5, generator=other)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(5, generator=among), alone)


def test_making_and_using_a_stream_leaves_the_global_state() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    torch.randn(5, generator=generator(0, "data"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_a_stream_goes_on_and_starts_anew() -> None:
    one, other = generator(0, "data"), generator(0, "data")
    first, second = torch.randn(4, generator=one), torch.randn(4, generator=one)
    assert not torch.equal(first, second)
    assert torch.equal(torch.randn(4, generator=other), first)


def test_a_generator_lies_on_its_device() -> None:
    assert generator(0, "data", device="cpu").device == torch.device("cpu")
    assert generator(0, "data", device=torch.device("cpu")).initial_seed() == stream_seed(0, "data")


def test_streams_are_uncorrelated() -> None:
    """Neighbouring seeds and names: correlations of n draws are normal with sd 1/sqrt(n)."""
    n = 4000
    sources = [(seed, name) for seed in range(6) for name in ("data", "init", "order", "data 1", "data 2")]
    draws = torch.stack([torch.randn(n, generator=generator(*s), dtype=torch.float64) for s in sources])
    z = torch.corrcoef(draws)[*torch.triu_indices(len(sources), len(sources), offset=1)] * math.sqrt(n)
    assert float(z.abs().max()) < 5
    assert float(z.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / len(z)))
    assert float(draws.mean(1).abs().max()) * math.sqrt(n) < 5


@pytest.mark.parametrize("seed", [-1, 0.5, None, "0"])
def test_a_seed_is_a_whole_number_that_is_not_negative(seed: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        stream_seed(seed, "data")  # type: ignore[arg-type]
