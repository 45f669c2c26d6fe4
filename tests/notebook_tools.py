"""Small notebooks, and Python or pytest in a process of its own, for tests about them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from labkit import pairing
from labkit.kernels import ROOT, kernel_environment

Cell = str | tuple[str, Sequence[str]]


def clean_environment() -> dict[str, str]:
    """Return the notebooks' environment without what an outer pytest put there."""
    return {k: v for k, v in kernel_environment().items() if not k.startswith("PYTEST_")}


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a Python of its own with TRITON_INTERPRET as given."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )


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
