"""The site and the question bank: what is built is complete, and each check can fail."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from myst_parser import slugs
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import questions
from labkit.questions import Question, QuestionError

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
SYLLABUS = json.loads((ROOT / "tests" / "data" / "syllabus.json").read_text("utf-8"))


def load(name: str) -> ModuleType:
    """A module of site/, whose name is taken by the standard library and cannot be a package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


render, pages, check_html = load("render"), load("pages"), load("check_html")

# ── the site as readers get it ───────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """The site rendered from the committed notebooks, warnings as errors; nothing is executed."""
    with tempfile.TemporaryDirectory() as folder:
        yield render.render(ROOT, Path(folder) / "html").parent


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


def chapters() -> list[Path]:
    found = questions.chapter_paths(ROOT / "chapters")
    assert found, "no chapter has a committed notebook"
    return found


def test_nothing_from_outside_no_broken_link_no_image_without_alt(site: Path) -> None:
    assert check_html.problems(site) == []


def test_every_chapter_has_a_page_and_every_planned_one_says_so(site: Path) -> None:
    written = {path.stem for path in chapters()}
    home = soup(site / "index.html").select_one(".book-map")
    assert home is not None
    linked = {Path(str(a["href"])).stem for a in home.select("a")}
    assert linked == written
    planned = home.select(".map-planned")
    assert len(planned) + len(linked) == 16
    assert all("planned" in item.get_text() and not item.select("a") for item in planned)
    assert all((site / "chapters" / f"{name}.html").is_file() for name in written)


def test_question_index_maps_each_question_to_its_very_cells(site: Path) -> None:
    index = soup(site / "site" / "questions.html")
    numbers = {int(path.name[:2]) for path in chapters()}
    expected = [entry for entry in SYLLABUS if entry["chapter"] in numbers]
    assert expected
    read: dict[Path, BeautifulSoup] = {}
    for entry in expected:
        row = index.find(id=f"q-{entry['id']}")
        assert row is not None, entry["id"]
        for kind in ("answers", "trap") if entry["trap"] else ("answers",):
            links = row.select(f"a.cell-tag-{kind}")
            assert links, f"{entry['id']} has no {kind} cell"
            for link in links:
                target = urlsplit(str(link["href"]))
                path = (site / "site" / unquote(target.path)).resolve()
                read[path] = page = read.get(path) or soup(path)
                cell = page.find(id=target.fragment)
                if "cell" not in cell.get("class", []):  # a second anchor is an element inside
                    cell = cell.find_parent(class_="cell")
                assert f"tag_{kind}:{entry['id']}" in cell["class"]
                assert cell.select_one("div.cell_input pre").get_text().strip()
        assert row.select_one("td[data-label=Section] a").get_text().strip()


def test_tagged_cells_link_back_to_their_question(site: Path) -> None:
    for path in chapters():
        page = soup(site / "chapters" / f"{path.stem}.html")
        tags = [tag for cell in pages.cells(path) for tag in questions.tags_of(cell)]
        links = [str(a["href"]) for a in page.select(".cell-question a")]
        assert links == [f"../site/questions.html#q-{name}" for _, name in tags]


def test_home_asks_every_question_of_the_written_chapters(site: Path) -> None:
    asked = soup(site / "index.html").select("ul.asked a")
    numbers = {int(path.name[:2]) for path in chapters()}
    assert len(asked) == sum(entry["chapter"] in numbers for entry in SYLLABUS)


def test_sheets_are_pages_with_a_print_edition(site: Path) -> None:
    pdfs = {path.name for path in site.rglob("*.pdf")}
    for path in chapters():
        sheet = soup(site / "site" / f"sheet-{path.name[:2]}.html")
        proofs = [str(a["href"]) for a in sheet.select("article a.cell-tag")]
        assert proofs and all(f"chapters/{path.stem}.html#" in proof for proof in proofs)
        assert f"sheet-{path.name[:2]}.pdf" in pdfs


