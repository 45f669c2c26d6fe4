"""Mistakes of chapter 02's exercises as somebody else would write them."""

import torch
from torch.nn import functional as F


def bytes_of_all_heads(rows, tokens, layers, q_heads, kv_heads, dim, width):
    model_width = q_heads * dim
    return layers * tokens * rows * (model_width + model_width) * width


def bytes_of_qkv(rows, tokens, layers, q_heads, kv_heads, dim, width):
    per_token = [q_heads, kv_heads, kv_heads]
    return sum(heads * dim * width for heads in per_token * layers) * tokens * rows


def cost_of_feeding_all(num_prompt, num_new):
    lengths = range(1, num_prompt + num_new + 1)
    return torch.tensor([len(lengths), sum(lengths)])


def cost_of_rerunning(num_prompt, num_new):
    fed = met = 0
    for step in range(num_new):
        for t in range(num_prompt + step):
            fed, met = fed + 1, met + t + 1
    return [fed, met]


def append_by_view(k_buffer, v_buffer, n, k, v):
    B, T, G, D = k.shape
    if n + T > k_buffer.size(2):
        raise ValueError(n + T)
    for t in range(T):
        k_buffer[:, :, n + t] = k.contiguous().view(B, G, T, D)[:, :, t]
        v_buffer[:, :, n + t] = v.contiguous().view(B, G, T, D)[:, :, t]
    return [k_buffer.narrow(2, 0, n + T).clone(), v_buffer.narrow(2, 0, n + T).clone()]


def append_to_a_copy(k_buffer, v_buffer, n, k, v):
    out = []
    for buffer, x in ((k_buffer, k), (v_buffer, v)):
        if n + x.shape[1] > buffer.shape[2]:
            raise ValueError("full")
        buffer = buffer.clone()
        buffer[:, :, n : n + x.shape[1]] = x.permute(0, 2, 1, 3)
        out.append(buffer[:, :, : n + x.shape[1]])
    return tuple(out)


def append_unchecked(k_buffer, v_buffer, n, k, v):
    S = k_buffer.shape[2]
    for buffer, x in ((k_buffer, k), (v_buffer, v)):
        for t in range(x.shape[1]):
            if n + t < S:
                buffer[:, :, n + t] = x[:, t]
    return k_buffer[:, :, : n + k.shape[1]], v_buffer[:, :, : n + v.shape[1]]


def mask_like_sdpa(T, S, pads):
    bias = torch.full((T, S), float("-inf")).triu(diagonal=1)
    return torch.stack([(bias == 0) & (torch.arange(S) >= n) for n in pads.tolist()])


def mask_without_padding(T, S, pads):
    rows = [[[s <= S - T + t for s in range(S)] for t in range(T)] for _ in pads]
    return torch.tensor(rows)


def positions_from_zero(T, S, pads):
    return [list(range(T)) for _ in pads]


def positions_by_slot(T, S, pads):
    return [list(range(S))[-T:]] * len(pads)


def _complex_turn(x, positions, theta):
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half).double() / half)
    angles = torch.outer(positions.double(), speeds)
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def step_in_tiles(q, k, v, k_held, v_held, theta):
    T, held = q.shape[2], k_held.shape[2]
    at = torch.arange(T) + held
    k = torch.cat((k_held.double(), _complex_turn(k, at, theta)), dim=2)
    v = torch.cat((v_held, v), dim=2).double()
    q, G = _complex_turn(q, at, theta), k.shape[1]
    allowed = torch.ones(T, held + T, dtype=torch.bool).tril(held)
    heads = [
        F.scaled_dot_product_attention(q[:, h], k[:, h % G], v[:, h % G], attn_mask=allowed)
        for h in range(q.shape[1])
    ]
    return torch.stack(heads, dim=1).float()


