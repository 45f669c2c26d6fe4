"""Attention in three kernels that pass whole matrices through memory, to count against.

Scores, softmax and weighted sum, as a framework runs them one after the other: the ``[T, S]``
matrix is written twice and read twice, in the dtype of the inputs, and no tile of it is skipped.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from refimpl.attention import checked_scale
from refimpl.kernels.inputs import Tiles, check, check_tiles, padded
from refimpl.kernels.tiles import offsets, readable, within

_SOFTMAX_ELEMENTS = 16_384  # scores that one program of the softmax holds


@triton.jit
def scores_kernel(
    q, k, scores,
    q_b, q_h, q_t, k_b, k_g, k_s, scale, H, T, S, window,
    GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, Q_INNER: tl.constexpr, K_INNER: tl.constexpr,
):  # fmt: skip
    """One tile of scores of one head; -inf where a query may not read."""
    num_s = tl.cdiv(S, BLOCK_S)
    tile = tl.program_id(0)
    s = tile % num_s * BLOCK_S + tl.arange(0, BLOCK_S)
    t = tile // num_s % tl.cdiv(T, BLOCK_T) * BLOCK_T + tl.arange(0, BLOCK_T)
    row = (tile // num_s // tl.cdiv(T, BLOCK_T)).to(tl.int64)
    b, h = row // H, row % H
    d = tl.arange(0, BLOCK_D)
    q_at = q + b * q_b + h * q_h + offsets(t, d, q_t, Q_INNER, True)
    k_at = k + b * k_b + h // GROUP * k_g + offsets(s, d, k_s, K_INNER, True)
    q_td = tl.load(q_at, mask=within(t < T, d, D, BLOCK_D), other=0.0)
    k_sd = tl.load(k_at, mask=within(s < S, d, D, BLOCK_D), other=0.0)
    scores_ts = tl.dot(q_td, tl.trans(k_sd), input_precision="ieee") * scale
    seen = readable(t, s, T, S, window, CAUSAL, WINDOWED)
    scores_ts = tl.where(seen, scores_ts, float("-inf")).to(scores.dtype.element_ty)
    at = scores + row * T * S + offsets(t, s, S, 1, True)
    tl.store(at, scores_ts, mask=(t[:, None] < T) & (s[None, :] < S))


@triton.jit
def softmax_kernel(
    scores, weights, num_rows, S, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """Whole rows of scores become whole rows of weights; a row without keys gives zeros."""
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    s = tl.arange(0, BLOCK_S)
    at = offsets(t, s, S, 1, True)
    mask = (t[:, None] < num_rows) & (s[None, :] < S)
    scores_ts = tl.load(scores + at, mask=mask, other=float("-inf")).to(tl.float32)
    m_t = tl.max(scores_ts, 1)
    m_t = tl.where(m_t == float("-inf"), 0.0, m_t)
    p_ts = tl.exp(scores_ts - m_t[:, None])
    l_t = tl.sum(p_ts, 1)
    p_ts = p_ts / tl.where(l_t == 0.0, 1.0, l_t)[:, None]
    tl.store(weights + at, p_ts.to(weights.dtype.element_ty), mask=mask)


@triton.jit
def weighted_sum_kernel(
    weights, v, out,
    v_b, v_g, v_s, H, T, S, first,
    GROUP: tl.constexpr, E: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr, V_INNER: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: its weights times all values from ``first`` on."""
    num_t = tl.cdiv(T, BLOCK_T)
    t = tl.program_id(0) % num_t * BLOCK_T + tl.arange(0, BLOCK_T)
    row = (tl.program_id(0) // num_t).to(tl.int64)
    b, h = row // H, row % H
    e = tl.arange(0, BLOCK_E)
    acc_te = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    for start in range(0, S, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        p_at = weights + row * T * S + offsets(t, s, S, 1, True)
        p_ts = tl.load(p_at, mask=(t[:, None] < T) & (s[None, :] < S), other=0.0)
        v_at = v + b * v_b + h // GROUP * v_g + offsets(s, e, v_s, V_INNER, True)
        v_se = tl.load(v_at, mask=within((s >= first) & (s < S), e, E, BLOCK_E), other=0.0)
        acc_te = tl.dot(p_ts, v_se, acc_te, input_precision="ieee")
    at = out + row * T * E + offsets(t, e, E, 1, True)
    tl.store(at, acc_te.to(out.dtype.element_ty), mask=within(t < T, e, E, BLOCK_E))


def attend_naive(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """Attention output ``[B, H, T, E]`` by way of two ``[B, H, T, S]`` matrices in memory.

    Options and errors as in :func:`refimpl.kernels.flash.attend`; no gradient. Needs the square of
    the length in memory.
    """
    window = check(q_BHTD, k_BGSD, v_BGSE, causal, window)
    tiles = check_tiles(tiles, q_BHTD, v_BGSE)
    (B, H, T, D), (G, S, E) = q_BHTD.shape, v_BGSE.shape[1:]
    scale = checked_scale(scale, D)
    like = {"dtype": q_BHTD.dtype, "device": q_BHTD.device}
    scores, weights = (torch.empty(B, H, T, S, **like) for _ in range(2))
    out = torch.zeros(B, H, T, E, **like)
    if 0 in (B * H, T, S):
        return out
    q, k, v = (x.detach().resolve_neg() for x in (q_BHTD, k_BGSD, v_BGSE))
    block = {"BLOCK_T": tiles.block_t, "BLOCK_S": tiles.block_s}
    num_t, num_s = triton.cdiv(T, tiles.block_t), triton.cdiv(S, tiles.block_s)
    outer = (*q.stride()[:3], *k.stride()[:3])
    scores_kernel[(B * H * num_t * num_s,)](
        q, k, scores, *outer, scale, H, T, S, window, GROUP=H // G, D=D, **block,
        BLOCK_D=padded(D), CAUSAL=causal, WINDOWED=window > 0, Q_INNER=q.stride(3),
        K_INNER=k.stride(3),
    )  # fmt: skip
    width = triton.next_power_of_2(S)
    rows = max(1, min(tiles.block_t, _SOFTMAX_ELEMENTS // width))
    grid = (math.ceil(B * H * T / rows),)
    softmax_kernel[grid](scores, weights, B * H * T, S, BLOCK_T=rows, BLOCK_S=width)
    first = max(S - T - window + 1, 0) if window else 0
    weighted_sum_kernel[(B * H * num_t,)](
        weights, v, out, *v.stride()[:3], H, T, S, first, GROUP=H // G, E=E, **block,
        BLOCK_E=padded(E), V_INNER=v.stride(3),
    )  # fmt: skip
    return out
