"""Weights in 8 and 4 bits: what is stored, and products with it.

``weights`` is the plain reference: codes and scales, and back. ``products`` multiplies by the codes
without writing the weights out again, where torch has a kernel for it.
"""

from refimpl.quant.products import QuantisedMatrix, can_multiply
from refimpl.quant.weights import Int4Weights, Int8Weights, quantise_int4, quantise_int8

__all__ = [
    "Int4Weights",
    "Int8Weights",
    "QuantisedMatrix",
    "can_multiply",
    "quantise_int4",
    "quantise_int8",
]
