"""Exercise of chapter 03 on the cache of latent attention, answered with a number and its unit."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes

# ── latent_cache ──────────────────────────────────────────────────────────────────────────────


def _latent_examples(*shapes: tuple[int, int, int, int, int, int, str, int]) -> list[Example]:
    return [
        Example(args, nbytes(WIDTHS[args[6]], *[(args[7], args[2]), (args[7], args[3])] * args[0]))
        for args in shapes
    ]


def _latent_cache_plain(
    num_layers,
    num_query_heads,
    latent_width,
    rope_width,
    head_dim,
    value_dim,
    dtype,
    num_tokens,
):
    """One latent and one rotary key a layer and token, whatever the number of heads."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    return f"{num_layers * (latent_width + rope_width) * width * num_tokens} B"


def _latent_cache_in_mib(
    num_layers,
    num_query_heads,
    latent_width,
    rope_width,
    head_dim,
    value_dim,
    dtype,
    num_tokens,
):
    layers = [num_tokens * width for width in (latent_width, rope_width)] * num_layers
    bits = sum(layers) * {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype]
    return f"{bits / 2**23:.9f} MiB"


def _latent_expanded(L, H, C, R, D, E, dtype, S):
    return f"{L * H * (D + R + E) * WIDTHS[dtype] * S} B"


def _latent_rope_per_head(L, H, C, R, D, E, dtype, S):
    return f"{L * (C + H * R) * WIDTHS[dtype] * S} B"


def _latent_twice(L, H, C, R, D, E, dtype, S):
    return f"{2 * L * (C + R) * WIDTHS[dtype] * S} B"


def _latent_without_rope(L, H, C, R, D, E, dtype, S):
    return f"{L * C * WIDTHS[dtype] * S} B"


def _latent_one_layer(L, H, C, R, D, E, dtype, S):
    return f"{(C + R) * WIDTHS[dtype] * S} B"


def _latentgb_called_gib(L, H, C, R, D, E, dtype, S):
    return gb_called_gib(L * (C + R) * WIDTHS[dtype] * S)


def _draw_latent(seed: int) -> tuple[int, int, int, int, int, int, str, int]:
    draw = random.Random(seed)
    L, H = draw.choice((27, 48, 60, 61, 78)), draw.choice((16, 64, 128))
    C, R = draw.choice((256, 384, 512)), draw.choice((32, 64))
    D, E = draw.choice((64, 96, 192)), draw.choice((128, 256))
    return L, H, C, R, D, E, draw.choice(("BF16", "FP8")), draw.choice((32_768, 131_072))


LATENT_CACHE = Task(
    name="latent_cache",
    chapter=3,
    title="A request under MLA",
    minutes=4,
    points=2,
    level=2,
    spec=(
        "What one request of num_tokens occupies under multi-head latent attention, as text with "
        "its unit; a key is head_dim numbers without position and rope_width with."
    ),
    signature=(
        "latent_cache(num_layers: int, num_query_heads: int, latent_width: int, rope_width: int, "
        "head_dim: int, value_dim: int, dtype: str, num_tokens: int) -> str"
    ),
    properties=(
        Property(
            "one layer, one head",
            lambda: _latent_examples((1, 1, 5, 2, 3, 2, "BF16", 1), (1, 1, 5, 2, 3, 2, "BF16", 7)),
        ),
        Property(
            "heads share what is stored",
            lambda: _latent_examples((1, 6, 5, 2, 3, 2, "BF16", 1), (1, 16, 5, 2, 9, 4, "FP8", 3)),
        ),
        Property(
            "every layer has its own",
            lambda: _latent_examples((4, 6, 5, 2, 3, 2, "FP32", 3)),
        ),
        Property(
            "DeepSeek-V3 at 128k tokens",
            lambda: _latent_examples((61, 128, 512, 64, 128, 128, "BF16", 131_072)),
        ),
    ),
    hints=(
        "Which tensors does a layer keep? Neither keys nor values are among them.",
        "One latent of latent_width numbers and one rotary key of rope_width, shared by all heads.",
        "layers · (latent_width + rope_width) · bytes an element · tokens.",
    ),
    mutants=(
        Mutant(
            "expanded to every head",
            "this is the cache of keys and values after the up-projection, which absorption "
            "exists to avoid: DeepSeek-V3 would hold 71 times as much",
            _latent_expanded,
        ),
        Mutant(
            "a rotary key for every head",
            "queries have a rotary part per head; the rotary key is one and shared",
            _latent_rope_per_head,
        ),
        Mutant(
            "stored for keys and for values",
            "a factor of 2 too many: keys and values are both made from the same latent, and the "
            "rotary part belongs to keys alone",
            _latent_twice,
        ),
        Mutant(
            "rotary key left out",
            "the latent carries no position; the rotary key is stored beside it",
            _latent_without_rope,
        ),
        Mutant(
            "one layer",
            "each layer has a latent of its own",
            _latent_one_layer,
        ),
        Mutant(
            "GB called GiB",
            "the number was divided by a power of 1,000 and labelled in powers of 1,024",
            _latentgb_called_gib,
        ),
    ),
    answers=(_latent_cache_plain, _latent_cache_in_mib),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_latent,
    ask=lambda L, H, C, R, D, E, dtype, S: (
        f"{L} layers of latent attention with {H} heads:\n"
        f"a latent of {C} and a rotary key of {R} numbers, keys of {D} + {R}, values of {E}.\n"
        f"What does one request of {S:,} tokens occupy in {dtype}?"
    ),
    unit="B",
)
