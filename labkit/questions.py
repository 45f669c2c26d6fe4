"""The interview bank: load it, check it, find each question's cell in a chapter, drill with it.

``python -m labkit.questions`` asks questions in the terminal; ``list``, ``show`` and ``table`` are
for reading and for scripts. The site's question index comes from `syllabus_table`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

LEVELS = {1: "mechanism", 2: "trade-off", 3: "design defence"}
_FIELDS = ("id", "chapter", "level", "question", "answer", "trap")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NOTEBOOK = re.compile(r"(\d\d)_\w+\.ipynb")
_TAG = re.compile(r"(answers|trap):(.+)")


class QuestionError(ValueError):
    """The bank, or a chapter's tags, break a rule; the message lists every breach."""


@dataclass(frozen=True)
class Question:
    """One entry of the bank."""

    id: str
    chapter: int
    level: int
    question: str
    answer: str
    trap: str | None


@dataclass(frozen=True)
class Cell:
    """A tagged cell: where it stands in its notebook and which anchor leads to it on the site."""

    index: int
    anchor: str
    section: str
    section_anchor: str


@dataclass(frozen=True)
class Row:
    """A question, the chapter that answers it, and the cells that do."""

    question: Question
    chapter: str
    title: str
    answers: tuple[Cell, ...]
    traps: tuple[Cell, ...]

    @property
    def section(self) -> str:
        """Heading of the section that holds the first answering cell."""
        return self.answers[0].section

    @property
    def section_anchor(self) -> str:
        return self.answers[0].section_anchor


def parse(text: str) -> tuple[Question, ...]:
    """Questions in a YAML text, in its order; `QuestionError` names every entry that is wrong."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise QuestionError(f"the bank is not YAML: {error}") from error
    if not isinstance(entries, list):
        raise QuestionError(f"the bank must be a list of entries, got {type(entries).__name__}")
    problems: list[str] = []
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        where = f"entry {number}"
        if not isinstance(entry, dict):
            problems.append(f"{where}: must be a mapping, got {entry!r}")
            continue
        where = f"{where} ({entry.get('id')})"
        problems += [f"{where}: {problem}" for problem in _problems(entry)]
        if entry.get("id") in seen:
            problems.append(f"{where}: this id is used twice")
        seen.add(str(entry.get("id")))
    if problems:
        raise QuestionError("\n".join(problems))
    return tuple(Question(**entry) for entry in entries)


def _problems(entry: dict[str, Any]) -> Iterable[str]:
    if set(entry) != set(_FIELDS):
        missing, unknown = set(_FIELDS) - set(entry), set(entry) - set(_FIELDS)
        yield f"fields must be {', '.join(_FIELDS)}; missing {missing}, unknown {unknown}"
        return
    if not (isinstance(entry["id"], str) and _ID.fullmatch(entry["id"])):
        yield f"id must be lower-case words joined by hyphens, got {entry['id']!r}"
    if not (isinstance(entry["chapter"], int) and 1 <= entry["chapter"] <= 99):
        yield f"chapter must be a number from 1, got {entry['chapter']!r}"
    if entry["level"] not in LEVELS:
        yield f"level must be one of {list(LEVELS)}, got {entry['level']!r}"
    for field in ("question", "answer", "trap"):
        value = entry[field]
        if field == "trap" and value is None:
            continue
        if not (isinstance(value, str) and value.strip()):
            yield f"{field} must be text, got {value!r}"


@cache
def load() -> tuple[Question, ...]:
    """The book's own bank."""
    return parse(resources.files("labkit").joinpath("data/questions.yml").read_text("utf-8"))


def select(
    questions: Iterable[Question], *, chapter: int | None = None, level: int | None = None
) -> tuple[Question, ...]:
    """The questions of one chapter, of one level, of both, or all."""
    return tuple(
        question
        for question in questions
        if chapter in (None, question.chapter) and level in (None, question.level)
    )


def find(name: str, questions: Iterable[Question] | None = None) -> Question:
    """The question with this id; ``ValueError`` suggests near ones."""
    bank = {question.id: question for question in (load() if questions is None else questions)}
    if name in bank:
        return bank[name]
    near = difflib.get_close_matches(name, bank, n=3, cutoff=0.4)
    raise ValueError(f"no question {name!r}" + (f"; near: {', '.join(near)}" if near else ""))


