"""The exercises' checks can fail: on every known wrong answer, with the right diagnosis."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import rewritten_ch02
import rewritten_ch03
import rewritten_ch04
import rewritten_ch07
import rewritten_ch09
import rewritten_ch11
import torch
from task_tools import examples
from torch.nn import functional as F

from labkit import mutants
from labkit.compare import as_array, family
from labkit.examine import examine
from labkit.tasks import Property, all_tasks

TASKS = all_tasks()
BY_MUTANT = [
    pytest.param(task, mutant, function, id=f"{task.name}-{mutant.name}-{i}")
    for task in TASKS.values()
    for mutant in task.mutants
    for i, function in enumerate(mutant.functions)
]
BY_TASK = [pytest.param(task, id=name) for name, task in TASKS.items()]


ROUNDS = ("verify_block", "prompt_lookup", "speculate_greedily")  # rows end early or late
POOLS = ("append_slot", "free_table", "truncate_table", "reorder_beams")  # lists grow and shrink
LENGTH_IS_WRONG = {
    ("append_and_read", "whole buffer returned"),
    ("append_and_read", "overrun dropped silently"),
    ("gather_blocks", "tail not cut"),
    ("gather_blocks", "block 0 taken for padding"),
} | {
    (name, mutant.name)
    for name in ("generate", "cached_generate", *POOLS, *ROUNDS)
    for mutant in TASKS[name].mutants
}  # mistakes whose results have the right number of axes and not the right length


def same_form(result, expected, *, lengths: bool = True) -> bool:
    """Whether both hold numbers of one family in one shape, whatever the container."""
    if isinstance(expected, dict):
        return list(result) == list(expected) and all(
            same_form(result[key], expected[key], lengths=lengths) for key in expected
        )
    a, b = as_array(result), as_array(expected)
    if a is None or b is None:  # rows of different length
        return len(result) == len(expected) and all(
            same_form(x, y, lengths=lengths) for x, y in zip(result, expected, strict=True)
        )
    shapes = a.shape == b.shape if lengths else a.ndim == b.ndim
    return shapes and (not a.size or not b.size or family(a) == family(b))


@pytest.mark.parametrize(("task", "mutant", "function"), BY_MUTANT)
def test_each_wrong_answer_is_rejected_under_its_own_name(task, mutant, function):
    failure = examine(task, function).failure
    assert failure is not None
    assert failure.mutant is not None and failure.mutant.name == mutant.name
    assert failure.diagnosis == mutant.diagnosis
    assert mutant.diagnosis.split()[0] in failure.message()


@pytest.mark.parametrize(("task", "mutant", "function"), BY_MUTANT)
def test_each_wrong_answer_runs_and_returns_the_right_type_and_shape(task, mutant, function):
    for example in examples(task):
        result, expected = task.call(function, *example.args), example.expected
        assert same_form(result, expected, lengths=(task.name, mutant.name) not in LENGTH_IS_WRONG)


@pytest.mark.parametrize("task", BY_TASK)
def test_a_task_is_complete(task):
    assert len(task.mutants) >= 4 and len(task.hints) == 3 and len(task.answers) >= 2
    assert len({m.name for m in task.mutants}) == len(task.mutants)
    assert len({m.diagnosis for m in task.mutants}) == len(task.mutants)
    assert len({a.__code__.co_code for a in task.answers}) == len(task.answers)
    assert all(list(prop.examples()) for prop in task.properties)
    assert not task.properties[0].edge, "the smallest input is a plain one"
    assert task.level in (1, 2, 3) and task.minutes > 0 and task.points > 0
    assert task.spec.endswith(".")


@pytest.mark.parametrize("task", BY_TASK)
def test_most_wrong_answers_pass_the_smallest_input(task):
    smallest = replace(
        task, properties=(Property("smallest", lambda: [examples(task)[0]]),), mutants=()
    )
    passing = [m.name for m in task.mutants if examine(smallest, m.function).passed]
    assert len(passing) > len(task.mutants) / 2, passing


@pytest.mark.parametrize("task", BY_TASK)
def test_right_answers_pass_and_the_revealed_one_is_among_them(task):
    for answer in task.answers:
        verdict = examine(task, answer)
        assert verdict.passed, verdict.failure.message()
    scope = vars(sys.modules[task.answers[0].__module__]).copy()
    exec(task.solution(), scope)
    assert examine(task, scope[task.name]).passed


@pytest.mark.parametrize("task", BY_TASK)
def test_the_untouched_stub_fails(task):
    scope: dict = {}
    exec("from __future__ import annotations\n" + task.stub(), scope)
    failure = examine(task, scope[task.name]).failure
    assert failure is not None and failure.outcome.kind == "unwritten"
    assert "not written yet" in failure.message()


# ── The same mistakes, written by somebody else ──────────────────────────────────────────────


def passes_as_if_cached(p, n):
    total, first = 0, True
    for _ in range(n):
        total += p if first else 1
        first = False
    return total


def passes_all_as_long_as_the_last(p, n):
    last = p
    for _ in range(1, n):
        last += 1
    return sum([last] * n)


def norm_like_layer_norm(x, w, eps):
    return F.layer_norm(x, x.shape[-1:], weight=w, eps=eps)


def norm_without_eps(x, w, eps):
    return x / (x.double() ** 2).mean(-1, keepdim=True).sqrt() * w


def norm_outside(x, w, eps):
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / x.shape[-1] ** 0.5
    return w * x / (eps + root)


def rotate_neighbours(x, positions, theta):
    D = x.shape[-1]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], D // 2, 2).contiguous())
    turn = torch.outer(positions.double(), theta ** (-torch.arange(0, D, 2).double() / D))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turn), turn)).flatten(-2)


def rotate_from_zero(x, positions, theta):
    out, half = x.clone(), x.shape[-1] // 2
    for t in range(x.shape[2]):
        for i in range(half):
            a = t / theta ** (i / half)
            out[:, :, t, i] = x[:, :, t, i] * math.cos(a) - x[:, :, t, i + half] * math.sin(a)
            out[:, :, t, i + half] = x[:, :, t, i + half] * math.cos(a) + x[:, :, t, i] * math.sin(
                a
            )
    return out


def mask_by_index(T, S):
    return [[s <= t for s in range(S)] for t in range(T)]


def mask_hiding(T, S):
    return torch.triu(torch.ones(T, S), diagonal=S - T + 1).bool()


def attend_modulo(q, k, v):
    H, T, D = q.shape[1:]
    G, S = k.shape[1:3]
    heads = []
    for h in range(H):
        scores = torch.einsum("btd,bsd->bts", q[:, h], k[:, h % G]) / D**0.5
        scores = scores + torch.full((T, S), -math.inf).triu(S - T + 1)
        heads.append(scores.softmax(-1) @ v[:, h % G])
    return torch.stack(heads, dim=1)


def attend_sdpa_top_left(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_no_scale(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0)


def generate_last_only(model, prompt, max_new_tokens, stop_tokens=()):
    current, out = torch.tensor([[prompt[-1]]]), []
    while len(out) < max_new_tokens and not (out and out[-1] in stop_tokens):
        current = model(current)[:, -1:].argmax(-1)
        out += current[0].tolist()
    return out


def generate_stop_lost(model, prompt, max_new_tokens, stop_tokens=()):
    seen = tuple(prompt)
    for _ in range(max_new_tokens):
        best = torch.topk(model(torch.tensor(seen)[None])[0][-1], 1).indices.item()
        if best in set(stop_tokens):
            break
        seen += (best,)
    return seen[len(prompt) :]


def flops_as_mac(arch, num_new, num_stored):
    M, D, T = arch.model_width, arch.head_dim, num_new
    per_token = M * D * (2 * arch.num_query_heads + 2 * arch.num_kv_heads) + 3 * M * arch.mlp_width
    attention = 2 * arch.num_query_heads * D * (T + num_stored)
    return T * (arch.num_layers * (per_token + attention) + M * arch.vocab_size)


def flops_mha(arch, num_new, num_stored):
    M, width, T = arch.model_width, arch.num_query_heads * arch.head_dim, num_new
    layer = 8 * T * M * width + 4 * T * (T + num_stored) * width + 6 * T * M * arch.mlp_width
    return arch.num_layers * layer + 2 * T * M * arch.vocab_size


def nucleus_too_small(logits, p):
    probs = logits.double().softmax(-1).tolist()
    out, mass = torch.full_like(logits, -math.inf), 0.0
    for rank, i in enumerate(sorted(range(len(probs)), key=lambda i: -probs[i])):
        mass += probs[i]
        if mass > p and rank:
            break
        out[i] = logits[i]
    return out


def nucleus_of_exp(logits, p):
    values = sorted(((math.exp(x), -i) for i, x in enumerate(logits.tolist())), reverse=True)
    out, mass = logits.clone(), 0.0
    for value, minus_i in values:
        if mass >= p and mass:
            out[-minus_i] = -math.inf
        mass += value
    return out


def draw_one_below(probs, u):
    chosen = []
    for row, x in zip(probs.tolist(), u.tolist(), strict=True):
        token, mass = 0, row[0]
        while mass <= x and token + 1 < len(row):
            token, mass = token + 1, mass + row[token + 1]
        chosen.append(max(token - 1, 0))
    return chosen


def draw_left(probs, u):
    sums = probs.double().cumsum(-1)
    return torch.searchsorted(sums / sums[:, -1:], u.double()[:, None]).squeeze(1)


def draw_argmax_of_none(probs, u):
    return (probs.cumsum(-1) > u[:, None]).float().argmax(-1)


def probs_filter_then_heat(logits, temperature, top_k, top_p, min_p):
    p = np.exp(logits.double().numpy() - logits.max().item())
    order = np.argsort(-p, kind="stable")
    alive = np.zeros(len(p), dtype=bool)
    alive[order[: top_k or None]] = True
    p = np.where(alive, p, 0) / p[alive].sum()
    mass = 0.0
    for i in order:
        if mass >= top_p and mass:
            alive[i] = False
        mass += p[i]
    alive &= p >= min_p * p.max()
    best = logits.max().item()
    heated = np.where(alive, np.exp((logits.double().numpy() - best) / max(temperature, 1e-3)), 0)
    return heated / heated.sum()


def probs_min_p_absolute(logits, temperature, top_k, top_p, min_p):
    x = logits.double() / (temperature or 1e-4)
    best = int(x.argmax())
    order = sorted(range(len(x)), key=lambda i: -x[i].item())
    dead = order[top_k:] if top_k else []
    x[dead] = -math.inf
    p = x.softmax(-1)
    before = 0.0
    for i in order:
        if (before >= top_p or p[i] < min_p) and i != best:
            x[i] = -math.inf
        before += p[i].item()
    return x.softmax(-1)


def cost_per_gpu_rate(dollars, gpus, rate, busy):
    return gpus * dollars / (gpus * rate * busy * 3600) * 1_000_000


def cost_times_busy(dollars, gpus, rate, busy):
    return dollars * gpus * busy / 3600 / rate * 1_000_000


REWRITTEN = [
    ("token_passes", "as if cached", passes_as_if_cached),
    ("token_passes", "every pass at final length", passes_all_as_long_as_the_last),
    ("rms_norm", "layer norm", norm_like_layer_norm),
    ("rms_norm", "eps left out", norm_without_eps),
    ("rms_norm", "eps outside the root", norm_outside),
    ("rotate", "interleaved pairs", rotate_neighbours),
    ("rotate", "positions restarted", rotate_from_zero),
    ("causal_mask", "anchored top left", mask_by_index),
    ("causal_mask", "True means hidden", mask_hiding),
    ("attend", "heads tiled", attend_modulo),
    ("attend", "mask anchored top left", attend_sdpa_top_left),
    ("attend", "scores not scaled", attend_no_scale),
    ("generate", "feeds only the last token", generate_last_only),
    ("generate", "stop token dropped", generate_stop_lost),
    ("forward_flops", "multiplications only", flops_as_mac),
    ("forward_flops", "k and v at full width", flops_mha),
    ("filter_top_p", "crossing token dropped", nucleus_too_small),
    ("filter_top_p", "exp without normalising", nucleus_of_exp),
    ("draw", "the token before", draw_one_below),
    ("draw", "draws probability 0 at u = 0", draw_left),
    ("draw", "falls off the end", draw_argmax_of_none),
    ("next_token_probs", "filters before temperature", probs_filter_then_heat),
    ("next_token_probs", "min-p taken as absolute", probs_min_p_absolute),
    ("cost_per_million_tokens", "GPUs not counted", cost_per_gpu_rate),
    ("cost_per_million_tokens", "idle time made it cheaper", cost_times_busy),
    *rewritten_ch02.REWRITTEN,
    *rewritten_ch03.REWRITTEN,
    *rewritten_ch04.REWRITTEN,
    *rewritten_ch07.REWRITTEN,
    *rewritten_ch09.REWRITTEN,
    *rewritten_ch11.REWRITTEN,
]


@pytest.mark.parametrize(("name", "mistake", "function"), REWRITTEN)
def test_the_same_mistake_written_differently_gets_the_same_name(name, mistake, function):
    failure = examine(TASKS[name], function).failure
    assert failure is not None
    assert failure.mutant is not None, failure.message()
    assert failure.mutant.name == mistake


def test_every_task_has_a_mistake_written_differently():
    assert {name for name, _, _ in REWRITTEN} == set(TASKS)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("token_passes", lambda p, n: 7 * p + n**3),
        ("causal_mask", lambda T, S: torch.zeros(T, S, dtype=torch.bool)),
        ("attend", lambda q, k, v: torch.zeros_like(q)),
        ("draw", lambda probs, u: torch.full((len(u),), 2)),
        ("decode_positions", lambda T, S, pads: torch.full((len(pads), T), 3)),
        ("cached_attention", lambda q, k, v, k_held, v_held, theta: q),
        ("truncate", lambda k, v, held, kept: held - held),
        ("token_bytes", lambda L, H, G, D, dtype: f"{3 * L * G * D} B"),
        ("stored_elements", lambda config: 7),
        ("pool_heads", lambda weight, H, G: weight[: len(weight) // H * G] / 3),
        ("step_read", lambda P, L, H, G, D, S, B, dtype: f"{3 * P} B"),
        ("ridge_batch", lambda teraflops, terabytes, bits: 77),
        ("experts_read", lambda E, k, B: E / (k + B)),
        ("blocks_needed", lambda num_tokens, block_size: num_tokens + block_size),
        ("slot_of", lambda table, position, block_size: 5),
        ("gather_blocks", lambda pool, table, num_tokens: 2 * pool[0, :, :1]),
        ("paging_frees", lambda lengths, max_tokens, P, L, H, G, D, dtype: f"{3 * max_tokens} B"),
        ("free_table", lambda table, ref_counts, free: -len(free)),
        ("reorder_beams", lambda tables, parents, ref_counts, free: [[] for _ in parents]),
        ("score_matrix", lambda H, N, B, dtype: f"{3 * H + N} B"),
        ("running_step", lambda m, s, score: (m, s + score)),
        ("fold_tile", lambda m, s, acc, scores, v: (m, s, 2 * acc)),
        ("merge_parts", lambda outs, lses: (outs[-1], lses[0])),
        ("key_tiles", lambda t, bt, T, S, bs, window: (0, t + S)),
        ("tile_traffic", lambda T, S, D, block: (T * S, D * block)),
        ("blocks_per_unit", lambda r, s, w, R, S, W: (R + S) // (r + s)),
        ("tiled_attention", lambda q, read, S, block: q + read(0, min(S, block))[1][:1]),
        ("tile_gradients", lambda q, k, v, d_out, lse, delta, scale: (d_out, k, v)),
        ("expected_tokens", lambda alpha, gamma: 3 * alpha + gamma),
        ("greedy_accept", lambda drafts, best: (len(drafts) // 2, 77)),
        ("residual", lambda target, draft: target.flip(0) / 2),
        ("accept_or_resample", lambda target, draft, token, u, v: (0, False)),
        ("output_law", lambda draft, accept, replacement: 3 * draft * accept),
        ("verify_block", lambda target, draft, tokens, us, u: [*tokens, 0][::-1]),
        ("tokens_to_keep", lambda num_tokens, gamma, accepted: (3, num_tokens * gamma)),
        ("speculation_gain", lambda alpha, gamma, draft, step, verify: f"{7 + gamma} times"),
        ("prompt_lookup", lambda tokens, ngram, num_draft: tokens[:num_draft]),
        # Two mistakes at once are neither of the two.
        ("attend", lambda q, k, v: 2 * attend_modulo(q, k, v)),
    ],
)
def test_an_unknown_mistake_gets_no_name(name, function):
    failure = examine(TASKS[name], function).failure
    assert failure is not None and failure.mutant is None
    assert "mistake" not in failure.message()


# ── Right answers in other containers, and the oracles against a second opinion ──────────────


@pytest.mark.parametrize(
    ("name", "convert"),
    [
        ("token_passes", float),
        ("token_passes", torch.tensor),
        ("causal_mask", lambda mask: mask.tolist()),
        ("causal_mask", lambda mask: mask.int()),
        ("attend", lambda out: out.double().numpy()),
        ("generate", torch.tensor),
        ("draw", lambda tokens: tuple(tokens.tolist())),
        ("forward_flops", np.int64),
        ("cost_per_million_tokens", lambda x: np.array([x])),
        ("cached_cost", lambda pair: torch.tensor(pair)),
        ("append_and_read", torch.stack),
        ("decode_mask", lambda mask: mask.tolist()),
        ("decode_positions", lambda positions: positions.numpy()),
        ("cached_attention", lambda out: out.double()),
        ("truncate", lambda lengths: lengths.tolist()),
        ("cached_generate", lambda rows: tuple(torch.tensor(row) for row in rows)),
        ("token_bytes", lambda text: text.replace(" B", " bytes")),
        ("batch_cache", lambda text: f"{float(text[:-2]) / 1e9:.3g} GB"),
        ("outgrows_weights", lambda text: f"{float(text.split()[0]) / 1000:.4f} thousand tokens"),
        ("expand_heads", lambda x: x.double().numpy()),
        ("stored_elements", float),
        ("pool_heads", lambda x: x.double()),
        ("attend_absorbed", lambda x: x.tolist()),
        ("step_read", lambda text: f"{float(text[:-2]) / 1e9:.4g} GB"),
        ("step_time", lambda text: f"{float(text[:-3]) / 1000} s"),
        ("ridge_batch", float),
        ("pool_tokens", lambda text: f"{float(text.split()[0]) / 1e6:.6f} million tokens"),
        ("doubling_gain", lambda text: text.replace("times", "x")),
        ("fp8_gain", lambda text: f"{100 * float(text.split()[0])} %"),
        ("experts_read", np.float64),
        ("largest_batch", torch.tensor),
        ("blocks_needed", float),
        ("slot_of", torch.tensor),
        ("row_offset", np.int64),
        ("gather_blocks", lambda k: k.tolist()),
        ("paging_frees", lambda text: f"{float(text[:-2]) / 1e6:.9f} MB"),
        ("last_block_waste", lambda text: f"{float(text[:-2]) / 1024} KiB"),
        ("append_slot", list),
        ("free_table", np.int64),
        ("truncate_table", float),
        ("reorder_beams", lambda tables: tuple(tuple(table) for table in tables)),
        ("score_matrix", lambda text: f"{float(text[:-2]) / 1000:.6f} kB"),
        ("running_step", lambda pair: torch.tensor(pair, dtype=torch.double)),
        ("fold_tile", lambda parts: [part.double().numpy() for part in parts]),
        ("merge_parts", lambda parts: [part.tolist() for part in parts]),
        ("key_tiles", torch.tensor),
        ("tile_traffic", list),
        ("blocks_per_unit", np.int64),
        ("tiled_attention", lambda out: out.double().numpy()),
        ("tile_gradients", lambda parts: [part.numpy() for part in parts]),
        ("expected_tokens", torch.tensor),
        ("greedy_accept", list),
        ("residual", lambda law: law.double().numpy()),
        ("accept_or_resample", lambda pair: (torch.tensor(pair[0]), torch.tensor(pair[1]))),
        ("output_law", lambda law: law.tolist()),
        ("verify_block", torch.tensor),
        ("tokens_to_keep", torch.tensor),
        ("speculation_gain", lambda text: text.replace("times", "×")),
        ("prompt_lookup", tuple),
        ("speculate_greedily", np.array),
    ],
)
def test_a_right_answer_is_right_in_any_container(name, convert):
    task = TASKS[name]
    verdict = examine(task, lambda *args: convert(task.answers[0](*args)))
    assert verdict.passed, verdict.failure.message()


def test_attend_expects_what_sdpa_computes():
    for example in examples(TASKS["attend"]):
        q, k, v = (x.double() for x in example.args)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        np.testing.assert_allclose(example.expected, theirs.numpy(), atol=1e-12)


def test_rms_norm_expects_what_torch_computes():
    for example in examples(TASKS["rms_norm"]):
        x, weight, eps = example.args
        theirs = F.rms_norm(x.double(), x.shape[-1:], weight.double(), eps)
        np.testing.assert_allclose(example.expected, theirs.numpy(), atol=1e-12)


def test_forward_flops_expects_what_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    for example in examples(TASKS["forward_flops"])[:-2]:
        arch, T, stored = example.args
        M, H, G, D = arch.model_width, arch.num_query_heads, arch.num_kv_heads, arch.head_dim
        x, S = torch.ones(T, M), T + stored
        with FlopCounterMode(display=False) as counter:
            for _ in range(arch.num_layers):
                for width in (H * D, G * D, G * D, arch.mlp_width, arch.mlp_width):
                    F.linear(x, torch.ones(width, M))
                scores = torch.ones(H, T, D) @ torch.ones(H, D, S)
                mixed = scores @ torch.ones(H, S, D)
                F.linear(mixed.transpose(0, 1).reshape(T, H * D), torch.ones(M, H * D))
                F.linear(torch.ones(T, arch.mlp_width), torch.ones(M, arch.mlp_width))
            F.linear(x, torch.ones(arch.vocab_size, M))
        assert counter.get_total_flops() == example.expected


def test_rotate_expects_the_known_values_and_scores_by_distance():
    rotate = TASKS["rotate"].answers[0]
    known = [-1.413353, 1.879118, -2.828857, 4.058191]
    expected = [e.expected for e in examples(TASKS["rotate"]) if e.args[1].tolist() == [3]]
    np.testing.assert_allclose(expected[0].ravel(), known, atol=1e-6)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    scores = [
        (rotate(q, torch.tensor([m]), 1e4) * rotate(k, torch.tensor([n]), 1e4)).sum().item()
        for m, n in ((7, 2), (105, 100), (5, 0))
    ]
    np.testing.assert_allclose(scores, scores[0], atol=1e-9)


@pytest.mark.parametrize("nudge", [-0.01, 0.01])
def test_no_sampling_example_stands_on_an_edge(nudge):
    """Rounding must not decide who is in the nucleus, or a right answer could be rejected."""
    filter_top_p = TASKS["filter_top_p"].answers[1]
    for example in examples(TASKS["filter_top_p"]):
        logits, p = example.args
        if 0 < p < 1:
            nudged = filter_top_p(logits, p + nudge).isfinite().tolist()
            assert nudged == np.isfinite(example.expected).tolist()
    next_token_probs = TASKS["next_token_probs"].answers[1]
    for example in examples(TASKS["next_token_probs"]):
        logits, temperature, top_k, top_p, min_p = example.args
        if temperature == 0 or top_p == 0:
            continue
        if top_p < 1:
            top_p += nudge
        nudged = next_token_probs(logits, temperature, top_k, top_p, min_p and min_p + nudge)
        assert (nudged > 0).tolist() == (example.expected > 0).tolist()


def test_sampling_expects_what_transformers_computes():
    transformers = pytest.importorskip("transformers")
    for example in examples(TASKS["next_token_probs"]):
        logits, temperature, top_k, top_p, min_p = example.args
        if temperature == 0 or top_p == 0:
            continue  # transformers refuses the one and leaves ties open in the other
        if top_k and (logits >= logits.topk(min(top_k, len(logits))).values.min()).sum() > top_k:
            continue  # it keeps ties with the k-th, which the exercise cuts
        scores = logits[None].double()
        scores = transformers.TemperatureLogitsWarper(temperature)(None, scores)
        if top_k:
            scores = transformers.TopKLogitsWarper(top_k)(None, scores)
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
        scores = transformers.MinPLogitsWarper(min_p)(None, scores)
        np.testing.assert_allclose(example.expected, scores.softmax(-1)[0].numpy(), atol=1e-6)


# ── The command line ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chapter", sorted({task.chapter for task in TASKS.values()}))
def test_json_lists_task_mutant_rejected_diagnosis(chapter):
    done = subprocess.run(
        [sys.executable, "-m", "labkit.mutants", "--json", "--chapter", str(chapter)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert {row["task"] for row in listed} == {
        t.name for t in TASKS.values() if t.chapter == chapter
    }
    for row in listed:
        assert row["rejected"] is True and row["named"] == row["mutant"] and row["diagnosis"]


def _with(monkeypatch, **changes):
    broken = replace(TASKS["causal_mask"], **changes)
    monkeypatch.setattr(mutants, "all_tasks", lambda: {"causal_mask": broken})
    return broken


def test_exit_status_tells_of_an_accepted_mutant(monkeypatch, capsys):
    task = TASKS["causal_mask"]
    _with(monkeypatch, properties=task.properties[:1])  # T = S only: the anchor cannot be seen
    assert mutants.main([]) == 1
    assert "'anchored top left' accepted as right" in capsys.readouterr().err


def test_exit_status_tells_of_a_wrong_diagnosis(monkeypatch, capsys):
    first, *rest = TASKS["causal_mask"].mutants
    _with(monkeypatch, mutants=(first, replace(first, name="other"), *rest))
    assert mutants.main(["--json"]) == 1
    assert "'anchored top left' taken for None" in capsys.readouterr().err


def test_exit_status_tells_of_a_rejected_right_answer(monkeypatch, capsys):
    task = TASKS["causal_mask"]
    _with(monkeypatch, answers=(*task.answers, task.mutants[0].function))
    assert mutants.main([]) == 1
    assert "right answer _causal_mask_top_left rejected" in capsys.readouterr().err


def test_an_unknown_chapter_is_an_error(capsys):
    with pytest.raises(SystemExit):
        mutants.main(["--chapter", "99"])
    assert "no exercises for chapter 99" in capsys.readouterr().err
