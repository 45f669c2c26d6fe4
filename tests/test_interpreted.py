"""A chapter with kernels on a machine without Triton: marked cells say so, all others run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebook_tools import in_a_process

from labkit.interpreted import MARK, replace_marked
from labkit.kernels import kernel_environment

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ("chapters/09_flash_attention.ipynb", "solutions/09_flash_attention.ipynb")
"""A chapter with kernels, and its exercises, which need none."""

# Triton is not there, for the import system and for whoever asks whether it is.
_RUN = """
import sys, json
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else found(name, *a)
sys.meta_path.insert(0, Nothing())
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("cd", "-q " + sys.argv[1])
for cell in json.load(sys.stdin):
    if not shell.run_cell(cell).success:
        sys.exit("failed: " + cell)
"""


def run(cells: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _RUN, str(where)],
        input=json.dumps(cells),
        env=kernel_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_only_the_mark_on_the_first_line_counts() -> None:
    assert replace_marked([]) == []
    assert replace_marked(["x = 1\n", f"{MARK}\n"]) == ["x = 1\n", f"{MARK}\n"]
    (line,) = replace_marked([f"{MARK}\n", "1 / 0\n"])
    assert line.startswith("print('skipped: there is no Triton")


def mode(before: str | None) -> dict[str, str]:
    return {} if before is None else {"TRITON_INTERPRET": before}


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_it_interprets_whatever_is_set(before: str | None) -> None:
    code = (
        "import os, labkit.interpreted, refimpl.kernels\n"
        "print(refimpl.kernels.MODE, os.environ['TRITON_INTERPRET'])"
    )
    assert in_a_process(code, **mode(before)).stdout.split() == ["interpreter", "1"]


@pytest.mark.parametrize("before", [None, "0"])
def test_where_triton_compiles_already_the_variable_stays(before: str | None) -> None:
    code = (
        "import os, triton.language\n"
        "try:\n    import labkit.interpreted\n"
        "except RuntimeError as error:\n    print('compiler mode' in str(error))\n"
        "print(os.environ.get('TRITON_INTERPRET'))"
    )
    assert in_a_process(code, **mode(before)).stdout.split() == ["True", str(before)]


def test_marked_cells_say_why_they_are_skipped() -> None:
    done = run(["from labkit.interpreted import tl, triton", f"{MARK}\n1 / 0", "print(tl)"], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"skipped: there is no Triton on this machine ({sys.platform})" in done.stdout
    assert "None" in done.stdout


def test_where_triton_is_marked_cells_run() -> None:
    from labkit import interpreted

    assert interpreted.tl is not None and interpreted.triton is not None


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_everything_else_runs_without_triton(notebook: str) -> None:
    path = ROOT / notebook
    cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert any(cell.startswith(MARK) for cell in cells) == (path.parent.name == "chapters")
    done = run(cells, path.parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
