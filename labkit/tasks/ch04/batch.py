"""Exercises of chapter 04 on the batch: what a doubling brings, and how large one may be."""

import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import shape

# ── doubling_gain ─────────────────────────────────────────────────────────────────────────────


def _gain_examples(*steps: tuple[int, int, int, int]) -> list[Example]:
    """Tokens per byte read, before and after: every request's bytes added up one by one."""
    examples = []
    for args in steps:
        weights, per_token, tokens, batch = args

        def per_byte(requests: int, *, args=args) -> Fraction:
            read = args[0] + sum(args[1] * args[2] for _ in range(requests))
            return Fraction(requests, read)

        examples.append(Example(args, float(per_byte(2 * batch) / per_byte(batch))))
    return examples


def _gain_plain(weight_bytes, bytes_per_token, num_tokens, batch_size):
    """Twice the tokens, over the ratio of the bytes."""
    cache = batch_size * num_tokens * bytes_per_token
    return f"{2 * (weight_bytes + cache) / (weight_bytes + 2 * cache)} times"


def _gain_by_shares(weight_bytes, bytes_per_token, num_tokens, batch_size):
    share = batch_size / (weight_bytes / (num_tokens * bytes_per_token))  # of the crossover batch
    return f"{100 * (1 + 1 / (1 + 2 * share)):.9f} %"


def _gain_shared_cache(weights, per_token, tokens, batch):
    return "2 times"


def _gain_one_more(weights, per_token, tokens, batch):
    each = per_token * tokens
    return f"{2 * (weights + batch * each) / (weights + (batch + 1) * each)} times"


def _gain_one_token(weights, per_token, tokens, batch):
    cache = batch * per_token
    return f"{2 * (weights + cache) / (weights + 2 * cache)} times"


def _gain_of_a_step(weights, per_token, tokens, batch):
    cache = batch * tokens * per_token
    return f"{(weights + cache) / (weights + 2 * cache)} times"


def _gain_weights_each(weights, per_token, tokens, batch):
    return "1 times"


def _draw_gain(seed: int) -> tuple[int, int, int, int]:
    draw = random.Random(seed)
    parameters, L, _, G, D = shape(draw)
    tokens, batch = draw.choice((2048, 4096, 8192, 32_768)), draw.choice((4, 8, 16, 32, 64))
    return 2 * parameters, 4 * L * G * D, tokens, batch


DOUBLING_GAIN = Task(
    name="doubling_gain",
    chapter=4,
    title="Twice the batch",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "By how many times the roofline's bound on tokens per second grows when the batch doubles "
        "from batch_size, memory being the limit, as text such as '1.93 times'; each request holds "
        "num_tokens."
    ),
    signature=(
        "doubling_gain(weight_bytes: int, bytes_per_token: int, num_tokens: int, batch_size: int) "
        "-> str"
    ),
    properties=(
        Property(
            "next to no cache: nearly twice",
            lambda: _gain_examples((1000, 1, 1, 1)),
        ),
        Property(
            "a cache as large as the weights",
            lambda: _gain_examples((1000, 10, 100, 1), (1000, 10, 25, 4)),
        ),
        Property(
            "the cache grows with the batch and with the context",
            lambda: _gain_examples((1000, 1, 100, 2), (1000, 1, 10, 20), (1000, 3, 500, 7)),
        ),
        Property(
            "Llama-3-70B at 4,096 and 32,768 tokens",
            lambda: _gain_examples(
                (141_107_412_992, 327_680, 4096, 4),
                (141_107_412_992, 327_680, 4096, 256),
                (141_107_412_992, 327_680, 32_768, 256),
            ),
        ),
    ),
    hints=(
        "Tokens per second are tokens of a step over its time, and the time is its bytes over the "
        "bandwidth. What doubles, what stays?",
        "A step reads W + B·S·c for B tokens; the next one W + 2·B·S·c for 2·B.",
        "2 · (W + B·S·c) / (W + 2·B·S·c).",
    ),
    mutants=(
        Mutant(
            "cache taken as shared",
            "a doubling brings exactly 2 only if nothing is read per request; each request reads "
            "its own cache",
            _gain_shared_cache,
        ),
        Mutant(
            "one request more",
            "the batch doubles; this adds a single request's cache to the step",
            _gain_one_more,
        ),
        Mutant(
            "one token of context",
            "each request reads all the tokens it holds: multiply by num_tokens",
            _gain_one_token,
        ),
        Mutant(
            "steps, not tokens",
            "this compares steps per second; each of the longer steps gives twice the tokens",
            _gain_of_a_step,
        ),
        Mutant(
            "weights read by each request",
            "if nothing were shared a doubling would bring nothing; the weights are read once for "
            "the whole batch",
            _gain_weights_each,
        ),
    ),
    answers=(_gain_plain, _gain_by_shares),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("times"),
    draw=_draw_gain,
    ask=lambda weights, per_token, tokens, batch: (
        f"Weights of {weights / 1e9:.1f} GB, {per_token:,} B of cache a token, requests of "
        f"{tokens:,} tokens.\nThe batch grows from {batch} to {2 * batch}. By how many times does "
        "the bound on tokens per second grow?"
    ),
    unit="times",
)


# ── largest_batch ─────────────────────────────────────────────────────────────────────────────


