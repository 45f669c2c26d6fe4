"""Which layers attend to everything, which to a window: one kind for each layer of a config."""

from collections.abc import Callable
from dataclasses import dataclass

from refimpl.architecture.config import Config


@dataclass(frozen=True)
class Kind:
    """How one layer mixes tokens, its window where it has one, whether an indexer helps it."""

    name: str
    window: int | None = None
    indexer: bool = False


Rule = Callable[[Config, int], list[str]]
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def every_layer(config: Config, num_layers: int) -> list[str]:
    """All layers slide: Mistral, Phi-3."""
    return [SLIDING] * num_layers


def every_second(config: Config, num_layers: int) -> list[str]:
    """Sliding and full layers alternate, sliding first: Gemma 2, gpt-oss."""
    return [FULL if index % 2 else SLIDING for index in range(num_layers)]


def all_but_every(default: int) -> Rule:
    """Each ``sliding_window_pattern``-th layer is full, the others slide: Gemma 3, Command-R7B."""

    def rule(config: Config, num_layers: int) -> list[str]:
        period = config.optional("sliding_window_pattern", "_sliding_window_pattern") or default
        return [SLIDING if (index + 1) % period else FULL for index in range(num_layers)]

    return rule


def from_layer(config: Config, num_layers: int) -> list[str]:
    """Layers from ``max_window_layers`` on slide: Qwen 2 and 3."""
    first = config.count("max_window_layers", least=0)
    return [SLIDING if index >= first else FULL for index in range(num_layers)]


def even_before_layer(config: Config, num_layers: int) -> list[str]:
    """Every second layer below ``max_window_layers`` slides: Qwen2-MoE."""
    last = config.count("max_window_layers", least=0)
    return [SLIDING if index % 2 == 0 and index < last else FULL for index in range(num_layers)]


def without_positions(config: Config, num_layers: int) -> list[str]:
    """Layers without rotary positions slide, the others are full: SmolLM3."""
    return [FULL if rotary else SLIDING for rotary in _rotary_layers(config, num_layers)]


def chunked_kinds(config: Config) -> list[Kind]:
    """Layers with rotary positions attend within chunks, the others to everything: Llama 4."""
    num_layers = config.num_layers
    names = config.names("layer_types", num_layers)
    if names is None:
        chunked = config.has("attention_chunk_size")
        names = [
            CHUNKED if rotary and chunked else FULL for rotary in _rotary_layers(config, num_layers)
        ]
    return [_kind(config, name) for name in names]


def attention_kinds(
    rule: Rule, *, switched: bool = False, inherent: bool = False
) -> Callable[[Config], list[Kind]]:
    """The reader of a family whose layers all attend, some within ``sliding_window``.

    ``layer_types`` says it for each layer. Without it, ``rule`` does if there is a window. A
    missing window is none, but in families in which it is ``inherent`` it is an error. Whatever
    else is said, ``use_sliding_window`` false means that every layer is full; ``switched`` families
    take it to be false where neither it nor ``layer_types`` is given.
    """

    def kinds(config: Config) -> list[Kind]:
        config.never("use_bidirectional_attention", "only causal models keep a cache")
        num_layers = config.num_layers
        names = config.names("layer_types", num_layers)
        if not config.flag("use_sliding_window", not switched or names is not None):
            return [Kind("full")] * num_layers
        if names is None and (inherent or config.value("sliding_window") is not None):
            config.count("sliding_window")
            names = rule(config, num_layers)
        return [_kind(config, name) for name in names or [FULL] * num_layers]

    return kinds


def _kind(config: Config, name: str) -> Kind:
    if name == FULL:
        return Kind("full")
    key = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}.get(name)
    if key is None:
        raise ValueError(f"layer_types has {name!r}, unknown for model_type {config.model_type!r}")
    window = config.count(key)
    context = config.optional("max_position_embeddings")
    # A window that no sequence can leave hides nothing.
    if context is not None and window >= context:
        return Kind("full")
    return Kind("sliding" if name == SLIDING else "chunked", window)


def _rotary_layers(config: Config, num_layers: int) -> list[bool]:
    # Despite its name, 1 stands for a layer with rotary positions; empty is as good as missing.
    if config.value("no_rope_layers") not in (None, []):
        return config.switches("no_rope_layers", num_layers) or []
    period = config.optional("no_rope_layer_interval") or 4
    return [bool((index + 1) % period) for index in range(num_layers)]
