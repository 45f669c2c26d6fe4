"""Checks for a reader: ``check.same`` in chapters, ``check.<task>(fn)`` in exercises.

::

    from labkit import check

    check.same(attend(q, k, v), ref.attend(q, k, v), name="attend")
    check.causal_mask(causal_mask)  # grades the exercise of that name
    check.hint("causal_mask")  # three hints, one a call
    check.reveal("causal_mask")  # then the solution
    check.progress()  # where you stand in this session

A check either prints one line or raises :class:`CheckFailed`. Attempts and hints are remembered
until the kernel restarts, and nowhere else.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.compare import as_array, difference, size
from labkit.examine import examine
from labkit.notebook import table
from labkit.tasks import Task, all_tasks

__all__ = ["CheckFailed", "hint", "progress", "reveal", "same"]


class CheckFailed(AssertionError):
    """A check that did not hold.

    ``task`` and ``property`` name what was checked, ``example`` is the smallest input on which it
    failed (of ``check.same``: the first differing index), ``diagnosis`` is the mistake in words
    where it is a known one and ``mutant`` its name.
    """

    def __init__(
        self,
        message: str,
        *,
        task: str | None = None,
        property: str | None = None,
        example: Any = None,
        diagnosis: str | None = None,
        mutant: str | None = None,
    ) -> None:
        super().__init__(message)
        self.task = task
        self.property = property
        self.example = example
        self.diagnosis = diagnosis
        self.mutant = mutant

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message; the frames of this library would bury it."""
        return [f"CheckFailed: {self}"]


@dataclass
class _Record:
    """What happened to one task in this session."""

    attempts: int = 0
    hints: int = 0
    passed: bool = False
    revealed: bool = False  # before it was passed

    def state(self) -> str:
        if self.passed:
            return "passed, revealed" if self.revealed else "passed"
        return "revealed" if self.revealed else "open" if self.attempts else "not tried"


_session: dict[str, _Record] = {}


def same(
    mine: Any,
    reference: Any,
    *,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    name: str = "",
    equal_nan: bool = False,
) -> None:
    """Check that ``mine`` equals ``reference`` and print one line that says so.

    Tensors, arrays, numbers, lists, tuples and dicts of them, and text. Floats agree within
    ``atol + rtol * |reference|``; integers, booleans and text exactly; shapes exactly; floats are
    not integers and booleans are neither, but float32 and bfloat16 are both floats. NaN equals
    nothing, since a result that is NaN on both sides proves nothing, unless ``equal_nan``.

    Raises :class:`CheckFailed` with the first difference, and where there is nothing to compare.
    """
    label = name or "values"
    found = difference(mine, reference, atol=atol, rtol=rtol, equal_nan=equal_nan)
    if found is not None:
        raise CheckFailed(
            f"{label}: {found.text}", task=name or None, property=found.kind, example=found.index
        )
    if size(reference) == 0:
        raise CheckFailed(f"{label}: both are empty, nothing was compared", property="empty")
    array = as_array(reference)
    shape = "" if array is None or array.ndim == 0 else f" {array.shape}"
    print(f"same: {label}{shape} {_tolerance(reference, atol, rtol)}")


def hint(task: str) -> None:
    """Print the next of the task's three hints."""
    found, record = _find(task), _record(task)
    if record.hints == len(found.hints):
        print(f"no more hints; check.reveal({task!r}) shows a solution")
        return
    print(f"hint {record.hints + 1} of {len(found.hints)}: {found.hints[record.hints]}")
    record.hints += 1


def reveal(task: str, *, force: bool = False) -> None:
    """Print a solution, once all hints are used or with ``force``.

    A task whose solution was shown before it was passed counts no points.
    """
    found, record = _find(task), _record(task)
    left = len(found.hints) - record.hints
    if left and not record.passed and not force:
        print(f"{left} hints left: check.hint({task!r}); or check.reveal({task!r}, force=True)")
        return
    record.revealed = record.revealed or not record.passed
    print(found.solution())