# ── the table: question → section and cell ───────────────────────────────────────────────────


def anchor(kind: str, name: str, occurrence: int = 1) -> str:
    """Fragment of the ``occurrence``-th cell tagged ``kind:name`` on a page of the site.

    >>> anchor("answers", "why-kv"), anchor("trap", "why-kv", 2)
    ('answers-why-kv', 'trap-why-kv-2')
    """
    return f"{kind}-{name}" + ("" if occurrence == 1 else f"-{occurrence}")


def tags_of(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """``(kind, question id)`` for each ``answers:`` or ``trap:`` tag of a cell, in order."""
    matches = map(_TAG.fullmatch, cell.get("metadata", {}).get("tags", []))
    return [(match[1], match[2]) for match in matches if match]


def chapter_paths(chapters_dir: Path | str) -> list[Path]:
    """The ``NN_name.ipynb`` in a folder, by number."""
    return sorted(p for p in Path(chapters_dir).glob("*.ipynb") if _NOTEBOOK.fullmatch(p.name))


def syllabus_table(
    chapters_dir: Path | str, questions: Sequence[Question] | None = None
) -> list[Row]:
    """One row per question of each chapter in the folder, in the bank's order.

    Raises `QuestionError` with everything that is missing: a question without a tagged cell, a trap
    that no cell runs, a tag for a question that isn't this chapter's, a chapter without questions.
    """
    bank = load() if questions is None else tuple(questions)
    rows: list[Row] = []
    problems: list[str] = []
    for path in chapter_paths(chapters_dir):
        expected = select(bank, chapter=int(path.name[:2]))
        title, cells, found = _read(path)
        problems += found
        if not expected:
            problems.append(f"{path.name}: the bank has no question for this chapter")
        known = {question.id: question for question in expected}
        for kind, name in cells:
            if name not in known:
                problems.append(f"{path.name}: tag {kind}:{name} is no question of this chapter")
            elif kind == "trap" and known[name].trap is None:
                problems.append(f"{path.name}: tag trap:{name}, but the bank names no trap there")
        for question in expected:
            answers = cells.get(("answers", question.id), [])
            traps = cells.get(("trap", question.id), [])
            if not answers:
                problems.append(f"{path.name}: no cell is tagged answers:{question.id}")
            if question.trap and not traps:
                problems.append(f"{path.name}: no cell is tagged trap:{question.id}")
            if answers:
                rows.append(Row(question, path.stem, title, tuple(answers), tuple(traps)))
    if problems:
        raise QuestionError("\n".join(problems))
    return rows


def _read(path: Path) -> tuple[str, dict[tuple[str, str], list[Cell]], list[str]]:
    """A notebook's title, its tagged code cells, and tags on cells that run nothing."""
    title, section, slug = path.stem, "", ""
    slugs: set[str] = set()
    cells: dict[tuple[str, str], list[Cell]] = {}
    problems: list[str] = []
    for index, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        tags = tags_of(cell)
        if cell["cell_type"] != "code":
            problems += [f"{path.name}: {k}:{n} is on a cell that does not run" for k, n in tags]
            for level, heading in headings(source) if cell["cell_type"] == "markdown" else ():
                # The site leaves formulas out of an anchor.
                slug = _unique(slugify(re.sub(r"\$[^$]*\$", "", heading)), slugs)
                section = heading.replace("$", "")
                title = section if level == 1 else title
            continue
        for kind, name in tags:
            same = cells.setdefault((kind, name), [])
            same.append(Cell(index, anchor(kind, name, len(same) + 1), section, slug))
    return title, cells, problems


def headings(markdown: str) -> list[tuple[int, str]]:
    """``(level, plain text)`` of each ``#`` heading outside code fences."""
    found: list[tuple[int, str]] = []
    fence = ""
    for line in markdown.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence and (heading := re.match(r"(#{1,6})\s+(.*?)\s*#*\s*$", line)):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[2])
            found.append((len(heading[1]), re.sub(r"[`*]|(?<!\w)_|_(?!\w)", "", text)))
    return found


