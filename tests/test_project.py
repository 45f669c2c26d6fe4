"""The project's own files agree: pins, extras, conda, README, CI, licences, tests and cases."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from labkit import changed, pins
from labkit.kernels import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(r) for r in [*PROJECT["dependencies"], *EXTRAS["book"], *EXTRAS["test"]]
]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):(?!=)", MAKEFILE, re.MULTILINE))


def tracked() -> list[Path]:
    """Return the files that git tracks or would track."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [
        ROOT / name for name in sorted(set(done.stdout.splitlines())) if (ROOT / name).is_file()
    ]


# --- versions ---------------------------------------------------------------------------------


def test_constraints_are_exact_sorted_and_unique() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [line.partition("==")[0] for line in lines if line and not line.startswith("#")]
    assert len(pins.read_pins()) > 100
    assert len({canonicalize_name(name) for name in names}) == len(names)
    assert all(name == canonicalize_name(name) for name in names)
    assert not any("+" in line for line in lines if not line.startswith("#"))


def closure(requirements: list[Requirement]) -> set[str]:
    """Return the names of all packages that some requirements bring in, as installed here."""
    found: dict[str, set[str]] = {}
    todo = [(r.name, set(r.extras)) for r in requirements if not r.marker or r.marker.evaluate()]
    while todo:
        name, extras = todo.pop()
        name = canonicalize_name(name)
        if name in found and extras <= found[name]:
            continue
        found.setdefault(name, set()).update(extras)
        for line in importlib.metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in ("", *found[name])
            ):
                todo.append((need.name, set(need.extras)))
    return set(found)


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != pins.PYTHON,
    reason="the pins are those of Linux and one Python minor",
)
def test_constraints_hold_the_whole_closure_and_nothing_else() -> None:
    # torch's own builds for accelerators come with libraries that torch itself pins.
    needed = {name for name in closure(REQUIREMENTS) if not re.match(r"(nvidia|cuda)-", name)}
    assert set(pins.read_pins()) == needed


@pytest.mark.parametrize("line", ["torch>=2.13", "torch-2.13.0", "torch", "-e .", "torch=2.13"])
def test_a_line_that_is_no_pin_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text(f"numpy==2.4.6\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(line)):
        pins.read_pins(path)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda r: r.name)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    if requirement.marker and not requirement.marker.evaluate():
        pytest.skip(f"not for {sys.platform}")
    version = pins.read_pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)
    assert requirement.specifier, "a range says what the code needs"


def test_the_two_pins_that_must_match() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "\ntorch==2.13.0\n" in text
    assert "\ntriton==3.7.1 ; sys_platform == 'linux'\n" in text
    (triton,) = [r for r in REQUIREMENTS if r.name == "triton"]
    assert triton.marker is not None
    assert not triton.marker.evaluate({"sys_platform": "darwin"})
    assert not triton.marker.evaluate({"sys_platform": "win32"})


@pytest.mark.case("NB-05")
@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != pins.PYTHON,
    reason="the pins are those of Linux and one Python minor",
)
def test_what_is_installed_is_what_is_pinned() -> None:
    assert pins.drift(pins.read_pins()) == [], "outputs would not be compared; run `make distclean`"


def test_drift_is_seen() -> None:
    assert pins.drift({"numpy": "0.1"})[0].startswith("numpy ")
    assert pins.drift({"no-such-package": "1.0"}) == [
        "no-such-package is not installed (pinned: 1.0)"
    ]
    assert pins.drift({"torch": torch.__version__.split("+")[0]}) == []


def test_conda_agrees_with_pyproject_and_constraints() -> None:
    assert CONDA["name"] == PROJECT["name"]
    assert "conda-forge" in CONDA["channels"]
    plain = [item for item in CONDA["dependencies"] if isinstance(item, str)]
    (pip,) = [item["pip"] for item in CONDA["dependencies"] if isinstance(item, dict)]
    specs = {}
    for item in plain:
        # conda's single '=' is a prefix match; everything else is written as packaging writes it.
        spec = Requirement(re.sub(r"^([a-z]+)=([\d.]+)$", r"\1==\2.*", item))
        specs[spec.name] = spec.specifier
    python = f"{pins.PYTHON[0]}.{pins.PYTHON[1]}"
    assert specs["python"].contains(f"{python}.0")
    assert not specs["python"].contains("3.12.0")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.0")
    assert specs["pip"].contains("23.2")
    assert pip == ["--constraint constraints.txt", "--editable .[book,test]"]
    extras = Requirement(f"x{pip[1].removeprefix('--editable .')}").extras
    assert extras <= set(EXTRAS)


def test_version_is_the_same_everywhere() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    init = (ROOT / "refimpl" / "__init__.py").read_text(encoding="utf-8")
    (stated,) = re.findall(r'^__version__ = "([^"]+)"$', init, re.MULTILINE)
    assert PROJECT["version"] == cff["version"] == stated
    assert set(cff["license"]) == {"Apache-2.0", "CC-BY-4.0"}
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0"


