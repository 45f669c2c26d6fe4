"""Exercise of chapter 07 on room for one more token: a new block, a copy, or neither.

The function changes table, counts and free list, so what counts is those afterwards.
"""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import Table, counted, unheld

# ── append_slot ───────────────────────────────────────────────────────────────────────────────


def _run_append(function: Callable[..., Any], table, num_tokens, ref_counts, free, P) -> Any:
    """What is returned, and table, counts and free list afterwards."""
    table, ref_counts, rest = list(table), list(ref_counts), list(free)
    refused = False
    try:
        returned = function(table, num_tokens, ref_counts, rest, P)
    except ValueError:
        if free:  # nothing to refuse
            raise
        refused, returned = True, (-1, -1)
    if returned is None:
        return None
    return {
        "refused": refused,
        "block, source": returned,
        "block_table": table,
        "ref_counts": ref_counts,
        "free": rest,
    }


def _append_examples(
    tables: list[Table], num_tokens: int, P: int, *, num_blocks: int
) -> list[Example]:
    """The first table appends. Slots are written down one by one, references counted anew."""
    table, *others = tables
    counts = counted(tables, num_blocks)
    free = unheld(counts)
    slots = [block for block in table for _ in range(P)]
    old = slots[num_tokens] if num_tokens < len(slots) else -1
    own = old >= 0 and not any(old in other for other in others)
    refused, after, rest, returned = False, list(table), list(free), (old, -1)
    if not own and not free:
        refused, returned = True, (-1, -1)
    elif not own:
        new = rest.pop()
        after = [new if block == old else block for block in table]
        after += [new] if old < 0 else []
        returned = (new, old)
    expected = {
        "refused": refused,
        "block, source": returned,
        "block_table": after,
        "ref_counts": counted([after, *others], num_blocks),
        "free": rest,
    }
    return [Example((table, num_tokens, counts, free, P), expected)]


def _append_plain(block_table, num_tokens, ref_counts, free, block_size):
    """A new block behind a full one, a copy of a shared one, else the last block as it is."""
    begins_block = num_tokens % block_size == 0
    if not begins_block and ref_counts[block_table[-1]] == 1:
        return block_table[-1], -1
    if not free:
        raise ValueError("out of blocks")
    block, source = free.pop(), -1
    if not begins_block:
        source = block_table.pop()
        ref_counts[source] -= 1
    ref_counts[block] = 1
    block_table.append(block)
    return block, source


def _append_by_index(block_table, num_tokens, ref_counts, free, block_size):
    index = num_tokens // block_size
    held = block_table[index:]
    if [ref_counts[block] for block in held] == [1]:
        return held[0], -1
    try:
        block = free.pop()
    except IndexError:
        raise ValueError(f"no block is free for token {num_tokens}") from None
    for source in held:
        ref_counts[source] -= 1
    ref_counts[block] += 1
    block_table[index:] = [block]
    return block, (held[0] if held else -1)


def _take(free: list[int]) -> int:
    if not free:
        raise ValueError("out of blocks")
    return free.pop()


def _append_new(table: Table, ref_counts: list[int], free: list[int]) -> tuple[int, int]:
    block = _take(free)
    ref_counts[block] = 1
    table.append(block)
    return block, -1


def _append_copy(table: Table, ref_counts: list[int], free: list[int]) -> tuple[int, int]:
    block = _take(free)
    source, table[-1] = table[-1], block
    ref_counts[source] -= 1
    ref_counts[block] = 1
    return block, source


def _append_shared_write(table, num_tokens, ref_counts, free, P):
    return (table[-1], -1) if num_tokens % P else _append_new(table, ref_counts, free)


def _append_always_copied(table, num_tokens, ref_counts, free, P):
    step = _append_copy if num_tokens % P else _append_new
    return step(table, ref_counts, free)


def _append_always_copied_freed(table, num_tokens, ref_counts, free, P):
    block, source = _append_always_copied(table, num_tokens, ref_counts, free, P)
    if source >= 0 and ref_counts[source] == 0:
        free.append(source)
    return block, source


