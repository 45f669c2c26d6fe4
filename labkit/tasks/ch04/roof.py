"""Exercises of chapter 04 on the roofline: the least time of a step, and the batch of the ridge."""

import math
import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task

# ── step_time ─────────────────────────────────────────────────────────────────────────────────

# Bandwidth in TB/s and dense BF16 rate in TFLOP/s, from the data sheets in refimpl.hardware.
GPUS = {"A100 (80 GB)": (2.039, 312.0), "H100 SXM": (3.35, 989.0), "H200": (4.8, 989.0)}


def _time_examples(*passes: tuple[int, int, int, float, float]) -> list[Example]:
    """Both times in exact fractions; the pass is over when the later one is."""
    examples = []
    for args in passes:
        num_bytes, flops, num_gpus, terabytes, teraflops = args
        moved = Fraction(num_bytes) / (num_gpus * Fraction(str(terabytes)))
        computed = Fraction(flops) / (num_gpus * Fraction(str(teraflops)))
        picoseconds = moved if moved > computed else computed  # 10^12 of either in a second
        examples.append(Example(args, float(picoseconds / 10**9)))
    return examples


def _time_plain(num_bytes, flops, num_gpus, terabytes_per_second, teraflops):
    """The slower of the two."""
    memory = num_bytes / (num_gpus * terabytes_per_second * 1e12)
    arithmetic = flops / (num_gpus * teraflops * 1e12)
    return f"{1000 * max(memory, arithmetic)} ms"


def _time_by_intensity(num_bytes, flops, num_gpus, terabytes_per_second, teraflops):
    if flops * terabytes_per_second < num_bytes * teraflops:
        return f"{num_bytes / num_gpus / terabytes_per_second / 1e12:.12f} s"
    return f"{flops / num_gpus / teraflops / 1e12:.12f} s"