def test_the_stepper_is_reached_from_home_its_chapter_and_the_sidebar(site: Path) -> None:
    page = soup(site / "site" / "stepper.html")
    assert page.select_one("#stepper") and len(page.select("details.stepper-all tbody tr")) == 10
    assert all(
        any(name in str(script["src"]) for script in page.select("script[src]"))
        for name in ("book.js", "stepper.js")
    )
    chapter = site / "chapters" / f"{pages.STEPPER_CHAPTER}.html"
    for origin, place in ((site / "index.html", "article p"), (chapter, "article p")):
        links = [str(a["href"]) for a in soup(origin).select(f"{place} a[href*=stepper]")]
        assert [(origin.parent / link).resolve() for link in links] == [
            (site / "site" / "stepper.html").resolve()
        ]
    under = soup(chapter).select_one('article img[src*="02_cache_filling"]').find_parent("p")
    assert under.find_next_sibling("p").select_one("a[href*=stepper]")
    sidebar = [str(a["href"]) for a in soup(site / "index.html").select("nav.bd-links a")]
    after = sidebar.index(f"chapters/{pages.STEPPER_CHAPTER}.html") + 1
    assert sidebar[after] == "site/stepper.html"


def test_the_calculator_is_reached_from_home_and_the_sidebar(site: Path) -> None:
    page = soup(site / "site" / "calculator.html")
    assert page.select_one("#calc") and page.select_one("#calc-data")
    scripts = [Path(urlsplit(str(s["src"])).path).name for s in page.select("script[src]")]
    assert scripts.index("calc.js") < scripts.index("calculator.js")
    home = soup(site / "index.html")
    for place in ("article p", "nav.bd-links"):
        links = [str(a["href"]) for a in home.select(f"{place} a[href*=calculator]")]
        assert links == ["site/calculator.html"]


def test_search_index_finds_words_of_a_chapter_and_of_the_glossary(site: Path) -> None:
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))

    def documents(word: str) -> set[str]:
        # A word of a page's headings is indexed there and not among the words of its text.
        found = [index[where].get(word, []) for where in ("terms", "titleterms")]
        return {
            index["docnames"][n]
            for hits in found
            for n in (hits if isinstance(hits, list) else [hits])
        }

    assert "site/glossary" in documents("nucleus")
    for path in chapters():
        assert f"chapters/{path.stem}" in documents("token")
    assert documents("qwertyuiop") == set()


def test_maths_is_drawn_by_a_local_bundle_without_fonts(site: Path) -> None:
    with_maths = [page for page in site.rglob("*.html") if soup(page).select(".math")]
    assert site / "index.html" in with_maths
    for page in with_maths:
        scripts = [str(s["src"]) for s in soup(page).select("script[src]") if "mathjax" in s["src"]]
        assert len(scripts) == 1
        bundle = (page.parent / urlsplit(scripts[0]).path).resolve()
        assert bundle.name == "tex-svg.js" and bundle.is_file()


def test_code_cells_can_be_copied_and_folds_are_folds(site: Path) -> None:
    for path in chapters():
        page = soup(site / "chapters" / f"{path.stem}.html")
        assert any("copybutton" in str(s["src"]) for s in page.select("script[src]"))
        source = "".join(cell["source"] for cell in pages.cells(path))
        assert len(page.select("article details > summary")) == source.count("<summary>")
        assert all(not fold.has_attr("open") for fold in page.select("article details"))


