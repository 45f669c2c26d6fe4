"""The same decoder with its matrices in the order in which the processor multiplies them.

The two operators used here are torch's own but private: its compiler calls them. Where they are
missing, or the processor or dtype is not theirs, the model stays as it is.
"""

import copy

import torch
from torch import Tensor, nn

from refimpl.model.decoder import Decoder


class PackedLinear(nn.Module):
    """``x @ weight.T`` from a copy of the weight in oneDNN's blocked layout.

    A row-major matrix is rearranged block by block in every product before vector instructions can
    use it. That is nothing for a thousand rows of ``x``, and between nothing and half the time for
    one, depending on the machine (benchmarks/README.md). Here it happens once. The copy is opaque:
    it cannot be saved, moved or cast, so pack last.
    """

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self._blocked = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._blocked, None, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch and this processor multiply blocked matrices of ``dtype``."""
    try:
        sample = nn.Linear(2, 3, bias=False).to(dtype).requires_grad_(False)
        return PackedLinear(sample)(torch.ones(1, 2, dtype=dtype)).shape == (1, 3)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def pack(model: Decoder) -> Decoder:
    """A decoder that computes what ``model`` does, faster; ``model`` is unchanged.

    At batch 1 its products take half the time. Matrices are copies; the rest is shared with
    ``model``. Gives ``model`` itself where :func:`can_pack` is false.
    """
    return _packed(model) if can_pack(model.dtype) else model


def _packed(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        return PackedLinear(module)
    if not module._modules:
        return module
    packed = copy.copy(module)
    packed._modules = {name: _packed(child) for name, child in module._modules.items()}
    return packed
