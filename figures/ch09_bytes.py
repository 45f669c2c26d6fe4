"""Chapter 09: what attention in tiles moves by the size of a tile, and where it keeps a tile."""

from __future__ import annotations

from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.ch04 import REGISTERS, SHARED
from figures.record import Data, Record
from figures.style import BASE, INK, MARGIN, MUTED, NEW, PAPER, QUERY, RECOMPUTED, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl.sizing.elements import packed
from refimpl.units import format_bytes


def _costs() -> Any:
    """The closed forms; their package brings torch, which no figure needs before it is drawn."""
    from refimpl.flash import costs

    return costs


# ── Bytes against the tile ──────────────────────────────────────────────────────────────────────


def _ratio(num_tokens: int, head_dim: int, block_t: int) -> float:
    """Accesses in tiles over those of three kernels that read every operand once."""
    costs = _costs()
    tiled = costs.queries_outside_accesses(num_tokens, head_dim, block_t)
    return tiled.total / costs.standard_accesses(num_tokens, head_dim).total


@cache
def bytes_data(num_tokens: int = 8192, head_dims: tuple[int, ...] = (64, 128)) -> Data:
    """Accesses relative to the naive form by query tile, and the smallest tile with fewer."""
    blocks = [2**power for power in range(2, 10)]
    return {
        "num_tokens": num_tokens,
        "blocks": blocks,
        "curves": {d: [_ratio(num_tokens, d, block) for block in blocks] for d in head_dims},
        "even": {
            d: next(b for b in range(1, num_tokens + 1) if _ratio(num_tokens, d, b) <= 1)
            for d in head_dims
        },
    }


_CURVES = (NEW, QUERY)


def _plot_bytes(data: Data, title: str) -> Figure:
    figure, plot = style.plain_chart(
        title, x="queries in a tile", y="bytes moved, naive form = 1", height=340
    )
    blocks = data["blocks"]
    plot.set_xscale("log", base=2)
    plot.set_yscale("log", base=2)
    plot.axhspan(1, 32, color=style.tint(RECOMPUTED, 0.22), lw=0)
    plot.axhline(1, color=MUTED, lw=1.0, ls=(0, (4, 2)))
    for (head_dim, curve), colour in zip(data["curves"].items(), _CURVES, strict=True):
        plot.plot(blocks, curve, color=colour, lw=2.6, marker="o", ms=5, zorder=3)
        even = data["even"][head_dim]
        plot.plot([even], [1], "o", color=PAPER, ms=8, mec=INK, zorder=5)
        above = head_dim == max(data["curves"])
        plot.text(
            blocks[1] * 1.15 if above else blocks[0],
            curve[1] * 1.25 if above else 0.35,
            f"head dim {head_dim}: even at {even}",
            color=style.as_text(colour),
            fontsize=BASE,
            fontweight="bold",
            va="bottom" if above else "center",
        )
    plot.set_xlim(blocks[0] / 1.15, blocks[-1] * 1.15)
    plot.set_ylim(1 / 32, 32)
    plot.set_xticks(blocks, [str(block) for block in blocks])
    powers = range(-5, 6)
    names = [str(2**power) if power >= 0 else f"1/{2**-power}" for power in powers]
    plot.set_yticks([2.0**power for power in powers], names)
    plot.minorticks_off()
    words = (
        f"{data['num_tokens']:,} tokens, one head, not causal; naive: 4N² + 4Nd",
        "moves more than the naive form",
    )
    plot.text(blocks[-1], 24, words[1], fontsize=SMALL, ha="right", va="center")
    plot.text(blocks[0], 1 / 27, words[0], fontsize=SMALL, color=MUTED, va="center")
    return figure


