"""The notebooks are what their Markdown gives, every cell has run, and nbval can turn red."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from notebook_tools import Report, make_notebook, myst

from labkit import build, pairing, sabotage
from labkit.kernels import ROOT

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.md"))
SOLUTIONS = sorted((ROOT / "solutions").glob("[0-9][0-9]_*.md"))
SOURCES = CHAPTERS + SOLUTIONS
NOTEBOOKS = sorted([*(ROOT / "chapters").glob("*.ipynb"), *(ROOT / "solutions").glob("*.ipynb")])

by_name = pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.stem}")
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
Write = Callable[..., Path]
Nbval = Callable[..., Report]


def committed(path: Path) -> nbformat.NotebookNode:
    """Return the committed notebook of a source."""
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- the committed notebooks ------------------------------------------------------------------


def test_there_is_something_to_test() -> None:
    assert CHAPTERS
    assert {path.stem for path in SOLUTIONS} <= {path.stem for path in CHAPTERS}


def test_no_notebook_without_a_source() -> None:
    sources = {path.with_suffix("") for path in SOURCES}
    assert [path.name for path in NOTEBOOKS if path.with_suffix("") not in sources] == []
    exercises = {path.stem for path in (ROOT / "exercises").glob("*")}
    assert exercises == {path.stem for path in SOLUTIONS}


@by_name
def test_notebook_holds_the_cells_of_its_markdown(path: Path) -> None:
    text = pairing.dumps(pairing.strip(committed(path)))
    assert text == pairing.dumps(build.paired(path)), "run `make notebooks`"


@by_name
def test_notebook_is_written_the_one_way(path: Path) -> None:
    assert path.with_suffix(".ipynb").read_bytes() == pairing.dumps(committed(path)).encode()


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_exercises_regenerate_to_the_byte(path: Path) -> None:
    exercise = ROOT / "exercises" / f"{path.stem}.ipynb"
    assert exercise.read_bytes() == build.exercise_text(path).encode(), "run `make notebooks`"


@by_name
def test_every_code_cell_has_run_and_none_failed(path: Path) -> None:
    cells = code_cells(committed(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert "error" not in kinds


@by_name
def test_tags_are_known(path: Path) -> None:
    known = re.compile(
        r"(answers|trap):[a-z0-9-]+|nbval-ignore-output|check|hide-input|hide-output|remove-input"
    )
    used = {tag for cell in committed(path).cells for tag in pairing.tags(cell)}
    assert [tag for tag in sorted(used) if not known.fullmatch(tag)] == []


def unstable(text: str) -> list[str]:
    """Return what in a compared output would differ on another machine or day."""
    patterns = {
        "a path": r"(?<![\w.:/])(?:/(?:home|root|tmp|usr|work|Users|var|opt)/\S+|[A-Z]:\\\S+)",
        "an address": r"\b0x[0-9a-f]{6,}\b",
        "a duration": r"\b\d[\d.,]*\s?(?:ms|µs|us|ns|s|sec|seconds)\b",
        "a rate": r"\b\d[\d.,]*\s?(?:tok(?:en)?s?/s|GB/s|GiB/s|it/s)",
        "a date": r"\b20\d\d-\d\d-\d\d\b",
        "a version": r"\b\d+\.\d+\.\d+(?:\+\w+)?\b",
        "a raw tensor": r"\btensor\(|\barray\(|grad_fn=",
        "a device": r"\bcuda(?::\d)?\b|\bmps\b|device=",
        "a progress bar": r"\d+%\|",
    }
    return [what for what, pattern in patterns.items() if re.search(pattern, text)]


def texts(cell: nbformat.NotebookNode) -> str:
    """Return what a cell printed and showed as text."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts.extend(str(v) for k, v in output.get("data", {}).items() if k.startswith("text/"))
    return "\n".join(parts)


