"""The interviewer's sheets: one page, every number computed, every line leads to its cell."""

from __future__ import annotations

import dataclasses
import json
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from labkit import questions, sheets
from labkit.sheets import assemble, markup, typeset, values
from labkit.sheets.errors import SheetError
from refimpl import cache, capacity, decode, roofline, sizing
from refimpl.architecture import Architecture

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sheets.available()
HREF = re.compile(r'href="\.\./chapters/(\w+)\.html#([^"]+)"')


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda number: f"{number:02}")
def sheet(request: pytest.FixtureRequest) -> sheets.Sheet:
    return sheets.build(request.param)


def notebook_of(sheet: sheets.Sheet) -> Path:
    return ROOT / "chapters" / f"{sheet.chapter.name}.ipynb"


def source_of(sheet: sheets.Sheet) -> str:
    return (ROOT / "chapters" / f"{sheet.chapter.name}.md").read_text("utf-8")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def own_text(sheet: sheets.Sheet) -> str:
    """What the data file says, numbers filled in."""
    return "\n".join(line.text for line in (sheet.headline, *sheet.answer))


def test_chapter_01_has_a_sheet() -> None:
    assert CHAPTERS and CHAPTERS[0] == 1


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def test_prints_on_one_a4_page(sheet: sheets.Sheet) -> None:
    document = sheets.pdf(sheet)
    assert document.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", document)) == 1
    width, height = re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", document)[0]
    assert (round(float(width)), round(float(height))) == (595, 842)
    assert sheets.png(sheet, ppi=30).startswith(b"\x89PNG")  # of more pages there would be a list


def test_a_sheet_that_does_not_fit_is_refused() -> None:
    sheet = sheets.build(1)
    long = dataclasses.replace(sheet, answer=sheet.answer * 8)
    with pytest.raises(SheetError, match=r"takes [2-9] pages at 9 pt"):
        sheets.pdf(long)


def test_is_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit.sheets", "--chapter", "1", "--out", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    sheet = sheets.build(1)
    first = (tmp_path / f"{sheet.chapter.name}.pdf").read_bytes()
    assert first == sheets.pdf(sheet)
    assert b"CreationDate" not in first and b"ModDate" not in first
    assert (tmp_path / f"{sheet.chapter.name}.md").read_text("utf-8") == sheets.page_markdown(1)


def test_no_text_is_smaller_than_nine_points() -> None:
    template = (assemble.DATA / "sheet.typ").read_text("utf-8")
    sizes = [float(size) for size in re.findall(r"\bsize: ([\d.]+)pt", template)]
    sizes += typeset.SIZES
    sizes += [float(size) for size in re.findall(r"^#let small = ([\d.]+)pt", template, re.M)]
    assert len(sizes) > 4 and min(sizes) >= 9
    assert not re.search(r"\bsize: [\d.]+em", template)
    # Figures are 360 pt wide with type of 9.5 pt and more; a sheet scales them down.
    figure_width = float(re.findall(r"#let figure-width = ([\d.]+)pt", template)[0])
    assert figure_width / 360 * 9.5 > 7.5


# ── one thing, one place ─────────────────────────────────────────────────────────────────────


def test_every_trap_of_the_chapter_is_a_red_flag(sheet: sheets.Sheet) -> None:
    bank = questions.select(questions.load(), chapter=sheet.chapter.number)
    traps = {question.id: question.trap for question in bank if question.trap}
    page = sheets.page_markdown(sheet)
    assert [flag["id"] for flag in typeset.content(sheet)["flags"]] == list(traps)
    assert all(squeezed(trap) in page for trap in traps.values())
    assert all(squeezed(question.question) in page for question in bank)


def test_question_follow_ups_and_thirty_seconds_are_the_chapters(sheet: sheets.Sheet) -> None:
    source = squeezed(source_of(sheet).replace("\n> ", "\n"))
    assert f'**"{sheet.chapter.question}"**' in source
    assert sheet.chapter.task in source and sheet.spoken in source
    assert len(sheet.follow_ups) >= 3
    for item in sheet.follow_ups:
        assert f"<summary>Level {item.level}. {item.ask}</summary>" in source
        assert item.answer.text in source
    levels = [item.level for item in sheet.follow_ups]
    assert levels == sorted(levels)
    page = sheets.page_markdown(sheet)
    assert sheet.figure_alt in page and f"figures/svg/{sheet.figure}.svg" in page


