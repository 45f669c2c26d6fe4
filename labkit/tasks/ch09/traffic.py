"""Exercise of chapter 09 on what tiled attention moves, in elements."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task

Sizes = tuple[int, int, int, int]

# ── tile_traffic ──────────────────────────────────────────────────────────────────────────────


def _run_traffic(function: Callable[..., Any], *args: Any) -> Any:
    """Both counts by name."""
    result = function(*args)
    if result is None:
        return None
    reads, writes = result
    return {"reads": reads, "writes": writes}


def _traffic_examples(*sizes: Sizes) -> list[Example]:
    """The kernel's loops, walked: each row that is loaded or stored is counted when it is."""
    examples = []
    for args in sizes:
        num_new, num_stored, head_dim, block_t = args
        moved: Counter[str] = Counter()
        waiting = list(range(num_new))
        while waiting:
            tile, waiting = waiting[:block_t], waiting[block_t:]
            for _ in tile:
                moved["reads"] += head_dim  # a query
            for _ in range(num_stored):
                moved["reads"] += head_dim  # a key
                moved["reads"] += head_dim  # and its value
            for _ in tile:
                moved["writes"] += head_dim  # an output
                moved["writes"] += 1  # and its log-sum-exp
        examples.append(Example(args, {"reads": moved["reads"], "writes": moved["writes"]}))
    return examples


def _traffic_plain(num_new, num_stored, head_dim, block_t):
    """Queries and outputs once; keys and values once for each tile of queries."""
    num_tiles = -(-num_new // block_t)
    reads = num_new * head_dim + num_tiles * 2 * num_stored * head_dim
    return reads, num_new * head_dim + num_new


def _traffic_by_tile(num_new, num_stored, head_dim, block_t):
    reads = writes = 0
    for first in range(0, num_new, block_t):
        rows = min(block_t, num_new - first)
        reads += (rows + num_stored + num_stored) * head_dim
        writes += rows * (head_dim + 1)
    return reads, writes


def _tiles(num_tokens: int, block: int) -> int:
    return -(-num_tokens // block)


def _traffic_keys_outside(T, S, D, block):
    passes = _tiles(S, block)
    return 2 * S * D + passes * (2 * T * D + 2 * T), passes * (T * D + 2 * T)


def _traffic_keys_outside_first(T, S, D, block):
    """Version 1 as it is counted where the first pass has nothing to read back."""
    passes = _tiles(S, block)
    back = (passes - 1) * (T * D + 2 * T)
    return 2 * S * D + passes * T * D + back, passes * (T * D + 2 * T)


def _traffic_no_lse(T, S, D, block):
    return T * D + _tiles(T, block) * 2 * S * D, T * D


def _traffic_floor(T, S, D, block):
    return T * D + max(1, T // block) * 2 * S * D, T * D + T


def _traffic_fraction(T, S, D, block):
    return T * D + max(block, T) * 2 * S * D // block, T * D + T


def _traffic_once(T, S, D, block):
    return T * D + 2 * S * D, T * D + T


def _traffic_keys_alone(T, S, D, block):
    return T * D + _tiles(T, block) * S * D, T * D + T


def _traffic_per_query(T, S, D, block):
    return T * D + T * 2 * S * D, T * D + T


def _traffic_tiles_of_keys(T, S, D, block):
    return T * D + _tiles(S, block) * 2 * S * D, T * D + T


def _traffic_full_tiles(T, S, D, block):
    rows = _tiles(T, block) * block
    return rows * D + _tiles(T, block) * 2 * S * D, rows * D + rows


def _traffic_scores(T, S, D, block):
    return T * D + _tiles(T, block) * 2 * S * D + T * S, T * D + T + T * S


TILE_TRAFFIC = Task(
    name="tile_traffic",
    chapter=9,
    title="What a tile that stays saves",
    minutes=4,
    points=2,
    level=1,
    spec=(
        "How many elements one head of tiled attention reads from memory and writes to it, where a "
        "tile of block_t queries stays on the chip while all keys and values stream past it: "
        "num_new queries and num_stored keys and values of head_dim elements each, nothing masked; "
        "an output and one log-sum-exp are written for each query."
    ),
    signature=(
        "tile_traffic(num_new: int, num_stored: int, head_dim: int, block_t: int) "
        "-> tuple[int, int]"
    ),
    properties=(
        Property("one query and one key", lambda: _traffic_examples((1, 1, 1, 1))),
        Property(
            "one tile of queries: everything moves once",
            lambda: _traffic_examples((4, 7, 3, 4), (5, 9, 2, 8)),
        ),
        Property(
            "several tiles: keys and values are read for each",
            lambda: _traffic_examples((6, 7, 3, 2), (12, 5, 2, 4)),
        ),
        Property(
            "a last tile that is not full",
            lambda: _traffic_examples((7, 5, 3, 2), (10, 21, 4, 4), (17, 40, 8, 16)),
        ),
        Property(
            "256 queries and keys of 64 elements in tiles of 64: 147,456 read, 16,640 written",
            lambda: _traffic_examples((256, 256, 64, 64)),
        ),
    ),
    hints=(
        "Follow one tile of queries: what is loaded before its loop, in it, and stored behind it?",
        "Queries are read once and outputs written once. Keys and values are read once for each "
        "tile of queries, and the last, smaller tile reads them all as well.",
        "reads = T·D + ceil(T / block_t) · 2·S·D; writes = T·D + T.",
    ),
    mutants=(
        Mutant(
            "keys outside",
            "that is version 1's order: keys stay, and queries, unfinished outputs, maxima and "
            "sums go to memory and back for every tile of keys; here the queries stay",
            _traffic_keys_outside,
            also=(_traffic_keys_outside_first,),
        ),
        Mutant(
            "log-sum-exp forgotten",
            "one number a query is written beside the output: the backward pass, and a merge of "
            "parts, need it",
            _traffic_no_lse,
        ),
        Mutant(
            "last tile not counted",
            "a last tile that is not full reads all keys and values like any other: round the "
            "number of tiles up",
            _traffic_floor,
            also=(_traffic_fraction,),
        ),
        Mutant(
            "keys read once",
            "a tile of queries cannot wait on the chip for the others: each of them reads all keys "
            "and values again",
            _traffic_once,
        ),
        Mutant(
            "keys without values",
            "a value as wide as the key is read beside each",
            _traffic_keys_alone,
        ),
        Mutant(
            "keys read by every query",
            "the queries of a tile share what is read: once for a tile, not once for each query",
            _traffic_per_query,
        ),
        Mutant(
            "tiles of keys counted",
            "how often keys are read depends on how many tiles the queries fill; the keys' own "
            "tiles only say in what pieces",
            _traffic_tiles_of_keys,
        ),
        Mutant(
            "last tile counted as full",
            "rows behind the last query are masked: nothing is read for them and nothing written",
            _traffic_full_tiles,
        ),
        Mutant(
            "scores moved",
            "scores are made on the chip and stay there; that they do is the point of it",
            _traffic_scores,
        ),
    ),
    answers=(_traffic_plain, _traffic_by_tile),
    drive=_run_traffic,
)
