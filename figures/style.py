"""One look for every figure: palette, type, sizes, and how memory and time are drawn.

A figure is 360 points wide, which a browser shows as 480 pixels; squeezed to a phone's 358 pixels
its smallest type is still 9 pixels high. Diagrams are drawn on a canvas measured in points whose
origin is the top left corner, charts on axes placed in the same points.

Colours mean the same thing everywhere: K, V, queries, weights, work done for the first time and
work done again. Their lightness rises in even steps, so that a grey print keeps them apart.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

INK = "#1b1f24"
"""Text and outlines."""
K = "#173f80"
"""Keys, wherever they are stored, read or computed."""
QUERY = "#ae3f86"
"""Queries, and the row of attention that belongs to one."""
NEW = "#1d987b"
"""Work done for the first time; what has just been written."""
RECOMPUTED = "#e58a62"
"""Work done before and done again; what is wrong or wasted."""
V = "#f3c24f"
"""Values, wherever they are stored, read or computed."""
WEIGHTS = "#dee3e9"
"""Parameters of the model."""
PAPER = "#ffffff"
MUTED = "#5b6470"
"""Secondary text: units, captions inside a figure."""
FAINT = "#aab2bd"
"""Hairlines, grids, empty slots."""

PALETTE = {
    "ink": INK,
    "keys": K,
    "queries": QUERY,
    "new": NEW,
    "recomputed": RECOMPUTED,
    "values": V,
    "weights": WEIGHTS,
}
SEQUENCES = (K, NEW, V, RECOMPUTED, QUERY)
"""One colour for each sequence that shares a memory, in the order in which they arrive."""

WIDTH = 360.0
MARGIN = 6.0
SMALL, BASE, TITLE = 9.5, 10.0, 12.0

RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": BASE,
    "mathtext.fontset": "dejavusans",
    "svg.fonttype": "path",
    "svg.hashsalt": "bytes-over-bandwidth",
    "text.hinting": "none",
    "path.simplify": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": SMALL,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "grid.color": WEIGHTS,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAPER,
    "figure.dpi": 72.0,
    "savefig.dpi": 72.0,
}


@contextmanager
def applied() -> Iterator[None]:
    """The book's settings for the length of a block, whatever the reader's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


# ── Colour ──────────────────────────────────────────────────────────────────────────────────────


def luminance(colour: str) -> float:
    """Relative luminance in [0, 1] (WCAG 2.2, sRGB)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Contrast ratio between 1 and 21 (WCAG 2.2)."""
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def tint(colour: str, strength: float) -> str:
    """The colour mixed with paper: ``strength`` 1 is the colour itself, 0 is white."""
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must lie between 0 and 1, got {strength}")
    return to_hex([1 - strength * (1 - c) for c in to_rgb(colour)])


def shade(colour: str, strength: float) -> str:
    """The colour mixed with black: ``strength`` 1 is the colour itself, 0 is black."""
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must lie between 0 and 1, got {strength}")
    return to_hex([strength * c for c in to_rgb(colour)])


def as_text(colour: str) -> str:
    """The colour, darkened as far as text on white paper needs (contrast 4.5)."""
    strength = 1.0
    while contrast(shade(colour, strength), PAPER) < 4.5:
        strength -= 0.02
    return shade(colour, strength)


def text_on(fill: str) -> str:
    """Ink or paper, whichever reads better on the fill."""
    return INK if contrast(INK, fill) >= contrast(PAPER, fill) else PAPER


# ── Canvas ──────────────────────────────────────────────────────────────────────────────────────


def canvas(height: float) -> tuple[Figure, Axes]:
    """A figure ``WIDTH`` by ``height`` points and axes covering it: x to the right, y down."""
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def chart(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes whose frame lies at these points, measured from the figure's top left corner."""
    total = figure.get_figheight() * 72
    axes = figure.add_axes(
        (left / WIDTH, 1 - (top + height) / total, width / WIDTH, height / total)
    )
    axes.tick_params(length=0, pad=4)
    return axes


@cache
def text_width(words: str, size: float = BASE, weight: str = "normal") -> float:
    """Advance in points of one line of text."""
    prop = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(words, prop, False)[0])


def wrap(words: str, width: float, size: float = BASE, weight: str = "normal") -> list[str]:
    """The words broken into as few lines of at most ``width`` points as it takes, evenly filled."""

    def fill(limit: float) -> list[str]:
        lines: list[str] = []
        for word in words.split(" "):
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and text_width(longer, size, weight) <= limit:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    best = fill(width)
    for limit in range(int(width), 0, -4):
        narrower = fill(limit)
        if len(narrower) > len(best):
            break
        best = narrower
    return best


def plain_chart(title: str, *, x: str, y: str, height: float) -> tuple[Figure, Axes]:
    """A figure with one chart: the takeaway above, the quantity of y under it, of x below."""
    figure, page = canvas(height)
    top = headline(page, title)
    label(page, MARGIN, top + 4, y, size=SMALL, colour=MUTED)
    axes = chart(figure, 44, top + 16, WIDTH - 44 - 18, height - top - 16 - 36)
    axes.set_xlabel(x)
    axes.grid(axis="y")
    return figure, axes


def spread(values: Mapping[str, float], low: float, high: float, gap: float) -> dict[str, float]:
    """Heights in [0, 1] for labels at these values of a log axis, at least ``gap`` apart."""
    heights = {
        words: math.log(value / low) / math.log(high / low) for words, value in values.items()
    }
    order = sorted(heights, key=heights.__getitem__)
    for below, above in itertools.pairwise(order):
        lacking = gap - (heights[above] - heights[below])
        if lacking > 0:
            heights[below] -= lacking / 2
            heights[above] += lacking / 2
    return heights


