"""Models by name, from the data file that says where each shape was read."""

import difflib
import json
from functools import cache
from pathlib import Path

from refimpl.architecture.core import Architecture

_ZOO = Path(__file__).parent.parent / "data" / "architectures.json"


def named(name: str) -> Architecture:
    """The architecture of a model in the zoo; a name that is not there suggests near ones."""
    zoo = _zoo()
    if name.lower() not in zoo:
        near = difflib.get_close_matches(name.lower(), zoo, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(zoo)}"
        raise ValueError(f"unknown model {name!r}{hint}")
    return zoo[name.lower()]


@cache
def _zoo() -> dict[str, Architecture]:
    rows = json.loads(_ZOO.read_text(encoding="utf-8"))["architectures"]
    return {row["name"]: Architecture(**row) for row in rows}
