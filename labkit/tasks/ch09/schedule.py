"""Exercise of chapter 09 on the schedule: which tiles of keys a tile of queries visits."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task

Sizes = tuple[int, int, int, int, int, int | None]

# ── key_tiles ─────────────────────────────────────────────────────────────────────────────────


def _run_tiles(function: Callable[..., Any], *args: Any) -> Any:
    """Both ends by name. Of a range without tiles it does not matter where it stands."""
    result = function(*args)
    if result is None:
        return None
    first, end = (int(x) for x in result)
    return {"first": first, "end": end} if first < end else {"first": 0, "end": 0}


def _tile_examples(*sizes: Sizes) -> list[Example]:
    """Every pair of a query and a key, one by one."""
    examples = []
    for args in sizes:
        first_t, block_t, num_new, num_stored, block_s, window = args
        visited = set()
        for t in range(num_new):
            if not first_t <= t < first_t + block_t:
                continue
            # Query num_new − 1 stands where key num_stored − 1 does.
            for s in range(num_stored):
                behind = (num_stored - 1 - s) - (num_new - 1 - t)
                if behind >= 0 and (window is None or behind < window):
                    visited.add(s // block_s)
        ends = (min(visited), max(visited) + 1) if visited else (0, 0)
        examples.append(Example(args, {"first": ends[0], "end": ends[1]}))
    return examples


def _tiles_plain(first_t, block_t, num_new, num_stored, block_s, window):
    """The first query's oldest key, the last query's own position."""
    offset = num_stored - num_new
    last_t = min(first_t + block_t, num_new) - 1
    newest = last_t + offset
    oldest = 0 if window is None else max(0, first_t + offset - window + 1)
    if newest < oldest:
        return 0, 0
    return oldest // block_s, newest // block_s + 1


def _tiles_tried(first_t, block_t, num_new, num_stored, block_s, window):
    queries = range(first_t, min(first_t + block_t, num_new))
    tiles = []
    for tile in range(-(-num_stored // block_s)):
        keys = range(tile * block_s, min((tile + 1) * block_s, num_stored))
        distances = [t + num_stored - num_new - s for t in queries for s in keys]
        if any(0 <= x < (window or x + 1) for x in distances):
            tiles.append(tile)
    return (tiles[0], tiles[-1] + 1) if tiles else (0, 0)


def _ends(oldest: int, newest: int, block_s: int) -> tuple[int, int]:
    """The tiles of keys ``oldest`` to ``newest``; (0, 0) where there are none."""
    if newest < oldest:
        return 0, 0
    return oldest // block_s, newest // block_s + 1


def _oldest(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _tiles_top_left(first_t, block_t, T, S, block_s, window):
    newest = min(min(first_t + block_t, T) - 1, S - 1)
    return _ends(_oldest(first_t, window), newest, block_s)


def _tiles_one_short(first_t, block_t, T, S, block_s, window):
    newest = min(first_t + block_t, T) - 1 + S - T
    oldest = _oldest(first_t + S - T, window)
    return oldest // block_s, newest // block_s


def _tiles_one_key_more(first_t, block_t, T, S, block_s, window):
    newest = min(first_t + block_t, T) + S - T
    return _ends(_oldest(first_t + S - T, window), newest, block_s)


def _tiles_all(first_t, block_t, T, S, block_s, window):
    return 0, -(-S // block_s)


def _tiles_none_skipped_behind(first_t, block_t, T, S, block_s, window):
    return _oldest(first_t + S - T, window) // block_s, -(-S // block_s)


def _tiles_of_first_query(first_t, block_t, T, S, block_s, window):
    newest = first_t + S - T
    return _ends(_oldest(first_t + S - T, window), newest, block_s)


def _tiles_not_clipped(first_t, block_t, T, S, block_s, window):
    newest = first_t + block_t - 1 + S - T
    return _ends(_oldest(first_t + S - T, window), newest, block_s)


def _tiles_window_ignored(first_t, block_t, T, S, block_s, window):
    return _ends(0, min(first_t + block_t, T) - 1 + S - T, block_s)


def _tiles_window_wider(first_t, block_t, T, S, block_s, window):
    oldest = _oldest(first_t + S - T, None if window is None else window + 1)
    return _ends(oldest, min(first_t + block_t, T) - 1 + S - T, block_s)


def _tiles_window_of_last(first_t, block_t, T, S, block_s, window):
    newest = min(first_t + block_t, T) - 1 + S - T
    return _ends(_oldest(newest, window), newest, block_s)


def _tiles_full_alone(first_t, block_t, T, S, block_s, window):
    newest = min(first_t + block_t, T) - 1 + S - T
    return -(-_oldest(first_t + S - T, window) // block_s), newest // block_s + 1


def _tiles_before_the_keys(first_t, block_t, T, S, block_s, window):
    newest = min(first_t + block_t, T) - 1 + S - T
    oldest = 0 if window is None else first_t + S - T - window + 1
    return _ends(oldest, newest, block_s)


KEY_TILES = Task(
    name="key_tiles",
    chapter=9,
    title="Which tiles to visit",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "The first tile of keys that a tile of queries visits and the one past the last: all tiles "
        "in which one of its queries reads a key. It holds block_t queries from first_t on, of "
        "num_new in all; tiles of keys hold block_s each, from key 0 on, of num_stored in all. "
        "The last query stands at the last key, and each reads the keys up to its own position: "
        "the last window of them, its own included, or all where window is None."
    ),
    signature=(
        "key_tiles(first_t: int, block_t: int, num_new: int, num_stored: int, block_s: int, "
        "window: int | None) -> tuple[int, int]"
    ),
    properties=(
        Property("one query and one key", lambda: _tile_examples((0, 1, 1, 1, 1, None))),
        Property(
            "as many queries as keys: up to the tile's last query",
            lambda: _tile_examples(
                (0, 2, 6, 6, 3, None), (2, 2, 6, 6, 3, None), (4, 4, 12, 12, 2, None)
            ),
        ),
        Property(
            "fewer queries than keys: the last of both stand together",
            lambda: _tile_examples(
                (0, 2, 4, 11, 3, None), (2, 2, 4, 11, 3, None), (3, 3, 9, 20, 4, None)
            ),
        ),
        Property(
            "a last tile that is not full",
            lambda: _tile_examples((4, 4, 6, 6, 2, None), (3, 3, 5, 14, 2, None)),
        ),
        Property(
            "a window hides the oldest keys, from the tile's first query on",
            lambda: _tile_examples(
                (6, 2, 12, 12, 2, 3),
                (6, 3, 12, 12, 2, 4),
                (8, 4, 12, 30, 3, 5),
                (8, 4, 12, 30, 5, 9),
                (9, 3, 12, 17, 4, 2),
            ),
        ),
        Property(
            "a window that reaches before the first key",
            lambda: _tile_examples((0, 2, 8, 8, 2, 5), (2, 2, 8, 9, 3, 64)),
            edge=True,
        ),
        Property(
            "more queries than keys: the first read nothing",
            lambda: _tile_examples((0, 2, 9, 4, 2, None), (4, 4, 9, 4, 2, None)),
            edge=True,
        ),
    ),
    hints=(
        "Two keys decide: the oldest that any of the queries reads, and the newest.",
        "Query t stands at t + num_stored − num_new. The newest key is the last query's own, the "
        "oldest belongs to the first query: its position − window + 1, not below 0.",
        "last = min(first_t + block_t, num_new) − 1; oldest // block_s and newest // block_s + 1; "
        "nothing where newest is below oldest.",
    ),
    mutants=(
        Mutant(
            "aligned to the top left",
            "query 0 does not stand at key 0 unless there are as many queries as keys: with "
            "earlier keys stored, the new queries come last, and this misses the newest keys",
            _tiles_top_left,
        ),
        Mutant(
            "last tile missing",
            "the end is one past the tile of the newest key; rounded down, that tile, which holds "
            "each query's own position, is left out",
            _tiles_one_short,
        ),
        Mutant(
            "one key too far",
            "the newest key is at the last query's position; one further belongs to nobody here, "
            "and where it begins a tile, a whole tile is read to be masked",
            _tiles_one_key_more,
        ),
        Mutant(
            "nothing skipped",
            "right after masking, and up to twice the work: of a causal matrix of many tiles about "
            "half hold no readable key",
            _tiles_all,
            also=(_tiles_none_skipped_behind,),
        ),
        Mutant(
            "end of the first query",
            "the tile's last query reads furthest; by its first one, the later ones lose their "
            "newest keys",
            _tiles_of_first_query,
        ),
        Mutant(
            "last tile taken for full",
            "the last tile holds fewer queries than block_t: counted as full it asks for tiles "
            "behind the last key",
            _tiles_not_clipped,
        ),
        Mutant(
            "window ignored",
            "keys older than the first query's window are read by none of the tile; visiting them "
            "makes a window cost what full attention costs",
            _tiles_window_ignored,
        ),
        Mutant(
            "window one too long",
            "the query's own key is one of its window: the oldest is window − 1 behind, and where "
            "the next older one ends a tile, a whole tile is read to be masked",
            _tiles_window_wider,
        ),
        Mutant(
            "window of the last query",
            "the tile's first query reads the oldest keys; by its last one, the earlier ones lose "
            "the start of their windows",
            _tiles_window_of_last,
        ),
        Mutant(
            "partial tile dropped at the start",
            "a tile that a window cuts holds readable keys as well: round the start down and mask",
            _tiles_full_alone,
        ),
        Mutant(
            "before the first key",
            "an early query's window reaches before key 0: clamp the oldest key at 0, or the loop "
            "begins at a tile that does not exist",
            _tiles_before_the_keys,
        ),
    ),
    answers=(_tiles_plain, _tiles_tried),
    drive=_run_tiles,
)