def test_licences_are_whole() -> None:
    code = (ROOT / "LICENSE").read_text(encoding="utf-8")
    text = (ROOT / "LICENSE-text").read_text(encoding="utf-8")
    assert "Apache License" in code and "END OF TERMS AND CONDITIONS" in code
    assert "Attribution 4.0 International" in text and "Section 8 -- Interpretation." in text


# --- commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "site/instructors.md"])
def test_make_targets_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z]+)", text) + re.findall(r"^make ([a-z]+)", text, re.M))
    assert named <= TARGETS
    assert named


def test_python_commands_that_are_named_exist() -> None:
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") + MAKEFILE
    named = set(re.findall(r"-m ((?:refimpl|labkit|figures)[\w.]*)", text))
    assert {"labkit.build", "refimpl"} <= named
    for module in named:
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_two_commands_are_on_the_first_screen() -> None:
    first = "\n".join(README.splitlines()[:40])
    for command in ("make book", "make test", "labkit.build book", "-m pytest"):
        assert command in first


def test_every_target_has_a_line_of_help_or_is_a_step_of_one() -> None:
    documented = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))
    assert TARGETS - documented <= {"lint", "unit", "nbval"}
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


@pytest.mark.skipif(sys.platform == "win32", reason="there is no make")
def test_make_test_runs_lint_tests_and_notebooks() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "PYTHON=python3", "test"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    for part in ("-c constraints.txt", "refimpl fetch", "ruff check", "ruff format --check"):
        assert part in done.stdout
    assert "-m pytest tests " in done.stdout
    assert re.search(r"-m pytest chapters .*--dist loadfile", done.stdout)


def test_ci_is_make_test() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# --- what must not be in the repository -------------------------------------------------------

# Written in pieces, so that this file does not hold what it looks for.
MACHINE = re.compile(
    r"(?<![\w./-])/(?:work|root|home|Users|mnt|tmp)/(?!reader\b)\w"
    r"|\b(?:pypi|files\.pythonhosted|download\.pytorch|registry\.npmjs|deb\.debian"
    r"|(?:repo|conda)\.anaconda)\.(?:org|com)\b"
)


def test_no_path_of_a_machine_and_no_registry_host() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in MACHINE.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "parts",
    [("see /", "work/x"), ("cd /", "root/a"), ("open /", "home/ann"), ("https://py", "pi.org/")],
)
def test_a_path_of_a_machine_is_seen(parts: tuple[str, str]) -> None:
    assert MACHINE.search("".join(parts))


def test_data_files_are_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]
    for path in tracked():
        package, *rest = path.relative_to(ROOT).parts
        if package in patterns and path.suffix != ".py":
            assert any(Path(*rest).match(p) for p in patterns[package]), path.name


def test_nothing_large_or_built_is_tracked() -> None:
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        assert path.stat().st_size < 4 * 2**20, f"{name} is larger than 4 MiB"
        assert not name.startswith((".venv/", "_build/")), name
        assert "__pycache__" not in name and ".egg-info" not in name


# --- tests that can fail ----------------------------------------------------------------------

TEST_FILES = sorted((ROOT / "tests").glob("test_*.py"))
# Where there is no Triton, the tests of its kernels are skipped as whole files.
SKIPPED = [
    path
    for path in TEST_FILES
    if "allow_module_level" in path.read_text(encoding="utf-8")
    and path.name != Path(__file__).name
    and importlib.util.find_spec("triton") is None
]


def written_tests(path: Path) -> set[str]:
    """Return the names of the tests that a file defines, by reading it."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name.startswith("test")
            }
    return names


@pytest.mark.case("NB-17")
def test_every_written_test_is_collected(collected: Any) -> None:
    files = [path for path in TEST_FILES if path not in SKIPPED]
    written = {f"tests/{path.name}::{name}" for path in files for name in written_tests(path)}
    found = {re.sub(r"\[.*", "", node, flags=re.S) for node in collected.nodes}
    # hypothesis state machines are collected as classes made from an attribute
    assert written - found == set()
    assert len(collected.nodes) >= len(written) > 0
    for path in files:
        assert any(node.startswith(f"tests/{path.name}::") for node in found), path.name


def test_files_of_tests_are_named_so_that_they_are_collected() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.name.startswith("test_"):
            assert written_tests(path) == set(), f"{path.name} is not collected"


def swallowed(source: str) -> list[str]:
    """Return the places in a test file where an error would go unnoticed.

    Helper functions may catch errors: some play a reader who does.
    """
    tree = ast.parse(source)
    helpers = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test")
    ]
    inside_helpers = {id(child) for helper in helpers for child in ast.walk(helper)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            names = ast.unparse(node.type) if node.type else ""
            missing = re.search(r"ImportError|ModuleNotFound", names)
            broad = missing or re.search(r"\b(Base)?Exception\b", names)
            silent = all(isinstance(s, ast.Pass | ast.Continue) for s in node.body)
            helper = id(node) in inside_helpers and not missing
            if not names or (broad and silent and not helper):
                found.append(f"line {node.lineno}: except {names}")
        elif isinstance(node, ast.Assert):
            test = node.test
            if isinstance(test, ast.Constant) and test.value:
                found.append(f"line {node.lineno}: a constant is asserted")
            if isinstance(test, ast.Tuple) and test.elts:
                found.append(f"line {node.lineno}: a tuple is asserted")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            checks = [n for n in ast.walk(node) if isinstance(n, ast.Assert)]
            if checks and all(ast.unparse(c.test).startswith("hasattr(") for c in checks):
                found.append(f"line {node.lineno}: {node.name} asserts hasattr and nothing else")
    return found


@pytest.mark.case("NB-17")
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda p: p.stem)
def test_no_test_swallows_an_error(path: Path) -> None:
    assert swallowed(path.read_text(encoding="utf-8")) == []


@pytest.mark.case("NB-17")
@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import refimpl.nothing\nexcept ImportError:\n    pass",
        "try:\n    f()\nexcept:\n    x = 1",
        "try:\n    f()\nexcept Exception:\n    pass",
        "assert True",
        "assert (1 == 2, 'never false')",
        "def test_x():\n    assert hasattr(refimpl, 'attend')",
    ],
)
def test_a_swallowed_error_is_seen(source: str) -> None:
    assert len(swallowed(source)) == 1


def case_ids() -> list[str]:
    """Return the ids in every tests/data/cases*.json, wherever in the file they stand."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("id"), str):
                found.append(value["id"])
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    for path in sorted((ROOT / "tests" / "data").glob("cases*.json")):
        walk(json.loads(path.read_text(encoding="utf-8")))
    return found


