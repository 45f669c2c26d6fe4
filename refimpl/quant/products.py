"""``x @ weight.T`` from the codes of ``weight``.

The kernels used here are torch's own but private: its compiler calls them. Where one is missing, or
the shape or the dtype is not its own, the matrix is written out and multiplied: the same values,
without the gain.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from refimpl.quant.weights import Int4Weights, Int8Weights, quantise_int4, quantise_int8

INT4_GROUPS = (32, 64, 128, 256)  # what torch's kernel takes
# Multiples in which both kernels are known to be right. The one for int8 reads beyond the end of
# other rows in bfloat16 without a word: NaN at best.
ROWS, COLUMNS = 16, 32


class QuantisedMatrix:
    """``matrix(x)`` is ``x @ weights.dequantise().T``, for ``x`` [..., columns] in their dtype.

    At batch 1 a product takes about as long as reading the matrix, so fewer bytes are less time.
    With ``plain``, or where torch has no kernel for it, the matrix is written out each time.
    """

    def __init__(self, weights: Int8Weights | Int4Weights, *, plain: bool = False) -> None:
        self.shape, self.dtype = weights.shape, weights.scales.dtype
        self.is_fast = not plain and _fits(weights)
        self._weights = None if self.is_fast else weights
        self._group = weights.group if isinstance(weights, Int4Weights) else None
        self._packed = _pack(weights) if self.is_fast else ()

    @property
    def num_bytes(self) -> int:
        """Bytes that hold the matrix, codes and scales; without a kernel, a byte for every code."""
        tensors = self._packed if self.is_fast else vars(self._weights).values()
        return sum(tensor.nbytes for tensor in tensors)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype or x.shape[-1] != self.shape[1]:
            raise ValueError(
                f"x must be {self.dtype} with {self.shape[1]} columns, got {x.dtype} of shape "
                f"{tuple(x.shape)}"
            )
        if not self.is_fast:
            return F.linear(x, self._weights.dequantise())
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return _multiply(rows, *self._packed, self._group).reshape(*x.shape[:-1], self.shape[0])


def can_multiply(bits: int, dtype: torch.dtype) -> bool:
    """Whether torch has a kernel for ``dtype`` times codes of 8 or 4 bits, and it runs here."""
    if isinstance(bits, bool) or bits not in (4, 8):
        raise ValueError(f"weights are kept in 8 or 4 bits, got {bits!r}")
    sample = torch.ones(ROWS, COLUMNS, dtype=dtype)
    weights = quantise_int8(sample) if bits == 8 else quantise_int4(sample)
    group = None if bits == 8 else weights.group
    try:
        return _multiply(sample[:1], *_pack(weights), group).shape == (1, ROWS)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def _fits(weights: Int8Weights | Int4Weights) -> bool:
    """Whether torch's kernel takes this shape and dtype."""
    even = weights.shape[0] % ROWS == 0 and weights.shape[1] % COLUMNS == 0
    if isinstance(weights, Int8Weights):
        return even and can_multiply(8, weights.scales.dtype)
    return even and weights.group in INT4_GROUPS and can_multiply(4, weights.scales.dtype)


def _pack(weights: Int8Weights | Int4Weights) -> tuple[Tensor, Tensor]:
    """Codes and scales as the kernels read them."""
    if isinstance(weights, Int8Weights):
        return weights.codes, weights.scales
    # Two codes in a byte; the two numbers of a group side by side, [groups, rows, 2].
    codes = torch._convert_weight_to_int4pack_for_cpu(weights.codes.to(torch.int32), 1)
    scales = torch.stack((weights.scales, weights.middles), dim=-1)
    return codes, scales.transpose(0, 1).contiguous()


def _multiply(rows: Tensor, codes: Tensor, scales: Tensor, group: int | None) -> Tensor:
    if group is None:
        return torch._weight_int8pack_mm(rows, codes, scales)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, codes, group, scales)
