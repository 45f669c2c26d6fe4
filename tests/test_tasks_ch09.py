"""Chapter 09's exercises: oracles against a second opinion, the functions in use, questions."""

import math
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from task_tools import (
    examples,
    expected_of,
    in_units,
    mutants,
    questions,
    ranges_from_a_warm_up_to_a_hard_one,
    right_replies_pass,
    wrong_replies_are_named,
)
from torch.nn import functional as F

from labkit.examine import examine
from labkit.tasks import all_tasks
from labkit.tasks.ch09.exact import attention, summed
from labkit.tasks.ch09.tiled import _holds_more, _Keys
from refimpl.flash import costs, tiles
from refimpl.flash.schedule import SKIPPED

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 9}
ASKED = [name for name, task in TASKS.items() if task.draw is not None]
SEEDS = range(60)


def versions(name: str, *, without: tuple[str, ...] = ()) -> list[Any]:
    """Every version of every wrong answer of a task, as parameters of a test."""
    return [
        pytest.param(function, id=f"{mistake}-{i}")
        for mistake, functions in mutants(name).items()
        for i, function in enumerate(functions)
        if mistake not in without
    ]


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=1)
    assert ASKED == ["score_matrix"] and sum(task.points for task in TASKS.values()) == 25
    assert {"accumulator not rescaled", "NaN for masked rows"} <= set(mutants("fold_tile"))
    assert {"all keys at once", "row of scores kept"} <= set(mutants("tiled_attention"))


