"""Attention in tiles, forward: v2's order of loops, and v1's beside it for comparison.

Names: ``q_b, q_h, q_t`` are strides of q along batch, head and row, in elements; ``Q_INNER`` is
the one within a row, a compile-time constant, so that rows of stride 1 become wide asynchronous
copies and any other stride another, slower, variant. ``D`` and ``E`` are the widths of keys and of
values, ``BLOCK_D`` and ``BLOCK_E`` the powers of two they are padded to. ``mask`` is None or points
to bytes with strides ``mask_b, mask_t, mask_s``.

Sources: FlashAttention, arXiv:2205.14135, algorithm 1 (v1's order); FlashAttention-2,
arXiv:2307.08691, algorithm 1 (v2's).
"""

import triton
import triton.language as tl

from refimpl.kernels.tiles import first_key, key_range, masked, offsets, readable, within

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def forward_kernel(
    q, k, v, mask, out, lse,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, o_b, o_h, o_t, mask_b, mask_t, mask_s,
    scale_log2, H, T, S, window,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, WIDE: tl.constexpr,
    Q_INNER: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr, O_INNER: tl.constexpr,
):  # fmt: skip
    """One program: one tile of queries of one head, all its keys. Scores never leave the chip."""
    num_tiles = tl.cdiv(T, BLOCK_T)
    first_t = tl.program_id(0) % num_tiles * BLOCK_T
    row = (tl.program_id(0) // num_tiles).to(tl.int64)  # b * H + h; from here on 64 bits
    b, h, g = row // H, row % H, row % H // GROUP
    rows, cols = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    t = first_t + rows
    # 1. The query tile and the statistics stay; they are as many rows as the tile has.
    q_tile = q + b * q_b + h * q_h + first_t.to(tl.int64) * q_t
    q_at = q_tile + offsets(rows, d, q_t, Q_INNER, WIDE)
    q_td = tl.load(q_at, mask=within(t < T, d, D, BLOCK_D), other=0.0)
    m_t = tl.full([BLOCK_T], float("-inf"), tl.float32)
    l_t = tl.zeros([BLOCK_T], tl.float32)
    acc_te = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    # 2. Key and value tiles stream past.
    begin, end = key_range(first_t, T, S, window, BLOCK_T, BLOCK_S, CAUSAL, WINDOWED)
    first = first_key(T, S, window, WINDOWED)
    k_at = k + b * k_b + g * k_g + begin.to(tl.int64) * k_s + offsets(cols, d, k_s, K_INNER, WIDE)
    v_at = v + b * v_b + g * v_g + begin.to(tl.int64) * v_s + offsets(cols, e, v_s, V_INNER, WIDE)
    k_step, v_step = tl.cast(k_s, tl.int64) * BLOCK_S, tl.cast(v_s, tl.int64) * BLOCK_S
    for start in range(begin, end, BLOCK_S):
        s = start + cols
        ok = (s >= first) & (s < S)
        seen = readable(t, s, T, S, window, CAUSAL, WINDOWED)
        if mask is not None:
            seen = masked(seen, mask + b * mask_b, mask_t, mask_s, t, s)
            ok = tl.max(seen.to(tl.int32), 0) > 0  # a key that is nobody's may be unset
        k_sd = tl.load(k_at, mask=within(ok, d, D, BLOCK_D), other=0.0)
        v_se = tl.load(v_at, mask=within(ok, e, E, BLOCK_E), other=0.0)
        scores_ts = tl.dot(q_td, tl.trans(k_sd), input_precision="ieee") * scale_log2
        scores_ts = tl.where(seen, scores_ts, float("-inf"))
        # 3. The running maximum; while a row has seen no key it is -inf, and 0 stands in for it.
        m_new_t = tl.maximum(m_t, tl.max(scores_ts, 1))
        base_t = tl.where(m_new_t == float("-inf"), 0.0, m_new_t)
        p_ts = tl.exp2(scores_ts - base_t[:, None])
        fade_t = tl.exp2(m_t - base_t)
        l_t = l_t * fade_t + tl.sum(p_ts, 1)
        acc_te = tl.dot(p_ts.to(v_se.dtype), v_se, acc_te * fade_t[:, None], input_precision="ieee")
        m_t = m_new_t
        k_at += k_step
        v_at += v_step
    # 4. One division at the end; a row without keys has sum 0, gives 0 and LSE -inf.
    sum_t = tl.where(l_t == 0.0, 1.0, l_t)
    tl.store(lse + row * T + t, (m_t + tl.log2(sum_t)) * LN2, mask=t < T)
    o_tile = out + b * o_b + h * o_h + first_t.to(tl.int64) * o_t
    o_at = o_tile + offsets(rows, e, o_t, O_INNER, WIDE)
    out_te = (acc_te / sum_t[:, None]).to(out.dtype.element_ty)
    tl.store(o_at, out_te, mask=within(t < T, e, E, BLOCK_E))


@triton.jit
def forward_v1_kernel(
    q, k, v, out, peaks, sums,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, o_b, o_h, o_t,
    scale_log2, H, T, S, window,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, WIDE: tl.constexpr,
    Q_INNER: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr, O_INNER: tl.constexpr,
):  # fmt: skip
    """One program: one head. Keys outside, queries inside; out, peaks and sums live in memory."""
    row = tl.program_id(0).to(tl.int64)
    b, h, g = row // H, row % H, row % H // GROUP
    rows, cols = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    q_in, o_in = offsets(rows, d, q_t, Q_INNER, WIDE), offsets(rows, e, o_t, O_INNER, WIDE)
    first = first_key(T, S, window, WINDOWED)
    for start_s in range(0, S, BLOCK_S):
        s = start_s + cols
        ok = (s >= first) & (s < S)
        k_at = k + b * k_b + g * k_g + tl.cast(start_s, tl.int64) * k_s
        v_at = v + b * v_b + g * v_g + tl.cast(start_s, tl.int64) * v_s
        k_at += offsets(cols, d, k_s, K_INNER, WIDE)
        v_at += offsets(cols, e, v_s, V_INNER, WIDE)
        k_sd = tl.load(k_at, mask=within(ok, d, D, BLOCK_D), other=0.0)
        v_se = tl.load(v_at, mask=within(ok, e, E, BLOCK_E), other=0.0)
        begin = 0
        if CAUSAL:  # the first pass visits every query tile, as it also initialises
            begin = tl.where(start_s > 0, tl.maximum(start_s - (S - T), 0), 0) // BLOCK_T * BLOCK_T
        for start_t in range(begin, T, BLOCK_T):
            t = start_t + rows
            far = tl.cast(start_t, tl.int64)
            q_at = q + b * q_b + h * q_h + far * q_t + q_in
            o_at = out + b * o_b + h * o_h + far * o_t + o_in
            q_td = tl.load(q_at, mask=within(t < T, d, D, BLOCK_D), other=0.0)
            again = (t < T) & (start_s > 0)
            m_t = tl.load(peaks + row * T + t, mask=again, other=float("-inf"))
            l_t = tl.load(sums + row * T + t, mask=again, other=0.0)
            out_te = tl.load(o_at, mask=within(again, e, E, BLOCK_E), other=0.0)
            scores_ts = tl.dot(q_td, tl.trans(k_sd), input_precision="ieee") * scale_log2
            seen = readable(t, s, T, S, window, CAUSAL, WINDOWED)
            scores_ts = tl.where(seen, scores_ts, float("-inf"))
            m_new_t = tl.maximum(m_t, tl.max(scores_ts, 1))
            base_t = tl.where(m_new_t == float("-inf"), 0.0, m_new_t)
            p_ts = tl.exp2(scores_ts - base_t[:, None])
            old_t = l_t * tl.exp2(m_t - base_t)
            l_new_t = old_t + tl.sum(p_ts, 1)
            # v1 keeps out normalised: it multiplies the old sum back in and divides by the new.
            sum_t = tl.where(l_new_t == 0.0, 1.0, l_new_t)
            acc_te = tl.dot(p_ts.to(v_se.dtype), v_se, out_te * old_t[:, None],
                            input_precision="ieee")  # fmt: skip
            tl.store(o_at, acc_te / sum_t[:, None], mask=within(t < T, e, E, BLOCK_E))
            tl.store(peaks + row * T + t, m_new_t, mask=t < T)
            tl.store(sums + row * T + t, l_new_t, mask=t < T)
            tl.debug_barrier()  # the next pass of this program reads what other threads wrote
