"""Perturb the reference implementation under a chapter and see that the chapter notices.

A chapter that stays green when ``refimpl`` lies to it checks nothing. For each public function
or method of refimpl that a chapter's cells use, its results are changed a little and nbval runs
the chapter until the first red cell. No file is touched: the change is made inside the Jupyter
kernel at its start, by a startup file in a temporary IPython profile.

================================  ===========================================
a result that is                  becomes
================================  ===========================================
a float, a tensor of floats       × 1.01 (+ 0.01 where it is zero)
an int, a tensor of ints          + 1 (the first element of a tensor)
a bool, a string                  its opposite, the same with a mark
a list, a tuple, a dict           the same with its first element perturbed
a dataclass                       the same with its first numeric field perturbed
nothing (``-> None``)             the call does not happen
anything else                     left alone and reported as opaque
================================  ===========================================

``python -m labkit.sabotage [NAME…]`` prints one line per function and fails if one survives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.kernels import ROOT, kernel_environment

PACKAGE = "refimpl"
NOTEBOOK_TIMEOUT_S = 600
_STARTUP = "__import__('importlib').import_module('labkit.sabotage').apply_from_environment()\n"
_OPAQUE = "opaque"


@dataclass(frozen=True, order=True)
class Target:
    """A function (``attend``) or a method or property (``ContiguousCache.read``) of a module."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.removeprefix(PACKAGE + '.')}.{self.name}"


# --- which functions a chapter uses -----------------------------------------------------------


def _is_ours(thing: object) -> bool:
    module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", "")
    return str(module).split(".")[0] == PACKAGE


def _return_type(function: Any) -> Any:
    """Return a function's return annotation, evaluated; None when there is none to be had."""
    try:
        return typing.get_type_hints(inspect.unwrap(function)).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


