"""What every chapter's cells use: quiet settings, tables, predictions, plots and fair timing.

What these functions print is the same on every run, except where something is measured; cells
that measure are tagged so that their output is not compared.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from figures.record import Record

__all__ = [
    "Ratio",
    "figure",
    "predict",
    "ratio_of_medians",
    "reveal_prediction",
    "setup",
    "show",
    "table",
]


def setup() -> None:
    """Make a notebook's output the same everywhere; prints nothing and can be called again.

    No hub is asked for anything (set ``HF_HUB_OFFLINE=0`` before, if it should be), progress bars
    and tokenizer threads are off, tensors print with four fixed decimals, and on a GPU matrix
    products keep full fp32. Nothing is seeded: randomness is a generator that a cell passes.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    hub = sys.modules.get("huggingface_hub.constants")
    if hub is not None:  # imported before us, it has read the environment already
        hub.HF_HUB_OFFLINE = os.environ["HF_HUB_OFFLINE"].upper() in ("1", "ON", "YES", "TRUE")

    import torch

    torch.set_printoptions(precision=4, sci_mode=False, linewidth=88)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    shell = _shell()
    if shell is not None and hasattr(shell.config, "InlineBackend"):
        shell.config.InlineBackend.figure_formats = {"svg"}


def _shell() -> Any:
    """The running IPython, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────


def table(
    rows: Sequence[Sequence[object]], headers: Sequence[str], align: str | None = None
) -> None:
    """Print rows under headers as aligned plain text; units belong in headers or cells.

    ``align`` has one letter a column, ``l`` or ``r``; without it, columns of numbers are set right
    and the rest left. Integers get thousands separators, None becomes a dash. A float is refused:
    how many digits mean something is for the cell to say (``f"{x:.2f}"``). Raises ``ValueError``
    for that, for a row of another length than the headers and for an unknown alignment.
    """
    if not headers:
        raise ValueError("a table needs at least one column")
    for number, row in enumerate(rows):
        if len(row) != len(headers):
            raise ValueError(f"row {number} has {len(row)} cells, there are {len(headers)} columns")
    cells = [
        [_cell(value, header) for value, header in zip(row, headers, strict=True)] for row in rows
    ]
    if align is None:
        align = "".join(_natural_side(column) for column in zip(*rows, strict=True)) or (
            "l" * len(headers)
        )
    if len(align) != len(headers) or set(align) - {"l", "r"}:
        raise ValueError(f"align must be {len(headers)} letters l or r, got {align!r}")
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for line in (list(headers), ["─" * width for width in widths], *cells):
        padded = (
            text.rjust(width) if side == "r" else text.ljust(width)
            for text, width, side in zip(line, widths, align, strict=True)
        )
        print("  ".join(padded).rstrip())


def _cell(value: object, header: str) -> str:
    if isinstance(value, float):
        raise ValueError(
            f"column {header!r} holds the float {value!r}: format it with as many digits as mean "
            'something, for instance f"{x:.2f}"'
        )
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    if "\n" in text:
        raise ValueError(f"column {header!r} holds a line break: {text!r}")
    return text


def _natural_side(column: Sequence[object]) -> str:
    """``r`` if every cell is a number or text that starts like one, None apart."""

    def numeric(value: object) -> bool:
        return isinstance(value, int) or str(value).lstrip("+-−")[:1].isdigit()

    known = [value for value in column if value is not None]
    return "r" if known and all(numeric(value) for value in known) else "l"


# ── Predictions ─────────────────────────────────────────────────────────────────────────────────


class _Prediction(NamedTuple):
    guess: float | None
    unit: str


_predictions: dict[str, _Prediction] = {}


def predict(key: str, question: str, guess: float | None = None, unit: str = "") -> None:
    """Ask for a number before anything runs; the reader writes it as ``guess`` in the cell.

    Run unattended, with no guess, it prints the question and how to answer it. The same key asked
    again replaces the guess. Raises ``ValueError`` for an empty key or question and for a guess
    that is not a finite number.
    """
    if not key or not question.strip():
        raise ValueError(f"a prediction needs a key and a question, got {key!r} and {question!r}")
    if guess is not None:
        _require_number("guess", guess)
    _predictions[key] = _Prediction(guess, unit)
    print(f"Predict: {question}")
    if guess is None:
        print("No guess yet: write a number for guess in this cell and run it again.")
    else:
        print(f"Your guess: {_quantity(guess, unit)}")


def reveal_prediction(key: str, actual: float, unit: str | None = None) -> None:
    """Print what was found beside what was guessed, and how far off the guess was.

    ``unit`` defaults to the one asked in; another one is a ``ValueError``, as are a key that was
    never asked and a value that is not a finite number.
    """
    if key not in _predictions:
        asked = ", ".join(_predictions) or "none yet"
        raise ValueError(f"no prediction {key!r} was asked for; asked: {asked}")
    _require_number("actual", actual)
    guess, asked_unit = _predictions[key]
    if unit is not None and unit != asked_unit:
        raise ValueError(f"{key!r} was asked in {asked_unit!r} and is revealed in {unit!r}")
    found = f"Found: {_quantity(actual, asked_unit)}"
    print(found if guess is None else f"{found}. {_verdict(guess, actual, asked_unit)}")


def _verdict(guess: float, actual: float, unit: str) -> str:
    said = f"You said {_quantity(guess, unit)}"
    if guess == actual:
        return f"{said}: exactly right."
    if guess * actual <= 0:  # no ratio between a zero or two signs
        return f"{said}: off by {_quantity(abs(guess - actual), unit)}."
    ratio = guess / actual
    if abs(ratio - 1) <= 0.05:
        return f"{said}: within 5 percent."
    factor, side = (ratio, "high") if ratio > 1 else (1 / ratio, "low")
    return (
        f"{said}: {factor:,.3g} times too {side}."
        if factor < 1000
        else (f"{said}: {factor:,.0f} times too {side}.")
    )


def _require_number(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _quantity(value: float, unit: str) -> str:
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        text = f"{int(value):,}"
    else:
        text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


# ── Plots ───────────────────────────────────────────────────────────────────────────────────────


def show(drawing: Figure | Record, alt: str = "") -> None:
    """Display a figure as SVG inside the page, with its alt text for those who do not see it.

    For what is measured as the reader runs it; figures that do not change are files. A figure of
    the book (``figures.get(name)``) brings its own alt text, a matplotlib figure needs one of at
    least four words, or ``ValueError``. Outside a notebook the alt text is printed.
    """
    from figures import style
    from figures.record import Record

    if isinstance(drawing, Record):
        drawing, alt = drawing.draw(), alt or drawing.alt
    if len(alt.split()) < 4:
        raise ValueError(f"a figure needs an alt text that says what it shows, got {alt!r}")
    if _shell() is None:
        print(alt)
        return
    from IPython.display import display

    name = "live-" + hashlib.sha256(alt.encode("utf-8")).hexdigest()[:8]
    with style.applied():
        svg = style.to_svg(drawing, name=name, alt=alt, as_paths=False).decode("utf-8")
    display({"text/html": svg, "image/svg+xml": svg, "text/plain": alt}, raw=True)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:  # or the inline backend shows it a second time
        pyplot.close(drawing)


@contextmanager
def figure(title: str, *, x: str, y: str, alt: str, height: float = 240) -> Iterator[Axes]:
    """Axes in the book's look, shown when the block ends::

        with labkit.notebook.figure("Time grows", x="tokens", y="time (ms)", alt=...) as axes:
            axes.plot(tokens, milliseconds, color=style.NEW)

    ``title`` is the takeaway, ``x`` and ``y`` name the quantity and its unit, ``height`` is in
    points. Nothing is shown if the block raises.
    """
    from figures import style

    if not (title.strip() and x.strip() and y.strip()):
        raise ValueError(f"title and both axes need words, got {title!r}, {x!r}, {y!r}")
    with style.applied():
        drawing, axes = style.plain_chart(title, x=x, y=y, height=height)
        yield axes
        show(drawing, alt)


# ── Timing ──────────────────────────────────────────────────────────────────────────────────────


class Ratio(NamedTuple):
    """How many times as long the first takes as the second, and both medians in seconds."""

    ratio: float
    first: float
    second: float


def ratio_of_medians(
    first: Callable[[], object], second: Callable[[], object], *, repeats: int = 7
) -> Ratio:
    """Time two functions in turn in one run; the medians and their ratio ``first / second``.

    Each is run once beforehand, and every round swaps who goes first, so that a machine that slows
    down or speeds up meanwhile does it to both. Raises ``ValueError`` for fewer than three repeats.
    """
    if repeats < 3:
        raise ValueError(f"a median needs at least 3 repeats, got {repeats}")
    functions = (first, second)
    seconds: tuple[list[float], list[float]] = ([], [])
    for function in functions:
        function()
    for round_ in range(repeats):
        for which in (0, 1) if round_ % 2 == 0 else (1, 0):
            start = time.perf_counter()
            functions[which]()
            seconds[which].append(time.perf_counter() - start)
    medians = [statistics.median(times) for times in seconds]
    return Ratio(medians[0] / max(medians[1], 1e-12), *medians)
