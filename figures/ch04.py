"""Chapter 04: what a decode step reads, the roof above it, and what fits beside the weights."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import INK, MARGIN, MUTED, NEW, PAPER, QUERY, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl import capacity, roofline, sizing
from refimpl.architecture import Architecture
from refimpl.hardware import Accelerator
from refimpl.units import format_bytes, format_si_bytes

MODEL, GPU, GPUS = "llama-3-70b", "h100-sxm", 8
_TITLE = "Llama-3-70B"


def _step(batch: int, context: int, cache_dtype: str = "bf16") -> roofline.Step:
    """The step as one counts it aloud: all weights once, each sequence's cache."""
    return roofline.decode_step(
        Architecture.named(MODEL),
        Accelerator.named(GPU),
        batch=batch,
        context=context,
        cache_dtype=cache_dtype,
        num_gpus=GPUS,
        whiteboard=True,
    )


def _fits(context: int) -> int:
    """Sequences of this length that eight H100s hold beside the weights, a tenth kept free."""
    model, gpu = Architecture.named(MODEL), Accelerator.named(GPU)
    return capacity.plan(model, gpu, num_gpus=GPUS, context=context).fit.whole_users


# ── The bytes of a step ─────────────────────────────────────────────────────────────────────────


def bytes_data(
    batch: int = 32, context: int = 4096, others: tuple[int, ...] = (1, 32, 105, 324)
) -> Data:
    """Bytes of a decode step by origin, at one batch and at others."""
    rows = []
    for size in (batch, *others):
        step = _step(size, context)
        rows.append(
            {
                "batch": size,
                "weights": step.weight_bytes,
                "cache": step.cache_bytes,
                "total": step.bytes,
                "per_token": step.bytes / size,
            }
        )
    return {"context": context, "step": rows[0], "rows": rows[1:]}


def _bar(axes: Axes, x: float, y: float, height: float, row: Data, scale: float) -> float:
    """Weights, then keys and values, to scale; the x where the bar ends."""
    x = _part(axes, x, y, height, row["weights"] * scale, style.WEIGHTS)
    x = _part(axes, x, y, height, row["cache"] * scale / 2, KEYS)
    return _part(axes, x, y, height, row["cache"] * scale / 2, VALUES)


def _part(axes: Axes, x: float, y: float, height: float, width: float, fill: str) -> float:
    style.block(axes, x, y, width, height, fill, edge=PAPER)
    return x + width


