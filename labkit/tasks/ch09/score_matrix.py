"""Exercise of chapter 09 on the matrix that is never made, answered with a number and its unit."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes

Shape = tuple[int, int, int, str]

# ── score_matrix ──────────────────────────────────────────────────────────────────────────────


def _score_examples(*shapes: Shape) -> list[Example]:
    """NumPy's own count for an array of that shape."""
    return [
        Example((H, N, B, dtype), nbytes(WIDTHS[dtype], (B, H, N, N))) for H, N, B, dtype in shapes
    ]


def _score_plain(num_heads, num_tokens, batch_size, dtype):
    """A score for each pair of a query and a key, in every head of every prompt."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    return f"{batch_size * num_heads * num_tokens**2 * width} B"


def _score_in_gib(num_heads, num_tokens, batch_size, dtype):
    bits = {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype]
    row = num_tokens * bits / 8  # of one query
    return f"{sum(row * num_tokens for _ in range(num_heads * batch_size)) / 2**30:.12f} GiB"


def _score_per_token(H, N, B, dtype):
    return f"{B * H * N * WIDTHS[dtype]} B"


def _score_one_head(H, N, B, dtype):
    return f"{B * N**2 * WIDTHS[dtype]} B"


def _score_one_prompt(H, N, B, dtype):
    return f"{H * N**2 * WIDTHS[dtype]} B"


def _score_joined(H, N, B, dtype):
    return f"{H * (B * N) ** 2 * WIDTHS[dtype]} B"


def _score_triangle(H, N, B, dtype):
    return f"{B * H * (N * (N + 1) // 2) * WIDTHS[dtype]} B"


def _score_half(H, N, B, dtype):
    return f"{B * H * N**2 * WIDTHS[dtype] / 2:.1f} B"


def _score_two_each(H, N, B, dtype):
    return f"{2 * B * H * N**2} B"


def _score_twice(H, N, B, dtype):
    return f"{2 * B * H * N**2 * WIDTHS[dtype]} B"


def _score_bits(H, N, B, dtype):
    return f"{8 * B * H * N**2 * WIDTHS[dtype]} B"


def _score_gb_called_gib(H, N, B, dtype):
    return gb_called_gib(B * H * N**2 * WIDTHS[dtype])


def _draw_scores(seed: int) -> Shape:
    draw = random.Random(seed)
    H = draw.choice((12, 16, 24, 28, 32, 40, 64, 71, 128))
    N = 1024 * draw.choice((3, 6, 8, 12, 24, 32, 96, 128))
    return H, N, draw.choice((3, 5, 6, 12)), draw.choice(("FP32", "BF16"))


SCORE_MATRIX = Task(
    name="score_matrix",
    chapter=9,
    title="The matrix nobody asked for",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "What the scores of one layer take where they are kept, masked ones included, as text with "
        "its unit, such as '4 GiB': batch_size prompts of num_tokens tokens each, every token a "
        "query and a key, num_heads query heads; dtype is FP32, BF16, FP16 or FP8."
    ),
    signature="score_matrix(num_heads: int, num_tokens: int, batch_size: int, dtype: str) -> str",
    properties=(
        Property("one query and one key: one score", lambda: _score_examples((1, 1, 1, "BF16"))),
        Property(
            "every query has a score for every key",
            lambda: _score_examples((1, 5, 1, "BF16"), (1, 1000, 1, "BF16")),
        ),
        Property(
            "query heads and prompts have scores of their own",
            lambda: _score_examples((3, 7, 1, "BF16"), (1, 7, 5, "BF16"), (9, 300, 2, "FP16")),
        ),
        Property(
            "the width of the element counts",
            lambda: _score_examples((3, 7, 2, "FP32"), (12, 640, 3, "FP8")),
        ),
        Property(
            "32 heads: 8,192 tokens take 4 GiB, 131,072 a TiB",
            lambda: _score_examples((32, 8192, 1, "BF16"), (32, 131_072, 1, "BF16")),
        ),
    ),
    hints=(
        "How many rows has the matrix of one head, and how many columns?",
        "num_tokens rows of num_tokens scores, once for each head of each prompt.",
        "batch · heads · tokens² · bytes an element; return f'{n} B'.",
    ),
    mutants=(
        Mutant(
            "one score a token",
            "a query has a score for every key, not one in all: the matrix grows with the square "
            "of the length, which is why it is not kept",
            _score_per_token,
        ),
        Mutant(
            "one head",
            "every query head has a matrix of its own, those that share keys too",
            _score_one_head,
        ),
        Mutant(
            "one prompt",
            "the prompts of a batch each have their own scores",
            _score_one_prompt,
        ),
        Mutant(
            "prompts joined",
            "a token is no key for another prompt's queries: the length is squared, the batch not",
            _score_joined,
        ),
        Mutant(
            "triangle alone",
            "half of the scores are masked, and yet kept: minus infinity takes as many bytes as "
            "any other number; only a kernel that skips tiles saves them",
            _score_triangle,
            also=(_score_half,),
        ),
        Mutant(
            "two bytes whatever the type",
            "FP32 takes four bytes an element and FP8 one; only BF16 and FP16 take two",
            _score_two_each,
        ),
        Mutant(
            "scores and weights",
            "the weights behind the softmax are a second matrix of the same size; the scores alone "
            "were asked for",
            _score_twice,
        ),
        Mutant(
            "bits",
            "a factor of 8: the count is in bits and labelled as bytes",
            _score_bits,
        ),
        Mutant(
            "GB called GiB",
            "the number was divided by 1,000 to some power and labelled as one of 1,024: a GiB is "
            "7.4 percent more than a GB",
            _score_gb_called_gib,
        ),
    ),
    answers=(_score_plain, _score_in_gib),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_scores,
    ask=lambda H, N, B, dtype: (
        f"{B} prompts of {N:,} tokens are read at once by a layer of {H} query heads that keeps "
        f"its scores in {dtype}.\nHow much memory do the scores take?"
    ),
    unit="B",
)
