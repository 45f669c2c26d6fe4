"""Stored keys and values: the protocol, and the caches that follow it.

``protocol`` says what a model needs of a cache; ``contiguous`` holds the two simplest ones.
"""

from refimpl.cache.contiguous import ConcatenatingCache, ContiguousCache
from refimpl.cache.protocol import KVCache, Lengths

__all__ = ["ConcatenatingCache", "ContiguousCache", "KVCache", "Lengths"]
