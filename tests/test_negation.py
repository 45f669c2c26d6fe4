"""Each assert behind an answer is reached, is true, and would turn its notebook red if false.

For every cell tagged ``answers:…`` or ``trap:…``, and every assert in it, a copy in which that one
assert is negated runs in the chapter's kernel, at the point the chapter had got to. The negated
assert itself must raise. A cell whose assert is skipped, swallowed, or true only by accident of an
exception elsewhere, is found here.

A cell runs statement by statement, so that what stands above an assert is computed once. An assert
inside a function raises only when the function is called: there the rest of the cell is run.
"""

from __future__ import annotations

import ast
import builtins
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from notebook_tools import Report, make_notebook

from labkit import pairing
from labkit.build import CELL_TIMEOUT_S, KERNEL_START_TIMEOUT_S
from labkit.kernels import ROOT, ThisInterpreter, kernel_environment

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))
Result = tuple[str, str] | None
Execute = Callable[[str], Result]


def is_answer(cell: nbformat.NotebookNode) -> bool:
    """Tell whether a cell answers a question or runs a wrong answer."""
    return cell.cell_type == "code" and any(
        tag.startswith(("answers:", "trap:")) for tag in pairing.tags(cell)
    )


def asserts(source: str) -> list[ast.Assert]:
    """Return the asserts of a cell in the order they are written, nested ones included."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def is_constant(node: ast.Assert) -> bool:
    """Tell whether an assert depends on nothing that the cell or the chapter computed."""
    names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    return not {name for name in names if not hasattr(builtins, name)}


def negated(nodes: list[ast.stmt], target: ast.Assert) -> tuple[str, str]:
    """Return statements with one of their asserts negated, and the message only it raises."""
    message = f"negated assert in line {target.lineno}"
    test, why = target.test, target.msg
    target.test, target.msg = ast.UnaryOp(ast.Not(), test), ast.Constant(message)
    try:
        return ast.unparse(ast.Module(nodes, [])), message
    finally:
        target.test, target.msg = test, why


def is_deferred(statement: ast.stmt, target: ast.Assert) -> bool:
    """Tell whether an assert stands in a function or class within a statement."""
    return any(
        target in ast.walk(node)
        for node in ast.walk(statement)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )


def faults(cells: list[nbformat.NotebookNode], execute: Execute) -> list[str]:
    """Run a chapter, negating as it goes; return one line per assert that proves nothing."""
    found = []
    for number, cell in enumerate(cells, start=1):
        label = f"cell {number} ({', '.join(pairing.tags(cell))})"
        body = ast.parse(cell.source).body if is_answer(cell) else []
        if is_answer(cell) and not asserts(cell.source):
            found.append(f"{label}: no assert")
        pieces = [cell.source] if not body else []
        for i, statement in enumerate(body):
            for node in [n for n in ast.walk(statement) if isinstance(n, ast.Assert)]:
                if is_constant(node):
                    found.append(f"{label}, line {node.lineno}: asserts a constant")
                    continue
                failed = run_all(pieces, execute)
                pieces = []
                if failed:
                    return [*found, f"cell {number} fails: {failed}"]
                rest = body[i:] if is_deferred(statement, node) else [statement]
                changed, message = negated(rest, node)
                result = execute(changed)
                if result != ("AssertionError", message):
                    said = ": ".join(result) if result else "nothing raised"
                    found.append(f"{label}, line {node.lineno}: negated, yet {said}")
            pieces.append(ast.unparse(statement))
        failed = run_all(pieces, execute)
        if failed:
            return [*found, f"cell {number} fails: {failed}"]
    return found


def run_all(pieces: list[str], execute: Execute) -> str:
    """Run statements as one; return what went wrong, or an empty string."""
    result = execute("\n".join(pieces)) if pieces else None
    return ": ".join(result) if result else ""


@contextmanager
def kernel(folder: Path) -> Iterator[Execute]:
    """Start a kernel in a folder and yield a function that runs a cell in it."""
    manager = KernelManager(kernel_name="python3", kernel_spec_manager=ThisInterpreter())
    manager.start_kernel(
        cwd=str(folder), env=kernel_environment(), extra_arguments=["--log-level=40"]
    )
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=KERNEL_START_TIMEOUT_S)

        def execute(source: str) -> Result:
            try:
                reply = client.execute_interactive(
                    source,
                    timeout=CELL_TIMEOUT_S,
                    allow_stdin=False,
                    stop_on_error=False,
                    output_hook=lambda message: None,
                )
            except (TimeoutError, queue.Empty):
                return ("TimeoutError", f"no end after {CELL_TIMEOUT_S} s")
            content = reply["content"]
            return None if content["status"] == "ok" else (content["ename"], content["evalue"])

        yield execute
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    """Return the code cells of a notebook file."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_every_answer_would_turn_red(path: Path) -> None:
    cells = code_cells(path)
    assert any(is_answer(cell) for cell in cells), "no cell is tagged as an answer"
    with kernel(path.parent) as execute:
        assert faults(cells, execute) == []


