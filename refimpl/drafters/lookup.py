"""Prompt lookup: the text so far, searched for what followed the same words before."""

import operator
from collections.abc import Sequence

from refimpl.drafters.protocol import Choose, Draft


class PromptLookup:
    """Proposes what followed the last few tokens when they stood in the row before.

    The last ``max_ngram`` tokens are looked for first, then fewer, down to ``min_ngram``. Where
    they stood more than once, the latest place with enough tokens behind it wins, else the
    earliest. It costs no pass of any model, and its choice is certain, so its law is one-hot. A
    proposal ends with the first of ``stop_tokens``. github.com/apoorvumang/prompt-lookup-decoding.
    """

    vocab_size = None

    def __init__(
        self, *, max_ngram: int = 3, min_ngram: int = 1, stop_tokens: Sequence[int] = ()
    ) -> None:
        for name, value in (("max_ngram", max_ngram), ("min_ngram", min_ngram)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if min_ngram > max_ngram:
            raise ValueError(f"min_ngram is {min_ngram}, above max_ngram = {max_ngram}")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self.stop_tokens = frozenset(operator.index(token) for token in stop_tokens)

    def start(self, batch_size: int, max_tokens: int) -> None:
        """Nothing to forget: everything is in the rows."""

    def propose(
        self, rows: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[Draft]:
        """Tokens copied from each row itself; none where its end never stood there before."""
        drafts = []
        for row, count in zip(rows, counts, strict=True):
            tokens = self.lookup(row, count)
            drafts.append(Draft(tokens, [None] * len(tokens)))
        return drafts

    def lookup(self, row: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that followed the end of ``row`` earlier in it."""
        tokens = list(row)
        if count < 1:
            return []
        for size in range(min(self.max_ngram, len(tokens) - 1), self.min_ngram - 1, -1):
            found = _following(tokens, size, count)
            if found:
                stops = [i for i, token in enumerate(found) if token in self.stop_tokens]
                return found[: stops[0] + 1] if stops else found
        return []


def _following(tokens: list[int], size: int, count: int) -> list[int]:
    """What stands behind an earlier place of the last ``size`` tokens."""
    end, last = tokens[-size:], tokens[-1]
    found: list[int] = []
    # ``stop`` is where the place ends; the end of the row itself is not an earlier place.
    for stop in range(len(tokens) - 1, size - 1, -1):
        if tokens[stop - 1] == last and tokens[stop - size : stop] == end:
            found = tokens[stop : stop + count]
            if len(found) == count:
                break
    return found
