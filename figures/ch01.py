"""Chapter 01: what a decoder computes, and what it computes again without a cache."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from figures import style
from figures.record import Data, Record
from figures.style import INK, MARGIN, MUTED, NEW, PAPER, QUERY, RECOMPUTED, SMALL, WEIGHTS
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl import roofline
from refimpl.architecture import Architecture

MODEL = "smollm2-135m"

# ── The triangle of recomputation ───────────────────────────────────────────────────────────────


def triangle_data(num_steps: int = 8, prompt: int = 1) -> Data:
    """Which tokens each step pushes through the layers, and which of them for the first time."""
    if num_steps < 1 or prompt < 1:
        raise ValueError(f"steps and prompt must be at least 1, got {num_steps} and {prompt}")
    passes = [
        {"step": step, "token": token, "again": step > 1 and token < prompt + step - 1}
        for step in range(1, num_steps + 1)
        for token in range(1, prompt + step)
    ]
    again = sum(cell["again"] for cell in passes)
    return {
        "num_steps": num_steps,
        "prompt": prompt,
        "passes": passes,
        "total": len(passes),
        "new": len(passes) - again,
        "again": again,
    }


def _plot_triangle(data: Data, title: str) -> Figure:
    steps, cell_w, cell_h, left = data["num_steps"], 31.0, 25.0, 52.0
    figure, axes = style.canvas(347)
    top = style.headline(axes, title) + 30
    style.label(axes, left, top - 20, "token", colour=MUTED, size=SMALL)
    style.arrow(axes, (left + 36, top - 20), (left + 66, top - 20), colour=MUTED)
    right = left + steps * cell_w + 12
    style.label(axes, right, top - 20, "passes", colour=MUTED, size=SMALL)
    for step in range(1, steps + 1):
        middle = top + (step - 0.5) * cell_h
        style.label(axes, left - 8, middle, f"step {step}", size=SMALL, ha="right")
        count = sum(cell["step"] == step for cell in data["passes"])
        style.label(axes, right + 18, middle, str(count), ha="center")
        style.label(axes, left + (step - 0.5) * cell_w, top - 7, str(step), size=SMALL, ha="center")
    for cell in data["passes"]:
        fill = RECOMPUTED if cell["again"] else NEW
        x, y = left + (cell["token"] - 1) * cell_w, top + (cell["step"] - 1) * cell_h
        style.block(axes, x, y, cell_w, cell_h, fill, edge=PAPER)
    bottom = top + steps * cell_h
    style.line(axes, [(right, bottom + 3), (right + 36, bottom + 3)], colour=INK)
    style.label(axes, right + 18, bottom + 14, str(data["total"]), ha="center", weight="bold")
    style.label(axes, right - 4, bottom + 14, f"{steps}·{steps + 1}/2 =", ha="right")
    for row, note in enumerate(
        ("N steps from one token: N(N+1)/2", "from a prompt of P: N·P + N(N−1)/2")
    ):
        style.label(axes, MARGIN + 46, bottom + 50 + 14 * row, note, size=SMALL, colour=MUTED)

    corner = left + 4.35 * cell_w
    style.label(axes, corner, top + 1.0 * cell_h, "the new token", colour=NEW, weight="bold")
    style.label(axes, corner, top + 1.0 * cell_h + 14, f"{data['new']} passes", colour=NEW)
    style.arrow(
        axes,
        (corner - 5, top + 1.15 * cell_h),
        (left + 2.75 * cell_w, top + 2.1 * cell_h),
        colour=style.as_text(NEW),
        bend=0.15,
    )
    style.label(axes, left, bottom + 14, "earlier tokens, again", colour=RECOMPUTED, weight="bold")
    style.label(axes, left, bottom + 29, f"{data['again']} passes", colour=RECOMPUTED)
    tail = left + 1.5 * cell_w
    style.arrow(axes, (tail, bottom + 7), (tail, bottom - 10), colour=style.as_text(RECOMPUTED))
    return figure


TRIANGLE = Record(
    name="01_triangle",
    data=triangle_data,
    takeaway=lambda d: (
        f"Without a cache, {d['num_steps']} steps take {d['total']} token-passes: "
        f"{d['again']} of them repeat earlier work"
    ),
    describe=lambda d: (
        f"""
        A triangle of cells, one row per decoding step and one column per token. Row n holds the n
        tokens that step n pushes through all layers: the last one is new, the n − 1 before it were
        computed by the step above and are computed again. Over {d["num_steps"]} steps that is
        {d["total"]} token-passes, {d["new"]} new and {d["again"]} repeated: N(N+1)/2 for N steps.
        """
    ),
    plot=_plot_triangle,
)

# ── Shapes through the decoder ──────────────────────────────────────────────────────────────────


def shapes_data(name: str = MODEL) -> Data:
    """The tensors of one forward pass over T tokens at batch 1, with symbolic T and S."""
    arch = Architecture.named(name)
    H, G, D = arch.num_query_heads, arch.num_kv_heads, arch.head_dim
    M, F, V = arch.model_width, arch.mlp_width, arch.vocab_size
    return {
        "model": arch.name,
        "num_layers": arch.num_layers,
        "group_size": arch.group_size,
        "shapes": {
            "tokens_BT": [1, "T"],
            "x_BTM": [1, "T", M],
            "q_BHTD": [1, H, "T", D],
            "k_BGTD": [1, G, "T", D],
            "v_BGTD": [1, G, "T", D],
            "scores_BHTS": [1, H, "T", "S"],
            "out_BHTD": [1, H, "T", D],
            "gate_BTF": [1, "T", F],
            "up_BTF": [1, "T", F],
            "logits_BTV": [1, "T", V],
        },
        "weights": {
            "embedding": [V, M],
            "query": [H * D, M],
            "key": [G * D, M],
            "value": [G * D, M],
            "output": [M, H * D],
            "gate": [F, M],
            "up": [F, M],
            "down": [M, F],
        },
    }


_SPINE, _RAIL = 180.0, 24.0
_COLUMNS = (78.0, 180.0, 282.0)
_PAIR = (103.0, 257.0)
_NARROW, _WIDE, _TALL = 92.0, 150.0, 22.0


class _Stream:
    """The residual stream drawn downwards; ``y`` is how far it has come."""

    def __init__(self, axes: Axes, data: Data, y: float) -> None:
        self.axes, self.y = axes, y
        self.shapes = data["shapes"]

    def shape(self, name: str) -> str:
        return "·".join(str(size) for size in self.shapes[name])

    def note(self, x: float, y: float, name: str) -> None:
        """A tensor's name and shape beside the arrow that carries it."""
        style.label(self.axes, x, y, f"{name}  {self.shape(name)}", size=SMALL)

    def down(self, length: float, name: str = "") -> None:
        """An arrow down the stream."""
        end = self.y + length
        style.arrow(self.axes, (_SPINE, self.y), (_SPINE, end))
        if name:
            self.note(_SPINE + 7, (self.y + end) / 2 - 0.5, name)
        self.y = end

    def box(self, fill: str, words: str, left: float = _SPINE, right: float = _SPINE) -> None:
        """A box on the stream, or one that spans the columns at ``left`` and ``right``."""
        half = (_WIDE if left == right else _NARROW) / 2
        style.box(self.axes, left - half, self.y, right - left + 2 * half, _TALL, fill, words)
        self.y += _TALL

    def fork(self, columns: Sequence[float], fills: Sequence[str], words: Sequence[str]) -> None:
        """The stream split into one box a column."""
        bar = self.y + 12
        style.line(self.axes, [(_SPINE, self.y), (_SPINE, bar)])
        style.line(self.axes, [(columns[0], bar), (columns[-1], bar)])
        self.y = bar + 13
        for x, fill, word in zip(columns, fills, words, strict=True):
            style.arrow(self.axes, (x, bar), (x, self.y))
            weight = "normal" if fill == WEIGHTS else "bold"
            style.box(self.axes, x - _NARROW / 2, self.y, _NARROW, _TALL, fill, word, weight=weight)
        self.y += _TALL

    def name(self, columns: Sequence[float], names: Sequence[str]) -> None:
        """Names and shapes of tensors under the boxes that make them."""
        for x, name in zip(columns, names, strict=True):
            style.label(self.axes, x, self.y + 10, name, size=SMALL, ha="center")
            style.label(self.axes, x, self.y + 23, self.shape(name), size=SMALL, ha="center")
        self.y += 32

    def arrows(self, columns: Sequence[float], length: float) -> None:
        """An arrow down in each column."""
        for x in columns:
            style.arrow(self.axes, (x, self.y), (x, self.y + length))
        self.y += length

    def add(self, start: float) -> None:
        """The plus where what left the stream at height ``start`` comes back to it."""
        self.down(12)
        y = self.y + 8
        disc = Circle((_SPINE, y), 8, facecolor=PAPER, edgecolor=INK, lw=1.1, zorder=3)
        self.axes.add_patch(disc)
        style.line(self.axes, [(_SPINE - 4, y), (_SPINE + 4, y)])
        style.line(self.axes, [(_SPINE, y - 4), (_SPINE, y + 4)])
        for stroke in self.axes.lines[-2:]:
            stroke.set_zorder(4)
        style.line(self.axes, [(_SPINE, start), (_RAIL, start), (_RAIL, y)])
        style.arrow(self.axes, (_RAIL, y), (_SPINE - 8, y))
        self.y = y + 8


