"""The attention benchmark's bookkeeping at small lengths: tables, ratios, counted memory."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import attention as benchmark
from refimpl import attention, flash
from refimpl.flash.memory import peak_bytes

ROOT = Path(__file__).parent.parent
VARIANTS = (benchmark.PLAIN, benchmark.TILED, benchmark.TORCH)
SHAPE = benchmark.Shape(batch=2, num_query_heads=6, num_kv_heads=3, head_dim=16)


@pytest.fixture(scope="module")
def rows() -> list[benchmark.Row]:
    return benchmark.measure(SHAPE, 70, causal=True, repeats=3)


def test_every_figure_of_a_row_follows_from_its_samples(rows: list[benchmark.Row]) -> None:
    assert tuple(row.variant for row in rows) == VARIANTS
    plain = rows[0]
    for row in rows:
        assert (row.mask, row.num_tokens, len(row.samples)) == ("causal", 70, 3)
        assert row.seconds == statistics.median(row.samples) > 0
        ratios = [a / b for a, b in zip(row.samples, plain.samples, strict=True)]
        assert row.share_of_time == pytest.approx(statistics.median(ratios))
        assert row.share_of_peak == row.peak_bytes / plain.peak_bytes
        assert row.peak_bytes >= 2 * 6 * 70 * 16 * 4, "the output counts"
        assert 0 <= row.others <= 1
    assert plain.share_of_time == plain.share_of_peak == 1


def test_the_table_has_a_line_for_every_row(rows: list[benchmark.Row]) -> None:
    header, rule, *lines = benchmark.table(rows).splitlines()
    assert len({line.count("|") for line in (header, rule, *lines)}) == 1
    for row, line in zip(rows, lines, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == ["causal", row.variant, "70"]
        assert float(cells[3]) == pytest.approx(row.seconds * 1e3, abs=0.005)
        assert float(cells[5]) == pytest.approx(row.share_of_time, abs=0.005)
        assert float(cells[6]) == pytest.approx(row.peak_bytes / 1e6, abs=0.005)
        assert float(cells[7].rstrip("%")) == pytest.approx(100 * row.share_of_peak, abs=0.005)


def test_the_variants_compute_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = SHAPE.inputs(9)
    assert q.shape == (2, 6, 9, 16) and k.shape == v.shape == (2, 3, 9, 16)
    for causal in (True, False):
        works = benchmark.variants(q, k, v, causal=causal)
        assert benchmark.check_equal(works, 9) < 1e-5
        want = attention.attend(q, k, v, causal=causal)
        for work in works.values():
            torch.testing.assert_close(work(), want, atol=1e-5, rtol=0)
    monkeypatch.setattr(flash, "attend", lambda q, k, v, causal: q + 1e-4)
    with pytest.raises(ValueError, match="there is nothing to compare"):
        benchmark.check_equal(benchmark.variants(q, k, v, causal=True), 9)


@pytest.mark.parametrize("place", [1, 2])
def test_a_variant_of_nan_or_of_another_shape_is_never_equal(place: int) -> None:
    one = torch.ones(3)
    for wrong, said in (
        (torch.tensor([1, math.nan, 1]), "differ by nan"),
        (torch.ones(1), r"shapes \(3,\) and \(1,\)"),
    ):
        outs = [one, one, one]
        outs[place] = wrong
        works = {str(i): lambda out=out: out for i, out in enumerate(outs)}
        with pytest.raises(ValueError, match=said):
            benchmark.check_equal(works, 9)


@pytest.mark.parametrize("causal", [True, False])
def test_two_ways_of_counting_memory_agree(causal: bool) -> None:
    # One listens to torch's allocator, the other follows every tensor that an operator returns.
    works = benchmark.variants(*benchmark.Shape().inputs(600), causal=causal)
    for name in (benchmark.PLAIN, benchmark.TILED):
        assert benchmark.peak_allocated(works[name]) == peak_bytes(works[name])
    # torch's kernel has scratch memory of its own, which only the allocator shows.
    assert benchmark.peak_allocated(works[benchmark.TORCH]) > peak_bytes(works[benchmark.TORCH])


def test_it_prints_a_table_and_writes_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    command = ["--quick", "--threads", "1", "--tokens", "5", "33"]
    assert benchmark.main(command) == 0
    assert torch.get_num_threads() == threads
    text = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in text.splitlines()[-12:]]
    assert cells == [
        [mask, variant, tokens]
        for mask in ("causal", "none")
        for tokens in ("5", "33")
        for variant in VARIANTS
    ]
    assert "4 query heads over 2, head dim 64" in text and "tiles of 256 queries" in text
    assert list(tmp_path.iterdir()) == []
    assert benchmark.main([*command, "--write", "run.json"]) == 0
    kept = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert set(kept) == {"title", "machine", "shape", "rows"}
    assert set(kept["rows"][0]) == {field.name for field in dataclasses.fields(benchmark.Row)}
    assert kept["machine"]["threads"] == "1"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--write", "run.txt"],
        ["--write", "nowhere/run.md"],
        ["--tokens", "0"],
        ["--threads", "0"],
        ["--patience", "x"],
        ["--patience", "nan"],
    ],
)
def test_a_wrong_option_ends_it_before_any_work(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        benchmark.main(wrong)
    assert stop.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_it_runs_as_a_file_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "attention.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "--quick" in done.stdout, done.stderr
