"""The paged benchmark's bookkeeping on a tiny model: equal caches, counted bytes, honest ratios."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracles import TINY, tiny

from benchmarks import _common, paged
from refimpl import weights
from refimpl.cache import ContiguousCache, PagedCache
from refimpl.model import Decoder

ROOT = Path(__file__).parent.parent
WHOLE = (
    "contiguous, fused",
    "contiguous, fused and packed",
    "blocks, fused",
    "blocks, fused and packed",
)
VARIANTS = (*WHOLE, paged.GATHER, paged.ATTENTION)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny(TINY["gqa"], 3, torch.float32)


@pytest.fixture(scope="module")
def rows(model: Decoder) -> list[paged.Row]:
    return paged.measure(model, "fp32", 2, 11, block_size=4, steps=5, repeats=3)


def test_every_variant_has_a_row_and_every_figure_follows_from_its_samples(
    rows: list[paged.Row],
) -> None:
    assert tuple(row.variant for row in rows) == VARIANTS
    fastest = min(rows[:2], key=lambda row: row.seconds_per_step)
    for row in rows:
        assert (row.dtype, row.batch, row.context, row.block_size) == ("fp32", 2, 11, 4)
        assert row.seconds_per_step == statistics.median(row.samples) > 0
        ratios = [f / own for f, own in zip(fastest.samples, row.samples, strict=True)]
        assert row.times_fastest == pytest.approx(statistics.median(ratios))
        assert (len(row.samples), 0 <= row.others <= 1) == (3, True)
    assert fastest.times_fastest == 1
    # Two rows, two layers of keys and values, 3 heads of 10, 4 bytes. The five steps see 11 to 15
    # tokens, which is 3 blocks of 4 slots twice and 4 blocks three times.
    per_block = 4 * 2 * 2 * 3 * 10 * 4
    steps = [2 * 3 * per_block] * 2 + [2 * 4 * per_block] * 3
    gathered = {row.variant: row.bytes_gathered for row in rows}
    assert gathered == {
        "contiguous, fused": 0,
        "contiguous, fused and packed": 0,
        "blocks, fused": sum(steps) // 5,
        "blocks, fused and packed": sum(steps) // 5,
        paged.GATHER: 2 * 3 * per_block,  # 10 tokens are cached between the runs
        paged.ATTENTION: 0,
    }


def test_the_verdict_names_the_better_of_the_paged_variants(rows: list[paged.Row]) -> None:
    best = max(rows[2:4], key=lambda row: row.times_fastest)
    text = paged.verdict(rows)
    assert text.startswith(f"fp32, batch 2: {best.times_fastest:.2f} times the fastest contiguous")
    parts = rows[4].seconds_per_step / rows[5].seconds_per_step
    assert f"takes {parts:.1f} times as long" in text


def test_the_table_has_a_line_for_every_row(rows: list[paged.Row]) -> None:
    header, rule, *lines = paged.table(rows).splitlines()
    assert len({line.count("|") for line in (header, rule, *lines)}) == 1
    for row, line in zip(rows, lines, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == ["fp32", "2", row.variant]
        assert float(cells[3]) == pytest.approx(row.seconds_per_step * 1e3, abs=0.005)
        if row.variant in WHOLE:
            assert float(cells[5]) == pytest.approx(2 / row.seconds_per_step, abs=0.05)
            assert float(cells[6]) == pytest.approx(row.times_fastest, abs=0.005)
        else:
            assert cells[5:7] == ["", ""]


def test_both_caches_hold_the_same_tokens_and_blocks_lie_apart(model: Decoder) -> None:
    options = {"batch": 3, "context": 9, "steps": 5, "block_size": 2}
    contiguous, blocks = paged.make_caches(model.arch, torch.float32, **options)
    assert isinstance(contiguous, ContiguousCache) and isinstance(blocks, PagedCache)
    assert contiguous.num_tokens.tolist() == blocks.num_tokens.tolist() == [8] * 3
    for layer in range(model.arch.num_layers):
        for ours, theirs in zip(blocks.read(layer), contiguous.read(layer), strict=True):
            assert torch.equal(ours, theirs) and not torch.equal(ours[0], ours[1])
    steps = [
        abs(b - a) for t in blocks.tables for a, b in zip(t.blocks[:-1], t.blocks[1:], strict=True)
    ]
    assert statistics.mean(steps) > 3, "neighbours of a sequence lie apart"
    assert paged.check_equal(model, (contiguous, blocks), "fp32") <= 1e-5
    assert contiguous.num_tokens.tolist() == blocks.num_tokens.tolist() == [8] * 3
    blocks.pool.k_LNGPD[0, blocks.tables[1].blocks[0]] += 3
    with pytest.raises(ValueError, match="there is nothing to compare"):
        paged.check_equal(model, (contiguous, blocks), "fp32")


def test_a_run_leaves_the_context_as_it_was(model: Decoder) -> None:
    for cache in paged.make_caches(
        model.arch, torch.float32, batch=2, context=7, steps=4, block_size=3
    ):
        before = [x.clone() for layer in range(2) for x in cache.read(layer)]
        run = paged.decode_run(model, cache, 4)
        assert run() > 0 and run() > 0
        assert cache.num_tokens.tolist() == [6, 6]
        after = [x for layer in range(2) for x in cache.read(layer)]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# --- as a program -----------------------------------------------------------------------------


def test_it_prints_a_table_and_writes_only_when_asked(
    model: Decoder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "load", lambda name, *, dtype: (model.to(dtype), None))
    monkeypatch.setattr(_common.Neighbours, "share", lambda self: 0.5)
    monkeypatch.chdir(tmp_path)
    command = ["--quick", "--dtype", "fp32", "--context", "9", "--block-size", "4"]
    assert paged.main(command) == 0
    text = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[2:4]] for line in text.splitlines()[-12:]]
    assert cells == [[batch, variant] for batch in ("1", "8") for variant in VARIANTS]
    assert text.startswith("Decode on blocks of 4, context 9, ")
    assert "fp32, batch 8: " in text
    assert "other processes used up to 50% of the cores" in text
    assert list(tmp_path.iterdir()) == []
    assert paged.main([*command, "--batch", "2", "--write", "run.json"]) == 0
    kept = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert [row["variant"] for row in kept["rows"]] == list(VARIANTS)
    assert set(kept["rows"][0]) == {field.name for field in dataclasses.fields(paged.Row)}
    assert kept["rows"][2]["bytes_gathered"] > 0


@pytest.mark.parametrize(
    "wrong",
    [["--write", "run.txt"], ["--context", "1"], ["--dtype", "fp8"], ["--batch", "0"]],
)
def test_a_wrong_option_ends_it_before_any_work(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        paged.main(wrong)
    assert stop.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_it_runs_as_a_file_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "paged.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "--block-size" in done.stdout, done.stderr
