"""Every family's config, read and counted: against the tensors of transformers' own classes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rows
from small_models import (
    DEEPSEEK_MOE,
    FALCON,
    GPT2,
    LLAMA,
    MLA,
    NEMOTRON,
    QWEN3_NEXT,
    SMALL,
    WIDE,
    build,
    counted,
    counted_by_layer,
    hf_config,
    small,
)

from refimpl.architecture import Architecture
from refimpl.architecture.reading import FAMILIES
from refimpl.sizing import count_parameters, kv_bytes, kv_bytes_per_token

CASES = rows("cases_sizing.json")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")


def read(model_type: str, keys: dict[str, Any], **more: Any) -> Architecture:
    return Architecture.from_hf_config({"model_type": model_type, **keys, **more})


def kinds(arch: Architecture) -> list[str]:
    return [layer.kind for layer in arch.layers]


def first(config: dict[str, Any], keys: tuple[str, ...]) -> int:
    return next((config[key] for key in keys if config.get(key)), 0)


def agrees_with_transformers(config: Any) -> None:
    """Weights of each layer and of all, active and embedding: those of the class's tensors."""
    keys = config.to_dict()
    model = build(config)
    want = counted(model, first(keys, PER_TOKEN), first(keys, EXPERTS))
    arch = Architecture.from_hf_config(keys)
    got = [layer.parameters + layer.index_parameters for layer in arch.layers]
    assert got == counted_by_layer(model)
    plain, whole = count_parameters(arch), count_parameters(arch, indexer=True)
    assert whole.total == want["total"]
    assert whole.active == want["active"]
    assert whole.total - plain.total == want["indexer"]
    assert plain.embedding == want["embedding"]
    assert arch.tie_embeddings == bool(config.tie_word_embeddings)
    assert arch.vocab_size == keys["vocab_size"]
    assert len(arch.layers) == arch.num_layers == config.num_hidden_layers


@pytest.mark.parametrize("name", SMALL)
def test_counts_are_those_of_transformers(name: str) -> None:
    agrees_with_transformers(small(name))


def test_every_family_is_compared() -> None:
    compared = {model_type for model_type, _ in SMALL.values()}
    # The same layout under another name: read alike, and tested below.
    others = {"smollm2", "yi", "kimi_k2", "refinedweb", "refinedwebmodel"}
    assert compared | others | {"minimax_text_01", "minimax_m1"} == set(FAMILIES)


RANDOM = ["llama", "qwen2", "qwen3", "gemma3_text", "glm4", "cohere2", "olmo2", "phi", "mixtral"]
RANDOM += ["qwen3_moe", "glm4_moe", "gpt_oss", "deepseek_v3", "deepseek_v32"]


@st.composite
def shapes(draw: st.DrawFn) -> Any:
    """A config of some family with random heads, widths, layers and experts."""
    model_type = draw(st.sampled_from(RANDOM))
    groups, per_group = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    heads, dim = groups * per_group, 2 * draw(st.integers(1, 8))
    experts = draw(st.integers(2, 6))
    keys: dict[str, Any] = {
        "num_hidden_layers": draw(st.integers(1, 5)),
        "hidden_size": heads * dim,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": draw(st.integers(1, 60)),
        "vocab_size": draw(st.integers(2, 90)),
        "max_position_embeddings": 97,
        "tie_word_embeddings": draw(st.booleans()),
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.integers(1, 20)),
    }
    if model_type in ("qwen3", "gemma3_text", "glm4", "qwen3_moe", "glm4_moe", "gpt_oss"):
        keys["head_dim"] = 2 * draw(st.integers(1, 9))
    if model_type in ("glm4_moe", "deepseek_v3", "deepseek_v32"):
        keys |= {**DEEPSEEK_MOE, "n_routed_experts": experts}
        keys["num_experts_per_tok"] = min(keys["num_experts_per_tok"], experts)
        keys["first_k_dense_replace"] = draw(st.integers(0, 2))
    else:
        keys["num_local_experts" if model_type in ("mixtral", "gpt_oss") else "num_experts"] = (
            experts
        )
    if model_type.startswith("deepseek"):
        keys |= {**MLA, "kv_lora_rank": draw(st.integers(1, 30)), "num_key_value_heads": heads}
        keys |= {"index_n_heads": draw(st.integers(1, 4)), "index_head_dim": 6, "index_topk": 5}
        keys["q_lora_rank"] = draw(st.integers(1, 20))
    return model_type, keys


