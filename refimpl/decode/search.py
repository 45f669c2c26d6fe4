"""The rule of beam search: which continuations run on, which end, when it is over.

Every choice, that among equal scores included, is the one that transformers 5 makes: the same
float32 scores go through ``torch.topk`` in the same order. ``K`` is the axis of candidates: beams
continued by one token.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from refimpl.decode.batch import check_count

# What a score loses where its candidate must not be chosen. It is transformers' own number, for
# torch.topk orders equal scores by where the others lie.
BURIED = -1.0e9
# The longest length to the power of the penalty stays below 10 to this, well inside float32.
MAX_DIGITS = 30


@dataclass(frozen=True)
class Rules:
    """How wide to search and how to compare; see :func:`refimpl.decode.beam_search`."""

    num_beams: int
    max_new_tokens: int
    length_penalty: float
    early_stopping: bool | str
    num_return_sequences: int
    stop_tokens: frozenset[int]

    def check(self, vocab_size: int) -> None:
        """Raise ``ValueError`` for what no search over ``vocab_size`` tokens can follow."""
        check_count("num_beams", self.num_beams, 1)
        check_count("max_new_tokens", self.max_new_tokens, 1)
        wanted = check_count("num_return_sequences", self.num_return_sequences, 1)
        if wanted > self.num_beams:
            raise ValueError(
                f"num_return_sequences is {wanted}, more than the {self.num_beams} beams"
            )
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(
                f"early_stopping must be True, False or 'never', got {self.early_stopping!r}"
            )
        self._check_penalty()
        exist = self._sequences(vocab_size)
        if exist < wanted:
            raise ValueError(
                f"num_return_sequences is {wanted}, but only {exist} sequences of up to "
                f"{self.max_new_tokens} new tokens exist: the vocabulary has {vocab_size}, stop "
                f"tokens are {sorted(self.stop_tokens)}"
            )

    def _sequences(self, vocab_size: int) -> int:
        """How many sequences exist, or at least ``num_return_sequences`` if there are more."""
        stops = sum(0 <= token < vocab_size for token in self.stop_tokens)
        ended, running = 0, 1
        for _ in range(self.max_new_tokens - 1):
            ended, running = ended + running * stops, running * (vocab_size - stops)
            if ended + running >= self.num_return_sequences:
                break
        return ended + running * vocab_size

    def _check_penalty(self) -> None:
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float):
            raise ValueError(f"length_penalty must be a number, got {penalty!r}")
        if not -math.inf < penalty < math.inf:
            raise ValueError(f"length_penalty must be finite, got {penalty}")
        digits = math.log10(self.max_new_tokens)
        if digits and abs(penalty) > MAX_DIGITS / digits:
            raise ValueError(
                f"length_penalty must stay within {MAX_DIGITS / digits:.1f} for up to "
                f"{self.max_new_tokens} new tokens, got {penalty}: scores would leave float32"
            )

    def normalised(self, score: Tensor, length: int) -> Tensor:
        """Summed log-probabilities of ``length`` new tokens as sequences are compared."""
        return score / length**self.length_penalty


class Search:
    """One prompt's search: the beams that run, and the best sequences that have ended.

    ``beams`` are the new tokens of each running beam, best first; ``parents`` says which beam of
    the step before each one continues; ``ended`` are the finished sequences, best first.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.beams: list[list[int]] = [[]]
        self.parents = [0]
        self.ended: list[list[int]] = []
        self.ended_scores = torch.zeros(0)
        self.done = False
        self._sums_B = torch.zeros(1)

    def step(self, logits_BV: Tensor) -> None:
        """Continue each beam by every token, from a row of logits for each of ``beams``.

        Logits that are NaN or plus infinity are a ``ValueError``.
        """
        rules, length = self.rules, len(self.beams[0]) + 1
        sums_K, origins, exists_K = self._candidates(logits_BV)
        last = length == rules.max_new_tokens
        ends_K = torch.tensor([last or token in rules.stop_tokens for _, token in origins])
        # A sequence that ends counts only if it is among the num_beams best of all candidates.
        among_best_K = torch.arange(len(origins)) < rules.num_beams
        counts_K = ends_K & exists_K & among_best_K
        self._collect(origins, rules.normalised(sums_K, length), counts_K)
        going = _best(sums_K + BURIED * ends_K, exists_K & ~ends_K, rules.num_beams)
        self.parents = [origins[index][0] for index in going]
        self.beams = [self._continued(origins[index]) for index in going]
        self._sums_B = sums_K[going]
        self.done = self._is_over(length)

    def _candidates(self, logits_BV: Tensor) -> tuple[Tensor, list[tuple[int, int]], Tensor]:
        """The best continuations: their summed log-probabilities, beam and token, and existence.

        Of one beam's continuations no more can end than there are stop tokens, so enough are
        drawn here for ``num_beams`` to go on.
        """
        B, V = logits_BV.shape
        rules = self.rules
        sums_BV = self._sums_B[:, None] + logits_BV.float().log_softmax(-1)
        if sums_BV.isnan().any():
            raise ValueError("logits hold NaN or infinity: there is nothing to choose from")
        # Behind the prompt there is one beam; buried rows stand where others will be.
        sums_BV = F.pad(sums_BV, (0, 0, 0, rules.num_beams - B), value=BURIED)
        drawn = rules.num_beams * min(max(2, 1 + len(rules.stop_tokens)), V)
        sums_K, index_K = sums_BV.flatten().topk(drawn)
        origins = [divmod(index, V) for index in index_K.tolist()]
        return sums_K, origins, sums_K.isfinite() & (index_K < B * V)

    def _continued(self, origin: tuple[int, int]) -> list[int]:
        beam, token = origin
        return [*self.beams[beam], token]

    def _collect(self, origins: list[tuple[int, int]], scores_K: Tensor, counts_K: Tensor) -> None:
        """Keep the best of what had ended before and of the candidates that count."""
        k, held = self.rules.num_beams, len(self.ended)
        real = torch.cat((self.ended_scores, scores_K[counts_K]))
        buried = min([BURIED, *(4 * real).tolist()])  # a negative penalty can reach that far
        blank = torch.full((k - held,), buried)
        scores = torch.cat((self.ended_scores, blank, scores_K + buried * ~counts_K))
        kept = _best(scores, torch.cat((torch.arange(k) < held, counts_K)), k)
        self.ended = [
            self.ended[index] if index < k else self._continued(origins[index - k])
            for index in kept
        ]
        self.ended_scores = scores[kept]

    def _is_over(self, length: int) -> bool:
        """Whether nothing runs on, or nothing that does is expected to beat what has ended."""
        rules = self.rules
        if not self.beams:
            return True
        if len(self.ended) < rules.num_beams:
            return False
        if rules.early_stopping is True:
            return True
        # What the best beam would score if it could keep its sum up to this length.
        reach = length
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            reach = rules.max_new_tokens
        return not bool(rules.normalised(self._sums_B[0], reach) > self.ended_scores[-1])


def _best(scores: Tensor, possible: Tensor, count: int) -> list[int]:
    """Indices of the ``count`` highest scores, best first; then those not possible left out."""
    chosen = scores.topk(min(count, len(scores))).indices.tolist()
    return [index for index in chosen if possible[index]]
