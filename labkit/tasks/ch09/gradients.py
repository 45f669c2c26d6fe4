"""Exercise of chapter 09 on one tile of the backward pass: scores again, no matrix kept."""

import math
from collections.abc import Callable
from typing import Any

import torch

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.inputs import normal

# ── tile_gradients ────────────────────────────────────────────────────────────────────────────


def _run_gradients(function: Callable[..., Any], *args: Any) -> Any:
    """The three results by name."""
    result = function(*args)
    if result is None:
        return None
    return dict(zip(("d_q", "d_k", "d_v"), result, strict=True))


def _gradient_example(
    T: int,
    S: int,
    D: int,
    others: int,
    seed: int,
    *,
    scale: float | None = None,
    size: float = 1.0,
    atol: float | None = None,
) -> Example:
    """Autograd in float64 through plain attention over the tile's S keys and ``others``.

    Queries meet the tile's keys as one leaf and the other keys as another, so that the gradient of
    the first is what this tile contributes.
    """
    scale = D**-0.5 if scale is None else scale
    shapes = ((T, D), (S, D), (S, D), (others, D), (others, D), (T, D))
    q, k, v, far_k, far_v, d_out = (normal(seed + i, *x).double() for i, x in enumerate(shapes))
    q *= size
    q_here, q_far, k, v = (x.clone().requires_grad_() for x in (q, q, k, v))
    scores = torch.cat([q_here @ k.T, q_far @ far_k.T], dim=1) * scale
    out = scores.softmax(dim=1) @ torch.cat([v, far_v])
    out.backward(d_out)
    lse, delta = scores.logsumexp(dim=1), (d_out * out).sum(dim=1)
    args = (*(x.detach().float() for x in (q, k, v, d_out, lse, delta)), scale)
    names = ("q_TD", "k_SD", "v_SD", "d_out_TD", "lse_T", "delta_T", "scale")
    shown = "\n".join(f"{name} = {render(x)}" for name, x in zip(names, args, strict=True))
    expected = {"d_q": q_here.grad, "d_k": k.grad, "d_v": v.grad}
    return Example(args, expected, shown=shown, atol=atol)


