"""Sparse reading against real tensors, entry by entry and key by key."""

from __future__ import annotations

import dataclasses

import pytest
import small_models
import torch

from refimpl.architecture import Architecture
from refimpl.roofline import attention_read_bytes, sparse_read
from refimpl.sizing import kv_bytes, kv_bytes_per_token

TOP_K = small_models.INDEXER["index_topk"]
INDEX = small_models.INDEXER["index_head_dim"]


def small(name: str) -> Architecture:
    return Architecture.from_hf_config(small_models.small(name).to_dict())


@pytest.mark.parametrize(("name", "indexers"), [("deepseek-v3.2", 4), ("glm-5-shared", 2)])
@pytest.mark.parametrize("num_tokens", [0, 1, TOP_K - 1, TOP_K, TOP_K + 1, 23])
def test_bytes_are_those_of_the_tensors_touched(name: str, indexers: int, num_tokens: int) -> None:
    arch = small(name)
    assert {layer.selected for layer in arch.layers} == {TOP_K}
    C, R = arch.layers[0].latent_width, arch.layers[0].rope_width
    entries = [torch.zeros(num_tokens, C + R, dtype=torch.bfloat16) for _ in range(arch.num_layers)]
    keys = [torch.zeros(num_tokens, INDEX, dtype=torch.float8_e4m3fn) for _ in range(indexers)]
    scales = [torch.zeros(num_tokens, 1) for _ in range(indexers)]
    found = sparse_read(arch, num_tokens)
    assert found.chosen == sum(x[:TOP_K].nbytes for x in entries)
    assert found.index == sum(x.nbytes for x in (*keys, *scales))
    assert found.dense == sum(x.nbytes for x in entries) == attention_read_bytes(arch, num_tokens)
    assert found.read == found.chosen + found.index
    assert found.stored == found.dense + found.index
    if num_tokens:
        assert found.saving == found.dense / (found.chosen + found.index)


def test_layers_that_select_nothing_are_read_whole() -> None:
    arch = small("deepseek-v3.2")
    layers = (dataclasses.replace(arch.layers[0], selected=0), *arch.layers[1:])
    mixed = dataclasses.replace(arch, detail=dataclasses.replace(arch.detail, layers=layers))
    width = kv_bytes_per_token(arch) // arch.num_layers
    assert sparse_read(mixed, 31).chosen - sparse_read(arch, 31).chosen == (31 - TOP_K) * width


def test_the_saving_approaches_what_the_indexer_leaves() -> None:
    # However long the context, a key is read for every token: 1,152 B an entry over 132 B a key.
    arch = Architecture.named("deepseek-v3.2")
    at = [sparse_read(arch, 2**power).saving for power in (11, 14, 17, 20, 24)]
    assert at == sorted(at)
    assert at[0] < 1  # nothing is left out of 2,048 tokens, and the keys are read besides
    assert at[-1] == pytest.approx(1152 / 132, rel=0.01)


def test_an_entry_of_two_dtypes() -> None:
    arch = small("deepseek-v3.2")
    C, R, L = arch.layers[0].latent_width, arch.layers[0].rope_width, arch.num_layers
    parts = (
        torch.zeros(C, dtype=torch.float8_e4m3fn),
        torch.zeros(-(-C // 3), dtype=torch.float32),
        torch.zeros(R, dtype=torch.bfloat16),
    )
    options = {"group_size": 3, "scale_bytes": 4, "rope_dtype": "bf16"}
    want = L * sum(x.nbytes for x in parts)
    assert kv_bytes_per_token(arch, "fp8", **options) == want
    assert kv_bytes(arch, 7, "fp8", 5, **options) == 35 * want
    assert sparse_read(arch, 23, "fp8", **options).chosen == TOP_K * want


def test_a_rotary_dtype_changes_nothing_where_no_rotary_key_is_stored_apart() -> None:
    grouped = Architecture.named("llama-3-70b")
    assert kv_bytes_per_token(grouped, "fp8", rope_dtype="bf16") == kv_bytes_per_token(
        grouped, "fp8"
    )


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3.2"])
def test_an_unknown_rotary_dtype_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown dtype 'fp7'"):
        kv_bytes_per_token(Architecture.named(name), rope_dtype="fp7")


def test_an_architecture_that_reads_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="llama-3-8b has no layer that selects tokens"):
        sparse_read(Architecture.named("llama-3-8b"), 100)
    with pytest.raises(ValueError, match="num_tokens"):
        sparse_read(Architecture.named("deepseek-v3.2"), -1)
