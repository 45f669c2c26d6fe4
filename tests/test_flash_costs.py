"""Closed forms of attention's traffic and FLOPs against enumeration, and printed figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import rows
from torch.utils.flop_counter import FlopCounterMode

from refimpl import attention
from refimpl.architecture import Architecture
from refimpl.flash import costs, published
from refimpl.hardware import ACCELERATORS
from refimpl.sizing import kv_bytes_per_token

PUBLISHED = rows("published_flash.json")


def quantity(row: dict[str, Any]) -> float:
    """What a published row states, in its unit."""
    N, d = row.get("num_tokens", 0), row.get("head_dim", 0)
    heads = {"num_heads": row.get("num_heads", 1), "batch": row.get("batch", 1)}
    compared = published.COMPARISONS.get(row.get("comparison", ""))
    v3_over_v1 = costs.compound(published.V2_OVER_V1, published.V3_OVER_V2)
    return {
        "times": lambda: compared.times,
        "percent_more": lambda: compared.percent_more,
        "GFLOP": lambda: costs.product_flops(N, d, backward=True, **heads) / 1e9,
        "standard_GB": lambda: (
            costs.standard_accesses(N, d, backward=True).total * math.prod(heads.values()) * 2 / 1e9
        ),
        "passes": lambda: costs.num_tiles(N, costs.block_that_fits(d, row["chip_elements"])),
        "busy_percent": lambda: 100 * costs.busy_share(row["num_programs"], row["num_units"]),
        "v3_over_v1": lambda: v3_over_v1[row["end"]],
        "score_GiB": lambda: costs.score_bytes(N, N, dtype="fp16", **heads) / 2**30,
        "score_in_cache_tokens": lambda: (
            costs.score_bytes(N, N, dtype="fp16", **heads)
            // kv_bytes_per_token(Architecture.named(row["model"]))
        ),
    }[row["quantity"]]()


@pytest.mark.parametrize("name", [n for n, row in PUBLISHED.items() if "reproduces" not in row])
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    assert abs(quantity(row) - row["expected"]) <= row["tolerance"]


@pytest.mark.parametrize("name", [n for n, row in PUBLISHED.items() if "reproduces" in row])
def test_published_numbers_that_are_wrong_stay_wrong(name: str) -> None:
    row = PUBLISHED[name]
    got = quantity(row)
    assert abs(got - row["expected"]) > row["tolerance"]
    assert round(got, 3) == row["reproduces"]


def test_every_printed_comparison_has_a_source_a_unit_and_a_year() -> None:
    for name, compared in published.COMPARISONS.items():
        assert compared.source and compared.unit and compared.work, name
        assert 2022 <= compared.year <= 2026
    assert {row["comparison"] for row in PUBLISHED.values() if "comparison" in row} == set(
        published.COMPARISONS
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_score_bytes_are_those_of_the_tensor(dtype: torch.dtype) -> None:
    scores = torch.empty(2, 3, 5, 7, dtype=dtype)
    name = {torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    assert costs.score_bytes(5, 7, num_heads=3, batch=2, dtype=name) == scores.nbytes


def test_the_largest_tensor_of_the_plain_form_is_the_score_matrix() -> None:
    q, k, v = (torch.zeros(2, heads, length, 4) for heads, length in ((6, 40), (3, 50), (3, 50)))
    seen = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.nbytes) or x, id)
    with keep:
        attention.attend(q.requires_grad_(), k, v)
    assert max(seen) == costs.score_bytes(40, 50, num_heads=6, batch=2, dtype="fp32")


# --- enumeration: one element at a time, what a tile has to fetch -----------------------------


def spans(N: int, block: int) -> list[range]:
    """The tiles of an axis."""
    return [range(start, min(start + block, N)) for start in range(0, N, block)]


def enumerate_standard(N: int, d: int, block_t: int, block_s: int) -> tuple[int, int]:
    """Scores by tiles, softmax by rows, values by blocks of rows."""
    reads = writes = 0
    for t in spans(N, block_t):
        for s in spans(N, block_s):
            reads += len(t) * d + len(s) * d
            writes += len(t) * len(s)
    for _ in range(N):
        reads, writes = reads + N, writes + N
    for t in spans(N, block_t):
        reads += len(t) * N + N * d
        writes += len(t) * d
    return reads, writes


@given(
    N=st.integers(1, 70),
    d=st.integers(1, 20),
    block_t=st.integers(1, 80),
    block_s=st.integers(1, 80),
)
def test_formulas_equal_an_enumeration_of_tiles(N: int, d: int, block_t: int, block_s: int) -> None:
    got = costs.standard_accesses(N, d, block_t=block_t, block_s=block_s)
    assert got == enumerate_standard(N, d, block_t, block_s)
    reads = writes = 0
    for t in spans(N, block_t):
        reads += len(t) * d + sum(2 * len(s) * d for s in spans(N, block_s))
        writes += len(t) * d + len(t)
    assert costs.queries_outside_accesses(N, d, block_t) == (reads, writes)
    reads = writes = 0
    for s in spans(N, block_s):
        reads += 2 * len(s) * d
        for t in spans(N, block_t):
            reads += 2 * len(t) * d + 2 * len(t)  # queries and output, maximum and sum
            writes += len(t) * d + 2 * len(t)
    assert costs.keys_outside_accesses(N, d, block_s) == (reads, writes)


@given(N=st.integers(0, 5000), d=st.integers(1, 256))
def test_each_operand_once_is_4_n_squared_and_4_nd(N: int, d: int) -> None:
    assert costs.standard_accesses(N, d).total == 4 * N * N + 4 * N * d
    both = costs.standard_accesses(N, d, backward=True).total
    assert both == 11 * N * N + 12 * N * d


def test_bytes_of_one_head_at_256_tokens() -> None:
    # fp32, head dim 64, tiles of 64 by 64: figures counted from a kernel, not from the formula.
    plain = costs.standard_accesses(256, 64, block_t=64, block_s=64)
    assert (4 * plain.reads, 4 * plain.writes) == (1_310_720, 589_824)
    tiled = costs.queries_outside_accesses(256, 64, 64)
    assert (4 * tiled.reads, 4 * tiled.writes) == (589_824, 66_560)


def test_traffic_falls_with_the_chip_and_the_first_order_pays_for_its_state() -> None:
    small, large = (costs.queries_outside_accesses(8192, 128, block).reads for block in (64, 128))
    assert (small - 8192 * 128) == 2 * (large - 8192 * 128), "twice the tile, half the passes"
    first = costs.keys_outside_accesses(8192, 128, 64).total
    second = costs.queries_outside_accesses(8192, 128, 64).total
    assert 1.4 < first / second < 1.6
    # Each tile of keys moves 3d + 4 numbers a query, each tile of queries 2d numbers a key.
    assert first / second == pytest.approx((3 * 128 + 4) / (2 * 128), rel=0.01)


def test_flops_are_those_torch_counts() -> None:
    N, d, heads, batch = 24, 8, 3, 2
    q, k, v = (torch.ones(batch, heads, N, d, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as forward:
        out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    one, both = (
        costs.product_flops(N, d, num_heads=heads, batch=batch, backward=flag)
        for flag in (False, True)
    )
    assert forward.get_total_flops() == one
    assert forward.get_total_flops() + backward.get_total_flops() == both
    again = costs.product_flops(N, d, num_heads=heads, batch=batch, backward=True, recomputed=True)
    assert again * 6 == both * 7


@given(programs=st.integers(1, 500), units=st.integers(1, 150))
def test_busy_share_is_that_of_waves_played_out(programs: int, units: int) -> None:
    left, worked, waves = programs, 0, 0
    while left:
        now = min(left, units)
        left, worked, waves = left - now, worked + now, waves + 1
    assert costs.busy_share(programs, units) == worked / (waves * units)


def test_compound_of_nothing_is_one() -> None:
    assert costs.compound() == (1, 1)
    assert costs.compound((2.0, 3.0), (5.0, 7.0)) == (10.0, 21.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: costs.score_bytes(-1, 4), "num_new cannot be negative, got -1"),
        (lambda: costs.score_bytes(4, True), "num_stored must be an integer, got True"),
        (lambda: costs.score_bytes(4, 4, num_heads=0), "num_heads must be at least 1, got 0"),
        (lambda: costs.score_bytes(4, 4, dtype="fp5"), "fp5"),
        (lambda: costs.standard_accesses(4, 0), "head_dim must be at least 1, got 0"),
        (lambda: costs.standard_accesses(4, 4, block_t=0), "block must be at least 1, got 0"),
        (lambda: costs.queries_outside_accesses(4, 4, 0), "block must be at least 1, got 0"),
        (
            lambda: costs.keys_outside_accesses(4.0, 4, 2),
            r"num_tokens must be an integer, got 4\.0",
        ),
        (lambda: costs.block_that_fits(64, -1), "chip_elements cannot be negative, got -1"),
        (lambda: costs.product_flops(4, 4, recomputed=True), "recomputed without backward"),
        (lambda: costs.busy_share(0, 108), "num_programs must be at least 1, got 0"),
        (lambda: costs.compound((2.0, 1.0)), r"both positive: \(2\.0, 1\.0\)"),
        (lambda: costs.compound((math.nan, 1.0)), "both positive"),
        (lambda: costs.compound((1.0, math.inf)), "both positive"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_printed_speeds_are_the_printed_share_of_peak() -> None:
    printed = {(v.name, v.accelerator): v for v in published.VERSIONS}
    shares = {key: v.teraflops and v.teraflops * 1e12 for key, v in printed.items()}
    # NVIDIA's data sheets, dense, 16 bits: 312, 989 and 2,250 TFLOP/s.
    assert shares[("v2", "a100-80gb")] / 312e12 == pytest.approx(0.73, abs=0.01)
    assert shares[("v3", "h100-sxm")] / 989e12 == pytest.approx(0.75, abs=0.01)
    assert shares[("v4", "b200")] / 2250e12 == pytest.approx(0.71, abs=0.01)
    for version in published.VERSIONS:
        assert ACCELERATORS[version.accelerator].peak_flops["bf16"] in (312e12, 989e12, 2250e12)
        assert 0 < version.low <= version.high < 1


def test_versions_stand_in_the_order_of_their_papers() -> None:
    assert [v.name for v in published.VERSIONS] == ["v1", "v2", "v2", "v3", "v4"]
    dates = [v.date for v in published.VERSIONS]
    assert dates == sorted(dates)


def test_rates_of_a_cycle_are_those_of_a_clock_that_exists() -> None:
    """Data-sheet peaks over multiprocessors and FLOPs of a cycle are boost clocks of such chips."""
    for name, multiprocessors in (("h100-sxm", 132), ("b200", 148)):
        rates = published.PER_CYCLE[name]
        peak = ACCELERATORS[name].peak_flops["bf16"]
        clock = peak / (multiprocessors * rates.product_flops)
        assert clock == pytest.approx(1.85e9, abs=0.03e9)
        if name == "h100-sxm":  # arXiv:2407.08608, section 3: 3.9 tera a second
            assert rates.exponentials * multiprocessors * clock == pytest.approx(3.9e12, rel=0.01)


def test_version_3_needs_both_of_its_overlaps() -> None:
    """Table 2 of arXiv:2407.08608: batch 4, 8,448 tokens, 16 heads of 128, in milliseconds."""
    flops = costs.product_flops(8448, 128, num_heads=16, batch=4)
    took = [1e3 * flops / (1e12 * speed) for speed in published.V3_WITHOUT.values()]
    assert took == pytest.approx([3.538, 4.021, 4.105], abs=0.005)
