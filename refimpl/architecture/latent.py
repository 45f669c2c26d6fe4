"""Latent attention (MLA): DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-5. arXiv:2405.04434."""

from refimpl.architecture.config import Config
from refimpl.architecture.counting import linear
from refimpl.architecture.experts import deepseek_experts
from refimpl.architecture.families import Family, Part
from refimpl.architecture.windows import Kind


def latent(config: Config, kind: Kind) -> Part:
    """What an MLA layer stores (one latent and one rotary key a token) and weighs."""
    width, heads = config.width, config.count("num_attention_heads")
    latent_width, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    plain, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    bias, query_rank = config.flag("attention_bias"), config.nullable("q_lora_rank")
    if query_rank is None:
        queries = linear(width, heads * (plain + rope))
    else:
        down = linear(width, query_rank, bias) + query_rank  # and a norm
        queries = down + linear(query_rank, heads * (plain + rope))
    keys = linear(width, latent_width + rope, bias) + latent_width
    keys += linear(latent_width, heads * (plain + value))
    part = {
        "num_query_heads": heads,
        "num_kv_heads": 1,
        "head_dim": plain + rope,
        "value_dim": value,
        "latent_width": latent_width,
        "rope_width": rope,
        "mixer_parameters": queries + keys + linear(heads * value, width, bias),
    }
    return part | _indexer(config) if kind.indexer else part


def _chosen(config: Config, kind: Kind) -> Part:
    """A latent layer that reads the tokens an indexer chose, in this layer or in one before."""
    return latent(config, kind) | {"selected": config.count("index_topk")}


def _indexer(config: Config) -> Part:
    """What picks the tokens to attend to (DeepSeek-V3.2): it stores a key a token of its own."""
    heads, width = config.count("index_n_heads"), config.count("index_head_dim")
    queries = linear(config.count("q_lora_rank"), heads * width)
    keys = linear(config.width, width) + 2 * width  # and a norm with a bias
    return {
        "index_width": width,
        "index_parameters": queries + keys + linear(config.width, heads),
    }


def _all_latent(config: Config) -> list[Kind]:
    names = config.names("layer_types", config.num_layers)
    for name in names or []:
        if name != "full_attention":
            raise ValueError(f"layer_types has {name!r}: an MLA model has full_attention only")
    return [Kind("latent")] * config.num_layers


def _all_indexed(config: Config) -> list[Kind]:
    num_layers = config.num_layers
    for name in config.names("layer_types", num_layers) or []:
        if name not in ("indexed_attention", "deepseek_sparse_attention"):
            raise ValueError(f"layer_types has {name!r}: only indexed_attention can be read here")
    modes = config.names("indexer_types", num_layers)
    if modes is None:
        for key in ("index_topk_pattern", "index_topk_freq"):
            if config.value(key) not in (None, 1):
                raise ValueError(
                    f"{key} = {config.value(key)!r} cannot be read: give indexer_types"
                )
        modes = ["full"] * num_layers
    if set(modes) - {"full", "shared"}:
        raise ValueError(f"indexer_types may be full or shared, got {modes!r}")
    return [Kind("latent", indexer=mode == "full") for mode in modes]


_DEEPSEEK = Family(_all_latent, latent, deepseek_experts)
_INDEXED = Family(_all_indexed, _chosen, deepseek_experts)

LATENT = {
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": _INDEXED,
}
