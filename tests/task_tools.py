"""What the tests of the exercises share: a task's examples, and what they expect by input."""

from typing import Any

import pytest

from labkit import answers
from labkit.check import CheckFailed
from labkit.tasks import Example, Task, all_tasks


def examples(task: Task) -> list[Example]:
    """Return the examples of all properties, in order."""
    return [example for prop in task.properties for example in prop.examples()]


def expected_of(name: str) -> dict[tuple[Any, ...], Any]:
    """Return what the task of that name expects for each input; the inputs must be hashable."""
    return {example.args: example.expected for example in examples(all_tasks()[name])}


def ranges_from_a_warm_up_to_a_hard_one(tasks: dict[str, Task], asked: int) -> None:
    """Assert what holds of a chapter's tasks: how many, the first, a hard one, numeric ones."""
    assert len(tasks) >= 6
    first = next(iter(tasks.values()))
    assert (first.minutes, first.level) == (2, 1)
    assert any(task.level == 3 for task in tasks.values())
    assert sum(task.draw is not None for task in tasks.values()) >= asked


def wrong_replies_are_named(task: Task, seed: int, right: float) -> None:
    """Reply to a question with every mistake: refused, under a name that gives that number."""
    mine = {m.diagnosis: task.call(m.function, *task.draw(seed)) for m in task.mutants}
    for mutant in task.mutants:
        found = mine[mutant.diagnosis]
        if abs(found - right) <= answers.TOLERANCE * right:
            continue  # the mistake changes nothing on these numbers
        with pytest.raises(CheckFailed) as failed:
            answers.reply(task.name, mutant.function(*task.draw(seed)), seed)
        named = failed.value.diagnosis  # of two mistakes that give one number, either
        assert abs(found - mine[named]) <= answers.TOLERANCE * mine[named]
