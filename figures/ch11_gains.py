"""Chapter 11: how much speculation gains, by batch and context and by acceptance."""

from __future__ import annotations

from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import style
from figures.ch04 import GPU, GPUS, MODEL
from figures.record import Data, Record
from figures.style import BASE, INK, MARGIN, MUTED, NEW, PAPER, RECOMPUTED, SMALL
from figures.style import K as KEYS
from figures.style import V as VALUES
from refimpl import capacity, roofline
from refimpl.architecture import Architecture
from refimpl.hardware import Accelerator

# ── Over batch and context ──────────────────────────────────────────────────────────────────────

_SETTINGS = ((1, 4096), (256, 4096), (8, 131_072))


def _passes(batch: int, context: int, gamma: int) -> tuple[roofline.Step, roofline.Step]:
    """A plain step after which ``context`` tokens are held, and one that verifies γ more drafts.

    Both start from the same cache, so the wider pass ends with γ tokens more. Counted as one does
    aloud: all weights once, no activations.
    """
    plain, wide = (
        roofline.decode_step(
            Architecture.named(MODEL),
            Accelerator.named(GPU),
            batch=batch,
            context=context + more,
            num_new=1 + more,
            num_gpus=GPUS,
            whiteboard=True,
        )
        for more in (0, gamma)
    )
    return plain, wide


@cache
def map_data(
    batches: tuple[int, ...] = (1, 8, 32, 64, 128, 256, 512),
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 32_768, 131_072),
    gamma: int = 4,
    alpha: float = 0.8,
) -> Data:
    """The bound on the speed-up where drafts cost nothing, by context and batch."""
    from refimpl.speculative import speedup

    model, gpu = Architecture.named(MODEL), Accelerator.named(GPU)

    def cell(batch: int, context: int) -> Data:
        plain, wide = _passes(batch, context, gamma)
        cost = wide.seconds / plain.seconds
        return {
            "batch": batch,
            "context": context,
            "faster": speedup(alpha, gamma, 0.0, cost),
            "verify_cost": cost,
            "intensity": wide.intensity,
            "bound": wide.bound,
        }

    return {
        "gamma": gamma,
        "alpha": alpha,
        "batches": list(batches),
        "contexts": list(contexts),
        "ridge": gpu.ridge(),
        "cells": [[cell(batch, context) for batch in batches] for context in contexts],
        "fits": [
            capacity.plan(model, gpu, num_gpus=GPUS, context=context).fit.whole_users
            for context in contexts
        ],
        "settings": [cell(*setting) for setting in _SETTINGS],
        "most": speedup(alpha, gamma, 0.0),
    }


def _k(context: int) -> str:
    return f"{context // 1024}k" if context >= 1024 else str(context)


_LEFT, _WIDE, _HIGH = 56.0, 42.0, 25.0


