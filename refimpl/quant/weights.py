"""Matrices as integer codes with scales: int8 with one scale a row, int4 with two numbers a group.

A matrix is ``[rows, columns]``, as ``nn.Linear`` holds it: one row for each output.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

INT8_LEVELS = 127  # codes -127 to 127; -128 would have no opposite
INT4_LEVELS = 15  # codes 0 to 15
INT4_MIDDLE = 8


@dataclass(frozen=True)
class Int8Weights:
    """``w = code * scale``, one scale a row: ``codes`` int8 [rows, columns], ``scales`` [rows]."""

    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.codes.shape)

    def dequantise(self) -> Tensor:
        """The matrix that the codes stand for, in the dtype of the scales."""
        wide = torch.promote_types(self.scales.dtype, torch.float32)
        return (self.codes.to(wide) * self.scales.to(wide)[:, None]).to(self.scales.dtype)


@dataclass(frozen=True)
class Int4Weights:
    """``w = (code - 8) * scale + middle``: 16 even steps from a group's least value to its largest.

    ``codes`` uint8 [rows, columns] with values 0 to 15, one a byte here and two a byte once packed;
    ``scales`` and ``middles`` [rows, columns / group].
    """

    codes: Tensor
    scales: Tensor
    middles: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.codes.shape)

    @property
    def group(self) -> int:
        """Columns that share a scale and a middle."""
        return self.codes.shape[1] // self.scales.shape[1]

    def dequantise(self) -> Tensor:
        """The matrix that the codes stand for, in the dtype of the scales."""
        wide = torch.promote_types(self.scales.dtype, torch.float32)
        steps = self.codes.to(wide).unflatten(1, (-1, self.group)) - INT4_MIDDLE
        values = steps * self.scales.to(wide)[..., None] + self.middles.to(wide)[..., None]
        return values.flatten(1).to(self.scales.dtype)


def quantise_int8(weight: Tensor) -> Int8Weights:
    """The nearest codes -127 to 127, scaled so that each row's largest value is one of the ends.

    The scale has the dtype of ``weight`` and codes are chosen for the scale as it is stored, so an
    entry is off by half a step and the rounding of the scale. Raises ``ValueError`` for anything
    but a finite floating-point matrix.
    """
    wide = _wide(weight)
    scales = (wide.abs().amax(1) / INT8_LEVELS).to(weight.dtype)
    codes = (wide / _divisor(scales, wide.dtype)[:, None]).round()
    return Int8Weights(codes.clamp(-INT8_LEVELS, INT8_LEVELS).to(torch.int8), scales)


def quantise_int4(weight: Tensor, group: int = 32) -> Int4Weights:
    """The nearest of 16 even steps between the least and the largest of every ``group`` columns.

    Raises ``ValueError`` for anything but a finite floating-point matrix, or a group that does not
    divide its columns.
    """
    wide = _wide(weight)
    columns = weight.shape[1]
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or columns % group:
        raise ValueError(f"group must be an integer that divides the {columns} columns: {group!r}")
    grouped = wide.unflatten(1, (-1, group))
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = ((high - low) / INT4_LEVELS).to(weight.dtype)
    middles = (low + INT4_MIDDLE * scales.to(wide.dtype)).to(weight.dtype)
    offsets = grouped - middles.to(wide.dtype)[..., None]
    codes = (offsets / _divisor(scales, wide.dtype)[..., None]).round() + INT4_MIDDLE
    return Int4Weights(codes.clamp(0, INT4_LEVELS).to(torch.uint8).flatten(1), scales, middles)


def _wide(weight: Tensor) -> Tensor:
    if not weight.is_floating_point() or weight.dim() != 2 or not weight.numel():
        raise ValueError(
            f"weight must be a floating-point matrix, got {weight.dtype} of shape "
            f"{tuple(weight.shape)}"
        )
    if not weight.isfinite().all():
        raise ValueError("weight holds NaN or infinity: no scale fits it")
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _divisor(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales as stored; 1 where all entries are equal and every code is the middle one."""
    wide = scales.to(dtype)
    return wide.where(wide != 0, torch.ones_like(wide))
