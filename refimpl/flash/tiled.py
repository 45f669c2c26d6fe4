"""Attention in tiles: no more of the score matrix exists at a time than one tile of it."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from refimpl.attention import (
    check_inputs,
    check_mask,
    check_window,
    checked_scale,
    without_autocast,
)
from refimpl.flash.backward import gradients
from refimpl.flash.online import Running, absorb, finish, start
from refimpl.flash.plan import Plan, keys_of_tile, rows_of_group, scores_of_tile
from refimpl.flash.schedule import Tile
from refimpl.sizing.elements import check_count

# Measured on two CPU cores: smaller tiles pay more for each step of the loop, larger ones leave
# the second-level cache. A GPU's tiles are much smaller, as its on-chip memory is.
BLOCK_T, BLOCK_S = 256, 512


def attend(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    mask_BTS: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    block_t: int = BLOCK_T,
    block_s: int = BLOCK_S,
) -> Tensor | tuple[Tensor, Tensor]:
    """What :func:`refimpl.attention.attend` returns, with the same arguments, in linear memory.

    Output ``[B, H, T, Dv]``, and with ``return_lse`` the log-sum-exp ``[B, H, T]``, in float32 or
    wider. The score matrix is worked off in tiles of ``block_t`` queries by ``block_s`` keys; a
    tile in which no query may read a key is not computed. Sums run in float32 or wider. Gradients
    flow to q, k and v from both results; kept for them are the inputs, the output (in float32 or
    wider) and the log-sum-exp with what rounding took off it. The scores are computed again.

    Raises ``ValueError`` for shapes, dtypes or options that do not fit together.
    Sources: FlashAttention, arXiv:2205.14135; the order of loops of arXiv:2307.08691.
    """
    check_inputs(q_BHTD, k_BGSD, v_BGSD)
    check_window(window, causal)
    check_count("block_t", block_t, least=1)
    check_count("block_s", block_s, least=1)
    B, H, T, D = q_BHTD.shape
    scale = checked_scale(scale, D)
    if mask_BTS is not None:
        mask_BTS = check_mask(mask_BTS, B, T, k_BGSD.shape[2])
    plan = Plan(T, k_BGSD.shape[2], block_t, block_s, causal, window, scale)
    out, lse = _Tiled.apply(q_BHTD, k_BGSD, v_BGSD, mask_BTS, plan)
    return (out, lse) if return_lse else out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        # The backward pass subtracts sums that nearly cancel where one key takes it all: an output
        # of 16 bits would not do for it.
        kept = wide if any(ctx.needs_input_grad[:3]) else q.dtype
        out, lse, rest = _forward(q, k, v, mask, plan, wide, kept)
        ctx.save_for_backward(q, k, v, mask, out, lse, rest)
        ctx.plan = plan
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        return (*gradients(*ctx.saved_tensors, d_out, d_lse, ctx.plan), None, None)


@without_autocast
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    plan: Plan,
    wide: torch.dtype,
    kept: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output in dtype ``kept``, log-sum-exp, and what rounding took off the log-sum-exp."""
    B, H, T, D = q.shape
    G, E = k.shape[1], v.shape[3]
    out = torch.zeros(B, H, T, E, dtype=kept, device=q.device)
    lse = torch.full((B, H, T), -math.inf, dtype=wide, device=q.device)
    rest = torch.zeros_like(lse)
    for rows, row in plan.rows():
        q_rows = rows_of_group(q[:, :, rows], G, wide) * plan.scale
        running = start(*q_rows.shape[:3], width=E, dtype=wide, device=q.device)
        for tile in row:
            running = _visit(running, q_rows, k, v, mask, tile, plan)
        out_rows, lse_rows = finish(running)
        rest_rows = (running.sum_T.log() - (lse_rows - running.max_T)).nan_to_num_()
        num_rows = rows.stop - rows.start
        out[:, :, rows] = out_rows.reshape(B, H, num_rows, E)
        lse[:, :, rows] = lse_rows.reshape(B, H, num_rows)
        rest[:, :, rows] = rest_rows.reshape(B, H, num_rows)
    return out, lse, rest


def _visit(
    running: Running,
    q_rows: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    tile: Tile,
    plan: Plan,
) -> Running:
    allowed = plan.allowed(tile, mask, q_rows)
    k_tile, v_tile = keys_of_tile(k, v, tile, allowed, q_rows.dtype)
    return absorb(running, scores_of_tile(q_rows, k_tile, allowed), v_tile)
