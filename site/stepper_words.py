"""Say what the recorded passes did: captions, counters, labels. Numbers become text here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from stepper import Head, Pass, Work

from refimpl import sizing
from refimpl.architecture import Architecture
from refimpl.units import format_bytes

HEADS: dict[Head, tuple[str, int | None]] = {
    (1, 1): ("spread", None),
    (17, 1): ("the token before", -2),
    (12, 7): ("the token itself", -1),
    (19, 9): ("the first token", 0),
}
"""The heads on show: where most of their attention goes, and the index of that key."""

Row = tuple[str, str, str]
"""A counter: its label, with a cache, without."""


@dataclass(frozen=True)
class Shown:
    """A recorded run: the model's shape, id and text of every token, the passes."""

    arch: Architecture
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    passes: tuple[Pass, ...]

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt, all of which the first pass feeds."""
        return self.passes[0].stop


@dataclass(frozen=True)
class Total:
    """Work of several passes together."""

    num_queries: int = 0
    num_scores: int = 0
    flops: int = 0

    def plus(self, work: Work) -> Total:
        """The total with one more pass."""
        return Total(
            self.num_queries + work.num_queries,
            self.num_scores + work.num_scores,
            self.flops + work.flops,
        )


def totals(passes: Sequence[Pass]) -> list[tuple[Total, Total]]:
    """Work up to and including each pass, with a cache and without."""

    def running(works: list[Work]) -> list[Total]:
        return list(accumulate(works, Total.plus, initial=Total()))[1:]

    cached, uncached = [one.cached for one in passes], [one.uncached for one in passes]
    return list(zip(running(cached), running(uncached), strict=True))


def head_shares(passes: Sequence[Pass]) -> list[float]:
    """For each head its mean weight on the key named in `HEADS`; where none is, the largest."""
    return [
        max(max(one.weights[n]) for one in passes)
        if index is None
        else fmean(one.weights[n][index] for one in passes)
        for n, (_, index) in enumerate(HEADS.values())
    ]


def weight_bytes(arch: Architecture) -> int:
    """Bytes of all parameters in float32, which every pass reads once."""
    return int(sizing.count_parameters(arch).total * sizing.bytes_per_element("fp32"))


def gflop(flops: int) -> str:
    """FLOPs with two decimals of 10^9: ``0.27 GFLOP``."""
    return f"{flops / 1e9:.2f} GFLOP"


def percent(share: float) -> str:
    """One decimal; what is below one is not called 100 %."""
    text = f"{100 * share:.1f} %"
    return "over 99.9 %" if text == "100.0 %" and share < 1 else text


def head_label(head: Head, share: float) -> str:
    """The name of a head and where its attention goes: ``layer 17, head 1: 71.6 % on …``."""
    where, index = HEADS[head]
    name = f"layer {head[0]}, head {head[1]}"
    if index is None:
        return f"{name}: {where}, no key has more than {percent(share)}"
    return f"{name}: {percent(share)} on {where}"


def notes(arch: Architecture) -> tuple[str, str]:
    """What a slot and a score of the drawing stand for."""
    layers = arch.num_layers
    token_bytes = format_bytes(sizing.kv_bytes_per_token(arch, "fp32"))
    return (
        f"K and V of a slot × {layers} layers × {arch.num_kv_heads} heads: {token_bytes}",
        f"scores: a row per query × {layers} layers × {arch.num_query_heads} heads",
    )


def captions(shown: Shown, one: Pass) -> tuple[str, str]:
    """What happens in a pass, in one sentence: with a cache, and without."""
    found = f"“{shown.texts[one.stop].strip()}” ({percent(one.probability)})"
    if one.number == 1:
        return (
            f"Prefill: the {one.stop} tokens of the prompt go through the layers together, their "
            f"keys and values fill slots 0 to {one.stop - 1}, and the likeliest next token is "
            f"{found}.",
            f"Without a cache the first pass does the same and finds {found}, but the keys and "
            f"values of its {one.stop} tokens are dropped.",
        )
    fed = f"“{shown.texts[one.first].strip()}”"
    end = ", which is never fed and needs no slot" if one is shown.passes[-1] else ""
    return (
        f"Decode: only {fed} goes through the layers, its key and value fill slot {one.first}, "
        f"its query reads slots 0 to {one.stop - 1}, and the likeliest next token is {found}{end}.",
        f"Without a cache {one.stop} tokens go through the layers, {one.num_again} of them again, "
        f"and the likeliest next token is the same: {found}.",
    )


def counters(shown: Shown, one: Pass) -> list[tuple[str, list[Row]]]:
    """The counters of a pass by group; scores are those of one query head in one layer."""
    works, sums = (one.cached, one.uncached), totals(shown.passes)[one.number - 1]
    parameters = format_bytes(weight_bytes(shown.arch))

    def row(label: str, show: Callable[[Any], str], pair: tuple[Any, Any]) -> Row:
        return label, show(pair[0]), show(pair[1])

    this_pass = [
        row("query rows T", lambda work: f"{work.num_queries:,}", works),
        row("keys S", lambda work: f"{work.num_keys:,}", works),
        row("scores T × S", lambda work: f"{work.num_scores:,}", works),
        row("K and V computed", lambda work: format_bytes(work.kv_bytes_computed), works),
        row("cache read", lambda work: _size_or_none(work.kv_bytes_read), works),
        ("weights read", parameters, parameters),
        row("matrix products", lambda work: gflop(work.flops), works),
    ]
    so_far = [
        row("token-passes", lambda total: f"{total.num_queries:,}", sums),
        row("scores", lambda total: f"{total.num_scores:,}", sums),
        row("matrix products", lambda total: gflop(total.flops), sums),
    ]
    kept = [
        ("cache held", format_bytes(one.held_bytes), "none"),
        ("cache reserved", format_bytes(one.reserved_bytes), "none"),
    ]
    return [("this pass", this_pass), ("so far", so_far), ("kept for the next pass", kept)]


def _size_or_none(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "none"
