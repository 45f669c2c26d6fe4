"""Peaks against published figures; ratios that the makers' own arithmetic fixes; errors."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from oracles import rows

from refimpl.hardware import ACCELERATORS, Accelerator, conversion_cycles, parse_node

PUBLISHED = rows("published_steps.json")
HARDWARE = {row["accelerator"]: row for row in PUBLISHED.values() if "accelerator" in row}


@pytest.mark.parametrize("name", HARDWARE)
def test_published_peaks_and_ridges(name: str) -> None:
    row, found = HARDWARE[name], Accelerator.named(name)
    assert found.peak("bf16") == found.peak("fp16") == row["flops"]
    assert found.bandwidth == row["bandwidth"]
    assert found.memory_bytes == row["memory_GB"] * 10**9
    assert abs(found.ridge() - row["expected"]) <= row["tolerance"]


def test_the_accelerators_of_the_book_are_there() -> None:
    assert list(ACCELERATORS) == [
        *("v100", "a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie", "h200", "b200"),
        *("mi300x", "l4", "l40s", "rtx-4090"),
    ]


@pytest.mark.parametrize("found", ACCELERATORS.values(), ids=ACCELERATORS)
def test_every_row_is_dated_sourced_and_dense(found: Accelerator) -> None:
    assert re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", found.date)
    assert "data sheet" in found.source or "white paper" in found.source
    assert Accelerator.named(found.name.upper()) is found is ACCELERATORS[found.name]
    peaks = found.peak_flops
    # Halving the width doubles a dense rate; a figure with sparsity would double it once more.
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("bf16", "int8")):
        if {wide, narrow} <= set(peaks):
            assert 1.95 < peaks[narrow] / peaks[wide] < 4.05
    if found.name not in ("rtx-4090", "v100"):
        assert peaks["bf16"] == peaks["fp16"] == pytest.approx(2 * peaks["tf32"], rel=0.03)
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)


# Tensor cores (AMD: compute units), multiply-adds that one does in a cycle, boost clock in MHz,
# from the makers' architecture white papers: the dense rate is their product.
LAYOUT = {
    "v100": ("fp16", 640, 64, 1530),
    "a100-80gb": ("bf16", 432, 256, 1410),
    "h100-sxm": ("bf16", 528, 512, 1830),
    "mi300x": ("bf16", 304, 1024, 2100),
    "l40s": ("bf16", 568, 128, 2520),
    "rtx-4090": ("bf16", 512, 64, 2520),
}


@pytest.mark.parametrize("name", LAYOUT)
def test_the_dense_rate_follows_from_cores_and_clock(name: str) -> None:
    dtype, cores, per_cycle, megahertz = LAYOUT[name]
    assert ACCELERATORS[name].peak(dtype) == pytest.approx(
        2 * cores * per_cycle * megahertz * 1e6, rel=0.015
    )


def test_an_unknown_name_suggests_near_ones() -> None:
    for name, near in (
        ("h100", "h100-sxm or h100-pcie"),
        ("a100", "a100-40gb or a100-80gb"),
        ("mi300", "mi300x"),
        ("rtx4090", "rtx-4090"),
    ):
        with pytest.raises(ValueError, match=f"unknown accelerator '{name}'; did you mean {near}"):
            Accelerator.named(name)
    for name in ("", "qqqq"):
        with pytest.raises(ValueError, match=r"known: v100, a100-40gb, .*rtx-4090"):
            Accelerator.named(name)
    assert Accelerator.named("H100 SXM") is ACCELERATORS["h100-sxm"]


def test_a_dtype_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="v100 has no rate for 'bf16': it has fp32, fp16"):
        ACCELERATORS["v100"].ridge()


def test_the_table_cannot_be_changed() -> None:
    found = ACCELERATORS["l4"]
    with pytest.raises(TypeError):
        ACCELERATORS["l4"] = found
    with pytest.raises(TypeError):
        found.peak_flops["bf16"] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.bandwidth = 1.0
    assert hash(found) == hash(dataclasses.replace(found))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": 0}, "memory_bytes must be a positive integer, got 0"),
        ({"memory_bytes": 80e9}, "memory_bytes must be a positive integer, got 8"),
        ({"memory_bytes": True}, "memory_bytes must be a positive integer, got True"),
        ({"bandwidth": 0.0}, "bandwidth must be positive and finite, got 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth must be positive and finite, got nan"),
        ({"bandwidth": True}, "bandwidth must be positive and finite, got True"),
        ({"peak_flops": {"bf16": float("inf")}}, "bf16 must be positive and finite, got inf"),
        ({"peak_flops": {}}, "needs a peak for at least one dtype"),
    ],
)
def test_figures_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ACCELERATORS["l4"], **change)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xh100-sxm", (8, "h100-sxm")),
        ("8 x H200", (8, "H200")),
        ("16×l4", (16, "l4")),
        ("2*b200", (2, "b200")),
        ("h100-sxm", (1, "h100-sxm")),
        (" rtx-4090 ", (1, "rtx-4090")),
    ],
)
def test_known_nodes(text: str, expected: tuple[int, str]) -> None:
    assert parse_node(text) == expected


@pytest.mark.parametrize("text", ["", "  ", "0xh100-sxm"])
def test_a_node_without_accelerators_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        parse_node(text)


def test_cycles_of_a_chain_add_up() -> None:
    assert conversion_cycles(96, [32]) == 3
    assert conversion_cycles(96, [32, 4, 96]) == 3 + 24 + 1
    assert conversion_cycles(0, [5]) == conversion_cycles(7, []) == 0


@pytest.mark.parametrize("rate", [0, -2, float("nan"), float("inf")])
def test_rates_that_are_none_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"positive and finite, got {rate} results per cycle"):
        conversion_cycles(8, [4, rate])
    with pytest.raises(ValueError, match="num_elements cannot be negative, got -1"):
        conversion_cycles(-1, [4])
