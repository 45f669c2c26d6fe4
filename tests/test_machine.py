"""Measured properties of the machine: the arithmetic is exact, the timing only has to be sane."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("num_bytes", [0, -8, 2**20 - 8, 2**20 + 4, 2.0**20, "1 MiB"])
def test_a_buffer_that_measures_a_cache_is_refused(num_bytes: int) -> None:
    message = rf"^num_bytes must be at least 2\*\*20 and a multiple of 8, got {num_bytes!r}$"
    with pytest.raises(ValueError, match=message):
        machine.read_bandwidth(num_bytes=num_bytes)


def test_no_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        machine.read_bandwidth(passes=0)


@pytest.mark.parametrize("passes", [-1, 1.5, True])
def test_a_number_of_passes_that_is_none_is_refused(passes: int) -> None:
    with pytest.raises(ValueError, match=f"passes must be at least 1, got {passes}"):
        machine.matmul_rate(passes=passes)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_matrix_rate_is_operations_over_the_median_pass(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = []
    plain = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        products.append((a.dtype, a.shape, b.shape))
        return plain(a, b, out=out)

    clock = fake_clock([50.0, 0.25, 0.5, 9.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(torch, "mm", mm)
    rate = machine.matmul_rate(dtype, width=96, passes=3)
    # One output is 96 multiplications and 96 additions; the first pass is not counted.
    assert rate == 96 * 96 * (96 + 96) / 0.5
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert products == [(wanted, (96, 96), (96, 96))] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int4"}, "no rate is measured for 'int4': one of fp32, bf16, fp16"),
        ({"width": 63}, "width must be at least 64, got 63"),
        ({"width": 128.0}, "width must be at least 64, got 128.0"),
    ],
)
def test_a_product_that_measures_nothing_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine.matmul_rate(**settings)


def test_this_machine_is_an_accelerator_of_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"fp32": 3.5e9, "bf16": 1.25e9}
    monkeypatch.setattr(machine, "read_bandwidth", lambda: 7e9)
    monkeypatch.setattr(machine, "matmul_rate", lambda dtype: rates[dtype])
    monkeypatch.setattr(machine, "memory_bytes", lambda: 11_000)
    here = machine.measure()
    assert (here.bandwidth, dict(here.peak_flops), here.memory_bytes) == (7e9, rates, 11_000)
    assert here.name == machine.processor_name()
    assert here.ridge("fp32") == 0.5
    assert "measured" in here.source and torch.__version__ in here.source
    assert list(machine.measure(["bf16"]).peak_flops) == ["bf16"]
    assert machine.measure_this_machine is machine.measure
    with pytest.raises(ValueError, match="at least one dtype"):
        machine.measure([])
    with pytest.raises(ValueError, match=r"^dtypes must be a sequence of names, got 'fp32'$"):
        machine.measure("fp32")
    with pytest.raises(dataclasses.FrozenInstanceError):
        here.bandwidth = 1.0


def test_a_real_machine_multiplies_faster_than_a_person() -> None:
    assert 1e6 < machine.matmul_rate("fp32", width=256, passes=3) < 1e16


def test_memory_is_what_the_machine_has_or_the_container_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_CONTAINER_LIMITS", ())
    whole = machine.memory_bytes()
    assert 2**28 < whole < 2**50
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CONTAINER_LIMITS", (tmp_path / "absent", limit))
    for text, expected in (("max", whole), (f"{2**63}", whole), ("12345678\n", 12_345_678)):
        limit.write_text(text, encoding="utf-8")
        assert machine.memory_bytes() == expected


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
