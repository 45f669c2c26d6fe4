"""What an exercise is: a sentence, examples from an independent oracle, and known wrong answers.

A task of chapter NN lives in ``labkit.tasks.chNN`` as an entry of its ``TASKS``. Its examples come
smallest first and say what is right without asking the reference implementation: exact fractions,
float64 NumPy, enumeration. Its mutants are the mistakes people make, each running and returning
the right type and shape, so that a check has to tell them apart by what they compute.
"""

import ast
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Example:
    """One input with the right result.

    ``args`` are passed by position. ``shown`` replaces the listing of arguments in a message where
    that would be long. Tolerances override the task's where they are given.
    """

    args: tuple[Any, ...]
    expected: Any
    shown: str | None = None
    atol: float | None = None
    rtol: float | None = None


@dataclass(frozen=True)
class Property:
    """One thing that must hold, as a sentence, with examples smallest first.

    An ``edge`` property is about a corner (nothing to do, a degenerate parameter, an overflow).
    Corners say nothing about which mistake a wrong answer makes elsewhere, so a diagnosis looks at
    them only when everything else is right.
    """

    name: str
    examples: Callable[[], Iterable[Example]]
    edge: bool = False


@dataclass(frozen=True)
class Mutant:
    """A wrong answer with a name, and what to tell whoever wrote it.

    ``also`` holds versions of the same mistake that differ in what they compute.
    """

    name: str
    diagnosis: str
    function: Callable[..., Any]
    also: tuple[Callable[..., Any], ...] = ()

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Every version of the mistake, the plainest first."""
        return (self.function, *self.also)


@dataclass(frozen=True)
class Task:
    """An exercise: what is asked, how it is checked, what helps, and what goes wrong.

    ``answers`` are right answers written in different ways; the first is shown by
    ``check.reveal``. ``level`` is 1 (warm-up), 2 or 3 (hard).

    Where a function is asked to change its arguments, or more counts than what it returns,
    ``drive(function, *args)`` calls it on copies and returns what is compared. ``equal_nan`` is for
    results in which NaN means something, such as a slot not written.

    A task with numbers is one whose answer is text with a unit. ``draw(seed)`` gives arguments,
    ``ask(*arguments)`` puts them as a question, ``unit`` is what ``drive`` reads the answer in;
    :mod:`labkit.answers` asks and checks it.
    """

    name: str
    chapter: int
    title: str
    minutes: int
    points: int
    level: int
    spec: str
    signature: str
    properties: tuple[Property, ...]
    hints: tuple[str, str, str]
    mutants: tuple[Mutant, ...]
    answers: tuple[Callable[..., Any], ...]
    atol: float = 1e-5
    rtol: float = 1e-4
    equal_nan: bool = False
    drive: Callable[..., Any] | None = None
    draw: Callable[[int], tuple[Any, ...]] | None = None
    ask: Callable[..., str] | None = None
    unit: str = ""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What is compared when ``function`` is given ``args``."""
        return function(*args) if self.drive is None else self.drive(function, *args)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, in order, as the signature has them."""
        definition = ast.parse(f"def {self.signature}: ...").body[0]
        assert isinstance(definition, ast.FunctionDef)
        return tuple(argument.arg for argument in definition.args.args)

    def stub(self) -> str:
        """The function as a reader meets it: signature, one sentence, nothing written."""
        return f'def {self.signature}:\n    """{self.spec}"""\n    raise NotImplementedError\n'

    def solution(self) -> str:
        """Source of the first right answer, under the task's name."""
        function = self.answers[0]
        source = textwrap.dedent(inspect.getsource(function))
        return re.sub(rf"\b{function.__name__}\b", self.name, source, count=1)


@cache
def all_tasks() -> dict[str, Task]:
    """Every task of the book by name, in the order of the chapters.

    Raises ``ValueError`` where two tasks share a name, since ``check.<name>`` could not tell them
    apart.
    """
    found: dict[str, Task] = {}
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("ch"))
    for module in modules:
        for task in import_module(f"{__name__}.{module}").TASKS:
            if task.name in found:
                raise ValueError(f"two tasks are named {task.name!r}; names must be unique")
            found[task.name] = task
    return found
