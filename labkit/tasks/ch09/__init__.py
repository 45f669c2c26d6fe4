"""Exercises of chapter 09: what is avoided, one step, a tile, parts, the schedule, bytes, the pass.

They need no Triton: the functions that a kernel is made of are written in Python and torch, with
the slips that a kernel's author makes.
"""

from labkit.tasks.ch09.gradients import TILE_GRADIENTS
from labkit.tasks.ch09.merging import MERGE_PARTS
from labkit.tasks.ch09.resident import BLOCKS_PER_UNIT
from labkit.tasks.ch09.schedule import KEY_TILES
from labkit.tasks.ch09.score_matrix import SCORE_MATRIX
from labkit.tasks.ch09.step import RUNNING_STEP
from labkit.tasks.ch09.tile import FOLD_TILE
from labkit.tasks.ch09.tiled import TILED_ATTENTION
from labkit.tasks.ch09.traffic import TILE_TRAFFIC

TASKS = (
    SCORE_MATRIX,
    RUNNING_STEP,
    FOLD_TILE,
    MERGE_PARTS,
    KEY_TILES,
    TILE_TRAFFIC,
    BLOCKS_PER_UNIT,
    TILED_ATTENTION,
    TILE_GRADIENTS,
)
