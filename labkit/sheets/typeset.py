"""Set a sheet on one A4 page with Typst: offline, with its own fonts, the same bytes twice."""

from __future__ import annotations

import json
from typing import Any

from labkit.kernels import ROOT
from labkit.questions import LEVELS
from labkit.sheets.assemble import DATA, Line, Sheet
from labkit.sheets.errors import SheetError
from labkit.sheets.markup import quotes, runs

SIZES = (9.6, 9.4, 9.2, 9.0)
"""Sizes of type in points, the preferred one first; below the last a page is not legible."""


def content(sheet: Sheet) -> dict[str, Any]:
    """What the template reads: runs of text, numbers of proofs, the figure."""
    numbers = {place: number for number, place in enumerate(sheet.places, 1)}

    def line(item: Line) -> dict[str, Any]:
        return {"runs": runs(item.text), "proofs": [numbers[place] for place in item.proofs]}

    svg = (ROOT / "figures" / "svg" / f"{sheet.figure}.svg").read_text("utf-8")
    return {
        "number": f"{sheet.chapter.number:02}",
        "title": sheet.chapter.title,
        "chapter": sheet.chapter.name,
        "question": runs(sheet.chapter.question),
        "task": runs(sheet.chapter.task),
        "listen": line(sheet.listen),
        "headline": line(sheet.headline),
        "answer": [line(item) for item in sheet.answer],
        "figure": {"svg": svg, "alt": sheet.figure_alt},
        "flags": [{"id": flag.question.id, **line(flag.trap)} for flag in sheet.flags],
        "levels": [
            {
                "name": f"Level {level} · {name}",
                "items": [
                    {"ask": runs(item.ask), **line(item.answer)}
                    for item in sheet.follow_ups
                    if item.level == level
                ],
            }
            for level, name in LEVELS.items()
        ],
        "spoken": runs(sheet.spoken),
        "broken": [runs(heading) for heading in sheet.chapter.broken],
        "more": [asked.id for asked, place in sheet.bank if place not in numbers],
        "places": [
            {"kind": place.kind, "label": place.label, "section": quotes(place.section)}
            for place in sheet.places
        ],
    }


def _run(sheet: Sheet, size: float, action: str, **options: Any) -> Any:
    import typst  # only whoever prints needs it

    # A compiler of bytes serves once: after a query it looks for its source on the disk.
    compiler = typst.Compiler(
        (DATA / "sheet.typ").read_bytes(),
        font_paths=typst.Fonts(include_system_fonts=False),
        sys_inputs={"sheet": json.dumps(content(sheet), ensure_ascii=False), "size": str(size)},
    )
    return getattr(compiler, action)(**options)


def fitting_size(sheet: Sheet) -> float:
    """The largest of `SIZES` at which the sheet takes one page; ``SheetError`` if none does."""
    for size in SIZES:
        pages = json.loads(_run(sheet, size, "query", selector="<pages>", field="value", one=True))
        if pages == 1:
            return size
    raise SheetError(
        f"the sheet of {sheet.chapter.name} takes {pages} pages at {SIZES[-1]:g} pt: shorten it"
    )


def pdf(sheet: Sheet) -> bytes:
    """The sheet as PDF, one page; ``SheetError`` if it does not fit."""
    return _run(sheet, fitting_size(sheet), "compile", format="pdf")


def png(sheet: Sheet, *, ppi: float = 144) -> bytes:
    """The sheet as an image, to look at; ``SheetError`` if it does not fit on one page."""
    return _run(sheet, fitting_size(sheet), "compile", format="png", ppi=ppi)