class _Uses(ast.NodeVisitor):
    """Follow a chapter's names to refimpl: imports, attributes, and variables of known class.

    Types are inferred from constructors and return annotations, without regard to scope. Good
    enough to find ``cache = ContiguousCache(…)`` then ``cache.read(0)``; it never runs a cell.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.instances: dict[str, set[type]] = {}
        self.targets: set[Target] = set()

    # names and what they stand for

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == PACKAGE:
                module = importlib.import_module(alias.name)
                top = importlib.import_module(PACKAGE)
                self.names[alias.asname or PACKAGE] = module if alias.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] != PACKAGE:
            return
        parent = importlib.import_module(str(node.module))
        for alias in node.names:
            if not hasattr(parent, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")
            self.names[alias.asname or alias.name] = getattr(parent, alias.name)

    def resolve(self, node: ast.expr) -> Any:
        """Return the refimpl module, class or function an expression names, or None."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if isinstance(owner, ModuleType | type):
                return getattr(owner, node.attr, None)
        return None

    def classes(self, node: ast.expr) -> set[type]:
        """Return the refimpl classes an expression may be an instance of."""
        if isinstance(node, ast.Name):
            return self.instances.get(node.id, set())
        if isinstance(node, ast.Call):
            return _ours_in(self._called(node))
        if isinstance(node, ast.Attribute):
            return set().union(
                *(_ours_in(_attribute_type(cls, node.attr)) for cls in self.classes(node.value))
            )
        return set()

    def _called(self, node: ast.Call) -> Any:
        function = self.resolve(node.func)
        if isinstance(function, type):
            return function
        if function is not None:
            return _return_type(function)
        if isinstance(node.func, ast.Attribute):
            for cls in self.classes(node.func.value):
                return _return_type(getattr(cls, node.func.attr, None))
        for cls in self.classes(node.func):
            return _return_type(_call_method(cls))
        return None

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.instances.setdefault(target.id, set()).update(self.classes(node.value))
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call):
                parts = typing.get_args(self._called(node.value))
                for element, part in zip(target.elts, parts, strict=False):
                    if isinstance(element, ast.Name):
                        self.instances.setdefault(element.id, set()).update(_ours_in(part))

    def visit_arg(self, node: ast.arg) -> None:
        cls = self.resolve(node.annotation) if node.annotation else None
        if isinstance(cls, type):
            self.instances.setdefault(node.arg, set()).add(cls)

    # uses

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(self.names.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        self._use(self.resolve(node))
        for cls in self.classes(node.value):
            self._use_member(cls, node.attr)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        for cls in self.classes(node.func):
            method = _call_method(cls)
            if method is not None and _is_ours(method):
                self._use_member(cls, method.__name__)

    def _use(self, thing: Any) -> None:
        if isinstance(thing, type | ModuleType) or not callable(thing) or not _is_ours(thing):
            return
        name = getattr(thing, "__qualname__", "")
        if name and "<" not in name and not name.split(".")[-1].startswith("_"):
            self.targets.add(Target(thing.__module__, name))

    def _use_member(self, cls: type, name: str) -> None:
        if (name.startswith("_") and name != "__call__") or getattr(cls, "_is_protocol", False):
            return
        member = inspect.getattr_static(cls, name, None)
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        if callable(inner) and not isinstance(inner, type) and _is_ours(inner):
            self.targets.add(Target(cls.__module__, f"{cls.__qualname__}.{name}"))


def _call_method(cls: type) -> Any:
    """Return what calling an instance runs: ``forward`` for torch modules."""
    return getattr(cls, "forward", None) or cls.__dict__.get("__call__")


def _attribute_type(cls: type, name: str) -> Any:
    member = inspect.getattr_static(cls, name, None)
    if isinstance(member, property):
        return _return_type(member.fget)
    try:
        return typing.get_type_hints(cls).get(name)
    except (NameError, TypeError):
        return None


def _ours_in(annotation: Any) -> set[type]:
    """Return the refimpl classes in an annotation: the class itself, or a union's members."""
    if isinstance(annotation, type) and _is_ours(annotation):
        return {annotation}
    if typing.get_origin(annotation) in (typing.Union, type(int | None)):
        return set().union(*(_ours_in(part) for part in typing.get_args(annotation)))
    return set()


def uses(source: str) -> list[Target]:
    """Return the public functions, methods and properties of refimpl that a source uses."""
    visitor = _Uses()
    visitor.visit(ast.parse(source))
    return sorted(visitor.targets)


def chapter_code(notebook: Path) -> str:
    """Return the code of a notebook as one module; lines of shell or magic are left out."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return re.sub(r"(?m)^\s*[!%].*$", "", "\n".join(sources))


def is_opaque(target: Target) -> bool:
    """Tell from annotations alone that a result is an object there is no honest way to perturb."""
    owner, name = _locate(target)
    member = inspect.getattr_static(owner, name)
    kind = _return_type(getattr(member, "__func__", getattr(member, "fget", member)))
    parts = typing.get_args(kind) if typing.get_origin(kind) is tuple else (kind,)
    return all(
        isinstance(part, type) and _is_ours(part) and not dataclasses.is_dataclass(part)
        for part in parts
    )


def sample(targets: list[Target], count: int, seed: bytes) -> list[Target]:
    """Return ``count`` targets that can be perturbed, chosen by a hash of ``seed``.

    With a chapter's text as seed the choice is fixed for a text and moves on as it is edited.
    """
    able = [target for target in targets if not is_opaque(target)]
    return sorted(able, key=lambda t: hashlib.sha256(seed + str(t).encode()).digest())[:count]


# --- the perturbation, inside the kernel ------------------------------------------------------


def perturb(value: Any) -> tuple[Any, str]:
    """Return a changed value and what was done; ``(value, "opaque")`` if nothing could be."""
    if isinstance(value, bool):
        return not value, "bool flipped"
    if isinstance(value, int):
        return value + 1, "int + 1"
    if isinstance(value, float):
        return (value * 1.01 if value else 0.01), "float × 1.01"
    if isinstance(value, str):
        return value + "~", "string marked"
    if type(value).__module__ == "torch" and hasattr(value, "numel"):  # a dtype has none
        return _perturb_tensor(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            if field.init and isinstance(old, int | float) and not isinstance(old, bool):
                new, what = perturb(old)
                return dataclasses.replace(value, **{field.name: new}), f".{field.name}: {what}"
        return value, _OPAQUE
    if isinstance(value, dict):
        for key, old in value.items():
            new, what = perturb(old)
            if what != _OPAQUE:
                return {**value, key: new}, f"[{key!r}]: {what}"
    if isinstance(value, list | tuple):
        for i, old in enumerate(value):
            new, what = perturb(old)
            if what != _OPAQUE:
                items = [*value[:i], new, *value[i + 1 :]]
                made = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
                return made, f"element {i}: {what}"
    return value, _OPAQUE


def _perturb_tensor(tensor: Any) -> tuple[Any, str]:
    if tensor.numel() == 0:
        return tensor, _OPAQUE
    if tensor.is_floating_point():
        if not bool(tensor.any()):
            return tensor + 0.01, "zeros + 0.01"
        return tensor * 1.01, "tensor × 1.01"
    changed = tensor.clone()
    first = (0,) * changed.dim()
    if changed.dtype.__str__() == "torch.bool":
        changed[first] = not changed[first]
        return changed, "first bool flipped"
    changed[first] += 1
    return changed, "first int + 1"


def _locate(target: Target) -> tuple[Any, str]:
    """Return the module or class that holds a target, and the name it has there."""
    owner: Any = importlib.import_module(target.module)
    *path, name = target.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, name


def _wrap(function: Callable[..., Any], report: Callable[[str], None]) -> Callable[..., Any]:
    """Return a function that does what ``function`` does and perturbs what it returns."""
    if _return_type(function) is type(None):

        @functools.wraps(function)
        def changed(*args: Any, **kwargs: Any) -> Any:
            report("call dropped")

    else:

        @functools.wraps(function)
        def changed(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            if inspect.isgenerator(value):
                return _each(value, report)
            if isinstance(value, contextlib.AbstractContextManager):
                return _entered(value, report)
            new, what = perturb(value)
            report(what)
            return new

    return changed


def _each(items: Iterator[Any], report: Callable[[str], None]) -> Iterator[Any]:
    """What a generator yields, each item perturbed."""
    for item in items:
        new, what = perturb(item)
        report(f"each item: {what}")
        yield new


@contextlib.contextmanager
def _entered(
    manager: contextlib.AbstractContextManager[Any], report: Callable[[str], None]
) -> Iterator[Any]:
    """The same context, with what it hands out perturbed."""
    with manager as value:
        new, what = perturb(value)
        report(what)
        yield new


def apply(target: Target, report: Callable[[str], None] = lambda what: None) -> None:
    """Perturb a target in this process, in every loaded module of refimpl that holds it.

    ``report`` is told, at each call, what was done to the result.
    """
    owner, name = _locate(target)
    original = inspect.getattr_static(owner, name)
    if isinstance(original, property):
        changed: Any = property(_wrap(original.fget, report), original.fset, original.fdel)
    elif isinstance(original, staticmethod | classmethod):
        changed = type(original)(_wrap(original.__func__, report))
    else:
        changed = _wrap(original, report)
    setattr(owner, name, changed)
    if isinstance(owner, ModuleType):
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] == PACKAGE]:
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, changed)


def apply_from_environment() -> None:
    """Apply what ``LABKIT_SABOTAGE`` names; run by the kernel's startup file."""
    order = json.loads(os.environ["LABKIT_SABOTAGE"])
    path = Path(order["report"])
    done: set[str] = set()

    def report(what: str) -> None:
        if what not in done:
            done.add(what)
            path.write_text(json.dumps(sorted(done)), encoding="utf-8")

    apply(Target(*order["target"]), report)
    path.write_text("[]", encoding="utf-8")


# --- running a chapter ------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What nbval said about a chapter: red or green, its first red cell, what was perturbed."""

    target: Target | None
    red: bool
    cell: str
    perturbation: str

    @property
    def verdict(self) -> str:
        """One word, or the reason why there is none."""
        if self.perturbation == "never called":
            return "NEVER CALLED"
        if self.perturbation == _OPAQUE:
            return "opaque"
        return f"red at {self.cell}" if self.red else "SURVIVED"

    @property
    def ok(self) -> bool:
        """Whether the chapter noticed, or there was nothing to notice."""
        return self.perturbation == _OPAQUE or (self.red and self.perturbation != "never called")


def run(notebook: Path, target: Target | None = None, threads: int | None = None) -> Outcome:
    """Run a notebook under nbval, perturbed or not, up to its first red cell.

    Raises:
        RuntimeError: pytest could not run, or the perturbation never reached the kernel.
    """
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        env = {k: v for k, v in kernel_environment(threads).items() if not k.startswith("PYTEST_")}
        report = Path(folder) / "report.json"
        if target is not None:
            startup = Path(folder) / "profile_default" / "startup"
            startup.mkdir(parents=True)
            (startup / "00-sabotage.py").write_text(_STARTUP, encoding="utf-8")
            order = {"report": str(report), "target": [target.module, target.name]}
            env.update(IPYTHONDIR=folder, LABKIT_SABOTAGE=json.dumps(order))
        command = [sys.executable, "-m", "pytest", str(notebook), "-x", "-q", "--color=no"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=env,
                capture_output=True,
                text=True,
                timeout=NOTEBOOK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{notebook.name}: no end after {NOTEBOOK_TIMEOUT_S} s") from error
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{notebook.name}: pytest stopped:\n{done.stdout[-2000:]}")
        red = done.returncode == 1
        match = re.search(r"^(?:FAILED|ERROR) .*::(Cell \d+)", done.stdout, re.MULTILINE)
        if red and match is None:
            raise RuntimeError(f"{notebook.name}: red, but at no cell:\n{done.stdout[-2000:]}")
        if target is None:
            return Outcome(None, red, match[1] if match else "", "unperturbed")
        if not report.exists():
            raise RuntimeError(f"{notebook.name}: {target} was not perturbed in the kernel")
        what = [w for w in json.loads(report.read_text(encoding="utf-8")) if w != _OPAQUE]
        if not what:
            called = report.read_text(encoding="utf-8") != "[]"
            what = [_OPAQUE if called else "never called"]
        return Outcome(target, red, match[1] if match else "", ", ".join(what))


def measures_time(notebook: Path, cell: str) -> bool:
    """Tell whether a red cell (``Cell 14``) is one whose output nbval does not compare."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    return "nbval-ignore-output" in code[int(cell.split()[1])]["metadata"].get("tags", [])


def settled(notebook: Path, target: Target | None = None, threads: int | None = None) -> Outcome:
    """Run a notebook; if a cell that measures time is red, run again and believe the second.

    Such a cell can be red because the machine was busy: that is not the chapter noticing.
    """
    outcome = run(notebook, target, threads)
    if outcome.red and measures_time(notebook, outcome.cell):
        outcome = run(notebook, target, threads)
    return outcome


def sabotage(notebook: Path, workers: int = 2) -> Iterator[Outcome]:
    """Yield the unperturbed outcome, then one outcome per function, as they finish."""
    baseline = settled(notebook)
    yield baseline
    if baseline.red:
        return
    threads = max(1, min(2, (os.cpu_count() or 1) // workers))
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(settled, notebook, t, threads) for t in uses(chapter_code(notebook))]
        for job in as_completed(jobs):
            yield job.result()


def main(arguments: list[str] | None = None) -> int:
    """Sabotage chapters, print a line per function, return 1 if a chapter did not notice one."""
    parser = argparse.ArgumentParser(prog="python -m labkit.sabotage")
    parser.add_argument("names", nargs="*", help="chapters, by name or by number: 01")
    parser.add_argument("--workers", type=int, default=2, help="kernels at a time")
    options = parser.parse_args(arguments)
    notebooks = [
        path
        for path in sorted((ROOT / "chapters").glob("*.ipynb"))
        if not options.names or any(path.stem.startswith(Path(n).stem) for n in options.names)
    ]
    if not notebooks:
        print(f"no chapter matches {' '.join(options.names) or 'chapters/*.ipynb'}")
        return 1
    failed = 0
    for notebook in notebooks:
        print(f"\n{notebook.stem}", flush=True)
        for outcome in sabotage(notebook, options.workers):
            if outcome.target is None:
                print(f"  unperturbed: {'RED at ' + outcome.cell if outcome.red else 'green'}")
                failed += outcome.red
                continue
            failed += not outcome.ok
            name, what = str(outcome.target), outcome.perturbation
            print(f"  {name:<38} {what:<34} {outcome.verdict}", flush=True)
    print(f"\n{failed} not noticed" if failed else "\nevery perturbation was noticed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
