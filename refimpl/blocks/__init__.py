"""Memory for keys and values in blocks of equal size, without tensors: who holds which block.

``table`` lists the blocks of one sequence; ``allocator`` hands them out, shares them and takes them
back; ``layout`` says where a slot lies and what a last block wastes. To compare with: ``buddy`` is
a contiguous allocator, ``policies`` are three ways of reserving memory, and ``replay`` runs one
trace of requests under each.
"""

from refimpl.blocks.allocator import BlockAllocator
from refimpl.blocks.layout import expected_waste, num_blocks_for, slot_offset
from refimpl.blocks.table import BlockCopy, BlockTable, OutOfBlocks

__all__ = [
    "BlockAllocator",
    "BlockCopy",
    "BlockTable",
    "OutOfBlocks",
    "expected_waste",
    "num_blocks_for",
    "slot_offset",
]
