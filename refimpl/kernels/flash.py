"""FlashAttention in Triton, with the torch side around it: shapes, tiles, launches, autograd."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from refimpl.kernels import MODE
from refimpl.kernels.backward import d_key_value_kernel, d_query_kernel, delta_kernel
from refimpl.kernels.forward import forward_kernel, forward_v1_kernel
from refimpl.kernels.mode import COMPILER

MAX_HEAD_DIM = 256
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Tiles:
    """How many queries and keys a tile holds, and how a GPU runs it.

    ``block_t`` and ``block_s`` are powers of two from 16 to 256. ``num_warps`` share a tile,
    ``num_stages`` key tiles are under way at once; the interpreter ignores both. Raises
    ``ValueError`` for other values.
    """

    block_t: int = 64
    block_s: int = 64
    num_warps: int = 4
    num_stages: int = 2

    def __post_init__(self) -> None:
        bounds = {"block_t": (16, 256), "block_s": (16, 256), "num_warps": (1, 16)}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not low <= value <= high or value & (value - 1):
                raise ValueError(
                    f"{name} must be a power of two from {low} to {high}, got {value!r}"
                )
        stages = self.num_stages
        if not isinstance(stages, int) or isinstance(stages, bool) or not 1 <= stages <= 8:
            raise ValueError(f"num_stages must be a whole number from 1 to 8, got {stages!r}")


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
    result, whatever it holds. The LSE is a natural logarithm in
    float32. Any lengths and strides; widths D and E from 1 to 256, padded to powers of two of at
    least 16 on chip. float32, float16 and bfloat16; products are summed in float32, and in 16 bits
    the weights are rounded to the dtype before they meet the values.

    Differentiable in q, k and v through both results, once. Raises ``ValueError`` for inputs that
    do not fit together, and where kernels are compiled but tensors are not on a GPU.
    """
    window = check(q_BHTD, k_BGSD, v_BGSE, causal, window)
    tiles = default_tiles(q_BHTD, v_BGSE) if tiles is None else tiles
    scale = checked_scale(scale, q_BHTD.shape[3])
    mask = check_mask(mask_BTS, q_BHTD, k_BGSD)
    out, lse = _Flash.apply(q_BHTD, k_BGSD, v_BGSE, mask, causal, window, scale, tiles)
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
    tiles = default_tiles(q_BHTD, v_BGSE) if tiles is None else tiles
    scale = checked_scale(scale, q_BHTD.shape[3])
    B, H, T, _ = q_BHTD.shape
    S, E = v_BGSE.shape[2:]
    wide = {"dtype": torch.float32, "device": q_BHTD.device}
    make = torch.zeros if S == 0 else torch.empty  # without keys no pass initialises them
    out, m, total = make(B, H, T, E, **wide), make(B, H, T, **wide), make(B, H, T, **wide)
    inputs = (q_BHTD.detach(), k_BGSD.detach(), v_BGSE.detach())
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
    d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
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


def default_tiles(q: Tensor, v: Tensor) -> Tiles:
    """Square tiles that fit the shared memory of every target in the X-ray, backward included."""
    row_bytes = padded(max(q.shape[3], v.shape[3])) * q.element_size()
    block = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    return Tiles(block, block, num_warps=8 if block == 64 else 4)


def padded(width: int) -> int:
    """The power of two, at least 16, that a head dim takes on chip."""
    return max(16, triton.next_power_of_2(width))


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> int:
    """Raise ``ValueError`` for inputs that do not fit; returns the window, 0 for none."""
    for name, x in (("q_BHTD", q), ("k_BGSD", k), ("v_BGSE", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 axes, got shape {tuple(x.shape)}")
        if x.dtype not in _DTYPES or x.dtype != q.dtype:
            raise ValueError(
                f"q, k and v must share one of float32, float16 and bfloat16, {name} is {x.dtype}"
            )
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}, q_BHTD on {q.device}")
        if not 1 <= x.shape[3] <= MAX_HEAD_DIM:
            raise ValueError(f"{name} has width {x.shape[3]}: 1 to {MAX_HEAD_DIM} fit on chip")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of key-value heads, got {q.shape[1]} and {k.shape[1]}"
        )
    if window is not None:
        whole = isinstance(window, int) and not isinstance(window, bool)
        if not whole or not 1 <= window < 2**31 or not causal:
            raise ValueError(f"a window counts the query's own key and is causal, got {window!r}")
    if MODE == COMPILER and not q.is_cuda:
        raise ValueError(
            f"kernels are compiled for a GPU here, but the tensors are on {q.device}: move them, "
            "or start Python with TRITON_INTERPRET=1"
        )
    return window or 0


def check_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as bytes ``[B, T, S]``, or None; ``ValueError`` if it is of another shape."""
    if mask is None:
        return None
    (B, T), S = (q.shape[0], q.shape[2]), k.shape[2]
    if mask.dtype != torch.bool:
        raise ValueError(f"mask_BTS must be bool (True = may read), got {mask.dtype}")
    if mask.shape not in ((T, S), (1, T, S), (B, T, S)):
        raise ValueError(f"mask_BTS must be {(B, T, S)} or {(T, S)}, got {tuple(mask.shape)}")
    if mask.device != q.device:
        raise ValueError(f"mask_BTS is on {mask.device}, q_BHTD on {q.device}")
    return mask.expand(B, T, S).view(torch.uint8)


def checked_scale(scale: float | None, D: int) -> float:
    """The scale of the scores, 1 / sqrt(D) if none is given; ``ValueError`` if not finite."""
    if scale is None:
        return 1 / math.sqrt(D)
    if isinstance(scale, bool) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


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
