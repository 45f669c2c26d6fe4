"""Bytes and parameters against real tensors, published shapes and published numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from oracles import GQA, TINY, rows

from refimpl.architecture import Architecture
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.model import Decoder
from refimpl.sizing import (
    BYTES_PER_ELEMENT,
    bytes_per_element,
    count_parameters,
    kv_bytes,
    kv_bytes_per_token,
)

MODELS = rows("models.json")
PUBLISHED = rows("published.json")
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


@pytest.mark.parametrize("name", MODELS)
def test_real_models_have_their_published_size(name: str) -> None:
    arch, row = Architecture.named(name), MODELS[name]
    counted = count_parameters(arch)
    assert (counted.total, counted.embedding) == (row["parameters"], row["embedding"])
    for dtype in ("bf16", "fp16"):
        assert kv_bytes_per_token(arch, dtype) == row["kv_bytes_per_token_16bit"]
    assert kv_bytes_per_token(arch, "int4") * 4 == kv_bytes_per_token(arch)
    assert kv_bytes_per_token(arch, "fp8") * 4 == kv_bytes_per_token(arch, "fp32")


def quantity(row: dict[str, Any]) -> float:
    """What a published row states, in its unit."""
    if "shape" in row:
        arch = dataclasses.replace(
            GQA, num_query_heads=row["shape"]["num_kv_heads"], **row["shape"]
        )
    else:
        arch = Architecture.named(row["model"])
    weights = 2 * count_parameters(arch).total
    cache = kv_bytes(arch, row.get("num_tokens", 0), "fp16", row.get("batch", 1))
    per_token = kv_bytes_per_token(arch, "fp16")
    return {
        "bytes_per_token": lambda: per_token,
        "GiB": lambda: cache / 2**30,
        "TiB": lambda: cache / 2**40,
        "TB": lambda: cache / 10**12,
        "thousand_slots": lambda: row["memory_gib"] * 2**30 / per_token / 1000,
        "weights_GB": lambda: weights / 10**9,
        "cache_GB": lambda: cache / 10**9,
        "weights_and_cache_GB": lambda: (weights + cache) / 10**9,
        "cache_over_weights": lambda: cache / weights,
        "tokens_where_cache_equals_weights": lambda: weights / per_token,
    }[row["quantity"]]()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    assert abs(quantity(row) - row["expected"]) <= row["tolerance"]


def test_counts_are_exact_integers() -> None:
    big = Architecture.named("llama-3-70b")
    got = kv_bytes(big, 10**12, "int4", batch=7)
    assert type(got) is int
    assert got == 7 * 10**12 * 80 * 8 * 128
    assert kv_bytes(big, 0) == kv_bytes(big, 5, batch=0) == 0
    assert type(kv_bytes_per_token(big)) is int


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_bytes_per_token(GQA, "bfloat16"), "unknown dtype 'bfloat16': one of fp32"),
        (lambda: kv_bytes(GQA, 3, "fp64"), "unknown dtype 'fp64'"),
        (lambda: kv_bytes(GQA, -1), "num_tokens cannot be negative, got -1"),
        (lambda: kv_bytes(GQA, 1, batch=-2), "batch cannot be negative, got -2"),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