def _plot_bytes(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(276)
    top = style.headline(axes, title) + 8
    step, width = data["step"], style.WIDTH - 2 * MARGIN
    scale = width / step["total"]
    _bar(axes, MARGIN, top, 40, step, scale)
    middle = MARGIN + step["weights"] * scale / 2
    style.label(axes, middle, top + 13, "weights, read once", ha="center", weight="bold")
    style.label(axes, middle, top + 28, format_si_bytes(step["weights"]), ha="center")
    right = style.WIDTH - MARGIN
    cache = f"cache, each its own: {format_si_bytes(step['cache'])}"
    style.label(axes, right, top + 51, cache, ha="right", weight="bold")
    half = step["cache"] * scale / 2
    for x, words, fill in ((right - 1.5 * half, "K", KEYS), (right - 0.5 * half, "V", VALUES)):
        style.label(axes, x, top + 20, words, ha="center", weight="bold", colour=_on(fill))
    y = top + 84
    style.label(axes, MARGIN, y, "batch", size=SMALL, colour=MUTED)
    style.label(axes, 52, y, "read by a step (GB)", size=SMALL, colour=MUTED)
    style.label(axes, right, y, "GB a token", size=SMALL, colour=MUTED, ha="right")
    longest = max(row["total"] for row in data["rows"])
    for index, row in enumerate(data["rows"]):
        at = y + 14 + 27 * index
        style.label(axes, MARGIN + 24, at + 9, f"{row['batch']}", ha="right", weight="bold")
        end = _bar(axes, 52, at, 18, row, 206 / longest)
        style.label(axes, end + 4, at + 9, f"{row['total'] / 1e9:.1f}")
        per_token = f"{row['per_token'] / 1e9:.2f}"
        style.label(axes, right, at + 9, per_token, ha="right", weight="bold")
    return figure


def _on(fill: str) -> str:
    return PAPER if style.text_on(fill) == PAPER else INK


BYTES = Record(
    name="04_step_bytes",
    data=bytes_data,
    takeaway=lambda d: (
        f"A step over {d['step']['batch']} requests of {d['context']:,} tokens reads "
        f"{d['step']['total'] / 1e9:.0f} GB: {d['step']['weights'] / 1e9:.0f} once for all, "
        f"{d['step']['cache'] / 1e9:.0f} shared with nobody"
    ),
    describe=lambda d: (
        f"""
        Bytes read by one decode step of {_TITLE} in bf16 as a bar: weights
        {format_si_bytes(d["step"]["weights"])} and a cache of
        {format_si_bytes(d["step"]["cache"])}, half keys and half values, for
        {d["step"]["batch"]} requests of {d["context"]:,} tokens. Below, the same bar to one scale
        at
        """
        + ", ".join(
            f"batch {r['batch']} ({r['total'] / 1e9:.1f} GB, {r['per_token'] / 1e9:.2f} GB a token)"
            for r in d["rows"]
        )
        + ". The grey part keeps its length; the cache grows with the batch."
    ),
    plot=_plot_bytes,
)

# ── The roof ────────────────────────────────────────────────────────────────────────────────────


def roofline_data(
    batches: tuple[int, ...] = (1, 8, 32, 256), context: int = 4096, prompt: int = 2048
) -> Data:
    """Intensity of decode steps and of a prefill, and the FLOP/s that the roof then allows."""
    model, gpu = Architecture.named(MODEL), Accelerator.named(GPU)
    steps = {f"batch {batch}": _step(batch, context) for batch in batches}
    prefill = roofline.prefill(model, gpu, num_tokens=prompt, num_gpus=GPUS, whiteboard=True)
    steps[f"prefill of {prompt:,}"] = prefill
    return {
        "context": context,
        "peak": gpu.peak(),
        "bandwidth": gpu.bandwidth,
        "ridge": gpu.ridge(),
        "ceiling": roofline.intensity_ceiling(model, gpu, context, whiteboard=True),
        "points": [
            {
                "name": name,
                "intensity": step.intensity,
                "flops_per_second": step.flops / step.seconds / GPUS,
                "bound": step.bound,
            }
            for name, step in steps.items()
        ],
    }


def _plot_roofline(data: Data, title: str) -> Figure:
    figure, plot = style.plain_chart(
        title, x="FLOPs per byte moved", y="attainable, one H100, bf16 (TFLOP/s)", height=300
    )
    low, high = 0.5, 6000.0
    plot.set_xscale("log")
    plot.set_yscale("log")
    ridge, peak = data["ridge"], data["peak"] / 1e12
    slope = data["bandwidth"] / 1e12
    plot.fill_between([low, ridge], [low * slope, peak], 1, color=style.tint(KEYS, 0.10), lw=0)
    plot.fill_between([ridge, high], peak, 1, color=style.tint(VALUES, 0.25), lw=0)
    plot.plot([low, ridge, high], [low * slope, peak, peak], color=INK)
    plot.plot([ridge, ridge], [1, peak], color=MUTED, lw=1.2, ls=(0, (4, 2)))
    plot.text(ridge * 1.12, 1.4, f"ridge {ridge:.0f}", color=MUTED, fontsize=SMALL, va="center")
    ceiling = data["ceiling"]
    top = ceiling * slope
    plot.plot([ceiling, ceiling], [1, top], color=style.as_text(QUERY), lw=1.2, ls=(0, (1, 2)))
    plot.text(
        ceiling * 0.88,
        1.66,
        f"no batch beyond {ceiling:.0f}\nat {data['context']:,} tokens",
        color=style.as_text(QUERY),
        fontsize=SMALL,
        va="center",
        ha="right",
    )
    for point in data["points"]:
        prefill = point["name"].startswith("prefill")
        x, y = point["intensity"], point["flops_per_second"] / 1e12
        plot.plot([x], [y], "o", color=NEW if prefill else QUERY, ms=7)
        dx, dy, side = (0.85, 0.62, "center") if prefill else (0.78, 1.18, "right")
        words = f"{point['name']}: {x:,.0f}" if prefill else f"{point['name']}: {x:.1f}"
        words = words.replace(": ", "\n") if prefill else words
        # Batch 1 stands at the left edge: its label goes to the other side of the line.
        if x < 2:
            dx, dy, side = 1.35, 1.0, "left"
        plot.text(
            x * dx,
            y * dy,
            words,
            color=style.as_text(NEW if prefill else QUERY),
            fontsize=SMALL,
            ha=side,
            va="center" if not prefill else "top",
            fontweight="bold",
        )
    plot.text(40, 620, "memory-bound", color=MUTED, fontsize=SMALL, ha="right", va="center")
    plot.text(1250, 1380, "compute-bound", color=MUTED, fontsize=SMALL, ha="center", va="center")
    plot.set_xlim(low, high)
    plot.set_ylim(1, 2000)
    plot.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    plot.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    plot.minorticks_off()
    return figure


ROOFLINE = Record(
    name="04_roofline",
    data=roofline_data,
    takeaway=lambda d: (
        f"At {d['context'] // 1024}k tokens decode climbs the slope with the batch and ends at "
        f"{d['ceiling']:.0f}; the ridge is at {d['ridge']:.0f}"
    ),
    describe=lambda d: (
        f"""
        Roofline of an H100 in bf16 on logarithmic axes: FLOP/s rise with FLOPs per byte up to
        {d["peak"] / 1e12:.0f} TFLOP/s, reached at the ridge of {d["ridge"]:.0f} FLOPs per byte.
        Decode steps of {_TITLE} at {d["context"]:,} tokens lie on the slope:
        """
        + ", ".join(
            f"{p['name']} at {p['intensity']:.1f}" for p in d["points"] if p["bound"] == "memory"
        )
        + f"; no batch takes them beyond {d['ceiling']:.0f}. "
        + ", ".join(
            f"A {p['name']} tokens lies under the flat roof at {p['intensity']:,.0f}"
            for p in d["points"]
            if p["bound"] == "compute"
        )
        + "."
    ),
    plot=_plot_roofline,
)

# ── Throughput over batch ───────────────────────────────────────────────────────────────────────


def batch_data(contexts: tuple[int, ...] = (4096, 32_768, 131_072), largest: int = 1024) -> Data:
    """The bound on tokens a second by batch, with the crossover and what fits, by context."""
    model = Architecture.named(MODEL)
    batches = [2 ** (i / 4) for i in range(4 * (largest.bit_length() - 1) + 1)]
    batches = sorted({round(batch) for batch in batches})
    curves = []
    for context in contexts:
        curves.append(
            {
                "context": context,
                "rates": [_step(batch, context).tokens_per_second for batch in batches],
                "crossover": roofline.crossover_batch(model, context, whiteboard=True),
                "fits": _fits(context),
                "limit": Accelerator.named(GPU).bandwidth * GPUS / _step(1, context).cache_bytes,
            }
        )
    return {"batches": batches, "curves": curves}


def _plot_batch(data: Data, title: str) -> Figure:
    figure, plot = style.plain_chart(
        title,
        x="sequences in the batch",
        y="bound on eight H100s (tokens/s, all sequences)",
        height=300,
    )
    plot.set_position([0.13, 0.13, 0.70, 0.60])
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    batches = data["batches"]
    for curve, colour in zip(data["curves"], (KEYS, NEW, QUERY), strict=True):
        fits = curve["fits"]
        inside = [b for b in batches if b <= fits] + [fits]
        beyond = [fits] + [b for b in batches if b > fits]
        rate = {b: r for b, r in zip(batches, curve["rates"], strict=True)}
        rate[fits] = _step(fits, curve["context"]).tokens_per_second
        plot.plot(beyond, [rate[b] for b in beyond], color=colour, lw=1.4, ls=(0, (2, 2)))
        plot.plot(inside, [rate[b] for b in inside], color=colour, lw=2.6)
        plot.plot([fits], [rate[fits]], "|", color=colour, ms=13, mew=2.4)
        crossing = curve["crossover"]
        height = Accelerator.named(GPU).bandwidth * GPUS * crossing / 2
        height /= _step(1, curve["context"]).weight_bytes
        plot.plot([crossing], [height], "o", color=PAPER, ms=7, mec=colour, mew=2)
        plot.text(
            1.03,
            curve["rates"][-1],
            f"{curve['context'] // 1024}k",
            color=style.as_text(colour),
            fontsize=style.BASE,
            fontweight="bold",
            va="center",
            transform=plot.get_yaxis_transform(),
        )
        plot.text(
            crossing * 1.12,
            height * 0.76,
            f"{crossing:.0f}" if crossing > 100 else f"{crossing:.1f}",
            color=style.as_text(colour),
            fontsize=SMALL,
            ha="left",
            va="center",
        )
        plot.text(
            fits * 1.06,
            rate[fits] * 0.76,
            f"{fits} fit",
            color=style.as_text(colour),
            fontsize=SMALL,
            ha="left",
            va="center",
        )
    plot.plot([1.3], [24_000], "o", color=PAPER, ms=7, mec=MUTED, mew=2)
    plot.text(1.6, 24_000, "cache = weights", color=MUTED, fontsize=SMALL, va="center")
    plot.set_xlim(1, batches[-1])
    plot.set_ylim(120, 40_000)
    ticks = [1, 4, 16, 64, 256, 1024]
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.set_yticks([1000, 10_000], ["1,000", "10,000"])
    plot.minorticks_off()
    return figure


BATCH = Record(
    name="04_batch",
    data=batch_data,
    takeaway=lambda d: (
        "Doubling the batch pays until the cache read outweighs the weights: at batch "
        f"{d['curves'][0]['crossover']:.0f} with {d['curves'][0]['context'] // 1024}k tokens, "
        f"at {d['curves'][1]['crossover']:.0f} with {d['curves'][1]['context'] // 1024}k"
    ),
    describe=lambda d: (
        f"""
        Bound on the tokens per second of {_TITLE} in bf16 on eight H100s against batch, on
        logarithmic axes, one curve per context. Each rises in proportion to the batch and flattens
        where the cache read equals the weights:
        """
        + ", ".join(f"batch {c['crossover']:.1f} at {c['context']:,} tokens" for c in d["curves"])
        + ". Curves are solid as far as the cache fits, to "
        + ", ".join(f"{c['fits']}" for c in d["curves"])
        + " sequences, and dashed beyond. They tend to "
        + ", ".join(f"{c['limit']:,.0f}" for c in d["curves"])
        + " tokens per second."
    ),
    plot=_plot_batch,
)

# ── What an 8-bit cache buys ────────────────────────────────────────────────────────────────────


def fp8_data(
    batches: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 128, 256, 512),
    contexts: tuple[int, ...] = (512, 2048, 4096, 8192, 32_768, 131_072),
) -> Data:
    """How many times less a step reads with an fp8 cache, by context and batch."""
    return {
        "batches": list(batches),
        "contexts": list(contexts),
        "ratio": [
            [_step(b, c).bytes / _step(b, c, "fp8").bytes for b in batches] for c in contexts
        ],
        "fits": [_fits(context) for context in contexts],
    }


