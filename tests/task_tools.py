"""What the tests of the exercises share: a task's examples, and what they expect by input."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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


def mutants(name: str) -> dict[str, tuple[Callable[..., Any], ...]]:
    """The wrong answers of the task of that name, in all versions, by the name of the mistake."""
    return {mutant.name: mutant.functions for mutant in all_tasks()[name].mutants}


def questions(task: Task, seeds: Sequence[int], capsys: Any) -> Iterator[tuple[Any, str]]:
    """What each seed draws and the question it puts; seeds differ, and one seed is one question."""
    drawn = [task.draw(seed) for seed in seeds]
    assert drawn == [task.draw(seed) for seed in seeds]
    assert len(set(drawn)) > len(seeds) / 3
    for seed, args in zip(seeds, drawn, strict=True):
        answers.ask(task.name, seed)
        question = capsys.readouterr().out
        assert question.rstrip().endswith("?")
        yield args, question


def right_replies_pass(
    task: Task, seed: int, written: Callable[[float], Iterable[str]], capsys: Any
) -> float:
    """All right answers give one number, and every way to write it passes; returns it."""
    right, *others = [task.call(answer, *task.draw(seed)) for answer in task.answers]
    assert right > 0 and others == [pytest.approx(right, rel=1e-4)] * len(others)
    replies = [answer(*task.draw(seed)) for answer in task.answers] + list(written(right))
    for reply in replies:
        answers.reply(task.name, reply, seed)
    assert capsys.readouterr().out.count("right: ") == len(replies) >= 2
    return right


def in_units(*units: str) -> Callable[[float], list[str]]:
    """A size in bytes, written in each unit."""
    return lambda size: [f"{size / answers.UNITS[unit][1]:.9f} {unit}" for unit in units]


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
