"""What speculation buys, in closed form. Leviathan et al., arXiv:2211.17192, section 3.

``alpha`` is the chance that a draft is accepted, ``gamma`` the drafts in a block, ``cost_ratio``
the time of one draft over the time of one plain step of the target, and ``verify_cost`` the time of
a pass over ``gamma + 1`` tokens over that of a plain step: T(γ + 1) / T(1), 1 where both only read
the weights. Every draft is taken to be accepted independently of the others.
"""

import math
from collections.abc import Callable

VerifyCost = float | Callable[[int], float]
MAX_GAMMA = 20


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens from one pass of the target: ``(1 - α^(γ+1)) / (1 - α)``, from 1 to γ + 1. Eq. 1."""
    _check_alpha(alpha)
    _check_gamma(gamma)
    rest = 1 - alpha
    if rest in (0, 1):  # 0 / 0, and log(0); 1 also for an alpha that 1 - alpha does not show
        return 1.0 if rest else gamma + 1.0
    return -math.expm1((gamma + 1) * math.log1p(-rest)) / rest  # 1 - α^(γ+1) keeps its digits


def speedup(alpha: float, gamma: int, cost_ratio: float, verify_cost: float = 1.0) -> float:
    """Times faster than plain decoding: expected tokens over ``γ·c + verify_cost``.

    With ``verify_cost`` 1 it is Theorem 3.8. γ = 0 is plain decoding where ``verify_cost`` is 1.
    """
    _check_cost("cost_ratio", cost_ratio)
    _check_cost("verify_cost", verify_cost)
    if verify_cost == 0:
        raise ValueError("verify_cost must be above 0: a pass of the target takes time")
    return expected_tokens(alpha, gamma) / (gamma * cost_ratio + verify_cost)


def tokens_needed(times: float, gamma: int, cost_ratio: float, verify_cost: float = 1.0) -> float:
    """Tokens a pass has to give for decoding to be ``times`` faster: :func:`speedup` turned round.

    From a published speed-up this is how many tokens a round gave at least, since whatever else
    took time is not counted.
    """
    if not 0 < times < math.inf:
        raise ValueError(f"times must be above 0 and finite, got {times!r}")
    return times / speedup(0.0, gamma, cost_ratio, verify_cost)  # α = 0 gives one token a pass


def best_gamma(
    alpha: float,
    cost_ratio: float,
    verify_cost: VerifyCost = 1.0,
    *,
    max_gamma: int = MAX_GAMMA,
) -> int:
    """The block length from 0 to ``max_gamma`` with the largest speed-up; the shortest of equals.

    ``verify_cost`` is one number for every γ, or a function of γ. 0 says that no block beats plain
    decoding, whose speed-up is 1 by definition.
    """
    _check_alpha(alpha)
    _check_gamma(max_gamma)
    best, fastest = 0, 1.0
    for gamma in range(1, max_gamma + 1):
        cost = verify_cost(gamma) if callable(verify_cost) else verify_cost
        gain = speedup(alpha, gamma, cost_ratio, cost)
        if gain > fastest * (1 + 1e-12):
            best, fastest = gamma, gain
    return best


def operations(alpha: float, gamma: int, draft_operations: float = 0.0) -> float:
    """Times as many arithmetic operations as plain decoding. Theorem 3.11.

    ``draft_operations`` is what a draft token costs over a target token. Rejected tokens were
    computed for nothing, so this is at least 1, however much faster it is.
    """
    _check_cost("draft_operations", draft_operations)
    return (gamma * draft_operations + gamma + 1) / expected_tokens(alpha, gamma)


def acceptance_needed(
    times: float,
    cost_ratio: float,
    verify_cost: VerifyCost = 1.0,
    *,
    max_gamma: int = MAX_GAMMA,
) -> float | None:
    """The least α at which the best γ makes decoding ``times`` faster; None if none does."""
    if not 1 <= times < math.inf:
        raise ValueError(f"times must be at least 1 and finite, got {times}")

    def reached(alpha: float) -> bool:
        gammas = range(1, max_gamma + 1)
        costs = [verify_cost(g) if callable(verify_cost) else verify_cost for g in gammas]
        gains = [speedup(alpha, g, cost_ratio, c) for g, c in zip(gammas, costs, strict=True)]
        return max([1.0, *gains]) >= times

    _check_gamma(max_gamma)
    low, high = 0.0, 1.0
    if not reached(high):
        return None
    if reached(low):
        return low
    for _ in range(60):  # the gain grows with α
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _check_alpha(alpha: float) -> None:
    if isinstance(alpha, bool) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in 0 to 1, got {alpha!r}")


def _check_gamma(gamma: int) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int) or gamma < 0:
        raise ValueError(f"gamma must be an integer of at least 0, got {gamma!r}")


def _check_cost(name: str, cost: float) -> None:
    if isinstance(cost, bool) or not 0 <= cost < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {cost!r}")
