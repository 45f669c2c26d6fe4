"""Exercises of chapter 02 on what a cache occupies and what it saves."""

import numpy as np

from labkit.tasks import Example, Mutant, Property, Task

# ── cache_bytes ───────────────────────────────────────────────────────────────────────────────


def _cache_bytes_examples(*sizes: tuple[int, ...]) -> list[Example]:
    """NumPy's own count, over tensors that take no memory: one element repeated to the shape."""
    examples = []
    for size in sizes:
        B, S, num_layers, _, G, D, width = size
        element = np.empty((), dtype=f"V{width}")
        tensors = [np.broadcast_to(element, (B, G, S, D)) for _ in range(num_layers) for _ in "kv"]
        examples.append(Example(size, sum(tensor.nbytes for tensor in tensors)))
    return examples


def _cache_bytes_plain(
    batch_size, num_tokens, num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element
):
    """Two tensors a layer, each [B, G, S, D]."""
    elements_per_tensor = batch_size * num_kv_heads * num_tokens * head_dim
    return 2 * num_layers * elements_per_tensor * bytes_per_element


def _cache_bytes_per_token(
    batch_size, num_tokens, num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element
):
    key = value = num_kv_heads * head_dim * bytes_per_element
    per_token = sum(key + value for _ in range(num_layers))
    return per_token * num_tokens * batch_size


def _cache_bytes_query_heads(B, S, num_layers, H, G, D, width):
    return 2 * num_layers * B * H * S * D * width


def _cache_bytes_keys_alone(B, S, num_layers, H, G, D, width):
    return num_layers * B * G * S * D * width


def _cache_bytes_one_layer(B, S, num_layers, H, G, D, width):
    return 2 * B * G * S * D * width


def _cache_bytes_one_row(B, S, num_layers, H, G, D, width):
    return 2 * num_layers * G * S * D * width


def _cache_bytes_two_each(B, S, num_layers, H, G, D, width):
    return 2 * num_layers * B * G * S * D * 2


def _cache_bytes_with_queries(B, S, num_layers, H, G, D, width):
    return num_layers * B * (2 * G + H) * S * D * width


CACHE_BYTES = Task(
    name="cache_bytes",
    chapter=2,
    title="Bytes of a cache",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "Bytes of the keys and values that all layers keep for a batch of batch_size rows of "
        "num_tokens each."
    ),
    signature=(
        "cache_bytes(batch_size: int, num_tokens: int, num_layers: int, num_query_heads: int, "
        "num_kv_heads: int, head_dim: int, bytes_per_element: int) -> int"
    ),
    properties=(
        Property(
            "one token in one layer: a key and a value for each head",
            lambda: _cache_bytes_examples((1, 1, 1, 2, 2, 3, 2), (1, 1, 1, 5, 5, 8, 2)),
        ),
        Property(
            "only key-value heads are stored, however many heads read them",
            lambda: _cache_bytes_examples((1, 1, 1, 4, 2, 3, 2), (1, 1, 1, 9, 3, 64, 2)),
        ),
        Property(
            "every layer, row and token has its own",
            lambda: _cache_bytes_examples((1, 1, 5, 2, 2, 3, 2), (3, 7, 5, 4, 2, 6, 2)),
        ),
        Property(
            "the width of an element counts",
            lambda: _cache_bytes_examples((1, 1, 1, 2, 2, 3, 4), (3, 7, 5, 4, 2, 6, 1)),
        ),
        Property(
            "the count is exact at the size of a real model",
            lambda: _cache_bytes_examples((1, 1, 80, 64, 8, 128, 2), (32, 4096, 80, 64, 8, 128, 2)),
        ),
        Property(
            "an empty cache holds nothing",
            lambda: _cache_bytes_examples((3, 0, 5, 4, 2, 6, 2)),
            edge=True,
        ),
    ),
    hints=(
        "Write down the shape of one layer's keys; then ask how many such tensors there are.",
        "A layer keeps [B, G, S, D] for K and as much for V. One of the arguments is not needed.",
        "2 · layers · B · G · S · D · bytes per element.",
    ),
    mutants=(
        Mutant(
            "query heads counted",
            "the cache stores num_kv_heads heads; with grouped attention several query heads read "
            "the same one, which is what the grouping is for",
            _cache_bytes_query_heads,
        ),
        Mutant(
            "keys alone",
            "a layer keeps values as well as keys: a factor of 2 is missing",
            _cache_bytes_keys_alone,
        ),
        Mutant(
            "one layer",
            "each layer has keys and values of its own; this is one layer's share",
            _cache_bytes_one_layer,
        ),
        Mutant(
            "one row",
            "each row of the batch has its own keys and values: multiply by batch_size",
            _cache_bytes_one_row,
        ),
        Mutant(
            "two bytes whatever the type",
            "the elements are counted as 16-bit; a float32 cache takes twice that and an 8-bit one "
            "half, so multiply by bytes_per_element",
            _cache_bytes_two_each,
        ),
        Mutant(
            "queries stored",
            "a query is read once, in the step that makes it, and is not kept: there is no QKV "
            "cache",
            _cache_bytes_with_queries,
        ),
    ),
    answers=(_cache_bytes_plain, _cache_bytes_per_token),
)


