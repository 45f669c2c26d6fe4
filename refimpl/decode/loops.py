"""Decoding loops: one token at a time, with and without a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.cache import KVCache
from refimpl.decode.batch import Batch, OnToken, SamplerLike
from refimpl.decode.rows import Tokens, if_ragged, logits_behind, pad
from refimpl.model import Decoder
from refimpl.sampling import greedy


@torch.no_grad()
def generate_naive(
    model: Decoder,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    sampler: SamplerLike | None = None,
    generator: torch.Generator | None = None,
    stop_tokens: Sequence[int] = (),
    on_token: OnToken | None = None,
) -> list[int] | list[list[int]]:
    """What :func:`generate` returns, found by running the whole sequence again for each token."""
    batch = Batch(model, tokens, max_new_tokens, stop_tokens, on_token)
    while batch.running:
        padded_BT, lengths_B = pad(batch.rows)
        logits_BTV = model(padded_BT, lengths_B=if_ragged(lengths_B))
        batch.accept(_sample(logits_behind(logits_BTV, lengths_B), sampler, generator))
    return batch.result()


@torch.no_grad()
def generate(
    model: Decoder,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    sampler: SamplerLike | None = None,
    generator: torch.Generator | None = None,
    stop_tokens: Sequence[int] = (),
    cache: KVCache | None = None,
    on_token: OnToken | None = None,
) -> list[int] | list[list[int]]:
    """New token ids: prefill the prompt once, then feed back one token a step.

    ``tokens`` is one prompt (a list, 1-D tensor or array; the result is a list of ids) or several
    (a list of lists, 2-D tensor or array; one list each). A row ends with the first of
    ``stop_tokens``, which is part of the result, or after ``max_new_tokens``. ``sampler`` None is
    greedy. ``on_token(row, token)`` is called as each token is known. ``cache`` may hold a context
    already: the prompt continues it. It is left holding everything but each row's last new token;
    with ``max_new_tokens=0`` nothing runs and it stays as it was.

    Raises ``ValueError`` for an empty prompt, an id outside the vocabulary, a negative
    ``max_new_tokens``, or more tokens than the context or the cache can hold: before any work.
    """
    batch = Batch(model, tokens, max_new_tokens, stop_tokens, on_token)
    cache = batch.new_cache() if cache is None else cache
    batch.check_room(cache)
    held = cache.num_tokens
    try:
        if batch.running:
            feed_back(batch, batch.prefill(cache), cache, sampler, generator)
    except BaseException:
        cache.truncate(held)
        raise
    return batch.result()


def feed_back(
    batch: Batch,
    logits_BV: Tensor,
    cache: KVCache,
    sampler: SamplerLike | None,
    generator: torch.Generator | None,
) -> None:
    """Choose each row's next token from its logits and feed it back, until every row has ended."""
    batch.accept(_sample(logits_BV, sampler, generator))
    while batch.running:
        tokens_B1 = torch.tensor([[row[-1]] for row in batch.rows])
        # A finished row feeds a token that is neither stored nor read: it gets no slot.
        lengths_B = [int(row in batch.running) for row in range(len(batch.rows))]
        logits_BTV = batch.model(tokens_B1, cache=cache, lengths_B=if_ragged(lengths_B))
        batch.accept(_sample(logits_behind(logits_BTV, lengths_B), sampler, generator))


def _sample(
    logits_BV: Tensor, sampler: SamplerLike | None, generator: torch.Generator | None
) -> Tensor:
    return greedy(logits_BV) if sampler is None else sampler(logits_BV, generator)
