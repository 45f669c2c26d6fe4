"""Exercises of chapter 02: what a cache holds, writing and reading it, and the loop around it.

The wrong answers include the six broken caches of the chapter: a mask aligned top left, positions
restarted, pads attended, heads and positions swapped, a stale tail, and the wrong group order.
"""

from labkit.tasks.ch02.append import APPEND_AND_READ
from labkit.tasks.ch02.batch import DECODE_MASK, DECODE_POSITIONS
from labkit.tasks.ch02.counting import CACHE_BYTES, CACHED_COST
from labkit.tasks.ch02.loop import CACHED_GENERATE
from labkit.tasks.ch02.step import CACHED_ATTENTION
from labkit.tasks.ch02.truncate import TRUNCATE

TASKS = (
    CACHE_BYTES,
    CACHED_COST,
    APPEND_AND_READ,
    DECODE_MASK,
    DECODE_POSITIONS,
    CACHED_ATTENTION,
    TRUNCATE,
    CACHED_GENERATE,
)
