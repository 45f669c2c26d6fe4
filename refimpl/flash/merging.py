"""Attention over all keys from attention over parts of them: weighted by their log-sum-exp."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def merge(
    outs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor
) -> tuple[Tensor, Tensor]:
    """Output ``[..., T, E]`` and log-sum-exp ``[..., T]`` over the keys of all parts together.

    ``outs`` and ``lses`` hold one result per part, as sequences or stacked along a first axis. The
    parts' keys must not overlap; their order does not matter. Log-sum-exps are natural logarithms
    of the sum of ``exp(score)`` itself, not relative to a maximum, in float32 or wider. Where it is
    minus infinity the part has read nothing, and its output is not looked at, even where it holds
    NaN; a row that no part has read for gives 0 and minus infinity. The output has the parts'
    dtype and is summed in that of the log-sum-exps.

    Raises ``ValueError`` for no part at all and for shapes or dtypes that do not fit together.
    Source: split keys as in Flash-Decoding, 2023; the weights follow from exp(lse) being a sum.
    """
    outs, lses = tuple(outs), tuple(lses)
    _check(outs, lses)
    lse_PT = torch.stack(lses)
    # Any reference cancels; the largest one keeps exp in range. It carries no gradient.
    top = lse_PT.detach().amax(dim=0)
    base = top.masked_fill(top == -math.inf, 0.0)
    weights_PT = (lse_PT - base).exp()
    total = weights_PT.sum(dim=0)
    empty = total == 0
    divisor = total.masked_fill(empty, 1.0)
    merged = torch.zeros_like(outs[0], dtype=torch.promote_types(outs[0].dtype, lse_PT.dtype))
    for out, weight, lse in zip(outs, weights_PT, lses, strict=True):
        read = out.masked_fill((lse == -math.inf)[..., None], 0.0)
        merged = merged + (weight / divisor)[..., None] * read
    return merged.to(outs[0].dtype), (base + divisor.log()).masked_fill(empty, -math.inf)


def _check(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> None:
    if not outs or len(outs) != len(lses):
        raise ValueError(f"each part has one output and one LSE, got {len(outs)} and {len(lses)}")
    for out, lse in zip(outs, lses, strict=True):
        if out.shape != outs[0].shape or out.dtype != outs[0].dtype:
            raise ValueError(
                f"outputs of parts must agree, got {tuple(out.shape)} in {out.dtype} beside "
                f"{tuple(outs[0].shape)} in {outs[0].dtype}"
            )
        if lse.shape != out.shape[:-1]:
            raise ValueError(
                f"an output {tuple(out.shape)} needs an LSE {tuple(out.shape[:-1])}, "
                f"got {tuple(lse.shape)}"
            )
        if lse.dtype not in (torch.float32, torch.float64) or lse.dtype != lses[0].dtype:
            raise ValueError(f"LSEs must all be float32 or all float64, got {lse.dtype}")
