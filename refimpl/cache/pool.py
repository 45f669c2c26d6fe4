"""The memory of blocks: keys and values of every layer, written and gathered by block number."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.blocks import BlockAllocator, BlockCopy, BlockTable, num_blocks_for
from refimpl.cache.protocol import check_uniform


class BlockPool:
    """The memory of ``num_blocks`` blocks in every layer, and who holds which of them.

    One block id stands for the same place in all layers, so a sequence has one table. A layer's
    pool is ``k_LNGPD[layer]``, ``[N, G, P, D]``: what one block holds of one layer lies together,
    head after head. A block is filled with NaN when it is taken: what a sequence did not write
    itself, it cannot read by mistake without notice. Blocks that are free keep what they held.
    """

    def __init__(
        self,
        arch: Architecture,
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        order: Sequence[int] | None = None,
    ) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"keys and values are stored as floating point, got {dtype}")
        check_uniform(arch)
        self.arch, self.dtype = arch, dtype
        self.allocator = BlockAllocator(num_blocks, block_size, order=order)
        shape = (arch.num_layers, num_blocks, arch.num_kv_heads, block_size, arch.head_dim)
        self.k_LNGPD = torch.full(shape, torch.nan, dtype=dtype)
        self.v_LNGPD = torch.full(shape, torch.nan, dtype=dtype)
        self.bytes_gathered = 0  # copied out of the pool by reads
        self.blocks_copied = 0  # copied on write, each in all layers
        self._asked: list[list[int]] = []  # what was gathered last, and where that is
        self._rows = torch.empty(0, dtype=torch.int64)

    @property
    def block_size(self) -> int:
        return self.allocator.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, free ones included."""
        return self.k_LNGPD.nbytes + self.v_LNGPD.nbytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: keys and values of ``block_size`` tokens in all layers."""
        return self.num_bytes // self.allocator.num_blocks

    def append(self, tables: Sequence[BlockTable], num_new: Sequence[int]) -> None:
        """Room for new tokens in several sequences, shared last blocks copied first.

        Raises ``OutOfBlocks``, and has then changed nothing.
        """
        listed = [len(table.blocks) for table in tables]
        copies = self.allocator.append_all(tables, num_new)
        taken = [b for table, n in zip(tables, listed, strict=True) for b in table.blocks[n:]]
        taken += [copy.destination for copy in copies]
        if taken:
            for pool in (self.k_LNGPD, self.v_LNGPD):
                pool[:, taken] = torch.nan
        for copy in copies:
            self._copy(copy)

    def truncate(self, table: BlockTable, num_tokens: int) -> None:
        """Keep a sequence's first tokens; what only it could read of the others becomes NaN."""
        self.allocator.truncate(table, num_tokens)
        if table.blocks and self.allocator.num_references(table.blocks[-1]) == 1:
            for pool in (self.k_LNGPD, self.v_LNGPD):
                pool[:, table.blocks[-1], :, table.num_filled :] = torch.nan

    def write(self, layer: int, rows_R: Tensor, k_RD: Tensor, v_RD: Tensor) -> None:
        """Store vectors at ``rows_R`` of the layer's pool, seen as rows of ``D`` numbers."""
        for pool_LNGPD, x_RD in ((self.k_LNGPD, k_RD), (self.v_LNGPD, v_RD)):
            pool_LNGPD[layer].view(-1, self.arch.head_dim).index_copy_(0, rows_R, x_RD)

    def gather(
        self, layer: int, tables: Sequence[BlockTable], lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Copies ``[B, G, S, D]`` of the first tokens of each sequence, ``S`` the most of them.

        Only blocks that hold some of these tokens are read: where a row is shorter there is
        nothing to look up in its table, and the result is NaN.
        """
        num_blocks = [num_blocks_for(n, self.block_size) for n in lengths]
        blocks = [table.blocks[:n] for table, n in zip(tables, num_blocks, strict=True)]
        longest = max(lengths)
        self.bytes_gathered += sum(num_blocks) * self.bytes_per_block // self.arch.num_layers
        gather = self._gather_equal if len(set(num_blocks)) == 1 else self._gather_ragged
        k, v = (gather(pool[layer], blocks) for pool in (self.k_LNGPD, self.v_LNGPD))
        return k[:, :, :longest], v[:, :, :longest]

    def _gather_equal(self, pool_NGPD: Tensor, blocks: list[list[int]]) -> Tensor:
        """Tables of one length, in one pass.

        The pool is seen as rows of ``P * D`` numbers, row ``block * G + head``. Asking for them
        head by head puts the slots of a head behind each other; ``pool_NGPD[table_BN]`` would
        gather ``[B, N, G, P, D]`` and have to copy all of it once more to bring P next to N.
        """
        N, G, P, D = pool_NGPD.shape
        if blocks != self._asked:  # a step asks the same of every layer
            table_BN = torch.tensor(blocks, dtype=torch.int64).reshape(len(blocks), -1)
            rows_BGN = table_BN[:, None] * G + torch.arange(G)[:, None]
            self._asked, self._rows = blocks, rows_BGN.flatten()
        gathered = pool_NGPD.view(N * G, P * D).index_select(0, self._rows)
        return gathered.view(len(blocks), G, len(blocks[0]) * P, D)

    def _gather_ragged(self, pool_NGPD: Tensor, blocks: list[list[int]]) -> Tensor:
        """Tables of different length, row by row, each copied once more into the padded result."""
        N, G, P, D = pool_NGPD.shape
        longest = max(len(row) for row in blocks)
        out_BGSD = pool_NGPD.new_full((len(blocks), G, longest * P, D), torch.nan)
        for out_GSD, row in zip(out_BGSD, blocks, strict=True):
            out_GSD[:, : len(row) * P] = self._gather_equal(pool_NGPD, [row])[0]
        return out_BGSD

    def _copy(self, copy: BlockCopy) -> None:
        filled = slice(copy.num_slots)
        for pool in (self.k_LNGPD, self.v_LNGPD):
            pool[:, copy.destination, :, filled] = pool[:, copy.source, :, filled]
        self.blocks_copied += 1
