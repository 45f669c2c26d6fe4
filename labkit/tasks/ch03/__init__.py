"""Exercises of chapter 03: sizes with units, what a config says, grouping, averaging, absorption.

Four of them are questions with numbers, three sizes and a length: the answer is text with a unit,
each seed asks another one, and `labkit.answers` tells 7 percent from a factor of 8.
"""

from labkit.tasks.ch03.config import STORED_ELEMENTS
from labkit.tasks.ch03.heads import EXPAND_HEADS, POOL_HEADS
from labkit.tasks.ch03.latent import ATTEND_ABSORBED
from labkit.tasks.ch03.latent_size import LATENT_CACHE
from labkit.tasks.ch03.outgrows import OUTGROWS
from labkit.tasks.ch03.sizes import BATCH_CACHE, TOKEN_BYTES

TASKS = (
    TOKEN_BYTES,
    BATCH_CACHE,
    EXPAND_HEADS,
    OUTGROWS,
    LATENT_CACHE,
    STORED_ELEMENTS,
    POOL_HEADS,
    ATTEND_ABSORBED,
)
