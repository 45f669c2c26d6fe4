"""The oracles of chapter 02's exercises against a second opinion, and the six broken caches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from task_tools import (
    examples,
    ranges_from_a_warm_up_to_a_hard_one,
)
from torch.nn import functional as F

from labkit.examine import examine
from labkit.tasks import all_tasks
from labkit.tasks.ch02 import tiny
from labkit.tasks.ch02.tiny import TinyDecoder
from refimpl.architecture.layers import Layer
from refimpl.cache import ContiguousCache

TASKS = {name: task for name, task in all_tasks().items() if task.chapter == 2}
BROKEN_CACHES = {
    "mask aligned top left",
    "positions restarted",
    "pads attended",
    "heads and positions swapped",
    "stale tail",
    "wrong group order",
}


def test_all_six_broken_caches_are_among_the_wrong_answers():
    assert {mutant.name for task in TASKS.values() for mutant in task.mutants} >= BROKEN_CACHES


def test_there_are_enough_tasks_from_a_warm_up_to_a_hard_one():
    ranges_from_a_warm_up_to_a_hard_one(TASKS, asked=0)


def test_cache_bytes_expects_the_known_sizes():
    expected = {e.args: e.expected for e in examples(TASKS["cache_bytes"])}
    assert expected[1, 1, 80, 64, 8, 128, 2] == 327_680  # Llama-3-70B, one token, 320 KiB
    assert expected[32, 4096, 80, 64, 8, 128, 2] == 40 * 2**30


def test_cached_cost_expects_the_lower_triangle():
    for example in examples(TASKS["cached_cost"]):
        num_prompt, num_new = example.args
        N = num_prompt + num_new - 1 if num_new else 0
        assert example.expected == (N, int(np.tri(N).sum()))


def test_append_and_read_starts_from_nan_and_leaves_it_in_view_of_nobody():
    for example in examples(TASKS["append_and_read"]):
        k_buffer, v_buffer, held = example.args[:3]
        for buffer in (k_buffer, v_buffer):
            assert buffer[:, :, held:].isnan().all() and buffer[:, :, :held].isfinite().all()
        assert np.isfinite(example.expected["returned"]).all()
        assert example.expected["refused"] == (held + example.args[3].shape[1] > k_buffer.shape[2])


def test_append_and_read_and_refimpl_store_the_same():
    for example in examples(TASKS["append_and_read"]):
        k_buffer, v_buffer, held, k_BTGD, v_BTGD = example.args
        B, G, max_tokens, D = k_buffer.shape
        layer = Layer(kind="full", num_query_heads=G, num_kv_heads=G, head_dim=D, value_dim=D)
        arch = SimpleNamespace(
            name="one layer", num_layers=1, num_kv_heads=G, head_dim=D, layers=[layer]
        )
        cache = ContiguousCache(arch, batch_size=B, max_tokens=max_tokens)
        cache.append(0, k_buffer[:, :, :held], v_buffer[:, :, :held])
        new = k_BTGD.transpose(1, 2), v_BTGD.transpose(1, 2)
        if example.expected["refused"]:
            with pytest.raises(ValueError, match="full"):
                cache.append(0, *new)
        else:
            cache.append(0, *new)
        for mine, theirs in zip(cache.read(0), example.expected["returned"], strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs)


def test_mask_and_positions_expect_what_a_tokenizers_mask_gives():
    """The recipe for left padding: cumulative sum for positions, triangle and mask for keys."""
    for name in ("decode_mask", "decode_positions"):
        for example in examples(TASKS[name]):
            num_new, num_stored, pads_B = example.args
            real_BS = torch.ones(len(pads_B), num_stored, dtype=torch.bool)
            for row, pads in enumerate(pads_B.tolist()):
                real_BS[row, :pads] = False
            positions_BS = (real_BS.cumsum(-1) - 1).clamp(min=0)
            square_BSS = torch.ones(num_stored, num_stored).tril().bool() & real_BS[:, None]
            expected = square_BSS if name == "decode_mask" else positions_BS
            np.testing.assert_array_equal(example.expected, expected[:, -num_new:].numpy())


def test_cached_attention_expects_what_transformers_and_sdpa_compute():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    for example in examples(TASKS["cached_attention"]):
        q, k, v, k_held, v_held, theta = (
            x.double() if isinstance(x, torch.Tensor) else x for x in example.args
        )
        T, D, held = q.shape[2], q.shape[3], k_held.shape[2]
        speeds = theta ** (-torch.arange(0, D, 2).double() / D)
        angles = torch.outer(torch.arange(held, held + T).double(), speeds).repeat(1, 2)[None]
        q, k = llama.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
        allowed = torch.ones(T, held + T, dtype=torch.bool).tril(held)
        k, v = torch.cat((k_held, k), dim=2), torch.cat((v_held, v), dim=2)
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
        np.testing.assert_allclose(example.expected, theirs.numpy(), atol=2e-6)


def test_cached_attention_far_from_the_start_and_in_the_dtype_given():
    """Scores depend on distance alone: behind 100,000 tokens as behind 3, if angles are exact."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 2, 6, generator=generator).double() for n in (4, 2, 2))
    near, far, theta = 3, 100_000, 50.0
    held = [torch.randn(1, 2, near, 6, generator=generator).double() for _ in "kv"]

    def seen_from(start):
        speeds = theta ** (-torch.arange(3).double() / 3)
        angles = torch.outer(torch.arange(start - near, start).double(), speeds)
        a, b = held[0].chunk(2, dim=-1)
        turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
        return torch.cat(turned, dim=-1)

    task = TASKS["cached_attention"]
    for answer in task.answers:
        expected = task.call(answer, q, k, v, seen_from(near), held[1], theta)
        single = [x.bfloat16() for x in (q, k, v, seen_from(near), held[1])]
        rounded = task.call(answer, *single, theta)
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(rounded.double(), expected, atol=0.05, rtol=0.05)
        # The tokens in front hold zeros: they add nothing but their share of the weight.
        padding = torch.zeros(1, 2, far - near, 6).double()
        k_held = torch.cat((padding, seen_from(far)), dim=2)
        v_held = torch.cat((padding, held[1]), dim=2)
        got = task.call(answer, q, k, v, k_held, v_held, theta)
        ones = [torch.ones_like(x) for x in (v, held[1])]
        share = task.call(answer, q, k, ones[0], k_held, torch.cat((padding, ones[1]), 2), theta)
        torch.testing.assert_close(got / share, expected, atol=1e-8, rtol=1e-8)


