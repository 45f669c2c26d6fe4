"""Exercise of chapter 07 on a step of beam search: children take their parents' tables."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import Table, counted, unheld

FIRST_MARK = 100  # blocks are numbered below it
AFTER = f"tables, beam i having appended block {FIRST_MARK} + i"

# ── reorder_beams ─────────────────────────────────────────────────────────────────────────────


def _run_reorder(function: Callable[..., Any], tables, parents, ref_counts, free) -> Any:
    """Counts and free list, and the new tables once each has appended a block of its own."""
    tables, counts, free = [list(table) for table in tables], list(ref_counts), list(free)
    returned = function(tables, list(parents), counts, free)
    if returned is None:
        return None
    children = [table if isinstance(table, list) else list(table) for table in returned]
    for i, table in enumerate(children):
        table.append(FIRST_MARK + i)
    return {
        AFTER: [list(table) for table in children],
        "ref_counts": counts,
        "free, sorted": sorted(free),
    }


def _reorder_example(tables: list[Table], parents: list[int], *, num_blocks: int) -> Example:
    """What each child continues, with references counted anew over the children's tables."""
    children = [tables[parent] for parent in parents]
    before, after = counted(tables, num_blocks), counted(children, num_blocks)
    expected = {
        AFTER: [[*table, FIRST_MARK + i] for i, table in enumerate(children)],
        "ref_counts": after,
        "free, sorted": sorted(unheld(after)),
    }
    return Example((tables, parents, before, unheld(before)), expected)


def _reorder_plain(tables, parents, ref_counts, free):
    """Hold for every child first, then let go for every old beam."""
    children = [list(tables[parent]) for parent in parents]
    for table in children:
        for block in table:
            ref_counts[block] += 1
    for table in tables:
        for block in table:
            ref_counts[block] -= 1
            if ref_counts[block] == 0:
                free.append(block)
    return children


def _reorder_by_difference(tables, parents, ref_counts, free):
    num_children = Counter(parents)
    change = Counter()
    for beam, table in enumerate(tables):
        for block in table:
            change[block] += num_children[beam] - 1
    for block, difference in change.items():
        ref_counts[block] += difference
        if difference and not ref_counts[block]:
            free.append(block)
    return [tables[parent][:] for parent in parents]


def _hold(table: Table, counts: list[int]) -> None:
    for block in table:
        counts[block] += 1


def _let_go(table: Table, counts: list[int], free: list[int]) -> None:
    for block in table:
        counts[block] -= 1
        if counts[block] == 0:
            free.append(block)


def _exchange(
    tables: list[Table], children: list[Table], counts: list[int], free: list[int]
) -> list[Table]:
    """Hold what the children name, let go what the tables name."""
    for table in children:
        _hold(table, counts)
    for table in tables:
        _let_go(table, counts, free)
    return children


def _reorder_let_go_first(tables, parents, counts, free):
    for table in tables:
        _let_go(table, counts, free)
    children = [list(tables[parent]) for parent in parents]
    for table in children:
        _hold(table, counts)
    return children


def _reorder_one_list(tables, parents, counts, free):
    return _exchange(tables, [tables[parent] for parent in parents], counts, free)


def _reorder_last_not_counted(tables, parents, counts, free):
    children = [list(tables[parent]) for parent in parents]
    for i, table in enumerate(children):
        if parents[i] in parents[i + 1 :]:
            _hold(table, counts)
    for table in tables:
        _let_go(table, counts, free)
    return children


def _reorder_copied(tables, parents, counts, free):
    children = []
    for parent in parents:
        new = [free.pop() for _ in tables[parent]]
        _hold(new, counts)
        children.append(new)
    for table in tables:
        _let_go(table, counts, free)
    return children


def _reorder_last_copied(tables, parents, counts, free):
    children = []
    for parent in parents:
        child = [*tables[parent][:-1], *[free.pop() for _ in tables[parent][-1:]]]
        _hold(child, counts)
        children.append(child)
    for table in tables:
        _let_go(table, counts, free)
    return children


def _reorder_dead_kept(tables, parents, counts, free):
    dead = [table for i, table in enumerate(tables) if i not in parents]
    children = [list(tables[parent]) for parent in parents]
    _exchange(tables, children, counts, free)
    for block in {block for table in dead for block in table}:
        if counts[block] == 0:
            free.remove(block)
    for table in dead:
        _hold(table, counts)
    return children


def _reorder_dead_freed_whole(tables, parents, counts, free):
    children = [list(tables[parent]) for parent in parents]
    _exchange(tables, children, counts, free)
    for i, table in enumerate(tables):
        if i not in parents:
            for block in table:
                counts[block] = 0
                if block not in free:
                    free.append(block)
    return children


def _reorder_own_kept(tables, parents, counts, free):
    children = [list(tables[parent]) for parent in parents]
    dead = [table for i, table in enumerate(tables) if i not in parents]
    return _exchange(dead, children, counts, free)


