"""Where a decode step changes its nature: cache against weights, memory against arithmetic."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from refimpl.architecture import Architecture
from refimpl.hardware import Accelerator
from refimpl.roofline.flops import check_counts
from refimpl.roofline.passes import cache_traffic, decode_step, weights_read
from refimpl.roofline.step import Step

_ENDLESS = 2**40  # tokens: beyond any context


def decode_sweep(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    **options: Any,
) -> dict[tuple[int, int], Step]:
    """The decode step at every ``(batch, context)``; options are those of :func:`decode_step`."""
    return {
        (batch, context): decode_step(arch, accelerator, batch=batch, context=context, **options)
        for context in contexts
        for batch in batches
    }


def crossover_batch(
    arch: Architecture,
    context: int,
    *,
    weight_dtype: str = "bf16",
    cache_dtype: str = "bf16",
    whiteboard: bool = False,
) -> float:
    """The batch at which a decode step moves as many bytes of cache as of weights.

    Below it a larger batch shares the weights; above it each sequence brings most of its bytes
    along. Between whole batches the value is interpolated, and below one request the weights are
    those of one; infinite where there is no cache. For experts, weights are those that so many
    tokens are expected to choose.
    """
    check_counts(context=context)
    each = cache_traffic(arch, 1, context - 1, cache_dtype) if context else 0
    if not each:
        return math.inf

    def excess(batch: int) -> int:
        read = weights_read(arch, batch, batch, weight_dtype, whiteboard=whiteboard)
        return batch * each - read

    low = _last(lambda batch: excess(batch) <= 0)
    if low == 0:
        return weights_read(arch, 1, 1, weight_dtype, whiteboard=whiteboard) / each
    return low - excess(low) / (excess(low + 1) - excess(low))


def intensity_ceiling(
    arch: Architecture,
    accelerator: Accelerator,
    context: int,
    **options: Any,
) -> float:
    """FLOPs per byte that no batch of decode steps exceeds.

    Weights are shared by the batch, cache and activations are not, so intensity approaches FLOPs
    per sequence over bytes per sequence. Options are those of :func:`decode_step`.
    """
    step = decode_step(arch, accelerator, batch=1, context=context, **options)
    alone = step.cache_bytes + step.activation_bytes
    return step.flops / alone if alone else math.inf


def compute_bound_context(
    arch: Architecture, accelerator: Accelerator, **options: Any
) -> int | None:
    """The longest context at which a large enough batch can still be bound by arithmetic.

    Beyond it decoding is memory-bound at every batch, as it is where the ceiling of intensity only
    equals the ridge: no finite batch reaches it. 0 where that is so at any context (the
    shortest has two tokens, one stored and one new), ``None`` where no context is too long, as
    with windows in every layer. Options are those of :func:`decode_step`.
    """

    def reaches(context: int) -> bool:
        step = decode_step(arch, accelerator, batch=1, context=context, **options)
        alone = step.cache_bytes + step.activation_bytes
        return not alone or step.flops / alone > accelerator.ridge(step.compute_dtype)

    if reaches(_ENDLESS):
        return None
    return _last(lambda context: context < 2 or reaches(context)) if reaches(2) else 0


def _last(holds: Callable[[int], bool]) -> int:
    """The last number for which something holds that holds for 0 and, once lost, stays lost."""
    high = 1
    while holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
