"""Blocks of one pool, and the sequences that hold them: allocate, append, fork, truncate, free.

A block belongs to every sequence whose table names it. It is counted once per sequence, however
often one table names it, and goes back to the free list when the last of them lets go.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from refimpl.architecture.checks import count
from refimpl.blocks.layout import num_blocks_for
from refimpl.blocks.table import BlockCopy, BlockTable, OutOfBlocks


class BlockAllocator:
    """``num_blocks`` blocks of ``block_size`` slots, shared by reference.

    Free blocks wait in the order in which they were let go, the last block of a sequence before
    its first, and the one that waited longest is taken next; ``order`` is how they wait at the
    start. Every operation takes time in the number of blocks it touches. One that raises has
    changed nothing: :class:`OutOfBlocks` if blocks are missing, ``ValueError`` for a table that
    was freed, or is another allocator's, and for numbers that do not fit.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, order: Sequence[int] | None = None
    ) -> None:
        self.num_blocks = count("num_blocks", num_blocks)
        self.block_size = count("block_size", block_size)
        order = range(num_blocks) if order is None else order
        waiting = [count("a block in order", block, least=0) for block in order]
        if sorted(waiting) != list(range(num_blocks)):
            raise ValueError(f"order must list blocks 0 to {num_blocks - 1} once, got {waiting}")
        self._free = OrderedDict.fromkeys(waiting)
        self._references = [0] * num_blocks
        self._tables: dict[BlockTable, None] = {}
        self.peak_used = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def free_blocks(self) -> list[int]:
        """The free blocks, next to be taken first."""
        return list(self._free)

    @property
    def tables(self) -> list[BlockTable]:
        """The tables in use, oldest first."""
        return list(self._tables)

    def num_references(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._references[self._check_block(block)]

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Raise unless these are different tables in use here: neither freed nor foreign."""
        for table in tables:
            self._check(table)
        if len(set(tables)) != len(tables):
            raise ValueError("a table is given twice")

    # --- what an operation would take ---------------------------------------------------------

    def num_needed(self, tables: Sequence[BlockTable], num_new: Sequence[int]) -> int:
        """Free blocks that :meth:`append_all` takes: new ones, and copies of shared last ones."""
        self._check_append(tables, num_new)
        needed, references = 0, {}  # references as they will be, of blocks that are written
        for table, new in zip(tables, num_new, strict=True):
            needed += self._blocks_for(table.num_tokens + new) - self._blocks_for(table.num_tokens)
            if new and table.num_tokens % self.block_size:
                last = table.blocks[-1]
                held = references.setdefault(last, self._references[last])
                if held > 1:
                    needed += 1
                    references[last] -= table.entries[last] == 1
        return needed

    def can_append(self, table: BlockTable, num_new: int = 1) -> bool:
        """Whether :meth:`append` has the blocks it needs."""
        return self.num_needed([table], [num_new]) <= self.num_free

    def can_allocate(self, num_tokens: int, shared: Sequence[int] = ()) -> bool:
        """Whether :meth:`allocate` has the blocks it needs."""
        return self._num_needed_to_allocate(num_tokens, shared) <= self.num_free

    # --- operations ---------------------------------------------------------------------------

    def allocate(self, num_tokens: int = 0, *, shared: Sequence[int] = ()) -> BlockTable:
        """A new table for ``num_tokens`` tokens, the first of them in blocks that exist already.

        ``shared`` blocks are held before any other block is taken, also where they are free: what
        they hold is still there until they are taken for something else.
        """
        needed = self._num_needed_to_allocate(num_tokens, shared)
        if needed > self.num_free:
            raise OutOfBlocks(needed, self.num_free)
        table = BlockTable(self.block_size, num_tokens=num_tokens)
        self._tables[table] = None
        for block in shared:
            self._hold(table, block)
        self._fill(table)
        return table

    def append(self, table: BlockTable, num_new: int = 1) -> list[BlockCopy]:
        """Room for ``num_new`` more tokens; what has to be copied before they are written.

        A last block with room left that other sequences hold too is replaced by a copy, so that
        none of them sees the write. The last one that holds it keeps it.
        """
        return self.append_all([table], [num_new])

    def append_all(self, tables: Sequence[BlockTable], num_new: Sequence[int]) -> list[BlockCopy]:
        """:meth:`append` to several tables, to all of them or to none."""
        needed = self.num_needed(tables, num_new)
        if needed > self.num_free:
            raise OutOfBlocks(needed, self.num_free)
        copies = []
        for table, new in zip(tables, num_new, strict=True):
            if new and table.num_tokens % self.block_size:
                copies += self._own_last(table)
            table.num_tokens += new
            self._fill(table)
        return copies

    def fork(self, table: BlockTable) -> BlockTable:
        """A second sequence with the same tokens, in the same blocks: takes none."""
        self._check(table)
        twin = BlockTable(
            self.block_size, num_tokens=table.num_tokens, num_dropped=table.num_dropped
        )
        self._tables[twin] = None
        for block in table.blocks:
            self._hold(twin, block)
        return twin

    def truncate(self, table: BlockTable, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` tokens; lets go of the blocks behind them."""
        self._check(table)
        dropped = table.num_dropped * self.block_size
        if not dropped <= count("num_tokens", num_tokens, least=0) <= table.num_tokens:
            raise ValueError(
                f"cannot keep {num_tokens} tokens: the table has {table.num_tokens}, and the "
                f"first {dropped} were dropped"
            )
        table.num_tokens = num_tokens
        while len(table.blocks) + table.num_dropped > self._blocks_for(num_tokens):
            self._let_go(table, table.blocks.pop())

    def drop_head(self, table: BlockTable, num_blocks: int) -> None:
        """Let go of the first ``num_blocks`` blocks listed, which must be full."""
        self._check(table)
        full = table.num_tokens // self.block_size - table.num_dropped
        if not 0 <= count("num_blocks", num_blocks, least=0) <= full:
            raise ValueError(f"cannot drop {num_blocks} blocks: {full} full ones are held")
        head, table.blocks[:num_blocks] = table.blocks[:num_blocks], []
        table.num_dropped += num_blocks
        for block in head:
            self._let_go(table, block)

    def free(self, table: BlockTable) -> None:
        """Let go of everything; the table cannot be used again."""
        self._check(table)
        while table.blocks:
            self._let_go(table, table.blocks.pop())
        table.num_tokens = table.num_dropped = 0
        del self._tables[table]

    def check_invariants(self) -> None:
        """Assert what must hold between any two operations, over the whole pool."""
        holders: Counter[int] = Counter()
        for table in self._tables:
            listed = Counter(table.blocks)
            assert table.entries == listed, f"{table} lists {dict(listed)}"
            assert table.num_dropped + len(table.blocks) == self._blocks_for(table.num_tokens), (
                table
            )
            holders.update(listed.keys())
        free = list(self._free)
        assert len(set(free)) == len(free), f"a block is free twice: {free}"
        assert set(free) | set(holders) == set(range(self.num_blocks)), "a block is lost"
        assert not set(free) & set(holders), "a block is free and held"
        counted = [holders[block] for block in range(self.num_blocks)]
        assert counted == self._references, f"tables hold {counted}, counted {self._references}"

    # --- the steps they are made of -----------------------------------------------------------

    def _hold(self, table: BlockTable, block: int) -> None:
        """List a block at the end of a table; a block not held by anyone leaves the free list."""
        if not table.entries[block]:
            if not self._references[block]:
                del self._free[block]
                self.peak_used = max(self.peak_used, self.num_used)
            self._references[block] += 1
        table.entries[block] += 1
        table.blocks.append(block)

    def _let_go(self, table: BlockTable, block: int) -> None:
        """Count an entry that has left a table's list; the last one gives up the reference."""
        table.entries[block] -= 1
        if not table.entries[block]:
            del table.entries[block]
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def _fill(self, table: BlockTable) -> None:
        """Take blocks until there is room for the table's tokens."""
        missing = self._blocks_for(table.num_tokens) - table.num_dropped - len(table.blocks)
        for _ in range(missing):
            self._hold(table, next(iter(self._free)))

    def _own_last(self, table: BlockTable) -> list[BlockCopy]:
        """Replace the last block by a new one where another sequence holds it too."""
        source, filled = table.blocks[-1], table.num_filled
        if self._references[source] == 1:
            return []
        table.blocks.pop()
        self._let_go(table, source)
        self._hold(table, next(iter(self._free)))
        return [BlockCopy(source, table.blocks[-1], filled)]

    def _blocks_for(self, num_tokens: int) -> int:
        return num_blocks_for(num_tokens, self.block_size)

    def _num_needed_to_allocate(self, num_tokens: int, shared: Sequence[int]) -> int:
        total = self._blocks_for(num_tokens)
        if len(shared) > total:
            raise ValueError(
                f"{num_tokens} tokens take {total} blocks, {len(shared)} shared ones were given"
            )
        revived = {block for block in shared if not self.num_references(block)}
        return total - len(shared) + len(revived)

    def _check(self, table: BlockTable) -> None:
        if not isinstance(table, BlockTable) or table not in self._tables:
            raise ValueError(f"not a table in use here (freed, or another allocator's): {table!r}")

    def _check_append(self, tables: Sequence[BlockTable], num_new: Sequence[int]) -> None:
        if len(tables) != len(num_new):
            raise ValueError(f"{len(tables)} tables need a number each, got {len(num_new)}")
        self.check(tables)
        for new in num_new:
            count("num_new", new, least=0)

    def _check_block(self, block: int) -> int:
        if not 0 <= count("block", block, least=0) < self.num_blocks:
            raise ValueError(f"block {block} is outside 0 to {self.num_blocks - 1}")
        return block
