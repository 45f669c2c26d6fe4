"""Chapter 03's mistakes as somebody else would write them: the check knows them by what they do."""

import math

import torch

BYTES = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}


def token_of_the_model_width(L, H, G, D, dtype):
    hidden_size = H * D
    return f"{L * (hidden_size + hidden_size) * BYTES[dtype] / 1024} KiB"


def token_bits_for_bytes(L, H, G, D, dtype):
    bits = {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype]
    return f"{sum(G * D * bits for _ in range(L) for _ in 'kv')} bytes"


def token_divided_by_a_thousand(L, H, G, D, dtype):
    n = 2 * L * G * D * BYTES[dtype]
    if n < 1000:
        return f"{n} B"
    return f"{n / 1000} KiB" if n < 10**6 else f"{n / 10**6} MiB"


def batch_divided_by_a_billion(L, H, G, D, dtype, S, B):
    n = float(S * B * G * D * BYTES[dtype]) * L + S * B * G * D * BYTES[dtype] * L
    for limit, unit in ((1e9, "GiB"), (1e6, "MiB"), (1e3, "KiB")):
        if n >= limit:
            return f"{n / limit} {unit}"
    return f"{n} B"


def batch_of_one(L, H, G, D, dtype, S, B):
    total = 0
    for _ in range(L):
        total += S * (G * D + G * D)
    return f"{total * BYTES[dtype]} B"


def heads_repeated(x, H):
    return x.repeat(1, H // x.shape[1], 1, 1)


def heads_concatenated(x, H):
    return torch.cat([x] * (H // x.shape[1]), dim=1)


def heads_expanded_from_the_first(x, H):
    return x[:, :1].expand(-1, H, -1, -1)


def outgrows_under_multi_head(parameters, weight_dtype, L, H, G, D, cache_dtype):
    token = sum(2 * H * D for _ in range(L)) * BYTES[cache_dtype]
    tokens = 0 if token > 10**12 else parameters * BYTES[weight_dtype] // token
    return f"{tokens + 1} tokens"


def outgrows_in_the_weights_type(parameters, weight_dtype, L, H, G, D, cache_dtype):
    return f"{parameters // (2 * L * G * D) + 1} tokens"


def latent_of_keys_and_values(L, H, C, R, D, E, dtype, S):
    key, value = S * (C + R), S * (C + R)
    return f"{(key + value) * L * BYTES[dtype] / 2**20:.9f} MiB"


def latent_expanded(L, H, C, R, D, E, dtype, S):
    keys, values = H * (D + R), H * E
    return f"{sum((keys + values) * BYTES[dtype] for _ in range(L)) * S} B"


def config_without_head_dim(config):
    c = config.get("text_config", config)
    kinds = c.get("layer_types", ["full"] * c["num_hidden_layers"])
    n = sum(1 for kind in kinds if not kind.startswith("linear"))
    if "kv_lora_rank" in c:
        return n * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
    D = c["hidden_size"] // c["num_attention_heads"]
    return n * 2 * D * c.get("num_key_value_heads", c["num_attention_heads"])


def config_of_all_layers(config):
    c = config.get("text_config") or config
    if "kv_lora_rank" in c:
        per_layer = c["kv_lora_rank"] + c["qk_rope_head_dim"]
    else:
        H = c["num_attention_heads"]
        per_layer = (
            2 * c.get("num_key_value_heads", H) * (c.get("head_dim") or c["hidden_size"] // H)
        )
    return c["num_hidden_layers"] * per_layer


def pooled_every_nth(weight, H, G):
    heads = weight.reshape(H // G, G, -1, weight.shape[1])
    return heads.mean(0).flatten(0, 1)


def pooled_neighbouring_rows(weight, H, G):
    n = H // G
    return torch.stack([weight[i : i + n].mean(0) for i in range(0, len(weight), n)])


def pooled_picked(weight, H, G):
    return weight.unflatten(0, (G, H // G, -1))[:, 0].flatten(0, 1)


def absorbed_scaled_by_what_is_read(q, q_rope, latent, k_rope, up_k, up_v):
    stored = torch.cat((latent, k_rope), -1)
    query = torch.cat((torch.einsum("bhd,hdc->bhc", q, up_k), q_rope), -1)
    weights = (query @ stored.transpose(1, 2) / math.sqrt(stored.shape[-1])).softmax(-1)
    return torch.einsum("bhc,hec->bhe", weights @ latent, up_v)


def absorbed_without_position(q, q_rope, latent, k_rope, up_k, up_v):
    keys = torch.einsum("bsc,hdc->bhsd", latent, up_k)
    values = torch.einsum("bsc,hec->bhse", latent, up_v)
    scores = (keys @ q[..., None])[..., 0] / (q.shape[-1] + q_rope.shape[-1]) ** 0.5
    return (scores.softmax(-1)[:, :, None] @ values)[:, :, 0]


REWRITTEN = [
    ("token_bytes", "query heads counted", token_of_the_model_width),
    ("token_bytes", "bits", token_bits_for_bytes),
    ("token_bytes", "kB called KiB", token_divided_by_a_thousand),
    ("batch_cache", "GB called GiB", batch_divided_by_a_billion),
    ("batch_cache", "one request", batch_of_one),
    ("expand_heads", "tiled", heads_repeated),
    ("expand_heads", "tiled", heads_concatenated),
    ("expand_heads", "first head only", heads_expanded_from_the_first),
    ("outgrows_weights", "query heads counted", outgrows_under_multi_head),
    ("outgrows_weights", "one type for both", outgrows_in_the_weights_type),
    ("latent_cache", "stored for keys and for values", latent_of_keys_and_values),
    ("latent_cache", "expanded to every head", latent_expanded),
    ("stored_elements", "head dim always derived", config_without_head_dim),
    ("stored_elements", "linear layers counted", config_of_all_layers),
    ("pool_heads", "strided groups", pooled_every_nth),
    ("pool_heads", "dimensions averaged", pooled_neighbouring_rows),
    ("pool_heads", "first of each group", pooled_picked),
    ("attend_absorbed", "scaled by the latent's width", absorbed_scaled_by_what_is_read),
    ("attend_absorbed", "rotary part dropped", absorbed_without_position),
]