def test_truncate_expects_what_a_list_of_tokens_would_hold():
    for example in examples(TASKS["truncate"]):
        k_buffer, _, held_B, kept_B = example.args
        refused = any(not 0 <= kept <= held for held, kept in zip(held_B, kept_B, strict=True))
        assert example.expected["refused"] == refused
        for row, (held, kept) in enumerate(zip(held_B.tolist(), kept_B.tolist(), strict=True)):
            tokens = [k_buffer[row, :, s].tolist() for s in range(held)]
            tokens = tokens if refused else tokens[:kept]
            after = example.expected["k buffer"][row]
            assert [after[:, s].tolist() for s in range(len(tokens))] == tokens
            assert np.isnan(after[:, len(tokens) :]).all()
            values = example.expected["v buffer"][row]
            np.testing.assert_array_equal(values, -after)


def test_a_stale_tail_reaches_the_next_token():
    """What the check calls stale is what attention over the old length would read."""
    task = TASKS["truncate"]
    stale = next(m.function for m in task.mutants if m.name == "stale tail")
    k_buffer, v_buffer, held_B, kept_B = examples(task)[2].args
    for function, reads_old in ((task.answers[0], False), (stale, True)):
        result = task.call(function, k_buffer, v_buffer, held_B, kept_B)
        tail = result["k buffer"][0, :, int(kept_B[0]) : int(held_B[0])]
        assert bool(tail.isfinite().all()) is reads_old


