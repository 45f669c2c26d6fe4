"""Exercise of chapter 07 on giving up a sequence's blocks, each of them once."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import Table, counted, unheld

# ── free_table ────────────────────────────────────────────────────────────────────────────────


def _run_free(function: Callable[..., Any], table, ref_counts, free) -> Any:
    """What is returned, and counts and free list afterwards; their order on it is left open."""
    table, counts, free = list(table), list(ref_counts), list(free)
    refused = False
    try:
        returned = function(table, counts, free)
    except ValueError:
        if all(ref_counts[block] > 0 for block in table):
            raise
        refused, returned = True, 0
    if returned is None:
        return None
    return {
        "refused": refused,
        "returned": returned,
        "ref_counts": counts,
        "free, sorted": sorted(free),
    }


def _free_example(
    table: Table, *others: Table, num_blocks: int, freed_before: bool = False
) -> Example:
    """Afterwards the other tables hold what they hold, and the rest of the pool is free."""
    before = counted(others if freed_before else [table, *others], num_blocks)
    after = counted(others, num_blocks)
    expected = {
        "refused": freed_before,
        "returned": len(unheld(after)) - len(unheld(before)),
        "ref_counts": after,
        "free, sorted": sorted(unheld(after)),
    }
    return Example((table, before, unheld(before)), expected)


def _free_plain(block_table, ref_counts, free):
    """Each block once; the last one to let go puts it on the list."""
    blocks = set(block_table)
    if any(ref_counts[block] < 1 for block in blocks):
        raise ValueError(f"table {block_table} names a block that nobody holds")
    num_back = 0
    for block in blocks:
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            free.append(block)
            num_back += 1
    return num_back


def _free_in_turn(block_table, ref_counts, free):
    held = list(dict.fromkeys(reversed(block_table)))
    if min((ref_counts[block] for block in held), default=1) <= 0:
        raise ValueError("double free")
    last_holder = [block for block in held if ref_counts[block] == 1]
    for block in held:
        ref_counts[block] -= 1
    free.extend(last_holder)
    return len(last_holder)


def _free_variant(
    table: Table,
    counts: list[int],
    free: list[int],
    *,
    once: bool = True,
    checked: bool = True,
    back: Callable[[int], bool] = lambda left: left == 0,
) -> int:
    """Give up a table with one thing done wrong; ``back`` says at which count a block is free."""
    if checked and any(counts[block] < 1 for block in table):
        raise ValueError("double free")
    num_back = 0
    for block in dict.fromkeys(table) if once else table:
        counts[block] -= 1
        if back(counts[block]):
            free.append(block)
            num_back += 1
    return num_back


def _free_per_entry(table, counts, free):
    return _free_variant(table, counts, free, once=False)


def _free_per_entry_twice(table, counts, free):
    return _free_variant(table, counts, free, once=False, back=lambda left: left <= 0)


def _free_shared(table, counts, free):
    return _free_variant(table, counts, free, back=lambda left: True)


def _free_shared_zeroed(table, counts, free):
    num_back = _free_variant(table, counts, free, back=lambda left: True)
    for block in table:
        counts[block] = 0
    return num_back


def _free_one_holder_left(table, counts, free):
    return _free_variant(table, counts, free, back=lambda left: left <= 1)


def _free_list_forgotten(table, counts, free):
    return _free_variant(table, counts, free.copy())


def _free_count_kept(table, counts, free):
    return _free_variant(table, counts.copy(), free)


def _free_all_returned(table, counts, free):
    _free_variant(table, counts, free)
    return len(set(table))


def _free_twice(table, counts, free):
    return _free_variant(table, counts, free, checked=False)


def _free_twice_listed(table, counts, free):
    return _free_variant(table, counts, free, checked=False, back=lambda left: left <= 0)


def _free_half_done(table, counts, free):
    num_back = 0
    for block in dict.fromkeys(table):
        if counts[block] < 1:
            raise ValueError("double free")
        num_back += _free_variant([block], counts, free)
    return num_back


FREE_TABLE = Task(
    name="free_table",
    chapter=7,
    title="Give up a sequence",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "Ends a sequence: each block that its table names loses one holder in ref_counts (how many "
        "sequences hold a block, whatever the number of entries that name it), blocks that nobody "
        "holds go to free, and their number is returned; for a block that nobody held before, a "
        "ValueError and nothing changed."
    ),
    signature="free_table(block_table: list[int], ref_counts: list[int], free: list[int]) -> int",
    properties=(
        Property(
            "a block that only this sequence holds",
            lambda: [_free_example([0], num_blocks=1), _free_example([2, 0], num_blocks=4)],
        ),
        Property(
            "a block that others hold stays theirs",
            lambda: [
                _free_example([0], [0], num_blocks=2),
                _free_example([3, 1], [3, 0], num_blocks=5),
                _free_example([3, 1], [3, 1], [3, 4], num_blocks=6),
            ],
        ),
        Property(
            "a block that the table names twice was counted once",
            lambda: [
                _free_example([0, 0], num_blocks=1),
                _free_example([0, 1, 0], num_blocks=3),
                _free_example([0, 1, 0], [0, 1, 0], num_blocks=3),
                _free_example([4, 2, 4], [4, 2], [3], num_blocks=6),
            ],
        ),
        Property(
            "a table freed before is a ValueError, and everything stays as it was",
            lambda: [
                _free_example([0], num_blocks=2, freed_before=True),
                _free_example([3, 1], [3, 0], num_blocks=5, freed_before=True),
            ],
            edge=True,
        ),
        Property(
            "an empty table gives nothing back",
            lambda: [_free_example([], [0], num_blocks=2)],
            edge=True,
        ),
    ),
    hints=(
        "What does a reference count count: entries of tables, or sequences?",
        "Go through set(block_table), not block_table. A block is free when its count reaches 0.",
        "First look for a count below 1 and raise; then lower each block's count, append the block "
        "to free where it became 0, and count those.",
    ),
    mutants=(
        Mutant(
            "counted by table entry",
            "a table that wraps around a window names a block twice and holds it once; lowered "
            "once an entry, the count falls too far: the block is free while another sequence "
            "reads it, or is freed twice",
            _free_per_entry,
            also=(_free_per_entry_twice,),
        ),
        Mutant(
            "shared blocks freed",
            "another sequence still holds this block; the next request will be given it and write "
            "over a prompt that is in use",
            _free_shared,
            also=(_free_shared_zeroed,),
        ),
        Mutant(
            "freed with one holder left",
            "the count is compared with 1 after it was lowered: one sequence still holds the block",
            _free_one_holder_left,
        ),
        Mutant(
            "free list forgotten",
            "the counts fall to 0 and the blocks are on no list: nobody can take them again, and "
            "the pool shrinks with every request",
            _free_list_forgotten,
        ),
        Mutant(
            "counts not lowered",
            "the block is on the free list and still counted as held: whoever takes it next and "
            "adds one is counted as two, and the block never comes back",
            _free_count_kept,
        ),
        Mutant(
            "let go, not freed",
            "this returns how many blocks the sequence held; those that others hold did not "
            "become free",
            _free_all_returned,
        ),
        Mutant(
            "double free goes through",
            "the second call lowers the counts below 0, or lists the block as free twice, and two "
            "requests are given the same block",
            _free_twice,
            also=(_free_twice_listed,),
        ),
        Mutant(
            "half done when it raises",
            "blocks before the offending one were given up already, and are counted once too few "
            "for those that still hold them: look at all of them first",
            _free_half_done,
        ),
    ),
    answers=(_free_plain, _free_in_turn),
    drive=_run_free,
)