def step_at_zero(q, k, v, k_held, v_held, theta):
    at, held = torch.arange(q.shape[2]), k_held.shape[2]
    k = torch.cat((k_held.double(), _complex_turn(k, at, theta)), dim=2)
    allowed = torch.ones(len(at), held + len(at), dtype=torch.bool).tril(held)
    return F.scaled_dot_product_attention(
        _complex_turn(q, at, theta),
        k,
        torch.cat((v_held, v), dim=2).double(),
        attn_mask=allowed,
        enable_gqa=True,
    )


def step_with_is_causal(q, k, v, k_held, v_held, theta):
    at = torch.arange(q.shape[2]) + k_held.shape[2]
    k = torch.cat((k_held.double(), _complex_turn(k, at, theta)), dim=2)
    v = torch.cat((v_held, v), dim=2).double()
    q = _complex_turn(q, at, theta)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def truncate_by_length_alone(k_buffer, v_buffer, held, kept):
    for a, b in zip(held.tolist(), kept.tolist(), strict=True):
        if b > a:
            raise ValueError(f"{b} of {a}")
    return kept.tolist()


def truncate_keys(k_buffer, v_buffer, held, kept):
    if not bool(torch.all(kept <= held)):
        raise ValueError("too long")
    for row in range(len(kept)):
        for slot in range(int(kept[row]), int(held[row])):
            k_buffer[row, :, slot].fill_(float("nan"))
    return kept


def _loop(model, prompts, limit, stops, *, place, hide_pads=True):
    width = max(len(p) for p in prompts)
    batch = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        batch[row, width - len(prompt) :] = torch.tensor(prompt)
    real = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]).bool()
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    positions = (real.cumsum(1) - 1).clamp(min=0)
    mask = causal & real[:, None] if hide_pads else causal.expand(len(prompts), -1, -1)
    out, live = [[] for _ in prompts], [True] * len(prompts)
    for step in range(limit):
        token = model(batch, positions, mask)[:, -1].argmax(-1)
        for row in range(len(prompts)):
            if live[row]:
                out[row].append(token[row].item())
                live[row] = out[row][-1] not in stops
        if not any(live):
            break
        batch = token[:, None]
        real = F.pad(real, (0, 1), value=True)
        positions = place(prompts, width, step)
        mask = (real if hide_pads else torch.ones_like(real))[:, None]
    return out


def loop_from_zero(model, prompts, limit, stops=()):
    def place(prompts, width, step):
        return torch.zeros(len(prompts), 1, dtype=torch.long)

    return _loop(model, prompts, limit, stops, place=place)


def loop_by_slot(model, prompts, limit, stops=()):
    def place(prompts, width, step):
        return torch.full((len(prompts), 1), width + step)

    return _loop(model, prompts, limit, stops, place=place)


def loop_over_pads(model, prompts, limit, stops=()):
    def place(prompts, width, step):
        return torch.tensor([[len(prompt) + step] for prompt in prompts])

    return _loop(model, prompts, limit, stops, place=place, hide_pads=False)


REWRITTEN = [
    ("cache_bytes", "query heads counted", bytes_of_all_heads),
    ("cache_bytes", "queries stored", bytes_of_qkv),
    ("cached_cost", "last token fed", cost_of_feeding_all),
    ("cached_cost", "as if nothing were kept", cost_of_rerunning),
    ("append_and_read", "heads and positions swapped", append_by_view),
    ("append_and_read", "buffer not written", append_to_a_copy),
    ("append_and_read", "overrun dropped silently", append_unchecked),
    ("decode_mask", "mask aligned top left", mask_like_sdpa),
    ("decode_mask", "pads attended", mask_without_padding),
    ("decode_positions", "positions restarted", positions_from_zero),
    ("decode_positions", "pads counted", positions_by_slot),
    ("cached_attention", "wrong group order", step_in_tiles),
    ("cached_attention", "positions restarted", step_at_zero),
    ("cached_attention", "mask aligned top left", step_with_is_causal),
    ("truncate", "stale tail", truncate_by_length_alone),
    ("truncate", "values forgotten", truncate_keys),
    ("cached_generate", "positions restarted", loop_from_zero),
    ("cached_generate", "pads counted in decode", loop_by_slot),
    ("cached_generate", "pads attended", loop_over_pads),
]