def test_outputs_are_on_the_page(site: Path) -> None:
    for path in chapters():
        text = soup(site / "chapters" / f"{path.stem}.html").get_text()
        notebook = json.loads(path.read_text("utf-8"))
        streams = [
            "".join(output["text"]).strip().splitlines()[0]
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
            for output in cell["outputs"]
            if output["output_type"] == "stream" and "".join(output["text"]).strip()
        ]
        assert streams and all(line in text for line in streams)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_maths_and_searches_from_a_file_address(site: Path) -> None:
    def dom(address: str) -> BeautifulSoup:
        with tempfile.TemporaryDirectory() as profile:
            command = [
                str(CHROMIUM),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ]
            command += ["--disable-background-networking", "--disable-component-update"]
            command += ["--disable-sync", "--disable-quic", f"--user-data-dir={profile}"]
            command += ["--virtual-time-budget=20000", "--dump-dom", address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            return BeautifulSoup(done.stdout, "html.parser")

    glossary = dom((site / "site" / "glossary.html").as_uri())
    formulas = glossary.select("article .math")
    assert formulas and all(formula.select("mjx-container svg") for formula in formulas)
    results = dom((site / "search.html").as_uri() + "?q=nucleus").select("#search-results a")
    assert any("glossary.html" in str(a["href"]) for a in results)


# ── rendering: what stops it ─────────────────────────────────────────────────────────────────

MINIMAL = """# 01 · Naive decoding

Costs $N(N+1)/2$ passes, at $2 an hour.
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Write ``chapters/01_naive_decoding.ipynb`` with all tags, changed as a test asks."""

    def write(
        markdown: str = MINIMAL, *, without: str = "", extra: str = "", folder: str = "book"
    ) -> Path:
        tags = [f"answers:{q.id}" for q in questions.select(questions.load(), chapter=1)]
        tags += [f"trap:{q.id}" for q in questions.select(questions.load(), chapter=1) if q.trap]
        tags = [tag for tag in [*tags, extra] if tag and tag != without]
        cells = [new_markdown_cell(markdown)]
        for number, tag in enumerate(tags, 1):
            output = new_output("stream", name="stdout", text=f"{number}\n")
            cell = new_code_cell(f"assert {number}", execution_count=number, outputs=[output])
            cell.metadata["tags"] = [tag]
            cells.append(cell)
        notebook = new_notebook(cells=cells)
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        path = tmp_path / folder / "chapters" / "01_naive_decoding.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return tmp_path / folder

    return write


@pytest.mark.slow
def test_a_warning_stops_the_build_also_the_second_time(
    tiny: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    book = tiny(MINIMAL + "\nSee [nothing](02_no_such_chapter.ipynb).\n")
    for _ in range(2):
        with pytest.raises(render.RenderError):
            render.render(book, tmp_path / "html", sheets=False)
        assert "02_no_such_chapter" in capfd.readouterr().err


@pytest.mark.slow
def test_rendering_again_touches_only_what_changed(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "html"
    render.render(tiny(), out, sheets=False)
    before = {page: page.stat().st_mtime_ns for page in out.rglob("*.html")}
    assert "at $2 an hour" in soup(out / "chapters" / "01_naive_decoding.html").get_text()
    assert not (out / "site" / "stepper.html").exists()  # it belongs to a chapter that is not here
    render.render(tiny(MINIMAL + "\nOne more sentence.\n"), out, sheets=False)
    changed = {page.name for page, then in before.items() if page.stat().st_mtime_ns != then}
    assert "01_naive_decoding.html" in changed and "glossary.html" not in changed


def test_rendering_has_a_time_limit(tiny: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(render.RenderError, match=r"did not end within 0\.1 s"):
        render.render(tiny(), tmp_path / "html", sheets=False, time_limit_s=0.1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"without": "answers:sampling"}, "no cell is tagged answers:sampling"),
        ({"without": "trap:naive-cost"}, "no cell is tagged trap:naive-cost"),
        ({"extra": "answers:no-such"}, "tag answers:no-such is no question of this chapter"),
        ({"extra": "answers:why-kv"}, "tag answers:why-kv is no question of this chapter"),
        ({"extra": "trap:opex"}, "tag trap:opex, but the bank names no trap there"),
    ],
)
def test_rendering_stops_for_wrong_tags(
    tiny: Callable[..., Path], tmp_path: Path, change: dict[str, str], complaint: str
) -> None:
    with pytest.raises(render.RenderError, match=re.escape(complaint)):
        render.render(tiny(**change), tmp_path / "html", sheets=False)


def test_rendering_without_chapters_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "chapters").mkdir()
    with pytest.raises(render.RenderError, match="make book"):
        render.render(tmp_path, tmp_path / "html")


def test_sixteen_chapters_get_their_five_parts(tmp_path: Path) -> None:
    plan = (SITE / "map.yml").read_text("utf-8")
    names = re.findall(r"name: (\w+)", plan)
    assert [int(name[:2]) for name in names] == list(range(1, 17))
    written = {}
    for name in names:
        written[name] = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=[new_markdown_cell(f"# {name[:2]} · T")]), written[name])
    parts = pages.read_map(plan, written)
    assert [part.number for part in parts] == ["I", "II", "III", "IV", "V"]
    assert [c.number for part in parts for c in part.chapters] == list(range(1, 17))
    contents = pages.contents(parts, solutions=[names[0]], sheets=["site/sheet-01"])
    assert contents.count(":caption:") == 5 + 3
    assert all(f"\nchapters/{name}\n" in contents for name in names)
    assert pages.state(parts) == "All 16 chapters are written."
    assert "planned" not in pages.book_map(parts)
    beside = pages.contents(parts, solutions=[], sheets=[], beside={names[1]: ["site/extra"]})
    assert f"\nchapters/{names[1]}\nsite/extra\nchapters/{names[2]}\n" in beside
    with pytest.raises(ValueError, match="17_unplanned"):
        pages.read_map(plan, {"17_unplanned": tmp_path / "17_unplanned.ipynb"})


