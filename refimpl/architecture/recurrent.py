"""Mixers that keep a fixed state instead of keys and values: what each keeps and weighs."""

from refimpl.architecture.config import Config
from refimpl.architecture.counting import linear
from refimpl.architecture.families import Part
from refimpl.architecture.grouped import heads_of
from refimpl.architecture.windows import Kind


def mamba(config: Config, *, prefix: str = "", norms: bool = False) -> Part:
    """A selective state space with one state for each inner channel. arXiv:2312.00752."""
    width, state = config.width, config.count(f"{prefix}d_state" if prefix else "state_size")
    inner = config.optional("intermediate_size") if not prefix else None
    if inner is None:
        inner = config.count(f"{prefix}expand") * width
    rank = config.required(f"{prefix}dt_rank" if prefix else "time_step_rank")
    rank = -(-width // 16) if rank == "auto" else config.count("mamba_dt_rank", "time_step_rank")
    kernel = config.count(f"{prefix}d_conv" if prefix else "conv_kernel")
    bias = config.flag("mamba_proj_bias" if prefix else "use_bias")
    conv_bias = config.flag("mamba_conv_bias" if prefix else "use_conv_bias", True)
    total = linear(width, 2 * inner, bias) + linear(kernel, inner, conv_bias)
    total += linear(inner, rank + 2 * state) + linear(rank, inner, True)
    total += inner * state + inner + linear(inner, width, bias)  # A, D and the way back
    total += rank + 2 * state if norms else 0
    return {"state_elements": inner * state, "conv_channels": inner, "mixer_parameters": total}


def mamba2(config: Config, kind: Kind) -> Part:
    """A state space with a scalar decay for each head. arXiv:2405.21060."""
    width, heads = config.width, config.count("mamba_num_heads")
    inner, state = heads * config.count("mamba_head_dim"), config.count("ssm_state_size")
    channels = inner + 2 * config.count("n_groups", "mamba_n_groups") * state
    bias, conv_bias = config.flag("use_bias"), config.flag("use_conv_bias", True)
    total = linear(width, inner + channels + heads, bias) + linear(inner, width, bias)
    total += linear(config.count("conv_kernel", "mamba_d_conv"), channels, conv_bias)
    total += 3 * heads + inner  # dt, A and D of each head, and a norm
    return {"state_elements": inner * state, "conv_channels": channels, "mixer_parameters": total}


def delta_net(config: Config, kind: Kind) -> Part:
    """Gated DeltaNet: a key-by-value matrix for each value head. arXiv:2412.06464."""
    key_heads, heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key, value = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    keys, values = key_heads * key, heads * value
    channels = 2 * keys + values
    total = linear(config.width, channels + values) + linear(config.width, 2 * heads)
    total += config.count("linear_conv_kernel_dim") * channels + linear(values, config.width)
    total += 2 * heads + value  # dt and A of each head, and a norm
    return {
        "state_elements": heads * key * value,
        "conv_channels": channels,
        "mixer_parameters": total,
    }


def lightning(config: Config, kind: Kind) -> Part:
    """Linear attention with a fixed decay for each head. arXiv:2401.04658."""
    heads = heads_of(config)
    inner = heads.query * heads.dim
    # Queries, keys, values and a gate; the way back; a norm.
    total = 4 * linear(config.width, inner) + linear(inner, config.width) + inner
    return {"state_elements": inner * heads.dim, "mixer_parameters": total}


def kimi_delta(config: Config, kind: Kind) -> Part:
    """Kimi Delta Attention: a decay for each channel of each head. arXiv:2510.26692."""
    nested = config.nested("linear_attn_config")
    inside = nested or config
    inside.never("use_full_rank_gate", "its weights are not counted")
    heads = inside.count("num_heads", "linear_num_heads")
    dim = inside.count("head_dim") if nested else inside.count("linear_head_dim")
    kernel = inside.count("short_conv_kernel_size", "linear_conv_kernel_dim")
    inner, width = heads * dim, config.width
    total = 3 * linear(width, inner) + 3 * kernel * inner + linear(inner, width)
    # The decay and the output gate, each through a bottleneck of one head.
    total += 2 * (linear(width, dim) + linear(dim, inner)) + linear(width, heads)
    total += inner + heads + dim  # dt, A, and a norm
    return {
        "state_elements": inner * dim,
        "conv_channels": 3 * inner,
        "mixer_parameters": total,
    }