def headline(axes: Axes, takeaway: str) -> float:
    """Write the takeaway as the figure's title; the y below it."""
    lines = wrap(takeaway, WIDTH - 2 * MARGIN, TITLE, "bold")
    for row, line in enumerate(lines):
        label(axes, MARGIN, 12 + 16 * row, line, size=TITLE, weight="bold")
    return 16.0 * len(lines) + 12


def label(
    axes: Axes,
    x: float,
    y: float,
    words: str,
    *,
    colour: str = INK,
    size: float = BASE,
    ha: str = "left",
    va: str = "center",
    weight: str = "normal",
) -> Text:
    """Text in the book's type; a palette colour is darkened until it reads on paper."""
    colour = colour if colour in (PAPER, INK, MUTED) else as_text(colour)
    return axes.text(x, y, words, color=colour, fontsize=size, ha=ha, va=va, fontweight=weight)


def block(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    words: str = "",
    *,
    edge: str | None = None,
    size: float = SMALL,
    weight: str = "normal",
    hatch: str | None = None,
) -> None:
    """A square-cornered cell with its top left corner at (x, y): a slot, a block, a score."""
    edge = edge or (shade(fill, 0.8) if fill != PAPER else FAINT)
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, lw=0.8, hatch=hatch)
    )
    if words:
        _inside(axes, x + width / 2, y + height / 2, words, fill, size, weight)


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    words: str,
    *,
    size: float = BASE,
    weight: str = "normal",
) -> None:
    """A round-cornered box: something that computes."""
    edge = shade(fill, 0.75) if fill != PAPER else MUTED
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=4",
        facecolor=fill,
        edgecolor=edge,
        lw=0.9,
    )
    axes.add_patch(shape)
    _inside(axes, x + width / 2, y + height / 2, words, fill, size, weight)


def _inside(
    axes: Axes, x: float, y: float, words: str, fill: str, size: float, weight: str
) -> None:
    axes.text(
        x,
        y,
        words,
        color=text_on(fill),
        fontsize=size,
        ha="center",
        va="center_baseline",
        fontweight=weight,
    )


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = INK,
    width: float = 1.1,
    bend: float = 0.0,
) -> None:
    """An arrow from start to end; ``bend`` curves it (a fraction of its length)."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>,head_length=4,head_width=2.2",
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=0,
            shrinkB=0,
            mutation_scale=1,
            color=colour,
            lw=width,
        )
    )


def line(axes: Axes, points: Sequence[tuple[float, float]], *, colour: str = INK) -> None:
    """A thin path through the points."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=colour, lw=1.1, solid_capstyle="butt", solid_joinstyle="miter")


def memory(
    axes: Axes,
    x: float,
    y: float,
    slots: Iterable[str | None],
    *,
    slot: float = 22.0,
    height: float = 22.0,
    words: Sequence[str] = (),
) -> float:
    """A stretch of memory, slot by slot from left to right; the x where it ends.

    Each slot is the colour of what it holds (one colour per sequence, or K and V), None if it is
    reserved and empty.
    """
    for index, fill in enumerate(slots):
        text = words[index] if index < len(words) else ""
        block(axes, x + index * slot, y, slot, height, fill or PAPER, text)
    return x + slot * (index + 1)


def timeline(axes: Axes, x: float, y: float, width: float, words: str = "time") -> None:
    """The axis of time, always pointing right."""
    arrow(axes, (x, y), (x + width, y), colour=MUTED)
    label(axes, x + width, y - 8, words, colour=MUTED, size=SMALL, ha="right")


def paragraph(words: str) -> str:
    """A text written over several source lines, as one line."""
    return " ".join(textwrap.dedent(words).split())


# ── SVG ─────────────────────────────────────────────────────────────────────────────────────────

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_ID = re.compile(r'\bid="([^"]+)"')


def to_svg(figure: Figure, *, name: str, alt: str, as_paths: bool = True) -> bytes:
    """The figure as SVG that is the same on every run.

    Type becomes paths, there is no date, ids count up after ``name`` (so several figures can stand
    in one page), and coordinates are rounded to a hundredth of a point, which hides the last bit
    that differs between processors. ``alt`` becomes the title that screen readers speak. With
    ``as_paths`` False, type stays type: a fifth of the size, at the mercy of the reader's fonts.
    """
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "path" if as_paths else "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    body = buffer.getvalue().decode("utf-8")
    body = body[body.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\b(d|x|y)="[^"]*"', lambda m: _NUMBER.sub(_rounded, m[0]), body)
    body = re.sub(r"translate\([^)]*\)", lambda m: _NUMBER.sub(_rounded, m[0]), body)
    body = body.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    body = _renumbered(body, name)
    body = _opening(body, name, alt)
    return ("\n".join(text.rstrip() for text in body.splitlines()) + "\n").encode("utf-8")


def _rounded(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _renumbered(body: str, name: str) -> str:
    """Ids counted in order of appearance; ids nobody refers to dropped."""
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    names: dict[str, str] = {}
    for old in _ID.findall(body):
        if old in referred:
            names.setdefault(old, f"f{name}-{len(names)}")
    body = re.sub(
        r'\s*\bid="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", body
    )
    return re.sub(r'(href="|url\()#([^")]+)', lambda m: f"{m[1]}#{names.get(m[2], m[2])}", body)


def _opening(body: str, name: str, alt: str) -> str:
    """The svg tag with pixels for size and a title for screen readers."""
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)
    if view is None:
        raise ValueError(f"figure {name!r} was written without a viewBox")
    width, height = (round(float(side) * 4 / 3) for side in view.groups())
    tag = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" {view[0]} role="img" '
        f'aria-labelledby="f{name}-title">\n <title id="f{name}-title">{escape(alt)}</title>'
    )
    return tag + body[body.index(">") + 1 :]