def test_templates_reject_a_placeholder_without_value_and_the_reverse() -> None:
    assert pages.fill("a {{ b }} c", b="x") == "a x c"
    for template, values in [("a {{ b }}", {}), ("a", {"b": "x"})]:
        with pytest.raises(ValueError, match="template has"):
            pages.fill(template, **values)


def test_bibliography_entries_have_what_a_reader_needs() -> None:
    entries = re.split(r"(?m)^@", (SITE / "references.bib").read_text("utf-8"))[1:]
    assert len(entries) >= 13
    for entry in entries:
        fields = dict(re.findall(r"(?m)^  (\w+)\s*= \{(.*)\},$", entry))
        assert {"title", "author", "year"} <= set(fields), entry
        if "url" in fields:
            arxiv = re.fullmatch(r"https://arxiv\.org/abs/(\d{2})(\d{2})\.\d{4,5}", fields["url"])
            assert arxiv, fields["url"]
            # A paper is published in the year of its preprint or in one of the next two.
            assert 0 <= int(fields["year"]) - 2000 - int(arxiv[1]) <= 2, entry
            assert 1 <= int(arxiv[2]) <= 12
        else:
            assert "doi" in fields, entry


# ── the page checker can fail ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "from outside"),
        ('<script src="//cdn.example/x.js"></script>', "from outside"),
        ('<link rel="stylesheet" href="http://cdn.example/x.css">', "from outside"),
        ('<link rel="preload" as="font" href="https://cdn.example/x.woff2">', "from outside"),
        ('<img alt="a picture" src="https://cdn.example/x.png">', "from outside"),
        ('<img alt="a" src="a.svg" srcset="https://cdn.example/x.png 2x">', "from outside"),
        ('<iframe src="https://cdn.example/"></iframe>', "from outside"),
        ("<style>@import url(https://cdn.example/x.css);</style>", "from outside"),
        ("<style>p { background: url('https://cdn.example/x.png') }</style>", "from outside"),
        ('<p style="background: url(//cdn.example/x.png)">', "from outside"),
        ('<img alt="a picture" src="b.svg">', "does not exist"),
        ('<img src="a.svg">', "no alt text"),
        ('<img alt="" src="a.svg">', "no alt text"),
        ('<img alt="  " src="a.svg">', "no alt text"),
        ('<img alt="../_images/a.svg" src="a.svg">', "no alt text"),
        ('<svg role="img"><path d="M0 0"/></svg>', "neither title nor aria-label"),
        ('<a href="none.html">x</a>', "leads nowhere"),
        ('<a href="../outside.html">x</a>', "leads nowhere"),
        ('<a href="#none">x</a>', "no such anchor"),
        ('<a href="other.html#none">x</a>', "no such anchor"),
        ('<a href="file:///etc/hosts">x</a>', "neither a page of the site nor a web address"),
        ('<p id="here"></p>', "used twice"),
    ],
)
def test_page_checker_reports(tmp_path: Path, body: str, complaint: str) -> None:
    root = tmp_path / "html"
    root.mkdir()
    (root / "a.svg").write_text("<svg/>")
    (tmp_path / "outside.html").write_text("<p>")
    (root / "other.html").write_text('<p id="there">')
    good = (
        '<p id="here"><a href="other.html#there">x</a> <a href="#here">x</a> <a href=".">x</a>'
        '<a href="https://arxiv.org/abs/1706.03762">x</a> <img alt="a picture" src="a.svg">'
        '<svg><title>T</title></svg><svg aria-label="x"></svg><svg aria-hidden="true"></svg>'
    )
    (root / "index.html").write_text(good)
    assert check_html.problems(root) == []
    (root / "index.html").write_text(good + body)
    found = check_html.problems(root)
    assert len(found) == 1 and complaint in found[0]


