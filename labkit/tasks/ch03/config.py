"""Exercise of chapter 03 on reading a ``config.json``."""

from typing import Any

import numpy as np

from labkit.tasks import Example, Mutant, Property, Task

Config = dict[str, Any]
Stored = tuple[int, ...]  # widths of what a layer keeps for one token

_MISTRAL = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
_GEMMA_2_2B = {
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "layer_types": ["sliding_attention", "full_attention"] * 13,
}
_MIXTRAL_8X7B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
}
_QWEN3_NEXT = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_experts": 512,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
}
_OLDEST = {"num_hidden_layers": 1, "hidden_size": 6, "num_attention_heads": 2}
_NESTED = {"model_type": "gemma3", "text_config": {**_GEMMA_2_2B, "num_hidden_layers": 2}}
_NESTED["text_config"]["layer_types"] = ["sliding_attention", "full_attention"]


def _examples(*cases: tuple[Config, list[Stored]]) -> list[Example]:
    """What each layer keeps, as arrays; their elements are counted by NumPy."""
    return [
        Example((config,), sum(np.zeros(width).size for layer in layers for width in layer))
        for config, layers in cases
    ]


def _heads(G: int, D: int) -> Stored:
    return (D,) * (2 * G)


def _stored_elements_plain(config):
    """Unwrap, count the layers that attend, then either a latent or heads."""
    config = config.get("text_config") or config
    num_layers = config["num_hidden_layers"]
    kinds = config.get("layer_types") or ["full_attention"] * num_layers
    attending = sum(kind != "linear_attention" for kind in kinds)
    if config.get("kv_lora_rank"):
        return attending * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return attending * 2 * kv_heads * head_dim


def _stored_elements_by_layer(config):
    for inner in config.values():
        if isinstance(inner, dict) and "num_hidden_layers" in inner:
            config = inner
    total = 0
    for layer in range(config["num_hidden_layers"]):
        if (config.get("layer_types") or {layer: ""})[layer] == "linear_attention":
            continue
        latent = config.get("kv_lora_rank")
        if latent is not None:
            total += latent + config["qk_rope_head_dim"]
            continue
        H = config["num_attention_heads"]
        given = [config.get("num_key_value_heads"), config.get("head_dim")]
        G, D = (x or y for x, y in zip(given, (H, config["hidden_size"] // H), strict=True))
        total += G * D + G * D
    return total


def _variant(
    config: Config,
    *,
    derived: bool = False,
    missing: int | None = None,
    query_heads: bool = False,
    latent: bool = True,
    skip: tuple[str, ...] = ("linear_attention",),
    experts: bool = False,
    kinds: int = 2,
) -> int:
    """The config read with one thing done wrong."""
    config = config.get("text_config") or config
    types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    attending = sum(kind not in skip for kind in types)
    if latent and config.get("kv_lora_rank"):
        return attending * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    H = config["num_attention_heads"]
    G = config.get("num_key_value_heads") or (missing or H)
    D = (None if derived else config.get("head_dim")) or config["hidden_size"] // H
    routed = ("num_local_experts", "n_routed_experts", "num_experts")
    copies = next((config[key] for key in routed if config.get(key)), 1) if experts else 1
    return attending * kinds * (H if query_heads else G) * D * copies


STORED_ELEMENTS = Task(
    name="stored_elements",
    chapter=3,
    title="Read it off the config",
    minutes=15,
    points=4,
    level=2,
    spec=(
        "How many numbers one token adds to the cache of all layers together, read from a "
        "decoder's config.json in Llama's key names (a latent's are DeepSeek's); layers of type "
        "linear_attention add none, sliding ones add what full ones add."
    ),
    signature="stored_elements(config: dict) -> int",
    properties=(
        Property(
            "the oldest form: no number of key-value heads, no head dim",
            lambda: _examples((_OLDEST, [_heads(2, 3)])),
        ),
        Property(
            "fewer key-value heads than query heads, sliding or not",
            lambda: _examples((_MISTRAL, [_heads(8, 128)] * 32)),
        ),
        Property(
            "head_dim is what the config says, and null means derived",
            lambda: _examples(
                (_GEMMA_2_2B, [_heads(4, 256)] * 26), (_MIXTRAL_8X7B, [_heads(8, 128)] * 32)
            ),
        ),
        Property(
            "a latent and one rotary key instead of heads",
            lambda: _examples((_DEEPSEEK_V3, [(512, 64)] * 61)),
        ),
        Property(
            "only layers that attend store anything",
            lambda: _examples(
                (_QWEN3_NEXT, [_heads(2, 256) if i % 4 == 3 else () for i in range(48)])
            ),
        ),
        Property(
            "the decoder of a model that also sees is nested",
            lambda: _examples((_NESTED, [_heads(4, 256)] * 2)),
            edge=True,
        ),
    ),
    hints=(
        "Write the formula with four names, then ask for each which key gives it and what its "
        "absence means.",
        "kv_lora_rank decides between a latent and heads; num_key_value_heads missing means one "
        "per query head; head_dim missing or null means hidden_size // num_attention_heads.",
        "Unwrap text_config; count layer_types that are not linear_attention (all layers if there "
        "is no list); times kv_lora_rank + qk_rope_head_dim, or 2 · kv heads · head dim.",
    ),
    mutants=(
        Mutant(
            "head dim always derived",
            "hidden_size // num_attention_heads is a fallback: where the config gives head_dim, "
            "it counts, and in Gemma and Qwen3 the two differ",
            lambda config: _variant(config, derived=True),
        ),
        Mutant(
            "query heads counted",
            "num_attention_heads are query heads; what is stored is num_key_value_heads",
            lambda config: _variant(config, query_heads=True),
        ),
        Mutant(
            "missing taken for multi-query",
            "in Llama's key names a missing num_key_value_heads means one key-value head per query "
            "head, not a single one",
            lambda config: _variant(config, missing=1),
        ),
        Mutant(
            "latent read as heads",
            "with kv_lora_rank a layer stores a latent and one rotary key; num_key_value_heads "
            "then says how many heads they are expanded to",
            lambda config: _variant(config, latent=False),
        ),
        Mutant(
            "linear layers counted",
            "a linear_attention layer keeps a state of fixed size and adds nothing for a token",
            lambda config: _variant(config, skip=()),
        ),
        Mutant(
            "sliding layers left out",
            "a sliding layer writes a key and a value for every token like any other; its window "
            "limits how many of them it keeps",
            lambda config: _variant(config, skip=("linear_attention", "sliding_attention")),
        ),
        Mutant(
            "experts counted",
            "experts replace the MLP; there is one attention and one cache a layer, however many "
            "experts there are",
            lambda config: _variant(config, experts=True),
        ),
        Mutant(
            "keys alone",
            "a head stores a value beside its key: a factor of 2 is missing",
            lambda config: _variant(config, kinds=1),
        ),
    ),
    answers=(_stored_elements_plain, _stored_elements_by_layer),
)
