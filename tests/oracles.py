"""What the tests of refimpl compare with: loops in float64, transformers, and tiny odd shapes.

Nothing here calls refimpl's arithmetic. Sizes are pairwise different, because equal ones hide
faults: a transposed axis or a wrong group order still has the right shape then.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import torch
from torch import Tensor, nn

from refimpl.architecture import Architecture, RopeScaling
from refimpl.model import Decoder

DATA = Path(__file__).parent / "data"

# Examples are a function of the test alone, so a failure is the same everywhere.
hypothesis.settings.register_profile(
    "book", deadline=None, derandomize=True, database=None, max_examples=60
)
hypothesis.settings.load_profile("book")

MHA = Architecture(
    name="mha",
    num_layers=3,
    model_width=25,
    num_query_heads=5,
    num_kv_heads=5,
    head_dim=6,
    mlp_width=34,
    vocab_size=41,
    max_context=64,
    rope_theta=700.0,
    norm_eps=3e-5,
)
GQA = Architecture(
    name="gqa",
    num_layers=2,
    model_width=24,
    num_query_heads=6,
    num_kv_heads=3,
    head_dim=10,
    mlp_width=28,
    vocab_size=37,
    max_context=50,
    rope_theta=5_000.0,
    norm_eps=1e-6,
    tie_embeddings=True,
)
MQA = Architecture(
    name="mqa",
    num_layers=2,
    model_width=14,
    num_query_heads=7,
    num_kv_heads=1,
    head_dim=4,
    mlp_width=26,
    vocab_size=29,
    max_context=60,
)
LINEAR = Architecture(
    name="linear",
    num_layers=3,
    model_width=20,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=30,
    vocab_size=31,
    max_context=70,
    rope_theta=900.0,
    rope_scaling=RopeScaling("linear", 3.0),
)
LLAMA3 = Architecture(
    name="llama3",
    num_layers=3,
    model_width=18,
    num_query_heads=6,
    num_kv_heads=2,
    head_dim=12,
    mlp_width=38,
    vocab_size=43,
    max_context=80,
    rope_theta=300.0,
    rope_scaling=RopeScaling("llama3", 5.0, 1.0, 4.0, 24),
)
TINY = {arch.name: arch for arch in (MHA, GQA, MQA, LINEAR, LLAMA3)}


def rows(file: str) -> dict[str, dict[str, Any]]:
    """The rows of a file in tests/data by their id."""
    return {row["id"]: row for row in json.loads((DATA / file).read_text(encoding="utf-8"))}


CASES = rows("cases.json")


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for each use."""
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that depend on ``seed`` only."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def new_tokens(
    arch: Architecture, B: int, T: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple:
    """Distinguishable keys and values: values are keys plus 1,000."""
    k = normal(seed, B, arch.num_kv_heads, T, arch.head_dim)
    return k.to(dtype), (k + 1000).to(dtype)


def append_all(cache: Any, arch: Architecture, T: int, seed: int, lengths: Any = None) -> None:
    """One step: new tokens in every layer, different ones in each."""
    B = len(cache.num_tokens)
    for layer in range(arch.num_layers):
        cache.append(layer, *new_tokens(arch, B, T, seed + layer, cache.dtype), lengths)


def token_ids(seed: int, vocab_size: int, *shape: int) -> Tensor:
    """Random token ids."""
    return torch.randint(vocab_size, shape, generator=seeded(seed))


def tiny(arch: Architecture, seed: int = 0, dtype: torch.dtype = torch.float64) -> Decoder:
    """A small decoder with random weights."""
    return Decoder.random(arch, seeded(seed), dtype=dtype)


def readable_keys(
    T: int, S: int, t: int, *, causal: bool = True, window: int | None = None
) -> list[int]:
    """The keys that query ``t`` may read, by the definition: one key at a time."""
    position = S - T + t
    keys = []
    for s in range(S):
        if causal and s > position:
            continue
        if window is not None and position - s >= window:
            continue
        keys.append(s)
    return keys


