"""A decoder of the Llama family: RMSNorm, rotary positions, grouped attention, SwiGLU."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refimpl.architecture import Architecture
from refimpl.attention import attend
from refimpl.cache import KVCache
from refimpl.cache.protocol import integers
from refimpl.rope import rotary_table, rotate


@dataclass(frozen=True)
class Step:
    """What every layer of one forward pass shares: angles, who may read what, and the cache."""

    cos: Tensor
    sin: Tensor
    mask_BTS: Tensor | None
    cache: KVCache | None
    lengths_B: list[int] | None

    def store(self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values to attend to: the new ones, behind those already stored."""
        if self.cache is None:
            return k_BGTD, v_BGTD
        stored = self.cache.dtype
        self.cache.append(layer, k_BGTD.to(stored), v_BGTD.to(stored), self.lengths_B)
        k_BGSD, v_BGSD = self.cache.read(layer)
        return k_BGSD.to(k_BGTD.dtype), v_BGSD.to(v_BGTD.dtype)


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last axis, in float32 or wider. arXiv:1910.07467."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Project to heads, rotate, store, attend, project back."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        M, D = arch.model_width, arch.head_dim
        self.q = nn.Linear(M, arch.num_query_heads * D, bias=False)
        self.k = nn.Linear(M, arch.num_kv_heads * D, bias=False)
        self.v = nn.Linear(M, arch.num_kv_heads * D, bias=False)
        self.o = nn.Linear(arch.num_query_heads * D, M, bias=False)

    def project(self, x_BTM: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``[B, H, T, D]``, rotated keys and values ``[B, G, T, D]``."""
        q, k, v = (
            project(x_BTM).unflatten(-1, (-1, self.arch.head_dim)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        return rotate(q, step.cos, step.sin), rotate(k, step.cos, step.sin), v

    def mix(self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, step: Step) -> Tensor:
        """Each query's weighted sum of values ``[B, H, T, D]``."""
        mask = step.mask_BTS
        return attend(q_BHTD, k_BGSD, v_BGSD, causal=mask is None, mask_BTS=mask)

    def forward(self, x_BTM: Tensor, layer: int, step: Step) -> Tensor:
        q_BHTD, k_BGTD, v_BGTD = self.project(x_BTM, step)
        k_BGSD, v_BGSD = step.store(layer, k_BGTD, v_BGTD)
        mixed_BHTD = self.mix(q_BHTD, k_BGSD, v_BGSD, step)
        return self.o(mixed_BHTD.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``. arXiv:2002.05202."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(arch.model_width, arch.mlp_width, bias=False)
        self.up = nn.Linear(arch.model_width, arch.mlp_width, bias=False)
        self.down = nn.Linear(arch.mlp_width, arch.model_width, bias=False)

    def forward(self, x_BTM: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTM)) * self.up(x_BTM))


