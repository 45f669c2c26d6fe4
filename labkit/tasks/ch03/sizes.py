"""Exercises of chapter 03 on grouped attention's cache, answered with a number and its unit."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes, shape

# ── token_bytes ───────────────────────────────────────────────────────────────────────────────


def _token_examples(*shapes: tuple[int, int, int, int, str]) -> list[Example]:
    return [
        Example((L, H, G, D, dtype), nbytes(WIDTHS[dtype], *[(G, D)] * (2 * L)))
        for L, H, G, D, dtype in shapes
    ]


def _token_bytes_plain(num_layers, num_query_heads, num_kv_heads, head_dim, dtype):
    """A key and a value for each layer and key-value head."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    return f"{2 * num_layers * num_kv_heads * head_dim * width} B"


def _token_bytes_in_kib(num_layers, num_query_heads, num_kv_heads, head_dim, dtype):
    vectors = num_layers * num_kv_heads * ["key", "value"]
    kib = len(vectors) * head_dim * {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype] / 8192
    return f"{kib:.9f} KiB"


def _token_query_heads(L, H, G, D, dtype):
    return f"{2 * L * H * D * WIDTHS[dtype]} B"


def _token_keys_alone(L, H, G, D, dtype):
    return f"{L * G * D * WIDTHS[dtype]} B"


def _token_one_layer(L, H, G, D, dtype):
    return f"{2 * G * D * WIDTHS[dtype]} B"


def _token_two_each(L, H, G, D, dtype):
    return f"{2 * L * G * D * 2} B"


def _token_queries(L, H, G, D, dtype):
    return f"{L * (2 * G + H) * D * WIDTHS[dtype]} B"


def _token_bits(L, H, G, D, dtype):
    return f"{16 * L * G * D * WIDTHS[dtype]} B"


def _token_kb_called_kib(L, H, G, D, dtype):
    return gb_called_gib(2 * L * G * D * WIDTHS[dtype])


def _draw_token(seed: int) -> tuple[int, int, int, int, str]:
    draw = random.Random(seed)
    _, L, H, G, D = shape(draw)
    return L, H, G, D, draw.choice(tuple(WIDTHS))


TOKEN_BYTES = Task(
    name="token_bytes",
    chapter=3,
    title="One token",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "What one token adds to the KV cache, as text with its unit, such as '320 KiB'; dtype is "
        "FP32, BF16, FP16 or FP8."
    ),
    signature=(
        "token_bytes(num_layers: int, num_query_heads: int, num_kv_heads: int, head_dim: int, "
        "dtype: str) -> str"
    ),
    properties=(
        Property(
            "one layer: a key and a value for each head",
            lambda: _token_examples((1, 2, 2, 3, "BF16"), (1, 5, 5, 64, "BF16")),
        ),
        Property(
            "key-value heads are stored, not query heads",
            lambda: _token_examples((1, 6, 2, 3, "BF16"), (1, 12, 4, 96, "BF16")),
        ),
        Property(
            "every layer has its own",
            lambda: _token_examples((5, 2, 2, 3, "BF16"), (30, 9, 3, 64, "BF16")),
        ),
        Property(
            "the width of the element counts",
            lambda: _token_examples((1, 2, 2, 3, "FP32"), (7, 6, 2, 5, "FP8")),
        ),
        Property(
            "models as they are",
            lambda: _token_examples((80, 64, 8, 128, "BF16"), (32, 32, 32, 128, "FP16")),
        ),
    ),
    hints=(
        "Count the numbers first: which tensors does a layer keep for one token, of which shape?",
        "A key and a value of head_dim numbers for each key-value head, in each layer.",
        "2 · layers · kv heads · head dim · bytes an element; return f'{n} B'.",
    ),
    mutants=(
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads: the cache holds num_kv_heads of each, "
            "however many query heads read them",
            _token_query_heads,
        ),
        Mutant(
            "keys alone",
            "a factor of 2 is missing: a layer keeps a value beside each key",
            _token_keys_alone,
        ),
        Mutant(
            "one layer",
            "this is one layer's share; each has keys and values of its own",
            _token_one_layer,
        ),
        Mutant(
            "two bytes whatever the type",
            "FP32 takes four bytes an element and FP8 one; only BF16 and FP16 take two",
            _token_two_each,
        ),
        Mutant(
            "queries stored",
            "a query is used in the step that makes it and not kept, so heads of queries add "
            "nothing",
            _token_queries,
        ),
        Mutant(
            "bits",
            "a factor of 8: the count is in bits and labelled as bytes",
            _token_bits,
        ),
        Mutant(
            "kB called KiB",
            "the number was divided by 1,000 and labelled KiB: a KiB is 1,024 bytes, 2.4 percent "
            "more than a kB",
            _token_kb_called_kib,
        ),
    ),
    answers=(_token_bytes_plain, _token_bytes_in_kib),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_token,
    ask=lambda L, H, G, D, dtype: (
        f"A decoder of {L} layers has {H} query heads and {G} key-value heads of {D} elements "
        f"each.\nWhat does one token add to its cache in {dtype}?"
    ),
    unit="B",
)


# ── batch_cache ───────────────────────────────────────────────────────────────────────────────


