"""Render the site from executed notebooks.

::

    python site/render.py --notebooks _build/notebooks --out _build/html

``--notebooks`` holds ``chapters/*.ipynb`` and, where they exist, ``solutions/`` and ``exercises/``
(the root of the repository serves as well: its notebooks are executed). A source tree that mirrors
the repository is assembled beside the output, so that a link which works in a notebook on GitHub
works on the site; only what changed is written, and Sphinx reads only that again. Warnings are
errors, and the pages are checked for broken links, missing alt texts and anything loaded from
outside.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import calculator_page  # noqa: E402 (they need the path above)
import check_html  # noqa: E402
import pages  # noqa: E402

from labkit import questions  # noqa: E402
from labkit.sheets import site_files  # noqa: E402

TIME_LIMIT_S = 600
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)")
_TEMPLATES = ("home.md", "questions.md", "instructors.md", "stepper.md", "calculator.md")


class RenderError(Exception):
    """The site cannot be rendered; the message says what to change."""


def assemble(notebooks: Path, *, sheets: bool = True) -> dict[str, bytes]:
    """Every file that Sphinx reads, by its path in the source tree.

    The interviewer's sheets are those of the repository's chapters; ``sheets=False`` leaves them
    out, for notebooks that are others. Raises ``ValueError`` where a question of a chapter lacks
    its cell, or a sheet its proof.
    """
    chapters = {path.stem: path for path in questions.chapter_paths(notebooks / "chapters")}
    if not chapters:
        raise RenderError(f"{notebooks / 'chapters'} holds no chapter; run `make book`")
    rows = questions.syllabus_table(notebooks / "chapters")
    parts = pages.read_map((HERE / "map.yml").read_text("utf-8"), chapters)
    solutions = questions.chapter_paths(notebooks / "solutions")
    exercises = questions.chapter_paths(notebooks / "exercises")
    exercises = exercises or questions.chapter_paths(ROOT / "exercises")

    files = {f"chapters/{path.name}": path.read_bytes() for path in chapters.values()}
    files |= {f"solutions/{path.name}": path.read_bytes() for path in solutions}
    files |= {f"exercises/{path.name}": path.read_bytes() for path in exercises}
    for path in sorted((ROOT / "figures" / "svg").glob("*.svg")):
        files[f"figures/svg/{path.name}"] = path.read_bytes()
    for path in sorted(HERE.glob("*.md")):
        if path.name not in _TEMPLATES:
            files[f"site/{path.name}"] = path.read_bytes()
    files |= (printed := site_files(chapters) if sheets else {})
    files |= linked_files([*chapters.values(), *solutions], set(files))

    def page(name: str, **values: str) -> bytes:
        return pages.fill((HERE / name).read_text("utf-8"), **values).encode()

    beside: dict[str, list[str]] = {}
    if pages.STEPPER_CHAPTER in chapters:
        import stepper_page  # imports torch and runs the model: only where the page is wanted

        files["site/stepper.md"] = page("stepper.md", **stepper_page.values(stepper_page.run()))
        beside[pages.STEPPER_CHAPTER] = ["site/stepper"]
    files["index.md"] = page(
        "home.md",
        questions=pages.question_list(rows),
        map=pages.book_map(parts),
        stepper=pages.STEPPER_NOTE if beside else "",
        toctrees=pages.contents(
            parts,
            beside=beside,
            solutions=[path.stem for path in solutions],
            sheets=[name[:-3] for name in printed if name.endswith(".md")],
        ),
    )
    files["site/calculator.md"] = page("calculator.md", **calculator_page.values())
    files["site/questions.md"] = page("questions.md", table=pages.question_table(rows))
    files["site/instructors.md"] = page(
        "instructors.md", state=pages.state(parts), timing=pages.timing(parts)
    )
    return files


def linked_files(notebooks: list[Path], present: set[str]) -> dict[str, bytes]:
    """Files of the repository that notebooks link to, such as ``../refimpl/rope.py``."""
    found: dict[str, bytes] = {}
    for notebook in notebooks:
        for cell in pages.cells(notebook):
            for link in _LINK.findall(cell["source"]) if cell["cell_type"] == "markdown" else ():
                name = link.removeprefix("../")
                path = (ROOT / name).resolve()
                if name not in present and path.is_relative_to(ROOT) and path.is_file():
                    found[name] = path.read_bytes()
    return found


def synchronise(files: dict[str, bytes], folder: Path) -> None:
    """Make a folder hold exactly these files, touching only what differs."""
    for name, data in files.items():
        path = folder / name
        if not (path.is_file() and path.read_bytes() == data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in files:
            path.unlink()


def render(
    notebooks: Path | str,
    out: Path | str,
    *,
    sheets: bool = True,
    time_limit_s: float = TIME_LIMIT_S,
) -> Path:
    """Render into ``out`` and return its front page; ``RenderError`` says what is wrong."""
    notebooks, out = Path(notebooks).resolve(), Path(out).resolve()
    source, doctrees = out.parent / "site-src", out.parent / "doctrees"
    try:
        files = assemble(notebooks, sheets=sheets)
    except ValueError as error:
        raise RenderError(str(error)) from error
    synchronise(files, source)
    # The sidebar is on every page, but Sphinx rewrites only pages whose own source changed.
    outline = hashlib.sha256(
        json.dumps(
            [(name, pages.first_heading(source / name)) for name in files if name[-6:] == ".ipynb"]
        ).encode()
        + b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    ).hexdigest()
    stamp = out.parent / "outline.sha256"
    changed = not stamp.is_file() or stamp.read_text() != outline
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    command += ["-c", str(HERE), "-d", str(doctrees), *(["-a"] if changed else [])]
    print(f"site: rendering {out}", flush=True)
    status = _run([*command, str(source), str(out)], time_limit_s)
    broken = [] if status else check_html.problems(out)
    if status or broken:
        # A second run would not read a page with a warning again, and would pass.
        shutil.rmtree(doctrees, ignore_errors=True)
        stamp.unlink(missing_ok=True)
        raise RenderError("\n".join(broken) or "Sphinx found what is printed above")
    stamp.write_text(outline)
    return out / "index.html"


def _run(command: list[str], time_limit_s: float) -> int:
    """Exit status of a command, which is stopped with its children after the time limit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    own_group = os.name == "posix"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=own_group)
    try:
        return process.wait(time_limit_s)
    except BaseException as error:
        if own_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RenderError(f"Sphinx did not end within {time_limit_s:g} s") from error
        raise


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Render the site from executed notebooks.")
    parser.add_argument("--notebooks", type=Path, default=ROOT, help="folder with chapters/")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    try:
        page = render(options.notebooks, options.out, time_limit_s=options.time_limit)
    except RenderError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    print(f"site: {page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
