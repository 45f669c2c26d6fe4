"""Attention in tiles, backward: scores are computed again from q, k and the log-sum-exp.

With P = exp(scores - LSE), dP = dO V^T and delta = rowsum(dO * O) - dLSE, the gradient of the
scores is dS = P * (dP - delta); then dV = P^T dO, dK = dS^T Q * scale, dQ = dS K * scale. No kernel
adds into memory that another program writes, so the result does not depend on timing.

Strides are named as in :mod:`refimpl.kernels.forward`; ``g_…`` are those of the output's gradient.
Source: FlashAttention-2, arXiv:2307.08691, algorithm 2, with dQ in a pass of its own.
"""

import triton
import triton.language as tl

from refimpl.kernels.tiles import (
    first_key,
    key_range,
    masked,
    offsets,
    query_range,
    readable,
    within,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def delta_kernel(
    out, d_out, d_lse, delta,
    o_b, o_h, o_t, g_b, g_h, g_t, H, T,
    E: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, WIDE: tl.constexpr,
    O_INNER: tl.constexpr, G_INNER: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(d_out * out) - d_lse for one tile of queries of one head."""
    num_tiles = tl.cdiv(T, BLOCK_T)
    first_t = tl.program_id(0) % num_tiles * BLOCK_T
    row = (tl.program_id(0) // num_tiles).to(tl.int64)
    b, h = row // H, row % H
    rows, e = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_E)
    t = first_t + rows
    far = first_t.to(tl.int64)
    mask = within(t < T, e, E, BLOCK_E)
    o_at = out + b * o_b + h * o_h + far * o_t + offsets(rows, e, o_t, O_INNER, WIDE)
    g_at = d_out + b * g_b + h * g_h + far * g_t + offsets(rows, e, g_t, G_INNER, WIDE)
    out_te = tl.load(o_at, mask=mask, other=0.0).to(tl.float32)
    d_out_te = tl.load(g_at, mask=mask, other=0.0).to(tl.float32)
    d_lse_t = tl.load(d_lse + row * T + t, mask=t < T, other=0.0)
    tl.store(delta + row * T + t, tl.sum(out_te * d_out_te, 1) - d_lse_t, mask=t < T)


@triton.jit
def d_query_kernel(
    q, k, v, mask, d_out, lse, delta, d_q,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, g_b, g_h, g_t,
    mask_b, mask_t, mask_s, scale, H, T, S, window,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, WIDE: tl.constexpr,
    Q_INNER: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr, G_INNER: tl.constexpr,
):  # fmt: skip
    """One program: the gradient of one tile of queries of one head, past all its keys."""
    num_tiles = tl.cdiv(T, BLOCK_T)
    first_t = tl.program_id(0) % num_tiles * BLOCK_T
    row = (tl.program_id(0) // num_tiles).to(tl.int64)
    b, h, g = row // H, row % H, row % H // GROUP
    rows, cols = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    t = first_t + rows
    far = first_t.to(tl.int64)
    q_at = q + b * q_b + h * q_h + far * q_t + offsets(rows, d, q_t, Q_INNER, WIDE)
    g_at = d_out + b * g_b + h * g_h + far * g_t + offsets(rows, e, g_t, G_INNER, WIDE)
    q_td = tl.load(q_at, mask=within(t < T, d, D, BLOCK_D), other=0.0)
    d_out_te = tl.load(g_at, mask=within(t < T, e, E, BLOCK_E), other=0.0)
    lse_t = tl.load(lse + row * T + t, mask=t < T, other=0.0) * LOG2E
    delta_t = tl.load(delta + row * T + t, mask=t < T, other=0.0)
    d_q_td = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
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
            ok = tl.max(seen.to(tl.int32), 0) > 0
        k_sd = tl.load(k_at, mask=within(ok, d, D, BLOCK_D), other=0.0)
        v_se = tl.load(v_at, mask=within(ok, e, E, BLOCK_E), other=0.0)
        scores_ts = tl.dot(q_td, tl.trans(k_sd), input_precision="ieee") * (scale * LOG2E)
        p_ts = tl.exp2(tl.where(seen, scores_ts - lse_t[:, None], float("-inf")))
        d_p_ts = tl.dot(d_out_te, tl.trans(v_se), input_precision="ieee")
        d_s_ts = p_ts * (d_p_ts - delta_t[:, None])
        d_q_td = tl.dot(d_s_ts.to(k_sd.dtype), k_sd, d_q_td, input_precision="ieee")
        k_at += k_step
        v_at += v_step
    at = d_q + (row * T + t)[:, None] * D + d[None, :]
    d_q_td = (d_q_td * scale).to(d_q.dtype.element_ty)
    tl.store(at, d_q_td, mask=within(t < T, d, D, BLOCK_D))


@triton.jit
def d_key_value_kernel(
    q, k, v, mask, d_out, lse, delta, d_k, d_v,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, g_b, g_h, g_t,
    mask_b, mask_t, mask_s, scale, H, T, S, window,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, WIDE: tl.constexpr,
    Q_INNER: tl.constexpr, K_INNER: tl.constexpr, V_INNER: tl.constexpr, G_INNER: tl.constexpr,
):  # fmt: skip
    """One program: the gradients of one tile of keys and values, past all queries of its group."""
    num_tiles = tl.cdiv(S, BLOCK_S)
    first_s = tl.program_id(0) % num_tiles * BLOCK_S
    row = (tl.program_id(0) // num_tiles).to(tl.int64)  # b * G + g
    b, g = row // (H // GROUP), row % (H // GROUP)
    rows, cols = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    s = first_s + cols
    far = first_s.to(tl.int64)
    ok = (s >= first_key(T, S, window, WINDOWED)) & (s < S)
    k_at = k + b * k_b + g * k_g + far * k_s + offsets(cols, d, k_s, K_INNER, WIDE)
    v_at = v + b * v_b + g * v_g + far * v_s + offsets(cols, e, v_s, V_INNER, WIDE)
    k_sd = tl.load(k_at, mask=within(ok, d, D, BLOCK_D), other=0.0)
    v_se = tl.load(v_at, mask=within(ok, e, E, BLOCK_E), other=0.0)
    d_k_sd = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    d_v_se = tl.zeros([BLOCK_S, BLOCK_E], tl.float32)
    begin, end = query_range(first_s, T, S, window, BLOCK_T, BLOCK_S, CAUSAL, WINDOWED)
    q_in, g_in = offsets(rows, d, q_t, Q_INNER, WIDE), offsets(rows, e, g_t, G_INNER, WIDE)
    q_step, g_step = tl.cast(q_t, tl.int64) * BLOCK_T, tl.cast(g_t, tl.int64) * BLOCK_T
    for h in range(g * GROUP, (g + 1) * GROUP):  # the heads that read these keys
        head = tl.cast(h, tl.int64)
        q_at = q + b * q_b + head * q_h + begin.to(tl.int64) * q_t + q_in
        g_at = d_out + b * g_b + head * g_h + begin.to(tl.int64) * g_t + g_in
        stats = (b * H + head) * T
        for start in range(begin, end, BLOCK_T):
            t = start + rows
            q_td = tl.load(q_at, mask=within(t < T, d, D, BLOCK_D), other=0.0)
            d_out_te = tl.load(g_at, mask=within(t < T, e, E, BLOCK_E), other=0.0)
            lse_t = tl.load(lse + stats + t, mask=t < T, other=0.0) * LOG2E
            delta_t = tl.load(delta + stats + t, mask=t < T, other=0.0)
            scores_ts = tl.dot(q_td, tl.trans(k_sd), input_precision="ieee") * (scale * LOG2E)
            seen = readable(t, s, T, S, window, CAUSAL, WINDOWED)
            if mask is not None:
                seen = masked(seen, mask + b * mask_b, mask_t, mask_s, t, s)
            p_ts = tl.exp2(tl.where(seen, scores_ts - lse_t[:, None], float("-inf")))
            d_v_se = tl.dot(tl.trans(p_ts.to(d_out_te.dtype)), d_out_te, d_v_se,
                            input_precision="ieee")  # fmt: skip
            d_p_ts = tl.dot(d_out_te, tl.trans(v_se), input_precision="ieee")
            # 0 times NaN is NaN: the gradient of a key that is nobody's is 0 whatever it holds.
            d_s_ts = tl.where(seen, p_ts * (d_p_ts - delta_t[:, None]), 0.0)
            d_k_sd = tl.dot(tl.trans(d_s_ts.to(q_td.dtype)), q_td, d_k_sd,
                            input_precision="ieee")  # fmt: skip
            q_at += q_step
            g_at += g_step
    at = row * S + s
    d_k_sd = (d_k_sd * scale).to(d_k.dtype.element_ty)
    tl.store(d_k + at[:, None] * D + d[None, :], d_k_sd, mask=within(s < S, d, D, BLOCK_D))
    d_v_se = d_v_se.to(d_v.dtype.element_ty)
    tl.store(d_v + at[:, None] * E + e[None, :], d_v_se, mask=within(s < S, e, E, BLOCK_E))
