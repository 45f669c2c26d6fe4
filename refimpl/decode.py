"""Decoding loops: one token at a time, with and without a cache."""

import operator
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from refimpl.cache import ContiguousCache, KVCache
from refimpl.cache.protocol import integers
from refimpl.model import Decoder
from refimpl.sampling import greedy

Tokens = Tensor | Sequence[int] | Sequence[Sequence[int]]
OnToken = Callable[[int, int], None]


class SamplerLike(Protocol):
    """Anything that turns logits ``[B, V]`` into tokens ``[B]``."""

    def __call__(self, logits_BV: Tensor, generator: torch.Generator | None) -> Tensor: ...


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
    batch = _Batch(model, tokens, max_new_tokens, stop_tokens, on_token)
    while batch.running:
        rows = batch.rows
        padded_BT, lengths_B = _pad(rows)
        logits_BTV = model(padded_BT, lengths_B=_if_ragged(lengths_B))
        batch.accept(_sample(_last(logits_BTV, lengths_B), sampler, generator))
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

    ``tokens`` is one prompt (a list or 1-D tensor; the result is a list of ids) or several (a list
    of lists or a 2-D tensor; one list each). A row ends with the first of ``stop_tokens``, which is
    part of the result, or after ``max_new_tokens``. ``sampler`` None is greedy. ``on_token(row,
    token)`` is called as each token is known. ``cache`` may hold a context already: the prompt
    continues it. It is left holding everything but each row's last new token;
    with ``max_new_tokens=0`` nothing runs and it stays as it was.

    Raises ``ValueError`` for an empty prompt, an id outside the vocabulary, a negative
    ``max_new_tokens``, or more tokens than the context or the cache can hold: before any work.
    """
    batch = _Batch(model, tokens, max_new_tokens, stop_tokens, on_token)
    if cache is None:
        cache = ContiguousCache(
            model.arch,
            batch_size=len(batch.rows),
            max_tokens=max(len(row) for row in batch.rows) + max(max_new_tokens - 1, 0),
            dtype=model.dtype,
        )
    batch.check_room(cache)
    held = cache.num_tokens
    padded_BT, lengths_B = _pad(batch.rows)
    try:
        while batch.running:
            logits_BTV = model(padded_BT, cache=cache, lengths_B=_if_ragged(lengths_B))
            batch.accept(_sample(_last(logits_BTV, lengths_B), sampler, generator))
            # A finished row feeds a token that is neither stored nor read: it gets no slot.
            padded_BT = torch.tensor([[row[-1]] for row in batch.rows])
            lengths_B = [int(row in batch.running) for row in range(len(batch.rows))]
    except BaseException:
        cache.truncate(held)
        raise
    return batch.result()


class _Batch:
    """The rows being generated, and which of them still run."""

    def __init__(
        self,
        model: Decoder,
        tokens: Tokens,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
        on_token: OnToken | None,
    ) -> None:
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
            raise ValueError(f"max_new_tokens must be an integer, got {max_new_tokens!r}")
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be at least 0, got {max_new_tokens}")
        self.single, self.rows = _prompts(tokens, model.arch.vocab_size)
        self.prompt_lengths = [len(row) for row in self.rows]
        self.model, self.max_new_tokens, self.on_token = model, max_new_tokens, on_token
        self.stop_tokens = frozenset(integers("stop_tokens", stop_tokens))
        self.running = set(range(len(self.rows))) if max_new_tokens else set()
        self._check_total(max(self.prompt_lengths), model.arch.max_context, "the context")

    def check_room(self, cache: KVCache) -> None:
        """Raises before any work if the cache or the context would overflow on the way."""
        held = cache.num_tokens.tolist()
        if len(held) != len(self.rows):
            raise ValueError(f"the cache has {len(held)} rows, there are {len(self.rows)} prompts")
        uneven = len(set(self.prompt_lengths)) > 1 or bool(self.stop_tokens)
        if len(held) > 1 and uneven and not getattr(cache, "ragged", True):
            raise ValueError(
                f"{type(cache).__name__} keeps rows of one length: prompts of lengths "
                f"{self.prompt_lengths} with stop tokens {sorted(self.stop_tokens)} may end apart"
            )
        longest = max(h + p for h, p in zip(held, self.prompt_lengths, strict=True))
        self._check_total(longest, self.model.arch.max_context, "the context")
        limit = getattr(cache, "max_tokens", None)
        if limit is not None:
            self._check_total(longest, limit, "the cache")

    def _check_total(self, longest: int, limit: int, what: str) -> None:
        # The last new token is returned but never fed back, so it needs no slot.
        needed = longest + max(self.max_new_tokens - 1, 0)
        if needed > limit:
            raise ValueError(
                f"a prompt of {longest} tokens and {self.max_new_tokens} new ones need {needed} "
                f"slots, {what} has {limit}"
            )

    def accept(self, tokens_B: Tensor) -> None:
        """Append the running rows' new tokens, and retire the rows that are done."""
        for row, token in enumerate(tokens_B.tolist()):
            if row not in self.running:
                continue
            if not 0 <= token < self.model.arch.vocab_size:
                raise ValueError(
                    f"the sampler returned {token}, the vocabulary has {self.model.arch.vocab_size}"
                )
            self.rows[row].append(token)
            if self.on_token is not None:
                self.on_token(row, token)
            new = len(self.rows[row]) - self.prompt_lengths[row]
            if token in self.stop_tokens or new == self.max_new_tokens:
                self.running.discard(row)

    def result(self) -> list[int] | list[list[int]]:
        new = [row[n:] for row, n in zip(self.rows, self.prompt_lengths, strict=True)]
        return new[0] if self.single else new


def _prompts(tokens: Tokens, vocab_size: int) -> tuple[bool, list[list[int]]]:
    """Whether one prompt was given, and the prompts as lists."""
    if isinstance(tokens, Tensor):
        whole = not tokens.is_floating_point() and tokens.dtype != torch.bool
        if not whole or tokens.dim() not in (1, 2):
            raise ValueError(
                f"tokens must be a 1-D or 2-D tensor of integers, got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        tokens = tokens.tolist()
    try:
        single = not len(tokens) or not isinstance(tokens[0], Tensor | Sequence)
        rows = [
            [operator.index(token) for token in row] for row in ([tokens] if single else tokens)
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"token ids must be integers, got {tokens!r}") from error
    for index, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {index} is empty: decoding needs at least one token")
        for token in row:
            if not 0 <= token < vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {vocab_size}")
    return single, rows


def _pad(rows: list[list[int]]) -> tuple[Tensor, list[int]]:
    """Rows padded on the right ``[B, T]``, and their lengths."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), lengths


def _if_ragged(lengths_B: list[int]) -> list[int] | None:
    """The lengths where they differ; None where every row is full, which needs no mask."""
    return lengths_B if min(lengths_B) < max(lengths_B) else None


def _last(logits_BTV: Tensor, lengths_B: list[int]) -> Tensor:
    """Logits ``[B, V]`` behind each row's last real token."""
    last = (torch.tensor(lengths_B) - 1).clamp(min=0)
    return logits_BTV[torch.arange(len(lengths_B)), last]


def _sample(
    logits_BV: Tensor, sampler: SamplerLike | None, generator: torch.Generator | None
) -> Tensor:
    return greedy(logits_BV) if sampler is None else sampler(logits_BV, generator)
