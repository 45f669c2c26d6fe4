"""Several samples from one prompt: prefilled once, then forked."""

from collections.abc import Sequence

import torch

from refimpl.cache import KVCache
from refimpl.decode.batch import Batch, OnToken, SamplerLike, check_count
from refimpl.decode.loops import feed_back
from refimpl.decode.rows import Tokens
from refimpl.model import Decoder


@torch.no_grad()
def generate_samples(
    model: Decoder,
    tokens: Tokens,
    *,
    num_samples: int,
    max_new_tokens: int,
    sampler: SamplerLike | None = None,
    generator: torch.Generator | None = None,
    stop_tokens: Sequence[int] = (),
    cache: KVCache | None = None,
    on_token: OnToken | None = None,
) -> list[list[int]]:
    """New token ids of ``num_samples`` independent continuations of one prompt.

    The prompt goes through the model once, in one row; the row is then forked, so a cache that
    forks by reference stores the prompt once too. Each sample has the law of a
    :func:`~refimpl.decode.generate` of its own; the arguments are the same. ``cache`` has one row
    and may hold a context already. It is left with a row for each sample, holding everything but
    the sample's last new token; with ``max_new_tokens=0`` nothing runs and it stays as it was.

    Raises ``ValueError`` for what :func:`~refimpl.decode.generate` refuses, for several prompts
    and for ``num_samples`` below 1: before any work. If anything fails on the way, the cache is
    as it was.
    """
    check_count("num_samples", num_samples, 1)
    batch = Batch(model, tokens, max_new_tokens, stop_tokens, on_token)
    if not batch.single:
        raise ValueError(f"samples are drawn from one prompt, got a list of {len(batch.rows)}")
    cache = batch.new_cache() if cache is None else cache
    batch.check_room(cache, num_samples)
    if not batch.running:
        return [[] for _ in range(num_samples)]
    (held,), rows = cache.num_tokens.tolist(), 1
    try:
        logits_1V = batch.prefill(cache)
        cache.reorder([0] * num_samples)
        rows = num_samples
        batch.fork(num_samples)
        feed_back(batch, logits_1V.repeat(num_samples, 1), cache, sampler, generator)
    except BaseException:
        cache.truncate([held] * rows)
        cache.reorder([0])
        raise
    return batch.result()
