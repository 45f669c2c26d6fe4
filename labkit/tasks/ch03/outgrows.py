"""Exercise of chapter 03: the length at which a cache weighs more than the weights."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, last, nbytes, shape

# ── outgrows_weights ──────────────────────────────────────────────────────────────────────────


def _outgrows_examples(*shapes: tuple[int, str, int, int, int, int, str]) -> list[Example]:
    """The first length whose tensors weigh more than the weights, found by bisection."""
    examples = []
    for args in shapes:
        parameters, weight_dtype, *_ = args
        weights = nbytes(WIDTHS[weight_dtype], (parameters,))

        def lighter(tokens: int, *, args=args, weights=weights) -> bool:
            L, G, D, dtype = args[2], *args[4:]
            return nbytes(WIDTHS[dtype], *[(G, tokens, D)] * (2 * L)) <= weights

        examples.append(Example(args, float(last(lighter) + 1)))
    return examples


def _outgrows_plain(
    parameters, weight_dtype, num_layers, num_query_heads, num_kv_heads, head_dim, cache_dtype
):
    """Bytes of the weights over bytes of a token, and one token more."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
    per_token = 2 * num_layers * num_kv_heads * head_dim * width[cache_dtype]
    return f"{parameters * width[weight_dtype] // per_token + 1} tokens"


def _outgrows_ratio(
    parameters, weight_dtype, num_layers, num_query_heads, num_kv_heads, head_dim, cache_dtype
):
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
    per_element = width[weight_dtype] / width[cache_dtype]
    tokens = 1
    tokens += int(parameters * per_element / (num_layers * num_kv_heads * head_dim * 2))
    return f"{tokens:,} tokens"


def _outgrows_variant(
    parameters: float, weight_dtype: str, L: int, heads: int, D: int, cache_dtype: str, kinds=2
) -> str:
    per_token = kinds * L * heads * D * WIDTHS[cache_dtype]
    return f"{int(parameters * WIDTHS[weight_dtype] / per_token) + 1} tokens"


def _outgrows_query_heads(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters, weight_dtype, L, H, D, cache_dtype)


def _outgrows_parameters(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters, "FP8", L, G, D, cache_dtype)


def _outgrows_one_type(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters, weight_dtype, L, G, D, weight_dtype)


def _outgrows_one_layer(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters, weight_dtype, 1, G, D, cache_dtype)


def _outgrows_keys_alone(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters, weight_dtype, L, G, D, cache_dtype, kinds=1)


def _outgrows_gib(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return _outgrows_variant(parameters / 1e9 * 2**30, weight_dtype, L, G, D, cache_dtype)


def _draw_outgrows(seed: int) -> tuple[int, str, int, int, int, int, str]:
    draw = random.Random(seed)
    parameters, L, H, G, D = shape(draw)
    return parameters, draw.choice(("BF16", "FP8")), L, H, G, D, draw.choice(("BF16", "FP8"))


OUTGROWS = Task(
    name="outgrows_weights",
    chapter=3,
    title="When the cache outgrows the weights",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "The length at which one request's KV cache first weighs more than the model's weights, "
        "as text such as '25,706 tokens'."
    ),
    signature=(
        "outgrows_weights(parameters: int, weight_dtype: str, num_layers: int, "
        "num_query_heads: int, num_kv_heads: int, head_dim: int, cache_dtype: str) -> str"
    ),
    properties=(
        Property(
            "one layer, all in FP8",
            lambda: _outgrows_examples((48_000, "FP8", 1, 2, 2, 3, "FP8")),
        ),
        Property(
            "every layer's keys and values, of its key-value heads",
            lambda: _outgrows_examples(
                (48_000, "FP8", 5, 2, 2, 3, "FP8"), (96_000, "FP8", 1, 6, 2, 3, "FP8")
            ),
        ),
        Property(
            "weights and cache each in their own type",
            lambda: _outgrows_examples(
                (48_000, "BF16", 1, 2, 2, 3, "BF16"),
                (48_000, "BF16", 1, 2, 2, 3, "FP8"),
                (48_000, "FP8", 5, 6, 2, 3, "BF16"),
            ),
        ),
        Property(
            "Llama-2-7B and Llama-3-8B",
            lambda: _outgrows_examples(
                (6_738_415_616, "FP16", 32, 32, 32, 128, "FP16"),
                (8_030_261_248, "BF16", 32, 32, 8, 128, "BF16"),
            ),
        ),
    ),
    hints=(
        "Two sizes in bytes: one is fixed, one grows by the same amount with every token.",
        "Weights are parameters times their bytes; a token takes 2 · layers · kv heads · head dim "
        "times the bytes of the cache's type.",
        "weight bytes // bytes a token + 1; return f'{n} tokens'.",
    ),
    mutants=(
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads: under grouped attention a token is "
            "that much lighter, and the crossing that much later",
            _outgrows_query_heads,
        ),
        Mutant(
            "parameters taken for bytes",
            "a parameter takes two bytes in BF16: multiply by the width of weight_dtype",
            _outgrows_parameters,
        ),
        Mutant(
            "one type for both",
            "the cache is stored in cache_dtype, which need not be that of the weights",
            _outgrows_one_type,
        ),
        Mutant(
            "one layer",
            "all layers keep keys and values; this divides by one layer's share",
            _outgrows_one_layer,
        ),
        Mutant(
            "keys alone",
            "a token leaves a value beside its key, so the crossing comes twice as early",
            _outgrows_keys_alone,
        ),
        Mutant(
            "a billion taken for 2^30",
            "the factor is 1.024³: billions of parameters are 10^9, only GiB are 2^30",
            _outgrows_gib,
        ),
    ),
    answers=(_outgrows_plain, _outgrows_ratio),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("tokens"),
    draw=_draw_outgrows,
    ask=lambda parameters, weight_dtype, L, H, G, D, cache_dtype: (
        f"{parameters / 1e9:.1f} billion parameters in {weight_dtype};\n{L} layers, {H} "
        f"query heads, {G} key-value heads of {D} elements, a cache in {cache_dtype}.\n"
        "At which length does one request's cache outgrow the weights?"
    ),
    unit="tokens",
)