@by_name
def test_compared_outputs_hold_nothing_that_varies(path: Path) -> None:
    wrong = {
        f"cell {cell.execution_count}": unstable(texts(cell))
        for cell in code_cells(committed(path))
        if pairing.IGNORE_OUTPUT not in pairing.tags(cell) and unstable(texts(cell))
    }
    # A worked example speaks of seconds and rates of real accelerators: computed, not measured.
    computed = {"a duration", "a rate"}
    assert {cell: what for cell, what in wrong.items() if set(what) - computed} == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("saved to /home/reader/x.npz", "a path"),
        ("<object at 0x7f3a2c1b>", "an address"),
        ("took 12.5 ms", "a duration"),
        ("61 tokens/s", "a rate"),
        ("on 2026-01-02", "a date"),
        ("torch 2.13.0+cpu", "a version"),
        ("tensor([1., 2.])", "a raw tensor"),
        ("running on cuda:0", "a device"),
        (" 40%|####      |", "a progress bar"),
    ],
)
def test_what_varies_is_seen(text: str, what: str) -> None:
    assert what in unstable(text)


@pytest.mark.parametrize("text", ["q_BHTD (1, 9, 7, 64)", "[504, 808]", "1.25 GiB", "layer 3/30"])
def test_what_does_not_vary_is_not(text: str) -> None:
    assert unstable(text) == []


@by_name
def test_images_are_files(path: Path) -> None:
    text = path.with_suffix(".ipynb").read_text(encoding="utf-8")
    for kind in ("image/png", "image/jpeg", ";base64,"):
        assert kind not in text
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{target} does not exist"


def test_nbval_collects_every_code_cell(nbval: Nbval) -> None:
    counted = sum(len(code_cells(nbformat.read(path, as_version=4))) for path in NOTEBOOKS)
    folders = sorted({path.parent.name for path in NOTEBOOKS})
    report = nbval(*folders, "--collect-only")
    assert report.code == 0
    assert len(re.findall(r"::Cell \d+$", report.text, re.MULTILINE)) == counted > 0


@each_chapter
def test_no_cell_is_left_out(path: Path) -> None:
    for cell in code_cells(committed(path)):
        assert not {"nbval-skip", "nbval-raises-exception", "raises-exception"} & set(
            pairing.tags(cell)
        )
        assert not re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source)


# --- what chapters may do ---------------------------------------------------------------------


def pip_faults(text: str) -> list[str]:
    """Return the install commands in a text whose outcome is not fixed."""
    faults = []
    for line in text.splitlines():
        match = re.search(r"\bpip3?\s+install\s+(?P<rest>.+)$", line)
        if match is None or "-c constraints.txt" in match["rest"]:
            continue
        words = [w.strip("'\"`") for w in match["rest"].split()]
        packages = [w for w in words if w and not w.startswith("-") and not w.startswith("#")]
        if not packages or not all(
            re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.+]+", p) for p in packages
        ):
            faults.append(line.strip())
    return faults


@pytest.mark.case("NB-05")
@by_name
def test_notebooks_install_nothing(path: Path) -> None:
    for cell in code_cells(committed(path)):
        assert not re.search(r"\bpip3?\b|\bconda\b|\bapt(-get)?\b", cell.source)


@pytest.mark.case("NB-05")
@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("!pip install pkg-3.1.0", True),
        ("%pip install git+https://host/owner/helper@main", True),
        ("pip install -q triton", True),
        ("pip install 'transformers>=5'", True),
        ("pip install triton==3.7.1", False),
        ("python -m pip install -c constraints.txt -e '.[book,test]'", False),
    ],
)
def test_an_unpinned_install_line_is_seen(line: str, is_fault: bool) -> None:
    assert bool(pip_faults(line)) is is_fault