def attention_by_loops(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and log-sum-exp, query by query, over the readable keys only, in float64."""
    B, H, T, D = q.shape
    G, S, E = k.shape[1], k.shape[2], v.shape[3]
    q, k, v = q.double(), k.double(), v.double()
    if mask is not None:
        mask = mask.expand(B, T, S)
    scale = D**-0.5 if scale is None else scale
    out = torch.zeros(B, H, T, E, dtype=torch.float64)
    lse = torch.full((B, H, T), -math.inf, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for t in range(T):
                keys = readable_keys(T, S, t, causal=causal, window=window)
                if mask is not None:
                    keys = [
                        s for s in keys if bool(mask[t, s] if mask.dim() == 2 else mask[b, t, s])
                    ]
                if not keys:
                    continue
                scores = [scale * float((q[b, h, t] * k[b, g, s]).sum()) for s in keys]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                total = math.fsum(weights)
                lse[b, h, t] = top + math.log(total)
                for s, weight in zip(keys, weights, strict=True):
                    out[b, h, t] += weight / total * v[b, g, s]
    return out, lse


# transformers' names for the tensors of a Llama, next to this decoder's.
PARTS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def hf_config(arch: Architecture) -> Any:
    """transformers' configuration of the same shape."""
    from transformers import LlamaConfig

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": arch.rope_theta}
    if arch.rope_scaling is not None:
        scaling = arch.rope_scaling
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_context,
            }
    return LlamaConfig(
        num_hidden_layers=arch.num_layers,
        hidden_size=arch.model_width,
        num_attention_heads=arch.num_query_heads,
        num_key_value_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        intermediate_size=arch.mlp_width,
        vocab_size=arch.vocab_size,
        max_position_embeddings=arch.max_context,
        rms_norm_eps=arch.norm_eps,
        tie_word_embeddings=arch.tie_embeddings,
        rope_parameters=rope,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )


def hf_twin(model: Decoder) -> Any:
    """transformers' Llama with a copy of the weights of ``model``, in its dtype.

    In float64 the three places where transformers drops to float32 on its own are replaced: its
    norm by torch's, its rotation angles by ones formed in float64; torch's SDPA keeps float64.
    """
    from transformers import LlamaForCausalLM

    arch = model.arch
    twin = LlamaForCausalLM(hf_config(arch)).to(model.dtype)
    ours = {
        "model.embed_tokens.weight": model.embed.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for index, layer in enumerate(model.layers):
        for theirs, path in PARTS.items():
            ours[f"model.layers.{index}.{theirs}.weight"] = layer.get_submodule(path).weight
    missing, unexpected = twin.load_state_dict(ours, strict=False)
    assert not unexpected
    assert all("lm_head" in name for name in missing)
    if model.dtype == torch.float64:
        _keep_float64(twin)
    return twin.eval().requires_grad_(False)


class _Float64Rotary(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = config.rope_parameters
        D = config.head_dim
        self.inv_freq = 1.0 / rope["rope_theta"] ** (torch.arange(0, D, 2).double() / D)
        if rope["rope_type"] != "default":
            scaled = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))[0]
            self.inv_freq = _snap(self.inv_freq, scaled, rope)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids.double()[..., None] * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _snap(plain: Tensor, scaled: Tensor, rope: dict[str, Any]) -> Tensor:
    """The scaled frequencies in float64; transformers' own, in float32, must agree with them."""
    exact = []
    for freq in plain.tolist():
        if rope["rope_type"] == "linear":
            exact.append(freq / rope["factor"])
            continue
        wavelength = 2 * math.pi / freq
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < original / high:
            exact.append(freq)
        elif wavelength > original / low:
            exact.append(freq / rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            exact.append((1 - smooth) * freq / rope["factor"] + smooth * freq)
    result = torch.tensor(exact, dtype=torch.float64)
    torch.testing.assert_close(result.float(), scaled, rtol=2e-6, atol=0)
    return result


def _keep_float64(twin: Any) -> None:
    eps = twin.config.rms_norm_eps
    for name, module in list(twin.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = nn.RMSNorm(module.weight.shape[0], eps=eps, dtype=torch.float64)
            norm.weight = module.weight
            parent, _, leaf = name.rpartition(".")
            setattr(twin.get_submodule(parent), leaf, norm)
    twin.model.rotary_emb = _Float64Rotary(twin.config)
