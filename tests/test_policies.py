"""Reserving memory three ways: hand-worked traces, a buddy allocator against a map of its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from oracles import rows

from refimpl.blocks.buddy import BuddyAllocator, OutOfRange, rounded_up
from refimpl.blocks.policies import ContiguousMax, ContiguousPowerOfTwo, Paged, Request
from refimpl.blocks.replay import Usage, draw_trace, replay

PUBLISHED = rows("published_paged.json")
SLOTS = 32
MAKERS: dict[str, Callable[[], Any]] = {
    "max": lambda: ContiguousMax(SLOTS, 16),
    "power of two": lambda: ContiguousPowerOfTwo(SLOTS),
    "paged": lambda: Paged(SLOTS, 4),
    "paged by one": lambda: Paged(SLOTS, 1),
}


# --- the buddy allocator ----------------------------------------------------------------------


@given(
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40),
    num_slots=st.sampled_from([1, 8, 32]),
)
@settings(max_examples=100)
def test_buddies_against_a_map_of_the_slots(
    actions: list[tuple[bool, int]], num_slots: int
) -> None:
    buddies = BuddyAllocator(num_slots)
    owner: list[int | None] = [None] * num_slots  # of every slot: the start of its range
    for asks, number in actions:
        starts = sorted({start for start in owner if start is not None})
        if asks or not starts:
            size = next(2**k for k in range(10) if 2**k >= number)
            # All merged: a range can be had if and only if an aligned stretch is free.
            free = [
                start
                for start in range(0, num_slots - size + 1, size)
                if owner[start : start + size] == [None] * size
            ]
            if not free:
                before = (buddies.ranges, buddies.num_free, buddies.largest_free)
                with pytest.raises(OutOfRange, match=f"no range of {size} slots is free"):
                    buddies.allocate(number)
                assert (buddies.ranges, buddies.num_free, buddies.largest_free) == before
            else:
                start = buddies.allocate(number)
                assert start in free
                owner[start : start + size] = [start] * size
        else:
            start = starts[number % len(starts)]
            buddies.free(start)
            owner = [None if held == start else held for held in owner]
        buddies.check_invariants()
        assert buddies.num_free == owner.count(None)
        assert buddies.ranges == {s: owner.count(s) for s in owner if s is not None}
    for start in buddies.ranges:
        buddies.free(start)
    assert buddies.largest_free == num_slots, "everything merges again"


def test_enough_slots_are_free_and_none_of_them_fit() -> None:
    buddies = BuddyAllocator(16)
    starts = [buddies.allocate(4) for _ in range(4)]
    assert starts == [0, 4, 8, 12]
    buddies.free(4)
    buddies.free(8)  # neighbours, but not the two halves of one range
    assert (buddies.num_free, buddies.largest_free) == (8, 4)
    with pytest.raises(OutOfRange, match="of 8 slots is free: 8 are, the largest range has 4"):
        buddies.allocate(5)
    buddies.free(0)
    assert buddies.largest_free == 8
    assert buddies.allocate(5) == 0


@pytest.mark.parametrize(
    ("number", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)]
)
def test_rounding_up(number: int, power: int) -> None:
    assert rounded_up(number) == power


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BuddyAllocator(12), "num_slots must be a power of two, got 12"),
        (lambda: BuddyAllocator(0), "num_slots must be a positive integer, got 0"),
        (lambda: BuddyAllocator(8).allocate(0), "num_slots must be a positive integer, got 0"),
        (lambda: BuddyAllocator(8).free(0), "no range in use starts at 0"),
        (lambda: ContiguousMax(32, 0), "max_tokens must be a positive integer, got 0"),
        (lambda: ContiguousPowerOfTwo(24), "must be a power of two, got 24"),
        (lambda: Paged(32, 5), "32 slots are no whole number of blocks of 5"),
        (lambda: Request(-1, 2, 3), "arrival must be an integer of at least 0, got -1"),
        (lambda: Request(0, 0, 3), "num_prompt must be a positive integer, got 0"),
        (lambda: Request(0, 2, True), "num_output must be a positive integer, got True"),
        (lambda: replay(Paged(8, 2), []), "the trace is empty"),
        (lambda: replay(Paged(8, 2), [Request(0, 8, 2)]), "can never fit in 8 slots"),
        (lambda: replay(ContiguousPowerOfTwo(8), [Request(0, 8, 2)]), "can never fit in 8"),
        (lambda: replay(ContiguousMax(32, 8), [Request(0, 8, 2)]), "9 slots, max_tokens is 8"),
        (lambda: replay(ContiguousMax(8, 16), [Request(0, 8, 2)]), "can never fit in 8 slots"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- traces worked by hand --------------------------------------------------------------------


def test_one_request_under_each_policy() -> None:
    # A prompt of 3 and 4 new tokens: 3, 4, 5, 6 slots filled after the four steps.
    trace = [Request(2, 3, 4)]

    def kinds(policy: Any) -> list[tuple[int, ...]]:
        return [
            (s.token, s.future, s.internal, s.external, s.unused)
            for s in replay(policy, trace).steps
        ]

    assert kinds(ContiguousMax(SLOTS, 16)) == [
        (3, 3, 10, 0, 16),
        (4, 2, 10, 0, 16),
        (5, 1, 10, 0, 16),
        (6, 0, 10, 0, 16),
    ]
    assert kinds(ContiguousPowerOfTwo(SLOTS)) == [
        (3, 3, 2, 0, 24),
        (4, 2, 2, 0, 24),
        (5, 1, 2, 0, 24),
        (6, 0, 2, 0, 24),
    ]
    assert kinds(Paged(SLOTS, 4)) == [
        (3, 1, 0, 0, 28),
        (4, 0, 0, 0, 28),
        (5, 1, 2, 0, 24),
        (6, 0, 2, 0, 24),
    ]


def test_external_slots_are_free_and_fit_nobody() -> None:
    # Four ranges of 4. The second and third end after a step: 8 slots are free, in two pieces of
    # 4 that are not halves of one range. The fifth wants 8, and waits until the first ends.
    trace = [Request(0, 3, 2), Request(0, 4, 1), Request(0, 4, 1), Request(0, 2, 3)]
    trace += [Request(1, 5, 2)]
    result = replay(ContiguousPowerOfTwo(16), trace)
    assert [(s.num_running, s.num_waiting, s.external, s.unused) for s in result.steps] == [
        (4, 0, 0, 0),
        (2, 1, 8, 0),
        (2, 0, 0, 4),
        (1, 0, 0, 8),
    ]
    # Paged, the fifth comes in at once.
    result = replay(Paged(16, 4), trace)
    assert [(s.num_running, s.num_waiting, s.external) for s in result.steps] == [
        (4, 0, 0),
        (3, 0, 0),
        (2, 0, 0),
    ]


def test_the_newest_request_gives_up_its_blocks() -> None:
    # Three blocks of 2. Both prompts come in, the older one needs a second block, the newer one
    # then has none for its third token: it goes back, and stores its tokens again when there is.
    trace = [Request(0, 2, 4), Request(0, 2, 2)]
    result = replay(Paged(6, 2), trace)
    assert (result.num_preempted, result.num_recomputed) == (1, 2)
    assert [(s.token, s.num_running, s.num_waiting) for s in result.steps] == [
        (4, 2, 0),
        (3, 1, 1),
        (4, 1, 1),
        (5, 1, 1),
        (3, 1, 0),
    ]


def test_nobody_overtakes() -> None:
    trace = [Request(0, 10, 2), Request(0, 12, 1), Request(0, 1, 1)]
    result = replay(Paged(16, 4), trace)
    assert [s.num_running for s in result.steps] == [1, 1, 2]


# --- any trace --------------------------------------------------------------------------------

requests = st.builds(Request, st.integers(0, 20), st.integers(1, 10), st.integers(1, 7))


@pytest.mark.parametrize("name", MAKERS)
@given(trace=st.lists(requests, min_size=1, max_size=14))
@settings(max_examples=50)
def test_slots_add_up_and_everybody_finishes(name: str, trace: list[Request]) -> None:
    policy = MAKERS[name]()
    result = replay(policy, trace)
    for step in result.steps:
        kinds = (step.token, step.future, step.internal, step.external, step.unused)
        assert sum(kinds) == step.total == SLOTS and min(kinds) >= 0
        assert step.reserved == SLOTS - step.external - step.unused
        assert step.num_running <= result.peak_running
        if name.startswith("paged"):
            assert step.external == 0
            size = policy.allocator.block_size
            assert step.future + step.internal <= step.num_running * (size - 1)
        else:
            assert (result.num_preempted, result.num_recomputed) == (0, 0)
    assert result.steps[-1].num_waiting == 0
    # Tokens given out: one a step and running request, whatever had to be computed again.
    assert sum(s.num_running for s in result.steps) == sum(r.num_output for r in trace)
    assert result.useful == pytest.approx(
        sum(s.token for s in result.steps)
        / sum(s.token + s.future + s.internal for s in result.steps)
    )
    assert sum(result.shares().values()) == pytest.approx(1)
    if name.startswith("paged"):
        assert policy.allocator.num_free == policy.allocator.num_blocks
        policy.allocator.check_invariants()


@pytest.mark.parametrize("name", MAKERS)
@given(trace=st.lists(requests, min_size=1, max_size=2))
@settings(max_examples=30)
def test_where_nobody_waits_the_tokens_are_those_of_the_trace(
    name: str, trace: list[Request]
) -> None:
    result = replay(MAKERS[name](), trace)
    # Two ranges of 16 hold any two requests, so nobody waits under any policy.
    moments = sorted({r.arrival + k for r in trace for k in range(r.num_output)})
    held = [
        sum(
            r.num_prompt + moment - r.arrival
            for r in trace
            if r.arrival <= moment < r.arrival + r.num_output
        )
        for moment in moments
    ]
    assert [step.token for step in result.steps] == held
    assert {step.num_waiting for step in result.steps} == {0}
    with pytest.raises(ValueError, match="no request ever had to wait"):
        result.shares(under_pressure=True)


def test_blocks_of_one_waste_nothing() -> None:
    trace = draw_trace(30, mean_prompt=4, mean_output=6, max_tokens=16, seed=3)
    result = replay(Paged(SLOTS, 1), trace)
    assert result.useful == 1
    assert {step.internal + step.future for step in result.steps} == {0}


def test_a_trace_is_a_function_of_its_seed() -> None:
    (prompt, output), _ = PUBLISHED["vllm.lens"]["expected"]
    options = {"mean_prompt": prompt, "mean_output": output, "per_step": 0.5}
    trace = draw_trace(4000, **options, max_tokens=100_000, seed=1)
    assert trace == draw_trace(4000, **options, max_tokens=100_000, seed=1)
    assert trace != draw_trace(4000, **options, max_tokens=100_000, seed=2)
    assert [r.arrival for r in trace] == [2 * i for i in range(4000)]
    # Rounded up from an exponential: the mean lies about half a token above it.
    for mean, drawn in (
        (prompt, [r.num_prompt for r in trace]),
        (output, [r.num_output for r in trace]),
    ):
        assert sum(drawn) / 4000 == pytest.approx(mean + 0.5, rel=0.05)
    short = draw_trace(500, **options, max_tokens=256, seed=1)
    assert max(r.num_tokens for r in short) == 256
    assert min(min(r.num_prompt, r.num_output) for r in short) >= 1
    with pytest.raises(ValueError, match="per_step must be a positive number, got 0"):
        draw_trace(1, mean_prompt=2, mean_output=2, max_tokens=9, per_step=0)


def test_each_policy_makes_better_use_of_the_slots_than_the_one_before() -> None:
    trace = draw_trace(120, mean_prompt=16, mean_output=34, max_tokens=256, per_step=0.5, seed=4)
    policies = [
        ContiguousMax(2048, 256),
        ContiguousPowerOfTwo(2048),
        *(Paged(2048, size) for size in (64, 16, 4)),
    ]
    useful = [replay(policy, trace).useful for policy in policies]
    assert useful == sorted(useful)
    assert useful[0] < 0.3 and useful[-1] > 0.9


def test_published_shares_of_the_baselines_add_up() -> None:
    row = PUBLISHED["vllm.fig2"]
    for name in ("max", "pow2", "oracle"):
        assert sum(row["expected"][name]) == pytest.approx(100, abs=row["tolerance"])
    least, most = PUBLISHED["vllm.waste"]["expected"]
    tokens = [row["expected"][name][0] for name in ("max", "pow2", "oracle")]
    assert (min(tokens), max(tokens)) == (least, most)


def test_total_of_a_usage_counts_every_slot_once() -> None:
    usage = Usage(1, 20, 300, 4000, 50_000, num_running=2, num_waiting=3)
    assert (usage.reserved, usage.total) == (321, 54_321)
