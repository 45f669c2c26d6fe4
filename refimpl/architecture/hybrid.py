"""Layers with a fixed state: Mamba and linear attention, alone or among attention layers."""

from collections.abc import Callable

from refimpl.architecture.config import Config
from refimpl.architecture.counting import linear, plain_mlp
from refimpl.architecture.experts import (
    NUM_EXPERTS,
    deepseek_experts,
    every_layer_routed,
    qwen_experts,
    routed,
)
from refimpl.architecture.families import Family, Part
from refimpl.architecture.grouped import gated, grouped
from refimpl.architecture.latent import latent
from refimpl.architecture.recurrent import delta_net, kimi_delta, lightning, mamba, mamba2
from refimpl.architecture.windows import Kind

Mixer = Callable[[Config, Kind], Part]


def by_kind(**mixers: Mixer) -> Mixer:
    """A mixer that counts each kind of layer in its own way."""

    def count(config: Config, kind: Kind) -> Part:
        return mixers[kind.name](config, kind)

    return count


def listed(config: Config, names: list[str], kinds: dict[str, str]) -> list[Kind]:
    """A kind for each name; a name that the family does not have is an error."""
    for name in names:
        if name not in kinds:
            raise ValueError(
                f"layer type {name!r} cannot be read for model_type {config.model_type!r}: "
                f"only {', '.join(kinds)}"
            )
    return [Kind(kinds[name]) for name in names]


def _state_kinds(config: Config) -> list[Kind]:
    return [Kind("state")] * config.num_layers


def _jamba_kinds(config: Config) -> list[Kind]:
    period, offset = _period(config, "attn_layer")
    return [
        Kind("full" if index % period == offset else "state") for index in range(config.num_layers)
    ]


def _period(config: Config, name: str) -> tuple[int, int]:
    period, offset = config.count(f"{name}_period"), config.count(f"{name}_offset", least=0)
    if offset >= period:
        raise ValueError(f"{name}_offset {offset} must be below {name}_period {period}")
    return period, offset


def _jamba_mlp(config: Config, index: int) -> Part:
    period, offset = _period(config, "expert_layer")
    # With one expert there is nothing to route: transformers builds a dense MLP.
    if index % period != offset or config.count(*NUM_EXPERTS) == 1:
        return gated()(config, index)
    return every_layer_routed(config, index)


_NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NEMOTRON_KINDS = {
    "linear_attention": "state",
    "full_attention": "full",
    "mlp": "none",
    "moe": "none",
}


def _nemotron_names(config: Config) -> list[str]:
    length = config.optional("num_hidden_layers")
    for key in ("layers_block_type", "layer_types"):
        names = config.names(key, length)
        if names is not None:
            return names
    pattern = config.required("hybrid_override_pattern", "layers_block_type")
    if not isinstance(pattern, str) or set(pattern) - _NEMOTRON_LETTERS.keys():
        raise ValueError(
            f"hybrid_override_pattern may hold {', '.join(_NEMOTRON_LETTERS)}, got {pattern!r}"
        )
    if length is not None and len(pattern) != length:
        raise ValueError(
            f"hybrid_override_pattern lists {len(pattern)} layers, the config says {length}"
        )
    return [_NEMOTRON_LETTERS[letter] for letter in pattern]


def _nemotron_kinds(config: Config) -> list[Kind]:
    config.never("sliding_window", "its attention layers are full")
    return listed(config, _nemotron_names(config), _NEMOTRON_KINDS)


def _nemotron_mixer(config: Config, kind: Kind) -> Part:
    if kind.name == "none":
        return {}
    return mamba2(config, kind) if kind.name == "state" else grouped(bias_key=None)(config, kind)