def _plot_fp8(data: Data, title: str) -> Figure:
    left, cell_width, cell_height = 66.0, 31.5, 25.0
    contexts, batches = data["contexts"], data["batches"]
    figure, axes = style.canvas(62 + 42 + cell_height * len(contexts) + 34)
    top = style.headline(axes, title) + 34
    style.label(axes, MARGIN, top - 10, "context", size=SMALL, colour=MUTED)
    middle = left + cell_width * len(batches) / 2
    style.label(axes, middle, top - 24, "batch", size=SMALL, colour=MUTED, ha="center")
    for column, batch in enumerate(batches):
        x = left + (column + 0.5) * cell_width
        style.label(axes, x, top - 10, f"{batch}", size=SMALL, colour=MUTED, ha="center")
    edge = []
    for row, (context, ratios, fits) in enumerate(
        zip(contexts, data["ratio"], data["fits"], strict=True)
    ):
        y = top + row * cell_height
        style.label(axes, left - 6, y + cell_height / 2, f"{context:,}", size=SMALL, ha="right")
        for column, ratio in enumerate(ratios):
            fill = style.tint(NEW, min(1.0, max(0.0, ratio - 1)) * 0.95)
            inside = batches[column] <= fits
            style.block(
                axes,
                left + column * cell_width,
                y,
                cell_width,
                cell_height,
                fill,
                f"{ratio:.2f}",
                edge=PAPER,
                weight="bold" if inside else "normal",
            )
        held = sum(batch <= fits for batch in batches)
        edge += [(left + held * cell_width, y), (left + held * cell_width, y + cell_height)]
    bottom = top + cell_height * len(contexts)
    style.line(axes, edge, colour=INK)
    style.label(
        axes,
        left,
        bottom + 14,
        "left of the line, bold: the bf16 cache fits on eight H100s",
        size=SMALL,
        colour=MUTED,
    )
    return figure


