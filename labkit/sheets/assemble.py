"""Put a sheet together from chapter, question bank, data file and computed numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import questions
from labkit.kernels import ROOT
from labkit.questions import Question
from labkit.sheets import chapter as chapters
from labkit.sheets import values
from labkit.sheets.chapter import Chapter, Place
from labkit.sheets.errors import SheetError

DATA = Path(__file__).resolve().parents[1] / "data" / "sheets"
FIELDS = {"figure", "given", "values", "listen", "headline", "answer", "follow_ups"}


@dataclass(frozen=True)
class Line:
    """A line of Markdown and the places that prove it; ``asked`` is the question it answers."""

    text: str
    proofs: tuple[Place, ...] = ()
    asked: str = ""


@dataclass(frozen=True)
class FollowUp:
    """A follow-up question with its answer."""

    level: int
    ask: str
    answer: Line


@dataclass(frozen=True)
class Flag:
    """A half-right answer to listen for, and the question it belongs to."""

    question: Question
    trap: Line


@dataclass(frozen=True)
class Sheet:
    """Everything on one interviewer's sheet, in the order in which it is used."""

    chapter: Chapter
    figure: str
    listen: Line
    headline: Line
    answer: tuple[Line, ...]
    flags: tuple[Flag, ...]
    follow_ups: tuple[FollowUp, ...]
    spoken: str
    bank: tuple[tuple[Question, Place], ...]

    @property
    def figure_alt(self) -> str:
        return self.chapter.figures[self.figure]

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line that has a proof."""
        answers = tuple(item.answer for item in self.follow_ups)
        return (self.headline, *self.answer, *(flag.trap for flag in self.flags), *answers)

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that lines refer to, each once, in the order of first use."""
        return tuple(dict.fromkeys(place for line in self.lines for place in line.proofs))


def available(root: Path = ROOT) -> list[int]:
    """Numbers of the chapters that have both a source and a data file."""
    found = sorted(int(path.stem) for path in DATA.glob("[0-9][0-9].yml"))
    return [number for number in found if any((root / "chapters").glob(f"{number:02}_*.md"))]


def load(number: int) -> dict[str, Any]:
    """The data file of a chapter's sheet; ``SheetError`` if there is none or a field is wrong."""
    path = DATA / f"{number:02}.yml"
    if not path.is_file():
        raise SheetError(f"chapter {number} has no {path.relative_to(ROOT)}")
    data = yaml.safe_load(path.read_text("utf-8"))
    if set(data) != FIELDS:
        raise SheetError(
            f"{path.name}: fields must be {', '.join(sorted(FIELDS))}, got {', '.join(data)}"
        )
    return data


def build(number: int, root: Path = ROOT) -> Sheet:
    """The sheet of a chapter, its numbers computed now.

    Raises:
        SheetError: no chapter or data file; a reference to a cell, section, figure or follow-up
            that the chapter does not have; a number typed instead of computed.
    """
    data = load(number)
    source = next((root / "chapters").glob(f"{number:02}_*.md"), None)
    if source is None:
        raise SheetError(f"chapter {number} is not written")
    chapter = chapters.read(source)
    if data["figure"] not in chapter.figures:
        raise SheetError(f"{chapter.name} does not show figure {data['figure']!r}")
    computed = values.evaluate(data["given"], data["values"])

    def line(entry: dict[str, Any]) -> Line:
        return Line(values.fill(entry["text"], computed).strip(), _proofs(chapter, entry["proof"]))

    bank = questions.select(questions.load(), chapter=number)
    return Sheet(
        chapter=chapter,
        figure=data["figure"],
        listen=Line(values.fill(data["listen"], computed).strip()),
        headline=line(data["headline"]),
        answer=tuple(line(entry) for entry in data["answer"]),
        flags=tuple(
            Flag(question, Line(question.trap, (chapter.place(f"trap:{question.id}"),)))
            for question in bank
            if question.trap
        ),
        follow_ups=tuple(_follow_ups(chapter, data["follow_ups"])),
        spoken=chapter.spoken,
        bank=tuple((question, chapter.place(f"answers:{question.id}")) for question in bank),
    )


def _proofs(chapter: Chapter, labels: str | list[str]) -> tuple[Place, ...]:
    return tuple(chapter.place(x) for x in ([labels] if isinstance(labels, str) else labels))


def _follow_ups(chapter: Chapter, entries: list[dict[str, Any]]) -> Iterator[FollowUp]:
    """The chapter's own folds, picked by a few of their words, in order of level."""
    chosen: list[FollowUp] = []
    for entry in entries:
        found = [fold for fold in chapter.follow_ups if entry["about"] in fold.ask]
        if len(found) != 1:
            asked = "; ".join(fold.ask for fold in chapter.follow_ups)
            raise SheetError(
                f"{entry['about']!r} is in {len(found)} follow-ups of {chapter.name}, "
                f"which asks: {asked}"
            )
        proofs = _proofs(chapter, entry["proof"])
        fold = found[0]
        chosen.append(FollowUp(fold.level, fold.ask, Line(fold.answer, proofs, fold.ask)))
    return iter(sorted(chosen, key=lambda item: item.level))


def unproved(sheet: Sheet, notebook: Path) -> list[str]:
    """Numbers that a line states and none of its cells holds, in what it ran or what it printed.

    Numbers of the question that the line answers are its inputs.
    """
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    missing = []
    for line in sheet.lines:
        held = values.numbers(line.asked)
        for place in line.proofs:
            for index in place.cells:
                held |= values.numbers(_ran_and_printed(cells[index]), formulas=True)
        for number in sorted(values.numbers(line.text) - held):
            where = ", ".join(place.label for place in line.proofs)
            missing.append(f"{number} of {line.text!r} is nowhere in {where}")
    return missing


def _ran_and_printed(cell: dict[str, Any]) -> str:
    printed = (out["text"] for out in cell.get("outputs", ()) if out["output_type"] == "stream")
    return re.sub(r"(?<=\d)e\d+", " ", "\n".join("".join(x) for x in (cell["source"], *printed)))