def _nemotron_mlp(config: Config, index: int) -> Part:
    name = _nemotron_names(config)[index]
    bias, width = config.flag("mlp_bias"), config.width
    if name == "mlp":
        inner = config.count("intermediate_size")
        return {"mlp_width": inner, "mlp_parameters": plain_mlp(width, inner, bias)}
    if name != "moe":
        return {}
    inside, inner = config.optional("moe_latent_size"), config.count("moe_intermediate_size")
    shared = plain_mlp(width, config.count("moe_shared_expert_intermediate_size"), bias)
    if inside is not None:
        shared += linear(width, inside, bias) + linear(inside, width, bias)
    return routed(config, inner, plain_mlp(inside or width, inner), shared)


def _interval(config: Config) -> list[Kind]:
    """Each ``full_attention_interval``-th layer attends, the others are linear."""
    names = config.names("layer_types", config.num_layers)
    if names is None:
        period = config.optional("full_attention_interval")
        if period is None:
            raise ValueError("the config has no 'layer_types' and no 'full_attention_interval'")
        names = [
            "linear_attention" if (index + 1) % period else "full_attention"
            for index in range(config.num_layers)
        ]
    return listed(config, names, {"full_attention": "full", "linear_attention": "linear"})


def _minimax_kinds(config: Config) -> list[Kind]:
    for key in ("sliding_window", "shared_intermediate_size"):
        if config.value(key) not in (None, 0):
            raise ValueError(f"{key} = {config.value(key)!r} cannot be read: it is not counted")
    names = config.names("layer_types", config.num_layers)
    if names is None:
        full = config.switches("attn_type_list", config.num_layers)
        if full is None:
            raise ValueError("the config has no 'attn_type_list' and no 'layer_types'")
        names = ["full_attention" if flag else "linear_attention" for flag in full]
    return listed(config, names, {"full_attention": "full", "linear_attention": "linear"})


def _kimi_linear_kinds(config: Config) -> list[Kind]:
    for key in ("mla_use_output_gate", "routed_expert_hidden_size"):
        config.never(key, "its weights are not counted")
    length = config.num_layers
    names = config.names("layer_types", length)
    if names is None:
        inside = config.nested("linear_attn_config")
        if inside is None:
            raise ValueError("the config has no 'linear_attn_config' and no 'layer_types'")
        # Layers are numbered from 1 in this list, so one more than there are is allowed.
        full, linear_ = (
            inside.layer_set(key, length + 1) for key in ("full_attn_layers", "kda_layers")
        )
        if full is None or linear_ is None or full | linear_ != set(range(1, length + 1)):
            raise ValueError(
                "linear_attn_config must give every layer from 1 on in full_attn_layers or "
                "in kda_layers"
            )
        names = [
            "full_attention" if index + 1 in full else "linear_attention" for index in range(length)
        ]
    return listed(config, names, {"full_attention": "latent", "linear_attention": "linear"})


def _mamba_only(config: Config, index: int) -> Part:
    return {}


_MAMBA = Family(
    _state_kinds,
    lambda config, kind: mamba(config),
    _mamba_only,
    norms=1,
    tied=True,
)
_MINIMAX = Family(
    _minimax_kinds,
    by_kind(full=grouped(bias_key=None), linear=lightning),
    every_layer_routed,
)

HYBRID = {
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "jamba": Family(
        _jamba_kinds,
        by_kind(
            full=grouped(bias_key=None),
            state=lambda config, kind: mamba(config, prefix="mamba_", norms=True),
        ),
        _jamba_mlp,
    ),
    "nemotron_h": Family(_nemotron_kinds, _nemotron_mixer, _nemotron_mlp, norms=1, tied=None),
    "qwen3_next": Family(
        _interval,
        by_kind(full=grouped(norm="head", gate=True), linear=delta_net),
        qwen_experts(shared=True),
    ),
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "kimi_linear": Family(
        _kimi_linear_kinds,
        by_kind(latent=latent, linear=kimi_delta),
        deepseek_experts,
        tied=None,
        context=("max_position_embeddings", "model_max_length"),
    ),
}
