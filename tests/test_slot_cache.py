"""The pool of slots: labels and data stay together, and keys turn by what their labels moved.

The oracle is a dictionary: (sequence, position) to the raw key and value of that token. Its key
is rotated once, to where the token is now, as a complex number; nothing is ever rotated twice.
"""

from __future__ import annotations

import cmath
import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles import GQA, LINEAR, LLAMA3, MHA, normal, rows, tiny, token_ids
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.cache import SlotCache
from refimpl.rope import frequencies, rotate_by

CASES = rows("cases_slots.json")
F64 = torch.float64


def rotated(raw: Tensor, position: int, arch: Architecture) -> Tensor:
    """A raw key ``[..., D]`` turned to a position: each pair is a complex number times e^(i a)."""
    half = arch.head_dim // 2
    out = raw.clone()
    if arch.rope_scaling is None:
        speeds = [arch.rope_theta ** (-2 * i / arch.head_dim) for i in range(half)]
    else:  # tested against transformers where frequencies are
        speeds = frequencies(arch.head_dim, arch.rope_theta, arch.rope_scaling).tolist()
    for i, speed in enumerate(speeds):
        turn = cmath.exp(1j * position * speed)
        out[..., i] = raw[..., i] * turn.real - raw[..., i + half] * turn.imag
        out[..., i + half] = raw[..., i] * turn.imag + raw[..., i + half] * turn.real
    return out


