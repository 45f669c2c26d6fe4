"""Chapter 02: the cache filling, what a step reads of it, and what it costs to keep."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import INK, MARGIN, MUTED, NEW, PAPER, QUERY, RECOMPUTED, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl import roofline, sizing
from refimpl.architecture import Architecture
from refimpl.units import format_bytes, format_si_bytes

MODEL = "smollm2-135m"
_TITLES = {"smollm2-135m": "SmolLM2-135M", "llama-3-70b": "Llama-3-70B"}

# ── The cache filling ───────────────────────────────────────────────────────────────────────────


def filling_data(prompt: int = 4, steps: int = 3, slots: int = 8) -> Data:
    """Slots of one layer's cache written and read by the prefill and by each decoding step."""
    if not (prompt >= 1 and steps >= 0 and prompt + steps <= slots):
        raise ValueError(f"{prompt} + {steps} tokens do not fit into {slots} slots")
    rows = [{"name": "prefill", "written": list(range(prompt)), "held": 0, "reads": prompt}]
    for step in range(1, steps + 1):
        held = prompt + step - 1
        rows.append({"name": f"step {step}", "written": [held], "held": held, "reads": held + 1})
    return {"prompt": prompt, "steps": steps, "slots": slots, "rows": rows}


def _plot_filling(data: Data, title: str) -> Figure:
    slot, height, pitch = 15.0, 22.0, 42.0
    strip = data["slots"] * slot
    starts = (style.WIDTH - MARGIN - 2 * strip - 10, style.WIDTH - MARGIN - strip)
    rows = data["rows"]
    figure, axes = style.canvas(80 + pitch * len(rows) + 14)
    top = style.headline(axes, title) + 34
    for x, fill, words in zip(starts, (KEYS, VALUES), ("keys", "values"), strict=True):
        style.label(axes, x, top - 24, words, colour=fill, weight="bold")
        for index in range(data["slots"]):
            style.label(
                axes,
                x + (index + 0.5) * slot,
                top - 8,
                str(index),
                size=SMALL,
                colour=MUTED,
                ha="center",
            )
    style.label(axes, starts[0] - 8, top - 8, "slot", size=SMALL, colour=MUTED, ha="right")
    for index, row in enumerate(rows):
        y = top + index * pitch
        style.label(axes, MARGIN, y + 5, row["name"], weight="bold")
        style.label(
            axes, MARGIN, y + 19, f"write {len(row['written'])}, read {row['reads']}", size=SMALL
        )
        for x, fill in zip(starts, (KEYS, VALUES), strict=True):
            held = style.tint(fill, 0.35)
            kept = [held] * row["held"] + [fill] * len(row["written"])
            style.memory(
                axes, x, y, kept + [None] * (data["slots"] - len(kept)), slot=slot, height=height
            )
    y = top + len(rows) * pitch - 4
    last = rows[-1]["written"][-1]
    for x, fill in zip(starts, (KEYS, VALUES), strict=True):
        written = x + (last + 0.5) * slot
        style.label(axes, written, y + 4, "written", size=SMALL, colour=fill, ha="center")
        style.label(
            axes,
            x + rows[-1]["held"] * slot / 2 - 6,
            y + 4,
            "kept",
            size=SMALL,
            colour=MUTED,
            ha="center",
        )
    return figure


FILLING = Record(
    name="02_cache_filling",
    data=filling_data,
    takeaway=lambda d: (
        "A step writes one slot of keys and one of values, and reads every slot so far"
    ),
    describe=lambda d: (
        f"""
        One layer's cache of {d["slots"]} slots, a strip of keys beside a strip of values, drawn
        once per pass. The prefill writes the first {d["prompt"]} slots of both. Each of
        {d["steps"]} decoding steps then writes one more and reads everything kept so far,
        {", ".join(str(r["reads"]) for r in d["rows"][1:])} slots in turn. Slots not reached yet
        are reserved and empty.
        """
    ),
    plot=_plot_filling,
)

