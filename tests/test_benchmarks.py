"""The benchmark's bookkeeping on a tiny model: complete tables, consistent ratios, fair turns."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import TINY, tiny

from benchmarks import _common, decode, speculative
from refimpl import machine, weights
from refimpl.drafters import ModelDrafter, PromptLookup, quantised_self
from refimpl.model import Decoder
from refimpl.speculative import Round, Speculation
from refimpl.weights.peer import as_transformers

ROOT = Path(__file__).parent.parent
VARIANTS = (decode.PEER, "refimpl, plain", "refimpl, fused", "refimpl, fused and packed")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny(TINY["gqa"], 3, torch.float32)


@pytest.fixture(scope="module")
def peer(model: Decoder) -> Any:
    return as_transformers(model)


@pytest.fixture(scope="module")
def rows(model: Decoder, peer: Any) -> list[decode.Row]:
    return decode.measure(
        model, peer, "fp32", 12, steps=4, repeats=3, bandwidth=iter([1e9, 5e9, 2e9]).__next__
    )


def test_every_variant_has_a_row_and_every_figure_follows_from_its_samples(
    rows: list[decode.Row], model: Decoder
) -> None:
    assert tuple(row.variant for row in rows) == VARIANTS
    theirs = rows[0].samples
    # Tied: the output matrix is the embedding and is read. Two layers of keys and values, 3 heads
    # of 10, for 12 tokens and half of the 4 new ones.
    read = sum(parameter.nbytes for parameter in model.parameters()) + 2 * 2 * 3 * 10 * 14 * 4
    for row in rows:
        assert (row.dtype, row.context, len(row.samples)) == ("fp32", 12, 3)
        assert row.seconds_per_token == statistics.median(row.samples) > 0
        ratios = [t / o for t, o in zip(theirs, row.samples, strict=True)]
        assert row.times_peer == pytest.approx(statistics.median(ratios))
        assert row.bytes_per_token == read
        assert row.bytes_per_second == 2e9
        assert row.bound_seconds == read / 2e9
        assert row.share_of_bound == pytest.approx(read / 2e9 / row.seconds_per_token)
        assert 0 <= row.others <= 1
    assert rows[0].times_peer == 1


def test_the_table_has_a_line_for_every_row(rows: list[decode.Row]) -> None:
    header, rule, *lines = decode.table(rows).splitlines()
    assert len({line.count("|") for line in (header, rule, *lines)}) == 1
    assert len({len(line) for line in (header, rule, *lines)}) == 1
    for row, line in zip(rows, lines, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == ["fp32", row.variant, "12"]
        assert float(cells[3]) == pytest.approx(row.seconds_per_token * 1e3, abs=0.005)
        assert float(cells[5]) == pytest.approx(1 / row.seconds_per_token, abs=0.05)
        assert float(cells[6]) == pytest.approx(row.times_peer, abs=0.005)
        assert float(cells[9].rstrip("%")) == pytest.approx(100 * row.share_of_bound, abs=0.5)


@pytest.mark.parametrize(("name", "dtype"), [("gqa", "fp32"), ("mqa", "bf16"), ("mha", "bf16")])
def test_bytes_read_are_those_of_the_tensors_that_a_step_touches(name: str, dtype: str) -> None:
    arch = TINY[name]
    model = tiny(arch, dtype=decode.DTYPES[dtype])
    touched = {id(p): p for p in model.parameters()}
    if not arch.tie_embeddings:
        del touched[id(model.embed.weight)]
    cache = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * 7
    cache *= decode.DTYPES[dtype].itemsize
    assert decode.bytes_read(arch, 7, dtype) == sum(p.nbytes for p in touched.values()) + cache
    assert decode.bytes_read(arch, 0, dtype) == decode.bytes_read(arch, 7, dtype) - cache


def test_models_with_other_weights_are_not_compared(model: Decoder, peer: Any) -> None:
    assert decode.check_equal(model, peer, "fp32") < 1e-4
    other = tiny(TINY["gqa"], 4, torch.float32)
    with pytest.raises(ValueError, match="there is nothing to compare"):
        decode.check_equal(other, peer, "fp32")
    almost = tiny(TINY["gqa"], 3, torch.float32)
    almost.layers[1].mlp.down.weight[0, 0] += 0.5
    with pytest.raises(ValueError, match="differ"):
        decode.check_equal(almost, peer, "fp32")


@pytest.mark.parametrize("make", [decode.own_run, decode.peer_run])
def test_a_run_starts_from_the_same_context_every_time(
    make: Callable[..., decode.Run], model: Decoder, peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both loops are watched at their models' output matrix: steps and the tokens they lead to.
    subject = model if make is decode.own_run else peer
    head = model.head if make is decode.own_run else peer.lm_head
    seen: list[torch.Tensor] = []
    handle = head.register_forward_hook(lambda module, given, logits: seen.append(logits[0, -1]))
    try:
        run = make(subject, torch.arange(3, 12), 4)
        seen.clear()
        run()
        first = torch.stack(seen)
        seen.clear()
        run()
    finally:
        handle.remove()
    assert len(first) == len(seen) == 4
    torch.testing.assert_close(torch.stack(seen), first, rtol=1e-5, atol=1e-6)
    with torch.no_grad():  # the first step stands behind the whole prompt
        want = model(torch.arange(3, 12)[None])[0, -1]
    torch.testing.assert_close(first[0], want, rtol=1e-4, atol=1e-4)


# --- turns ------------------------------------------------------------------------------------


def test_runs_take_turns_and_each_is_first_equally_often() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or float(len(order))

    rounds = _common.alternate(
        {name: run(name) for name in "abc"}, 3, after_round=lambda: 0.0, neighbours=lambda: quiet
    )
    assert order == list("abcbcacab")
    assert [done.samples["a"] for done in rounds] == [1, 6, 8]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        _common.alternate({}, 0, after_round=lambda: 0.0)


def quiet() -> float:
    return 0.0


def test_with_patience_the_quietest_rounds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(_common.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_common.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    during = iter([0.5, 0.01, 0.3, 0.02, 0.9])
    taken = iter(range(10))
    looks = [0]

    def others() -> float:
        # Asked while waiting, at the start of a round and at its end; only the end matters here.
        looks[0] += 1
        return next(during) if looks[0] % 3 == 0 else 0.0

    rounds = _common.alternate(
        {"a": lambda: float(next(taken))},
        2,
        after_round=lambda: 0.0,
        patience=100.0,
        neighbours=lambda: others,
    )
    assert [done.samples["a"] for done in rounds] == [1, 3]
    assert next(taken) == 4, "it stops as soon as two rounds were quiet"


def test_without_patience_no_round_is_repeated() -> None:
    rounds = _common.alternate(
        {"a": lambda: 1.0}, 2, after_round=lambda: 0.0, neighbours=lambda: lambda: 0.8
    )
    assert [done.others for done in rounds] == [0.8, 0.8]


def test_neighbours_are_what_is_busy_and_not_us(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(10.0, 100.0, 3.0), (16.0, 120.0, 5.0), (18.0, 140.0, 8.0), (18.0, 140.0, 8.0)])
    monkeypatch.setattr(_common.Neighbours, "_look", staticmethod(lambda: next(looks)))
    neighbours = _common.Neighbours()
    assert neighbours.share() == (6 - 2) / 20
    assert neighbours.share() == 0, "own time counted in coarser ticks is not negative"
    assert neighbours.share() == 0, "no time has passed"


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc/stat")
def test_another_process_is_seen() -> None:
    neighbours = _common.Neighbours()
    spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", spin], check=True, timeout=120)
    assert neighbours.share() > 0


def test_ratio_and_spread() -> None:
    assert _common.ratio([1.0, 2.0, 4.0], [3.0, 4.0, 4.0]) == 2.0
    assert _common.spread([5.0]) == 0
    assert _common.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1 / 3)


# --- as a program -----------------------------------------------------------------------------


@pytest.fixture
def on_tiny(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "load", lambda name, *, dtype: (model.to(dtype), None))
    monkeypatch.setattr(machine, "read_bandwidth", lambda: 3e9)


def test_it_prints_a_table_and_writes_only_when_asked(
    on_tiny: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["--quick", "--dtype", "fp32", "--context", "1", "9"]
    assert decode.main(command) == 0
    text = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[2:4]] for line in text.splitlines()[-8:]]
    assert cells == [[variant, context] for context in ("1", "9") for variant in VARIANTS]
    assert "read bandwidth in this run: 3.0 to 3.0 GB/s" in text
    assert list(tmp_path.iterdir()) == []
    assert decode.main([*command, "--write", "run.json"]) == 0
    kept = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert set(kept) == {"title", "machine", "rows"}
    assert set(kept["machine"]) >= {"processor", "cores", "threads", "torch", "date"}
    assert [row["variant"] for row in kept["rows"]] == [*VARIANTS, *VARIANTS]
    assert set(kept["rows"][0]) == {field.name for field in dataclasses.fields(decode.Row)}
    assert decode.main([*command, "--write", "run.md"]) == 0
    assert "- processor: " in (tmp_path / "run.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "wrong", [["--write", "run.txt"], ["--context", "0"], ["--dtype", "fp8"], ["--patience", "x"]]
)
def test_a_wrong_option_ends_it_before_any_work(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        decode.main(wrong)
    assert stop.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_it_runs_as_a_file_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "decode.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "--quick" in done.stdout, done.stderr


# --- speculation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speculative_rows(model: Decoder) -> list[speculative.Row]:
    drafters = {
        "int8 self": quantised_self(model, 8),
        "itself": ModelDrafter(model),
        "prompt lookup": PromptLookup(),
    }
    return speculative.measure(
        model, drafters, "fp32", "words", [3, 1, 4, 1, 5], new=12, gamma=3, repeats=3
    )


def test_every_drafter_has_a_row_beside_plain_decoding(
    speculative_rows: list[speculative.Row],
) -> None:
    rows = {row.drafter: row for row in speculative_rows}
    assert list(rows) == [speculative.PLAIN, "int8 self", "itself", "prompt lookup"]
    theirs = rows[speculative.PLAIN].samples
    for row in speculative_rows:
        assert (row.dtype, row.text, row.new, len(row.samples)) == ("fp32", "words", 12, 3)
        assert row.seconds_per_token == statistics.median(row.samples) > 0
        ratios = [t / o for t, o in zip(theirs, row.samples, strict=True)]
        assert row.times_plain == pytest.approx(statistics.median(ratios))
        assert row.verify_cost == rows["itself"].verify_cost > 0
    plain, itself = rows[speculative.PLAIN], rows["itself"]
    assert (plain.times_plain, plain.predicted, plain.acceptance, plain.gamma) == (1, 1, None, 0)
    # 12 tokens at four a round; the same model is always right.
    assert (itself.acceptance, itself.tokens_per_round, itself.same) == (1, 4, 12)
    assert itself.predicted == pytest.approx(4 / (3 * itself.cost_ratio + itself.verify_cost))
    assert rows["prompt lookup"].cost_ratio == 0 < itself.cost_ratio
    header, rule, *lines = speculative.table(speculative_rows).splitlines()
    assert len({len(line) for line in (header, rule, *lines)}) == 1 and len(lines) == 4
    assert [line.split("|")[3].strip() for line in lines] == list(rows)


def test_a_prediction_weighs_rounds_by_what_they_cost() -> None:
    def result(*rounds: tuple[int, int]) -> Speculation:
        listed = [Round(proposed, accepted, accepted + 1) for proposed, accepted in rounds]
        return Speculation([], ["length"], [listed], len(listed))

    # α = 1/2: 1.75 tokens a round of two drafts at 0.25 and a pass at 1.5.
    half = result((2, 1), (2, 0), (2, 1), (2, 1))
    assert half.acceptance == 3 / 7
    half = result((2, 2), (2, 0), (2, 0))
    assert half.acceptance == 1 / 2
    assert speculative.predict(half, 2, 0.25, 1.5) == pytest.approx(1.75 / 2)
    mixed = result((2, 2), (2, 0), (2, 0), (0, 0), (0, 0), (0, 0))
    assert speculative.predict(mixed, 2, 0.25, 1.5) == pytest.approx((3 * 1.75 + 3) / (3 * 2 + 3))
    assert speculative.predict(result((0, 0)), 2, 0.25, 1.5) == 1


def test_a_clock_leaves_out_the_first_round() -> None:
    clock = speculative.Clock()
    clock.times = [10.0, 10.0, 10.0, 12.0, 12.0, 13.0]
    assert clock.seconds_per_token(3) == 1.0
    assert clock.seconds_per_token(1) == 3 / 5


@pytest.mark.parametrize("wrong", [["--gamma", "0"], ["--write", "run.txt"], ["--dtype", "fp8"]])
def test_a_wrong_option_ends_the_speculative_one_too(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        speculative.main(wrong)
    assert stop.value.code == 2 and wrong[1] in capsys.readouterr().err
