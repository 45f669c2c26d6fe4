"""Attention in tiles: no more of the score matrix exists at a time than one tile of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from refimpl.attention import check_inputs, check_mask, check_window
from refimpl.flash.online import Running, absorb, finish, start
from refimpl.flash.schedule import FULL, SKIPPED, Tile, tiles
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
    flow to q, k and v from both results; kept for them are the inputs, the output and the
    log-sum-exp, and the scores are computed again.

    Raises ``ValueError`` for shapes, dtypes or options that do not fit together.
    Sources: FlashAttention, arXiv:2205.14135; the order of loops of arXiv:2307.08691.
    """
    check_inputs(q_BHTD, k_BGSD, v_BGSD)
    check_window(window, causal)
    check_count("block_t", block_t, least=1)
    check_count("block_s", block_s, least=1)
    B, H, T, D = q_BHTD.shape
    if scale is None:
        scale = 1 / math.sqrt(D)
    elif not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    if mask_BTS is not None:
        mask_BTS = check_mask(mask_BTS, B, T, k_BGSD.shape[2])
    plan = _Plan(T, k_BGSD.shape[2], block_t, block_s, causal, window, scale)
    out, lse = _Tiled.apply(q_BHTD, k_BGSD, v_BGSD, mask_BTS, plan)
    return (out, lse) if return_lse else out


@dataclass(frozen=True)
class _Plan:
    """Lengths, tile sizes and options: everything that is no tensor."""

    num_new: int
    num_stored: int
    block_t: int
    block_s: int
    causal: bool
    window: int | None
    scale: float

    def rows(self) -> Iterator[tuple[slice, list[Tile]]]:
        """Each tile of queries with the tiles of keys that some of its queries may read."""
        every = tiles(
            self.num_new,
            self.num_stored,
            self.block_t,
            self.block_s,
            causal=self.causal,
            window=self.window,
        )
        for (t_start, t_stop), row in groupby(every, lambda tile: (tile.t_start, tile.t_stop)):
            yield slice(t_start, t_stop), [tile for tile in row if tile.kind != SKIPPED]

    def allowed(self, tile: Tile, mask_BTS: Tensor | None, like: Tensor) -> Tensor | None:
        """Which query of a tile may read which key, ``[1 or B, t, s]``; None where all may."""
        allowed = None
        if tile.kind != FULL:
            query = torch.arange(tile.t_start, tile.t_stop, device=like.device)[:, None]
            key = torch.arange(tile.s_start, tile.s_stop, device=like.device)
            distance = query + (self.num_stored - self.num_new) - key
            allowed = distance >= 0
            if self.window is not None:
                allowed &= distance < self.window
            allowed = allowed[None]
        if mask_BTS is None:
            return allowed
        mask = mask_BTS[:, tile.t_start : tile.t_stop, tile.s_start : tile.s_stop]
        return mask if allowed is None else allowed & mask


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        out, lse = _forward(q, k, v, mask, plan)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.plan = plan
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        return (*_backward(*ctx.saved_tensors, d_out, d_lse, ctx.plan), None, None)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, plan: _Plan
) -> tuple[Tensor, Tensor]:
    B, H, T, D = q.shape
    G, E = k.shape[1], v.shape[3]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros(B, H, T, E)
    lse = torch.full((B, H, T), -math.inf, dtype=wide, device=q.device)
    for rows, row in plan.rows():
        q_rows = _rows_of_group(q[:, :, rows], G, wide) * plan.scale
        running = start(*q_rows.shape[:3], width=E, dtype=wide, device=q.device)
        for tile in row:
            running = _visit(running, q_rows, k, v, mask, tile, plan)
        out_rows, lse_rows = finish(running)
        out[:, :, rows] = out_rows.reshape(B, H, -1, E)
        lse[:, :, rows] = lse_rows.reshape(B, H, -1)
    return out, lse


def _visit(
    running: Running,
    q_rows: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    tile: Tile,
    plan: _Plan,
) -> Running:
    allowed = plan.allowed(tile, mask, q_rows)
    k_tile, v_tile = _keys_of_tile(k, v, tile, allowed, q_rows.dtype)
    return absorb(running, _scores(q_rows, k_tile, allowed), v_tile)


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor,
    plan: _Plan,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. Source: FlashAttention, arXiv:2205.14135, appendix B.2."""
    G = k.shape[1]
    wide = lse.dtype
    d_q, d_k, d_v = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    # The gradient of a score is its weight times what its value adds beyond the row's mean.
    mean = (d_out.to(wide) * out.to(wide)).sum(dim=-1) - d_lse
    base = lse.masked_fill(lse == -math.inf, 0.0)  # rows without keys: their weights stay 0
    for rows, row in plan.rows():
        q_rows = _rows_of_group(q[:, :, rows], G, wide) * plan.scale
        d_rows = _rows_of_group(d_out[:, :, rows], G, wide)
        mean_rows = mean[:, :, rows].reshape(*q_rows.shape[:3], 1)
        base_rows = base[:, :, rows].reshape(*q_rows.shape[:3], 1)
        d_q_rows = torch.zeros_like(q_rows)
        for tile in row:
            keys = slice(tile.s_start, tile.s_stop)
            allowed = plan.allowed(tile, mask, q)
            k_tile, v_tile = _keys_of_tile(k, v, tile, allowed, wide)
            weights = (_scores(q_rows, k_tile, allowed) - base_rows).exp_()
            d_v[:, :, keys] += weights.transpose(-1, -2) @ d_rows
            d_scores = (d_rows @ v_tile.transpose(-1, -2) - mean_rows).mul_(weights)
            d_q_rows += d_scores @ k_tile
            d_k[:, :, keys] += d_scores.transpose(-1, -2) @ q_rows
        d_q[:, :, rows] = (d_q_rows * plan.scale).reshape(d_q[:, :, rows].shape)
    return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)


def _rows_of_group(x_BHTD: Tensor, G: int, wide: torch.dtype) -> Tensor:
    """Query heads that share keys as rows of one matrix: ``[B, G, (H // G) * T, D]``."""
    B, H, T, D = x_BHTD.shape
    return x_BHTD.to(wide).reshape(B, G, H // G * T, D)


def _keys_of_tile(
    k: Tensor, v: Tensor, tile: Tile, allowed: Tensor | None, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values of a tile; those that none of its queries may read are 0, not weighted by 0.

    An unwritten slot may hold NaN, and zero times NaN is NaN.
    """
    k_tile = k[:, :, tile.s_start : tile.s_stop].to(wide)
    v_tile = v[:, :, tile.s_start : tile.s_stop].to(wide)
    if allowed is None:
        return k_tile, v_tile
    unread = ~allowed.any(dim=1)[:, None, :, None]
    return k_tile.masked_fill(unread, 0.0), v_tile.masked_fill(unread, 0.0)


def _scores(q_rows: Tensor, k_tile: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores of a tile ``[B, G, (H // G) * t, s]``, minus infinity where a key is not allowed."""
    scores = q_rows @ k_tile.transpose(-1, -2)
    if allowed is not None:
        t, s = allowed.shape[1:]
        by_head = scores.view(*scores.shape[:2], scores.shape[2] // t, t, s)
        by_head.masked_fill_(~allowed[:, None, None], -math.inf)
    return scores
