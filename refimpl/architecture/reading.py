"""A ``config.json`` to an :class:`Architecture`: finding the decoder's keys and its family."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from refimpl.architecture.checks import positive
from refimpl.architecture.config import Config
from refimpl.architecture.core import Architecture
from refimpl.architecture.experts import EXPERTS
from refimpl.architecture.families import RUN_HERE, build
from refimpl.architecture.grouped import DENSE
from refimpl.architecture.hybrid import HYBRID
from refimpl.architecture.latent import LATENT
from refimpl.architecture.legacy import LEGACY
from refimpl.architecture.rope import read_rope

FAMILIES = {**DENSE, **LEGACY, **EXPERTS, **LATENT, **HYBRID}
# Models with a tower for images: what their text decoder is when it does not say so itself.
_TEXT_DECODER = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
# Gemma 3's files list only what differs from its class; these are the class's own values.
_GEMMA3_TEXT = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
# Values of keys with which refimpl.model can run a family that it knows.
_RUN_WITH = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "sliding_window": (None,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (None,),
}


def read(config: Mapping[str, Any]) -> Architecture:
    """See :meth:`Architecture.from_hf_config`."""
    if not isinstance(config, Mapping):
        raise ValueError(f"a config must be a mapping, got {type(config).__name__}")
    found = _decoder(config)
    arch = build(found, FAMILIES[found.model_type])
    if found.model_type not in RUN_HERE:
        return arch
    return _as_decoder(found, arch)


def _decoder(config: Mapping[str, Any]) -> Config:
    """The keys of the text decoder, from ``text_config`` where there is one."""
    outer = config.get("model_type")
    data, model_type = config, outer
    if config.get("text_config") is not None:
        text = config["text_config"]
        if not isinstance(text, Mapping):
            raise ValueError(f"text_config must be a mapping, got {text!r}")
        model_type = outer if text.get("model_type") is None else text["model_type"]
        outside = {key: config.get(key) for key in ("tie_word_embeddings", "_name_or_path")}
        missing = _GEMMA3_TEXT if outer == "gemma3" else {}
        data = {**missing, **outside, **text}
    if model_type is None:
        raise ValueError("the config has no 'model_type'")
    found = str(model_type).lower()
    found = _TEXT_DECODER.get(found, found)
    if found not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} is not supported: one of {', '.join(sorted(FAMILIES))}"
        )
    return Config(data, found)


def _as_decoder(config: Config, arch: Architecture) -> Architecture:
    """The same shape without layers listed, if it is uniform and nothing in it is unusual."""
    eps = config.required("rms_norm_eps")
    positive("rms_norm_eps", eps)
    config.count("max_position_embeddings")
    theta, scaling, reason = None, None, None
    try:
        theta, scaling = read_rope(config.data)
    except ValueError as error:  # sizes do not depend on it; running does
        reason = str(error)
    if arch.head_dim % 2:
        reason = f"rotation works on pairs: head_dim must be even, got {arch.head_dim}"
    for key, allowed in _RUN_WITH.items():
        value = config.data.get(key)
        if value is not None and value not in allowed:
            reason = reason or f"{key} = {value!r} is not supported: only {allowed[0]!r} is"
    if reason is None and any(layer.kind != "full" for layer in arch.layers):
        reason = "layer_types has more than 'full_attention', which alone is supported"
    assert arch.detail is not None
    detail = None if reason is None else replace(arch.detail, unsupported=reason)
    return replace(arch, rope_theta=theta, rope_scaling=scaling, norm_eps=eps, detail=detail)