def _plot_map(data: Data, title: str) -> Figure:
    contexts, batches = data["contexts"], data["batches"]
    figure, axes = style.canvas(86 + _HIGH * len(contexts) + 118)
    top = style.headline(axes, title) + 34
    style.label(axes, MARGIN, top - 10, "context", size=SMALL, colour=MUTED)
    middle = _LEFT + _WIDE * len(batches) / 2
    style.label(axes, middle, top - 25, "batch", size=SMALL, colour=MUTED, ha="center")
    for column, batch in enumerate(batches):
        x = _LEFT + (column + 0.5) * _WIDE
        style.label(axes, x, top - 10, f"{batch}", size=SMALL, colour=MUTED, ha="center")
    for row, cells in enumerate(data["cells"]):
        y = top + row * _HIGH
        style.label(axes, _LEFT - 6, y + _HIGH / 2, _k(contexts[row]), ha="right")
        for column, cell in enumerate(cells):
            held = cell["batch"] <= data["fits"][row]
            _cell(axes, _LEFT + column * _WIDE, y, cell, data, held)
    _edge(axes, top, data)
    marks = {(s["batch"], s["context"]): n for n, s in enumerate(data["settings"], 1)}
    for (batch, context), number in marks.items():
        x = _LEFT + batches.index(batch) * _WIDE
        _mark(axes, x, top + contexts.index(context) * _HIGH, number)
    y = top + _HIGH * len(contexts) + 16
    for number, setting in enumerate(data["settings"], 1):
        at = y + 16 * (number - 1)
        _number(axes, MARGIN + 7, at, number)
        words = f"batch {setting['batch']}, {_k(setting['context'])}"
        style.label(axes, MARGIN + 19, at, words)
        style.label(axes, 148, at, f"{setting['faster']:.2f}", weight="bold", ha="right")
        sign = "above" if setting["intensity"] > data["ridge"] else "below"
        words = f"{setting['intensity']:.0f} FLOP/byte, {sign} {data['ridge']:.0f}"
        style.label(axes, 160, at, words)
    words = (
        f"Llama-3-70B on eight H100s; γ = {data['gamma']}, α = {data['alpha']}, free drafts",
        "orange: the pass is compute-bound; bold: slower than plain decoding",
        "right of the line, in grey: the cache does not fit beside the weights",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 54 + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _cell(axes: Axes, x: float, y: float, cell: Data, data: Data, held: bool) -> None:
    """One value: green where the pass is memory-bound, else orange, stronger as it gains less.

    Where the cache is not held there is only arithmetic: grey on paper.
    """
    if not held:
        style.block(axes, x, y, _WIDE, _HIGH, PAPER, edge=PAPER)
        words = f"{cell['faster']:.2f}"
        middle = x + _WIDE / 2, y + _HIGH / 2
        style.label(axes, *middle, words, size=SMALL, colour=MUTED, ha="center")
        return
    if cell["bound"] == "memory":
        fill = style.tint(NEW, 0.30)
    else:
        fill = style.tint(RECOMPUTED, 1 - 0.80 * cell["faster"] / data["most"])
    weight = "bold" if cell["faster"] < 1 else "normal"
    style.block(axes, x, y, _WIDE, _HIGH, fill, f"{cell['faster']:.2f}", edge=PAPER, weight=weight)


def _edge(axes: Axes, top: float, data: Data) -> None:
    """The stair to the left of which eight GPUs hold the cache of the whole batch."""
    points = []
    for row, fits in enumerate(data["fits"]):
        held = sum(batch <= fits for batch in data["batches"])
        x, y = _LEFT + held * _WIDE, top + row * _HIGH
        points += [(x, y), (x, y + _HIGH)]
    style.line(axes, points, colour=INK)


def _mark(axes: Axes, x: float, y: float, number: int) -> None:
    shape = Rectangle((x, y), _WIDE, _HIGH, facecolor="none", edgecolor=INK, lw=2.0, zorder=4)
    axes.add_patch(shape)
    _number(axes, x + 1, y + 1, number)


def _number(axes: Axes, x: float, y: float, number: int) -> None:
    """A setting's number on a dark disc."""
    axes.plot([x], [y], "o", color=INK, ms=13, zorder=5)
    axes.text(
        x,
        y + 0.3,
        str(number),
        color=PAPER,
        fontsize=SMALL,
        fontweight="bold",
        ha="center",
        va="center_baseline",
        zorder=6,
    )


def _lowest(data: Data) -> Data:
    """The worst cell of those whose cache fits."""
    return min(
        (
            cell
            for cells, fits in zip(data["cells"], data["fits"], strict=True)
            for cell in cells
            if cell["batch"] <= fits
        ),
        key=lambda cell: cell["faster"],
    )


MAP = Record(
    name="11_map",
    data=map_data,
    takeaway=lambda d: (
        f"The bound of {d['settings'][0]['faster']:.2f} times falls to "
        f"{d['settings'][1]['faster']:.2f} at batch {d['settings'][1]['batch']} and "
        f"{_k(d['settings'][1]['context'])}, where verifying is compute-bound; from "
        f"{_k(_first_flat(d))} on no batch that fits loses it"
    ),
    describe=lambda d: (
        f"""
        Bound on the speed-up of Llama-3-70B in bf16 on eight H100s, {d["gamma"]} free drafts,
        acceptance {d["alpha"]}. Columns are batches from {d["batches"][0]} to {d["batches"][-1]},
        rows contexts from {d["contexts"][0]} to {d["contexts"][-1]:,} tokens. Three cells are
        marked:
        """
        + "; ".join(
            f"batch {s['batch']} at {_k(s['context'])} {s['faster']:.2f}, {s['bound']}-bound at "
            f"{s['intensity']:.0f} FLOPs per byte"
            for s in d["settings"]
        )
        + f"""; the ridge is at {d["ridge"]:.0f}. Orange cells are compute-bound: large
        batches, short contexts, down to {_lowest(d)["faster"]:.2f} at batch
        {_lowest(d)["batch"]} and {_lowest(d)["context"]} tokens. A line ends each row where the
        cache no longer fits beside the weights, in sequences:
        """
        + ", ".join(
            f"{fits} at {_k(context)}"
            for context, fits in zip(d["contexts"], d["fits"], strict=True)
            if fits < d["batches"][-1]
        )
        + f""". Beyond it, in grey, cells are arithmetic only. From {_k(_first_flat(d))} on every
        batch that fits keeps {d["most"]:.2f}.
        """
    ),
    plot=_plot_map,
)


def _first_flat(data: Data) -> int:
    """The shortest context at which no batch that fits loses any of the gain, to two decimals."""
    return next(
        context
        for context, cells, fits in zip(data["contexts"], data["cells"], data["fits"], strict=True)
        if all(cell["faster"] > 0.999 * data["most"] for cell in cells if cell["batch"] <= fits)
    )


# ── Over acceptance ─────────────────────────────────────────────────────────────────────────────


@cache
def gamma_data(
    gammas: tuple[int, ...] = (1, 2, 4, 8),
    cost_ratio: float = 0.02,
    times: tuple[int, ...] = (2, 3, 4, 5),
    steps: int = 100,
) -> Data:
    """The speed-up with a free verification, by acceptance, for some γ and for the best."""
    from refimpl.speculative import acceptance_needed, best_gamma, speedup
    from refimpl.speculative.gains import MAX_GAMMA

    alphas = [step / steps for step in range(steps + 1)]
    best = [best_gamma(alpha, cost_ratio) for alpha in alphas]
    needed = [(many, acceptance_needed(many, cost_ratio)) for many in times]
    return {
        "cost_ratio": cost_ratio,
        "max_gamma": MAX_GAMMA,
        "alphas": alphas,
        "curves": {
            gamma: [speedup(alpha, gamma, cost_ratio) for alpha in alphas] for gamma in gammas
        },
        "best": best,
        "envelope": [speedup(a, g, cost_ratio) for a, g in zip(alphas, best, strict=True)],
        "thresholds": [
            {"times": many, "alpha": alpha, "gamma": best_gamma(alpha, cost_ratio)}
            for many, alpha in needed
            if alpha is not None
        ],
    }


_COLOURS = (VALUES, RECOMPUTED, NEW, KEYS)


def _plot_gamma(data: Data, title: str) -> Figure:
    figure, plot = style.plain_chart(
        title, x="acceptance α", y="times faster than plain decoding", height=330
    )
    highest = 6.7
    alphas = data["alphas"]
    plot.plot([0, 1], [1, 1], color=MUTED, lw=1.0, ls=(0, (4, 2)))
    plot.plot(alphas, data["envelope"], color=INK, lw=1.6, ls=(0, (1, 1.2)), zorder=4)
    for (gamma, curve), colour in zip(data["curves"].items(), _COLOURS, strict=True):
        plot.plot(alphas, curve, color=colour, lw=2.6, zorder=3)
        x, y = (1.015, curve[-1]) if curve[-1] < highest else (1.015, highest - 0.15)
        plot.text(
            x,
            y,
            f"{gamma}",
            color=style.as_text(colour),
            fontsize=BASE,
            fontweight="bold",
            va="center",
        )
    for mark in data["thresholds"]:
        alpha, many = mark["alpha"], mark["times"]
        plot.plot([0, alpha, alpha], [many, many, 0], color=style.FAINT, lw=0.9, zorder=1)
        plot.plot([alpha], [many], "o", color=PAPER, ms=7, mec=INK, mew=1.8, zorder=5)
        plot.text(
            alpha - 0.035,
            many + 0.2,
            f"{many} times: α ≥ {alpha:.2f}, γ = {mark['gamma']}",
            color=INK,
            fontsize=BASE,
            ha="right",
            va="center",
        )
    words = f"dotted: the best γ up to {data['max_gamma']}"
    plot.text(0.02, 5.68, words, fontsize=SMALL, color=INK, va="center")
    words = f"a draft costs {data['cost_ratio']} steps, verifying as much as one"
    plot.text(0.02, 6.36, words, fontsize=SMALL, color=MUTED, va="center")
    plot.text(1.015, 7.02, "γ", fontsize=BASE, color=MUTED, va="center")
    plot.set_xlim(0, 1)
    plot.set_ylim(0, highest)
    plot.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
    plot.set_yticks(range(7))
    return figure


GAMMA = Record(
    name="11_gamma",
    data=gamma_data,
    takeaway=lambda d: (
        f"{d['thresholds'][0]['times']} times faster takes an acceptance of "
        f"{d['thresholds'][0]['alpha']:.2f}, {d['thresholds'][-1]['times']} times takes "
        f"{d['thresholds'][-1]['alpha']:.2f} and {d['thresholds'][-1]['gamma']} drafts a round"
    ),
    describe=lambda d: (
        f"""
        Speed-up against acceptance from 0 to 1 where a draft costs {d["cost_ratio"]} plain steps
        and verifying costs no more than one step. One curve for each number of drafts a round; at
        acceptance {d["alphas"][80]} they stand at
        """
        + ", ".join(f"{curve[80]:.2f} for {gamma}" for gamma, curve in d["curves"].items())
        + f"; at 0 the one for 8 is at {d['curves'][8][0]:.2f}, slower than plain decoding. "
        f"The dotted line is the best of up to {d['max_gamma']} drafts; it reaches "
        + ", ".join(
            f"{t['times']} times at {t['alpha']:.2f} with {t['gamma']} drafts"
            for t in d["thresholds"]
        )
        + "."
    ),
    plot=_plot_gamma,
)


FIGURES = (MAP, GAMMA)