@given(shapes())
@settings(max_examples=40)
def test_random_shapes_are_counted_like_transformers(shape: tuple[str, dict[str, Any]]) -> None:
    model_type, keys = shape
    agrees_with_transformers(hf_config(model_type, **keys))


# Keys whose absence means something else here than in transformers' class, on purpose:
# heads and head dim by the rules below, a window only where the config states one.
BY_RULE = {"num_key_value_heads", "head_dim", "sliding_window", "attention_chunk_size"}
# Nothing that is counted depends on them; a missing one is None, not the class's number.
CONTEXT = {"max_position_embeddings", "n_positions", "model_max_length"}


@pytest.mark.parametrize("name", SMALL)
def test_a_key_left_out_is_an_error_or_means_what_the_class_says(name: str) -> None:
    model_type, _ = SMALL[name]
    config = small(name).to_dict()
    whole = Architecture.from_hf_config(config)
    for key in config:
        without = {other: value for other, value in config.items() if other != key}
        try:
            got = Architecture.from_hf_config(without)
        except ValueError as error:
            assert f"'{key}'" in str(error)
            continue
        if key in BY_RULE | CONTEXT or got == whole:
            continue
        del without["model_type"]
        completed = hf_config(model_type, **without).to_dict()
        assert got == Architecture.from_hf_config(completed), key


SIZES = {"vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "ffn_dim"}
SIZES |= {"num_attention_heads", "n_head", "intermediate_size", "kv_lora_rank", "v_head_dim"}
SIZES |= {*EXPERTS, *PER_TOKEN, "moe_intermediate_size", "state_size", "mamba_d_state"}


def matters(config: dict[str, Any], key: str) -> bool:
    """Whether another value of ``key`` makes another architecture, or none at all."""
    try:
        other = Architecture.from_hf_config({**config, key: 2 * config[key]})
    except ValueError:
        return True
    return other != Architecture.from_hf_config(config)


@pytest.mark.parametrize("name", SMALL)
def test_no_size_has_a_default(name: str) -> None:
    config = small(name).to_dict()
    if SMALL[name][0] in ("mamba", "falcon_mamba"):
        del config["intermediate_size"]  # there it is hidden_size times expand
    used = [key for key in SIZES if key in config and matters(config, key)]
    assert {"vocab_size"} < set(used)
    for key in used:
        without = {other: value for other, value in config.items() if other != key}
        with pytest.raises(ValueError, match=f"no .*'{key}'"):
            Architecture.from_hf_config(without)
    del config["model_type"]
    with pytest.raises(ValueError, match="no 'model_type'"):
        Architecture.from_hf_config(config)


def test_heads_and_widths_that_are_given_null_or_derived() -> None:
    for keys in (
        {},
        {"head_dim": None},
        {"num_key_value_heads": None},
        {"head_dim": None, "num_key_value_heads": None},
    ):
        arch = read("qwen2", {**LLAMA, **keys})
        assert arch.head_dim == 48 // 6
        assert arch.num_kv_heads == (6 if "num_key_value_heads" in keys else 2)
    absent = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read("qwen2", absent) == read("qwen2", {**LLAMA, "num_key_value_heads": 6})
    assert read("qwen2", {**LLAMA, "head_dim": 7}).head_dim == 7
    odd = {**LLAMA, "hidden_size": 49}
    assert read("qwen3", odd, head_dim=10).head_dim == 10
    with pytest.raises(ValueError, match="hidden_size 49 is not a multiple of num_attention_he"):
        read("qwen3", odd)
    with pytest.raises(ValueError, match="got 6 and 4"):
        read("qwen3", {**LLAMA, "num_key_value_heads": 4})


# --- layers of more than one kind ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n for n, (_, keys) in SMALL.items() if "sliding_window" in keys or "llama4" in n]
)
def test_windows_stand_where_transformers_has_them(name: str) -> None:
    from transformers.cache_utils import get_layer_types_and_kwargs

    config = small(name)
    arch = Architecture.from_hf_config(config.to_dict())
    names, options = get_layer_types_and_kwargs(config)
    want = [
        (name.removesuffix("_attention"), option.get("sliding_window"))
        for name, option in zip(names, options, strict=True)
    ]
    assert [(layer.kind, layer.window) for layer in arch.layers] == want
    # The same without the list, by the rule of the family: the form that older files have.
    older = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    assert Architecture.from_hf_config(older) == arch


