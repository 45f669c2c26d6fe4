"""Record what decoding does pass by pass, with a cache and without: the data of ``stepper.md``.

`record` runs a model both ways on the same tokens and keeps what `stepper_page` shows. Positions,
slots and ids count from 0, passes, layers and heads from 1, as the chapters say them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from refimpl import roofline, sizing
from refimpl.attention import attend
from refimpl.cache import ContiguousCache
from refimpl.model import Decoder

MIN_GAP = 1e-3
"""Two best logits closer than this could change places on another machine."""

Head = tuple[int, int]
"""A layer and one of its query heads, both from 1."""


@dataclass(frozen=True)
class Work:
    """What one pass does: counts of one query head in one layer, bytes and FLOPs of all."""

    num_queries: int
    num_keys: int
    kv_bytes_computed: int
    kv_bytes_read: int
    flops: int

    @property
    def num_scores(self) -> int:
        """Scores of one query head in one layer, the masked ones included."""
        return self.num_queries * self.num_keys


@dataclass(frozen=True)
class Pass:
    """One pass: the tokens at ``first`` to ``stop`` - 1 are fed, and ``token`` is found.

    Without a cache the pass starts at 0, and ``num_again`` tokens had been through before.
    ``weights`` holds, for each watched head, what the last query gives to the keys before ``stop``.
    """

    number: int
    first: int
    stop: int
    num_again: int
    cached: Work
    uncached: Work
    held_bytes: int
    reserved_bytes: int
    token: int
    probability: float
    weights: tuple[tuple[float, ...], ...]


@torch.no_grad()
def record(
    model: Decoder, prompt: Sequence[int], max_new_tokens: int, heads: Sequence[Head] = ()
) -> list[Pass]:
    """The passes that write ``max_new_tokens`` greedy tokens behind ``prompt``.

    Raises ``ValueError`` for a model that is not in float32, no new tokens, a head that the model
    does not have, two best logits closer than `MIN_GAP`, or another token without the cache.
    """
    _check(model, max_new_tokens, heads)
    tokens, passes = list(prompt), []
    cache = ContiguousCache(model.arch, max_tokens=len(tokens) + max_new_tokens - 1)
    with _watching(model, {layer for layer, _ in heads}) as seen:
        for number in range(1, max_new_tokens + 1):
            first = int(cache.num_tokens[0])
            logits_V = model(torch.tensor([tokens[first:]]), cache=cache)[0, -1]
            token = _best(logits_V)
            weights = tuple(_weights(seen.last_query[layer], cache, layer, h) for layer, h in heads)
            cached = _cached_work(cache, seen.num_queries, first)
            anew = _best(model(torch.tensor([tokens]))[0, -1])
            if anew != token:
                raise ValueError(f"pass {number} finds {token} with a cache, {anew} without")
            passes.append(
                Pass(
                    number=number,
                    first=first,
                    stop=len(tokens),
                    num_again=passes[-1].stop if passes else 0,
                    cached=cached,
                    uncached=_uncached_work(model, seen.num_queries),
                    held_bytes=_bytes_held(cache),
                    reserved_bytes=cache.num_bytes,
                    token=token,
                    probability=float(logits_V.softmax(-1)[token]),
                    weights=weights,
                )
            )
            tokens.append(token)
    return passes


def _check(model: Decoder, max_new_tokens: int, heads: Sequence[Head]) -> None:
    if model.dtype != torch.float32:
        raise ValueError(f"greedy ids are shown from float32, the model is {model.dtype}")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise ValueError(f"max_new_tokens must be an integer, got {max_new_tokens!r}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    layers, queries = model.arch.num_layers, model.arch.num_query_heads
    for layer, head in heads:
        if not (1 <= layer <= layers and 1 <= head <= queries):
            raise ValueError(
                f"layer {layer}, head {head} is none of {layers} layers with {queries} query heads"
            )


@dataclass
class _Seen:
    """What the hooks saw of the latest pass: its width, and the last query of watched layers."""

    num_queries: int = 0
    last_query: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def _watching(model: Decoder, layers: Collection[int]) -> Iterator[_Seen]:
    """Note how many tokens go through the layers, and ``q_BHTD`` of the last one."""
    seen = _Seen()

    def note(attention: Any, args: tuple[Any, ...]) -> None:
        x_BTM, index, step = args
        seen.num_queries = x_BTM.shape[1]
        if index + 1 in layers:
            seen.last_query[index + 1] = attention.project(x_BTM, step)[0][:, :, -1:]

    hooks = [layer.attention.register_forward_pre_hook(note) for layer in model.layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _weights(q_BHTD: Tensor, cache: ContiguousCache, layer: int, head: int) -> tuple[float, ...]:
    """Weights over the stored keys: what `attend` gives when the values are unit vectors."""
    k_BGSD, _ = cache.read(layer - 1)
    B, G, S, _ = k_BGSD.shape
    units_BGSS = torch.eye(S).expand(B, G, S, S)
    return tuple(attend(q_BHTD, k_BGSD, units_BGSS)[0, head - 1, -1].tolist())


def _bytes_held(cache: ContiguousCache) -> int:
    """Bytes of the keys and values that a pass reads: the written slots of every layer."""
    return sum(x.nbytes for layer in range(cache.arch.num_layers) for x in cache.read(layer))


def _cached_work(cache: ContiguousCache, num_queries: int, num_stored: int) -> Work:
    return Work(
        num_queries=num_queries,
        num_keys=cache.read(0)[0].shape[2],
        kv_bytes_computed=sizing.kv_bytes(cache.arch, num_queries, "fp32"),
        kv_bytes_read=_bytes_held(cache),
        flops=roofline.forward_flops(cache.arch, num_queries, num_stored),
    )


def _uncached_work(model: Decoder, num_queries: int) -> Work:
    return Work(
        num_queries=num_queries,
        num_keys=num_queries,
        kv_bytes_computed=sizing.kv_bytes(model.arch, num_queries, "fp32"),
        kv_bytes_read=0,
        flops=roofline.forward_flops(model.arch, num_queries),
    )


def _best(logits_V: Tensor) -> int:
    """The greedy token; refuses a choice that rounding could change."""
    (best, second), (token, _) = (x.tolist() for x in logits_V.topk(2))
    if not best - second > MIN_GAP or not math.isfinite(best):
        raise ValueError(f"the two best logits are {best} and {second}: too close to show an id")
    return token
