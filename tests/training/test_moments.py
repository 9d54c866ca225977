"""Exact moments: float64 sums of float32 observations, however they arrive."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from attnrepro.training.moments import Moments

N, MEAN = 200_000, 1e4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def draws() -> Tensor:
    """Observations [n, 2] in float32 with mean 1e4 and sd 1, and correlated columns."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(N, generator=stream)
    y = 0.6 * x + 0.8 * torch.randn(N, generator=stream)
    return MEAN + torch.stack([x, y], dim=1)


def moments(observations: Tensor, *, chunk: int = 4096) -> Moments:
    made = Moments(observations.shape[1])
    for part in observations.split(chunk):
        made.update(part)
    return made


def test_it_is_right_where_sums_in_float32_are_not(draws: Tensor) -> None:
    exact = draws.double().numpy()
    standard_error = exact[:, 0].std() / np.sqrt(N)
    usual = MeanMetric()
    for part in draws[:, 0].split(100):
        usual.update(part)
    assert abs(float(usual.compute()) - exact[:, 0].mean()) > standard_error
    mean, covariance = moments(draws, chunk=100).mean_and_covariance()
    assert mean.dtype == covariance.dtype == torch.float64
    np.testing.assert_allclose(mean.numpy(), exact.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(covariance.numpy(), np.cov(exact.T), rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 1000, 5000])
def test_it_does_not_matter_how_the_observations_are_cut(draws: Tensor, chunk: int) -> None:
    few = draws[:5000] - MEAN
    whole, cut = moments(few, chunk=5000), moments(few, chunk=chunk)
    assert int(cut.n) == int(whole.n) == 5000
    for one, other in zip(cut.mean_and_covariance(), whole.mean_and_covariance(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def test_one_quantity_keeps_its_dimension(draws: Tensor) -> None:
    exact = draws[:, :1].double().numpy()
    mean, covariance = moments(draws[:, :1]).mean_and_covariance()
    assert (mean.shape, covariance.shape) == ((1,), (1, 1))
    assert float(mean) == pytest.approx(exact.mean(), rel=1e-13)
    assert float(covariance) == pytest.approx(exact.var(ddof=1), rel=1e-6)


def test_small_numbers_by_hand() -> None:
    made = moments(torch.tensor([[1.0, 10.0], [2.0, 10.0], [6.0, 40.0]]), chunk=2)
    mean, covariance = made.mean_and_covariance()
    assert mean.tolist() == [3, 20]
    assert covariance.tolist() == [[7, 45], [45, 300]]
    assert made.compute().tolist() == [3, 20]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_observations_of_any_type_are_summed_in_float64(dtype: torch.dtype) -> None:
    made = moments(torch.tensor([[1, 0], [0, 0], [1, 1]]).to(dtype))
    mean, covariance = made.mean_and_covariance()
    assert mean.tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-15)
    assert covariance.flatten().tolist() == pytest.approx([1 / 3, 1 / 6, 1 / 6, 1 / 3], abs=1e-15)


def test_one_observation_has_a_mean_and_no_covariance() -> None:
    mean, covariance = moments(torch.tensor([[3.0]])).mean_and_covariance()
    assert mean.tolist() == [3]
    assert covariance.isnan().all()


def test_an_empty_batch_adds_nothing() -> None:
    made = moments(torch.tensor([[1.0], [3.0]]))
    made.update(torch.empty(0, 1))
    assert (int(made.n), float(made.compute())) == (2, 2)


def test_a_value_that_is_no_number_is_seen() -> None:
    mean, _ = moments(torch.tensor([[1.0, 1.0], [float("nan"), 1.0]])).mean_and_covariance()
    assert mean.isnan().tolist() == [True, False]


@pytest.mark.parametrize("shape", [(3,), (3, 3), (3, 1), (2, 2, 2)])
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    made = Moments(2)
    with pytest.raises((ValueError, RuntimeError)):
        made.update(torch.ones(shape))
    assert int(made.n) == 0  # and nothing of them was added
    assert made.total.tolist() == [0, 0]


def test_a_reset_starts_anew() -> None:
    made = moments(torch.ones(5, 2))
    made.reset()
    made.update(torch.tensor([[3.0, 4.0]]))
    assert (int(made.n), made.compute().tolist()) == (1, [3, 4])


@pytest.mark.parametrize(
    "cast",
    [
        torch.nn.Module.half,
        torch.nn.Module.float,
        torch.nn.Module.bfloat16,
        lambda module: module.to(torch.bfloat16),
        lambda module: module.to("cpu", torch.float32),
        lambda module: module.to(torch.empty(1, dtype=torch.float16)),
    ],
)
def test_its_sums_keep_every_digit_when_its_module_is_cast(cast: Callable[[torch.nn.Module], object]) -> None:
    before = moments(torch.tensor([[1 / 3, 1e5 + 1 / 3]], dtype=torch.float64))
    (made,) = holder = torch.nn.ModuleList([before.clone()])
    cast(holder)
    assert isinstance(made, Moments)
    assert (made.n.dtype, made.total.dtype, made.outer.dtype) == (torch.int64, torch.float64, torch.float64)
    assert torch.equal(made.total, before.total) and torch.equal(made.outer, before.outer)


def test_autocast_does_not_reach_its_products() -> None:
    x = torch.full((4, 2), 1 + 2**-20)
    with torch.autocast("cpu", torch.bfloat16):
        made = moments(x)
    assert made.outer.dtype == torch.float64
    assert made.outer.tolist() == [[4 * (1 + 2**-20) ** 2] * 2] * 2


# --- under the Trainer ---


class Draws(L.LightningModule):
    """A measurement in small: batches of observations into moments."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = torch.nn.ModuleList([Moments(2), Moments(1)])

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        both, first = self.sums
        both.update(batch)
        first.update(batch[:, :1])


def trainer(**more: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False, **more
    )


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_a_trainer_sums_every_batch_in_float64(draws: Tensor, precision: str) -> None:
    few, module = draws[:1000], Draws()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(precision=precision).test(module, DataLoader(list(few.split(128)), batch_size=None), verbose=False)
    both, first = module.sums
    assert isinstance(both, Moments) and isinstance(first, Moments)
    assert (int(both.n), both.outer.dtype) == (1000, torch.float64)
    if precision != "bf16-true":  # there the Trainer rounds the observations before anybody sees them
        np.testing.assert_allclose(both.compute().numpy(), few.double().numpy().mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(first.compute().numpy(), few[:, 0].double().numpy().mean(), rtol=1e-13)


def test_it_moves_with_its_module() -> None:
    """What the Trainer does with a module before it runs it."""
    module = Draws().to("meta")
    (both, _) = module.sums
    assert isinstance(both, Moments)
    assert {both.n.device.type, both.total.device.type, both.outer.device.type, both.device.type} == {"meta"}
