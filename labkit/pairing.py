"""Pair a chapter's Markdown with its notebook, and cut answers out of solutions.

The Markdown (jupytext, MyST flavour) is what people write and review. The notebook is derived
from it: same cells, ids computed from content, one fixed metadata block. Everything here is pure:
text in, notebook or text out, no kernel, no clock, so that a test can rebuild and compare.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

IGNORE_OUTPUT = "nbval-ignore-output"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}

_BEGIN = re.compile(r"^(?P<indent>[ \t]*)### BEGIN SOLUTION[ \t]*$")
_END = re.compile(r"^[ \t]*### END SOLUTION[ \t]*$")
_OVERWRITTEN = re.compile(r"^.*\r(?=[^\n])", re.MULTILINE)


# --- Markdown to notebook ---------------------------------------------------------------------


def read_source(path: Path) -> NotebookNode:
    """Return the notebook that a MyST Markdown file describes, without outputs.

    Raises:
        ValueError: the header does not say ``format_name: myst``, or there is no code cell (a
            fence spelled wrongly makes a code cell silently become text).
    """
    text = path.read_text(encoding="utf-8")
    header = text.split("\n---", 1)[0]
    if "format_name: myst" not in header:
        raise ValueError(f"{path}: the header must contain 'format_name: myst'")
    notebook = jupytext.reads(text, fmt="md:myst")
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        raise ValueError(f"{path}: no code cell found; cells start with ```{{code-cell}} ipython3")
    notebook.metadata = nbformat.from_dict(copy.deepcopy(METADATA))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    set_cell_ids(notebook)
    return notebook


def set_cell_ids(notebook: NotebookNode) -> None:
    """Give each cell an id that depends on its content alone; repeats are numbered."""
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def dumps(notebook: NotebookNode) -> str:
    """Return the one way this notebook is written to disk: sorted keys, ends in a newline."""
    nbformat.validate(notebook)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def tags(cell: NotebookNode) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


# --- outputs ----------------------------------------------------------------------------------


def normalise(notebook: NotebookNode) -> list[str]:
    """Remove from executed cells whatever changes from run to run; return what stderr said.

    The kernel's version leaves the metadata; execution counts become 1, 2, 3…; stream chunks of
    one name are merged; text that a carriage return wrote over is dropped, as nbval does; stderr
    is removed (it holds other packages' warnings, with paths) and returned, so that the caller
    can show it.
    """
    notebook.metadata = nbformat.from_dict(copy.deepcopy(METADATA))
    noise: list[str] = []
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.metadata.pop("execution", None)
        merged: list[NotebookNode] = []
        streams: dict[str, NotebookNode] = {}
        for output in cell.outputs:
            output.pop("transient", None)
            if output.output_type == "execute_result":
                output.execution_count = count
            if output.output_type != "stream":
                merged.append(output)
            elif output.name == "stderr":
                noise.append(f"cell {count}: {output.text.strip()}")
            elif output.name in streams:
                streams[output.name].text += output.text
            else:
                streams[output.name] = output
                merged.append(output)
        for stream in streams.values():
            stream.text = _OVERWRITTEN.sub("", stream.text)
        cell.outputs = merged
    return noise


def keep_ignored_outputs(fresh: NotebookNode, committed: NotebookNode) -> None:
    """Copy into ``fresh`` the committed outputs of timing cells whose source did not change."""
    old = {cell.id: cell for cell in committed.cells if cell.cell_type == "code"}
    for cell in fresh.cells:
        if cell.cell_type == "code" and IGNORE_OUTPUT in tags(cell) and cell.id in old:
            cell.outputs = copy.deepcopy(old[cell.id].outputs)
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count


def strip(notebook: NotebookNode) -> NotebookNode:
    """Return a copy without outputs and execution counts: what the Markdown alone determines."""
    bare = copy.deepcopy(notebook)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return bare


# --- solutions and exercises ------------------------------------------------------------------


def has_answer(source: str) -> bool:
    """Tell whether a cell's source holds a solution marker."""
    return any(_BEGIN.match(line) or _END.match(line) for line in source.splitlines())


def cut_answer(source: str) -> str:
    """Replace each marked answer with ``raise NotImplementedError`` at the marker's indentation.

    Raises:
        ValueError: markers are not balanced, or what is left does not parse.
    """
    kept: list[str] = []
    inside = False
    for number, line in enumerate(source.splitlines(), start=1):
        begin = _BEGIN.match(line)
        if begin and inside:
            raise ValueError(f"line {number}: BEGIN SOLUTION inside a solution")
        if _END.match(line) and not inside:
            raise ValueError(f"line {number}: END SOLUTION without BEGIN SOLUTION")
        if begin:
            kept.append(f"{begin['indent']}raise NotImplementedError")
            inside = True
        elif _END.match(line):
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError("BEGIN SOLUTION without END SOLUTION")
    stub = "\n".join(kept)
    try:
        ast.parse(stub)
    except SyntaxError as error:
        raise ValueError(f"what is left without the answer does not parse: {error}") from error
    return stub


def called_task(source: str) -> str | None:
    """Return the name of the first ``check.<task>(…)`` call in a cell, helpers excepted."""
    helpers = {"same", "hint", "reveal", "progress"}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="check"), attr=name)):
                if name not in helpers:
                    return name
    return None


def add_grading(notebook: NotebookNode, points_of: Callable[[str], float]) -> None:
    """Write nbgrader (schema 3) metadata: marked cells take answers, ``check`` cells give points.

    A check cell's points are its own ``points`` metadata, or those of the task it calls.

    Raises:
        ValueError: a check cell grades nothing, or two cells would share a grade id.
    """
    used: set[str] = set()
    task: str | None = None
    for cell in reversed(notebook.cells):  # a check stands below the answer that it grades
        if cell.cell_type != "code":
            continue
        is_check = "check" in tags(cell)
        if is_check and has_answer(cell.source):
            raise ValueError(f"cell {cell.id}: a check cell cannot hold an answer")
        if is_check:
            task = called_task(cell.source)
            if task is None:
                raise ValueError(f"cell {cell.id}: tagged 'check' but calls no check.<task>(…)")
            grade_id = f"check-{task}"
            points = cell.metadata.pop("points", None)
            extra = {"points": points_of(task) if points is None else points}
        elif has_answer(cell.source):
            grade_id = f"answer-{task or cell.id}"
            extra = {}
        else:
            continue
        stem, number = grade_id, 1
        while grade_id in used:
            number += 1
            grade_id = f"{stem}-{number}"
        used.add(grade_id)
        cell.metadata["nbgrader"] = {
            "grade": is_check,
            "grade_id": grade_id,
            "locked": is_check,
            "schema_version": 3,
            "solution": not is_check,
            "task": False,
            **extra,
        }


def make_exercise(solution: NotebookNode) -> NotebookNode:
    """Return the notebook a reader works in: a solution notebook with its answers cut out."""
    exercise = strip(solution)
    for cell in exercise.cells:
        if cell.cell_type == "code" and has_answer(cell.source):
            try:
                cell.source = cut_answer(cell.source)
            except ValueError as error:
                raise ValueError(f"cell {cell.id}: {error}") from error
    set_cell_ids(exercise)
    return exercise
