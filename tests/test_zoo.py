"""Seventy published models: cache bytes, windows, states and parameters, each from its config."""

from __future__ import annotations

import json
from typing import Any

import pytest
from oracles import rows
from small_models import build, counted, hf_config

from refimpl.architecture import Architecture, zoo
from refimpl.sizing import (
    count_parameters,
    fixed_state_bytes,
    kv_bytes,
    kv_bytes_per_token,
)

MODELS = rows("models.json")
CONFIRMED = {name: row for name, row in MODELS.items() if not row["unverified"]}
# Two rows cannot be met by one config; what is true of each is tested by itself.
PATTERN = "kimi-linear-48b"  # its counts were made with another pattern than its cache bytes
WINDOW = "phi-3-mini-4k"  # unverified: its cache bytes ignore the window that its config has


def from_config(name: str) -> Architecture:
    """The architecture that a model's configuration gives when it is read as JSON."""
    config = zoo.config(name)
    if config is None:
        return Architecture.named(name)
    text = json.dumps({"_name_or_path": name, **config})
    return Architecture.from_hf_config(json.loads(text))


def test_the_zoo_is_the_list() -> None:
    assert zoo.names() == tuple(MODELS)
    assert len(MODELS) == 70
    assert len(CONFIRMED) == 48


@pytest.mark.parametrize("name", MODELS)
def test_cache_bytes_are_those_published(name: str) -> None:
    arch, row = from_config(name), MODELS[name]
    assert arch == Architecture.named(name)
    for dtype in ("bf16", "fp16"):
        assert kv_bytes_per_token(arch, dtype) == row["kv_bytes_per_token_16bit"]
    stored = {layer.kv_elements for layer in arch.layers} - {0}
    assert stored == ({row["kv_elements_per_token_per_layer"]} - {0})
    windows = [layer for layer in arch.layers if layer.window is not None]
    if name == WINDOW:
        assert {layer.window for layer in windows} == {2047}
        return
    assert (
        kv_bytes_per_token(arch, beyond_window=True)
        == (row["kv_bytes_per_token_16bit_beyond_window"])
    )
    assert len(windows) == row["num_windowed_layers"]
    assert {layer.window for layer in windows} <= {row["window"]}
    # What windows hold once they are full: the cache at a long context, less what grows and stays.
    context = 2**20
    grown = context * row["kv_bytes_per_token_16bit_beyond_window"] + fixed_state_bytes(arch)
    assert kv_bytes(arch, context) - grown == row["window_bytes_16bit"]
    assert fixed_state_bytes(arch) == 2 * (row["state_elements"] or 0)


@pytest.mark.parametrize("name", [name for name in MODELS if name != PATTERN])
def test_parameters_are_those_published(name: str) -> None:
    got, row = count_parameters(from_config(name)), MODELS[name]
    if row["parameters"] is None:
        # The row has none: see the two tests of round figures and of indexers below.
        assert name in ("palm-540b", "mistral-7b-v0.3", "deepseek-67b", "glm-5", "minimax-m2.5")
        return
    assert got.total == row["parameters"]
    assert got.embedding == row["embedding"]
    assert got.active == (got.total if row["active"] is None else row["active"])


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_published(name: str) -> None:
    arch, row = from_config(name), MODELS[name]
    for field in ("num_layers", "model_width", "vocab_size", "max_context", "tie_embeddings"):
        assert getattr(arch, field) == row[field], field
    attending = [layer for layer in arch.layers if layer.num_query_heads]
    for layer in attending:
        assert layer.num_query_heads == row["num_query_heads"]
        if row["latent"] is None:
            assert (layer.num_kv_heads, layer.head_dim) == (row["num_kv_heads"], row["head_dim"])
        else:
            assert [layer.latent_width, layer.rope_width] == row["latent"]
    if name != WINDOW:
        full = [layer for layer in attending if layer.window is None]
        assert len(full) == row["num_full_layers"]
    if row["experts"] is None:
        assert not any(layer.num_experts for layer in arch.layers)
        assert arch.mlp_width == (row["mlp_width"] if attending else 0)
    else:
        got = {(x.num_experts, x.experts_per_token) for x in arch.layers if x.num_experts}
        assert got == {tuple(row["experts"][:2])}


# Rows that give no count, against what was published in round figures.
@pytest.mark.parametrize(
    ("name", "billions", "within"),
    [
        ("palm-540b", 540.35, 0.01),  # arXiv:2204.02311, Table 1
        ("mistral-7b-v0.3", 7.25, 0.005),
        ("deepseek-67b", 67, 0.5),
        ("minimax-m2.5", 229, 0.5),
    ],
)
def test_counts_without_an_exact_row_are_near_the_published_figure(
    name: str, billions: float, within: float
) -> None:
    assert abs(count_parameters(Architecture.named(name)).total / 1e9 - billions) <= within


# --- rows that need a word ----------------------------------------------------------------------


def pattern_of_the_row() -> dict[str, Any]:
    """Kimi-Linear with the layers of transformers' default: 6 of 27 attend, every fourth."""
    config = dict(zoo.config(PATTERN) or {})
    full = [index + 1 for index in range(27) if index and index % 4 == 0]
    kda = [index for index in range(1, 28) if index not in full]
    nested = {**config["linear_attn_config"], "full_attn_layers": full, "kda_layers": kda}
    return {**config, "linear_attn_config": nested}