BYTES = Record(
    name="09_bytes",
    data=bytes_data,
    takeaway=lambda d: (
        "A tile of "
        + ", of ".join(
            f"{block} queries breaks even at head dim {head_dim}"
            if head_dim == min(d["even"])
            else f"{block} at {head_dim}"
            for head_dim, block in d["even"].items()
        )
        + "; twice the queries, about half the bytes"
    ),
    describe=lambda d: (
        f"""
        Elements that attention in tiles reads and writes, against queries in a tile from
        {d["blocks"][0]} to {d["blocks"][-1]}, as a share of the naive form's 4N² + 4Nd, for one
        head of {d["num_tokens"]:,} tokens without causality; both axes double from tick to tick.
        """
        + " ".join(
            f"At head dim {head_dim} it falls from {curve[0]:.2f} to {curve[-1]:.3f}, is "
            f"{curve[d['blocks'].index(128)]:.2f} at 128 queries, and first falls below 1 at "
            f"{d['even'][head_dim]}."
            for head_dim, curve in d["curves"].items()
        )
    ),
    plot=_plot_bytes,
)

# ── Where things live ───────────────────────────────────────────────────────────────────────────


@cache
def places_data(
    num_tokens: int = 8192,
    head_dim: int = 128,
    block_t: int = 128,
    block_s: int = 64,
    stages: int = 2,
    num_warps: int = 8,
    dtype: str = "bf16",
) -> Data:
    """Bytes that one program of the forward pass holds, by place, and what lies in HBM for it.

    Registers and shared memory are of one multiprocessor of an H100. Scores and statistics are in
    fp32; the weights are rounded to ``dtype`` before they meet the values.
    """
    registers = {
        "accumulator": packed(block_t * head_dim, "fp32"),
        "scores": packed(block_t * block_s, "fp32"),
        "weights": packed(block_t * block_s, dtype),
        "m and l": packed(2 * block_t, "fp32"),
    }
    tile = packed(block_s * head_dim, dtype)
    shared = {"Q": packed(block_t * head_dim, dtype), "K": tile * stages, "V": tile * stages}
    matrix = packed(num_tokens * head_dim, dtype)
    return {
        "num_tokens": num_tokens,
        "head_dim": head_dim,
        "block_t": block_t,
        "block_s": block_s,
        "stages": stages,
        "dtype": dtype,
        "num_warps": num_warps,
        "registers": registers,
        "shared": shared,
        "register_bytes": sum(registers.values()),
        "shared_bytes": sum(shared.values()),
        "chip_bytes": sum(registers.values()) + sum(shared.values()),
        "registers_per_thread": sum(registers.values()) / 4 / (32 * num_warps),
        "capacity": {"registers": REGISTERS, "shared": SHARED},
        "hbm": {
            **{name: matrix for name in ("Q", "K", "V", "out")},
            "LSE": packed(num_tokens, "fp32"),
        },
        "score_bytes": _costs().score_bytes(num_tokens, num_tokens, dtype=dtype),
    }


_Part = tuple[str, int, str]


