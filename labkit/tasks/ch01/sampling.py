"""Exercises of chapter 01 on choosing the next token from its logits."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.tasks import Example, Mutant, Property, Task

# ── filter_top_p ──────────────────────────────────────────────────────────────────────────────


def _logits(probs: Sequence[str], shift: float = 0.0) -> Tensor:
    return torch.tensor([math.log(Fraction(x)) + shift for x in probs])


def _filter_top_p_example(probs: Sequence[str], p: str, shift: float = 0.0) -> Example:
    """Exact fractions: walk down from the most likely token until the mass before reaches p."""
    exact = [Fraction(x) for x in probs]
    kept, before = set(), Fraction(0)
    for i in sorted(range(len(exact)), key=lambda i: (-exact[i], i)):
        if kept and before >= Fraction(p):
            break
        kept.add(i)
        before += exact[i]
    logits = _logits(probs, shift)
    expected = np.array([x if i in kept else -math.inf for i, x in enumerate(logits.tolist())])
    shown = f"logits_V = log of [{', '.join(probs)}]" + (f" plus {shift:g}" if shift else "")
    return Example((logits, float(Fraction(p))), expected, shown=f"{shown}\np = {p}")


_SORTED = ("0.45", "0.35", "0.15", "0.05")
_SHUFFLED = ("0.05", "0.45", "0.15", "0.35")


def _filter_top_p_crossing() -> Iterable[Example]:
    yield _filter_top_p_example(("0.7", "0.3"), "0.9")
    yield _filter_top_p_example(_SORTED, "0.6")
    yield _filter_top_p_example(_SORTED, "0.9")
    yield _filter_top_p_example(("0.5", "0.2", "0.14", "0.1", "0.06"), "0.75")


def _filter_top_p_places() -> Iterable[Example]:
    yield _filter_top_p_example(("0.2", "0.8"), "0.9")
    yield _filter_top_p_example(_SHUFFLED, "0.6")
    yield _filter_top_p_example(("0.06", "0.14", "0.5", "0.1", "0.2"), "0.75")


def _filter_top_p_shifted() -> Iterable[Example]:
    yield _filter_top_p_example(_SORTED, "0.6", shift=-3.0)
    yield _filter_top_p_example(_SHUFFLED, "0.9", shift=4.0)


def _filter_top_p_ties() -> Iterable[Example]:
    yield _filter_top_p_example(("0.4", "0.4", "0.2"), "0.3")
    yield _filter_top_p_example(("0.1", "0.4", "0.1", "0.4"), "0.3")
    yield _filter_top_p_example(("0.2", "0.2", "0.2", "0.2", "0.2"), "0.55")


def _filter_top_p_none_off() -> Iterable[Example]:
    yield _filter_top_p_example(("0.7", "0.3"), "1")
    yield _filter_top_p_example(_SHUFFLED, "1")
    # In float32 the first of these alone makes 1.
    yield _filter_top_p_example(("0.999999997", "2e-9", "1e-9"), "1")


def _filter_top_p_zero() -> Iterable[Example]:
    yield _filter_top_p_example(("0.7", "0.3"), "0")
    yield _filter_top_p_example(("0.2", "0.35", "0.35", "0.1"), "0")
    yield _filter_top_p_example(_SORTED, "0.3")


def _filter_top_p_plain(logits_V, p):
    """Keep a token while the mass before it is below p; the first one always stays."""
    sorted_probs, order = logits_V.double().softmax(dim=-1).sort(descending=True, stable=True)
    keep = (sorted_probs.cumsum(dim=-1) - sorted_probs < p) | (p == 1)
    keep[0] = True
    kept_V = torch.zeros_like(keep).scatter(-1, order, keep)
    return logits_V.masked_fill(~kept_V, -math.inf)


def _filter_top_p_loop(logits_V, p):
    values = [float(x) for x in logits_V]
    total = sum(math.exp(x - max(values)) for x in values)
    out, before = [-math.inf] * len(values), 0.0
    for i in sorted(range(len(values)), key=lambda i: -values[i]):
        if p < 1 and before >= p and before > 0:
            break
        out[i] = values[i]
        before += math.exp(values[i] - max(values)) / total
    return torch.tensor(out)


def _filter_top_p_sorted(logits_V, p, *, probs=None):
    """Helper of the wrong answers: probabilities, sorted ids and the mass before each."""
    probs = logits_V.double().softmax(-1) if probs is None else probs
    sorted_probs, order = probs.sort(descending=True, stable=True)
    return sorted_probs, order, sorted_probs.cumsum(-1) - sorted_probs


def _filter_top_p_keep(logits_V, order, keep):
    return logits_V.masked_fill(~torch.zeros_like(keep).scatter(-1, order, keep), -math.inf)


def _filter_top_p_crossing_dropped(logits_V, p):
    sorted_probs, order, before = _filter_top_p_sorted(logits_V, p)
    keep = before + sorted_probs <= p
    keep[0] = True
    return _filter_top_p_keep(logits_V, order, keep)


def _filter_top_p_one_extra(logits_V, p):
    _, order, before = _filter_top_p_sorted(logits_V, p)
    keep = before < p
    keep = torch.cat((torch.tensor([True]), keep[:-1]))
    return _filter_top_p_keep(logits_V, order, keep)


def _filter_top_p_not_scattered(logits_V, p):
    _, _, before = _filter_top_p_sorted(logits_V, p)
    keep = before < p
    keep[0] = True
    return logits_V.masked_fill(~keep, -math.inf)


def _filter_top_p_not_normalised(logits_V, p):
    _, order, before = _filter_top_p_sorted(logits_V, p, probs=logits_V.exp())
    keep = before < p
    keep[0] = True
    return _filter_top_p_keep(logits_V, order, keep)


def _filter_top_p_by_value(logits_V, p):
    sorted_probs, _, before = _filter_top_p_sorted(logits_V, p)
    keep = before < p
    keep[0] = True
    return logits_V.masked_fill(logits_V.softmax(-1) < sorted_probs[keep].min(), -math.inf)


def _filter_top_p_zeroed(logits_V, p):
    kept = _filter_top_p_plain(logits_V, p)
    return kept.masked_fill(kept == -math.inf, 0.0)


def _filter_top_p_relative(logits_V, p):
    probs = logits_V.softmax(-1)
    return logits_V.masked_fill(probs < p * probs.max(), -math.inf)


def _filter_top_p_in_float32(logits_V, p):
    _, order, before = _filter_top_p_sorted(logits_V, p, probs=logits_V.softmax(-1))
    keep = before < p
    keep[0] = True
    return _filter_top_p_keep(logits_V, order, keep)


def _filter_top_p_empty(logits_V, p):
    _, order, before = _filter_top_p_sorted(logits_V, p)
    return _filter_top_p_keep(logits_V, order, before < p)


FILTER_TOP_P = Task(
    name="filter_top_p",
    chapter=1,
    title="The nucleus",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "logits_V with −inf outside the nucleus: from the most likely token down, a token is kept "
        "while the probability before it is below p, the lower id first among equals, and the most "
        "likely always."
    ),
    signature="filter_top_p(logits_V: Tensor, p: float) -> Tensor",
    properties=(
        Property("the token that carries the mass across p is kept", _filter_top_p_crossing),
        Property("the result is in the order of the ids, not sorted", _filter_top_p_places),
        Property("logits need not be normalised", _filter_top_p_shifted),
        Property("among equals the lower id is kept first", _filter_top_p_ties),
        Property("p = 1 keeps every token", _filter_top_p_none_off, edge=True),
        Property("a small p, even 0, keeps the most likely token", _filter_top_p_zero, edge=True),
    ),
    hints=(
        "Softmax in float64, sort downwards (stable=True), cumulative sum.",
        "Compare the mass before a token, cumsum − its own probability, with p.",
        "The mask is in sorted order: zeros_like(keep).scatter(-1, order, keep) brings it back.",
    ),
    mutants=(
        Mutant(
            "crossing token dropped",
            "the cumulative sum includes the token itself, so the one that crosses p is lost and "
            "the nucleus holds less than p; compare the mass before the token",
            _filter_top_p_crossing_dropped,
        ),
        Mutant(
            "one token too many",
            "one more token is kept than needed to reach p: the mask is shifted once too often",
            _filter_top_p_one_extra,
        ),
        Mutant(
            "mask left in sorted order",
            "the mask was made for sorted probabilities and put on unsorted logits; scatter it "
            "back to the ids",
            _filter_top_p_not_scattered,
        ),
        Mutant(
            "exp without normalising",
            "exp(logits) was taken for a probability; it is one only if the logits happen to be "
            "normalised, so apply softmax",
            _filter_top_p_not_normalised,
        ),
        Mutant(
            "ties kept together",
            "tokens are kept by a threshold on the probability, so every token tied with the last "
            "one stays and the nucleus grows; keep by rank",
            _filter_top_p_by_value,
        ),
        Mutant(
            "filled with zero",
            "a removed logit of 0 still has probability; −inf has none",
            _filter_top_p_zeroed,
        ),
        Mutant(
            "threshold on each token",
            "tokens are compared with p times the most likely, which is min-p; top-p is about the "
            "sum of the tokens kept",
            _filter_top_p_relative,
        ),
        Mutant(
            "nothing left at p = 0",
            "with p = 0 no token has less than p before it and all logits become −inf; the most "
            "likely token always stays",
            _filter_top_p_empty,
        ),
        Mutant(
            "tail lost at p = 1",
            "in float32 the sum rounds to 1 before the last tokens, which p = 1 should keep; sum "
            "in float64, or treat p = 1 as off",
            _filter_top_p_in_float32,
        ),
    ),
    answers=(_filter_top_p_plain, _filter_top_p_loop),
)


# ── draw ──────────────────────────────────────────────────────────────────────────────────────


def _draw_example(rows: Sequence[Sequence[float]], uniforms: Sequence[float]) -> Example:
    """Exact fractions: the interval that holds u, in a distribution scaled to sum to one."""
    probs, expected = torch.tensor(rows), []
    for row, u in zip(probs.tolist(), uniforms, strict=True):
        total = sum(map(Fraction, row))
        before, owner = Fraction(0), -1
        for token, probability in enumerate(map(Fraction, row)):
            if before <= Fraction(u) * total < before + probability:
                owner = token
            before += probability
        expected.append(owner)
    return Example((probs, torch.tensor(uniforms)), expected)


def _draw_two() -> Iterable[Example]:
    yield _draw_example([[0.5, 0.5]], [0.25])
    yield _draw_example([[0.5, 0.5]], [0.75])


def _draw_intervals() -> Iterable[Example]:
    row = [0.125, 0.5, 0.25, 0.125]
    for u in (0.0625, 0.3125, 0.5625, 0.75, 0.9375):
        yield _draw_example([row], [u])


def _draw_rows() -> Iterable[Example]:
    yield _draw_example([[0.5, 0.5], [0.5, 0.5]], [0.25, 0.75])
    yield _draw_example(
        [
            [0.125, 0.5, 0.25, 0.0, 0.125],
            [0.25, 0.0, 0.25, 0.25, 0.25],
            [0.5, 0.125, 0.25, 0.125, 0],
        ],
        [0.6875, 0.0625, 0.5625],
    )


def _draw_zero_probability() -> Iterable[Example]:
    yield _draw_example([[0.0, 1.0]], [0.0])
    yield _draw_example([[0.0, 0.0, 0.5, 0.5, 0.0]], [0.0])


def _draw_short_sum() -> Iterable[Example]:
    # In float32 a distribution can sum to less than the largest uniform, 1 − 2⁻²⁴.
    last = 0.5 - 2.0**-23
    yield _draw_example([[0.0, 0.5, last, 0.0]], [1 - 2.0**-24])


def _draw_plain(probs_BV, uniforms_B):
    """Count the tokens whose cumulative probability is not above u."""
    cumulative_BV = probs_BV.cumsum(dim=-1)
    cumulative_BV = cumulative_BV / cumulative_BV[:, -1:]
    return (cumulative_BV <= uniforms_B[:, None]).sum(dim=-1)


def _draw_searched(probs_BV, uniforms_B):
    cumulative_BV = probs_BV.double().cumsum(dim=-1)
    target_B1 = uniforms_B[:, None].double() * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]


def _draw_argmax(probs_BV, uniforms_B):
    return probs_BV.argmax(dim=-1)


def _draw_one_uniform(probs_BV, uniforms_B):
    return _draw_plain(probs_BV, uniforms_B[:1].expand(len(probs_BV)))


def _draw_token_before(probs_BV, uniforms_B):
    return (_draw_plain(probs_BV, uniforms_B) - 1).clamp(min=0)


def _draw_rank(probs_BV, uniforms_B):
    return _draw_plain(probs_BV.sort(dim=-1, descending=True, stable=True)[0], uniforms_B)


def _draw_flat(probs_BV, uniforms_B):
    return (uniforms_B * probs_BV.shape[-1]).long()


def _draw_reversed(probs_BV, uniforms_B):
    return _draw_plain(probs_BV, 1 - uniforms_B)


def _draw_left_edge(probs_BV, uniforms_B):
    cumulative_BV = probs_BV.cumsum(dim=-1)
    cumulative_BV = cumulative_BV / cumulative_BV[:, -1:]
    return (cumulative_BV < uniforms_B[:, None]).sum(dim=-1)


def _draw_past_the_end(probs_BV, uniforms_B):
    return (probs_BV.cumsum(dim=-1) <= uniforms_B[:, None]).sum(dim=-1)


def _draw_argmax_of_nothing(probs_BV, uniforms_B):
    return (probs_BV.cumsum(dim=-1) > uniforms_B[:, None]).int().argmax(dim=-1)


def _draw_clamped(probs_BV, uniforms_B):
    count = (probs_BV.cumsum(dim=-1) <= uniforms_B[:, None]).sum(dim=-1)
    return count.clamp(max=probs_BV.shape[-1] - 1)


DRAW = Task(
    name="draw",
    chapter=1,
    title="Draw a token",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "For each row the token whose interval of the cumulative distribution holds the row's "
        "uniform number: token v owns [mass before v, mass before v + its own); a token of "
        "probability 0 is never drawn, even where float32 sums fall short of 1."
    ),
    signature="draw(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor",
    properties=(
        Property("each of two equal tokens owns half of the interval", _draw_two),
        Property("token v owns an interval as long as its probability", _draw_intervals),
        Property("each row has its own distribution and its own uniform", _draw_rows),
        Property("u = 0 does not draw a token of probability 0", _draw_zero_probability, edge=True),
        Property("a sum just below 1 leaves no gap at the top", _draw_short_sum, edge=True),
    ),
    hints=(
        "Cumulative sums cut [0, 1) into one interval per token; find the one that holds u.",
        "The token is the number of cumulative sums that are ≤ u. With < a token of probability 0 "
        "can win at u = 0.",
        "Divide the cumulative sums by their last value, so that rounding cannot leave a gap.",
    ),
    mutants=(
        Mutant(
            "takes the most likely",
            "the uniform is not used: this is greedy decoding",
            _draw_argmax,
        ),
        Mutant(
            "one uniform for all rows",
            "every row uses the first row's uniform, so rows with one distribution always draw the "
            "same token",
            _draw_one_uniform,
        ),
        Mutant(
            "the token before",
            "the result is one too low: the count of sums ≤ u is the token itself, since the "
            "first token starts at 0",
            _draw_token_before,
        ),
        Mutant(
            "rank in place of id",
            "the probabilities were sorted and the position in the sorted order was returned; map "
            "it back through the sorting order, or do not sort",
            _draw_rank,
        ),
        Mutant(
            "all tokens equally likely",
            "u · V picks a token as if all were equally likely; the probabilities are not used",
            _draw_flat,
        ),
        Mutant(
            "from the wrong end",
            "u is measured from the top of the distribution; frequencies stay right, but the draw "
            "for a given u is another one, so seeds do not reproduce",
            _draw_reversed,
        ),
        Mutant(
            "draws probability 0 at u = 0",
            "u can be exactly 0; the first sum that is ≥ u is then that of a token of probability "
            "0, removed by a filter: look for the first sum > u",
            _draw_left_edge,
        ),
        Mutant(
            "falls off the end",
            "in float32 the probabilities can sum to less than u, and then no cumulative sum "
            "exceeds it: the result is V, or V − 1 after clamping, or argmax of nothing, 0; divide "
            "the sums by the last one",
            _draw_clamped,
            also=(_draw_past_the_end, _draw_argmax_of_nothing),
        ),
    ),
    answers=(_draw_plain, _draw_searched),
)


# ── next_token_probs ──────────────────────────────────────────────────────────────────────────


def _next_token_probs_example(
    logits: Sequence[float],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Example:
    """One token at a time in Python floats, with the survivors as an explicit list."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        kept = {ranked[0]: 1.0}
    else:
        if top_k:
            ranked = ranked[:top_k]
        weight = {i: math.exp((logits[i] - logits[ranked[0]]) / temperature) for i in ranked}
        total = math.fsum(weight.values())
        nucleus, before = [], 0.0
        for i in ranked:
            if nucleus and before >= top_p:
                break
            nucleus.append(i)
            before += weight[i] / total
        kept = {i: weight[i] for i in nucleus if weight[i] >= min_p * weight[ranked[0]]}
        total = math.fsum(kept.values())
        kept = {i: w / total for i, w in kept.items()}
    expected = np.array([kept.get(i, 0.0) for i in range(len(logits))])
    return Example((torch.tensor(logits), temperature, top_k, top_p, min_p), expected)