FP8 = Record(
    name="04_fp8_cache",
    data=fp8_data,
    takeaway=lambda d: (
        "An 8-bit cache cuts the bytes of a step by the cache's share: "
        f"{_at(d, 32, 4096):.2f} times at batch 32 and 4k, never quite 2"
    ),
    describe=lambda d: (
        f"""
        Table coloured by how many times fewer bytes a decode step of {_TITLE} reads with an fp8
        cache than with a bf16 one, weights in bf16. Columns are batches from {d["batches"][0]} to
        {d["batches"][-1]}, rows contexts from {d["contexts"][0]:,} to {d["contexts"][-1]:,} tokens.
        It is {_at(d, 1, 512):.2f} at batch 1 and 512 tokens, {_at(d, 32, 4096):.2f} at batch 32 and
        4,096, {_at(d, 512, 131_072):.2f} in the last cell. A line marks where the bf16 cache stops
        fitting on eight H100s; left of it the most is
        {
            max(
                r
                for rs, f in zip(d["ratio"], d["fits"], strict=True)
                for r, b in zip(rs, d["batches"], strict=True)
                if b <= f
            ):.2f}.
        """
    ),
    plot=_plot_fp8,
)


def _at(data: Data, batch: int, context: int) -> float:
    return data["ratio"][data["contexts"].index(context)][data["batches"].index(batch)]


