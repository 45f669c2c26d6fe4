"""What cells use: output that is the same on every run, and errors that say what to change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import figures
from figures import style
from labkit import notebook
from labkit.notebook import predict, ratio_of_medians, reveal_prediction, setup, show, table

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_predictions", {})


# ── setup ───────────────────────────────────────────────────────────────────────────────────────


def test_setup_prints_nothing_and_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.random.get_rng_state()
    assert setup() is None
    options = repr(torch.tensor([1 / 3, 1e-6]))
    assert setup() is None
    assert repr(torch.tensor([1 / 3, 1e-6])) == options == "tensor([0.3333, 0.0000])"
    assert torch.equal(torch.random.get_rng_state(), state), "nothing is seeded"
    assert torch.get_float32_matmul_precision() == "highest"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("set_to", "offline"), [(None, True), ("0", False), ("1", True)])
@pytest.mark.parametrize("hub_first", [False, True])
def test_no_hub_is_asked_unless_the_reader_says_so(
    set_to: str | None, offline: bool, hub_first: bool
) -> None:
    code = (
        ("import huggingface_hub.constants\n" if hub_first else "")
        + "import labkit\nlabkit.setup()\n"
        + "import huggingface_hub.constants\nprint(huggingface_hub.constants.HF_HUB_OFFLINE)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    if set_to is not None:
        environment["HF_HUB_OFFLINE"] = set_to
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(offline)]


# ── table ───────────────────────────────────────────────────────────────────────────────────────


def test_table_aligns_numbers_right_and_words_left(capsys: pytest.CaptureFixture[str]) -> None:
    table(
        [["prefill", 1024, "320 KiB"], ["decode", 1, "1.25 GiB"], ["none", None, None]],
        ["phase", "tokens", "cache"],
    )
    assert capsys.readouterr().out.splitlines() == [
        "phase    tokens     cache",
        "───────  ──────  ────────",
        "prefill   1,024   320 KiB",
        "decode        1  1.25 GiB",
        "none          –         –",
    ]


def test_table_takes_an_alignment_and_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table([[1, "a"], [20, "bb"]], ["n", "name"], align="lr")
    assert capsys.readouterr().out.splitlines()[2:] == ["1      a", "20    bb"]
    table([], ["n", "name"])
    assert capsys.readouterr().out.splitlines() == ["n  name", "─  ────"]


def test_table_writes_booleans_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    table([[True], [False]], ["equal"])
    assert capsys.readouterr().out.split()[-2:] == ["True", "False"]


@pytest.mark.parametrize(
    ("rows", "headers", "align", "message"),
    [
        ([[1, 2], [3]], ["a", "b"], None, "row 1 has 1 cells, there are 2 columns"),
        ([[0.1 + 0.2]], ["ratio"], None, "'ratio' holds the float 0.30000000000000004"),
        ([[1]], ["a"], "c", "1 letters l or r, got 'c'"),
        ([[1]], ["a"], "ll", "1 letters l or r, got 'll'"),
        ([], [], None, "at least one column"),
        ([["two\nlines"]], ["a"], None, "line break"),
    ],
)
def test_table_refuses_what_it_cannot_print_the_same_everywhere(
    rows: list,
    headers: list[str],
    align: str | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match=message):
        table(rows, headers, align)
    assert capsys.readouterr().out == "", "nothing is printed before the error"


# ── predict ─────────────────────────────────────────────────────────────────────────────────────


def test_unattended_prediction_prints_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    predict("passes", "How many token-passes do 8 steps take?", unit="token-passes")
    reveal_prediction("passes", 36)
    assert capsys.readouterr().out.splitlines() == [
        "Predict: How many token-passes do 8 steps take?",
        "No guess yet: write a number for guess in this cell and run it again.",
        "Found: 36 token-passes",
    ]


@pytest.mark.parametrize(
    ("guess", "actual", "said"),
    [
        (36, 36, "You said 36 GiB: exactly right."),
        (37, 36, "You said 37 GiB: within 5 percent."),
        (34.5, 36, "You said 34.5 GiB: within 5 percent."),
        (64, 36, "You said 64 GiB: 1.78 times too high."),
        (8, 36, "You said 8 GiB: 4.5 times too low."),
        (36_000_000, 36, "You said 36,000,000 GiB: 1,000,000 times too high."),
        (0, 36, "You said 0 GiB: off by 36 GiB."),
        (-4, 36, "You said -4 GiB: off by 40 GiB."),
        (5, 0, "You said 5 GiB: off by 5 GiB."),
        (-72, -36, "You said -72 GiB: 2 times too high."),
    ],
)
def test_a_guess_is_compared(
    guess: float, actual: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    predict("size", "How large?", guess=guess, unit="GiB")
    assert "Your guess: " in capsys.readouterr().out
    reveal_prediction("size", actual)
    assert capsys.readouterr().out == f"Found: {actual} GiB. {said}\n"


def test_asking_again_replaces_the_guess(capsys: pytest.CaptureFixture[str]) -> None:
    predict("n", "How many?", guess=3)
    predict("n", "How many?", guess=7)
    reveal_prediction("n", 7)
    assert capsys.readouterr().out.endswith("Found: 7. You said 7: exactly right.\n")


def test_revealing_what_was_not_asked_names_what_was() -> None:
    with pytest.raises(ValueError, match="no prediction 'a' was asked for; asked: none yet"):
        reveal_prediction("a", 1)
    predict("steps", "How many?")
    with pytest.raises(ValueError, match="'step' was asked for; asked: steps"):
        reveal_prediction("step", 1)


def test_a_unit_cannot_change_between_question_and_answer() -> None:
    predict("size", "How large?", unit="GiB")
    reveal_prediction("size", 1, unit="GiB")
    with pytest.raises(ValueError, match="asked in 'GiB' and is revealed in 'GB'"):
        reveal_prediction("size", 1, unit="GB")


@pytest.mark.parametrize("value", ["36", True, float("nan"), float("inf"), [36]])
def test_a_guess_or_a_finding_is_a_finite_number(value: object) -> None:
    with pytest.raises(ValueError, match="guess must be a finite number"):
        predict("n", "How many?", guess=value)
    with pytest.raises(ValueError, match="no prediction 'n'"):
        reveal_prediction("n", 1)
    predict("n", "How many?")
    with pytest.raises(ValueError, match="actual must be a finite number"):
        reveal_prediction("n", value)


@pytest.mark.parametrize(("key", "question"), [("", "How many?"), ("n", " ")])
def test_a_prediction_needs_a_key_and_a_question(key: str, question: str) -> None:
    with pytest.raises(ValueError, match="needs a key and a question"):
        predict(key, question)


# ── show and figure ─────────────────────────────────────────────────────────────────────────────

ALT = "Time grows with the square of the number of tokens."


class Shell:
    """Enough of IPython for a display."""


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The MIME bundles that were displayed, as in a notebook."""
    bundles: list[dict[str, str]] = []
    monkeypatch.setattr(notebook, "_shell", Shell)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: bundles.append(data))
    return bundles


