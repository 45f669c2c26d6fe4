"""What the calculators share: models and accelerators by name, readable sizes, tables."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from refimpl.architecture import Architecture
from refimpl.cli import text
from refimpl.hardware import Accelerator, parse_node
from refimpl.sizing import BYTES_PER_ELEMENT
from refimpl.units import format_bytes, format_si_bytes, parse_size

DTYPES = tuple(BYTES_PER_ELEMENT)
MODEL_HELP = "a name of the zoo, a config.json or its folder, or a hub name owner/model"
NODE_HELP = "how many of which accelerator, as in 8xh100-sxm; 'here' measures this machine"


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """The options every calculator has: context, dtypes, JSON."""
    parser.add_argument(
        "--context",
        type=size,
        default=4096,
        metavar="N",
        help="tokens of each sequence, as in 128k; default: %(default)s",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="of the weights; default: %(default)s"
    )
    parser.add_argument(
        "--cache-dtype", choices=DTYPES, default="bf16", help="default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def add_node(parser: argparse.ArgumentParser) -> None:
    """Which accelerators, and how much memory each has."""
    parser.add_argument("--gpus", type=node, required=True, metavar="NxNAME", help=NODE_HELP)
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="of each, where it is not as on the data sheet: 80GiB, 24GB",
    )


def size(value: str) -> int:
    """A readable size of at least 1, for argparse."""
    number = _told(parse_size)(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is too small: at least 1")
    return number


def share(value: str) -> float:
    """A share, ``10%`` or ``0.1``, for argparse."""
    number = value.strip()
    return text.number(number[:-1]) / 100 if number.endswith("%") else text.number(number)


def node(value: str) -> tuple[int, Accelerator | None]:
    """``8xh100-sxm`` as a count and an accelerator; ``None`` stands for this machine."""
    count, name = _told(parse_node)(value)
    return count, None if name.lower() == "here" else _told(Accelerator.named)(name)


def _told(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same for argparse, which swallows the words of a ``ValueError``."""

    def told(value: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return told


def accelerator(options: argparse.Namespace) -> tuple[int, Accelerator]:
    """The count and the accelerator asked for, measured if it is this machine."""
    count, found = options.gpus
    if found is None:
        from refimpl import machine

        with text.patience("measuring this machine"):
            found = machine.measure()
    if options.memory is not None:
        found = dataclasses.replace(found, memory_bytes=options.memory)
    return count, found


def architecture(name: str) -> Architecture:
    """The model that a name of the zoo, a path or a hub name stands for."""
    path = Path(name).expanduser()
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return _from_file(path, name)
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        raise ValueError(f"there is no file {name!r}")
    if name.count("/") == 1:
        return _from_file(_hub_config(name), name)
    return Architecture.named(name)


def _from_file(path: Path, name: str) -> Architecture:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {name!r}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{name!r} holds no JSON object")
    try:
        found = Architecture.from_hf_config(config)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from error
    return dataclasses.replace(found, name=name)


def _hub_config(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:  # many kinds, of the network and of the hub
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"could not get the config of {name!r} from the hub: {reason}") from error


def both(num_bytes: int) -> str:
    """A size in decimal and binary units."""
    return f"{format_si_bytes(num_bytes)} ({format_bytes(num_bytes)})"


def table(rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Rows as aligned columns: those of ``words`` to the left, figures to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if column in words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
