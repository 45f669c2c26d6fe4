"""Stored keys and values: the protocol, and the caches that follow it.

``protocol`` says what a model needs of a cache; ``contiguous`` holds the two simplest ones;
``paged`` is the one whose rows are block tables, over the memory in ``pool``; ``rows`` is what
these three share.
``slots`` is a pool of single slots that several sequences share, with positions that can move, and
``labels`` its bookkeeping.
"""

from refimpl.cache.contiguous import ConcatenatingCache, ContiguousCache
from refimpl.cache.paged import PagedCache
from refimpl.cache.pool import BlockPool
from refimpl.cache.protocol import KVCache, Lengths
from refimpl.cache.slots import SlotCache

__all__ = [
    "BlockPool",
    "ConcatenatingCache",
    "ContiguousCache",
    "KVCache",
    "Lengths",
    "PagedCache",
    "SlotCache",
]
