"""Exercise of chapter 04: the bytes that a decode step reads."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes, shape

Sizes = tuple[int, int, int, int, int, int, int, str]

# ── step_read ─────────────────────────────────────────────────────────────────────────────────


def _step_examples(*sizes: Sizes) -> list[Example]:
    """NumPy's count over the weights and over every tensor of the cache."""
    examples = []
    for args in sizes:
        parameters, L, _, G, D, S, B, dtype = args
        cache = nbytes(WIDTHS[dtype], *[(B, G, S, D)] * (2 * L))
        examples.append(Example(args, nbytes(2, (parameters,)) + cache))
    return examples


def _step_plain(
    parameters,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    num_tokens,
    batch_size,
    cache_dtype,
):
    """The weights once, and a cache for each request."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[cache_dtype]
    per_token = 2 * num_layers * num_kv_heads * head_dim * width
    return f"{2 * parameters + batch_size * num_tokens * per_token} B"


def _step_in_gb(
    parameters,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    num_tokens,
    batch_size,
    cache_dtype,
):
    bits = {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[cache_dtype]
    rows = num_tokens * batch_size * num_layers * num_kv_heads
    total = parameters * 16 + sum(rows * head_dim * bits for _ in ("key", "value"))
    return f"{total / 8e9:.12f} GB"


def _read(parameters, L, heads, D, S, B, width, *, reads=1, kinds=2) -> float:
    return 2.0 * parameters * reads + kinds * L * heads * D * width * S * B


def _step_query_heads(parameters, L, H, G, D, S, B, dtype):
    return f"{_read(parameters, L, H, D, S, B, WIDTHS[dtype]):.0f} B"


def _step_weights_each(parameters, L, H, G, D, S, B, dtype):
    return f"{_read(parameters, L, G, D, S, B, WIDTHS[dtype], reads=B):.0f} B"


def _step_one_cache(parameters, L, H, G, D, S, B, dtype):
    return f"{_read(parameters, L, G, D, S, 1, WIDTHS[dtype]):.0f} B"


def _step_weights_alone(parameters, L, H, G, D, S, B, dtype):
    return f"{2 * parameters} B"


def _step_keys_alone(parameters, L, H, G, D, S, B, dtype):
    return f"{_read(parameters, L, G, D, S, B, WIDTHS[dtype], kinds=1):.0f} B"


def _step_two_each(parameters, L, H, G, D, S, B, dtype):
    return f"{_read(parameters, L, G, D, S, B, 2):.0f} B"


def _step_gb_called_gib(parameters, L, H, G, D, S, B, dtype):
    return gb_called_gib(_read(parameters, L, G, D, S, B, WIDTHS[dtype]))


def _draw_step(seed: int) -> Sizes:
    draw = random.Random(seed)
    tokens, batch = draw.choice((1024, 2048, 4096, 8192, 16_384)), draw.choice((8, 16, 32, 64))
    return *shape(draw), tokens, batch, draw.choice(("BF16", "FP8"))


STEP_READ = Task(
    name="step_read",
    chapter=4,
    title="What a step reads",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "What one decode step reads, weights in BF16, as text with its unit, such as '184 GB'; "
        "each of batch_size requests holds num_tokens in a cache of cache_dtype."
    ),
    signature=(
        "step_read(parameters: int, num_layers: int, num_query_heads: int, num_kv_heads: int, "
        "head_dim: int, num_tokens: int, batch_size: int, cache_dtype: str) -> str"
    ),
    properties=(
        Property(
            "one request of one token: little but the weights",
            lambda: _step_examples((48_000, 1, 2, 2, 3, 1, 1, "BF16")),
        ),
        Property(
            "the weights once, however many requests",
            lambda: _step_examples((48_000, 1, 2, 2, 3, 1, 8, "BF16")),
        ),
        Property(
            "each request its own cache",
            lambda: _step_examples(
                (48_000, 4, 2, 2, 16, 64, 1, "BF16"), (48_000, 4, 2, 2, 16, 64, 8, "BF16")
            ),
        ),
        Property(
            "keys and values of the key-value heads",
            lambda: _step_examples((48_000, 4, 6, 2, 16, 64, 8, "BF16")),
        ),
        Property(
            "the cache in its own type",
            lambda: _step_examples((48_000, 4, 6, 2, 16, 64, 8, "FP8")),
        ),
        Property(
            "Llama-3-70B, 32 requests of 4,096 tokens",
            lambda: _step_examples((70_553_706_496, 80, 64, 8, 128, 4096, 32, "BF16")),
        ),
    ),
    hints=(
        "Two terms. Which of them grows with the batch?",
        "Weights: two bytes a parameter, once. Cache: bytes of a token, times tokens, times batch.",
        "2 · parameters + batch · tokens · 2 · layers · kv heads · head dim · bytes an element.",
    ),
    mutants=(
        Mutant(
            "query heads counted",
            "the factor on the cache is query heads over key-value heads: a step reads the heads "
            "that are stored, each once for its whole group",
            _step_query_heads,
        ),
        Mutant(
            "weights for each request",
            "all requests of a batch pass each weight matrix together, so it is read once; that "
            "is what a batch is for",
            _step_weights_each,
        ),
        Mutant(
            "one cache for all",
            "requests share weights and no cache: multiply the second term by the batch",
            _step_one_cache,
        ),
        Mutant(
            "weights alone",
            "the cache is read in every step as well, by attention; at long contexts it is most of "
            "the bytes",
            _step_weights_alone,
        ),
        Mutant(
            "keys alone",
            "half of the cache is missing: values are read as well as keys",
            _step_keys_alone,
        ),
        Mutant(
            "two bytes whatever the type",
            "the cache is counted at two bytes an element; FP8 takes one",
            _step_two_each,
        ),
        Mutant(
            "GB called GiB",
            "the factor is 1.024 for each power of 1,000, 1.024³ at GiB: the number was divided "
            "by 1,000s and labelled in binary units",
            _step_gb_called_gib,
        ),
    ),
    answers=(_step_plain, _step_in_gb),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_step,
    ask=lambda parameters, L, H, G, D, S, B, dtype: (
        f"{parameters / 1e9:.1f} billion parameters in BF16; {L} layers, {H} query heads, {G} "
        f"key-value heads of {D} elements;\n{B} requests of {S:,} tokens each, their cache in "
        f"{dtype}.\nWhat does one decode step read?"
    ),
    unit="B",
)
