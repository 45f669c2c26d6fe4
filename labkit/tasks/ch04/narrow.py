"""Exercise of chapter 04: how far the bound of a step falls with an 8-bit cache."""

import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task

# ── fp8_gain ──────────────────────────────────────────────────────────────────────────────────


def _fp8_examples(*steps: tuple[float, float]) -> list[Example]:
    """Bytes before over bytes after, weights and cache each with its own width."""
    examples = []
    for args in steps:
        weights, cache = (Fraction(str(gigabytes)) for gigabytes in args)
        numbers = {"weights": weights / 2, "cache": cache / 2}  # of two bytes each
        before = sum(2 * n for n in numbers.values())
        after = 2 * numbers["weights"] + 1 * numbers["cache"]
        examples.append(Example(args, float(before / after)))
    return examples


def _fp8_plain(weight_gigabytes, cache_gigabytes):
    """The cache halves, the weights stay."""
    before = weight_gigabytes + cache_gigabytes
    return f"{before / (weight_gigabytes + cache_gigabytes / 2)} times"


def _fp8_by_share(weight_gigabytes, cache_gigabytes):
    share = cache_gigabytes / (weight_gigabytes + cache_gigabytes)
    return f"{100 / (1 - share / 2):.9f} %"


def _fp8_everything(weights, cache):
    return "2 times"


def _fp8_weights(weights, cache):
    return f"{(weights + cache) / (weights / 2 + cache)} times"


def _fp8_half_the_share(weights, cache):
    return f"{1 + cache / (weights + cache) / 2} times"


def _fp8_free(weights, cache):
    return f"{(weights + cache) / weights} times"


def _fp8_inverse(weights, cache):
    return f"{(weights + cache / 2) / (weights + cache)} times"


def _draw_fp8(seed: int) -> tuple[float, float]:
    draw = random.Random(seed)
    weights = draw.choice((16.1, 29.5, 65.5, 141.1, 812.0))
    return weights, round(weights * draw.choice((0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0)), 1)


FP8_GAIN = Task(
    name="fp8_gain",
    chapter=4,
    title="An 8-bit cache",
    minutes=3,
    points=2,
    level=2,
    spec=(
        "By how many times the bound on a memory-bound decode step falls when its BF16 cache is "
        "stored in FP8, as text such as '1.13 times'; the weights it reads stay in BF16."
    ),
    signature="fp8_gain(weight_gigabytes: float, cache_gigabytes: float) -> str",
    properties=(
        Property("next to no cache", lambda: _fp8_examples((1000.0, 1.0))),
        Property(
            "a cache that counts",
            lambda: _fp8_examples((10.0, 2.5), (10.0, 10.0), (10.0, 40.0)),
        ),
        Property(
            "Llama-3-70B at 32 and at 324 requests of 4,096 tokens",
            lambda: _fp8_examples((141.107, 42.95), (141.107, 434.865)),
        ),
        Property("nearly all cache: nearly 2", lambda: _fp8_examples((1.0, 1000.0)), edge=True),
    ),
    hints=(
        "Write down the bytes before and after. Which of the two terms changes?",
        "Before W + C, after W + C/2; the bound falls with the bytes: before over after.",
        "(W + C) / (W + C/2).",
    ),
    mutants=(
        Mutant(
            "everything halves",
            "only the cache is stored in 8 bits; the weights, which are read too, keep their 16",
            _fp8_everything,
        ),
        Mutant(
            "weights halved",
            "it is the cache that is narrowed here, not the weights",
            _fp8_weights,
        ),
        Mutant(
            "half the share added",
            "saving a share x of the bytes is a factor of 1 / (1 − x), not of 1 + x",
            _fp8_half_the_share,
        ),
        Mutant(
            "cache for free",
            "an 8-bit cache is half as large, not gone: half of its bytes are still read",
            _fp8_free,
        ),
        Mutant(
            "time, not speed",
            "this is the new bound over the old one; the factor asked for is its inverse",
            _fp8_inverse,
        ),
    ),
    answers=(_fp8_plain, _fp8_by_share),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("times"),
    draw=_draw_fp8,
    ask=lambda weights, cache: (
        f"A decode step reads {weights:g} GB of weights and {cache:g} GB of cache, both in BF16.\n"
        "The cache is stored in FP8 instead. By how many times does the bound on the step fall?"
    ),
    unit="times",
)
