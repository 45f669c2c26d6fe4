"""Exercise of chapter 09 on one tile: new maximum, rescale, add."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch09.exact import single, summed
from labkit.tasks.inputs import double, normal

# ── fold_tile ─────────────────────────────────────────────────────────────────────────────────

_NAMES = ("maximum", "sum", "accumulator")


def _run_fold(function: Callable[..., Any], *args: Any) -> Any:
    """The three results by name."""
    result = function(*args)
    if result is None:
        return None
    return dict(zip(_NAMES, result, strict=True))


def _fold_example(
    T: int,
    before: int,
    S: int,
    D: int,
    seed: int,
    *,
    hidden: tuple[tuple[int, int, int], ...] = (),
    size: float = 2.0,
) -> Example:
    """By definition, over all keys: ``before`` of them are in the state, S in the tile.

    ``hidden`` are keys (row, first, last + 1), counted over both, that the row may not read.
    """
    scores_TS = size * double(normal(seed, T, before + S))
    v_SD = double(normal(seed + 1, before + S, D))
    for row, first, end in hidden:
        scores_TS[row, first:end] = -np.inf
    state = summed(scores_TS[:, :before], v_SD[:before])
    args = single(*state, scores_TS[:, before:], v_SD[before:])
    expected = dict(zip(_NAMES, summed(scores_TS, v_SD), strict=True))
    names = ("max_T", "sum_T", "acc_TD", "scores_TS", "v_SD")
    shown = "\n".join(f"{name} = {render(x)}" for name, x in zip(names, args, strict=True))
    return Example(args, expected, shown=shown)


def _fold_plain(max_T, sum_T, acc_TD, scores_TS, v_SD):
    """New maximum by row; sum and accumulator measured against it; then the tile is added."""
    new_T = torch.maximum(max_T, scores_TS.amax(dim=1))
    base_T = new_T.masked_fill(new_T == -math.inf, 0.0)
    factor_T = (max_T - base_T).exp()
    weights_TS = (scores_TS - base_T[:, None]).exp()
    sum_T = sum_T * factor_T + weights_TS.sum(dim=1)
    return new_T, sum_T, acc_TD * factor_T[:, None] + weights_TS @ v_SD


def _fold_key_by_key(max_T, sum_T, acc_TD, scores_TS, v_SD):
    rows = zip(max_T.tolist(), sum_T.tolist(), acc_TD, scores_TS.tolist(), strict=True)
    results = []
    for top, total, acc_D, scores in rows:
        for score, v_D in zip(scores, v_SD, strict=True):
            if score == -math.inf:
                continue
            new = max(top, score)
            fade, weight = math.exp(top - new), math.exp(score - new)
            top, total, acc_D = new, total * fade + weight, acc_D * fade + weight * v_D
        results.append((top, total, acc_D))
    tops, totals, accs = zip(*results, strict=True)
    return torch.tensor(tops), torch.tensor(totals), torch.stack(accs)


def _parts(max_T, scores_TS):
    """New maximum, factor of what was there, weights of the tile; 0 for what was not read."""
    new_T = torch.maximum(max_T, scores_TS.amax(dim=1))
    base_T = new_T.masked_fill(new_T == -math.inf, 0.0)
    return new_T, (max_T - base_T).exp(), (scores_TS - base_T[:, None]).exp()


def _fold_acc_kept(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, factor_T, w_TS = _parts(max_T, scores_TS)
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD + w_TS @ v_SD


def _fold_sum_kept(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, factor_T, w_TS = _parts(max_T, scores_TS)
    return new_T, sum_T + w_TS.sum(1), acc_TD * factor_T[:, None] + w_TS @ v_SD


def _fold_nothing_rescaled(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, _, w_TS = _parts(max_T, scores_TS)
    return new_T, sum_T + w_TS.sum(1), acc_TD + w_TS @ v_SD


def _fold_inverted(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, factor_T, w_TS = _parts(max_T, scores_TS)
    factor_T = torch.where(factor_T > 0, 1 / factor_T, 0.0)
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD * factor_T[:, None] + w_TS @ v_SD


def _fold_one_maximum(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T = torch.maximum(max_T, scores_TS.max())
    base_T = new_T.masked_fill(new_T == -math.inf, 0.0)
    factor_T, w_TS = (max_T - base_T).exp(), (scores_TS - base_T[:, None]).exp()
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD * factor_T[:, None] + w_TS @ v_SD


def _fold_tile_maximum(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T = scores_TS.amax(dim=1)
    base_T = new_T.masked_fill(new_T == -math.inf, 0.0)
    factor_T, w_TS = (max_T - base_T).exp(), (scores_TS - base_T[:, None]).exp()
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD * factor_T[:, None] + w_TS @ v_SD


def _fold_divided(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, new_sum_T, new_acc_TD = _fold_plain(max_T, sum_T, acc_TD, scores_TS, v_SD)
    return new_T, new_sum_T, new_acc_TD / new_sum_T.masked_fill(new_sum_T == 0, 1.0)[:, None]


def _fold_softmax(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T, factor_T, w_TS = _parts(max_T, scores_TS)
    share_TS = w_TS / w_TS.sum(1, keepdim=True).clamp(min=1e-30)
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD * factor_T[:, None] + share_TS @ v_SD


def _fold_nan(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new_T = torch.maximum(max_T, scores_TS.amax(dim=1))
    factor_T, w_TS = (max_T - new_T).exp(), (scores_TS - new_T[:, None]).exp()
    return new_T, sum_T * factor_T + w_TS.sum(1), acc_TD * factor_T[:, None] + w_TS @ v_SD


FOLD_TILE = Task(
    name="fold_tile",
    chapter=9,
    title="Fold a tile in",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "The running maximum [T], sum [T] and accumulator [T, D] after a tile of scores [T, S] "
        "with its values [S, D]: the sum is of exp(score − maximum), the accumulator of that "
        "weight times the value, not divided; a score of −inf is a key that the query may not "
        "read, and a query that has read nothing has −inf, 0 and 0."
    ),
    signature=(
        "fold_tile(max_T: Tensor, sum_T: Tensor, acc_TD: Tensor, scores_TS: Tensor, v_SD: Tensor) "
        "-> tuple[Tensor, Tensor, Tensor]"
    ),
    properties=(
        Property(
            "one query, one key, nothing read before", lambda: [_fold_example(1, 0, 1, 2, seed=1)]
        ),
        Property(
            "the first tile",
            lambda: [_fold_example(1, 0, 3, 2, seed=2), _fold_example(3, 0, 5, 2, seed=3)],
        ),
        Property(
            "a later tile: what was there is measured anew, what is added is not",
            lambda: [
                _fold_example(1, 2, 3, 2, seed=8),
                _fold_example(3, 4, 2, 5, seed=15),
                _fold_example(4, 2, 6, 3, seed=17, size=4.0),
            ],
        ),
        Property(
            "keys that some queries may not read",
            lambda: [_fold_example(3, 4, 2, 5, seed=9, hidden=((0, 5, 6), (2, 0, 1)))],
        ),
        Property(
            "a tile that a query may not read at all, behind others",
            lambda: [_fold_example(2, 3, 4, 3, seed=12, hidden=((1, 3, 7),))],
            edge=True,
        ),
        Property(
            "a tile that a query may not read at all, before any other",
            lambda: [
                _fold_example(2, 3, 4, 3, seed=13, hidden=((1, 0, 7),)),
                _fold_example(3, 3, 2, 4, seed=14, hidden=((1, 0, 3),)),
            ],
            edge=True,
        ),
    ),
    hints=(
        "Three numbers a row. Which of them change because the maximum did, before anything is "
        "added?",
        "new = the larger of max_T and each row's largest score; sum and accumulator are "
        "multiplied by exp(max_T − new), then exp(scores − new) and its product with v_SD are "
        "added.",
        "Where new is −inf take 0 in its place before subtracting: every exp is 0 then. Factor and "
        "maximum are one per row: write factor_T[:, None].",
    ),
    mutants=(
        Mutant(
            "accumulator not rescaled",
            "the sum is measured against the new maximum and the accumulator against the old one: "
            "their quotient is no mean; the output drifts wherever the maximum rises late",
            _fold_acc_kept,
        ),
        Mutant(
            "sum not rescaled",
            "the accumulator shrinks and the sum does not: rows whose maximum rises come out too "
            "small",
            _fold_sum_kept,
        ),
        Mutant(
            "nothing rescaled",
            "sum and accumulator are still measured against the old maximum: earlier keys keep "
            "too much weight, by exp(new − old)",
            _fold_nothing_rescaled,
        ),
        Mutant(
            "factor inverted",
            "the factor is exp(old − new), at most 1: what was there shrinks when the maximum "
            "grows",
            _fold_inverted,
        ),
        Mutant(
            "one maximum for the tile",
            "the maximum is each row's own; the tile's largest score is another query's, and rows "
            "far below it lose all their weights to underflow",
            _fold_one_maximum,
        ),
        Mutant(
            "maximum of the tile alone",
            "the running maximum never falls: a tile of small scores makes the factor larger than "
            "1, and a masked one makes it infinite",
            _fold_tile_maximum,
        ),
        Mutant(
            "divided in each tile",
            "one division at the end is enough, and this one is not undone: the next tile adds "
            "weights to an accumulator that is a mean",
            _fold_divided,
        ),
        Mutant(
            "softmax within the tile",
            "weights that sum to 1 in every tile say nothing about how much a tile counts beside "
            "the others; add exp(score − maximum) itself",
            _fold_softmax,
        ),
        Mutant(
            "NaN for masked rows",
            "a row that has read nothing has maximum −inf, and −inf − (−inf) is NaN: it meets this "
            "in its first tile if that is masked, and never recovers",
            _fold_nan,
        ),
    ),
    answers=(_fold_plain, _fold_key_by_key),
    drive=_run_fold,
)
