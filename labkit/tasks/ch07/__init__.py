"""Exercises of chapter 07: blocks counted, found, read, taken, shared and given back.

The wrong answers include the four that the chapter breaks: references counted by table entry, a
write into a shared block, a block kept behind a truncation, and the block after a full one.
"""

from labkit.tasks.ch07.addresses import ROW_OFFSET, SLOT_OF
from labkit.tasks.ch07.append import APPEND_SLOT
from labkit.tasks.ch07.beams import REORDER_BEAMS
from labkit.tasks.ch07.counting import BLOCKS_NEEDED
from labkit.tasks.ch07.gather import GATHER_BLOCKS
from labkit.tasks.ch07.release import FREE_TABLE
from labkit.tasks.ch07.rollback import TRUNCATE_TABLE
from labkit.tasks.ch07.savings import PAGING_FREES
from labkit.tasks.ch07.waste import LAST_BLOCK_WASTE

TASKS = (
    BLOCKS_NEEDED,
    SLOT_OF,
    ROW_OFFSET,
    GATHER_BLOCKS,
    PAGING_FREES,
    LAST_BLOCK_WASTE,
    APPEND_SLOT,
    FREE_TABLE,
    TRUNCATE_TABLE,
    REORDER_BEAMS,
)