def progress(chapter: int | None = None) -> None:
    """Print a table of tasks: state, points, attempts, hints used.

    It lists one chapter, or every chapter of which something was tried (all, if nothing was).
    """
    tasks = list(all_tasks().values())
    if chapter is not None and chapter not in {t.chapter for t in tasks}:
        known = ", ".join(str(c) for c in sorted({t.chapter for t in tasks}))
        raise ValueError(f"no exercises for chapter {chapter!r}; there are some for {known}")
    tried = {t.chapter for t in tasks if t.name in _session}
    wanted = {chapter} if chapter is not None else tried
    rows = []
    earned = possible = 0
    for task in tasks:
        if wanted and task.chapter not in wanted:
            continue
        record = _session.get(task.name, _Record())
        points = task.points if record.passed and not record.revealed else 0
        earned, possible = earned + points, possible + task.points
        rows.append(
            (
                task.name,
                record.state(),
                f"{points}/{task.points}",
                str(record.attempts),
                f"{record.hints}/{len(task.hints)}",
            )
        )
    rows.append(("total", "", f"{earned}/{possible}", "", ""))
    table(rows, headers=["task", "state", "points", "attempts", "hints"], align="llrrr")


def grade(task: Task, function: Callable[..., Any]) -> None:
    """Examine ``function`` as an answer to ``task``; print one line or raise CheckFailed."""
    if not callable(function):
        raise CheckFailed(
            f"{task.name}: pass the function itself, check.{task.name}({task.name}), "
            f"not {type(function).__name__} {function!r}",
            task=task.name,
        )
    verdict = examine(task, function)
    record = _record(task.name)
    failure = verdict.failure
    if failure is not None:
        # Running the cell before writing anything is not an attempt.
        record.attempts += failure.outcome.kind != "unwritten"
        raise CheckFailed(
            failure.message(),
            task=task.name,
            property=failure.property.name,
            example=failure.example,
            diagnosis=failure.diagnosis,
            mutant=failure.mutant.name if failure.mutant else None,
        )
    record.attempts += 1
    record.passed = True
    properties = _count(len(task.properties), "property", "properties")
    examples = _count(verdict.num_examples, "example", "examples")
    points = _count(task.points, "point", "points")
    print(f"passed: {task.name} — {properties}, {examples} ({points})")


def __getattr__(name: str) -> Callable[[Callable[..., Any]], None]:
    """``check.<task>``: a function that grades an answer to the task of that name (PEP 562)."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in all_tasks():
        raise AttributeError(_no_such(name))
    task = all_tasks()[name]

    def check_task(function: Callable[..., Any]) -> None:
        grade(task, function)

    check_task.__name__ = name
    check_task.__doc__ = f"{task.spec} ({task.points} points)"
    return check_task


def __dir__() -> list[str]:
    """The module's own names and every task, for completion."""
    return sorted({*__all__, *all_tasks()})


def _find(name: str) -> Task:
    if name not in all_tasks():
        raise ValueError(_no_such(name))
    return all_tasks()[name]


def _record(name: str) -> _Record:
    return _session.setdefault(name, _Record())


def _no_such(name: Any) -> str:
    near = difflib.get_close_matches(str(name), all_tasks(), n=3, cutoff=0.5)
    others = f"did you mean {', '.join(near)}?" if near else f"tasks: {', '.join(all_tasks())}"
    return f"no exercise is named {name!r}; {others}"


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _tolerance(reference: Any, atol: float, rtol: float) -> str:
    if not _has_floats(reference) or atol == rtol == 0:
        return "exactly"
    if atol == rtol:
        return f"within {atol:g}"
    return f"within {atol:g} + {rtol:g}·|reference|"


def _has_floats(value: Any) -> bool:
    array = as_array(value)
    if array is not None:
        return array.dtype.kind == "f"
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (list, tuple)) and any(_has_floats(x) for x in value)
