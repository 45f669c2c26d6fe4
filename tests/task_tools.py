"""What the tests of the exercises share: a task's examples, and what they expect by input."""

from typing import Any

from labkit.tasks import Example, Task, all_tasks


def examples(task: Task) -> list[Example]:
    """Return the examples of all properties, in order."""
    return [example for prop in task.properties for example in prop.examples()]


def expected_of(name: str) -> dict[tuple[Any, ...], Any]:
    """Return what the task of that name expects for each input; the inputs must be hashable."""
    return {example.args: example.expected for example in examples(all_tasks()[name])}
