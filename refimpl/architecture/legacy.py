"""Decoders with layer norms and plain MLPs: GPT-2, GPT-J, OPT, Falcon, Phi."""

from refimpl.architecture.config import Config
from refimpl.architecture.counting import attention, plain_mlp
from refimpl.architecture.families import Family, Part
from refimpl.architecture.grouped import Heads, heads_of
from refimpl.architecture.windows import Kind


def _all_full(config: Config) -> list[Kind]:
    return [Kind("full")] * config.num_layers


def _part(heads: Heads, parameters: int) -> Part:
    return {
        "num_query_heads": heads.query,
        "num_kv_heads": heads.kv,
        "head_dim": heads.dim,
        "value_dim": heads.dim,
        "mixer_parameters": parameters,
    }


def _counted(config: Config, heads: Heads, *, qkv_bias: bool, out_bias: bool, extra: int) -> Part:
    total = attention(
        config.width, heads.query, heads.kv, heads.dim, qkv_bias=qkv_bias, out_bias=out_bias
    )
    return _part(heads, total + extra)


def _plain(config: Config, inner: int, bias: bool) -> Part:
    return {"mlp_width": inner, "mlp_parameters": plain_mlp(config.width, inner, bias)}


def _gpt2_attention(config: Config, kind: Kind) -> Part:
    config.never("add_cross_attention", "an encoder's keys are not counted")
    return _counted(config, heads_of(config), qkv_bias=True, out_bias=True, extra=0)


def _gptj_attention(config: Config, kind: Kind) -> Part:
    return _counted(config, heads_of(config), qkv_bias=False, out_bias=False, extra=0)


def _gpt_mlp(config: Config, index: int) -> Part:
    inner = config.optional("n_inner") or 4 * config.width
    return _plain(config, inner, bias=True)


def _final_layer_norm(config: Config) -> int:
    return 2 * config.width


def _gpt2_outside(config: Config) -> int:
    return config.count("n_positions", "n_ctx") * config.width + 2 * config.width


def _opt_attention(config: Config, kind: Kind) -> Part:
    bias = config.flag("enable_bias", True)
    norms = 4 * config.width if config.flag("layer_norm_elementwise_affine", True) else 0
    return _counted(config, heads_of(config), qkv_bias=bias, out_bias=bias, extra=norms)


def _opt_mlp(config: Config, index: int) -> Part:
    bias = config.flag("enable_bias", True)
    return _plain(config, config.count("ffn_dim"), bias)


def _opt_embedding(config: Config) -> int:
    return config.optional("word_embed_proj_dim") or config.width


def _opt_outside(config: Config) -> int:
    # The first two rows of the table of positions are never used: padding, once.
    total = (config.count("max_position_embeddings") + 2) * config.width
    if _opt_embedding(config) != config.width:
        total += 2 * config.width * _opt_embedding(config)
    last = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm")
    if last and config.flag("layer_norm_elementwise_affine", True):
        total += 2 * config.width
    return total


def _falcon_heads(config: Config) -> Heads:
    """One key-value head where ``multi_query`` says so, unless the layout is the newer one."""
    query = config.count("num_attention_heads", "n_head")
    if config.width % query:
        raise ValueError(
            f"hidden_size {config.width} is not a multiple of num_attention_heads {query}"
        )
    kv = config.optional("num_kv_heads", "n_head_kv")
    if not _falcon_new(config):
        kv = 1 if config.flag("multi_query", True) else query
    return Heads(query, query if kv is None else kv, config.width // query)


def _falcon_new(config: Config) -> bool:
    # RefinedWeb is the first name of the 40B's layout, before there was a switch.
    return config.flag("new_decoder_architecture", config.model_type == "refinedweb")


def _falcon_attention(config: Config, kind: Kind) -> Part:
    bias, norms = config.flag("bias"), 1
    if _falcon_new(config):
        norms = config.optional("num_ln_in_parallel_attn") or 2
    elif not config.flag("parallel_attn", True):
        norms = 2
    extra = norms * 2 * config.width
    return _counted(config, _falcon_heads(config), qkv_bias=bias, out_bias=bias, extra=extra)


def _falcon_mlp(config: Config, index: int) -> Part:
    inner = config.optional("ffn_hidden_size") or 4 * config.width
    return _plain(config, inner, config.flag("bias"))


def _phi_attention(config: Config, kind: Kind) -> Part:
    heads = heads_of(config)
    norms = 4 * heads.dim if config.flag("qk_layernorm") else 0
    extra = norms + 2 * config.width
    return _counted(config, heads, qkv_bias=True, out_bias=True, extra=extra)


def _phi_mlp(config: Config, index: int) -> Part:
    inner = config.count("intermediate_size")
    return _plain(config, inner, bias=True)


_GPT_CONTEXT = ("n_positions", "n_ctx")
_FALCON = Family(
    _all_full,
    _falcon_attention,
    _falcon_mlp,
    norms=0,
    outside=_final_layer_norm,
    tied=True,
)

LEGACY = {
    "gpt2": Family(
        _all_full,
        _gpt2_attention,
        _gpt_mlp,
        norms=4,
        outside=_gpt2_outside,
        tied=True,
        context=_GPT_CONTEXT,
    ),
    "gptj": Family(
        _all_full,
        _gptj_attention,
        _gpt_mlp,
        norms=2,
        outside=_final_layer_norm,
        head_bias=True,
        context=_GPT_CONTEXT,
    ),
    "opt": Family(
        _all_full,
        _opt_attention,
        _opt_mlp,
        norms=0,
        outside=_opt_outside,
        tied=True,
        embedding_width=_opt_embedding,
    ),
    "falcon": _FALCON,
    "refinedweb": _FALCON,
    "refinedwebmodel": _FALCON,
    "phi": Family(
        _all_full, _phi_attention, _phi_mlp, norms=0, outside=_final_layer_norm, head_bias=True
    ),
}
