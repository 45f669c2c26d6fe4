"""The same weights in another implementation's model, to compare with."""

from typing import TYPE_CHECKING

import torch

from refimpl.model import Decoder
from refimpl.weights.folder import to_hf_names

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def as_transformers(model: Decoder) -> "LlamaForCausalLM":
    """transformers' Llama with the weights of ``model``, in its dtype; memory is shared.

    The configuration is written from the architecture, the forward pass is transformers' own.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    arch = model.arch
    if arch.rope_scaling is not None:
        raise ValueError(f"rope scaling {arch.rope_scaling.kind!r} is not carried over")
    config = LlamaConfig(
        num_hidden_layers=arch.num_layers,
        hidden_size=arch.model_width,
        num_attention_heads=arch.num_query_heads,
        num_key_value_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        intermediate_size=arch.mlp_width,
        vocab_size=arch.vocab_size,
        max_position_embeddings=arch.max_context,
        rms_norm_eps=arch.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        tie_word_embeddings=arch.tie_embeddings,
    )
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    with torch.device("meta"):
        peer = LlamaForCausalLM(config)
    # Buffers (the rotary frequencies) are computed, not loaded: build them on the CPU.
    peer.model.rotary_emb = type(peer.model.rotary_emb)(config)
    peer.load_state_dict(to_hf_names(model.state_dict()), assign=True)
    peer.tie_weights()
    return peer.eval()
