"""Chapter 11: the mass that draft and target share, and rounds of drafts and verification."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.record import Data, Record
from figures.style import FAINT, INK, MARGIN, MUTED, NEW, PAPER, RECOMPUTED, SMALL, WEIGHTS

TOKENS = "ABCDE"
TARGET = (0.40, 0.25, 0.20, 0.10, 0.05)
DRAFT = (0.55, 0.10, 0.20, 0.05, 0.10)
"""What target and draft give each of the five tokens: everything else here follows from it."""

_OTHER = style.tint(NEW, 0.40)
"""The mass that the draft lacks, and a token that the target's pass adds."""

# ── One token ───────────────────────────────────────────────────────────────────────────────────


@cache
def mass_data(target: tuple[float, ...] = TARGET, draft: tuple[float, ...] = DRAFT) -> Data:
    """For each token what is proposed, stands, is rejected and is drawn instead."""
    import torch

    from refimpl import speculative

    laws = torch.tensor([target, draft], dtype=torch.float64)
    every = torch.arange(len(target))
    stands = speculative.accept_probability(
        laws[0].expand(len(target), -1), laws[1].expand(len(target), -1), every
    )
    accepted = laws[1] * stands
    return {
        "tokens": list(TOKENS[: len(target)]),
        "target": list(target),
        "draft": list(draft),
        "stands": stands.tolist(),
        "accepted": accepted.tolist(),
        "rejected": (laws[1] - accepted).tolist(),
        "missing": (laws[0] - accepted).tolist(),
        "residual": speculative.residual(laws[0], laws[1]).tolist(),
        "acceptance": float(speculative.acceptance(laws[0], laws[1])),
    }


_FIRST, _PITCH, _BAR, _SCALE = 84.0, 56.0, 46.0, 225.0


