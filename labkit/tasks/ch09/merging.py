"""Exercise of chapter 09 on parts of the keys: outputs put together by their log-sum-exp."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch09.exact import attention, single
from labkit.tasks.inputs import double, normal

# ── merge_parts ───────────────────────────────────────────────────────────────────────────────


def _run_merge(function: Callable[..., Any], *args: Any) -> Any:
    """Both results by name."""
    result = function(*args)
    if result is None:
        return None
    out, lse = result
    return {"output": out, "lse": lse}


def _merge_example(
    T: int,
    D: int,
    sizes: tuple[int, ...],
    seed: int,
    *,
    shift: float = 0.0,
    hidden: tuple[tuple[int, int, int], ...] = (),
    atol: float | None = None,
) -> Example:
    """Attention over all keys at once, beside attention over parts of ``sizes`` keys."""
    S = sum(sizes)
    scores_TS = 2 * double(normal(seed, T, S)) + shift
    v_SD = double(normal(seed + 1, S, D))
    for row, first, end in hidden:
        scores_TS[row, first:end] = -np.inf
    cuts = np.cumsum(sizes)[:-1]
    parts = [
        attention(scores, v)
        for scores, v in zip(np.split(scores_TS, cuts, 1), np.split(v_SD, cuts), strict=True)
    ]
    outs, lses = (list(single(*arrays)) for arrays in zip(*parts, strict=True))
    out_TD, lse_T = attention(scores_TS, v_SD)
    shown = "\n".join(
        f"{name}[{i}] = {render(x)}"
        for name, arrays in (("outs", outs), ("lses", lses))
        for i, x in enumerate(arrays)
    )
    return Example((outs, lses), {"output": out_TD, "lse": lse_T}, shown=shown, atol=atol)


def _merge_plain(outs, lses):
    """Each part weighs exp(lse), measured against the largest."""
    lse_PT, out_PTD = torch.stack(lses), torch.stack(outs)
    top_T = lse_PT.amax(dim=0)
    base_T = top_T.masked_fill(top_T == -math.inf, 0.0)
    weight_PT = (lse_PT - base_T).exp()
    sum_T = weight_PT.sum(dim=0)
    divisor_T = sum_T.masked_fill(sum_T == 0, 1.0)
    out_TD = (weight_PT[..., None] * out_PTD).sum(dim=0) / divisor_T[:, None]
    return out_TD, top_T + divisor_T.log()


def _merge_one_by_one(outs, lses):
    out_TD, lse_T = torch.zeros_like(outs[0]), torch.full_like(lses[0], -math.inf)
    for part_TD, part_T in zip(outs, lses, strict=True):
        both_T = torch.logaddexp(lse_T, part_T)
        base_T = torch.where(both_T.isinf(), 0.0, both_T)
        old_T, new_T = (lse_T - base_T).exp(), (part_T - base_T).exp()
        out_TD, lse_T = out_TD * old_T[:, None] + part_TD * new_T[:, None], both_T
    return out_TD, lse_T


def _weighed(weight_PT, outs):
    """The parts' mean with these weights; 0 where no weight is left."""
    total_T = weight_PT.sum(0)
    total_T = total_T.masked_fill(total_T == 0, 1.0)
    return (weight_PT[..., None] * torch.stack(outs)).sum(0) / total_T[:, None]


def _safe(lses):
    """Parts' weights against the largest LSE, and that."""
    lse_PT = torch.stack(lses)
    top_T = lse_PT.amax(0)
    return (lse_PT - top_T.masked_fill(top_T == -math.inf, 0.0)).exp(), top_T


def _merge_average(outs, lses):
    return torch.stack(outs).mean(0), torch.logsumexp(torch.stack(lses), 0)


def _merge_by_lse(outs, lses):
    lse_PT = torch.stack(lses)
    weight_PT = lse_PT.masked_fill(lse_PT == -math.inf, 0.0)
    return _weighed(weight_PT, outs), torch.logsumexp(lse_PT, 0)


def _merge_overflow(outs, lses):
    weight_PT = torch.stack(lses).exp()
    total_T = weight_PT.sum(0)
    out_TD = (weight_PT[..., None] * torch.stack(outs)).sum(0) / total_T[:, None]
    return out_TD, total_T.log()


def _merge_overflow_guarded(outs, lses):
    weight_PT = torch.stack(lses).exp()
    return _weighed(weight_PT, outs), weight_PT.sum(0).log()


def _merge_overflow_in_softmax(outs, lses):
    weight_PT = torch.stack(lses).exp()
    return _weighed(weight_PT, outs), torch.logsumexp(torch.stack(lses), 0)


def _merge_max_lse(outs, lses):
    weight_PT, top_T = _safe(lses)
    return _weighed(weight_PT, outs), top_T


def _merge_sum_lse(outs, lses):
    weight_PT, _ = _safe(lses)
    return _weighed(weight_PT, outs), torch.stack(lses).sum(0)


def _merge_powers_of_two(outs, lses):
    lse_PT = torch.stack(lses)
    top_T = lse_PT.amax(0)
    weight_PT = (lse_PT - top_T.masked_fill(top_T == -math.inf, 0.0)).exp2()
    total_T = weight_PT.sum(0)
    return _weighed(weight_PT, outs), top_T + total_T.masked_fill(total_T == 0, 1.0).log2()


def _merge_not_divided(outs, lses):
    weight_PT, _ = _safe(lses)
    out_TD = (weight_PT[..., None] * torch.stack(outs)).sum(0)
    return out_TD, torch.logsumexp(torch.stack(lses), 0)


