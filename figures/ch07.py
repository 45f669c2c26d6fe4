"""Chapter 07: where reserved memory goes under three policies, and what the block size decides."""

from __future__ import annotations

from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import BASE, FAINT, INK, MARGIN, MUTED, NEW, PAPER, RECOMPUTED, SMALL
from figures.style import K as KEYS
from refimpl.blocks import expected_waste, num_blocks_for
from refimpl.blocks.policies import ContiguousMax, ContiguousPowerOfTwo, Paged, Policy, Request
from refimpl.blocks.replay import draw_trace, replay

POOL, LONGEST, BLOCK = 16_384, 2048, 16
"""Slots of the pool, the most that one request may take, and the slots of a block."""


@cache
def trace(num_requests: int = 200, per_step: float = 0.25, seed: int = 0) -> tuple[Request, ...]:
    """Requests with exponential lengths, one arriving every fourth step.

    The means asked for are those of the ShareGPT trace in Kwon et al. 2023, Fig. 11: 161.31 tokens
    of prompt and 337.99 of output. They are cut where a request would take over 2,048 slots.
    """
    return tuple(
        draw_trace(
            num_requests,
            mean_prompt=161.31,
            mean_output=337.99,
            max_tokens=LONGEST,
            per_step=per_step,
            seed=seed,
        )
    )


# ── Where the slots go ──────────────────────────────────────────────────────────────────────────

# Kwon et al. 2023 (arXiv:2309.06180), Fig. 2: share of the memory that holds a token, in per cent.
_PUBLISHED = {"max": 20.4, "pow2": 26.8, "oracle": 38.2, "paged": 96.3}


@cache
def waste_data(num_slots: int = POOL) -> Data:
    """Mean share of each kind of slot while a request waits, under three policies, one trace."""
    policies: dict[str, Policy] = {
        "max": ContiguousMax(num_slots, LONGEST),
        "pow2": ContiguousPowerOfTwo(num_slots),
        "paged": Paged(num_slots, BLOCK),
    }
    rows = []
    for key, policy in policies.items():
        result = replay(policy, trace())
        rows.append(
            {
                "policy": key,
                "name": result.policy,
                "shares": result.shares(under_pressure=True),
                "peak": result.peak_running,
                "steps": len(result.steps),
                "preempted": result.num_preempted,
                "recomputed": result.num_recomputed,
                "published": _PUBLISHED[key],
            }
        )
    requests = trace()
    return {
        "num_slots": num_slots,
        "longest": LONGEST,
        "num_requests": len(requests),
        "mean_prompt": sum(request.num_prompt for request in requests) / len(requests),
        "mean_output": sum(request.num_output for request in requests) / len(requests),
        "tokens": sum(request.num_tokens for request in requests),
        "oracle": _PUBLISHED["oracle"],
        "rows": rows,
    }


_KINDS = {
    "token": (NEW, "holds a token"),
    "future": (style.tint(NEW, 0.40), "for later"),
    "internal": (RECOMPUTED, "never filled"),
    "external": (style.tint(RECOMPUTED, 0.45), "free in pieces"),
    "unused": (PAPER, "free but too few"),
}