def test_a_figure_is_shown_inline_with_its_alt_text(displayed: list[dict[str, str]]) -> None:
    with notebook.figure("Time grows", x="tokens", y="time (ms)", alt=ALT) as axes:
        axes.plot([1, 2, 3], [1, 4, 9], color=style.NEW)
    (bundle,) = displayed
    assert bundle["text/plain"] == ALT
    svg = bundle["image/svg+xml"]
    assert bundle["text/html"] == svg
    assert svg.startswith("<svg ")
    assert 'role="img"' in svg
    assert f">{ALT}</title>" in svg
    assert re.search(r"<text[^>]*>time \(ms\)</text>", svg), "type stays type: small outputs"
    assert len(svg) < 30_000
    assert style.NEW in svg


def test_ids_of_two_shown_figures_differ(displayed: list[dict[str, str]]) -> None:
    for alt in (ALT, ALT + " Again."):
        with notebook.figure("Time grows", x="tokens", y="time (ms)", alt=alt) as axes:
            axes.plot([1, 2], [1, 4])
    first, second = (set(re.findall(r'\bid="([^"]+)"', d["text/html"])) for d in displayed)
    assert first
    assert not first & second


def test_a_figure_of_the_book_brings_its_own_alt_text(displayed: list[dict[str, str]]) -> None:
    show(figures.get("02_broken_mask"))
    assert displayed[0]["text/plain"] == figures.alt("02_broken_mask")


def test_a_pyplot_figure_is_closed_so_that_it_shows_once(displayed: list[dict[str, str]]) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    drawing, axes = pyplot.subplots()
    axes.plot([1, 2], [1, 4])
    show(drawing, ALT)
    assert len(displayed) == 1
    assert not pyplot.fignum_exists(drawing.number)


def test_nothing_is_shown_if_the_cell_fails(displayed: list[dict[str, str]]) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        notebook.figure("Time grows", x="tokens", y="time (ms)", alt=ALT) as axes,
    ):
        axes.plot([1], [1 / 0])
    assert not displayed


@pytest.mark.parametrize("alt", ["", "a plot", "time per token"])
def test_a_figure_without_alt_text_is_refused(alt: str, displayed: list[dict[str, str]]) -> None:
    with style.applied():
        drawing, _ = style.canvas(50)
    with pytest.raises(ValueError, match="alt text that says what it shows"):
        show(drawing, alt)
    assert not displayed


@pytest.mark.parametrize("missing", ["title", "x", "y"])
def test_a_chart_without_words_is_refused(missing: str) -> None:
    words = {"title": "Time grows", "x": "tokens", "y": "time (ms)"} | {missing: " "}
    title = words.pop("title")
    with (
        pytest.raises(ValueError, match="title and both axes need words"),
        notebook.figure(title, alt=ALT, **words),
    ):
        pass


def test_outside_a_notebook_the_alt_text_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "_shell", lambda: None)
    show(figures.get("01_triangle"))
    assert capsys.readouterr().out.strip() == figures.alt("01_triangle")


# ── ratio_of_medians ────────────────────────────────────────────────────────────────────────────


class Clock:
    """A clock that only functions under test move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ratio_is_of_medians_and_rounds_swap_who_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, calls = Clock(), []
    monkeypatch.setattr(time, "perf_counter", clock)
    slow_times = iter([99.0, 6.0, 600.0, 6.0])  # the first is the warm-up, one is an outlier

    def slow() -> None:
        calls.append("slow")
        clock.now += next(slow_times)

    def fast() -> None:
        calls.append("fast")
        clock.now += 2.0

    found = ratio_of_medians(slow, fast, repeats=3)
    assert found == (3.0, 6.0, 2.0)
    assert (found.ratio, found.first, found.second) == (3.0, 6.0, 2.0)
    assert calls == ["slow", "fast", "slow", "fast", "fast", "slow", "slow", "fast"]


def test_ratio_needs_three_repeats_and_passes_errors_on() -> None:
    with pytest.raises(ValueError, match="at least 3 repeats, got 2"):
        ratio_of_medians(lambda: None, lambda: None, repeats=2)
    with pytest.raises(ZeroDivisionError):
        ratio_of_medians(lambda: 1 / 0, lambda: None)
