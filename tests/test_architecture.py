"""Shapes of models: the zoo against published counts, configs of two generations, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from oracles import GQA, LINEAR, LLAMA3, TINY, hf_config, rows

from refimpl.architecture import Architecture, RopeScaling
from refimpl.model import Decoder

MODELS = rows("models.json")
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 70,
    "rms_norm_eps": 1e-6,
}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


RUNNABLE = [name for name in MODELS if Architecture.named(name).runnable]


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_zoo_agrees_with_the_published_shapes(name: str) -> None:
    arch, row = Architecture.named(name), MODELS[name]
    assert arch.name == name
    for field in dataclasses.fields(Architecture):
        if field.name in row:
            assert getattr(arch, field.name) == row[field.name], field.name
    assert arch.group_size * arch.num_kv_heads == arch.num_query_heads
    assert Architecture.named(name.upper()) is arch


def test_rotary_bases_of_the_zoo() -> None:
    want = {"smollm2": 100_000.0, "llama-1": 10_000.0, "llama-2": 10_000.0, "llama-3": 500_000.0}
    want |= {"mistral": 1_000_000.0, "deepsee": 10_000.0, "yi-6b": 5_000_000.0}
    for name in RUNNABLE:
        assert Architecture.named(name).rope_theta == want[name[:7]]


@pytest.mark.parametrize(
    ("name", "hint"), [("llama-3-7b", "llama-3-70b"), ("smolm2", "smollm2"), ("qqq", "known: ")]
)
def test_an_unknown_name_suggests_near_ones(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown model '{name}'.*{hint}"):
        Architecture.named(name)


@pytest.mark.parametrize("name", TINY)
def test_configs_written_by_transformers_are_read(name: str) -> None:
    want = TINY[name]
    config = hf_config(want).to_dict()
    assert "rope_theta" in config["rope_parameters"]
    got = Architecture.from_hf_config({**config, "_name_or_path": name})
    assert got == want
    # The same model as transformers 4 wrote it.
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    assert Architecture.from_hf_config({**config, "_name_or_path": name}) == want
    if want.rope_scaling is not None:
        rope["type"] = rope.pop("rope_type")
        assert Architecture.from_hf_config({**config, "_name_or_path": name}) == want


def test_defaults_of_a_config() -> None:
    arch = Architecture.from_hf_config(CONFIG)
    assert (arch.head_dim, arch.rope_theta, arch.tie_embeddings) == (4, 10_000.0, False)
    assert arch.name == "llama"
    assert arch.rope_scaling is None
    assert (arch.num_layers, arch.model_width, arch.mlp_width) == (3, 24, 40)
    assert (arch.vocab_size, arch.max_context, arch.norm_eps) == (50, 70, 1e-6)
    without = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    assert Architecture.from_hf_config(without).num_kv_heads == 6
    assert Architecture.from_hf_config({**CONFIG, "num_key_value_heads": None}).num_kv_heads == 6
    assert Architecture.from_hf_config({**CONFIG, "head_dim": 10}).head_dim == 10
    assert Architecture.from_hf_config({**CONFIG, "tie_word_embeddings": True}).tie_embeddings
    assert Architecture.from_hf_config({**CONFIG, "rope_theta": 77.0}).rope_theta == 77.0
    for model_type in ("mistral", "smollm2"):
        Architecture.from_hf_config({**CONFIG, "model_type": model_type})


def test_configs_with_harmless_keys_are_read() -> None:
    extra = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "pretraining_tp": 1,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "partial_rotary_factor": 1.0,
    }
    assert Architecture.from_hf_config({**CONFIG, **extra}) == Architecture.from_hf_config(CONFIG)


def test_rope_of_both_generations() -> None:
    new = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_SCALING}
    want = RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
    arch = Architecture.from_hf_config({**CONFIG, "rope_parameters": new})
    assert (arch.rope_theta, arch.rope_scaling) == (5e5, want)
    old = {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3_SCALING}}
    arch = Architecture.from_hf_config({**CONFIG, **old})
    assert (arch.rope_theta, arch.rope_scaling) == (5e5, want)
    assert LINEAR.rope_scaling == RopeScaling("linear", 3.0)
    assert LLAMA3.rope_scaling is not None


@pytest.mark.parametrize("key", [key for key in CONFIG if key != "num_key_value_heads"])
def test_a_missing_key_is_named(key: str) -> None:
    config = {other: value for other, value in CONFIG.items() if other != key}
    with pytest.raises(ValueError, match=f"no '{key}'"):
        Architecture.from_hf_config(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", 4),
        ("num_key_value_heads", 0),
        ("num_hidden_layers", 0),
        ("hidden_size", 25),
        ("head_dim", 3.0),
        ("vocab_size", 5.5),
        ("rms_norm_eps", 0),
        ("tie_word_embeddings", "yes"),
        ("tie_word_embeddings", "false"),
        ("num_hidden_layers", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("model_type", "llama5"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(key: str, value: Any) -> None:
    name = {"num_key_value_heads": "key.value.heads"}.get(key, key)
    with pytest.raises(ValueError, match=name) as caught:
        Architecture.from_hf_config({**CONFIG, key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("sliding_window", 12),
        ("layer_types", ["full_attention", "sliding_attention", "full_attention"]),
        ("pretraining_tp", 2),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "gptq"}),
        ("head_dim", 3),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.5}),
        *[
            ("rope_scaling", {"rope_type": "llama3", **LLAMA3_SCALING, key: None})
            for key in LLAMA3_SCALING
        ],
        ("rope_parameters", {"rope_type": "default", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "linear", "type": "llama3", "factor": 2.0}),
        ("rope_theta", "1e4"),
        ("rope_theta", float("nan")),
        ("rope_theta", -1.0),
    ],
)
def test_what_can_be_sized_but_not_run_is_refused_by_the_decoder(key: str, value: Any) -> None:
    name = {
        "rope_scaling": "rope|factor|original",
        "rope_parameters": "partial_rotary|attention_factor|has no 'factor'|rope type is given",
        "layer_types": "sliding_window|layer_types",
    }.get(key, key)
    extra = {"sliding_window": 12} if key == "layer_types" else {}
    arch = Architecture.from_hf_config({**CONFIG, key: value, **extra})
    assert not arch.runnable
    assert len(arch.layers) == arch.num_layers == 3
    with pytest.raises(ValueError, match=name) as caught:
        Decoder(arch)
    assert "\n" not in str(caught.value)
    runnable = Architecture.from_hf_config(CONFIG)
    assert runnable.runnable
    assert runnable.detail is None
    Decoder(runnable)


def test_a_rotary_base_given_twice_must_agree() -> None:
    twice = {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert Architecture.from_hf_config({**CONFIG, **twice}).rope_theta == 5e5
    with pytest.raises(ValueError, match=r"rope_theta is given as 500000.0 and as 10000.0"):
        Decoder(Architecture.from_hf_config({**CONFIG, **twice, "rope_theta": 1e4}))
    old = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}
    with pytest.raises(ValueError, match="contradict each other"):
        Decoder(Architecture.from_hf_config({**CONFIG, **old, **new}))


def test_shapes_that_cannot_be_are_refused() -> None:
    for field in ("num_layers", "model_width", "vocab_size", "max_context", "head_dim"):
        for value in (0, -1, 2.0, "3", None):
            with pytest.raises(ValueError, match=f"{field} must be a positive integer"):
                dataclasses.replace(GQA, **{field: value})
    with pytest.raises(ValueError, match="got 6 and 4"):
        dataclasses.replace(GQA, num_kv_heads=4)
    with pytest.raises(ValueError, match="head_dim must be even, got 9"):
        dataclasses.replace(GQA, head_dim=9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        GQA.head_dim = 4  # type: ignore[misc]
