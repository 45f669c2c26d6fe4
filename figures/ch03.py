"""Chapter 03: what each kind of attention keeps, how a latent is read, and the sizes of models."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import FAINT, INK, MARGIN, MUTED, NEW, QUERY, RECOMPUTED, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl import sizing
from refimpl.architecture import Architecture, zoo
from refimpl.units import format_bytes

# ── Who reads whom ──────────────────────────────────────────────────────────────────────────────


def grouping_data(drawn: int = 8, drawn_groups: int = 2, heads: int = 64, groups: int = 8) -> Data:
    """Which stored head each drawn query head reads, and numbers kept at a real size."""
    for whole, parts in ((drawn, drawn_groups), (heads, groups)):
        if parts < 1 or whole % parts:
            raise ValueError(f"{whole} query heads do not divide into {parts} groups")
    head_dim, latent = 128, Architecture.named("deepseek-v2").layers[0]
    kinds = []
    for name, number, kept in (
        ("MHA", drawn, heads),
        (f"GQA-{groups}", drawn_groups, groups),
        ("MQA", 1, 1),
    ):
        reads = [query // (drawn // number) for query in range(drawn)]
        kinds.append({"name": name, "reads": reads, "numbers": 2 * kept * head_dim})
    kinds.append({"name": "MLA", "reads": [0] * drawn, "numbers": latent.kv_elements})
    return {
        "drawn": drawn,
        "drawn_groups": drawn_groups,
        "heads": heads,
        "head_dim": head_dim,
        "latent_width": latent.latent_width,
        "rope_width": latent.rope_width,
        "kinds": kinds,
    }


def _plot_grouping(data: Data, title: str) -> Figure:
    pitch, left, spacing, cell = 68.0, 50.0, 27.0, 11.0
    figure, axes = style.canvas(52 + pitch * len(data["kinds"]) + 40)
    top = style.headline(axes, title) + 22
    style.label(axes, left, top - 14, "query heads", colour=QUERY, weight="bold")
    style.label(
        axes, style.WIDTH - MARGIN, top - 14, "numbers kept", size=SMALL, colour=MUTED, ha="right"
    )
    centres = [left + cell / 2 + spacing * query for query in range(data["drawn"])]
    for row, kind in enumerate(data["kinds"]):
        y = top + row * pitch
        style.label(axes, MARGIN, y + 6, kind["name"], weight="bold")
        style.label(
            axes,
            style.WIDTH - MARGIN,
            y + 6,
            f"{kind['numbers']:,}",
            weight="bold",
            ha="right",
        )
        stored = _stored_centres(centres, kind["reads"])
        for query, x in enumerate(centres):
            style.line(axes, [(x, y + cell), (stored[kind["reads"][query]], y + 34)], colour=FAINT)
            style.block(axes, x - cell / 2, y, cell, cell, QUERY)
        for x in stored:
            if kind["name"] == "MLA":
                _latent_block(axes, x, y + 34, data)
            else:
                style.block(axes, x - cell, y + 34, cell, cell + 4, KEYS)
                style.block(axes, x, y + 34, cell, cell + 4, VALUES)
        if not row:
            x = stored[-1] + cell + 8
            style.label(axes, x, y + 35, "keys", colour=KEYS, weight="bold")
            style.label(axes, x, y + 48, "values", colour=VALUES, weight="bold")
    y = top + pitch * len(data["kinds"]) + 2
    words = (
        f"drawn: {data['drawn']} query heads, GQA with {data['drawn_groups']} groups",
        f"numbers: per token and layer, with {data['heads']} query heads of {data['head_dim']}",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _stored_centres(centres: list[float], reads: list[int]) -> list[float]:
    """Each stored head stands below the middle of the query heads that read it."""
    found = []
    for group in range(max(reads) + 1):
        members = [x for x, read in zip(centres, reads, strict=True) if read == group]
        found.append(sum(members) / len(members))
    return found


def _latent_block(axes: Axes, x: float, y: float, data: Data) -> None:
    width, height = 88.0, 15.0
    rope = 26.0
    style.block(axes, x - width / 2, y, width, height, NEW, f"latent {data['latent_width']}")
    style.block(axes, x + width / 2, y, rope, height, KEYS, str(data["rope_width"]))
    style.label(axes, x + width / 2 + rope + 5, y + height / 2, "rotary", size=SMALL, colour=KEYS)


GROUPING = Record(
    name="03_grouping",
    data=grouping_data,
    takeaway=lambda d: (
        "Fewer stored heads, or one latent: "
        f"{d['kinds'][0]['numbers']:,} numbers per token and layer become "
        f"{d['kinds'][1]['numbers']:,} or {d['kinds'][3]['numbers']}"
    ),
    describe=lambda d: (
        f"""
        Four rows of {d["drawn"]} query heads, joined to what each reads of the cache. In MHA every
        query head has a key and a value head of its own; in GQA {d["drawn_groups"]} contiguous
        groups of {d["drawn"] // d["drawn_groups"]} share one each; in MQA all share one; in MLA all
        read one latent of {d["latent_width"]} numbers and a rotary key of {d["rope_width"]}.
        Numbers kept per token and layer with {d["heads"]} heads of {d["head_dim"]}:
        """
        + ", ".join(f"{kind['name']} {kind['numbers']:,}" for kind in d["kinds"])
        + "."
    ),
    plot=_plot_grouping,
)

# ── Expanded and absorbed ───────────────────────────────────────────────────────────────────────


def absorption_data(name: str = "deepseek-v2") -> Data:
    """Bytes of one stored token in one layer, in BF16: the latent, and the heads made from it."""
    layer = Architecture.named(name).layers[0]
    heads = layer.num_query_heads
    return {
        "heads": heads,
        "latent": layer.latent_width,
        "rope": layer.rope_width,
        "key": layer.head_dim,
        "value": layer.value_dim,
        "latent_bytes": 2 * layer.kv_elements,
        "heads_bytes": 2 * heads * (layer.head_dim + layer.value_dim),
    }


def _plot_absorption(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(330)
    top = style.headline(axes, title) + 16
    _expanded_flow(axes, top, data)
    _absorbed_flow(axes, top + 104, data)
    y = top + 208
    style.label(axes, MARGIN, y, "bytes of one stored token and layer, to scale", weight="bold")
    full = style.WIDTH - 2 * MARGIN
    rows = (
        ("keys and values of all heads", data["heads_bytes"], RECOMPUTED),
        ("latent and rotary key", data["latent_bytes"], NEW),
    )
    for index, (words, size, fill) in enumerate(rows):
        at = y + 16 + 30 * index
        width = full * size / data["heads_bytes"]
        style.block(axes, MARGIN, at, width, 12, fill)
        if index:
            style.label(axes, MARGIN + width + 6, at + 6, f"{size:,} B  {words}", size=SMALL)
        else:
            style.label(axes, MARGIN, at + 20, f"{size:,} B  {words}", size=SMALL)
    return figure


def _stored(axes: Axes, x: float, y: float, data: Data) -> None:
    """The latent and the rotary key of a few tokens, one below the other."""
    for token in range(4):
        style.block(axes, x, y + 11 * token, 48, 11, NEW)
        style.block(axes, x + 48, y + 11 * token, 9, 11, KEYS)
    style.label(axes, x + 28, y + 52, f"{data['latent']} + {data['rope']}", size=SMALL, ha="center")


def _expanded_flow(axes: Axes, y: float, data: Data) -> None:
    style.label(axes, MARGIN, y, "expanded", weight="bold")
    y += 16
    _stored(axes, MARGIN, y, data)
    style.arrow(axes, (70, y + 22), (132, y + 22))
    style.label(axes, 101, y + 12, "up K, V", size=SMALL, colour=MUTED, ha="center")
    style.label(axes, 101, y + 33, "each token", size=SMALL, colour=MUTED, ha="center")
    for head in range(4):
        x = 140 + 32 * head
        for token in range(4):
            style.block(axes, x, y + 11 * token, 15, 11, style.tint(KEYS, 0.75))
            style.block(axes, x + 15, y + 11 * token, 10, 11, style.tint(VALUES, 0.75))
    style.label(
        axes,
        202,
        y + 52,
        f"{data['heads']} heads of {data['key']} + {data['value']}",
        size=SMALL,
        ha="center",
    )
    style.block(axes, 310, y + 16, 30, 12, QUERY, "q")
    style.arrow(axes, (307, y + 22), (268, y + 22))


def _absorbed_flow(axes: Axes, y: float, data: Data) -> None:
    style.label(axes, MARGIN, y, "absorbed", weight="bold")
    y += 16
    _stored(axes, MARGIN, y, data)
    style.block(axes, 310, y + 6, 30, 12, QUERY, "q")
    style.arrow(axes, (307, y + 12), (246, y + 12))
    style.label(axes, 277, y + 2, "up K", size=SMALL, colour=MUTED, ha="center")
    style.block(axes, 168, y + 6, 75, 12, QUERY, f"q, {data['latent'] + data['rope']} wide")
    style.arrow(axes, (165, y + 12), (70, y + 12))
    style.label(axes, 118, y + 2, "scores", size=SMALL, colour=MUTED, ha="center")
    style.arrow(axes, (70, y + 36), (165, y + 36))
    style.label(axes, 118, y + 27, "weighted sum", size=SMALL, colour=MUTED, ha="center")
    style.block(axes, 168, y + 30, 75, 12, NEW, f"{data['latent']} wide")
    style.arrow(axes, (246, y + 36), (307, y + 36))
    style.label(axes, 277, y + 46, "up V", size=SMALL, colour=MUTED, ha="center")
    style.block(axes, 310, y + 30, 30, 12, VALUES, "out")


ABSORPTION = Record(
    name="03_absorption",
    data=absorption_data,
    takeaway=lambda d: (
        f"Absorbed, a step reads {d['latent_bytes']:,} bytes per stored token and layer, "
        f"{d['heads_bytes'] / d['latent_bytes']:.0f} times fewer than all heads hold"
    ),
    describe=lambda d: (
        f"""
        Two ways through the same stored latents of {d["latent"]} numbers and rotary keys of
        {d["rope"]}. Expanded: each stored token is projected up to keys of {d["key"]} and values of
        {d["value"]} for {d["heads"]} heads, which the query then reads. Absorbed: the query is
        projected into the latent space, meets the latents there, and their weighted sum is
        projected up once. Two bars to scale for DeepSeek-V2 in BF16: {d["heads_bytes"]:,} bytes
        for all heads of one token and layer, {d["latent_bytes"]:,} for latent and rotary key.
        """
    ),
    plot=_plot_absorption,
)

# ── The zoo ─────────────────────────────────────────────────────────────────────────────────────

_SHOWN = {
    "MHA": ("opt-175b", "command-r-v01", "llama-2-13b", "llama-2-7b", "gemma-7b", "gpt2"),
    "GQA": (
        "llama-3.1-405b",
        "gemma-3-27b",
        "gemma-2-27b",
        "llama-3-70b",
        "qwen3-32b",
        "llama-3-8b",
        "gpt-oss-120b",
        "qwen2.5-7b",
        "smollm2-135m",
    ),
    "MQA": ("palm-540b", "gemma-2b", "falcon-7b"),
    "MLA": ("deepseek-v3",),
    "Few layers attend": ("nemotron-h-56b", "qwen3-next-80b-a3b", "jamba-v0.1", "kimi-linear-48b"),
}


def zoo_data() -> Data:
    """Bytes a token in BF16 by kind of attention, and what a token still adds beyond windows."""
    kinds = []
    for kind, names in _SHOWN.items():
        models = []
        for name in names:
            arch = Architecture.named(name)
            models.append(
                {
                    "name": zoo.entry(name).title,
                    "bytes": sizing.kv_bytes_per_token(arch),
                    "beyond": sizing.kv_bytes_per_token(arch, beyond_window=True),
                }
            )
        kinds.append({"kind": kind, "models": models})
    every = [model for kind in kinds for model in kind["models"]]
    return {
        "kinds": kinds,
        "most": max(every, key=lambda model: model["bytes"]),
        "least": min(every, key=lambda model: model["bytes"]),
    }


def _plot_zoo(data: Data, title: str) -> Figure:
    pitch, gap, left, right = 14.0, 9.0, 132.0, 58.0
    rows = sum(len(kind["models"]) + 1 for kind in data["kinds"])
    height = pitch * rows + gap * (len(data["kinds"]) - 1)
    figure, page = style.canvas(64 + height + 46)
    top = style.headline(page, title) + 8
    plot = style.chart(figure, left, top, style.WIDTH - left - right, height)
    plot.set_xscale("log", base=2)
    plot.set_xlim(4 * 1024, 8 * 1024**2)
    plot.set_ylim(height, 0)
    plot.set_xticks(
        [8 * 1024, 64 * 1024, 512 * 1024, 4 * 1024**2],
        ["8 KiB", "64 KiB", "512 KiB", "4 MiB"],
    )
    plot.minorticks_off()
    plot.set_yticks([])
    plot.grid(axis="x")
    plot.set_xlabel("cache per token, BF16 (log scale); open: beyond a window")
    y = 0.0
    for kind in data["kinds"]:
        style.label(page, MARGIN, top + y + pitch / 2, kind["kind"], weight="bold")
        y += pitch
        for model in kind["models"]:
            _zoo_row(page, plot, top, y + pitch / 2, model)
            y += pitch
        y += gap
    return figure


def _zoo_row(page: Axes, plot: Axes, top: float, y: float, model: Data) -> None:
    style.label(page, MARGIN + 8, top + y, model["name"], size=SMALL)
    style.label(
        page,
        style.WIDTH - MARGIN,
        top + y,
        format_bytes(model["bytes"]),
        size=SMALL,
        colour=MUTED,
        ha="right",
    )
    if 0 < model["beyond"] < model["bytes"]:
        plot.plot([model["beyond"], model["bytes"]], [y, y], color=FAINT, lw=1.0)
        plot.plot([model["beyond"]], [y], "o", color=KEYS, markerfacecolor="white", markersize=5)
    plot.plot([model["bytes"]], [y], "o", color=KEYS, markersize=5.5, markeredgecolor=INK, mew=0.3)


ZOO = Record(
    name="03_zoo",
    data=zoo_data,
    takeaway=lambda d: (
        f"From {format_bytes(d['least']['bytes'])} to {format_bytes(d['most']['bytes'])} a token: "
        "the kind of attention decides, not the size of the model"
    ),
    describe=lambda d: (
        f"""
        Bytes a token adds to the cache in BF16 on one logarithmic axis, for
        {sum(len(kind["models"]) for kind in d["kinds"])} models by kind of attention; an open
        circle marks what a token still adds once sliding layers are full.
        """
        + " ".join(
            f"{kind['kind']}: "
            + ", ".join(
                f"{model['name']} {format_bytes(model['bytes'])}"
                for model in (kind["models"][0], kind["models"][-1])[: len(kind["models"])]
            )
            + "."
            for kind in d["kinds"]
        )
    ),
    plot=_plot_zoo,
)

FIGURES = (GROUPING, ABSORPTION, ZOO)