def _append_full_copied(table, num_tokens, ref_counts, free, P):
    if table and ref_counts[table[-1]] > 1:
        return _append_copy(table, ref_counts, free)
    return _append_plain(table, num_tokens, ref_counts, free, P)


def _append_full_copied_first(table, num_tokens, ref_counts, free, P):
    source = -1
    if table and ref_counts[table[-1]] > 1:
        source = _append_copy(table, ref_counts, free)[1]
    return _append_plain(table, num_tokens, ref_counts, free, P)[0], source


def _append_source_kept(table, num_tokens, ref_counts, free, P):
    block, source = _append_plain(table, num_tokens, ref_counts, free, P)
    if source >= 0:
        ref_counts[source] += 1
    return block, source


def _append_each_new(table, num_tokens, ref_counts, free, P):
    return _append_new(table, ref_counts, free)


def _append_over_the_end(table, num_tokens, ref_counts, free, P):
    if not table:
        return _append_new(table, ref_counts, free)
    return (table[-1], -1) if ref_counts[table[-1]] == 1 else _append_copy(table, ref_counts, free)


def _append_one_early(table, num_tokens, ref_counts, free, P):
    if not table or (num_tokens + 1) % P == 0:
        return _append_new(table, ref_counts, free)
    return _append_over_the_end(table, num_tokens, ref_counts, free, P)


def _append_not_counted(table, num_tokens, ref_counts, free, P):
    held = ref_counts.copy()
    block, source = _append_plain(table, num_tokens, ref_counts, free, P)
    ref_counts[block] = held[block]
    return block, source


def _append_table_kept(table, num_tokens, ref_counts, free, P):
    block, source = _append_plain(table, num_tokens, ref_counts, free, P)
    if source >= 0:
        table[-1] = source
    return block, source


def _append_half_done(table, num_tokens, ref_counts, free, P):
    if num_tokens % P == 0:
        return _append_new(table, ref_counts, free)
    if ref_counts[table[-1]] == 1:
        return table[-1], -1
    source = table.pop()
    ref_counts[source] -= 1
    return _append_new(table, ref_counts, free)[0], source


def _append_asks_first(table, num_tokens, ref_counts, free, P):
    if not free:
        raise ValueError("out of blocks")
    return _append_plain(table, num_tokens, ref_counts, free, P)


