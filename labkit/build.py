"""Build the book: pair, execute, normalise, cut answers, render.

::

    python -m labkit.build notebooks [NAME…]   rewrite chapters/, solutions/, exercises/ (committed)
    python -m labkit.build book                execute into _build/ and render the site
    python -m labkit.build site                render the site from what is executed
    python -m labkit.build check               say which committed notebooks are out of date

Execution is cached in ``_build/notebooks`` under a hash of everything an output can depend on:
the chapter's Markdown, the sources and data of refimpl, labkit and figures, the pinned versions.
Nothing outside ``_build`` changes except by ``notebooks``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from labkit import pairing
from labkit.kernels import ROOT, ThisKernelManager, kernel_environment

CELL_TIMEOUT_S = 300
KERNEL_START_TIMEOUT_S = 180
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class BuildError(Exception):
    """The book cannot be built; the message says which notebook and why."""


@dataclass(frozen=True)
class Book:
    """Where things are. Tests build a small book in a temporary folder."""

    root: Path = ROOT

    @property
    def build(self) -> Path:
        """The folder of everything that can be made again."""
        return self.root / "_build"

    def sources(self, names: list[str] | None = None) -> list[Path]:
        """Return the Markdown of chapters, then of solutions; ``names`` selects by stem prefix.

        Raises:
            BuildError: a name matches nothing.
        """
        found = [
            path
            for folder in ("chapters", "solutions")
            for path in sorted((self.root / folder).glob("[0-9][0-9]_*.md"))
        ]
        if not names:
            return found
        stems = [Path(name).stem for name in names]
        for stem in stems:
            if not any(path.stem.startswith(stem) for path in found):
                known = ", ".join(sorted({path.stem for path in found})) or "none"
                raise BuildError(f"no chapter is called {stem!r}; there are: {known}")
        return [path for path in found if any(path.stem.startswith(stem) for stem in stems)]

    def label(self, source: Path) -> str:
        """Return how a source is called in messages: ``chapters/01_naive_decoding``."""
        return source.relative_to(self.root).with_suffix("").as_posix()


# --- sources ----------------------------------------------------------------------------------


def points_of(task: str) -> float:
    """Return a task's points from the exercises' own registry.

    Raises:
        BuildError: there is no such task.
    """
    tasks = importlib.import_module("labkit.tasks")
    try:
        return tasks.all_tasks()[task].points
    except KeyError as error:
        raise BuildError(
            f"a check cell calls check.{task}, but labkit.tasks has no such task"
        ) from error


def paired(source: Path) -> NotebookNode:
    """Return the notebook of a source, without outputs, with grading metadata in solutions."""
    try:
        notebook = pairing.read_source(source)
        if source.parent.name == "solutions":
            pairing.add_grading(notebook, points_of)
    except (ValueError, SyntaxError) as error:
        raise BuildError(f"{source.name}: {error}") from error
    return notebook


def exercise_text(source: Path) -> str:
    """Return the text of the exercise notebook that a solution source gives."""
    try:
        return pairing.dumps(pairing.make_exercise(paired(source)))
    except ValueError as error:
        raise BuildError(f"{source.name}: {error}") from error


# --- execution --------------------------------------------------------------------------------


def inputs_digest(book: Book, source: Path) -> str:
    """Return a hash of all that a notebook's outputs can depend on."""
    digest = hashlib.sha256()
    files = [source, book.root / "constraints.txt"]
    for package in ("refimpl", "labkit", "figures"):
        files += sorted(
            path
            for path in (book.root / package).rglob("*")
            if path.is_file() and path.suffix not in {".pyc", ".svg"}
        )
    for path in files:
        if path.exists():
            digest.update(path.relative_to(book.root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    versions = [f"python {sys.version_info[:2]}"]
    for package in ("torch", "numpy", "tokenizers", "matplotlib"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    digest.update("\n".join(versions).encode())
    return digest.hexdigest()


class Progress:
    """One line when a notebook starts, one when it ends, and cell counts while it runs."""

    def __init__(self, label: str, num_cells: int) -> None:
        self.label, self.num_cells, self.done = label, num_cells, 0
        self.start = self.last = time.monotonic()
        self.live = sys.stdout.isatty()
        print(f"{label}: executing {num_cells} cells", flush=True)

    def cell_done(self, **_: object) -> None:
        """Report, on a terminal at every cell, in a log every fifteen seconds."""
        self.done += 1
        now = time.monotonic()
        if self.live:
            print(f"\r  cell {self.done}/{self.num_cells} ", end="", flush=True)
        elif now - self.last > 15:
            self.last = now
            print(f"  {self.label}: cell {self.done}/{self.num_cells}", flush=True)

    def finish(self) -> None:
        """Close the line with the time taken."""
        seconds = time.monotonic() - self.start
        print(f"{chr(13) if self.live else ''}  done in {seconds:.0f} s        ", flush=True)


def execute(notebook: NotebookNode, folder: Path, label: str) -> NotebookNode:
    """Run a notebook in a fresh kernel of this interpreter, in ``folder``, and normalise it.

    Raises:
        BuildError: a cell raised, ran out of time, or its kernel died; the message holds the
            cell, its first line and the end of the traceback.
    """
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    progress = Progress(label, len(code_cells))
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        startup_timeout=KERNEL_START_TIMEOUT_S,
        kernel_name="python3",
        kernel_manager_class=ThisKernelManager,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        extra_arguments=["--log-level=40"],  # errors only: its warnings are not about the book
        on_cell_executed=progress.cell_done,
    )
    try:
        client.execute(env=kernel_environment())
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        number = min(progress.done + 1, len(code_cells))  # the cell that was running
        if isinstance(error, CellExecutionError):
            number = max(
                (i for i, cell in enumerate(code_cells, 1) if cell.execution_count), default=number
            )
        cell = code_cells[max(number, 1) - 1]
        tail = "\n".join(_ANSI.sub("", str(error)).strip().splitlines()[-30:])
        first = cell.source.splitlines()[0] if cell.source else ""
        raise BuildError(f"{label}, code cell {number} ({first}):\n{tail}") from error
    for line in pairing.normalise(notebook):
        print(f"  note: stderr of {line.splitlines()[0][:160]}")
    progress.finish()
    return notebook


def executed(book: Book, source: Path) -> NotebookNode:
    """Return a source's executed notebook, from the cache when nothing it depends on changed."""
    target = book.build / "notebooks" / source.parent.name / f"{source.stem}.ipynb"
    stamp = target.with_suffix(".inputs")
    digest = inputs_digest(book, source)
    if target.exists() and stamp.exists() and stamp.read_text() == digest:
        print(f"{book.label(source)}: unchanged", flush=True)
        return nbformat.read(target, as_version=4)
    notebook = execute(paired(source), source.parent, book.label(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    write(target, pairing.dumps(notebook))
    stamp.write_text(digest)
    return notebook


def write(path: Path, text: str) -> bool:
    """Write a file if its text differs; say whether it did."""
    data = text.encode("utf-8")
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


# --- the committed notebooks ------------------------------------------------------------------


def build_notebooks(book: Book, names: list[str] | None = None) -> list[Path]:
    """Rewrite the committed notebooks and return those whose text changed."""
    changed = []
    for source in book.sources(names):
        notebook = executed(book, source)
        target = source.with_suffix(".ipynb")
        if target.exists():
            pairing.keep_ignored_outputs(notebook, nbformat.read(target, as_version=4))
        if write(target, pairing.dumps(notebook)):
            changed.append(target)
        if source.parent.name == "solutions":
            exercise = book.root / "exercises" / target.name
            if write(exercise, exercise_text(source)):
                changed.append(exercise)
    for path in changed:
        print(f"wrote {path.relative_to(book.root).as_posix()}")
    if not changed:
        print("the committed notebooks are up to date")
    return changed


def out_of_date(book: Book) -> Iterator[str]:
    """Yield one line per committed notebook that its Markdown no longer gives."""
    for source in book.sources():
        target = source.with_suffix(".ipynb")
        label = book.label(source)
        if not target.exists():
            yield f"{label}.ipynb is missing"
            continue
        committed = nbformat.read(target, as_version=4)
        if pairing.dumps(pairing.strip(committed)) != pairing.dumps(paired(source)):
            yield f"{label}.ipynb does not hold the cells of its .md"
        if source.parent.name == "solutions":
            exercise = book.root / "exercises" / target.name
            if not exercise.exists():
                yield f"exercises/{target.name} is missing"
            elif exercise.read_text(encoding="utf-8") != exercise_text(source):
                yield f"exercises/{target.name} is not what the solutions give"


# --- the site ---------------------------------------------------------------------------------


def render(book: Book) -> Path:
    """Render the site from the executed notebooks; return its front page.

    Raises:
        BuildError: there is nothing to render, or ``site/render.py`` found something wrong.
    """
    script, html = book.root / "site" / "render.py", book.build / "html"
    notebooks = book.build / "notebooks"
    if not any(notebooks.glob("chapters/*.ipynb")):
        raise BuildError("no chapter is executed yet: run `python -m labkit.build book`")
    start = time.monotonic()
    command = [sys.executable, str(script), "--notebooks", str(notebooks), "--out", str(html)]
    if subprocess.run(command, cwd=book.root, check=False).returncode:
        raise BuildError("the site was not rendered; its messages are above")
    print(f"  done in {time.monotonic() - start:.0f} s", flush=True)
    return html / "index.html"


def build_book(book: Book) -> Path:
    """Execute what changed, render the site and print where to find it."""
    sources = book.sources()
    for source in sources:
        executed(book, source)
    kept = {(source.parent.name, source.stem) for source in sources}
    for stale in (book.build / "notebooks").glob("*/*"):
        if (stale.parent.name, stale.stem) not in kept:
            stale.unlink()
    return build_site(book)


def build_site(book: Book) -> Path:
    """Render the site and print where to find it."""
    page = render(book)
    print(f"\nThe book is ready. Open {page.as_uri()}")
    return page


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands named in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m labkit.build", description="Build the book.")
    commands = parser.add_subparsers(dest="command", required=True)
    notebooks = commands.add_parser("notebooks", help="rewrite the committed notebooks")
    notebooks.add_argument("names", nargs="*", help="chapters, by name or by number: 01")
    commands.add_parser("book", help="execute what changed and render the site")
    commands.add_parser("site", help="render the site from what is executed")
    commands.add_parser("check", help="say which committed notebooks are out of date")
    options = parser.parse_args(arguments)
    book = Book()
    try:
        if options.command == "notebooks":
            build_notebooks(book, options.names)
        elif options.command == "book":
            build_book(book)
        elif options.command == "site":
            build_site(book)
        else:
            stale = list(out_of_date(book))
            for line in stale:
                print(f"{line}: run `make notebooks`")
            return bool(stale)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
