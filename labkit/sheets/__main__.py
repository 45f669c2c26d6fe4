"""Write the sheets: ``python -m labkit.sheets [--chapter N] [--out DIR] [--png]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.kernels import ROOT
from labkit.sheets import SheetError, available, build, page_markdown, pdf, png, unproved


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m labkit.sheets",
        description="One printable page per chapter for whoever asks the questions.",
    )
    parser.add_argument("--chapter", type=int, help="only this chapter")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "sheets")
    parser.add_argument("--png", action="store_true", help="also write an image to look at")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for number in available() if options.chapter is None else [options.chapter]:
            sheet = build(number)
            notebook = ROOT / "chapters" / f"{sheet.chapter.name}.ipynb"
            if not notebook.is_file():
                print(f"chapter {number:02} is not executed: its numbers are not compared")
            elif missing := unproved(sheet, notebook):
                raise SheetError("\n".join(missing))
            target = options.out / f"{sheet.chapter.name}.pdf"
            target.write_bytes(pdf(sheet))
            target.with_suffix(".md").write_text(page_markdown(sheet), encoding="utf-8")
            if options.png:
                target.with_suffix(".png").write_bytes(png(sheet))
            print(f"wrote {target}")
    except SheetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
