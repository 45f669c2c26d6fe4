"""The same decoder in fewer, larger kernels."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refimpl.model.decoder import MLP, Attention, Decoder, Step
from refimpl.rope import rotate


class FusedAttention(Attention):
    """The same function in fewer, larger kernels: one matrix for q, k and v, and torch's SDPA.

    At batch 1 a decode step is a few hundred matrix-vector products, each too short to pay for its
    own launch, so fewer of them is what makes it faster.
    """

    def __init__(self, plain: Attention) -> None:
        nn.Module.__init__(self)
        self.arch, self.o = plain.arch, plain.o
        self.qkv = _stack(plain.q, plain.k, plain.v)

    def project(self, x_BTM: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        H, G = self.arch.num_query_heads, self.arch.num_kv_heads
        heads = self.qkv(x_BTM).unflatten(-1, (H + 2 * G, self.arch.head_dim)).transpose(1, 2)
        rotated = rotate(heads[:, : H + G], step.cos, step.sin)
        return rotated[:, :H], rotated[:, H:], heads[:, H + G :]

    def mix(self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, step: Step) -> Tensor:
        B, H, T, D = q_BHTD.shape
        G, S = k_BGSD.shape[1:3]
        if step.mask_BTS is not None:  # ragged rows may hold NaN in slots not yet written
            return super().mix(q_BHTD, k_BGSD, v_BGSD, step)
        if T == 1:
            # One query a head: the heads of a group are R queries against the same keys.
            q_BGRD = q_BHTD.reshape(B, G, H // G, D)
            return F.scaled_dot_product_attention(q_BGRD, k_BGSD, v_BGSD).reshape(B, H, 1, D)
        # torch aligns is_causal to the top left, which is wrong as soon as S exceeds T.
        mask = None if T == S else torch.ones(T, S, dtype=torch.bool).tril(S - T)
        return F.scaled_dot_product_attention(
            q_BHTD, k_BGSD, v_BGSD, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )


class FusedMLP(MLP):
    """The same function with gate and up in one matrix."""

    def __init__(self, plain: MLP) -> None:
        nn.Module.__init__(self)
        self.gate_up, self.down = _stack(plain.gate, plain.up), plain.down

    def forward(self, x_BTM: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BTM).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def fuse(model: Decoder) -> Decoder:
    """A decoder that computes what ``model`` does, faster at small batches; ``model`` is unchanged.

    Stacked matrices are copies; everything else is shared with ``model``.
    """
    fused = copy.copy(model)
    fused._modules = dict(model._modules)
    fused.layers = nn.ModuleList()
    for plain in model.layers:
        layer = copy.copy(plain)
        layer._modules = dict(plain._modules)
        layer.attention, layer.mlp = FusedAttention(plain.attention), FusedMLP(plain.mlp)
        fused.layers.append(layer)
    return fused


def _stack(*parts: nn.Linear) -> nn.Linear:
    rows = torch.cat([part.weight.detach() for part in parts])
    stacked = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    stacked.weight = nn.Parameter(rows, requires_grad=False)
    return stacked