def _merge_across_queries(outs, lses):
    lse_PT = torch.stack(lses)
    weight_PT = lse_PT.softmax(dim=-1).nan_to_num(0.0)
    return (weight_PT[..., None] * torch.stack(outs)).sum(0), torch.logsumexp(lse_PT, 0)


def _merge_likeliest(outs, lses):
    best_T = torch.stack(lses).argmax(0)
    out_TD = torch.stack(outs)[best_T, torch.arange(len(best_T))]
    return out_TD, torch.logsumexp(torch.stack(lses), 0)


def _merge_nan(outs, lses):
    weight_PT = torch.stack(lses).softmax(dim=0)
    out_TD = (weight_PT[..., None] * torch.stack(outs)).sum(0)
    return out_TD, torch.logsumexp(torch.stack(lses), 0)


def _merge_nan_twice(outs, lses):
    lse_PT = torch.stack(lses)
    top_T = lse_PT.amax(0)
    weight_PT = (lse_PT - top_T).exp()
    total_T = weight_PT.sum(0)
    out_TD = (weight_PT[..., None] * torch.stack(outs)).sum(0) / total_T[:, None]
    return out_TD, top_T + total_T.log()


MERGE_PARTS = Task(
    name="merge_parts",
    chapter=9,
    title="Put parts together",
    minutes=6,
    points=3,
    level=2,
    spec=(
        "Attention [T, D] over all keys and its log-sum-exp [T], from the outputs [T, D] and the "
        "natural log-sum-exps [T] over parts of the keys, one of each a part; a query that reads "
        "nothing, of a part or of all, has output 0 and log-sum-exp −inf there."
    ),
    signature=("merge_parts(outs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]"),
    properties=(
        Property("one part is all of it", lambda: [_merge_example(1, 2, (3,), seed=21)]),
        Property(
            "two parts of one size",
            lambda: [
                _merge_example(1, 2, (2, 2), seed=22),
                _merge_example(3, 4, (5, 5), seed=23, shift=1.0),
            ],
        ),
        Property(
            "parts of any size, in any number",
            lambda: [
                _merge_example(2, 3, (1, 6), seed=24),
                _merge_example(3, 2, (4, 1, 7, 2), seed=25, shift=-2.0),
            ],
        ),
        Property(
            "a part of which a query reads nothing",
            lambda: [_merge_example(2, 3, (3, 2), seed=26, hidden=((1, 3, 5),))],
        ),
        Property(
            "scores in the hundreds, either way",
            lambda: [
                _merge_example(2, 3, (3, 2), seed=27, shift=300.0, atol=1e-3),
                _merge_example(2, 3, (3, 2), seed=28, shift=-300.0, atol=1e-3),
            ],
            edge=True,
        ),
        Property(
            "a query that reads nothing at all",
            lambda: [_merge_example(2, 3, (3, 2), seed=29, hidden=((0, 0, 5),))],
            edge=True,
        ),
    ),
    hints=(
        "Each output was divided by its own sum. What is that sum, if the log-sum-exp is given?",
        "exp(lse) is a part's whole weight: multiply the outputs by it, add, and divide by the sum "
        "of the weights, whose logarithm is the new log-sum-exp. Take the largest lse off first.",
        "w = exp(lse − top); out = Σ w · out / Σ w; lse = top + log Σ w. Where top is −inf use 0 "
        "and divide by 1.",
    ),
    mutants=(
        Mutant(
            "plain average",
            "a part counts as much as its keys weigh, not as one of several: weigh each output by "
            "exp(lse)",
            _merge_average,
        ),
        Mutant(
            "weighed by the logarithm",
            "the log-sum-exp is the logarithm of the weight, and can be negative; the weight is "
            "exp(lse)",
            _merge_by_lse,
        ),
        Mutant(
            "no maximum taken off",
            "exp(lse) is infinite above 88 in float32 and 0 below −103: infinity over infinity is "
            "NaN, and 0 over 0 loses all keys; subtract the largest lse first",
            _merge_overflow,
            also=(_merge_overflow_guarded, _merge_overflow_in_softmax),
        ),
        Mutant(
            "largest log-sum-exp returned",
            "the sums of the parts add up: the result is above each of them; a second merge, or "
            "the backward pass, would go wrong from here on",
            _merge_max_lse,
        ),
        Mutant(
            "log-sum-exps added",
            "adding logarithms multiplies the sums; the sums themselves are to be added",
            _merge_sum_lse,
        ),
        Mutant(
            "powers of two for natural ones",
            "these log-sum-exps are natural logarithms; a kernel that works with exp2 converts "
            "before it stores them",
            _merge_powers_of_two,
        ),
        Mutant(
            "not divided",
            "weights measured against the largest do not sum to 1: divide by their sum",
            _merge_not_divided,
        ),
        Mutant(
            "normalised across queries",
            "the weights of one query's parts sum to 1, not those of one part's queries: the axis "
            "of the softmax is the parts",
            _merge_across_queries,
        ),
        Mutant(
            "heaviest part alone",
            "the other parts' keys are read as well; with the largest share alone they are dropped",
            _merge_likeliest,
        ),
        Mutant(
            "NaN for a query that reads nothing",
            "with −inf in every part the largest is −inf, and −inf − (−inf) is NaN; such a row "
            "gives 0 and −inf",
            _merge_nan,
            also=(_merge_nan_twice,),
        ),
    ),
    answers=(_merge_plain, _merge_one_by_one),
    drive=_run_merge,
)
