"""Bytes of caches against the tensors that caches hold: refimpl's own, and transformers'."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import token_ids
from small_models import SMALL, build, small
from transformers import DynamicCache, StaticCache

from refimpl.architecture import Architecture
from refimpl.cache import ContiguousCache
from refimpl.model import Decoder
from refimpl.sizing import (
    count_parameters,
    fixed_state_bytes,
    kv_bytes,
    kv_bytes_per_token,
    layer_bytes,
    weight_bytes,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@st.composite
def llamas(draw: st.DrawFn) -> Architecture:
    """A uniform decoder of random shape."""
    groups, per_group = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return Architecture(
        name="random",
        num_layers=draw(st.integers(1, 4)),
        model_width=draw(st.integers(1, 30)),
        num_query_heads=groups * per_group,
        num_kv_heads=groups,
        head_dim=2 * draw(st.integers(1, 8)),
        mlp_width=draw(st.integers(1, 40)),
        vocab_size=draw(st.integers(1, 60)),
        max_context=64,
        tie_embeddings=draw(st.booleans()),
    )


@given(llamas(), st.integers(1, 20), st.integers(1, 4), st.sampled_from([*DTYPES]))
def test_a_random_cache_has_the_bytes_of_its_tensors(
    arch: Architecture, tokens: int, batch: int, dtype: str
) -> None:
    cache = ContiguousCache(arch, batch_size=batch, max_tokens=tokens, dtype=DTYPES[dtype])
    tensors = [cache._k[layer].nbytes + cache._v[layer].nbytes for layer in range(arch.num_layers)]
    assert kv_bytes(arch, tokens, dtype, batch) == sum(tensors)
    assert [batch * row.total for row in layer_bytes(arch, tokens, dtype)] == tensors


@given(llamas(), st.sampled_from([*DTYPES]))
def test_a_random_decoder_has_the_bytes_of_its_tensors(arch: Architecture, dtype: str) -> None:
    with torch.device("meta"):
        model = Decoder(arch).to(DTYPES[dtype])
    tensors = list(model.parameters())
    assert count_parameters(arch).total == sum(p.numel() for p in tensors)
    assert weight_bytes(arch, dtype) == sum(p.nbytes for p in tensors)


def forward(config: Any, batch: int, tokens: int) -> Any:
    """The cache that transformers' model holds after a forward pass."""
    model = build(config, "cpu")
    with torch.no_grad():
        out = model(token_ids(0, config.vocab_size, batch, tokens), use_cache=True)
    return out.get("past_key_values") or out.get("cache_params")


def held(layer: Any) -> dict[str, int]:
    """Bytes of the tensors of one layer of transformers' cache: by tokens, fixed, indexer's."""
    found = {"tokens": 0, "state": 0, "conv": 0, "index": 0}
    kinds = {"keys": "tokens", "values": "tokens", "recurrent_states": "state"}
    kinds |= {"conv_states": "conv", "indexer_keys": "index"}
    for name, kind in kinds.items():
        value = getattr(layer, name, None)
        for tensor in value.values() if isinstance(value, dict) else [value]:
            found[kind] += tensor.nbytes if isinstance(tensor, torch.Tensor) else 0
    return found


WINDOWED = [n for n, (_, keys) in SMALL.items() if keys.get("sliding_window") or "llama4" in n]


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_and_chunks_hold_what_a_static_cache_reserves(name: str) -> None:
    config = small(name)
    arch = Architecture.from_hf_config(config.to_dict())
    window = next(layer.window for layer in arch.layers if layer.window is not None)
    model = build(config, "cpu")
    for tokens in (1, window - 1, window, window + 1, 3 * window + 1):
        cache = StaticCache(config=config, max_cache_len=tokens)
        with torch.no_grad():
            model(torch.tensor([[3], [1], [2]]), past_key_values=cache)
        assert [held(layer)["tokens"] for layer in cache.layers] == [
            3 * row.total for row in layer_bytes(arch, tokens, "fp32")
        ]


LATENT = [n for n, (model_type, _) in SMALL.items() if re.match("deepseek|glm_moe_dsa", model_type)]


