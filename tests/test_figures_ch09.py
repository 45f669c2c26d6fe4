"""Chapter 09's figures: what they draw is counted again, with fractions, masks and real tensors.

The running softmax is summed with exact fractions, tiles are cut out of a causal mask, schedules
found by letting every processor work step by step, bytes read off tensors and loops.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from fractions import Fraction

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle

import figures
from figures import ch09, ch09_bytes, ch09_tiles, style

TRITON = importlib.util.find_spec("triton") is not None
if TRITON:
    from refimpl.kernels import traffic
    from refimpl.kernels.xray.limits import TARGETS

needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is built for Linux only")


def page(name: str) -> Axes:
    with style.applied():
        return figures.draw(name).axes[0]


def cells(axes: Axes) -> list[tuple[Rectangle, str]]:
    """Every rectangle with the colour it is filled with."""
    shapes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(shape, matplotlib.colors.to_hex(shape.get_facecolor())) for shape in shapes]


def said(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


# ── Three scores ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        ((1, 3, 2), (7, 14, 21)),
        ((5, 4, 4, 1), (-3, 8, 0, 16)),
        ((-2, 0, 3), (1, 2, 4)),
        ((6,), (9,)),
    ],
)
def test_running_softmax_is_the_sum_over_all_that_was_read(
    scores: tuple[int, ...], values: tuple[int, ...]
) -> None:
    data = ch09.softmax_data(scores, values)
    for read, step in enumerate(data["steps"], 1):
        top = max(scores[:read])
        weights = [Fraction(2) ** (score - top) for score in scores[:read]]
        before = max(scores[: read - 1], default=None)
        factor = 0 if before is None else Fraction(2) ** (before - top)
        assert (step["score"], step["value"]) == (scores[read - 1], values[read - 1])
        assert step["max"] == top
        assert step["factor"] == factor
        assert step["weights"] == weights
        assert step["sum"] == sum(weights)
        assert step["acc"] == sum(w * v for w, v in zip(weights, values, strict=False))
    powers = [Fraction(2) ** score for score in scores]
    output = sum(w * v for w, v in zip(powers, values, strict=True)) / sum(powers)
    assert data["output"] == pytest.approx(float(output), abs=1e-11)
    assert data["lse"] == pytest.approx(math.log(sum(powers)), abs=1e-11)


def test_the_pencil_example_ends_at_15() -> None:
    data = figures.data("09_running_softmax")
    states = [(s["max"], s["sum"], s["acc"], s["factor"]) for s in data["steps"]]
    assert states == [(1, 1, 7, 0), (3, 1.25, 15.75, 0.25), (3, 1.75, 26.25, 1)]
    assert data["all_weights"] == [2, 8, 4]
    assert data["output"] == 26.25 / 1.75 == (2 * 7 + 8 * 14 + 4 * 21) / 14 == 15
    words = said(page("09_running_softmax"))
    assert "output  a / l = 26.25 / 1.75 = 15" in words
    assert "all at once: (2 · 7 + 8 · 14 + 4 · 21) / 14 = 15" in words


def test_bars_of_sum_and_accumulator_are_to_scale() -> None:
    drawn = cells(page("09_running_softmax"))
    bars = [shape for shape, _ in drawn if shape.get_width() == ch09._BAR]
    kinds = {style.NEW: "new", style.tint(style.NEW, 0.35): "kept", style.RECOMPUTED: "rescaled"}
    fills = [kinds[fill] for shape, fill in drawn if shape.get_width() == ch09._BAR]
    sums = [[1], [1 / 4, 1], [1 / 4, 1, 1 / 2]]
    accs = [[7], [7 / 4, 14], [7 / 4, 14, 21 / 2]]
    expected = [
        height
        for l_terms, a_terms in zip(sums, accs, strict=True)
        for height in (
            *[term * ch09._SUM for term in l_terms],
            *[term * ch09._ACC for term in a_terms],
        )
    ]
    assert [shape.get_height() for shape in bars] == pytest.approx(expected)
    looks = [["new"], ["rescaled", "new"], ["kept", "kept", "new"]]
    assert fills == [look for column in looks for look in column * 2]
    ends: dict[tuple[float, float], list[float]] = {}
    for shape in bars:
        ends.setdefault((shape.get_x(), round(shape.get_y() + shape.get_height(), 6)), []).append(1)
    assert len(ends) == len(bars), "the terms of a bar stand on each other"


# ── Tiles and time ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("num_tokens", "block"), [(512, 64), (96, 32), (100, 24), (7, 3)])
def test_tiles_are_those_of_a_mask_cut_into_pieces(num_tokens: int, block: int) -> None:
    data = ch09_tiles.schedule_data(num_tokens, block)
    mask = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    grid = [
        [
            "full" if piece.all() else "partial" if piece.any() else "skipped"
            for piece in row.split(block, dim=1)
        ]
        for row in mask.split(block)
    ]
    assert data["grid"] == grid
    kinds = [kind for row in grid for kind in row]
    assert data["counts"] == {k: kinds.count(k) for k in ("full", "partial", "skipped")}
    assert data["visited"] == sum(kind != "skipped" for kind in kinds)


def stepwise(lengths: list[int], order: list[int], processors: int) -> list[tuple[int, int, int]]:
    """Program, processor and start, from working one step at a time."""
    waiting, left, found = list(order), [0] * processors, []
    for now in itertools.count():
        for processor in range(processors):
            if left[processor] == 0 and waiting:
                program = waiting.pop(0)
                found.append((program, processor, now))
                left[processor] = lengths[program]
        if not any(left):
            return found
        left = [max(rest - 1, 0) for rest in left]
    raise AssertionError("unreachable")


@pytest.mark.parametrize("processors", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("seed", range(4))
def test_programs_go_to_the_processor_that_is_free_first(processors: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    lengths = numbers.integers(1, 9, size=11).tolist()
    order = numbers.permutation(11).tolist()
    runs = ch09_tiles.assign(lengths, order, processors)
    assert [(r["program"], r["processor"], r["start"]) for r in runs] == stepwise(
        lengths, order, processors
    )


def test_schedule_takes_12_9_and_16_steps() -> None:
    data = figures.data("09_schedule")
    assert data["lengths"] == list(range(1, 9))
    assert data["counts"] == {"full": 28, "partial": 8, "skipped": 28}
    assert data["visited"] == 36 == 8 * 9 // 2
    for panel, order, steps in zip(
        data["panels"], (range(8), range(7, -1, -1)), (12, 9), strict=True
    ):
        runs = stepwise(data["lengths"], list(order), 4)
        assert [(r["program"], r["processor"], r["start"]) for r in panel["runs"]] == runs
        assert panel["steps"] == steps == max(s + data["lengths"][p] for p, _, s in runs)
    assert data["panels"][1]["steps"] == data["visited"] / 4, "no order can be faster"
    assert data["unskipped_steps"] == 64 / 4


def test_schedule_draws_every_visited_tile_once_an_order_and_no_two_at_once() -> None:
    axes, data = page("09_schedule"), figures.data("09_schedule")
    names = [words for words in said(axes) if words[1:2] == "," and len(words) == 3]
    visited = [f"{t},{s}" for t in range(8) for s in range(t + 1)]
    assert sorted(names) == sorted(2 * visited)
    programs = [shape for shape, _ in cells(axes) if shape.get_linewidth() == 1.6]
    assert len(programs) == 16
    lengths = [shape.get_width() / ch09_tiles._STEP for shape in programs]
    assert sorted(lengths) == sorted(2 * data["lengths"])
    for a, b in itertools.combinations(programs, 2):
        if a.get_y() == b.get_y():
            first, second = sorted((a, b), key=Rectangle.get_x)
            assert first.get_x() + first.get_width() <= second.get_x()
    halves = [patch for patch in axes.patches if isinstance(patch, Polygon)]
    assert len(halves) == 8 + 1 + 2 * 8, "the diagonal, its key, and each order"
    idle = style.tint(style.RECOMPUTED, 0.45)
    rest = sum(s.get_width() / ch09_tiles._STEP for s, fill in cells(axes) if fill == idle)
    assert rest == 4 * 12 - 36


# ── Two orders of loops ─────────────────────────────────────────────────────────────────────────


def walked(num_tokens: int, head_dim: int, block: int, *, keys_outside: bool) -> dict[str, int]:
    """Bytes by what moves, found by walking both loops over float32 tensors."""
    q, k, v, out = torch.empty(4, num_tokens, head_dim)
    m, total = torch.empty(2, num_tokens)
    moved = dict.fromkeys(("q", "kv", "state", "written"), 0)

    def size(*tensors: torch.Tensor) -> int:
        return sum(x.numel() * x.element_size() for x in tensors)

    starts = range(0, num_tokens, block)
    if not keys_outside:
        for t in starts:
            rows = slice(t, t + block)
            moved["q"] += size(q[rows])
            moved["kv"] += sum(size(k[s : s + block], v[s : s + block]) for s in starts)
            moved["written"] += size(out[rows], total[rows])
        return moved
    for s in starts:
        moved["kv"] += size(k[s : s + block], v[s : s + block])
        for t in starts:
            rows = slice(t, t + block)
            moved["q"] += size(q[rows])
            moved["state"] += size(out[rows], m[rows], total[rows]) if s else 0
            moved["written"] += size(out[rows], m[rows], total[rows])
    return moved


@pytest.mark.parametrize(
    ("num_tokens", "head_dim", "block"), [(256, 64, 64), (96, 16, 32), (100, 24, 32), (60, 8, 7)]
)
def test_orders_are_what_walking_the_loops_moves(
    num_tokens: int, head_dim: int, block: int
) -> None:
    data = ch09_tiles.orders_data(num_tokens, head_dim, block)
    for name, keys_outside in (("v2", False), ("v1", True)):
        moved = walked(num_tokens, head_dim, block, keys_outside=keys_outside)
        assert data[name]["written"] == moved.pop("written")
        assert data[name]["read"] == {what: b for what, b in moved.items() if b or keys_outside}
        assert data[name]["reads"] == sum(moved.values())
    state = num_tokens * (head_dim + 2) * 4
    assert data["v1"]["formula_reads"] == data["v1"]["reads"] + state
    assert data["v1"]["state"] == state
    assert (data["v2"]["programs"], data["v1"]["programs"]) == (-(-num_tokens // block), 1)


@needs_triton
def test_orders_are_what_the_kernels_ask_for() -> None:
    data = figures.data("09_orders")
    for name, kernel, reads, writes in (
        ("v2", "flash", 589_824, 66_560),
        ("v1", "flash-v1", 595_968, 270_336),
    ):
        counted = traffic.attention(kernel, T=256, S=256, D=64, causal=False)
        assert (counted.bytes_read, counted.bytes_written) == (reads, writes)
        assert (data[name]["reads"], data[name]["written"]) == (reads, writes)
        read = counted.read
        assert data[name]["read"]["q"] == read["q"]
        assert data[name]["read"]["kv"] == read["k"] + read["v"]
        state = sum(read.get(what, 0) for what in ("out", "peaks", "sums"))
        assert data[name]["read"].get("state", 0) == state
        (launch,) = counted.launches
        assert launch.programs == data[name]["programs"]


def test_orders_are_drawn_with_their_bytes_and_the_same_tiles_on_the_chip() -> None:
    axes = page("09_orders")
    words = said(axes)
    for amount in (65_536, 524_288, 66_560, 262_144, 131_072, 202_752, 270_336):
        assert words.count(f"{amount:,} B") == 1
    assert "reads 589,824 B, writes 66,560 B" in words
    assert "reads 595,968 B, writes 270,336 B" in words
    title = figures.get("09_orders").title
    assert f"{589_824 + 66_560:,} B" in title
    assert f"{595_968 + 270_336:,} B" in title
    strip = [(shape, fill) for shape, fill in cells(axes) if shape.get_width() == ch09_tiles._CELL]
    assert len(strip) == 2 * 4 * 4
    solid = [index % 4 for index, (_, fill) in enumerate(strip) if fill in style.PALETTE.values()]
    assert solid == [1, 2, 2, 1] * 2
    assert [w for w in words if w in ("Q 1", "K 2", "V 2")] == ["Q 1", "K 2", "V 2"] * 2


# ── Bytes against the tile ──────────────────────────────────────────────────────────────────────


def accesses(num_tokens: int, head_dim: int, block_t: int) -> int:
    """Q, output and LSE once, keys and values once for each tile of queries."""
    passes = len(range(0, num_tokens, block_t))
    return num_tokens * (2 * head_dim + 1) + passes * 2 * num_tokens * head_dim


@pytest.mark.parametrize(("num_tokens", "head_dims"), [(8192, (64, 128)), (1000, (24, 96, 200))])
def test_bytes_are_those_of_the_naive_form_divided(
    num_tokens: int, head_dims: tuple[int, ...]
) -> None:
    data = ch09_bytes.bytes_data(num_tokens, head_dims)
    assert data["blocks"] == [4, 8, 16, 32, 64, 128, 256, 512]
    for d in head_dims:
        naive = 4 * num_tokens**2 + 4 * num_tokens * d
        exact = [Fraction(accesses(num_tokens, d, block), naive) for block in data["blocks"]]
        assert data["curves"][d] == pytest.approx([float(x) for x in exact], rel=1e-12)
        even = data["even"][d]
        assert accesses(num_tokens, d, even) <= naive < accesses(num_tokens, d, even - 1)


def test_half_the_head_dim_breaks_even_where_the_text_is_long() -> None:
    data = figures.data("09_bytes")
    assert data["even"] == {64: 32, 128: 64}
    for d, curve in data["curves"].items():
        for block, ratio in zip(data["blocks"], curve, strict=True):
            assert ratio == pytest.approx(d / (2 * block), rel=0.07)
        for before, after in itertools.pairwise(curve):
            assert 0.50 <= after / before <= 0.54, "about half"


def test_bytes_chart_draws_both_curves_and_marks_where_they_break_even() -> None:
    with style.applied():
        plot = figures.draw("09_bytes").axes[1]
    assert plot.get_xscale() == plot.get_yscale() == "log"
    data = figures.data("09_bytes")
    curves = [line for line in plot.get_lines() if len(line.get_xdata()) == 8]
    for line, curve in zip(curves, data["curves"].values(), strict=True):
        assert list(line.get_xdata()) == data["blocks"]
        assert list(line.get_ydata()) == curve
    marks = [line for line in plot.get_lines() if len(line.get_xdata()) == 1]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks] == [(32, 1), (64, 1)]
    low, high = plot.get_ylim()
    assert low < min(map(min, data["curves"].values())) < max(map(max, data["curves"].values()))
    assert max(map(max, data["curves"].values())) < high


# ── Where things live ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ({"num_tokens": 8192, "head_dim": 128, "block_t": 128, "block_s": 64, "stages": 2}, "bf16"),
        ({"num_tokens": 96, "head_dim": 24, "block_t": 32, "block_s": 16, "stages": 3}, "fp32"),
    ],
)
def test_places_hold_as_many_bytes_as_tensors_of_those_shapes(
    shape: dict[str, int], dtype: str
) -> None:
    data = ch09_bytes.places_data(**shape, dtype=dtype)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    N, D, T, S, stages = shape.values()

    def size(*axes: int, kind: torch.dtype = kind) -> int:
        return torch.empty(axes, dtype=kind, device="meta").nbytes

    wide = torch.float32
    assert data["registers"] == {
        "accumulator": size(T, D, kind=wide),
        "scores": size(T, S, kind=wide),
        "weights": size(T, S),
        "m and l": size(2, T, kind=wide),
    }
    assert data["shared"] == {"Q": size(T, D), "K": size(stages, S, D), "V": size(stages, S, D)}
    matrices = dict.fromkeys(("Q", "K", "V", "out"), size(N, D))
    assert data["hbm"] == matrices | {"LSE": size(N, kind=wide)}
    assert data["score_bytes"] == size(N, N)
    assert data["register_bytes"] + data["shared_bytes"] == data["chip_bytes"]
    assert data["register_bytes"] == sum(data["registers"].values())


def test_places_of_the_drawn_tile_take_209_kib() -> None:
    data = figures.data("09_places")
    assert (data["register_bytes"], data["shared_bytes"]) == (115_712, 98_304)
    assert data["registers_per_thread"] == 115_712 / 4 / 256 == 113
    assert data["chip_bytes"] == 209 * 1024
    assert data["score_bytes"] == 128 * 2**20


@needs_triton
def test_room_is_that_of_the_multiprocessor_that_is_named() -> None:
    data = figures.data("09_places")
    assert data["capacity"]["registers"] == 4 * TARGETS["sm_90"].registers
    assert data["capacity"]["shared"] == TARGETS["sm_90"].shared_bytes
    assert data["shared_bytes"] <= TARGETS["sm_90"].shared_per_block


def test_places_are_drawn_to_scale() -> None:
    data = figures.data("09_places")
    widths: dict[float, list[tuple[float, str]]] = {}
    for shape, fill in cells(page("09_places")):
        widths.setdefault(round(shape.get_y(), 3), []).append((shape.get_width(), fill))
    registers, shared, tiled, naive = widths.values()
    unit = registers[-1][0] / data["capacity"]["registers"]
    tile = data["shared"]["K"] // 2
    expected = [*data["registers"].values(), data["capacity"]["registers"]]
    assert [width for width, _ in registers] == pytest.approx([unit * x for x in expected])
    expected = [data["shared"]["Q"], tile, tile, tile, tile, data["capacity"]["shared"]]
    assert [width for width, _ in shared] == pytest.approx([unit * x for x in expected])
    fills = [style.QUERY, style.K, style.V, style.K, style.V]
    assert [fill for _, fill in shared[:-1]] == fills
    unit = naive[-1][0] / data["score_bytes"]
    matrix = data["hbm"]["Q"]
    assert [width for width, _ in tiled] == pytest.approx([unit * matrix] * 4)
    expected = [matrix] * 4 + [data["score_bytes"]] * 2
    assert [width for width, _ in naive] == pytest.approx([unit * x for x in expected])
    assert [fill for _, fill in naive[-2:]] == [style.RECOMPUTED] * 2