def _batch_examples(*shapes: tuple[int, int, int, int, str, int, int]) -> list[Example]:
    return [
        Example((L, H, G, D, dtype, S, B), nbytes(WIDTHS[dtype], *[(B, G, S, D)] * (2 * L)))
        for L, H, G, D, dtype, S, B in shapes
    ]


def _batch_cache_plain(
    num_layers, num_query_heads, num_kv_heads, head_dim, dtype, num_tokens, batch_size
):
    """Bytes of a token, times tokens, times requests."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    per_token = 2 * num_layers * num_kv_heads * head_dim * width
    return f"{per_token * num_tokens * batch_size} B"


def _batch_cache_in_gib(
    num_layers, num_query_heads, num_kv_heads, head_dim, dtype, num_tokens, batch_size
):
    held = [num_tokens] * batch_size
    elements = sum(held) * num_kv_heads * head_dim * num_layers * len(("key", "value"))
    return f"{elements * {'FP32': 4, 'BF16': 2, 'FP16': 2, 'FP8': 1}[dtype] / 2**30:.12f} GiB"


def _batch_query_heads(L, H, G, D, dtype, S, B):
    return f"{2 * L * H * D * WIDTHS[dtype] * S * B} B"


def _batch_one_request(L, H, G, D, dtype, S, B):
    return f"{2 * L * G * D * WIDTHS[dtype] * S} B"


def _batch_one_token(L, H, G, D, dtype, S, B):
    return f"{2 * L * G * D * WIDTHS[dtype] * B} B"


def _batch_keys_alone(L, H, G, D, dtype, S, B):
    return f"{L * G * D * WIDTHS[dtype] * S * B} B"


def _batch_two_each(L, H, G, D, dtype, S, B):
    return f"{4 * L * G * D * S * B} B"


def _batchgb_called_gib(L, H, G, D, dtype, S, B):
    return gb_called_gib(2 * L * G * D * WIDTHS[dtype] * S * B)


def _draw_batch(seed: int) -> tuple[int, int, int, int, str, int, int]:
    draw = random.Random(seed)
    _, L, H, G, D = shape(draw)
    dtype = draw.choice(("BF16", "FP8"))
    return L, H, G, D, dtype, draw.choice((4096, 8192, 32_768, 131_072)), draw.choice((4, 16, 48))


BATCH_CACHE = Task(
    name="batch_cache",
    chapter=3,
    title="A batch",
    minutes=3,
    points=1,
    level=1,
    spec=(
        "What the KV cache of batch_size requests of num_tokens each occupies, as text with its "
        "unit."
    ),
    signature=(
        "batch_cache(num_layers: int, num_query_heads: int, num_kv_heads: int, head_dim: int, "
        "dtype: str, num_tokens: int, batch_size: int) -> str"
    ),
    properties=(
        Property(
            "one token of one request",
            lambda: _batch_examples((1, 2, 2, 3, "BF16", 1, 1), (5, 2, 2, 3, "FP16", 1, 1)),
        ),
        Property(
            "each token and each request has its own",
            lambda: _batch_examples((1, 2, 2, 3, "BF16", 7, 1), (5, 2, 2, 3, "BF16", 1, 4)),
        ),
        Property(
            "key-value heads, in the type they are stored in",
            lambda: _batch_examples((1, 6, 2, 3, "BF16", 1, 1), (5, 6, 2, 3, "FP8", 7, 4)),
        ),
        Property(
            "in GB or in GiB, as long as the label says which",
            lambda: _batch_examples(
                (80, 64, 8, 128, "BF16", 4096, 32), (28, 28, 4, 128, "FP8", 131_072, 12)
            ),
        ),
    ),
    hints=(
        "Start from one token; then ask what multiplies it.",
        "Tokens and requests multiply: nothing in the cache is shared between requests.",
        "bytes a token · tokens · requests; 2**30 bytes are a GiB, 10**9 a GB.",
    ),
    mutants=(
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads, 8 in Llama-3-70B: only key-value "
            "heads are stored",
            _batch_query_heads,
        ),
        Mutant(
            "one request",
            "each request of the batch has a cache of its own: multiply by batch_size",
            _batch_one_request,
        ),
        Mutant(
            "one token",
            "every token of the context is kept: multiply by num_tokens",
            _batch_one_token,
        ),
        Mutant(
            "keys alone",
            "a factor of 2 is missing: values are kept beside keys",
            _batch_keys_alone,
        ),
        Mutant(
            "two bytes whatever the type",
            "an FP8 cache takes one byte an element, half of BF16",
            _batch_two_each,
        ),
        Mutant(
            "GB called GiB",
            "the factor is 1.024³: the number was divided by 10^9 and labelled GiB; a GiB is 2^30 "
            "bytes, 7.4 percent more than a GB",
            _batchgb_called_gib,
        ),
    ),
    answers=(_batch_cache_plain, _batch_cache_in_gib),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_batch,
    ask=lambda L, H, G, D, dtype, S, B: (
        f"{L} layers, {H} query heads, {G} key-value heads of {D} elements, a cache in {dtype}.\n"
        f"What do {B} requests of {S:,} tokens each occupy?"
    ),
    unit="B",
)
