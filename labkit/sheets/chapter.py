"""Read from a chapter's Markdown what its sheet shows, and where each cell stands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from labkit import pairing, questions
from labkit.sheets.errors import SheetError

WHITEBOARD, SPOKEN, BREAK = "At the whiteboard", "Say it in 30 seconds", "Break it"
_FOLD = re.compile(
    r"<details><summary>Level (\d)\. (.*?)</summary>\s*(.*?)\s*</details>", re.DOTALL
)
_FIGURE = re.compile(r"!\[([^]]+)\]\(\.\./figures/svg/(\w+)\.svg\)")


@dataclass(frozen=True)
class FollowUp:
    """A folded follow-up question of a chapter, with its answer, both Markdown."""

    level: int
    ask: str
    answer: str


@dataclass(frozen=True)
class Place:
    """Where a reference leads: a tagged cell, or the code cells of a section."""

    label: str
    section: str
    anchor: str
    cells: tuple[int, ...]

    @property
    def kind(self) -> str:
        """``answers``, ``trap`` or ``section``."""
        return self.label.partition(":")[0]


@dataclass(frozen=True)
class Chapter:
    """The parts of a chapter that its sheet shows."""

    name: str
    title: str
    question: str
    task: str
    spoken: str
    follow_ups: tuple[FollowUp, ...]
    broken: tuple[str, ...]
    figures: dict[str, str]
    places: dict[str, Place]

    @property
    def number(self) -> int:
        return int(self.name[:2])

    def place(self, label: str) -> Place:
        """The cell or section with this label; ``SheetError`` if the chapter has none."""
        if label not in self.places:
            near = difflib.get_close_matches(label, self.places, n=3)
            raise SheetError(
                f"{self.name} has nothing called {label!r}"
                + (f"; near: {', '.join(near)}" if near else "")
            )
        return self.places[label]


def read(path: Path) -> Chapter:
    """A chapter from its Markdown source; ``SheetError`` names the part that is missing."""
    notebook = pairing.read_source(path)
    texts = dict(_sections(notebook))
    start = notebook.cells[0].source

    def part(section: str, pattern: str, what: str) -> str:
        text = start if section == "" else texts.get(section, "")
        found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        if not found:
            raise SheetError(f"{path.name}: {what}")
        return " ".join(found[1].split())

    spoken = texts.get(SPOKEN, "")
    quoted = "\n".join(re.findall(r"^> ?(.*)$", spoken, re.MULTILINE))
    if not quoted.strip():
        raise SheetError(f"{path.name}: {SPOKEN!r} must hold a quoted paragraph (> …)")
    title = next((text for level, text in questions.headings(start) if level == 1), path.stem)
    return Chapter(
        name=path.stem,
        title=re.sub(r"^\d+\s*·\s*", "", title),
        question=part("", r'\*\*["“](.+?)["”]\*\*', 'the question, **"…"**, must open it'),
        task=part(WHITEBOARD, r"^\*(?!\*)(.+?)\*", f"{WHITEBOARD!r} must open with its task, *…*"),
        spoken=" ".join(quoted.split()),
        follow_ups=tuple(
            FollowUp(int(level), ask, " ".join(answer.split()))
            for level, ask, answer in _FOLD.findall(spoken)
        ),
        broken=tuple(t for level, t in questions.headings(texts.get(BREAK, "")) if level == 3),
        figures={n: alt for c in notebook.cells for alt, n in _FIGURE.findall(c.source)},
        places=_places(notebook, path.stem),
    )


def _sections(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """``(heading, Markdown)`` of each second-level section, code left out."""
    text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        yield questions.headings(f"## {heading}")[0][1], body


def _places(notebook: NotebookNode, chapter: str) -> dict[str, Place]:
    """Every tagged cell as ``answers:id`` or ``trap:id``, every section as ``section:heading``."""
    open_sections: list[tuple[int, str]] = []
    members: dict[str, list[int]] = {}
    anchors: dict[str, str] = {}
    tagged: dict[str, list[int]] = {}
    inside: dict[str, str] = {}
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for level, heading in questions.headings(cell.source):
                open_sections = [s for s in open_sections if s[0] < level] + [(level, heading)]
                members.setdefault(heading, [])
                anchors.setdefault(heading, questions.slugify(heading))
        elif cell.cell_type == "code":
            for _, heading in open_sections:
                members[heading].append(index)
            for kind, name in questions.tags_of(cell):
                label = f"{kind}:{name}"
                tagged.setdefault(label, []).append(index)
                inside.setdefault(label, open_sections[-1][1] if open_sections else chapter)
    cells = {
        label: Place(label, inside[label], questions.anchor(*label.split(":", 1)), tuple(found))
        for label, found in tagged.items()
    }
    return cells | {
        f"section:{heading}": Place(f"section:{heading}", heading, anchors[heading], tuple(found))
        for heading, found in members.items()
    }
