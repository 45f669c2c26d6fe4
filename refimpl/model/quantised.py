"""The same decoder with its matrices in 8 or 4 bits: a cheaper model that nearly agrees with it."""

import copy

from torch import Tensor, nn

from refimpl.model.decoder import Decoder
from refimpl.model.packed import PackedLinear
from refimpl.quant import QuantisedMatrix, quantise_int4, quantise_int8


class QuantisedLinear(nn.Module):
    """``x @ weight.T`` with the weight in 8 bits and a scale a row, or in 4 bits by groups."""

    def __init__(self, plain: nn.Linear, bits: int, group: int) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        weight = plain.weight.detach()
        self.matrix = QuantisedMatrix(
            quantise_int8(weight) if bits == 8 else quantise_int4(weight, group)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x)


def quantise(model: Decoder, bits: int, *, group: int = 32) -> Decoder:
    """A decoder whose matrices are kept in ``bits`` bits; ``model`` is unchanged.

    With 4 bits, ``group`` columns share a scale, and the output matrix is kept in 8. Embedding and
    norms are shared with ``model``. Works on a fused decoder; quantise instead of packing.

    Raises ``ValueError`` for another number of bits, a group that does not divide the columns of
    every matrix, or a model already packed or quantised.
    """
    if isinstance(bits, bool) or bits not in (4, 8):
        raise ValueError(f"weights are kept in 8 or 4 bits, got {bits!r}")
    quantised = _quantised(model, bits, group)
    if bits == 4:
        quantised.head = QuantisedLinear(model.head, 8, group)
    return quantised


def _quantised(module: nn.Module, bits: int, group: int) -> nn.Module:
    if isinstance(module, PackedLinear | QuantisedLinear):
        raise ValueError(f"quantise the decoder before it is packed: {type(module).__name__}")
    if isinstance(module, nn.Linear):
        return QuantisedLinear(module, bits, group)
    if not module._modules:
        return module
    changed = copy.copy(module)
    changed._modules = {
        name: _quantised(child, bits, group)
        for name, child in module._modules.items()
        if not (bits == 4 and name == "head")
    }
    return changed
