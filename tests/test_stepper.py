"""The page that steps through the cache: its numbers against other programs, its script at work."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from oracles import GQA, MHA, MQA, hf_twin, tiny, token_ids

from labkit.kernels import ROOT
from refimpl.cache import ContiguousCache
from refimpl.model import Decoder
from refimpl.weights import load
from refimpl.weights.peer import as_transformers

SITE = ROOT / "site"
sys.path.append(str(SITE))  # its modules import one another by their bare names
pages = importlib.import_module("pages")
stepper = importlib.import_module("stepper")
words = importlib.import_module("stepper_words")
stepper_page = importlib.import_module("stepper_page")

P, N = 7, 10  # the page's run
SLOTS = P + N - 1
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4

# ── recording, on tiny models: every count against what the tensors say ──────────────────────


def greedy_by(twin: Any, prompt: list[int], num_new: int) -> list[int]:
    """Greedy tokens from whole passes of another implementation."""
    tokens = list(prompt)
    for _ in range(num_new):
        tokens.append(int(twin(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def matrix_flops(model: Decoder, num_queries: int, num_keys: int) -> int:
    """A multiply-add for each weight of each matrix and token, and for each score and value."""
    matrices = sum(
        p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n
    )
    if model.arch.tie_embeddings:  # listed once, as the embedding, but used as the head as well
        matrices += model.head.weight.numel()
    arch = model.arch
    pairs = arch.num_layers * arch.num_query_heads * num_queries * num_keys
    return 2 * matrices * num_queries + 2 * 2 * arch.head_dim * pairs


@pytest.mark.parametrize(("arch", "prompt_length"), [(GQA, 5), (MQA, 1), (MHA, 4)])
def test_recorded_passes_are_those_of_another_implementation(arch: Any, prompt_length: int) -> None:
    from transformers import DynamicCache

    num_new = 6
    model = tiny(arch, seed=3, dtype=torch.float32)
    prompt = token_ids(11, arch.vocab_size, prompt_length).tolist()
    heads = [
        (layer + 1, h + 1) for layer in range(arch.num_layers) for h in range(arch.num_query_heads)
    ]
    heads.reverse()
    passes = stepper.record(model, prompt, num_new, heads)

    twin = hf_twin(tiny(arch, seed=3, dtype=torch.float64))
    twin.set_attn_implementation("eager")
    new = greedy_by(twin, prompt, num_new)
    assert [one.token for one in passes] == new
    seen = torch.tensor([prompt + new[:-1]])
    whole = twin(seen, use_cache=False, output_attentions=True)
    theirs = DynamicCache()
    for number, one in enumerate(passes, 1):
        stop = prompt_length + number - 1
        first = 0 if number == 1 else stop - 1
        assert (one.number, one.first, one.stop) == (number, first, stop)
        assert one.num_again == (0 if number == 1 else stop - 1)
        twin(seen[:, first:stop], cache=theirs)
        held = sum(layer.keys.numel() + layer.values.numel() for layer in theirs.layers) * 4
        before = passes[number - 2].held_bytes if number > 1 else 0
        assert one.held_bytes == one.cached.kv_bytes_read == held
        assert one.cached.kv_bytes_computed == held - before
        assert one.uncached.kv_bytes_computed == held and one.uncached.kv_bytes_read == 0
        assert one.reserved_bytes == held // stop * (prompt_length + num_new - 1)
        for work, T in ((one.cached, stop - first), (one.uncached, stop)):
            assert (work.num_queries, work.num_keys, work.num_scores) == (T, stop, T * stop)
            assert work.flops == matrix_flops(model, T, stop)
        probs = whole.logits[0, stop - 1].softmax(-1)
        assert abs(one.probability - float(probs[one.token])) < 1e-5
        for (layer, head), weights in zip(heads, one.weights, strict=True):
            expected = whole.attentions[layer - 1][0, head - 1, stop - 1, :stop]
            assert len(weights) == stop and abs(sum(weights) - 1) < 1e-5
            torch.testing.assert_close(torch.tensor(weights), expected.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dtype": torch.float64}, "float32"),
        ({"num_new": 0}, "at least 1, got 0"),
        ({"num_new": True}, "integer, got True"),
        ({"num_new": 2.0}, "integer, got 2.0"),
        ({"heads": [(0, 1)]}, "layer 0, head 1"),
        ({"heads": [(1, 7)]}, "layer 1, head 7 is none of 2 layers with 6 query heads"),
        ({"heads": [(3, 1)]}, "layer 3, head 1"),
        ({"tie": True}, "too close"),
        ({"tie": None}, "too close"),
    ],
)
def test_what_cannot_be_shown_is_refused(change: dict[str, Any], complaint: str) -> None:
    model = tiny(GQA, dtype=change.get("dtype", torch.float32))
    if "tie" in change:  # all logits equal, or none a number
        model.head.weight.data.fill_(0.0 if change["tie"] else torch.nan)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        stepper.record(model, [3, 1, 4], change.get("num_new", 2), change.get("heads", ()))
    assert not any(layer.attention._forward_pre_hooks for layer in model.layers)


def test_a_cache_that_changes_the_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(ContiguousCache):
        def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
            k_BGSD, v_BGSD = super().read(layer)
            return k_BGSD, v_BGSD.flip(2)

    monkeypatch.setattr(stepper, "ContiguousCache", Forgetful)
    with pytest.raises(ValueError, match=r"pass \d finds \d+ with a cache, \d+ without"):
        stepper.record(tiny(GQA, dtype=torch.float32), [3, 1, 4, 15, 9], 8)


# ── the run on the page ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def real() -> Any:
    return load("smollm2-135m")


@pytest.fixture(scope="module")
def shown() -> Any:
    return stepper_page.run()


def test_the_page_shows_what_transformers_computes(shown: Any, real: Any) -> None:
    model, tokenizer = real
    peer = as_transformers(model)
    peer.set_attn_implementation("eager")
    assert tokenizer.decode(shown.tokens[:P]) == stepper_page.PROMPT
    assert "".join(shown.texts) == tokenizer.decode(shown.tokens)
    fed = torch.tensor([shown.tokens[:-1]])
    with torch.no_grad():
        whole = peer(fed, use_cache=False, output_attentions=True)
    logits = whole.logits[0, P - 1 :].double()
    best, second = logits.topk(2).values.unbind(-1)
    assert (best - second).min() > 1e-3
    assert logits.argmax(-1).tolist() == list(shown.tokens[P:])
    probs = logits.softmax(-1).max(-1).values
    for one, prob in zip(shown.passes, probs.tolist(), strict=True):
        assert abs(one.probability - prob) < 1e-4
        for (layer, head), weights in zip(words.HEADS, one.weights, strict=True):
            expected = whole.attentions[layer - 1][0, head - 1, one.stop - 1, : one.stop]
            assert len(weights) == one.stop and abs(sum(weights) - 1) < 1e-5
            torch.testing.assert_close(torch.tensor(weights), expected, rtol=0, atol=1e-4)


def test_totals_have_their_closed_forms(shown: Any) -> None:
    rows = words.totals(shown.passes)
    for n, (cached, uncached) in enumerate(rows, 1):
        assert cached.num_queries == P + n - 1
        assert uncached.num_queries == n * P + n * (n - 1) // 2
        assert cached.num_scores == P * P + sum(range(P + 1, P + n))
        assert uncached.num_scores == sum(length**2 for length in range(P, P + n))
        assert cached.flops == sum(one.cached.flops for one in shown.passes[:n])
        assert uncached.flops == sum(one.uncached.flops for one in shown.passes[:n])
    assert (rows[-1][0].num_queries, rows[-1][1].num_queries) == (16, 115)
    assert len(rows) == N


def test_the_text_states_these_numbers(shown: Any, real: Any) -> None:
    values = stepper_page.values(shown)
    assert {name: values[name] for name in values if name not in ("data", "table")} == {
        "prompt": "The first law of thermodynamics states that",
        "num_prompt": "7",
        "num_new": "10",
        "num_tokens": "17",
        "num_slots": "16",
        "num_layers": "30",
        "num_kv_heads": "3",
        "head_dim": "64",
        "token_bytes": "45 KiB",  # 2 · 30 · 3 · 64 · 4 = 46,080
        "token_bytes_bf16": "22.5 KiB",
        "weight_bytes": "513.13 MiB",  # 134,515,008 parameters · 4
        "prefill_scores": "49",
        "prefill_masked": "21",
        "last_keys": "16",
        "last_read": "720 KiB",
        "first_share": "over 99.9 %",
        "passes_cached": "16",
        "passes_uncached": "115",
        "flops_cached": "4.31 GFLOP",
        "flops_uncached": "31.03 GFLOP",
    }
    model, _ = real
    assert words.weight_bytes(shown.arch) == sum(p.nbytes for p in model.parameters())
    cached = sum(matrix_flops(model, T, S) for T, S in [(P, P), *((1, P + n) for n in range(1, N))])
    uncached = sum(matrix_flops(model, P + n, P + n) for n in range(N))
    assert (cached, uncached) == tuple(t.flops for t in words.totals(shown.passes)[-1])
    work = [one.uncached.flops / one.cached.flops for one in shown.passes]
    assert work == sorted(work) and work[-1] > work[0] == 1  # "the gap widens with every pass"


def test_heads_do_what_their_labels_say(shown: Any) -> None:
    spread, before, itself, first = words.head_shares(shown.passes)
    weights = [one.weights for one in shown.passes]
    assert spread == max(max(heads[0]) for heads in weights) < 0.5
    assert before == pytest.approx(sum(heads[1][-2] for heads in weights) / N) and before > 0.5
    assert itself == pytest.approx(sum(heads[2][-1] for heads in weights) / N) and itself > 0.5
    assert first == pytest.approx(sum(heads[3][0] for heads in weights) / N)
    assert 0.9995 < first < 1
    assert [where for where, _ in words.HEADS.values()] == [
        "spread",
        "the token before",
        "the token itself",
        "the first token",
    ]


def test_every_pass_has_one_sentence_for_each_mode(shown: Any) -> None:
    for one in shown.passes:
        for caption in words.captions(shown, one):
            assert len(re.findall(r"[.!?](?: |$)", re.sub(r"\d\.\d|“[^”]*”", "", caption))) == 1
            assert f"“{shown.texts[one.stop].strip()}”" in caption
    prefill, decode = (words.captions(shown, shown.passes[n]) for n in (0, 4))
    assert "the 7 tokens of the prompt" in prefill[0] and "slots 0 to 6" in prefill[0]
    assert "only “created”" in decode[0] and "fill slot 10" in decode[0]
    assert "11 tokens go through the layers, 10 of them again" in decode[1]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100.0 %"),
        (0.99999, "over 99.9 %"),
        (0.999, "99.9 %"),
        (0.5371, "53.7 %"),
        (0, "0.0 %"),
    ],
)
def test_percentages_do_not_round_up_to_certainty(share: float, text: str) -> None:
    assert words.percent(share) == text


def gflops(model: Decoder, shapes: list[tuple[int, int]]) -> str:
    """Matrix products of passes of T queries and S keys, as the page writes them."""
    return f"{sum(matrix_flops(model, T, S) for T, S in shapes) / 1e9:.2f} GFLOP"


def expected_counters(n: int, model: Decoder) -> list[list[str]]:
    """The counters of pass ``n``, from the lengths alone: label, with a cache, without."""
    shapes = [(P, P), *((1, P + i) for i in range(1, N))][:n]
    squares = [(P + i, P + i) for i in range(n)]
    T, S = shapes[-1]
    kib = TOKEN_BYTES // 1024
    return [
        ["query rows T", f"{T}", f"{S}"],
        ["keys S", f"{S}", f"{S}"],
        ["scores T × S", f"{T * S}", f"{S * S}"],
        ["K and V computed", f"{kib * T} KiB", f"{kib * S} KiB"],
        ["cache read", f"{kib * S} KiB", "none"],
        ["weights read", "513.13 MiB", "513.13 MiB"],
        ["matrix products", gflops(model, shapes[-1:]), gflops(model, squares[-1:])],
        ["token-passes", f"{S}", f"{n * P + n * (n - 1) // 2}"],
        ["scores", f"{P * P + sum(range(P + 1, S + 1))}", f"{sum(s * s for s, _ in squares):,}"],
        ["matrix products", gflops(model, shapes), gflops(model, squares)],
        ["cache held", f"{kib * S} KiB", "none"],
        ["cache reserved", f"{kib * SLOTS} KiB", "none"],
    ]


def test_counters_and_positions_for_the_browser(shown: Any, real: Any) -> None:
    data = json.loads(stepper_page.script_data(stepper_page.browser_data(shown)))
    assert (data["slots"], data["prompt"], len(data["tokens"])) == (SLOTS, P, P + N)
    assert [token["id"] for token in data["tokens"]] == list(shown.tokens)
    for n, one in enumerate(data["passes"], 1):
        assert (one["first"], one["stop"], one["again"]) == (
            (0, P, 0) if n == 1 else (P + n - 2, P + n - 1, P + n - 2)
        )
        found = [row for _, rows in one["counters"] for row in rows]
        assert found == expected_counters(n, real[0])
        for weights, exact in zip(one["weights"], shown.passes[n - 1].weights, strict=True):
            assert weights == pytest.approx(exact, abs=5.1e-5)


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def test_data_cannot_end_its_element() -> None:
    text = stepper_page.script_data({"token": "</script><!--", "other": "␣é"})
    assert "<" not in text
    assert json.loads(text) == {"token": "</script><!--", "other": "␣é"}


@pytest.fixture(scope="module")
def page(shown: Any) -> Any:
    """The filled page and its files, without the theme; gives the address."""
    filled = pages.fill((SITE / "stepper.md").read_text("utf-8"), **stepper_page.values(shown))
    body = MarkdownIt("commonmark", {"html": True}).render(filled)
    assets = '<link rel="stylesheet" href="_static/stepper.css"><script src="_static/stepper.js">'
    html = f'<!doctype html><html data-theme="light"><head><meta charset="utf-8">{assets}</script>'
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(SITE / "_static", folder / "_static")
        html += f'</head><body class="bd-article">{body}</body></html>'
        (folder / "stepper.html").write_text(html, encoding="utf-8")
        yield folder / "stepper.html"


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


def test_without_javascript_there_is_a_table_of_all_passes(
    page: Path, shown: Any, real: Any
) -> None:
    static = soup(page)
    assert static.select_one("#stepper").has_attr("hidden")
    assert static.select_one("details.stepper-all").has_attr("open")
    assert static.select_one("noscript").get_text().strip()
    rows = [
        [cell.get_text() for cell in row.select("td")] for row in static.select("details tbody tr")
    ]
    assert len(rows) == N
    for n, row in enumerate(rows, 1):
        S = P + n - 1
        first = 0 if n == 1 else S - 1
        assert row[:7] == [
            f"{n}",
            f"{S - first}",
            shown.texts[first].strip(),
            f"{S}",
            f"{45 * S} KiB",
            f"{S}",
            f"{n * P + n * (n - 1) // 2}",
        ]
        assert row[7:9] == expected_counters(n, real[0])[9][1:]
        assert row[9:11] == [shown.texts[S].strip(), f"{shown.tokens[S]}"]
    assert len(static.select("details thead th")) == len(rows[0])


def test_controls_can_be_used_without_seeing_them(page: Path) -> None:
    group = soup(page).select_one("#stepper")
    buttons = group.select("button")
    assert len(buttons) == 3 and all(b["type"] == "button" for b in buttons)
    assert all(b.get("aria-label") or b.get_text().isalpha() for b in buttons)
    assert group.select_one("input[type=range]")["aria-label"]
    assert group.select_one("label input[type=checkbox]") and group.select_one("label select")
    assert group.select_one("[aria-live=polite]") and group["aria-label"]


@pytest.mark.parametrize("name", ["stepper.md", "_static/stepper.js", "_static/stepper.css"])
def test_nothing_is_fetched(name: str) -> None:
    text = (SITE / name).read_text("utf-8")
    assert not re.search(
        r"(?i)https?:|//[a-z0-9]+\.|\bfetch\b|XMLHttp|WebSocket|import\(|@import|url\(", text
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_the_script_parses() -> None:
    command = [str(shutil.which("node")), "--check", str(SITE / "_static" / "stepper.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_colours_are_those_of_the_figures_and_motion_is_optional() -> None:
    from figures import style

    css = (SITE / "_static" / "stepper.css").read_text("utf-8")
    light = css[css.index('html[data-theme="light"]') : css.index('html[data-theme="dark"]')]
    palette = {"k": style.K, "v": style.V, "query": style.QUERY, "new": style.NEW}
    for name, colour in {**palette, "again": style.RECOMPUTED}.items():
        assert f"--step-{name}: {colour};" in light
    assert css.count("transition") == css[css.index("prefers-reduced-motion") :].count("transition")
    assert style.contrast(re.search(r"--step-v-text: (#\w+)", light)[1], style.PAPER) > 4.5
    assert style.contrast(re.search(r"--step-again-text: (#\w+)", light)[1], style.PAPER) > 4.5


# ── a browser ────────────────────────────────────────────────────────────────────────────────

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def dom(address: str) -> BeautifulSoup:
    with tempfile.TemporaryDirectory() as profile:
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update"]
        command += ["--disable-sync", "--disable-quic", f"--user-data-dir={profile}"]
        command += ["--allow-file-access-from-files", "--virtual-time-budget=30000"]
        command += ["--dump-dom", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return BeautifulSoup(done.stdout, "html.parser")


def drawn(group: Any) -> dict[str, Any]:
    """What the page shows: counts of what is drawn, the sentence, the counters."""
    drawing = group.select_one(".stepper-drawing")

    def count(selector: str) -> int:
        return len(drawing.select(selector))

    return {
        "hidden": group.has_attr("hidden"),
        "caption": group.select_one(".stepper-caption").get_text(),
        "title": group.select_one(".stepper-title").get_text(),
        "slots": {
            kind: [count(f".stepper-{row}.is-{kind}") for row in "kv"]
            for kind in ("kept", "written", "reserved", "again", "dropped")
        },
        "scores": {
            "now": count(".stepper-score.is-now:not(.is-masked)"),
            "again": count(".stepper-score.is-again:not(.is-masked)"),
            "masked": count(".stepper-score.is-masked"),
            "past": count(".stepper-score.is-past"),
        },
        "bars": [
            float(bar["style"].removeprefix("height:").strip(" %;")) / 100
            for bar in drawing.select(".stepper-weight.is-read i")
        ],
        "found": [chip.get_text() for chip in group.select("li.is-found")],
        "fed": len(group.select("li.is-fed")),
        "counters": [
            [cell.get_text() for cell in row.select("th, td")]
            for row in group.select(".stepper-counts tbody tr")
            if row.td
        ],
    }


def should_be_drawn(n: int, plain: bool) -> dict[str, Any]:
    """Slots and scores of pass ``n``, from the lengths alone."""
    S, first = P + n - 1, 0 if n == 1 else P + n - 2
    again = first if plain else 0
    rows = range(0 if plain else first, S)
    slots = {
        "kept": 0 if plain else first,
        "written": 0 if plain else S - first,
        "reserved": 0 if plain else SLOTS - S,
        "again": again,
        "dropped": S - again if plain else 0,
    }
    return {
        "slots": {kind: [number, number] for kind, number in slots.items()},
        "scores": {
            "now": sum(q + 1 for q in rows if q >= again),
            "again": sum(q + 1 for q in rows if q < again),
            "masked": sum(S - q - 1 for q in rows),
            "past": 0 if plain else sum(q + 1 for q in range(first)),
        },
    }


@needs_chromium
def test_the_browser_draws_every_pass_from_its_address(page: Path, shown: Any, real: Any) -> None:
    states = [(n, plain) for n in range(1, N + 1) for plain in (False, True)]
    frames = "".join(
        f'<iframe src="stepper.html#pass={n}{"&cache=off" if plain else ""}"></iframe>'
        for n, plain in states
    )
    copy = "f => { const d = f.contentDocument; return d.getElementById('stepper').outerHTML; }"
    script = "onload = () => { document.body.innerHTML = [...document.querySelectorAll('iframe')]"
    script += f".map({copy}).join(''); }};"
    (page.parent / "all.html").write_text(f"<body>{frames}<script>{script}</script>")
    copies = dom((page.parent / "all.html").as_uri()).select("#stepper")
    for (n, plain), copied in zip(states, copies, strict=True):
        found, one = drawn(copied), shown.passes[n - 1]
        assert not found["hidden"]
        assert {key: found[key] for key in ("slots", "scores")} == should_be_drawn(n, plain)
        assert found["caption"] == words.captions(shown, one)[plain]
        assert found["title"].startswith(f"pass {n} of {N}, ")
        assert found["bars"] == pytest.approx(one.weights[0], abs=5.1e-5)
        (chip,) = found["found"]
        assert chip == f"{one.stop}{shown.texts[one.stop].replace(' ', '␣')}{one.token}"
        assert found["fed"] == (P if n == 1 else 1)
        assert found["counters"] == expected_counters(n, real[0])


DRIVER = """<!doctype html><iframe id="f" src="stepper.html" width="900" height="900"></iframe>
<pre id="log"></pre><script>
const frame = document.getElementById("f"), log = [];
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
frame.addEventListener("load", async () => {
  const page = frame.contentDocument, window_ = frame.contentWindow;
  const one = (selector) => page.querySelector("#stepper " + selector);
  const key = (name, target) => (target || page.body).dispatchEvent(
    new window_.KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const note = (what) => log.push([what, one(".stepper-title").textContent.split(",")[0],
    page.querySelectorAll("#stepper .stepper-drawing .stepper-k.is-written").length,
    page.querySelectorAll("#stepper .stepper-drawing .stepper-k.is-again").length,
    one(".stepper-play").textContent, window_.location.hash]);
  const press = (name) => one(`[data-do=${name}]`).click();
  note("start");
  press("previous"); note("previous at the start");
  press("next"); press("next"); note("next, twice");
  key("ArrowRight"); note("right");
  key("ArrowLeft"); key("ArrowLeft"); note("left, twice");
  key("ArrowRight", one(".stepper-head")); note("right in the list");
  one(".stepper-uncached").click(); note("without");
  one(".stepper-slider").value = 9;
  one(".stepper-slider").dispatchEvent(new window_.Event("input")); note("slider");
  one(".stepper-uncached").click(); note("with");
  const before = one(".stepper-weight i").style.height;
  one(".stepper-head").value = 3;
  one(".stepper-head").dispatchEvent(new window_.Event("change"));
  log.push(["head", before, one(".stepper-weight i").style.height]);
  press("play"); note("play");
  await wait(5000); note("played");
  press("next"); note("next at the end");
  press("play"); note("play from the end");
  press("play"); note("pause");
  press("play"); press("next"); note("next while playing");
  await wait(5000); note("paused");
  log.push(["table closed", page.querySelector(".stepper-all").open]);
  document.getElementById("log").textContent = JSON.stringify(log);
});
</script>"""


@needs_chromium
def test_buttons_keys_slider_and_play_step_through(page: Path, shown: Any) -> None:
    (page.parent / "driver.html").write_text(DRIVER, encoding="utf-8")
    text = dom((page.parent / "driver.html").as_uri()).select_one("#log").get_text()
    log = json.loads(text)
    shares = [shown.passes[8].weights[n][0] for n in (0, 3)]
    (head,) = [entry for entry in log if entry[0] == "head"]
    assert [float(x.strip("%")) / 100 for x in head[1:]] == pytest.approx(shares, abs=5.1e-5)
    assert [entry for entry in log if entry[0] != "head"] == [
        ["start", "pass 1 of 10", 7, 0, "Play", ""],
        ["previous at the start", "pass 1 of 10", 7, 0, "Play", ""],
        ["next, twice", "pass 3 of 10", 1, 0, "Play", "#pass=3"],
        ["right", "pass 4 of 10", 1, 0, "Play", "#pass=4"],
        ["left, twice", "pass 2 of 10", 1, 0, "Play", "#pass=2"],
        ["right in the list", "pass 2 of 10", 1, 0, "Play", "#pass=2"],
        ["without", "pass 2 of 10", 0, 7, "Play", "#pass=2&cache=off"],
        ["slider", "pass 9 of 10", 0, 14, "Play", "#pass=9&cache=off"],
        ["with", "pass 9 of 10", 1, 0, "Play", "#pass=9"],
        ["play", "pass 9 of 10", 1, 0, "Pause", "#pass=9"],
        ["played", "pass 10 of 10", 1, 0, "Play", "#pass=10"],
        ["next at the end", "pass 10 of 10", 1, 0, "Play", "#pass=10"],
        ["play from the end", "pass 1 of 10", 7, 0, "Pause", "#pass=1"],
        ["pause", "pass 1 of 10", 7, 0, "Play", "#pass=1"],
        ["next while playing", "pass 2 of 10", 1, 0, "Play", "#pass=2"],
        ["paused", "pass 2 of 10", 1, 0, "Play", "#pass=2"],
        ["table closed", False],
    ]