def test_chapter_01_shows_every_fold() -> None:
    folds = re.findall(r"<summary>Level \d\. (.*?)</summary>", source_of(sheets.build(1)))
    assert [item.ask for item in sheets.build(1).follow_ups] == folds


# ── every line leads to its proof ────────────────────────────────────────────────────────────


def test_every_proof_is_in_the_chapter(sheet: sheets.Sheet) -> None:
    source = source_of(sheet)
    listed = re.findall(r"^:tags: \[(.*)\]", source, re.MULTILINE)
    tags = set(re.findall(r"\b(?:answers|trap):[a-z0-9-]+", "\n".join(listed)))
    headings = {heading for _, heading in questions.headings(source)}
    assert all(line.proofs for line in sheet.lines)
    for place in sheet.places:
        held = headings if place.kind == "section" else tags
        assert place.label.removeprefix("section:") in held
        assert place.section in headings
        assert place.cells


def test_links_lead_to_the_anchors_of_the_site(sheet: sheets.Sheet) -> None:
    rows = questions.syllabus_table(ROOT / "chapters")
    cells = [
        c for row in rows for c in (*row.answers, *row.traps) if row.chapter == sheet.chapter.name
    ]
    anchors = {cell.anchor: cell for cell in cells}
    links = HREF.findall(sheets.page_markdown(sheet))
    assert {name for name, _ in links} == {sheet.chapter.name}
    slugs = {questions.slugify(h) for _, h in questions.headings(source_of(sheet))}
    assert {anchor for _, anchor in links} <= set(anchors) | slugs
    for place in sheet.places:
        if place.kind != "section":
            assert anchors[place.anchor].section == place.section
            assert anchors[place.anchor].index == place.cells[0]


def test_numbers_stand_in_the_cells_that_prove_them(sheet: sheets.Sheet) -> None:
    assert values.numbers(own_text(sheet))
    assert sheets.unproved(sheet, notebook_of(sheet)) == []


def test_a_number_the_notebook_lacks_is_found(tmp_path: Path) -> None:
    sheet = sheets.build(1)
    changed = tmp_path / "changed.ipynb"
    text = notebook_of(sheet).read_text("utf-8")
    assert "3,891" in text and "3891" in text
    changed.write_text(text.replace("3,891", "3,892").replace("3891", "3892"), encoding="utf-8")
    found = sheets.unproved(sheet, changed)
    assert len(found) == 2 and all(line.startswith("3891 of ") for line in found)


# ── every number is computed ─────────────────────────────────────────────────────────────────


def scaled(factor: int) -> Any:
    """A wrong value of the same kind: the right one times a factor."""

    def wrap(function: Any) -> Any:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            if isinstance(value, sizing.Parameters):
                return dataclasses.replace(value, total=value.total * factor)
            return value * factor

        return wrong

    return wrap


def one_pass_more(function: Any) -> Any:
    """A loop that runs its model once too often."""

    def wrong(model: Any, tokens: list[int], **options: Any) -> Any:
        options["max_new_tokens"] += 1
        model.arch = dataclasses.replace(model.arch, max_context=model.arch.max_context + 1)
        return function(model, tokens, **options)

    return wrong


