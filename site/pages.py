"""Write the generated parts of the site: home, question index, timing, tables of contents.

Everything shown is read from the notebooks, the question bank, the tasks and ``map.yml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from labkit import questions
from labkit.questions import Row

STEPPER_CHAPTER = "02_kv_cache"
STEPPER_NOTE = (
    "To see the first technique at work, [step through the cache](site/stepper.md): the passes of\n"
    "a real model one by one, with a cache and without, their bytes and token-passes counted."
)
WORDS_PER_MINUTE = 180
SECONDS_PER_CELL = 40
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_MARKDOWN = MarkdownIt("commonmark", {"html": False})


@dataclass(frozen=True)
class Chapter:
    """A chapter of the plan, and its notebook where it is written."""

    name: str
    planned_title: str
    builds: str
    lever: str
    path: Path | None

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def title(self) -> str:
        """The notebook's own title without a leading number, or the planned one."""
        if self.path is None:
            return self.planned_title
        return re.sub(r"^\d+\s*[·.:—–-]?\s*", "", first_heading(self.path)) or self.planned_title


@dataclass(frozen=True)
class Part:
    """A part of the book with its chapters, written or planned."""

    number: str
    title: str
    chapters: tuple[Chapter, ...]


def read_map(text: str, written: dict[str, Path]) -> list[Part]:
    """Parts of the plan; ``ValueError`` for a written chapter that the plan does not have."""
    parts = [
        Part(
            str(part["part"]),
            part["title"],
            tuple(
                Chapter(c["name"], c["title"], c["builds"], c["lever"], written.get(c["name"]))
                for c in part["chapters"]
            ),
        )
        for part in yaml.safe_load(text)
    ]
    unplanned = set(written) - {chapter.name for part in parts for chapter in part.chapters}
    if unplanned:
        raise ValueError(f"site/map.yml has no chapter {', '.join(sorted(unplanned))}")
    return parts


def cells(path: Path) -> list[dict[str, Any]]:
    """Cells of a notebook, their sources joined."""
    notebook = json.loads(path.read_text("utf-8"))
    return [{**cell, "source": "".join(cell["source"])} for cell in notebook["cells"]]


def first_heading(path: Path) -> str:
    """Text of the first heading of a notebook; its stem if it has none."""
    for cell in cells(path):
        if cell["cell_type"] == "markdown":
            for _, heading in questions.headings(cell["source"]):
                return heading
    return path.stem


