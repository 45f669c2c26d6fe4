"""Gradients of tiled attention: scores are computed again, tile by tile, and not kept."""

import math

import torch
from torch import Tensor

from refimpl.attention import without_autocast
from refimpl.flash.plan import Plan, keys_of_tile, rows_of_group, scores_of_tile


@without_autocast
def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    d_out: Tensor,
    d_lse: Tensor,
    plan: Plan,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. Source: FlashAttention, arXiv:2205.14135, appendix B.2."""
    G, wide = k.shape[1], lse.dtype
    # The gradient of a score is its weight times what its value adds beyond the row's mean.
    mean = (d_out.to(wide) * out.to(wide)).sum(dim=-1) - d_lse
    base = lse.masked_fill(lse == -math.inf, 0.0)  # rows without keys: their weights stay 0
    # A weight is exp(score - lse - rest). The last factor is one per row and goes where rows are.
    factor = (-rest).exp_()
    d_q, d_k, d_v = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    for rows, row in plan.rows():
        q_rows = rows_of_group(q[:, :, rows], G, wide) * plan.scale
        mean_rows, base_rows, factor_rows = (
            x[:, :, rows].reshape(*q_rows.shape[:3], 1) for x in (mean, base, factor)
        )
        d_rows = rows_of_group(d_out[:, :, rows], G, wide) * factor_rows
        mean_rows = mean_rows * factor_rows
        d_q_rows = torch.zeros_like(q_rows)
        for tile in row:
            keys = slice(tile.s_start, tile.s_stop)
            allowed = plan.allowed(tile, mask, q)
            k_tile, v_tile = keys_of_tile(k, v, tile, allowed, wide)
            weights = (scores_of_tile(q_rows, k_tile, allowed) - base_rows).exp_()
            d_v[:, :, keys] += weights.transpose(-1, -2) @ d_rows
            d_scores = (d_rows @ v_tile.transpose(-1, -2) - mean_rows).mul_(weights)
            d_q_rows += d_scores @ k_tile
            d_k[:, :, keys] += d_scores.transpose(-1, -2) @ q_rows
        d_q[:, :, rows] = (d_q_rows * plan.scale).reshape(d_q[:, :, rows].shape)
    return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)
