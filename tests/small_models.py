"""Small models of every family, as transformers builds them: what sizes are compared with."""

from __future__ import annotations

import os
import re
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.logging.set_verbosity_error()

LLAMA = {
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 53,
    "max_position_embeddings": 97,
}
WIDE = {**LLAMA, "head_dim": 10}
QWEN_MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {"shared_expert_intermediate_size": 22}
DEEPSEEK_MOE = {
    "n_routed_experts": 7,
    "num_experts_per_tok": 2,
    "n_shared_experts": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
MLA = {
    "kv_lora_rank": 18,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "num_key_value_heads": 6,
}
INDEXER = {"index_n_heads": 3, "index_head_dim": 14, "index_topk": 4}
DEEPSEEK = {**LLAMA, **DEEPSEEK_MOE, **MLA}
GPT2 = {"n_layer": 3, "n_embd": 48, "n_head": 6, "vocab_size": 53, "n_positions": 29}
GPTJ = {**GPT2, "rotary_dim": 4}
OPT = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "ffn_dim": 40,
    "vocab_size": 53,
    "max_position_embeddings": 29,
    "word_embed_proj_dim": 48,
}
FALCON = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "vocab_size": 53,
    "max_position_embeddings": 97,
}
FALCON_NEW = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
LLAMA4 = {
    **WIDE,
    "num_hidden_layers": 5,
    "intermediate_size_mlp": 36,
    "num_local_experts": 3,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 6,
    "interleave_moe_layer_step": 1,
}
GPT_OSS = {**WIDE, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4}
MIXTRAL = {**LLAMA, "num_local_experts": 5, "num_experts_per_tok": 2}
JAMBA = {
    **LLAMA,
    "num_hidden_layers": 5,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_expand": 3,
    "mamba_dt_rank": 7,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
NEMOTRON = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 40,
    "vocab_size": 53,
    "max_position_embeddings": 97,
    "mamba_num_heads": 4,
    "mamba_head_dim": 24,
    "ssm_state_size": 5,
    "n_groups": 2,
    "conv_kernel": 3,
    "n_routed_experts": 7,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 32,
    "hybrid_override_pattern": "MEM*EM*-",
}
QWEN3_NEXT = {
    **WIDE,
    **QWEN_MOE,
    **SHARED,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}
MAMBA = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "vocab_size": 53,
    "state_size": 5,
    "conv_kernel": 3,
}
KIMI_LINEAR = {
    **{key: value for key, value in DEEPSEEK.items() if key != "n_routed_experts"},
    "num_hidden_layers": 6,
    "num_local_experts": 7,
    "q_lora_rank": None,
    "linear_num_heads": 4,
    "linear_head_dim": 6,
    "linear_conv_kernel_dim": 3,
}