# ── Where things live ───────────────────────────────────────────────────────────────────────────

# NVIDIA, H100 Tensor Core GPU Architecture (white paper, 2022): SXM5, per streaming multiprocessor.
_MULTIPROCESSORS, REGISTERS, SHARED, _L2 = 132, 256 * 2**10, 228 * 2**10, 50 * 2**20


def hierarchy_data(batch: int = 32, context: int = 4096, tile: int = 128) -> Data:
    """Sizes of an H100's memories beside what a decode step split over eight of them keeps there.

    One GPU of eight has one key-value head of the 70B, and with it eight query heads.
    """
    model, gpu = Architecture.named(MODEL), Accelerator.named(GPU)
    heads = model.num_query_heads // GPUS
    cache = sizing.kv_bytes(model, context, batch=batch) // GPUS
    return {
        "batch": batch,
        "context": context,
        "tile": tile,
        "levels": {
            "registers": _MULTIPROCESSORS * REGISTERS,
            "shared": _MULTIPROCESSORS * SHARED,
            "l2": _L2,
            "hbm": gpu.memory_bytes,
        },
        "query_bytes": 2 * heads * model.head_dim,
        "statistics_bytes": 2 * 4 * heads,
        "tile_bytes": 2 * 2 * tile * model.head_dim,
        "weights": sizing.weight_bytes(model) // GPUS,
        "cache": cache,
        "layer_cache": cache // model.num_layers,
        "bandwidth": gpu.bandwidth,
    }


