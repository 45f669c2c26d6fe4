"""The book's figures: drawn from data by code, committed as SVG.

``figures.names()`` lists them, ``figures.get(name)`` is one :class:`~figures.record.Record`;
``alt``, ``data``, ``draw``, ``svg`` and ``markdown`` are short ways to its parts. ``python -m
figures`` writes every SVG, ``python -m figures --check`` compares them with what is committed.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from figures.record import Data, Record

DRAWN_WITH = "3.11.2"
"""The matplotlib that drew the committed files; another may place type differently."""


def catalogue() -> dict[str, Record]:
    """Every figure of the book by name, in the order of the chapters."""
    from figures import (
        ch01,
        ch02,
        ch03,
        ch04,
        ch07,
        ch07_blocks,
        ch09,
        ch09_bytes,
        ch09_tiles,
        ch11,
        ch11_gains,
    )

    modules = (
        *(ch01, ch02, ch03, ch04, ch07, ch07_blocks),
        *(ch09, ch09_tiles, ch09_bytes, ch11, ch11_gains),
    )
    return {record.name: record for module in modules for record in module.FIGURES}


def names() -> list[str]:
    """The figures' names, in the order of the chapters."""
    return list(catalogue())


def get(name: str) -> Record:
    """The figure of that name; an unknown name is a ``ValueError`` that suggests near ones."""
    known = catalogue()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise ValueError(f"unknown figure {name!r}: did you mean {', '.join(near)}?")
    return known[name]


def alt(name: str) -> str:
    """What the figure shows, in words."""
    return get(name).alt


def data(name: str) -> Data:
    """The numbers the figure is drawn from."""
    return get(name).data()


def draw(name: str) -> Figure:
    """The figure, freshly drawn."""
    return get(name).draw()


def svg(name: str) -> bytes:
    """The figure as SVG, the same bytes on every run."""
    return get(name).svg()


def markdown(name: str) -> str:
    """The line with which a chapter embeds the figure."""
    return get(name).markdown
