"""Chapter 09's mistakes as somebody else would write them: the check knows them by what they do."""

import math

import numpy as np
import torch
from torch.nn import functional as F


def scores_of_a_lower_triangle(num_heads, num_tokens, batch_size, dtype):
    pairs = sum(range(1, num_tokens + 1))
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    return f"{pairs * width * num_heads * batch_size} bytes"


def scores_of_one_long_prompt(num_heads, num_tokens, batch_size, dtype):
    length = num_tokens * batch_size
    bits = {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype]
    return f"{num_heads * length * length * bits // 8} B"


def scores_by_a_row(num_heads, num_tokens, batch_size, dtype):
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    return f"{width * num_heads * num_tokens * batch_size / 1024:.9f} KiB"


def step_that_only_adds(max_so_far, sum_so_far, score):
    if score > max_so_far:
        max_so_far = score
    return max_so_far, math.exp(score - max_so_far) + sum_so_far


def step_in_numpy(max_so_far, sum_so_far, score):
    new = np.maximum(max_so_far, score)
    with np.errstate(invalid="ignore", over="ignore"):
        return new, sum_so_far * np.exp(max_so_far - new) + np.exp(score - new)


def step_in_torch_without_a_maximum(max_so_far, sum_so_far, score):
    new = torch.tensor([max_so_far, score], dtype=torch.double)
    return new.max(), sum_so_far + new[1].exp()


def step_upside_down(max_so_far, sum_so_far, score):
    if score > max_so_far:
        return score, sum_so_far * math.exp(score - max_so_far) + 1
    return max_so_far, sum_so_far + math.exp(score - max_so_far)


def step_over_exponentials(max_so_far, sum_so_far, score):
    top = np.maximum(max_so_far, score)
    if top == -np.inf:
        return top, 0.0
    with np.errstate(all="ignore"):
        parts = np.exp(np.array([max_so_far, score])) * np.array([sum_so_far, 1.0])
        return top, parts.sum() / np.exp(top)


def fold_with_a_stale_accumulator(max_T, sum_T, acc_TD, scores_TS, v_SD):
    tops = torch.cat([max_T[:, None], scores_TS], dim=1).max(dim=1).values
    base = torch.where(tops.isinf(), torch.zeros_like(tops), tops)
    weights = torch.exp(scores_TS - base.unsqueeze(1))
    sums = sum_T * torch.exp(max_T - base) + weights.sum(-1)
    return tops, sums, torch.addmm(acc_TD, weights, v_SD)


def fold_in_numpy_with_one_peak(max_T, sum_T, acc_TD, scores_TS, v_SD):
    m, total, acc, s, v = (x.double().numpy() for x in (max_T, sum_T, acc_TD, scores_TS, v_SD))
    peak = np.maximum(m, s.max())
    safe = np.where(np.isinf(peak), 0, peak)
    old, p = np.exp(m - safe), np.exp(s - safe[:, None])
    return peak, old * total + p.sum(1), old[:, None] * acc + p @ v


def fold_that_returns_a_mean(max_T, sum_T, acc_TD, scores_TS, v_SD):
    rows = []
    for m, total, acc, scores in zip(max_T, sum_T, acc_TD, scores_TS, strict=True):
        top = max(m.item(), scores.max().item())
        if top == -math.inf:
            rows.append((m, total, acc))
            continue
        old, p = torch.exp(m - top), torch.exp(scores - top)
        new = total * old + p.sum()
        rows.append((torch.tensor(top), new, (acc * old + p @ v_SD) / new))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def fold_without_a_guard(max_T, sum_T, acc_TD, scores_TS, v_SD):
    new = torch.stack([max_T, scores_TS.max(dim=-1).values]).max(dim=0).values
    ratio = torch.exp(max_T) / torch.exp(new)
    ratio = torch.where(new == -math.inf, torch.nan, ratio)
    p = torch.exp(scores_TS - new.view(-1, 1))
    return new, ratio * sum_T + p.sum(dim=-1), ratio.view(-1, 1) * acc_TD + p.matmul(v_SD)


def merge_by_counting_parts(outs, lses):
    return sum(outs) / len(outs), torch.stack(lses).logsumexp(0)


def merge_with_raw_sums(outs, lses):
    sums = [lse.exp() for lse in lses]
    total = sum(sums)
    return sum(out * (s / total)[:, None] for out, s in zip(outs, sums, strict=True)), total.log()


