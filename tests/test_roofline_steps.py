"""Steps on the roofline: bytes of real tensors, published figures, what must always hold."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import GQA, TINY, rows, tiny, token_ids
from torch import nn

from refimpl import capacity, roofline
from refimpl.architecture import Architecture, Detail, Layer, zoo
from refimpl.cache import ContiguousCache
from refimpl.hardware import ACCELERATORS, Accelerator
from refimpl.model import Decoder
from refimpl.roofline import Step, decode_step, lower_bound, prefill
from refimpl.sizing import count_parameters, fixed_state_bytes, kv_bytes
from refimpl.units import parse_size

CASES = rows("cases_steps.json")
PUBLISHED = {k: r for k, r in rows("published_steps.json").items() if "quantity" in r}
H100 = ACCELERATORS["h100-sxm"]
L70B = Architecture.named("llama-3-70b")
ROUND = Accelerator("round", 10**12, 1e12, {"bf16": 1e14, "fp32": 1e13}, "made up", "2026-01")


# --- published figures ------------------------------------------------------------------------


Quantities = dict[str, Callable[[], float]]


def of_a_step(row: dict[str, Any]) -> Quantities:
    """What rows state about decode steps, counted as at a whiteboard unless they say ``read``."""

    def step(**changes: Any) -> Step:
        names = ("batch", "context", "num_new", "num_gpus")
        given = {name: row[name] for name in names if name in row}
        arch = Architecture.named(row["model"])
        return decode_step(arch, H100, **{"whiteboard": True, **given, **changes})

    def gain() -> float:
        return step(batch=2 * row["batch"]).tokens_per_second / step().tokens_per_second

    return {
        "ms": lambda: step().seconds * 1e3,
        "ms_read": lambda: step(whiteboard=False).seconds * 1e3,
        "intensity": lambda: step().intensity,
        "gain": gain,
        "fp8_gain": lambda: step().seconds / step(cache_dtype="fp8").seconds,
        "weights_read_GB": lambda: step().weight_bytes / 1e9,
        "cache_GB": lambda: step().cache_bytes / 1e9,
        "bytes_GB": lambda: step().bytes / 1e9,
        "bytes_over_batch_1": lambda: step().bytes / step(batch=1).bytes,
        "tokens_per_second_per_gpu": lambda: step().tokens_per_second / row["num_gpus"],
    }


def of_a_crossing(row: dict[str, Any]) -> Quantities:
    """What rows state about ridges, ceilings and crossings."""
    aloud = {"whiteboard": True}

    def ridge_batch() -> float:
        # Weights alone, each read once: the intensity of one sequence, and so of every further one.
        dtype = {"weight_dtype": row["weight_dtype"]}
        step = decode_step(L70B, H100, batch=1, context=1, **dtype, **aloud)
        weights = step.weight_bytes
        alone = lower_bound(H100, flops=2 * count_parameters(L70B).total, weight_bytes=weights)
        return roofline.ridge(H100) / alone.intensity

    return {
        "ridge": lambda: roofline.ridge(ACCELERATORS[row["gpu"]], row.get("dtype", "bf16")),
        "ridge_batch": ridge_batch,
        "ceiling": lambda: roofline.intensity_ceiling(L70B, H100, row["context"], **aloud),
        "compute_bound_context": lambda: roofline.compute_bound_context(L70B, H100, **aloud),
        "crossover": lambda: roofline.crossover_batch(L70B, row["context"], **aloud),
    }


def of_counted_work(row: dict[str, Any]) -> Quantities:
    """What rows state about passes, pairs and prefills."""
    pair = 4 * 80 * 64 * 128  # FLOPs of a query and a key in all layers and heads of the 70B
    tokens = range(1, row.get("num_tokens", 0) + 1)
    one = roofline.linear_flops(L70B, 1)

    def transfer() -> float:
        step = prefill(L70B, H100, num_tokens=row["num_tokens"], num_gpus=8, whiteboard=True)
        link = kv_bytes(L70B, row["num_tokens"]) / row["link_bytes_per_second"]
        return 100 * link / (step.compute_seconds / row["utilisation"])

    return {
        "transfer_over_prefill_percent": transfer,
        "score_entries": lambda: roofline.attention_flops(L70B, row["num_tokens"]) / pair,
        "proj_nocache": lambda: sum(roofline.linear_flops(L70B, n) for n in tokens) / one,
        "proj_cache": lambda: sum(roofline.linear_flops(L70B, 1) for _ in tokens) / one,
        "attn_nocache": lambda: sum(roofline.attention_flops(L70B, n) for n in tokens) / pair,
        "attn_cache": lambda: sum(roofline.attention_flops(L70B, 1, n - 1) for n in tokens) / pair,
    }


def of_a_node(row: dict[str, Any]) -> Quantities:
    """What rows state about eight H100s and what fits on them."""

    def found() -> capacity.Plan:
        memory = parse_size(row.get("memory", "80GB"))
        given = {name: row[name] for name in ("users", "reserve", "cache_dtype") if name in row}
        return capacity.plan(
            L70B,
            dataclasses.replace(H100, memory_bytes=memory),
            num_gpus=row["num_gpus"],
            context=row.get("context", 4096),
            **given,
        )

    def step() -> Step:
        return decode_step(L70B, H100, batch=1, context=1, num_gpus=row["num_gpus"])

    return {
        "million_tokens": lambda: found().fit.tokens / 1e6,
        "users": lambda: found().fit.users,
        "whole_users": lambda: found().fit.whole_users,
        "cache_of_users_TB": lambda: row["users"] * found().fit.bytes_per_user / 1e12,
        "node_memory_GB": lambda: found().memory_bytes / 1e9,
        "node_bandwidth_TBps": lambda: round(step().bytes / step().memory_seconds / 1e12, 9),
        "node_PFLOPs": lambda: round(step().flops / step().compute_seconds / 1e15, 9),
    }


def of_a_shape(row: dict[str, Any]) -> Quantities:
    """What rows state about what shapes store and weigh."""

    def latent_pair() -> float:
        arch = Architecture.named(row["model"])
        absorbed, expanded = (
            roofline.attention_flops(arch, 1, absorbed=form) / arch.num_layers
            for form in (True, False)
        )
        found = {"absorbed": absorbed, "unabsorbed": expanded, "ratio": absorbed / expanded}
        return found[row["form"]]

    def layer_elements() -> float:
        heads = {"num_query_heads": 64, "head_dim": 128, "value_dim": 128}
        return Layer(**heads, **row["layer"]).kv_elements

    def cache_ratio() -> float:
        arch = Architecture.named(row["model"])
        return kv_bytes(arch, 4096, **row["wide"]) / kv_bytes(arch, 4096, **row["narrow"])

    def parameter_ratio() -> float:
        large, small = (Architecture.named(row[name]) for name in ("model", "other"))
        return count_parameters(large).total / count_parameters(small).total

    return {
        "latent_pair": latent_pair,
        "layer_elements": layer_elements,
        "cache_ratio": cache_ratio,
        "parameter_ratio": parameter_ratio,
    }


def quantity(row: dict[str, Any]) -> float:
    """What a published row states, in its unit."""
    kinds = (of_a_step, of_a_crossing, of_counted_work, of_a_node, of_a_shape)
    groups = [kind(row) for kind in kinds]
    (found,) = (group[row["quantity"]] for group in groups if row["quantity"] in group)
    return found()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    assert abs(quantity(row) - row["expected"]) <= row["tolerance"]


# --- the public bug reports -------------------------------------------------------------------


def toy(row: dict[str, Any], *, tied: bool) -> Architecture:
    """The dense toy of the calculator cases."""
    names = ("vocab_size", "model_width", "num_layers", "num_query_heads", "num_kv_heads")
    shape = {name: row["inputs"][name] for name in (*names, "head_dim", "mlp_width")}
    return Architecture(name="toy", max_context=64, tie_embeddings=tied, **shape)


def with_experts(arch: Architecture, num_experts: int, experts_per_token: int) -> Architecture:
    """The same decoder, its MLP replaced by a router and experts of its size."""
    M, F = arch.model_width, arch.mlp_width
    expert = nn.ModuleList(nn.Linear(*s, bias=False) for s in ((M, F), (M, F), (F, M)))
    router, norm = nn.Linear(M, num_experts, bias=False), nn.RMSNorm(M)
    layers = tuple(
        dataclasses.replace(
            layer,
            mlp_parameters=numel(router) + numel(norm),
            num_experts=num_experts,
            experts_per_token=experts_per_token,
            expert_parameters=numel(expert),
        )
        for layer in arch.layers
    )
    outside = {
        name: getattr(arch, name)
        for name in ("embedding_parameters", "head_parameters", "other_parameters")
    }
    detail = Detail(layers=layers, unsupported="experts", **outside)
    return dataclasses.replace(arch, detail=detail)


def numel(module: nn.Module) -> int:
    """Weights of a module, a shared one once."""
    return sum(p.numel() for p in module.parameters())


@pytest.mark.case("CAL-14")
@pytest.mark.parametrize("whiteboard", [False, True])
def test_flops_come_from_active_parameters(whiteboard: bool) -> None:
    row = CASES["CAL-14"]
    dense = toy(row, tied=True)
    sparse = with_experts(dense, row["inputs"]["num_experts"], row["inputs"]["experts_per_token"])
    parameters, want = count_parameters(sparse), row["expected"]
    assert (parameters.total, parameters.active) == (want["total"], want["active"])
    assert count_parameters(dense).active == count_parameters(dense).total == want["dense"]
    for batch, context in ((1, 1), (3, 7)):
        step = decode_step(sparse, ROUND, batch=batch, context=context, whiteboard=whiteboard)
        pairs = 2 * 2 * 2 * 4 * 8 * context  # two products, two layers, four heads of eight
        assert step.flops == batch * (2 * want["active"] + pairs)
        assert step.flops < batch * (2 * want["total"] + pairs)


@pytest.mark.case("CAL-15")
@pytest.mark.parametrize("tied", ["tied", "untied"])
def test_what_is_read_is_less_than_what_is_resident(tied: str) -> None:
    row = CASES["CAL-15"]
    arch, want = toy(row, tied=tied == "tied"), row["expected"][tied]
    batch = row["inputs"]["batch"]
    step = decode_step(arch, ROUND, batch=batch, context=5)
    assert (step.weight_bytes, step.resident_weight_bytes) == (want["read"], want["resident"])
    # The same from a real model: what is multiplied is read, what is looked up is read by the row.
    model = Decoder(arch)
    looked_up = 0 if tied == "tied" else model.embed.weight.numel()
    rows_read = 0 if tied == "tied" else batch * model.embed.weight.shape[1]
    size = row["inputs"]["bytes_per_element"]
    assert step.weight_bytes == size * (numel(model) - looked_up + rows_read)
    assert step.resident_weight_bytes == size * numel(model)
    assert step.memory_seconds == step.bytes / ROUND.bandwidth  # what is read counts
    aloud = decode_step(arch, ROUND, batch=batch, context=5, whiteboard=True)
    assert aloud.weight_bytes == want["resident"]


@pytest.mark.case("CAL-16")
def test_the_bound_is_a_bound_and_says_so() -> None:
    row = CASES["CAL-16"]["inputs"]
    machine = Accelerator("any", 10**11, row["bandwidth"], {"fp16": 1e15}, "made up", "2026-01")
    step = lower_bound(
        machine,
        flops=2 * row["parameters"],
        weight_bytes=row["bytes_per_element"] * row["parameters"],
        num_tokens=row["batch"],
        dtype="fp16",
    )
    want = CASES["CAL-16"]["expected"]
    assert step.seconds * 1e3 >= want["milliseconds"]
    assert step.seconds * 1e3 == pytest.approx(want["milliseconds"])
    assert abs(step.tokens_per_second - want["tokens_per_second"]) <= CASES["CAL-16"]["tolerance"]
    assert step.bound == "memory"
    for said in (roofline.__doc__, Step.__doc__, decode_step.__doc__):
        assert "bound" in said and "not a prediction" in said


@pytest.mark.case("CAL-19")
def test_intensity_is_of_the_bytes_that_a_path_moves() -> None:
    row = CASES["CAL-19"]
    size = row["inputs"]
    expert = nn.Linear(size["model_width"], size["mlp_width"], bias=False).bfloat16()
    given = {
        "flops": 2 * size["batch"] * expert.weight.numel(),
        "weight_bytes": expert.weight.nbytes,
        "resident_weight_bytes": size["num_experts"] * expert.weight.nbytes,
    }
    assert lower_bound(ROUND, **given).intensity == row["expected"]["intensity"]
    x = torch.zeros(size["batch"], size["model_width"], dtype=torch.bfloat16)
    moved = x.nbytes + expert(x).nbytes
    with_activations = lower_bound(ROUND, **given, activation_bytes=moved)
    assert abs(with_activations.intensity - row["expected"]["intensity"]) <= row["tolerance"]
    # Over what is resident it would be a quarter of that.
    resident = given["flops"] / lower_bound(ROUND, **given).resident_weight_bytes
    assert resident == row["expected"]["intensity"] / size["num_experts"]


# --- bytes of real tensors --------------------------------------------------------------------


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_cache_bytes_are_those_of_a_cache(arch: Architecture) -> None:
    for batch, context in ((1, 1), (3, 11)):
        cache = ContiguousCache(arch, batch_size=batch, max_tokens=context, dtype=torch.bfloat16)
        # All but one token are read and that one is written: as many bytes as the cache holds.
        step = decode_step(arch, ROUND, batch=batch, context=context)
        assert step.cache_bytes == cache.num_bytes
        filled = prefill(arch, ROUND, num_tokens=context, batch=batch)
        assert filled.cache_bytes == cache.num_bytes


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_activations_are_those_between_blocks(arch: Architecture) -> None:
    B, T, stored = 2, 3, 4
    model = tiny(arch, dtype=torch.float32)
    moved = 0

    def count(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        nonlocal moved
        moved += args[0].numel() + output.numel()

    for layer in model.layers:
        layer.attention.register_forward_hook(count)
        layer.mlp.register_forward_hook(count)
    logits = model(token_ids(1, arch.vocab_size, B, T))
    step = decode_step(arch, ROUND, batch=B, context=stored + T, num_new=T)
    assert step.activation_bytes == 2 * (moved + logits.numel())
    filled = prefill(arch, ROUND, num_tokens=T, batch=B, num_stored=stored)
    assert filled.activation_bytes == 2 * (moved + logits[:, -1].numel())


@pytest.mark.parametrize(("E", "k", "tokens"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (6, 3, 2)])
def test_distinct_experts_are_the_mean_over_all_choices(E: int, k: int, tokens: int) -> None:
    expert = 1000
    layer = Layer(
        kind="none", mlp_parameters=7, num_experts=E, experts_per_token=k, expert_parameters=expert
    )
    detail = Detail((layer,), 0, 0, 0, "a toy")
    arch = Architecture("toy", 1, 3, 0, 0, 0, 0, 11, None, detail=detail)
    sets = list(itertools.combinations(range(E), k))
    distinct = [len(set().union(*choice)) for choice in itertools.product(sets, repeat=tokens)]
    mean = sum(distinct) / len(distinct)
    got = roofline.passes.weights_read(arch, tokens, tokens, "fp8")
    assert got == 7 + round(expert * mean)
    step = decode_step(arch, ROUND, batch=tokens, context=1, weight_dtype="fp8")
    assert step.weight_bytes == got
    assert step.resident_weight_bytes == 7 + expert * E


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8", "int4"])
def test_bytes_follow_the_dtypes(dtype: str) -> None:
    size = {"fp32": 4, "bf16": 2, "fp8": 1, "int4": 0.5}[dtype]
    compute = {"fp32": "fp32"}.get(dtype, "bf16")
    step = decode_step(GQA, ROUND, batch=2, context=6, weight_dtype=dtype, cache_dtype=dtype)
    plain = decode_step(GQA, ROUND, batch=2, context=6)
    assert step.weight_bytes == math.ceil(plain.weight_bytes / 2 * size)
    assert step.cache_bytes == plain.cache_bytes / 2 * size
    assert step.compute_dtype == compute
    assert step.compute_seconds == step.flops / ROUND.peak(compute)
    forced = decode_step(GQA, ROUND, batch=2, context=6, weight_dtype=dtype, compute_dtype="fp32")
    assert forced.compute_seconds == forced.flops / 1e13


WINDOWED = Layer(
    kind="sliding", num_query_heads=4, num_kv_heads=2, head_dim=6, value_dim=5, window=8
)
MIXED = Architecture(
    "mixed",
    5,
    12,
    4,
    2,
    6,
    0,
    31,
    None,
    detail=Detail(
        (
            WINDOWED,
            dataclasses.replace(WINDOWED, kind="full", window=None, mlp_parameters=9),
            dataclasses.replace(WINDOWED, kind="chunked"),
            Layer(kind="state", state_elements=50),
            Layer(kind="none", mlp_parameters=70),
        ),
        31 * 12,
        31 * 12,
        12,
        "a toy",
    ),
)


@given(num_new=st.integers(1, 20), num_stored=st.integers(0, 40))
def test_windows_chunks_and_states_are_counted_token_by_token(
    num_new: int, num_stored: int
) -> None:
    width = 2 * (6 + 5) * 2  # two heads of a key and a value, two bytes each
    last = num_stored + num_new - 1
    read = {  # stored tokens that the first new one may read: all that any new one may
        "sliding": [s for s in range(num_stored) if num_stored - s < 8],
        "full": list(range(num_stored)),
        "chunked": [s for s in range(num_stored) if s // 8 == num_stored // 8],
    }
    new = range(num_stored, last + 1)
    kept = {
        "sliding": [s for s in new if last - s < 8],
        "full": list(new),
        "chunked": [s for s in new if s // 8 == last // 8],
    }
    tokens = sum(len(read[kind]) + len(kept[kind]) for kind in read)
    state = 50 * 2 * (2 if num_stored else 1)  # written, and read if there is something to read
    step = prefill(MIXED, ROUND, num_tokens=num_new, num_stored=num_stored)
    assert step.cache_bytes == tokens * width + state
    same = decode_step(MIXED, ROUND, batch=1, context=last + 1, num_new=num_new)
    assert same.cache_bytes == step.cache_bytes
    # Six blocks: four mixers, and an MLP in two layers; each reads and writes 12 numbers a token.
    assert step.activation_bytes == 2 * (6 * 2 * 12 * num_new + 31)


def test_a_latent_is_read_once_for_all_heads_in_either_form() -> None:
    layer = Layer(
        kind="latent",
        num_query_heads=5,
        num_kv_heads=1,
        head_dim=11,
        value_dim=6,
        latent_width=9,
        rope_width=3,
    )
    arch = Architecture("mla", 1, 4, 5, 1, 11, 0, 7, None, detail=Detail((layer,), 28, 28, 0, "-"))
    absorbed, expanded = (
        decode_step(arch, ROUND, batch=2, context=10, absorbed=form) for form in (True, False)
    )
    assert absorbed.cache_bytes == expanded.cache_bytes == 2 * 10 * (9 + 3) * 2
    per_pair = 2 * 2 * 10 * 5 * ((9 + 3 + 9) - (11 + 6))
    again = 2 * 2 * 9 * 9 * 5 * (8 + 6)  # nine stored latents expanded to eight and six
    assert absorbed.flops - expanded.flops == per_pair - again
    assert (
        prefill(arch, ROUND, num_tokens=10).flops
        == prefill(arch, ROUND, num_tokens=10, absorbed=False).flops
    )


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_of_the_zoo_goes_on_the_roofline(name: str) -> None:
    arch = Architecture.named(name)
    parameters = count_parameters(arch)
    step = decode_step(arch, H100, batch=1, context=4096)
    # One token reads what is active; an untied table is active whole, and read by the row.
    spared = 0 if arch.tie_embeddings else parameters.embedding - arch.model_width
    assert step.weight_bytes == 2 * (parameters.active - spared)
    assert step.resident_weight_bytes == 2 * parameters.total
    # What is kept of a sequence passes once, read or written; a state is read and written.
    assert step.cache_bytes == kv_bytes(arch, 4096) + fixed_state_bytes(arch)
    assert step.flops >= 2 * (parameters.active - parameters.embedding)
    aloud = decode_step(arch, H100, batch=1, context=4096, whiteboard=True)
    assert aloud.weight_bytes == 2 * parameters.active
    full = decode_step(arch, H100, batch=10**6, context=4096)
    assert abs(full.weight_bytes - full.resident_weight_bytes) <= 2  # every expert is chosen
    plan = capacity.plan(arch, H100, num_gpus=8, context=32_768, users=20)
    assert all(lever.bytes_per_user <= plan.fit.bytes_per_user for lever in plan.levers)


# --- what must always hold --------------------------------------------------------------------


@given(
    arch=st.sampled_from([*TINY.values(), MIXED]),
    batch=st.integers(1, 50),
    context=st.integers(1, 60),
    num_gpus=st.integers(1, 9),
    whiteboard=st.booleans(),
)
def test_a_step_is_the_slower_of_its_two_halves(
    arch: Architecture, batch: int, context: int, num_gpus: int, whiteboard: bool
) -> None:
    given_ = {"batch": batch, "context": context, "whiteboard": whiteboard}
    step = decode_step(arch, ROUND, num_gpus=num_gpus, **given_)
    assert step.bytes == step.weight_bytes + step.cache_bytes + step.activation_bytes
    assert step.memory_seconds == pytest.approx(step.bytes / 1e12 / num_gpus)
    assert step.compute_seconds == pytest.approx(step.flops / 1e14 / num_gpus)
    assert step.seconds == max(step.memory_seconds, step.compute_seconds)
    assert (step.bound == "compute") is (step.intensity > roofline.ridge(ROUND))
    assert step.tokens_per_second == pytest.approx(batch / step.seconds)
    assert step.weight_bytes <= step.resident_weight_bytes + 2 * batch * arch.model_width
    more = decode_step(arch, ROUND, num_gpus=num_gpus, **{**given_, "batch": batch + 1})
    assert more.cache_bytes * batch == step.cache_bytes * (batch + 1)
    assert more.flops * batch == step.flops * (batch + 1)
    assert more.weight_bytes >= step.weight_bytes
    assert more.seconds >= step.seconds


def test_a_verified_draft_passes_like_a_short_prefill() -> None:
    verify = decode_step(GQA, ROUND, batch=3, context=20, num_new=4)
    fill = prefill(GQA, ROUND, batch=3, num_tokens=4, num_stored=16, logits_for=4)
    assert verify == fill
    assert verify.num_tokens == 12


def test_a_chunk_that_is_not_the_last_needs_no_output_matrix() -> None:
    untied = dataclasses.replace(GQA, tie_embeddings=False)
    size, M = GQA.vocab_size * GQA.model_width, GQA.model_width
    for arch, spared in ((untied, size), (GQA, size - 5 * M)):
        last, other = (
            prefill(arch, ROUND, num_tokens=5, logits_for=n, num_stored=3) for n in (1, 0)
        )
        assert last.weight_bytes - other.weight_bytes == 2 * spared
        assert last.flops - other.flops == 2 * size
        assert last.activation_bytes - other.activation_bytes == 2 * GQA.vocab_size


def test_a_sweep_holds_the_step_of_each_point() -> None:
    found = roofline.decode_sweep(
        GQA, ROUND, batches=(1, 4), contexts=(3, 9, 27), cache_dtype="fp8"
    )
    assert list(found) == [(b, c) for c in (3, 9, 27) for b in (1, 4)]
    for (batch, context), step in found.items():
        assert step == decode_step(GQA, ROUND, batch=batch, context=context, cache_dtype="fp8")


@pytest.mark.parametrize("whiteboard", [False, True])
@pytest.mark.parametrize("context", [512, 4096, 131_072])
def test_cache_and_weights_are_equal_at_the_crossover(context: int, whiteboard: bool) -> None:
    at = roofline.crossover_batch(L70B, context, whiteboard=whiteboard)
    below, above = (
        decode_step(L70B, H100, batch=batch, context=context, whiteboard=whiteboard)
        for batch in (math.floor(at), math.floor(at) + 1)
    )
    assert below.cache_bytes <= below.weight_bytes
    assert above.cache_bytes > above.weight_bytes
    share = at - math.floor(at)
    weights, cache = (
        (1 - share) * getattr(below, name) + share * getattr(above, name)
        for name in ("weight_bytes", "cache_bytes")
    )
    assert cache == pytest.approx(weights, rel=1e-12)


def test_the_crossover_of_experts_counts_those_that_the_batch_reads() -> None:
    arch = with_experts(toy(CASES["CAL-14"], tied=False), 64, 2)
    at = roofline.crossover_batch(arch, 20)
    below, above = (
        decode_step(arch, ROUND, batch=batch, context=20)
        for batch in (math.floor(at), math.floor(at) + 1)
    )
    assert below.cache_bytes <= below.weight_bytes < below.resident_weight_bytes
    assert above.cache_bytes > above.weight_bytes


def test_below_one_request_the_crossover_counts_the_weights_of_one() -> None:
    mixtral = Architecture.named("mixtral-8x7b")
    # 12,879,925,248 active parameters and 131,072 B a token, both published; 30 layers of SmolLM2
    # store 23,040 B a token, and one step reads its 134,515,008 parameters but no table of its own.
    for context, share in ((393_216, 0.499807), (262_144, 0.749710)):
        at = roofline.crossover_batch(mixtral, context, whiteboard=True)
        assert at == 2 * 12_879_925_248 / (context * 131_072) == pytest.approx(share, abs=1e-6)
    assert roofline.crossover_batch(Architecture.named("smollm2-135m"), 20_000) == pytest.approx(
        2 * 134_515_008 / (20_000 * 23_040), rel=1e-12
    )
    # Where one request is the crossover both ways of counting meet.
    one = roofline.crossover_batch(L70B, 430_626, whiteboard=True)
    assert one == pytest.approx(141_107_412_992 / (430_626 * 327_680), rel=1e-12)


def test_without_a_cache_nothing_outweighs_the_weights() -> None:
    layer = Layer(kind="none", mlp_parameters=70)
    arch = Architecture("mlp", 1, 3, 0, 0, 0, 0, 11, None, detail=Detail((layer,), 33, 33, 0, "-"))
    assert roofline.crossover_batch(arch, 100) == math.inf
    assert roofline.crossover_batch(GQA, 0) == math.inf
    assert roofline.intensity_ceiling(arch, ROUND, 100, whiteboard=True) == math.inf
    assert roofline.compute_bound_context(arch, ROUND, whiteboard=True) is None


@pytest.mark.parametrize("options", [{}, {"whiteboard": True}, {"cache_dtype": "fp8"}])
def test_the_ceiling_is_approached_and_never_reached(options: dict[str, Any]) -> None:
    for context in (100, 4096):
        ceiling = roofline.intensity_ceiling(L70B, H100, context, **options)
        grown = [
            decode_step(L70B, H100, batch=10**power, context=context, **options).intensity
            for power in range(9)
        ]
        assert grown == sorted(grown) and grown[-1] < ceiling
        assert grown[-1] == pytest.approx(ceiling, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"whiteboard": True}, {"cache_dtype": "fp8"}, {"weight_dtype": "fp8"}],
    ids=["read", "whiteboard", "fp8 cache", "fp8 weights"],
)
def test_a_large_batch_is_compute_bound_up_to_the_context_that_is_named(
    options: dict[str, Any],
) -> None:
    longest = roofline.compute_bound_context(L70B, H100, **options)
    for context, bound in ((longest, "compute"), (longest + 1, "memory")):
        assert decode_step(L70B, H100, batch=10**9, context=context, **options).bound == bound


def test_a_ceiling_that_equals_the_ridge_is_reached_by_no_batch() -> None:
    # 2P + 4LHDS = 250 · 4LGDS with P = 7,936,000, L, H, G, D = 1, 4, 2, 8 holds at S = 1,000.
    heads = {"num_query_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 8}
    layer = Layer(kind="full", mlp_parameters=7_936_000, **heads)
    detail = Detail((layer,), 0, 0, 0, "-")
    arch = Architecture("met", 1, 32, 4, 2, 8, 0, 1, None, detail=detail)
    gpu = Accelerator("met", 1, 4e12, {"bf16": 1000e12}, "-", "2026-11")
    assert roofline.intensity_ceiling(arch, gpu, 1000, whiteboard=True) == gpu.ridge() == 250
    assert roofline.compute_bound_context(arch, gpu, whiteboard=True) == 999
    for batch in (10**6, 10**15):
        step = decode_step(arch, gpu, batch=batch, context=1000, whiteboard=True)
        assert step.flops < 250 * step.bytes


def test_windows_everywhere_leave_no_context_too_long() -> None:
    layers = (dataclasses.replace(WINDOWED, mlp_parameters=10**9),)
    arch = Architecture("swa", 1, 12, 4, 2, 6, 0, 31, None, detail=Detail(layers, 372, 372, 0, "-"))
    assert roofline.compute_bound_context(arch, ROUND) is None
    poor = dataclasses.replace(arch, detail=dataclasses.replace(arch.detail, layers=(WINDOWED,)))
    assert roofline.compute_bound_context(poor, ROUND) == 0
    # A state is read from the second token on: what only the first could do does not count.
    state = Layer(kind="state", state_elements=10**6, mlp_parameters=150 * 10**6)
    detail = Detail((state,), 372, 372, 0, "-")
    recurrent = Architecture("ssm", 1, 12, 0, 0, 0, 0, 31, None, detail=detail)
    first, later = (
        decode_step(recurrent, ROUND, batch=10**9, context=context).bound for context in (1, 2)
    )
    assert (first, later) == ("compute", "memory")
    assert roofline.compute_bound_context(recurrent, ROUND) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode_step(GQA, ROUND, batch=0, context=3), "batch must be at least 1, got 0"),
        (
            lambda: decode_step(GQA, ROUND, batch=1.0, context=3),
            "batch must be an integer, got 1.0",
        ),
        (lambda: decode_step(GQA, ROUND, batch=1, context=0), "to the context of 0, got 1"),
        (lambda: decode_step(GQA, ROUND, batch=1, context=3, num_new=4), "got 4"),
        (lambda: decode_step(GQA, ROUND, batch=1, context=3, num_new=0), "got 0"),
        (
            lambda: decode_step(GQA, ROUND, batch=1, context=3, num_gpus=0),
            "^num_gpus must be at least 1, got 0$",
        ),
        (lambda: decode_step(GQA, ROUND, batch=1, context=3, weight_dtype="fp9"), "'fp9'"),
        (lambda: decode_step(GQA, ROUND, batch=1, context=3, cache_dtype="fp9"), "'fp9'"),
        (lambda: decode_step(GQA, ROUND, batch=1, context=3, compute_dtype="fp8"), "no rate for"),
        (lambda: prefill(GQA, ROUND, num_tokens=0), "at least one token, got 0"),
        (lambda: prefill(GQA, ROUND, num_tokens=2, logits_for=3), "logits_for is 3"),
        (lambda: prefill(GQA, ROUND, num_tokens=2, num_stored=-1), "cannot be negative, got -1"),
        (lambda: prefill(GQA, ROUND, num_tokens=True), "must be an integer, got True"),
        (
            lambda: lower_bound(ROUND, flops=1, weight_bytes=0),
            "^a step moves something, got 0 bytes$",
        ),
        (lambda: lower_bound(ROUND, flops=-1, weight_bytes=1), "flops cannot be negative, got -1"),
        (lambda: lower_bound(ROUND, flops=1, weight_bytes=1, dtype="int8"), "no rate for 'int8'"),
        (lambda: roofline.crossover_batch(GQA, -1), "context cannot be negative"),
    ],
)
def test_what_is_no_step_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
