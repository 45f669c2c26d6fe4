"""Speculative decoding: a drafter proposes, the target verifies a whole block in one pass.

``rejection`` holds the test that keeps the target's law, pure; ``gains`` what it buys in closed
form; ``loop`` generates; ``tree`` verifies several branches in one pass.
"""

from refimpl.speculative.gains import (
    acceptance_needed,
    best_gamma,
    expected_tokens,
    operations,
    speedup,
    tokens_needed,
)
from refimpl.speculative.loop import generate_speculative
from refimpl.speculative.rejection import (
    accept_or_resample,
    accept_probability,
    acceptance,
    residual,
    verify,
)
from refimpl.speculative.result import Round, Speculation
from refimpl.speculative.tree import keep_path, tree_logits, tree_mask, tree_positions

__all__ = [
    "Round",
    "Speculation",
    "accept_or_resample",
    "accept_probability",
    "acceptance",
    "acceptance_needed",
    "best_gamma",
    "expected_tokens",
    "generate_speculative",
    "keep_path",
    "operations",
    "residual",
    "speedup",
    "tokens_needed",
    "tree_logits",
    "tree_mask",
    "tree_positions",
    "verify",
]
