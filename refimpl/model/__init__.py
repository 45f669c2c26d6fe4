"""A decoder of the Llama family, plain and faster.

``decoder`` is the one to read; ``fused`` computes the same in fewer kernels, ``packed`` the same
from weights laid out for the processor, ``quantised`` nearly the same from weights in 8 or 4 bits.
``pack(fuse(model))`` is what runs fastest with the weights as they are.
"""

from refimpl.model.decoder import MLP, Attention, Decoder, Layer, RMSNorm, Step
from refimpl.model.fused import FusedAttention, FusedMLP, fuse
from refimpl.model.packed import PackedLinear, pack
from refimpl.model.quantised import QuantisedLinear, quantise

__all__ = [
    "MLP",
    "Attention",
    "Decoder",
    "FusedAttention",
    "FusedMLP",
    "Layer",
    "PackedLinear",
    "QuantisedLinear",
    "RMSNorm",
    "Step",
    "fuse",
    "pack",
    "quantise",
]