def larger_pool(function: Any) -> Any:
    """A plan whose cache gets twice the memory."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        plan = function(*args, **kwargs)
        fit = dataclasses.replace(plan.fit, pool_bytes=2 * plan.fit.pool_bytes)
        return dataclasses.replace(plan, fit=dataclasses.replace(fit, users=2 * fit.users))

    return wrong


CHANGES = [
    (1, decode, "generate_naive", one_pass_more, {"624,750", "417", "88.2", "89.1"}),
    (1, decode, "generate", one_pass_more, {"1,499"}),
    (1, sizing, "count_parameters", scaled(2), {"88.2", "89.1", "0.21"}),
    (1, roofline, "attention_flops", scaled(2), {"3,891", "564", "1.13"}),
    (2, decode, "generate_naive", one_pass_more, {"524,800"}),
    (2, decode, "generate", one_pass_more, {"1,024"}),
    (2, sizing, "kv_bytes_per_token", scaled(2), {"327,680"}),
    (2, sizing, "count_parameters", scaled(2), {"141.11 GB", "184.06 GB", "171.42 GiB"}),
    (2, roofline, "linear_flops", scaled(2), {"144.4"}),
    (3, sizing, "kv_bytes_per_token", scaled(2), {"327,680", "16,384", "1,152"}),
    (3, sizing, "kv_bytes", scaled(2), {"40 GiB", "0.267"}),
    (3, sizing, "weight_bytes", scaled(2), {"25,705", "0.267"}),
    (4, sizing, "kv_bytes_per_token", scaled(2), {"327,680"}),
    (4, sizing, "kv_bytes", scaled(2), {"42.95", "1.93", "1.17", "1.13", "1.61"}),
    (4, sizing, "weight_bytes", scaled(2), {"141.11", "1.17", "1.61"}),
    (4, roofline, "ridge", scaled(2), {"295"}),
    (4, roofline, "crossover_batch", scaled(2), {"105.1"}),
    (4, roofline, "intensity_ceiling", scaled(2), {"113"}),
    (4, roofline, "compute_bound_context", scaled(2), {"1,499"}),
    (4, capacity, "plan", larger_pool, {"1.327", "1.52", "10.1", "324"}),
]


def patch_everywhere(monkeypatch: pytest.MonkeyPatch, function: Any, change: Any) -> None:
    """Change a function wherever refimpl holds it: callers inside a package import it by name."""
    wrong, held = change(function), 0
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "refimpl"]:
        for name in [name for name, value in vars(module).items() if value is function]:
            monkeypatch.setattr(module, name, wrong)
            held += 1
    assert held


def filled(number: int) -> str:
    """The data file's own lines; needs no chapter."""
    data = assemble.load(number)
    computed = values.evaluate(data["given"], data["values"])
    return "\n".join(values.fill(e["text"], computed) for e in (data["headline"], *data["answer"]))


@pytest.mark.parametrize(
    ("number", "module", "name", "change", "gone"),
    CHANGES,
    ids=[f"{number:02}-{name}" for number, _, name, _, _ in CHANGES],
)
def test_a_changed_refimpl_changes_the_sheet(
    number: int,
    module: Any,
    name: str,
    change: Any,
    gone: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = filled(number)
    patch_everywhere(monkeypatch, getattr(module, name), change)
    after = filled(number)

    def count(text: str, number: str) -> int:
        return len(re.findall(rf"(?<![\d,.]){re.escape(number)}(?![\d,]|\.\d)", text))

    assert all(count(before, number) for number in gone)
    assert all(count(after, number) < count(before, number) for number in gone)


def test_a_cache_of_another_dtype_changes_the_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(2)
    assert "320 KiB" in before and "640 KiB" in before
    size = cache.ContiguousCache.num_bytes.fget
    monkeypatch.setattr(cache.ContiguousCache, "num_bytes", property(lambda c: 3 * size(c)))
    after = filled(2)
    assert "640 KiB" not in after and "1.88 MiB" in after


def test_computed_values_equal_closed_forms() -> None:
    naive, kept = (values.run_loop(name, 7, 24) for name in ("generate_naive", "generate"))
    assert naive.passes == 24 * 7 + 24 * 23 // 2 == 444
    assert kept.passes == 7 + 24 - 1
    assert naive.scores == sum(n * n for n in range(7, 31))
    assert kept.scores == 7 * 7 + sum(range(8, 31))
    assert values.rows_written(9) == 9 * 10 // 2
    llama = Architecture.named("llama-3-70b")
    assert values.stored_bytes(llama, 3, "bf16") == 3 * 2 * 80 * 8 * 128 * 2
    assert values.stored_bytes(llama, 3, "fp32") == 3 * 2 * 80 * 8 * 128 * 4
    once = [Fraction(values.run_loop("generate_naive", 1, n).passes) for n in (500, 1000)]
    assert once == [Fraction(n * (n + 1), 2) for n in (500, 1000)]


def fields(text: str) -> Iterator[str]:
    return (name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.mark.parametrize("path", sorted(assemble.DATA.glob("*.yml")), ids=lambda path: path.stem)
def test_data_files_compute_and_leave_nothing_unused(path: Path) -> None:
    data = assemble.load(int(path.stem))
    computed = values.evaluate(data["given"], data["values"])
    texts = [data["listen"], *(e["text"] for e in (data["headline"], *data["answer"]))]
    used = {name for text in texts for name in fields(text)}
    for expression in map(str, data["values"].values()):
        used |= set(re.findall(r"[A-Za-z_]\w*", expression))
    assert set(computed) <= used
    assert all(values.fill(text, computed) for text in texts)


def test_typed_numbers_are_refused() -> None:
    assert values.fill("Llama-3-70B in BF16: {x:,} of $N(N+1)/2$", {"x": 1234}).endswith("1)/2$")
    for text in ("It takes 624,750 passes", "Twice is 2", "3.5 GB a step", "{x} or 7"):
        with pytest.raises(SheetError, match="is typed in"):
            values.fill(text, {"x": 1})
    with pytest.raises(SheetError, match="typed, not computed"):
        values.evaluate({}, {"passes": "500 * 1000"})
    with pytest.raises(SheetError, match="x: 'nothing \\+ 1' fails"):
        values.evaluate({}, {"x": "nothing + 1"})
    with pytest.raises(SheetError, match="cannot fill"):
        values.fill("{missing}", {})


# ── mistakes in a data file ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("figure", "99_nothing", "does not show figure"),
        ("headline", {"text": "x", "proof": "answers:opexx"}, "has nothing called 'answers:opexx'"),
        ("answer", [{"text": "x", "proof": "section:Nowhere"}], "nothing called 'section:Nowhere'"),
        ("answer", [{"text": "takes 9 passes", "proof": "answers:opex"}], "9 is typed"),
        ("follow_ups", [{"about": "zebra", "proof": "answers:opex"}], "is in 0 follow-ups"),
        ("follow_ups", [{"about": "the", "proof": "answers:opex"}], r"is in [2-9] follow-ups"),
    ],
)
def test_mistakes_are_named(
    field: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = assemble.load(1) | {field: value}
    monkeypatch.setattr(assemble, "load", lambda number: data)
    with pytest.raises(SheetError, match=message):
        assemble.build(1)


def test_unknown_fields_and_chapters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SheetError, match="chapter 99 has no"):
        assemble.load(99)
    monkeypatch.setattr(assemble, "DATA", tmp_path)
    (tmp_path / "01.yml").write_text("figure: x\n", encoding="utf-8")
    with pytest.raises(SheetError, match="fields must be"):
        assemble.load(1)


