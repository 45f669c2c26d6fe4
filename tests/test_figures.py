"""The figures: drawn the same way twice, readable on a phone, true to their data."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import figures
import figures.__main__ as command
from figures import ch01, ch02, next_token, style
from labkit.pins import reason_not_strict
from refimpl import rope, weights
from refimpl.architecture import Architecture

ROOT = Path(__file__).resolve().parent.parent
NAMES = figures.names()
PHONE = 358
"""Pixels that a 390 pixel wide screen leaves for a figure."""

every_figure = pytest.mark.parametrize("name", NAMES)


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


def test_the_pinned_matplotlib_is_the_one_that_drew() -> None:
    pin = re.search(
        r"^matplotlib==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE
    )
    assert pin is not None
    assert pin[1] == figures.DRAWN_WITH


@every_figure
def test_committed_file_is_what_the_code_draws(name: str) -> None:
    reason = reason_not_strict()
    if reason or matplotlib.__version__ != figures.DRAWN_WITH:
        pytest.skip(f"bytes are compared on the pinned platform only: {reason}")
    assert figures.get(name).path.read_bytes() == figures.svg(name), "run: python -m figures"


def test_every_committed_file_is_drawn_by_code() -> None:
    assert sorted(path.stem for path in (ROOT / "figures" / "svg").glob("*.svg")) == sorted(NAMES)


@every_figure
def test_a_readers_own_settings_change_nothing(name: str) -> None:
    before = figures.svg(name)
    with matplotlib.rc_context(
        {"font.size": 31, "svg.fonttype": "none", "svg.hashsalt": None, "axes.grid": True}
    ):
        assert figures.svg(name) == before


@every_figure
def test_svg_is_self_contained(name: str) -> None:
    text = figures.svg(name).decode("utf-8")
    root = ElementTree.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.find(f"{svg}title").text == figures.alt(name)
    assert root.get("aria-labelledby") == root.find(f"{svg}title").get("id")
    assert root.get("width") == "480"
    assert not list(root.iter(f"{svg}text")), "type is drawn as paths"
    assert not list(root.iter(f"{svg}image"))
    assert not list(root.iter(f"{svg}metadata")), "no date, no program"
    links = re.findall(r'(?:href="|url\()([^")]+)', text)
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    assert links
    assert all(link[0] == "#" and link[1:] in ids for link in links)
    assert len(text) < 160_000


def test_ids_are_unique_over_all_figures() -> None:
    ids = [
        found
        for name in NAMES
        for found in re.findall(r'\bid="([^"]+)"', figures.svg(name).decode("utf-8"))
    ]
    assert len(ids) == len(set(ids))


def test_check_reports_each_kind_of_stale_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("figures.record.FOLDER", tmp_path)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(figures, "catalogue", lambda: {"02_broken_mask": ch02.MASK})
    assert command.main(["--check"]) == 1
    assert "02_broken_mask: not drawn yet" in capsys.readouterr().out
    assert command.main([]) == 0
    assert "1 figures, 1 changed" in capsys.readouterr().out
    assert command.main(["--check"]) == 0
    assert command.main([]) == 0
    assert "1 figures, 0 changed" in capsys.readouterr().out
    path = tmp_path / "02_broken_mask.svg"
    path.write_bytes(path.read_bytes().replace(b"#ae3f86", b"#ae3f87", 1))
    (tmp_path / "02_old.svg").write_text("<svg/>")
    assert command.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "02_broken_mask: differs" in said
    assert "02_old: no code draws it" in said


def test_command_prints_markdown_and_refuses_unknown_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["--markdown", "01_triangle"]) == 0
    assert capsys.readouterr().out.strip() == figures.markdown("01_triangle")
    with pytest.raises(SystemExit) as stopped:
        command.main(["01_triangel"])
    assert stopped.value.code == 2
    assert "01_triangle" in capsys.readouterr().err


def test_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(ValueError, match=r"01_shape'.*01_shapes"):
        figures.alt("01_shape")


def test_drawing_needs_no_torch() -> None:
    code = "import sys, figures; figures.svg('01_shapes'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ── Words ───────────────────────────────────────────────────────────────────────────────────────


@every_figure
def test_alt_text_says_what_the_figure_shows(name: str) -> None:
    alt = figures.alt(name)
    assert 30 <= len(alt.split()) <= 140
    assert re.search(r"\d", alt)
    assert not re.search(r"[\[\]\n<>]|  ", alt), "it must survive Markdown and HTML"
    assert alt.endswith(".")
    assert not alt.lower().startswith(("figure", "image", "picture", "a figure", "an image"))
    assert figures.get(name).title not in alt


@every_figure
def test_title_is_a_takeaway_of_at_most_three_lines(name: str) -> None:
    title = figures.get(name).title
    lines = style.wrap(title, style.WIDTH - 2 * style.MARGIN, style.TITLE, "bold")
    assert len(lines) <= 3
    assert " " in title
    assert not title.endswith(".")


def test_chapters_embed_figures_that_exist_and_say_what_they_show() -> None:
    """A short alt text is the chapter's own; a number in it must be one of the figure's."""
    pages = [*(ROOT / "chapters").glob("*.md"), *(ROOT / "solutions").glob("*.md")]
    for page in pages:
        for alt, name in re.findall(
            r"!\[([^\]]*)\]\([^)]*figures/svg/([^)]*)\.svg\)", page.read_text("utf-8")
        ):
            record = figures.get(name)
            assert len(alt.split()) >= 6, f"{page.name}: see python -m figures --markdown {name}"
            known = set(re.findall(r"\d[\d,.]*\d|\d", f"{record.alt} {record.title}"))
            said = set(re.findall(r"\d[\d,.]*\d|\d", alt))
            assert said <= known, f"{page.name}: {name} does not show {said - known}"


# ── Looks ───────────────────────────────────────────────────────────────────────────────────────


def texts(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Every text that shows, with its box in points from the lower left corner."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [(text, text.get_window_extent(renderer)) for text in found]


@every_figure
def test_no_text_leaves_the_canvas_or_meets_another(name: str) -> None:
    with style.applied():
        figure = figures.draw(name)
        boxes = texts(figure)
    assert len(boxes) > 5
    width, height = figure.get_size_inches() * 72
    for text, box in boxes:
        inside = box.x0 >= 2 and box.y0 >= 2 and box.x1 <= width - 2 and box.y1 <= height - 2
        assert inside, f"{text.get_text()!r} leaves the canvas: {box}"
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        overlap_x = min(a.x1, b.x1) - max(a.x0, b.x0)
        overlap_y = min(a.y1, b.y1) - max(a.y0, b.y0)
        # Boxes hold the room for accents and descenders, so neighbouring lines may share a little.
        assert overlap_x <= 0.5 or overlap_y <= 2.5, f"{first.get_text()!r}, {second.get_text()!r}"


def test_the_overlap_check_sees_an_overlap() -> None:
    with style.applied():
        figure, axes = style.canvas(60)
        style.label(axes, 20, 30, "one word")
        style.label(axes, 40, 33, "another")
        (_, a), (_, b) = texts(figure)
    assert min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5
    assert min(a.y1, b.y1) - max(a.y0, b.y0) > 2.5


@every_figure
def test_type_is_one_family_and_readable_on_a_phone(name: str) -> None:
    with style.applied():
        for text, _ in texts(figures.draw(name)):
            assert text.get_fontname() == "DejaVu Sans"
            assert text.get_fontsize() * PHONE / style.WIDTH >= 9.0, text.get_text()


def linear_rgb(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear sRGB."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ rgb / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), severity 1, on linear sRGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def distance(first: str, second: str, vision: str) -> float:
    """CIE76 difference of two colours as seen; 2.3 is just noticeable."""
    seen = [lab(np.clip(VISION[vision] @ linear_rgb(c), 0, 1)) for c in (first, second)]
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("pair", list(itertools.combinations(style.PALETTE, 2)), ids="-".join)
def test_palette_survives_grey_and_colour_blindness(pair: tuple[str, str]) -> None:
    first, second = (style.PALETTE[name] for name in pair)
    lightness = [lab(linear_rgb(colour))[0] for colour in (first, second)]
    assert abs(lightness[0] - lightness[1]) >= 9, "in grey they look alike"
    for vision in VISION:
        assert distance(first, second, vision) >= 14, vision


def test_the_palette_check_sees_a_bad_pair() -> None:
    assert (
        distance("#c00000", "#5b6a00", "deuteranopia")
        < distance("#c00000", "#5b6a00", "normal") / 3
    )


@pytest.mark.parametrize("colour", [*style.PALETTE.values(), style.MUTED])
def test_text_in_a_palette_colour_reads_on_paper_and_on_the_colour(colour: str) -> None:
    assert style.contrast(style.as_text(colour), style.PAPER) >= 4.5
    assert style.contrast(style.text_on(colour), colour) >= 4.5


def test_contrast_of_black_and_white_is_21() -> None:
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert style.contrast("#ffffff", "#ffffff") == pytest.approx(1)


@pytest.mark.parametrize("strength", [-0.1, 1.1])
def test_mixing_outside_the_range_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match=str(strength)):
        style.tint(style.K, strength)
    with pytest.raises(ValueError, match=str(strength)):
        style.shade(style.K, strength)


def test_wrapping_fills_lines_evenly_and_loses_no_word() -> None:
    words = "Step 1,024 costs 348 GFLOP without a cache, 0.34 with one"
    lines = style.wrap(words, 348, style.TITLE, "bold")
    assert " ".join(lines) == words
    assert len(lines) == 2
    widths = [style.text_width(line, style.TITLE, "bold") for line in lines]
    assert max(widths) <= 348
    assert min(widths) > 0.6 * max(widths)


def test_spread_keeps_labels_apart_and_in_order() -> None:
    heights = style.spread({"a": 1.0, "b": 1.1, "c": 90.0}, 0.1, 100.0, gap=0.1)
    assert heights["b"] - heights["a"] == pytest.approx(0.1)
    assert heights["c"] == pytest.approx(math.log10(900) / 3)


def test_memory_runs_left_to_right_one_colour_a_slot() -> None:
    with style.applied():
        _, axes = style.canvas(40)
        end = style.memory(axes, 10, 5, [style.K, None, style.V], slot=20)
    assert end == 70
    assert [patch.get_x() for patch in axes.patches] == [10, 30, 50]
    fills = [matplotlib.colors.to_hex(patch.get_facecolor()) for patch in axes.patches]
    assert fills == [style.K, style.PAPER, style.V]


# ── Data ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("steps", "prompt"), [(1, 1), (2, 1), (8, 1), (5, 3), (1, 4)])
def test_triangle_counts_every_pass(steps: int, prompt: int) -> None:
    data = ch01.triangle_data(steps, prompt)
    pushed = [list(range(1, prompt + step)) for step in range(1, steps + 1)]
    assert data["total"] == sum(map(len, pushed)) == steps * prompt + steps * (steps - 1) // 2
    assert data["new"] == len({token for row in pushed for token in row})
    assert data["again"] == data["total"] - data["new"]


def test_triangle_refuses_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        ch01.triangle_data(0)


def test_shapes_are_those_of_the_model() -> None:
    from refimpl.model import Decoder

    arch = Architecture.named("smollm2-135m")
    with torch.device("meta"):
        decoder = Decoder(dataclasses.replace(arch, num_layers=1))
    layer, embedding = decoder.layers[0], decoder.embed
    data = figures.data("01_shapes")
    modules = {
        "embedding": embedding,
        "query": layer.attention.q,
        "key": layer.attention.k,
        "value": layer.attention.v,
        "output": layer.attention.o,
        "gate": layer.mlp.gate,
        "up": layer.mlp.up,
        "down": layer.mlp.down,
    }
    assert {name: list(module.weight.shape) for name, module in modules.items()} == data["weights"]
    for name, shape in data["shapes"].items():
        assert len(shape) == len(name.split("_")[1]), f"{name} has one letter an axis"


def test_rope_angles_are_the_reference_models() -> None:
    data = figures.data("01_rope")
    positions = torch.arange(len(data["rows"][0]["angles"]))
    cos, sin = rope.rotary_table(positions, data["head_dim"], data["theta"], dtype=torch.float64)
    for row in data["rows"]:
        low, high = row["dimensions"]
        assert high - low == data["head_dim"] // 2
        angles = torch.tensor(row["angles"], dtype=torch.float64)
        torch.testing.assert_close(cos[:, low], angles.cos(), atol=1e-5, rtol=0)
        torch.testing.assert_close(sin[:, low], angles.sin(), atol=1e-5, rtol=0)
        assert row["angles"][1] * row["tokens_per_turn"] == pytest.approx(2 * math.pi)


def test_rope_refuses_a_pair_beyond_the_head() -> None:
    with pytest.raises(ValueError, match="between 0 and 31, got 32"):
        ch01.rope_data(pairs=(32,))


def test_sampling_panels_follow_from_the_plain_distribution() -> None:
    data = figures.data("01_sampling_filters")
    plain = np.array(data["panels"][0]["probabilities"])
    kept = {panel["name"]: panel for panel in data["panels"]}
    for panel in data["panels"]:
        assert sum(panel["probabilities"]) + panel["others"] == pytest.approx(1, abs=2e-5)
    top_k = np.where(np.arange(len(plain)) < 5, plain, 0)
    np.testing.assert_allclose(kept["top-k 5"]["probabilities"], top_k / top_k.sum(), atol=5e-6)
    min_p = np.where(plain >= 0.1 * plain[0], plain, 0)
    assert kept["min-p 0.1"]["kept"] == (min_p > 0).sum()
    np.testing.assert_allclose(kept["min-p 0.1"]["probabilities"], min_p / min_p.sum(), atol=5e-6)
    warm = np.array(kept["τ = 0.7"]["probabilities"])
    np.testing.assert_allclose(warm / warm[0], (plain / plain[0]) ** (1 / 0.7), atol=5e-5)
    nucleus = np.array(kept["top-p 0.8"]["probabilities"])
    scale = nucleus[0] / plain[0]
    np.testing.assert_allclose(nucleus, plain * scale, atol=5e-6)
    assert 1 / scale >= 0.8, "the nucleus reaches p"


def test_sampling_data_is_what_the_model_says() -> None:
    try:
        weights.find_model()
    except (OSError, ValueError) as missing:
        pytest.skip(f"the model is not here: {missing}")
    committed, measured = figures.data("01_sampling_filters"), next_token.measure()
    for key in ("prompt", "prompt_ids", "ids", "tokens", "vocabulary"):
        assert committed[key] == measured[key]
    for was, now in zip(committed["panels"], measured["panels"], strict=True):
        assert (was["name"], was["setting"], was["kept"]) == (
            now["name"],
            now["setting"],
            now["kept"],
        )
        np.testing.assert_allclose(was["probabilities"], now["probabilities"], atol=2e-5)


def test_work_per_step_is_counted_matrix_by_matrix() -> None:
    data = figures.data("01_time_per_step")
    sizes = figures.data("01_shapes")
    layer = sum(math.prod(shape) for name, shape in sizes["weights"].items() if name != "embedding")
    per_token = 2 * (sizes["num_layers"] * layer + math.prod(sizes["weights"]["embedding"]))
    heads, width = sizes["shapes"]["q_BHTD"][1], sizes["shapes"]["q_BHTD"][3]
    per_score = 2 * 2 * heads * width * sizes["num_layers"]
    for index, n in enumerate(data["steps"]):
        assert data["naive_linear"][index] == n * per_token
        assert data["naive_attention"][index] == n * n * per_score
        assert data["cached_linear"][index] == per_token
        assert data["cached_attention"][index] == n * per_score


def test_cache_filling_writes_each_slot_once_and_reads_all_before() -> None:
    data = ch02.filling_data(prompt=3, steps=4, slots=9)
    written = [slot for row in data["rows"] for slot in row["written"]]
    assert written == list(range(7))
    assert [row["reads"] for row in data["rows"]] == [3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match=r"4 \+ 5 tokens do not fit into 8"):
        ch02.filling_data(prompt=4, steps=5)


def test_row_and_triangle_count_the_causal_matrix() -> None:
    data = ch02.row_data(tokens=6)
    lower = {(int(q), int(k)) for q, k in zip(*np.nonzero(np.tri(6)), strict=True)}
    assert set(data["prefill"]["scores"]) == lower
    assert set(data["decode"]["scores"]) == {pair for pair in lower if pair[0] == 5}
    ratio = data["decode"]["weight_bytes_per_token"] / data["prefill"]["weight_bytes_per_token"]
    assert ratio == 6


def test_memory_growth_of_llama_3_70b_is_320_kib_a_token() -> None:
    small, large = figures.data("02_memory_growth")["models"]
    assert large["bytes_per_token"] == 320 * 1024
    assert large["cache_bytes"][8][-1] == 20 * 2**30
    assert small["bytes_per_token"] == 2 * 30 * 3 * 64 * 2
    for model in (small, large):
        longest, batch = model["cache_bytes"][1][-1], model["batch_that_outgrows"]
        assert (batch - 1) * longest <= model["weight_bytes"] < batch * longest
    assert round(large["weight_bytes"] / 1e9) == 141


@pytest.mark.parametrize(("new", "stored"), [(1, 1), (1, 7), (3, 7), (7, 7)])
def test_mask_matches_torch_bottom_right(new: int, stored: int) -> None:
    data = ch02.mask_data(new, stored)
    right = torch.ones(new, stored).tril(stored - new).bool()
    wrong = torch.ones(new, stored).tril().bool()
    assert data["bottom_right"] == right.tolist()
    assert data["top_left"] == wrong.tolist()
    assert data["hidden"] == int((right & ~wrong).sum())


def test_mask_refuses_more_queries_than_keys() -> None:
    with pytest.raises(ValueError, match="4 of 3"):
        ch02.mask_data(4, 3)


def test_copies_are_those_of_a_cache_that_is_concatenated() -> None:
    data = ch02.copies_data(longest=12, points=4)
    arch = Architecture.named(data["model"])
    shape = (2, arch.num_layers, arch.num_kv_heads, 0, arch.head_dim)
    cache, copied = torch.empty(shape, dtype=torch.bfloat16), {0: 0}
    for n in range(1, 13):
        cache = torch.cat([cache, torch.zeros(*shape[:3], 1, shape[4], dtype=cache.dtype)], dim=3)
        copied[n] = copied[n - 1] + cache.nbytes
    assert data["lengths"] == [0, 4, 8, 12]
    assert data["concatenated"] == [copied[n] for n in data["lengths"]]
    assert data["in_place"][-1] == cache.nbytes