def test_layer_types_are_honoured() -> None:
    names = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    for model_type in ("llama", "mistral", "qwen3", "gemma2", "phi3", "mixtral", "gpt_oss"):
        more = {"rms_norm_eps": 1e-5, "num_local_experts": 5, "num_experts_per_tok": 2}
        arch = read(model_type, WIDE, layer_types=names, sliding_window=9, **more)
        assert kinds(arch) == ["full", "sliding", "sliding", "full"]
        assert [layer.window for layer in arch.layers] == [None, 9, 9, None]


def test_a_window_that_is_switched_off_or_longer_than_the_context_is_none() -> None:
    on = {"sliding_window": 9, "max_window_layers": 0}
    assert kinds(read("qwen2", LLAMA, use_sliding_window=True, **on)) == ["sliding"] * 4
    assert kinds(read("qwen2", LLAMA, use_sliding_window=False, **on)) == ["full"] * 4
    assert kinds(read("qwen2", LLAMA, **on)) == ["full"] * 4  # its class: false
    sliding = {**on, "layer_types": ["sliding_attention"] * 4}
    assert kinds(read("qwen2", LLAMA, **sliding)) == ["sliding"] * 4
    assert kinds(read("qwen2", LLAMA, **sliding, use_sliding_window=False)) == ["full"] * 4
    mistral = {**LLAMA, "rms_norm_eps": 1e-5, "sliding_window": 9}
    assert kinds(read("mistral", mistral)) == ["sliding"] * 4
    assert kinds(read("mistral", mistral, use_sliding_window=False)) == ["full"] * 4
    for window in (None, 97, 98):
        assert kinds(read("phi3", LLAMA, sliding_window=window)) == ["full"] * 4
    assert kinds(read("phi3", LLAMA, sliding_window=96)) == ["sliding"] * 4


def test_a_pattern_string_is_read_letter_by_letter() -> None:
    arch = read("nemotron_h", NEMOTRON)
    assert kinds(arch) == ["state", "none", "state", "full", "none", "state", "full", "none"]
    assert [layer.num_experts for layer in arch.layers] == [0, 7, 0, 0, 7, 0, 0, 0]
    assert kv_bytes_per_token(arch) == 2 * (2 * 2 * 10) * 2
    listed = {key: value for key, value in NEMOTRON.items() if key != "hybrid_override_pattern"}
    for names in (
        ["linear_attention", "moe", "full_attention", "mlp"],
        ["mamba", "moe", "attention", "mlp"],
    ):
        assert kinds(read("nemotron_h", listed, layers_block_type=names)) == [
            "state",
            "none",
            "full",
            "none",
        ]
    old = {**NEMOTRON, "attention_head_dim": 10}
    del old["head_dim"]
    assert read("nemotron_h", old) == arch


def test_other_ways_to_say_which_layers_attend() -> None:
    keys = {**QWEN3_NEXT, "num_hidden_layers": 7}
    want = ["linear", "linear", "full", "linear", "linear", "full", "linear"]
    assert kinds(read("qwen3_next", keys, full_attention_interval=3)) == want
    flags = [0, 0, 1, 0]
    for model_type in ("minimax_m1", "minimax_text_01", "minimax"):
        more = {"num_local_experts": 5, "num_experts_per_tok": 2, "attn_type_list": flags}
        arch = read(model_type, WIDE, **more)
        assert kinds(arch) == ["linear", "linear", "full", "linear"]
    nested = {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 4, "head_dim": 6}
    nested["short_conv_kernel_size"] = 3
    kimi = {**LLAMA, **DEEPSEEK_MOE, **MLA, "linear_attn_config": nested}
    arch = read("kimi_linear", kimi)
    assert kinds(arch) == ["linear", "latent", "linear", "latent"]
    flat = {"linear_num_heads": 4, "linear_head_dim": 6, "linear_conv_kernel_dim": 3}
    names = ["linear_attention", "full_attention"] * 2
    del kimi["linear_attn_config"]
    assert read("kimi_linear", {**kimi, **flat}, layer_types=names) == arch