def _reorder_overwritten(tables, parents, counts, free):
    current = [list(table) for table in tables]
    for i, parent in enumerate(parents):
        current[i] = list(current[parent])
    return _exchange(tables, current, counts, free)


def _reorder_scattered(tables, parents, counts, free):
    children = [list(table) for table in tables]
    for i, parent in enumerate(parents):
        children[parent] = list(tables[i])
    return _exchange(tables, children, counts, free)


REORDER_BEAMS = Task(
    name="reorder_beams",
    chapter=7,
    title="A step of beam search",
    minutes=15,
    points=5,
    level=3,
    spec=(
        "The tables of the next step's beams, beam i continuing the tokens of beam parents[i], "
        "each a list of its own that later appends do not show in another; no block is copied, "
        "ref_counts (beams that hold each block) is brought up to date, and blocks that no beam "
        "holds any more go to free."
    ),
    signature=(
        "reorder_beams(tables: list[list[int]], parents: list[int], ref_counts: list[int], free: "
        "list[int]) -> list[list[int]]"
    ),
    properties=(
        Property("one beam goes on", lambda: [_reorder_example([[0]], [0], num_blocks=3)]),
        Property(
            "every beam goes on",
            lambda: [
                _reorder_example([[0], [1]], [0, 1], num_blocks=5),
                _reorder_example([[5, 1], [5, 2], [5, 3]], [0, 1, 2], num_blocks=13),
            ],
        ),
        Property(
            "beams trade places",
            lambda: [
                _reorder_example([[0], [1]], [1, 0], num_blocks=5),
                _reorder_example([[5, 1], [5, 2], [5, 3]], [2, 0, 1], num_blocks=13),
            ],
        ),
        Property(
            "one beam has two children, another none",
            lambda: [
                _reorder_example([[0], [1]], [0, 0], num_blocks=5),
                _reorder_example([[0], [1]], [1, 1], num_blocks=5),
                _reorder_example([[5, 1], [5, 2], [5, 3]], [1, 1, 0], num_blocks=13),
            ],
        ),
        Property(
            "blocks shared by beams that end and beams that go on",
            lambda: [
                _reorder_example([[0, 1], [0, 2]], [1, 1], num_blocks=8),
                _reorder_example(
                    [[6, 1, 4], [6, 1, 3], [6, 2, 0], [6, 2, 5]], [2, 2, 2, 1], num_blocks=24
                ),
            ],
        ),
        Property(
            "tables without blocks",
            lambda: [_reorder_example([[], []], [1, 1], num_blocks=2)],
            edge=True,
        ),
    ),
    hints=(
        "Three things to get right: which table each child has, whether it is a list of its own, "
        "and how often each block is counted afterwards.",
        "Hold for all children before letting go for any old beam: a block that is on its way "
        "from parent to child must not pass through 0.",
        "children = [list(tables[p]) for p in parents]; add 1 for every block of every child; "
        "then take 1 off for every block of every old table, and append it to free at 0.",
    ),
    mutants=(
        Mutant(
            "let go before held",
            "the count of a block that a child is about to take passes through 0, so the block is "
            "put on the free list and is counted as held: the next request gets it and overwrites "
            "the beam",
            _reorder_let_go_first,
        ),
        Mutant(
            "children share one list",
            "two children of one parent have the same list object: a block that one of them "
            "appends shows up in the other's table",
            _reorder_one_list,
        ),
        Mutant(
            "last child not counted",
            "a parent's last child was given its blocks without being counted, and then the parent "
            "let them go: they are free, or one too few is counted, while that child reads them",
            _reorder_last_not_counted,
        ),
        Mutant(
            "blocks copied",
            "children share their parent's blocks; a copy is due when one of them writes into a "
            "block that another holds, and then of that block alone",
            _reorder_copied,
            also=(_reorder_last_copied,),
        ),
        Mutant(
            "ended beams keep their blocks",
            "a beam without children lets go of its blocks as well: here they stay counted for "
            "good, and each step of the search leaks some",
            _reorder_dead_kept,
        ),
        Mutant(
            "ended beams free everything",
            "a beam that ends shares its first blocks with beams that go on: it gives up one "
            "reference of each, and only blocks that reach 0 are free",
            _reorder_dead_freed_whole,
        ),
        Mutant(
            "parents' own references kept",
            "the children are counted and their parents still are: the old beams end here, all of "
            "them, whether they have children or not",
            _reorder_own_kept,
        ),
        Mutant(
            "overwritten while being read",
            "tables[i] = tables[parents[i]] in a loop reads tables that the loop has replaced: "
            "where beams trade places, both end with one text",
            _reorder_overwritten,
        ),
        Mutant(
            "parents taken as destinations",
            "parents[i] says where beam i comes from; this moves beam i to place parents[i]",
            _reorder_scattered,
        ),
    ),
    answers=(_reorder_plain, _reorder_by_difference),
    drive=_run_reorder,
)
