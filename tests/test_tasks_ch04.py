"""Chapter 04's exercises: the oracles against a second opinion, the questions with numbers."""

import itertools
import math
import random
import re
from fractions import Fraction

import pytest
from task_tools import (
    expected_of,
    in_units,
    questions,
    ranges_from_a_warm_up_to_a_hard_one,
    right_replies_pass,
    wrong_replies_are_named,
)

from labkit import answers
from labkit.check import CheckFailed
from labkit.tasks import all_tasks
from labkit.tasks.ch04.batch import _batch_examples
from labkit.tasks.ch04.ceiling import _longest_examples
from labkit.tasks.ch04.roof import GPUS, _ridge_examples
from refimpl import roofline
from refimpl.architecture import Architecture
from refimpl.hardware import Accelerator

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 4}
ASKED = [name for name, task in TASKS.items() if task.draw is not None]
SEEDS = range(60)
LLAMA = (70_553_706_496, 80, 64, 8, 128)


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=4)


# ── the oracles ──────────────────────────────────────────────────────────────────────────────


def test_step_read_and_step_time_expect_the_roofline_of_a_node():
    llama, h100 = Architecture.named("llama-3-70b"), Accelerator.named("h100-sxm")
    node = {"num_gpus": 8, "whiteboard": True}
    step = roofline.decode_step(llama, h100, batch=32, context=4096, **node)
    prompt = roofline.prefill(llama, h100, num_tokens=2048, **node)
    assert expected_of("step_read")[*LLAMA, 4096, 32, "BF16"] == step.bytes == 184_057_085_952
    times = expected_of("step_time")
    for at in (step, prompt):
        assert times[at.bytes, at.flops, 8, 3.35, 989.0] == pytest.approx(1000 * at.seconds)
    assert (step.bound, prompt.bound) == ("memory", "compute")


def test_cards_of_the_questions_are_those_of_the_data_sheets():
    for (terabytes, teraflops), name in zip(
        GPUS.values(), ("a100-80gb", "h100-sxm", "h200"), strict=True
    ):
        card = Accelerator.named(name)
        assert terabytes * 1e12 == pytest.approx(card.bandwidth)
        assert teraflops * 1e12 == pytest.approx(card.peak("bf16"))


def test_ridge_batch_is_the_first_that_reaches_the_ridge():
    expected = expected_of("ridge_batch")
    for (teraflops, terabytes, bits), batch in expected.items():
        ridge = Fraction(str(teraflops)) / Fraction(str(terabytes))
        assert Fraction(16 * (batch - 1), bits) < ridge <= Fraction(16 * batch, bits)
    # 295.2 FLOPs a byte with weights of two bytes and of one, published as 295 and 148
    assert (expected[989.0, 3.35, 16], expected[989.0, 3.35, 8]) == (296, 148)


def test_gains_are_those_of_the_70b():
    weights, token = 141_107_412_992, 327_680
    gains = expected_of("doubling_gain")
    assert gains[weights, token, 4096, 4] == pytest.approx(1.93, abs=0.005)
    assert gains[weights, token, 4096, 256] == pytest.approx(1.17, abs=0.005)
    assert gains[weights, token, 32_768, 256] == pytest.approx(1.025, abs=0.0005)
    narrow = expected_of("fp8_gain")
    assert narrow[141.107, 42.95] == pytest.approx(1.132, abs=0.001)
    assert narrow[141.107, 434.865] == pytest.approx(1.606, abs=0.001)


def test_pool_tokens_are_those_published_with_and_without_a_reserve():
    expected = expected_of("pool_tokens")
    node = (LLAMA[0], "BF16", *LLAMA[1:], "BF16")
    assert expected[8, 80, 10, *node] == pytest.approx(1.3272e6, rel=1e-4)
    assert expected[8, 80, 0, *node] == pytest.approx(1.5225e6, rel=1e-4)
    assert expected[1, 80, 10, *node] == 0


def test_experts_read_expects_the_mean_over_all_choices():
    for (num_experts, per_token, num_tokens), mean in expected_of("experts_read").items():
        if math.comb(num_experts, per_token) ** num_tokens > 20_000:
            continue
        choices = list(itertools.combinations(range(num_experts), per_token))
        touched = [len(set().union(*t)) for t in itertools.product(choices, repeat=num_tokens)]
        assert mean == pytest.approx(sum(touched) / len(touched))
    draw = random.Random(4)
    for _ in range(3):
        batch = [draw.sample(range(256), 8) for _ in range(32)]
        assert len(set().union(*batch)) == pytest.approx(
            expected_of("experts_read")[256, 8, 32], abs=25
        )


def test_longest_compute_bound_is_where_the_roofline_changes():
    h100 = Accelerator.named("h100-sxm")
    expected = expected_of("longest_compute_bound")
    for name in ("llama-3-70b", "llama-3-8b"):
        arch = Architecture.named(name)
        sizes = (arch.num_layers, arch.num_query_heads, arch.num_kv_heads, arch.head_dim)
        longest = roofline.compute_bound_context(arch, h100, whiteboard=True)
        (found,) = (tokens for args, tokens in expected.items() if args[1:5] == sizes)
        assert found == longest
    assert expected[*LLAMA, 989.0, 3.35] == 1499
    for (parameters, L, H, G, D, *_), tokens in expected.items():
        assert (tokens == 0) == (parameters == 1), (parameters, L, H, G, D)