class Layer(nn.Module):
    """Attention, then the MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(arch.model_width, arch.norm_eps)
        self.attention = Attention(arch)
        self.mlp_norm = RMSNorm(arch.model_width, arch.norm_eps)
        self.mlp = MLP(arch)

    def forward(self, x_BTM: Tensor, layer: int, step: Step) -> Tensor:
        x_BTM = x_BTM + self.attention(self.attention_norm(x_BTM), layer, step)
        return x_BTM + self.mlp(self.mlp_norm(x_BTM))


class Decoder(nn.Module):
    """Tokens in, next-token logits out. Holds weights only: caches are arguments."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        if arch.detail is not None:
            raise ValueError(f"{arch.name} cannot be run here: {arch.detail.unsupported}")
        self.arch = arch
        self.embed = nn.Embedding(arch.vocab_size, arch.model_width)
        self.layers = nn.ModuleList(Layer(arch) for _ in range(arch.num_layers))
        self.norm = RMSNorm(arch.model_width, arch.norm_eps)
        self.head = nn.Linear(arch.model_width, arch.vocab_size, bias=False)
        if arch.tie_embeddings:
            self.head.weight = self.embed.weight

    @classmethod
    def random(
        cls,
        arch: Architecture,
        generator: torch.Generator,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> "Decoder":
        """A decoder with weights drawn from ``generator``, for tests of equality."""
        model = cls(arch).to(torch.float64)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                fan_in = parameter.shape[-1]
                parameter.copy_(1 + noise / 8 if parameter.dim() == 1 else noise / fan_in**0.5)
        return model.to(dtype).requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        cache: KVCache | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Logits ``[B, T, V]`` for the token after each of ``tokens_BT``.

        With a ``cache``, the tokens continue each row behind what the cache holds, and are
        appended to it. Rows of different length are padded on the right and given as
        ``lengths_B``: pads are not stored and no other token reads them; their own logits mean
        nothing. If anything fails, the cache holds what it held before.

        Raises ``ValueError`` for token ids outside the vocabulary, an empty input, lengths that do
        not fit, a context longer than the architecture allows, or a cache that is full.
        """
        lengths = self._check(tokens_BT, cache, lengths_B)
        held = [0] * len(tokens_BT) if cache is None else cache.num_tokens.tolist()
        step = self._step(tokens_BT.shape[1], held, lengths, cache)
        try:
            x_BTM = self.embed(tokens_BT)
            for index, layer in enumerate(self.layers):
                x_BTM = layer(x_BTM, index, step)
            return self.head(self.norm(x_BTM))
        except BaseException:
            if cache is not None:
                cache.truncate(held)
            raise

    def _step(
        self, T: int, held: list[int], lengths: list[int] | None, cache: KVCache | None
    ) -> Step:
        arch = self.arch
        ragged = lengths is not None or len(set(held)) > 1
        starts_B1 = torch.tensor(held[:1] if not ragged else held)[:, None]
        positions_BT = starts_B1 + torch.arange(T)
        wide = torch.promote_types(self.dtype, torch.float32)
        cos, sin = rotary_table(
            positions_BT, arch.head_dim, arch.rope_theta, arch.rope_scaling, wide
        )
        mask_BTS = None
        if ragged:
            totals_B1 = starts_B1 + torch.tensor(lengths or [T] * len(held))[:, None]
            # Without a cache the pads are still there, so S is T and not the longest row.
            S = T if cache is None else int(totals_B1.max())
            slots_S = torch.arange(S)
            mask_BTS = (slots_S <= positions_BT[..., None]) & (slots_S < totals_B1[..., None])
        return Step(cos[:, None], sin[:, None], mask_BTS, cache, lengths)

    def _check(
        self, tokens_BT: Tensor, cache: KVCache | None, lengths_B: Tensor | Sequence[int] | None
    ) -> list[int] | None:
        arch = self.arch
        if not isinstance(tokens_BT, Tensor):
            raise ValueError(f"tokens_BT must be a tensor, got {type(tokens_BT).__name__}")
        if tokens_BT.dim() != 2 or tokens_BT.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"tokens_BT must be integers of shape [B, T], got {tokens_BT.dtype} of shape "
                f"{tuple(tokens_BT.shape)}"
            )
        B, T = tokens_BT.shape
        if not B or not T:
            raise ValueError(f"tokens_BT is empty: shape {(B, T)}; give at least one token a row")
        low, high = tokens_BT.aminmax()
        if low < 0 or high >= arch.vocab_size:
            wrong = int(low if low < 0 else high)
            raise ValueError(f"token id {wrong} is outside the vocabulary of {arch.vocab_size}")
        lengths = None
        if lengths_B is not None:
            lengths = integers("lengths_B", lengths_B)
            if len(lengths) != B or not all(0 <= length <= T for length in lengths):
                raise ValueError(f"lengths_B must be {B} values from 0 to {T}, got {lengths}")
        shape = ("num_layers", "num_kv_heads", "head_dim")
        other = getattr(cache, "arch", arch)
        for field in shape:
            if getattr(other, field) != getattr(arch, field):
                raise ValueError(
                    f"the cache is for {field} = {getattr(other, field)}, the model has "
                    f"{getattr(arch, field)}"
                )
        held = [0] * B if cache is None else cache.num_tokens.tolist()
        if len(held) != B:
            raise ValueError(f"the cache has {len(held)} rows, tokens_BT has {B}")
        longest = max(start + new for start, new in zip(held, lengths or [T] * B, strict=True))
        if longest > arch.max_context:
            raise ValueError(
                f"{longest} tokens do not fit: the context of {arch.name} is {arch.max_context}"
            )
        return lengths
