"""The rows being generated: what was asked for, what is known, and which still run."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.cache import KVCache
from refimpl.cache.protocol import integers
from refimpl.decode import OnToken, Tokens
from refimpl.drafters import Draft, Drafter
from refimpl.model import Decoder


class Rows:
    """The texts so far, and every check of what goes in and what a drafter proposes."""

    def __init__(
        self,
        model: Decoder,
        drafter: Drafter,
        tokens: Tokens,
        max_new_tokens: int,
        gamma: int,
        stop_tokens: Sequence[int],
        on_token: OnToken | None,
    ) -> None:
        for name, value in (("max_new_tokens", max_new_tokens), ("gamma", gamma)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")
        self.arch, self.vocab_size = model.arch, model.arch.vocab_size
        if drafter.vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"the vocabularies differ: {self.vocab_size} in the target, "
                f"{drafter.vocab_size} in the draft"
            )
        self.single, self.texts = _texts(tokens, self.vocab_size)
        self.prompt_lengths = [len(text) for text in self.texts]
        self.gamma, self.max_new_tokens, self.on_token = gamma, max_new_tokens, on_token
        self.stop_tokens = frozenset(integers("stop_tokens", stop_tokens))
        self.running = set(range(len(self.texts))) if max_new_tokens else set()
        self.finished = ["length"] * len(self.texts)
        self._check_total(max(self.prompt_lengths), self.arch.max_context, "the context")

    def check_room(self, cache: KVCache) -> None:
        """Raises before any work if the cache or the context would overflow on the way."""
        held = cache.num_tokens.tolist()
        if len(held) != len(self.texts):
            raise ValueError(f"the cache has {len(held)} rows, there are {len(self.texts)} prompts")
        if len(held) > 1 and not getattr(cache, "ragged", True):
            raise ValueError(
                f"{type(cache).__name__} keeps rows of one length: the {len(held)} rows of a "
                "speculative batch gain different numbers of tokens"
            )
        longest = max(h + n for h, n in zip(held, self.prompt_lengths, strict=True))
        self._check_total(longest, self.arch.max_context, "the context")
        limit = getattr(cache, "max_tokens", None)
        if limit is not None:
            self._check_total(longest, limit, "the cache")

    def _check_total(self, longest: int, limit: int, what: str) -> None:
        # Drafts stay within what may still be given out, so the last token needs no slot.
        needed = longest + max(self.max_new_tokens - 1, 0)
        if needed > limit:
            raise ValueError(
                f"a prompt of {longest} tokens and {self.max_new_tokens} new ones need {needed} "
                f"slots, {what} has {limit}"
            )

    def draft_counts(self) -> list[int]:
        """Drafts to ask for: every pass gives one token more than drafts, and none beyond the end.

        A row that has finished asks for none.
        """
        left = [
            self.max_new_tokens - (len(text) - n)
            for text, n in zip(self.texts, self.prompt_lengths, strict=True)
        ]
        return [
            min(self.gamma, new - 1) if row in self.running else 0 for row, new in enumerate(left)
        ]

    def checked(self, drafts: list[Draft], counts: list[int]) -> list[Draft]:
        """The drafts, if they are what was asked for."""
        if len(drafts) != len(counts):
            raise ValueError(f"{len(drafts)} drafts for {len(counts)} rows")
        for draft, count in zip(drafts, counts, strict=True):
            if len(draft.tokens) > count:
                raise ValueError(f"{len(draft.tokens)} drafts where at most {count} were asked for")
            for token in draft.tokens:
                if not 0 <= token < self.vocab_size:
                    raise ValueError(
                        f"the drafter proposed {token}, the vocabulary has {self.vocab_size}"
                    )
        return drafts

    def extend(self, row: int, tokens: list[int]) -> int:
        """Give out a row's new tokens up to the first stop token; returns how many."""
        for emitted, token in enumerate(tokens, start=1):
            self.texts[row].append(token)
            if self.on_token is not None:
                self.on_token(row, token)
            stopped = token in self.stop_tokens
            if stopped or len(self.texts[row]) - self.prompt_lengths[row] == self.max_new_tokens:
                self.finished[row] = "stop" if stopped else "length"
                self.running.discard(row)
                return emitted
        return len(tokens)

    def stored(self, row: int) -> int:
        """Tokens of a row that its cache is to hold between rounds: all but the last."""
        return len(self.texts[row]) - 1

    def result(self) -> list[int] | list[list[int]]:
        """The new tokens, as one list for one prompt."""
        new = [text[n:] for text, n in zip(self.texts, self.prompt_lengths, strict=True)]
        return new[0] if self.single else new


def _texts(tokens: Tokens, vocab_size: int) -> tuple[bool, list[list[int]]]:
    """Whether one prompt was given, and the prompts as lists that are our own."""
    if isinstance(tokens, Tensor):
        if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.dim() not in (1, 2):
            raise ValueError(
                f"tokens must be a 1-D or 2-D tensor of integers, got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        tokens = tokens.tolist()
    try:
        single = not len(tokens) or not isinstance(tokens[0], Tensor | Sequence)
        texts = [
            [operator.index(token) for token in row] for row in ([tokens] if single else tokens)
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"token ids must be integers, got {tokens!r}") from error
    for index, text in enumerate(texts):
        if not text:
            raise ValueError(f"prompt {index} is empty: decoding needs at least one token")
        for token in text:
            if not 0 <= token < vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {vocab_size}")
    return single, texts
