"""Chapter 11's exercises: oracles against a second opinion, laws counted out, a loop, questions."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_tools import (
    examples,
    expected_of,
    mutants,
    questions,
    ranges_from_a_warm_up_to_a_hard_one,
    right_replies_pass,
    wrong_replies_are_named,
)
from torch import Tensor

from labkit import answers
from labkit.check import CheckFailed
from labkit.examine import examine
from labkit.tasks import all_tasks
from labkit.tasks.ch11.exact import law, owner, tensor

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 11}
ASKED = [name for name, task in TASKS.items() if task.draw is not None]
SEEDS = range(60)
DATA = Path(__file__).parent / "data" / "published_speculative.json"


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=0)
    named = mutants("accept_or_resample")
    assert {"accepts everything", "resamples from the target", "compares best tokens"} <= set(named)


# ── the oracles ──────────────────────────────────────────────────────────────────────────────


def test_expected_tokens_expects_what_a_chain_of_states_gives():
    """A Markov chain: state i has i tokens of the round, the last state is its end."""
    for (alpha, gamma), expected in expected_of("expected_tokens").items():
        moves = np.zeros((gamma + 2, gamma + 2))
        for i in range(gamma + 1):
            moves[i, i + 1 if i < gamma else -1] += alpha if i < gamma else 1
            moves[i, -1] += 1 - alpha if i < gamma else 0
        visits = np.linalg.solve(np.eye(gamma + 1) - moves[:-1, :-1].T, np.eye(gamma + 1)[0])
        assert expected == pytest.approx(visits.sum(), abs=1e-12)  # each state writes one token
    assert expected_of("expected_tokens")[0.8, 4] == pytest.approx(3.3616, abs=1e-12)


def test_greedy_accept_expects_what_plain_decoding_would_write():
    for example in examples(TASKS["greedy_accept"]):
        drafts, best = example.args
        count, following = example.expected["num_accepted"], example.expected["next_token"]
        assert [*drafts[:count], following] == best[: count + 1]
        assert count == len(drafts) or drafts[count] != best[count]


def test_residual_expects_the_one_law_that_completes_the_accepted_mass():
    seen = 0
    for example in examples(TASKS["residual"]):
        target, draft = (probs.double().numpy() for probs in example.args)
        shared, expected = np.minimum(target, draft), example.expected.double().numpy()
        assert expected.min() >= 0 and expected.sum() == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(shared + (1 - shared.sum()) * expected, target, atol=1e-7)
        seen += shared.sum() < 1
    assert seen == len(examples(TASKS["residual"])) - 1


@pytest.mark.parametrize("name", ["accept_or_resample", "verify_block"])
def test_no_draw_stands_on_an_edge(name):
    """Rounding must not decide, or a right answer could be rejected."""
    for prop in TASKS[name].properties:
        for example in prop.examples() if not prop.edge else ():
            *laws, tokens, u, v = example.args
            for nudge, other in product((-1 / 128, 0.0, 1 / 128), repeat=2):
                us = [x + nudge for x in u] if isinstance(u, list) else u + nudge
                for answer in TASKS[name].answers:
                    nudged = TASKS[name].call(answer, *laws, tokens, us, v + other)
                    assert nudged == example.expected, (prop.name, example.shown)


def test_output_law_expects_what_mixing_rows_gives_and_two_published_mistakes():
    for example in examples(TASKS["output_law"]):
        draft, accept, replacement = (x.double() for x in example.args)
        law_V = torch.zeros_like(draft)
        for x, (chance, stands) in enumerate(zip(draft, accept, strict=True)):
            law_V += chance * stands * torch.eye(len(draft), dtype=torch.double)[x]
            law_V += chance * (1 - stands) * replacement[x]
        np.testing.assert_allclose(example.expected.double(), law_V, atol=1e-7)
        assert law_V.sum() == pytest.approx(1, abs=1e-6)
    last = [example.expected.tolist() for example in examples(TASKS["output_law"])][-2:]
    np.testing.assert_allclose(last, [[5 / 6, 0, 1 / 6], [0.5, 0.36, 0.14]], atol=1e-7)


def test_prompt_lookup_expects_the_places_that_a_pattern_finds():
    for example in examples(TASKS["prompt_lookup"]):
        tokens, ngram, num_draft = example.args
        text = "".join(chr(97 + token) for token in tokens)
        end = re.escape(text[-ngram:])
        found = re.finditer(f"(?=(?:{end})(.{{1,{num_draft}}}))", text)
        behind = [match[1] for match in found] if len(text) > ngram else []
        best = max(map(len, behind), default=0)
        longest = [[ord(c) - 97 for c in draft] for draft in behind if len(draft) == best]
        assert example.expected == (longest[-1] if longest else [])
    for answer in TASKS["prompt_lookup"].answers:
        assert answer([5, 6, 7, 8, 5, 6], 2, 3) == [7, 8, 5]
        assert answer([5], 2, 3) == answer([1, 2, 3], 2, 3) == []


def published_gains() -> Iterator[tuple[str, float, int, float, float, float]]:
    """Id, α, γ, c, printed speed-up and tolerance, where the printed inputs give what is printed.

    Table 1 of Leviathan et al. prints operations and speed for free drafts.
    """
    for row in json.loads(DATA.read_text(encoding="utf-8")):
        if row["quantity"] not in ("operations_and_speed", "speedup") or "computed" in row:
            continue
        given, printed = row["inputs"], row["expected"]
        speed = printed if row["quantity"] == "speedup" else printed[1]
        c = given.get("cost_ratio", 0.0)
        yield row["id"], given["alpha"], given["gamma"], c, speed, row["tolerance"]


def test_gain_expects_what_was_published_and_what_a_wider_pass_leaves():
    gain, seen = TASKS["speculation_gain"], 0
    for name, alpha, gamma, c, printed, tolerance in published_gains():
        args = alpha, gamma, c * 100, 100.0, 100.0
        mine = [gain.call(answer, *args) for answer in gain.answers]
        assert mine[0] == pytest.approx(mine[1], rel=1e-9)
        assert mine[0] == pytest.approx(printed, abs=tolerance), name
        seen += name.startswith("lev.")
    assert seen == 10
    expected = expected_of("speculation_gain")
    assert expected[0.8, 4, 0.5, 25.0, 28.5] == pytest.approx(2.755, abs=0.001)
    assert expected[0.8, 4, 0.5, 25.0, 25.0] == pytest.approx(3.113, abs=0.001)


# ── laws counted out on a grid of uniforms ───────────────────────────────────────────────────

PAIRS = [
    ("1/2 1/4 1/4", "1/4 1/4 1/2"),
    ("1/2 1/2 0", "1/2 1/4 1/4"),
    ("1/4 0 1/4 1/2", "0 1/2 1/2 0"),
    ("3/4 1/8 1/8", "1 0 0"),
    ("0 0 1/4 3/4", "1/2 1/2 0 0"),
    ("1/4 3/4", "1/4 3/4"),
]
CHANGED = [
    name
    for name in mutants("accept_or_resample")
    if name not in ("accepts at exactly 0", "accepts what was not proposed")
]


def midpoints(num_cells: int) -> list[float]:
    """One number for each of equal cells of [0, 1): a law of whole cells is counted exactly."""
    return [(i + 0.5) / num_cells for i in range(num_cells)]


def counted_law(function: Callable[..., Any], target: str, draft: str) -> list[Fraction]:
    """What comes out, over all drafts and a grid of both uniforms: a count, no sample."""
    laws = tensor(law(target)), tensor(law(draft))
    out = [Fraction(0)] * len(law(target))
    us, vs = midpoints(8), midpoints(12)
    for token, chance in enumerate(law(draft)):
        for u, v in product(us, vs) if chance else ():
            other, _ = function(*laws, token, u, v)
            out[int(other)] += chance / (len(us) * len(vs))
    return out


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("which", [0, 1])
def test_accept_or_resample_gives_exactly_the_targets_law(which, target, draft):
    function = TASKS["accept_or_resample"].answers[which]
    assert counted_law(function, target, draft) == law(target)


@pytest.mark.parametrize("name", CHANGED)
def test_each_wrong_rule_gives_another_law(name):
    for function in mutants("accept_or_resample")[name]:
        distance = [
            sum(abs(a - b) for a, b in zip(counted_law(function, *pair), law(pair[0]), strict=True))
            for pair in PAIRS
        ]
        assert max(distance) > Fraction(1, 20)


def test_accepting_everything_gives_the_drafts_law():
    (function,) = mutants("accept_or_resample")["accepts everything"]
    for target, draft in PAIRS:
        assert counted_law(function, target, draft) == law(draft)


# A target and a draft of two tokens, each with a law behind every text of up to two tokens.
TARGET = {"": "1/4 3/4", "0": "1/2 1/2", "1": "3/4 1/4"}
DRAFT = {"": "3/4 1/4", "0": "1/4 3/4", "1": "1/2 1/2"}
BEHIND = {"00": "1/4 3/4", "01": "3/4 1/4", "10": "1/2 1/2", "11": "1/4 3/4"}


def law_behind(table: dict[str, str], text: tuple[int, ...]) -> list[Fraction]:
    return law(table["".join(map(str, text))])


def first_two(text: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """The first two tokens of a text, which goes on by plain decoding where it is shorter."""
    if len(text) >= 2:
        yield text[:2], Fraction(1)
        return
    for token, chance in enumerate(law_behind(TARGET, text)):
        yield from ((two, chance * rest) for two, rest in first_two((*text, token)))


def law_of_two_tokens(function: Callable[..., Any], third: bool) -> dict[tuple[int, ...], Fraction]:
    """Over all blocks of two drafts and a grid of three uniforms: the first two tokens' law, or,
    where both drafts stand, the third token's with them."""
    out: dict[tuple[int, ...], Fraction] = {}
    us, vs = midpoints(6), midpoints(8)
    for drafts in product(range(2), repeat=2):
        rows = [law_behind(DRAFT, drafts[:i]) for i in range(2)]
        drafted = rows[0][drafts[0]] * rows[1][drafts[1]]
        target = [law_behind(TARGET, drafts[:i]) for i in range(2)] + [law_behind(BEHIND, drafts)]
        laws = [torch.stack([tensor(row) for row in part]) for part in (target, rows)]
        for u0, u1, v in product(us, us, vs):
            block = function(*[x.clone() for x in laws], list(drafts), [u0, u1], v)
            weight = drafted / (len(us) ** 2 * len(vs))
            if third and len(block) == 3:
                out[tuple(block)] = out.get(tuple(block), Fraction(0)) + weight
            elif not third:
                for start, chance in first_two(tuple(block)):
                    out[start] = out.get(start, Fraction(0)) + weight * chance
    return out