# --- older and nested forms ---------------------------------------------------------------------


def test_forms_that_older_files_have() -> None:
    falcon = read("falcon", FALCON)
    first_name = {**FALCON, "n_layer": 3, "n_head": 6, "multi_query": True, "parallel_attn": True}
    for key in ("num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        del first_name[key]
    older = read("RefinedWebModel", first_name)
    assert older.layers == falcon.layers
    assert older.max_context is None
    new = read("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2})
    assert read("RefinedWeb", {**first_name, "n_head_kv": 2}).layers == new.layers
    # The switch that says "one key-value head" is older than the count that contradicts it.
    assert read("falcon", {**FALCON, "num_kv_heads": 6}).num_kv_heads == 1

    gpt2 = {key: value for key, value in GPT2.items() if key != "n_positions"}
    assert read("gpt2", gpt2, n_ctx=29) == read("gpt2", GPT2)
    with pytest.raises(ValueError, match="n_positions is 29, but n_ctx is 30"):
        read("gpt2", GPT2, n_ctx=30)
    assert count_parameters(read("Yi", {**LLAMA, "rms_norm_eps": 1e-5})) == count_parameters(
        read("llama", {**LLAMA, "rms_norm_eps": 1e-5})
    )
    deepseek = {**LLAMA, **DEEPSEEK_MOE, **MLA, "moe_layer_freq": 2, "num_hidden_layers": 5}
    sparse = [bool(x.num_experts) for x in read("deepseek_v3", deepseek).layers]
    assert sparse == [False, False, True, False, True]
    assert read("kimi_k2", deepseek).layers == read("deepseek_v3", deepseek).layers


def test_a_nested_text_config_is_the_same_as_a_flat_one() -> None:
    flat = {"model_type": "gemma3_text", **WIDE, "sliding_window": 4, "_name_or_path": "x"}
    want = Architecture.from_hf_config(flat)
    inner = {key: value for key, value in flat.items() if key != "_name_or_path"}
    for text in (inner, {key: value for key, value in inner.items() if key != "model_type"}):
        outer = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}}
        assert Architecture.from_hf_config({**outer, "_name_or_path": "x"}) == want
    inside = {"model_type": "mistral", **WIDE, "rms_norm_eps": 1e-5}
    got = Architecture.from_hf_config({"model_type": "mistral3", "text_config": inside})
    assert got == Architecture.from_hf_config(inside)
    tied = Architecture.from_hf_config(
        {"model_type": "mistral3", "text_config": inside, "tie_word_embeddings": True}
    )
    assert tied.tie_embeddings
    with pytest.raises(ValueError, match="text_config must be a mapping, got 7"):
        Architecture.from_hf_config({"model_type": "gemma3", "text_config": 7})
    with pytest.raises(ValueError, match="'mistral3' is not supported"):
        Architecture.from_hf_config({"model_type": "mistral3", "text_config": {"hidden_size": 9}})


def test_gemma_3_lists_only_what_differs_from_its_class() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    config = hf_config("gemma3", text_config=text).get_text_config()
    arch = Architecture.from_hf_config({"model_type": "gemma3", "text_config": text})
    assert count_parameters(arch).total == counted(build(config))["total"]
    assert (arch.num_query_heads, arch.num_kv_heads, arch.head_dim) == (8, 4, 256)
    with pytest.raises(ValueError, match=r"no '(vocab_size|num_attention_heads)'"):
        Architecture.from_hf_config(text)


