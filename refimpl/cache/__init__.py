"""Stored keys and values: the protocol, and the caches that follow it.

``protocol`` says what a model needs of a cache; ``contiguous`` holds the two simplest ones;
``slots`` is a pool that several sequences share, with positions that can move, and ``labels``
its bookkeeping.
"""

from refimpl.cache.contiguous import ConcatenatingCache, ContiguousCache
from refimpl.cache.protocol import KVCache, Lengths
from refimpl.cache.slots import SlotCache

__all__ = ["ConcatenatingCache", "ContiguousCache", "KVCache", "Lengths", "SlotCache"]
