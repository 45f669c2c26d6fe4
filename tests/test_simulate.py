"""Static batches against a grid of slots and steps, and published shares of what waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import rows

from refimpl import units
from refimpl.architecture import Architecture
from refimpl.hardware import conversion_cycles
from refimpl.roofline import SparseRead, sparse_read
from refimpl.simulate import static_batch

PUBLISHED = rows("published_serving.json")
V32 = Architecture.named("deepseek-v3.2")


def lengths_of(row: dict) -> list[int]:
    return row.get("lengths") or [row["lengths_of_99"]] * 99 + [row["longest"]]


def sparse(row: dict) -> SparseRead:
    fp8 = {"dtype": "fp8", "group_size": 128, "scale_bytes": 4, "rope_dtype": "bf16"}
    return sparse_read(V32, row["num_tokens"], **(fp8 if row.get("fp8") else {}))


def quantity(row: dict) -> float:
    """What a published row states, in its unit."""
    return {
        "idle_percent_after_shortest": lambda: (
            100 * static_batch(lengths_of(row)).idle_share(min(lengths_of(row)))
        ),
        "idle_percent": lambda: 100 * static_batch(lengths_of(row)).idle_share(),
        "utilisation_percent": lambda: 100 * static_batch(lengths_of(row)).utilisation,
        "chosen_ratio": lambda: sparse(row).dense / sparse(row).chosen,
        "read_ratio": lambda: sparse(row).saving,
        "cycles": lambda: conversion_cycles(row["num_elements"], row["per_cycle"]),
        "speedup": lambda: units.speedup(row["before"], row["after"]),
    }[row["quantity"]]()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    assert abs(quantity(row) - row["expected"]) <= row["tolerance"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.data())
def test_shares_are_those_of_a_grid(lengths: list[int], data: st.DataObject) -> None:
    batch = static_batch(lengths)
    grid = [[step < length for length in lengths] for step in range(max(lengths))]
    cells = [slot for step in grid for slot in step]
    assert batch.num_steps == len(grid)
    assert batch.utilisation == pytest.approx(sum(cells) / len(cells), abs=1e-12)
    assert [batch.busy(step) for step in range(len(grid))] == [sum(step) for step in grid]
    start = data.draw(st.integers(0, len(grid) - 1))
    stop = data.draw(st.integers(start + 1, len(grid)))
    window = [not slot for step in grid[start:stop] for slot in step]
    assert batch.idle_share(start, stop) == pytest.approx(sum(window) / len(window), abs=1e-12)
    assert batch.idle_share(start) == pytest.approx(
        sum(not slot for step in grid[start:] for slot in step)
        / (len(lengths) * (len(grid) - start)),
        abs=1e-12,
    )


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([], "at least one request, got none"),
        ([3, 0], "a request's length must be at least 1, got 0"),
        ([3, 2.5], "must be an integer, got 2.5"),
        ([True], "must be an integer, got True"),
    ],
)
def test_impossible_batches_are_refused(lengths: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        static_batch(lengths)


@pytest.mark.parametrize("window", [(5, 5), (2, 1), (0, 9), (8, None)])
def test_steps_outside_the_batch_are_refused(window: tuple[int, int | None]) -> None:
    with pytest.raises(ValueError, match=r"are not a range of the 8 there are"):
        static_batch([8, 3]).idle_share(*window)


def test_the_mean_wait_does_not_depend_on_the_order() -> None:
    assert static_batch([2, 9, 4]).utilisation == static_batch([9, 4, 2]).utilisation == 15 / 27
