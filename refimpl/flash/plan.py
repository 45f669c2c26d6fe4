"""What forward and backward share: which tiles to visit, and what a tile is made of."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from refimpl.flash.schedule import FULL, SKIPPED, Tile, tiles


@dataclass(frozen=True)
class Plan:
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


def rows_of_group(x_BHTD: Tensor, G: int, wide: torch.dtype) -> Tensor:
    """Query heads that share keys as rows of one matrix: ``[B, G, (H // G) * T, D]``."""
    B, H, T, D = x_BHTD.shape
    return x_BHTD.to(wide).reshape(B, G, H // G * T, D)


def keys_of_tile(
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


def scores_of_tile(q_rows: Tensor, k_tile: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores of a tile ``[B, G, (H // G) * t, s]``, minus infinity where a key is not allowed."""
    scores = q_rows @ k_tile.transpose(-1, -2)
    if allowed is not None:
        t, s = allowed.shape[1:]
        by_head = scores.view(*scores.shape[:2], scores.shape[2] // t, t, s)
        by_head.masked_fill_(~allowed[:, None, None], -math.inf)
    return scores
