"""Exercise of chapter 03: one decode step of latent attention without expanding anything."""

import math

import numpy as np
import torch
from torch import Tensor

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.inputs import double, normal

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _inputs(seed: int, B: int, H: int, S: int, C: int, R: int, D: int, E: int) -> Inputs:
    shapes = ((B, H, D), (B, H, R), (B, S, C), (B, S, R), (H, D, C), (H, E, C))
    return tuple(normal(10 * seed + i, *shape) for i, shape in enumerate(shapes))


def _expanded(q, q_rope, latent, k_rope, up_k, up_v) -> np.ndarray:
    """Keys and values written out for every head and token, in float64; one head at a time."""
    q, q_rope, latent, k_rope, up_k, up_v = map(double, (q, q_rope, latent, k_rope, up_k, up_v))
    B, H, D = q.shape
    out = np.empty((B, H, up_v.shape[1]))
    for b in range(B):
        for h in range(H):
            keys = np.concatenate((latent[b] @ up_k[h].T, k_rope[b]), axis=-1)
            values = latent[b] @ up_v[h].T
            scores = keys @ np.concatenate((q[b, h], q_rope[b, h])) / math.sqrt(keys.shape[-1])
            weights = np.exp(scores - scores.max())
            out[b, h] = weights @ values / weights.sum()
    return out


def _examples(*shapes: tuple[int, int, int, int, int, int, int]) -> list[Example]:
    examples = []
    for seed, shape in enumerate(shapes):
        inputs = _inputs(seed, *shape)
        B, H, S, C, R, D, E = shape
        shown = f"B = {B}, H = {H}, S = {S}, C = {C}, R = {R}, D = {D}, E = {E}, normal noise"
        examples.append(Example(inputs, _expanded(*inputs), shown=shown))
    return examples


def _absorbed_plain(q_BHD, q_rope_BHR, latent_BSC, k_rope_BSR, up_k_HDC, up_v_HEC):
    """up_k goes onto the query, up_v behind the softmax; the scale is that of the expanded key."""
    width = q_BHD.shape[-1] + q_rope_BHR.shape[-1]
    q_latent_BHC = torch.einsum("bhd,hdc->bhc", q_BHD, up_k_HDC)
    scores_BHS = q_latent_BHC @ latent_BSC.mT + q_rope_BHR @ k_rope_BSR.mT
    read_BHC = (scores_BHS / math.sqrt(width)).softmax(dim=-1) @ latent_BSC
    return torch.einsum("bhc,hec->bhe", read_BHC, up_v_HEC)


def _absorbed_per_row(q_BHD, q_rope_BHR, latent_BSC, k_rope_BSR, up_k_HDC, up_v_HEC):
    rows = []
    for q_HD, q_rope_HR, latent_SC, k_rope_SR in zip(
        q_BHD, q_rope_BHR, latent_BSC, k_rope_BSR, strict=True
    ):
        stored_SN = torch.cat((latent_SC, k_rope_SR), dim=-1)
        query_HN = torch.cat(((q_HD[:, None] @ up_k_HDC)[:, 0], q_rope_HR), dim=-1)
        scale = (q_HD.shape[-1] + q_rope_HR.shape[-1]) ** -0.5
        weights_HS = torch.softmax(scale * query_HN @ stored_SN.T, dim=-1)
        rows.append((up_v_HEC @ (weights_HS @ latent_SC)[..., None])[..., 0])
    return torch.stack(rows)


def _variant(
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    up_k: Tensor,
    up_v: Tensor,
    *,
    width: int | None = None,
    rope: float = 1.0,
    one_up_v: bool = False,
    one_up_k: bool = False,
) -> Tensor:
    """The absorbed step with one thing done wrong."""
    width = q.shape[-1] + q_rope.shape[-1] if width is None else width
    up_k = up_k[:1].expand_as(up_k) if one_up_k else up_k
    up_v = up_v[:1].expand_as(up_v) if one_up_v else up_v
    scores = torch.einsum("bhd,hdc,bsc->bhs", q, up_k, latent) + rope * q_rope @ k_rope.mT
    weights = (scores / math.sqrt(width)).softmax(dim=-1)
    return torch.einsum("bhs,bsc,hec->bhe", weights, latent, up_v)