def test_kimi_linear_has_its_bytes_from_one_pattern_and_its_counts_from_another() -> None:
    row, shipped = MODELS[PATTERN], Architecture.named(PATTERN)
    other = Architecture.from_hf_config(pattern_of_the_row())
    assert kv_bytes_per_token(shipped) == row["kv_bytes_per_token_16bit"]
    assert kv_bytes_per_token(other) < row["kv_bytes_per_token_16bit"]
    got = count_parameters(other)
    assert (got.total, got.active, got.embedding) == (
        row["parameters"],
        row["active"],
        row["embedding"],
    )
    # The shipped pattern, against transformers' own class with that pattern.
    assert count_parameters(shipped).total == counted(build(hf(PATTERN)), 8, 256)["total"]


def hf(name: str) -> Any:
    """transformers' configuration of a model of the zoo."""
    config = dict(zoo.config(name) or {})
    if "text_config" in config:
        config = {**config.pop("text_config")}
    return hf_config(config.pop("model_type"), **config)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_an_indexer_is_counted_apart(name: str) -> None:
    arch = Architecture.named(name)
    want = counted(build(hf(name)), 8, 256)
    plain, whole = count_parameters(arch), count_parameters(arch, indexer=True)
    assert whole.total == want["total"]
    assert whole.active == want["active"]
    assert whole.total - plain.total == want["indexer"] > 0
    # One key of 128 a token and layer, beside the latent's 576 numbers.
    assert kv_bytes_per_token(arch, "fp8", indexer=True) == arch.num_layers * (576 + 128)
    assert kv_bytes_per_token(arch, "fp8") == arch.num_layers * 576


# One of each family, and the largest.
REAL = ["gpt2", "gpt-j-6b", "opt-13b", "falcon-180b", "llama-3-70b", "llama-4-maverick"]
REAL += ["mixtral-8x7b", "qwen2.5-72b", "qwen3-next-80b-a3b", "gemma-3-27b", "phi-4-mini"]
REAL += ["deepseek-v3", "gpt-oss-120b", "command-r-v01", "glm-4.5-air", "jamba-v0.1"]
REAL += ["nemotron-h-56b", "falcon-mamba-7b", "minimax-m2.5"]


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_the_tensors_of_transformers(name: str) -> None:
    experts = MODELS[name]["experts"] or [0, 0]
    got = count_parameters(Architecture.named(name))
    want = counted(build(hf(name)), experts[1], experts[0])
    assert (got.total, got.active, got.embedding) == (
        want["total"],
        want["active"],
        want["embedding"],
    )


# --- the file -----------------------------------------------------------------------------------


def test_every_row_says_where_it_was_read_and_what_is_not_sure() -> None:
    for name in zoo.names():
        entry = zoo.entry(name)
        assert entry.name == name
        assert entry.title
        assert entry.source
        assert all(entry.source)
        assert entry.date == "2026-11-29"
        assert bool(entry.unverified) == MODELS[name]["unverified"], name
    assert "indexer=True" in zoo.entry("deepseek-v3.2").note
    assert zoo.entry("gpt2").note == ""


def test_aliases_lead_to_the_same_model() -> None:
    seen: set[str] = set()
    for name in zoo.names():
        for alias in (name, *zoo.entry(name).aliases):
            assert alias not in seen, f"{alias} stands twice"
            assert alias == alias.lower()
            seen.add(alias)
            assert Architecture.named(alias) is Architecture.named(name)
    for alias, name in {
        "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
        "Llama-3.3-70B": "llama-3.1-70b",
        "Mistral-7B-v0.1": "mistral-7b-v0.1",
        "deepseek-ai/DeepSeek-V3": "deepseek-v3",
        "gpt-2": "gpt2",
    }.items():
        assert Architecture.named(alias).name == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("deepseek-v4", "did you mean deepseek-v3"),
        ("mistral-7b", "mistral-7b-v0"),
        ("gemma3-27b", "did you mean gemma-3-27b"),
        ("zzz", "known: gpt2, gpt2-xl, "),
    ],
)
def test_a_near_miss_suggests_what_was_meant(name: str, hint: str) -> None:
    for call in (Architecture.named, zoo.entry, zoo.config):
        with pytest.raises(ValueError, match=f"unknown model '{name}'.*{hint}") as caught:
            call(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [None, 7, ["gpt2"]])
def test_a_name_is_a_string(name: Any) -> None:
    with pytest.raises(ValueError, match="a model's name is a string, got"):
        Architecture.named(name)


def test_the_models_that_the_decoder_runs_are_uniform() -> None:
    runnable = [name for name in zoo.names() if Architecture.named(name).runnable]
    assert {name.partition("-")[0] for name in runnable} == {
        "llama",
        "mistral",
        "smollm2",
        "deepseek",
        "yi",
    }
    assert "mistral-7b-v0.1" not in runnable
    assert "llama-4-scout" not in runnable
    for name in runnable:
        arch = Architecture.named(name)
        assert arch.rope_theta is not None
        assert arch.max_context is not None
        assert len(set(arch.layers)) == 1
