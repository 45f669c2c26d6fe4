"""The rows being generated, as blocks of drafts make them grow."""

from collections.abc import Sequence

from refimpl.decode import OnToken, Tokens
from refimpl.decode.batch import Batch, check_count
from refimpl.drafters import Draft, Drafter
from refimpl.model import Decoder


class Rows(Batch):
    """The rows so far, how many drafts each may get, and the check of what a drafter proposes."""

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
        super().__init__(model, tokens, max_new_tokens, stop_tokens, on_token)
        self.gamma, self.vocab_size = check_count("gamma", gamma, 0), model.arch.vocab_size
        if drafter.vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"the vocabularies differ: {self.vocab_size} in the target, "
                f"{drafter.vocab_size} in the draft"
            )
        self.finished = ["length"] * len(self.rows)

    def _apart(self, lengths: list[int]) -> str:
        return f"the {len(lengths)} rows of a speculative batch gain different numbers of tokens"

    def draft_counts(self) -> list[int]:
        """Drafts to ask for: every pass gives one token more than drafts, and none beyond the end.

        A row that has finished asks for none.
        """
        left = [
            self.max_new_tokens - (len(text) - n)
            for text, n in zip(self.rows, self.prompt_lengths, strict=True)
        ]
        return [
            min(self.gamma, new - 1) if row in self.running else 0 for row, new in enumerate(left)
        ]

    def checked(self, drafts: list[Draft], counts: list[int]) -> list[Draft]:
        """The drafts, if they are what was asked for."""
        if len(drafts) != len(counts):
            raise ValueError(f"{len(drafts)} drafts for {len(counts)} rows")
        for draft, count in zip(drafts, counts, strict=True):
            if not isinstance(draft, Draft):
                raise ValueError(f"a drafter gives a Draft for each row, got {draft!r}")
            if len(draft.tokens) > count:
                raise ValueError(f"{len(draft.tokens)} drafts where at most {count} were asked for")
            for token in draft.tokens:
                if not 0 <= token < self.vocab_size:
                    raise ValueError(
                        f"the drafter proposed {token}, the vocabulary has {self.vocab_size}"
                    )
            for probs in draft.probs:
                if probs is not None and probs.shape != (self.vocab_size,):
                    raise ValueError(
                        f"a draft's law is {tuple(probs.shape)}, the vocabulary has "
                        f"{self.vocab_size}"
                    )
        return drafts

    def extend(self, row: int, tokens: list[int]) -> int:
        """Give out a row's new tokens up to the first stop token; returns how many."""
        for emitted, token in enumerate(tokens, start=1):
            self.rows[row].append(token)
            if self.on_token is not None:
                self.on_token(row, token)
            stopped = token in self.stop_tokens
            if stopped or len(self.rows[row]) - self.prompt_lengths[row] == self.max_new_tokens:
                self.finished[row] = "stop" if stopped else "length"
                self.running.discard(row)
                return emitted
        return len(tokens)

    def stored(self, row: int) -> int:
        """Tokens of a row that its cache is to hold between rounds: all but the last."""
        return len(self.rows[row]) - 1
