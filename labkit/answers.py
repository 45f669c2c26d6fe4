"""Answers with units: read what a person writes, and say which slip separates it from the truth.

'327,680 B', '320 KiB' and '0.32768 MB' are one size. A number without a unit is no answer. Where
an answer misses by a factor that a known slip explains (2^30 for 10^9, query heads for key-value
heads), the message names the slip::

    answers.quantity("42.9 GiB", 40 * 2**30)  # CheckFailed: … GB (10^9) and GiB (2^30) …
    answers.ask("token_bytes", seed=3)  # prints a question with numbers of its own
    answers.reply("token_bytes", "320 KiB", seed=3)  # right, or the mistake by its name

:func:`read` is what the exercises' checks use on what a function returns.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from labkit.check import CheckFailed
from labkit.tasks import Task, all_tasks

TOLERANCE = 0.005  # three significant digits; GB and GiB are 7 percent apart, kB and KiB 2.4

_SIZES = {
    **{unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))},
    **{unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB"))},
    "KB": 1000,
    "byte": 1,
    "bytes": 1,
}
_TIMES = {
    **{"ns": Fraction(1, 10**9), "µs": Fraction(1, 10**6), "μs": Fraction(1, 10**6)},
    **{"us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": 1, "second": 1, "seconds": 1},
    **{"min": 60, "h": 3600},
}
_WORK = {
    f"{prefix}FLOP{plural}": 1000**power
    for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))
    for plural in ("", "s")
}
# A unit's name → what it measures and how many of the base unit it is.
UNITS: dict[str, tuple[str, Fraction]] = {
    **{name: ("B", Fraction(n)) for name, n in _SIZES.items()},
    **{f"{name}/s": ("B/s", Fraction(n)) for name, n in _SIZES.items()},
    **{name: ("s", Fraction(n)) for name, n in _TIMES.items()},
    **{name: ("FLOP", Fraction(n)) for name, n in _WORK.items()},
    **{f"{name}/s": ("FLOP/s", Fraction(n)) for name, n in _WORK.items()},
    **{name: ("FLOP/B", Fraction(1)) for name in ("FLOP/B", "FLOPs/B", "FLOP/byte", "FLOPs/byte")},
    **{name: ("tokens", Fraction(1)) for name in ("token", "tokens")},
    **{name: ("tokens/s", Fraction(1)) for name in ("tokens/s", "token/s", "tok/s")},
    **{name: ("users", Fraction(1)) for name in ("user", "users", "request", "requests")},
    **{name: ("GPUs", Fraction(1)) for name in ("GPU", "GPUs")},
    **{name: ("times", Fraction(1)) for name in ("times", "x", "×")},
    "%": ("times", Fraction(1, 100)),
}
_MULTIPLES = {"": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_NUMBER = re.compile(r"\s*((?:\d{1,3}(?:[,_  ]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d{1,3})?)\s*(.*?)\s*")

_SIZE_SLIPS: dict[Fraction, str] = {
    **{
        Fraction(1024, 1000) ** (sign * power): (
            f"{si} (10^{3 * power}) and {iec} (2^{10 * power}) are taken for one another: they "
            f"differ by {100 * (1.024**power - 1):.1f} percent"
        )
        for power, si, iec in ((1, "kB", "KiB"), (2, "MB", "MiB"), (3, "GB", "GiB"))
        for sign in (1, -1)
    },
    Fraction(8): "counted in bits: a byte has 8",
    Fraction(1, 8): "divided by 8, as if bits had been asked for",
    Fraction(1, 2): "a factor of 2 is missing: keys and values, or two bytes an element",
    Fraction(2): "a factor of 2 too many: keys and values, or bytes an element, counted twice",
}


@dataclass(frozen=True)
class Quantity:
    """A value in base units: ``Quantity(Fraction(327680), "B")``."""

    value: Fraction
    unit: str


def parse(text: str) -> Quantity:
    """The quantity that ``text`` states: ``"320 KiB"``, ``"3.35 TB/s"``, ``"1.3 million tokens"``.

    Raises ``ValueError`` where there is no number, no unit or an unknown one; bits and bare
    letters (``320 k``) are refused, since people mean different things by them.
    """
    if not isinstance(text, str):
        raise ValueError(f"write the answer as text with its unit, such as '320 KiB'; got {text!r}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"an answer is a number and a unit, such as '320 KiB'; got {text!r}")
    word, _, rest = match[2].partition(" ")
    multiple, name = (word, rest.strip()) if rest and word in _MULTIPLES else ("", match[2])
    if not name:
        raise ValueError(f"{text!r} has no unit: how many of what? B, KiB, GB, GiB, ms, tokens, …")
    if name in ("b", "kb", "Kb", "Mb", "Gb", "Tb", "bit", "bits"):
        raise ValueError(f"{text!r}: a small b is a bit; write B for bytes")
    if name not in UNITS:
        near = difflib.get_close_matches(name, UNITS, n=3, cutoff=0.5)
        others = (
            f"did you mean {', '.join(near)}?" if near else "there are B, KiB, GB, ms, tokens, …"
        )
        raise ValueError(f"{text!r}: no unit is called {name!r}; {others}")
    unit, factor = UNITS[name]
    number = Fraction(re.sub(r"[,_  ]", "", match[1]))
    return Quantity(number * _MULTIPLES[multiple] * factor, unit)


def read(text: str, unit: str = "B") -> float:
    """The number of ``unit`` that ``text`` states; ``ValueError`` if it measures something else."""
    found = parse(text)
    if found.unit != UNITS[unit][0]:
        raise ValueError(f"{text!r} is given in {found.unit}, the answer is a number of {unit}")
    return float(found.value / UNITS[unit][1])


def reading(unit: str) -> Callable[..., float]:
    """A task's ``drive``: call the function and read the answer that it returns in ``unit``."""

    def drive(function: Callable[..., str], *args: Any) -> Any:
        answer = function(*args)
        return None if answer is None else read(answer, unit)

    return drive


