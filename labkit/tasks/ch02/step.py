"""Exercise of chapter 02 on one layer's attention over a cache."""

import math

import numpy as np
import torch
from torch import Tensor

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.inputs import double, normal

# ── cached_attention ──────────────────────────────────────────────────────────────────────────


def _pairs(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def _example(
    q: Tensor, k: Tensor, v: Tensor, theta: float = 100.0, shown: str | None = None
) -> Example:
    """``k`` and ``v`` span the whole sequence, unrotated; the first S − T tokens become the cache.

    The oracle knows no absolute position. Pairs are complex numbers, and a query and a key meet
    at the angle of their distance, one pair of tokens at a time in float64.
    """
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    held = S - T
    speeds = theta ** (-np.arange(D // 2) / (D // 2))
    q_pairs, k_pairs, v64, out = _pairs(double(q)), _pairs(double(k)), double(v), np.empty(q.shape)
    for b, h, t in np.ndindex(B, H, T):
        g, here = h // (H // G), held + t
        scores = []
        for s in range(here + 1):
            turned = q_pairs[b, h, t] * np.exp(1j * (here - s) * speeds)
            scores.append((turned * k_pairs[b, g, s].conj()).real.sum() / math.sqrt(D))
        weights = np.exp(np.array(scores) - max(scores))
        out[b, h, t] = weights @ v64[b, g, : here + 1] / weights.sum()
    turned = k_pairs * np.exp(1j * np.arange(S)[:, None] * speeds)
    rotated = torch.tensor(np.concatenate((turned.real, turned.imag), axis=-1)).to(k.dtype)
    args = (q, k[:, :, held:], v[:, :, held:], rotated[:, :, :held], v[:, :, :held], theta)
    return Example(args, out, shown=shown)


def _counting_values(B: int, G: int, S: int, D: int) -> Tensor:
    """Values that tell where they are from: slot + 1, and 100 more for each head."""
    slot, head = torch.arange(1.0, S + 1), 100.0 * torch.arange(G)
    return (slot + head[:, None])[None, :, :, None].expand(B, G, S, D).contiguous()


def _equal_scores(H: int, G: int, T: int, S: int) -> Example:
    """Zero queries: each output is the average of the values that its query reads."""
    shown = (
        f"q_BHTD = zeros of shape (1, {H}, {T}, 2); {S - T} tokens are held\n"
        f"values: token s in head g is s + 1 + 100 · g; token 0 is the oldest held"
    )
    v = _counting_values(1, G, S, 2)
    return _example(torch.zeros(1, H, T, 2), normal(20, 1, G, S, 2), v, shown=shown)


def _random(seed: int, B: int, H: int, G: int, T: int, S: int, D: int) -> Example:
    return _example(
        normal(seed, B, H, T, D), normal(seed + 1, B, G, S, D), normal(seed + 2, B, G, S, D)
    )


def _plain(q_BHTD, k_BGTD, v_BGTD, k_held_BGSD, v_held_BGSD, theta):
    """Rotate what is new to its absolute position, join, group, mask, average."""
    B, H, T, D = q_BHTD.shape
    G, held = k_held_BGSD.shape[1:3]
    positions_T = torch.arange(held, held + T)
    angles = positions_T[:, None] * theta ** (-torch.arange(0, D, 2).double() / D)
    cos, sin = angles.cos(), angles.sin()

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return turned.to(x.dtype)

    k_BGSD = torch.cat((k_held_BGSD, rotate(k_BGTD)), dim=2)
    v_BGSD = torch.cat((v_held_BGSD, v_BGTD), dim=2)
    k_BHSD, v_BHSD = (x.repeat_interleave(H // G, dim=1) for x in (k_BGSD, v_BGSD))
    scores_BHTS = rotate(q_BHTD) @ k_BHSD.transpose(-1, -2) / math.sqrt(D)
    later_TS = torch.arange(held + T) > positions_T[:, None]
    return scores_BHTS.masked_fill(later_TS, -math.inf).softmax(dim=-1) @ v_BHSD


def _one_by_one(q_BHTD, k_BGTD, v_BGTD, k_held_BGSD, v_held_BGSD, theta):
    B, H, T, D = q_BHTD.shape
    G, held = k_held_BGSD.shape[1:3]
    keys, values, out = k_held_BGSD, v_held_BGSD, []
    speeds = torch.tensor([theta ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    for t in range(T):
        turn = torch.polar(torch.ones_like(speeds), (held + t) * speeds)
        q, k = (
            torch.complex(*x[:, :, t].double().chunk(2, dim=-1)) * turn for x in (q_BHTD, k_BGTD)
        )
        q, k = (torch.cat((x.real, x.imag), dim=-1).to(q_BHTD.dtype) for x in (q, k))
        keys = torch.cat((keys, k[:, :, None]), dim=2)
        values = torch.cat((values, v_BGTD[:, :, t : t + 1]), dim=2)
        q = q.view(B, G, H // G, D)
        weights = torch.einsum("bgrd,bgsd->bgrs", q, keys).div(D**0.5).softmax(dim=-1)
        out.append(torch.einsum("bgrs,bgsd->bgrd", weights, values).reshape(B, H, D))
    return torch.stack(out, dim=2)


def _turn(x: Tensor, start: int, theta: float) -> Tensor:
    D = x.shape[-1]
    angles = (start + torch.arange(x.shape[2]))[:, None] * theta ** (-torch.arange(0, D, 2) / D)
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ),
        dim=-1,
    )


def _variant(
    q, k, v, k_held, v_held, theta, *, q_at=None, k_at=None, tiled=False, offset=None, scale=None
):
    """The step with one thing done wrong; a position of −1 means not rotated."""
    H, T, D = q.shape[1:]
    G, held = k_held.shape[1:3]
    q_at, k_at = (held if at is None else at for at in (q_at, k_at))
    q = q if q_at < 0 else _turn(q, q_at, theta)
    k = k if k_at < 0 else _turn(k, k_at, theta)
    k, v = torch.cat((k_held, k), dim=2), torch.cat((v_held, v), dim=2)
    repeat = (1, H // G, 1, 1)
    k, v = (x.repeat(repeat) if tiled else x.repeat_interleave(H // G, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (D**-0.5 if scale is None else scale)
    visible = torch.ones(T, held + T, dtype=torch.bool).tril(held if offset is None else offset)
    return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ v


def _group_order(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, tiled=True)


def _restarted(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, q_at=0, k_at=0)


def _top_left(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, offset=0)


def _future(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    S = k_held.shape[2] + k_BGTD.shape[2]
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, offset=S)


def _rotated_again(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    again = _turn(k_held, 0, theta)
    return _variant(q_BHTD, k_BGTD, v_BGTD, again, v_held, theta)


def _stored_unrotated(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, k_at=-1)


def _unscaled(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    return _variant(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta, scale=1.0)


def _held_ignored(q_BHTD, k_BGTD, v_BGTD, k_held, v_held, theta):
    start, none = k_held.shape[2], k_held[:, :, :0]
    return _variant(q_BHTD, k_BGTD, v_BGTD, none, none, theta, q_at=start, k_at=start)


CACHED_ATTENTION = Task(
    name="cached_attention",
    chapter=2,
    title="One layer's attention over a cache",
    minutes=20,
    points=5,
    level=3,
    spec=(
        "Causal attention [B, H, T, D] of T new tokens over those held and themselves: q_BHTD and "
        "k_BGTD come unrotated and stand behind the held ones, k_held_BGSD is rotated already, "
        "element i of a head turns against element i + D/2 by position · theta^(−2i/D), query head "
        "h reads key-value head h // (H // G), and scores are divided by sqrt(D)."
    ),
    signature=(
        "cached_attention(q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, k_held_BGSD: Tensor, "
        "v_held_BGSD: Tensor, theta: float) -> Tensor"
    ),
    properties=(
        Property(
            "one token and an empty cache give its own value",
            lambda: [_random(30, 1, 1, 1, 1, 1, 2), _random(33, 2, 6, 3, 1, 1, 4)],
        ),
        Property(
            "a new token reads everything held",
            lambda: [_equal_scores(1, 1, 1, 2), _equal_scores(1, 1, 1, 7)],
        ),
        Property(
            "query head h reads key-value head h // (H // G)",
            lambda: [_equal_scores(4, 2, 1, 2), _equal_scores(6, 3, 1, 5)],
        ),
        Property(
            "of several new tokens, each reads the held ones, those before it and itself",
            lambda: [_equal_scores(1, 1, 2, 3), _equal_scores(1, 1, 3, 7)],
        ),
        Property(
            "a query and a key meet at the angle of their distance",
            lambda: [_random(36, 1, 1, 1, 1, 3, 2), _random(39, 1, 1, 1, 1, 9, 10)],
        ),
        Property(
            "all of it holds at once",
            lambda: [_random(42, 2, 6, 3, 4, 11, 8), _random(45, 3, 10, 2, 1, 23, 6)],
        ),
    ),
    hints=(
        "Only what is new is rotated, and the first new token stands at position S_held.",
        "Rotate q and k at arange(held, held + T); join held and new along the tokens; then "
        "attention as in chapter 01, with T queries over held + T keys.",
        "Hide key s from query t where s > held + t; repeat_interleave(H // G, dim=1).",
    ),
    mutants=(
        Mutant(
            "wrong group order",
            "query head h reads key-value head h % G: repeat() gives 0 1 0 1 where "
            "repeat_interleave() gives 0 0 1 1",
            _group_order,
        ),
        Mutant(
            "positions restarted",
            "the new tokens are rotated as if they stood at 0, 1, …; the cached keys keep their "
            "absolute positions, so every distance across the seam is wrong",
            _restarted,
        ),
        Mutant(
            "mask aligned top left",
            "query t reads keys 0 to t of all, the oldest; the queries are the last T, so query t "
            "reads up to held + t",
            _top_left,
        ),
        Mutant(
            "future visible",
            "no mask among the new tokens: each reads those after it; with one new token it "
            "cannot be seen",
            _future,
        ),
        Mutant(
            "cached keys rotated again",
            "held and new keys are rotated together; the held ones were rotated when they were "
            "written and now stand at twice their position",
            _rotated_again,
        ),
        Mutant(
            "new keys not rotated",
            "the queries are rotated and the new keys are not, so they stand at position 0 for "
            "this step and for all that follow",
            _stored_unrotated,
        ),
        Mutant(
            "scores not scaled",
            "the scores are not divided by sqrt(D)",
            _unscaled,
        ),
        Mutant(
            "cache not read",
            "the new tokens attend to each other only; what is held is never looked at",
            _held_ignored,
        ),
    ),
    answers=(_plain, _one_by_one),
)
