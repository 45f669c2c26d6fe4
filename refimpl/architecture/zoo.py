"""Models by name, from the data file that says where each shape was read."""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from refimpl.architecture.core import Architecture, Detail
from refimpl.architecture.layers import Layer
from refimpl.architecture.reading import read

_ZOO = Path(__file__).parent.parent / "data" / "architectures.json"


@dataclass(frozen=True)
class Entry:
    """What is known about a model of the zoo beside its shape.

    ``source`` says where the shape was read, ``date`` when; ``unverified`` lists what could not be
    confirmed there, and is empty for most.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    source: tuple[str, ...]
    date: str
    unverified: tuple[str, ...]
    note: str


def names() -> tuple[str, ...]:
    """Every model of the zoo, in the order of the file: oldest family first."""
    return tuple(_rows())


def entry(name: str) -> Entry:
    """Where a model's shape was read, and how sure it is."""
    name = _canonical(name)
    row = _rows()[name]
    return Entry(
        name=name,
        title=row["title"],
        aliases=tuple(row["aliases"]),
        source=tuple(row["source"]),
        date=_data()["date"],
        unverified=tuple(row["unverified"]),
        note=row.get("note", ""),
    )


def config(name: str) -> dict[str, Any] | None:
    """The configuration that a model's shape is read from; ``None`` if it never had one."""
    return _rows()[_canonical(name)].get("config")


def named(name: str) -> Architecture:
    """The architecture of a model in the zoo; a name that is not there suggests near ones."""
    return _built(_canonical(name))


@cache
def _built(name: str) -> Architecture:
    row = _rows()[name]
    if "config" in row:
        return read({"_name_or_path": name, **row["config"]})
    shape = dict(row["shape"])
    layers = (Layer(**shape.pop("layer")),) * shape["num_layers"]
    counts = {key: shape.pop(key) for key in list(shape) if key.endswith("_parameters")}
    detail = Detail(layers=layers, unsupported="it was never published", **counts)
    return Architecture(name=name, rope_theta=None, norm_eps=None, detail=detail, **shape)


def _canonical(name: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a model's name is a string, got {name!r}")
    known = _aliases()
    if name.lower() in known:
        return known[name.lower()]
    short = [alias for alias in known if "/" not in alias]
    near = [known[found] for found in difflib.get_close_matches(name.lower(), short, 6, 0.4)]
    near = list(dict.fromkeys(near))[:3]
    hint = f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(names())}"
    raise ValueError(f"unknown model {name!r}{hint}")


@cache
def _data() -> dict[str, Any]:
    return json.loads(_ZOO.read_text(encoding="utf-8"))


@cache
def _rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _data()["architectures"]}


@cache
def _aliases() -> dict[str, str]:
    found = {name: name for name in _rows()}
    for name, row in _rows().items():
        found |= {alias: name for alias in row["aliases"]}
    return found