# ── the tiny decoder ─────────────────────────────────────────────────────────────────────────


def torch_logits(model: TinyDecoder, text: list[int]) -> np.ndarray:
    """The decoder once more: torch tensors, SDPA, all heads at once."""
    x = torch.from_numpy(model.embedding[text])
    half = tiny.HEAD_DIM // 2
    speeds = 50.0 ** (-torch.arange(half).double() / half)
    angles = torch.outer(torch.arange(len(text)).double(), speeds)

    def turned(y):
        a, b = y.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    for layer in range(tiny.NUM_LAYERS):
        q, k, v = (
            (x @ torch.from_numpy(w[layer])).unflatten(-1, (tiny.HEADS, -1)).transpose(0, 1)
            for w in (model.q, model.k, model.v)
        )
        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = torch.tanh(x + mixed.transpose(0, 1).flatten(1) @ torch.from_numpy(model.o[layer]))
    return torch.cos(x[-1] @ torch.from_numpy(model.head)).numpy()


def test_the_tiny_decoder_computes_what_torch_computes_and_no_choice_is_a_near_tie():
    seen = 0
    for example in examples(TASKS["cached_generate"]):
        model, prompts = example.args[:2]
        for prompt, new in zip(prompts, example.expected["new tokens"], strict=True):
            for step, token in enumerate(new):
                theirs = torch_logits(model, prompt + new[:step])
                np.testing.assert_allclose(model.logits(prompt + new[:step]), theirs, atol=1e-9)
                best = np.sort(theirs)
                assert theirs.argmax() == token and best[-1] - best[-2] > 1e-5
                seen += 1
    assert seen > 60


def test_rows_stop_at_different_steps():
    stopping = next(p for p in TASKS["cached_generate"].properties if "stop token" in p.name)
    lengths = [[len(row) for row in e.expected["new tokens"]] for e in stopping.examples()]
    assert lengths == [[6, 3, 6], [2, 7, 4], [1, 2, 3]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": torch.tensor([1, 2])}, "of shape \\[B, T\\]"),
        ({"positions": torch.zeros(2, 2).long()}, "positions must be \\(2, 3\\), got \\(2, 2\\)"),
        ({"mask": torch.ones(3, 3).bool()}, "mask must be \\(2, 3, 3\\)"),
        ({"mask": torch.ones(2, 3, 3)}, "mask must be bool"),
    ],
)
def test_the_tiny_decoder_says_what_it_takes(change, says):
    given = {
        "tokens": torch.ones(2, 3).long(),
        "positions": torch.arange(3).expand(2, -1),
        "mask": torch.ones(2, 3, 3).bool(),
    }
    with pytest.raises(ValueError, match=says):
        TinyDecoder(11, 0)(*{**given, **change}.values())


def test_running_everything_again_is_no_cached_loop():
    """The naive loop hides what was fed before; its tokens are right and its work is not."""

    def naive(model, prompts, max_new_tokens, stop_tokens=()):
        rows = [list(prompt) for prompt in prompts]
        longest, stored = max(map(len, rows)), 0
        pads_B = torch.tensor([longest - len(row) for row in rows])
        for _ in range(max_new_tokens):
            T = max(map(len, rows))
            tokens = torch.tensor([[0] * (T - len(row)) + row for row in rows])
            key = torch.arange(stored + T)
            query = torch.arange(stored, stored + T)
            mask = (key <= query[:, None]) & (key >= stored + pads_B[:, None, None])
            positions = (torch.arange(T) - pads_B[:, None]).clamp(min=0)
            chosen = model(tokens, positions, mask)[:, -1].argmax(-1)
            for row, token in zip(rows, chosen.tolist(), strict=True):
                row.append(token)
            stored += T
        return [row[len(p) :] for row, p in zip(rows, prompts, strict=True)]

    failure = examine(TASKS["cached_generate"], naive).failure
    assert failure is not None
    assert failure.outcome.value["new tokens"] == failure.example.expected["new tokens"]
    assert failure.outcome.value["each token fed once"] is False
