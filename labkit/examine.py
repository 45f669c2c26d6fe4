"""Try a function on the examples of a task, and say what is wrong with it.

:func:`examine` decides; :mod:`labkit.check` is what a reader calls. A function is run in a thread
of its own so that one that never returns can be stopped; what it prints is kept aside; what it does
to its arguments is noticed. A wrong answer is compared with the known ones by what it computes, so
the same mistake gets the same name however it is written.
"""

import copy
import ctypes
import io
import linecache
import textwrap
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from labkit import tasks
from labkit.compare import Difference, describe, difference, render
from labkit.tasks import Example, Mutant, Property, Task

TASKS_FOLDER = Path(tasks.__file__).parent
OURS = (__file__, str(TASKS_FOLDER.parent / "answers.py"))
CALL_SECONDS = 10.0  # a call that takes longer is stopped: the slowest right answer needs 0.1 s


@dataclass(frozen=True)
class Outcome:
    """What one call did: ``kind`` is value, raised, unwritten, timeout or changed."""

    kind: str
    value: Any = None
    error: BaseException | None = None
    argument: int | None = None
    printed: str = ""


@dataclass(frozen=True)
class Failure:
    """The first property that does not hold and the smallest example on which it does not."""

    task: Task
    property: Property
    example: Example
    outcome: Outcome
    mutant: Mutant | None

    @property
    def diagnosis(self) -> str | None:
        """The mistake in words, where the function behaves like a known wrong answer."""
        return self.mutant.diagnosis if self.mutant else None

    def message(self) -> str:
        """Property, input, expected, got, and the diagnosis: what a reader sees."""
        if self.outcome.kind == "unwritten":
            return (
                f"{self.task.name} is not written yet: put your code where it raises "
                "NotImplementedError"
            )
        lines = [f"{self.task.name} fails: {self.property.name}"]
        lines += _block("input", self._shown_input())
        lines += _block("expected", render(self.example.expected))
        lines += _block("got", self._shown_outcome())
        if self.outcome.kind == "value" and self.outcome.value is not None:
            found = _mismatch(self.outcome, self.example, self.task)
            if found is not None and (found.kind in ("type", "shape") or found.index):
                lines += _block("differs", found.text)
        if self.outcome.printed:
            lines += _block("printed", render(self.outcome.printed[:80]))
        if self.mutant is not None:
            lines += _block("mistake", f"{self.mutant.name}: {self.mutant.diagnosis}")
        return "\n".join(lines)

    def _shown_input(self) -> str:
        if self.example.shown is not None:
            return self.example.shown
        pairs = zip(self.task.parameters, self.example.args, strict=True)
        return "\n".join(f"{name} = {render(value)}" for name, value in pairs)

    def _shown_outcome(self) -> str:
        outcome = self.outcome
        if outcome.kind == "timeout":
            return f"no result within {CALL_SECONDS:g} seconds; the call was stopped"
        if outcome.kind == "changed":
            name = self.task.parameters[outcome.argument or 0]
            return f"a changed argument: {name} is not what it was before the call; use a copy"
        if outcome.kind == "raised":
            place = _own_line(outcome.error)
            return f"{_error_text(outcome.error)}" + (f"\nat: {place}" if place else "")
        if outcome.value is None:
            return "None: the function returned nothing; end it with a return statement"
        plain = render(outcome.value)
        short = len(plain) < 200 or isinstance(outcome.value, Mapping)
        return plain if short else describe(outcome.value)


@dataclass(frozen=True)
class Verdict:
    """The result of an examination: passed when ``failure`` is None."""

    task: Task
    num_examples: int
    failure: Failure | None

    @property
    def passed(self) -> bool:
        """Whether every property held on every example."""
        return self.failure is None


def examine(task: Task, function: Callable[..., Any]) -> Verdict:
    """Run ``function`` on every example of ``task``, properties in order, smallest first.

    Raises ``ValueError`` for a task with nothing to check: silence must not pass.
    """
    probes = _probes(task)
    outcomes: list[Outcome] = []
    first_wrong: int | None = None
    for i, (_, example) in enumerate(probes):
        outcome = _call(partial(task.call, function), example.args)
        outcomes.append(outcome)
        if first_wrong is None and not _is_right(outcome, example, task):
            first_wrong = i
        if first_wrong is not None and outcome.kind in ("unwritten", "timeout"):
            break
    if first_wrong is None:
        return Verdict(task, len(probes), None)
    prop, example = probes[first_wrong]
    mutant = _diagnose(task, outcomes) if len(outcomes) == len(probes) else None
    failure = Failure(task, prop, example, outcomes[first_wrong], mutant)
    return Verdict(task, len(probes), failure)