def test_largest_batch_fits_is_in_time_and_one_more_is_not():
    for args, batch in expected_of("largest_batch").items():
        weights, per_token, tokens, pool, gigabytes, milliseconds = args
        readable = gigabytes * milliseconds * 1e6

        def allowed(
            n: int,
            *,
            each: int = per_token * tokens,
            pool: int = pool,
            left: float = readable - weights,
        ) -> bool:
            return n * each <= min(pool, left)

        assert (batch == 0 or allowed(batch)) and not allowed(batch + 1)
    seventy = [n for args, n in expected_of("largest_batch").items() if args[0] > 10**11]
    assert seventy == [54, 194, 324]  # 8, 15 and 50 ms a token


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        # 989 / 2.3 is 430 and 3,350 GB/s for 4.6 ms are 15.41 GB: in floats neither is.
        ("ridge_batch", (989.0, 2.3, 16), 430),
        ("largest_batch", (2 * 10**9, 10**6, 1, 10**12, 3350.0, 4.6), 13_410),
        # The ceiling meets the ridge at 1,000 tokens, and no finite batch reaches a ceiling.
        ("longest_compute_bound", (7_936_000, 1, 4, 2, 8, 1000.0, 4.0), 999),
    ],
)
def test_accepted_answers_are_exact_where_two_sides_are_equal(name, args, expected):
    examples = {
        "ridge_batch": _ridge_examples,
        "largest_batch": _batch_examples,
        "longest_compute_bound": _longest_examples,
    }
    (example,) = examples[name](args)
    assert example.expected == expected
    assert [TASKS[name].call(answer, *args) for answer in TASKS[name].answers] == 2 * [expected]


# ── questions with numbers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ASKED)
def test_seeds_ask_different_questions_and_the_same_seed_the_same(name, capsys):
    for args, question in questions(TASKS[name], SEEDS, capsys):
        numbers = set(re.findall(r"\d[\d,]*", question))
        # Every number of the shape is in the text, so that it can be answered on paper.
        shown = [f"{n:,}" for n in args if isinstance(n, int) and n < 10**7]
        assert set(shown) <= numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_rounded_in_a_question_does_not_change_the_answer(seed, capsys):
    """Weights and FLOPs are asked in GB, TFLOP and billions: what is shown must suffice."""

    def on_paper(name: str) -> list[float]:
        capsys.readouterr()
        answers.ask(name, seed)
        question = capsys.readouterr().out.replace("BF16", "").replace("FP8", "")
        return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", question)]

    gigabytes, per_token, tokens, batch, _ = on_paper("doubling_gain")
    cache = per_token * tokens * batch
    gain = 2 * (gigabytes * 1e9 + cache) / (gigabytes * 1e9 + 2 * cache)
    answers.reply("doubling_gain", f"{gain:.4g} times", seed)

    moved, teraflop, num_gpus, terabytes, rate = on_paper("step_time")
    seconds = max(moved / 1000 / (num_gpus * terabytes), teraflop / (num_gpus * rate))
    answers.reply("step_time", f"{1000 * seconds:.4g} ms", seed)

    weights, cache = on_paper("fp8_gain")
    answers.reply("fp8_gain", f"{(weights + cache) / (weights + cache / 2):.4g} times", seed)

    billions, L, H, G, D, rate, terabytes = on_paper("longest_compute_bound")
    longest = 2e9 * billions / (4 * L * D * (rate / terabytes * G - H))
    answers.reply("longest_compute_bound", f"{int(longest)} tokens", seed)


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [0, 7, 23])
def test_right_replies_pass_in_any_unit_and_wrong_ones_are_named(name, seed, capsys):
    task = TASKS[name]
    units = in_units("GB", "GiB") if task.unit == "B" else lambda right: []
    wrong_replies_are_named(task, seed, right_replies_pass(task, seed, units, capsys))


def test_the_factors_that_the_chapter_warns_of_are_named():
    drawn = {seed: TASKS["pool_tokens"].draw(seed) for seed in SEEDS}
    seed = next(s for s, args in drawn.items() if args[5:9] == (80, 64, 8, 128))
    tokens = TASKS["pool_tokens"].call(TASKS["pool_tokens"].answers[0], *drawn[seed])
    for wrong, says in (
        (TASKS["pool_tokens"].mutants[2].function(*drawn[seed]), "1.024³"),
        (f"{tokens / 8:.0f} tokens", "query heads over key-value heads"),
    ):
        with pytest.raises(CheckFailed) as failed:
            answers.reply("pool_tokens", wrong, seed)
        assert says in failed.value.diagnosis
    drawn = {seed: TASKS["step_read"].draw(seed) for seed in SEEDS}
    seed = next(s for s, args in drawn.items() if args[1:5] == (80, 64, 8, 128))
    read = TASKS["step_read"].call(TASKS["step_read"].answers[0], *drawn[seed])
    with pytest.raises(CheckFailed) as failed:
        answers.reply("step_read", f"{read / 1e9:.2f} GiB", seed)
    assert "1.024³" in failed.value.diagnosis
