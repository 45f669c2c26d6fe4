"""The decoding loop: draft, verify in one pass, take back what was rejected."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from refimpl.cache import KVCache
from refimpl.decode import OnToken, Tokens
from refimpl.decode.rows import if_ragged, pad
from refimpl.drafters import Draft, Drafter, one_hot
from refimpl.model import Decoder
from refimpl.sampling import Sampler, draw, greedy
from refimpl.speculative.prompts import Rows
from refimpl.speculative.rejection import verify
from refimpl.speculative.result import Round, Speculation

# Logits [V] and the tokens before them to logits [V]: penalties, bans. It may keep no state.
Process = Callable[[Tensor, Sequence[int]], Tensor]
Generators = torch.Generator | None | Sequence[torch.Generator | None]


@torch.no_grad()
def generate_speculative(
    model: Decoder,
    drafter: Drafter,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    gamma: int = 4,
    sampler: Sampler | None = None,
    process: Process | None = None,
    generator: Generators = None,
    stop_tokens: Sequence[int] = (),
    cache: KVCache | None = None,
    on_token: OnToken | None = None,
) -> Speculation:
    """New tokens that follow the law of plain decoding with ``model``, in fewer of its passes.

    1. ``drafter`` proposes up to ``gamma`` tokens a row.
    2. One pass of ``model`` over them gives its laws before each and behind the last.
    3. ``process`` (logits and the tokens before them, drafts included) and ``sampler`` turn logits
       of target and draft alike into laws; None is greedy: a draft stands if it is the best token.
    4. The drafts are tested (:func:`verify`); a row gains those that stand and one token more.
    5. The cache is cut back to everything but each row's last token.

    ``tokens``, ``max_new_tokens``, ``stop_tokens``, ``cache`` and ``on_token`` mean what they mean
    to :func:`refimpl.decode.generate`: a stop token inside a block ends the row there, and drafts
    are never asked for beyond ``max_new_tokens``. ``generator`` is one for all rows, which draw in
    turn, or one a row, which then gives what the row alone would have. A drafter does not see what
    a given ``cache`` held before; that costs acceptance, nothing else.

    Raises ``ValueError`` before any work where ``generate`` does, for a draft of another
    vocabulary, or for rows that share one length in their cache but may gain different numbers.
    """
    rows = Rows(model, drafter, tokens, max_new_tokens, gamma, stop_tokens, on_token)
    cache = rows.new_cache() if cache is None else cache
    rows.check_room(cache)
    held = cache.num_tokens.tolist()
    choice = _Choice(sampler, process, _one_each(generator, len(rows.rows)))
    passes, rounds = 0, [[] for _ in rows.rows]
    try:
        if rows.running:
            drafter.start(len(rows.rows), rows.max_length)
        while rows.running:
            counts = rows.draft_counts()
            drafts = rows.checked(drafter.propose(rows.rows, counts, choice.draft), counts)
            logits = _target_pass(model, cache, rows, drafts, held)
            passes += 1
            for row in sorted(rows.running):
                new, accepted = choice.verify(row, logits[row], rows.rows[row], drafts[row])
                emitted = rows.extend(row, new)
                rounds[row].append(Round(len(drafts[row].tokens), accepted, emitted))
            cache.truncate([h + rows.stored(row) for row, h in enumerate(held)])
    except BaseException:
        cache.truncate(held)
        raise
    return Speculation(rows.result(), rows.finished, rounds, passes)


class _Choice:
    """How logits become tokens: the same way for the draft and for the target."""

    def __init__(
        self,
        sampler: Sampler | None,
        process: Process | None,
        generators: list[torch.Generator | None],
    ) -> None:
        if sampler is not None and not isinstance(sampler, Sampler):
            raise ValueError(
                f"sampler must be a Sampler or None, since its law is needed, got {sampler!r}"
            )
        self.sampler = None if sampler is None or sampler.is_greedy else sampler
        self.process, self.generators = process, generators

    def draft(
        self, row: int, logits_V: Tensor, history: Sequence[int]
    ) -> tuple[int, Tensor | None]:
        """One draft token and the law it was drawn from."""
        logits_V = self._processed(logits_V, history)
        if self.sampler is None:
            return int(greedy(logits_V[None])), None
        probs_1V = self.sampler.probabilities(logits_V[None])
        return int(draw(probs_1V, self.generators[row])), probs_1V[0]

    def verify(
        self, row: int, logits_TV: Tensor, text: list[int], draft: Draft
    ) -> tuple[list[int], int]:
        """The row's new tokens, and how many of them are drafts.

        Nothing is looked at behind a draft that cannot stand: plain decoding never gets there, and
        what ``process`` says of such a text, or that it leaves no token there, is no concern.
        """
        if self.sampler is None:
            return self._agreeing(logits_TV, text, draft.tokens)
        laws = []
        for i, logits_V in enumerate(logits_TV):
            logits_V = self._processed(logits_V, [*text, *draft.tokens[:i]])
            laws.append(self.sampler.probabilities(logits_V[None])[0])
            if i < len(draft.tokens) and laws[i][draft.tokens[i]] == 0:
                laws.append(laws[i])  # a block needs a law behind its last draft; none is drawn
                break
        target_probs, count = torch.stack(laws), len(laws) - 1
        V = target_probs.shape[-1]
        drafted = draft.tokens[:count]
        proposed = [
            one_hot(token, V) if probs is None else probs
            for token, probs in zip(drafted, draft.probs[:count], strict=True)
        ]
        draft_probs = torch.stack(proposed) if proposed else target_probs[:0]
        tokens, accepted = verify(
            target_probs,
            draft_probs,
            torch.tensor(drafted, dtype=torch.long),
            self.generators[row],
        )
        return tokens[: int(accepted) + 1].tolist(), int(accepted)

    def _agreeing(
        self, logits_TV: Tensor, text: list[int], drafts: list[int]
    ) -> tuple[list[int], int]:
        """Greedy: what :func:`verify` gives for one-hot laws, without a random number."""
        best: list[int] = []
        for logits_V in logits_TV:
            logits_V = self._processed(logits_V, [*text, *best])
            best.append(int(greedy(logits_V[None])))
            if best != drafts[: len(best)]:
                break
        return best, len(best) - 1

    def _processed(self, logits_V: Tensor, history: Sequence[int]) -> Tensor:
        return logits_V if self.process is None else self.process(logits_V, history)


def _target_pass(
    model: Decoder, cache: KVCache, rows: Rows, drafts: list[Draft], held: list[int]
) -> list[Tensor]:
    """For each row the logits ``[γ + 1, V]`` before each draft and behind the last.

    A pass feeds what the cache lacks of a row, its whole prompt at first, and the drafts. A row
    that has finished feeds a token that is neither stored nor read.
    """
    stored = [int(n) - h for n, h in zip(cache.num_tokens, held, strict=True)]
    new = [
        [*text[n:], *draft.tokens] if row in rows.running else []
        for row, (text, n, draft) in enumerate(zip(rows.rows, stored, drafts, strict=True))
    ]
    padded_BT, lengths = pad(new)
    logits_BTV = model(padded_BT, cache=cache, lengths_B=if_ragged(lengths))
    return [
        logits_BTV[row, max(0, length - len(draft.tokens) - 1) : length]
        for row, (length, draft) in enumerate(zip(lengths, drafts, strict=True))
    ]


def _one_each(generator: Generators, num_rows: int) -> list[torch.Generator | None]:
    if generator is None or isinstance(generator, torch.Generator):
        return [generator] * num_rows
    generators = list(generator)
    if len(generators) != num_rows:
        raise ValueError(f"{len(generators)} generators for {num_rows} rows: give one, or one each")
    for one in generators:
        if one is not None and not isinstance(one, torch.Generator):
            raise ValueError(f"generator must hold torch.Generator or None, got {one!r}")
    return generators
