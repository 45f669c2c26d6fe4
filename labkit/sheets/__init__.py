"""One printable page per chapter for whoever asks the questions.

A sheet holds the question, the figure for the whiteboard, the expected answer with its numbers,
follow-ups by level, and red flags, each line with the cell that proves it. Nothing is said twice:

- the question, the follow-ups and the thirty seconds are read from the chapter's Markdown;
- the red flags are the traps of the question bank;
- the expected answer is ``labkit/data/sheets/NN.yml``: text with ``{name}`` where a number belongs,
  and expressions over ``refimpl`` that give the numbers when the sheet is made.

``python -m labkit.sheets`` writes a PDF and a Markdown page for each.
"""

from __future__ import annotations

from labkit.sheets.assemble import Sheet, available, build, unproved
from labkit.sheets.errors import SheetError
from labkit.sheets.page import page_markdown, site_files
from labkit.sheets.typeset import pdf, png

__all__ = [
    "Sheet",
    "SheetError",
    "available",
    "build",
    "page_markdown",
    "pdf",
    "png",
    "site_files",
    "unproved",
]