def _gradients_plain(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    """Weights again from the log-sum-exp; then value, weight, score, query and key."""
    weights_TS = (q_TD @ k_SD.T * scale - lse_T[:, None]).exp()
    d_weights_TS = d_out_TD @ v_SD.T
    d_scores_TS = weights_TS * (d_weights_TS - delta_T[:, None])
    return scale * d_scores_TS @ k_SD, scale * d_scores_TS.T @ q_TD, weights_TS.T @ d_out_TD


def _gradients_row_by_row(q_TD, k_SD, v_SD, d_out_TD, lse_T, delta_T, scale):
    d_q, d_k, d_v = (torch.zeros_like(x) for x in (q_TD, k_SD, v_SD))
    for t in range(len(q_TD)):
        for s in range(len(k_SD)):
            score = scale * torch.dot(q_TD[t], k_SD[s])
            weight = math.exp(score - lse_T[t])
            d_score = weight * (torch.dot(d_out_TD[t], v_SD[s]) - delta_T[t])
            d_q[t] += d_score * scale * k_SD[s]
            d_k[s] += d_score * scale * q_TD[t]
            d_v[s] += weight * d_out_TD[t]
    return d_q, d_k, d_v


def _through(weights, d_scores, q, k, d_out, scale):
    """The three gradients from weights and gradients of the scores."""
    return scale * d_scores @ k, scale * d_scores.T @ q, weights.T @ d_out


def _weights(q, k, lse, scale):
    return (q @ k.T * scale - lse[:, None]).exp()


def _gradients_no_delta(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, scale)
    return _through(w, w * (d_out @ v.T), q, k, d_out, scale)


def _gradients_no_scale(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, scale)
    return _through(w, w * (d_out @ v.T - delta[:, None]), q, k, d_out, 1.0)


def _gradients_scale_of_queries(q, k, v, d_out, lse, delta, scale):
    d_q, d_k, d_v = _gradients_plain(q, k, v, d_out, lse, delta, scale)
    return d_q, d_k / scale, d_v


def _gradients_scale_of_keys(q, k, v, d_out, lse, delta, scale):
    d_q, d_k, d_v = _gradients_plain(q, k, v, d_out, lse, delta, scale)
    return d_q / scale, d_k, d_v


def _gradients_unscaled_scores(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, 1.0)
    return _through(w, w * (d_out @ v.T - delta[:, None]), q, k, d_out, scale)


def _gradients_softmax(q, k, v, d_out, lse, delta, scale):
    w = (q @ k.T * scale).softmax(dim=1)
    return _through(w, w * (d_out @ v.T - delta[:, None]), q, k, d_out, scale)


def _gradients_tile_delta(q, k, v, d_out, lse, delta, scale):
    w, d_w = _weights(q, k, lse, scale), d_out @ v.T
    return _through(w, w * (d_w - (w * d_w).sum(1, keepdim=True)), q, k, d_out, scale)


def _gradients_tile_alone(q, k, v, d_out, lse, delta, scale):
    w, d_w = (q @ k.T * scale).softmax(dim=1), d_out @ v.T
    return _through(w, w * (d_w - (w * d_w).sum(1, keepdim=True)), q, k, d_out, scale)


def _gradients_delta_outside(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, scale)
    return _through(w, w * (d_out @ v.T) - delta[:, None], q, k, d_out, scale)


def _gradients_not_weighed(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, scale)
    return _through(w, d_out @ v.T - delta[:, None], q, k, d_out, scale)


def _gradients_raw_values(q, k, v, d_out, lse, delta, scale):
    d_q, d_k, _ = _gradients_plain(q, k, v, d_out, lse, delta, scale)
    return d_q, d_k, (q @ k.T * scale).T @ d_out


def _gradients_delta_added(q, k, v, d_out, lse, delta, scale):
    w = _weights(q, k, lse, scale)
    return _through(w, w * (d_out @ v.T + delta[:, None]), q, k, d_out, scale)


def _gradients_by_exponentials(q, k, v, d_out, lse, delta, scale):
    w = (q @ k.T * scale).exp() / lse.exp()[:, None]
    return _through(w, w * (d_out @ v.T - delta[:, None]), q, k, d_out, scale)


TILE_GRADIENTS = Task(
    name="tile_gradients",
    chapter=9,
    title="A tile of the backward pass",
    minutes=12,
    points=4,
    level=3,
    spec=(
        "What one tile of T queries and S keys adds to the gradients of q, k and v: d_out_TD is "
        "the gradient of the output; of each query, lse_T is the log-sum-exp of its scores "
        "q · kᵀ · scale over all its keys, not the tile's alone, and delta_T the sum of "
        "d_out · out over its row."
    ),
    signature=(
        "tile_gradients(q_TD: Tensor, k_SD: Tensor, v_SD: Tensor, d_out_TD: Tensor, lse_T: Tensor, "
        "delta_T: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]"
    ),
    properties=(
        Property(
            "one key alone takes all: its value gets the whole gradient, scores get none",
            lambda: [_gradient_example(1, 1, 2, 0, seed=61)],
        ),
        Property(
            "a tile that is all there is",
            lambda: [
                _gradient_example(1, 3, 2, 0, seed=67),
                _gradient_example(2, 4, 3, 0, seed=73, scale=1.0),
            ],
        ),
        Property(
            "a tile of several",
            lambda: [
                _gradient_example(1, 2, 3, 3, seed=79),
                _gradient_example(3, 4, 2, 5, seed=85, size=2.0),
                _gradient_example(4, 2, 5, 9, seed=91),
            ],
        ),
        Property("a scale of its own", lambda: [_gradient_example(3, 2, 4, 3, seed=97, scale=0.2)]),
        Property(
            "scores in the hundreds",
            lambda: [_gradient_example(2, 3, 4, 3, seed=103, size=300.0, atol=0.01)],
            edge=True,
        ),
    ),
    hints=(
        "The scores are gone. What gives each weight of the softmax back, with what was kept?",
        "weights = exp(scores − lse). d_v is weightsᵀ · d_out; d_weights is d_out · vᵀ; and "
        "the gradient of a score is its weight · (d_weight − delta).",
        "d_q = scale · d_scores · k and d_k = scale · d_scoresᵀ · q: the scale multiplied the "
        "scores, so it multiplies both.",
    ),
    mutants=(
        Mutant(
            "delta left out",
            "softmax couples the keys of a row: raising one weight lowers the others. The gradient "
            "of a score is weight · (d_weight − delta), not weight · d_weight",
            _gradients_no_delta,
        ),
        Mutant(
            "scale left out",
            "the scores were multiplied by scale, and so are both gradients that flow through "
            "them, that of the queries and that of the keys",
            _gradients_no_scale,
            also=(_gradients_scale_of_queries, _gradients_scale_of_keys),
        ),
        Mutant(
            "scores not scaled",
            "lse belongs to q · kᵀ · scale: scores computed again without scale are others, and "
            "the weights do not sum to 1 over the row",
            _gradients_unscaled_scores,
        ),
        Mutant(
            "softmax within the tile",
            "a tile holds some of a row's keys, and its weights sum to less than 1; dividing by "
            "the tile's own sum makes them too large. That is what lse_T was kept for",
            _gradients_softmax,
            also=(_gradients_tile_alone,),
        ),
        Mutant(
            "delta of the tile alone",
            "delta is a sum over all keys of the row, d_out · out; summed over the tile's keys it "
            "lacks the others",
            _gradients_tile_delta,
        ),
        Mutant(
            "delta not weighed",
            "delta is subtracted before the product with the weight, not behind it: otherwise keys "
            "of no weight get a gradient",
            _gradients_delta_outside,
        ),
        Mutant(
            "weights left out",
            "d_weight − delta is multiplied by the weight: a key that is hardly read hardly counts",
            _gradients_not_weighed,
        ),
        Mutant(
            "scores for weights",
            "the output is weights · v, so d_v is weightsᵀ · d_out: take exp(score − lse) first",
            _gradients_raw_values,
        ),
        Mutant(
            "delta added",
            "it is d_weight − delta: the row's mean is taken off, so that the gradients of a row's "
            "scores sum to 0",
            _gradients_delta_added,
        ),
        Mutant(
            "exponentials of the scores themselves",
            "right on paper: exp(score) and exp(lse) are both infinite above 88 in float32, and "
            "their quotient is NaN; subtract first, then exp",
            _gradients_by_exponentials,
        ),
    ),
    answers=(_gradients_plain, _gradients_row_by_row),
    drive=_run_gradients,
)
