"""Grouped attention, MHA and MQA included, and the dense MLPs behind it, as families write them."""

from collections.abc import Callable
from dataclasses import dataclass

from refimpl.architecture.config import Config
from refimpl.architecture.counting import attention, gated_mlp, linear
from refimpl.architecture.families import Family, Part
from refimpl.architecture.windows import (
    Kind,
    all_but_every,
    attention_kinds,
    every_layer,
    every_second,
    from_layer,
    without_positions,
)


@dataclass(frozen=True)
class Heads:
    """Query heads, key-value heads and their width."""

    query: int
    kv: int
    dim: int


def heads_of(config: Config) -> Heads:
    """Heads as the config states them.

    A missing ``num_key_value_heads`` means one per query head, a missing ``head_dim`` is the
    model's width shared among the query heads.
    """
    query = config.count("num_attention_heads", "n_head")
    kv = config.optional("num_key_value_heads")
    dim = config.optional("head_dim", "attention_head_dim")
    if dim is None:
        if config.width % query:
            raise ValueError(
                f"head_dim is missing and hidden_size {config.width} is not a multiple of "
                f"num_attention_heads {query}"
            )
        dim = config.width // query
    return Heads(query, query if kv is None else kv, dim)


def grouped(
    *,
    bias: bool = False,
    bias_key: str | None = "attention_bias",
    out_bias: bool = True,
    norm: str = "",
    sinks: bool = False,
    gate: bool = False,
) -> Callable[[Config, Kind], Part]:
    """The counter of a family's attention.

    ``bias_key`` is the switch for biases and ``bias`` what a missing one means; without a key the
    projections to heads have biases as ``bias`` says. ``out_bias``: whether the projection back
    shares them. ``norm`` is ``head`` (one weight for each number of a head of queries, and of
    keys) or ``all`` (one for each number of all heads), behind the key that switches it on where
    there is one. ``sinks`` adds a logit per query head, ``gate`` a second projection as wide as
    the queries.
    """

    def count(config: Config, kind: Kind) -> Part:
        heads = heads_of(config)
        if bias_key is None:
            config.never("attention_bias", "its attention has no such switch")
        has = bias if bias_key is None else config.flag(bias_key, bias)
        total = attention(
            config.width, heads.query, heads.kv, heads.dim, qkv_bias=has, out_bias=has and out_bias
        )
        total += _norm_weights(config, heads, norm)
        total += heads.query if sinks else 0
        total += linear(config.width, heads.query * heads.dim, has) if gate else 0
        return {
            "num_query_heads": heads.query,
            "num_kv_heads": heads.kv,
            "head_dim": heads.dim,
            "value_dim": heads.dim,
            "mixer_parameters": total,
        }

    return count


def _norm_weights(config: Config, heads: Heads, norm: str) -> int:
    key, _, width = norm.rpartition(":")
    if not width or (key and not config.flag(key)):
        return 0
    return {"head": 2, "all": heads.query + heads.kv}[width] * heads.dim


def gated(*, bias_key: str | None = None) -> Callable[[Config, int], Part]:
    """The counter of a gated MLP; ``bias_key`` switches its biases on."""

    def count(config: Config, index: int) -> Part:
        bias = bias_key is not None and config.flag(bias_key)
        if bias_key is None:
            config.never("mlp_bias", "its MLP has no such switch")
        inner = config.count("intermediate_size")
        return {"mlp_width": inner, "mlp_parameters": gated_mlp(config.width, inner, bias)}

    return count


def _nothing(config: Config) -> int:
    return 0


_LLAMA = Family(attention_kinds(every_layer), grouped(), gated(bias_key="mlp_bias"))
_MISTRAL = Family(attention_kinds(every_layer), grouped(bias_key=None), gated())

DENSE = {
    "llama": _LLAMA,
    "smollm2": _LLAMA,
    "yi": _LLAMA,
    "granite": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "phi3": _MISTRAL,
    "smollm3": Family(
        attention_kinds(without_positions, switched=True),
        grouped(),
        gated(bias_key="mlp_bias"),
        tied=True,
    ),
    "qwen2": Family(
        attention_kinds(from_layer, switched=True),
        grouped(bias=True, bias_key=None, out_bias=False),
        gated(),
    ),
    "qwen3": Family(attention_kinds(from_layer, switched=True), grouped(norm="head"), gated()),
    "gemma": Family(attention_kinds(every_layer), grouped(), gated(), tied=True),
    "gemma2": Family(
        attention_kinds(every_second, inherent=True), grouped(), gated(), norms=4, tied=True
    ),
    "gemma3_text": Family(
        attention_kinds(all_but_every(6), inherent=True),
        grouped(norm="head"),
        gated(),
        norms=4,
        tied=True,
    ),
    "cohere": Family(
        attention_kinds(every_layer), grouped(norm="use_qk_norm:all"), gated(), norms=1, tied=True
    ),
    "cohere2": Family(
        attention_kinds(all_but_every(4), inherent=True), grouped(), gated(), norms=1, tied=True
    ),
    "glm": Family(attention_kinds(every_layer), grouped(bias=True, out_bias=False), gated()),
    "glm4": Family(
        attention_kinds(every_layer), grouped(bias=True, out_bias=False), gated(), norms=4
    ),
    "olmo": Family(attention_kinds(every_layer), grouped(), gated(), norms=0, outside=_nothing),
    "olmo2": Family(attention_kinds(every_layer), grouped(norm="all"), gated()),
    "olmo3": Family(attention_kinds(all_but_every(4), inherent=True), grouped(norm="all"), gated()),
}