def fresh(arch: Architecture, seed: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Raw keys and values ``[L, G, T, D]``, all different."""
    shape = (arch.num_layers, arch.num_kv_heads, num_tokens, arch.head_dim)
    return normal(2 * seed, *shape), normal(2 * seed + 1, *shape) + 100


def fill(
    cache: SlotCache, sequence: int, positions: list[int], k_LGTD: Tensor, v_LGTD: Tensor
) -> None:
    """One step: raw keys, rotated by the oracle, into every layer."""
    keys = [rotated(k_LGTD[:, :, t], p, cache.arch) for t, p in enumerate(positions)]
    for layer in range(cache.arch.num_layers):
        k = torch.stack([key[layer] for key in keys], dim=1).to(cache.dtype)
        cache.append(layer, sequence, positions, k, v_LGTD[layer].to(cache.dtype))


def filled(
    arch: Architecture, positions: list[int], seed: int, **options: Any
) -> tuple[SlotCache, Tensor, Tensor]:
    cache = SlotCache(arch, num_slots=len(positions) + 2, dtype=F64, **options)
    k, v = fresh(arch, seed, len(positions))
    fill(cache, 0, positions, k, v)
    return cache, k, v


def everything(cache: SlotCache) -> tuple[Any, ...]:
    """All that can be seen of a cache, as bytes where it is data."""
    seen: list[Any] = [cache.slots(), cache.num_tokens.tolist()]
    for sequence in range(cache.num_sequences):
        seen.append(cache.positions(sequence))
        for layer in range(cache.arch.num_layers):
            try:
                seen += [x.numpy().tobytes() for x in cache.read(layer, sequence)]
            except ValueError as error:
                seen.append(str(error))
    return tuple(seen)


def refuses(cache: SlotCache, match: str, operation: Callable[[], object]) -> None:
    """The operation raises ValueError, says why, and leaves the cache as it was."""
    before = everything(cache)
    with pytest.raises(ValueError, match=match):
        operation()
    assert everything(cache) == before
    cache.check_invariants()


# --- the cases ----------------------------------------------------------------------------------


@pytest.mark.case("KV-03")
def test_shifts_accumulate_and_are_applied_once() -> None:
    case = CASES["KV-03"]
    given, expected, tolerance = case["inputs"], case["expected"], case["tolerance"]
    twice, k, v = filled(GQA, given["positions"], given["seed"])
    once, _, _ = filled(GQA, given["positions"], given["seed"])
    for delta in given["deltas"]:
        twice.shift(0, 0, None, delta)
    once.shift(0, 0, None, given["total"])
    for cache in (twice, once):
        assert cache.positions(0) == expected["positions"]
        cache.apply_shifts()
        assert cache.positions(0) == expected["positions"]
    for layer in range(GQA.num_layers):
        k_GSD, v_GSD = twice.read(layer, 0)
        for t, position in enumerate(expected["positions"]):
            right = rotated(k[layer, :, t], position, GQA)
            torch.testing.assert_close(k_GSD[:, t], right, rtol=0, atol=tolerance)
            wrong = rotated(k[layer, :, t], position - given["deltas"][0], GQA)
            assert (k_GSD[:, t] - wrong).abs().max() > 1e-3
        assert torch.equal(v_GSD, v[layer])
        assert torch.equal(k_GSD, once.read(layer, 0)[0])
    before = everything(twice)
    twice.apply_shifts()
    assert everything(twice) == before, "the second application rotates nothing"


@pytest.mark.case("KV-03")
def test_a_shift_with_nothing_removed_is_applied_too() -> None:
    case = CASES["KV-03"]
    given = case["inputs"]
    cache, k, _ = filled(MHA, given["positions"], given["seed"])
    cache.shift(0, given["positions"][0], None, given["forward"])
    cache.apply_shifts()
    assert cache.positions(0) == case["expected"]["forward_positions"]
    for t, position in enumerate(case["expected"]["forward_positions"]):
        right = rotated(k[1, :, t], position, MHA)
        torch.testing.assert_close(cache.read(1, 0)[0][:, t], right, rtol=0, atol=case["tolerance"])


@pytest.mark.case("KV-05")
def test_codes_are_not_rotated() -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.int8 .* dequantise"):
        SlotCache(GQA, num_slots=5, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"torch\.int8: dequantise"):
        rotate_by(torch.ones(3, 8, dtype=torch.int8), torch.tensor([-2, -2, -2]))


@pytest.mark.case("KV-05")
def test_a_key_dequantised_rotated_and_quantised_again_is_near() -> None:
    case = CASES["KV-05"]
    given = case["inputs"]
    arch = replace(GQA, head_dim=given["head_dim"])
    k_GTD = fresh(arch, given["seed"], len(given["positions"]))[0][0]
    right = torch.stack(
        [rotated(k_GTD[:, t], p, arch) for t, p in enumerate(case["expected"]["positions"])], dim=1
    )
    stored = torch.stack(
        [rotated(k_GTD[:, t], p, arch) for t, p in enumerate(given["positions"])], dim=1
    )

    def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
        step = x.abs().amax(-1, keepdim=True) / given["levels"]
        return (x / step).round(), step

    codes, step = quantise(stored)
    delta_T = torch.full((len(given["positions"]),), given["delta"])
    codes_now, step_now = quantise(rotate_by(codes * step, delta_T, arch.rope_theta))
    steps_off = (codes_now * step_now - right).abs() / torch.maximum(step, step_now)
    assert 0 < steps_off.max() <= case["expected"]["steps"]
    untouched = (codes * step - right).abs() / step
    assert untouched.max() > case["expected"]["steps"], "without the rotation it is far off"


@pytest.mark.case("KV-07")
@pytest.mark.parametrize("ascending", [True, False])
def test_a_move_may_pass_over_positions_that_are_being_left(ascending: bool) -> None:
    case = CASES["KV-07"]
    given, expected = case["inputs"], case["expected"]
    positions = sorted(given["positions"], reverse=not ascending)
    cache, k, v = filled(GQA, positions, given["seed"])
    cache.remove(0, *given["remove"])
    cache.shift(0, *given["shift"], given["delta"])
    cache.apply_shifts()
    held = cache.positions(0)
    assert held == expected["positions"]
    assert (min(held), max(held)) == (expected["min"], expected["max"])
    assert cache.num_tokens.tolist() == [expected["count"]]
    k_GSD, v_GSD = cache.read(1, 0)
    for s, origin in enumerate(expected["origins"]):
        t = positions.index(origin)
        right = rotated(k[1, :, t], held[s], GQA)
        torch.testing.assert_close(k_GSD[:, s], right, rtol=0, atol=case["tolerance"])
        assert torch.equal(v_GSD[:, s], v[1, :, t])


@pytest.mark.case("KV-07")
def test_one_token_at_a_time_works_in_one_order_and_is_refused_in_the_other() -> None:
    case = CASES["KV-07"]
    given = case["inputs"]
    cache, _, _ = filled(GQA, given["positions"], given["seed"])
    cache.remove(0, *given["remove"])
    last = given["shift"][1] - 1
    refuses(cache, "already holds", lambda: cache.shift(0, last, last + 1, given["delta"]))
    for position in range(*given["shift"]):
        cache.shift(0, position, position + 1, given["delta"])
    assert cache.positions(0) == case["expected"]["positions"]


@pytest.mark.case("KV-08")
def test_none_is_every_sequence_and_an_unknown_one_is_refused() -> None:
    case = CASES["KV-08"]
    given = case["inputs"]
    tokens, count = given["tokens"], given["num_sequences"]
    cache = SlotCache(GQA, num_slots=tokens * count, num_sequences=count, dtype=F64)
    for sequence in range(count):
        fill(cache, sequence, list(range(tokens)), *fresh(GQA, given["seed"], tokens))
    start, stop = given["remove"]
    for unknown in given["unknown"]:
        match = f"sequence {unknown} is outside"
        for operation in (
            lambda n=unknown: cache.remove(n, start, stop),
            lambda n=unknown: cache.shift(n, start, stop, 5),
            lambda n=unknown: cache.positions(n),
            lambda n=unknown: cache.read(0, n),
            lambda n=unknown: fill(cache, n, [9], *fresh(GQA, 0, 1)),
        ):
            refuses(cache, match, operation)
    cache.remove(None, start, stop)
    for sequence in range(count):
        assert cache.positions(sequence) == case["expected"]["positions"]
    cache.check_invariants()


@pytest.mark.case("KV-08")
@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ((), [[], []]),
        ((None,), [[], []]),
        ((0,), [[], [1, 2, 3]]),
        ((1, 2), [[0, 1, 2], [1]]),
        ((None, 2), [[0, 1], [1]]),
        ((None, 0, None), [[], []]),
        ((None, 0, 2), [[2], [2, 3]]),
        ((1, 1, 1), [[0, 1, 2], [1, 2, 3]]),
        ((1, 90, None), [[0, 1, 2], [1, 2, 3]]),
    ],
)
def test_every_stated_default_of_remove(arguments: tuple[Any, ...], left: list[list[int]]) -> None:
    cache = SlotCache(GQA, num_slots=7, num_sequences=2, dtype=F64)
    fill(cache, 0, [0, 1, 2], *fresh(GQA, 1, 3))
    fill(cache, 1, [1, 2, 3], *fresh(GQA, 2, 3))
    cache.remove(*arguments)
    assert [cache.positions(0), cache.positions(1)] == left
    assert cache.num_tokens.tolist() == [len(held) for held in left]
    cache.check_invariants()


@pytest.mark.case("KV-10")
def test_compact_moves_labels_and_data_together() -> None:
    case = CASES["KV-10"]
    cache = _with_holes(GQA, case["inputs"]["slots"], case["inputs"]["seed"])
    assert cache.slots() == [held and tuple(held) for held in case["inputs"]["slots"]]
    before = everything(cache)
    assert cache.compact() == case["expected"]["moved"]
    assert cache.slots() == [held and tuple(held) for held in case["expected"]["slots"]]
    assert everything(cache)[1:] == before[1:]
    cache.check_invariants()
    assert cache.compact() == 0


@pytest.mark.case("KV-10")
def test_compact_keeps_a_pending_shift_with_its_token() -> None:
    case = CASES["KV-10"]
    slots = case["inputs"]["slots"]
    moved, stayed = (_with_holes(GQA, slots, case["inputs"]["seed"]) for _ in range(2))
    for cache in (moved, stayed):
        cache.shift(0, 1, None, 6)
    moved.compact()
    for cache in (moved, stayed):
        cache.apply_shifts()
    assert everything(moved)[1:] == everything(stayed)[1:]


@pytest.mark.case("KV-10")
def test_logits_are_the_same_after_compact() -> None:
    model = tiny(GQA)
    prompts = token_ids(10, GQA.vocab_size, 3, 6)
    cache = SlotCache(GQA, num_slots=20, num_sequences=3, dtype=F64)
    for start in (0, 2, 4):  # interleaved, so that removing the middle one leaves holes
        for row in range(3):
            model(prompts[row : row + 1, start : start + 2], cache=OneSequence(cache, row))
    cache.remove(1)
    token = token_ids(11, GQA.vocab_size, 1, 1)
    packed = copy.deepcopy(cache)
    assert packed.compact() == 10
    for row in (0, 2):
        before = model(token, cache=OneSequence(cache, row))
        after = model(token, cache=OneSequence(packed, row))
        assert torch.equal(before, after)
        plain = model(torch.cat((prompts[row : row + 1], token), dim=1))[:, -1:]
        torch.testing.assert_close(after, plain, rtol=0, atol=1e-10)


def _with_holes(arch: Architecture, slots: list[Any], seed: int) -> SlotCache:
    """A cache whose slots hold what is listed; the holes were another sequence's."""
    cache = SlotCache(arch, num_slots=len(slots), num_sequences=3, dtype=F64)
    for index, held in enumerate(slots):
        sequence, position = held or (2, index)
        fill(cache, sequence, [position], *fresh(arch, seed + index, 1))
    cache.remove(2)
    return cache


@dataclass
class OneSequence:
    """One sequence of a pool as the cache of a batch of one."""

    pool: SlotCache
    sequence: int

    @property
    def dtype(self) -> torch.dtype:
        return self.pool.dtype

    @property
    def num_tokens(self) -> Tensor:
        return self.pool.num_tokens[self.sequence : self.sequence + 1]

    def append(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor, lengths_B: Any = None) -> None:
        assert lengths_B is None
        held = int(self.num_tokens)
        new = list(range(held, held + k_BGTD.shape[2]))
        self.pool.append(layer, self.sequence, new, k_BGTD[0], v_BGTD[0])

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        k_GSD, v_GSD = self.pool.read(layer, self.sequence)
        return k_GSD[None], v_GSD[None]

    def truncate(self, lengths_B: Any) -> None:
        self.pool.remove(self.sequence, int(lengths_B[0]))


# --- a model that forgets its beginning ---------------------------------------------------------


@pytest.mark.parametrize("arch", [MHA, GQA, LINEAR, LLAMA3], ids=lambda arch: arch.name)
def test_shifting_the_context_equals_never_having_read_the_beginning(arch: Architecture) -> None:
    """With one layer, keys depend on their own token only, so the two are equal exactly."""
    arch = replace(arch, num_layers=1)
    model = tiny(arch)
    tokens = token_ids(12, arch.vocab_size, 1, 9)
    pool = SlotCache(arch, num_slots=9, dtype=F64)
    view = OneSequence(pool, 0)
    model(tokens[:, :8], cache=view)
    pool.remove(0, 0, 3)
    pool.shift(0, 3, None, -1)
    pool.shift(0, 0, None, -2)
    pool.apply_shifts()
    logits = model(tokens[:, 8:], cache=view)
    torch.testing.assert_close(logits, model(tokens[:, 3:])[:, -1:], rtol=0, atol=1e-10)
    unmoved = model(tokens)[:, -1:]
    assert (logits - unmoved).abs().max() > 1e-4, "the beginning was read before"


# --- misuse ---------------------------------------------------------------------------------------


def test_what_is_refused_changes_nothing() -> None:
    cache = SlotCache(GQA, num_slots=6, num_sequences=2, dtype=F64)
    k, v = fresh(GQA, 1, 4)
    fill(cache, 0, [2, 3, 4, 7], k, v)
    one_k, one_v = k[0, :, :1], v[0, :, :1]
    refuses(
        cache,
        "3 tokens need a slot each, and 2 are free",
        lambda: fill(cache, 1, [0, 1, 2], *fresh(GQA, 2, 3)),
    )
    refuses(
        cache,
        "position 3 cannot be written now",
        lambda: fill(cache, 0, [3], k[:, :, :1], v[:, :, :1]),
    )
    refuses(
        cache, "position 0 cannot be written now", lambda: cache.append(1, 0, [0], one_k, one_v)
    )
    refuses(cache, r"got \[5, 5\]", lambda: fill(cache, 0, [5, 5], k[:, :, :2], v[:, :, :2]))
    refuses(cache, r"got \[-1\]", lambda: cache.append(0, 1, [-1], one_k, one_v))
    refuses(cache, "must hold integers, got 1.0", lambda: cache.append(0, 1, [1.0], one_k, one_v))
    refuses(cache, "layer 2 is outside 0 to 1", lambda: cache.append(2, 1, [0], one_k, one_v))
    refuses(cache, "layer -1 is outside", lambda: cache.read(-1, 0))
    refuses(cache, r"k_GTD must be \(3, 1, 10\)", lambda: cache.append(0, 1, [0], k[0], one_v))
    refuses(cache, r"v_GTD must be", lambda: cache.append(0, 1, [0], one_k, one_v[..., :8]))
    refuses(cache, "in torch.float32", lambda: cache.append(0, 1, [0], one_k.float(), one_v))
    refuses(cache, "shifting 2 by -3 gives -1: positions start", lambda: cache.shift(0, 2, 4, -3))
    refuses(cache, "shifting 4 by 3 gives 7: sequence 0 already", lambda: cache.shift(0, 3, 5, 3))
    refuses(cache, "start -1, stop 2", lambda: cache.shift(0, -1, 2, 1))
    refuses(cache, "start 3, stop 2", lambda: cache.remove(None, 3, 2))
    refuses(cache, "delta must hold integers, got 0.5", lambda: cache.shift(0, 2, 4, 0.5))
    refuses(cache, "None means every sequence", lambda: cache.remove(2))
    for name, wrong in itertools.product(("num_slots", "num_sequences"), (0, 2.5, True)):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {wrong}"):
            SlotCache(GQA, **{"num_slots": 4, name: wrong})


def test_keys_that_lag_behind_their_labels_are_not_read() -> None:
    cache = SlotCache(GQA, num_slots=5, num_sequences=2, dtype=F64)
    fill(cache, 0, [4, 6], *fresh(GQA, 1, 2))
    fill(cache, 1, [1], *fresh(GQA, 2, 1))
    cache.shift(0, 6, None, -3)
    with pytest.raises(ValueError, match=r"positions \[3\] .* apply_shifts"):
        cache.read(0, 0)
    cache.read(0, 1)
    cache.shift(0, 3, 4, 3)
    assert cache.read(0, 0)[0].shape == (3, 2, 10), "there and back again: nothing is pending"


def test_a_token_of_which_a_layer_is_missing_is_neither_counted_nor_moved() -> None:
    cache = SlotCache(GQA, num_slots=3, dtype=F64)
    k, v = fresh(GQA, 1, 2)
    fill(cache, 0, [0], k[:, :, :1], v[:, :, :1])
    cache.append(0, 0, [1], k[0, :, 1:], v[0, :, 1:])
    assert cache.num_tokens.tolist() == [1]
    assert cache.positions(0) == [0, 1]
    assert [cache.read(layer, 0)[0].shape[1] for layer in (0, 1)] == [2, 1]
    refuses(cache, "only 1 of 2 layers", lambda: cache.shift(0, 0, None, 1))
    cache.compact()
    cache.append(1, 0, [1], k[1, :, 1:], v[1, :, 1:])
    assert cache.num_tokens.tolist() == [2]
    cache.check_invariants()


def test_num_bytes_is_the_whole_pool() -> None:
    cache = SlotCache(GQA, num_slots=7, dtype=torch.bfloat16)
    assert cache.num_bytes == 2 * 2 * 3 * 10 * 7 * 2  # K and V, layers, heads, width, slots, bytes
    assert cache.num_slots == 7


def test_one_rotation_rounds_less_than_many() -> None:
    """What accumulating buys in bfloat16, besides work."""
    errors = []
    for flush_each in (False, True):
        cache = SlotCache(GQA, num_slots=1, dtype=torch.bfloat16)
        k, v = fresh(GQA, 4, 1)
        fill(cache, 0, [40], k, v)
        for _ in range(40):
            cache.shift(0, 0, None, -1)
            if flush_each:
                cache.apply_shifts()
        cache.apply_shifts()
        assert cache.positions(0) == [0]
        errors.append(float((cache.read(0, 0)[0][:, 0].double() - k[0, :, 0]).abs().max()))
    once, many = errors
    assert once < 2**-7 * float(k[0].abs().max())
    assert many > 2 * once


@pytest.mark.parametrize("damage", ["free slot", "half written", "lost data", "twice", "negative"])
def test_check_invariants_can_fail(damage: str) -> None:
    cache, _, _ = filled(GQA, [0, 1, 2], 1)
    cache.check_invariants()
    if damage == "free slot":
        cache._k_LGPD[0, 0, 4] = 0.0
    elif damage == "half written":
        cache._table.labels[1].num_layers = 1
    elif damage == "lost data":
        cache._v_LGPD[1, :, 2] = torch.nan
    elif damage == "twice":
        cache._table.labels[2].position = 1
    else:
        cache._table.labels[0].position = -1
    with pytest.raises(AssertionError):
        cache.check_invariants()


# --- anything, in any order -----------------------------------------------------------------------

SMALL = replace(GQA, num_layers=3, num_kv_heads=2, num_query_heads=6, head_dim=4, rope_theta=90.0)
NUM_SLOTS, NUM_SEQUENCES, REACH = 11, 4, 13
some_sequence = st.integers(0, NUM_SEQUENCES - 1)
one_or_all = st.none() | some_sequence
ranges = st.tuples(st.integers(0, REACH), st.integers(0, REACH)).map(sorted)


class Slots(RuleBasedStateMachine):
    """Every operation beside the same on a dictionary of raw keys and values."""

    @initialize()
    def start(self) -> None:
        self.cache = SlotCache(SMALL, num_slots=NUM_SLOTS, num_sequences=NUM_SEQUENCES, dtype=F64)
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.seed = 0

    def chosen(self, sequence: int | None, start: int, stop: int | None) -> list[tuple[int, int]]:
        return [
            (s, p)
            for s, p in self.held
            if sequence in (None, s) and p >= start and (stop is None or p < stop)
        ]

    @rule(sequence=some_sequence, positions=st.lists(st.integers(0, REACH), max_size=5))
    def append(self, sequence: int, positions: list[int]) -> None:
        self.seed += 1
        k, v = fresh(SMALL, self.seed, len(positions))
        new = {(sequence, p): (k[:, :, t], v[:, :, t]) for t, p in enumerate(positions)}
        if (
            len(new) < len(positions)
            or new.keys() & self.held.keys()
            or len(self.held) + len(new) > NUM_SLOTS
        ):
            refuses(
                self.cache,
                "got|already|cannot be written|are free",
                lambda: fill(self.cache, sequence, positions, k, v),
            )
        elif positions:
            fill(self.cache, sequence, positions, k, v)
            self.held |= new

    @rule(sequence=one_or_all, bounds=ranges, to_the_end=st.booleans())
    def remove(self, sequence: int | None, bounds: list[int], to_the_end: bool) -> None:
        start, stop = bounds[0], None if to_the_end else bounds[1]
        self.cache.remove(sequence, start, stop)
        for label in self.chosen(sequence, start, stop):
            del self.held[label]

    @rule(
        sequence=one_or_all,
        bounds=ranges,
        to_the_end=st.booleans(),
        delta=st.integers(-REACH, REACH),
    )
    def shift(self, sequence: int | None, bounds: list[int], to_the_end: bool, delta: int) -> None:
        start, stop = bounds[0], None if to_the_end else bounds[1]
        moving = self.chosen(sequence, start, stop)
        after = [(s, p + delta) if (s, p) in moving else (s, p) for s, p in self.held]
        if len(set(after)) < len(after) or any(p < 0 for _, p in after):
            refuses(self.cache, "shifting", lambda: self.cache.shift(sequence, start, stop, delta))
        else:
            self.cache.shift(sequence, start, stop, delta)
            self.held = dict(zip(after, self.held.values(), strict=True))

    @rule()
    def apply_shifts(self) -> None:
        self.cache.apply_shifts()
        for layer in range(SMALL.num_layers):
            for sequence in range(NUM_SEQUENCES):
                self.cache.read(layer, sequence)

    @rule()
    def compact(self) -> None:
        self.cache.compact()
        slots = self.cache.slots()
        assert None not in slots[: len(self.held)]
        assert slots[len(self.held) :] == [None] * (NUM_SLOTS - len(self.held))

    @precondition(lambda self: self.held)
    @rule(sequence=st.sampled_from([-1, NUM_SEQUENCES]))
    def ask_for_an_unknown_sequence(self, sequence: int) -> None:
        refuses(self.cache, "outside", lambda: self.cache.remove(sequence))

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        self.cache.check_invariants()
        counts = [sum(s == sequence for s, _ in self.held) for sequence in range(NUM_SEQUENCES)]
        assert self.cache.num_tokens.tolist() == counts
        assert self.cache.slots().count(None) == NUM_SLOTS - len(self.held)
        now = copy.deepcopy(self.cache)
        now.apply_shifts()
        for sequence in range(NUM_SEQUENCES):
            positions = sorted(p for s, p in self.held if s == sequence)
            assert self.cache.positions(sequence) == positions
            for layer in range(SMALL.num_layers):
                k_GSD, v_GSD = now.read(layer, sequence)
                assert k_GSD.shape[1] == v_GSD.shape[1] == len(positions)
                for s, position in enumerate(positions):
                    raw_k, raw_v = self.held[sequence, position]
                    right = rotated(raw_k[layer], position, SMALL)
                    assert (k_GSD[:, s] - right).abs().max() < 1e-10
                    assert torch.equal(v_GSD[:, s], raw_v[layer])


TestAnyOrder = Slots.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=25)


def test_rotating_by_a_delta_is_rotating_to_the_sum() -> None:
    raw = normal(1, 2, 3, 5, 10)
    start = torch.tensor([9, 0, 31, 7, 1_000_003])
    delta = torch.tensor([-9, 4, -30, 0, 17])
    at_start = torch.stack([rotated(raw[..., t, :], int(p), GQA) for t, p in enumerate(start)], -2)
    right = torch.stack(
        [rotated(raw[..., t, :], int(p), GQA) for t, p in enumerate(start + delta)], -2
    )
    moved = rotate_by(at_start, delta, GQA.rope_theta)
    torch.testing.assert_close(moved, right, rtol=0, atol=1e-9)
    assert rotate_by(at_start.bfloat16(), delta, GQA.rope_theta).dtype == torch.bfloat16
    back = rotate_by(moved, -delta, GQA.rope_theta)
    torch.testing.assert_close(back, at_start, rtol=0, atol=1e-12)
    assert math.isclose(float(moved.norm()), float(raw.norm()))