@pytest.mark.parametrize("name", LATENT)
def test_a_latent_cache_holds_the_latent_and_the_rotary_key(name: str) -> None:
    config = small(name)
    arch = Architecture.from_hf_config(config.to_dict())
    got = [held(layer) for layer in forward(config, batch=2, tokens=11).layers]
    assert kv_bytes(arch, 11, "fp32", batch=2) == sum(x["tokens"] for x in got)
    assert kv_bytes(arch, 11, "fp32", batch=2, indexer=True) == sum(
        x["tokens"] + x["index"] for x in got
    )
    # 18 numbers of latent and 4 of rotary key a token, whatever the six heads hold.
    assert kv_bytes_per_token(arch, "fp32") == arch.num_layers * (18 + 4) * 4


STATES = [
    "jamba",
    "jamba-dense",
    "nemotron-h",
    "qwen3-next",
    "mamba",
    "falcon-mamba",
    "kimi-linear",
]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("tokens", [1, 11])
def test_a_state_is_fixed_and_the_rest_grows(name: str, tokens: int) -> None:
    config = small(name)
    arch = Architecture.from_hf_config(config.to_dict())
    cache = forward(config, 2, tokens)
    assert isinstance(cache, DynamicCache)
    got = [held(layer) for layer in cache.layers]
    rows = layer_bytes(arch, tokens, "fp32")
    assert [x["tokens"] for x in got] == [2 * row.held * row.token_bytes for row in rows]
    assert [x["state"] for x in got] == [2 * row.fixed_bytes for row in rows]
    # transformers keeps the whole window of each convolution: here 3 inputs.
    state = sum(x["state"] + x["conv"] for x in got)
    assert 2 * fixed_state_bytes(arch, "fp32", conv_taps=3) == state
    assert 2 * fixed_state_bytes(arch, "fp32") == sum(x["state"] for x in got)


def test_linear_attention_keeps_a_matrix_for_each_head() -> None:
    config = small("minimax")
    arch = Architecture.from_hf_config(config.to_dict())
    cache = forward(config, batch=2, tokens=11)
    state = sum(x.nbytes for x in cache.linear_cache if isinstance(x, torch.Tensor))
    assert 2 * fixed_state_bytes(arch, "fp32") == state
    grown = sum(held(layer)["tokens"] for layer in cache.layers)
    assert kv_bytes(arch, 11, "fp32", batch=2) == state + grown


FULL = ["gpt2", "gptj", "opt", "falcon-mqa", "falcon-mha", "phi", "llama-head-dim"]
FULL += ["qwen2", "qwen3", "gemma", "cohere", "granite", "glm", "smollm3", "olmo2", "mixtral"]
FULL += ["qwen3-moe", "glm4-moe", "minimax-m2"]


@pytest.mark.parametrize("name", FULL)
def test_a_full_cache_holds_key_value_heads(name: str) -> None:
    config = small(name)
    arch = Architecture.from_hf_config(config.to_dict())
    got = [held(layer)["tokens"] for layer in forward(config, batch=2, tokens=7).layers]
    assert got == [2 * row.total for row in layer_bytes(arch, 7, "fp32")]
    assert kv_bytes(arch, 7, "bf16", batch=2) * 2 == sum(got)


def test_falcon_stores_a_key_once_for_each_query_head_where_once_a_group_would_do() -> None:
    # transformers repeats the heads of the newer layout before it stores them: what it holds is
    # larger than what must be held, which is counted here.
    config = small("falcon-new")
    arch = Architecture.from_hf_config(config.to_dict())
    needed = 0
    for layer in forward(config, batch=2, tokens=7).layers:
        for stored in (layer.keys, layer.values):
            groups = stored.unflatten(1, (arch.num_kv_heads, arch.group_size))
            assert (groups == groups[:, :, :1]).all()
            needed += groups[:, :, 0].nbytes
    assert kv_bytes(arch, 7, "fp32", batch=2) == needed


def test_weights_of_a_small_mixture_have_the_bytes_of_its_tensors() -> None:
    config = small("qwen3-moe")
    arch = Architecture.from_hf_config(config.to_dict())
    for name, dtype in DTYPES.items():
        model = build(config, "cpu").to(dtype)
        assert weight_bytes(arch, name) == sum(p.nbytes for p in model.parameters())
