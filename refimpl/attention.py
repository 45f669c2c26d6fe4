"""Softmax attention over stored keys and values, in the plain form everything else must equal."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_autocast(function: Callable) -> Callable:
    """``function`` of tensors in the dtypes that it chooses, also within ``torch.autocast``."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        given = (*arguments, *options.values())
        device = next((x.device.type for x in given if isinstance(x, Tensor)), "cpu")
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return function(*arguments, **options)
        with torch.autocast(device, enabled=False):
            return function(*arguments, **options)

    return run


def visible(
    num_new: int,
    num_stored: int,
    *,
    causal: bool = True,
    window: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Which keys each query may read: a bool ``[T, S]``, aligned to the bottom right.

    Query ``t`` stands at position ``t + S - T``. It reads key ``s`` when ``s`` is not later
    (``causal``) and, with a ``window`` of W, is one of the W latest: the query's own key counts.

    Raises ``ValueError`` for lengths below 0 and for windows that :func:`check_window` refuses.
    """
    for name, number in (("num_new", num_new), ("num_stored", num_stored)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{name} must be an integer of at least 0, got {number!r}")
    check_window(window, causal)
    query = torch.arange(num_new, device=device)[:, None] + (num_stored - num_new)
    key = torch.arange(num_stored, device=device)[None, :]
    mask = (
        key <= query if causal else torch.ones(num_new, num_stored, dtype=torch.bool, device=device)
    )
    return mask if window is None else mask & (key > query - window)


@without_autocast
def attend(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    mask_BTS: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention output ``[B, H, T, Dv]``, and with ``return_lse`` the log-sum-exp ``[B, H, T]``.

    Query head ``h`` reads key-value head ``h // (H // G)``. Causality and ``window`` are aligned
    to the bottom right (see :func:`visible`); a bool ``mask_BTS`` (True = may read; ``[T, S]`` or
    ``[B, T, S]``) is applied on top. ``scale`` defaults to ``1 / sqrt(D)``.

    A row that may read nothing gives 0 with LSE minus infinity. A key that no query may read
    never reaches the output, even where it holds NaN, as a slot not yet written may. Inputs of
    16 bits are computed in float32 and the result is cast back. LSE is float32 or wider.

    Raises ``ValueError`` for shapes or dtypes that do not fit together.
    """
    check_inputs(q_BHTD, k_BGSD, v_BGSD)
    B, H, T, D = q_BHTD.shape
    G, S = k_BGSD.shape[1:3]
    allowed = None  # every query may read every key
    if window is not None or (causal and T > 1):
        allowed = visible(T, S, causal=causal, window=window, device=q_BHTD.device)[None]
    if mask_BTS is not None:
        mask = check_mask(mask_BTS, B, T, S)
        allowed = mask if allowed is None else allowed & mask

    wide = torch.promote_types(q_BHTD.dtype, torch.float32)
    scale = checked_scale(scale, D)
    # Heads of one group share keys and values, so the group is an axis of the queries only. The
    # scale goes on the query: a raw 16-bit product could overflow before it is scaled.
    q = (q_BHTD.to(wide) * scale).reshape(B, G, H // G, T, D)
    k, v = k_BGSD.to(wide), v_BGSD.to(wide)
    if allowed is not None and torch.is_grad_enabled() and q.requires_grad:
        # The gradient of q is a sum over keys too: those that nobody may read weigh 0 in it.
        k = k.masked_fill(~allowed.any(dim=1)[:, None, :, None], 0.0)
    scores = q @ k[:, :, None].transpose(-1, -2)
    if allowed is not None:
        scores = scores.masked_fill(~allowed[:, None, None], -math.inf)
        # Zero times NaN is NaN: a value that nobody may read is replaced, not just weighted by 0.
        v = v.masked_fill(~allowed.any(dim=1)[:, None, :, None], 0.0)
    weights = scores.softmax(dim=-1)
    if allowed is not None:  # the softmax of nothing is NaN, its weights are meant to be 0
        weights = weights.masked_fill(~allowed.any(dim=2)[:, None, None, :, None], 0.0)
    out = (weights @ v[:, :, None]).reshape(B, H, T, v.shape[-1]).to(q_BHTD.dtype)
    return (out, scores.logsumexp(dim=-1).reshape(B, H, T)) if return_lse else out


@without_autocast
def attend_latent(
    q_BHTD: Tensor,
    q_rope_BHTR: Tensor,
    latent_BSC: Tensor,
    k_rope_BSR: Tensor,
    up_k_HDC: Tensor,
    up_v_HEC: Tensor,
    *,
    absorbed: bool,
    causal: bool = True,
    mask_BTS: Tensor | None = None,
) -> Tensor:
    """Multi-head latent attention ``[B, H, T, E]`` over a stored latent and one rotary key.

    ``absorbed=False`` expands the latent to a key and a value per head; ``absorbed=True`` moves
    ``up_k_HDC`` onto the query and ``up_v_HEC`` behind the softmax, so that only the latent
    (width C) and the shared rotary key (width R) are read. Both give the same result, and both
    scale by ``1 / sqrt(D + R)``, the width of the expanded key: absorption does not change it.
    Inputs of 16 bits are computed in float32, where what either way forms in between cannot
    overflow, and the result is cast back.

    Raises ``ValueError`` for shapes or dtypes that do not fit together.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    _check_latent(q_BHTD, q_rope_BHTR, latent_BSC, k_rope_BSR, up_k_HDC, up_v_HEC)
    D, R = q_BHTD.shape[-1], q_rope_BHTR.shape[-1]
    options = {"causal": causal, "mask_BTS": mask_BTS, "scale": 1 / math.sqrt(D + R)}
    wide = torch.promote_types(q_BHTD.dtype, torch.float32)
    q, q_rope, up_k, up_v = (x.to(wide) for x in (q_BHTD, q_rope_BHTR, up_k_HDC, up_v_HEC))
    latent, k_rope = (x.to(wide)[:, None] for x in (latent_BSC, k_rope_BSR))
    if absorbed:
        q = torch.cat((torch.einsum("bhtd,hdc->bhtc", q, up_k), q_rope), dim=-1)
        read = attend(q, torch.cat((latent, k_rope), dim=-1), latent, **options)
        out = torch.einsum("bhtc,hec->bhte", read, up_v)
    else:
        k = torch.einsum("bsc,hdc->bhsd", latent[:, 0], up_k)
        v = torch.einsum("bsc,hec->bhse", latent[:, 0], up_v)
        k = torch.cat((k, k_rope.expand(-1, k.shape[1], -1, -1)), dim=-1)
        out = attend(torch.cat((q, q_rope), dim=-1), k, v, **options)
    return out.to(q_BHTD.dtype)


def mean_pool_heads(weight: Tensor, num_kv_heads_from: int, num_kv_heads_to: int) -> Tensor:
    """The projection of fewer key or value heads: each is the mean of a contiguous group.

    ``weight`` is ``[G * D, M]``, a key or value projection of ``num_kv_heads_from`` heads (a bias
    ``[G * D]`` works too); the result has ``num_kv_heads_to`` heads. New head ``g`` serves the
    query heads that the averaged ones served, so queries and output projection stay as they are.
    Rotation acts on all heads alike, hence the mean of rotated keys is the rotated mean. Sums are
    formed in float32 or wider.

    Raises ``ValueError`` where heads do not divide evenly or numbers are not floating point.
    Source: Ainslie et al., GQA, arXiv:2305.13245, section 2.1.
    """
    for name, number in (
        ("num_kv_heads_from", num_kv_heads_from),
        ("num_kv_heads_to", num_kv_heads_to),
    ):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r}")
    if num_kv_heads_from % num_kv_heads_to:
        raise ValueError(
            f"{num_kv_heads_from} heads cannot be averaged in equal groups to {num_kv_heads_to}"
        )
    if not weight.dtype.is_floating_point:
        raise ValueError(f"a weight of {weight.dtype} would lose the fractions of its means")
    if weight.dim() == 0 or weight.shape[0] % num_kv_heads_from:
        raise ValueError(
            f"the rows of a weight {tuple(weight.shape)} do not divide into "
            f"{num_kv_heads_from} heads"
        )
    D = weight.shape[0] // num_kv_heads_from
    members = num_kv_heads_from // num_kv_heads_to
    heads = weight.to(torch.promote_types(weight.dtype, torch.float32)).reshape(
        num_kv_heads_to, members, D, *weight.shape[1:]
    )
    pooled = heads.mean(dim=1).reshape(num_kv_heads_to * D, *weight.shape[1:])
    return pooled.to(weight.dtype)


def soft_cap(scores: Tensor, cap: float) -> Tensor:
    """``cap * tanh(scores / cap)``: near the identity for small scores, bounded by ``cap``."""
    if not 0 < cap < math.inf:
        raise ValueError(f"a cap on scores must be positive and finite, got {cap}")
    return cap * torch.tanh(scores / cap)


def check_window(window: int | None, causal: bool) -> None:
    """Raise ``ValueError`` unless there is no window, or one of at least 1 that is causal."""
    if window is None:
        return
    if not isinstance(window, int) or isinstance(window, bool) or window < 1 or not causal:
        raise ValueError(
            "a window is an integer from 1 (the query's own key) on, and causal, got "
            f"{window!r} with causal={causal}"
        )


def checked_scale(scale: float | None, D: int) -> float:
    """The scale of the scores, ``1 / sqrt(D)`` if none is given; ``ValueError`` if not finite."""
    if scale is None:
        return 1 / math.sqrt(D)
    if isinstance(scale, bool) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ``ValueError`` unless q, k and v are what :func:`attend` takes."""
    for name, x in (("q_BHTD", q), ("k_BGSD", k), ("v_BGSD", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 axes, got shape {tuple(x.shape)}")
        _check_float(name, x)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"keys and values must agree in batch, heads and length, "
            f"got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"queries are of batch {q.shape[0]}, keys of batch {k.shape[0]}")
    if q.shape[3] == 0:
        raise ValueError(f"queries have head dim 0: shape {tuple(q.shape)}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"queries have head dim {q.shape[3]}, keys {k.shape[3]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of key-value heads, got {q.shape[1]} and {k.shape[1]}"
        )


def check_mask(mask: Tensor, B: int, T: int, S: int) -> Tensor:
    """The mask with a batch axis, ``[1 or B, T, S]``; ``ValueError`` where it does not fit."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask_BTS must be bool (True = may read), got {mask.dtype}")
    if mask.shape not in ((T, S), (1, T, S), (B, T, S)):
        raise ValueError(f"mask_BTS must be {(B, T, S)} or {(T, S)}, got {tuple(mask.shape)}")
    return mask if mask.dim() == 3 else mask[None]


def _check_float(name: str, x: Tensor) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"{name} must be of 16, 32 or 64-bit floating point, got {x.dtype}")


def _check_latent(
    q: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, up_k: Tensor, up_v: Tensor
) -> None:
    axes = {"q_BHTD": q, "q_rope_BHTR": q_rope, "latent_BSC": latent, "k_rope_BSR": k_rope}
    sizes: dict[str, tuple[int, str]] = {}
    for name, x in {**axes, "up_k_HDC": up_k, "up_v_HEC": up_v}.items():
        letters = name.rpartition("_")[2]
        if x.dim() != len(letters):
            raise ValueError(f"{name} must have {len(letters)} axes, got shape {tuple(x.shape)}")
        _check_float(name, x)
        if x.dtype != q.dtype:
            raise ValueError(f"{name} is of {x.dtype}, but q_BHTD is of {q.dtype}")
        for letter, size in zip(letters, x.shape, strict=True):
            known, first = sizes.setdefault(letter, (size, name))
            if size != known:
                raise ValueError(f"{name} has {letter} = {size}, but {first} has {known}")
