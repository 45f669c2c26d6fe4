"""Bytes and parameters against real tensors, published shapes and published numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import GQA, TINY, rows

from refimpl.architecture import Architecture, Detail, Layer
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.model import Decoder
from refimpl.sizing import (
    BYTES_PER_ELEMENT,
    Parameters,
    bytes_per_element,
    count_parameters,
    distinct_experts,
    fixed_state_bytes,
    kv_bytes,
    kv_bytes_per_token,
    layer_bytes,
    max_tokens,
    weight_bytes,
)

MODELS = rows("models.json")
PUBLISHED = rows("published.json")
CASES = rows("cases_sizing.json")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_cache_bytes_are_those_of_the_tensors(arch: Architecture, name: str) -> None:
    cache = ContiguousCache(arch, batch_size=3, max_tokens=11, dtype=DTYPES[name])
    assert kv_bytes(arch, 11, name, batch=3) == cache.num_bytes
    grown = ConcatenatingCache(arch, batch_size=2, dtype=DTYPES[name])
    k = torch.zeros(2, arch.num_kv_heads, 5, arch.head_dim, dtype=DTYPES[name])
    for layer in range(arch.num_layers):
        grown.append(layer, k, k)
    assert kv_bytes(arch, 5, name, batch=2) == grown.num_bytes
    assert kv_bytes_per_token(arch, name) * 10 == grown.num_bytes


def test_bytes_of_a_number() -> None:
    for name, dtype in DTYPES.items():
        assert bytes_per_element(name) == torch.empty(0, dtype=dtype).element_size()
    assert bytes_per_element("fp8") == torch.empty(0, dtype=torch.float8_e4m3fn).element_size()
    assert bytes_per_element("int8") == torch.empty(0, dtype=torch.int8).element_size()
    assert bytes_per_element("int4") == 0.5
    assert set(BYTES_PER_ELEMENT) == {*DTYPES, "fp8", "int8", "int4"}


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_parameters_are_those_of_the_decoder(arch: Architecture) -> None:
    for tied in (False, True):
        arch = dataclasses.replace(arch, tie_embeddings=tied)
        model = Decoder(arch)
        counted = count_parameters(arch)
        # parameters() lists a shared tensor once.
        assert counted.total == sum(p.numel() for p in model.parameters())
        assert counted.embedding == model.embed.weight.numel()
        assert counted.active == counted.total


def stack(*layers: Layer, **keys: Any) -> Architecture:
    """An architecture of the given layers; its weights are no concern of these tests."""
    first = next((x for x in layers if x.num_query_heads), Layer(kind="none"))
    detail = Detail(layers, 0, 0, 0, "it is a stack of layers")
    return Architecture(
        "stack",
        len(layers),
        48,
        first.num_query_heads,
        first.num_kv_heads,
        first.head_dim,
        0,
        53,
        None,
        detail=detail,
        **keys,
    )


def attending(kind: str, heads: int = 2, dim: int = 16, **keys: Any) -> Layer:
    return Layer(
        kind=kind,
        num_query_heads=2 * heads,
        num_kv_heads=heads,
        head_dim=dim,
        value_dim=dim,
        **keys,
    )


def latent(width: int, rope: int) -> Layer:
    keys = {"num_query_heads": 4, "num_kv_heads": 1, "head_dim": 6, "value_dim": 6}
    return Layer(kind="latent", latent_width=width, rope_width=rope, **keys)


@pytest.mark.parametrize("name", MODELS)
def test_real_models_at_every_dtype(name: str) -> None:
    arch, row = Architecture.named(name), MODELS[name]
    wide = row["kv_bytes_per_token_16bit"]
    for dtype, factor in (("fp32", 2), ("bf16", 1), ("fp16", 1), ("fp8", 0.5), ("int4", 0.25)):
        assert kv_bytes_per_token(arch, dtype) == wide * factor
        assert weight_bytes(arch, dtype) == math.ceil(2 * factor * count_parameters(arch).total)
    assert kv_bytes_per_token(arch, "int8") == kv_bytes_per_token(arch, "fp8")


# --- published numbers --------------------------------------------------------------------------


def architecture(row: dict[str, Any]) -> Architecture:
    """The architecture that a published row is about: named, as a config, or as bare numbers."""
    if "shape" in row:
        shape = row["shape"]
        return dataclasses.replace(GQA, num_query_heads=shape["num_kv_heads"], **shape)
    if "latent" in row:
        num_layers, width, rope = row["latent"]
        return stack(*[latent(width, rope)] * num_layers)
    if "config" in row:
        return Architecture.from_hf_config(row["config"])
    return Architecture.named(row["model"])


def mla_fp8_bytes(arch: Architecture) -> int:
    """A latent in fp8 with a float32 scale per 128 numbers, and its rotary key in bf16."""
    return kv_bytes_per_token(arch, "fp8", group_size=128, scale_bytes=4, rope_dtype="bf16")


def quantity(row: dict[str, Any]) -> float:
    """What a published row states, in its unit."""
    arch = architecture(row)
    weights = 2 * count_parameters(arch).total
    num_tokens = row.get("num_tokens", 0)
    cache = kv_bytes(arch, num_tokens, "fp16", row.get("batch", 1))
    per_token = kv_bytes_per_token(arch, "fp16")
    against = architecture(row["against"]) if "against" in row else arch
    other = kv_bytes_per_token(against)
    state = fixed_state_bytes(arch, conv_taps=row.get("conv_taps", 0))
    bits = row.get("bits", 16)
    group = {"group_size": row.get("group_size"), "scale_bytes": 4}
    return {
        "bytes_per_token": lambda: per_token,
        "elements_per_token": lambda: kv_bytes_per_token(arch, "int8"),
        "GiB": lambda: cache / 2**30,
        "TiB": lambda: cache / 2**40,
        "TB": lambda: cache / 10**12,
        "cache_bytes": lambda: cache,
        "thousand_slots": lambda: row["memory_gib"] * 2**30 / per_token / 1000,
        "weights_GB": lambda: weights / 10**9,
        "weights_4bit_GB": lambda: weight_bytes(arch, "int4", **group) / 10**9,
        "cache_GB": lambda: cache / 10**9,
        "weights_and_cache_GB": lambda: (weights + cache) / 10**9,
        "cache_over_weights": lambda: cache / weights,
        "tokens_where_cache_equals_weights": lambda: weights / per_token,
        "token_ratio": lambda: per_token / other,
        "token_percent": lambda: 100 * per_token / other,
        "token_reduction": lambda: 100 * (1 - per_token * bits / 16 / other),
        "cache_ratio": lambda: cache / kv_bytes(against, num_tokens, "fp16"),
        # Against the same model with every layer full.
        "growth_ratio": lambda: num_tokens * per_token / cache,
        "mla_fp8_bytes": lambda: mla_fp8_bytes(arch),
        "mla_fp8_ratio": lambda: per_token / mla_fp8_bytes(arch),
        "state_bytes": lambda: state,
        "tokens_where_cache_equals_state": lambda: state / per_token,
        "span_tokens": lambda: sum(layer.window or 0 for layer in arch.layers),
    }[row["quantity"]]()


@pytest.mark.parametrize("name", [n for n, row in PUBLISHED.items() if "reproduces" not in row])
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    assert abs(quantity(row) - row["expected"]) <= row["tolerance"]


@pytest.mark.parametrize("name", [n for n, row in PUBLISHED.items() if "reproduces" in row])
def test_published_numbers_that_are_wrong_stay_wrong(name: str) -> None:
    row = PUBLISHED[name]
    got = quantity(row)
    assert abs(got - row["expected"]) > row["tolerance"]
    assert round(got, 3) == row["reproduces"]


# --- windows, states, and how much fits ---------------------------------------------------------

MIXED = stack(
    attending("full"),
    attending("sliding", window=8),
    Layer(kind="state", state_elements=30, conv_channels=7),
    attending("chunked", heads=3, dim=6, window=5),
    Layer(kind="none"),
    latent(18, 4),
    Layer(kind="linear", state_elements=11),
)


def test_each_layer_keeps_what_its_kind_says() -> None:
    rows = layer_bytes(MIXED, 20)
    assert [(row.kind, row.held, row.token_bytes, row.fixed_bytes) for row in rows] == [
        ("full", 20, 128, 0),
        ("sliding", 8, 128, 0),
        ("state", 0, 0, 60),
        ("chunked", 5, 72, 0),
        ("none", 0, 0, 0),
        ("latent", 20, 44, 0),
        ("linear", 0, 0, 22),
    ]
    total = 20 * 128 + 8 * 128 + 60 + 5 * 72 + 20 * 44 + 22
    assert sum(row.total for row in rows) == kv_bytes(MIXED, 20) == total
    assert kv_bytes(MIXED, 20, batch=7) == 7 * total
    assert kv_bytes_per_token(MIXED) == 128 + 128 + 72 + 44
    assert kv_bytes_per_token(MIXED, beyond_window=True) == 128 + 44
    assert fixed_state_bytes(MIXED) == 60 + 22
    assert fixed_state_bytes(MIXED, "fp32", conv_taps=3) == 4 * (30 + 3 * 7 + 11)
    # Nothing is stored before the first token; then the whole state is there.
    assert kv_bytes(MIXED, 0) == 0
    assert kv_bytes(MIXED, 1) == kv_bytes_per_token(MIXED) + fixed_state_bytes(MIXED)


@given(tokens=st.integers(0, 40), extra=st.integers(0, 12), dtype=st.sampled_from(["fp32", "int4"]))
def test_a_cache_is_what_its_tokens_leave_in_it(tokens: int, extra: int, dtype: str) -> None:
    # Token by token, by the definition: a window forgets one where it takes one up.
    held: list[list[int]] = [[] for _ in MIXED.layers]
    for token in range(tokens):
        for layer, kept in zip(MIXED.layers, held, strict=True):
            if layer.kv_elements:
                kept.append(token)
            if layer.window is not None:
                del kept[: -layer.window]
    bits = {"fp32": 32, "int4": 4}[dtype]
    want = 0
    for layer, kept in zip(MIXED.layers, held, strict=True):
        fixed = layer.state_elements if tokens else 0
        want += len(kept) * layer.kv_elements * bits // 8 + math.ceil(fixed * bits / 8)
    assert kv_bytes(MIXED, tokens, dtype) == want
    assert kv_bytes(MIXED, tokens + extra, dtype) >= want


@given(budget=st.integers(0, 40_000), batch=st.integers(1, 5), group=st.sampled_from([None, 8]))
def test_max_tokens_is_the_exact_inverse(budget: int, batch: int, group: int | None) -> None:
    options = {"group_size": group, "scale_bytes": 2}
    for arch in (MIXED, GQA, stack(attending("sliding", window=9), latent(5, 3))):
        longest = max_tokens(arch, budget, "int8", batch, **options)
        assert longest is not None
        assert kv_bytes(arch, longest, "int8", batch, **options) <= budget
        assert kv_bytes(arch, longest + 1, "int8", batch, **options) > budget
        steps = itertools.count()
        by_search = next(
            t for t in steps if kv_bytes(arch, t + 1, "int8", batch, **options) > budget
        )
        assert longest == by_search


def test_where_nothing_grows_no_sequence_is_too_long() -> None:
    window = stack(attending("sliding", window=8))
    assert max_tokens(window, 8 * 128) is None
    assert max_tokens(window, 8 * 128 - 1) == 7
    state = stack(Layer(kind="state", state_elements=30))
    assert max_tokens(state, 60) is None
    assert max_tokens(state, 60, batch=2) == 0
    assert max_tokens(state, 59) == 0
    assert max_tokens(Architecture.named("falcon-mamba-7b"), 2**24) is None
    assert max_tokens(Architecture.named("mistral-7b-v0.1"), 2**29) is None
    assert max_tokens(Architecture.named("mistral-7b-v0.1"), 2**29 - 1) == 4095


# --- numbers of few bits ------------------------------------------------------------------------


def packed_nbytes(width: int, bits: int, group: int | None, scale: torch.dtype) -> int:
    """Bytes of tensors that hold one vector: packed numbers, and a scale for each group."""
    data = torch.zeros(math.ceil(width * bits / 8), dtype=torch.uint8)
    if group is None:
        return data.nbytes
    return data.nbytes + torch.zeros(len(range(0, width, group)), dtype=scale).nbytes


@given(
    heads=st.integers(1, 4),
    dim=st.integers(1, 40),
    tokens=st.integers(0, 9),
    group=st.sampled_from([None, 1, 7, 16, 64]),
    scale=st.sampled_from([torch.float16, torch.float32]),
)
def test_few_bits_are_packed_and_scales_are_counted(
    heads: int, dim: int, tokens: int, group: int | None, scale: torch.dtype
) -> None:
    arch = stack(attending("full", heads, dim), latent(dim, 3))
    for dtype, bits in (("int4", 4), ("int8", 8), ("fp8", 8)):
        vectors = 2 * heads * [dim] + [dim, 3]
        want = sum(packed_nbytes(width, bits, group, scale) for width in vectors)
        options = {"group_size": group, "scale_bytes": scale.itemsize}
        assert kv_bytes_per_token(arch, dtype, **options) == want
        assert kv_bytes(arch, tokens, dtype, batch=3, **options) == 3 * tokens * want


def test_bits_that_published_schemes_really_use() -> None:
    big = Architecture.named("llama-3-70b")
    wide = kv_bytes_per_token(big)
    # A float16 scale and zero point for each 64 numbers make 4 bits 4.5.
    four = kv_bytes_per_token(big, "int4", group_size=64, scale_bytes=4)
    assert 16 * four / wide == 4.5
    # One float16 scale a head and token makes 8 bits 8.125.
    assert 16 * kv_bytes_per_token(big, "int8", group_size=128) / wide == 8.125
    weights = weight_bytes(big, "int4", group_size=64, scale_bytes=4)
    assert 8 * weights / count_parameters(big).total == 4.5


# --- experts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (5, 1), (3, 3), (4, 0)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_distinct_experts_by_enumeration(experts: int, chosen: int, tokens: int) -> None:
    sets = list(itertools.combinations(range(experts), chosen))
    batches = list(itertools.product(sets, repeat=tokens))
    mean = sum(len(set().union(*batch)) for batch in batches) / len(batches)
    assert distinct_experts(experts, chosen, tokens) == pytest.approx(mean, abs=1e-12)


def test_distinct_experts_fill_up() -> None:
    assert distinct_experts(256, 8, 1) == pytest.approx(8, abs=1e-9)
    assert 160 < distinct_experts(256, 8, 32) < 165
    assert distinct_experts(256, 8, 10_000) == pytest.approx(256)


def test_a_layer_knows_what_is_always_read() -> None:
    layer = Layer(
        kind="linear",
        mixer_parameters=5,
        mlp_parameters=7,
        num_experts=4,
        experts_per_token=3,
        expert_parameters=11,
    )
    assert (layer.always_read, layer.active_parameters, layer.parameters) == (12, 45, 56)
    arch = stack(layer, layer)
    assert count_parameters(arch) == Parameters(total=112, active=90, embedding=0)


# --- known failures of other calculators --------------------------------------------------------


def uniform(**shape: Any) -> Architecture:
    return dataclasses.replace(GQA, **shape)


@pytest.mark.case("CAL-01")
def test_a_token_is_counted_once() -> None:
    case = CASES["CAL-01"]
    inputs = dict(case["inputs"])
    arch = uniform(**{key: value for key, value in inputs.items() if key != "dtype"})
    want = case["expected"]["bytes_per_token"]
    assert kv_bytes_per_token(arch, inputs["dtype"]) == want
    cache = ContiguousCache(arch, batch_size=1, max_tokens=1, dtype=DTYPES[inputs["dtype"]])
    assert cache.num_bytes == want


@pytest.mark.case("CAL-02")
def test_key_value_heads_are_counted_and_not_query_heads() -> None:
    case = CASES["CAL-02"]
    shape = {key: value for key, value in case["inputs"].items() if key != "dtype"}
    for heads, want in case["expected"]["bytes_by_kv_heads"].items():
        arch = uniform(**shape, num_kv_heads=int(heads))
        assert kv_bytes_per_token(arch, case["inputs"]["dtype"]) == want
        assert kv_bytes(arch, 1, case["inputs"]["dtype"]) == want


def windowed(case: dict[str, Any]) -> Architecture:
    """Gemma-like layers: some slide, some are full, read from a config."""
    inputs = case["inputs"]
    names = ["sliding_attention"] * inputs["sliding_layers"]
    names += ["full_attention"] * inputs["full_layers"]
    return Architecture.from_hf_config(
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": len(names),
            "layer_types": names,
            "sliding_window": inputs["window"],
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": inputs["num_kv_heads"],
            "head_dim": inputs["head_dim"],
            "intermediate_size": 40,
            "vocab_size": 53,
        }
    )


@pytest.mark.case("CAL-06")
def test_sliding_layers_are_neither_full_nor_left_out() -> None:
    case = CASES["CAL-06"]
    arch, want = windowed(case), case["expected"]
    for tokens, size in want["bytes"].items():
        assert kv_bytes(arch, int(tokens)) == size
    last = max(map(int, want["bytes"]))
    assert last * kv_bytes_per_token(arch) == want["all_full_at_32"]
    assert last * kv_bytes_per_token(arch, beyond_window=True) == want["only_full_at_32"]


@pytest.mark.case("CAL-08")
def test_the_longest_context_is_no_division() -> None:
    case, arch = CASES["CAL-08"], windowed(CASES["CAL-06"])
    budget = case["inputs"]["budget"]
    assert max_tokens(arch, budget) == case["expected"]["max_tokens"]
    assert budget // kv_bytes_per_token(arch) == case["expected"]["by_division"]


@pytest.mark.case("CAL-12")
def test_parameters_of_tied_and_untied_heads_and_of_experts() -> None:
    case = CASES["CAL-12"]
    dense = {key: v for key, v in case["inputs"].items() if "experts" not in key}
    for tied in (True, False):
        keys = {"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied}
        arch = Architecture.from_hf_config({"model_type": "llama", **dense, **keys})
        want = case["expected"]["tied" if tied else "untied"]
        assert count_parameters(arch) == Parameters(want, want, 1600)
        assert sum(p.numel() for p in Decoder(arch).parameters()) == want
    mixed = {"model_type": "mixtral", "tie_word_embeddings": True, **case["inputs"]}
    got = count_parameters(Architecture.from_hf_config(mixed))
    assert got.total == case["expected"]["experts_total"]
    assert got.active == case["expected"]["experts_active"]


@pytest.mark.case("CAL-17")
def test_one_name_for_key_value_heads_and_one_for_what_shares_them() -> None:
    case = CASES["CAL-17"]
    arch = uniform(**case["inputs"])
    assert arch.group_size == case["expected"]["group_size"]
    cache = ContiguousCache(arch, batch_size=2, max_tokens=7, dtype=torch.bfloat16)
    assert kv_bytes(arch, 7, "bf16", batch=2) == cache.num_bytes
    names = {field.name for field in dataclasses.fields(Architecture)}
    assert {"num_query_heads", "num_kv_heads"} <= names
    assert not any("group" in name for name in names)


# --- arguments ----------------------------------------------------------------------------------


def test_counts_are_exact_integers() -> None:
    big = Architecture.named("llama-3-70b")
    got = kv_bytes(big, 10**12, "int4", batch=7)
    assert type(got) is int
    assert got == 7 * 10**12 * 80 * 8 * 128
    assert kv_bytes(big, 0) == kv_bytes(big, 5, batch=0) == 0
    assert type(kv_bytes_per_token(big)) is int
    assert type(weight_bytes(big, "int4")) is int
    assert weight_bytes(stack(Layer(kind="none", mlp_parameters=5)), "int4") == 3
    assert max_tokens(big, 327_680 * 10**15) == 10**15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_bytes_per_token(GQA, "bfloat16"), "unknown dtype 'bfloat16': one of fp32"),
        (lambda: kv_bytes(GQA, 3, "fp64"), "unknown dtype 'fp64'"),
        (lambda: kv_bytes(GQA, -1), "num_tokens cannot be negative, got -1"),
        (lambda: kv_bytes(GQA, 1, batch=-2), "batch cannot be negative, got -2"),
        (lambda: kv_bytes(GQA, 3.0), "num_tokens must be an integer, got 3.0"),
        (lambda: kv_bytes(GQA, True), "num_tokens must be an integer, got True"),
        (lambda: kv_bytes(GQA, 3, batch=math.nan), "batch must be an integer, got nan"),
        (lambda: kv_bytes(GQA, 3, group_size=0), "group_size must be at least 1, got 0"),
        (lambda: kv_bytes(GQA, 3, scale_bytes=-1), "scale_bytes cannot be negative, got -1"),
        (lambda: kv_bytes_per_token(GQA, group_size=2.5), "group_size must be an integer, got 2.5"),
        (lambda: layer_bytes(GQA, "3"), "num_tokens must be an integer, got '3'"),
        (lambda: max_tokens(GQA, -1), "num_bytes cannot be negative, got -1"),
        (lambda: max_tokens(GQA, 80e9), "num_bytes must be an integer, got 80000000000.0"),
        (lambda: max_tokens(GQA, 9, batch=0), "batch must be at least 1, got 0"),
        (lambda: fixed_state_bytes(GQA, conv_taps=-1), "conv_taps cannot be negative, got -1"),
        (lambda: weight_bytes(GQA, "int3"), "unknown dtype 'int3'"),
        (lambda: distinct_experts(4, 5, 1), "a token cannot read 5 of 4 experts"),
        (lambda: distinct_experts(0, 0, 1), "num_experts must be at least 1, got 0"),
        (lambda: distinct_experts(4, 2, 1.5), "batch_tokens must be an integer, got 1.5"),
        (lambda: Layer(kind="dense"), "layer kind 'dense' is not known: one of full, sliding"),
        (lambda: Layer(kind="none", mlp_parameters=-1), "mlp_parameters must be an integer from 0"),
        (lambda: Layer(kind="none", num_experts=2.0), "num_experts must be an integer from 0 on"),
        (lambda: Layer(kind="none", num_experts=2, experts_per_token=3), "cannot read 3 of 2 exp"),
        (lambda: attending("sliding"), "a sliding layer needs a window of at least 1, got None"),
        (lambda: attending("chunked", window=0), "a chunked layer needs a window of at least 1"),
        (lambda: attending("full", window=3), "a full layer has no window, got 3"),
        (lambda: Layer(kind="full", num_query_heads=2), "a full layer needs num_kv_heads of at l"),
        (lambda: latent(0, 3), "a latent layer needs latent_width of at least 1"),
        (
            lambda: Layer(kind="full", num_query_heads=3, num_kv_heads=2, head_dim=4, value_dim=4),
            "got 3 and 2",
        ),
        (lambda: stack(), "layers must be a tuple of at least one Layer"),
        (lambda: dataclasses.replace(MIXED, num_layers=3), "num_layers is 3, but 7 layers are li"),
        (lambda: dataclasses.replace(MIXED, num_kv_heads=4), "num_kv_heads is 4, but the first"),
        (lambda: dataclasses.replace(MIXED, max_context=0), "max_context must be a positive int"),
        (
            lambda: dataclasses.replace(MIXED.detail, other_parameters=-1),
            "other_parameters must be an integer of at least 0",
        ),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
