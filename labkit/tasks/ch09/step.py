"""Exercise of chapter 09 on the running softmax: one score at a time, on plain numbers."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task

# ── running_step ──────────────────────────────────────────────────────────────────────────────


def _run_step(function: Callable[..., Any], *args: Any) -> Any:
    """Both results by name. Beyond a float's range Python raises where NumPy and torch go on."""
    try:
        result = function(*args)
    except OverflowError:
        result = math.nan, math.nan
    if result is None:
        return None
    maximum, total = result
    return {"maximum": maximum, "sum": total}


def _state(scores: list[float]) -> tuple[float, float]:
    """The largest score and the sum of exp(score − largest), in 28 decimal digits."""
    readable = [score for score in scores if score > -math.inf]
    if not readable:
        return -math.inf, 0.0
    top = max(readable)
    return top, float(sum((Decimal(score) - Decimal(top)).exp() for score in readable))


def _step_examples(*rows: list[float]) -> list[Example]:
    """All scores of a row but the last are in the state, the last is the new one."""
    examples = []
    for row in rows:
        maximum, total = _state(row)
        examples.append(Example((*_state(row[:-1]), row[-1]), {"maximum": maximum, "sum": total}))
    return examples


def _step_plain(max_so_far, sum_so_far, score):
    """The old sum is measured against the new maximum, then the new weight is added."""
    new_max = max(max_so_far, score)
    if new_max == -math.inf:
        return new_max, 0.0
    factor = math.exp(max_so_far - new_max)
    return new_max, sum_so_far * factor + math.exp(score - new_max)


def _step_by_case(max_so_far, sum_so_far, score):
    if score == -math.inf:
        return max_so_far, sum_so_far
    if score > max_so_far:
        return score, 1 + sum_so_far * math.exp(max_so_far - score)
    return max_so_far, sum_so_far + math.exp(score - max_so_far)