def test_page_checker_reads_style_sheets_and_drawings(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>")
    (tmp_path / "a.css").write_text("/* url(https://x.example) */ p { color: red }")
    assert check_html.problems(tmp_path) == []
    (tmp_path / "a.css").write_text('@font-face { src: url("https://fonts.example/a.woff2") }')
    assert "a.css: loads https://fonts.example" in check_html.problems(tmp_path)[0]
    (tmp_path / "a.css").unlink()
    (tmp_path / "a.svg").write_text('<svg><image href="https://x.example/a.png"/></svg>')
    assert "a.svg: loads https://x.example" in check_html.problems(tmp_path)[0]


def test_page_checker_does_not_pass_an_empty_folder(tmp_path: Path) -> None:
    assert check_html.problems(tmp_path)


# ── the bank ─────────────────────────────────────────────────────────────────────────────────

ENTRY = '- {id: a-b, chapter: 1, level: 2, question: "Why?", answer: Since., trap: null}\n'


def test_bank_has_the_questions_of_its_chapters_with_their_levels_and_traps() -> None:
    bank = questions.load()
    for chapter in {question.chapter for question in bank}:
        expected = {
            (entry["id"], entry["level"], entry["trap"])
            for entry in SYLLABUS
            if entry["chapter"] == chapter
        }
        mine = questions.select(bank, chapter=chapter)
        assert {(q.id, q.level, q.trap is not None) for q in mine} == expected
    assert {path.name[:2] for path in chapters()} <= {f"{q.chapter:02}" for q in bank}


def test_bank_is_written_to_be_said_aloud() -> None:
    for question in questions.load():
        assert question.question[-1] in "?."
        assert 15 <= len(question.answer.split()) <= 110, question.id


def test_a_good_entry_parses() -> None:
    assert questions.parse(ENTRY) == (Question("a-b", 1, 2, "Why?", "Since.", None),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- {a: ?b", "not YAML"),
        ("a: b", "must be a list"),
        ("- a", "must be a mapping"),
        (ENTRY + ENTRY, "used twice"),
        (ENTRY.replace("a-b", "A_b"), "lower-case words"),
        (ENTRY.replace("chapter: 1", "chapter: one"), "chapter must be a number"),
        (ENTRY.replace("chapter: 1", "chapter: 0"), "got 0"),
        (ENTRY.replace("level: 2", "level: 4"), "got 4"),
        (ENTRY.replace("Since.", "''"), "answer must be text"),
        (ENTRY.replace("null", "''"), "trap must be text"),
        (ENTRY.replace("trap: null", "traps: null"), "missing {'trap'}, unknown {'traps'}"),
    ],
)
def test_a_bad_entry_is_named(text: str, complaint: str) -> None:
    with pytest.raises(QuestionError, match=re.escape(complaint)):
        questions.parse(text)


def test_all_bad_entries_are_reported_at_once() -> None:
    two = ENTRY.replace("level: 2", "level: 4") + ENTRY.replace("Since.", "''").replace("a-b", "c")
    with pytest.raises(QuestionError) as error:
        questions.parse(two)
    assert len(str(error.value).splitlines()) == 2


def test_find_suggests_near_ids() -> None:
    assert questions.find("why-kv").chapter == 2
    with pytest.raises(ValueError, match="no question 'why-vk'; near: why-kv"):
        questions.find("why-vk")


# ── the table ────────────────────────────────────────────────────────────────────────────────

BANK = (
    Question("one", 1, 1, "One?", "Yes.", None),
    Question("two", 1, 2, "Two?", "Yes.", "No."),
    Question("elsewhere", 2, 1, "Else?", "Yes.", None),
)


def write_chapter(folder: Path, *cells: tuple[str, str]) -> Path:
    """A notebook of Markdown cells (tag '') and code cells (tags joined by spaces)."""
    made = []
    for source, tags in cells:
        cell = new_markdown_cell(source) if source.startswith("#") else new_code_cell(source)
        cell.metadata["tags"] = tags.split()
        made.append(cell)
    nbformat.write(new_notebook(cells=made), folder / "01_first.ipynb")
    return folder


GOOD = (
    ("# 01 · First\n\n## Set up", ""),
    ("import math", ""),
    ("## Build $n^2$ of `it`\n\n```\n# no heading\n```", ""),
    ("assert 1", "answers:one answers:two nbval-ignore-output"),
    ("## Set up", ""),
    ("assert 2", "answers:one trap:two"),
)


def test_table_finds_section_and_cells(tmp_path: Path) -> None:
    one, two = questions.syllabus_table(write_chapter(tmp_path, *GOOD), BANK)
    assert (one.chapter, one.title) == ("01_first", "01 · First")
    assert [(cell.index, cell.anchor) for cell in one.answers] == [
        (3, "answers-one"),
        (5, "answers-one-2"),
    ]
    assert (one.section, one.section_anchor) == ("Build n^2 of it", "build--of-it")
    assert one.traps == () and [cell.anchor for cell in two.traps] == ["trap-two"]
    assert two.traps[0].section_anchor == "set-up-1"


@pytest.mark.parametrize(
    ("cell", "tags", "complaint"),
    [
        (3, "answers:two", None),
        (3, "answers:one", "no cell is tagged answers:two"),
        (5, "answers:one", "no cell is tagged trap:two"),
        (1, "answers:three", "tag answers:three is no question of this chapter"),
        (1, "answers:elsewhere", "tag answers:elsewhere is no question of this chapter"),
        (1, "trap:one", "tag trap:one, but the bank names no trap there"),
        (4, "answers:one", "answers:one is on a cell that does not run"),
    ],
)
def test_table_names_what_is_missing_or_misplaced(
    tmp_path: Path, cell: int, tags: str, complaint: str | None
) -> None:
    cells = [(source, tags if n == cell else old) for n, (source, old) in enumerate(GOOD)]
    folder = write_chapter(tmp_path, *cells)
    if complaint is None:
        assert len(questions.syllabus_table(folder, BANK)) == 2
        return
    with pytest.raises(QuestionError, match=complaint):
        questions.syllabus_table(folder, BANK)


def test_table_wants_questions_for_every_chapter(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="no question for this chapter"):
        questions.syllabus_table(write_chapter(tmp_path, ("# 01", "")), BANK[2:])


@pytest.mark.parametrize(
    "heading",
    ["Say it in 30 seconds", '"It is O(N²)"', "Build: attention, twice", "A  B – C_d", "λ/μ"],
)
def test_anchors_are_those_of_the_renderer(heading: str) -> None:
    assert questions.slugify(heading) == slugs.github_slugify(heading)


def test_headings_ignore_code_and_formatting() -> None:
    text = "# A `b` *c*\ntext\n~~~py\n# no\n```\n# no\n~~~\n### [D](e.md) q_BHTD ##\n#no\n"
    assert questions.headings(text) == [(1, "A b c"), (3, "D q_BHTD")]


# ── the drill ────────────────────────────────────────────────────────────────────────────────


def test_drill_without_a_keyboard_prints_questions_with_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions.drill(BANK[:2], interactive=False)
    text = capsys.readouterr().out
    assert "One?" in text and "answer  Yes." in text and "trap    No." in text
    assert "Press" not in text and "held" not in text


def test_drill_asks_before_it_answers_and_keeps_score(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = iter(["", "y", "", "n"])
    shown: list[str] = []

    def reply(prompt: str) -> str:
        shown.append(capsys.readouterr().out)
        return next(replies)

    monkeypatch.setattr("builtins.input", reply)
    questions.drill(BANK[:2], interactive=True)
    assert "One?" in shown[0] and "answer" not in shown[0] and "answer" in shown[1]
    assert "1 of 2 held. Again: two" in capsys.readouterr().out


def test_drill_ends_quietly_when_input_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", reply)
    questions.drill(BANK[:2], interactive=True)
    text = capsys.readouterr().out
    assert "Stopped." in text and "Two?" not in text


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = questions.main(arguments)
    text = capsys.readouterr()
    return status, text.out, text.err


@pytest.fixture
def no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)


def asked(text: str) -> list[str]:
    return re.findall(r"(?m)^\[\d+/\d+\] ([a-z0-9-]+) ·", text)


@pytest.mark.usefixtures("no_keyboard")
def test_command_line_drills_by_chapter_level_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    everything = [q.id for q in questions.load()]
    assert asked(run(capsys=capsys)[1]) == everything
    first = asked(run("--seed", "3", "-n", "4", capsys=capsys)[1])
    assert first == asked(run("ask", "--seed", "3", "-n", "4", capsys=capsys)[1])
    assert len(first) == 4 and first != everything[:4]
    assert sorted(asked(run("--seed", "3", capsys=capsys)[1])) == sorted(everything)
    assert asked(run("--level", "2", "--chapter", "2", capsys=capsys)[1]) == ["prealloc"]


@pytest.mark.usefixtures("no_keyboard")
def test_command_line_lists_shows_and_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, text, _ = run("list", "--chapter", "1", capsys=capsys)
    assert status == 0 and "naive-loop · chapter 01 · level 1, mechanism" in text
    assert "answer  " not in text
    status, text, _ = run("show", "why-kv", capsys=capsys)
    assert status == 0 and "answer  " in text and "trap    " in text
    for arguments, complaint in [
        (["show", "why"], "no question 'why'"),
        (["--chapter", "99"], "chapter 99"),
        (["-n", "0"], "got 0"),
    ]:
        status, _, error = run(*arguments, capsys=capsys)
        assert status == 1 and complaint in error
    (tmp_path / "01_first.ipynb").write_text('{"cells": []}')
    status, _, error = run("table", str(tmp_path), capsys=capsys)
    assert status == 1 and "no cell is tagged answers:naive-loop" in error