def target_of_two_tokens() -> dict[tuple[int, ...], Fraction]:
    pairs = product(range(2), repeat=2)
    return {(a, b): law_behind(TARGET, ())[a] * law_behind(TARGET, (a,))[b] for a, b in pairs}


@pytest.mark.parametrize("which", [0, 1])
def test_a_block_gives_exactly_the_targets_law(which):
    function = TASKS["verify_block"].answers[which]
    assert law_of_two_tokens(function, third=False) == target_of_two_tokens()
    third = law_of_two_tokens(function, third=True)
    for drafts in product(range(2), repeat=2):
        both = sum(third[*drafts, token] for token in range(2))
        for token, chance in enumerate(law_behind(BEHIND, drafts)):
            assert third[*drafts, token] == both * chance


# What each mistake changes: the first two tokens, or the one behind two accepted drafts.
IN_THE_TEXT = {
    "goes on behind a rejection",
    "rows shifted by one",
    "replacement from the row behind",
    "replaced from the target",
    "accepts everything",
    "rejected without a replacement",
}
BEHIND_THE_DRAFTS = {
    "last token drawn from the draft",
    "token behind the last draft from the row before",
    "residual behind the last draft",
}


@pytest.mark.parametrize("name", mutants("verify_block"))
def test_each_wrong_block_changes_the_law_where_it_is_said_to(name):
    right = TASKS["verify_block"].answers[0]
    for function in mutants("verify_block")[name]:
        two = law_of_two_tokens(function, third=False)
        assert (two != target_of_two_tokens()) == (name in IN_THE_TEXT)
        if name in BEHIND_THE_DRAFTS:
            assert law_of_two_tokens(function, third=True) != law_of_two_tokens(right, third=True)
    rest = {"no token behind the last draft", "target overwritten"}  # slower; seen by the caller
    assert set(mutants("verify_block")) == IN_THE_TEXT | BEHIND_THE_DRAFTS | rest