def _plot_hierarchy(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(320)
    top = style.headline(axes, title) + 8
    levels = data["levels"]
    rows = (
        (
            "registers",
            format_bytes(levels["registers"]),
            100.0,
            style.tint(QUERY, 0.35),
            f"the query, {format_bytes(data['query_bytes'])}; running maximum and sum, "
            f"{data['statistics_bytes']}\u00a0B; scores of one tile",
        ),
        (
            "shared memory",
            format_bytes(levels["shared"]),
            118.0,
            style.tint(KEYS, 0.30),
            f"one tile of K and V after another: {data['tile']} tokens, "
            f"{format_bytes(data['tile_bytes'])}",
        ),
        (
            "L2 cache",
            format_bytes(levels["l2"]),
            136.0,
            style.tint(NEW, 0.30),
            f"passes through: one layer's cache, {format_si_bytes(data['layer_cache'])}, is larger",
        ),
        (
            "HBM",
            format_si_bytes(levels["hbm"]),
            166.0,
            style.WEIGHTS,
            f"weights, {format_si_bytes(data['weights'])}, and cache, "
            f"{format_si_bytes(data['cache'])}: all of it read in every step",
        ),
    )
    height, pitch = 46.0, 63.0
    for index, (name, size, width, fill, words) in enumerate(rows):
        y = top + index * pitch
        x = MARGIN + (166 - width) / 2
        style.box(axes, x, y, width, height, fill, "")
        middle = MARGIN + 83
        style.label(axes, middle, y + 15, name, ha="center", weight="bold")
        style.label(axes, middle, y + 31, size, ha="center", size=SMALL)
        lines = style.wrap(words, style.WIDTH - 2 * MARGIN - 180, SMALL)
        start = y + height / 2 - 6.5 * (len(lines) - 1)
        for number, text in enumerate(lines):
            style.label(axes, MARGIN + 180, start + 13 * number, text, size=SMALL)
        if index + 1 < len(rows):
            style.arrow(axes, (middle, y + pitch - 1), (middle, y + height + 1), colour=MUTED)
    rate = f"{data['bandwidth'] / 1e12:.2f} TB/s"
    y = top + 2 * pitch + height + (pitch - height) / 2
    style.label(axes, MARGIN + 90, y, rate, size=SMALL, colour=MUTED)
    return figure


HIERARCHY = Record(
    name="04_memory_hierarchy",
    data=hierarchy_data,
    takeaway=lambda d: "The cache lives in HBM and streams through the chip; nothing of it stays",
    describe=lambda d: (
        f"""
        Memories of an H100, one box each, with what a decode step of {_TITLE} keeps there when
        eight GPUs share {d["batch"]} requests of {d["context"]:,} tokens. Registers,
        {format_bytes(d["levels"]["registers"])} over all multiprocessors: the query,
        {format_bytes(d["query_bytes"])}, and softmax's running maximum and sum. Shared memory,
        {format_bytes(d["levels"]["shared"])}: a tile of keys and values,
        {format_bytes(d["tile_bytes"])}. L2, {format_bytes(d["levels"]["l2"])}: less than one
        layer's cache of {format_si_bytes(d["layer_cache"])}. HBM,
        {format_si_bytes(d["levels"]["hbm"])} at {d["bandwidth"] / 1e12:.2f} TB/s: weights of
        {format_si_bytes(d["weights"])} and a cache of {format_si_bytes(d["cache"])}.
        """
    ),
    plot=_plot_hierarchy,
)

FIGURES = (BYTES, ROOFLINE, BATCH, FP8, HIERARCHY)
