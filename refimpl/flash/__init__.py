"""Attention in tiles, with the interface of :mod:`refimpl.attention` and memory linear in length.

``online`` is the running softmax, ``schedule`` says which tiles are visited, ``tiled`` computes
them, forward and backward, and ``merging`` puts results over parts of the keys together.
"""

from refimpl.flash.merging import merge
from refimpl.flash.online import Folded, Running, absorb, finish, fold, start
from refimpl.flash.schedule import Tile, tiles
from refimpl.flash.tiled import attend

__all__ = [
    "Folded",
    "Running",
    "Tile",
    "absorb",
    "attend",
    "finish",
    "fold",
    "merge",
    "start",
    "tiles",
]