def test_the_tasks_leave_triton_alone():
    """Its mode is settled when it is first imported: grading must not be what does that."""
    code = (
        "import sys; from labkit.tasks import all_tasks; from labkit.examine import examine\n"
        "task = all_tasks()['tiled_attention']\n"
        "assert examine(task, task.answers[0]).passed and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ── the oracles ──────────────────────────────────────────────────────────────────────────────


def test_score_matrix_expects_what_a_tensor_of_scores_takes():
    dtypes = {
        "FP32": torch.float32,
        "BF16": torch.bfloat16,
        "FP16": torch.float16,
        "FP8": torch.float8_e4m3fn,
    }
    for (H, N, B, dtype), expected in expected_of("score_matrix").items():
        q_BHND = torch.empty(B, H, N, 64, device="meta")
        scores_BHNN = (q_BHND @ q_BHND.transpose(2, 3)).to(dtypes[dtype])
        assert expected == scores_BHNN.nbytes
    assert expected_of("score_matrix")[32, 8192, 1, "BF16"] == 4 * 2**30
    assert expected_of("score_matrix")[32, 131_072, 1, "BF16"] == 2**40


def test_running_step_expects_what_adding_logarithms_gives():
    for example in examples(TASKS["running_step"]):
        maximum, total, score = example.args
        before = maximum + math.log(total) if total else -math.inf
        after = np.logaddexp(before, score)
        top, expected = example.expected["maximum"], example.expected["sum"]
        assert top == max(maximum, score)
        found = top + math.log(expected) if expected else -math.inf
        assert found == pytest.approx(after, rel=1e-12)


def as_a_key(max_T, sum_T, acc_TD):
    """What was read so far as one key of each query: its score and its value, in float64."""
    lse_T = max_T.double() + sum_T.double().log()
    return lse_T, acc_TD.double() / sum_T.double().masked_fill(sum_T == 0, 1.0)[:, None]


def test_fold_tile_expects_what_a_softmax_over_the_past_as_one_key_gives():
    for example in examples(TASKS["fold_tile"]):
        max_T, sum_T, acc_TD, scores_TS, v_SD = example.args
        past_T, value_TD = as_a_key(max_T, sum_T, acc_TD)
        all_TS = torch.cat([past_T[:, None], scores_TS.double()], dim=1)
        lse_T = all_TS.logsumexp(dim=1).numpy()
        weights_TS = all_TS.softmax(dim=1).nan_to_num(0.0)
        out_TD = weights_TS[:, :1] * value_TD + weights_TS[:, 1:] @ v_SD.double()
        top_T, total_T, acc_TD = (example.expected[x] for x in ("maximum", "sum", "accumulator"))
        np.testing.assert_allclose(top_T, torch.maximum(max_T, scores_TS.amax(1)), rtol=1e-6)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(top_T + np.log(total_T), lse_T, atol=1e-6)
        divisor_T = np.where(total_T > 0, total_T, 1.0)
        np.testing.assert_allclose(acc_TD / divisor_T[:, None], out_TD, atol=1e-6)


def test_merge_parts_expects_what_attention_over_one_key_a_part_gives():
    for example in examples(TASKS["merge_parts"]):
        outs, lses = (torch.stack(x).double() for x in example.args)
        weights_PT = lses.softmax(dim=0).nan_to_num(0.0)
        out_TD = torch.einsum("pt,ptd->td", weights_PT, outs)
        np.testing.assert_allclose(example.expected["output"], out_TD, atol=1e-4)
        np.testing.assert_allclose(example.expected["lse"], lses.logsumexp(0), atol=1e-4)


def test_definitions_in_float64_are_sdpa():
    q, k, v = (noise(seed, n, 6).double() for seed, n in ((1, 4), (2, 9), (3, 9)))
    scores_TS = (q @ k.T / math.sqrt(6)).numpy()
    out_TD, lse_T = attention(scores_TS, v.numpy())
    np.testing.assert_allclose(out_TD, F.scaled_dot_product_attention(q, k, v), atol=1e-12)
    np.testing.assert_allclose(lse_T, torch.tensor(scores_TS).logsumexp(1), atol=1e-12)
    nothing = summed(np.full((2, 3), -np.inf), np.ones((3, 2)))
    assert [x.tolist() for x in nothing] == [[-math.inf] * 2, [0.0] * 2, [[0.0] * 2] * 2]


def test_key_tiles_expects_the_tiles_that_a_schedule_does_not_skip():
    for args, expected in expected_of("key_tiles").items():
        first_t, block_t, T, S, block_s, window = args
        visited = [
            tile.s_start // block_s
            for tile in tiles(T, S, block_t, block_s, window=window)
            if tile.t_start == first_t and tile.kind != SKIPPED
        ]
        found = range(expected["first"], expected["end"])
        assert list(found) == visited and first_t % block_t == 0


def test_tile_traffic_expects_the_closed_form_and_what_a_kernel_was_seen_to_move():
    expected = expected_of("tile_traffic")
    assert expected[256, 256, 64, 64] == {"reads": 589_824 // 4, "writes": 66_560 // 4}
    for (T, S, D, block), moved in expected.items():
        if T == S:
            known = costs.queries_outside_accesses(T, D, block)
            assert (moved["reads"], moved["writes"]) == known
    pytest.importorskip("triton")
    from refimpl.kernels import traffic

    (T, S, D, _), moved = (17, 40, 8, 16), expected[17, 40, 8, 16]
    seen = traffic.attention(T=T, S=S, D=D, causal=False, block_t=16, block_s=16)
    assert (seen.bytes_read, seen.bytes_written) == (4 * moved["reads"], 4 * moved["writes"])


def blocks_on_four_schedulers(args: tuple[int, ...]) -> int:
    """The same with the registers in four parts, over which a block's warps are dealt out."""
    registers, shared, num_warps, unit_registers, unit_shared, unit_warps = args
    parts, left, warps, count = [unit_registers // 4] * 4, unit_shared, 0, 0
    while True:
        for warp in range(num_warps):
            parts[warp % 4] -= math.ceil(registers / 8) * 8 * 32
        left, warps = left - shared, warps + num_warps
        if min(*parts, left, unit_warps - warps) < 0:
            return count
        count += 1


def test_blocks_per_unit_expects_what_four_schedulers_hold():
    bound_by = set()
    for args, expected in expected_of("blocks_per_unit").items():
        assert args[2] % 4 == 0 and blocks_on_four_schedulers(args) == expected
        registers, shared, num_warps, unit_registers, unit_shared, unit_warps = args
        limits = {
            "registers": unit_registers // (math.ceil(registers / 8) * 256 * num_warps),
            "shared": unit_shared // shared if shared else 10**9,
            "warps": unit_warps // num_warps,
        }
        bound_by |= {name for name, limit in limits.items() if limit == expected}
    assert bound_by == {"registers", "shared", "warps"}


def test_blocks_per_unit_agrees_with_the_occupancy_of_real_units():
    pytest.importorskip("triton")
    from refimpl.kernels.xray.limits import TARGETS, occupancy

    for name, kernel in (("sm_80", (168, 40_000, 4)), ("sm_90", (81, 16_384, 8))):
        registers, shared, num_warps = kernel
        unit = TARGETS[name]
        known = occupancy(unit, registers=registers, shared=shared, num_warps=num_warps)
        args = (registers, shared + unit.shared_reserved, num_warps)
        limits = (unit.registers, unit.shared_bytes, unit.warps)
        for answer in TASKS["blocks_per_unit"].answers:
            assert answer(*args, *limits) == known.blocks


def test_tiled_attention_expects_what_sdpa_computes():
    for example in examples(TASKS["tiled_attention"]):
        q, k, v = (x.double() for x in example.args[:3])
        theirs = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        np.testing.assert_allclose(example.expected["output"], theirs, atol=1e-12)


def test_tile_gradients_expects_what_the_formulas_of_the_paper_give():
    """In float64 and row by row, FlashAttention, arXiv:2205.14135, algorithm 4."""
    for example in examples(TASKS["tile_gradients"]):
        *tensors, scale = example.args
        q, k, v, d_out, lse, delta = (x.double().numpy() for x in tensors)
        weights = np.exp(np.einsum("td,sd->ts", q, k) * scale - lse[:, None])
        d_scores = weights * (np.einsum("td,sd->ts", d_out, v) - delta[:, None])
        mine = {
            "d_q": scale * np.einsum("ts,sd->td", d_scores, k),
            "d_k": scale * np.einsum("ts,td->sd", d_scores, q),
            "d_v": np.einsum("ts,td->sd", weights, d_out),
        }
        atol = example.atol or 1e-5
        for name, expected in example.expected.items():
            np.testing.assert_allclose(mine[name], expected, atol=atol, rtol=1e-5)


# ── the step and the tile in use ─────────────────────────────────────────────────────────────


def over_a_row(step: Callable[..., Any], scores: list[float]) -> float:
    """The log-sum-exp of a row that the step has walked along."""
    maximum, total = -math.inf, 0.0
    for score in scores:
        maximum, total = step(maximum, total, score)
    return float(maximum) + math.log(total)


@pytest.mark.parametrize("which", [0, 1])
def test_right_steps_give_the_log_sum_exp_of_any_row(which):
    step = TASKS["running_step"].answers[which]
    for seed in range(20):
        draw = random.Random(seed)
        scores = [draw.gauss(0, 200) for _ in range(draw.randint(1, 40))]
        rows = scores, sorted(scores), [-math.inf, *scores, -math.inf]
        expected = torch.tensor(scores, dtype=torch.double).logsumexp(0).item()
        assert [over_a_row(step, row) for row in rows] == pytest.approx([expected] * 3)


ONLY_AT_THE_EDGE = ("exponentials of the scores themselves", "NaN before the first key")


@pytest.mark.parametrize("step", versions("running_step", without=ONLY_AT_THE_EDGE))
def test_wrong_steps_give_another_log_sum_exp_of_some_row(step):
    """A consistent step may keep another reference than the maximum: then it is no maximum."""
    scores = [1.0, 3.0, 2.5, 4.0, -1.0]
    maximum, total = 1.0, 1.0
    for score in scores[1:]:
        maximum, total = step(maximum, total, score)
    lse = torch.tensor(scores).logsumexp(0).item()
    assert maximum != 4.0 or abs(maximum + math.log(total) - lse) > 0.01


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("block", [1, 3, 4, 11, 16])
def test_right_tiles_give_attention_in_any_size(which, block):
    fold = TASKS["fold_tile"].answers[which]
    scores_TS, v_SD = 5 * noise(1, 4, 11), noise(2, 11, 3)
    scores_TS[0, :5] = scores_TS[2] = -math.inf
    state = torch.full((4,), -math.inf), torch.zeros(4), torch.zeros(4, 3)
    for start in range(0, 11, block):
        state = fold(*state, scores_TS[:, start : start + block], v_SD[start : start + block])
    out_TD, lse_T = attention(scores_TS.double().numpy(), v_SD.double().numpy())
    divisor_T = state[1].masked_fill(state[1] == 0, 1.0)
    np.testing.assert_allclose(state[2] / divisor_T[:, None], out_TD, atol=1e-5)
    np.testing.assert_allclose(state[0] + divisor_T.log(), lse_T, atol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_merges_may_be_nested_in_any_order(which):
    merge = TASKS["merge_parts"].answers[which]
    scores_TS, v_SD = 4 * noise(3, 3, 12), noise(4, 12, 5)
    cuts = (0, 2, 3, 9, 12)
    parts = [
        [torch.tensor(x).float() for x in attention(scores.numpy(), v.numpy())]
        for scores, v in (
            (scores_TS[:, a:b].double(), v_SD[a:b].double()) for a, b in pairwise(cuts)
        )
    ]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        merged = parts[order[0]]
        for i in order[1:]:
            merged = merge([merged[0], parts[i][0]], [merged[1], parts[i][1]])
        expected = attention(scores_TS.double().numpy(), v_SD.double().numpy())
        for mine, theirs in zip(merged, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


# ── the schedule in use ──────────────────────────────────────────────────────────────────────


def work_of(schedule: Callable[..., Any], T: int, S: int, window: int | None) -> tuple[int, int]:
    """Pairs that are allowed and never visited, and tiles visited in which none is allowed."""
    block_t, block_s = 3, 2
    allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    if window is not None:
        allowed &= ~torch.ones(T, S, dtype=torch.bool).tril(S - T - window)
    missed, idle = 0, 0
    for first_t in range(0, T, block_t):
        first, end = schedule(first_t, block_t, T, S, block_s, window)
        rows = allowed[first_t : first_t + block_t].clone()
        for tile in range(first, end):
            keys = slice(max(0, tile * block_s), max(0, (tile + 1) * block_s))
            idle += not rows[:, keys].any()
            rows[:, keys] = False
        missed += int(rows.sum())
    return missed, idle


SHAPES = [(T, S, window) for T, S in ((7, 7), (8, 21), (3, 10)) for window in (None, 1, 4, 6)]


@pytest.mark.parametrize("which", [0, 1])
def test_right_schedules_miss_nothing_and_visit_nothing_idle(which):
    schedule = TASKS["key_tiles"].answers[which]
    assert {work_of(schedule, *shape) for shape in SHAPES} == {(0, 0)}


MISSING = {  # wrong outputs; every other mistake only costs time, which no output shows
    "aligned to the top left",
    "last tile missing",
    "end of the first query",
    "window of the last query",
    "partial tile dropped at the start",
}


@pytest.mark.parametrize("name", mutants("key_tiles"))
def test_wrong_schedules_miss_pairs_or_visit_idle_tiles(name):
    for schedule in mutants("key_tiles")[name]:
        work = [work_of(schedule, *shape) for shape in SHAPES]
        assert any(missed for missed, _ in work) == (name in MISSING)
        assert name in MISSING or any(idle for _, idle in work)


# ── the forward pass: reads and memory ───────────────────────────────────────────────────────


def test_what_is_read_is_a_copy_with_zeros_behind_the_last_key():
    keys = _Keys(noise(5, 5, 3), noise(6, 5, 3))
    k_sd, v_sd = keys(3, 7)
    assert k_sd.shape == v_sd.shape == (4, 3)
    assert torch.equal(k_sd[:2], keys.k_SD[3:]) and torch.equal(v_sd[:2], keys.v_SD[3:])
    assert not k_sd[2:].any() and not v_sd[2:].any()
    k_sd.zero_()
    assert keys.k_SD[3:].any(), "a load copies"
    assert keys(6, 8)[0].shape == (2, 3) and not keys(6, 8)[0].any()
    assert keys.most_at_once() == 4 and not keys.read_again()
    keys(0, 4)
    assert keys.read_again()  # key 3
    with pytest.raises(ValueError, match="got 4, 3"):
        keys(4, 3)


KEEPS = {"all keys at once", "row of scores kept"}


@pytest.mark.parametrize(("T", "S", "D", "block"), [(1, 9, 1, 1), (3, 20, 5, 4), (16, 40, 8, 8)])
def test_only_answers_that_keep_the_row_hold_more_for_more_keys(T, S, D, block):
    inputs = noise(7, T, D), noise(8, S, D), noise(9, S, D), block
    for answer in TASKS["tiled_attention"].answers:
        assert not _holds_more(answer, *inputs)
    for name, functions in mutants("tiled_attention").items():
        for function in functions:
            assert _holds_more(function, *inputs) == (name in KEEPS), name


def test_doubled_precision_and_work_in_place_are_no_growth():
    def wide(q_TD, read, num_keys, block):
        return TASKS["tiled_attention"].answers[0](
            q_TD, lambda a, b: tuple(x.clone() for x in read(a, b)), num_keys, block
        )

    def in_float64(q_TD, read, num_keys, block):
        out, top = torch.zeros_like(q_TD).double(), torch.full((len(q_TD), 1), -math.inf).double()
        total = torch.zeros_like(top)
        for start in range(0, num_keys, block):
            k, v = (x.double() for x in read(start, min(start + block, num_keys)))
            k.mul_(q_TD.shape[1] ** -0.5)
            scores = q_TD.double() @ k.T
            new = torch.maximum(top, scores.amax(1, keepdim=True))
            p = scores.sub_(new).exp_()
            fade = (top - new).exp_()
            total.mul_(fade).add_(p.sum(1, keepdim=True))
            out.mul_(fade).add_(p @ v)
            top = new
        return out / total

    for function in (wide, in_float64):
        verdict = examine(TASKS["tiled_attention"], function)
        assert verdict.passed, verdict.failure.message()


def test_keys_that_are_kept_without_being_used_are_seen():
    def hoards(q_TD, read, num_keys, block):
        kept = []

        def keeping(start, stop):
            kept.append(read(start, stop))
            return kept[-1]

        return TASKS["tiled_attention"].answers[0](q_TD, keeping, num_keys, block)

    failure = examine(TASKS["tiled_attention"], hoards).failure
    assert failure is not None and failure.mutant.name == "row of scores kept"
    assert "memory grows with the keys: True" in failure.message()


# ── the backward pass in use ─────────────────────────────────────────────────────────────────


def summed_gradients(function: Callable[..., Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients summed over all tiles, and autograd's in float64."""
    T, S, D, scale = 5, 9, 4, 0.7
    q, k, v, d_out = (noise(seed, n, D) for seed, n in ((10, T), (11, S), (12, S), (13, T)))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*(x[None] for x in leaves), scale=scale)[0]
    out.backward(d_out.double())
    lse = (leaves[0] @ leaves[1].T * scale).logsumexp(1).detach().float()
    delta = (d_out * out.detach()).sum(1).float()
    sums = [torch.zeros_like(x) for x in (q, k, v)]
    for t in (slice(0, 3), slice(3, 5)):
        for s in (slice(0, 4), slice(4, 8), slice(8, 9)):
            parts = function(q[t], k[s], v[s], d_out[t], lse[t], delta[t], scale)
            for whole, part, rows in zip(sums, parts, (t, s, s), strict=True):
                whole[rows] += part
    return sums, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("which", [0, 1])
def test_right_tiles_sum_to_autograds_gradients(which):
    for mine, theirs in zip(*summed_gradients(TASKS["tile_gradients"].answers[which]), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("function", versions("tile_gradients", without=ONLY_AT_THE_EDGE))
def test_wrong_tiles_sum_to_others(function):
    pairs = zip(*summed_gradients(function), strict=True)
    assert max((mine - theirs).abs().max().item() for mine, theirs in pairs) > 0.05


# ── questions with numbers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ASKED)
def test_seeds_ask_different_questions_and_the_same_seed_the_same(name, capsys):
    for (H, N, B, dtype), question in questions(TASKS[name], SEEDS, capsys):
        for part in (f"{B} prompts", f"{N:,} tokens", f"{H} query heads", f"in {dtype}"):
            assert part in question


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [0, 7, 23])
def test_right_replies_pass_in_any_unit_and_wrong_ones_are_named(name, seed, capsys):
    task = TASKS[name]
    units = in_units("kB", "KiB", "MB", "GB", "GiB")
    wrong_replies_are_named(task, seed, right_replies_pass(task, seed, units, capsys))
