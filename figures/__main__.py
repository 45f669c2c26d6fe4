"""``python -m figures``: write the book's figures, compare them, or say what they show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import matplotlib

import figures
from figures.record import FOLDER


def stale() -> list[str]:
    """What differs between the drawing code and the committed files, one line each."""
    catalogue = figures.catalogue()
    problems = []
    for name, record in catalogue.items():
        if not record.path.exists():
            problems.append(f"{name}: not drawn yet")
        elif record.path.read_bytes() != record.svg():
            problems.append(f"{name}: differs from what the code draws")
    for path in sorted(FOLDER.glob("*.svg")):
        if path.stem not in catalogue:
            problems.append(f"{path.stem}: no code draws it")
    return problems


def write(chosen: Sequence[str]) -> list[str]:
    """Write the chosen figures (all, if none is); the names of those whose bytes changed."""
    FOLDER.mkdir(exist_ok=True)
    changed = []
    for name in chosen or figures.names():
        record = figures.get(name)
        fresh = record.svg()
        if not record.path.exists() or record.path.read_bytes() != fresh:
            record.path.write_bytes(fresh)
            changed.append(name)
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the committed figures are stale, 2 a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m figures", description=__doc__)
    parser.add_argument("names", nargs="*", help="figures to write (default: all)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="compare with the committed files")
    choice.add_argument("--markdown", action="store_true", help="print the lines that embed them")
    choice.add_argument("--list", action="store_true", help="print name and takeaway")
    options = parser.parse_args(arguments)
    try:
        chosen = [figures.get(name) for name in options.names or figures.names()]
    except ValueError as error:
        parser.error(str(error))
    if options.markdown or options.list:
        for record in chosen:
            print(record.markdown if options.markdown else f"{record.name}  {record.title}")
        return 0
    if matplotlib.__version__ != figures.DRAWN_WITH:
        print(
            f"matplotlib {matplotlib.__version__} is here, {figures.DRAWN_WITH} drew the committed "
            "figures: expect small differences",
            file=sys.stderr,
        )
    if options.check:
        problems = stale()
        print("\n".join(problems) or f"{len(chosen)} figures are as the code draws them")
        if problems:
            print("run: python -m figures", file=sys.stderr)
        return int(bool(problems))
    changed = write(options.names)
    print(f"{len(chosen)} figures, {len(changed)} changed" + "".join(f"\n  {n}" for n in changed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