def _attention(stream: _Stream, group_size: int) -> None:
    """From the first RMSNorm of a layer to its first plus."""
    start = stream.y - 9
    stream.box(PAPER, "RMSNorm")
    stream.fork(_COLUMNS, (QUERY, KEYS, VALUES), ("query", "key", "value"))
    stream.name(_COLUMNS, ("q_BHTD", "k_BGTD", "v_BGTD"))
    top, axes = stream.y, stream.axes
    stream.arrows(_COLUMNS[:2], 13)
    stream.box(PAPER, "rotate by position (RoPE)", *_COLUMNS[:2])
    stream.arrows(_COLUMNS[:2], 14)
    style.arrow(axes, (_COLUMNS[2], top), (_COLUMNS[2], stream.y))
    left = _COLUMNS[0] - _NARROW / 2
    style.box(axes, left, stream.y, 2 * (_SPINE - left), 36, PAPER, "")
    words = f"attention: {group_size} query heads read each KV head"
    style.label(axes, _SPINE, stream.y + 11.5, words, ha="center")
    scores = f"scores_BHTS  {stream.shape('scores_BHTS')}   (S = T here)"
    style.label(axes, _SPINE, stream.y + 25.5, scores, size=SMALL, ha="center")
    stream.y += 36
    stream.down(22, "out_BHTD")
    stream.box(WEIGHTS, "output")
    stream.add(start)


