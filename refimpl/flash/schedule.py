"""Which tiles of the score matrix are visited, and which of those need a mask. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from refimpl.sizing.elements import check_count

FULL, PARTIAL, SKIPPED = "full", "partial", "skipped"


@dataclass(frozen=True)
class Tile:
    """Queries ``t_start`` to ``t_stop - 1`` against keys ``s_start`` to ``s_stop - 1``.

    ``kind`` is ``"full"`` where every query reads every key, ``"skipped"`` where none reads any,
    and ``"partial"`` otherwise.
    """

    t_start: int
    t_stop: int
    s_start: int
    s_stop: int
    kind: str

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key in the tile, masked ones included."""
        return (self.t_stop - self.t_start) * (self.s_stop - self.s_start)


def tiles(
    num_new: int,
    num_stored: int,
    block_t: int,
    block_s: int,
    *,
    causal: bool = True,
    window: int | None = None,
) -> Iterator[Tile]:
    """The score matrix ``[T, S]`` in tiles, queries outside and keys inside; all tiles, in order.

    Causality and ``window`` are those of :func:`refimpl.attention.visible`. The last tile of a row
    or a column may be smaller. Raises ``ValueError`` for sizes that are no whole numbers from 1 on
    (lengths: from 0 on) and for a window without causality.
    """
    check_count("num_new", num_new)
    check_count("num_stored", num_stored)
    check_count("block_t", block_t, least=1)
    check_count("block_s", block_s, least=1)
    if window is not None:
        check_count("window", window, least=1)
        if not causal:
            raise ValueError(f"a window needs causality, got window {window} without it")
    return (
        _tile(
            num_new,
            num_stored,
            t,
            min(t + block_t, num_new),
            s,
            min(s + block_s, num_stored),
            causal,
            window,
        )
        for t in range(0, num_new, block_t)
        for s in range(0, num_stored, block_s)
    )


def _tile(
    T: int,
    S: int,
    t_start: int,
    t_stop: int,
    s_start: int,
    s_stop: int,
    causal: bool,
    window: int | None,
) -> Tile:
    """Query t stands at position t + S - T; how far a key lies behind it decides everything."""
    nearest = t_start + S - T - (s_stop - 1)  # first query, last key
    farthest = t_stop - 1 + S - T - s_start  # last query, first key
    beyond = farthest + 1 if window is None else window  # the first distance that is too far
    if not causal or (nearest >= 0 and farthest < beyond):
        kind = FULL
    elif farthest < 0 or nearest >= beyond:
        kind = SKIPPED
    else:
        kind = PARTIAL
    return Tile(t_start, t_stop, s_start, s_stop, kind)