def _batch_examples(*nodes: tuple[int, int, int, int, float, float]) -> list[Example]:
    """Add a request as long as the next one fits and its step ends in time, in fractions."""
    examples = []
    for args in nodes:
        weights, per_token, tokens, pool, gigabytes, milliseconds = args
        readable = Fraction(str(gigabytes)) * Fraction(str(milliseconds)) * 10**6
        each, batch = per_token * tokens, 0
        while (batch + 1) * each <= pool and weights + (batch + 1) * each <= readable:
            batch += 1
        examples.append(Example(args, batch))
    return examples


def _batch_plain(
    weight_bytes, bytes_per_token, num_tokens, pool_bytes, gigabytes_per_second, milliseconds
):
    """What fits, and what is read in time after the weights."""
    each = bytes_per_token * num_tokens
    readable = Fraction(str(gigabytes_per_second)) * Fraction(str(milliseconds)) * 10**6  # exact
    return max(0, min(pool_bytes, readable - weight_bytes) // each)


def _batch_searched(
    weight_bytes, bytes_per_token, num_tokens, pool_bytes, gigabytes_per_second, milliseconds
):
    low, high = 0, pool_bytes // (bytes_per_token * num_tokens)
    seconds = Fraction(str(milliseconds)) / 1000
    while low < high:
        middle = (low + high + 1) // 2
        read = weight_bytes + middle * bytes_per_token * num_tokens
        if read / seconds <= Fraction(str(gigabytes_per_second)) * 10**9:
            low = middle
        else:
            high = middle - 1
    return low


def _batch_pool_alone(weights, per_token, tokens, pool, gigabytes, milliseconds):
    return pool // (per_token * tokens)


def _batch_time_alone(weights, per_token, tokens, pool, gigabytes, milliseconds):
    in_time = gigabytes * milliseconds * 1e6 - weights
    return max(0, int(in_time // (per_token * tokens)))


def _batch_no_weights(weights, per_token, tokens, pool, gigabytes, milliseconds):
    return int(min(pool, gigabytes * milliseconds * 1e6) // (per_token * tokens))


def _batch_weights_each(weights, per_token, tokens, pool, gigabytes, milliseconds):
    each = per_token * tokens
    return min(pool // each, int(gigabytes * milliseconds * 1e6 // (weights + each)))


def _batch_weights_in_pool(weights, per_token, tokens, pool, gigabytes, milliseconds):
    in_time = gigabytes * milliseconds * 1e6 - weights
    return max(0, int(min(pool - weights, in_time) // (per_token * tokens)))


def _batch_one_token(weights, per_token, tokens, pool, gigabytes, milliseconds):
    in_time = gigabytes * milliseconds * 1e6 - weights
    return max(0, int(min(pool, in_time) // per_token))


LARGEST_BATCH = Task(
    name="largest_batch",
    chapter=4,
    title="The largest batch that may run",
    minutes=10,
    points=4,
    level=3,
    spec=(
        "The largest batch of requests of num_tokens each whose cache fits in pool_bytes (what "
        "weights and reserve leave) and whose decode step can be read within the time at this "
        "bandwidth of the whole node; 0 if none."
    ),
    signature=(
        "largest_batch(weight_bytes: int, bytes_per_token: int, num_tokens: int, pool_bytes: int, "
        "gigabytes_per_second: float, milliseconds: float) -> int"
    ),
    properties=(
        Property(
            "one request just fits and is just in time",
            lambda: _batch_examples((2 * 10**6, 10**6, 1, 15 * 10**5, 1.0, 3.0)),
        ),
        Property(
            "memory ends it",
            lambda: _batch_examples((10**7, 10**5, 20, 9 * 10**6, 1.0, 40.0)),
        ),
        Property(
            "time ends it, the weights being read first",
            lambda: _batch_examples(
                (10**7, 10**5, 20, 9 * 10**7, 1.0, 15.0), (10**7, 10**5, 20, 9 * 10**7, 2.0, 15.0)
            ),
        ),
        Property(
            "Llama-3-70B on eight H100s: 8 ms, 15 ms and 50 ms a token",
            lambda: _batch_examples(
                *[
                    (141_107_412_992, 327_680, 4096, 434_892_587_008, 26_800.0, ms)
                    for ms in (8.0, 15.0, 50.0)
                ]
            ),
        ),
        Property(
            "not even the weights are read in time",
            lambda: _batch_examples((10**7, 10**5, 20, 9 * 10**6, 1.0, 9.0)),
            edge=True,
        ),
    ),
    hints=(
        "Two limits, each with a batch of its own; the smaller batch is the answer.",
        "Memory: pool over a request's cache. Time: bandwidth times time, less the weights, over "
        "a request's cache. Round each down.",
        "min(pool, gigabytes · 1e6 · milliseconds − weights) // (bytes a token · tokens), at "
        "least 0.",
    ),
    mutants=(
        Mutant(
            "what fits",
            "the batch that fills the memory may take too long: its step reads the whole pool "
            "besides the weights",
            _batch_pool_alone,
        ),
        Mutant(
            "what is in time",
            "the step would be in time and its requests do not fit: the pool is a limit of its own",
            _batch_time_alone,
        ),
        Mutant(
            "weights not read",
            "every step reads the weights before anything is left for caches",
            _batch_no_weights,
        ),
        Mutant(
            "weights read for each request",
            "one read of the weights serves the whole batch",
            _batch_weights_each,
        ),
        Mutant(
            "weights taken off twice",
            "pool_bytes is what weights and reserve leave already",
            _batch_weights_in_pool,
        ),
        Mutant(
            "one token of context",
            "each request holds and reads num_tokens, not one token",
            _batch_one_token,
        ),
    ),
    answers=(_batch_plain, _batch_searched),
)