_SPREAD = [1.0, 3.0, 0.5, 2.0, -1.0, 2.5]


def _next_token_probs_off() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0])
    yield _next_token_probs_example(_SPREAD)


def _next_token_probs_temperature() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0], temperature=2.0)
    yield _next_token_probs_example(_SPREAD, temperature=0.5)


def _next_token_probs_top_k() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0, 2.0], top_k=2)
    yield _next_token_probs_example(_SPREAD, top_k=3)


def _next_token_probs_top_p() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0, 2.0], top_p=0.8)
    yield _next_token_probs_example(_SPREAD, top_p=0.85)


def _next_token_probs_after_temperature() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0, 2.0], temperature=4.0, top_p=0.7)
    yield _next_token_probs_example(_SPREAD, temperature=0.4, top_p=0.9)


def _next_token_probs_after_top_k() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.5, 2.0, 0.4], top_k=2, top_p=0.7)
    yield _next_token_probs_example(_SPREAD, temperature=3.0, top_k=3, top_p=0.6)


def _next_token_probs_min_p() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0, 2.0], min_p=0.3)
    yield _next_token_probs_example(_SPREAD, temperature=1.5, min_p=0.5)


def _next_token_probs_together() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0, 2.0, -0.5], top_k=3, top_p=0.7, min_p=0.2)
    yield _next_token_probs_example(_SPREAD, 1.7, top_k=5, top_p=0.75, min_p=0.4)


