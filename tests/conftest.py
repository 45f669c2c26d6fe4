"""Fixtures for tests about notebooks and about the project itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from notebook_tools import Cell, Report, make_notebook, run_pytest

from labkit import pairing
from labkit.kernels import ROOT

# Triton keeps the mode in which it is first imported, and transformers imports it: come first.
with contextlib.suppress(ImportError):
    import refimpl.kernels  # noqa: F401

# These run whole notebooks or large models: started last, they would run alone at the end.
_LONG = ("test_sabotage.py", "test_negation.py", "test_weights.py", "test_site.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first; workers take files in this order."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else 9)


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