def _plot_waste(data: Data, title: str) -> Figure:
    pitch, height, width = 92.0, 34.0, style.WIDTH - 2 * MARGIN
    figure, axes = style.canvas(50 + pitch * len(data["rows"]) + 60)
    top = style.headline(axes, title) + 6
    for index, row in enumerate(data["rows"]):
        y = top + pitch * index
        style.label(axes, MARGIN, y + 4, row["name"], weight="bold")
        words = f"up to {row['peak']} at once, done in {row['steps']:,} steps"
        style.label(axes, style.WIDTH - MARGIN, y + 4, words, size=SMALL, ha="right")
        _waste_bar(axes, y + 14, height, row["shares"], named=not index)
        mark = MARGIN + width * row["published"] / 100
        bottom = y + 14 + height
        style.line(axes, [(mark, bottom - 5), (mark, bottom + 7)], colour=INK)
        style.label(
            axes,
            mark + (4 if row["published"] < 50 else -4),
            bottom + 10,
            f"vLLM's trace {row['published']:.1f}",
            size=SMALL,
            colour=MUTED,
            ha="left" if row["published"] < 50 else "right",
        )
    y = top + pitch * len(data["rows"]) + 2
    paged = data["rows"][-1]
    words = (
        f"per cent of {data['num_slots']:,} slots, mean of the steps in which a request waits",
        f"paged: {paged['preempted']} times the newest request gave up its blocks;",
        f"{paged['recomputed']:,} tokens had to be stored again because of that",
        "vLLM's trace: another one, from Kwon et al. 2023, Fig. 2",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _waste_bar(
    axes: Axes, y: float, height: float, shares: dict[str, float], *, named: bool
) -> None:
    """The pool as one bar; kinds too narrow for their number are named below its right end."""
    x, width, narrow = MARGIN, style.WIDTH - 2 * MARGIN, []
    for kind, (fill, words) in _KINDS.items():
        share = shares[kind]
        part = width * share
        style.block(axes, x, y, part, height, fill, edge=FAINT if fill == PAPER else PAPER)
        number = f"{100 * share:.1f}"
        if part >= 40:
            middle, on = x + part / 2, style.text_on(fill)
            first = y + (height / 2 if not named else 11)
            weight = "bold" if kind == "token" else "normal"
            axes.text(
                middle,
                first,
                number,
                color=on,
                fontsize=BASE,
                ha="center",
                va="center",
                fontweight=weight,
            )
            if named:
                axes.text(middle, y + 24, words, color=on, fontsize=SMALL, ha="center", va="center")
        elif number != "0.0":
            narrow.append(f"{words} {number}")
        x += part
    style.block(axes, MARGIN, y, width, height, "none", edge=MUTED)
    if narrow:
        words = "; ".join(narrow)
        style.label(axes, style.WIDTH - MARGIN, y + height + 25, words, size=SMALL, ha="right")


def _percent(row: Data, kind: str) -> str:
    return f"{100 * row['shares'][kind]:.1f}"


def _shares(row: Data) -> str:
    """The shares that are not zero, in per cent, each with its kind."""
    kinds = [(words, _percent(row, kind)) for kind, (_, words) in _KINDS.items()]
    return ", ".join(f"{words} {number}" for words, number in kinds if number != "0.0")


WASTE = Record(
    name="07_waste",
    data=waste_data,
    takeaway=lambda d: (
        f"{_percent(d['rows'][0], 'token')}, {_percent(d['rows'][1], 'token')} or "
        f"{_percent(d['rows'][2], 'token')} % of the memory holds a token: "
        "the same requests, three ways to reserve"
    ),
    describe=lambda d: (
        f"""
        A pool of {d["num_slots"]:,} slots as one bar per policy, by what the slots hold while one
        of {d["num_requests"]} requests waits.
        """
        + " ".join(
            f"{r['name'].capitalize()}: {_shares(r)} (%); up to {r['peak']} requests at once."
            for r in d["rows"]
        )
        + f"""
        Paged took blocks back {d["rows"][2]["preempted"]} times and stored
        {d["rows"][2]["recomputed"]:,} tokens again. Marks: what Kwon et al. 2023, Fig. 2, measured
        on another trace, {d["rows"][0]["published"]:.1f}, {d["rows"][1]["published"]:.1f} and
        {d["rows"][2]["published"]:.1f} %, and {d["oracle"]:.1f} % with lengths known in advance.
        """
    ),
    plot=_plot_waste,
)

# ── Block size ──────────────────────────────────────────────────────────────────────────────────


@cache
def block_size_data(
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256), num_requests: int = 200
) -> Data:
    """Empty slots and table entries by block size, mean over every step of every request.

    A request holds its prompt in its first step and one token more in each that follows.
    """
    lengths = [
        stored
        for request in trace(num_requests)
        for stored in range(request.num_prompt, request.num_tokens + 1)
    ]
    mean = sum(lengths) / len(lengths)
    rows = []
    for size in sizes:
        entries = sum(num_blocks_for(stored, size) for stored in lengths) / len(lengths)
        empty, expected = entries * size - mean, expected_waste(size)
        rows.append(
            {
                "block_size": size,
                "entries": entries,
                "empty": empty,
                "expected": expected,
                "share": empty / (entries * size),
                "expected_share": expected / (mean + expected),
            }
        )
    return {
        "num_requests": num_requests,
        "num_steps": len(lengths),
        "mean_tokens": mean,
        "rows": rows,
    }


def _row(data: Data, size: int) -> Data:
    return next(row for row in data["rows"] if row["block_size"] == size)


