"""``doctor``: is everything here that the book needs, and what to do where it is not."""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from refimpl.cli import fetch, text

HELP = "check versions, model, cores, memory and disk"
INSTALL = "python -m pip install -c constraints.txt -e '.[book,test]'"
REQUIRED = ("torch", "numpy", "tokenizers", "safetensors")
# Room for the environment, the model and a build.
DISK_BYTES = 2 * 2**30


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report; ``fix`` says what to do and is set exactly when it failed."""

    name: str
    found: str
    fix: str | None = None

    @property
    def ok(self) -> bool:
        return self.fix is None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the form of the report."""
    parser.add_argument("--json", action="store_true", help="a JSON object instead of lines")


def run(options: argparse.Namespace) -> int:
    """Print every check; 0 only when all are green."""
    checks = []
    for name, examine in CHECKS.items():
        with text.patience(f"{name} is being checked"):
            checks.append(_guarded(name, examine))
        if not options.json:
            _show(checks[-1])
    green = all(check.ok for check in checks)
    if options.json:
        print(json.dumps({"ok": green, "checks": [_as_json(check) for check in checks]}))
    else:
        failed = sum(not check.ok for check in checks)
        print("all green" if green else f"{failed} of {len(checks)} need attention")
    return 0 if green else 1


def python() -> Check:
    """The interpreter."""
    wanted = sys.version_info >= (3, 11)
    fix = None if wanted else "use Python 3.11 or newer: PYTHON=python3.11 make book"
    return Check("python", f"{platform.python_version()} on {platform.system()}", fix)


def packages() -> Check:
    """What refimpl imports, and the peers it is compared with."""
    names = (*REQUIRED, "triton", "transformers")
    found = {name: _version(name) for name in names}
    needed = REQUIRED + (("triton",) if sys.platform == "linux" else ())
    missing = [name for name in needed if found[name] is None]
    listed = ", ".join(f"{name} {version or 'absent'}" for name, version in found.items())
    return Check(
        "packages", listed, f"{INSTALL}  (missing: {', '.join(missing)})" if missing else None
    )


def pins() -> Check:
    """The installed versions against constraints.txt, where this is a checkout."""
    path = _checkout() / "constraints.txt"
    if not path.is_file():
        return Check("pins", "not a checkout: there is no constraints.txt to compare with")
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text("utf-8"), re.M))
    found = {name: _version(name) for name in pinned}
    installed = {name: version for name, version in found.items() if version is not None}
    # A local label such as +cpu says how it was built, not which version it is.
    wrong = [
        f"{name} is {version}, pinned {pinned[name]}"
        for name, version in installed.items()
        if version.partition("+")[0] != pinned[name].partition("+")[0]
    ]
    said = f"{len(installed) - len(wrong)} of {len(installed)} installed packages as pinned"
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return Check("pins", said, f"{INSTALL}  ({'; '.join(wrong[:3])}{more})" if wrong else None)


def model() -> Check:
    """The model's file and its checksum."""
    from refimpl import weights

    try:
        path = weights.find_model()
        weights.verify(path)
    except FileNotFoundError as error:
        return Check("model", "absent", f"{error}{fetch.advice()}")
    except (OSError, ValueError) as error:
        return Check("model", "damaged", f"{error}{fetch.advice()}")
    return Check("model", f"{text.short(path)}, SHA-256 {weights.MODEL_SHA256[:12]}… verified")


def triton() -> Check:
    """How Triton kernels would run here. Triton itself is not imported: that fixes its mode."""
    if importlib.util.find_spec("triton") is None:
        if sys.platform == "linux":
            return Check("triton mode", "absent", f"{INSTALL}  (the kernel chapters need it)")
        return Check("triton mode", f"absent: it is not built for {platform.system()}")
    import torch

    asked = os.environ.get("TRITON_INTERPRET", "")
    gpu = torch.cuda.is_available()
    if asked not in ("", "0", "1"):
        return Check(
            "triton mode", f"TRITON_INTERPRET is {asked!r}", "set it to 1 or 0, or unset it"
        )
    if asked == "1":
        return Check("triton mode", "interpreter: TRITON_INTERPRET=1 asks for it")
    if gpu:
        return Check("triton mode", f"compiled for {torch.cuda.get_device_name()}")
    if asked == "0":
        return Check(
            "triton mode", "TRITON_INTERPRET=0 but there is no GPU", "unset TRITON_INTERPRET"
        )
    return Check("triton mode", "interpreter: there is no GPU here")


def cores() -> Check:
    """Cores this process may use, and the threads torch starts."""
    import torch

    from refimpl import machine

    allowed, threads = machine.num_cores(), torch.get_num_threads()
    fix = None
    if threads > allowed:
        fix = f"set OMP_NUM_THREADS={allowed}: threads that wait for a core slow each other down"
    return Check("cores", f"{allowed} of {machine.processor_name()}, {threads} torch threads", fix)


def bandwidth() -> Check:
    """How fast memory is read: what decoding speed is bounded by."""
    from refimpl import machine

    return Check("memory reads", f"{machine.read_bandwidth() / 1e9:.1f} GB/s")


def disk() -> Check:
    """Room where the environment and the build go."""
    from refimpl.units import format_bytes

    free = shutil.disk_usage(_checkout()).free
    fix = None
    if free < DISK_BYTES:
        fix = f"free some space: environment, model and build take up to {format_bytes(DISK_BYTES)}"
    return Check("free disk", format_bytes(free), fix)


CHECKS: dict[str, Callable[[], Check]] = {
    "python": python,
    "packages": packages,
    "pins": pins,
    "model": model,
    "triton mode": triton,
    "cores": cores,
    "memory reads": bandwidth,
    "free disk": disk,
}


def _guarded(name: str, examine: Callable[[], Check]) -> Check:
    """The check, or a failed one where it could not even run."""
    try:
        return examine()
    except ImportError as error:
        return Check(name, f"cannot tell: {error}", INSTALL)
    except Exception as error:
        return Check(name, f"cannot tell: {type(error).__name__}: {error}", f"reinstall: {INSTALL}")


def _show(check: Check) -> None:
    mark = "ok  " if check.ok else "FAIL"
    print(f"{mark}  {check.name:<12}  {' '.join(check.found.split())}")
    if not check.ok:
        print(f"      {'':<12}  -> {' '.join(str(check.fix).split())}")
    sys.stdout.flush()


def _as_json(check: Check) -> dict[str, object]:
    return {**dataclasses.asdict(check), "ok": check.ok}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _checkout() -> Path:
    return Path(__file__).resolve().parents[2]