def _next_token_probs_corners() -> Iterable[Example]:
    yield _next_token_probs_example([1.0, 0.0], temperature=0.0)
    yield _next_token_probs_example([1.0, 3.0, 3.0, 0.0], temperature=0.0, top_p=0.9)
    yield _next_token_probs_example([1.0, 3.0, 3.0, 0.0], top_p=0.0)
    yield _next_token_probs_example([1.0, 0.0], top_k=5)
    yield _next_token_probs_example([1.0, 3.0, 3.0, 0.0], top_k=1)
    yield _next_token_probs_example([0.0, 2.0, 1.0, 2.0, 1.0], top_k=3)
    yield _next_token_probs_example([1.0, 7.0, 3.0], temperature=1e-38)


def _next_token_probs_plain(logits_V, temperature, top_k, top_p, min_p):
    """Temperature, top-k, top-p, min-p; every filter sees what the one before it left."""
    if temperature == 0:
        return F.one_hot(logits_V.argmax(), logits_V.shape[-1]).double()
    # From the best down to nothing: a tiny temperature overflows only what has no mass left.
    below_V = (logits_V - logits_V.max()).double()
    logits, order = (below_V / temperature).sort(descending=True, stable=True)
    if top_k:
        logits[top_k:] = -math.inf
    probs = logits.softmax(dim=-1)
    outside = (probs.cumsum(dim=-1) - probs >= top_p) & (top_p < 1)
    outside[0] = False
    logits[outside] = -math.inf
    logits[probs < min_p * probs[0]] = -math.inf
    return torch.zeros_like(logits).scatter(-1, order, logits.softmax(dim=-1))


