"""Chapter 09: the tiles of a causal score matrix in time, and what moves in two orders of loops."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from figures import style
from figures.record import Data, Record
from figures.style import FAINT, INK, MARGIN, MUTED, NEW, PAPER, QUERY, RECOMPUTED, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl.sizing.elements import packed

# ── Tiles and time ──────────────────────────────────────────────────────────────────────────────


def assign(lengths: Sequence[int], order: Sequence[int], num_processors: int) -> list[Data]:
    """Programs started in this order, each on the processor that is free first.

    Of several free ones the lowest number takes it; a processor runs one program at a time.
    """
    free = [(0, processor) for processor in range(num_processors)]
    runs = []
    for program in order:
        start, processor = heapq.heappop(free)
        runs.append({"program": program, "processor": processor, "start": start})
        heapq.heappush(free, (start + lengths[program], processor))
    return runs


@cache
def schedule_data(num_tokens: int = 512, block: int = 64, num_processors: int = 4) -> Data:
    """Tiles of a causal score matrix by kind, and when each is worked on where."""
    from refimpl import flash

    num = -(-num_tokens // block)
    grid = [[""] * num for _ in range(num)]
    for tile in flash.tiles(num_tokens, num_tokens, block, block):
        grid[tile.t_start // block][tile.s_start // block] = tile.kind
    lengths = [sum(kind != "skipped" for kind in row) for row in grid]
    orders = {"in launch order": list(range(num)), "longest first": list(range(num))[::-1]}
    panels = []
    for name, order in orders.items():
        runs = assign(lengths, order, num_processors)
        steps = max(run["start"] + lengths[run["program"]] for run in runs)
        panels.append({"name": name, "runs": runs, "steps": steps})
    kinds = [kind for row in grid for kind in row]
    unskipped = assign([num] * num, range(num), num_processors)
    return {
        "num_tokens": num_tokens,
        "block": block,
        "num_processors": num_processors,
        "grid": grid,
        "lengths": lengths,
        "counts": {kind: kinds.count(kind) for kind in ("full", "partial", "skipped")},
        "visited": sum(lengths),
        "panels": panels,
        "unskipped_steps": max(run["start"] + num for run in unskipped),
    }


_DONE = style.tint(NEW, 0.40)
_TILE, _STEP, _ROW = 16.0, 25.0, 20.0


def _tile(
    axes: Axes, x: float, y: float, width: float, height: float, kind: str, words: str = ""
) -> None:
    """A tile: coloured if full, its lower left half if the diagonal crosses it, else white."""
    style.block(axes, x, y, width, height, _DONE if kind == "full" else PAPER, edge=MUTED)
    if kind == "partial":
        corners = [(x, y), (x, y + height), (x + width, y + height)]
        axes.add_patch(Polygon(corners, closed=True, facecolor=_DONE, lw=0))
        style.block(axes, x, y, width, height, "none", edge=MUTED)
    if words:
        style.label(axes, x + width / 2, y + height / 2, words, size=SMALL, ha="center")


def _plot_schedule(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(534)
    top = style.headline(axes, title) + 34
    _matrix(axes, top, data)
    y = top + _TILE * len(data["grid"]) + 30
    for panel in data["panels"]:
        _gantt(axes, y, panel, data)
        y += 26 + _ROW * data["num_processors"] + 12
    words = (
        "in the bars: t,s; each tile takes one step",
        "a free multiprocessor (SM) takes the next program",
        f"with nothing skipped both orders take {data['unskipped_steps']} steps",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 24 + 14 * line, text, size=SMALL, colour=MUTED)
    _steps(axes, y - 6, max(panel["steps"] for panel in data["panels"]))
    return figure


_MATRIX_X, _GANTT_X = 76.0, 42.0


def _matrix(axes: Axes, top: float, data: Data) -> None:
    """The score matrix in tiles, one row a program, and what their looks mean."""
    size = len(data["grid"])
    width = _TILE * size
    style.label(axes, _MATRIX_X + width / 2, top - 26, "key tile s", size=SMALL, ha="center")
    style.label(axes, MARGIN, top - 10, "query tile t", size=SMALL)
    for row, kinds in enumerate(data["grid"]):
        y = top + _TILE * row
        style.label(axes, _MATRIX_X - 7, y + _TILE / 2, str(row), size=SMALL, ha="right")
        x = _MATRIX_X + _TILE * (row + 0.5)
        style.label(axes, x, top - 10, str(row), size=SMALL, ha="center")
        for column, kind in enumerate(kinds):
            _tile(axes, _MATRIX_X + _TILE * column, y, _TILE, _TILE, kind)
    x = _MATRIX_X + width + 16
    counts = data["counts"]
    rows = (
        ("full", f"{counts['full']} full"),
        ("partial", f"{counts['partial']} partial: masked"),
        ("skipped", f"{counts['skipped']} skipped"),
    )
    for line, (kind, words) in enumerate(rows):
        y = top + 22 * line
        _tile(axes, x, y, 14, 14, kind)
        style.label(axes, x + 20, y + 7, words)
    words = "A program is one row: its query tile stays, key tiles pass"
    for line, text in enumerate(style.wrap(words, style.WIDTH - MARGIN - x, SMALL)):
        style.label(axes, x, top + 84 + 14 * line, text, size=SMALL, colour=MUTED)


def _gantt(axes: Axes, y: float, panel: Data, data: Data) -> None:
    """One row a multiprocessor, time to the right: each tile where and when it is worked on."""
    style.label(axes, MARGIN, y, f"{panel['name']}: {panel['steps']} steps", weight="bold")
    top = y + 12
    for processor in range(data["num_processors"]):
        at = top + _ROW * processor
        style.label(axes, MARGIN, at + 8.5, f"SM {processor}", size=SMALL)
        mine = [run for run in panel["runs"] if run["processor"] == processor]
        end = max((run["start"] + data["lengths"][run["program"]] for run in mine), default=0)
        for run in mine:
            _run(axes, at, run, data["grid"][run["program"]])
        if end < panel["steps"]:
            x, width = _GANTT_X + _STEP * end, _STEP * (panel["steps"] - end)
            style.block(axes, x, at, width, 17, style.tint(RECOMPUTED, 0.45), "idle", edge=PAPER)


def _run(axes: Axes, y: float, run: Data, kinds: Sequence[str]) -> None:
    """The tiles of one program, one after the other, and an outline around them."""
    visited = [column for column, kind in enumerate(kinds) if kind != "skipped"]
    x = _GANTT_X + _STEP * run["start"]
    for index, column in enumerate(visited):
        words = f"{run['program']},{column}"
        _tile(axes, x + _STEP * index, y, _STEP, 17, kinds[column], words)
    shape = Rectangle(
        (x, y), _STEP * len(visited), 17, facecolor="none", edgecolor=INK, lw=1.6, zorder=4
    )
    axes.add_patch(shape)


def _steps(axes: Axes, y: float, longest: int) -> None:
    """The axis of time below both panels, a number every third step."""
    style.arrow(axes, (_GANTT_X, y), (style.WIDTH - MARGIN, y), colour=MUTED)
    for tick in range(0, longest + 1, 3):
        x = _GANTT_X + _STEP * tick
        axes.plot([x, x], [y - 3, y + 3], color=MUTED, lw=0.9)
        style.label(axes, x, y + 11, str(tick), size=SMALL, colour=MUTED, ha="center")
    style.label(axes, MARGIN, y + 11, "steps", size=SMALL, colour=MUTED)


SCHEDULE = Record(
    name="09_schedule",
    data=schedule_data,
    takeaway=lambda d: (
        f"Causality leaves {d['visited']} of {d['visited'] + d['counts']['skipped']} tiles; "
        f"{d['num_processors']} multiprocessors take {d['panels'][0]['steps']} steps "
        f"{d['panels'][0]['name']}, {d['panels'][1]['steps']} {d['panels'][1]['name']}"
    ),
    describe=lambda d: (
        f"""
        Above, the causal score matrix of {d["num_tokens"]} tokens in tiles of {d["block"]} queries
        by {d["block"]} keys: {d["counts"]["full"]} full, {d["counts"]["partial"]} partial on the
        diagonal, {d["counts"]["skipped"]} skipped. Each row is a program, of
        {d["lengths"][0]} to {d["lengths"][-1]} tiles. Below, time to the right, which tile
        {d["num_processors"]} multiprocessors work on when a free one takes the next program.
        """
        + " ".join(
            f"{p['name'].capitalize()}, programs "
            + "; ".join(
                f"{' and '.join(str(r['program']) for r in p['runs'] if r['processor'] == n)}"
                for n in range(d["num_processors"])
            )
            + f" share multiprocessors 0 to {d['num_processors'] - 1}: {p['steps']} steps."
            for p in d["panels"]
        )
        + f" With nothing skipped it takes {d['unskipped_steps']} steps."
    ),
    plot=_plot_schedule,
)

# ── Two orders of loops ─────────────────────────────────────────────────────────────────────────


@cache
def orders_data(num_tokens: int = 256, head_dim: int = 64, block: int = 64) -> Data:
    """Bytes of one head in fp32, without causality, in both orders of loops, by what moves.

    ``formula_reads`` is version 1 as printed, which reads the state on every pass; a kernel that
    starts it on the first pass has nothing to read there, and that is what is drawn.
    """
    from refimpl.flash import costs

    size = packed(1, "fp32")
    matrix, passes = num_tokens * head_dim * size, costs.num_tiles(num_tokens, block)
    queries = costs.queries_outside_accesses(num_tokens, head_dim, block)
    keys = costs.keys_outside_accesses(num_tokens, head_dim, block)
    state = keys.writes * size // passes
    return {
        "num_tokens": num_tokens,
        "head_dim": head_dim,
        "block": block,
        "passes": passes,
        "matrix": matrix,
        "v2": {
            "programs": passes,
            "read": {"q": matrix, "kv": 2 * matrix * passes},
            "written": queries.writes * size,
            "reads": queries.reads * size,
        },
        "v1": {
            "programs": 1,
            "read": {"q": matrix * passes, "kv": 2 * matrix, "state": state * (passes - 1)},
            "written": keys.writes * size,
            "reads": keys.reads * size - state,
            "formula_reads": keys.reads * size,
            "state": state,
        },
    }


_CELL, _GAP = 19.0, 14.6
_HERE = {"q": 1, "k": 2, "v": 2, "out": 1}
"""The tile of each tensor that is on the chip at the moment drawn."""


def _plot_orders(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(526)
    top = style.headline(axes, title) + 8
    v2, v1, passes = data["v2"], data["v1"], data["passes"]
    read, state = v1["read"], v1["read"]["state"]
    again = (f"read {passes - 1} times", state, RECOMPUTED)
    moves: dict[str, dict[str, list[tuple[str, int, str]]]] = {
        f"v2, queries outside: {v2['programs']} programs, one a query tile": {
            "q": [("read once", v2["read"]["q"], QUERY)],
            "kv": [(f"read {passes} times", v2["read"]["kv"], KEYS)],
            "out": [("written once", v2["written"], NEW)],
        },
        f"v1, keys outside: {v1['programs']} program a head": {
            "q": [(f"read {passes} times", read["q"], QUERY)],
            "kv": [("read once", read["kv"], KEYS)],
            "out": [again, (f"written {passes} times", v1["written"], NEW)],
        },
    }
    chips = (
        {"q": "stays", "kv": "stream past", "out": "stay"},
        {"q": "streams past", "kv": "stay", "out": "in and out"},
    )
    for panel, (heading, moved) in enumerate(moves.items()):
        y, order = top + 212 * panel, (v2, v1)[panel]
        style.label(axes, MARGIN, y, heading, weight="bold")
        words = f"reads {order['reads']:,} B, writes {order['written']:,} B"
        style.label(axes, MARGIN, y + 15, words)
        _strip(axes, y + 44, passes, ("out, LSE", "out, m, l")[panel])
        for name, entries in moved.items():
            _moves(axes, y + 72, y + 146, name, passes, entries)
        _chip(axes, y + 148, passes, chips[panel], ("m, l, a", "out, m, l")[panel])
    words = (
        f"{data['num_tokens']} tokens, head dim {data['head_dim']}, tiles of {data['block']}, "
        "fp32, one head, not causal",
        "drawn at the moment of query tile 1 and key tile 2",
        f"v1 as printed reads out, m, l on the first pass too: {v1['formula_reads']:,} B",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, top + 418 + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _place(name: str, passes: int) -> tuple[float, float]:
    """Left end and width of a tensor in the strip of memory; K and V together are ``kv``."""
    width = passes * _CELL
    first = {"q": 0, "k": 1, "kv": 1, "v": 2, "out": 3}[name]
    return MARGIN + first * (width + _GAP), 2 * width + _GAP if name == "kv" else width


def _strip(axes: Axes, y: float, passes: int, out: str) -> None:
    """The four tensors in memory, a cell a tile; the tile on the chip in full colour."""
    tensors = {"q": ("Q", QUERY), "k": ("K", KEYS), "v": ("V", VALUES), "out": (out, NEW)}
    for name, (words, colour) in tensors.items():
        x, _ = _place(name, passes)
        style.label(axes, x, y - 9, words, size=SMALL, weight="bold", colour=colour)
        for tile in range(passes):
            fill = colour if tile == _HERE[name] else style.tint(colour, 0.25)
            style.block(axes, x + _CELL * tile, y, _CELL, 18, fill, str(tile))


def _moves(
    axes: Axes, top: float, low: float, name: str, passes: int, entries: list[tuple[str, int, str]]
) -> None:
    """What is read or written of a tensor in bytes, and below it the arrows of those transfers."""
    x, width = _place(name, passes)
    middle, y = x + width / 2, top
    for words, moved, colour in entries:
        style.label(axes, middle, y, words, size=SMALL, ha="center", colour=colour)
        amount = f"{moved:,} B"
        style.label(axes, middle, y + 12, amount, size=SMALL, ha="center", weight="bold")
        y += 26
    y -= 5
    for index, (words, _, colour) in enumerate(entries):
        at = middle + 24 * (index - (len(entries) - 1) / 2)
        ends = ((at, low), (at, y)) if words.startswith("written") else ((at, y), (at, low))
        style.arrow(axes, *ends, colour=colour, width=1.8)


def _chip(axes: Axes, y: float, passes: int, does: dict[str, str], state: str) -> None:
    """The chip with the tiles on it at one moment, and what each of them does next."""
    fill = style.tint(FAINT, 0.25)
    style.block(axes, MARGIN, y, style.WIDTH - 2 * MARGIN, 44, fill, edge=MUTED)
    for name, words in does.items():
        x, width = _place(name, passes)
        style.label(axes, x + width / 2, y + 33, words, size=SMALL, ha="center")
    for name, words, colour, wide in (
        ("q", "Q 1", QUERY, 30),
        ("k", "K 2", KEYS, 30),
        ("v", "V 2", VALUES, 30),
        ("out", state, style.tint(NEW, 0.40), 56),
    ):
        x, width = _place(name, passes)
        style.block(axes, x + (width - wide) / 2, y + 6, wide, 18, colour, words)


def _total(data: Data, order: str) -> int:
    return data[order]["reads"] + data[order]["written"]


ORDERS = Record(
    name="09_orders",
    data=orders_data,
    takeaway=lambda d: (
        f"Keys outside, the output comes and goes with every key tile: {_total(d, 'v1'):,} B; "
        f"queries outside, {_total(d, 'v2'):,} B"
    ),
    describe=lambda d: (
        f"""
        Memory above and a chip below, for both orders of loops, with the bytes that move for one
        head of {d["num_tokens"]} tokens, head dim {d["head_dim"]}, tiles of {d["block"]}, fp32,
        without causality. Version 2, {d["v2"]["programs"]} programs: a query tile stays with m, l
        and accumulator. Q is read once, {d["v2"]["read"]["q"]:,} B, K and V {d["passes"]} times,
        {d["v2"]["read"]["kv"]:,}; out and LSE are written once, {d["v2"]["written"]:,}. Version 1,
        {d["v1"]["programs"]} program: K and V tiles stay and are read once,
        {d["v1"]["read"]["kv"]:,} B; Q is read {d["passes"]} times, {d["v1"]["read"]["q"]:,}; out, m
        and l are read {d["passes"] - 1} times, {d["v1"]["read"]["state"]:,}, and written
        {d["passes"]} times, {d["v1"]["written"]:,}. Sums: reads {d["v2"]["reads"]:,} and
        {d["v1"]["reads"]:,}, or {d["v1"]["formula_reads"]:,} where version 1 reads its state on the
        first pass too.
        """
    ),
    plot=_plot_orders,
)

FIGURES = (SCHEDULE, ORDERS)
