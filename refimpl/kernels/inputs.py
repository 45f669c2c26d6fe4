"""What the attention kernels take: tensors that fit together, tiles, a scale, a mask."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from refimpl.attention import check_window
from refimpl.kernels import MODE
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
    check_window(window, causal)
    if MODE == COMPILER and not q.is_cuda:
        raise ValueError(
            f"kernels are compiled for a GPU here, but the tensors are on {q.device}: move them, "
            "or start Python with TRITON_INTERPRET=1"
        )
    # A window of all keys hides none; a longer one would only overflow in 32-bit positions.
    return 0 if window is None else min(window, max(k.shape[2], 1))


def check_tiles(tiles: Tiles | None, q: Tensor, v: Tensor) -> Tiles:
    """The tiles given, or those that fit; ``ValueError`` for anything else."""
    if tiles is None:
        return default_tiles(q, v)
    if not isinstance(tiles, Tiles):
        raise ValueError(f"tiles must be Tiles or None, got {tiles!r}")
    return tiles


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