# --- what cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("bloom", LLAMA, "model_type 'bloom' is not supported: one of cohere, cohere2"),
        (None, LLAMA, "no 'model_type'"),
        (7, LLAMA, "model_type 7 is not supported"),
        (["llama"], LLAMA, r"model_type \['llama'\] is not supported"),
        (
            "qwen3",
            {**LLAMA, "layer_types": ["full_attention"]},
            "lists 1 layers, the config says 4",
        ),
        (
            "qwen3",
            {**LLAMA, "layer_types": "full_attention"},
            "layer_types must be a list of names",
        ),
        ("qwen3", {**LLAMA, "layer_types": ["conv"] * 4}, "layer_types has 'conv', unknown for"),
        ("qwen3", {**LLAMA, "layer_types": ["linear_attention"] * 4}, "'linear_attention', unkn"),
        ("qwen3", {**LLAMA, "layer_types": ["sliding_attention"] * 4}, "no 'sliding_window'"),
        ("gemma2", WIDE, "no 'sliding_window'"),
        ("gemma3_text", {**WIDE, "sliding_window": None}, "no 'sliding_window'"),
        ("gemma", {**WIDE, "use_bidirectional_attention": True}, "only causal models keep"),
        ("nemotron_h", {**NEMOTRON, "sliding_window": 4}, "sliding_window = 4 in a nemotron_h"),
        ("minimax_m1", {**WIDE, "shared_intermediate_size": 4}, "shared_intermediate_size = 4"),
        ("kimi_linear", {**LLAMA, "mla_use_output_gate": True}, "mla_use_output_gate = True in a"),
        ("mistral", {**LLAMA, "sliding_window": 0}, "sliding_window must be a positive integer"),
        ("mistral", {**LLAMA, "sliding_window": True}, "sliding_window must be a positive integer"),
        ("mistral", {**LLAMA, "attention_bias": True}, "attention_bias = True in a mistral config"),
        ("gemma", {**WIDE, "mlp_bias": True}, "mlp_bias = True in a gemma config"),
        ("qwen3", {**LLAMA, "attention_bias": "no"}, "attention_bias must be true or false"),
        ("qwen2", {**LLAMA, "use_sliding_window": True, "sliding_window": 3}, "max_window_layers"),
        ("gpt2", {**GPT2, "add_cross_attention": True}, "add_cross_attention = True in a gpt2"),
        ("gpt2", {**GPT2, "n_inner": 3.5}, "n_inner must be a positive integer, got 3.5"),
        ("falcon", {**FALCON, "hidden_size": 49}, "49 is not a multiple of num_attention_heads 6"),
        ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "MX"}, "may hold M, .*got 'MX'"),
        ("nemotron_h", {**NEMOTRON, "num_hidden_layers": 9}, "lists 8 layers, the config says 9"),
        ("nemotron_h", {**NEMOTRON, "tie_word_embeddings": True}, "tie_word_embeddings = True"),
        ("nemotron_h", {**NEMOTRON, "layers_block_type": ["conv"]}, "layer type 'conv' cannot be"),
        ("qwen3_next", {**QWEN3_NEXT, "layer_types": ["sliding_attention"] * 4}, "cannot be read"),
        ("qwen3_next", QWEN3_NEXT, "no 'layer_types' and no 'full_attention_interval'"),
        ("minimax_m1", {**WIDE, "attn_type_list": [0, 1]}, "0 or 1 for each of 4 layers, got"),
        ("minimax_m1", {**WIDE, "attn_type_list": [0, 1, 2, 0]}, "0 or 1 for each of 4 layers"),
        ("minimax_m1", WIDE, "no 'attn_type_list'"),
        (
            "kimi_linear",
            {**LLAMA, **MLA, "linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2]}},
            "must give every layer from 1 on",
        ),
        ("deepseek_v3", {**LLAMA, **MLA, "layer_types": ["linear_attention"] * 4}, "MLA model has"),
        ("deepseek_v3", {**LLAMA, **MLA, **DEEPSEEK_MOE, "num_experts_per_tok": 8}, "8 of 7 exper"),
        (
            "deepseek_v3",
            {**LLAMA, **MLA, **DEEPSEEK_MOE, "mlp_layer_types": ["dense", "sparse", "x", "dense"]},
            "mlp_layer_types has 'x'",
        ),
        (
            "glm_moe_dsa",
            {**LLAMA, **MLA, "index_topk_freq": 4},
            "index_topk_freq = 4 cannot be read",
        ),
        (
            "qwen3_moe",
            {**WIDE, "num_experts": 5, "mlp_only_layers": [4]},
            "mlp_only_layers names layer 4, the model has 4",
        ),
    ],
)
def test_what_cannot_be_read_is_named(model_type: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(model_type, keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, float("nan"), [3]])
def test_a_count_is_a_positive_whole_number(value: Any) -> None:
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        with pytest.raises(ValueError, match=f"{key} must be a positive integer, got"):
            read("qwen3", {**WIDE, key: value})


