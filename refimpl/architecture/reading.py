"""A ``config.json`` to an :class:`Architecture`."""

from collections.abc import Mapping
from typing import Any

from refimpl.architecture.checks import flag, required, required_count
from refimpl.architecture.core import Architecture
from refimpl.architecture.rope import read_rope

# Families whose layers are RMSNorm, RoPE, grouped attention and SwiGLU, and nothing else.
_LLAMA_FAMILY = ("llama", "mistral", "smollm2")


def read(config: Mapping[str, Any]) -> Architecture:
    """See :meth:`Architecture.from_hf_config`."""
    model_type = required(config, "model_type")
    if model_type not in _LLAMA_FAMILY:
        raise ValueError(
            f"model_type {model_type!r} is not supported: one of {', '.join(_LLAMA_FAMILY)}"
        )
    _refuse_what_the_decoder_lacks(config)
    width, heads = (required_count(config, key) for key in ("hidden_size", "num_attention_heads"))
    head_dim = config.get("head_dim")
    if head_dim is None:
        if width % heads:
            raise ValueError(
                f"head_dim is missing and hidden_size {width} is not a multiple of "
                f"num_attention_heads {heads}"
            )
        head_dim = width // heads
    kv_heads = config.get("num_key_value_heads")
    theta, scaling = read_rope(config)
    return Architecture(
        name=str(config.get("_name_or_path") or model_type),
        num_layers=required(config, "num_hidden_layers"),
        model_width=width,
        num_query_heads=heads,
        num_kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        mlp_width=required(config, "intermediate_size"),
        vocab_size=required(config, "vocab_size"),
        max_context=required(config, "max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=required(config, "rms_norm_eps"),
        tie_embeddings=flag(config, "tie_word_embeddings"),
    )


def _refuse_what_the_decoder_lacks(config: Mapping[str, Any]) -> None:
    unsupported = {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "sliding_window": (None,),
        "pretraining_tp": (1,),
        "partial_rotary_factor": (1.0,),
        "quantization_config": (None,),
    }
    for key, allowed in unsupported.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            raise ValueError(f"{key} = {value!r} is not supported: only {allowed[0]!r} is")
    kinds = config.get("layer_types") or []
    if set(kinds) - {"full_attention"}:
        raise ValueError(f"layer_types = {kinds!r} is not supported: only 'full_attention' is")