APPEND_SLOT = Task(
    name="append_slot",
    chapter=7,
    title="Room for one more token",
    minutes=12,
    points=4,
    level=2,
    spec=(
        "Makes room for the token behind num_tokens, changing block_table, ref_counts (sequences "
        "that hold each block) and free (blocks are taken from its end), and returns the block to "
        "write to and the block to copy into it first, −1 if none; without a block to take a "
        "ValueError, and nothing changed."
    ),
    signature=(
        "append_slot(block_table: list[int], num_tokens: int, ref_counts: list[int], free: "
        "list[int], block_size: int) -> tuple[int, int]"
    ),
    properties=(
        Property(
            "a block with room that nobody else holds",
            lambda: [
                *_append_examples([[0]], 1, 3, num_blocks=2),
                *_append_examples([[3, 1], [2]], 6, 4, num_blocks=5),
            ],
        ),
        Property(
            "the last slot of a block is used before another is taken",
            lambda: [
                *_append_examples([[0]], 2, 3, num_blocks=2),
                *_append_examples([[3, 1], [2]], 7, 4, num_blocks=5),
            ],
        ),
        Property(
            "behind a full block a new one is taken",
            lambda: [
                *_append_examples([[]], 0, 3, num_blocks=1),
                *_append_examples([[0]], 3, 3, num_blocks=2),
                *_append_examples([[3, 1], [2]], 8, 4, num_blocks=6),
            ],
        ),
        Property(
            "a shared block is copied before it is written to",
            lambda: [
                *_append_examples([[0], [0]], 1, 3, num_blocks=3),
                *_append_examples([[4, 1], [4, 1], [4, 1]], 6, 4, num_blocks=6),
                *_append_examples([[4, 1], [4, 0], [4, 1]], 7, 4, num_blocks=6),
            ],
        ),
        Property(
            "the last one that holds a block keeps it",
            lambda: _append_examples([[4, 1], [4, 0], [4, 2]], 6, 4, num_blocks=6),
        ),
        Property(
            "a full block stays shared",
            lambda: [
                *_append_examples([[0], [0]], 3, 3, num_blocks=3),
                *_append_examples([[4, 1], [4, 1, 0]], 8, 4, num_blocks=6),
            ],
        ),
        Property(
            "no block is needed and none is free",
            lambda: [
                *_append_examples([[0]], 1, 3, num_blocks=1),
                *_append_examples([[0, 1], [2]], 6, 4, num_blocks=3),
            ],
            edge=True,
        ),
        Property(
            "out of blocks is a ValueError, and everything stays as it was",
            lambda: [
                *_append_examples([[0]], 3, 3, num_blocks=1),
                *_append_examples([[0], [0]], 1, 3, num_blocks=1),
                *_append_examples([[2, 1], [2, 1], [0]], 6, 4, num_blocks=3),
            ],
            edge=True,
        ),
    ),
    hints=(
        "Two questions in this order: is there a slot left in the last block, and who else holds "
        "that block?",
        "num_tokens % block_size is 0 where a new block begins: nothing to copy there. Otherwise "
        "the last block is written to if its count is 1, and replaced by a copy if it is more.",
        "Find out first whether a block is needed; raise if free is empty; only then pop it, "
        "lower the count of the block it replaces, set its own to 1, and put it into the table.",
    ),
    mutants=(
        Mutant(
            "shared block written to",
            "another sequence holds this block too and would find the new token in its own slot: "
            "the samples of one prompt overwrite each other from the first different token on",
            _append_shared_write,
        ),
        Mutant(
            "copied though nobody shares it",
            "a block whose count is 1 is this sequence's alone: copying it at every token costs a "
            "block's bytes a step, and the old block is held by nobody",
            _append_always_copied,
            also=(_append_always_copied_freed,),
        ),
        Mutant(
            "full block copied",
            "an append never writes to a full block, so it stays shared; ask for room first. Here "
            "the token goes to slot 0 of a copy, over the first token of that block",
            _append_full_copied,
            also=(_append_full_copied_first,),
        ),
        Mutant(
            "source still counted",
            "this sequence has left the block that it copied, so one fewer holds it; its count "
            "never reaches 0 again and the block is lost to the pool",
            _append_source_kept,
        ),
        Mutant(
            "a block for every token",
            "a new block is taken although the last one has room: each block holds one token",
            _append_each_new,
        ),
        Mutant(
            "written behind a full block",
            "no new block is taken when the last one is full, at num_tokens = k · block_size: the "
            "token has no slot, and slot 0 of that block holds another",
            _append_over_the_end,
        ),
        Mutant(
            "new block one token early",
            "the token to be written is taken as counted already: at k · block_size − 1 tokens the "
            "last slot of the block is free, and the new block is needed one token later",
            _append_one_early,
        ),
        Mutant(
            "new block not counted",
            "the block taken keeps the count 0: the first one to give it up makes it −1, and "
            "whoever shares it is not noticed",
            _append_not_counted,
        ),
        Mutant(
            "table not updated",
            "the copy is made and counted, and the table still names the shared block: the next "
            "read goes there",
            _append_table_kept,
        ),
        Mutant(
            "refused without need",
            "a full pool is no reason to refuse a token that has a slot: ask for a block only "
            "where one is needed",
            _append_asks_first,
        ),
        Mutant(
            "half done when it raises",
            "the shared block was given up before a block for the copy was at hand: whoever "
            "catches the error and tries again finds a table too short and a count too low",
            _append_half_done,
        ),
    ),
    answers=(_append_plain, _append_by_index),
    drive=_run_append,
)
