"""A cache over blocks of a pool: sequences grow block by block, and share what is equal."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.blocks import BlockTable, num_blocks_for
from refimpl.cache.pool import BlockPool
from refimpl.cache.protocol import Lengths
from refimpl.cache.rows import Rows


class PagedCache(Rows):
    """A cache whose rows are block tables over a pool, which other caches may share.

    A row reserves nothing ahead: a block is taken when its first token is written. ``reorder``
    copies no keys and values: rows with the same past list the same blocks, and the first write
    into a shared, partly filled block copies that block alone. ``read`` gathers a copy.

    The pool is ``num_blocks`` blocks of ``block_size`` tokens. A row that could not fit even in an
    empty pool raises ``ValueError``, one for which too few blocks are free now ``OutOfBlocks``, a
    kind of ``ValueError``; both before anything is written.
    """

    def __init__(
        self,
        arch: Architecture,
        *,
        batch_size: int = 1,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(arch, batch_size, dtype)
        pool = BlockPool(arch, num_blocks=num_blocks, block_size=block_size, dtype=dtype)
        self._view(pool, [pool.allocator.allocate() for _ in range(batch_size)])

    @classmethod
    def over(cls, pool: BlockPool, tables: Sequence[BlockTable]) -> "PagedCache":
        """A cache whose rows are these tables; they grow and shrink with it.

        While it is used, nothing else may change its tables; other tables of the pool come and go.
        """
        cache = cls.__new__(cls)
        Rows.__init__(cache, pool.arch, len(tables), pool.dtype)
        cache._view(pool, tables)
        return cache

    def _view(self, pool: BlockPool, tables: Sequence[BlockTable]) -> None:
        for table in tables:
            if table.num_dropped:
                raise ValueError(f"a row starts at position 0, this one lost its head: {table}")
        pool.allocator.check(tables)
        self.pool, self.tables = pool, list(tables)
        self._k, self._v = pool.k_LNGPD.unbind(), pool.v_LNGPD.unbind()
        self._sizes = [table.num_tokens for table in tables]  # as this cache left them
        self._planned: tuple = (None, None)
        self._lengths = [list(self._sizes) for _ in range(pool.arch.num_layers)]

    @property
    def max_tokens(self) -> int:
        """The most tokens a row could hold, if the pool were its own."""
        return self.pool.allocator.num_blocks * self.pool.block_size

    def append(
        self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor, lengths_B: Lengths | None = None
    ) -> None:
        """Store the new tokens behind each row's last one; see :class:`KVCache`.

        The first layer of a step takes the blocks, for all layers.
        """
        self._check_tables()
        added = self._check_append(layer, k_BGTD, v_BGTD, lengths_B)
        held = self._lengths[layer]
        lengths = [start + new for start, new in zip(held, added, strict=True)]
        missing = [max(n - size, 0) for n, size in zip(lengths, self._sizes, strict=True)]
        if any(missing):
            self.pool.append(self.tables, missing)
            self._sizes = [table.num_tokens for table in self.tables]
        rows_R, new_R = self._places(held, lengths, k_BGTD.shape[2])
        k_RD, v_RD = (x.reshape(-1, x.shape[-1]) for x in (k_BGTD, v_BGTD))
        if len(new_R) < len(k_RD):  # some of them are padding
            k_RD, v_RD = k_RD[new_R], v_RD[new_R]
        self.pool.write(layer, rows_R, k_RD, v_RD)
        self._lengths[layer] = lengths

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copies ``[B, G, S, D]`` gathered through the tables; see :class:`KVCache`."""
        self._check_layer(layer)
        self._check_tables()
        return self.pool.gather(layer, self.tables, self._lengths[layer])

    def truncate(self, lengths_B: Lengths) -> None:
        """Forget all but each row's first tokens; the blocks behind them are free for others."""
        self._check_tables()
        super().truncate(lengths_B)

    def reorder(self, rows_B: Lengths) -> None:
        """Make row ``i`` what row ``rows_B[i]`` was, by reference; see :class:`KVCache`.

        Raises in the middle of a step, while some layers hold tokens that others do not.
        """
        self._check_tables()
        super().reorder(rows_B)

    def free(self) -> None:
        """Give all blocks back; the cache cannot be used again."""
        self._check_tables()
        self.pool.allocator.check(self.tables)
        for table in self.tables:
            self.pool.allocator.free(table)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps, provided that no NaN was stored."""
        self.pool.allocator.check_invariants()
        self._check_tables()
        for layer, lengths in enumerate(self._lengths):
            for table, length in zip(self.tables, lengths, strict=True):
                assert length == table.num_tokens, f"layer {layer} holds {length} tokens: {table}"
            for x_BGSD in self.read(layer):
                for x_GSD, length in zip(x_BGSD, lengths, strict=True):
                    assert not x_GSD[:, :length].isnan().any(), f"layer {layer} lost a token"

    def _places(self, start: list[int], stop: list[int], T: int) -> tuple[Tensor, Tensor]:
        """Where new vectors go in the pool, and where they are among those given, in 64 bits.

        Both are row numbers of matrices of width ``D``: of a layer's pool ``[N, G, P, D]``, and of
        the new keys ``[B, G, T, D]``.
        """
        G, P = self.arch.num_kv_heads, self.pool.block_size
        spans = list(zip(self.tables, start, stop, strict=True))
        listed = [table.blocks[i // P : num_blocks_for(j, P)] for table, i, j in spans]
        if (start, stop, T, listed) != self._planned[0]:  # a step asks the same in every layer
            rows, new, heads_G1 = [], [], torch.arange(G)[:, None]
            for b, (blocks, i, j) in enumerate(zip(listed, start, stop, strict=True)):
                positions = torch.arange(i, j)
                block_T = torch.tensor(blocks, dtype=torch.int64)[positions // P - i // P]
                rows.append(((block_T * G + heads_G1) * P + positions % P).flatten())
                new.append(((b * G + heads_G1) * T + torch.arange(j - i)).flatten())
            self._planned = (start, stop, T, listed), (torch.cat(rows), torch.cat(new))
        return self._planned[1]

    def _select(self, rows: list[int]) -> None:
        if any(lengths != self._sizes for lengths in self._lengths):
            raise ValueError("rows cannot be reordered in the middle of a step: layers differ")
        allocator, old = self.pool.allocator, self.tables
        allocator.check(old)
        self.tables = [
            allocator.fork(old[row]) if row in rows[:i] else old[row] for i, row in enumerate(rows)
        ]
        for row in set(range(len(old))) - set(rows):
            allocator.free(old[row])
        self._sizes = [table.num_tokens for table in self.tables]

    def _forget(self, held: list[list[int]]) -> None:
        for table, kept in zip(self.tables, self._lengths[0], strict=True):
            if kept < table.num_tokens:
                self.pool.truncate(table, kept)
        self._sizes = [table.num_tokens for table in self.tables]

    def _check_tables(self) -> None:
        """Raise for tables that were freed, or changed by anything but this cache."""
        sizes = [table.num_tokens for table in self.tables]
        if sizes != self._sizes:
            self.pool.allocator.check(self.tables)
            raise ValueError(
                f"the tables held {self._sizes} tokens and hold {sizes}: they were changed from "
                "outside this cache"
            )
