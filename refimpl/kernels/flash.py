"""FlashAttention in Triton, with the torch side around it: shapes, tiles, launches, autograd."""

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from refimpl.attention import checked_scale
from refimpl.kernels.backward import d_key_value_kernel, d_query_kernel, delta_kernel
from refimpl.kernels.forward import forward_kernel, forward_v1_kernel
from refimpl.kernels.inputs import (
    Tiles,
    check,
    check_mask,
    check_tiles,
    padded,
)


def attend(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    mask_BTS: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention output ``[B, H, T, E]``, and with ``return_lse`` the log-sum-exp ``[B, H, T]``.

    As :func:`refimpl.attention.attend`: query head ``h`` reads key-value head ``h // (H // G)``;
    causality and ``window`` (the query's own key counts) are aligned to the bottom right; a bool
    ``mask_BTS`` (True = may read; ``[T, S]`` or ``[B, T, S]``) is applied on top; a row that may
    read nothing gives 0 with LSE minus infinity. A key that no query may read never reaches the
    result, whatever it holds. The LSE is a natural logarithm in float32. Any lengths and strides;
    widths D and E from 1 to 256, padded to powers of two of at least 16 on chip. float32, float16
    and bfloat16; products are summed in float32, and in 16 bits the weights are rounded to the
    dtype before they meet the values.

    Differentiable in q, k and v through both results, once. Raises ``ValueError`` for inputs that
    do not fit together, and where kernels are compiled but tensors are not on a GPU.
    """
    window = check(q_BHTD, k_BGSD, v_BGSE, causal, window)
    tiles = check_tiles(tiles, q_BHTD, v_BGSE)
    scale = checked_scale(scale, q_BHTD.shape[3])
    mask = check_mask(mask_BTS, q_BHTD, k_BGSD)
    # A kernel sees the memory of a view, not the sign that torch keeps beside it.
    q, k, v = (x.resolve_neg() for x in (q_BHTD, k_BGSD, v_BGSE))
    out, lse = _Flash.apply(q, k, v, mask, causal, window, scale, tiles)
    return (out, lse) if return_lse else out


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, *,
    causal: bool, window: int, scale: float, tiles: Tiles,
) -> None:  # fmt: skip
    """Fill ``out`` (any strides) and a contiguous float32 ``lse``; window 0 means none."""
    B, H, T, _ = q.shape
    grid = (B * H * triton.cdiv(T, tiles.block_t),)
    settings = _settings(q, k, v, out, causal, window, tiles) | {"O_INNER": out.stride(3)}
    numbers = (scale / math.log(2), H, T, k.shape[2], window)
    strides = (*_outer(q, k, v, out), *_mask_strides(mask))
    _launch(forward_kernel, grid, q, k, v, mask, out, lse, *strides, *numbers, **settings)


def attend_v1(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The same forward pass in the loop order of the first FlashAttention, for comparison.

    One program per head walks over key tiles and, for each, over all query tiles, whose output,
    running maximum and sum it reads from memory and writes back. No gradient.
    """
    window = check(q_BHTD, k_BGSD, v_BGSE, causal, window)
    tiles = check_tiles(tiles, q_BHTD, v_BGSE)
    scale = checked_scale(scale, q_BHTD.shape[3])
    B, H, T, _ = q_BHTD.shape
    S, E = v_BGSE.shape[2:]
    wide = {"dtype": torch.float32, "device": q_BHTD.device}
    make = torch.zeros if S == 0 else torch.empty  # without keys no pass initialises them
    out, m, total = make(B, H, T, E, **wide), make(B, H, T, **wide), make(B, H, T, **wide)
    inputs = tuple(x.detach().resolve_neg() for x in (q_BHTD, k_BGSD, v_BGSE))
    settings = _settings(*inputs, out, causal, window, tiles) | {"O_INNER": 1}
    numbers = (scale / math.log(2), H, T, S, window)
    tensors = (*inputs, out, m, total)
    _launch(forward_v1_kernel, (B * H,), *tensors, *_outer(*inputs, out), *numbers, **settings)
    lse = (m + total.log2()) * math.log(2)
    out = out.to(q_BHTD.dtype)
    return (out, lse) if return_lse else out


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, window: int,
        scale: float, tiles: Tiles,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        B, H, T, _ = q.shape
        out = torch.empty(B, H, T, v.shape[3], dtype=q.dtype, device=q.device)
        lse = torch.empty(B, H, T, dtype=torch.float32, device=q.device)
        ctx.options = {"causal": causal, "window": window, "scale": scale, "tiles": tiles}
        forward(q, k, v, mask, out, lse, **ctx.options)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(*ctx.saved_tensors, d_out, d_lse, **ctx.options), *[None] * 5


def backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, d_out: Tensor,
    d_lse: Tensor, *, causal: bool, window: int, scale: float, tiles: Tiles,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v from those of the output and of the log-sum-exp."""
    (B, H, T), (G, S) = q.shape[:3], k.shape[1:3]
    make = torch.empty if H else torch.zeros  # without heads nothing is launched
    d_q, d_k, d_v = (make(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if not H:
        return d_q, d_k, d_v
    d_out = d_out.resolve_neg()
    delta = torch.empty_like(lse)
    query_grid = (B * H * triton.cdiv(T, tiles.block_t),)
    settings = _settings(q, k, v, d_out, causal, window, tiles) | {"G_INNER": d_out.stride(3)}
    own = {name: settings[name] for name in ("E", "BLOCK_T", "BLOCK_E", "WIDE", "G_INNER")}
    strides = (*out.stride()[:3], *d_out.stride()[:3], H, T)
    inner = out.stride(3)
    tensors = (out, d_out, d_lse.contiguous(), delta)
    _launch(delta_kernel, query_grid, *tensors, *strides, **own, O_INNER=inner)
    given = (q, k, v, mask, d_out, lse, delta)
    numbers = (*_outer(q, k, v, d_out), *_mask_strides(mask), scale, H, T, S, window)
    _launch(d_query_kernel, query_grid, *given, d_q, *numbers, **settings)
    key_grid = (B * G * triton.cdiv(S, tiles.block_s),)
    _launch(d_key_value_kernel, key_grid, *given, d_k, d_v, *numbers, **settings)
    return d_q, d_k, d_v


def _mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if mask is None else mask.stride()


def _outer(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _settings(
    q: Tensor, k: Tensor, v: Tensor, like_out: Tensor, causal: bool, window: int, tiles: Tiles
) -> dict[str, Any]:
    """The compile-time constants that all kernels take."""
    D, E = q.shape[3], v.shape[3]
    rows = {"q": tiles.block_t, "k": tiles.block_s, "v": tiles.block_s, "out": tiles.block_t}
    reach = [
        (rows[name] - 1) * x.stride(2) + (padded(x.shape[3]) - 1) * x.stride(3)
        for name, x in (("q", q), ("k", k), ("v", v), ("out", like_out))
    ]
    return {
        "GROUP": q.shape[1] // k.shape[1],
        "D": D,
        "E": E,
        "BLOCK_T": tiles.block_t,
        "BLOCK_S": tiles.block_s,
        "BLOCK_D": padded(D),
        "BLOCK_E": padded(E),
        "CAUSAL": causal,
        "WINDOWED": window > 0,
        "WIDE": max(reach) >= 2**31,
        "Q_INNER": q.stride(3),
        "K_INNER": k.stride(3),
        "V_INNER": v.stride(3),
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }


def _launch(kernel: Any, grid: tuple[int], *arguments: Any, **settings: Any) -> None:
    if grid[0]:  # a grid of no programs is an error on a GPU
        kernel[grid](*arguments, **settings)
