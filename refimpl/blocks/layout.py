"""Where a slot lies in a pool of blocks, and what a last, partly filled block leaves empty."""

import operator

from refimpl.architecture.checks import count


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that ``num_tokens`` tokens fill or begin: ``ceil(num_tokens / block_size)``."""
    return -(-count("num_tokens", num_tokens, least=0) // count("block_size", block_size))


def slot_offset(
    block_id: int, slot: int, *, block_size: int, num_kv_heads: int, head_dim: int, head: int = 0
) -> int:
    """Numbers that lie before one head's vector of one slot in a pool ``[N, G, P, D]``.

    The result is a Python integer, which has no largest value. In 32 bits it wraps as soon as a
    pool holds 2^31 numbers: 131,072 blocks of 16 slots, 8 heads and head dim 128 are enough, and
    block and slot alone look harmless. A kernel has to widen the block id before it multiplies.

    Raises ``ValueError`` for a slot or head outside the block, and for a negative block id: the
    padding of a table, -1, is never an address.
    """
    for name, value in (("block_id", block_id), ("slot", slot), ("head", head)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"{name} must be an integer, got {value!r}")
    block_id, slot, head = (operator.index(value) for value in (block_id, slot, head))
    sizes = {"block_size": block_size, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    P, G, D = (count(name, size) for name, size in sizes.items())
    if block_id < 0:
        raise ValueError(f"block {block_id} has no address: blocks are numbered from 0")
    for name, value, size in (("slot", slot, P), ("head", head, G)):
        if not 0 <= value < size:
            raise ValueError(f"{name} {value} is outside 0 to {size - 1}")
    return ((block_id * G + head) * P + slot) * D


def expected_waste(block_size: int) -> float:
    """Mean number of empty slots in a sequence's last block: ``(block_size - 1) / 2``.

    Assumes that the last block is equally likely to hold 1, 2, ... ``block_size`` tokens, which
    lengths spread over many blocks come close to. A sequence never wastes ``block_size`` slots.
    """
    return (count("block_size", block_size) - 1) / 2