def _next_token_probs_on_probs(logits_V, temperature, top_k, top_p, min_p):
    ids = sorted(range(len(logits_V)), key=lambda i: -float(logits_V[i]))
    out = torch.zeros(len(logits_V), dtype=torch.float64)
    if temperature == 0:
        out[ids[0]] = 1
        return out
    probs = torch.softmax((logits_V - logits_V.max()).double() / temperature, dim=-1)
    for i in ids[: top_k or None]:
        out[i] = probs[i]
    out = out / out.sum()
    mass = 0.0
    for rank, i in enumerate(ids):
        mass_before, mass = mass, mass + float(out[i])
        if rank and top_p < 1 and mass_before >= top_p:
            out[i] = 0
    out = torch.where(out < min_p * out.max(), 0.0, out)
    return out / out.sum()


def _next_token_probs_variant(
    logits_V,
    temperature,
    top_k,
    top_p,
    min_p,
    *,
    filter_at=None,
    times=False,
    full_nucleus=False,
    renormalise=True,
    absolute=False,
    crossing=False,
    min_first=False,
    ties=False,
    shift=True,
):
    """The pipeline with one thing done wrong. Temperature 0 is a small one."""
    warm = temperature or 1e-6
    factor = warm if times else 1 / warm
    below = (logits_V - logits_V.max()).double() if shift else logits_V
    scaled, order = (below * factor).sort(descending=True, stable=True)
    seen = scaled if filter_at is None else scaled / factor * filter_at
    rank = torch.arange(len(seen))
    k = top_k or len(seen)
    kept = (rank < k) | (ties & (seen == seen[:k][-1]))
    if min_first:
        kept = kept & (seen.exp() >= min_p * seen[0].exp())
    base = seen if full_nucleus else seen.masked_fill(~kept, -math.inf)
    probs = base.softmax(-1)
    mass = probs.cumsum(-1) if crossing else probs.cumsum(-1) - probs
    kept = kept & ((mass <= top_p if crossing else mass < top_p) | (rank == 0))
    kept = kept & ((probs >= (min_p if absolute else min_p * probs[0])) | (rank == 0))
    if renormalise:
        result = scaled.masked_fill(~kept, -math.inf).softmax(-1)
    else:
        result = scaled.softmax(-1).masked_fill(~kept, 0.0)
    return torch.zeros_like(result).scatter(-1, order, result)