def _plot_mass(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(490)
    top = style.headline(axes, title)
    lost = 1 - data["acceptance"]
    words = (
        f"proposed: {data['acceptance']:.2f} is accepted, {lost:.2f} rejected",
        f"what comes out: the {data['acceptance']:.2f}, and {lost:.2f} redrawn",
    )
    base = top + 20 + _SCALE * max(data["draft"])
    second = base + 90 + _SCALE * max(data["draft"])
    _bars(axes, base, data, "rejected", RECOMPUTED)
    _bars(axes, second, data, "missing", _OTHER)
    style.label(axes, style.WIDTH - MARGIN, top + 6, words[0], weight="bold", ha="right")
    style.label(axes, style.WIDTH - MARGIN, base + 66, words[1], weight="bold", ha="right")
    _outlines(axes, base, data["target"], data["draft"])
    _outlines(axes, second, data["draft"], data["target"])
    for y, rows in (
        (base, {"token": "tokens", "draft": "draft", "accepted with": "stands"}),
        (second, {"token": "tokens", "target": "target", "redrawn from": "residual"}),
    ):
        for line, (name, key) in enumerate(rows.items()):
            _row(axes, y + 11 + 14 * line, name, data[key])
    _names(axes, base, second, data)
    return figure


def _names(axes: Axes, base: float, second: float, data: Data) -> None:
    """What the parts of the bars are called, each beside one of them."""
    accepted = data["accepted"][0] * _SCALE
    for y, rise, words, colour in (
        (base, accepted / 2, "accepted", NEW),
        (base, accepted + data["rejected"][0] * _SCALE / 2, "rejected", RECOMPUTED),
        (second, accepted / 2, "accepted", NEW),
        (second, accepted + data["rejected"][0] * _SCALE / 2, "dashed: draft", MUTED),
    ):
        weight = "normal" if colour == MUTED else "bold"
        style.label(axes, _FIRST - 6, y - rise, words, colour=colour, ha="right", weight=weight)
    x = _FIRST + _PITCH
    rise = data["target"][1] * _SCALE + 9
    style.label(axes, x, base - rise, "dashed: target", colour=MUTED)
    style.label(axes, x, second - rise, "residual", colour=NEW, weight="bold")


def _outlines(axes: Axes, base: float, other: Sequence[float], own: Sequence[float]) -> None:
    """Dashed, the other law where it is above the one drawn."""
    for index, (height, below) in enumerate(zip(other, own, strict=True)):
        if height > below:
            x, y = _FIRST + _PITCH * index, base - below * _SCALE
            top = base - height * _SCALE
            points = [(x, y), (x, top), (x + _BAR, top), (x + _BAR, y)]
            axes.plot(*zip(*points, strict=True), color=MUTED, lw=1.0, ls=(0, (3, 2)))


def _bars(axes: Axes, base: float, data: Data, kind: str, fill: str) -> None:
    """One bar a token upward from ``base``: what stands, and above it the other part."""
    for index in range(len(data["tokens"])):
        x, y = _FIRST + _PITCH * index, base
        for part, colour in ((data["accepted"], NEW), (data[kind], fill)):
            height = part[index] * _SCALE
            if f"{part[index]:.2f}" == "0.00":
                continue
            y -= height
            words = f"{part[index]:.2f}"
            style.block(axes, x, y, _BAR, height, colour, words, edge=PAPER, weight="bold")
    axes.plot([_FIRST - 4, _FIRST + 4 * _PITCH + _BAR + 4], [base, base], color=FAINT, lw=0.8)


def _row(axes: Axes, y: float, name: str, values: Sequence[str] | Sequence[float]) -> None:
    """A line of the table below a bar chart: the tokens, or a number for each."""
    style.label(axes, _FIRST - 6, y, name, size=SMALL, colour=MUTED, ha="right")
    for index, value in enumerate(values):
        x = _FIRST + _PITCH * index + _BAR / 2
        if isinstance(value, str):
            style.label(axes, x, y, value, ha="center", weight="bold")
        else:
            style.label(axes, x, y, f"{value:.2f}", ha="center")


def _each(names: Sequence[str], numbers: Sequence[float]) -> str:
    """``A 0.15, E 0.05``: the tokens whose number is not zero."""
    pairs = zip(names, numbers, strict=True)
    return ", ".join(f"{name} {number:.2f}" for name, number in pairs if f"{number:.2f}" != "0.00")


MASS = Record(
    name="11_mass",
    data=mass_data,
    takeaway=lambda d: (
        f"The accepted {d['acceptance']:.2f} is common to both laws; the residual adds the "
        f"{1 - d['acceptance']:.2f} the draft lacks, and the sum is the target"
    ),
    describe=lambda d: (
        f"""
        Two bar charts over the tokens A to {d["tokens"][-1]}. Above, the draft
        ({_each(d["tokens"], d["draft"])}): of each the smaller of both probabilities is accepted,
        {_each(d["tokens"], d["accepted"])}, together {d["acceptance"]:.2f}; the rest is rejected,
        {_each(d["tokens"], d["rejected"])}. Below, what comes out: the same accepted mass, and on
        top of it what the draft lacks, {_each(d["tokens"], d["missing"])}, drawn from the residual
        ({_each(d["tokens"], d["residual"])}) whenever a draft is rejected. The sums are the target,
        {_each(d["tokens"], d["target"])}.
        """
    ),
    plot=_plot_mass,
)

# ── Rounds ──────────────────────────────────────────────────────────────────────────────────────


@cache
def timeline_data(
    num_rounds: int = 3,
    gamma: int = 4,
    cost_ratio: float = 0.15,
    verify_cost: float = 1.14,
    seed: int = 18,
) -> Data:
    """Rounds over the two laws above, at every position the same, with their times.

    Times are in plain steps of the target: a draft takes ``cost_ratio``, a pass that verifies
    ``gamma`` drafts takes ``verify_cost``.
    """
    import torch

    from refimpl import sampling, speculative

    laws = torch.tensor([TARGET, DRAFT], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    rounds, now = [], 0.0
    for _ in range(num_rounds):
        drafts = sampling.draw(laws[1].expand(gamma, -1), generator)
        tokens, accepted = speculative.verify(
            laws[0].expand(gamma + 1, -1), laws[1].expand(gamma, -1), drafts, generator
        )
        kept, start = int(accepted), now
        verify = start + gamma * cost_ratio
        now = verify + verify_cost
        rounds.append(
            {
                "drafts": [TOKENS[i] for i in drafts.tolist()],
                "accepted": kept,
                "emitted": [TOKENS[i] for i in tokens[: kept + 1].tolist()],
                "start": start,
                "verify": verify,
                "end": now,
            }
        )
    tokens = [token for done in rounds for token in done["emitted"]]
    return {
        "gamma": gamma,
        "cost_ratio": cost_ratio,
        "verify_cost": verify_cost,
        "rounds": rounds,
        "tokens": tokens,
        "time": now,
        "plain_time": float(len(tokens)),
        "faster": len(tokens) / now,
        "expected": speculative.speedup(
            float(speculative.acceptance(laws[0], laws[1])), gamma, cost_ratio, verify_cost
        ),
    }


_PASS = style.tint(NEW, 0.22)
_CELL = 10.2


def _plot_timeline(data: Data, title: str) -> Figure:
    figure, axes = style.canvas(334)
    top = style.headline(axes, title) + 6
    unit = (style.WIDTH - 2 * MARGIN) / data["plain_time"]
    words = f"{data['gamma']} drafts, then one pass that verifies them"
    style.label(axes, MARGIN, top, words, weight="bold")
    for done in data["rounds"]:
        _round(axes, top + 12, unit, data["cost_ratio"], done)
    end = MARGIN + unit * data["time"]
    style.line(axes, [(end, top + 8), (end, top + 42)])
    style.label(axes, end + 5, top + 18, f"{len(data['tokens'])} tokens after")
    style.label(axes, end + 5, top + 32, f"{data['time']:.2f} steps", weight="bold")
    _key(axes, end + 12, top + 62)
    y = top + 146
    style.label(axes, MARGIN, y, "plain decoding: one pass, one token", weight="bold")
    for index, token in enumerate(data["tokens"]):
        style.block(axes, MARGIN + unit * index, y + 12, unit, 26, _PASS, edge=NEW)
        x = MARGIN + unit * (index + 0.5)
        style.block(axes, x - _CELL / 2, y + 43, _CELL, 16, _OTHER, token, weight="bold", edge=INK)
    style.timeline(axes, MARGIN, y + 82, unit * data["plain_time"], "time in plain steps")
    for tick in range(0, int(data["plain_time"]), 2):
        x = MARGIN + unit * tick
        axes.plot([x, x], [y + 79, y + 85], color=MUTED, lw=0.9)
        side = "center" if tick else "left"
        style.label(axes, x, y + 93, str(tick), size=SMALL, colour=MUTED, ha=side)
    words = (
        f"a draft takes {data['cost_ratio']:.2f} of a plain step, verifying "
        f"{data['verify_cost']:.2f}",
        f"in the long run these rounds are {data['expected']:.2f} times faster",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 110 + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _round(axes: Axes, y: float, unit: float, cost_ratio: float, done: Data) -> None:
    """The passes of a round, below them its drafts, and below those what it gives."""
    x = MARGIN + unit * done["start"]
    for index in range(len(done["drafts"])):
        at = x + unit * cost_ratio * index
        style.block(axes, at, y, unit * cost_ratio, 26, WEIGHTS, edge=MUTED)
    at, width = MARGIN + unit * done["verify"], unit * (done["end"] - done["verify"])
    style.block(axes, at, y, width, 26, _PASS, "verify", edge=NEW)
    kept = done["accepted"]
    for index, token in enumerate(done["drafts"]):
        fill = NEW if index < kept else RECOMPUTED if index == kept else PAPER
        style.block(axes, x + _CELL * index, y + 36, _CELL, 16, fill, token)
    for index, token in enumerate(done["emitted"]):
        fill = NEW if index < kept else _OTHER
        edge = None if index < kept else INK
        cell = x + _CELL * index
        style.block(axes, cell, y + 60, _CELL, 16, fill, token, weight="bold", edge=edge)
    style.label(axes, x, y + 88, f"{kept} + 1 = {kept + 1}", size=SMALL)


def _key(axes: Axes, x: float, y: float) -> None:
    """What the cells' colours mean, in the room to the right of the rounds."""
    rows = (
        (NEW, None, "draft accepted"),
        (RECOMPUTED, None, "draft rejected"),
        (PAPER, None, "not looked at"),
        (_OTHER, INK, "added by the pass"),
    )
    for index, (fill, edge, words) in enumerate(rows):
        at = y + 18 * index
        style.block(axes, x, at - 6, _CELL, 12, fill, edge=edge)
        style.label(axes, x + _CELL + 5, at, words, size=SMALL)


def _told(done: Data) -> str:
    """One round in words: ``EAAA, 4 accepted, the pass adds C``."""
    drafts, kept, added = "".join(done["drafts"]), done["accepted"], done["emitted"][-1]
    said = f"the pass adds {added}" if kept == len(drafts) else f"{drafts[kept]} becomes {added}"
    return f"{drafts}, {kept} accepted, {said}"


TIMELINE = Record(
    name="11_timeline",
    data=timeline_data,
    takeaway=lambda d: (
        f"{len(d['rounds'])} passes of the target give {len(d['tokens'])} tokens in the time of "
        f"{d['time']:.2f} plain steps: {d['faster']:.1f} times faster"
    ),
    describe=lambda d: (
        f"""
        A timeline of {len(d["rounds"])} rounds, time to the right: {d["gamma"]} short draft passes
        of {d["cost_ratio"]:.2f} plain steps each, then a verify pass of {d["verify_cost"]:.2f}.
        """
        + " ".join(f"Round {i}: {_told(done)}." for i, done in enumerate(d["rounds"], 1))
        + f"""
        The {len(d["tokens"])} tokens {"".join(d["tokens"])} are there after {d["time"]:.2f} steps.
        Below, plain decoding gives the same tokens, one a pass, in {d["plain_time"]:.0f} steps.
        That is {d["faster"]:.2f} times faster; such rounds are {d["expected"]:.2f} times faster in
        the long run.
        """
    ),
    plot=_plot_timeline,
)

FIGURES = (MASS, TIMELINE)