def _time_memory_alone(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{num_bytes / num_gpus / terabytes / 1e9} ms"


def _time_arithmetic_alone(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{flops / num_gpus / teraflops / 1e9} ms"


def _time_sum(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{(num_bytes / terabytes + flops / teraflops) / num_gpus / 1e9} ms"


def _time_smaller(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{min(num_bytes / terabytes, flops / teraflops) / num_gpus / 1e9} ms"


def _time_one_gpu(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{max(num_bytes / terabytes, flops / teraflops) / 1e9} ms"


def _time_memory_not_split(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{max(num_bytes / terabytes, flops / teraflops / num_gpus) / 1e9} ms"


def _time_one_flop_each(num_bytes, flops, num_gpus, terabytes, teraflops):
    return f"{max(num_bytes / terabytes, flops / teraflops / 2) / num_gpus / 1e9} ms"


def _draw_time(seed: int) -> tuple[int, int, int, float, float]:
    draw = random.Random(seed)
    terabytes, teraflops = draw.choice(tuple(GPUS.values()))
    billions, num_gpus = draw.choice(((8, 1), (14, 2), (32, 4), (70, 8)))
    parameters = billions * 10**9
    if draw.random() < 0.5:  # a decode step
        batch, cache = draw.choice((1, 8, 32)), draw.randint(1, 40) * 10**9
        return 2 * parameters + cache, 2 * parameters * batch, num_gpus, terabytes, teraflops
    prompt = draw.choice((1024, 2048, 4096, 8192))
    return 2 * parameters, 2 * parameters * prompt, num_gpus, terabytes, teraflops


STEP_TIME = Task(
    name="step_time",
    chapter=4,
    title="The least time",
    minutes=3,
    points=1,
    level=1,
    spec=(
        "The roofline's bound on the time of a pass that moves num_bytes and computes flops on "
        "num_gpus devices, each with this bandwidth and this dense rate, as text such as '6.87 "
        "ms'."
    ),
    signature=(
        "step_time(num_bytes: int, flops: int, num_gpus: int, terabytes_per_second: float, "
        "teraflops: float) -> str"
    ),
    properties=(
        Property(
            "one device, bytes to move and next to nothing to compute",
            lambda: _time_examples((10**9, 10**9, 1, 1.0, 100.0)),
        ),
        Property(
            "one device, much to compute",
            lambda: _time_examples((10**9, 10**12, 1, 1.0, 100.0)),
        ),
        Property(
            "bytes and FLOPs close to the ridge",
            lambda: _time_examples((10**9, 9 * 10**10, 1, 1.0, 100.0)),
        ),
        Property(
            "several devices share both",
            lambda: _time_examples(
                (8 * 10**9, 10**10, 4, 2.0, 300.0), (8 * 10**9, 4 * 10**12, 4, 2.0, 300.0)
            ),
        ),
        Property(
            "Llama-3-70B on eight H100s: a decode step, a prefill",
            lambda: _time_examples(
                (184_057_085_952, 4_859_034_599_424, 8, 3.35, 989.0),
                (141_778_501_632, 294_488_224_301_056, 8, 3.35, 989.0),
            ),
        ),
    ),
    hints=(
        "Two times: one to move the bytes, one to compute the FLOPs. Do they happen one after the "
        "other?",
        "At best they overlap, so the longer one counts. Both rates are multiplied by num_gpus.",
        "max(num_bytes / (n · TB/s · 1e12), flops / (n · TFLOP/s · 1e12)) seconds.",
    ),
    mutants=(
        Mutant(
            "memory alone",
            "a prefill or a very large batch is bound by arithmetic: the time of the FLOPs can be "
            "the longer one",
            _time_memory_alone,
        ),
        Mutant(
            "arithmetic alone",
            "the bytes take time too, and in decoding that is nearly all of it",
            _time_arithmetic_alone,
        ),
        Mutant(
            "one after the other",
            "memory and arithmetic are added; the bound lets them overlap, so that it holds for "
            "every program",
            _time_sum,
        ),
        Mutant(
            "the faster of the two",
            "the pass is over when both are done: the longer time counts, not the shorter",
            _time_smaller,
        ),
        Mutant(
            "one GPU",
            "the work is split: num_gpus devices have as many times the bandwidth and the rate",
            _time_one_gpu,
        ),
        Mutant(
            "arithmetic split, memory not",
            "each device reads its own part of the weights and of the cache, so bandwidths add up "
            "as rates do",
            _time_memory_not_split,
        ),
        Mutant(
            "half the FLOPs",
            "multiply and add are two FLOPs on the data sheet and in the count given; do not "
            "halve them",
            _time_one_flop_each,
        ),
    ),
    answers=(_time_plain, _time_by_intensity),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("ms"),
    draw=_draw_time,
    ask=lambda num_bytes, flops, num_gpus, terabytes, teraflops: (
        f"A pass moves {num_bytes / 1e9:.0f} GB and computes {flops / 1e12:g} TFLOP on "
        f"{num_gpus} GPU{'s' if num_gpus > 1 else ''} of {terabytes:g} TB/s\nand {teraflops:g} "
        "TFLOP/s each. How long does it take at least?"
    ),
    unit="ms",
)


# ── ridge_batch ───────────────────────────────────────────────────────────────────────────────


def _ridge_examples(*roofs: tuple[float, float, int]) -> list[Example]:
    """Count up until the FLOPs take as long as the read, for one weight."""
    examples = []
    for args in roofs:
        teraflops, terabytes, bits = (Fraction(str(x)) for x in args)
        batch = 1
        while 2 * batch / teraflops < bits / 8 / terabytes:
            batch += 1
        examples.append(Example(args, batch))
    return examples


def _ridge_plain(teraflops, terabytes_per_second, weight_bits):
    """2 FLOPs a request for each weight, which takes weight_bits / 8 bytes."""
    ridge = Fraction(str(teraflops)) / Fraction(str(terabytes_per_second))  # exact
    per_request = Fraction(2 * 8, weight_bits)
    return math.ceil(ridge / per_request)


def _ridge_in_integers(teraflops, terabytes_per_second, weight_bits):
    flops, read = round(teraflops * 10**6), round(terabytes_per_second * 10**6)
    return -(-flops * weight_bits // (16 * read))


def _ridge_always_16(teraflops, terabytes, bits):
    return math.ceil(teraflops / terabytes)


def _ridge_down(teraflops, terabytes, bits):
    return int(teraflops / terabytes * bits / 16)


def _ridge_nearest(teraflops, terabytes, bits):
    return round(teraflops / terabytes * bits / 16)


def _ridge_one_flop(teraflops, terabytes, bits):
    return math.ceil(teraflops / terabytes * bits / 8)


def _ridge_narrow_is_slow(teraflops, terabytes, bits):
    return math.ceil(teraflops / terabytes * 16 / bits)


def _ridge_inverse(teraflops, terabytes, bits):
    return math.ceil(terabytes / teraflops * bits / 16)


RIDGE_BATCH = Task(
    name="ridge_batch",
    chapter=4,
    title="The batch of the ridge",
    minutes=5,
    points=2,
    level=1,
    spec=(
        "The smallest batch at which a weight matrix, read once and used for every request, keeps "
        "the arithmetic as busy as the memory; weights take weight_bits each, the cache is left "
        "out."
    ),
    signature=(
        "ridge_batch(teraflops: float, terabytes_per_second: float, weight_bits: int) -> int"
    ),
    properties=(
        Property(
            "one FLOP per byte, weights of two bytes",
            lambda: _ridge_examples((1.0, 1.0, 16)),
        ),
        Property(
            "many FLOPs per byte",
            lambda: _ridge_examples((300.0, 2.0, 16), (64.0, 4.0, 16)),
        ),
        Property(
            "narrower weights reach it sooner",
            lambda: _ridge_examples((300.0, 2.0, 8), (300.0, 2.0, 4)),
        ),
        Property(
            "a whole batch, not less than the ridge",
            lambda: _ridge_examples((989.0, 3.35, 16), (312.0, 2.039, 16), (989.0, 3.35, 8)),
        ),
    ),
    hints=(
        "How many FLOPs does one weight give for a batch of B, and how many bytes does it cost?",
        "2 · B FLOPs for weight_bits / 8 bytes. The ridge is peak over bandwidth, FLOPs a byte.",
        "B = ridge · weight_bits / 16, rounded up.",
    ),
    mutants=(
        Mutant(
            "two bytes whatever the width",
            "a weight of 8 or 4 bits costs one byte or half of one, so fewer requests suffice",
            _ridge_always_16,
        ),
        Mutant(
            "rounded down",
            "one request fewer is still below the ridge: the smallest batch that reaches it is "
            "rounded up",
            _ridge_down,
        ),
        Mutant(
            "rounded to the nearest",
            "rounding to the nearest may end below the ridge; round up",
            _ridge_nearest,
        ),
        Mutant(
            "one FLOP for a multiply-add",
            "each weight is multiplied and added for each request: 2 FLOPs, as data sheets count",
            _ridge_one_flop,
        ),
        Mutant(
            "narrow weights need more",
            "fewer bits mean fewer bytes for the same FLOPs: the batch shrinks with the width and "
            "does not grow",
            _ridge_narrow_is_slow,
        ),
        Mutant(
            "bandwidth over peak",
            "the ridge is FLOP/s over bytes/s; this is its inverse",
            _ridge_inverse,
        ),
    ),
    answers=(_ridge_plain, _ridge_in_integers),
)