def test_a_negated_answer_turns_nbval_red(inside: Path, nbval: Callable[..., Report]) -> None:
    notebook = nbformat.read(CHAPTERS[0], as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    number = next(i for i, cell in enumerate(cells) if is_answer(cell))
    tree = ast.parse(cells[number].source)
    first = next(node for node in ast.walk(tree) if isinstance(node, ast.Assert))
    cells[number].source, message = negated(tree.body, first)
    path = inside / "negated.ipynb"
    path.write_text(pairing.dumps(notebook), encoding="utf-8")
    report = nbval(path, "-x")
    assert report.red_cells == [f"Cell {number}"], report.text[-3000:]
    assert message in report.text


def in_process() -> Execute:
    """Return an executor without a kernel, for the small chapters below."""
    namespace: dict[str, object] = {}

    def execute(source: str) -> Result:
        try:
            exec(compile(source, "cell", "exec"), namespace)
        except Exception as error:
            return (type(error).__name__, str(error))
        return None

    return execute


ANSWER = ["answers:one"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("x = 2\nassert x == 2", ""),
        ("for i in range(2):\n    x = i\n    assert x == i", ""),
        ("def f(y):\n    assert y == n\nf(n)", ""),
        ("x = n", "no assert"),
        ("assert True", "constant"),
        ("assert len('ab') == 2", "constant"),
        ("if n > 5:\n    assert n == 6", "nothing raised"),
        ("def f(y):\n    assert y == n", "nothing raised"),
        ("assert n == 2", "nothing raised"),
        ("try:\n    assert n == 1\nexcept AssertionError:\n    pass", "nothing raised"),
        ("assert n == 1\nassert n / 0 == 1", "ZeroDivisionError"),
        ("n += 1\nassert n == 2", ""),
        (
            "import contextlib\nwith contextlib.suppress(AssertionError):\n    assert n == 1",
            "nothing",
        ),
        (
            "def f(y):\n    assert y == n\ntry:\n    f(n)\nexcept AssertionError:\n    pass",
            "nothing",
        ),
        ("assert n == 1\nraise OSError('disk')", "fails"),
    ],
)
def test_an_assert_that_proves_nothing_is_seen(source: str, fault: str) -> None:
    cells = make_notebook(["n = 1", (source, ANSWER)]).cells
    found = faults(cells, in_process())
    assert any(fault in line for line in found) if fault else found == []


def test_each_assert_is_negated_alone() -> None:
    tree = ast.parse("assert a == 1\nif b:\n    assert c, 'why'")
    last = tree.body[1].body[0]
    changed, message = negated(tree.body, last)
    assert changed == f"assert a == 1\nif b:\n    assert not c, {message!r}"
    assert ast.unparse(tree) == "assert a == 1\nif b:\n    assert c, 'why'"


def test_what_stands_above_an_assert_runs_once() -> None:
    source = "runs.append(1)\nassert runs\nfor i in range(2):\n    assert runs == [1]"
    cells = make_notebook(["runs = []", (source, ANSWER), ("assert runs == [1]", ANSWER)]).cells
    assert faults(cells, in_process()) == []