# ── One row against the triangle ────────────────────────────────────────────────────────────────


def row_data(name: str = MODEL, tokens: int = 8) -> Data:
    """The last token of ``tokens`` decoded alone, against all of them prefilled in one pass."""
    arch = Architecture.named(name)
    weights = 2 * sizing.count_parameters(arch).total
    prefill = [(query, key) for query in range(tokens) for key in range(query + 1)]
    decode = [(tokens - 1, key) for key in range(tokens)]
    return {
        "model": arch.name,
        "tokens": tokens,
        "prefill": {
            "scores": prefill,
            "tokens": tokens,
            "flops_per_token": roofline.forward_flops(arch, tokens) / tokens,
            "weight_bytes_per_token": weights / tokens,
        },
        "decode": {
            "scores": decode,
            "tokens": 1,
            "flops_per_token": float(roofline.forward_flops(arch, 1, tokens - 1)),
            "weight_bytes_per_token": float(weights),
        },
    }


def _plot_row(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(294)
    tokens, cell = data["tokens"], 16.0
    side = tokens * cell
    starts = (70.0, 70.0 + side + 28)
    top = style.headline(axes, title) + 34
    for x, phase in zip(starts, ("prefill", "decode"), strict=True):
        style.label(axes, x, top - 24, phase, weight="bold")
        scores = {tuple(score) for score in data[phase]["scores"]}
        for query in range(tokens):
            for key in range(query + 1):
                fill = QUERY if (query, key) in scores else PAPER
                style.block(
                    axes,
                    x + key * cell,
                    top + query * cell,
                    cell,
                    cell,
                    fill,
                    edge=PAPER if fill == QUERY else style.FAINT,
                )
    style.label(axes, starts[0] + side, top - 8, "keys", size=SMALL, colour=MUTED, ha="right")
    style.arrow(axes, (starts[0], top - 8), (starts[0] + side - 32, top - 8), colour=MUTED)
    style.label(
        axes, starts[0] - 10, top + side - 8, "queries", size=SMALL, colour=MUTED, ha="right"
    )
    style.arrow(axes, (starts[0] - 12, top), (starts[0] - 12, top + side - 20), colour=MUTED)
    style.label(
        axes, starts[1] + 4.2 * cell, top + 2.2 * cell, "earlier rows:", size=SMALL, colour=MUTED
    )
    style.label(
        axes, starts[1] + 4.2 * cell, top + 3.0 * cell, "not needed", size=SMALL, colour=MUTED
    )
    lines = (
        ("tokens", lambda phase: str(phase["tokens"])),
        ("scores", lambda phase: f"{len(phase['scores'])} per head"),
        ("work", lambda phase: f"{phase['flops_per_token'] / 1e9:.2f} GFLOP/token"),
        ("weights", lambda phase: f"{phase['weight_bytes_per_token'] / 1e6:.0f} MB/token"),
    )
    for index, (words, value) in enumerate(lines):
        y = top + side + 20 + 16 * index
        style.label(axes, MARGIN, y, words, size=SMALL, colour=MUTED)
        for x, phase in zip(starts, ("prefill", "decode"), strict=True):
            style.label(
                axes,
                x,
                y,
                value(data[phase]),
                size=SMALL,
                weight="bold" if words == "weights" else "normal",
            )
    return figure


ROW = Record(
    name="02_row_vs_triangle",
    data=row_data,
    takeaway=lambda d: (
        f"Decode does the work of one row, but reads the weights for it alone: "
        f"{d['tokens']} times the bytes per token"
    ),
    describe=lambda d: (
        f"""
        Two causal matrices of {d["tokens"]} queries by {d["tokens"]} keys. In prefill the whole
        lower triangle is needed, in one pass: {len(d["prefill"]["scores"])} scores per head for
        {d["tokens"]} tokens. In decode only the last row is, {len(d["decode"]["scores"])} scores
        for one token. Work per token is alike, {d["prefill"]["flops_per_token"] / 1e9:.2f} GFLOP
        for SmolLM2-135M; weights read per token are
        {format_si_bytes(round(d["prefill"]["weight_bytes_per_token"], -6))} in prefill and
        {format_si_bytes(round(d["decode"]["weight_bytes_per_token"], -6))} in decode (bf16).
        """
    ),
    plot=_plot_row,
)

# ── Memory growth ───────────────────────────────────────────────────────────────────────────────


def growth_data(
    names: tuple[str, ...] = (MODEL, "llama-3-70b"),
    batches: tuple[int, ...] = (1, 8, 64),
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192),
) -> Data:
    """Bytes of a bf16 cache by model, batch and length, beside the bytes of the weights."""
    models = []
    for name in names:
        arch = Architecture.named(name)
        weights = 2 * sizing.count_parameters(arch).total
        longest = sizing.kv_bytes(arch, lengths[-1])
        models.append(
            {
                "name": _TITLES.get(name, name),
                "weight_bytes": weights,
                "bytes_per_token": sizing.kv_bytes_per_token(arch),
                "batch_that_outgrows": weights // longest + 1,
                "cache_bytes": {
                    batch: [sizing.kv_bytes(arch, n, batch=batch) for n in lengths]
                    for batch in batches
                },
            }
        )
    return {"lengths": list(lengths), "models": models}


