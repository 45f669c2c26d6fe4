"""The calculator's page: what stands on it without a script, and what a browser shows."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from oracles import rows

from figures import style
from labkit.kernels import ROOT
from refimpl import capacity, roofline, sizing
from refimpl.architecture import Architecture, zoo
from refimpl.hardware import ACCELERATORS, Accelerator
from refimpl.units import format_bytes, format_count, format_si_bytes

SITE = ROOT / "site"
sys.path.append(str(SITE))  # its modules import one another by their bare names
pages = importlib.import_module("pages")
calculator = importlib.import_module("calculator")
calculator_page = importlib.import_module("calculator_page")


def both(num_bytes: int) -> str:
    return f"{format_si_bytes(num_bytes)} ({format_bytes(num_bytes)})"


@pytest.fixture(scope="module")
def page() -> Iterator[Path]:
    """The filled page and its files, without the theme."""
    filled = pages.fill((SITE / "calculator.md").read_text("utf-8"), **calculator_page.values())
    body = MarkdownIt("commonmark", {"html": True}).render(filled)
    assets = '<link rel="stylesheet" href="_static/calculator.css">'
    assets += "".join(
        f'<script src="_static/{name}.js"></script>' for name in ("calc", "calculator")
    )
    html = f'<!doctype html><html data-theme="light"><head><meta charset="utf-8">{assets}</head>'
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(SITE / "_static", folder / "_static")
        html += f'<body class="bd-article">{body}</body></html>'
        (folder / "calculator.html").write_text(html, encoding="utf-8")
        yield folder / "calculator.html"


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


# ── without a script ─────────────────────────────────────────────────────────────────────────


def test_without_javascript_there_is_a_table_of_models(page: Path) -> None:
    static = soup(page)
    assert static.select_one("#calc").has_attr("hidden")
    assert static.select_one("noscript").get_text().strip()
    table = static.select("table")[-1]
    found = {
        row.select_one("th").get_text(): [cell.get_text() for cell in row.select("td")]
        for row in table.select("tbody tr")
    }
    assert len(found) == len(calculator_page.MODELS) >= 8
    assert all(len(cells) == len(table.select("thead th")) - 1 for cells in found.values())
    published = rows("models.json")
    for name in calculator_page.MODELS:
        row = published[name]
        cells = found[zoo.entry(name).title]
        assert not row["unverified"]
        assert cells[0] == both(2 * row["parameters"])
        assert cells[1] == both(row["kv_bytes_per_token_16bit"])
    # Llama-3-70B, 8 sequences of 32,768 tokens on eight H100s, from its shape
    each, weights = 32_768 * 80 * 2 * 8 * 128 * 2, 2 * published["llama-3-70b"]["parameters"]
    read = weights - 2 * 8192 * (128_256 - 8)  # all but the rows of the embedding not looked up
    moved = read + 8 * each + 8 * 2 * (4 * 80 * 8192 + 128_256)
    assert found["Llama-3-70B"][2:] == [
        both(each),
        str((576 * 10**9 - weights) // each),
        format_si_bytes(moved),
        f"{1e3 * moved / (8 * 3.35e12):.2f} ms",
        f"{8 * 8 * 3.35e12 / moved:,.0f}",
    ]
    assert found["DeepSeek-V3"][3:] == ["weights do not fit", "–", "–", "–"]


def test_the_text_states_these_numbers(page: Path) -> None:
    values = calculator_page.values()
    assert {name: values[name] for name in values if name not in ("data", "table")} == {
        "num_models": "70",
        "num_accelerators": "11",
        "group": "64",
        "scales": "6.25 %",  # 2 bytes on 64 numbers of half a byte
        "num_gpus": "8",
        "accelerator": "h100-sxm",
        "reserve": "10 %",
        "context": "32,768",
        "batch": "8",
    }
    data = json.loads(soup(page).select_one("#calc-data").string)
    assert data == json.loads(json.dumps(calculator.facts()))


def test_controls_can_be_used_without_seeing_them(page: Path) -> None:
    form = soup(page).select_one("#calc")
    assert form["aria-label"]
    named = {label["for"] for label in form.select("label[for]")}
    controls = form.select("input, select")
    assert len(controls) == 10
    for control in controls:
        labelled = control.find_parent("label") or control.get("aria-label")
        assert labelled or control.get("id") in named, control
    buttons = form.select("button")
    assert len(buttons) == 5 and all(button["type"] == "button" for button in buttons)
    assert all(button.get_text().strip() for button in buttons)
    assert form.select_one("[aria-live=polite]") and form.select_one("[role=alert]")
    problem = form.select_one("[role=alert]")["id"]
    typed = form.select("input:not([type=range])")
    assert all(control["aria-describedby"] == problem for control in typed)


def test_examples_name_what_there_is(page: Path) -> None:
    for button in soup(page).select("[data-set]"):
        wanted = dict(parse_qsl(button["data-set"], strict_parsing=True))
        assert set(wanted) == set(NAMES)
        assert wanted["model"] in zoo.names() and wanted["gpu"] in ACCELERATORS
        assert {wanted["weights"], wanted["cache"]} <= set(sizing.BYTES_PER_ELEMENT)
        assert all(int(wanted[name]) >= 1 for name in ("context", "batch", "gpus", "reserve"))


@pytest.mark.parametrize(
    "name", ["calculator.md", "_static/calculator.js", "_static/calculator.css"]
)
def test_nothing_is_fetched(name: str) -> None:
    text = (SITE / name).read_text("utf-8").replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(
        r"(?i)https?:|//[a-z0-9]+\.|\bfetch\b|XMLHttp|WebSocket|import\(|@import|url\(", text
    )


def test_colours_are_those_of_the_figures() -> None:
    css = (SITE / "_static" / "calculator.css").read_text("utf-8")
    light = css[css.index('html[data-theme="light"]') : css.index('html[data-theme="dark"]')]
    palette = {"weights": style.WEIGHTS, "weights-edge": style.FAINT, "cache": style.K}
    palette |= {"activations": style.NEW, "over": style.RECOMPUTED, "here": style.QUERY}
    for name, colour in palette.items():
        assert f"--calc-{name}: {colour};" in light


# ── a browser ────────────────────────────────────────────────────────────────────────────────

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
NAMES = ("model", "weights", "cache", "context", "batch", "gpu", "gpus", "reserve")


def browse(address: str) -> tuple[BeautifulSoup, list[str]]:
    """The page after its scripts ran, and what they wrote to the console."""
    with tempfile.TemporaryDirectory() as profile:
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update"]
        command += ["--disable-sync", "--disable-quic", f"--user-data-dir={profile}"]
        command += ["--allow-file-access-from-files", "--virtual-time-budget=20000"]
        command += ["--enable-logging=stderr", "--dump-dom", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return BeautifulSoup(done.stdout, "html.parser"), console


def state(**changed: Any) -> dict[str, str]:
    """The fields' values: those the page opens with, some changed."""
    opening = ("llama-3-70b", "bf16", "bf16", 4096, 32, "h100-sxm", 8, 10)
    return {
        key: str(value) for key, value in (dict(zip(NAMES, opening, strict=True)) | changed).items()
    }


