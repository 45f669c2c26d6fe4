"""What attention moves and computes, by formula: score matrix, accesses, FLOPs. No torch.

Accesses are elements read from or written to the memory outside the chip, for one head, N queries
and N keys, without causality. What a kernel really moves is counted elsewhere; these are the
closed forms to hold beside it.
"""

import math
from typing import NamedTuple

from refimpl.sizing.elements import check_count, packed


class Accesses(NamedTuple):
    """Elements read and written; times bytes per element they are the traffic."""

    reads: int
    writes: int

    @property
    def total(self) -> int:
        """Reads and writes together."""
        return self.reads + self.writes


def score_bytes(
    num_new: int, num_stored: int, *, num_heads: int = 1, batch: int = 1, dtype: str = "bf16"
) -> int:
    """Bytes of the score matrix of one layer where it is materialised, ``[B, H, T, S]``."""
    _check(num_new=num_new, num_stored=num_stored, num_heads=num_heads, batch=batch)
    return packed(batch * num_heads * num_new * num_stored, dtype)


def standard_accesses(
    num_tokens: int,
    head_dim: int,
    *,
    backward: bool = False,
    block_t: int | None = None,
    block_s: int | None = None,
) -> Accesses:
    """Attention in three kernels: scores, softmax, weighted values; 4N² + 4Nd in all.

    Each operand is read once, which is the least that is possible. With block sizes the products
    are tiled and read an operand once per tile that needs it: a tile of scores reads ``block_t``
    queries and ``block_s`` keys, ``block_t`` rows of output read all values. With ``backward`` the
    four products and the softmax's gradient come on top, 7N² + 8Nd, each operand read once.

    Source: FlashAttention, arXiv:2205.14135, algorithms 0 and 3.
    """
    _check(num_tokens=num_tokens, head_dim=head_dim)
    N, d = num_tokens, head_dim
    query_tiles = 1 if block_t is None else num_tiles(N, block_t)
    key_tiles = 1 if block_s is None else num_tiles(N, block_s)
    scores = N * d * key_tiles + N * d * query_tiles  # reads Q for each tile of keys, K likewise
    values = N * N + N * d * query_tiles
    reads, writes = scores + N * N + values, 2 * N * N + N * d
    if backward:
        reads, writes = reads + 5 * N * N + 5 * N * d, writes + 2 * N * N + 3 * N * d
    return Accesses(reads, writes)


def queries_outside_accesses(num_tokens: int, head_dim: int, block_t: int) -> Accesses:
    """Tiled attention as from version 2 on: a tile of queries stays, all keys stream past it.

    Q and the output move once, K and V once per tile of queries; the log-sum-exp is written.
    """
    _check(num_tokens=num_tokens, head_dim=head_dim)
    N, d = num_tokens, head_dim
    return Accesses(N * d + num_tiles(N, block_t) * 2 * N * d, N * d + N)


def keys_outside_accesses(num_tokens: int, head_dim: int, block_s: int) -> Accesses:
    """Tiled attention as in version 1: a tile of keys stays, queries and their state stream past.

    K and V are read once. For each tile of keys Q is read, and the output with the running maximum
    and sum of each row is read and written. Source: arXiv:2205.14135, algorithm 1.
    """
    _check(num_tokens=num_tokens, head_dim=head_dim)
    N, d, passes = num_tokens, head_dim, num_tiles(num_tokens, block_s)
    return Accesses(2 * N * d + passes * (2 * N * d + 2 * N), passes * (N * d + 2 * N))


def block_that_fits(head_dim: int, chip_elements: int) -> int:
    """Keys per tile in version 1, ``ceil(M / 4d)``: Q, K, V and output tiles share M elements.

    Source: FlashAttention, arXiv:2205.14135, algorithm 1, line 1.
    """
    _check(head_dim=head_dim, chip_elements=chip_elements)
    return -(-chip_elements // (4 * head_dim))


def num_tiles(num_tokens: int, block: int) -> int:
    """How many tiles of at most ``block`` tokens cover ``num_tokens``."""
    check_count("num_tokens", num_tokens)
    check_count("block", block, least=1)
    return -(-num_tokens // block)


def product_flops(
    num_tokens: int,
    head_dim: int,
    *,
    num_heads: int = 1,
    batch: int = 1,
    backward: bool = False,
    recomputed: bool = False,
) -> int:
    """FLOPs of attention's matrix products, of 2N²d each: two forward, four more backward.

    ``recomputed`` adds the one that a backward pass without stored scores repeats.
    """
    _check(num_tokens=num_tokens, head_dim=head_dim, num_heads=num_heads, batch=batch)
    if recomputed and not backward:
        raise ValueError(
            "scores are recomputed in a backward pass, got recomputed without backward"
        )
    products = 2 + 4 * backward + recomputed
    return products * 2 * num_tokens**2 * head_dim * num_heads * batch


def busy_share(num_programs: int, num_units: int) -> float:
    """Share of the units that work, on average, while equal programs run in waves, one per unit."""
    check_count("num_programs", num_programs, least=1)
    check_count("num_units", num_units, least=1)
    return num_programs / (num_tiles(num_programs, num_units) * num_units)


def compound(*gains: tuple[float, float]) -> tuple[float, float]:
    """The range of a gain made of several: lowest times lowest, highest times highest.

    The ends bound the product only if all gains were measured on the same work, which for figures
    from different papers nobody has shown.
    """
    for low, high in gains:
        if not 0 < low <= high < math.inf:
            raise ValueError(f"a range of gains goes from low to high, both positive: {low, high}")
    return math.prod(low for low, _ in gains), math.prod(high for _, high in gains)


def _check(**counts: int) -> None:
    for name, value in counts.items():
        check_count(name, value, least=1 if name in ("head_dim", "num_heads", "batch") else 0)
