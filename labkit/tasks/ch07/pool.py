"""What the exercises on a pool of blocks share: who holds what, counted over all tables."""

from collections.abc import Sequence

Table = list[int]


def counted(tables: Sequence[Table], num_blocks: int) -> list[int]:
    """How many of the tables name each block: an entry for every block of the pool."""
    return [sum(block in table for table in tables) for block in range(num_blocks)]


def unheld(counts: Sequence[int]) -> list[int]:
    """Blocks that no table names, the highest first: taken from the end, the lowest goes next."""
    return [block for block in reversed(range(len(counts))) if counts[block] == 0]


def dealt(num_tokens: int, block_size: int) -> list[int]:
    """Tokens in each block when they come one by one and a full block is followed by a new one."""
    blocks: list[int] = []
    for _ in range(num_tokens):
        if not blocks or blocks[-1] == block_size:
            blocks.append(0)
        blocks[-1] += 1
    return blocks