@pytest.mark.case("NB-05")
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "environment.yml", "Makefile"])
def test_every_install_line_is_pinned(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    assert pip_faults(text) == []


def device_faults(source: str) -> list[str]:
    """Return the expressions in a cell that choose an accelerator or ask for one."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", node.value):
                faults.append(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in {
            "is_available",
            "cuda",
            "mps",
            "current_accelerator",
        }:
            faults.append(ast.unparse(node))
    return faults


@pytest.mark.case("NB-08")
@by_name
def test_compared_cells_stay_on_the_cpu(path: Path) -> None:
    faults = [
        fault
        for cell in code_cells(committed(path))
        if pairing.IGNORE_OUTPUT not in pairing.tags(cell)
        for fault in device_faults(cell.source)
    ]
    assert faults == []


@pytest.mark.case("NB-08")
@pytest.mark.parametrize(
    "source",
    [
        "device = 'mps' if torch.backends.mps.is_available() else 'cpu'",
        "model.to('cuda:0')",
        "x.cuda()",
        "torch.accelerator.current_accelerator()",
    ],
)
def test_choosing_a_device_is_seen(source: str) -> None:
    assert device_faults(source)


def unchecked_copies(code: str) -> list[str]:
    """Return the functions of a chapter that bear a refimpl name and are never held against it."""
    tree = ast.parse(code)
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    public = {name for path in (ROOT / "refimpl").rglob("*.py") for name in public_names(path)}
    parts = {part for target in sabotage.uses(code) for part in target.name.split(".")}
    # generate_naive is what a chapter's plain generate is held against
    return sorted(
        name
        for name in defined & public
        if not any(part == name or part.startswith(f"{name}_") for part in parts)
    )


def public_names(path: Path) -> list[str]:
    """Return the public functions and classes that a module defines."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


@pytest.mark.case("NB-16")
@each_chapter
def test_a_chapter_has_no_unchecked_copy_of_refimpl(path: Path) -> None:
    code = sabotage.chapter_code(path.with_suffix(".ipynb"))
    assert unchecked_copies(code) == []


@pytest.mark.case("NB-16")
def test_an_unchecked_copy_is_seen() -> None:
    copied = "def format_bytes(n):\n    return f'{n} B'\nassert format_bytes(1) == '1 B'"
    assert unchecked_copies(copied) == ["format_bytes"]
    held = copied + "\nfrom refimpl import units\nassert units.format_bytes(1) == format_bytes(1)"
    assert unchecked_copies(held) == []


# --- nbval itself, as configured here ---------------------------------------------------------


def test_a_false_assert_and_a_changed_output_turn_red(write_notebook: Write, nbval: Nbval) -> None:
    cells = ["x = 2", "print(x)", "print(x)", "assert x == 3"]
    report = nbval(write_notebook(cells, [None, "2\n", "3\n"]))
    assert report.counts == {"passed": 2, "failed": 2}, report.text
    assert report.red_cells == ["Cell 2", "Cell 3"]


@pytest.mark.case("NB-01")
def test_chunked_streams_and_progress_bars_give_one_verdict(
    write_notebook: Write, nbval: Nbval
) -> None:
    lines = (
        "import sys, time\n"
        "for i in range(3):\n"
        "    print('line', i, flush=True); time.sleep(0.01 * (i % 2))"
    )
    bar = (
        "from tqdm import tqdm\n"
        "for i in tqdm(range(3)):\n"
        "    print(i, end=' ', flush=True); print('noise', file=sys.stderr, flush=True)"
    )
    repeats = 20
    report = nbval(
        write_notebook([lines, bar] * repeats, ["line 0\nline 1\nline 2\n", "0 1 2 "] * repeats)
    )
    assert report.counts.get("passed") == 2 * repeats, report.text


@pytest.mark.case("NB-02")
def test_a_warning_is_noise_unless_it_is_ours(write_notebook: Write, nbval: Nbval) -> None:
    noise = "import warnings\nwarnings.warn('old name', DeprecationWarning)\nprint('on')"
    theirs = "warnings.warn_explicit('old name', DeprecationWarning, 'x.py', 1, module='torch.nn')"
    ours = "warnings.warn_explicit('old name', UserWarning, 'y.py', 1, module='refimpl.attention')"
    report = nbval(write_notebook([noise, theirs, ours], ["on\n"]))
    assert report.counts == {"passed": 2, "failed": 1}, report.text
    assert report.red_cells == ["Cell 2"]


@pytest.mark.case("NB-02")
def test_a_warning_from_refimpl_fails_a_test() -> None:
    import warnings

    with pytest.raises(UserWarning, match="old name"):
        warnings.warn_explicit("old name", UserWarning, "y.py", 1, module="refimpl.attention")


@pytest.mark.case("NB-03")
def test_timeouts_come_from_the_configuration(pytestconfig: pytest.Config) -> None:
    option = pytestconfig.option
    assert option.nbval_kernel_startup_timeout >= 180
    assert 60 <= option.nbval_cell_timeout <= 300
    assert option.nbval_current_env
    assert build.KERNEL_START_TIMEOUT_S >= 180


@pytest.mark.case("NB-03")
def test_two_heavy_notebooks_start_side_by_side(write_notebook: Write, nbval: Nbval) -> None:
    cells = ["import torch", "assert torch.ones(3).sum() == 3"]
    paths = [write_notebook(cells, name=f"heavy{i}.ipynb") for i in range(2)]
    report = nbval(*paths, "-n", "2", "--dist", "loadfile")
    assert report.counts.get("passed") == 4, report.text


@pytest.mark.case("NB-03")
def test_a_kernel_that_does_not_start_is_started_once_more_and_said(
    write_notebook: Write, nbval: Nbval, inside: Path
) -> None:
    (inside / "conftest.py").write_text(
        "import nbval.kernel\n"
        "start, tries = nbval.kernel.start_new_kernel, []\n"
        "def flaky(*args, **kwargs):\n"
        "    tries.append(1)\n"
        "    if len(tries) == 1:\n"
        "        raise RuntimeError('Kernel did not answer in 60 seconds')\n"
        "    return start(*args, **kwargs)\n"
        "nbval.kernel.start_new_kernel = flaky\n"
    )
    report = nbval(write_notebook(["x = 1"]))
    assert report.counts.get("passed") == 1, report.text
    assert "KernelStartWarning: kernel did not start" in report.text


@pytest.mark.case("NB-03")
def test_a_kernel_that_never_starts_fails(
    write_notebook: Write, nbval: Nbval, inside: Path
) -> None:
    (inside / "conftest.py").write_text(
        "import nbval.kernel\n"
        "def dead(*args, **kwargs):\n"
        "    raise RuntimeError('Kernel died before replying')\n"
        "nbval.kernel.start_new_kernel = dead\n"
    )
    report = nbval(write_notebook(["x = 1"]))
    assert report.code == 1
    assert "passed" not in report.counts


@pytest.mark.case("NB-03")
def test_a_failing_cell_is_run_once(write_notebook: Write, nbval: Nbval, inside: Path) -> None:
    count = "from pathlib import Path\nwith Path('runs').open('a') as f: f.write('x')\nassert False"
    report = nbval(write_notebook([count]))
    assert report.counts == {"failed": 1}
    assert (inside / "runs").read_text() == "x"


@pytest.mark.case("NB-14")
def test_notebooks_run_in_a_job_of_their_own_with_a_guard(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == 600
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = re.findall(r"-m pytest ([^\n]*?) -n", makefile)
    assert "tests" in runs and "$(NOTEBOOK_DIRS)" in runs
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "--cov" not in makefile + settings, "nothing traces the kernels"


# --- pairing, on small notebooks --------------------------------------------------------------


def test_ids_depend_on_content_alone(tmp_path: Path) -> None:
    path = tmp_path / "01_tiny.md"
    path.write_text(myst("x = 1", "x = 1", "y = 2"))
    first = [cell.id for cell in pairing.read_source(path).cells]
    path.write_text(myst("z = 0", "x = 1", "x = 1", "y = 2"))
    second = [cell.id for cell in pairing.read_source(path).cells]
    assert len(set(first)) == len(first)
    assert [i for i in second if i in first] == first


def test_tags_and_metadata_come_from_the_markdown(tmp_path: Path) -> None:
    path = tmp_path / "01_tiny.md"
    path.write_text(myst(("x = 1\nassert x", ["answers:one", "nbval-ignore-output"])))
    cell = pairing.read_source(path).cells[1]
    assert cell.metadata.tags == ["answers:one", "nbval-ignore-output"]


@pytest.mark.parametrize("text", ["# no header\n", myst(title="# T"), "---\na: b\n---\n# T\n"])
def test_a_source_without_cells_or_header_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "01_tiny.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="01_tiny"):
        pairing.read_source(path)


def test_normalise_removes_what_varies() -> None:
    notebook = make_notebook(["print(1)"])
    cell = notebook.cells[0]
    cell.execution_count = 7
    cell.metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    stream = nbformat.v4.new_output
    cell.outputs = [
        stream("stream", name="stdout", text="1\n"),
        stream("stream", name="stderr", text="/x.py:1: DeprecationWarning\n"),
        stream("stream", name="stdout", text="10%\r100%\n"),
        stream("execute_result", data={"text/plain": "2"}, execution_count=7),
    ]
    noise = pairing.normalise(notebook)
    assert cell.execution_count == 1 and "execution" not in cell.metadata
    assert [o.output_type for o in cell.outputs] == ["stream", "execute_result"]
    assert cell.outputs[0].text == "1\n100%\n"
    assert cell.outputs[1].execution_count == 1
    assert noise == ["cell 1: /x.py:1: DeprecationWarning"]


def test_timing_cells_keep_their_outputs_while_their_source_stays() -> None:
    timing = ("t = 1", ["nbval-ignore-output"])
    old = make_notebook([timing, "x = 1"], ["old\n", "old\n"])
    fresh = make_notebook([timing, "x = 1"], ["new\n", "new\n"])
    pairing.keep_ignored_outputs(fresh, old)
    assert [cell.outputs[0].text for cell in fresh.cells] == ["old\n", "new\n"]
    edited = make_notebook([("t = 2", ["nbval-ignore-output"])], ["new\n"])
    pairing.keep_ignored_outputs(edited, old)
    assert edited.cells[0].outputs[0].text == "new\n"


SOLUTION = '''\
def twice(x):
    """Return two times x."""
    if x is None:
        ### BEGIN SOLUTION
        return None
        ### END SOLUTION
    ### BEGIN SOLUTION
    y = x + x
    return y
    ### END SOLUTION'''


def test_answers_are_cut_and_signature_and_docstring_stay() -> None:
    assert pairing.cut_answer(SOLUTION).splitlines() == [
        "def twice(x):",
        '    """Return two times x."""',
        "    if x is None:",
        "        raise NotImplementedError",
        "    raise NotImplementedError",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\nx = 1",
        "x = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION",
        "if x:\n### BEGIN SOLUTION\n    y\n### END SOLUTION",
    ],
)
def test_unbalanced_markers_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"SOLUTION|parse"):
        pairing.cut_answer(source)