def _exp(x: float) -> float:
    """As NumPy and torch have it: infinity where Python raises."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _step_not_rescaled(m, s, score):
    new = max(m, score)
    return new, s + (_exp(score - new) if score > -math.inf else 0.0)


def _step_inverted(m, s, score):
    new = max(m, score)
    if new == -math.inf:
        return new, 0.0
    return new, (s * _exp(new - m) if s else 0.0) + _exp(score - new)


def _step_last_score(m, s, score):
    if score == -math.inf:
        return m, s
    return score, s * _exp(m - score) + 1.0


def _step_raw(m, s, score):
    return max(m, score), s + _exp(score)


def _step_raw_both(m, s, score):
    return max(m, score), s * _exp(m) + _exp(score)


def _step_by_exponentials(m, s, score):
    new, old = max(m, score), 0.0
    if new == -math.inf:
        return new, 0.0
    old = s * _exp(m) if s else 0.0
    whole = old + _exp(score)
    return new, whole / _exp(new) if 0 < _exp(new) < math.inf else math.nan


def _step_by_exponentials_raising(m, s, score):
    new = max(m, score)
    if new == -math.inf:
        return new, 0.0
    return new, (s * math.exp(m) + math.exp(score)) / (math.exp(new) or math.nan)


def _step_against_old(m, s, score):
    new = max(m, score)
    if new == -math.inf:
        return new, 0.0
    if m == -math.inf:
        return new, 1.0
    return new, s * _exp(m - new) + _exp(score - m)


def _step_adds_one(m, s, score):
    new = max(m, score)
    if new == -math.inf:
        return new, 0.0
    return new, s * _exp(m - new) + (score > -math.inf)


def _step_rescales_all(m, s, score):
    new = max(m, score)
    if new == -math.inf:
        return new, 0.0
    fade = _exp(m - new) if m > -math.inf else 1.0
    return new, (s + _exp(score - new)) * fade


def _step_nan(m, s, score):
    new = max(m, score)
    return new, s * math.exp(m - new) + math.exp(score - new)


RUNNING_STEP = Task(
    name="running_step",
    chapter=9,
    title="One step of the running softmax",
    minutes=4,
    points=2,
    level=1,
    spec=(
        "The running maximum and the running sum of exp(score − maximum), in natural exponentials, "
        "after one more score; before any score they are −inf and 0, and a score of −inf is a key "
        "that may not be read, which adds nothing."
    ),
    signature=(
        "running_step(max_so_far: float, sum_so_far: float, score: float) -> tuple[float, float]"
    ),
    properties=(
        Property("a score below the maximum 0", lambda: _step_examples([0.0, -1.0])),
        Property(
            "a score below another maximum",
            lambda: _step_examples([3.0, 1.0], [0.5, 2.0, -1.5, 1.25]),
        ),
        Property(
            "a new maximum",
            lambda: _step_examples([1.0, 3.0], [-2.0, -0.5, 1.5], [-4.0, -3.0, -3.5, -1.0]),
        ),
        Property("an equal score", lambda: _step_examples([2.0, 2.0], [-1.0, 0.5, 0.5])),
        Property(
            "the first score, large or small",
            lambda: _step_examples([2.0], [-7.5]),
            edge=True,
        ),
        Property(
            "scores in the thousands, either way",
            lambda: _step_examples([1000.0, 1001.0], [-1000.0, -1001.0], [1000.0, -1000.0]),
            edge=True,
        ),
        Property(
            "a key that may not be read, behind others",
            lambda: _step_examples([1.5, 2.0, -math.inf]),
            edge=True,
        ),
        Property(
            "keys that may not be read, before any other",
            lambda: _step_examples([-math.inf], [-math.inf, -math.inf, 1.0]),
            edge=True,
        ),
    ),
    hints=(
        "What does the old sum become when its maximum is replaced by another one?",
        "Every term exp(score − old) becomes exp(score − new): multiply the sum by exp(old − new) "
        "and add exp(score − new).",
        "new = max(old, score); sum · exp(old − new) + exp(score − new), unless new is −inf: then "
        "nothing was read yet, and −inf − (−inf) is NaN.",
    ),
    mutants=(
        Mutant(
            "sum not rescaled",
            "the old sum is still measured against the old maximum: a new, larger one makes every "
            "term of it too large by exp(new − old)",
            _step_not_rescaled,
        ),
        Mutant(
            "factor inverted",
            "the old sum shrinks when the maximum grows: the factor is exp(old − new), never above "
            "1; exp(new − old) makes it larger with every rise, up to overflow",
            _step_inverted,
        ),
        Mutant(
            "maximum replaced by the score",
            "the last score is no maximum: after a smaller one the factor exp(old − score) is "
            "above 1 and can overflow; keep the larger of the two",
            _step_last_score,
        ),
        Mutant(
            "no maximum taken off",
            "the sum is of exp(score − maximum); exp(score) itself leaves float32 above a score of "
            "88 and bf16 has no more range",
            _step_raw,
            also=(_step_raw_both,),
        ),
        Mutant(
            "exponentials of the scores themselves",
            "right on paper: exp(score) is infinite above 88 in float32 and above 709 in float64, "
            "and infinity over infinity is NaN; take the difference first, then exp",
            _step_by_exponentials,
            also=(_step_by_exponentials_raising,),
        ),
        Mutant(
            "new score against the old maximum",
            "the new term is exp(score − new), which is 1 for a new maximum; against the old one "
            "it is above 1, and the two parts of the sum are measured differently",
            _step_against_old,
        ),
        Mutant(
            "every score counts 1",
            "only a new maximum adds exp(0) = 1; a smaller score adds exp(score − maximum)",
            _step_adds_one,
        ),
        Mutant(
            "new term rescaled too",
            "the factor is for what was summed before; the new term is measured against the new "
            "maximum already",
            _step_rescales_all,
        ),
        Mutant(
            "NaN before the first key",
            "while nothing was read the maximum is −inf, and −inf − (−inf) is NaN: it stays in the "
            "row for ever; a row whose first tile is masked meets it",
            _step_nan,
        ),
    ),
    answers=(_step_plain, _step_by_case),
    rtol=1e-9,
    atol=1e-12,
    drive=_run_step,
)
