"""Print the tests that the changes since the last commit touch (``make check``).

A changed chapter means its notebook; a changed test means itself; a changed module means the
test files and notebooks that import it, directly or through other modules of this project.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import nbformat

from labkit.kernels import ROOT

PACKAGES = ("refimpl", "labkit", "figures")
ALWAYS = ("tests/test_floors.py", "tests/test_project.py")


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the last commit or are new, as git names them."""
    names: set[str] = set()
    for command in (
        ["git", "diff", "--name-only", "HEAD"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True, timeout=60
        )
        names.update(done.stdout.splitlines())
    return sorted(names)


def module_name(path: str) -> str | None:
    """Return the dotted name of a module of this project, or None for any other file."""
    parts = Path(path).with_suffix("").parts
    if not path.endswith(".py") or parts[0] not in PACKAGES:
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str) -> set[str]:
    """Return every dotted name a source imports; ``from a import b`` may mean a or a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def notebook_source(path: Path) -> str:
    """Return the code of a notebook as one module."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def affected(changed: list[str], root: Path = ROOT) -> list[str]:
    """Return the test files and notebooks to run for a list of changed files."""
    modules: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            name = module_name(path.relative_to(root).as_posix())
            if name:
                modules[name] = imported(path.read_text(encoding="utf-8"))
    touched = {name for name in map(module_name, changed) if name}
    touched |= {  # a data file belongs to the package it lies in
        ".".join(Path(name).parts[:-2])
        for name in changed
        if Path(name).parent.name == "data" and Path(name).parts[0] in PACKAGES
    }
    while True:
        more = {name for name, uses in modules.items() if uses & touched} - touched
        if not more:
            break
        touched |= more

    chosen = {name for name in ALWAYS if (root / name).exists()}
    for path in sorted((root / "tests").glob("test_*.py")):
        label = path.relative_to(root).as_posix()
        if label in changed or imported(path.read_text(encoding="utf-8")) & touched:
            chosen.add(label)
    for folder in ("chapters", "solutions"):
        for path in sorted((root / folder).glob("*.ipynb")):
            label = path.relative_to(root).as_posix()
            own = label in changed or label.replace(".ipynb", ".md") in changed
            if own or imported(notebook_source(path)) & touched:
                chosen.add(label)
    return sorted(chosen)


if __name__ == "__main__":
    print("\n".join(affected(changed_files())))
