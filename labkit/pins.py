"""Read constraints.txt and compare it with what is installed."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from labkit.kernels import ROOT

PYTHON = (3, 11)
"""The Python minor the committed outputs were made with."""

_LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)"
    r"(?:\s*;\s*sys_platform == '(?P<platform>\w+)')?$"
)


def canonical(name: str) -> str:
    """Return a package's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Return name → version for the pins that apply on this platform.

    Raises:
        ValueError: a line is not an exact pin; the message holds the line.
    """
    pins = {}
    for raw in path.read_text(encoding="utf-8").splitlines():
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{path.name}: {line!r} is not of the form name==version")
        if match["platform"] in (None, sys.platform):
            pins[canonical(match["name"])] = match["version"]
    return pins


def drift(pins: dict[str, str]) -> list[str]:
    """Return one line per pinned package that is installed in another version or not at all.

    A local suffix (``2.13.0+cpu``) counts as the version it is a build of.
    """
    lines = []
    for name, version in pins.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed (pinned: {version})")
            continue
        if installed.split("+", 1)[0] != version:
            lines.append(f"{name} {installed} (pinned: {version})")
    return lines


def reason_not_strict() -> str:
    """Return why outputs cannot be compared letter by letter here; empty where they can."""
    if sys.platform != "linux" or platform.machine().lower() not in {"x86_64", "amd64"}:
        return f"{platform.system()} on {platform.machine()}, not Linux on x86-64"
    if sys.version_info[:2] != PYTHON:
        return f"Python {sys.version_info[0]}.{sys.version_info[1]}, not {PYTHON[0]}.{PYTHON[1]}"
    changed = drift(read_pins())
    if changed:
        return f"{len(changed)} packages differ from constraints.txt: {', '.join(changed[:3])}"
    return ""
