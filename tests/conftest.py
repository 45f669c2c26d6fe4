"""Fixtures for tests about notebooks and about the project itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from labkit import pairing
from labkit.kernels import ROOT, kernel_environment

Cell = str | tuple[str, Sequence[str]]


def clean_environment() -> dict[str, str]:
    """Return the notebooks' environment without what an outer pytest put there."""
    return {k: v for k, v in kernel_environment().items() if not k.startswith("PYTEST_")}


@dataclass(frozen=True)
class Report:
    """What a pytest run in a process of its own said."""

    code: int
    text: str

    @property
    def counts(self) -> dict[str, int]:
        """Counts from the closing line: ``{"passed": 3, "failed": 1}``."""
        found = re.findall(r"(\d+) (passed|failed|errors?|warnings?|xfailed)", self.text)
        return {word.rstrip("s") if word.startswith("w") else word: int(n) for n, word in found}

    @property
    def red_cells(self) -> list[str]:
        """The cells that failed, in order."""
        return re.findall(r"^(?:FAILED|ERROR) .*::(Cell \d+)", self.text, re.MULTILINE)


def run_pytest(*arguments: str | Path, env: dict[str, str] | None = None) -> Report:
    """Run pytest on its own, with this project's configuration."""
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**clean_environment(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Report(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def nbval() -> Callable[..., Report]:
    """Run pytest (nbval is on by configuration) on notebooks."""
    return run_pytest


@pytest.fixture
def inside() -> Iterator[Path]:
    """A temporary folder inside the project, so that the project's conftest applies there."""
    base = ROOT / "_build" / "tests"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def make_notebook(
    cells: Sequence[Cell], outputs: Sequence[str | None] = ()
) -> nbformat.NotebookNode:
    """Return a notebook of code cells; ``outputs`` are committed stdout texts, cell by cell."""
    notebook = nbformat.v4.new_notebook(metadata=pairing.METADATA)
    for i, cell in enumerate(cells):
        source, tags = (cell, ()) if isinstance(cell, str) else cell
        made = nbformat.v4.new_code_cell(source, execution_count=i + 1)
        if tags:
            made.metadata["tags"] = list(tags)
        if i < len(outputs) and outputs[i] is not None:
            made.outputs = [nbformat.v4.new_output("stream", name="stdout", text=outputs[i])]
        notebook.cells.append(made)
    pairing.set_cell_ids(notebook)
    return notebook


@pytest.fixture
def write_notebook(inside: Path) -> Callable[..., Path]:
    """Write a small notebook into the temporary folder and return its path."""

    def write(
        cells: Sequence[Cell], outputs: Sequence[str | None] = (), name: str = "tiny.ipynb"
    ) -> Path:
        path = inside / name
        path.write_text(pairing.dumps(make_notebook(cells, outputs)), encoding="utf-8")
        return path

    return write


MYST_HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def myst(*cells: Cell, title: str = "# Tiny") -> str:
    """Return the Markdown of a small chapter."""
    parts = [MYST_HEADER, title, ""]
    for cell in cells:
        source, tags = (cell, ()) if isinstance(cell, str) else cell
        head = f":tags: [{', '.join(tags)}]\n\n" if tags else ""
        parts.append(f"```{{code-cell}} ipython3\n{head}{source}\n```\n")
    return "\n".join(parts)


@dataclass(frozen=True)
class Collected:
    """What pytest collects from tests/: node ids, each with the case ids marked on it."""

    nodes: dict[str, list[str]]


@pytest.fixture(scope="session")
def collected() -> Collected:
    """Collect tests/ in a process of its own, as ``make test`` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.json"
        report = run_pytest("tests", "--collect-only", env={"COLLECTED": str(path)})
        assert report.code == 0, report.text[-3000:]
        return Collected(json.loads(path.read_text(encoding="utf-8")))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what was collected, for the fixture above."""
    path = os.environ.get("COLLECTED")
    if path:
        nodes = {
            item.nodeid: [str(i) for mark in item.iter_markers("case") for i in mark.args]
            for item in session.items
        }
        Path(path).write_text(json.dumps(nodes), encoding="utf-8")