def _plot_growth(data: Data, title: str) -> Figure:
    figure, page = style.canvas(452)
    top = style.headline(page, title)
    style.label(page, MARGIN, top + 4, "cache, bf16 (GiB)", size=SMALL, colour=MUTED)
    height = 130.0
    for index, model in enumerate(data["models"]):
        y = top + 34 + index * (height + 60)
        style.label(page, 46, y - 14, model["name"], weight="bold")
        style.label(
            page,
            style.WIDTH - MARGIN,
            y - 14,
            f"weights {format_bytes(model['weight_bytes'])}",
            size=SMALL,
            colour=MUTED,
            ha="right",
        )
        _growth_panel(style.chart(figure, 46, y, 252, height), data["lengths"], model, height)
    return figure


def _growth_panel(plot: Axes, lengths: list[int], model: Data, height: float) -> None:
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    ends = {f"batch {batch}": sizes[-1] / 2**30 for batch, sizes in model["cache_bytes"].items()}
    for sizes in model["cache_bytes"].values():
        plot.plot(lengths, [size / 2**30 for size in sizes], color=KEYS)
    ends["weights"] = model["weight_bytes"] / 2**30
    plot.axhline(ends["weights"], color=MUTED, lw=1.6, ls=(0, (4, 2)))
    low = model["cache_bytes"][1][0] / 2**30 * 0.7
    high = max(ends.values()) * 1.6
    plot.set_xlim(lengths[0], lengths[-1])
    plot.set_ylim(low, high)
    plot.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ticks = [10.0**power for power in range(-4, 5) if low <= 10.0**power <= high]
    plot.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    plot.minorticks_off()
    plot.grid(axis="y")
    plot.set_xlabel("length of each sequence (tokens)")
    for words, at in style.spread(ends, low, high, gap=13 / height).items():
        colour = MUTED if words == "weights" else style.as_text(KEYS)
        plot.text(
            1.02, at, words, color=colour, fontsize=SMALL, va="center", transform=plot.transAxes
        )