def slugify(heading: str) -> str:
    """The anchor that GitHub and the site give a heading.

    >>> slugify("Say it in 30 seconds")
    'say-it-in-30-seconds'
    """
    return re.sub(r"[^\w\u4e00-\u9fff\- ]", "", heading.lower()).replace(" ", "-")


def _unique(slug: str, taken: set[str]) -> str:
    candidate, suffix = slug, 0
    while candidate in taken:
        suffix += 1
        candidate = f"{slug}-{suffix}"
    taken.add(candidate)
    return candidate


# ── the drill ────────────────────────────────────────────────────────────────────────────────


def _wrap(text: str, label: str = "") -> str:
    return textwrap.fill(text, 88, initial_indent=label, subsequent_indent=" " * len(label))


def _head(question: Question) -> str:
    level = LEVELS[question.level]
    return f"{question.id} · chapter {question.chapter:02} · level {question.level}, {level}"


def _solution(question: Question) -> str:
    answer = _wrap(question.answer, "answer  ")
    return answer if question.trap is None else f"{answer}\n{_wrap(question.trap, 'trap    ')}"


def drill(questions: Sequence[Question], *, interactive: bool) -> None:
    """Put the questions one at a time; with nobody at the keyboard, print each with its answer."""
    scores: list[bool] = []
    for number, question in enumerate(questions, 1):
        print(f"\n[{number}/{len(questions)}] {_head(question)}\n{_wrap(question.question)}")
        try:
            if interactive:
                input("\nSay your answer aloud, then press Enter. ")
            print(f"\n{_solution(question)}")
            if interactive:
                scores.append(input("\nDid yours hold? [y/n] ").strip().lower().startswith("y"))
        except (EOFError, KeyboardInterrupt):
            print("\nStopped.")
            break
    if scores:
        missed = [q.id for q, held in zip(questions, scores, strict=False) if not held]
        print(f"\n{sum(scores)} of {len(scores)} held." + (" Again: " if missed else ""), end="")
        print(", ".join(missed))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m labkit.questions", description=main.__doc__)
    parser.description = "Interview questions: drill, list, look one up, or check a chapter's tags."
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    ask = commands.add_parser("ask", help="one question at a time, then its answer (the default)")
    listing = commands.add_parser("list", help="ids and questions")
    for command in (parser, ask, listing):
        command.add_argument("--chapter", type=int, help="only this chapter")
        command.add_argument("--level", type=int, choices=list(LEVELS), help="only this level")
    for command in (parser, ask):
        command.add_argument("--seed", type=int, help="fixes the order; without it the bank's own")
        command.add_argument("-n", "--number", type=int, help="stop after this many")
    show = commands.add_parser("show", help="one question with its answer")
    show.add_argument("id")
    table = commands.add_parser("table", help="question, section and cells, from a folder")
    table.add_argument("chapters", nargs="?", default="chapters", type=Path)
    options = parser.parse_args(argv)
    try:
        return _run(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "show":
        question = find(options.id)
        print(f"{_head(question)}\n{_wrap(question.question)}\n\n{_solution(question)}")
        return 0
    if options.command == "table":
        for row in syllabus_table(options.chapters):
            cells = " ".join(f"#{cell.anchor}" for cell in (*row.answers, *row.traps))
            print(f"{row.question.id:16} {row.chapter} › {row.section}  {cells}")
        return 0
    chosen = list(select(load(), chapter=options.chapter, level=options.level))
    if not chosen:
        raise ValueError(f"no question at chapter {options.chapter}, level {options.level}")
    if options.command == "list":
        for question in chosen:
            print(f"{_head(question)}\n{textwrap.indent(_wrap(question.question), '    ')}")
        return 0
    if options.number is not None and options.number < 1:
        raise ValueError(f"number must be at least 1, got {options.number}")
    if options.seed is not None:
        random.Random(options.seed).shuffle(chosen)
    drill(chosen[: options.number], interactive=sys.stdin.isatty())
    return 0


if __name__ == "__main__":
    sys.exit(main())
