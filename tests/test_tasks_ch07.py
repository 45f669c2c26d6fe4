"""Chapter 07's exercises: oracles against a second opinion, a pool in use, questions."""

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from task_tools import (
    examples,
    expected_of,
    in_units,
    questions,
    ranges_from_a_warm_up_to_a_hard_one,
    right_replies_pass,
    wrong_replies_are_named,
)

from labkit import answers
from labkit.check import CheckFailed
from labkit.examine import examine
from labkit.tasks import all_tasks

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 7}
ASKED = [name for name, task in TASKS.items() if task.draw is not None]
SEEDS = range(60)
LLAMA = (80, 64, 8, 128, "BF16")


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=2)


# ── the oracles ──────────────────────────────────────────────────────────────────────────────


def test_blocks_needed_expects_the_quotient_rounded_up():
    for (num_tokens, block_size), expected in expected_of("blocks_needed").items():
        assert expected == math.ceil(num_tokens / block_size)


def test_slot_of_expects_what_indexing_a_numbered_pool_gives():
    for example in examples(TASKS["slot_of"]):
        table, position, P = example.args
        slots_NP = np.arange((max(table) + 1) * P).reshape(-1, P)
        assert example.expected == slots_NP[table].ravel()[position]


def test_row_offset_expects_the_number_that_lies_there_and_passes_32_bits():
    beyond = 0
    for example in examples(TASKS["row_offset"]):
        table, position, head, G, P, D = example.args
        block, slot = table[position // P], position % P
        if block > 1000:
            strides = np.array([G * P * D, P * D, D], dtype=np.int64)
            assert example.expected == int(strides @ np.array([block, head, slot]))
            beyond += example.expected >= 2**31
        else:
            numbers_NGPD = np.arange((block + 1) * G * P * D).reshape(-1, G, P, D)
            assert example.expected == numbers_NGPD[block, head, slot, 0]
    assert beyond == 2
    at_the_edge = [e.expected for e in examples(TASKS["row_offset"]) if 131_072 in e.args[0]]
    assert at_the_edge == [131_072 * 16_384]


def test_gather_expects_the_slots_one_by_one_and_no_unwritten_one():
    for example in examples(TASKS["gather_blocks"]):
        pool_NGPD, table, num_tokens = example.args
        P = pool_NGPD.shape[2]
        rows = [pool_NGPD[table[s // P], :, s % P].numpy() for s in range(num_tokens)]
        np.testing.assert_array_equal(example.expected, np.stack(rows, axis=1))
        assert np.isfinite(example.expected).all()
        held = [block for block in table if block >= 0]
        empty = len(held) * P - num_tokens
        assert int(pool_NGPD[held].isnan().all(-1).sum()) == empty * pool_NGPD.shape[1]


def test_paging_frees_what_real_tensors_take_less():
    def nbytes(slots: int, L: int, G: int, D: int, dtype: torch.dtype) -> int:
        return 2 * L * torch.empty(G, slots, D, dtype=dtype, device="meta").nbytes

    expected = expected_of("paging_frees")
    seventy = (130, 1000, 45, 700), 4096, 16, *LLAMA
    thirteen = (161, 338, 512, 1999), 2048, 16, 40, 40, 40, 128, "FP16"
    assert expected[seventy] == 4_744_806_400 == nbytes(14_480, 80, 8, 128, torch.bfloat16)
    assert expected[thirteen] == nbytes(4 * 2048 - 3040, 40, 40, 128, torch.float16)


def test_last_block_waste_is_the_mean_over_all_lengths_of_whole_blocks():
    expected = expected_of("last_block_waste")
    assert expected[16, 256, *LLAMA] == 256 * 7.5 * 327_680
    for (P, num_sequences, L, _, G, D, dtype), size in expected.items():
        waste = [-n % P for n in range(1, 20 * P + 1)]
        per_token = 2 * L * G * D * {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
        assert size == pytest.approx(num_sequences * sum(waste) / len(waste) * per_token)


# ── a pool in use ────────────────────────────────────────────────────────────────────────────

OPERATIONS = ("append_slot", "free_table", "truncate_table", "reorder_beams")
NUM_BLOCKS, P = 11, 3


class Pool:
    """Sequences whose tokens are also kept as plain lists; windows are tables that wrap around."""

    def __init__(self, functions: dict[str, Callable[..., Any]], seed: int) -> None:
        self.functions, self.random = functions, random.Random(seed)
        self.tables: list[list[int]] = [[]]
        self.texts: list[list[int]] = [[]]
        self.windows: list[list[int]] = []
        self.counts, self.free = [0] * NUM_BLOCKS, list(range(NUM_BLOCKS))
        self.slots: dict[tuple[int, int], int] = {}
        self.seen: Counter[str] = Counter()
        self.returned: Any = None

    def step(self) -> None:
        """One operation, drawn; then what must hold between any two of them."""
        operations = [self.append] * 6 + [self.fork, self.truncate, self.release, self.reorder]
        operation = self.random.choice([*operations, self.wrap, self.unwrap])
        operation(self.random.randrange(len(self.tables)))
        holders = Counter(b for table in [*self.tables, *self.windows] for b in set(table))
        assert self.counts == [holders[block] for block in range(NUM_BLOCKS)], "counts"
        assert sorted([*self.free, *holders]) == list(range(NUM_BLOCKS)), "free and held"
        for table, text in zip(self.tables, self.texts, strict=True):
            assert len(table) == math.ceil(len(text) / P), "blocks"
            found = [self.slots[table[s // P], s % P] for s in range(len(text))]
            assert found == text, "tokens"

    def refused(self, allowed: bool, name: str, *args: Any) -> bool:
        """Whether the call raises; it must where it is not allowed, and then change nothing."""
        before = deepcopy((args, self.counts, self.free))
        try:
            self.returned = self.functions[name](*args)
        except ValueError:
            assert not allowed, "refused"
            assert (args, self.counts, self.free) == before, "half done"
            self.seen[f"{name} refused"] += 1
            return True
        assert allowed, "not refused"
        self.seen[name] += 1
        return False

    def append(self, i: int) -> None:
        table, text = self.tables[i], self.texts[i]
        others = [other for j, other in enumerate(self.tables) if j != i]
        shared = len(text) % P > 0 and any(table[-1] in other for other in others)
        possible = bool(self.free) or (len(text) % P > 0 and not shared)
        args = (table, len(text), self.counts, self.free, P)
        if self.refused(possible, "append_slot", *args):
            return
        block, source = self.returned
        assert (source >= 0) == shared, "copied or not"
        self.seen["copied"] += shared
        for slot in range(P if shared else 0):
            self.slots[block, slot] = self.slots.get((source, slot), -1)
        self.slots[block, len(text) % P] = self.seen["append_slot"]
        text.append(self.seen["append_slot"])

    def fork(self, i: int) -> None:
        if len(self.tables) < 4:
            self.tables.append(list(self.tables[i]))
            self.texts.append(list(self.texts[i]))
            self.hold(self.tables[i])

    def truncate(self, i: int) -> None:
        num_tokens, free = len(self.texts[i]), len(self.free)
        kept = self.random.randint(0, num_tokens + 1)
        args = (self.tables[i], num_tokens, kept, self.counts, self.free, P)
        if not self.refused(kept <= num_tokens, "truncate_table", *args):
            assert self.returned == len(self.free) - free, "returned"
            del self.texts[i][kept:]

    def release(self, i: int) -> None:
        if len(self.tables) > 1:
            self.texts.pop(i)
            self.let_go(self.tables.pop(i))

    def let_go(self, table: list[int]) -> None:
        """Free a table, and once more where that can be noticed."""
        free = len(self.free)
        assert not self.refused(True, "free_table", list(table), self.counts, self.free)
        assert self.returned == len(self.free) - free, "returned"
        if any(self.counts[block] == 0 for block in table):
            assert self.refused(False, "free_table", list(table), self.counts, self.free)

    def reorder(self, i: int) -> None:
        parents = [self.random.randrange(len(self.tables)) for _ in self.tables]
        tables = [list(table) for table in self.tables]
        self.tables = self.functions["reorder_beams"](tables, parents, self.counts, self.free)
        self.texts = [list(self.texts[parent]) for parent in parents]
        self.seen["reorder_beams"] += 1

    def wrap(self, i: int) -> None:
        if len(self.windows) == 1:
            self.windows.append(list(self.windows[0]))
            self.hold(self.windows[0])
        elif not self.windows and len(self.free) > 4:
            a, b = self.free.pop(), self.free.pop()
            self.windows.append([a, b, a])
            self.hold([a, b])

    def unwrap(self, i: int) -> None:
        if self.windows:
            self.let_go(self.windows.pop())

    def hold(self, table: list[int]) -> None:
        for block in set(table):
            self.counts[block] += 1


def run(functions: dict[str, Callable[..., Any]], seed: int, steps: int = 250) -> Counter[str]:
    """Use a pool; what was done how often. Raises where something does not hold."""
    pool = Pool(functions, seed)
    for _ in range(steps):
        pool.step()
    return pool.seen


@pytest.mark.parametrize("which", [0, 1])
def test_right_answers_run_a_pool_and_lose_nothing(which):
    functions = {name: TASKS[name].answers[which] for name in OPERATIONS}
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += run(functions, seed)
    refused = [f"{name} refused" for name in OPERATIONS[:3]]
    assert all(seen[what] >= 20 for what in (*OPERATIONS, *refused, "copied")), seen


@pytest.mark.parametrize(
    ("name", "mutant", "function"),
    [
        pytest.param(name, mutant.name, function, id=f"{name}-{mutant.name}-{i}")
        for name in OPERATIONS
        for mutant in TASKS[name].mutants
        for i, function in enumerate(mutant.functions)
    ],
)
def test_each_wrong_answer_breaks_a_pool_in_use(name, mutant, function):
    functions = {other: TASKS[other].answers[0] for other in OPERATIONS} | {name: function}
    with pytest.raises((AssertionError, LookupError, ValueError)):
        for seed in range(12):
            run(functions, seed)


def test_the_two_who_write_into_one_block_are_told_so():
    """Three samples of a prompt of six tokens: the last holder writes without a copy."""
    append = TASKS["append_slot"].answers[0]
    tables, counts, free = [[0, 1] for _ in range(3)], [3, 3, 0, 0], [3, 2]
    written = [append(table, 6, counts, free, 4) for table in tables]
    assert written == [(2, 1), (3, 1), (1, -1)]
    assert (tables, counts, free) == ([[0, 2], [0, 3], [0, 1]], [3, 1, 1, 1], [])


def test_a_block_popped_from_an_empty_list_is_shown_as_the_error_it_is():
    def careless(table, num_tokens, ref_counts, free, block_size):
        if num_tokens % block_size and ref_counts[table[-1]] == 1:
            return table[-1], -1
        block, source = free.pop(), -1
        if num_tokens % block_size:
            source = table.pop()
            ref_counts[source] -= 1
        ref_counts[block] = 1
        table.append(block)
        return block, source

    failure = examine(TASKS["append_slot"], careless).failure
    assert failure is not None and failure.property.edge and failure.mutant is None
    assert "IndexError: pop from empty list" in failure.message()
    assert "block, source = free.pop(), -1" in failure.message()


# ── questions with numbers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ASKED)
def test_seeds_ask_different_questions_and_the_same_seed_the_same(name, capsys):
    task = TASKS[name]
    for args, question in questions(task, SEEDS, capsys):
        numbers = set(re.findall(r"\d[\d,]*\d|\d", question))
        flat = [n for x in args for n in (x if isinstance(x, tuple) else (x,))]
        assert {f"{n:,}" for n in flat if isinstance(n, int)} <= numbers
        assert task.call(task.answers[0], *args) > 0


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [0, 7, 23])
def test_right_replies_pass_in_any_unit_and_wrong_ones_are_named(name, seed, capsys):
    task = TASKS[name]
    units = in_units("kB", "KiB", "MB", "GB", "GiB")
    wrong_replies_are_named(task, seed, right_replies_pass(task, seed, units, capsys))


def test_half_a_block_and_nothing_are_no_answer_to_what_remains():
    for seed in SEEDS:
        args = TASKS["last_block_waste"].draw(seed)
        size = TASKS["last_block_waste"].call(TASKS["last_block_waste"].answers[0], *args)
        half = size * args[0] / (args[0] - 1)
        for given, says in ((f"{half} B", "0 to P − 1"), ("0 B", "partly empty")):
            with pytest.raises(CheckFailed) as failed:
                answers.reply("last_block_waste", given, seed)
            assert says in failed.value.diagnosis