def _plot_block_size(data: Data, title: str) -> Figure:
    figure, page = style.canvas(414)
    top = style.headline(page, title)
    left, width, height = 44.0, style.WIDTH - 44 - 18, 138.0
    sizes = [row["block_size"] for row in data["rows"]]
    panels = []
    for index, words in enumerate(
        ("reserved slots that are empty (%)", "table entries of a request")
    ):
        y = top + 18 + index * (height + 42)
        style.label(page, MARGIN, y - 14, words, size=SMALL, colour=MUTED)
        plot = style.chart(figure, left, y, width, height)
        plot.set_xscale("log", base=2)
        plot.set_xlim(0.85, sizes[-1] * 1.12)
        plot.set_xticks(sizes, [str(size) for size in sizes])
        plot.minorticks_off()
        plot.grid(axis="y")
        panels.append(plot)
    _empty_panel(panels[0], data, sizes)
    _entries_panel(panels[1], data, sizes)
    panels[1].set_xlabel("slots in a block")
    return figure


def _empty_panel(plot: Axes, data: Data, sizes: list[int]) -> None:
    plot.plot(
        sizes,
        [100 * row["expected_share"] for row in data["rows"]],
        color=INK,
        lw=1.2,
        ls=(0, (4, 2)),
        zorder=3,
    )
    measured = [100 * row["share"] for row in data["rows"]]
    plot.plot(sizes, measured, color=RECOMPUTED, lw=3.2, marker="o", ms=6)
    plot.set_ylim(0, 21)
    plot.set_yticks([0, 5, 10, 15, 20])
    for size in (16, 64, 128, 256):
        share = 100 * _row(data, size)["share"]
        plot.text(
            size * 0.86,
            share + 1.1,
            f"{share:.1f}",
            color=style.as_text(RECOMPUTED),
            fontsize=BASE,
            fontweight="bold",
            ha="right",
            va="center",
        )
    plot.text(
        1.1, 15.6, "measured", color=style.as_text(RECOMPUTED), fontweight="bold", va="center"
    )
    plot.text(1.1, 12.6, "dashed: (B − 1) / 2 empty slots", color=INK, fontsize=SMALL, va="center")
    plot.text(
        1.1,
        10.4,
        f"beside {data['mean_tokens']:.0f} tokens, the mean held",
        color=INK,
        fontsize=SMALL,
        va="center",
    )


def _entries_panel(plot: Axes, data: Data, sizes: list[int]) -> None:
    plot.plot(sizes, [row["entries"] for row in data["rows"]], color=KEYS, lw=2.4, marker="o", ms=6)
    plot.set_yscale("log")
    plot.set_ylim(1, 1000)
    plot.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    plot.minorticks_off()
    for size in (1, 4, 16, 64, 256):
        entries = _row(data, size)["entries"]
        words = f"{entries:.0f}" if entries >= 10 else f"{entries:.1f}"
        plot.text(
            size * 1.14,
            entries * 1.3,
            words,
            color=style.as_text(KEYS),
            fontsize=BASE,
            fontweight="bold",
            ha="left" if size < 256 else "center",
            va="bottom",
        )


BLOCK_SIZE = Record(
    name="07_block_size",
    data=block_size_data,
    takeaway=lambda d: (
        f"Blocks of 16 leave {100 * _row(d, 16)['share']:.1f} % of their slots empty and need "
        f"{_row(d, 16)['entries']:.0f} table entries; blocks of 256 leave "
        f"{100 * _row(d, 256)['share']:.0f} %"
    ),
    describe=lambda d: (
        f"""
        Two charts over block sizes from {d["rows"][0]["block_size"]} to
        {d["rows"][-1]["block_size"]}, means over every step of {d["num_requests"]} requests, which
        hold {d["mean_tokens"]:.0f} tokens on average. Share of the reserved slots that is empty:
        """
        + ", ".join(
            f"{100 * _row(d, size)['share']:.1f} % at {size}" for size in (1, 4, 16, 64, 128, 256)
        )
        + f"""; half a block less half a slot, (P - 1) / 2, predicts
        {100 * _row(d, 16)["expected_share"]:.1f} % at 16 and
        {100 * _row(d, 256)["expected_share"]:.1f} % at 256. Table entries of a request:
        """
        + ", ".join(f"{_row(d, size)['entries']:.1f} at {size}" for size in (1, 4, 16, 64, 256))
        + "."
    ),
    plot=_plot_block_size,
)

FIGURES = (WASTE, BLOCK_SIZE)
