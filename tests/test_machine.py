"""Measured properties of the machine: the arithmetic is exact, the timing only has to be sane."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import torch

from refimpl import machine


def fake_clock(seconds: list[float]) -> Iterator[float]:
    """Readings of a clock between which each pass takes the given time."""
    now = 100.0
    for taken in seconds:
        yield now
        now += taken
        yield now


def test_bandwidth_is_bytes_over_the_median_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first pass maps the pages; of the others the middle one counts, whatever the worst took.
    clock = fake_clock([50.0, 0.25, 0.5, 9.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    assert machine.read_bandwidth(num_bytes=2**20, passes=3) == 2**20 / 0.5


def test_every_byte_is_read_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    plain_sum = torch.Tensor.sum
    monkeypatch.setattr(
        torch.Tensor, "sum", lambda self: (read.append(self.nbytes), plain_sum(self))[1]
    )
    machine.read_bandwidth(num_bytes=2**20 + 8, passes=2)
    assert read == [2**20 + 8] * 3


def test_a_real_measurement_is_between_a_floppy_and_the_fastest_memory_there_is() -> None:
    assert 1e6 < machine.read_bandwidth(num_bytes=2**25, passes=3) < 1e14


@pytest.mark.parametrize("num_bytes", [0, -8, 2**20 - 8, 2**20 + 4])
def test_a_buffer_that_measures_a_cache_is_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match=str(num_bytes)):
        machine.read_bandwidth(num_bytes=num_bytes)


def test_no_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        machine.read_bandwidth(passes=0)


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= machine.num_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8}, raising=False)
    assert machine.num_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert machine.num_cores() == 7


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.processor_name().strip()
    monkeypatch.setattr(machine.Path, "is_file", lambda self: False)
    for known, expected in itertools.product(("arm", ""), repeat=2):
        monkeypatch.setattr(machine.platform, "processor", lambda known=known: known)
        monkeypatch.setattr(machine.platform, "machine", lambda value=expected: value)
        assert machine.processor_name() == (known or expected or "unknown")
