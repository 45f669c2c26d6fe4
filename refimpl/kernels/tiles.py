"""Device functions that the attention kernels share: which keys are readable, where a tile lies."""

import triton
import triton.language as tl


@triton.jit
def offsets(rows, cols, row_stride, INNER: tl.constexpr, WIDE: tl.constexpr):
    """Element offsets of a tile from its first row; ``WIDE`` where they may pass 2^31."""
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    return rows[:, None] * row_stride + cols[None, :] * INNER


@triton.jit
def within(rows_ok, cols, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The mask of a tile whose columns are padded from ``WIDTH`` to ``BLOCK``."""
    mask = rows_ok[:, None]
    if WIDTH < BLOCK:
        mask = mask & (cols[None, :] < WIDTH)
    return mask


@triton.jit
def first_key(T, S, window, WINDOWED: tl.constexpr):
    """The first key that any query may read: earlier ones are not loaded, they may be unset."""
    first = 0
    if WINDOWED:
        first = tl.maximum(S - T - window + 1, 0)
    return first


@triton.jit
def readable(t, s, T, S, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Which keys ``s`` each query ``t`` may read, aligned to the bottom right: ``[t, s]``."""
    behind = (t + (S - T))[:, None] - s[None, :]  # how far the key lies behind the query
    mask = (t[:, None] < T) & (s[None, :] < S)
    if CAUSAL:
        mask = mask & (behind >= 0)
    if WINDOWED:
        mask = mask & (behind < window)
    return mask


@triton.jit
def masked(seen, mask, m_t, m_s, t, s):
    """``seen`` where a stored mask allows it too: one byte for each query and key."""
    at = mask + t[:, None].to(tl.int64) * m_t + s[None, :].to(tl.int64) * m_s
    return seen & (tl.load(at, mask=seen, other=0) != 0)


@triton.jit
def key_range(
    first_t, T, S, window, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Start of the first tile of keys that a tile of queries reads, and the end of the keys."""
    begin = 0
    end = S
    if CAUSAL:
        end = tl.minimum(S, tl.minimum(first_t + BLOCK_T, T) + S - T)
    if WINDOWED:
        begin = tl.maximum(first_t + S - T - window + 1, 0) // BLOCK_S * BLOCK_S
    return begin, end


@triton.jit
def query_range(
    first_s, T, S, window, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Start of the first tile of queries that reads a tile of keys, and the end of the queries."""
    begin = 0
    end = T
    if CAUSAL:
        begin = tl.maximum(first_s - (S - T), 0) // BLOCK_T * BLOCK_T
    if WINDOWED:
        last = tl.minimum(first_s + BLOCK_S, S) - 1
        end = tl.minimum(T, last + window - (S - T))
    return begin, end