GROWTH = Record(
    name="02_memory_growth",
    data=growth_data,
    takeaway=lambda d: (
        f"At {d['lengths'][-1]:,} tokens each, "
        + " and ".join(
            f"{m['batch_that_outgrows']} sequences outgrow the weights of {m['name']}"
            if not i
            else f"{m['batch_that_outgrows']} those of {m['name']}"
            for i, m in enumerate(d["models"])
        )
    ),
    describe=lambda d: (
        f"""
        Bytes of a bf16 cache against sequence length from {d["lengths"][0]} to
        {d["lengths"][-1]:,} tokens on logarithmic axes, one line per batch size, with the bytes of
        the weights as a level line.
        """
        + " ".join(
            f"{m['name']}: {format_bytes(m['bytes_per_token'])} a token, "
            + ", ".join(
                f"{format_bytes(sizes[-1])} at batch {batch}"
                for batch, sizes in m["cache_bytes"].items()
            )
            + f" and {d['lengths'][-1]:,} tokens, against weights of "
            f"{format_bytes(m['weight_bytes'])}."
            for m in d["models"]
        )
    ),
    plot=_plot_growth,
)

# ── The mask aligned wrongly ────────────────────────────────────────────────────────────────────


def mask_data(new: int = 3, stored: int = 7) -> Data:
    """Which keys each new query may see: aligned to the bottom right, and to the top left."""
    if not 1 <= new <= stored:
        raise ValueError(f"new tokens are among the stored ones: got {new} of {stored}")
    offset = stored - new
    right = [[key <= query + offset for key in range(stored)] for query in range(new)]
    wrong = [[key <= query for key in range(stored)] for query in range(new)]
    return {
        "new": new,
        "stored": stored,
        "bottom_right": right,
        "top_left": wrong,
        "visible": sum(map(sum, right)),
        "hidden": sum(map(sum, right)) - sum(map(sum, wrong)),
    }


