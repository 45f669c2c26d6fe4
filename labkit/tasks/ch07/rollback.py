"""Exercise of chapter 07 on taking tokens back, as speculation does with a rejected draft."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import Table, counted, unheld

# ── truncate_table ────────────────────────────────────────────────────────────────────────────


def _run_truncate(function: Callable[..., Any], table, held, kept, ref_counts, free, P) -> Any:
    """What is returned, and table, counts and free list afterwards."""
    table, counts, free = list(table), list(ref_counts), list(free)
    refused = False
    try:
        returned = function(table, held, kept, counts, free, P)
    except ValueError:
        if kept <= held:
            raise
        refused, returned = True, 0
    if returned is None:
        return None
    return {
        "refused": refused,
        "returned": returned,
        "block_table": table,
        "ref_counts": counts,
        "free, sorted": sorted(free),
    }


def _truncate_example(
    tables: list[Table], held: int, kept: int, P: int, *, num_blocks: int
) -> Example:
    """The first table keeps the blocks in which a kept token has a slot, one slot a token."""
    table, *others = tables
    before = counted(tables, num_blocks)
    refused = kept > held
    slots = [block for block in table for _ in range(P)]
    left = list(table) if refused else list(dict.fromkeys(slots[:kept]))
    after = counted([left, *others], num_blocks)
    expected = {
        "refused": refused,
        "returned": len(unheld(after)) - len(unheld(before)),
        "block_table": left,
        "ref_counts": after,
        "free, sorted": sorted(unheld(after)),
    }
    return Example((table, held, kept, before, unheld(before), P), expected)


def _truncate_plain(block_table, num_tokens, num_kept, ref_counts, free, block_size):
    """Blocks from the end, as long as the kept tokens need fewer."""
    if num_kept > num_tokens:
        raise ValueError(f"{num_tokens} tokens are held, {num_kept} cannot be kept")
    num_blocks, num_back = -(-num_kept // block_size), 0
    while len(block_table) > num_blocks:
        block = block_table.pop()
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            free.append(block)
            num_back += 1
    return num_back


def _truncate_sliced(block_table, num_tokens, num_kept, ref_counts, free, block_size):
    if not 0 <= num_kept <= num_tokens:
        raise ValueError("only what is held can be kept")
    first_gone = (num_kept + block_size - 1) // block_size
    gone = block_table[first_gone:]
    del block_table[first_gone:]
    for block in gone:
        ref_counts[block] -= 1
    freed = [block for block in gone if not ref_counts[block]]
    free += freed
    return len(freed)


def _cut(
    table: Table,
    keep: slice,
    counts: list[int],
    free: list[int],
    *,
    shared_too: bool = False,
) -> int:
    """Keep a slice of the table and give up the rest; how many blocks went back."""
    kept = table[keep]
    gone = [block for block in table if block not in kept]
    for block in gone:
        counts[block] -= 1
    back = [block for block in gone if shared_too or counts[block] == 0]
    free += back
    table[:] = kept
    return len(back)


def _checked(num_tokens: int, kept: int) -> None:
    if kept > num_tokens:
        raise ValueError("longer than held")


def _truncate_boundary(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(kept // P + 1), counts, free)


def _truncate_rounded_down(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(kept // P), counts, free)


def _truncate_by_removed(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(len(table) - (num_tokens - kept) // P), counts, free)


def _truncate_shared(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(-(-kept // P)), counts, free, shared_too=True)


def _truncate_shared_zeroed(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    gone = table[-(-kept // P) :]
    num_back = _cut(table, slice(-(-kept // P)), counts, free, shared_too=True)
    for block in gone:
        counts[block] = 0
    return num_back


def _truncate_front(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(len(table) - -(-kept // P), None), counts, free)


def _truncate_removed(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(-(-(num_tokens - kept) // P)), counts, free)


def _truncate_leaked(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(-(-kept // P)), counts.copy(), free.copy())


def _truncate_list_forgotten(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table, slice(-(-kept // P)), counts, free.copy())


def _truncate_dangling(table, num_tokens, kept, counts, free, P):
    _checked(num_tokens, kept)
    return _cut(table.copy(), slice(-(-kept // P)), counts, free)


def _truncate_grows(table, num_tokens, kept, counts, free, P):
    return _cut(table, slice(-(-kept // P)), counts, free)


TRUNCATE_TABLE = Task(
    name="truncate_table",
    chapter=7,
    title="Take a draft back",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "Forgets all but the first num_kept of a sequence's num_tokens tokens: block_table keeps "
        "the blocks that hold one of them, the others lose one holder in ref_counts, those that "
        "nobody holds go to free, and their number is returned; to keep more than is held is a "
        "ValueError, and nothing changed."
    ),
    signature=(
        "truncate_table(block_table: list[int], num_tokens: int, num_kept: int, ref_counts: "
        "list[int], free: list[int], block_size: int) -> int"
    ),
    properties=(
        Property(
            "keeping everything changes nothing",
            lambda: [
                _truncate_example([[0]], 1, 1, 2, num_blocks=1),
                _truncate_example([[3, 1], [2]], 7, 7, 4, num_blocks=5),
            ],
        ),
        Property(
            "a block with a kept token stays",
            lambda: [
                _truncate_example([[0]], 2, 1, 2, num_blocks=1),
                _truncate_example([[3, 1], [2]], 8, 5, 4, num_blocks=5),
            ],
        ),
        Property(
            "a block without one goes back",
            lambda: [
                _truncate_example([[0, 1]], 3, 1, 2, num_blocks=2),
                _truncate_example([[3, 1, 4], [2]], 9, 7, 4, num_blocks=6),
                _truncate_example([[3, 1, 4, 0], [2]], 14, 2, 4, num_blocks=6),
            ],
        ),
        Property(
            "at a full block the next one goes",
            lambda: [
                _truncate_example([[0, 1]], 3, 2, 2, num_blocks=2),
                _truncate_example([[3, 1, 4], [2]], 11, 8, 4, num_blocks=6),
                _truncate_example([[3, 1, 4], [2]], 12, 12, 4, num_blocks=6),
            ],
        ),
        Property(
            "a shared block is given up, and stays with the others",
            lambda: [
                _truncate_example([[0, 1], [0, 1]], 3, 2, 2, num_blocks=2),
                _truncate_example([[3, 1, 4], [3, 1, 0], [3, 1]], 10, 3, 4, num_blocks=6),
            ],
        ),
        Property(
            "nothing is kept",
            lambda: [_truncate_example([[2, 0], [2]], 5, 0, 4, num_blocks=3)],
            edge=True,
        ),
        Property(
            "more than is held is a ValueError, and everything stays as it was",
            lambda: [
                _truncate_example([[0]], 1, 2, 2, num_blocks=2),
                _truncate_example([[3, 1], [2]], 6, 9, 4, num_blocks=5),
            ],
            edge=True,
        ),
    ),
    hints=(
        "How many blocks do the tokens that stay need? Everything behind those goes.",
        "ceil(num_kept / block_size) blocks stay. A block that goes loses this holder; it is free "
        "only when that was the last one.",
        "Check num_kept against num_tokens; then, while the table is too long, pop a block, lower "
        "its count, and append it to free where the count became 0.",
    ),
    mutants=(
        Mutant(
            "block kept at the boundary",
            "num_kept // block_size + 1 keeps a block that holds no token when num_kept is a "
            "multiple of block_size; the next append takes another behind it, and every later "
            "token is looked up a block too early",
            _truncate_boundary,
        ),
        Mutant(
            "partly kept block dropped",
            "rounded down, the block of the last kept tokens goes too: they are lost, and whoever "
            "is given the block overwrites them",
            _truncate_rounded_down,
        ),
        Mutant(
            "whole blocks of rejected tokens",
            "(num_tokens − num_kept) // block_size blocks are given back; where the last block was "
            "not full, fewer rejected tokens empty it, and it stays in the table",
            _truncate_by_removed,
        ),
        Mutant(
            "shared block freed",
            "another sequence holds that block too: it leaves this table and loses one holder, and "
            "must not be given to anyone",
            _truncate_shared,
            also=(_truncate_shared_zeroed,),
        ),
        Mutant(
            "cut at the front",
            "the first blocks are given up; the rejected tokens are the last ones",
            _truncate_front,
        ),
        Mutant(
            "taken as the number to remove",
            "num_kept says how many tokens stay, not how many go",
            _truncate_removed,
        ),
        Mutant(
            "blocks leaked",
            "the table is shorter and the blocks that left it are still counted as held: nobody "
            "will ever give them back",
            _truncate_leaked,
        ),
        Mutant(
            "free list forgotten",
            "the counts fall to 0 and the blocks are on no list: the pool shrinks with every "
            "rejected draft",
            _truncate_list_forgotten,
        ),
        Mutant(
            "table left as it was",
            "the table still names blocks that were given back: they will hold somebody else's "
            "tokens, and freeing this table frees them a second time",
            _truncate_dangling,
        ),
        Mutant(
            "grown by truncation",
            "more tokens are kept than were ever written; the slots behind hold nothing, or what "
            "somebody else left",
            _truncate_grows,
        ),
    ),
    answers=(_truncate_plain, _truncate_sliced),
    drive=_run_truncate,
)