def _next_token_probs_filters_first(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, filter_at=1.0)


def _next_token_probs_multiplied(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, times=True)


def _next_token_probs_full_nucleus(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, full_nucleus=True)


def _next_token_probs_unnormalised(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, renormalise=False)


def _next_token_probs_absolute(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, absolute=True)


def _next_token_probs_crossing(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, crossing=True)


def _next_token_probs_min_first(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, min_first=True)


def _next_token_probs_ties(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, ties=True)


def _next_token_probs_overflow(logits_V, temperature, top_k, top_p, min_p):
    return _next_token_probs_variant(logits_V, temperature, top_k, top_p, min_p, shift=False)


def _next_token_probs_zero(logits_V, temperature, top_k, top_p, min_p):
    logits, order = (logits_V.double() / temperature).sort(descending=True, stable=True)
    if top_k:
        logits[top_k:] = -math.inf
    probs = logits.softmax(-1)
    outside = probs.cumsum(-1) - probs >= top_p
    outside[0] = False
    logits[outside | (probs < min_p * probs[0])] = -math.inf
    return torch.zeros_like(logits).scatter(-1, order, logits.softmax(-1))


NEXT_TOKEN_PROBS = Task(
    name="next_token_probs",
    chapter=1,
    title="The whole sampler",
    minutes=25,
    points=6,
    level=3,
    spec=(
        "Probabilities [V] after temperature, top-k, top-p and min-p in this order, each filter "
        "applied to what the one before it left, renormalised; temperature 0 is the most likely "
        "token alone, top_k = 0 is off, the lower id comes first among equals, and min-p keeps "
        "tokens at least min_p times as likely as the most likely."
    ),
    signature=(
        "next_token_probs(logits_V: Tensor, temperature: float, top_k: int, top_p: float, "
        "min_p: float) -> Tensor"
    ),
    properties=(
        Property("with everything off it is the softmax", _next_token_probs_off),
        Property("logits are divided by the temperature", _next_token_probs_temperature),
        Property("top-k keeps k tokens and renormalises", _next_token_probs_top_k),
        Property("top-p keeps the token that crosses p", _next_token_probs_top_p),
        Property("the nucleus is measured after temperature", _next_token_probs_after_temperature),
        Property("the nucleus is measured on what top-k left", _next_token_probs_after_top_k),
        Property("min-p is relative to the most likely token", _next_token_probs_min_p),
        Property("all four together, in this order", _next_token_probs_together),
        Property("degenerate parameters", _next_token_probs_corners, edge=True),
    ),
    hints=(
        "Divide, sort once (stable), and work in sorted order; scatter back at the very end.",
        "Set logits beyond top_k to −inf, then take a softmax: top-p is measured on that one.",
        "Ratios survive renormalising: min-p may use the same softmax. Treat temperature 0 first.",
    ),
    mutants=(
        Mutant(
            "filters before temperature",
            "the filters saw the raw logits and the temperature came last; a temperature changes "
            "which tokens make up the nucleus",
            _next_token_probs_filters_first,
        ),
        Mutant(
            "multiplied by the temperature",
            "the logits are multiplied, so a high temperature sharpens; divide",
            _next_token_probs_multiplied,
        ),
        Mutant(
            "nucleus of the full distribution",
            "top-p was measured before top-k had taken its share; removed tokens have no mass, so "
            "renormalise between the two",
            _next_token_probs_full_nucleus,
        ),
        Mutant(
            "not renormalised",
            "the probabilities of the tokens that are left do not sum to one",
            _next_token_probs_unnormalised,
        ),
        Mutant(
            "min-p taken as absolute",
            "tokens were compared with min_p itself; the threshold is min_p times the largest "
            "probability, so it is looser where the model is less sure",
            _next_token_probs_absolute,
        ),
        Mutant(
            "crossing token dropped",
            "the cumulative sum includes the token itself, so the one that crosses top_p is lost",
            _next_token_probs_crossing,
        ),
        Mutant(
            "min-p before top-p",
            "min-p ran first, so top-p was measured on fewer tokens and kept fewer: a nucleus "
            "taken of what min-p left is smaller",
            _next_token_probs_min_first,
        ),
        Mutant(
            "division by temperature 0",
            "temperature 0 is a limit, not a division: it puts all probability on the most likely "
            "token, the lowest id among equals",
            _next_token_probs_zero,
        ),
        Mutant(
            "ties with the k-th kept",
            "top-k kept every token that ties with the k-th, as transformers does; here k tokens "
            "stay, the lower id first",
            _next_token_probs_ties,
        ),
        Mutant(
            "overflow at a tiny temperature",
            "a tiny temperature makes float32 logits infinite and their softmax NaN; subtract the "
            "best logit before dividing",
            _next_token_probs_overflow,
        ),
    ),
    answers=(_next_token_probs_plain, _next_token_probs_on_probs),
)
