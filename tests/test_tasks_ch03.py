"""Chapter 03's exercises: the oracles against a second opinion, the questions with numbers."""

import math
import re

import numpy as np
import pytest
import torch
from task_tools import (
    examples,
    expected_of,
    in_units,
    questions,
    ranges_from_a_warm_up_to_a_hard_one,
    right_replies_pass,
    wrong_replies_are_named,
)
from torch.nn import functional as F

from labkit import answers
from labkit.check import CheckFailed
from labkit.examine import examine
from labkit.tasks import all_tasks
from labkit.tasks.ch03 import config as config_task
from labkit.tasks.ch03.drawn import SHAPES

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 3}
ASKED = [name for name, task in TASKS.items() if task.draw is not None]
SEEDS = range(60)


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=3)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


def test_sizes_expect_what_is_known():
    token = expected_of("token_bytes")
    assert token[80, 64, 8, 128, "BF16"] == 327_680  # Llama-3-70B, 320 KiB
    assert token[32, 32, 32, 128, "FP16"] == 512 * 1024  # Llama-2-7B
    assert token[30, 9, 3, 64, "BF16"] == 23_040  # SmolLM2-135M
    batch = expected_of("batch_cache")
    assert batch[80, 64, 8, 128, "BF16", 4096, 32] == 40 * 2**30
    outgrows = expected_of("outgrows_weights")
    assert outgrows[6_738_415_616, "FP16", 32, 32, 32, 128, "FP16"] == 25_706
    latent = expected_of("latent_cache")
    assert latent[61, 128, 512, 64, 128, 128, "BF16", 131_072] == 70_272 * 131_072


def test_sizes_expect_what_torch_tensors_occupy():
    dtypes = {
        "FP32": torch.float32,
        "BF16": torch.bfloat16,
        "FP16": torch.float16,
        "FP8": torch.float8_e4m3fn,
    }
    for (L, _, G, D, dtype), expected in expected_of("token_bytes").items():
        kept = torch.empty(L, 2, G, D, dtype=dtypes[dtype], device="meta")
        assert kept.nbytes == expected
    for (L, _, G, D, dtype, S, B), expected in expected_of("batch_cache").items():
        kept = torch.empty(L, 2, B, G, S, D, dtype=dtypes[dtype], device="meta")
        assert kept.nbytes == expected
    for (L, _, C, R, _, _, dtype, S), expected in expected_of("latent_cache").items():
        kept = torch.empty(L, S, C + R, dtype=dtypes[dtype], device="meta")
        assert kept.nbytes == expected


def test_the_crossing_is_the_first_length_that_weighs_more():
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
    for args, tokens in expected_of("outgrows_weights").items():
        parameters, weight_dtype, L, _, G, D, cache_dtype = args
        per_token, weights = 2 * L * G * D * width[cache_dtype], parameters * width[weight_dtype]
        assert (tokens - 1) * per_token <= weights < tokens * per_token


# ── questions with numbers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ASKED)
def test_seeds_ask_different_questions_and_the_same_seed_the_same(name, capsys):
    for args, question in questions(TASKS[name], SEEDS, capsys):
        numbers = set(re.findall(r"\d[\d,]*", question))
        # Every number of the shape is in the text, so that it can be answered on paper.
        shown = [f"{n:,}" for n in args if isinstance(n, int) and n < 10**7]
        assert set(shown) <= numbers


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [0, 7, 23])
def test_right_replies_pass_in_any_unit_and_wrong_ones_are_named(name, seed, capsys):
    task = TASKS[name]
    units = in_units("GB", "MiB") if task.unit == "B" else lambda right: []
    wrong_replies_are_named(task, seed, right_replies_pass(task, seed, units, capsys))


def test_the_factors_that_the_chapter_warns_of_are_named():
    seed = next(s for s in SEEDS if TASKS["batch_cache"].draw(s)[:4] == (80, 64, 8, 128))
    gib = TASKS["batch_cache"].call(
        TASKS["batch_cache"].answers[0], *TASKS["batch_cache"].draw(seed)
    )
    for wrong, says in (
        (f"{gib / 1e9:.2f} GiB", "1.024³"),
        (f"{8 * gib / 2**30:.2f} GiB", "query heads over key-value heads"),
        (f"{gib / 2 / 2**30:.2f} GiB", "a factor of 2"),
    ):
        with pytest.raises(CheckFailed) as failed:
            answers.reply("batch_cache", wrong, seed)
        assert says in failed.value.diagnosis