def _plot_mask(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(196)
    stored, cell = data["stored"], 20.0
    left = 52.0
    starts = (left, left + stored * cell + 18)
    top = style.headline(axes, title) + 44
    offset = stored - data["new"]
    for x, kind, words in zip(
        starts, ("bottom_right", "top_left"), ("bottom right", "top left"), strict=True
    ):
        style.label(axes, x, top - 30, words, weight="bold")
        for key in range(stored):
            style.label(
                axes,
                x + (key + 0.5) * cell,
                top - 9,
                str(key),
                size=SMALL,
                colour=MUTED,
                ha="center",
            )
        cells = [(query, key) for query in range(data["new"]) for key in range(stored)]
        # Cells that stay white come last, so that no neighbour paints over their outline.
        for query, key in sorted(cells, key=lambda at: not data["bottom_right"][at[0]][at[1]]):
            _mask_cell(
                axes,
                x + key * cell,
                top + query * cell,
                cell,
                data[kind][query][key],
                data["bottom_right"][query][key],
            )
    style.label(axes, left - 8, top - 9, "key", size=SMALL, colour=MUTED, ha="right")
    for query in range(data["new"]):
        style.label(
            axes,
            left - 8,
            top + (query + 0.5) * cell,
            f"query {offset + query}",
            size=SMALL,
            ha="right",
        )
    y = top + data["new"] * cell + 14
    style.label(axes, starts[0], y, f"{data['visible']} keys seen", colour=QUERY, weight="bold")
    style.label(
        axes, starts[1], y, f"{data['visible'] - data['hidden']} seen", colour=QUERY, weight="bold"
    )
    style.label(
        axes, starts[1] + 52, y, f"× {data['hidden']} hidden", colour=RECOMPUTED, weight="bold"
    )
    style.label(
        axes,
        starts[0],
        y + 18,
        f"{data['new']} new tokens after {offset} cached ones",
        size=SMALL,
        colour=MUTED,
    )
    return figure


def _mask_cell(axes: Axes, x: float, y: float, cell: float, seen: bool, should: bool) -> None:
    if seen:
        style.block(axes, x, y, cell, cell, QUERY, edge=PAPER)
    elif should:
        style.block(axes, x, y, cell, cell, style.tint(RECOMPUTED, 0.45), "×", edge=PAPER)
    else:
        style.block(axes, x, y, cell, cell, PAPER)


MASK = Record(
    name="02_broken_mask",
    data=mask_data,
    takeaway=lambda d: (
        f"Aligned top left, the mask hides {d['hidden']} of the {d['visible']} keys "
        f"that {d['new']} new tokens must see"
    ),
    describe=lambda d: (
        f"""
        Two attention masks for {d["new"]} new queries over {d["stored"]} keys. Aligned to the
        bottom right, query {d["stored"] - d["new"]} sees keys 0 to {d["stored"] - d["new"]} and
        the last query sees all: {d["visible"]} cells. Aligned to the top left, the first query
        sees key 0 alone and the last sees {d["new"]}: {d["hidden"]} cells that should be visible
        are hidden and crossed out.
        """
    ),
    plot=_plot_mask,
)

# ── Preallocate or concatenate ──────────────────────────────────────────────────────────────────


def copies_data(name: str = MODEL, longest: int = 2048, points: int = 65) -> Data:
    """Bytes written to a bf16 cache while it grows to N tokens, one at a time, by both designs.

    Concatenating writes a new buffer of n tokens at step n; a preallocated one is written in place.
    """
    arch = Architecture.named(name)
    token = sizing.kv_bytes_per_token(arch)
    lengths = [round(index * longest / (points - 1)) for index in range(points)]
    return {
        "model": arch.name,
        "bytes_per_token": token,
        "lengths": lengths,
        "concatenated": [token * n * (n + 1) // 2 for n in lengths],
        "in_place": [token * n for n in lengths],
    }


def _plot_copies(data: Data, title: str) -> Figure:
    figure, plot = style.plain_chart(
        title,
        x="tokens generated",
        y="bytes written so far, SmolLM2-135M, bf16 (GiB)",
        height=268,
    )
    lengths = data["lengths"]
    copied = [size / 2**30 for size in data["concatenated"]]
    in_place = [size / 2**30 for size in data["in_place"]]
    plot.fill_between(lengths, 0, copied, color=style.tint(RECOMPUTED, 0.45), lw=0)
    plot.plot(lengths, copied, color=RECOMPUTED, lw=2.4)
    plot.plot(lengths, in_place, color=NEW, lw=3.2, clip_on=False)
    end = lengths[-1]
    plot.set_xlim(0, end)
    plot.set_ylim(0, copied[-1] * 1.04)
    plot.set_yticks([0, 10, 20, 30, 40])
    ticks = [0, end // 4, end // 2, 3 * end // 4, end]
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.text(
        0.56 * end,
        0.62 * copied[-1],
        "concatenate:\neach step copies all",
        ha="right",
        va="center",
        color=style.as_text(RECOMPUTED),
        fontweight="bold",
    )
    plot.annotate(
        f"write in place: {format_bytes(data['in_place'][-1])}",
        (0.5 * end, 0.004 * copied[-1]),
        xytext=(0.06 * end, 0.30 * copied[-1]),
        color=style.as_text(NEW),
        fontweight="bold",
        va="center",
        arrowprops={
            "arrowstyle": "-",
            "color": INK,
            "lw": 0.9,
            "shrinkA": 2,
            "shrinkB": 0,
            "relpos": (0.4, 0),
        },
    )
    return figure


COPIES = Record(
    name="02_prealloc_vs_concat",
    data=copies_data,
    takeaway=lambda d: (
        f"Concatenating writes {d['concatenated'][-1] / 2**30:.0f} GiB "
        f"to build a cache of {format_bytes(d['in_place'][-1])}"
    ),
    describe=lambda d: (
        f"""
        Bytes written while a bf16 cache of SmolLM2-135M grows one token at a time to
        {d["lengths"][-1]:,}. Concatenating copies the whole cache at every step, a parabola that
        reaches {d["concatenated"][-1] / 2**30:.0f} GiB. Writing into a preallocated buffer stays
        on the axis: {format_bytes(d["in_place"][-1])}, which is the cache itself.
        """
    ),
    plot=_plot_copies,
)

FIGURES = (FILLING, ROW, GROWTH, MASK, COPIES)