def quantity(
    given: str,
    expected: float | Fraction,
    unit: str = "B",
    *,
    known: Mapping[Any, str] | None = None,
    tolerance: float = TOLERANCE,
    task: str | None = None,
) -> None:
    """Check that ``given`` states ``expected`` (a number of ``unit``); print one line if it does.

    ``known`` maps a factor, given / expected, to the slip that makes it. Those of sizes in general
    (GB for GiB, bits, a factor of 2) are added where ``unit`` is a size; ``known`` comes first.
    Raises :class:`CheckFailed` with the slip as its diagnosis where one fits, and for an answer
    without a unit.
    """
    try:
        mine = read(given, unit)
    except ValueError as error:
        raise CheckFailed(str(error), task=task, property="unit") from error
    if _close(mine, float(expected), tolerance):
        exactly = _shown(float(expected), unit)
        print(f"right: {given}" + ("" if exactly == given.strip() else f" is {exactly}"))
        return
    slips = [*(known or {}).items(), *(_SIZE_SLIPS.items() if UNITS[unit][0] == "B" else ())]
    slip = next((s for f, s in slips if _close(mine, float(expected) * float(f), tolerance)), None)
    ratio = mine / float(expected) if expected else float("inf")
    message = f"{given} is {ratio:.4g} times the right answer"
    raise CheckFailed(
        f"{message}: {slip}" if slip else message,
        task=task,
        property="value",
        example=given,
        diagnosis=slip,
    )


def ask(task: str, seed: int) -> None:
    """Print the question that ``seed`` draws for a task with numbers."""
    found, args = _drawn(task, seed)
    assert found.ask is not None
    print(found.ask(*args))


def reply(task: str, given: str, seed: int) -> None:
    """Check an answer to the question of that seed, against the task's known mistakes as well."""
    found, args = _drawn(task, seed)
    expected = found.call(found.answers[0], *args)
    known: dict[float, str] = {}
    for mutant in found.mutants:
        for function in mutant.functions:
            known.setdefault(found.call(function, *args) / expected, mutant.diagnosis)
    # What a mistake does not change on these numbers is no mistake here.
    known = {f: slip for f, slip in known.items() if not _close(f, 1.0, TOLERANCE)}
    quantity(given, expected, found.unit, known=known, task=task)


def _drawn(name: str, seed: int) -> tuple[Task, tuple[Any, ...]]:
    """A task with numbers and the arguments that a seed draws for it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"a seed is a whole number from 0, got {seed!r}")
    task = all_tasks().get(name)
    if task is None or task.draw is None or task.ask is None:
        able = ", ".join(t.name for t in all_tasks().values() if t.draw is not None)
        raise ValueError(f"no question with numbers is called {name!r}; there are: {able}")
    return task, task.draw(seed)


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * abs(b)


def _shown(value: float, unit: str) -> str:
    whole = value == int(value) and abs(value) < 1e15
    return f"{int(value):,} {unit}" if whole else f"{value:,.4g} {unit}"
