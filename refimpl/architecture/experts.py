"""Mixtures of experts behind grouped attention: Mixtral, Qwen, GLM-4.5, gpt-oss, Llama 4, …"""

from collections.abc import Callable

from refimpl.architecture.config import Config
from refimpl.architecture.counting import gated_mlp, linear
from refimpl.architecture.families import Family, Part
from refimpl.architecture.grouped import gated, grouped
from refimpl.architecture.windows import (
    attention_kinds,
    chunked_kinds,
    even_before_layer,
    every_layer,
    every_second,
)

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")


def routed(
    config: Config, inner: int, expert: int, always: int = 0, *, router_bias: bool = False
) -> Part:
    """A router over experts ``inner`` wide, of ``expert`` weights each.

    Every token reads ``always`` weights besides: shared experts, gates.
    """
    number = config.count(*NUM_EXPERTS)
    return {
        "mlp_width": inner,
        "mlp_parameters": linear(config.width, number, router_bias) + always,
        "num_experts": number,
        "experts_per_token": config.count(*PER_TOKEN),
        "expert_parameters": expert,
    }


def every_layer_routed(config: Config, index: int) -> Part:
    """Experts of ``intermediate_size`` in every layer: Mixtral, OLMoE, MiniMax."""
    inner = config.count("intermediate_size")
    return routed(config, inner, gated_mlp(config.width, inner))


def _gpt_oss(config: Config, index: int) -> Part:
    inner = config.count("intermediate_size")
    return routed(config, inner, gated_mlp(config.width, inner, bias=True), router_bias=True)


def qwen_experts(*, shared: bool) -> Callable[[Config, int], Part]:
    """Qwen's: experts but in ``mlp_only_layers`` and off the ``decoder_sparse_step``."""

    def count(config: Config, index: int) -> Part:
        dense = config.layer_set("mlp_only_layers", config.num_layers) or set()
        step = config.optional("decoder_sparse_step") or 1
        if index in dense or (index + 1) % step:
            return gated()(config, index)
        always = 0
        if shared:
            # The shared expert, and the gate in front of it.
            wide = config.count("shared_expert_intermediate_size")
            always = gated_mlp(config.width, wide) + config.width
        inner = config.count("moe_intermediate_size")
        return routed(config, inner, gated_mlp(config.width, inner), always)

    return count


def deepseek_experts(config: Config, index: int) -> Part:
    """Dense MLPs first, then experts of ``moe_intermediate_size``, some of them shared."""
    if not _is_sparse(config, index):
        return gated(bias_key="mlp_bias")(config, index)
    inner = config.count("moe_intermediate_size")
    number = config.nullable("n_shared_experts", "num_shared_experts", least=0) or 0
    bias = number > 0 and config.flag("mlp_bias")
    shared = gated_mlp(config.width, number * inner, bias) if number else 0
    return routed(config, inner, gated_mlp(config.width, inner), shared)


def _is_sparse(config: Config, index: int) -> bool:
    kinds = config.names("mlp_layer_types", config.num_layers)
    if kinds is not None:
        if kinds[index] not in ("dense", "sparse"):
            raise ValueError(
                f"mlp_layer_types has {kinds[index]!r}: only dense and sparse are known"
            )
        return kinds[index] == "sparse"
    period = config.optional("moe_layer_freq") or 1
    return index >= config.count("first_k_dense_replace", least=0) and index % period == 0


def _llama4(config: Config, index: int) -> Part:
    listed = config.layer_set("moe_layers", config.num_layers)
    step = config.count("interleave_moe_layer_step")
    sparse = (index + 1) % step == 0 if listed is None else index in listed
    if not sparse:
        wide = config.count("intermediate_size_mlp")
        return {"mlp_width": wide, "mlp_parameters": gated_mlp(config.width, wide)}
    inner = config.count("intermediate_size")
    expert = gated_mlp(config.width, inner)
    return routed(config, inner, expert, always=expert)


EXPERTS = {
    "mixtral": Family(attention_kinds(every_layer), grouped(bias_key=None), every_layer_routed),
    "olmoe": Family(attention_kinds(every_layer), grouped(norm="all"), every_layer_routed),
    "granitemoe": Family(attention_kinds(every_layer), grouped(), every_layer_routed),
    "minimax_m2": Family(
        attention_kinds(every_layer), grouped(bias_key=None, norm="all"), every_layer_routed
    ),
    "gpt_oss": Family(
        attention_kinds(every_second, inherent=True), grouped(bias=True, sinks=True), _gpt_oss
    ),
    "qwen2_moe": Family(
        attention_kinds(even_before_layer, switched=True),
        grouped(bias=True, bias_key="qkv_bias", out_bias=False),
        qwen_experts(shared=True),
    ),
    "qwen3_moe": Family(
        attention_kinds(every_layer, switched=True),
        grouped(norm="head"),
        qwen_experts(shared=False),
    ),
    "glm4_moe": Family(
        attention_kinds(every_layer),
        grouped(out_bias=False, norm="use_qk_norm:head"),
        deepseek_experts,
    ),
    "llama4_text": Family(chunked_kinds, grouped(), _llama4),
}