def _scaled_by_latent(q, q_rope, latent, k_rope, up_k, up_v):
    width = latent.shape[-1] + k_rope.shape[-1]
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, width=width)


def _scaled_without_rope(q, q_rope, latent, k_rope, up_k, up_v):
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, width=q.shape[-1])


def _unscaled(q, q_rope, latent, k_rope, up_k, up_v):
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, width=1)


def _without_rope(q, q_rope, latent, k_rope, up_k, up_v):
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, rope=0.0)


def _one_up_v(q, q_rope, latent, k_rope, up_k, up_v):
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, one_up_v=True)


def _one_up_k(q, q_rope, latent, k_rope, up_k, up_v):
    return _variant(q, q_rope, latent, k_rope, up_k, up_v, one_up_k=True)


ATTEND_ABSORBED = Task(
    name="attend_absorbed",
    chapter=3,
    title="Attend in the latent space",
    minutes=30,
    points=6,
    level=3,
    spec=(
        "One decode step of latent attention, [B, H, E]: head h's key of token s is up_k[h] @ "
        "latent[s] beside k_rope[s], its value of E numbers up_v[h] @ latent[s], scores are "
        "divided by sqrt(D + R), and no key or value is ever formed."
    ),
    signature=(
        "attend_absorbed(q_BHD: Tensor, q_rope_BHR: Tensor, latent_BSC: Tensor, "
        "k_rope_BSR: Tensor, up_k_HDC: Tensor, up_v_HEC: Tensor) -> Tensor"
    ),
    properties=(
        Property(
            "one token and one head: its value",
            lambda: _examples((1, 1, 1, 3, 2, 4, 5), (2, 1, 1, 6, 4, 3, 2)),
        ),
        Property(
            "one token: every head has its own up-projection of values",
            lambda: _examples((1, 2, 1, 3, 2, 4, 5)),
        ),
        Property(
            "one head: scores come from the latent and from the rotary key",
            lambda: _examples((1, 1, 2, 3, 2, 4, 5), (2, 1, 7, 6, 4, 3, 5)),
        ),
        Property(
            "many heads over one latent",
            lambda: _examples((1, 2, 3, 4, 2, 6, 5), (2, 5, 7, 6, 4, 3, 8)),
        ),
    ),
    hints=(
        "Write the score of head h and token s with the key expanded; then move the brackets.",
        "q · (up_k c) = (up_kᵀ q) · c, and the weighted sum of up_v c is up_v of the weighted sum.",
        'q_latent = einsum("bhd,hdc->bhc", q, up_k); scores = q_latent @ latent.mT + q_rope @ '
        "k_rope.mT, over sqrt(D + R); softmax @ latent; then up_v.",
    ),
    mutants=(
        Mutant(
            "scaled by the latent's width",
            "the scores are divided by sqrt(C + R), the width of what is read; absorption moves "
            "brackets and changes no number, so the scale stays that of the expanded key",
            _scaled_by_latent,
        ),
        Mutant(
            "rotary width not in the scale",
            "the scores are divided by sqrt(D); an expanded key has D + R numbers",
            _scaled_without_rope,
        ),
        Mutant(
            "scores not scaled",
            "the scores are not divided by sqrt(D + R)",
            _unscaled,
        ),
        Mutant(
            "rotary part dropped",
            "only the latent is scored; without the rotary key the scores do not know where a "
            "token stands",
            _without_rope,
        ),
        Mutant(
            "one up-projection of values for all",
            "every head is given head 0's up_v: the latent is shared, the projections are not",
            _one_up_v,
        ),
        Mutant(
            "one up-projection of keys for all",
            "every head scores with head 0's up_k: the latent is shared, the projections are not",
            _one_up_k,
        ),
    ),
    answers=(_absorbed_plain, _absorbed_per_row),
    atol=1e-5,
    rtol=1e-4,
)
