"""Chapter 09: a softmax that runs over its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import MARGIN, MUTED, NEW, PAPER, RECOMPUTED, SMALL
from figures.style import V as VALUES

# ── Three scores ────────────────────────────────────────────────────────────────────────────────


@cache
def softmax_data(
    scores: tuple[int, ...] = (1, 3, 2), values: tuple[int, ...] = (7, 14, 21)
) -> Data:
    """The running softmax after each score; scores are in powers of two.

    The reference counts in powers of e, so it is handed the scores times ln 2.
    """
    import torch

    from refimpl import flash

    def number(value: torch.Tensor) -> float:
        return round(float(value), 12)

    running = flash.start(1, width=1, dtype=torch.float64)
    steps: list[Data] = []
    weights: list[float] = []
    for score, value in zip(scores, values, strict=True):
        scores_TS = torch.tensor([[score * math.log(2)]], dtype=torch.float64)
        folded = flash.fold(running.max_T, running.sum_T, scores_TS)
        running = flash.absorb(running, scores_TS, torch.tensor([[value]], dtype=torch.float64))
        factor = number(folded.factor_T)
        weights = [weight * factor for weight in weights] + [number(folded.weights_TS)]
        steps.append(
            {
                "score": score,
                "value": value,
                "factor": factor,
                "max": number(running.max_T / math.log(2)),
                "sum": number(running.sum_T),
                "acc": number(running.out_TE),
                "weights": weights,
            }
        )
    out, lse = flash.finish(running)
    return {
        "scores": list(scores),
        "values": list(values),
        "steps": steps,
        "output": number(out),
        "lse": number(lse),
        "all_weights": [2**score for score in scores],
    }


def _share(number: float) -> str:
    """``1/4``, or ``1`` where it is whole."""
    return str(Fraction(number))


def _plain(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


_COLUMN, _BAR, _LEFT = 120.0, 24.0, MARGIN
_SUM, _ACC = 40.0, 3.6
"""Points of height for 1 in the sum and for 1 in the accumulator."""


def _plot_softmax(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(420)
    top = style.headline(axes, title) + 10
    last = data["steps"][-1]
    sums = top + 76 + _SUM * last["sum"]
    accs = sums + 36 + _ACC * last["acc"]
    for base in (sums, accs):
        axes.plot([MARGIN, style.WIDTH - MARGIN], [base, base], color=style.FAINT, lw=0.8)
    old = None
    for index, step in enumerate(data["steps"]):
        x = _LEFT + _COLUMN * index
        _arrives(axes, x, top, step, -math.inf if old is None else old["max"])
        before = old["weights"] if old else []
        _stack(axes, x, sums, _SUM, "l", step, "sum", [1] * (index + 1), before)
        _stack(axes, x, accs, _ACC, "a", step, "acc", data["values"][: index + 1], before)
        if old:
            for base, unit, key in ((sums, _SUM, "sum"), (accs, _ACC, "acc")):
                heights = [base - unit * old[key] * factor for factor in (1, step["factor"])]
                ends = [x - _COLUMN + _BAR, x]
                axes.plot(ends, heights, color=MUTED, lw=0.9, ls=(0, (3, 2)))
        old = step
    style.timeline(axes, _LEFT, accs + 18, style.WIDTH - MARGIN - _LEFT)
    words = f"output  a / l = {_plain(last['acc'])} / {_plain(last['sum'])} = "
    y = accs + 40
    style.label(axes, MARGIN, y, words + _plain(data["output"]), weight="bold")
    terms = zip(data["all_weights"], data["values"], strict=True)
    products = " + ".join(f"{weight} · {value}" for weight, value in terms)
    words = f"all at once: ({products}) / {sum(data['all_weights'])} = {_plain(data['output'])}"
    style.label(axes, MARGIN, y + 17, words)
    rows = (
        (NEW, "has just arrived"),
        (style.tint(NEW, 0.35), "carried over"),
        (RECOMPUTED, "rescaled"),
    )
    x = MARGIN
    for fill, words in rows:
        style.block(axes, x, y + 30, 11, 11, fill)
        style.label(axes, x + 16, y + 36, words, size=SMALL)
        x += 34 + style.text_width(words, SMALL)
    return figure


def _arrives(axes: Axes, x: float, y: float, step: Data, old: float) -> None:
    """A score and its value, the new maximum, and the factor for all that was summed before."""
    style.block(axes, x, y - 8, 46, 17, style.tint(style.K, 0.25), f"score {step['score']}")
    style.block(axes, x + 48, y - 8, 50, 17, VALUES, f"value {step['value']}")
    style.label(axes, x, y + 23, f"m = {_plain(step['max'])}", weight="bold")
    shown = "−∞" if old == -math.inf else _plain(old)
    power = f"2^{{{shown} − {_plain(step['max'])}}}"
    changed = 0 < step["factor"] < 1
    colour, weight = (RECOMPUTED, "bold") if changed else (MUTED, "normal")
    power = f"$\\mathbf{{{power}}}$" if changed else f"${power}$"
    words = f"old × {power} = {_share(step['factor'])}"
    style.label(axes, x, y + 40, words, colour=colour, weight=weight)


def _stack(
    axes: Axes,
    x: float,
    base: float,
    unit: float,
    name: str,
    step: Data,
    key: str,
    parts: Sequence[float],
    before: Sequence[float],
) -> None:
    """The sum or the accumulator as a bar of its terms, oldest at the bottom, to scale."""
    y = base
    for index, (part, weight) in enumerate(zip(parts, step["weights"], strict=True)):
        if index == len(before):
            fill = NEW
        else:
            fill = style.tint(NEW, 0.35) if weight == before[index] else RECOMPUTED
        height = part * weight * unit
        y -= height
        style.block(axes, x, y, _BAR, height, fill, edge=PAPER)
        words = _share(weight) if key == "sum" else f"{part} · {_share(weight)}"
        middle = min(y + height / 2, base - 7)  # clear of the base line
        style.label(axes, x + _BAR + 5, middle, words, size=SMALL)
    total = f"{name} = {_plain(step[key])}"
    style.label(axes, x, y - 10, total, weight="bold")


def _told(step: Data) -> str:
    """One arrival in words."""
    rescaled = (
        f"what was summed is multiplied by {_share(step['factor'])}, "
        if 0 < step["factor"] < 1
        else ""
    )
    return (
        f"After score {step['score']} with value {step['value']}: {rescaled}"
        f"m {_plain(step['max'])}, l {_plain(step['sum'])}, a {_plain(step['acc'])}."
    )


def _rescale(data: Data) -> Data:
    """The first arrival that raises the maximum over something."""
    return next(step for step in data["steps"] if 0 < step["factor"] < 1)


SOFTMAX = Record(
    name="09_running_softmax",
    data=softmax_data,
    takeaway=lambda d: (
        f"Score {_rescale(d)['score']} raises the maximum: what was summed is multiplied by "
        f"{_share(_rescale(d)['factor'])}, and nothing is read again"
    ),
    describe=lambda d: (
        f"""
        Scores in powers of two, {len(d["scores"])} of them, arrive one after the other, time to
        the right; below each the sum l and the accumulator a as bars of their terms. At the start
        the maximum m is minus infinity, l and a are 0.
        """
        + " ".join(_told(step) for step in d["steps"])
        + f""" The output is a over l, {_plain(d["steps"][-1]["acc"])} /
        {_plain(d["steps"][-1]["sum"])} = {_plain(d["output"])}, the same as with all weights
        {", ".join(map(str, d["all_weights"]))} at once.
        """
    ),
    plot=_plot_softmax,
)

FIGURES = (SOFTMAX,)
