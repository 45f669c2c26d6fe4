"""The kernels' benchmark without a GPU: its bookkeeping under the interpreter, and its refusals."""

from __future__ import annotations

import pytest
import torch

from benchmarks import kernels as benchmark
from benchmarks.attention import Shape

SHAPE = Shape(batch=2, num_query_heads=4, num_kv_heads=2, head_dim=16)


@pytest.fixture(scope="module", params=[True, False])
def row(request: pytest.FixtureRequest) -> benchmark.Row:
    return benchmark.measure(
        SHAPE, 40, causal=request.param, repeats=3, device="cpu", dtype=torch.bfloat16
    )


def test_every_figure_follows_from_the_samples(row: benchmark.Row) -> None:
    pairs = 2 * 4 * 40 * 40  # batch, heads, queries, keys
    flops = 2 * 2 * 16 * pairs  # two products, a multiply and an add each
    flops /= 2 if row.mask == "causal" else 1
    assert row.teraflops == pytest.approx(flops / row.seconds / 1e12)
    assert row.seconds > 0 and row.seconds_of_torch > 0 and row.times_slower > 0
    assert 0 < row.largest_difference <= 2 * benchmark.TOLERANCE, "bfloat16, two ways"


def test_the_table_has_the_row(row: benchmark.Row) -> None:
    header, rule, line = benchmark.table([row]).splitlines()
    assert len({part.count("|") for part in (header, rule, line)}) == 1
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == [row.mask, "40"]
    assert float(cells[2]) == pytest.approx(row.seconds * 1e3, abs=5e-4)
    assert float(cells[4]) == pytest.approx(row.times_slower, abs=5e-3)


def test_outputs_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from refimpl.kernels import flash

    right = flash.attend
    monkeypatch.setattr(flash, "attend", lambda q, k, v, causal: 1 + right(q, k, v, causal=causal))
    with pytest.raises(ValueError, match="40 tokens differ by"):
        benchmark.measure(SHAPE, 40, causal=False, repeats=1, device="cpu", dtype=torch.bfloat16)


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(benchmark, "measure", lambda *a, **k: pytest.fail("measured all the same"))
    assert benchmark.main([]) == 0
    assert "skipped, torch sees no GPU" in capsys.readouterr().out


def test_interpreted_kernels_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--quick"])
    assert stopped.value.code == 2
    assert "TRITON_INTERPRET=1" in capsys.readouterr().err
