"""From the keys of a config to an architecture: what all families of decoders share."""

from collections.abc import Callable
from dataclasses import dataclass

from refimpl.architecture.config import Config
from refimpl.architecture.core import Architecture, Detail
from refimpl.architecture.layers import ATTENTION_KINDS, Layer
from refimpl.architecture.windows import Kind

# What refimpl.model runs: RMSNorm, RoPE, grouped attention, SwiGLU, and nothing else.
RUN_HERE = ("llama", "mistral", "smollm2")

Part = dict[str, int]  # some fields of a Layer; an MLP's has its ``mlp_width`` besides


def only_final_norm(config: Config) -> int:
    """One weight for each number of the residual stream."""
    return config.width


@dataclass(frozen=True)
class Family:
    """What sets one family of decoders apart.

    ``kinds`` names each layer's mixer, ``mixer`` and ``mlp`` count its parts; ``norms`` are the
    vectors of the model's width that a layer holds besides; ``outside`` counts what stands outside
    layers, embedding and head. ``tied`` is what the family's class takes a missing
    ``tie_word_embeddings`` to mean (``None``: it never ties), ``context`` the keys that state the
    longest sequence.
    """

    kinds: Callable[[Config], list[Kind]]
    mixer: Callable[[Config, Kind], Part]
    mlp: Callable[[Config, int], Part]
    norms: int = 2
    outside: Callable[[Config], int] = only_final_norm
    tied: bool | None = False
    head_bias: bool = False
    embedding_width: Callable[[Config], int] = only_final_norm
    context: tuple[str, ...] = ("max_position_embeddings",)


def build(config: Config, family: Family) -> Architecture:
    """The architecture, layer by layer."""
    width, layers, inner = config.width, [], []
    for index, kind in enumerate(family.kinds(config)):
        part, mlp = family.mixer(config, kind), family.mlp(config, index)
        inner.append(mlp.pop("mlp_width", 0))
        part["mixer_parameters"] = part.get("mixer_parameters", 0) + family.norms * width
        layers.append(Layer(kind=kind.name, window=kind.window, **part, **mlp))
    vocab = config.count("vocab_size")
    embedding = vocab * family.embedding_width(config)
    if family.tied is None:
        config.never("tie_word_embeddings", "its class has a head of its own")
    tied = config.flag("tie_word_embeddings", bool(family.tied))
    first = next((x for x in layers if x.kind in ATTENTION_KINDS), Layer(kind="none"))
    return Architecture(
        name=config.name,
        num_layers=len(layers),
        model_width=width,
        num_query_heads=first.num_query_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        mlp_width=next(filter(None, inner), 0),
        vocab_size=vocab,
        max_context=config.optional(*family.context),
        rope_theta=None,
        norm_eps=None,
        tie_embeddings=tied,
        detail=Detail(
            layers=tuple(layers),
            embedding_parameters=embedding,
            head_parameters=(0 if tied else embedding) + (vocab if family.head_bias else 0),
            other_parameters=family.outside(config),
            unsupported=(
                f"model_type {config.model_type!r} is not supported: one of {', '.join(RUN_HERE)}"
            ),
        ),
    )