def test_cases_and_marked_tests_are_the_same(collected: Any) -> None:
    ids = case_ids()
    assert len(set(ids)) == len(ids), "an id stands twice"
    marked = {case for cases in collected.nodes.values() for case in cases}
    for path in SKIPPED:
        marked |= set(re.findall(r'mark\.case\("([^"]+)"\)', path.read_text(encoding="utf-8")))
    assert marked == set(ids)


@pytest.mark.case("NB-08")
def test_the_same_seed_gives_the_same_on_the_cpu() -> None:
    code = (
        "import torch\n"
        "from refimpl.architecture import Architecture\n"
        "from refimpl.model import Decoder\n"
        "from refimpl.decode import generate_naive\n"
        "from refimpl.sampling import Sampler\n"
        "torch.manual_seed(5)\n"
        "arch = Architecture('tiny', num_layers=2, model_width=24, num_query_heads=6,\n"
        "    num_kv_heads=2, head_dim=4, mlp_width=40, vocab_size=53, max_context=32)\n"
        "model = Decoder(arch).eval()\n"
        "assert {p.device.type for p in model.parameters()} == {'cpu'}\n"
        "tokens = [3, 1, 4, 1, 5]\n"
        "ids = generate_naive(model, tokens, max_new_tokens=7, sampler=Sampler(temperature=0.9),\n"
        "    generator=torch.Generator().manual_seed(9))\n"
        "with torch.no_grad():\n"
        "    print(ids, model(torch.tensor([tokens]))[0, -1].tolist())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            cwd=ROOT,
        ).stdout
        for _ in range(2)
    ]
    ids = [run.partition("] ")[0] for run in runs]
    logits = [torch.tensor(json.loads(run.partition("] ")[2])) for run in runs]
    assert ids[0] == ids[1]
    assert (logits[0] - logits[1]).abs().max() <= 1e-6


# --- what a change touches --------------------------------------------------------------------


def make_tree(root: Path) -> None:
    """Write a small project: two modules of which one imports the other, tests, a chapter."""
    files = {
        "refimpl/__init__.py": "",
        "refimpl/low.py": "",
        "refimpl/high.py": "from refimpl import low",
        "labkit/tool.py": "",
        "tests/test_floors.py": "",
        "tests/test_low.py": "from refimpl.low import x",
        "tests/test_high.py": "import refimpl.high",
        "tests/test_tool.py": "from labkit import tool",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "chapters").mkdir()
    cell = {"cell_type": "code", "source": "from refimpl import high", "metadata": {}}
    cell |= {"outputs": [], "execution_count": 1, "id": "a"}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (root / "chapters" / "01_x.ipynb").write_text(json.dumps(notebook))


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        ([], []),
        (["README.md"], []),
        (["tests/test_low.py"], ["tests/test_low.py"]),
        (["refimpl/high.py"], ["chapters/01_x.ipynb", "tests/test_high.py"]),
        (
            ["refimpl/low.py"],
            ["chapters/01_x.ipynb", "tests/test_high.py", "tests/test_low.py"],
        ),
        (["labkit/tool.py"], ["tests/test_tool.py"]),
        (["chapters/01_x.md"], ["chapters/01_x.ipynb"]),
    ],
)
def test_a_change_touches_what_imports_it(
    tmp_path: Path, touched: list[str], expected: list[str]
) -> None:
    make_tree(tmp_path)
    assert changed.affected(touched, tmp_path) == sorted([*expected, "tests/test_floors.py"])
