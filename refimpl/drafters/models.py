"""A cheaper decoder as drafter, with a cache of its own that is kept in step with the target."""

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from refimpl.cache import ContiguousCache, KVCache
from refimpl.drafters.protocol import Choose, Draft
from refimpl.model import Decoder, quantise

MakeCache = Callable[[int, int], KVCache]
MANY = 8  # tokens missing from a cache that are worth another decoder's pass


class ModelDrafter:
    """Proposes by running ``model`` one token at a time.

    It remembers which tokens stand behind its cache. Before it drafts, it takes back those that the
    target did not keep and feeds those that it has not seen, in one pass: a rejected draft leaves
    the cache, and the last draft of a block that was accepted whole, which was drawn but never fed,
    enters it together with the target's own token. ``make_cache(batch_size, max_tokens)`` gives the
    cache; a contiguous one by default. ``prefill`` is a decoder of the same shape that fills the
    cache where more than a few tokens are missing.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        prefill: Decoder | None = None,
        make_cache: MakeCache | None = None,
    ) -> None:
        if prefill is not None and prefill.arch != model.arch:
            raise ValueError(
                f"prefill must have the shape of the draft {model.arch.name}: {prefill.arch}"
            )
        self.model, self.prefill, self.vocab_size = model, prefill, model.arch.vocab_size
        self._make_cache = make_cache or self._contiguous
        self.cache: KVCache | None = None
        self._held: list[list[int]] = []

    def start(self, batch_size: int, max_tokens: int) -> None:
        """An empty cache; ``ValueError`` if the draft model's context is shorter than the text."""
        if max_tokens > self.model.arch.max_context:
            raise ValueError(
                f"the text may grow to {max_tokens} tokens, the context of the draft "
                f"{self.model.arch.name} is {self.model.arch.max_context}"
            )
        self.cache = self._make_cache(batch_size, max_tokens)
        self._held = [[] for _ in range(batch_size)]

    @torch.no_grad()
    def propose(
        self, rows: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[Draft]:
        """Up to ``counts`` tokens a row, one pass for each, the first over all that is missing."""
        if self.cache is None or len(rows) != len(self._held):
            raise ValueError(f"start the drafter for {len(rows)} rows before it proposes")
        drafts = [Draft([], []) for _ in rows]
        self._take_back(rows)
        for step in range(max(counts)):
            texts = [[*row, *draft.tokens] for row, draft in zip(rows, drafts, strict=True)]
            active = [step < count for count in counts]
            logits_BV = self._feed(texts, active)
            for index, text in enumerate(texts):
                if active[index]:
                    token, probs_V = choose(index, logits_BV[index], text)
                    drafts[index].tokens.append(token)
                    drafts[index].probs.append(probs_V)
        return drafts

    def _take_back(self, rows: Sequence[Sequence[int]]) -> None:
        """Forget what the rows do not begin with, and always their last token: it is to be fed."""
        kept = [_common(held, row[:-1]) for held, row in zip(self._held, rows, strict=True)]
        self._held = [held[:n] for held, n in zip(self._held, kept, strict=True)]
        self.cache.truncate(kept)

    def _feed(self, texts: list[list[int]], active: list[bool]) -> Tensor:
        """Logits ``[B, V]`` behind each active row, once everything before them is stored."""
        new = [
            text[len(held) :] if on else []
            for text, held, on in zip(texts, self._held, active, strict=True)
        ]
        if self.prefill is not None and max(map(len, new)) > MANY:
            self._run(self.prefill, [tokens[:-1] for tokens in new])
            new = [tokens[-1:] for tokens in new]
        return self._run(self.model, new)

    def _run(self, model: Decoder, new: list[list[int]]) -> Tensor:
        """Logits ``[B, V]`` behind each row's new tokens, which the cache then holds."""
        lengths = [len(tokens) for tokens in new]
        longest = max(lengths)
        padded_BT = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in new])
        ragged = min(lengths) < longest
        logits_BTV = model(padded_BT, cache=self.cache, lengths_B=lengths if ragged else None)
        for held, tokens in zip(self._held, new, strict=True):
            held += tokens
        last_B = (torch.tensor(lengths) - 1).clamp(min=0)
        return logits_BTV[torch.arange(len(new)), last_B]

    def _contiguous(self, batch_size: int, max_tokens: int) -> KVCache:
        return ContiguousCache(
            self.model.arch, batch_size=batch_size, max_tokens=max_tokens, dtype=self.model.dtype
        )


def quantised_self(model: Decoder, bits: int = 4, *, group: int = 32) -> ModelDrafter:
    """The same model with its matrices in 4 or 8 bits: nearly always right, at fewer bytes.

    The kernels for codes multiply row by row and lose to the dense ones from a dozen rows on, so
    the prompt enters the draft's cache through ``model`` itself.
    """
    return ModelDrafter(quantise(model, bits, group=group), prefill=model)


def skipped_layers(model: Decoder, layers: Iterable[int]) -> ModelDrafter:
    """The same model without some of its layers: as exact as any drafter, and rarely worth it."""
    return ModelDrafter(without_layers(model, layers))


def without_layers(model: Decoder, layers: Iterable[int]) -> Decoder:
    """A decoder that leaves out ``layers`` of ``model`` and shares all other weights with it.

    Raises ``ValueError`` for a layer that is not there, or if none would be left.
    """
    skipped = {operator.index(layer) for layer in layers}
    count = model.arch.num_layers
    if not skipped <= set(range(count)) or len(skipped) == count:
        raise ValueError(
            f"of layers 0 to {count - 1} some may be left out, not all: got {sorted(skipped)}"
        )
    shorter = copy.copy(model)
    shorter._modules = dict(model._modules)
    kept = [layer for index, layer in enumerate(model.layers) if index not in skipped]
    shorter.layers = nn.ModuleList(kept)
    shorter.arch = dataclasses.replace(model.arch, num_layers=len(kept))
    return shorter


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common from their start."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
