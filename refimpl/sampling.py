"""From logits to a token: temperature, filters, and one uniform number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token ``[B]``; among equals the one with the lowest id."""
    # torch.argmax does not promise which of equal entries it returns; nonzero lists them in order,
    # row by row, and the first of each row is wanted.
    rows, ids = (logits_BV == _best(logits_BV)).nonzero(as_tuple=True)
    return ids[torch.searchsorted(rows, torch.arange(len(logits_BV), device=rows.device))]


def _best(logits_BV: Tensor) -> Tensor:
    """The best logit of each row, ``[B, 1]``; ``ValueError`` unless it is finite."""
    best = logits_BV.amax(-1, keepdim=True)  # NaN where a row holds one
    if best.isnan().any():
        raise ValueError("logits hold NaN: there is nothing to choose from")
    if not best.isfinite().all():
        raise ValueError("a row's best logit must be finite: there is nothing to choose from")
    return best


def _check_top_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise ValueError(f"top_k must be 0 (off) or a positive integer, got {k!r}")


def apply_temperature(logits_BV: Tensor, temperature: float) -> Tensor:
    """``logits / temperature``, shifted so that the best is 0: nothing overflows as T nears 0."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive here (0 is greedy), got {temperature}")
    # Out of the dtype's range it would become 0 or infinite: 0 / 0 and -inf / inf are NaN.
    limits = torch.finfo(logits_BV.dtype)
    divisor = min(max(temperature, limits.tiny), limits.max)
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / divisor


def filter_top_k(logits_BV: Tensor, k: int) -> Tensor:
    """Logits with all but the ``k`` best at minus infinity; ties with the k-th stay. 0 = off."""
    _check_top_k(k)
    if k == 0 or k >= logits_BV.shape[-1]:
        return logits_BV
    kth = logits_BV.topk(k, dim=-1).values[..., -1:]
    return logits_BV.masked_fill(logits_BV < kth, -math.inf)


def filter_top_p(logits_BV: Tensor, p: float) -> Tensor:
    """Logits outside the nucleus at minus infinity. arXiv:1904.09751.

    Going down from the likeliest, a token stays while the mass before it is below ``p``: the token
    that crosses ``p`` stays, and so does the best token at ``p = 0``. Equal tokens go by id.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"top_p must lie in 0 to 1, got {p}")
    if p == 1:
        return logits_BV
    order = logits_BV.argsort(dim=-1, descending=True, stable=True)
    probs = logits_BV.gather(-1, order).softmax(-1, dtype=torch.float64)
    dropped = probs.cumsum(-1) - probs >= p
    dropped[..., 0] = False
    return logits_BV.masked_fill(dropped.gather(-1, order.argsort(-1)), -math.inf)


def filter_min_p(logits_BV: Tensor, p: float) -> Tensor:
    """Logits of tokens less likely than ``p`` times the best at minus infinity. arXiv:2407.01082"""
    if not 0 <= p <= 1:
        raise ValueError(f"min_p must lie in 0 to 1, got {p}")
    probs = logits_BV.softmax(-1, dtype=torch.float64)
    return logits_BV.masked_fill(probs < p * probs.amax(-1, keepdim=True), -math.inf)


def draw(probs_BV: Tensor, generator: torch.Generator | None) -> Tensor:
    """One token ``[B]`` per row by inverse transform: one uniform number a row, in row order.

    The token is the first whose cumulative mass exceeds ``u`` times the total, so a token of
    probability 0 is never drawn. Rows need not be normalised; a row without mass, a negative entry
    or a NaN is a ``ValueError``.
    """
    mass = probs_BV.double()
    total = mass.sum(-1, keepdim=True)
    if not ((mass >= 0).all() and (total > 0).all() and total.isfinite().all()):
        raise ValueError("probabilities must be finite, at least 0, and not all 0 in a row")
    u = torch.rand(total.shape, generator=generator, dtype=torch.float64)
    cumulative = mass.cumsum(-1)
    # The running sum may end an ulp beside the total; its own last entry is the bound to use.
    end = cumulative[..., -1:]
    # The product stays below it, save for the smallest of all numbers, where it can round up.
    below = torch.minimum(u * end, torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(cumulative, below, right=True).squeeze(-1)


@dataclass(frozen=True)
class Penalties:
    """Logits of tokens that are in the history already, lowered. It keeps no counts of its own.

    ``repetition`` divides a positive logit by it and multiplies a negative one (arXiv:1909.05858);
    then ``frequency`` is subtracted once for each time the token is there, and ``presence`` once.
    1, 0 and 0 are off. What belongs to the history is for the caller to say.
    """

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.repetition < math.inf:
            raise ValueError(f"repetition must be positive and finite, got {self.repetition}")
        for name, value in (("frequency", self.frequency), ("presence", self.presence)):
            if not -math.inf < value < math.inf:
                raise ValueError(f"{name} must be finite, got {value}")

    def __call__(self, logits_V: Tensor, history: Sequence[int]) -> Tensor:
        """New logits ``[V]``; ``logits_V`` and ``history`` are left alone.

        An id outside the vocabulary is a ``ValueError``.
        """
        tokens, V = torch.tensor(list(history), dtype=torch.long), logits_V.shape[-1]
        if (outside := tokens[(tokens < 0) | (tokens >= V)]).numel():
            raise ValueError(f"the history holds {int(outside[0])}, the vocabulary has {V}")
        counts_V = torch.bincount(tokens, minlength=V).to(logits_V.dtype)
        r = self.repetition
        lowered = torch.where(logits_V > 0, logits_V / r, logits_V * r)
        repeated = torch.where(counts_V > 0, lowered, logits_V)
        return repeated - self.frequency * counts_V - self.presence * counts_V.clamp(max=1)


@dataclass(frozen=True)
class Sampler:
    """Temperature, then top-k, then top-p, then min-p, then a draw: transformers' order.

    ``temperature=0``, ``top_k=1`` and ``top_p=0`` each mean greedy, exactly, and use no random
    number. ``top_k=0``, ``top_p=1`` and ``min_p=0`` are off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        _check_top_k(self.top_k)
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in 0 to 1, got {value}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """The distribution drawn from, ``[B, V]`` in float64, each row summing to 1."""
        _best(logits_BV)  # or there is nothing to choose from
        if self.is_greedy:
            one_hot = torch.nn.functional.one_hot(greedy(logits_BV), logits_BV.shape[-1])
            return one_hot.double()
        # Dividing in 16 bits would round the logits once more.
        wide = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
        kept = apply_temperature(wide, self.temperature)
        kept = filter_min_p(filter_top_p(filter_top_k(kept, self.top_k), self.top_p), self.min_p)
        return kept.softmax(-1, dtype=torch.float64)

    def __call__(self, logits_BV: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The next token of each row, ``[B]``."""
        if self.is_greedy:
            return greedy(logits_BV)
        return draw(self.probabilities(logits_BV), generator)
