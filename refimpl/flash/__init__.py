"""Attention in tiles, with the interface of :mod:`refimpl.attention` and memory linear in length.

``online`` is the running softmax and ``schedule`` says which tiles are visited; ``tiled`` and
``backward`` compute them, and ``merging`` puts results over parts of the keys together. ``memory``
counts what a computation holds, ``costs`` has the formulas, ``published`` the printed figures.
"""

from refimpl.flash.merging import merge
from refimpl.flash.online import Folded, Running, absorb, finish, fold, start
from refimpl.flash.schedule import Tile, tiles
from refimpl.flash.tiled import BLOCK_S, BLOCK_T, attend

__all__ = [
    "BLOCK_S",
    "BLOCK_T",
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