@cache
def _probes(task: Task) -> tuple[tuple[Property, Example], ...]:
    """Every example of the task beside its property, in the order in which they are tried."""
    if not task.properties:
        raise ValueError(f"task {task.name!r} has no properties: it would pass anything")
    probes: list[tuple[Property, Example]] = []
    for prop in task.properties:
        examples = [(prop, example) for example in prop.examples()]
        if not examples:
            raise ValueError(f"task {task.name!r}: property {prop.name!r} has no examples")
        probes += examples
    return tuple(probes)


@cache
def _mutant_outcomes(task: Task) -> tuple[tuple[Mutant, tuple[Outcome, ...]], ...]:
    """What each known wrong answer, in each of its versions, does on every probe."""
    return tuple(
        (mutant, tuple(_call(partial(task.call, function), e.args) for _, e in _probes(task)))
        for mutant in task.mutants
        for function in mutant.functions
    )


def _diagnose(task: Task, outcomes: list[Outcome]) -> Mutant | None:
    """The one known wrong answer that does what this function does, or None.

    A function that is wrong on some plain probe is compared on the plain probes alone: what it
    does in the corners depends on how it is written, not on which mistake it makes. Only if that
    leaves several does the behaviour in the corners decide.
    """
    probes = _probes(task)
    plain = [i for i, (prop, _) in enumerate(probes) if not prop.edge]
    everywhere = list(range(len(probes)))
    wrong = [i for i in everywhere if not _is_right(outcomes[i], probes[i][1], task)]
    look_at = plain if set(wrong) & set(plain) else everywhere
    known = list(_mutant_outcomes(task))
    for indices in (look_at, everywhere):
        matching = [
            (mutant, theirs)
            for mutant, theirs in known
            if all(_agree(outcomes[i], theirs[i], probes[i][1], task) for i in indices)
        ]
        if len({mutant.name for mutant, _ in matching}) == 1:
            return matching[0][0]
        known = matching
    return None


def _is_right(outcome: Outcome, example: Example, task: Task) -> bool:
    return outcome.kind == "value" and _mismatch(outcome, example, task) is None


def _mismatch(outcome: Outcome, example: Example, task: Task) -> Difference | None:
    atol = task.atol if example.atol is None else example.atol
    rtol = task.rtol if example.rtol is None else example.rtol
    return difference(
        outcome.value,
        example.expected,
        atol=atol,
        rtol=rtol,
        equal_nan=task.equal_nan,
        strict_family=False,
    )


def _agree(mine: Outcome, theirs: Outcome, example: Example, task: Task) -> bool:
    if mine.kind != theirs.kind:
        return False
    if mine.kind == "raised":
        return type(mine.error) is type(theirs.error)
    atol = task.atol if example.atol is None else example.atol
    rtol = task.rtol if example.rtol is None else example.rtol
    found = difference(
        mine.value, theirs.value, atol=atol, rtol=rtol, equal_nan=True, strict_family=False
    )
    return found is None


class _Stopped(BaseException):
    """Raised inside a call that ran out of time."""


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Call ``function`` on a copy of ``args`` and report what happened, whatever it was."""
    given = copy.deepcopy(args)
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["value"] = function(*given)
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    printed = io.StringIO()
    with redirect_stdout(printed):
        thread.start()
        try:
            thread.join(CALL_SECONDS)
        finally:
            timed_out = thread.is_alive()
            if timed_out:
                _stop(thread)
    if timed_out:
        return Outcome("timeout", printed=printed.getvalue())
    error = box.get("error")
    if isinstance(error, NotImplementedError):
        return Outcome("unwritten", error=error)
    if error is not None:
        return Outcome("raised", error=error, printed=printed.getvalue())
    for i, (before, after) in enumerate(zip(args, given, strict=True)):
        if not callable(before) and difference(after, before, equal_nan=True) is not None:
            return Outcome("changed", box["value"], argument=i, printed=printed.getvalue())
    return Outcome("value", box["value"], printed=printed.getvalue())


def _stop(thread: threading.Thread) -> None:
    """Raise :class:`_Stopped` in a thread that runs Python code; C code ends when it ends."""
    for _ in range(20):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stopped)
        )
        thread.join(0.05)
        if not thread.is_alive():
            return


def _error_text(error: BaseException | None) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _own_line(error: BaseException | None) -> str:
    """The reader's line on which the error surfaced: the outermost frame below ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    if not frames:
        return ""
    line = frames[0].line or linecache.getline(frames[0].filename, frames[0].lineno or 0)
    return line.strip()


def _is_ours(filename: str) -> bool:
    return filename in OURS or TASKS_FOLDER in Path(filename).parents


def _block(label: str, text: str) -> list[str]:
    """``text`` wrapped beside a label, all lines aligned."""
    indent = 12
    wrapped: list[str] = []
    for paragraph in text.splitlines() or [""]:
        wrapped += textwrap.wrap(paragraph, 88, break_long_words=False) or [""]
    first, *rest = wrapped
    return [f"  {label:<{indent - 2}}{first}", *(" " * indent + line for line in rest)]