def test_an_answer_without_a_unit_is_told_so_and_not_where_it_was_read():
    failure = examine(TASKS["token_bytes"], lambda L, H, G, D, dtype: 2 * L * G * D * 2).failure
    assert "as text with its unit" in failure.message()
    assert "read(" not in failure.message()


def test_drawn_shapes_are_models_that_exist():
    from refimpl import sizing
    from refimpl.architecture import Architecture

    for name in ("llama-2-7b", "llama-3-8b", "llama-3-70b"):
        arch = Architecture.named(name)
        billions = round(sizing.count_parameters(arch).total / 1e9, 1)
        row = (billions, arch.num_layers, arch.num_query_heads, arch.num_kv_heads, arch.head_dim)
        assert row in SHAPES


# ── configs ──────────────────────────────────────────────────────────────────────────────────


def test_configs_expect_the_published_sizes():
    known = {
        "_MISTRAL": 131_072,
        "_GEMMA_2_2B": 106_496,
        "_MIXTRAL_8X7B": 131_072,
        "_DEEPSEEK_V3": 70_272,
        "_QWEN3_NEXT": 24_576,
    }
    found = {id(e.args[0]): e.expected for e in examples(TASKS["stored_elements"])}
    for name, num_bytes in known.items():
        assert 2 * found[id(getattr(config_task, name))] == num_bytes


def test_configs_are_read_alike_by_the_answer_and_by_transformers():
    transformers = pytest.importorskip("transformers")
    for config, family in (
        (config_task._MISTRAL, transformers.MistralConfig),
        (config_task._GEMMA_2_2B, transformers.Gemma2Config),
        (config_task._MIXTRAL_8X7B, transformers.MixtralConfig),
    ):
        read = family(**config)
        head_dim = getattr(read, "head_dim", None) or read.hidden_size // read.num_attention_heads
        elements = read.num_hidden_layers * 2 * read.num_key_value_heads * head_dim
        assert TASKS["stored_elements"].answers[0](config) == elements


def test_a_nested_config_that_is_null_is_not_nested():
    for answer in TASKS["stored_elements"].answers:
        assert answer({**config_task._MISTRAL, "text_config": None}) == 131_072 // 2


# ── heads and latent ─────────────────────────────────────────────────────────────────────────


def test_expand_heads_expects_what_transformers_repeats():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    for example in examples(TASKS["expand_heads"]):
        x, H = example.args
        np.testing.assert_array_equal(llama.repeat_kv(x, H // x.shape[1]).numpy(), example.expected)


def test_pool_heads_expects_the_mean_of_neighbours():
    for example in examples(TASKS["pool_heads"]):
        weight, H, G = example.args
        heads = weight.double().numpy().reshape(G, H // G, -1, weight.shape[1])
        np.testing.assert_allclose(
            example.expected, heads.mean(axis=1).reshape(example.expected.shape), atol=1e-12
        )


def test_heads_that_do_not_divide_are_not_pooled():
    # 2 groups of 2 heads of 4 are 16 of the 20 rows; without the 4 they pass for heads of 5.
    for answer in TASKS["pool_heads"].answers:
        with pytest.raises(RuntimeError, match=r"for input of size 60|cannot be multiplied"):
            answer(torch.ones(20, 3), 5, 2)


def test_attend_absorbed_expects_sdpa_over_expanded_heads():
    for example in examples(TASKS["attend_absorbed"]):
        q, q_rope, latent, k_rope, up_k, up_v = (x.double() for x in example.args)
        H = q.shape[1]
        k = torch.cat(
            (
                torch.einsum("bsc,hdc->bhsd", latent, up_k),
                k_rope[:, None].expand(-1, H, -1, -1),
            ),
            dim=-1,
        )
        v = torch.einsum("bsc,hec->bhse", latent, up_v)
        query = torch.cat((q, q_rope), dim=-1)[:, :, None]
        theirs = F.scaled_dot_product_attention(query, k, v)[:, :, 0]
        np.testing.assert_allclose(example.expected, theirs.numpy(), atol=1e-12)
        assert math.isclose(k.shape[-1], q.shape[-1] + q_rope.shape[-1])