def merge_that_keeps_the_peak(outs, lses):
    weights = torch.stack(lses).softmax(0).nan_to_num(0.0)
    merged = torch.einsum("pt,ptd->td", weights, torch.stack(outs))
    return merged, torch.stack(lses).max(0).values


def merge_pair_by_pair_into_nan(outs, lses):
    out, lse = outs[0], lses[0]
    for other, its in zip(outs[1:], lses[1:], strict=True):
        share = 1 / (1 + (its - lse).exp())  # sigmoid(lse - its)
        nothing = (lse == -math.inf) & (its == -math.inf)
        share = torch.where(nothing, torch.nan, share)
        out = share[:, None] * out + (1 - share)[:, None] * other
        lse = torch.logaddexp(lse, its)
    return out, lse


def merge_in_another_base(outs, lses):
    weights = [2.0 ** (lse - torch.stack(lses).amax(0).clamp(min=-1e30)) for lse in lses]
    total = sum(weights).clamp(min=1e-30)
    out = sum(w[:, None] * x for w, x in zip(weights, outs, strict=True)) / total[:, None]
    return out, torch.stack(lses).amax(0) + total.clamp(min=1.0).log2()


def tiles_by_a_square_mask(first_t, block_t, num_new, num_stored, block_s, window):
    rows, cols = torch.arange(num_new)[:, None], torch.arange(num_stored)
    seen = cols <= rows
    if window:
        seen &= cols > rows - window
    here = seen[first_t : first_t + block_t].any(0).nonzero().flatten().tolist()
    return (here[0] // block_s, here[-1] // block_s + 1) if here else (0, 0)


def tiles_rounded_down(first_t, block_t, num_new, num_stored, block_s, window):
    offset = num_stored - num_new
    newest = offset + min(num_new, first_t + block_t) - 1
    oldest = max(0, offset + first_t + 1 - (window or offset + first_t + 1))
    return oldest // block_s, newest // block_s


def tiles_of_a_full_block(first_t, block_t, num_new, num_stored, block_s, window):
    positions = range(first_t + num_stored - num_new, first_t + block_t + num_stored - num_new)
    if positions[-1] < 0:
        return 0, 0
    begin = max(0, positions[0] - window + 1) if window is not None else 0
    return begin // block_s, (positions[-1] + block_s) // block_s


def tiles_with_a_longer_window(first_t, block_t, num_new, num_stored, block_s, window):
    position = first_t + num_stored - num_new
    end = min(first_t + block_t, num_new) + num_stored - num_new
    begin = 0 if window is None else max(position - window, 0)
    return begin // block_s, -(-end // block_s)


def tiles_of_the_last_rows_window(first_t, block_t, num_new, num_stored, block_s, window):
    end = min(first_t + block_t, num_new) + num_stored - num_new
    begin = 0 if window is None else max(end - window, 0)
    return (begin // block_s, -(-end // block_s)) if end > 0 else (0, 0)


def traffic_of_the_first_version(num_new, num_stored, head_dim, block_t):
    reads = writes = 0
    for start in range(0, num_stored, block_t):
        reads += 2 * min(block_t, num_stored - start) * head_dim
        reads += num_new * (head_dim + head_dim + 2)
        writes += num_new * (head_dim + 2)
    return reads, writes


def traffic_without_statistics(num_new, num_stored, head_dim, block_t):
    programs = len(range(0, num_new, block_t))
    return head_dim * (num_new + 2 * programs * num_stored), head_dim * num_new


def traffic_of_full_programs(num_new, num_stored, head_dim, block_t):
    programs = math.ceil(num_new / block_t)
    a_program = block_t * head_dim + 2 * num_stored * head_dim
    return programs * a_program, programs * block_t * (head_dim + 1)


def traffic_read_once(num_new, num_stored, head_dim, block_t):
    return sum(n * head_dim for n in (num_new, num_stored, num_stored)), num_new * (head_dim + 1)


def blocks_without_granularity(
    registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps
):
    threads = 32 * num_warps
    options = [unit_registers / (threads * registers), unit_warps / num_warps]
    if shared_bytes > 0:
        options.append(unit_shared / shared_bytes)
    return math.floor(min(options))


def blocks_of_the_roomiest(
    registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps
):
    a_warp = math.ceil(registers / 8) * 8 * 32
    by_shared = unit_shared // shared_bytes if shared_bytes else unit_warps
    return sorted([unit_registers // a_warp // num_warps, by_shared, unit_warps // num_warps])[-1]


def blocks_without_tiles(
    registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps
):
    warps = min(unit_registers // (math.ceil(registers / 8) * 256), unit_warps)
    return warps // num_warps


def attention_by_sdpa(q_TD, read, num_keys, block):
    k, v = read(0, num_keys)
    return F.scaled_dot_product_attention(q_TD[None], k[None], v[None])[0]


def attention_of_split_keys(q_TD, read, num_keys, block):
    outs, lses = [], []
    for start in range(0, num_keys, block):
        k, v = read(start, min(start + block, num_keys))
        scores = q_TD @ k.T / q_TD.shape[1] ** 0.5
        outs.append(scores.softmax(-1) @ v)
        lses.append(scores.logsumexp(-1))
    weights = torch.stack(lses).softmax(0)
    return (weights[..., None] * torch.stack(outs)).sum(0)


def attention_of_collected_keys(q_TD, read, num_keys, block):
    k, v = q_TD.new_zeros(0, q_TD.shape[1]), q_TD.new_zeros(0, q_TD.shape[1])
    for start in range(0, num_keys, block):
        more_k, more_v = read(start, min(num_keys, start + block))
        k, v = torch.cat([k, more_k]), torch.cat([v, more_v])
    return torch.softmax(q_TD @ k.T * q_TD.shape[1] ** -0.5, dim=-1) @ v


def attention_with_a_pass_for_the_maximum(q_TD, read, num_keys, block):
    starts = range(0, num_keys, block)
    root = math.sqrt(q_TD.shape[1])
    top = torch.full((len(q_TD), 1), -math.inf)
    for start in starts:
        k, _ = read(start, min(start + block, num_keys))
        top = torch.maximum(top, (q_TD @ k.T / root).amax(1, keepdim=True))
    total, out = torch.zeros_like(top), torch.zeros_like(q_TD)
    for start in starts:
        k, v = read(start, min(start + block, num_keys))
        p = torch.exp(q_TD @ k.T / root - top)
        total, out = total + p.sum(1, keepdim=True), out + p @ v
    return out / total


def attention_with_padding(q_TD, read, num_keys, block):
    out, lse = torch.zeros_like(q_TD), torch.full((len(q_TD), 1), -math.inf)
    for i in range(math.ceil(num_keys / block)):
        k, v = read(i * block, i * block + block)
        scores = q_TD @ k.T / q_TD.shape[1] ** 0.5
        new = torch.logaddexp(lse, scores.logsumexp(1, keepdim=True))
        out = out * torch.exp(lse - new) + torch.exp(scores - new) @ v
        lse = new
    return out


def attention_of_plain_exponentials(q_TD, read, num_keys, block):
    total, out = 0.0, 0.0
    for start in range(0, num_keys, block):
        k, v = read(start, min(start + block, num_keys))
        p = torch.exp(q_TD @ k.T / q_TD.shape[1] ** 0.5)
        total, out = total + p.sum(1), out + p @ v
    return out / total[:, None]


def attention_rescaled_from_the_second_tile(q_TD, read, num_keys, block):
    top, total, out = None, 0.0, 0.0
    for start in range(0, num_keys, block):
        k, v = read(start, min(start + block, num_keys))
        scores = q_TD @ k.T / q_TD.shape[1] ** 0.5
        mine = scores.max(1).values
        top = mine if top is None else torch.maximum(top, mine)
        p = torch.exp(scores - top[:, None])
        total, out = total + p.sum(1), out + p @ v
    return out / total[:, None]


def gradients_of_a_product(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    p = torch.exp(scale * torch.einsum("td,sd->ts", q_TD, k_SD) - lse_T.unsqueeze(1))
    d_s = torch.einsum("td,sd,ts->ts", d_out_TD, v_SD, p) * scale
    return d_s @ k_SD, d_s.t() @ q_TD, p.t() @ d_out_TD


def gradients_by_autograd_of_the_tile(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    q, k, v = (x.clone().requires_grad_() for x in (q_TD, k_SD, v_SD))
    out = (q @ k.T * scale).softmax(dim=1) @ v
    return torch.autograd.grad(out, (q, k, v), d_out_TD)


def gradients_with_scaled_queries(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    q = q_TD * scale  # and then d_q is the gradient of the scaled ones
    p = (q @ k_SD.T - lse_T[:, None]).exp()
    d_s = p * (d_out_TD @ v_SD.T - delta_T[:, None])
    return d_s @ k_SD, d_s.T @ q, p.T @ d_out_TD


def gradients_with_a_delta_of_their_own(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    p = (q_TD @ k_SD.T * scale - lse_T[:, None]).exp()
    delta = (d_out_TD * (p @ v_SD)).sum(dim=1)
    d_s = scale * p * (d_out_TD @ v_SD.T - delta[:, None])
    return d_s @ k_SD, d_s.T @ q_TD, p.T @ d_out_TD


def gradients_of_a_quotient(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    q, k, v, d_out = (x.numpy() for x in (q_TD, k_SD, v_SD, d_out_TD))
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(q @ k.T * np.float32(scale)) / np.exp(lse_T.numpy())[:, None]
        d_s = scale * p * (d_out @ v.T - delta_T.numpy()[:, None])
        return d_s @ k, d_s.T @ q, p.T @ d_out


REWRITTEN = [
    ("score_matrix", "triangle alone", scores_of_a_lower_triangle),
    ("score_matrix", "prompts joined", scores_of_one_long_prompt),
    ("score_matrix", "one score a token", scores_by_a_row),
    ("running_step", "sum not rescaled", step_that_only_adds),
    ("running_step", "NaN before the first key", step_in_numpy),
    ("running_step", "no maximum taken off", step_in_torch_without_a_maximum),
    ("running_step", "factor inverted", step_upside_down),
    ("running_step", "exponentials of the scores themselves", step_over_exponentials),
    ("fold_tile", "accumulator not rescaled", fold_with_a_stale_accumulator),
    ("fold_tile", "one maximum for the tile", fold_in_numpy_with_one_peak),
    ("fold_tile", "divided in each tile", fold_that_returns_a_mean),
    ("fold_tile", "NaN for masked rows", fold_without_a_guard),
    ("merge_parts", "plain average", merge_by_counting_parts),
    ("merge_parts", "no maximum taken off", merge_with_raw_sums),
    ("merge_parts", "largest log-sum-exp returned", merge_that_keeps_the_peak),
    ("merge_parts", "NaN for a query that reads nothing", merge_pair_by_pair_into_nan),
    ("merge_parts", "powers of two for natural ones", merge_in_another_base),
    ("key_tiles", "aligned to the top left", tiles_by_a_square_mask),
    ("key_tiles", "last tile missing", tiles_rounded_down),
    ("key_tiles", "last tile taken for full", tiles_of_a_full_block),
    ("key_tiles", "window one too long", tiles_with_a_longer_window),
    ("key_tiles", "window of the last query", tiles_of_the_last_rows_window),
    ("tile_traffic", "keys outside", traffic_of_the_first_version),
    ("tile_traffic", "log-sum-exp forgotten", traffic_without_statistics),
    ("tile_traffic", "last tile counted as full", traffic_of_full_programs),
    ("tile_traffic", "keys read once", traffic_read_once),
    ("blocks_per_unit", "registers to the last one", blocks_without_granularity),
    ("blocks_per_unit", "largest limit", blocks_of_the_roomiest),
    ("blocks_per_unit", "shared memory ignored", blocks_without_tiles),
    ("tiled_attention", "all keys at once", attention_by_sdpa),
    ("tiled_attention", "row of scores kept", attention_of_split_keys),
    ("tiled_attention", "row of scores kept", attention_of_collected_keys),
    ("tiled_attention", "two passes over the keys", attention_with_a_pass_for_the_maximum),
    ("tiled_attention", "zeros behind the last key counted", attention_with_padding),
    ("tiled_attention", "no maximum taken off", attention_of_plain_exponentials),
    ("tiled_attention", "nothing rescaled", attention_rescaled_from_the_second_tile),
    ("tile_gradients", "delta left out", gradients_of_a_product),
    ("tile_gradients", "softmax within the tile", gradients_by_autograd_of_the_tile),
    ("tile_gradients", "scale left out", gradients_with_scaled_queries),
    ("tile_gradients", "delta of the tile alone", gradients_with_a_delta_of_their_own),
    ("tile_gradients", "exponentials of the scores themselves", gradients_of_a_quotient),
]
