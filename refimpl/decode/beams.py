"""Beam search: the likeliest continuations of a prompt, several at a time, on one cache."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from refimpl.cache import KVCache
from refimpl.decode.batch import Batch
from refimpl.decode.rows import Tokens, if_ragged
from refimpl.decode.search import Rules, Search
from refimpl.model import Decoder


class Beams(NamedTuple):
    """What a search found behind one prompt, best first: new token ids, and their scores."""

    sequences: list[list[int]]
    scores: list[float]


class _Rows:
    """The rows of a cache, and how many of them belong to each prompt, in order."""

    def __init__(self, cache: KVCache, num_prompts: int) -> None:
        self.cache, self.counts = cache, [1] * num_prompts

    def fork(self, parents: list[list[int]]) -> None:
        """Replace each prompt's rows by copies of those named, counted within the prompt."""
        starts = accumulate([0, *self.counts[:-1]])
        self.cache.reorder(
            [start + row for start, own in zip(starts, parents, strict=True) for row in own]
        )
        self.counts = [len(own) for own in parents]

    def one_each(self, lengths_B: list[int]) -> None:
        """Go back to one row for each prompt, of these lengths: all its rows begin alike."""
        self.cache.truncate(
            [length for length, n in zip(lengths_B, self.counts, strict=True) for _ in range(n)]
        )
        self.fork([[0] for _ in self.counts])


@torch.no_grad()
def beam_search(
    model: Decoder,
    tokens: Tokens,
    *,
    num_beams: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    num_return_sequences: int = 1,
    stop_tokens: Sequence[int] = (),
    cache: KVCache | None = None,
) -> Beams | list[Beams]:
    """The ``num_return_sequences`` best continuations that a search with ``num_beams`` finds.

    ``tokens`` is one prompt (the result is one :class:`Beams`) or several, of any lengths (a list
    of them). A sequence ends with the first of ``stop_tokens``, which is part of it, or after
    ``max_new_tokens``. Its score is the sum of its new tokens' log-probabilities, in float32,
    divided by their number to the power of ``length_penalty``.

    A search is over when ``num_beams`` sequences have ended and: with ``early_stopping`` True, at
    once; with False, when the best running beam, at the length it has now, scores no better than
    the worst of them; with ``"never"``, when it would not even at ``max_new_tokens`` (at the
    length it has, if ``length_penalty`` is not positive). These are transformers' definitions,
    and so is the choice among equal scores. Where fewer than ``num_beams`` continuations exist,
    fewer beams run.

    Each prompt goes through the model once, in one row; from then on the cache is reordered to
    the rows that the beams continue, so beams share what the cache shares. ``cache`` has a row
    for each prompt and may hold a context already. Afterwards it holds that and the prompts.

    Raises ``ValueError`` for what :func:`~refimpl.decode.generate` refuses, for ``num_beams``,
    ``num_return_sequences`` or ``max_new_tokens`` below 1, more sequences wanted than beams or
    than exist, and a penalty whose powers leave float32: before any work. If anything fails on
    the way, the cache is as it was.
    """
    batch = Batch(model, tokens, max_new_tokens, stop_tokens)
    rules = Rules(
        num_beams,
        max_new_tokens,
        length_penalty,
        early_stopping,
        num_return_sequences,
        batch.stop_tokens,
    )
    rules.check(model.arch.vocab_size)
    cache = batch.new_cache() if cache is None else cache
    batch.check_room(cache)
    held = cache.num_tokens.tolist()
    rows = _Rows(cache, len(held))
    searches = [Search(rules) for _ in held]
    try:
        _run(batch, rows, searches)
        rows.one_each([h + n for h, n in zip(held, batch.prompt_lengths, strict=True)])
    except BaseException:
        rows.one_each(held)
        raise
    n = num_return_sequences
    found = [Beams(search.ended[:n], search.ended_scores[:n].tolist()) for search in searches]
    return found[0] if batch.single else found


def _run(batch: Batch, rows: _Rows, searches: list[Search]) -> None:
    """Prefill, then step all searches together until the last is over."""
    logits_BV = batch.prefill(rows.cache)
    while True:
        for search, own_BV in zip(searches, logits_BV.split(rows.counts), strict=True):
            if not search.done:
                search.step(own_BV)
        if all(search.done for search in searches):
            return
        # A search that is over keeps one row, for the prompt in it; what that row is fed is
        # neither stored nor read.
        rows.fork([[0] if search.done else search.parents for search in searches])
        fed = [
            row
            for search in searches
            for row in ([(0, 0)] if search.done else [(beam[-1], 1) for beam in search.beams])
        ]
        tokens_B1 = torch.tensor([[token] for token, _ in fed])
        lengths_B = if_ragged([length for _, length in fed])
        logits_BV = batch.model(tokens_B1, cache=rows.cache, lengths_B=lengths_B)[:, 0]
