"""A decoder of the Llama family, plain and faster.

``decoder`` is the one to read; ``fused`` computes the same in fewer kernels, ``packed`` the same
from weights laid out for the processor. ``pack(fuse(model))`` is what runs fastest.
"""

from refimpl.model.decoder import MLP, Attention, Decoder, Layer, RMSNorm, Step
from refimpl.model.fused import FusedAttention, FusedMLP, fuse
from refimpl.model.packed import PackedLinear, pack

__all__ = [
    "MLP",
    "Attention",
    "Decoder",
    "FusedAttention",
    "FusedMLP",
    "Layer",
    "PackedLinear",
    "RMSNorm",
    "Step",
    "fuse",
    "pack",
]
