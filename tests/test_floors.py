"""refimpl stands on five floors: a module imports only from below, or from its left."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.kernels import ROOT, refimpl_modules

FLOORS = (
    ("units", "architecture", "hardware"),
    ("blocks", "prefix", "sizing", "roofline", "capacity"),
    ("rope", "attention", "quant", "machine"),
    ("cache", "flash", "sampling", "model", "weights", "kernels"),
    ("decode", "drafters", "speculative", "engine", "simulate"),
)
WITHOUT_TORCH = FLOORS[0] + FLOORS[1]
RANK = {name: (floor, i) for floor, names in enumerate(FLOORS) for i, name in enumerate(names)}
ENTRY_POINTS = {"__init__", "__main__", "cli"}  # above the house: the CLI may use every floor


def imports(source: str, package: str) -> set[str]:
    """Return every dotted name a source imports; relative imports are resolved in ``package``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1] + ([base] if base else []))
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def violations(module: str, source: str, package: str = "refimpl") -> list[str]:
    """Return the imports of a module (``refimpl.cache``) that its floor does not allow."""
    unit = module.split(".")[1] if "." in module else "__init__"
    wrong = []
    for name in sorted(imports(source, package)):
        top, _, rest = name.partition(".")
        if top in {"labkit", "figures"}:
            wrong.append(f"{module} imports {name}: refimpl never imports what is built around it")
        if top == "torch" and unit in WITHOUT_TORCH:
            wrong.append(f"{module} imports torch: floors 0 and 1 do without it")
        if top == "triton" and unit != "kernels":
            wrong.append(f"{module} imports triton: only refimpl.kernels does")
        if top != "refimpl" or unit in ENTRY_POINTS - {"__init__"} or not rest:
            continue
        other = rest.split(".")[0]
        if other == unit:
            continue
        if unit == "__init__":
            wrong.append(f"refimpl/__init__ imports {name}: it imports nothing")
        elif other in RANK and not RANK[other] < RANK[unit]:
            wrong.append(f"{module} imports {name}: it stands above, or to the right")
    return wrong


def source_of(module: str) -> tuple[str, str]:
    """Return a module's source and the package that its relative imports start from."""
    base = ROOT.joinpath(*module.split("."))
    if base.is_dir():
        return (base / "__init__.py").read_text(encoding="utf-8"), module
    return base.with_suffix(".py").read_text(encoding="utf-8"), module.rpartition(".")[0]


def test_every_module_has_a_floor() -> None:
    units = {name.split(".")[1] for name in refimpl_modules() if "." in name}
    unknown = units - set(RANK) - ENTRY_POINTS
    assert not unknown, f"no floor is named for {sorted(unknown)}; see refimpl/__init__.py"


def test_the_floors_are_those_refimpl_states() -> None:
    text = (ROOT / "refimpl" / "__init__.py").read_text(encoding="utf-8")
    stated = {
        int(line[0]): [name.strip(" `") for name in line[2:].split(",")]
        for line in text.splitlines()
        if line[:1].isdigit() and line[1:2] == "."
    }
    for floor, names in enumerate(FLOORS):
        assert stated[floor] == list(names)


@pytest.mark.parametrize("module", refimpl_modules())
def test_imports_go_down_or_left(module: str) -> None:
    assert violations(module, *source_of(module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("refimpl.units", "import torch"),
        ("refimpl.sizing", "from torch import Tensor"),
        ("refimpl.cache", "import labkit"),
        ("refimpl.cache", "def f():\n    from labkit import check"),
        ("refimpl.rope", "from refimpl.attention import attend"),
        ("refimpl.attention", "from refimpl import model"),
        ("refimpl.model", "from .decode import generate"),
        ("refimpl.model", "import triton"),
        ("refimpl", "from refimpl.model import Decoder"),
        ("refimpl", "from . import model"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("refimpl.attention", "import torch\nfrom refimpl.rope import rotate"),
        ("refimpl.decode", "from refimpl import model, cache"),
        ("refimpl.weights.gguf", "from refimpl.weights.tokenizer import Tokenizer"),
        ("refimpl.__main__", "from refimpl import decode"),
        ("refimpl.kernels.flash", "import triton"),
    ],
)
def test_a_right_import_is_not(module: str, source: str) -> None:
    assert violations(module, source) == []


IMPORT_ALL = """
import importlib, sys
for name in {blocked!r}:
    sys.modules[name] = None
for name in {modules!r}:
    importlib.import_module(name)
print("imported", len({modules!r}))
"""


def importable(blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Import every module of refimpl but kernels and the CLI while some packages are absent."""
    modules = [
        name
        for name in refimpl_modules()
        if not name.startswith("refimpl.kernels") and not name.endswith("__main__")
    ]
    code = IMPORT_ALL.format(blocked=blocked, modules=modules)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.case("NB-07")
def test_refimpl_imports_without_triton_transformers_and_labkit() -> None:
    done = importable(("triton", "transformers", "labkit"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")


def test_a_blocked_package_is_really_absent() -> None:
    done = importable(("torch",))
    assert done.returncode != 0
    assert "torch" in done.stderr


@pytest.mark.case("NB-07")
@pytest.mark.skipif(
    not (ROOT / "refimpl" / "kernels").exists(), reason="the kernels come with their chapter"
)
def test_kernels_without_triton_say_what_to_do() -> None:
    code = "import sys; sys.modules['triton'] = None; import refimpl.kernels"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert "refimpl.flash" in done.stderr, "the message names the alternative"
    assert sys.platform in done.stderr, "and the platform"


def test_importing_refimpl_and_labkit_is_cheap() -> None:
    code = (
        "import sys, refimpl, labkit; "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(ROOT))