# ── caches and a loop in use ─────────────────────────────────────────────────────────────────


def rounds(keep: Callable[..., Any], seed: int, num_rounds: int = 40) -> list[tuple[int, int]]:
    """Speculate with two caches of token ids; what each model read again or wrongly, by round.

    A cache holds the tokens that were read. After each round a pass reads what is missing, so that
    what is read beyond the new tokens, or held although it is not the text, is a fault.
    """
    draw = random.Random(seed)
    text = [draw.randrange(9) for _ in range(4)]
    target, draft = text[:-1], text[:-1]
    faults = []
    for _ in range(num_rounds):
        gamma = draw.randint(1, 5)
        accepted = draw.randint(0, gamma)
        drafts = [draw.randrange(9) for _ in range(gamma)]
        target += [*text[len(target) :], *drafts]
        draft += [*text[len(draft) :], *drafts[:-1]]
        before, last = len(text), draw.randrange(9)
        while accepted < gamma and last == drafts[accepted]:
            last = draw.randrange(9)
        text += [*drafts[:accepted], last]
        lengths = keep(before, gamma, accepted)
        del target[lengths[0] :], draft[lengths[1] :]
        wrong = sum(cache != text[: len(cache)] for cache in (target, draft))
        again = len(text) - 1 - len(target)
        missing = len(text) - 1 - len(draft) - (accepted == gamma)
        faults.append((wrong, abs(again) + abs(missing)))
    return faults


