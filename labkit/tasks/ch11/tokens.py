"""Exercise of chapter 11 on how many tokens a pass of the target gives."""

import math
from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import mean_tokens

# ── expected_tokens ───────────────────────────────────────────────────────────────────────────


def _run_expected(function: Callable[..., Any], alpha, gamma) -> Any:
    """0 / 0 is NaN in NumPy and torch and an error in Python: one mistake, one result."""
    try:
        return function(alpha, gamma)
    except ZeroDivisionError:
        return math.nan


def _expected_examples(*blocks: tuple[float, int]) -> list[Example]:
    """The mean over every way the tests of the block can end, in fractions."""
    return [Example(args, float(mean_tokens(*args))) for args in blocks]


def _expected_plain(alpha, gamma):
    """1 + α + α² + … + α^γ: token i + 1 comes out where the first i drafts are accepted."""
    return sum(alpha**i for i in range(gamma + 1))


def _expected_closed(alpha, gamma):
    if alpha == 1:
        return gamma + 1
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def _expected_no_bonus(alpha, gamma):
    return math.fsum(alpha**i for i in range(gamma))


def _expected_drafts_alone(alpha, gamma):
    return math.fsum(alpha**i for i in range(1, gamma + 1))


def _expected_independent(alpha, gamma):
    return 1.0 + alpha * gamma


def _expected_product(alpha, gamma):
    return alpha * gamma


def _expected_one_more(alpha, gamma):
    return math.fsum(alpha**i for i in range(gamma + 2))


def _expected_all_or_nothing(alpha, gamma):
    return 1 + gamma * alpha**gamma


def _expected_rejection_rate(alpha, gamma):
    return math.fsum((1 - alpha) ** i for i in range(gamma + 1))


def _expected_zero_over_zero(alpha, gamma):
    return (1 - alpha ** (gamma + 1)) / (1 - alpha) if alpha != 1 else math.nan


EXPECTED_TOKENS = Task(
    name="expected_tokens",
    chapter=11,
    title="Tokens from one pass",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "The expected number of tokens that one pass of the target gives over gamma drafts, each "
        "accepted with probability alpha if all before it were: the accepted drafts and one more, "
        "which replaces the first rejected draft or follows the last."
    ),
    signature="expected_tokens(alpha: float, gamma: int) -> float",
    properties=(
        Property(
            "drafts that are never accepted still leave one token",
            lambda: _expected_examples((0.0, 1), (0.0, 5)),
        ),
        Property(
            "one draft: 1 + α",
            lambda: _expected_examples((0.25, 1), (0.7, 1)),
        ),
        Property(
            "a draft counts only where all before it were accepted",
            lambda: _expected_examples((0.5, 2), (0.5, 3), (0.9, 4)),
        ),
        Property(
            "α = 0.8 and γ = 4; γ = 7 at the acceptance of a small draft",
            lambda: _expected_examples((0.8, 4), (0.62, 7)),
        ),
        Property(
            "without drafts a pass gives one token",
            lambda: _expected_examples((0.5, 0)),
            edge=True,
        ),
        Property(
            "drafts that are always accepted: γ + 1",
            lambda: _expected_examples((1.0, 1), (1.0, 4)),
            edge=True,
        ),
    ),
    hints=(
        "What is the chance that the second token of the round is written at all? And the third?",
        "Token i + 1 is there if the first i drafts were accepted, which has chance α^i; the first "
        "is always there.",
        "Sum α^i for i from 0 to γ. In closed form (1 − α^(γ+1)) / (1 − α), unless α is 1.",
    ),
    mutants=(
        Mutant(
            "no token behind the last draft",
            "the sum ends at α^(γ−1): where all drafts are accepted the pass has also computed the "
            "law behind the last one, and a token is drawn from it",
            _expected_no_bonus,
        ),
        Mutant(
            "accepted drafts alone",
            "each round ends with one more token, from the target itself: even a round without an "
            "accepted draft gives one",
            _expected_drafts_alone,
        ),
        Mutant(
            "drafts counted behind a rejection",
            "α · γ counts every draft that would pass its test; those behind the first rejected "
            "one continue a text that was not written, and are thrown away",
            _expected_independent,
            also=(_expected_product,),
        ),
        Mutant(
            "one draft too many",
            "the sum ends at α^(γ+1), as if γ + 1 tokens had been drafted; it promises more than "
            "γ + 1 tokens at high α, which no pass can give",
            _expected_one_more,
        ),
        Mutant(
            "all or nothing",
            "a rejected draft ends the block, it does not take the accepted ones before it away",
            _expected_all_or_nothing,
        ),
        Mutant(
            "rejection rate for α",
            "α is the chance that a draft is accepted; the better the draft, the fewer tokens this "
            "promises",
            _expected_rejection_rate,
        ),
        Mutant(
            "0 / 0 at α = 1",
            "the closed form divides by 1 − α: a draft that is always accepted makes it 0 / 0, an "
            "error in Python and NaN in NumPy and torch; the sum itself is γ + 1 there",
            _expected_zero_over_zero,
        ),
    ),
    answers=(_expected_plain, _expected_closed),
    drive=_run_expected,
)