# Every family, each in the variants that change what is counted.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-inner": ("gpt2", {**GPT2, "n_inner": 31, "tie_word_embeddings": False}),
    "gptj": ("gptj", GPTJ),
    "gptj-tied": ("gptj", {**GPTJ, "n_inner": 31, "tie_word_embeddings": True}),
    "opt": ("opt", OPT),
    "opt-projected": ("opt", {**OPT, "word_embed_proj_dim": 20}),
    "opt-bare": ("opt", {**OPT, "enable_bias": False, "tie_word_embeddings": False}),
    "opt-no-affine": ("opt", {**OPT, "layer_norm_elementwise_affine": False}),
    "opt-norm-after": ("opt", {**OPT, "do_layer_norm_before": False}),
    "falcon-mqa": ("falcon", FALCON),
    "falcon-mha": ("falcon", {**FALCON, "multi_query": False, "bias": True}),
    "falcon-sequential": ("falcon", {**FALCON, "parallel_attn": False, "alibi": True}),
    "falcon-new": ("falcon", {**FALCON_NEW, "tie_word_embeddings": False}),
    "falcon-one-norm": ("falcon", {**FALCON_NEW, "num_ln_in_parallel_attn": 1}),
    "falcon-inner": ("falcon", {**FALCON, "ffn_hidden_size": 60}),
    "phi": ("phi", LLAMA),
    "phi-norms": ("phi", {**LLAMA, "qk_layernorm": True, "tie_word_embeddings": True}),
    "llama": ("llama", LLAMA),
    "llama-head-dim": ("llama", {**WIDE, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {**WIDE, "sliding_window": 4}),
    "mistral-full": ("mistral", {**LLAMA, "sliding_window": None}),
    "ministral": ("ministral", {**WIDE, "sliding_window": 4}),
    "ministral3": ("ministral3", WIDE),
    "phi3": ("phi3", {**LLAMA, "sliding_window": 5}),
    "phi3-tied": ("phi3", {**LLAMA, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", LLAMA),
    "qwen2-window": (
        "qwen2",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**WIDE, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {**WIDE, "attention_bias": True}),
    "gemma": ("gemma", WIDE),
    "gemma2": ("gemma2", {**WIDE, "sliding_window": 4}),
    "gemma2-biases": ("gemma2", {**WIDE, "sliding_window": 4, "attention_bias": True}),
    "gemma3": ("gemma3_text", {**WIDE, "num_hidden_layers": 7, "sliding_window": 4}),
    "cohere": ("cohere", LLAMA),
    "cohere-norms": ("cohere", {**LLAMA, "use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("cohere2", {**LLAMA, "num_hidden_layers": 5, "sliding_window": 4}),
    "granite": ("granite", {**LLAMA, "tie_word_embeddings": True}),
    "granite-biases": ("granite", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "glm": ("glm", WIDE),
    "glm-no-bias": ("glm", {**WIDE, "attention_bias": False}),
    "glm4": ("glm4", WIDE),
    "smollm3": ("smollm3", LLAMA),
    "smollm3-window": (
        "smollm3",
        {
            **LLAMA,
            "use_sliding_window": True,
            "sliding_window": 4,
            "no_rope_layers": [1, 0, 1, 0],
            "tie_word_embeddings": False,
        },
    ),
    "olmo": ("olmo", LLAMA),
    "olmo2": ("olmo2", {**LLAMA, "attention_bias": True}),
    "olmo3": ("olmo3", {**LLAMA, "num_hidden_layers": 5, "sliding_window": 4}),
    "mixtral": ("mixtral", {**MIXTRAL, "sliding_window": None}),
    "mixtral-window": ("mixtral", {**MIXTRAL, "sliding_window": 4}),
    "olmoe": ("olmoe", {**LLAMA, "num_experts": 5, "num_experts_per_tok": 2}),
    "granitemoe": ("granitemoe", {**MIXTRAL, "attention_bias": True}),
    "minimax-m2": ("minimax_m2", {**MIXTRAL, "head_dim": 10}),
    "qwen2-moe": ("qwen2_moe", {**LLAMA, **QWEN_MOE, **SHARED}),
    "qwen2-moe-mixed": (
        "qwen2_moe",
        {**LLAMA, **QWEN_MOE, **SHARED, "mlp_only_layers": [1], "qkv_bias": False},
    ),
    "qwen2-moe-window": (
        "qwen2_moe",
        {
            **LLAMA,
            **QWEN_MOE,
            **SHARED,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 3,
        },
    ),
    "qwen3-moe": ("qwen3_moe", {**WIDE, **QWEN_MOE}),
    "qwen3-moe-step": (
        "qwen3_moe",
        {**LLAMA, **QWEN_MOE, "decoder_sparse_step": 2, "attention_bias": True},
    ),
    "glm4-moe": ("glm4_moe", {**WIDE, **DEEPSEEK_MOE}),
    "glm4-moe-norms": (
        "glm4_moe",
        {**WIDE, **DEEPSEEK_MOE, "use_qk_norm": True, "attention_bias": True},
    ),
    "gpt-oss": ("gpt_oss", GPT_OSS),
    "llama4": ("llama4_text", LLAMA4),
    "llama4-mixed": ("llama4_text", {**LLAMA4, "interleave_moe_layer_step": 2}),
    "llama4-listed": (
        "llama4_text",
        {**LLAMA4, "moe_layers": [0, 3], "attention_bias": True, "tie_word_embeddings": True},
    ),
    "deepseek-v2": ("deepseek_v2", DEEPSEEK),
    "deepseek-v2-lite": ("deepseek_v2", {**DEEPSEEK, "q_lora_rank": None, "mlp_bias": True}),
    "deepseek-v3": ("deepseek_v3", DEEPSEEK),
    "deepseek-v3-biases": ("deepseek_v3", {**DEEPSEEK, "attention_bias": True}),
    "deepseek-v3.2": ("deepseek_v32", {**DEEPSEEK, **INDEXER}),
    "glm-5": ("glm_moe_dsa", {**DEEPSEEK, **INDEXER}),
    "glm-5-shared": (
        "glm_moe_dsa",
        {**DEEPSEEK, **INDEXER, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "jamba": ("jamba", JAMBA),
    "jamba-dense": ("jamba", {**JAMBA, "num_experts": 1, "tie_word_embeddings": True}),
    "jamba-biases": ("jamba", {**JAMBA, "mamba_conv_bias": False, "mamba_proj_bias": True}),
    "nemotron-h": ("nemotron_h", NEMOTRON),
    "nemotron-h-latent": (
        "nemotron_h",
        {
            **NEMOTRON,
            "hybrid_override_pattern": "M-*E",
            "moe_latent_size": 8,
            "mlp_bias": True,
            "use_bias": True,
            "use_conv_bias": False,
        },
    ),
    "qwen3-next": ("qwen3_next", QWEN3_NEXT),
    "qwen3-next-biases": ("qwen3_next", {**QWEN3_NEXT, "attention_bias": True}),
    "minimax": ("minimax", {**MIXTRAL, "head_dim": 10}),
    "mamba": ("mamba", MAMBA),
    "mamba-biases": (
        "mamba",
        {**MAMBA, "use_bias": True, "use_conv_bias": False, "time_step_rank": 7, "expand": 3},
    ),
    "falcon-mamba": ("falcon_mamba", {**MAMBA, "tie_word_embeddings": False}),
    "kimi-linear": ("kimi_linear", KIMI_LINEAR),
}


def hf_config(model_type: str, **keys: Any) -> Any:
    """A configuration of transformers' own class, without special tokens."""
    config = CONFIG_MAPPING[model_type](**keys)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    return config


def small(name: str) -> Any:
    """The configuration of one of the small models."""
    model_type, keys = SMALL[name]
    return hf_config(model_type, **keys)


def build(config: Any, device: str = "meta") -> Any:
    """transformers' model; on the meta device it has shapes and no numbers."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config).eval()


def counted_by_layer(model: Any) -> list[int]:
    """Numbers of weights of each layer, first to last."""
    found: dict[int, int] = {}
    for name, parameter in model.named_parameters():
        match = re.search(r"\.(?:layers|h)\.(\d+)\.", name)
        if match:
            index = int(match[1])
            found[index] = found.get(index, 0) + parameter.numel()
    return [found[index] for index in range(len(found))]


def counted(model: Any, per_token: int = 0, num_experts: int = 0) -> dict[str, int]:
    """Numbers of weights, a shared one once: all, those one token reads, embedding, indexers."""
    named = dict(model.named_parameters())  # lists a shared tensor once
    total = sum(p.numel() for p in named.values())
    experts = [p for name, p in named.items() if ".experts." in name]
    assert all(p.shape[0] == num_experts for p in experts)
    idle = sum(p.numel() // num_experts * (num_experts - per_token) for p in experts)
    return {
        "total": total,
        "active": total - idle,
        "embedding": model.get_input_embeddings().weight.numel(),
        "indexer": sum(p.numel() for name, p in named.items() if ".indexer." in name),
    }
