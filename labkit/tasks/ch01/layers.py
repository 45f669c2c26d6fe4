"""Exercises of chapter 01 on the parts of a layer: norm, rotation, mask, attention."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.inputs import double, normal

# ── rms_norm ──────────────────────────────────────────────────────────────────────────────────


def _rms_norm_example(
    x: Tensor, weight: Tensor, eps: float, *, shown: str | None = None, rtol: float | None = None
) -> Example:
    x64, expected = double(x), np.empty(x.shape)
    for place in np.ndindex(*x.shape[:-1]):
        row = x64[place]
        mean_square = math.fsum(v * v for v in row) / len(row)
        expected[place] = row / math.sqrt(mean_square + eps) * double(weight)
    return Example((x, weight, eps), expected, shown=shown, rtol=rtol)


def _rms_norm_unit() -> Iterable[Example]:
    yield _rms_norm_example(torch.tensor([[[1.0, -1.0]]]), torch.ones(2), 1e-6)
    yield _rms_norm_example(torch.tensor([[[3.0, -3.0, 0.0]]]), torch.ones(3), 1e-6)


def _rms_norm_offset() -> Iterable[Example]:
    yield _rms_norm_example(torch.tensor([[[1.0, 3.0]]]), torch.ones(2), 1e-6)
    yield _rms_norm_example(normal(1, 1, 1, 3) + 5, torch.ones(3), 1e-6)


def _rms_norm_tokens() -> Iterable[Example]:
    scales = torch.tensor([1.0, 10.0, 100.0])[:, None]
    yield _rms_norm_example(torch.tensor([[[1.0, -1.0], [10.0, -10.0]]]), torch.ones(2), 1e-6)
    yield _rms_norm_example(normal(2, 2, 3, 5) * scales, torch.ones(5), 1e-6)


def _rms_norm_weight() -> Iterable[Example]:
    yield _rms_norm_example(torch.tensor([[[1.0, -1.0]]]), torch.tensor([2.0, 0.5]), 1e-6)
    yield _rms_norm_example(normal(3, 2, 3, 7), normal(4, 7), 1e-6)


def _rms_norm_eps() -> Iterable[Example]:
    yield _rms_norm_example(torch.tensor([[[0.001, -0.001]]]), torch.ones(2), 1e-5)
    yield _rms_norm_example(normal(5, 1, 2, 5) * 0.003, torch.ones(5), 1e-5)
    yield _rms_norm_example(torch.zeros(1, 2, 3), torch.ones(3), 1e-5)


def _rms_norm_half() -> Iterable[Example]:
    x = torch.tensor([[[300.0, -300.0, 0.0]]], dtype=torch.float16)
    yield _rms_norm_example(
        x,
        torch.ones(3, dtype=torch.float16),
        1e-6,
        shown="x_BTM = [[[300, -300, 0]]] in float16\nweight_M = [1, 1, 1] in float16\neps = 1e-06",
        rtol=5e-3,
    )


def _rms_norm_plain(x_BTM, weight_M, eps):
    """Squares are averaged in float32: 300² does not fit in float16."""
    wide = x_BTM.float()
    mean_square = wide.pow(2).mean(dim=-1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps)).to(x_BTM.dtype) * weight_M


def _rms_norm_by_length(x_BTM, weight_M, eps):
    wide = x_BTM.double()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    rms = torch.sqrt(length**2 / x_BTM.shape[-1] + eps)
    return (wide / rms * weight_M.double()).to(x_BTM.dtype)


def _rms_norm_layer_norm(x_BTM, weight_M, eps):
    x = x_BTM.float()
    x = x - x.mean(-1, keepdim=True)
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).to(x_BTM.dtype) * weight_M


def _rms_norm_all_tokens(x_BTM, weight_M, eps):
    x = x_BTM.float()
    return (x * torch.rsqrt(x.pow(2).mean() + eps)).to(x_BTM.dtype) * weight_M


def _rms_norm_sum(x_BTM, weight_M, eps):
    x = x_BTM.float()
    return (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)).to(x_BTM.dtype) * weight_M


def _rms_norm_eps_outside(x_BTM, weight_M, eps):
    x = x_BTM.float()
    return (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps)).to(x_BTM.dtype) * weight_M


def _rms_norm_no_eps(x_BTM, weight_M, eps):
    x = x_BTM.float()
    return (x / x.pow(2).mean(-1, keepdim=True).sqrt()).to(x_BTM.dtype) * weight_M


def _rms_norm_one_plus_weight(x_BTM, weight_M, eps):
    x = x_BTM.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)).to(x_BTM.dtype) * (1 + weight_M)


def _rms_norm_narrow(x_BTM, weight_M, eps):
    return x_BTM * torch.rsqrt(x_BTM.pow(2).mean(-1, keepdim=True) + eps) * weight_M


RMS_NORM = Task(
    name="rms_norm",
    chapter=1,
    title="Normalise by root mean square",
    minutes=5,
    points=2,
    level=1,
    spec=(
        "Each token of x_BTM divided by sqrt(mean of its squares + eps), times weight_M; squares "
        "are averaged in float32, whatever the dtype of the input."
    ),
    signature="rms_norm(x_BTM: Tensor, weight_M: Tensor, eps: float) -> Tensor",
    properties=(
        Property("a token with mean square 1 stays as it is, others are scaled", _rms_norm_unit),
        Property("the mean is not subtracted", _rms_norm_offset),
        Property("each token is scaled by its own root mean square", _rms_norm_tokens),
        Property("the weight multiplies channel by channel", _rms_norm_weight),
        Property("eps is added to the mean square, inside the root", _rms_norm_eps),
        Property("float16 input is squared in float32", _rms_norm_half, edge=True),
    ),
    hints=(
        "One number per token: reduce over the last axis and keep it, so that it broadcasts.",
        "mean(x²) + eps comes first, then the root, then the division. No mean is subtracted.",
        "300 squared is 90,000 and float16 ends at 65,504: square x_BTM.float(), and cast back.",
    ),
    mutants=(
        Mutant(
            "layer norm",
            "the mean is subtracted first, which is LayerNorm; RMSNorm divides by the root mean "
            "square and leaves the mean alone",
            _rms_norm_layer_norm,
        ),
        Mutant(
            "one scale for all tokens",
            "the mean is taken over every token at once; each token has its own scale, so reduce "
            "over the last axis only",
            _rms_norm_all_tokens,
        ),
        Mutant(
            "sum in place of mean",
            "the squares are summed, not averaged, so the result shrinks by sqrt(M)",
            _rms_norm_sum,
        ),
        Mutant(
            "eps outside the root",
            "eps is added after the root; for small activations sqrt(ms) + eps and sqrt(ms + eps) "
            "differ several times over",
            _rms_norm_eps_outside,
        ),
        Mutant(
            "eps left out",
            "without eps a token of zeros becomes 0/0 = NaN and small tokens are blown up",
            _rms_norm_no_eps,
        ),
        Mutant(
            "weight plus one",
            "the factor is weight, not 1 + weight; storing weights around zero is another "
            "convention (Gemma's)",
            _rms_norm_one_plus_weight,
        ),
        Mutant(
            "squared in half precision",
            "the squares are formed in the input's 16-bit type and overflow to infinity, so the "
            "result is 0; widen before squaring",
            _rms_norm_narrow,
        ),
    ),
    answers=(_rms_norm_plain, _rms_norm_by_length),
)


# ── rotate ────────────────────────────────────────────────────────────────────────────────────


def _rotate_example(x: Tensor, positions: Sequence[int], theta: float) -> Example:
    """Pairs as complex numbers: turning by an angle is one multiplication."""
    half = x.shape[-1] // 2
    x64 = double(x)
    pairs = x64[..., :half] + 1j * x64[..., half:]
    for t, position in enumerate(positions):
        for i in range(half):
            pairs[..., t, i] *= np.exp(1j * position * theta ** (-i / half))
    expected = np.concatenate((pairs.real, pairs.imag), axis=-1)
    return Example((x, torch.tensor(positions), theta), expected)


def _rotate_identity() -> Iterable[Example]:
    yield _rotate_example(torch.tensor([[[[1.0, 2.0]]]]), [0], 10_000.0)
    yield _rotate_example(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), [0], 10_000.0)


def _rotate_pairing() -> Iterable[Example]:
    yield _rotate_example(torch.tensor([[[[1.0, 2.0]]]]), [1], 10_000.0)
    yield _rotate_example(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), [3], 10_000.0)


def _rotate_speeds() -> Iterable[Example]:
    yield _rotate_example(torch.tensor([[[[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]]]), [2], 100.0)
    yield _rotate_example(normal(6, 1, 2, 1, 10), [7], 100_000.0)


def _rotate_positions() -> Iterable[Example]:
    yield _rotate_example(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), [0, 1], 10_000.0)
    yield _rotate_example(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), [5, 6], 10_000.0)
    yield _rotate_example(normal(7, 2, 3, 4, 6), [11, 12, 13, 40], 10_000.0)


def _rotate_plain(x_BHTD, positions_T, theta):
    """Element i is turned against element i + D/2 by positions · theta^(−2i/D)."""
    half = x_BHTD.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions_T[:, None] * frequencies
    cos, sin = angles.cos().to(x_BHTD.dtype), angles.sin().to(x_BHTD.dtype)
    first, second = x_BHTD[..., :half], x_BHTD[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _rotate_half_form(x_BHTD, positions_T, theta):
    D = x_BHTD.shape[-1]
    angles = torch.outer(positions_T.float(), 1.0 / theta ** (torch.arange(0, D, 2) / D))
    angles = torch.cat((angles, angles), dim=-1)
    turned = torch.roll(x_BHTD, D // 2, dims=-1)
    turned[..., : D // 2] *= -1
    return x_BHTD * angles.cos() + turned * angles.sin()


def _rotate_angles(D, positions_T, theta):
    return positions_T[:, None].float() * theta ** (-torch.arange(0, D, 2) / D)


def _rotate_with(x_BHTD, angles):
    first, second = x_BHTD.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _rotate_interleaved(x_BHTD, positions_T, theta):
    angles = _rotate_angles(x_BHTD.shape[-1], positions_T, theta)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x_BHTD[..., 0::2], x_BHTD[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def _rotate_backwards(x_BHTD, positions_T, theta):
    return _rotate_with(x_BHTD, -_rotate_angles(x_BHTD.shape[-1], positions_T, theta))


def _rotate_half_exponent(x_BHTD, positions_T, theta):
    D = x_BHTD.shape[-1]
    angles = positions_T[:, None].float() * theta ** (-torch.arange(D // 2) / D)
    return _rotate_with(x_BHTD, angles)


def _rotate_restarted(x_BHTD, positions_T, theta):
    T = x_BHTD.shape[2]
    return _rotate_with(x_BHTD, _rotate_angles(x_BHTD.shape[-1], torch.arange(T), theta))


def _rotate_mirrored(x_BHTD, positions_T, theta):
    angles = _rotate_angles(x_BHTD.shape[-1], positions_T, theta)
    first, second = x_BHTD.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos - first * sin), dim=-1)


def _rotate_one_speed(x_BHTD, positions_T, theta):
    D = x_BHTD.shape[-1]
    return _rotate_with(x_BHTD, positions_T[:, None].float().expand(-1, D // 2))


ROTATE = Task(
    name="rotate",
    chapter=1,
    title="Rotary positions",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "x_BHTD with element i of each head turned against element i + D/2 by the angle "
        "position · theta^(−2i/D), where row t stands at positions_T[t]."
    ),
    signature="rotate(x_BHTD: Tensor, positions_T: Tensor, theta: float) -> Tensor",
    properties=(
        Property("position 0 changes nothing", _rotate_identity),
        Property("element i is paired with element i + D/2, turning forwards", _rotate_pairing),
        Property("pair i turns theta^(−2i/D) per position", _rotate_speeds),
        Property("row t is turned by positions_T[t]", _rotate_positions),
    ),
    hints=(
        "A pair (a, b) turned by an angle is (a cos − b sin, b cos + a sin).",
        "The angles form a [T, D/2] table: positions_T[:, None] times D/2 frequencies.",
        "Frequencies are theta ** (−arange(0, D, 2) / D); a is x[..., :D//2], b is x[..., D//2:].",
    ),
    mutants=(
        Mutant(
            "interleaved pairs",
            "elements 2i and 2i + 1 are paired; this book's weights pair i with i + D/2, and at "
            "position 0, where both do nothing, the difference cannot be seen",
            _rotate_interleaved,
        ),
        Mutant(
            "turned backwards",
            "the angle has the wrong sign; scores between rotated queries and keys survive that, "
            "but the vectors are not the ones this convention defines",
            _rotate_backwards,
        ),
        Mutant(
            "exponent i/D",
            "pair i turns theta^(−i/D), half of the exponent; frequencies span sqrt(theta) in "
            "place of theta",
            _rotate_half_exponent,
        ),
        Mutant(
            "positions restarted",
            "rows are numbered from 0 and positions_T is not used; with a cache every decoded "
            "token would stand at position 0",
            _rotate_restarted,
        ),
        Mutant(
            "sign lost on the second half",
            "the second half needs + first · sin; with minus on both halves the map is no "
            "rotation and lengths change",
            _rotate_mirrored,
        ),
        Mutant(
            "one speed for all pairs",
            "every pair turns one radian per position; theta sets a different speed for each",
            _rotate_one_speed,
        ),
    ),
    answers=(_rotate_plain, _rotate_half_form),
)


# ── causal_mask ───────────────────────────────────────────────────────────────────────────────


def _causal_mask_examples(*sizes: tuple[int, int]) -> list[Example]:
    """By absolute positions: the new tokens are the last T of S."""
    examples = []
    for T, S in sizes:
        position_of_query = list(range(S - T, S))
        rows = [[key <= query for key in range(S)] for query in position_of_query]
        examples.append(Example((T, S), np.array(rows, dtype=bool)))
    return examples


def _causal_mask_plain(num_new, num_stored):
    """Query t stands at position t + S − T and reads keys up to there."""
    query = torch.arange(num_new)[:, None] + (num_stored - num_new)
    return torch.arange(num_stored)[None, :] <= query


def _causal_mask_triangle(num_new, num_stored):
    full = torch.ones(num_new, num_stored, dtype=torch.bool)
    return torch.tril(full, diagonal=num_stored - num_new)


def _causal_mask_top_left(num_new, num_stored):
    return torch.ones(num_new, num_stored, dtype=torch.bool).tril()


def _causal_mask_not_self(num_new, num_stored):
    return torch.ones(num_new, num_stored, dtype=torch.bool).tril(num_stored - num_new - 1)


def _causal_mask_next_too(num_new, num_stored):
    return torch.ones(num_new, num_stored, dtype=torch.bool).tril(num_stored - num_new + 1)


def _causal_mask_inverted(num_new, num_stored):
    return ~torch.ones(num_new, num_stored, dtype=torch.bool).tril(num_stored - num_new)


def _causal_mask_all(num_new, num_stored):
    return torch.ones(num_new, num_stored, dtype=torch.bool)


def _causal_mask_clamped(num_new, num_stored):
    return torch.ones(num_new, num_stored, dtype=torch.bool).tril(max(num_stored - num_new, 0))


CAUSAL_MASK = Task(
    name="causal_mask",
    chapter=1,
    title="Who may read whom",
    minutes=5,
    points=2,
    level=1,
    spec=(
        "A bool [T, S] that is True where a query may read a key: the num_new queries are the last "
        "of num_stored positions, and each reads its own position and all before it."
    ),
    signature="causal_mask(num_new: int, num_stored: int) -> Tensor",
    properties=(
        Property(
            "with nothing stored before, token t reads tokens 0 to t",
            lambda: _causal_mask_examples((1, 1), (2, 2), (5, 5)),
        ),
        Property(
            "a single new token reads everything stored",
            lambda: _causal_mask_examples((1, 2), (1, 7)),
        ),
        Property(
            "the last query is aligned with the last key",
            lambda: _causal_mask_examples((2, 3), (3, 7), (4, 9)),
        ),
        Property(
            "with more queries than keys, the first ones read nothing",
            lambda: _causal_mask_examples((2, 1), (5, 3)),
            edge=True,
        ),
    ),
    hints=(
        "Give each query its absolute position; the last query stands where the last key stands.",
        "Query t is at position t + num_stored − num_new.",
        "Compare arange(num_stored)[None, :] with the query positions as a column.",
    ),
    mutants=(
        Mutant(
            "anchored top left",
            "query t reads keys 0 to t of the stored ones, as if it stood at position t; with a "
            "cache the new token would see only the oldest keys",
            _causal_mask_top_left,
        ),
        Mutant(
            "own position hidden",
            "a token may read itself; without that the first token has nothing to read and its "
            "softmax is 0/0",
            _causal_mask_not_self,
        ),
        Mutant(
            "next token visible",
            "the diagonal is one too far right: each query sees the token it is to predict",
            _causal_mask_next_too,
        ),
        Mutant(
            "True means hidden",
            "the mask is inverted: here, as in torch's scaled_dot_product_attention, True marks a "
            "key that may be read",
            _causal_mask_inverted,
        ),
        Mutant(
            "no mask",
            "every query reads every key, the later ones too",
            _causal_mask_all,
        ),
        Mutant(
            "offset clamped at zero",
            "with more queries than keys the offset num_stored − num_new is negative and has to "
            "stay so: the first queries come before every stored key",
            _causal_mask_clamped,
        ),
    ),
    answers=(_causal_mask_plain, _causal_mask_triangle),
)


# ── attend ────────────────────────────────────────────────────────────────────────────────────


def _attend_example(q: Tensor, k: Tensor, v: Tensor, shown: str | None = None) -> Example:
    """One query of one head at a time, in float64."""
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    q64, k64, v64, expected = double(q), double(k), double(v), np.empty(q.shape)
    for b, h, t in np.ndindex(B, H, T):
        g, num_visible = h * G // H, S - T + t + 1
        scores = k64[b, g, :num_visible] @ q64[b, h, t] / math.sqrt(D)
        weights = np.exp(scores - scores.max())
        expected[b, h, t] = weights @ v64[b, g, :num_visible] / weights.sum()
    return Example((q, k, v), expected, shown=shown)


def _attend_one_key() -> Iterable[Example]:
    x = torch.tensor([[[[1.0, 2.0]]]])
    yield _attend_example(x, x, torch.tensor([[[[3.0, 5.0]]]]))


def _attend_average() -> Iterable[Example]:
    v = torch.tensor([[[[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]]]])
    yield _attend_example(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 3, 2), v)


def _attend_scale() -> Iterable[Example]:
    q = torch.tensor([[[[1.0, 1.0, 1.0, 1.0]]]])
    k = torch.tensor([[[[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]]])
    v = torch.tensor([[[[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]]])
    yield _attend_example(q, k, v)
    yield _attend_example(normal(8, 1, 1, 1, 9), normal(9, 1, 1, 5, 9), normal(10, 1, 1, 5, 9))


def _attend_heads() -> Iterable[Example]:
    for H, G, S, D in ((4, 2, 3, 2), (6, 3, 5, 2)):
        v = torch.arange(1.0, G + 1)[None, :, None, None].expand(1, G, S, D).contiguous()
        shown = (
            f"q_BHTD = zeros of shape (1, {H}, 1, {D})\n"
            f"k_BGSD = ones of shape (1, {G}, {S}, {D})\n"
            f"v_BGSD of shape (1, {G}, {S}, {D}), with g + 1 everywhere in head g"
        )
        yield _attend_example(torch.zeros(1, H, 1, D), torch.ones(1, G, S, D), v, shown)


def _attend_causal() -> Iterable[Example]:
    for T, S in ((2, 2), (3, 7)):
        v = torch.arange(1.0, S + 1)[None, None, :, None]
        shown = (
            f"q_BHTD = zeros of shape (1, 1, {T}, 1)\n"
            f"k_BGSD = ones of shape (1, 1, {S}, 1)\n"
            f"v_BGSD = 1, 2, …, {S}, of shape (1, 1, {S}, 1)"
        )
        yield _attend_example(torch.zeros(1, 1, T, 1), torch.ones(1, 1, S, 1), v, shown)


def _attend_together() -> Iterable[Example]:
    yield _attend_example(normal(11, 2, 6, 4, 5), normal(12, 2, 3, 7, 5), normal(13, 2, 3, 7, 5))


def _attend_large() -> Iterable[Example]:
    q, k = torch.full((1, 1, 1, 4), 20.0), torch.full((1, 1, 2, 4), 20.0)
    yield _attend_example(q, k, torch.tensor([[[[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]]]))


def _attend_plain(q_BHTD, k_BGSD, v_BGSD):
    """Repeat each key-value head for its group, score, mask, normalise, average."""
    H, T, D = q_BHTD.shape[1:]
    G, S = k_BGSD.shape[1:3]
    k = k_BGSD.repeat_interleave(H // G, dim=1)
    v = v_BGSD.repeat_interleave(H // G, dim=1)
    scores = q_BHTD @ k.transpose(-1, -2) / math.sqrt(D)
    visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ v


def _attend_grouped(q_BHTD, k_BGSD, v_BGSD):
    B, H, T, D = q_BHTD.shape
    G, S = k_BGSD.shape[1:3]
    q = q_BHTD.reshape(B, G, H // G, T, D)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q, k_BGSD) * D**-0.5
    hidden = torch.arange(S)[None, :] > torch.arange(T)[:, None] + (S - T)
    scores = scores + torch.where(hidden, -math.inf, 0.0)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bgrts,bgsd->bgrtd", weights, v_BGSD).reshape(B, H, T, D)


def _attend_variant(
    q, k, v, *, tiled=False, scale=None, dim=-1, causal=True, offset=None, late=False, stable=True
):
    """Plain attention with one thing done wrong."""
    H, T, D = q.shape[1:]
    G, S = k.shape[1:3]
    if tiled:
        k, v = k.repeat(1, H // G, 1, 1), v.repeat(1, H // G, 1, 1)
    else:
        k, v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (D**-0.5 if scale is None else scale)
    hidden = ~torch.ones(T, S, dtype=torch.bool).tril(S - T if offset is None else offset)
    if causal and not late:
        scores = scores.masked_fill(hidden, -math.inf)
    if stable:
        weights = scores.softmax(dim=dim)
    else:
        weights = scores.exp() / scores.exp().sum(dim=dim, keepdim=True)
    return (weights.masked_fill(hidden, 0.0) if late else weights) @ v


def _attend_tiled(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, tiled=True)


def _attend_unscaled(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, scale=1.0)


def _attend_scaled_by_width(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, scale=1 / q_BHTD.shape[-1])


def _attend_over_queries(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, dim=-2)


def _attend_unmasked(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, causal=False)


def _attend_top_left(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, offset=0)


def _attend_masked_late(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, late=True)


def _attend_overflowing(q_BHTD, k_BGSD, v_BGSD):
    return _attend_variant(q_BHTD, k_BGSD, v_BGSD, stable=False)


ATTEND = Task(
    name="attend",
    chapter=1,
    title="Grouped causal attention",
    minutes=15,
    points=4,
    level=2,
    spec=(
        "Softmax attention [B, H, T, D]: query head h reads key-value head h // (H // G), scores "
        "are divided by sqrt(D), and the T queries are the last of the S positions, each reading "
        "its own and those before (S ≥ T)."
    ),
    signature="attend(q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor) -> Tensor",
    properties=(
        Property("with one key the output is its value", _attend_one_key),
        Property("equal scores give the average of the values", _attend_average),
        Property("scores are divided by sqrt(D)", _attend_scale),
        Property("query head h reads key-value head h // (H // G)", _attend_heads),
        Property("a query reads its own position and those before it", _attend_causal),
        Property("all of it holds at once", _attend_together),
        Property("large scores do not overflow", _attend_large, edge=True),
    ),
    hints=(
        "Bring k and v to H heads first: neighbours in H share one head of G.",
        "repeat_interleave(H // G, dim=1), not repeat; then scores [B, H, T, S], mask, softmax.",
        "Fill hidden scores with −inf before the softmax; visible is ones(T, S).tril(S − T).",
    ),
    mutants=(
        Mutant(
            "heads tiled",
            "query head h reads key-value head h % G: repeat() gives 0 1 0 1 where "
            "repeat_interleave() gives 0 0 1 1; with one key-value head both agree",
            _attend_tiled,
        ),
        Mutant(
            "scores not scaled",
            "the scores are not divided by sqrt(D); their spread grows with the head dim and the "
            "softmax becomes too sharp",
            _attend_unscaled,
        ),
        Mutant(
            "divided by D",
            "the scores are divided by D in place of sqrt(D), so the softmax is too flat",
            _attend_scaled_by_width,
        ),
        Mutant(
            "softmax over the queries",
            "the weights sum to one over the queries; they must sum to one over the keys, the last "
            "axis of scores [B, H, T, S]",
            _attend_over_queries,
        ),
        Mutant(
            "future visible",
            "no causal mask: earlier queries read later keys",
            _attend_unmasked,
        ),
        Mutant(
            "mask anchored top left",
            "query t reads stored keys 0 to t; the queries are the last T of S positions, so the "
            "mask is tril(S − T)",
            _attend_top_left,
        ),
        Mutant(
            "masked after the softmax",
            "hidden keys are zeroed after normalising, so the weights that are left do not sum to "
            "one; mask the scores with −inf before the softmax",
            _attend_masked_late,
        ),
        Mutant(
            "softmax without its maximum",
            "exp of a raw score overflows float32 above 88; subtract the row's maximum first, "
            "which changes nothing else",
            _attend_overflowing,
        ),
    ),
    answers=(_attend_plain, _attend_grouped),
)
