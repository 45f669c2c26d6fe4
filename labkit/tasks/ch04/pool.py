"""Exercise of chapter 04: the tokens that fit beside the weights."""

import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, last, nbytes, shape

Node = tuple[int, int, int, int, str, int, int, int, int, str]

# ── pool_tokens ───────────────────────────────────────────────────────────────────────────────


def _pool_examples(*nodes: Node) -> list[Example]:
    """The most tokens whose tensors NumPy counts within what is left, found by bisection."""
    examples = []
    for args in nodes:
        num_gpus, gigabytes, percent, parameters, weight_dtype, L, _, G, D, cache_dtype = args
        usable = num_gpus * gigabytes * 10**9 * Fraction(100 - percent, 100)
        weights = nbytes(WIDTHS[weight_dtype], (parameters,))

        def fits(tokens: int, *, room=usable - Fraction(weights), args=args) -> bool:
            L, _, G, D, dtype = args[5:]
            return nbytes(WIDTHS[dtype], *[(G, tokens, D)] * (2 * L)) <= room

        examples.append(Example(args, float(last(fits))))
    return examples


def _pool_plain(
    num_gpus,
    gigabytes,
    reserve_percent,
    parameters,
    weight_dtype,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    cache_dtype,
):
    """Memory less reserve less weights, over the bytes of a token."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
    usable = num_gpus * gigabytes * 10**9 * (100 - reserve_percent) // 100
    pool = max(0, usable - parameters * width[weight_dtype])
    per_token = 2 * num_layers * num_kv_heads * head_dim * width[cache_dtype]
    return f"{pool // per_token} tokens"


def _pool_in_millions(
    num_gpus,
    gigabytes,
    reserve_percent,
    parameters,
    weight_dtype,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    cache_dtype,
):
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
    left = num_gpus * gigabytes * (1 - reserve_percent / 100)
    left -= parameters / 1e9 * width[weight_dtype]
    kilobytes = num_layers * num_kv_heads * head_dim * width[cache_dtype] / 500
    return f"{max(0.0, left / kilobytes):.9f} million tokens"


def _left(usable: float, weights: float, per_token: int) -> str:
    return f"{max(0, int((usable - weights) // per_token))} tokens"


def _pool_no_reserve(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    weights = parameters * WIDTHS[weight_dtype]
    return _left(n * gigabytes * 1e9, weights, 2 * L * G * D * WIDTHS[dtype])


def _pool_reserve_last(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    pool = n * gigabytes * 1e9 - parameters * WIDTHS[weight_dtype]
    return _left(pool * (1 - percent / 100), 0, 2 * L * G * D * WIDTHS[dtype])


def _pool_gib(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    usable = n * gigabytes * 2**30 * (1 - percent / 100)
    return _left(usable, parameters * WIDTHS[weight_dtype], 2 * L * G * D * WIDTHS[dtype])


def _pool_query_heads(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    usable = n * gigabytes * 1e9 * (1 - percent / 100)
    return _left(usable, parameters * WIDTHS[weight_dtype], 2 * L * H * D * WIDTHS[dtype])


def _pool_no_weights(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    return _left(n * gigabytes * 1e9 * (1 - percent / 100), 0, 2 * L * G * D * WIDTHS[dtype])


def _pool_weights_on_each(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    usable, weights = gigabytes * 1e9 * (1 - percent / 100), parameters * WIDTHS[weight_dtype]
    return _left(n * usable, n * weights, 2 * L * G * D * WIDTHS[dtype])


def _pool_keys_alone(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    usable = n * gigabytes * 1e9 * (1 - percent / 100)
    return _left(usable, parameters * WIDTHS[weight_dtype], L * G * D * WIDTHS[dtype])


def _pool_parameters(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    usable = n * gigabytes * 1e9 * (1 - percent / 100)
    return _left(usable, parameters, 2 * L * G * D * WIDTHS[dtype])


def _draw_pool(seed: int) -> Node:
    draw = random.Random(seed)
    parameters, L, H, G, D = shape(draw)
    gigabytes, percent = draw.choice((24, 48, 80, 141)), draw.choice((5, 10, 15))
    num_gpus = 1
    while num_gpus * gigabytes * 10**9 < 4 * parameters:  # the weights take half at most
        num_gpus *= 2
    return (
        num_gpus,
        gigabytes,
        percent,
        parameters,
        "BF16",
        L,
        H,
        G,
        D,
        draw.choice(("BF16", "FP8")),
    )


POOL_TOKENS = Task(
    name="pool_tokens",
    chapter=4,
    title="What fits beside the weights",
    minutes=5,
    points=3,
    level=2,
    spec=(
        "How many tokens of cache fit on num_gpus of so many gigabytes (10^9) each beside one copy "
        "of the weights, when reserve_percent of all memory stays free, as text such as '1.327 "
        "million tokens'."
    ),
    signature=(
        "pool_tokens(num_gpus: int, gigabytes: int, reserve_percent: int, parameters: int, "
        "weight_dtype: str, num_layers: int, num_query_heads: int, num_kv_heads: int, head_dim: "
        "int, cache_dtype: str) -> str"
    ),
    properties=(
        Property(
            "one GPU, no reserve, hardly any weights",
            lambda: _pool_examples((1, 1, 0, 1000, "FP8", 4, 2, 2, 16, "BF16")),
        ),
        Property(
            "a reserve of all memory",
            lambda: _pool_examples(
                (1, 1, 10, 1000, "FP8", 4, 2, 2, 16, "BF16"),
                (1, 1, 10, 400_000_000, "FP8", 4, 2, 2, 16, "BF16"),
            ),
        ),
        Property(
            "the weights in their own type, split over the GPUs",
            lambda: _pool_examples(
                (1, 1, 0, 200_000_000, "BF16", 4, 2, 2, 16, "BF16"),
                (4, 1, 0, 200_000_000, "BF16", 4, 2, 2, 16, "FP8"),
            ),
        ),
        Property(
            "keys and values of the key-value heads",
            lambda: _pool_examples((1, 1, 0, 1000, "FP8", 4, 6, 2, 16, "BF16")),
        ),
        Property(
            "Llama-3-70B on eight H100s, a tenth in reserve, and without",
            lambda: _pool_examples(
                (8, 80, 10, 70_553_706_496, "BF16", 80, 64, 8, 128, "BF16"),
                (8, 80, 0, 70_553_706_496, "BF16", 80, 64, 8, 128, "BF16"),
            ),
        ),
        Property(
            "weights that do not fit leave no token",
            lambda: _pool_examples((1, 80, 10, 70_553_706_496, "BF16", 80, 64, 8, 128, "BF16")),
            edge=True,
        ),
    ),
    hints=(
        "Three steps: what is usable, what the weights leave of it, what a token takes.",
        "Usable is n · gigabytes · 10^9 · (100 − reserve)/100. The weights are there once, split.",
        "(usable − parameters · bytes) // (2 · layers · kv heads · head dim · bytes), at least 0.",
    ),
    mutants=(
        Mutant(
            "no reserve",
            "a share of the memory stays free for activations and workspace; without it 1.33 "
            "million become 1.52",
            _pool_no_reserve,
        ),
        Mutant(
            "reserve of what is left",
            "reserve_percent is a share of all memory; this takes it of what the weights leave",
            _pool_reserve_last,
        ),
        Mutant(
            "GiB for GB",
            "the factor on the memory is 1.024³: a card sold as 80 GB is counted as 80 GiB",
            _pool_gib,
        ),
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads: a token stores the key-value heads",
            _pool_query_heads,
        ),
        Mutant(
            "weights left out",
            "the weights are in the same memory and come off first",
            _pool_no_weights,
        ),
        Mutant(
            "weights on each GPU",
            "the GPUs hold one copy of the weights together, each a part of it",
            _pool_weights_on_each,
        ),
        Mutant(
            "keys alone",
            "a token takes a value beside its key, so half as many fit",
            _pool_keys_alone,
        ),
        Mutant(
            "parameters taken for bytes",
            "a parameter in BF16 takes two bytes: multiply by the width of weight_dtype",
            _pool_parameters,
        ),
    ),
    answers=(_pool_plain, _pool_in_millions),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("tokens"),
    draw=_draw_pool,
    ask=lambda n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype: (
        f"{n} GPU{'s' if n > 1 else ''} of {gigabytes} GB, {percent} % kept in reserve; "
        f"{parameters / 1e9:.1f} billion parameters in {weight_dtype};\n{L} layers, {H} query "
        f"heads, {G} key-value heads of {D} elements, a cache in {dtype}.\n"
        "How many tokens of cache fit?"
    ),
    unit="tokens",
)
