"""Exercises of chapter 11: tokens a pass, one draft, a block of them, the caches, the gain, a loop.

The wrong answers include the three that the chapter breaks: everything accepted, a replacement
from the target, best tokens compared while sampling.
"""

from labkit.tasks.ch11.acceptance import ACCEPT_OR_RESAMPLE
from labkit.tasks.ch11.block import VERIFY_BLOCK
from labkit.tasks.ch11.caches import TOKENS_TO_KEEP
from labkit.tasks.ch11.gain import SPECULATION_GAIN
from labkit.tasks.ch11.greedy import GREEDY_ACCEPT
from labkit.tasks.ch11.lookup import PROMPT_LOOKUP
from labkit.tasks.ch11.loop import SPECULATE_GREEDILY
from labkit.tasks.ch11.outcome import OUTPUT_LAW
from labkit.tasks.ch11.residual import RESIDUAL
from labkit.tasks.ch11.tokens import EXPECTED_TOKENS

TASKS = (
    EXPECTED_TOKENS,
    GREEDY_ACCEPT,
    RESIDUAL,
    ACCEPT_OR_RESAMPLE,
    OUTPUT_LAW,
    VERIFY_BLOCK,
    TOKENS_TO_KEEP,
    SPECULATION_GAIN,
    PROMPT_LOOKUP,
    SPECULATE_GREEDILY,
)
