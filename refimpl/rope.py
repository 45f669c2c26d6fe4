"""Rotary position embedding: a query and a key meet at an angle that depends on their distance."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from refimpl.architecture import RopeScaling


def frequencies(head_dim: int, theta: float, scaling: "RopeScaling | None" = None) -> Tensor:
    """Radians per position of each pair, shape ``[D/2]`` in float64: ``theta ** (-2 i / D)``.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2. ``scaling`` slows them for a longer
    context; see :class:`refimpl.architecture.RopeScaling`.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"rotation works on pairs: head_dim must be even, got {head_dim}")
    if theta <= 0:
        raise ValueError(f"the rotary base must be positive, got {theta}")
    plain = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    # llama3: wavelengths short against the original context stay, long ones are stretched fully,
    # and between the two the share of stretching falls linearly in the number of turns.
    turns = scaling.original_max_context * plain / (2 * math.pi)
    band = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / band).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


def rotary_table(
    positions: Tensor,
    head_dim: int,
    theta: float = 10_000.0,
    scaling: "RopeScaling | None" = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for the given absolute positions, each ``[*positions.shape, D/2]``.

    Angles are formed in float64: at position 100,000 a float32 angle is already off by 0.004.
    """
    if (positions < 0).any():
        raise ValueError(f"positions are absolute and start at 0, got {int(positions.min())}")
    return _turns(positions, head_dim, theta, scaling, dtype)


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x_BHTD`` with element ``i`` rotated against element ``i + D/2`` (half-split pairing).

    ``cos`` and ``sin`` are ``[T, D/2]``, one position a row, or broadcast over leading axes
    (``[B, 1, T, D/2]`` for positions that differ by row). The result keeps the input's dtype.
    Raises ``ValueError`` for integers, an odd head dim and tables of another width.
    """
    _check(x_BHTD, cos, sin)
    first, second = x_BHTD.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(
        x_BHTD.dtype
    )


def rotate_by(
    x_BHTD: Tensor,
    delta_T: Tensor,
    theta: float = 10_000.0,
    scaling: "RopeScaling | None" = None,
) -> Tensor:
    """``x_BHTD``, already rotated to some positions, rotated on by ``delta_T`` more (half-split).

    Rotations compose, ``R(p + delta) = R(delta) R(p)``, so the positions themselves need not be
    known; a negative ``delta`` turns back. Computed in float32 or wider, returned in the input's
    dtype. Raises ``ValueError`` for integers: codes of a quantised key are not numbers to rotate.
    """
    if not x_BHTD.is_floating_point():
        raise ValueError(f"only floating point can be rotated, got {x_BHTD.dtype}: dequantise it")
    wide = torch.promote_types(x_BHTD.dtype, torch.float32)
    return rotate(x_BHTD, *_turns(delta_T, x_BHTD.shape[-1], theta, scaling, wide))


def rotate_interleaved(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The other convention: element ``2 i`` is rotated against element ``2 i + 1``.

    It is the same map after a permutation of the axis ``D``, so weights trained for one give
    wrong scores under the other, except at position 0, where both are the identity.
    """
    _check(x_BHTD, cos, sin)
    even, odd = x_BHTD[..., ::2], x_BHTD[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return pairs.flatten(-2).to(x_BHTD.dtype)


def interleaved_to_half_split(weight: Tensor, num_heads: int) -> Tensor:
    """A projection ``[heads * D, ...]`` reordered from interleaved pairs to half-split pairs.

    After it, :func:`rotate` on the projected vectors gives the scores that
    :func:`rotate_interleaved` gives before it.
    """
    rows = weight.shape[0]
    if num_heads < 1 or rows % (2 * num_heads):
        raise ValueError(f"{rows} rows cannot be split into {num_heads} heads of an even width")
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _turns(
    by: Tensor, head_dim: int, theta: float, scaling: "RopeScaling | None", dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[*by.shape, D/2]`` of a turn by that many positions, of either sign."""
    angles = by.double()[..., None] * frequencies(head_dim, theta, scaling)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if not x.is_floating_point():
        raise ValueError(f"only floating point can be rotated, got {x.dtype}")
    D = x.shape[-1]
    if D % 2:
        raise ValueError(f"rotation works on pairs: head dim must be even, got {D}")
    for table in (cos, sin):
        if 2 * table.shape[-1] != D:
            raise ValueError(f"head dim {D} needs a table of width {D // 2}, got {table.shape[-1]}")
