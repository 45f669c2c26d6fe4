"""Chapter 11's figures: what they draw is counted again with fractions and plain arithmetic.

Laws are enumerated, rounds measured on the drawing and in the long run, passes of the 70B counted
matrix by matrix, and the gain written as a sum of powers.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import figures
from figures import ch11, ch11_gains, style

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = 2 * 70_553_706_496  # Llama-3-70B in bf16
TOKEN = 2 * 80 * 8 * 128 * 2  # keys and values of one token
PAIR = 4 * 80 * 64 * 128  # FLOPs of one query and one key, all layers and heads
BANDWIDTH, PEAK, NODE = 3.35e12, 989e12, 8


def exact(law: tuple[float, ...] | list[float]) -> list[Fraction]:
    return [Fraction(str(number)) for number in law]


def page(name: str) -> Axes:
    with style.applied():
        return figures.draw(name).axes[0]


def cells(axes: Axes) -> list[tuple[Rectangle, str]]:
    """Every rectangle with the colour it is filled with."""
    shapes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(shape, matplotlib.colors.to_hex(shape.get_facecolor())) for shape in shapes]


# ── One token ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (ch11.TARGET, ch11.DRAFT),
        ((0.5, 0.3, 0.2), (0.6, 0.3, 0.1)),
        ((0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.25, 0.75)),
        ((0.125, 0.375, 0.5), (0.0, 1.0, 0.0)),
    ],
)
def test_mass_is_what_enumerating_every_draft_gives(
    target: tuple[float, ...], draft: tuple[float, ...]
) -> None:
    data = ch11.mass_data(target, draft)
    p, q = exact(target), exact(draft)
    assert sum(p) == sum(q) == 1
    accepted = [min(pair) for pair in zip(p, q, strict=True)]
    lacking = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    total = sum(lacking)
    assert data["accepted"] == pytest.approx([float(x) for x in accepted], abs=1e-15)
    assert data["missing"] == pytest.approx([float(x) for x in lacking], abs=1e-15)
    assert data["residual"] == pytest.approx([float(x / total) for x in lacking], abs=1e-15)
    assert data["acceptance"] == pytest.approx(float(sum(accepted)))
    comes_out = [Fraction(0)] * len(p)
    for proposed, chance in enumerate(q):
        stands = Fraction(data["stands"][proposed])
        for token, share in enumerate(data["residual"]):
            comes_out[token] += chance * (1 - stands) * Fraction(share)
        comes_out[proposed] += chance * stands
    assert [float(x) for x in comes_out] == pytest.approx(list(target), abs=1e-15)
    parts = zip(data["accepted"], data["missing"], strict=True)
    assert [a + b for a, b in parts] == pytest.approx(list(target), abs=1e-15)


def test_mass_is_drawn_to_scale_and_each_chart_holds_mass_one() -> None:
    p, q = exact(ch11.TARGET), exact(ch11.DRAFT)
    colour = {"accepted": style.NEW, "rejected": style.RECOMPUTED, "residual": ch11._OTHER}
    drawn = cells(page("11_mass"))
    heights = {
        kind: [float(shape.get_height()) for shape, fill in drawn if fill == hue]
        for kind, hue in colour.items()
    }
    common = [float(min(pair)) for pair in zip(p, q, strict=True)]
    unit = heights["accepted"][0] / common[0]
    assert heights["accepted"] == pytest.approx([unit * x for x in common * 2])
    over = [float(b - a) for a, b in zip(p, q, strict=True) if b > a]
    under = [float(a - b) for a, b in zip(p, q, strict=True) if a > b]
    assert heights["rejected"] == pytest.approx([unit * x for x in over])
    assert heights["residual"] == pytest.approx([unit * x for x in under])
    assert sum(over) == pytest.approx(sum(under)) == pytest.approx(0.2)
    assert sum(common) + sum(over) == pytest.approx(1)


# ── Rounds ──────────────────────────────────────────────────────────────────────────────────────


def test_rounds_keep_drafts_up_to_the_first_failure_and_add_one_token() -> None:
    data = figures.data("11_timeline")
    now = Fraction(0)
    for done in data["rounds"]:
        kept = done["accepted"]
        assert len(done["drafts"]) == data["gamma"] == 4
        assert done["emitted"][:-1] == done["drafts"][:kept]
        assert len(done["emitted"]) == kept + 1
        if kept < 4:
            assert done["drafts"][kept] in "AE", "only these can be rejected"
            assert done["emitted"][-1] in "BD", "only these does the residual hold"
        assert done["start"] == pytest.approx(float(now))
        assert done["verify"] == pytest.approx(float(now + 4 * Fraction("0.15")))
        now += 4 * Fraction("0.15") + Fraction("1.14")
        assert done["end"] == pytest.approx(float(now))
    assert now == Fraction("5.22")
    assert data["time"] == pytest.approx(5.22)
    assert [done["accepted"] for done in data["rounds"]] == [4, 3, 1]
    assert "".join(data["tokens"]) == "EAAAC" + "BBCB" + "AB"
    assert data["faster"] == pytest.approx(11 / 5.22)
    assert data["plain_time"] == len(data["tokens"]) == 11


def test_passes_are_drawn_as_long_as_they_take() -> None:
    data = figures.data("11_timeline")
    shapes = [shape for shape, _ in cells(page("11_timeline")) if shape.get_height() == 26]
    above = [shape for shape in shapes if shape.get_y() == shapes[0].get_y()]
    below = [shape for shape in shapes if shape.get_y() > shapes[0].get_y()]
    unit = below[0].get_width()
    assert len(below) == len(data["tokens"])
    lengths = [shape.get_width() / unit for shape in above]
    assert lengths == pytest.approx(3 * [0.15, 0.15, 0.15, 0.15, 1.14])
    ends = [shape.get_x() + shape.get_width() for shape in above]
    starts = [shape.get_x() for shape in above]
    assert starts[1:] == pytest.approx(ends[:-1]), "one pass after another"
    assert starts[0] == below[0].get_x()


def test_many_rounds_follow_the_target_and_the_closed_form() -> None:
    data = ch11.timeline_data(num_rounds=3000, seed=5)
    counted, total = Counter(data["tokens"]), len(data["tokens"])
    for token, chance in zip("ABCDE", ch11.TARGET, strict=True):
        deviation = (chance * (1 - chance) / total) ** 0.5
        assert counted[token] / total == pytest.approx(chance, abs=4 * deviation), token
    alpha = sum(min(pair) for pair in zip(exact(ch11.TARGET), exact(ch11.DRAFT), strict=True))
    assert alpha == Fraction(4, 5)
    expected = sum(alpha**power for power in range(5))
    assert total / 3000 == pytest.approx(float(expected), abs=0.1)
    for number in range(4):
        share = sum(done["accepted"] > number for done in data["rounds"]) / 3000
        assert share == pytest.approx(float(alpha ** (number + 1)), abs=0.035)
    gain = expected / (4 * Fraction("0.15") + Fraction("1.14"))
    assert data["expected"] == pytest.approx(float(gain))
    assert figures.data("11_timeline")["expected"] == data["expected"]


# ── Over batch and context ──────────────────────────────────────────────────────────────────────


def published() -> dict[str, dict]:
    rows = json.loads((ROOT / "tests" / "data" / "published_steps.json").read_text("utf-8"))
    return {row["id"]: row for row in rows}


def counted(batch: int, context: int, gamma: int, alpha: float) -> tuple[float, float]:
    """The gain and the FLOPs per byte of the wide pass, which ends γ tokens behind the plain one.

    Each query is counted with the keys up to itself.
    """
    seconds = []
    for new in (1, 1 + gamma):
        pairs = sum(range(context, context + new))
        flops = batch * (new * WEIGHTS + PAIR * pairs)
        moved = WEIGHTS + batch * (context + new - 1) * TOKEN
        seconds.append(max(flops / PEAK, moved / BANDWIDTH) / NODE)
    tokens = sum(alpha**power for power in range(gamma + 1))
    return tokens * seconds[0] / seconds[1], flops / moved


@pytest.mark.parametrize(("gamma", "alpha"), [(4, 0.8), (2, 0.8), (8, 0.6), (8, 0.5)])
def test_map_is_what_counting_both_passes_by_hand_gives(gamma: int, alpha: float) -> None:
    data = ch11_gains.map_data(gamma=gamma, alpha=alpha)
    for context, row in zip(data["contexts"], data["cells"], strict=True):
        for batch, cell in zip(data["batches"], row, strict=True):
            gain, intensity = counted(batch, context, gamma, alpha)
            assert (cell["batch"], cell["context"]) == (batch, context)
            assert cell["faster"] == pytest.approx(gain, rel=1e-9)
            assert cell["intensity"] == pytest.approx(intensity, rel=1e-9)
            assert cell["bound"] == ("compute" if intensity > PEAK / BANDWIDTH else "memory")


def test_map_marks_three_settings_with_the_known_values() -> None:
    data = figures.data("11_map")
    assert (data["gamma"], data["alpha"]) == (4, 0.8)
    first, second, third = data["settings"]
    assert [(s["batch"], s["context"]) for s in data["settings"]] == [
        (1, 4096),
        (256, 4096),
        (8, 131_072),
    ]
    assert [f"{s['faster']:.2f}" for s in data["settings"]] == ["3.36", "2.47", "3.36"]
    assert [s["bound"] for s in data["settings"]] == ["memory", "compute", "memory"]
    for setting, known in ((second, "seed.spec.b256"), (third, "seed.spec.b8.128k")):
        row = published()[known]
        assert (row["batch"], row["context"]) == (setting["batch"], setting["context"])
        assert setting["intensity"] == pytest.approx(row["expected"], abs=row["tolerance"])
    assert first["verify_cost"] == pytest.approx(1, abs=1e-4)
    for s in data["settings"]:
        row = data["cells"][data["contexts"].index(s["context"])]
        assert row[data["batches"].index(s["batch"])] == s


@pytest.mark.parametrize(
    ("gamma", "alpha", "faster", "intensity"),
    [(2, 0.8, "2.44", 241), (8, 0.6, "1.01", 722), (8, 0.5, "0.82", 722)],
)
def test_other_blocks_at_batch_256(gamma: int, alpha: float, faster: str, intensity: int) -> None:
    if gamma == 2:
        assert intensity == published()["seed.spec.b256.3"]["expected"]
    second = ch11_gains.map_data(gamma=gamma, alpha=alpha)["settings"][1]
    assert f"{second['faster']:.2f}" == faster
    assert second["intensity"] == pytest.approx(intensity, abs=1.5)
    assert (second["bound"] == "compute") == (intensity > 295)


def test_map_says_where_the_cache_fits_and_where_nothing_is_lost() -> None:
    data = figures.data("11_map")
    pool = 0.9 * NODE * 80e9 - WEIGHTS
    assert data["fits"] == [int(pool // (context * TOKEN)) for context in data["contexts"]]
    assert all(s["batch"] * s["context"] * TOKEN <= pool for s in data["settings"])
    alt = figures.alt("11_map")
    assert "From 8k on every batch that fits keeps 3.36." in alt
    assert "in sequences: 324 at 4k, 162 at 8k, 40 at 32k, 10 at 128k" in alt
    for context, row, fits in zip(data["contexts"], data["cells"], data["fits"], strict=True):
        kept = all(f"{cell['faster']:.2f}" == "3.36" for cell in row if cell["batch"] <= fits)
        assert kept == (context >= 8192)
    lowest = min(cell["faster"] for row in data["cells"] for cell in row)
    assert f"down to {lowest:.2f} at batch 512 and 512 tokens" in figures.alt("11_map")
    assert data["cells"][0][-1]["faster"] == lowest < 1
    assert data["fits"][0] >= 512


def test_map_colours_only_what_fits() -> None:
    data, drawn = figures.data("11_map"), cells(page("11_map"))
    table = [(shape, fill) for shape, fill in drawn if shape.get_linewidth() != 2.0]
    columns = sorted({shape.get_x() for shape, _ in table})
    rows = sorted({shape.get_y() for shape, _ in table})
    for shape, fill in table:
        batch = data["batches"][columns.index(shape.get_x())]
        context = data["contexts"][rows.index(shape.get_y())]
        held = batch * context * TOKEN <= 0.9 * NODE * 80e9 - WEIGHTS
        assert (fill != matplotlib.colors.to_hex(style.PAPER)) == held, (batch, context)


def test_map_outlines_the_three_settings_in_their_cells() -> None:
    data, drawn = figures.data("11_map"), cells(page("11_map"))
    outlined = [shape for shape, _ in drawn if shape.get_linewidth() == 2.0]
    table = [shape for shape, _ in drawn if shape.get_linewidth() != 2.0]
    places = [(shape.get_x(), shape.get_y()) for shape in table]
    columns = sorted({x for x, _ in places})
    rows = sorted({y for _, y in places})
    assert len(places) == len(columns) * len(rows) == 49
    found = [
        (
            data["batches"][columns.index(shape.get_x())],
            data["contexts"][rows.index(shape.get_y())],
        )
        for shape in outlined
    ]
    assert found == [(1, 4096), (256, 4096), (8, 131_072)]


# ── Over acceptance ─────────────────────────────────────────────────────────────────────────────


def gain(alpha: float, gamma: int) -> float:
    return sum(alpha**power for power in range(gamma + 1)) / (0.02 * gamma + 1)


def test_gamma_curves_are_sums_of_powers() -> None:
    data = figures.data("11_gamma")
    assert list(data["curves"]) == [1, 2, 4, 8]
    assert data["alphas"] == pytest.approx([step / 100 for step in range(101)])
    for gamma, curve in data["curves"].items():
        assert curve == pytest.approx([gain(alpha, gamma) for alpha in data["alphas"]])
    for alpha, best, top in zip(data["alphas"], data["best"], data["envelope"], strict=True):
        gains = [1.0] + [gain(alpha, gamma) for gamma in range(1, 21)]
        assert top == pytest.approx(max(gains))
        assert gains[best] == pytest.approx(max(gains))
        assert (best > 0) == (alpha > 0.0201), "it pays where acceptance exceeds the cost"


def test_thresholds_are_where_the_best_block_first_reaches_them() -> None:
    data = figures.data("11_gamma")
    said = [(mark["times"], f"{mark['alpha']:.2f}") for mark in data["thresholds"]]
    assert said == [(2, "0.56"), (3, "0.73"), (4, "0.81"), (5, "0.86")]
    for mark in data["thresholds"]:
        at, below = (
            [gain(mark["alpha"] + shift, gamma) for gamma in range(1, 21)]
            for shift in (1e-9, -1e-9)
        )
        assert max(below) < mark["times"] <= max(at)
        assert 1 + max(range(20), key=at.__getitem__) == mark["gamma"]


def test_gamma_chart_marks_the_thresholds_on_the_best_curve() -> None:
    with style.applied():
        plot = figures.draw("11_gamma").axes[1]
    dots = [line for line in plot.get_lines() if line.get_marker() == "o"]
    points = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in dots]
    assert [times for _, times in points] == [2, 3, 4, 5]
    for alpha, times in points:
        assert max(gain(alpha, gamma) for gamma in range(1, 21)) == pytest.approx(times)
