"""Blocks, tables and reference counts against sequences that are plain Python lists.

The oracle never counts references: who holds a block is read off the tables, and what a sequence
holds is a list of its tokens, written into a made-up memory through the table and read back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracles import rows

from refimpl.blocks import (
    BlockAllocator,
    BlockCopy,
    BlockTable,
    OutOfBlocks,
    expected_waste,
    num_blocks_for,
    slot_offset,
)
from refimpl.blocks import allocator as allocator_module

CASES = rows("cases_paged.json")
PUBLISHED = rows("published_paged.json")


def everything(pool: BlockAllocator) -> tuple[Any, ...]:
    """All that can be seen of a pool."""
    tables = [(id(t), tuple(t.blocks), t.num_tokens, t.num_dropped) for t in pool.tables]
    references = [pool.num_references(block) for block in range(pool.num_blocks)]
    return tables, references, pool.free_blocks, pool.num_free, pool.num_used


def refuses(
    pool: BlockAllocator, error: type[ValueError], match: str, operation: Callable[[], object]
) -> None:
    """The operation raises, says why, and leaves the pool as it was."""
    before = everything(pool)
    with pytest.raises(error, match=match) as caught:
        operation()
    assert "\n" not in str(caught.value)
    assert everything(pool) == before
    pool.check_invariants()


# --- any history ------------------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Sequences come, grow, fork, shrink and leave; a memory is kept as a caller would keep it."""

    num_steps = 0

    @initialize(
        num_blocks=st.integers(1, 12), block_size=st.sampled_from([1, 2, 3, 4]), data=st.data()
    )
    def start(self, num_blocks: int, block_size: int, data: Any) -> None:
        type(self).num_steps -= 1  # the invariant runs after this too, which is no step
        order = data.draw(st.permutations(range(num_blocks)))
        self.pool = BlockAllocator(num_blocks, block_size, order=order)
        self.memory: dict[tuple[int, int], int] = {}
        self.held: dict[BlockTable, list[int]] = {}
        self.next_token = 0

    def table(self, choice: int) -> BlockTable:
        return list(self.held)[choice % len(self.held)]

    def holders(self, block: int) -> int:
        return sum(block in table.blocks for table in self.held)

    def write(self, table: BlockTable, first: int) -> None:
        """New tokens behind the first ones, through the table."""
        for position in range(first, table.num_tokens):
            self.next_token += 1
            self.held[table].append(self.next_token)
            self.memory[table.locate(position)] = self.next_token

    def carry_out(self, copies: list[BlockCopy]) -> None:
        for source, destination, num_slots in copies:
            assert self.holders(destination) == 1, "a copy belongs to one sequence"
            for slot in range(num_slots):
                self.memory[destination, slot] = self.memory[source, slot]

    @precondition(lambda self: len(self.held) < 6)
    @rule(num_tokens=st.integers(0, 9))
    def allocate(self, num_tokens: int) -> None:
        needed = -(-num_tokens // self.pool.block_size)
        fits = needed <= len(self.pool.free_blocks)
        assert self.pool.can_allocate(num_tokens) == fits
        if not fits:
            refuses(self.pool, OutOfBlocks, "out of blocks", lambda: self.pool.allocate(num_tokens))
            return
        table = self.pool.allocate(num_tokens)
        self.held[table] = []
        self.write(table, 0)

    @precondition(lambda self: 0 < len(self.held) < 6)
    @rule(choice=st.integers(0, 5), blocks=st.integers(0, 3), more=st.integers(0, 5))
    def allocate_with_a_prefix(self, choice: int, blocks: int, more: int) -> None:
        origin, size = self.table(choice), self.pool.block_size
        blocks = 0 if origin.num_dropped else min(blocks, origin.num_tokens // size)
        num_tokens, shared = blocks * size + more, origin.blocks[:blocks]
        if not self.pool.can_allocate(num_tokens, shared):
            refuses(
                self.pool,
                OutOfBlocks,
                "out of blocks",
                lambda: self.pool.allocate(num_tokens, shared=shared),
            )
            return
        table = self.pool.allocate(num_tokens, shared=shared)
        self.held[table] = self.held[origin][: blocks * size]
        self.write(table, blocks * size)

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 5), num_new=st.integers(0, 7))
    def append(self, choice: int, num_new: int) -> None:
        table, size = self.table(choice), self.pool.block_size
        first = table.num_tokens
        needed = -(-(first + num_new) // size) - -(-first // size)
        shared = num_new and first % size and self.holders(table.blocks[-1]) > 1
        needed += bool(shared)
        assert self.pool.num_needed([table], [num_new]) == needed
        if needed > len(self.pool.free_blocks):
            assert not self.pool.can_append(table, num_new)
            refuses(
                self.pool, OutOfBlocks, "out of blocks", lambda: self.pool.append(table, num_new)
            )
            return
        copies = self.pool.append(table, num_new)
        assert [copy.num_slots for copy in copies] == ([first % size] if shared else [])
        self.carry_out(copies)
        self.write(table, first)

    @precondition(lambda self: self.held)
    @rule(numbers=st.lists(st.integers(0, 4), min_size=6, max_size=6))
    def append_to_all(self, numbers: list[int]) -> None:
        tables = list(self.held)
        new, first = numbers[: len(tables)], [table.num_tokens for table in tables]
        needed = self.pool.num_needed(tables, new)
        if needed > self.pool.num_free:
            refuses(
                self.pool, OutOfBlocks, "out of blocks", lambda: self.pool.append_all(tables, new)
            )
            return
        free = self.pool.num_free
        self.carry_out(self.pool.append_all(tables, new))
        assert free - self.pool.num_free == needed
        for table, start in zip(tables, first, strict=True):
            self.write(table, start)

    @precondition(lambda self: 0 < len(self.held) < 6)
    @rule(choice=st.integers(0, 5))
    def fork(self, choice: int) -> None:
        origin, free = self.table(choice), self.pool.num_free
        self.held[self.pool.fork(origin)] = list(self.held[origin])
        assert self.pool.num_free == free

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 5), num_tokens=st.integers(0, 20))
    def truncate(self, choice: int, num_tokens: int) -> None:
        table = self.table(choice)
        dropped = table.num_dropped * self.pool.block_size
        num_tokens = min(max(num_tokens, dropped), table.num_tokens)
        self.pool.truncate(table, num_tokens)
        del self.held[table][num_tokens:]

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 5), num_blocks=st.integers(0, 3))
    def drop_head(self, choice: int, num_blocks: int) -> None:
        table = self.table(choice)
        full = table.num_tokens // self.pool.block_size - table.num_dropped
        self.pool.drop_head(table, min(num_blocks, full))

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 5))
    def free(self, choice: int) -> None:
        table = self.table(choice)
        self.pool.free(table)
        del self.held[table]
        for again in (self.pool.free, self.pool.fork, self.pool.append):
            refuses(self.pool, ValueError, "freed", lambda again=again: again(table))

    @invariant()
    def every_sequence_reads_its_tokens(self) -> None:
        type(self).num_steps += 1
        self.pool.check_invariants()
        used = {block for table in self.held for block in table.blocks}
        for block in range(self.pool.num_blocks):
            assert self.pool.num_references(block) == self.holders(block)
        assert sorted([*used, *self.pool.free_blocks]) == list(range(self.pool.num_blocks))
        readable = set()
        for table, tokens in self.held.items():
            first = table.num_dropped * self.pool.block_size
            places = [table.locate(p) for p in range(first, table.num_tokens)]
            assert [self.memory[place] for place in places] == tokens[first:]
            assert len(table.blocks) == -(-len(tokens) // table.block_size) - table.num_dropped
            readable.update(places)
        # Whatever nobody can read is forgotten: reading it later fails.
        self.memory = {place: self.memory[place] for place in readable}

    def teardown(self) -> None:
        for table in self.held:
            self.pool.free(table)
        assert sorted(self.pool.free_blocks) == list(range(self.pool.num_blocks))
        self.pool.check_invariants()


def test_any_history() -> None:
    AnyHistory.num_steps = 0
    run_state_machine_as_test(
        AnyHistory, settings=settings(max_examples=120, stateful_step_count=40)
    )
    assert AnyHistory.num_steps >= 2000


# --- the cases --------------------------------------------------------------------------------


@pytest.mark.case("PAG-01")
@pytest.mark.parametrize("num_tokens", [6, 5])
def test_a_block_listed_twice_is_counted_once(num_tokens: int) -> None:
    case = CASES["PAG-01"]
    given, expected = case["inputs"], case["expected"]
    assert num_tokens in (given["num_tokens"], given["partial"])
    assert given["window"] == 2 * given["block_size"], "the third block may reuse the first"
    pool = BlockAllocator(given["num_blocks"], given["block_size"])
    start = pool.allocate(4)
    rolled = pool.allocate(num_tokens, shared=given["table"])
    pool.free(start)
    assert rolled.blocks == given["table"]
    assert [pool.num_references(block) for block in (0, 1)] == [1, 1]
    pool.check_invariants()
    forked = pool.fork(rolled)
    assert [pool.num_references(block) for block in (0, 1)] == expected["references"]
    pool.check_invariants()
    copies = pool.append(forked)
    # With room in the shared block its copy takes the last place only: the first entry stays.
    assert copies == ([BlockCopy(0, 2, 1)] if num_tokens == 5 else [])
    assert rolled.blocks == given["table"]
    assert [pool.num_references(block) for block in (0, 1, 2)] == expected["after_append"]
    pool.check_invariants()
    for table in (forked, rolled):
        pool.free(table)
        pool.check_invariants()
    assert sorted(pool.free_blocks) == list(range(expected["free"]))


@pytest.mark.case("PAG-03")
def test_a_fork_has_only_blocks_that_are_still_held() -> None:
    case = CASES["PAG-03"]
    given, expected = case["inputs"], case["expected"]
    pool = BlockAllocator(given["num_blocks"], given["block_size"])
    first = pool.allocate(given["blocks"] * given["block_size"])
    released = first.blocks[: given["dropped"]]
    pool.drop_head(first, given["dropped"])
    other = pool.allocate(given["other_tokens"])
    assert set(released) < set(other.blocks), "the other sequence has them now"
    held = list(other.blocks)
    fork = pool.fork(first)
    assert fork.blocks == first.blocks == expected["forked"]
    assert (fork.num_tokens, fork.num_dropped) == (first.num_tokens, given["dropped"])
    assert fork.locate(7) == first.locate(7) == (2, 1)
    assert other.blocks == held
    references = [pool.num_references(block) for block in range(given["num_blocks"])]
    assert references == expected["references"]
    assert sum(references) == sum(len(table.blocks) for table in pool.tables)
    pool.check_invariants()
    for position in (0, 5, 12):
        with pytest.raises(ValueError, match=f"position {position} is not held: positions 6 to 11"):
            fork.locate(position)
    for table in (first, fork, other):
        pool.free(table)
    assert sorted(pool.free_blocks) == list(range(given["num_blocks"]))


@pytest.mark.case("PAG-04")
def test_the_last_holder_of_a_shared_block_writes_in_place() -> None:
    case = CASES["PAG-04"]
    given, expected = case["inputs"], case["expected"]
    pool = BlockAllocator(8, given["block_size"])
    parent = pool.allocate(given["prompt"])
    full, partial = parent.blocks
    children = [pool.fork(parent) for _ in range(given["children"])]
    pool.free(parent)
    memory = {(full, slot): slot for slot in range(4)} | {(partial, 0): 4, (partial, 1): 5}
    copies = []
    for child, token in zip(children, given["tokens"], strict=True):
        new = pool.append(child)
        for source, destination, num_slots in new:
            assert (source, num_slots) == (partial, expected["slots_copied"])
            for slot in range(num_slots):
                memory[destination, slot] = memory[source, slot]
        memory[child.locate(given["prompt"])] = token
        copies += new
        pool.check_invariants()
    assert len(copies) == expected["copies"]
    assert pool.num_references(full) == expected["references_full"]
    last = [child.blocks[-1] for child in children]
    assert len(set(last)) == given["children"] and last[-1] == partial
    assert [pool.num_references(b) for b in last] == [expected["references_partial"]] * 3
    for child, token in zip(children, given["tokens"], strict=True):
        read = [memory[child.locate(position)] for position in range(child.num_tokens)]
        assert read == [0, 1, 2, 3, 4, 5, token]


@pytest.mark.case("PAG-05")
def test_a_block_is_taken_when_its_first_slot_is_written() -> None:
    case = CASES["PAG-05"]
    given, expected = case["inputs"], case["expected"]
    for prompt in given["prompts"]:
        pool = BlockAllocator(5, given["block_size"])
        table = pool.allocate(prompt)
        taken = []
        assert len(table.blocks) == expected["blocks"][str(prompt)]
        for position in range(prompt, given["until"]):
            before = pool.num_used
            assert pool.num_needed([table], [1]) == (position in expected["taken_at"])
            pool.append(table)
            assert len(table.blocks) == expected["blocks"][str(position + 1)] == pool.num_used
            taken += [position] * (pool.num_used - before)
        assert taken == [position for position in expected["taken_at"] if position >= prompt]


@pytest.mark.case("PAG-09")
def test_an_offset_does_not_wrap_in_32_bits() -> None:
    case = CASES["PAG-09"]
    given, expected = case["inputs"], case["expected"]
    sizes = {name: given[name] for name in ("block_size", "num_kv_heads", "head_dim")}
    offset = slot_offset(given["block"], 0, **sizes)
    assert type(offset) is int
    assert offset == expected["offset"] == 2**31
    assert slot_offset(1, 0, **sizes) == expected["stride"]
    assert slot_offset(np.int32(given["block"]), np.int32(0), **sizes) == expected["offset"]
    narrow = torch.tensor([given["block"]], dtype=torch.int32) * expected["stride"]
    assert narrow.item() == -(2**31), "what the index would be in 32 bits"
    # The address of the same place in a tensor that has a shape and no memory.
    shape = (given["block"] + 1, given["num_kv_heads"], given["block_size"], given["head_dim"])
    pool_NGPD = torch.empty(shape, device="meta", dtype=torch.bfloat16)
    for block, head, slot in [(given["block"], 0, 0), (given["block"], 7, 15), (99_999, 3, 2)]:
        address = pool_NGPD[block, head, slot].storage_offset()
        assert slot_offset(block, slot, head=head, **sizes) == address


# --- sharing, order, room ---------------------------------------------------------------------


def test_free_blocks_are_taken_in_the_order_in_which_they_were_let_go() -> None:
    pool = BlockAllocator(6, 2, order=[3, 1, 5, 0, 4, 2])
    first, second = pool.allocate(5), pool.allocate(3)
    assert (first.blocks, second.blocks, pool.free_blocks) == ([3, 1, 5], [0, 4], [2])
    pool.free(first)  # the end of a sequence goes before its beginning
    assert pool.free_blocks == [2, 5, 1, 3]
    pool.append(second, 2)
    assert second.blocks == [0, 4, 2]
    pool.truncate(second, 2)
    assert pool.free_blocks == [5, 1, 3, 2, 4]
    assert (pool.num_used, pool.peak_used) == (1, 5)


def test_shared_blocks_are_held_before_others_are_taken() -> None:
    pool = BlockAllocator(3, 2)
    first = pool.allocate(4)
    cached = list(first.blocks)
    pool.free(first)
    assert pool.free_blocks == [2, 1, 0]
    # One block of the three is asked for by name although it is free; two more are needed.
    again = pool.allocate(6, shared=cached[:1])
    assert again.blocks[0] == cached[0]
    assert len(set(again.blocks)) == 3
    pool.free(again)
    refuses(pool, OutOfBlocks, "out of blocks", lambda: pool.allocate(8, shared=cached[:1]))
    other = pool.allocate(2, shared=[0])
    twin = pool.allocate(4, shared=[0])
    assert (pool.num_references(0), pool.num_used) == (2, 2)
    for table in (other, twin):
        pool.free(table)
    pool.check_invariants()


def test_a_shared_free_block_counts_as_one_that_is_needed() -> None:
    pool = BlockAllocator(3, 2)
    pool.free(pool.allocate(2))
    held = pool.allocate(4)
    assert pool.free_blocks == [0] and held.blocks == [1, 2]
    refuses(pool, OutOfBlocks, "2 are needed and 1 are free", lambda: pool.allocate(4, shared=[0]))
    assert pool.can_allocate(4, [1]) and not pool.can_allocate(4, [0])
    assert pool.can_allocate(2, [0])


def test_all_sequences_get_room_or_none() -> None:
    pool = BlockAllocator(5, 4)
    one = pool.allocate(6)
    two, three = pool.fork(one), pool.fork(one)
    # Three writers share a block: two copies. Four tokens more: a new block each.
    assert pool.num_needed([one, two, three], [1, 1, 1]) == 2
    assert pool.num_needed([one, two, three], [1, 1, 0]) == 2
    assert pool.num_needed([one, two, three], [4, 4, 4]) == 5
    refuses(
        pool, OutOfBlocks, "out of blocks", lambda: pool.append_all([one, two, three], [4, 4, 4])
    )
    copies = pool.append_all([one, two, three], [2, 1, 1])
    assert copies == [BlockCopy(1, 2, 2), BlockCopy(1, 3, 2)]
    assert [table.blocks for table in (one, two, three)] == [[0, 2], [0, 3], [0, 1]]
    refuses(pool, OutOfBlocks, "out of blocks", lambda: pool.append_all([one, two], [1, 4]))
    pool.append_all([one, two], [0, 4])
    assert pool.num_free == 0


def test_out_of_blocks_says_how_many() -> None:
    pool = BlockAllocator(2, 3)
    with pytest.raises(OutOfBlocks, match="out of blocks: 3 are needed and 2 are free") as caught:
        pool.allocate(7)
    assert (caught.value.needed, caught.value.free) == (3, 2)


def test_truncation_leaves_what_others_share() -> None:
    pool = BlockAllocator(5, 4)
    kept = pool.allocate(10)
    draft = pool.fork(kept)
    pool.append(draft, 3)
    pool.truncate(draft, 10)  # three draft tokens are rejected
    assert kept.blocks == [0, 1, 2]
    assert draft.blocks == [0, 1, 3]
    pool.truncate(draft, 4)
    assert draft.blocks == [0] and pool.num_references(0) == 2
    assert kept.num_tokens == 10 and kept.num_filled == 2
    pool.truncate(draft, 0)
    assert (draft.blocks, draft.num_filled, pool.num_references(0)) == ([], 0, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, t: p.truncate(t, 8), "cannot keep 8 tokens: the table has 7"),
        (lambda p, t: p.truncate(t, -1), "num_tokens must be an integer of at least 0, got -1"),
        (lambda p, t: p.truncate(t, True), "num_tokens must be .* got True"),
        (lambda p, t: p.drop_head(t, 3), "cannot drop 3 blocks: 2 full ones are held"),
        (lambda p, t: p.drop_head(t, -1), "num_blocks must be .* got -1"),
        (lambda p, t: p.append(t, -1), "num_new must be .* got -1"),
        (lambda p, t: p.append(t, 1.0), "num_new must be .* got 1.0"),
        (lambda p, t: p.append_all([t, t], [1, 1]), "a table is given twice"),
        (lambda p, t: p.append_all([t], [1, 1]), "1 tables need a number each, got 2"),
        (lambda p, t: p.append(BlockTable(3)), "not a table in use here"),
        (lambda p, t: p.free([0, 1]), "not a table in use here"),
        (lambda p, t: p.fork(BlockAllocator(6, 3).allocate(2)), "not a table in use here"),
        (lambda p, t: p.allocate(-1), "num_tokens must be .* got -1"),
        (lambda p, t: p.allocate(4, shared=[0, 1, 2]), "take 2 blocks, 3 shared ones were given"),
        (lambda p, t: p.allocate(4, shared=[6]), "block 6 is outside 0 to 5"),
        (lambda p, t: p.allocate(4, shared=[-1]), "block must be .* got -1"),
        (lambda p, t: p.num_references(6), "block 6 is outside 0 to 5"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    call: Callable[[BlockAllocator, BlockTable], object], message: str
) -> None:
    pool = BlockAllocator(6, 3)
    table = pool.allocate(7)
    refuses(pool, ValueError, message, lambda: call(pool, table))


def test_tokens_whose_blocks_were_dropped_do_not_come_back() -> None:
    pool = BlockAllocator(6, 3)
    table = pool.allocate(10)
    pool.drop_head(table, 2)
    refuses(pool, ValueError, "the first 6 were dropped", lambda: pool.truncate(table, 5))
    pool.truncate(table, 6)
    assert (table.blocks, table.num_filled) == ([], 0)
    pool.append(table)
    assert (len(table.blocks), table.locate(6)[1]) == (1, 0)
    pool.check_invariants()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0, "block_size": 4}, "num_blocks must be a positive integer, got 0"),
        ({"num_blocks": 3, "block_size": 0}, "block_size must be a positive integer, got 0"),
        ({"num_blocks": 3, "block_size": True}, "block_size must be .* got True"),
        ({"num_blocks": 3, "block_size": 4, "order": [0, 1, 1]}, r"once, got \[0, 1, 1\]"),
        ({"num_blocks": 3, "block_size": 4, "order": [0, 1]}, "order must list blocks 0 to 2"),
        ({"num_blocks": 2, "block_size": 4, "order": [0.0, 1.0]}, "a block in order must be"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockAllocator(**options)


BREAKS = {
    "a reference too many": lambda p, t: p._references.__setitem__(t.blocks[0], 3),
    "a block lost": lambda p, t: p._free.popitem(),
    "a block free and held": lambda p, t: p._free.__setitem__(t.blocks[0], None),
    "a block too few": lambda p, t: t.blocks.pop(),
    "a token too many": lambda p, t: setattr(t, "num_tokens", 10),
    "an entry of another block": lambda p, t: t.blocks.__setitem__(0, 5),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_pool_is_seen(name: str) -> None:
    pool = BlockAllocator(6, 3)
    table = pool.allocate(9)
    pool.fork(table)
    pool.check_invariants()
    BREAKS[name](pool, table)
    with pytest.raises(AssertionError):
        pool.check_invariants()


def history(pool: BlockAllocator) -> None:
    """The same operations whatever the size of the pool; at the end all blocks are free."""
    table = pool.allocate(40)
    forks = [pool.fork(table) for _ in range(5)]
    pool.append_all(forks, [1, 2, 3, 4, 5])
    pool.truncate(forks[0], 3)
    pool.drop_head(forks[1], 4)
    pool.free(pool.allocate(8, shared=table.blocks[:2]))
    for each in (table, *forks):
        pool.free(each)
    pool.free(pool.allocate(8, shared=[20, 3]))  # two free blocks asked for by name


def test_no_operation_looks_at_the_whole_pool() -> None:
    lines = []
    for num_blocks in (50, 50_000):
        pool, seen = BlockAllocator(num_blocks, 4), [0]

        def count_line(frame: Any, event: str, arg: object, seen: list[int] = seen) -> Any:
            seen[0] += event == "line"
            return count_line if frame.f_code.co_filename == allocator_module.__file__ else None

        before = sys.gettrace()
        sys.settrace(count_line)
        try:
            history(pool)
        finally:
            sys.settrace(before)
        lines.append(seen[0])
    assert lines[0] == lines[1] > 500
    # Nor does anything inside a line: ten thousand times the blocks take about the same time.
    seconds = []
    for num_blocks in (50, 500_000):
        pool, taken = BlockAllocator(num_blocks, 4), []
        for _ in range(30):
            start = time.perf_counter()
            history(pool)
            taken.append(time.perf_counter() - start)
        seconds.append(min(taken))
    assert seconds[1] < 20 * seconds[0]


# --- layout -----------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(1, 7), st.data())
def test_an_offset_is_where_the_vector_lies(N: int, G: int, P: int, D: int, data: Any) -> None:
    block, head, slot = (data.draw(st.integers(0, size - 1)) for size in (N, G, P))
    pool = torch.arange(N * G * P * D).reshape(N, G, P, D)
    offset = slot_offset(block, slot, head=head, block_size=P, num_kv_heads=G, head_dim=D)
    assert pool.flatten()[offset : offset + D].tolist() == pool[block, head, slot].tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_id": -1}, "block -1 has no address"),
        ({"slot": 4}, "slot 4 is outside 0 to 3"),
        ({"slot": -1}, "slot -1 is outside"),
        ({"head": 3}, "head 3 is outside 0 to 2"),
        ({"head_dim": 0}, "head_dim must be a positive integer, got 0"),
        ({"block_id": 1.5}, "block_id must be an integer, got 1.5"),
        ({"slot": True}, "slot must be an integer, got True"),
    ],
)
def test_what_has_no_address_is_refused(wrong: dict[str, int], message: str) -> None:
    right = {"block_id": 1, "slot": 2, "block_size": 4, "num_kv_heads": 3, "head_dim": 5}
    with pytest.raises(ValueError, match=message):
        slot_offset(**{**right, **wrong})


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 64, 256])
def test_the_expected_waste_is_the_mean_over_all_fills(block_size: int) -> None:
    lengths = range(1, 5 * block_size + 1)  # every fill of the last block equally often
    empty = [num_blocks_for(n, block_size) * block_size - n for n in lengths]
    assert Fraction(sum(empty), len(empty)) == Fraction(expected_waste(block_size))
    assert max(empty) == block_size - 1, "never a whole block"
    assert num_blocks_for(0, block_size) == 0


def test_published_waste() -> None:
    row = PUBLISHED["seed.paged.frag"]
    assert expected_waste(row["inputs"]["B"]) == row["expected"]
    with pytest.raises(ValueError, match="block_size must be a positive integer, got 0"):
        expected_waste(0)
