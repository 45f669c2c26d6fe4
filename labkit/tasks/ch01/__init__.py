"""Exercises of chapter 01, in the order in which the chapter builds things.

Each section of the modules here holds one task: an oracle that is independent of the reference
implementation, the examples, right answers written in different ways, the wrong answers, and the
task itself.
"""

from labkit.tasks.ch01.layers import ATTEND, CAUSAL_MASK, RMS_NORM, ROTATE
from labkit.tasks.ch01.loop import COST_PER_MILLION_TOKENS, FORWARD_FLOPS, GENERATE, TOKEN_PASSES
from labkit.tasks.ch01.sampling import DRAW, FILTER_TOP_P, NEXT_TOKEN_PROBS

TASKS = (
    TOKEN_PASSES,
    RMS_NORM,
    ROTATE,
    CAUSAL_MASK,
    ATTEND,
    GENERATE,
    FORWARD_FLOPS,
    FILTER_TOP_P,
    DRAW,
    NEXT_TOKEN_PROBS,
    COST_PER_MILLION_TOKENS,
)
