"""Chapter 04's mistakes as somebody else would write them: the check knows them by what they do."""

import math

BYTES = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}


def read_of_the_model_width(parameters, L, H, G, D, S, B, dtype):
    hidden_size = H * D
    cache = sum(2 * hidden_size * BYTES[dtype] * S for _ in range(L)) * B
    return f"{(parameters * 2 + cache) / 1000} kB"


def read_per_request(parameters, L, H, G, D, S, B, dtype):
    each = parameters * 2 + L * G * D * 2 * BYTES[dtype] * S
    return f"{sum(each for _ in range(B))} bytes"


def read_of_the_longest_request(parameters, L, H, G, D, S, B, dtype):
    contexts = [S] * B
    return f"{parameters * 2 + max(contexts) * L * 2 * G * D * BYTES[dtype]} B"


def time_in_turns(num_bytes, flops, n, terabytes, teraflops):
    memory, arithmetic = num_bytes / (n * terabytes * 1e12), flops / (n * teraflops * 1e12)
    return f"{memory + arithmetic} s"


def time_of_a_single_card(num_bytes, flops, n, terabytes, teraflops):
    seconds = max(num_bytes / terabytes / 1e12, flops / teraflops / 1e12)
    return f"{seconds * 1e6} us"


def ridge_truncated(teraflops, terabytes, bits):
    batch = 0
    while (batch + 1) * 2 / (bits / 8) <= teraflops / terabytes:
        batch += 1
    return batch


def ridge_in_multiply_adds(teraflops, terabytes, bits):
    per_weight = bits / 8
    return math.ceil(teraflops / terabytes * per_weight)


def gain_of_the_weights_only(weights, per_token, tokens, batch):
    before, after = weights / batch, weights / (2 * batch)
    return f"{before / after} x"


def gain_in_steps_per_second(weights, per_token, tokens, batch):
    times = [weights + n * tokens * per_token for n in (batch, 2 * batch)]
    return f"{100 * times[0] / times[1]} %"


def gain_by_linear_share(weights, cache):
    return f"{100 + 50 * cache / (weights + cache)} %"


def gain_by_half_the_bytes(weights, cache):
    return f"{(weights + cache) / ((weights + cache) / 2)} times"


def pool_of_binary_cards(n, gigabytes, percent, parameters, weight_dtype, L, H, G, D, dtype):
    memory = sum(gigabytes * 1024**3 for _ in range(n))
    free = memory - memory * percent / 100 - parameters * BYTES[weight_dtype]
    return f"{max(free, 0) / (2 * L * G * D * BYTES[dtype]) / 1e6} million tokens"


def pool_with_the_reserve_at_the_end(n, gb, percent, parameters, weight_dtype, L, H, G, D, dtype):
    tokens = (n * gb * 10**9 - parameters * BYTES[weight_dtype]) / (2 * L * G * D * BYTES[dtype])
    return f"{max(tokens - tokens * percent / 100, 0):.6f} tokens"


def pool_of_multi_head(n, gb, percent, parameters, weight_dtype, L, H, G, D, dtype):
    free = n * gb * 10**9 * (100 - percent) / 100 - parameters * BYTES[weight_dtype]
    return f"{max(free / (2 * L * H * D * BYTES[dtype]), 0):.6f} tokens"


def experts_as_independent_draws(E, k, B):
    missed = 1.0
    for _ in range(k * B):
        missed *= 1 - 1 / E
    return E - E * missed


def experts_up_to_all(E, k, B):
    touched = 0
    for _ in range(B):
        touched += k if touched + k <= E else E - touched
    return float(touched)


def longest_by_matrices(parameters, L, H, G, D, teraflops, terabytes):
    per_token = sum(2 * 2 * G * D for _ in range(L))
    return f"{parameters * 2 * terabytes / teraflops // per_token:.0f} tokens"


def longest_under_multi_head(parameters, L, H, G, D, teraflops, terabytes):
    tokens = parameters / (2 * L * H * D) / (teraflops / terabytes - 1)
    return f"{math.floor(tokens)} tokens"


def batch_that_fills_memory(weights, per_token, tokens, pool, gigabytes, milliseconds):
    batch = 0
    while (batch + 1) * per_token * tokens <= pool:
        batch += 1
    return batch


def batch_of_caches_in_time(weights, per_token, tokens, pool, gigabytes, milliseconds):
    each = per_token * tokens
    return min(pool // each, int(gigabytes * 1e9 * milliseconds / 1e3 / each))


REWRITTEN = [
    ("step_read", "query heads counted", read_of_the_model_width),
    ("step_read", "weights for each request", read_per_request),
    ("step_read", "one cache for all", read_of_the_longest_request),
    ("step_time", "one after the other", time_in_turns),
    ("step_time", "one GPU", time_of_a_single_card),
    ("ridge_batch", "rounded down", ridge_truncated),
    ("ridge_batch", "one FLOP for a multiply-add", ridge_in_multiply_adds),
    ("doubling_gain", "cache taken as shared", gain_of_the_weights_only),
    ("doubling_gain", "steps, not tokens", gain_in_steps_per_second),
    ("fp8_gain", "half the share added", gain_by_linear_share),
    ("fp8_gain", "everything halves", gain_by_half_the_bytes),
    ("pool_tokens", "GiB for GB", pool_of_binary_cards),
    ("pool_tokens", "reserve of what is left", pool_with_the_reserve_at_the_end),
    ("pool_tokens", "query heads counted", pool_of_multi_head),
    ("experts_read", "drawn with replacement", experts_as_independent_draws),
    ("experts_read", "capped at all", experts_up_to_all),
    ("longest_compute_bound", "attention computes nothing", longest_by_matrices),
    ("longest_compute_bound", "query heads read", longest_under_multi_head),
    ("largest_batch", "what fits", batch_that_fills_memory),
    ("largest_batch", "weights not read", batch_of_caches_in_time),
]
