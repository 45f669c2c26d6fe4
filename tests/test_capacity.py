"""What fits on a node: filled user by user, levers recomputed by hand, errors."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import TINY

from refimpl.architecture import Architecture, Detail, Layer
from refimpl.capacity import Fit, Plan, plan
from refimpl.hardware import ACCELERATORS, Accelerator
from refimpl.roofline import decode_step
from refimpl.sizing import count_parameters, kv_bytes, weight_bytes

H100 = ACCELERATORS["h100-sxm"]
L70B = Architecture.named("llama-3-70b")
PER_TOKEN = 2 * 80 * 8 * 128 * 2
WEIGHTS = 2 * 70_553_706_496


def levers(found: Plan) -> dict[str, Fit]:
    """The levers by their name."""
    names = [lever.name for lever in found.levers]
    assert len(set(names)) == len(names)
    return {lever.name: lever for lever in found.levers}


@given(
    arch=st.sampled_from(list(TINY.values())),
    memory=st.integers(1, 400_000),
    num_gpus=st.integers(1, 4),
    context=st.integers(1, 70),
    users=st.integers(1, 40),
    tenths=st.integers(0, 9),
)
def test_users_are_added_until_the_memory_is_full(
    arch: Architecture, memory: int, num_gpus: int, context: int, users: int, tenths: int
) -> None:
    device = Accelerator("small", memory, 1e6, {"bf16": 1e7}, "made up", "2026-01")
    found = plan(arch, device, num_gpus=num_gpus, context=context, users=users, reserve=tenths / 10)

    def fits(number: int, gpus: int) -> bool:
        used = weight_bytes(arch) + number * kv_bytes(arch, context)
        return 10 * used <= (10 - tenths) * gpus * memory

    number = 0
    while fits(number + 1, num_gpus):
        number += 1
    fit = found.fit
    assert fit.whole_users == number
    assert math.floor(fit.users) == number or fit.users == pytest.approx(number + 1)
    assert fit.limit == (
        "none" if fits(users, num_gpus) else "cache" if fits(0, num_gpus) else "weights"
    )
    assert fits(users, fit.gpus_needed) and not fits(users, fit.gpus_needed - 1)
    assert fit.tokens == fit.pool_bytes // (kv_bytes(arch, context) // context)
    assert found.memory_bytes == num_gpus * memory
    used = found.reserved_bytes + fit.weight_bytes + fit.pool_bytes
    assert used == found.memory_bytes or fit.limit == "weights"


@pytest.mark.parametrize("tenths", range(10))
def test_a_reserve_is_exact_to_the_byte(tenths: int) -> None:
    room = weight_bytes(L70B) + 9 * kv_bytes(L70B, 1000)
    least = -(-10 * room // (10 - tenths))  # of which so many tenths are reserved
    for memory, users in ((least, 9), (least - 1, 8)):
        device = dataclasses.replace(H100, memory_bytes=memory)
        found = plan(L70B, device, context=1000, users=9, reserve=tenths / 10)
        assert found.fit.whole_users == users
        assert found.fit.gpus_needed == 1 + (memory < least)


def test_the_plan_of_fifty_users_at_128k() -> None:
    found = plan(L70B, H100, num_gpus=8, context=131_072, users=50)
    pool = 576 * 10**9 - WEIGHTS
    assert (found.fit.weight_bytes, found.fit.pool_bytes) == (WEIGHTS, pool)
    assert (found.memory_bytes, found.reserved_bytes) == (640 * 10**9, 64 * 10**9)
    assert found.fit.bytes_per_user == 131_072 * PER_TOKEN == 40 * 2**30
    assert found.fit.tokens == pool // PER_TOKEN == 1_327_186
    assert found.fit.limit == "cache"
    want = {
        # name: bytes of a user's token in all layers, GPUs that hold 50 users
        "as asked": (PER_TOKEN, 32),
        "8-bit cache": (PER_TOKEN // 2, 17),
        "4-bit cache": (PER_TOKEN // 4 + 2 * 80 * 8 * (128 // 64) * 4, 11),
        "latent of 512 + 64": (80 * 576 * 2, 11),
        "latent of 512 + 64, 8-bit": (80 * 576, 7),
    }
    got = levers(found)
    for name, (per_token, gpus) in want.items():
        assert got[name].bytes_per_user == 131_072 * per_token
        assert got[name].gpus_needed == gpus
        assert got[name].gpus_needed == math.ceil(
            (WEIGHTS + 50 * 131_072 * per_token) / (72 * 10**9)
        )
        assert got[name].users == pytest.approx(pool / (131_072 * per_token))
        assert got[name].limit == ("none" if got[name].users >= 50 else "cache")
    # Every sixth of the 80 layers still sees everything: 13 of them.
    windowed = got["window of 4,096 in 5 of 6 layers"]
    assert windowed.bytes_per_user == (13 * 131_072 + 67 * 4096) * PER_TOKEN // 80
    assert (windowed.whole_users, windowed.limit) == (53, "none")
    assert got["8-bit weights"].pool_bytes == 576 * 10**9 - WEIGHTS // 2
    assert got["8-bit weights and cache"].users == pytest.approx(
        (576 * 10**9 - WEIGHTS // 2) / (20 * 2**30)
    )
    more = got["32 GPUs"]
    assert (more.num_gpus, more.limit, more.whole_users) == (32, "none", 50)
    shorter = got["at most 26,543 tokens each"]
    assert shorter.context == pool // 50 // PER_TOKEN == 26_543
    assert shorter.limit == "none" and shorter.whole_users >= 50
    assert next(iter(got)) == "as asked" and len(got) == 10


def test_a_step_of_the_users_that_fit_comes_with_the_plan() -> None:
    for users, batch in ((None, 10), (50, 10), (4, 4)):
        found = plan(L70B, H100, num_gpus=8, context=131_072, users=users)
        assert found.step == decode_step(L70B, H100, batch=batch, context=131_072, num_gpus=8)
    assert plan(L70B, H100, num_gpus=1, context=100).step is None


def test_what_cannot_help_is_no_lever() -> None:
    small = plan(L70B, H100, num_gpus=8, context=4096, users=10)
    assert small.fit.limit == "none"
    assert not any("tokens each" in name or "GPUs" in name for name in levers(small))
    assert not any("window" in name for name in levers(small))  # no context beyond the window
    eight = {"weight_dtype": "fp8", "cache_dtype": "fp8"}
    names = set(levers(plan(L70B, H100, num_gpus=8, context=131_072, users=99, **eight)))
    assert not any(name.startswith("8-bit") for name in names)
    assert {"as asked", "4-bit cache", "latent of 512 + 64"} <= names
    assert "latent of 512 + 64, 8-bit" not in names
    four = {"weight_dtype": "int4", "cache_dtype": "int4"}
    names = set(levers(plan(L70B, H100, num_gpus=8, context=131_072, users=400, **four)))
    assert not any("-bit" in name for name in names)


def test_without_a_target_twice_the_gpus_are_tried() -> None:
    found = plan(L70B, H100, num_gpus=4, context=8192)
    assert found.fit.gpus_needed is None and found.fit.limit == "cache"
    got = levers(found)
    assert got["8 GPUs"].pool_bytes == 576 * 10**9 - WEIGHTS
    assert not any("tokens each" in name for name in got)


def test_weights_that_do_not_fit_end_it() -> None:
    found = plan(L70B, H100, num_gpus=1, context=4096, users=3)
    assert (found.fit.limit, found.fit.pool_bytes, found.fit.users) == ("weights", 0, 0.0)
    assert found.fit.gpus_needed == 3 and found.fit.tokens == 0
    assert levers(found)["8-bit weights"].limit == "cache"  # 70.6 of 72 GB: room for one user
    assert levers(found)["8-bit weights"].whole_users == 1


def test_a_model_of_windows_and_latents_has_fewer_levers() -> None:
    window = Layer(
        kind="sliding", num_query_heads=4, num_kv_heads=2, head_dim=6, value_dim=6, window=16
    )
    latent = Layer(
        kind="latent",
        num_query_heads=4,
        num_kv_heads=1,
        head_dim=6,
        value_dim=6,
        latent_width=8,
        rope_width=2,
    )
    for layer, heads in ((window, 2), (latent, 1)):
        detail = Detail((layer,), 40, 40, 4, "a toy")
        arch = Architecture("toy", 1, 4, 4, heads, 6, 0, 10, None, detail=detail)
        device = Accelerator("small", 10**6, 1e6, {"bf16": 1e7}, "made up", "2026-01")
        names = levers(plan(arch, device, context=100_000))
        assert not any("window" in name or "latent" in name for name in names)


def test_a_lever_changes_the_cache_and_leaves_the_weights() -> None:
    found = plan(L70B, H100, num_gpus=8, context=131_072, users=50)
    assert count_parameters(L70B).total * 2 == WEIGHTS
    for lever in found.levers:
        weights = WEIGHTS // 2 if "weights" in lever.name else WEIGHTS
        assert lever.weight_bytes == weights
        assert (lever.cost == "") is (lever.name == "as asked")


def test_a_model_that_keeps_nothing_has_no_plan() -> None:
    layer = Layer(kind="none", mlp_parameters=70)
    arch = Architecture("mlp", 1, 3, 0, 0, 0, 0, 11, None, detail=Detail((layer,), 33, 33, 0, "-"))
    with pytest.raises(ValueError, match="mlp keeps nothing of a sequence"):
        plan(arch, H100, context=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_gpus": 0}, "num_gpus must be at least 1, got 0"),
        ({"context": 0}, "context must be at least 1, got 0"),
        ({"context": 4096.0}, r"context must be an integer, got 4096\.0"),
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"users": True}, "users must be an integer, got True"),
        ({"reserve": 1}, "reserve must be a share from 0 to below 1, got 1"),
        ({"reserve": -0.1}, r"reserve must be a share from 0 to below 1, got -0\.1"),
        ({"reserve": float("nan")}, "reserve must be a share from 0 to below 1, got nan"),
        ({"reserve": True}, "reserve must be a share from 0 to below 1, got True"),
        ({"reserve": "10%"}, "reserve must be a share from 0 to below 1, got '10%'"),
        ({"cache_dtype": "fp7"}, "unknown dtype 'fp7'"),
    ],
)
def test_what_is_no_plan_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(L70B, H100, **{"num_gpus": 8, "context": 4096, **change})