@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_value_anywhere_is_one_line(name: str) -> None:
    config = small(name).to_dict()
    for key in config:
        for value in (-1, 10**30, 1.5, "x", True, [], [[1]], {"a": 1}, float("nan")):
            try:
                Architecture.from_hf_config({**config, key: value})
            except ValueError as error:
                assert "\n" not in str(error)


def test_a_config_is_a_mapping() -> None:
    with pytest.raises(ValueError, match="a config must be a mapping, got list"):
        Architecture.from_hf_config([("model_type", "llama")])  # type: ignore[arg-type]


# --- known failures of other calculators --------------------------------------------------------


def tiny_config(inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Llama config with what a case states; sizes that it leaves open are odd."""
    open_sizes = {"vocab_size": 53, "intermediate_size": 40, "max_position_embeddings": 4096}
    return {"model_type": "llama", "rms_norm_eps": 1e-5, **open_sizes, **inputs, **more}


@pytest.mark.case("CAL-03")
def test_an_explicit_head_dim_wins_over_a_derived_one() -> None:
    case = CASES["CAL-03"]
    arch = Architecture.from_hf_config(tiny_config(case["inputs"]))
    assert kv_bytes_per_token(arch) == case["expected"]["bytes_per_token"]
    derived = {key: value for key, value in case["inputs"].items() if key != "head_dim"}
    assert (
        kv_bytes_per_token(Architecture.from_hf_config(tiny_config(derived)))
        == (case["expected"]["derived"])
    )
    odd = Architecture.from_hf_config(tiny_config(case["inputs"], hidden_size=641))
    assert kv_bytes_per_token(odd) == case["expected"]["bytes_per_token"]


@pytest.mark.case("CAL-04")
def test_keys_that_are_absent_null_or_nested() -> None:
    case = CASES["CAL-04"]
    flat = tiny_config(case["inputs"])
    want = Architecture.from_hf_config(flat)
    assert want.head_dim == case["expected"]["head_dim"]
    assert Architecture.from_hf_config({**flat, "head_dim": None}) == want
    absent = {key: value for key, value in flat.items() if key != "num_key_value_heads"}
    assert Architecture.from_hf_config(absent).num_kv_heads == case["expected"]["heads"]
    inner = {key: value for key, value in flat.items() if key != "model_type"}
    assert Architecture.from_hf_config({"model_type": "llama", "text_config": inner}) == want
    assert Architecture.from_hf_config({"model_type": "other", "text_config": flat}) == want
    del flat["hidden_size"]
    with pytest.raises(ValueError, match=r"no 'hidden_size'.* and no 'head_dim'"):
        Architecture.from_hf_config(flat)
    with pytest.raises(ValueError, match="hidden_size 65 is not a multiple"):
        Architecture.from_hf_config({**flat, "hidden_size": 65})


@pytest.mark.case("CAL-09")
def test_layer_kinds_come_from_the_config_or_are_an_error() -> None:
    case = CASES["CAL-09"]
    pattern, names = case["inputs"]["pattern"], case["inputs"]["layer_types"]
    arch = read("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": pattern})
    assert kinds(arch).count("full") == case["expected"]["attention_layers"]
    window = case["inputs"]["sliding_window"]
    listed = read("gemma2", {**WIDE, "num_hidden_layers": len(names)}, layer_types=names)
    assert kinds(listed).count("full") == names.count("full_attention") == len(names)
    off = read("qwen2", LLAMA, sliding_window=window, use_sliding_window=False)
    assert kinds(off) == ["full"] * 4
    assert kv_bytes(off, 3 * window) == 3 * window * kv_bytes_per_token(off)
    for unknown in case["inputs"]["unknown"]:
        with pytest.raises(ValueError, match=f"'{unknown}' is not supported"):
            read(unknown, LLAMA)