# ── cached_cost ───────────────────────────────────────────────────────────────────────────────


def _cached_cost_examples(*sizes: tuple[int, int]) -> list[Example]:
    """The loop itself, with a list for a cache: every token fed and every key met, one by one."""
    examples = []
    for num_prompt, num_new in sizes:
        cache, fed, met = [], 0, 0
        incoming = list(range(num_prompt))
        for step in range(num_new):
            for token in incoming:
                cache.append(token)
                fed += 1
                met += len(cache)
            incoming = [num_prompt + step]
        examples.append(Example((num_prompt, num_new), (fed, met)))
    return examples


def _cached_cost_closed(num_prompt, num_new):
    """All but the last new token are fed, each once; the token at position i meets i + 1 keys."""
    num_fed = num_prompt + num_new - 1 if num_new else 0
    return num_fed, num_fed * (num_fed + 1) // 2


def _cached_cost_by_phase(num_prompt, num_new):
    if num_new == 0:
        return 0, 0
    prefill = sum(range(1, num_prompt + 1))
    decode = sum(num_prompt + step for step in range(1, num_new))
    return num_prompt + (num_new - 1), prefill + decode


def _triangle(n):
    return n * (n + 1) // 2


def _cached_cost_last_fed(num_prompt, num_new):
    n = num_prompt + num_new
    return n, _triangle(n)


def _cached_cost_naive(num_prompt, num_new):
    lengths = range(num_prompt, num_prompt + num_new)
    return sum(lengths), sum(_triangle(n) for n in lengths)


def _cached_cost_linear(num_prompt, num_new):
    n = num_prompt + num_new - 1 if num_new else 0
    return n, n


def _cached_cost_linear_decode(num_prompt, num_new):
    n = num_prompt + num_new - 1 if num_new else 0
    return n, _triangle(num_prompt) + max(num_new - 1, 0)


def _cached_cost_square(num_prompt, num_new):
    n = num_prompt + num_new - 1 if num_new else 0
    decode = sum(num_prompt + step for step in range(1, num_new))
    return n, num_prompt**2 + decode if num_new else 0


def _cached_cost_no_prefill(num_prompt, num_new):
    return num_new, sum(num_prompt + step for step in range(num_new))


def _cached_cost_not_itself(num_prompt, num_new):
    n = num_prompt + num_new - 1 if num_new else 0
    return n, n * (n - 1) // 2


CACHED_COST = Task(
    name="cached_cost",
    chapter=2,
    title="What a cache saves, and what it does not",
    minutes=5,
    points=2,
    level=1,
    spec=(
        "Two counts for num_new tokens generated after a prompt of num_prompt with a cache: tokens "
        "pushed through the decoder, and pairs of a query and a key that it may read, in one head "
        "of one layer."
    ),
    signature="cached_cost(num_prompt: int, num_new: int) -> tuple[int, int]",
    properties=(
        Property(
            "the first new token costs one pass over the prompt, a triangle of pairs",
            lambda: _cached_cost_examples((1, 1), (5, 1), (12, 1)),
        ),
        Property(
            "each later one costs one token, which meets every key so far",
            lambda: _cached_cost_examples((1, 2), (1, 3), (2, 3), (7, 5), (3, 40)),
        ),
        Property(
            "the counts are exact for long generations",
            lambda: _cached_cost_examples((64, 1000), (1000, 24)),
        ),
        Property(
            "generating nothing costs nothing",
            lambda: _cached_cost_examples((1, 0), (9, 0)),
            edge=True,
        ),
    ),
    hints=(
        "List the tokens that are fed: the prompt, then one new token a step. Which is never fed?",
        "N = num_prompt + num_new − 1 tokens are fed. The one at position i meets i + 1 keys.",
        "The pairs sum to N(N+1)/2, and how the tokens are cut into passes does not matter.",
    ),
    mutants=(
        Mutant(
            "last token fed",
            "the last new token is returned and not fed back, so it makes no pass and reads "
            "nothing: N is num_prompt + num_new − 1",
            _cached_cost_last_fed,
        ),
        Mutant(
            "as if nothing were kept",
            "this runs the whole sequence again for every new token, which is the cost without a "
            "cache",
            _cached_cost_naive,
        ),
        Mutant(
            "reads taken as O(N)",
            "a fed token meets every key before it and its own, not one key: the cache removes "
            "recomputation and leaves the read, N(N+1)/2 pairs in total",
            _cached_cost_linear,
            also=(_cached_cost_linear_decode,),
        ),
        Mutant(
            "whole square in prefill",
            "the pairs above the diagonal are counted too; a query may read its own position and "
            "those before it",
            _cached_cost_square,
        ),
        Mutant(
            "prompt as one token",
            "the prompt is charged as a single pass of one token; prefill pushes every one of its "
            "tokens through the layers and each has a query",
            _cached_cost_no_prefill,
        ),
        Mutant(
            "own key not met",
            "a query meets its own key as well, the diagonal of the mask; this sums i where the "
            "token at position i meets i + 1 keys",
            _cached_cost_not_itself,
        ),
    ),
    answers=(_cached_cost_closed, _cached_cost_by_phase),
)