def _plot_places(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(382)
    top = style.headline(axes, title) + 12
    held, room = data["registers"], data["capacity"]
    unit = (style.WIDTH - 2 * MARGIN) / room["registers"]
    soft = (style.tint(NEW, 0.75), style.tint(QUERY, 0.70), style.tint(QUERY, 0.35), NEW)
    parts = [
        (name if size * unit > 40 else "", size, fill)
        for (name, size), fill in zip(held.items(), soft, strict=True)
    ]
    words = (
        f"registers: {format_bytes(data['register_bytes'])} of {format_bytes(room['registers'])}"
    )
    style.label(axes, MARGIN, top, words, weight="bold")
    beside = [f"{name} {format_bytes(held[name])}" for name in ("weights", "m and l")]
    _row(axes, top + 10, parts, unit, room["registers"], beside)
    y, shared = top + 68, data["shared"]
    words = f"shared memory: {format_bytes(data['shared_bytes'])} of {format_bytes(room['shared'])}"
    style.label(axes, MARGIN, y, words, weight="bold")
    tile = shared["K"] // data["stages"]
    parts = [("Q", shared["Q"], QUERY), *[("K", tile, KEYS), ("V", tile, VALUES)] * data["stages"]]
    beside = [f"K and V tiles, {format_bytes(tile)} each,", f"{data['stages']} of both under way"]
    _row(axes, y + 10, parts, unit, room["shared"], beside)
    y = _notes(axes, y + 58, data)
    fills = {"Q": QUERY, "K": KEYS, "V": VALUES, "out": NEW}
    parts = [("", data["hbm"][name], fill) for name, fill in fills.items()]
    scores = [(name, data["score_bytes"], RECOMPUTED) for name in ("scores", "weights")]
    each = format_bytes(data["hbm"]["Q"])
    beside = [f"Q, K, V and out, {each} each", f"LSE, {format_bytes(data['hbm']['LSE'])}"]
    small = sum(data["hbm"].values())
    whole = sum(size for _, size, _ in parts + scores)
    unit = (style.WIDTH - 2 * MARGIN) / whole
    words = f"HBM, {data['num_tokens']:,} tokens of one head: {format_bytes(small)}"
    style.label(axes, MARGIN, y, words, weight="bold")
    _row(axes, y + 10, parts, unit, 0, beside)
    words = f"HBM, the same without tiles: {format_bytes(whole)}"
    style.label(axes, MARGIN, y + 62, words, weight="bold")
    _row(axes, y + 72, parts + scores, unit, 0, [])
    return figure


def _row(
    axes: Axes, y: float, parts: list[_Part], unit: float, room: int, beside: list[str]
) -> None:
    """What lies in a place, to scale, inside an outline of all it has; a text beside it."""
    x, height = MARGIN, 32.0
    for name, size, fill in parts:
        width = size * unit
        style.block(axes, x, y, width, height, fill, edge=PAPER if width > 4 else fill)
        colour = style.text_on(fill)
        shown = [name, format_bytes(size)] if width > 40 else [name]
        for line, words in enumerate(shown if name else []):
            at = y + height / 2 + 13 * (line - (len(shown) - 1) / 2)
            style.label(axes, x + width / 2, at, words, size=SMALL, ha="center", colour=colour)
        x += width
    if room:
        style.block(axes, MARGIN, y, room * unit, height, "none", edge=MUTED)
    for line, words in enumerate(beside):
        at = y + height / 2 + 13 * (line - (len(beside) - 1) / 2)
        style.label(axes, x + 6, at, words, size=SMALL)


def _notes(axes: Axes, y: float, data: Data) -> float:
    """What the numbers are of; the y below."""
    rows = (
        f"one multiprocessor of an H100; a tile of {data['block_t']} × {data['block_s']}, "
        f"head dim {data['head_dim']}",
        f"Q, K, V, weights in {data['dtype']}; scores, m, l, accumulator in fp32",
        f"{data['registers_per_thread']:.0f} registers a thread with {data['num_warps']} warps, "
        "before addresses",
        "this is what the algorithm asks for; a compiler places it",
    )
    for line, words in enumerate(rows):
        style.label(axes, MARGIN, y + 14 * line, words, size=SMALL, colour=MUTED)
    return y + 14 * len(rows) + 18


PLACES = Record(
    name="09_places",
    data=places_data,
    takeaway=lambda d: (
        f"A program holds {format_bytes(d['chip_bytes'])} on the chip; without tiles one head of "
        f"{d['num_tokens']:,} tokens puts {format_bytes(2 * d['score_bytes'])} more into HBM"
    ),
    describe=lambda d: (
        f"""
        Bars to scale of what one program holds for a tile of {d["block_t"]} queries by
        {d["block_s"]} keys, head dim {d["head_dim"]}, in {d["dtype"]}. Registers,
        {format_bytes(d["register_bytes"])} of {format_bytes(d["capacity"]["registers"])}:
        """
        + ", ".join(f"{name} {format_bytes(size)}" for name, size in d["registers"].items())
        + f""". Shared memory, {format_bytes(d["shared_bytes"])} of
        {format_bytes(d["capacity"]["shared"])}: Q {format_bytes(d["shared"]["Q"])} and
        {d["stages"]} tiles each of K and V, {format_bytes(d["shared"]["K"] // d["stages"])} a tile.
        HBM, on another scale, for one head of {d["num_tokens"]:,} tokens: Q, K, V and out
        {format_bytes(d["hbm"]["Q"])} each and an LSE of {format_bytes(d["hbm"]["LSE"])}; without
        tiles scores and weights of {format_bytes(d["score_bytes"])} each come on top.
        """
    ),
    plot=_plot_places,
)

FIGURES = (BYTES, PLACES)
