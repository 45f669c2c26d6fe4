"""Exercises of chapter 03 on groups of heads: who reads which, and averaging them to fewer."""

import numpy as np
import torch
from torch import Tensor

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.inputs import double, normal

# ── expand_heads ──────────────────────────────────────────────────────────────────────────────


def _expand_examples(*shapes: tuple[int, int, int, int, int]) -> list[Example]:
    """Every element is a number of its own; NumPy copies head after head."""
    examples = []
    for B, G, H, S, D in shapes:
        stored = np.arange(1.0, B * G * S * D + 1, dtype=np.float32).reshape(B, G, S, D)
        expected = np.empty((B, H, S, D), dtype=np.float32)
        members = H // G
        for g in range(G):
            for i in range(members):
                expected[:, g * members + i] = stored[:, g]
        examples.append(Example((torch.tensor(stored), H), expected))
    return examples


def _expand_plain(x_BGSD, num_query_heads):
    """Each head as often as there are query heads in its group, side by side."""
    return x_BGSD.repeat_interleave(num_query_heads // x_BGSD.shape[1], dim=1)


def _expand_indexed(x_BGSD, num_query_heads):
    heads_per_group = num_query_heads // x_BGSD.shape[1]
    return x_BGSD[:, torch.arange(num_query_heads).div(heads_per_group, rounding_mode="floor")]


def _expand_by(x_BGSD: Tensor, num_query_heads: int, group_of) -> Tensor:
    """Query head h is given what ``group_of(h, H, G)`` stores."""
    G = x_BGSD.shape[1]
    groups = [min(group_of(h, num_query_heads, G), G - 1) for h in range(num_query_heads)]
    return x_BGSD[:, groups]


def _expand_tiled(x_BGSD, num_query_heads):
    return _expand_by(x_BGSD, num_query_heads, lambda h, H, G: h % G)


def _expand_by_groups(x_BGSD, num_query_heads):
    return _expand_by(x_BGSD, num_query_heads, lambda h, H, G: h // G)


def _expand_first(x_BGSD, num_query_heads):
    return _expand_by(x_BGSD, num_query_heads, lambda h, H, G: 0)


def _expand_reversed(x_BGSD, num_query_heads):
    return _expand_by(x_BGSD, num_query_heads, lambda h, H, G: G - 1 - h // (H // G))


def _expand_recut(x_BGSD, num_query_heads):
    B, G, S, D = x_BGSD.shape
    return x_BGSD.repeat(1, 1, 1, num_query_heads // G).reshape(B, num_query_heads, S, D)


EXPAND_HEADS = Task(
    name="expand_heads",
    chapter=3,
    title="Who reads whom",
    minutes=4,
    points=2,
    level=1,
    spec=(
        "Keys or values [B, G, S, D] as the query heads see them, [B, H, S, D]: query head h reads "
        "key-value head h // (H // G)."
    ),
    signature="expand_heads(x_BGSD: Tensor, num_query_heads: int) -> Tensor",
    properties=(
        Property(
            "one stored head serves every query head",
            lambda: _expand_examples((1, 1, 3, 1, 2), (2, 1, 4, 1, 3)),
        ),
        Property(
            "as many stored heads as query heads: nothing moves",
            lambda: _expand_examples((1, 2, 2, 1, 2), (2, 3, 3, 4, 5)),
        ),
        Property(
            "neighbours share a head",
            lambda: _expand_examples((1, 2, 4, 1, 2), (1, 2, 6, 3, 1), (2, 3, 6, 5, 4)),
        ),
        Property("SmolLM2's nine and three", lambda: _expand_examples((1, 3, 9, 2, 4))),
    ),
    hints=(
        "Write down, for H = 4 and G = 2, which stored head each query head reads.",
        "The copies of one head lie side by side: 0, 0, 1, 1 and not 0, 1, 0, 1.",
        "x_BGSD.repeat_interleave(num_query_heads // x_BGSD.shape[1], dim=1).",
    ),
    mutants=(
        Mutant(
            "tiled",
            "the heads are laid out 0, 1, 0, 1: query head h is given head h % G, as repeat and "
            "tile do; groups are contiguous, as repeat_interleave lays them out",
            _expand_tiled,
        ),
        Mutant(
            "divided by the number of groups",
            "h // G divides by how many groups there are; the group of query head h is h over the "
            "size of a group, H // G",
            _expand_by_groups,
        ),
        Mutant(
            "first head only",
            "every query head is given stored head 0, which is multi-query attention",
            _expand_first,
        ),
        Mutant(
            "groups reversed",
            "the first query heads are given the last stored head",
            _expand_reversed,
        ),
        Mutant(
            "cut anew",
            "the copies were made inside a head's numbers and then cut into heads, so a query head "
            "sees pieces of several positions",
            _expand_recut,
        ),
    ),
    answers=(_expand_plain, _expand_indexed),
)


# ── pool_heads ────────────────────────────────────────────────────────────────────────────────


def _pool_examples(*shapes: tuple[int, int, int, int]) -> list[Example]:
    """The mean in float64, row by row."""
    examples = []
    for seed, (H, G, D, M) in enumerate(shapes):
        weight = normal(seed, H * D, M)
        wide, members = double(weight), H // G
        expected = np.zeros((G * D, M))
        for g in range(G):
            for i in range(members):
                for d in range(D):
                    expected[g * D + d] += wide[(g * members + i) * D + d] / members
        examples.append(Example((weight, H, G), expected))
    return examples


def _pool_plain(weight_NM, num_heads, num_groups):
    """Give heads and groups an axis of their own; average; flatten again."""
    M = weight_NM.shape[1]
    members = num_heads // num_groups
    heads = weight_NM.view(num_groups, members, len(weight_NM) // num_heads, M)
    return heads.mean(dim=1).reshape(-1, M)


def _pool_by_matrix(weight_NM, num_heads, num_groups):
    D, members = weight_NM.shape[0] // num_heads, num_heads // num_groups
    average = torch.eye(num_groups).repeat_interleave(members, dim=1) / members
    return torch.kron(average, torch.eye(D)).to(weight_NM.dtype) @ weight_NM


def _pool_by(weight: Tensor, H: int, G: int, heads_of, *, total: bool = False) -> Tensor:
    """New head g averages the heads in ``heads_of(g, H, G)``."""
    heads = weight.view(H, -1, weight.shape[1])
    pooled = [heads[list(heads_of(g, H, G))] for g in range(G)]
    return torch.cat([x.sum(0) if total else x.mean(0) for x in pooled])


def _group(g: int, H: int, G: int) -> range:
    return range(g * (H // G), (g + 1) * (H // G))


def _pool_strided(weight_NM, num_heads, num_groups):
    return _pool_by(weight_NM, num_heads, num_groups, lambda g, H, G: range(g, H, G))


def _pool_first(weight_NM, num_heads, num_groups):
    return _pool_by(weight_NM, num_heads, num_groups, lambda g, H, G: _group(g, H, G)[:1])


def _pool_summed(weight_NM, num_heads, num_groups):
    return _pool_by(weight_NM, num_heads, num_groups, _group, total=True)


def _pool_all(weight_NM, num_heads, num_groups):
    return _pool_by(weight_NM, num_heads, num_groups, lambda g, H, G: range(H))


def _pool_dimensions(weight_NM, num_heads, num_groups):
    M, members = weight_NM.shape[1], num_heads // num_groups
    return weight_NM.view(-1, members, M).mean(dim=1)


POOL_HEADS = Task(
    name="pool_heads",
    chapter=3,
    title="Fewer heads from many",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "A key or value projection [H·D, M] of num_heads heads turned into one of num_groups "
        "heads, [G·D, M]: each new head is the mean of the contiguous heads whose queries it will "
        "serve."
    ),
    signature="pool_heads(weight_NM: Tensor, num_heads: int, num_groups: int) -> Tensor",
    properties=(
        Property("one head stays one head", lambda: _pool_examples((1, 1, 2, 3), (1, 1, 5, 4))),
        Property(
            "as many groups as heads: nothing changes",
            lambda: _pool_examples((2, 2, 1, 2), (3, 3, 4, 5)),
        ),
        Property(
            "one group is the mean of all",
            lambda: _pool_examples((2, 1, 1, 2), (6, 1, 4, 5)),
        ),
        Property(
            "several groups, each of neighbours",
            lambda: _pool_examples((4, 2, 1, 2), (6, 2, 3, 4), (6, 3, 5, 2)),
        ),
    ),
    hints=(
        "Where in the H·D rows does head 3 stand? Where do the heads of group 1 stand?",
        "Rows are ordered by head, then by dimension within the head; groups are runs of heads.",
        "weight.view(num_groups, num_heads // num_groups, len(weight) // num_heads, M)"
        ".mean(dim=1), flattened to two axes.",
    ),
    mutants=(
        Mutant(
            "strided groups",
            "heads g, g + G, g + 2G … are averaged; the queries that will read new head g are the "
            "contiguous ones",
            _pool_strided,
        ),
        Mutant(
            "first of each group",
            "one head of the group is kept and the others are thrown away; it is a conversion that "
            "people have tried, and worse than the mean",
            _pool_first,
        ),
        Mutant(
            "summed",
            "the heads are added and not averaged, so keys and values come out too large by the "
            "size of the group",
            _pool_summed,
        ),
        Mutant(
            "all heads in every group",
            "every new head is the mean of all heads: the groups hold copies of one another",
            _pool_all,
        ),
        Mutant(
            "dimensions averaged",
            "neighbouring rows are averaged, which are dimensions of one head; what is to be "
            "averaged are the same dimensions of different heads",
            _pool_dimensions,
        ),
    ),
    answers=(_pool_plain, _pool_by_matrix),
)