@pytest.mark.parametrize("which", [0, 1])
def test_caches_cut_by_right_answers_hold_the_text_and_all_of_it(which):
    for seed in range(20):
        assert set(rounds(TASKS["tokens_to_keep"].answers[which], seed)) == {(0, 0)}


@pytest.mark.parametrize("name", mutants("tokens_to_keep"))
def test_caches_cut_by_wrong_answers_hold_other_tokens_or_too_few(name):
    for function in mutants("tokens_to_keep")[name]:
        if name == "last draft taken for read":  # it asks for more than the draft's cache holds
            assert any(function(7, g, a)[1] > 7 + g - 1 for g, a in ((1, 1), (4, 4)))
            continue
        assert any(set(rounds(function, seed)) != {(0, 0)} for seed in range(20))


def test_the_correction_leaves_the_rejected_draft_in_the_cache():
    """Five drafts, the fifth rejected: five tokens of text, four new ones in the cache."""
    assert TASKS["tokens_to_keep"].answers[0](7, 5, 4) == (11, 11)
    correction = mutants("tokens_to_keep")["correction counted as read"][0]
    assert correction(7, 5, 4)[0] == 12


def test_the_loop_expects_plain_decoding_and_fewer_calls_for_better_drafts():
    for example in examples(TASKS["speculate_greedily"]):
        target, draft, prompt, gamma, num_new, stop_tokens = example.args
        text = list(prompt)
        while len(text) < len(prompt) + num_new:
            text.append(target(text)[-1])
            if text[-1] in stop_tokens:
                break
        new = text[len(prompt) :]
        assert example.expected["tokens"] == new
        calls = example.expected["target calls"]
        assert math.ceil(len(new) / (gamma + 1)) <= calls <= len(new)
        always_right = all(draft(text[:i]) == text[i] for i in range(len(prompt), len(text)))
        assert not always_right or calls == math.ceil(len(new) / (gamma + 1))


def test_a_prompt_that_is_extended_in_place_is_seen():
    def extends(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
        answer = TASKS["speculate_greedily"].answers[0]
        new = answer(target, draft, prompt, gamma, max_new_tokens, stop_tokens)
        prompt += new
        return new

    failure = examine(TASKS["speculate_greedily"], extends).failure
    assert failure is not None and "prompt is not what it was before" in failure.message()


# ── questions with numbers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ASKED)
def test_seeds_ask_different_questions_and_the_same_seed_the_same(name, capsys):
    task = TASKS[name]
    for args, question in questions(task, SEEDS, capsys):
        alpha, gamma, *times = args
        assert all(f"{ms} ms" in question for ms in times)
        assert f"probability {alpha};" in question and f"{gamma + 1} tokens" in question
        assert 0.3 < task.call(task.answers[0], *args) < gamma + 1


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [0, 7, 23])
def test_right_replies_pass_in_any_unit_and_wrong_ones_are_named(name, seed, capsys):
    task = TASKS[name]

    def written(times: float) -> list[str]:
        return [f"{times:.9f} times", f"{times:.9f} x", f"{100 * times:.9f} %"]

    wrong_replies_are_named(task, seed, right_replies_pass(task, seed, written, capsys))


def test_a_free_verify_is_no_answer_to_any_question():
    for seed in SEEDS:
        alpha, gamma, draft_ms, step_ms, verify_ms = TASKS["speculation_gain"].draw(seed)
        assert verify_ms > 1.03 * step_ms
        tokens = sum(alpha**i for i in range(gamma + 1))
        with pytest.raises(CheckFailed) as failed:
            paper = tokens / (gamma * draft_ms / step_ms + 1)
            answers.reply("speculation_gain", f"{paper:.6f} times", seed)
        assert "for as fast as a plain step" in failed.value.diagnosis


# ── the helpers of the oracles ───────────────────────────────────────────────────────────────


def test_intervals_begin_at_their_left_end_and_skip_what_has_no_mass():
    masses = law("0 1/4 0 3/4")
    assert [owner(masses, u) for u in (0.0, 0.24, 0.25, 0.99)] == [1, 1, 3, 3]
    assert owner(law("1/8 1/8"), 0.5) == 1  # scaled to what they sum to
    with pytest.raises(ValueError, match="nobody owns"):
        owner(law("0 0"), 0.5)
    assert isinstance(tensor(masses), Tensor) and tensor(masses).dtype == torch.float32
