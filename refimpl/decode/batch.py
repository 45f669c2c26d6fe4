"""What every way of decoding shares: the prompts, the checks before any work, the rows so far."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from refimpl.cache import ContiguousCache, KVCache
from refimpl.cache.protocol import integers
from refimpl.decode.rows import Tokens, if_ragged, logits_behind, pad, read_prompts
from refimpl.model import Decoder

OnToken = Callable[[int, int], None]


class SamplerLike(Protocol):
    """Anything that turns logits ``[B, V]`` into tokens ``[B]``."""

    def __call__(self, logits_BV: Tensor, generator: torch.Generator | None) -> Tensor: ...


class Batch:
    """The rows being generated, and which of them still run."""

    def __init__(
        self,
        model: Decoder,
        tokens: Tokens,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
        on_token: OnToken | None = None,
    ) -> None:
        self.max_new_tokens = check_count("max_new_tokens", max_new_tokens, 0)
        self.single, self.rows = read_prompts(tokens, model.arch.vocab_size)
        self.prompt_lengths = [len(row) for row in self.rows]
        self.model, self.on_token = model, on_token
        self.stop_tokens = frozenset(integers("stop_tokens", stop_tokens))
        self.running = set(range(len(self.rows))) if max_new_tokens else set()
        self._check_total(max(self.prompt_lengths), model.arch.max_context, "the context")

    @property
    def max_length(self) -> int:
        """Slots of the longest row at the end: the last new token is never fed back."""
        return max(self.prompt_lengths) + max(self.max_new_tokens - 1, 0)

    def new_cache(self) -> ContiguousCache:
        """A cache with just the room that these prompts need."""
        return ContiguousCache(
            self.model.arch,
            batch_size=len(self.rows),
            max_tokens=self.max_length,
            dtype=self.model.dtype,
        )

    def check_room(self, cache: KVCache, num_samples: int = 1) -> None:
        """Raises before any work if the cache or the context would overflow on the way.

        With ``num_samples``, each row becomes that many, which may end at different lengths.
        """
        held = cache.num_tokens.tolist()
        if len(held) != len(self.rows):
            raise ValueError(f"the cache has {len(held)} rows, there are {len(self.rows)} prompts")
        lengths = self.prompt_lengths * num_samples
        if (
            len(lengths) > 1
            and not getattr(cache, "ragged", True)
            and (why := self._apart(lengths))
        ):
            raise ValueError(f"{type(cache).__name__} keeps rows of one length: {why}")
        longest = max(h + p for h, p in zip(held, self.prompt_lengths, strict=True))
        self._check_total(longest, self.model.arch.max_context, "the context")
        limit = getattr(cache, "max_tokens", None)
        if limit is not None:
            self._check_total(longest, limit, "the cache")

    def _apart(self, lengths: list[int]) -> str:
        """Why rows of these lengths may not stay equally long; empty where they do."""
        if len(set(lengths)) == 1 and not self.stop_tokens:
            return ""
        stop_tokens = sorted(self.stop_tokens)
        return f"prompts of lengths {lengths} with stop tokens {stop_tokens} may end apart"

    def _check_total(self, longest: int, limit: int, what: str) -> None:
        # The last new token is returned but never fed back, so it needs no slot.
        needed = longest + max(self.max_new_tokens - 1, 0)
        if needed > limit:
            raise ValueError(
                f"a prompt of {longest} tokens and {self.max_new_tokens} new ones need {needed} "
                f"slots, {what} has {limit}"
            )

    def prefill(self, cache: KVCache) -> Tensor:
        """Store every prompt in one pass; the logits ``[B, V]`` behind each."""
        padded_BT, lengths_B = pad(self.rows)
        logits_BTV = self.model(padded_BT, cache=cache, lengths_B=if_ragged(lengths_B))
        return logits_behind(logits_BTV, lengths_B)

    def fork(self, num_samples: int) -> None:
        """Make the one row that many rows, which go on apart."""
        self.rows = [list(self.rows[0]) for _ in range(num_samples)]
        self.prompt_lengths *= num_samples
        self.running, self.single = set(range(num_samples)), False

    def accept(self, tokens_B: Tensor) -> None:
        """Append the running rows' new tokens, and retire the rows that are done."""
        tensor = isinstance(tokens_B, Tensor)
        whole = tensor and not (tokens_B.is_floating_point() or tokens_B.dtype == torch.bool)
        if not whole or tokens_B.shape != (len(self.rows),):
            kind = (
                f"{tokens_B.dtype} of shape {tuple(tokens_B.shape)}" if tensor else repr(tokens_B)
            )
            raise ValueError(
                f"a sampler returns one integer a row, a tensor of shape ({len(self.rows)},), got "
                f"{kind}"
            )
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
        """The new tokens of each row, the prompt left out."""
        new = [row[n:] for row, n in zip(self.rows, self.prompt_lengths, strict=True)]
        return new[0] if self.single else new


def check_count(name: str, value: object, least: int) -> int:
    """``value``, if it is an integer of at least ``least``; else a ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value
