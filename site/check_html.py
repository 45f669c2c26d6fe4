"""Check a built site without a browser: links, anchors, alt texts, and nothing from outside.

``python site/check_html.py _build/html`` prints every breach; ``render.py`` and the tests call
`problems`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# attributes by which a page loads something, as opposed to <a href>, by which a reader leaves it
_LOADS = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
_CSS_LOAD = re.compile(r"""@import\s+(?:url\()?\s*['"]?([^'")\s;]+)|url\(\s*['"]?([^'")]+)""")
_FILE_NAME = re.compile(r"\S+\.(svg|png|jpe?g|gif|webp)", re.IGNORECASE)
_VOID_LINKS = {"canonical", "alternate", "author", "license", "next", "prev", "search", "index"}


class _Page(HTMLParser):
    """What one page loads, links to, names as anchors, and shows as images."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.duplicate_ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images: list[tuple[str, str | None]] = []
        self.untitled_drawings = 0
        self._style = False
        self._untitled = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for key in ("id", "name") if tag == "a" else ("id",):
            if value := values.get(key):
                if key == "id" and value in self.ids:
                    self.duplicate_ids.add(value)
                self.ids.add(value)
        if tag == "a" and values.get("href") is not None:
            self.links.append(str(values["href"]))
        if tag == "svg" and values.get("aria-hidden") != "true":
            self._untitled = not (values.get("aria-label") or "").strip()
        if tag == "title":
            self._untitled = False
        if tag == "img":
            self.images.append((values.get("src") or "", values.get("alt")))
        if not (tag == "link" and _VOID_LINKS & set((values.get("rel") or "").split())):
            for key in _LOADS.get(tag, ()):
                if value := values.get(key):
                    parts = value.split(",") if key == "srcset" else [value]
                    self.loads += [part.split()[0] for part in parts if part.strip()]
        if style := values.get("style"):
            self.loads += css_loads(style)
        self._style = tag == "style"

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        self._style = False
        if tag == "svg":
            self.untitled_drawings += self._untitled
            self._untitled = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += css_loads(data)


def css_loads(text: str) -> list[str]:
    """Addresses that a style sheet loads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return [first or second for first, second in _CSS_LOAD.findall(text)]


def _outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def problems(root: Path | str) -> list[str]:
    """Every breach found under ``root``, as ``page: what``; empty for a sound site.

    Outside scripts, styles, images, fonts and frames; links to a page, file or anchor that does not
    exist; images whose alt text is absent, empty or a file name, drawings
    without a title; ids used twice on a page.
    """
    root = Path(root).resolve()
    pages: dict[Path, _Page] = {}
    for path in sorted(root.rglob("*.html")):
        if "_static" in path.relative_to(root).parts:
            continue
        pages[path] = page = _Page()
        page.feed(path.read_text("utf-8"))
        page.close()
    if not pages:
        return [f"{root.name}: holds no page"]
    found: list[str] = []
    for path in pages:
        name = path.relative_to(root).as_posix()
        found += [f"{name}: {problem}" for problem in _page_problems(root, path, pages)]
    for path in sorted(root.rglob("*.css")):
        name = path.relative_to(root).as_posix()
        for address in css_loads(path.read_text("utf-8")):
            if _outside(address):
                found.append(f"{name}: loads {address} from outside")
    for path in sorted(root.rglob("*.svg")):
        name = path.relative_to(root).as_posix()
        inner = _Page()
        inner.feed(path.read_text("utf-8"))
        found += [f"{name}: loads {a} from outside" for a in inner.loads if _outside(a)]
    return found


def _page_problems(root: Path, path: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    page = pages[path]
    for address in page.loads:
        if _outside(address):
            yield f"loads {address} from outside"
        elif not address.startswith(("data:", "#")) and not _target(root, path, address)[0]:
            yield f"loads {address}, which does not exist"
    for source, alt in page.images:
        if alt is None or not alt.strip() or _FILE_NAME.fullmatch(alt.strip()):
            yield f"image {source[-60:]} has no alt text (alt={alt!r})"
    if page.untitled_drawings:
        yield f"{page.untitled_drawings} inline drawings have neither title nor aria-label"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if parts.scheme not in ("http", "https", "mailto"):
                yield f"link {address} is neither a page of the site nor a web address"
            continue
        exists, target = _target(root, path, address)
        if not exists:
            yield f"link {address} leads nowhere"
        elif (
            target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].ids
        ):
            yield f"link {address}: no such anchor"
    for value in sorted(page.duplicate_ids):
        yield f"id {value!r} is used twice"


def _target(root: Path, path: Path, address: str) -> tuple[bool, Path]:
    """Whether a relative address names a file inside the site, and which."""
    relative = unquote(urlsplit(address).path)
    target = (path.parent / relative).resolve() if relative else path
    if target.is_dir():
        target = target / "index.html"
    return target.is_file() and target.is_relative_to(root), target


if __name__ == "__main__":
    breaches = problems(sys.argv[1] if len(sys.argv) > 1 else "_build/html")
    print("\n".join(breaches) or "no breach")
    sys.exit(bool(breaches))