STATES = [
    state(),
    state(model="llama-3.1-70b", context=131_072, batch=50),
    state(model="deepseek-v3", weights="fp8", context=32_768, batch=128, gpu="h200"),
    state(model="gemma-3-27b", cache="int8", context=1025, batch=3, gpus=1, reserve=0),
    state(model="jamba-v0.1", weights="int4", context=100_000, batch=7, gpu="l40s", gpus=2),
    state(model="falcon-mamba-7b", cache="fp32", batch=1, gpu="rtx-4090", gpus=1, reserve=33),
    state(model="llama-4-scout", weights="int8", context=8193, batch=1000, gpu="mi300x"),
    state(model="gpt2", batch=1, context=1, gpu="v100", gpus=1),
]


def figure(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def time(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.2f} µs"


def many(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def expected(asked: dict[str, str]) -> dict[str, list[str]]:
    """The table of numbers for a state, by refimpl."""
    arch, accelerator = Architecture.named(asked["model"]), Accelerator.named(asked["gpu"])
    context, batch, gpus = (int(asked[name]) for name in ("context", "batch", "gpus"))
    weights, cache = asked["weights"], asked["cache"]
    given = {"context": context, "num_gpus": gpus, "weight_dtype": weights, "cache_dtype": cache}
    count, first = sizing.count_parameters(arch), sizing.kv_bytes_per_token(arch, cache)
    experts = [layer for layer in arch.layers if layer.num_experts]
    windows = any(layer.window for layer in arch.layers)
    rates = {"bf16": 1.0, **accelerator.peak_flops}  # a plan wants a rate, though it fits without
    able = Accelerator("able", accelerator.memory_bytes, accelerator.bandwidth, rates, "", "")
    plan = capacity.plan(arch, able, users=batch, reserve=int(asked["reserve"]) / 100, **given)
    fit = plan.fit
    longest = sizing.max_tokens(arch, fit.pool_bytes, cache, batch)
    state_bytes = sizing.fixed_state_bytes(arch, cache)
    limits = {"weights": "the weights do not fit", "cache": "memory for the cache"}
    found: dict[str, int | str | None] = {
        "parameters": format_count(count.total),
        "of which a token passes": format_count(count.active) if experts else None,
        "weights": sizing.weight_bytes(arch, weights),
        "a token": first,
        "a token once windows are full": (
            sizing.kv_bytes_per_token(arch, cache, beyond_window=True) if windows else None
        ),
        "fixed state of a sequence": state_bytes or None,
        f"a sequence of {many(context)}": sizing.kv_bytes(arch, context, cache),
        f"the batch of {batch:,}": sizing.kv_bytes(arch, context, cache, batch),
        "memory": gpus * accelerator.memory_bytes,
        f"reserve of {asked['reserve']} %": plan.reserved_bytes,
        "left for the cache": fit.pool_bytes,
        "tokens that fit": format_count(fit.tokens),
        "sequences that fit": f"{fit.whole_users:,} ({figure(fit.users)})",
        "longest context of the batch": "any" if longest is None else f"{longest:,} tokens",
        "accelerators for the batch": f"{fit.gpus_needed:,}",
        "limit": limits.get(fit.limit, "none, the batch fits"),
    }
    if weights in accelerator.peak_flops or "bf16" in accelerator.peak_flops:
        step = roofline.decode_step(arch, accelerator, batch=batch, **given)
        read = None
        if experts:
            numbers = (experts[0].num_experts, experts[0].experts_per_token)
            read = f"{sizing.distinct_experts(*numbers, batch):.1f} of {numbers[0]}, expected"
        dtype = step.compute_dtype
        found |= {
            "weights read": step.weight_bytes,
            "experts read in a layer": read,
            "cache read and written": step.cache_bytes,
            "activations": step.activation_bytes,
            "all bytes": step.bytes,
            "FLOPs": format_count(step.flops),
            "FLOP/byte": f"{figure(step.intensity)}, ridge {figure(accelerator.ridge(dtype))}",
            "time for the bytes": time(step.memory_seconds),
            f"time for the FLOPs, in {dtype}": time(step.compute_seconds),
            "bound by": {"memory": "memory bandwidth", "compute": "arithmetic"}[step.bound],
            "step time, a bound": f"at least {time(step.seconds)}",
            "tokens/s, a bound": f"at most {figure(step.tokens_per_second)}",
            "tokens/s of each sequence": f"at most {figure(step.tokens_per_second / batch)}",
        }
    shown = {}
    for label, value in found.items():
        if isinstance(value, int):
            shown[label] = [format_si_bytes(value), format_bytes(value)]
        elif value is not None:
            shown[label] = [value]
    return shown


def numbers(form: Any) -> dict[str, list[str]]:
    """The table of numbers that the page shows."""
    return {
        row.th.get_text(): [cell.get_text() for cell in row.select("td")]
        for row in form.select(".calc-counts tbody tr")
        if row.td
    }


@pytest.fixture(scope="module")
def opened(page: Path) -> tuple[list[Any], list[str]]:
    """The calculator in each of `STATES`, reached by its address, and the console."""
    frames = "".join(
        f'<iframe src="calculator.html#{"&".join(f"{k}={v}" for k, v in one.items())}"></iframe>'
        for one in STATES
    )
    copy = "f => { const d = f.contentDocument; return d.getElementById('calc').outerHTML; }"
    script = "onload = () => { document.body.innerHTML = [...document.querySelectorAll('iframe')]"
    script += f".map({copy}).join(''); }};"
    (page.parent / "all.html").write_text(f"<body>{frames}<script>{script}</script>")
    found, console = browse((page.parent / "all.html").as_uri())
    return found.select("#calc"), console


@needs_chromium
def test_the_browser_shows_what_refimpl_computes(opened: tuple[list[Any], list[str]]) -> None:
    forms, console = opened
    assert console == []
    for asked, form in zip(STATES, forms, strict=True):
        assert not form.has_attr("hidden")
        assert form.select_one(".calc-problem").get_text() == ""
        assert numbers(form) == expected(asked), asked


@needs_chromium
def test_bars_curve_and_sentence_agree_with_the_numbers(
    opened: tuple[list[Any], list[str]],
) -> None:
    for asked, form in zip(STATES, opened[0], strict=True):
        want = expected(asked)
        says, batch = form.select_one(".calc-says").get_text(), f"{int(asked['batch']):,}"
        fits = want["limit"] == ["none, the batch fits"]
        assert want["weights"][0] in says and want[f"the batch of {batch}"][0] in says
        assert ("do not fit" in says) != fits
        key = {item.get_text() for item in form.select(".calc-node .calc-key li")}
        if fits:
            assert any(text.startswith(f"weights {want['weights'][0]} (") for text in key)
        assert any("does not fit" in text for text in key) != fits
        assert bool(form.select(".calc-end")) != fits
        shares = [
            float(re.search(r"flex-grow: ([\d.e-]+)", part["style"])[1])
            for part in form.select(".calc-node .calc-part")
        ]
        assert sum(shares) == pytest.approx(1, abs=1e-5) and len(shares) == len(key)
        memory = int(asked["gpus"]) * Accelerator.named(asked["gpu"]).memory_bytes
        arch = Architecture.named(asked["model"])
        if fits:
            part = sizing.weight_bytes(arch, asked["weights"]) / memory
            assert shares[0] == pytest.approx(part, abs=1e-5)
        has_step = "step time, a bound" in want
        assert form.select_one(".calc-curve").has_attr("hidden") != has_step
        notes = form.select_one(".calc-notes").get_text()
        assert ("there is no bound on a step" in notes) != has_step
        if not has_step:
            continue
        at_least, at_most = want["step time, a bound"][0], want["tokens/s, a bound"][0]
        assert at_least in says and at_most.removeprefix("at most ") in says
        assert "A bound, not a prediction." in says
        svg = form.select_one(".calc-chart svg")
        rate = at_most.removeprefix("at most ")
        assert f"{rate} at {batch}" in svg["aria-label"]
        assert svg.select_one(".calc-here").get_text() == f"{batch}: {rate} tokens/s"
        moved = [part.get_text() for part in form.select(".calc-moved .calc-key b")]
        assert moved[0].startswith(want["weights read"][0])


@needs_chromium
def test_the_curve_as_a_table_is_the_sweep_of_refimpl(
    opened: tuple[list[Any], list[str]],
) -> None:
    asked, form = STATES[1], opened[0][1]
    arch, accelerator = Architecture.named(asked["model"]), Accelerator.named(asked["gpu"])
    batches = [2**n for n in range(8)]
    sweep = roofline.decode_sweep(
        arch, accelerator, batches=batches, contexts=[131_072], num_gpus=8
    )
    found = [
        [c.get_text() for c in row.select("td")] for row in form.select(".calc-sweep tbody tr")
    ]
    assert found == [
        [
            f"{batch:,}",
            both(step.bytes),
            figure(step.intensity),
            time(step.seconds),
            figure(step.tokens_per_second),
            figure(step.tokens_per_second / batch),
            step.bound,
            "fits" if batch <= 10 else "does not fit",
        ]
        for (batch, _), step in sweep.items()
    ]


@needs_chromium
def test_notes_say_what_is_not_as_it_seems(opened: tuple[list[Any], list[str]]) -> None:
    notes = [form.select_one(".calc-notes").get_text(" ") for form in opened[0]]
    sources = [form.select_one(".calc-sources").get_text(" ") for form in opened[0]]
    assert "Llama-3.1-70B is made for" not in notes[1]
    assert "With 1 key-value head on 8 accelerators" in notes[2]
    assert "Scales of quantised numbers are not counted." in notes[2]
    assert "Scales" not in notes[0]
    assert "v100 has no rate for bf16 (it has fp32, fp16)" in notes[7]
    for asked, note, source in zip(STATES, notes, sources, strict=True):
        entry = zoo.entry(asked["model"])
        assert ("Not confirmed" in note) == bool(entry.unverified)
        assert entry.source[0] in source
        assert Accelerator.named(asked["gpu"]).source in source


DRIVER = """<!doctype html><iframe id="f" src="calculator.html" width="900" height="900"></iframe>
<pre id="log"></pre><script>
const frame = document.getElementById("f"), log = [];
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
frame.addEventListener("load", async () => {
  const page = frame.contentDocument, window_ = frame.contentWindow;
  const one = (selector) => page.querySelector("#calc " + selector);
  const note = (what) => {
    const rows = [...page.querySelectorAll("#calc .calc-counts tbody tr")];
    const row = (label) => rows.find((r) => r.firstChild.textContent.startsWith(label));
    log.push([what, row("the batch of").children[1].textContent,
      row("step time").children[1].textContent, one("[name=batch]").value,
      one(".calc-problem").textContent, one(".calc-results").className.includes("is-stale"),
      one("[name=context]").getAttribute("aria-invalid"), window_.location.hash]);
  };
  const type = (name, value) => {
    one(`[name=${name}]`).value = value;
    one(`[name=${name}]`).dispatchEvent(new window_.Event("input", { bubbles: true }));
  };
  note("start");
  type("batch", "64"); note("batch");
  type("cache", "fp8"); note("cache");
  type("context", "8k"); note("context");
  type("context", "many"); note("nonsense");
  type("context", "4,096"); note("mended");
  const slider = one("[data-for=batch]");
  slider.value = 0;
  slider.dispatchEvent(new window_.Event("input", { bubbles: true })); note("slider");
  log.push(["slider says", slider.getAttribute("aria-valuetext"), slider.max]);
  one("[data-set]").click(); note("example");
  window_.location.hash = "#model=llama-3-8b&batch=2"; await wait(100); note("address");
  window_.location.hash = "#model=llama-9&batch=2"; await wait(100); note("unknown");
  window_.location.hash = "#some-heading"; await wait(100); note("anchor");
  document.getElementById("log").textContent = JSON.stringify(log);
});
</script>"""


@needs_chromium
def test_fields_sliders_examples_and_addresses_change_the_page(page: Path) -> None:
    (page.parent / "driver.html").write_text(DRIVER, encoding="utf-8")
    found, console = browse((page.parent / "driver.html").as_uri())
    assert console == []
    log = json.loads(found.select_one("#log").get_text())

    def entry(what: str, shown: dict[str, str], said: tuple[Any, ...]) -> list[Any]:
        want = expected(shown)
        cache = want[f"the batch of {int(shown['batch']):,}"][0]
        return [what, cache, want["step time, a bound"][0], *said]

    def address(shown: dict[str, str]) -> str:
        return "#" + "&".join(f"{name}={shown[name]}" for name in NAMES)

    wide = state(batch=64)
    thin = wide | {"cache": "fp8"}
    long, short = thin | {"context": "8192"}, thin | {"batch": "1"}
    no = "context: write a whole number from 1 to 1,073,741,824, as in 4096 or 128k, not 'many'"
    strange = "model 'llama-9' is not known here: shown is the default."
    small, other = state(model="llama-3-8b", batch=2), state(batch=2)
    assert [line for line in log if line[0] != "slider says"] == [
        entry("start", state(), ("32", "", False, None, "")),
        entry("batch", wide, ("64", "", False, None, address(wide))),
        entry("cache", thin, ("64", "", False, None, address(thin))),
        entry("context", long, ("64", "", False, None, address(long))),
        entry("nonsense", long, ("64", no, True, "true", address(long))),
        entry("mended", thin, ("64", "", False, None, address(thin))),
        entry("slider", short, ("1", "", False, None, address(short))),
        entry("example", state(), ("32", "", False, None, address(state()))),
        entry("address", small, ("2", "", False, None, "#model=llama-3-8b&batch=2")),
        entry("unknown", other, ("2", strange, False, None, "#model=llama-9&batch=2")),
        entry("anchor", other, ("2", strange, False, None, "#some-heading")),
    ]
    (slider,) = [line for line in log if line[0] == "slider says"]
    assert slider[1:] == ["1 sequence", "19"]


@needs_chromium
def test_an_error_on_the_console_is_seen(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<script>missing.call()</script>")
    assert len(browse((tmp_path / "bad.html").as_uri())[1]) == 1