def fill(template: str, **values: str) -> str:
    """Replace ``{{ name }}``; ``ValueError`` for a placeholder without value or the reverse."""
    names = set(_PLACEHOLDER.findall(template))
    if names != set(values):
        raise ValueError(f"template has {sorted(names)}, values are {sorted(values)}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def script_data(data: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def inline(text: str) -> str:
    """HTML of a line of the question bank."""
    return _MARKDOWN.renderInline(text)


def _html(lines: Sequence[str]) -> str:
    # A blank line would end the HTML block and start Markdown again.
    return "\n".join(line for line in lines if line.strip()) + "\n"


def book_map(parts: Sequence[Part]) -> str:
    """The map of the home page: written chapters are links, planned ones say so."""
    lines = ['<div class="book-map">']
    for part in parts:
        lines += [
            '<section class="map-part">',
            f'<h3><span class="map-roman">{escape(part.number)}</span> {escape(part.title)}</h3>',
            "<ol>",
        ]
        for chapter in part.chapters:
            body = (
                f'<span class="map-number">{chapter.number:02}</span>'
                f'<span class="map-title">{escape(chapter.title)}</span>'
                f'<span class="map-builds">{escape(chapter.builds)}</span>'
                f'<span class="map-lever">{escape(chapter.lever)}</span>'
            )
            if chapter.path:
                body = f'<a href="chapters/{chapter.name}.html">{body}</a>'
                lines.append(f'<li class="map-chapter">{body}</li>')
            else:
                body += '<span class="map-state">planned</span>'
                lines.append(f'<li class="map-chapter map-planned">{body}</li>')
        lines += ["</ol>", "</section>"]
    return _html([*lines, "</div>"])


def question_list(rows: Sequence[Row]) -> str:
    """The questions by chapter, each linked to the cell that answers it, for the home page."""
    lines: list[str] = []
    for chapter in dict.fromkeys(row.chapter for row in rows):
        mine = [row for row in rows if row.chapter == chapter]
        lines += [
            f'<h3 class="asked-chapter"><a href="chapters/{chapter}.html">'
            f"{escape(mine[0].title)}</a></h3>",
            '<ul class="asked">',
        ]
        for row in mine:
            cell = f"chapters/{chapter}.html#{row.answers[0].anchor}"
            lines.append(f'<li><a href="{cell}">{inline(row.question.question)}</a></li>')
        lines.append("</ul>")
    return _html(lines)


def question_table(rows: Sequence[Row]) -> str:
    """The question index: question with folded answer, level, section, cells."""
    blocks: list[str] = []
    for chapter in dict.fromkeys(row.chapter for row in rows):
        mine = [row for row in rows if row.chapter == chapter]
        page = f"../chapters/{chapter}.html"
        lines = [
            '<table class="question-index">',
            "<thead><tr><th>Question</th><th>Level</th><th>Section</th><th>Cells</th></tr></thead>",
            "<tbody>",
        ]
        for row in mine:
            asked = row.question
            trap = f'<p class="trap"><b>Trap.</b> {inline(asked.trap)}</p>' if asked.trap else ""
            links = [
                f'<a class="cell-tag cell-tag-{kind}" href="{page}#{cell.anchor}">'
                f"{label}{'' if len(found) == 1 else f' {number}'}</a>"
                for kind, label, found in (
                    ("answers", "answer", row.answers),
                    ("trap", "trap", row.traps),
                )
                for number, cell in enumerate(found, 1)
            ]
            section = f'<a href="{page}#{row.section_anchor}">{escape(row.section)}</a>'
            lines += [
                f'<tr id="q-{asked.id}">',
                f'<td data-label="Question"><code class="question-id">{asked.id}</code> '
                f"{inline(asked.question)}"
                f"<details><summary>Answer</summary><p>{inline(asked.answer)}</p>{trap}</details>"
                "</td>",
                f'<td data-label="Level">{asked.level}</td>',
                f'<td data-label="Section">{section}</td>',
                f'<td data-label="Cells">{" ".join(links)}</td>',
                "</tr>",
            ]
        lines += ["</tbody>", "</table>"]
        blocks.append(f"## {mine[0].title}\n\n{_html(lines)}")
    return "\n".join(blocks)


def timing(parts: Sequence[Part]) -> str:
    """Minutes per written chapter: reading from the notebook, exercises from the tasks."""
    lines = [
        "| chapter | words | code cells | reading | tasks | exercises | points |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for chapter in (chapter for part in parts for chapter in part.chapters):
        if chapter.path is None:
            continue
        found = cells(chapter.path)
        words = sum(len(c["source"].split()) for c in found if c["cell_type"] == "markdown")
        runs = sum(c["cell_type"] == "code" for c in found)
        minutes = words / WORDS_PER_MINUTE + runs * SECONDS_PER_CELL / 60
        tasks = tasks_of(chapter.number)
        work = sum(task.minutes for task in tasks)
        points = sum(task.points for task in tasks)
        lines.append(
            f"| [{chapter.number:02} {chapter.title}](../chapters/{chapter.name}.ipynb) | {words} "
            f"| {runs} | {5 * round(minutes / 5)} min | {len(tasks)} | {work} min | {points} |"
        )
    return "\n".join(lines)


def tasks_of(chapter: int) -> list[Any]:
    """The chapter's exercises."""
    from labkit.tasks import all_tasks  # imports torch, which takes seconds: only when asked

    return [task for task in all_tasks().values() if task.chapter == chapter]


def state(parts: Sequence[Part]) -> str:
    """One sentence on how much of the plan is written."""
    chapters = [chapter for part in parts for chapter in part.chapters]
    written = [chapter for chapter in chapters if chapter.path]
    names = ", ".join(f"{chapter.number:02}" for chapter in written)
    if len(written) == len(chapters):
        return f"All {len(chapters)} chapters are written."
    few = "chapter is" if len(written) == 1 else "chapters are"
    return (
        f"Of {len(chapters)} planned chapters, {len(written)} {few} written ({names}). A planned "
        "chapter has no notebook, no exercises and no entry in the tables below."
    )


def contents(
    parts: Sequence[Part],
    *,
    solutions: Sequence[str],
    sheets: Sequence[str],
    beside: Mapping[str, Sequence[str]] = {},
) -> str:
    """Tables of contents of what exists, by part; ``beside`` has pages that follow a chapter."""
    blocks = []
    for part in parts:
        written = [
            entry
            for chapter in part.chapters
            if chapter.path
            for entry in (f"chapters/{chapter.name}", *beside.get(chapter.name, ()))
        ]
        if written:
            blocks.append(_toctree(f"{part.number} · {part.title}", written))
    if solutions:
        blocks.append(_toctree("Solutions", [f"solutions/{name}" for name in solutions]))
    if sheets:
        blocks.append(_toctree("Interviewer's sheets", sheets))
    around = ["calculator", "questions", "glossary", "bibliography", "instructors"]
    around = [f"site/{name}" for name in around]
    return "\n".join([*blocks, _toctree("Around the book", around)])


def _toctree(caption: str, entries: Sequence[str]) -> str:
    return "\n".join(
        ["```{toctree}", ":hidden:", ":maxdepth: 1", f":caption: {caption}", "", *entries, "```\n"]
    )
