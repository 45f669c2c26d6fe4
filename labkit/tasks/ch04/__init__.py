"""Exercises of chapter 04: what a step reads, how long it takes at least, what fits.

Six of them are questions with numbers: the answer is text with a unit, each seed asks another one,
and `labkit.answers` puts a wrong factor down to the slip behind it.
"""

from labkit.tasks.ch04.batch import DOUBLING_GAIN, LARGEST_BATCH
from labkit.tasks.ch04.ceiling import LONGEST_COMPUTE_BOUND
from labkit.tasks.ch04.experts import EXPERTS_READ
from labkit.tasks.ch04.narrow import FP8_GAIN
from labkit.tasks.ch04.pool import POOL_TOKENS
from labkit.tasks.ch04.reads import STEP_READ
from labkit.tasks.ch04.roof import RIDGE_BATCH, STEP_TIME

TASKS = (
    STEP_READ,
    STEP_TIME,
    RIDGE_BATCH,
    DOUBLING_GAIN,
    FP8_GAIN,
    POOL_TOKENS,
    EXPERTS_READ,
    LONGEST_COMPUTE_BOUND,
    LARGEST_BATCH,
)
