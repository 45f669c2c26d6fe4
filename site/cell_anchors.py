"""What the site adds to a chapter while reading it; the notebook itself is left as it is.

Every tagged cell gets an anchor and a line that names the question it answers.

A code cell tagged ``answers:why-kv`` becomes ``#answers-why-kv`` on its page (``trap:…`` likewise),
so that the question index and the interviewer's sheets can point at the very cell.

A figure with a page to play with is followed by a link to it: the cache filling by the page that
steps through it, throughput over batches by the calculator.

Links to files of the repository that are no pages, such as ``../exercises/01_naive_decoding.ipynb``
or ``../refimpl/rope.py``, become downloads.
"""

from __future__ import annotations

import posixpath
import re

from docutils import nodes
from pages import STEPPER_CHAPTER
from sphinx.application import Sphinx
from sphinx.util import logging

from labkit import questions

logger = logging.getLogger(__name__)
# Chapter, figure, the page to link below it, and how.
_INVITATIONS = (
    (STEPPER_CHAPTER, "02_cache_filling", "site/stepper", "Step through a cache token by token"),
    (
        "04_bytes_over_bandwidth",
        "04_batch",
        "site/calculator",
        "Try other models, contexts, batches and nodes in the calculator",
    ),
)
_FILE_LINK = re.compile(r"\]\((\.\./(?!chapters/|solutions/|site/|figures/)[^)\s#]+)")


def link_files(app: Sphinx, docname: str, content: list[str]) -> None:
    """Mark links to files as such; otherwise a notebook is looked up among the pages."""
    if docname.startswith(("chapters/", "solutions/")):
        content[0] = _FILE_LINK.sub(r"](path:\1", content[0])


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Add ids and labels to the tagged cells of one chapter."""
    docname = app.env.docname
    if not docname.startswith("chapters/"):
        return
    index = posixpath.relpath("site/questions.html", posixpath.dirname(docname))
    seen: dict[tuple[str, str], int] = {}
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        tags = questions.tags_of({"metadata": cell.get("cell_metadata", {})})
        if not tags:
            continue
        label = nodes.container(classes=["cell-question"])
        for tag in tags:
            kind, name = tag
            seen[tag] = seen.get(tag, 0) + 1
            cell["ids"].append(questions.anchor(kind, name, seen[tag]))
            text = f"{kind}: {name}"
            link = nodes.reference("", text, refuri=f"{index}#q-{name}", internal=True)
            link["classes"] += ["cell-tag", f"cell-tag-{kind}"]
            label += nodes.inline("", "", link)
        cell.insert(0, label)


def invite(app: Sphinx, doctree: nodes.document) -> None:
    """Put the link to a page of the site under the chapter's figure that it belongs to."""
    docname = app.env.docname
    for chapter, figure, page, text in _INVITATIONS:
        if docname != f"chapters/{chapter}" or page not in app.env.found_docs:
            continue
        figures = [image for image in doctree.findall(nodes.image) if figure in image["uri"]]
        if not figures:
            logger.warning("no figure %s to link %s from", figure, page, location=docname)
            continue
        place = figures[0].parent
        address = posixpath.relpath(f"{page}.html", posixpath.dirname(docname))
        link = nodes.reference("", text, refuri=address, internal=True)
        place.parent.insert(place.parent.index(place) + 1, nodes.paragraph("", "", link))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("book_sources", "", "env")
    app.connect("source-read", link_files)
    app.connect("doctree-read", mark)
    app.connect("doctree-read", invite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