def _mlp(stream: _Stream) -> None:
    """From the second RMSNorm of a layer to its second plus."""
    start = stream.y - 10
    stream.box(PAPER, "RMSNorm")
    stream.fork(_PAIR, (WEIGHTS, WEIGHTS), ("gate", "up"))
    stream.name(_PAIR, ("gate_BTF", "up_BTF"))
    stream.arrows(_PAIR, 13)
    stream.box(PAPER, "SiLU(gate) × up", *_PAIR)
    stream.down(12)
    stream.box(WEIGHTS, "down")
    stream.add(start)


def _plot_shapes(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(738)
    y = style.headline(axes, title) + 8
    style.label(axes, _SPINE, y, "token ids", ha="center")
    stream = _Stream(axes, data, y + 8)
    stream.down(22, "tokens_BT")
    stream.box(WEIGHTS, "embedding")
    top = stream.y + 25
    stream.note(_SPINE + 7, top - 12, "x_BTM")
    stream.down(47)
    _attention(stream, data["group_size"])
    stream.note(_SPINE + 12, stream.y + 4, "x_BTM")
    stream.down(19)
    _mlp(stream)
    height = stream.y + 8 - top
    ground = {"facecolor": style.tint(WEIGHTS, 0.35), "edgecolor": style.FAINT, "lw": 1}
    width = style.WIDTH - 2 * MARGIN
    axes.add_patch(Rectangle((MARGIN, top), width, height, zorder=-1, **ground))
    words, corner = f"{data['num_layers']} layers", style.WIDTH - MARGIN - 8
    style.label(axes, corner, top + 13, words, ha="right", weight="bold")
    stream.note(_SPINE + 7, stream.y + 18, "x_BTM")
    stream.down(30)
    stream.box(PAPER, "RMSNorm")
    stream.down(12)
    stream.box(WEIGHTS, "head (= embedding)")
    stream.down(20, "logits_BTV")
    style.label(axes, _SPINE, stream.y + 8, "scores of the next token", ha="center")
    return figure


SHAPES = Record(
    name="01_shapes",
    data=shapes_data,
    takeaway=lambda d: (
        f"Every layer: {d['shapes']['x_BTM'][-1]} numbers per token in, "
        f"{d['shapes']['x_BTM'][-1]} out"
    ),
    describe=lambda d: (
        f"""
        The decoder of SmolLM2-135M from top to bottom. Token ids become an embedding of
        {d["shapes"]["x_BTM"][-1]} numbers per token, which passes through {d["num_layers"]} layers.
        In each, after RMSNorm, three projections make queries with {d["shapes"]["q_BHTD"][1]}
        heads and keys and values with {d["shapes"]["k_BGTD"][1]} heads of
        {d["shapes"]["q_BHTD"][-1]}; queries and keys are rotated by position, attention and an
        output projection follow, and the result is added to the stream. After a second RMSNorm,
        gate and up widen it to {d["shapes"]["gate_BTF"][-1]}, down brings it back, and it is added
        again. A last RMSNorm and the head give {d["shapes"]["logits_BTV"][-1]:,} logits per token.
        """
    ),
    plot=_plot_shapes,
)

# ── Rotary embedding ────────────────────────────────────────────────────────────────────────────


def rope_data(name: str = MODEL, pairs: tuple[int, ...] = (0, 4, 8, 31), tokens: int = 7) -> Data:
    """Angle of chosen pairs at the first positions, and how many tokens one turn takes."""
    arch = Architecture.named(name)
    half = arch.head_dim // 2
    rows = []
    for pair in pairs:
        if not 0 <= pair < half:
            raise ValueError(f"a pair lies between 0 and {half - 1}, got {pair}")
        step = arch.rope_theta ** (-pair / half)
        rows.append(
            {
                "dimensions": [pair, pair + half],
                "tokens_per_turn": 2 * math.pi / step,
                "angles": [position * step for position in range(tokens)],
            }
        )
    return {"model": arch.name, "theta": arch.rope_theta, "head_dim": arch.head_dim, "rows": rows}


def _turn(tokens: float) -> str:
    return f"{tokens:.1f}" if tokens < 100 else f"{round(tokens, 3 - len(str(int(tokens)))):,.0f}"


def _plot_rope(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(280)
    left, pitch, height, radius = 132.0, 33.5, 47.0, 13.5
    top = style.headline(axes, title) + 30
    positions = range(len(data["rows"][0]["angles"]))
    style.label(axes, MARGIN, top - 10, "pair of dimensions", colour=MUTED, size=SMALL)
    style.label(axes, left - radius, top - 24, "position", colour=MUTED, size=SMALL)
    style.arrow(axes, (left + 34, top - 24), (left + 64, top - 24), colour=MUTED)
    for position in positions:
        style.label(axes, left + position * pitch, top - 10, str(position), size=SMALL, ha="center")
    for index, row in enumerate(data["rows"]):
        y = top + 20 + index * height
        low, high = row["dimensions"]
        style.label(axes, MARGIN, y - 7, f"{low} with {high}", weight="bold")
        style.label(
            axes, MARGIN, y + 8, f"{_turn(row['tokens_per_turn'])} tokens a turn", size=SMALL
        )
        for position, angle in enumerate(row["angles"]):
            x = left + position * pitch
            axes.add_patch(
                Circle((x, y), radius, facecolor=style.tint(KEYS, 0.07), edgecolor=style.FAINT)
            )
            tip = (x + radius * math.cos(angle), y - radius * math.sin(angle))
            style.arrow(axes, (x, y), tip, colour=KEYS, width=1.8)
    style.label(
        axes,
        MARGIN,
        top + 20 + (len(data["rows"]) - 1) * height + 32,
        f"angle = position · θ^(−2i/D),  θ = {data['theta']:,.0f},  D = {data['head_dim']}",
        size=SMALL,
        colour=MUTED,
    )
    return figure


ROPE = Record(
    name="01_rope",
    data=rope_data,
    takeaway=lambda d: (
        f"Dimension i turns with dimension i + {d['head_dim'] // 2}: "
        "early pairs tell neighbours apart, late pairs barely move"
    ),
    describe=lambda d: (
        f"""
        Rows of clock dials, one row per pair of dimensions of a head of {d["head_dim"]}, one dial
        per position from 0 to {len(d["rows"][0]["angles"]) - 1}. The hand shows the angle by which
        RoPE turns that pair, counter-clockwise from the right.
        """
        + " ".join(
            f"Dimensions {r['dimensions'][0]} and {r['dimensions'][1]} make a turn every "
            f"{_turn(r['tokens_per_turn'])} tokens."
            for r in d["rows"]
        )
    ),
    plot=_plot_rope,
)

# ── Sampling filters ────────────────────────────────────────────────────────────────────────────

_NEXT_TOKEN = Path(__file__).parent / "data" / "01_next_token.json"


def sampling_data() -> Data:
    """A real next-token distribution and what each setting leaves of it (``next_token.py``)."""
    return json.loads(_NEXT_TOKEN.read_text(encoding="utf-8"))


def _plot_sampling(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(352)
    top = style.headline(axes, title)
    style.label(axes, MARGIN, top + 2, f"“{data['prompt']} …”", size=SMALL, colour=MUTED)
    left, row_h, gap = 70.0, 17.0, 8.0
    panels = data["panels"]
    width = (style.WIDTH - MARGIN - left - gap * (len(panels) - 1)) / len(panels)
    scale = (width - 2) / max(max(*panel["probabilities"], panel["others"]) for panel in panels)
    first = top + 46
    base = panels[0]
    rows = [token.strip() for token in data["tokens"]] + ["others"]
    for index, token in enumerate(rows):
        y = first + index * row_h + (6 if token == "others" else 0)
        style.label(
            axes,
            left - 8,
            y,
            token,
            size=SMALL,
            ha="right",
            colour=MUTED if token == "others" else INK,
        )
    style.label(
        axes,
        left - 8,
        first + len(rows) * row_h + 12,
        "tokens left",
        size=SMALL,
        ha="right",
        colour=MUTED,
    )
    for column, panel in enumerate(panels):
        x = left + column * (width + gap)
        style.label(axes, x, first - 22, panel["name"], weight="bold", size=SMALL)
        before = [*base["probabilities"], base["others"]]
        for index, (was, now) in enumerate(
            zip(before, [*panel["probabilities"], panel["others"]], strict=True)
        ):
            y = first + index * row_h + (6 if index == len(rows) - 1 else 0)
            if now:
                axes.add_patch(Rectangle((x, y - 5.5), now * scale, 11, facecolor=NEW, lw=0))
            edge = style.shade(NEW, 0.6) if now else style.FAINT
            outline = Rectangle((x, y - 5.5), was * scale, 11, fill=False, edgecolor=edge, lw=0.8)
            axes.add_patch(outline)
        style.line(axes, [(x, first - 10), (x, first + len(rows) * row_h)], colour=INK)
        style.label(axes, x, first + len(rows) * row_h + 12, f"{panel['kept']:,}", size=SMALL)
    y = first + len(rows) * row_h + 32
    style.label(axes, left, y, "probability, outlined at τ = 1", size=SMALL, colour=MUTED)
    end = style.WIDTH - MARGIN
    style.block(axes, end - 0.2 * scale, y - 5.5, 0.2 * scale, 11, NEW, edge=NEW)
    style.label(axes, end - 0.2 * scale - 5, y, "0.2", size=SMALL, colour=MUTED, ha="right")
    return figure


def _kept(data: Data, name: str) -> int:
    return next(panel["kept"] for panel in data["panels"] if panel["name"] == name)


SAMPLING = Record(
    name="01_sampling_filters",
    data=sampling_data,
    takeaway=lambda d: (
        "Temperature sharpens and cuts nothing; "
        f"top-p\u00a00.8 keeps {_kept(d, 'top-p 0.8')} tokens where min-p\u00a00.1 keeps "
        f"{_kept(d, 'min-p 0.1')}"
    ),
    describe=lambda d: (
        f"""
        Bars of the {len(d["tokens"])} most likely tokens after “{d["prompt"]}” and of all others
        together, in five columns. At temperature 1 the likeliest, “{d["tokens"][0].strip()}”, has
        {d["panels"][0]["probabilities"][0]:.2f} and the others share
        {d["panels"][0]["others"]:.2f}. Temperature 0.7 raises the first to
        {d["panels"][1]["probabilities"][0]:.2f} and keeps all {d["vocabulary"]:,} tokens.
        """
        + ", ".join(f"{p['name']} keeps {p['kept']}" for p in d["panels"][2:])
        + "; what is kept is scaled up to sum to one."
    ),
    plot=_plot_sampling,
)

# ── Work per step ───────────────────────────────────────────────────────────────────────────────


def work_data(name: str = MODEL, longest: int = 1024, points: int = 65) -> Data:
    """FLOPs of step N with N tokens known: the last one new, all earlier ones repeated or cached.

    Masked scores are counted, since the plain implementation computes them.
    """
    arch = Architecture.named(name)
    steps = [max(1, round(index * longest / (points - 1))) for index in range(points)]
    return {
        "model": arch.name,
        "steps": steps,
        "naive_linear": [roofline.linear_flops(arch, n) for n in steps],
        "naive_attention": [roofline.attention_flops(arch, n) for n in steps],
        "cached_linear": [roofline.linear_flops(arch, 1) for _ in steps],
        "cached_attention": [roofline.attention_flops(arch, 1, n - 1) for n in steps],
    }


def _plot_work(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(280)
    top = style.headline(axes, title)
    style.label(axes, MARGIN, top + 4, "work of one step (GFLOP)", size=SMALL, colour=MUTED)
    plot = style.chart(figure, 34, top + 16, 308, 280 - top - 16 - 36)
    steps = data["steps"]
    linear = [flops / 1e9 for flops in data["naive_linear"]]
    total = [
        (a + b) / 1e9 for a, b in zip(data["naive_linear"], data["naive_attention"], strict=True)
    ]
    cached = [
        (a + b) / 1e9 for a, b in zip(data["cached_linear"], data["cached_attention"], strict=True)
    ]
    plot.fill_between(steps, 0, linear, color=RECOMPUTED, lw=0)
    plot.fill_between(steps, linear, total, color=QUERY, lw=0)
    plot.plot(steps, cached, color=NEW, lw=3.2, clip_on=False)
    plot.set_xlim(0, steps[-1])
    plot.set_ylim(0, total[-1] * 1.02)
    ticks = [0, 256, 512, 768, 1024]
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.set_yticks([0, 100, 200, 300])
    plot.set_xlabel("step N (tokens known)")
    plot.grid(axis="y")
    half = steps[-1]
    plot.annotate(
        "attention: N² scores",
        (0.80 * half, 0.76 * total[-1]),
        xytext=(0.30 * half, 0.92 * total[-1]),
        color=style.as_text(QUERY),
        fontsize=style.BASE,
        fontweight="bold",
        va="center",
        arrowprops={
            "arrowstyle": "-",
            "color": style.as_text(QUERY),
            "lw": 0.9,
            "shrinkA": 2,
            "shrinkB": 0,
        },
    )
    plot.text(
        0.70 * half,
        0.26 * total[-1],
        "projections, MLP,\nhead: N tokens",
        color=INK,
        fontsize=style.BASE,
        ha="center",
        va="center",
        fontweight="bold",
    )
    plot.annotate(
        f"with a cache:\n{cached[-1]:.2f} at step {half:,}",
        (0.26 * half, 0.004 * total[-1]),
        xytext=(0.03 * half, 0.52 * total[-1]),
        color=style.as_text(NEW),
        fontsize=style.BASE,
        fontweight="bold",
        va="center",
        arrowprops={
            "arrowstyle": "-",
            "color": INK,
            "lw": 0.9,
            "shrinkA": 2,
            "shrinkB": 0,
            "relpos": (0.3, 0),
        },
    )
    return figure


def _at_end(data: Data, kind: str) -> float:
    return (data[f"{kind}_linear"][-1] + data[f"{kind}_attention"][-1]) / 1e9


WORK = Record(
    name="01_time_per_step",
    data=work_data,
    takeaway=lambda d: (
        f"Step {d['steps'][-1]:,} costs {_at_end(d, 'naive'):.0f} GFLOP without a cache, "
        f"{_at_end(d, 'cached'):.2f} with one"
    ),
    describe=lambda d: (
        f"""
        Work of one decoding step of SmolLM2-135M against the number N of tokens known, from 1 to
        {d["steps"][-1]:,}, counted in GFLOP. Without a cache two areas are stacked: projections,
        MLP and head grow with N to {d["naive_linear"][-1] / 1e9:.1f}, attention with N² to
        {d["naive_attention"][-1] / 1e9:.1f} more. With a cache the curve lies on the axis:
        {_at_end(d, "cached"):.2f} GFLOP at the last step, {d["cached_linear"][-1] / 1e9:.2f} of it
        independent of N.
        """
    ),
    plot=_plot_work,
)

FIGURES = (TRIANGLE, SHAPES, ROPE, SAMPLING, WORK)
