"""Prove that the exercises' checks can fail: every known wrong answer, and what was said of it.

``python -m labkit.mutants`` prints a table; ``--json`` a list with one entry per wrong answer:
task, mutant, rejected, diagnosis. The exit status is 1 if one of them is accepted or gets another's
diagnosis, if a right answer is rejected, or if an untouched stub passes.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.examine import examine
from labkit.tasks import Task, all_tasks


@dataclass(frozen=True)
class Row:
    """What the check made of one wrong answer.

    ``named`` is the mistake it was taken for and ``diagnosis`` what the reader is told; both are
    None where the check rejected it without recognising it.
    """

    task: str
    chapter: int
    mutant: str
    rejected: bool
    property: str | None
    named: str | None
    diagnosis: str | None

    @property
    def fine(self) -> bool:
        """Rejected, and under its own name."""
        return self.rejected and self.named == self.mutant


def rows(tasks: Iterable[Task]) -> list[Row]:
    """One row for each wrong answer of ``tasks``, in each of its versions."""
    result = []
    for task in tasks:
        versions = [(mutant, f) for mutant in task.mutants for f in mutant.functions]
        for mutant, function in versions:
            failure = examine(task, function).failure
            result.append(
                Row(
                    task=task.name,
                    chapter=task.chapter,
                    mutant=mutant.name,
                    rejected=failure is not None,
                    property=failure.property.name if failure else None,
                    named=failure.mutant.name if failure and failure.mutant else None,
                    diagnosis=failure.diagnosis if failure else None,
                )
            )
    return result


def faults_of_answers(tasks: Iterable[Task]) -> list[str]:
    """A line for each right answer that is rejected and each stub that is not."""
    lines = []
    for task in tasks:
        for answer in task.answers:
            failure = examine(task, answer).failure
            if failure is not None:
                lines.append(f"{task.name}: right answer {answer.__name__} rejected")
        scope: dict[str, Any] = {}
        # Annotations of a stub name things that only a notebook has imported.
        exec("from __future__ import annotations\n" + task.stub(), scope)
        failure = examine(task, scope[task.name]).failure
        if failure is None or failure.outcome.kind != "unwritten":
            lines.append(f"{task.name}: the untouched stub is not recognised as such")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m labkit.mutants",
        description="Grade every known wrong answer and show what each was told.",
    )
    parser.add_argument("--json", action="store_true", help="a list of objects, for scripts")
    parser.add_argument("--chapter", type=int, help="only the exercises of this chapter")
    options = parser.parse_args(arguments)
    tasks = [t for t in all_tasks().values() if options.chapter in (None, t.chapter)]
    if not tasks:
        known = sorted({t.chapter for t in all_tasks().values()})
        parser.error(f"no exercises for chapter {options.chapter}; there are some for {known}")

    result = rows(tasks)
    if options.json:
        print(json.dumps([asdict(row) for row in result], indent=2, ensure_ascii=False))
    else:
        _print_table(result)
    faults = [
        f"{row.task}: {row.mutant!r} "
        + (f"taken for {row.named!r}" if row.rejected else "accepted as right")
        for row in result
        if not row.fine
    ]
    faults += faults_of_answers(tasks)
    for line in faults:
        print(line, file=sys.stderr)
    if not options.json and not faults:
        answers = sum(len(t.answers) for t in tasks)
        print(
            f"\n{len(tasks)} tasks: {len(result)} wrong answers rejected and named, "
            f"{answers} right answers accepted, {len(tasks)} stubs rejected"
        )
    return 1 if faults else 0


def _print_table(result: Sequence[Row]) -> None:
    lines = [("task", "mutant", "rejected", "named")]
    lines += [
        (row.task, row.mutant, "yes" if row.rejected else "NO", row.named or "—") for row in result
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for line in lines:
        print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
