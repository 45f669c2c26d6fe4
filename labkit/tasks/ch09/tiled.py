"""Exercise of chapter 09 on the whole forward pass, with its reads and its memory counted."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch09.exact import attention
from labkit.tasks.inputs import double, normal
from refimpl.flash.memory import peak_bytes

_FEW, _MANY = 3, 11  # full tiles in two runs whose memory is compared

# ── tiled_attention ───────────────────────────────────────────────────────────────────────────


class _Keys:
    """Keys and values in memory: gives copies of slices, 0 behind the last, and takes notes."""

    def __init__(self, k_SD: Tensor, v_SD: Tensor) -> None:
        self.k_SD, self.v_SD = k_SD, v_SD
        self.reads: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if not 0 <= start <= stop:
            raise ValueError(f"read(start, stop) needs 0 <= start <= stop, got {start}, {stop}")
        self.reads.append((start, stop))
        behind = max(0, stop - max(start, len(self.k_SD)))
        k_sd, v_sd = (
            torch.cat([x[start:stop], x.new_zeros(behind, x.shape[1])])
            for x in (self.k_SD, self.v_SD)
        )
        return k_sd, v_sd

    def most_at_once(self) -> int:
        return max((stop - start for start, stop in self.reads), default=0)

    def read_again(self) -> bool:
        keys = [s for start, stop in self.reads for s in range(start, min(stop, len(self.k_SD)))]
        return len(keys) > len(set(keys))


def _holds_more(function: Callable[..., Any], q_TD, k_SD, v_SD, block: int) -> bool:
    """Whether eight more tiles of keys make it hold four more tiles of scores, or more."""
    peaks = []
    for num_tiles in (_FEW, _MANY):
        row_S = torch.arange(num_tiles * block + len(k_SD) % block) % len(k_SD)
        keys = _Keys(k_SD[row_S], v_SD[row_S])
        peaks.append(peak_bytes(partial(function, q_TD, keys, len(row_S), block)))
    few, many = peaks
    return many - few >= 4 * len(q_TD) * block * q_TD.element_size()


def _run_tiled(function: Callable[..., Any], q_TD, k_SD, v_SD, block: int) -> Any:
    """The output, how it read, and whether what it holds grows with the number of keys."""
    keys = _Keys(k_SD, v_SD)
    output = function(q_TD, keys, len(k_SD), block)
    if output is None:
        return None
    return {
        "output": output,
        "more than a tile read at once": keys.most_at_once() > block,
        "keys read again": keys.read_again(),
        "memory grows with the keys": _holds_more(function, q_TD, k_SD, v_SD, block),
    }


def _tiled_example(
    T: int, S: int, D: int, block: int, seed: int, size: float = 1.0, atol: float | None = None
) -> Example:
    """Plain attention in float64, over all keys at once."""
    q_TD, k_SD, v_SD = (normal(seed + i, n, D) for i, n in enumerate((T, S, S)))
    q_TD = q_TD * size
    scores_TS = double(q_TD) @ double(k_SD).T / math.sqrt(D)
    output, _ = attention(scores_TS, double(v_SD))
    shown = (
        f"q_TD = {render(q_TD)}\nread gives slices of k_SD = {render(k_SD)}\n"
        f"and of v_SD = {render(v_SD)}\nnum_keys = {S}\nblock = {block}"
    )
    expected = {
        "output": output,
        "more than a tile read at once": False,
        "keys read again": False,
        "memory grows with the keys": False,
    }
    return Example((q_TD, k_SD, v_SD, block), expected, shown=shown, atol=atol)


def _tiled_plain(q_TD, read, num_keys, block):
    """Tile by tile: scores, new maximum, rescale, add; one division at the end."""
    T, D = q_TD.shape
    max_T, sum_T, acc_TD = torch.full((T,), -math.inf), torch.zeros(T), torch.zeros(T, D)
    for start in range(0, num_keys, block):
        k_sd, v_sd = read(start, min(start + block, num_keys))
        scores_Ts = q_TD @ k_sd.T / math.sqrt(D)
        new_T = torch.maximum(max_T, scores_Ts.amax(dim=1))
        factor_T = (max_T - new_T).exp()
        weights_Ts = (scores_Ts - new_T[:, None]).exp()
        sum_T = sum_T * factor_T + weights_Ts.sum(dim=1)
        acc_TD = acc_TD * factor_T[:, None] + weights_Ts @ v_sd
        max_T = new_T
    return acc_TD / sum_T[:, None]


def _tiled_masked(q_TD, read, num_keys, block):
    out_TD, lse_T = torch.zeros_like(q_TD), torch.full((len(q_TD),), -math.inf)
    for start in range(0, num_keys, block):
        k_sd, v_sd = read(start, start + block)
        scores_Ts = (q_TD * q_TD.shape[1] ** -0.5) @ k_sd.T
        scores_Ts[:, num_keys - start :] = -math.inf
        new_T = torch.logaddexp(lse_T, scores_Ts.logsumexp(dim=1))
        out_TD = out_TD * (lse_T - new_T).exp()[:, None]
        out_TD += (scores_Ts - new_T[:, None]).exp() @ v_sd
        lse_T = new_T
    return out_TD


def _scores(q_TD, k_sd):
    return q_TD @ k_sd.T / math.sqrt(q_TD.shape[1])


def _tiled_at_once(q_TD, read, num_keys, block):
    k_SD, v_SD = read(0, num_keys)
    return _scores(q_TD, k_SD).softmax(dim=1) @ v_SD


def _spans(num_keys: int, block: int) -> list[tuple[int, int]]:
    return [(start, min(start + block, num_keys)) for start in range(0, num_keys, block)]


def _tiled_row_kept(q_TD, read, num_keys, block):
    tiles = [read(*span) for span in _spans(num_keys, block)]
    scores_TS = torch.cat([_scores(q_TD, k_sd) for k_sd, _ in tiles], dim=1)
    return scores_TS.softmax(dim=1) @ torch.cat([v_sd for _, v_sd in tiles])


def _tiled_parts_kept(q_TD, read, num_keys, block):
    parts, lses = [], []
    for span in _spans(num_keys, block):
        k_sd, v_sd = read(*span)
        parts.append((_scores(q_TD, k_sd), v_sd.clone()))
        lses.append(parts[-1][0].logsumexp(dim=1))
    lse_T = torch.stack(lses).logsumexp(dim=0)
    return sum((scores_Ts - lse_T[:, None]).exp() @ v_sd for scores_Ts, v_sd in parts)


def _tiled_two_passes(q_TD, read, num_keys, block):
    lse_T = torch.full((len(q_TD),), -math.inf)
    for span in _spans(num_keys, block):
        lse_T = torch.logaddexp(lse_T, _scores(q_TD, read(*span)[0]).logsumexp(dim=1))
    out_TD = torch.zeros_like(q_TD)
    for span in _spans(num_keys, block):
        k_sd, v_sd = read(*span)
        out_TD = out_TD + (_scores(q_TD, k_sd) - lse_T[:, None]).exp() @ v_sd
    return out_TD


def _folded(q_TD, read, spans, *, rescale=True, maximum=True, scale=True, divide=True, num_keys=0):
    """The running softmax with one part of it left out."""
    T, D = q_TD.shape
    max_T, sum_T, acc_TD = torch.full((T,), -math.inf), torch.zeros(T), torch.zeros(T, D)
    for span in spans:
        k_sd, v_sd = read(*span)
        scores_Ts = _scores(q_TD, k_sd) if scale else q_TD @ k_sd.T
        new_T = torch.maximum(max_T, scores_Ts.amax(dim=1)) if maximum else torch.zeros(T)
        factor_T = (max_T - new_T).exp() if rescale and maximum else torch.ones(T)
        weights_Ts = (scores_Ts - new_T[:, None]).exp()
        sum_T = sum_T * factor_T + weights_Ts.sum(dim=1)
        acc_TD = acc_TD * factor_T[:, None] + weights_Ts @ v_sd
        max_T = new_T
    return acc_TD / sum_T[:, None] if divide else acc_TD


def _tiled_not_rescaled(q_TD, read, num_keys, block):
    return _folded(q_TD, read, _spans(num_keys, block), rescale=False)


def _tiled_average(q_TD, read, num_keys, block):
    spans = _spans(num_keys, block)
    out_TD = torch.zeros_like(q_TD)
    for span in spans:
        k_sd, v_sd = read(*span)
        out_TD = out_TD + _scores(q_TD, k_sd).softmax(dim=1) @ v_sd / len(spans)
    return out_TD


def _tiled_tail_counted(q_TD, read, num_keys, block):
    spans = [(start, start + block) for start in range(0, num_keys, block)]
    return _folded(q_TD, read, spans)


def _tiled_tail_lost(q_TD, read, num_keys, block):
    return _folded(q_TD, read, _spans(max(block, num_keys // block * block), block))


def _tiled_tail_lost_plainly(q_TD, read, num_keys, block):
    spans = _spans(num_keys // block * block, block)
    return _folded(q_TD, read, spans).nan_to_num(0.0)


def _tiled_not_divided(q_TD, read, num_keys, block):
    return _folded(q_TD, read, _spans(num_keys, block), divide=False)


def _tiled_not_scaled(q_TD, read, num_keys, block):
    return _folded(q_TD, read, _spans(num_keys, block), scale=False)


def _tiled_no_maximum(q_TD, read, num_keys, block):
    return _folded(q_TD, read, _spans(num_keys, block), maximum=False)


TILED_ATTENTION = Task(
    name="tiled_attention",
    chapter=9,
    title="The forward pass, counted",
    minutes=15,
    points=5,
    level=3,
    spec=(
        "Attention softmax(q · kᵀ / √D) · v [T, D] of queries that all read all num_keys keys; "
        "read(start, stop) gives the keys [stop − start, D] and the values of that range, and 0 "
        "behind the last key. Ask for each key once, for no more than block of them at a time, and "
        "hold nothing that grows with their number."
    ),
    signature=(
        "tiled_attention(q_TD: Tensor, read: Callable[[int, int], tuple[Tensor, Tensor]], "
        "num_keys: int, block: int) -> Tensor"
    ),
    properties=(
        Property("one query and one key", lambda: [_tiled_example(1, 1, 1, 1, seed=31)]),
        Property(
            "one tile",
            lambda: [_tiled_example(1, 3, 2, 3, seed=34), _tiled_example(3, 4, 5, 4, seed=37)],
        ),
        Property(
            "several tiles",
            lambda: [
                _tiled_example(2, 6, 3, 2, seed=40, size=2.0),
                _tiled_example(5, 12, 2, 4, seed=43, size=2.0),
            ],
        ),
        Property(
            "a last tile that is not full",
            lambda: [
                _tiled_example(2, 7, 3, 4, seed=46),
                _tiled_example(3, 11, 2, 5, seed=49, size=2.0),
            ],
        ),
        Property(
            "a tile that is longer than the row of keys",
            lambda: [_tiled_example(2, 3, 4, 8, seed=52)],
        ),
        Property(
            "scores in the hundreds",
            lambda: [_tiled_example(3, 10, 4, 3, seed=55, size=400.0, atol=1e-3)],
            edge=True,
        ),
    ),
    hints=(
        "What has to be remembered from one tile to the next, so that it can be thrown away?",
        "Three things a query: the running maximum, the running sum, the accumulator [D]. Start "
        "them with −inf, 0 and 0; fold a tile in as in fold_tile; divide once at the end.",
        "for start in range(0, num_keys, block): k, v = read(start, min(start + block, num_keys)), "
        "scores = q @ k.T / √D, new maximum, factor, weights; then out = acc / sum.",
    ),
    mutants=(
        Mutant(
            "all keys at once",
            "the whole row of keys is asked for, and with it a score matrix as long as the row: "
            "right, and what this is about not doing. Work off block keys at a time",
            _tiled_at_once,
        ),
        Mutant(
            "row of scores kept",
            "the keys come in tiles, but what is kept of each grows with their number: in the end "
            "the whole row is there. Keep a maximum, a sum and an accumulator, and let the tile go",
            _tiled_row_kept,
            also=(_tiled_parts_kept,),
        ),
        Mutant(
            "two passes over the keys",
            "every key is read twice, once for the sum and once for the values: rescaling what was "
            "added so far is what saves the second reading",
            _tiled_two_passes,
        ),
        Mutant(
            "nothing rescaled",
            "what earlier tiles added is measured against a maximum that has since been replaced; "
            "multiply sum and accumulator by exp(old − new) first",
            _tiled_not_rescaled,
        ),
        Mutant(
            "average of tiles",
            "each tile's softmax sums to 1, so that a tile of three keys, or one that nobody "
            "wants, counts as much as any other; weigh them by their sums",
            _tiled_average,
        ),
        Mutant(
            "zeros behind the last key counted",
            "a padded key has score 0, not −inf: it takes exp(0 − maximum) of the sum and adds a "
            "value of 0, so that the output comes out too small. Mask it, or ask for fewer",
            _tiled_tail_counted,
        ),
        Mutant(
            "last tile left out",
            "num_keys // block counts full tiles; the keys of the last, smaller one are lost",
            _tiled_tail_lost,
            also=(_tiled_tail_lost_plainly,),
        ),
        Mutant(
            "not divided",
            "the accumulator is a weighted sum; divide it by the running sum, once, at the end",
            _tiled_not_divided,
        ),
        Mutant(
            "scores not scaled",
            "the scores are divided by √D before the softmax",
            _tiled_not_scaled,
        ),
        Mutant(
            "no maximum taken off",
            "exp(score) overflows above 88 in float32: infinity over infinity is NaN. The running "
            "maximum is what keeps every exponent at 0 or below",
            _tiled_no_maximum,
        ),
    ),
    answers=(_tiled_plain, _tiled_masked),
    drive=_run_tiled,
)
