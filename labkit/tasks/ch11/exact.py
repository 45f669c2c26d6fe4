"""What chapter 11's examples are computed with: fractions, every way a round can go, intervals."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

Law = list[Fraction]


def law(text: str) -> Law:
    """Probabilities as fractions: ``"1/4 3/4"``."""
    return [Fraction(x) for x in text.split()]


def tensor(probs: Iterable[Fraction]) -> Tensor:
    """Float32 ``[V]``."""
    return torch.tensor([float(x) for x in probs])


def floats(probs: Iterable[Fraction]) -> list[float]:
    """In float64: what an example expects."""
    return [float(x) for x in probs]


def owner(masses: Sequence[Fraction], uniform: float) -> int:
    """The index whose interval holds ``uniform``, [0, 1) being cut in proportion to ``masses``."""
    point, before = Fraction(uniform) * sum(masses), Fraction(0)
    for index, mass in enumerate(masses):
        if before <= point < before + mass:
            return index
        before += mass
    raise ValueError(f"nobody owns {uniform}")


def beyond(target: Law, draft: Law) -> Law:
    """What the target still lacks once all that both laws share has been given out."""
    return [t - min(t, d) for t, d in zip(target, draft, strict=True)]


def shared_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items both begin with alike."""
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


def mean_tokens(alpha: float, gamma: int) -> Fraction:
    """The mean over all 2^γ ways the tests of a block can end, each weighed by its chance."""
    passes = Fraction(str(alpha))
    total = Fraction(0)
    for tests in product((True, False), repeat=gamma):
        chance = Fraction(1)
        for passed in tests:
            chance *= passes if passed else 1 - passes
        num_accepted = [*tests, False].index(False)
        total += chance * (num_accepted + 1)
    return total


def draw(masses_V: Tensor, uniform: float) -> int:
    """The token that ``uniform`` draws from a law ``[V]``, whatever it sums to."""
    cumulative_V = masses_V.double().cumsum(dim=0)
    return int((cumulative_V <= uniform * cumulative_V[-1]).sum())


def residual(target_V: Tensor, draft_V: Tensor) -> Tensor:
    """The target's excess over the draft, not normalised; the target where there is none."""
    excess_V = (target_V - draft_V).clamp(min=0)
    return excess_V if excess_V.any() else target_V
