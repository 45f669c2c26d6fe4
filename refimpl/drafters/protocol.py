"""The protocol that every drafter follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# From a row, its draft logits [V] and the tokens before it: a token, and the law it was drawn from
# [V]; None instead of the law where the choice is certain.
Choose = Callable[[int, Tensor, Sequence[int]], tuple[int, Tensor | None]]


@dataclass(frozen=True)
class Draft:
    """Tokens proposed for one row, and for each the law it was drawn from: ``None`` is certain."""

    tokens: list[int]
    probs: list[Tensor | None]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probs):
            raise ValueError(f"{len(self.tokens)} draft tokens, {len(self.probs)} laws")


class Drafter(Protocol):
    """What speculative decoding needs of whatever proposes tokens.

    A drafter may be wrong, slow or empty-handed: what comes out does not depend on it. It must name
    the law that each token was really drawn from, and nothing else is asked of it.
    """

    vocab_size: int | None
    """Ids that it may propose; None where it only repeats what it was given."""

    def start(self, batch_size: int, max_tokens: int) -> None:
        """Forget everything; rows will hold at most ``max_tokens`` tokens, drafts included."""

    def propose(
        self, rows: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[Draft]:
        """For each row, up to ``counts[row]`` tokens that may follow the tokens known so far."""


def one_hot(token: int, vocab_size: int) -> Tensor:
    """The law ``[V]`` of a choice that is certain."""
    probs_V = torch.zeros(vocab_size, dtype=torch.float64)
    probs_V[token] = 1
    return probs_V
