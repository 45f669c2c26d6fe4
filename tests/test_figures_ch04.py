"""Chapter 04's figures are drawn from numbers that plain arithmetic gives as well."""

from __future__ import annotations

import math

import pytest

import figures
from figures import ch04

WEIGHTS = 2 * 70_553_706_496  # Llama-3-70B in bf16
TOKEN = 2 * 80 * 8 * 128 * 2
BANDWIDTH, PEAK, NODE = 3.35e12, 989e12, 8


def intensity(batch: int, context: int) -> float:
    flops = batch * (WEIGHTS + 4 * 80 * 64 * 128 * context)
    return flops / (WEIGHTS + batch * context * TOKEN)


def test_a_steps_bytes_are_weights_and_caches() -> None:
    data = figures.data("04_step_bytes")
    assert [row["batch"] for row in data["rows"]] == [1, 32, 105, 324]
    for row in (data["step"], *data["rows"]):
        assert row["weights"] == WEIGHTS
        assert row["cache"] == row["batch"] * data["context"] * TOKEN
        assert row["total"] == row["weights"] + row["cache"]
        assert row["per_token"] * row["batch"] == pytest.approx(row["total"])
    assert round(data["step"]["total"] / 1e9) == 184


def test_roofline_points_lie_on_the_roof() -> None:
    data = figures.data("04_roofline")
    assert data["ridge"] == pytest.approx(PEAK / BANDWIDTH)
    for point in data["points"]:
        roof = min(PEAK, point["intensity"] * BANDWIDTH)
        assert point["flops_per_second"] == pytest.approx(roof)
        assert (point["bound"] == "compute") == (point["intensity"] >= data["ridge"])
    decode = [p["intensity"] for p in data["points"][:-1]]
    assert decode == pytest.approx([intensity(n, 4096) for n in (1, 8, 32, 256)])
    assert data["ceiling"] == pytest.approx(intensity(10**9, 4096), rel=1e-6)
    assert max(decode) < data["ceiling"] < data["ridge"] < data["points"][-1]["intensity"]


def test_batch_curves_cross_where_the_cache_equals_the_weights() -> None:
    data = figures.data("04_batch")
    pool = 0.9 * NODE * 80e9 - WEIGHTS
    for curve in data["curves"]:
        each = curve["context"] * TOKEN
        assert curve["crossover"] == pytest.approx(WEIGHTS / each)
        assert curve["fits"] == math.floor(pool / each)
        assert curve["limit"] == pytest.approx(NODE * BANDWIDTH / each)
        for batch, rate in zip(data["batches"], curve["rates"], strict=True):
            assert rate == pytest.approx(batch * NODE * BANDWIDTH / (WEIGHTS + batch * each))
            assert rate < curve["limit"]
    assert [curve["fits"] for curve in data["curves"]] == [324, 40, 10]


def test_fp8_ratios_count_half_a_cache_and_whole_weights() -> None:
    data = figures.data("04_fp8_cache")
    for context, ratios, fits in zip(data["contexts"], data["ratio"], data["fits"], strict=True):
        assert fits == math.floor((0.9 * NODE * 80e9 - WEIGHTS) / (context * TOKEN))
        for batch, ratio in zip(data["batches"], ratios, strict=True):
            cache = batch * context * TOKEN
            assert ratio == pytest.approx((WEIGHTS + cache) / (WEIGHTS + cache / 2))
            assert 1 < ratio < 2
    at_32_of_4k = data["ratio"][data["contexts"].index(4096)][data["batches"].index(32)]
    assert at_32_of_4k == pytest.approx(1.132, abs=0.001)


def test_hierarchy_is_that_of_one_of_eight_gpus() -> None:
    data = ch04.hierarchy_data(batch=32, context=4096, tile=128)
    assert data["levels"]["registers"] == 132 * 65_536 * 4  # 64 Ki registers of 32 bits each
    assert data["cache"] * NODE == 32 * 4096 * TOKEN
    assert data["layer_cache"] * 80 == data["cache"]
    assert data["layer_cache"] > data["levels"]["l2"]
    assert data["tile_bytes"] == 128 * 128 * 2 * 2 < data["levels"]["shared"] / 132
    assert data["query_bytes"] == 64 // NODE * 128 * 2
    assert data["weights"] + data["cache"] < data["levels"]["hbm"]
