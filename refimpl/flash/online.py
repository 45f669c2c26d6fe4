"""Softmax over keys that arrive in pieces: a running maximum, a running sum, a rescaled output.

For a row of scores :math:`x` read so far, with :math:`m` the largest of them, three things are
kept: :math:`m`, the sum :math:`l = Σ exp(x - m)`, and the output :math:`a = Σ exp(x - m) v`, not
yet divided. A new piece may raise the maximum; what was summed under the old one then counts
:math:`exp(m_{old} - m_{new})` times. In real arithmetic the result is that of softmax, in
whatever pieces the keys come.

Sources: Milakov and Gimelshein, arXiv:1805.02867; FlashAttention, arXiv:2205.14135, section 3.1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Folded(NamedTuple):
    """What one piece of scores does to a running softmax."""

    max_T: Tensor  # the largest score so far
    sum_T: Tensor  # the sum of exp(score - max) so far
    weights_TS: Tensor  # exp(score - max) of the new piece
    factor_T: Tensor  # what everything summed before the piece has to be multiplied with


class Running(NamedTuple):
    """A softmax-weighted sum of values over the keys read so far, not yet divided."""

    max_T: Tensor  # [..., T]
    sum_T: Tensor  # [..., T]
    out_TE: Tensor  # [..., T, E]


def fold(max_T: Tensor, sum_T: Tensor, scores_TS: Tensor) -> Folded:
    """One step of the running softmax: old maximum and sum, new scores ``[..., T, S]``.

    A score of minus infinity is a key that may not be read: its weight is 0. Rows that have read
    nothing have maximum minus infinity and sum 0, before and after. No scores change nothing.
    """
    if scores_TS.shape[-1] == 0:
        return Folded(max_T, sum_T, scores_TS, torch.ones_like(max_T))
    new_max = torch.maximum(max_T, scores_TS.amax(dim=-1))
    # Where nothing was read yet, (-inf) - (-inf) would be NaN; against 0 every exp is 0.
    base = new_max.masked_fill(new_max == -math.inf, 0.0)
    factor = (max_T - base).exp_()
    weights = (scores_TS - base[..., None]).exp_()
    return Folded(new_max, sum_T * factor + weights.sum(dim=-1), weights, factor)


def start(
    *rows: int, width: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Running:
    """Before any key: maximum minus infinity, sum 0, output 0 ``[*rows, width]``."""
    options = {"dtype": dtype, "device": device}
    return Running(
        torch.full(rows, -math.inf, **options),
        torch.zeros(rows, **options),
        torch.zeros(*rows, width, **options),
    )


def absorb(running: Running, scores_TS: Tensor, v_SE: Tensor) -> Running:
    """The running softmax after one more piece of keys: scores ``[..., T, S]`` and their values."""
    if scores_TS.shape[-1] == 0:
        return running
    folded = fold(running.max_T, running.sum_T, scores_TS)
    out = running.out_TE * folded.factor_T[..., None]
    return Running(folded.max_T, folded.sum_T, out + folded.weights_TS @ v_SE)


def finish(running: Running) -> tuple[Tensor, Tensor]:
    """Output ``[..., T, E]`` and log-sum-exp ``[..., T]`` (natural logarithm).

    A row that read nothing gives 0 and minus infinity.
    """
    divisor = running.sum_T.masked_fill(running.sum_T == 0, 1.0)
    return running.out_TE / divisor[..., None], running.max_T + divisor.log()
