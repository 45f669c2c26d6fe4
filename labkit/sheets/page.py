"""The same sheet as a page of the site, each line linked to its cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from labkit.questions import LEVELS
from labkit.sheets.assemble import Line, Sheet, available, build
from labkit.sheets.chapter import Place
from labkit.sheets.typeset import pdf


def page_markdown(chapter: int | Sheet, *, pdf_name: str | None = None) -> str:
    """Markdown (MyST) of the sheet of a chapter, for a folder beside ``chapters/``.

    ``pdf_name`` is the file beside the page that holds it for printing, offered as a download.
    """
    sheet = chapter if isinstance(chapter, Sheet) else build(chapter)
    name = sheet.chapter.name

    def link(place: Place, text: str | None = None) -> str:
        return (
            f'<a class="cell-tag cell-tag-{place.kind}" '
            f'href="../chapters/{name}.html#{place.anchor}">{escape(text or place.section)}</a>'
        )

    def line(item: Line) -> str:
        return " ".join([item.text, *(link(place) for place in item.proofs)])

    blocks = [
        f"# Sheet {sheet.chapter.number:02} · {sheet.chapter.title}",
        f"Every line ends with the cell of [the chapter](../chapters/{name}.ipynb) that proves it."
        + (f" [One page to print](path:{pdf_name})." if pdf_name else ""),
        "## Ask",
        f"> {sheet.chapter.question}",
        f"With numbers: {sheet.chapter.task}",
        f"![{sheet.figure_alt}](../figures/svg/{sheet.figure}.svg)",
        "## Expected",
        f"**{sheet.headline.text}** " + " ".join(map(link, sheet.headline.proofs)),
        _list(line(item) for item in sheet.answer),
        f"**Listen for:** {sheet.listen.text}",
    ]
    if sheet.flags:
        flags = (f"`{flag.question.id}` {line(flag.trap)}" for flag in sheet.flags)
        blocks += ["## Red flags", _list(flags)]
    blocks += ["## Follow-ups"]
    for level, what in LEVELS.items():
        mine = [item for item in sheet.follow_ups if item.level == level]
        if mine:
            blocks += [f"### Level {level}: {what}"]
            blocks += [f"**{item.ask}** {line(item.answer)}" for item in mine]
    blocks += ["## In 30 seconds", f"> {sheet.spoken}", "## More to ask"]
    blocks += [_list(f"{asked.question} {link(place)}" for asked, place in sheet.bank)]
    return "\n\n".join(blocks) + "\n"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def site_files(chapters: Iterable[str], folder: str = "site") -> dict[str, bytes]:
    """Pages and PDFs of the sheets of these chapters (by name), by path in the site's sources."""
    files: dict[str, bytes] = {}
    wanted = {int(name[:2]) for name in chapters}
    for number in (number for number in available() if number in wanted):
        sheet, name = build(number), f"sheet-{number:02}"
        files[f"{folder}/{name}.md"] = page_markdown(sheet, pdf_name=f"{name}.pdf").encode()
        files[f"{folder}/{name}.pdf"] = pdf(sheet)
    return files
