"""The table of one sequence: logical block to physical block, and what an append asks for."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class OutOfBlocks(ValueError):
    """Fewer blocks are free than an operation needs. It has changed nothing: try again later."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"out of blocks: {needed} are needed and {free} are free")
        self.needed, self.free = needed, free


class BlockCopy(NamedTuple):
    """Copy-on-write: the first slots of one block, to be copied before anything is written."""

    source: int
    destination: int
    num_slots: int


@dataclass(eq=False)
class BlockTable:
    """Where the tokens of one sequence lie; only the allocator changes it.

    Position ``p`` is in slot ``p % block_size`` of ``blocks[p // block_size - num_dropped]``:
    head blocks that were dropped are no longer listed, and later positions keep their numbers.
    """

    block_size: int
    blocks: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_dropped: int = 0
    # How often each block is listed: once, but for one that serves two places of a window.
    entries: Counter[int] = field(default_factory=Counter, repr=False)

    @property
    def num_filled(self) -> int:
        """Tokens in the last block: 1 to ``block_size``, or 0 where no block is listed."""
        return (self.num_tokens - 1) % self.block_size + 1 if self.blocks else 0

    def locate(self, position: int) -> tuple[int, int]:
        """The block and the slot that hold a position."""
        first = self.num_dropped * self.block_size
        if not first <= position < self.num_tokens:
            raise ValueError(
                f"position {position} is not held: positions {first} to {self.num_tokens - 1} are"
            )
        logical, slot = divmod(position, self.block_size)
        return self.blocks[logical - self.num_dropped], slot
