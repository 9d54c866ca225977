"""The stopwatch: which clock runs, and that it runs around the call alone."""

from __future__ import annotations

import time

import pytest
import torch

from attnrepro.training.stopwatch import Stopwatch


def test_a_device_without_a_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="device=meta must be a CPU or a CUDA device"):
        Stopwatch(torch.device("meta"), 1)


def test_one_thread_is_timed_by_its_own_clock_and_several_by_the_wall() -> None:
    assert Stopwatch(torch.device("cpu"), 1).clock is time.thread_time_ns
    assert Stopwatch(torch.device("cpu"), 2).clock is time.perf_counter_ns


def test_milliseconds_are_those_between_two_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(torch.device("cpu"), 1)
    now = [5_000_000]
    monkeypatch.setattr(watch, "clock", lambda: now[0])

    def run() -> None:
        now[0] += 2_500_000

    assert watch.ms(run) == watch.ms(run, on_cpu=True) == 2.5