def test_grading_metadata_is_nbgrader_schema_3() -> None:
    notebook = make_notebook(
        [
            "import labkit",
            SOLUTION,
            ("check.twice(twice)", ["check"]),
            SOLUTION.replace("twice", "thrice"),
            ("check.hint('thrice')\ncheck.thrice(thrice)", ["check"]),
        ]
    )
    notebook.cells[4].metadata["points"] = 5
    pairing.add_grading(notebook, {"twice": 2}.__getitem__)
    exercise = pairing.make_exercise(notebook)
    written = [cell.metadata.get("nbgrader") for cell in exercise.cells]
    answer = {"grade": False, "locked": False, "schema_version": 3, "solution": True, "task": False}
    check = {"grade": True, "locked": True, "schema_version": 3, "solution": False, "task": False}
    assert written == [
        None,
        {**answer, "grade_id": "answer-twice"},
        {**check, "grade_id": "check-twice", "points": 2},
        {**answer, "grade_id": "answer-thrice"},
        {**check, "grade_id": "check-thrice", "points": 5},
    ]
    text = pairing.dumps(exercise)
    assert "SOLUTION" not in text and "y = x + x" not in text
    assert all(not c.outputs and c.execution_count is None for c in exercise.cells)


@pytest.mark.parametrize("source", ["x = 1", "check.same(1, 1)", SOLUTION + "\ncheck.twice(1)"])
def test_a_check_cell_that_grades_nothing_is_refused(source: str) -> None:
    notebook = make_notebook([(source, ["check"])])
    with pytest.raises(ValueError, match="check"):
        pairing.add_grading(notebook, lambda task: 1)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_graded_cells_of_the_exercises(path: Path) -> None:
    exercise = json.loads((ROOT / "exercises" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
    graded = [c["metadata"]["nbgrader"] for c in exercise["cells"] if "nbgrader" in c["metadata"]]
    ids = [cell["grade_id"] for cell in graded]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_\-]+", i) for i in ids)
    checks = [cell for cell in graded if cell["grade"]]
    assert len(checks) >= 5, "five tasks or more"
    assert all(cell["points"] > 0 for cell in checks)
    assert sum(not cell["grade"] for cell in graded) >= len(checks)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_solutions_say_of_each_task_what_the_task_says(path: Path) -> None:
    from labkit.tasks import all_tasks

    text = path.read_text(encoding="utf-8").replace("`", "")
    tasks = [task for task in all_tasks().values() if task.chapter == int(path.stem[:2])]
    places = [
        text.find(
            f"## {task.title}\n\n{task.minutes} minutes · {task.points} "
            f"{'point' if task.points == 1 else 'points'} · level {task.level}\n\n{task.spec}\n"
        )
        for task in tasks
    ]
    assert -1 not in places and places == sorted(places)
    assert f"; {sum(task.points for task in tasks)} points." in text


# --- building a small book --------------------------------------------------------------------


def small_book(root: Path) -> build.Book:
    """Make a book with one chapter of three cells."""
    (root / "chapters").mkdir(parents=True)
    (root / "constraints.txt").write_text("torch==2.13.0\n")
    (root / "chapters" / "01_tiny.md").write_text(
        myst(
            "import sys, os",
            "print(sys.executable == os.environ['EXPECTED'], os.path.basename(os.getcwd()))",
            ("import time\nprint(time.time_ns())", ["nbval-ignore-output"]),
        )
    )
    return build.Book(root)


def test_build_executes_once_and_writes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setenv("EXPECTED", sys.executable)
    book = small_book(tmp_path)
    (target,) = build.build_notebooks(book)
    first = target.read_bytes()
    cells = code_cells(nbformat.read(target, as_version=4))
    assert cells[1].outputs[0].text == "True chapters\n", "this interpreter, the chapter's folder"
    assert [cell.execution_count for cell in cells] == [1, 2, 3]
    assert build.build_notebooks(book) == []
    assert "chapters/01_tiny: unchanged" in capsys.readouterr().out

    (tmp_path / "constraints.txt").write_text("torch==2.14.0\n")
    assert build.build_notebooks(book) == [], "executed again, same bytes"
    assert "chapters/01_tiny: executing 3 cells" in capsys.readouterr().out
    assert target.read_bytes() == first
    assert list(build.out_of_date(book)) == []

    source = book.sources()[0]
    source.write_text(source.read_text().replace("import sys, os", "import os, sys"))
    assert list(build.out_of_date(book)) == [
        "chapters/01_tiny.ipynb does not hold the cells of its .md"
    ]


def test_a_failing_cell_stops_the_build_and_is_named(tmp_path: Path) -> None:
    book = small_book(tmp_path)
    source = book.sources()[0]
    source.write_text(myst("x = 1", "# the wrong one\nassert x == 2, 'x is one'"))
    with pytest.raises(build.BuildError, match=r"(?s)code cell 2 \(# the wrong one\).*x is one"):
        build.build_notebooks(book)
    assert not source.with_suffix(".ipynb").exists()


def test_an_unknown_chapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="01_tiny"):
        small_book(tmp_path).sources(["07"])


def test_what_an_output_depends_on_is_in_the_hash(tmp_path: Path) -> None:
    book = small_book(tmp_path)
    (source,) = book.sources()
    seen = {build.inputs_digest(book, source)}
    for name in ("refimpl/a.py", "labkit/b.py", "figures/c.py", "refimpl/data/d.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
        seen.add(build.inputs_digest(book, source))
    (tmp_path / "figures" / "svg").mkdir()
    (tmp_path / "figures" / "svg" / "e.svg").write_text("<svg/>")
    seen.add(build.inputs_digest(book, source))
    assert len(seen) == 5, "each source counts, a drawn figure does not"


def test_a_site_needs_executed_chapters(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="no chapter is executed"):
        build.render(small_book(tmp_path))