# ── type ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("latex", "typst"),
    [
        ("N(N+1)/2", r"N ( N + 1 ) \/ 2"),
        ("NP", "N P"),
        ("10^{-30}", "10 ^( - 30 )"),
        (r"\tfrac1M", "frac( 1 , M )"),
        (r"n^2 \cdot \tau", "n ^( 2 ) dot.op tau"),
        (r"\mathrm{norm}(x)_i", '"norm" ( x ) _( i )'),
        (r"\lfloor h / 3 \rfloor", r"floor.l h \/ 3 floor.r"),
    ],
)
def test_formulas_are_translated(latex: str, typst: str) -> None:
    assert markup.formula(latex) == typst


@pytest.mark.parametrize("latex", [r"\unheardof{x}", "{x", "x^"])
def test_formulas_that_cannot_be_set_are_refused(latex: str) -> None:
    with pytest.raises(SheetError, match=r"formula|brace"):
        markup.formula(latex)


def test_markdown_becomes_runs() -> None:
    found = markup.runs('A *b* `c` $d^2$, "quoted" at $2 an hour, it\'s $3.')
    kinds = [(run["kind"], run["text"].strip()) for run in found if run["text"].strip()]
    assert kinds == [
        ("text", "A"),
        ("text", "b"),
        ("code", "c"),
        ("math", "d ^( 2 )"),
        ("text", ", “quoted” at $2 an hour, it’s $3."),
    ]
    assert [run["em"] for run in found if run["text"] == "b"] == [True]
    for text in ("- a list", "<b>bold</b>", "![x](y.svg)"):
        with pytest.raises(SheetError):
            markup.runs(text)


def test_site_files_are_those_of_the_chapters_asked_for() -> None:
    assert sheets.site_files([]) == {}
    name = sheets.build(1).chapter.name
    files = sheets.site_files([name, "99_not_written"])
    assert set(files) == {"site/sheet-01.md", "site/sheet-01.pdf"}
    assert b"path:sheet-01.pdf" in files["site/sheet-01.md"]
    assert json.dumps(files["site/sheet-01.md"].decode())
