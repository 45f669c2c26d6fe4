"""Fewer key-value heads by averaging, and what a latent saves: counted from real tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import MHA, attention_by_loops, normal, tiny, token_ids

from refimpl.attention import attend, attend_latent, mean_pool_heads
from refimpl.model import Decoder

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def pooled_by_loops(weight: torch.Tensor, heads: int, to: int) -> torch.Tensor:
    """The mean of each contiguous group, one row of one head at a time."""
    D, members = weight.shape[0] // heads, heads // to
    rows = []
    for g in range(to):
        for d in range(D):
            group = [weight[(g * members + i) * D + d] for i in range(members)]
            rows.append(sum(group[1:], group[0]) / members)
    return torch.stack(rows)


@given(
    to=st.integers(1, 5),
    members=st.integers(1, 4),
    D=st.integers(1, 6),
    M=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_each_new_head_is_the_mean_of_a_contiguous_group(
    to: int, members: int, D: int, M: int, seed: int
) -> None:
    heads = to * members
    weight, bias = normal(seed, heads * D, M), normal(seed + 1, heads * D)
    got = mean_pool_heads(weight, heads, to)
    assert got.shape == (to * D, M)
    torch.testing.assert_close(got, pooled_by_loops(weight, heads, to), **EXACT)
    want = pooled_by_loops(bias[:, None], heads, to)[:, 0]
    torch.testing.assert_close(mean_pool_heads(bias, heads, to), want, **EXACT)


def test_groups_are_contiguous_and_not_strided() -> None:
    weight = torch.tensor([[1.0], [3.0], [10.0], [30.0]])  # four heads of one row
    assert mean_pool_heads(weight, 4, 2).tolist() == [[2.0], [20.0]]
    assert mean_pool_heads(weight, 4, 1).tolist() == [[11.0]]
    assert torch.equal(mean_pool_heads(weight, 4, 4), weight)


def test_pooling_in_two_steps_is_pooling_in_one() -> None:
    weight = normal(3, 12 * 5, 7)
    for middle in (6, 3):
        twice = mean_pool_heads(mean_pool_heads(weight, 12, middle), middle, 3)
        torch.testing.assert_close(twice, mean_pool_heads(weight, 12, 3), **EXACT)


def test_sixteen_bits_are_averaged_in_float32() -> None:
    # 256 ones after a 256 vanish one by one in a bf16 sum: 256 + 1 rounds back to 256.
    weight = torch.tensor([[256.0]] + [[1.0]] * 255, dtype=torch.bfloat16)
    got = mean_pool_heads(weight, 256, 1)
    assert got.dtype == torch.bfloat16
    assert got.item() == torch.tensor((256 + 255) / 256, dtype=torch.bfloat16).item()


def converted(model: Decoder, to: int) -> Decoder:
    """The decoder with averaged key and value heads; everything else as it was."""
    arch = dataclasses.replace(model.arch, num_kv_heads=to)
    weights = dict(model.state_dict())
    for name, weight in weights.items():
        if name.endswith(("attention.k.weight", "attention.v.weight")):
            weights[name] = mean_pool_heads(weight, model.arch.num_kv_heads, to)
    small = Decoder.random(arch, torch.Generator().manual_seed(9), dtype=model.dtype)
    small.load_state_dict(weights)
    return small


def test_heads_that_agree_lose_nothing_and_others_do() -> None:
    # Six query heads; keys and values agree within each group of two, so three heads are enough.
    arch = dataclasses.replace(MHA, num_query_heads=6, num_kv_heads=6)
    model = tiny(arch)
    with torch.no_grad():
        for layer in model.layers:
            for projection in (layer.attention.k, layer.attention.v):
                heads = projection.weight.view(3, 2, arch.head_dim, arch.model_width)
                heads[:, 1] = heads[:, 0]
    tokens = token_ids(2, arch.vocab_size, 2, 9)
    before = model(tokens)
    torch.testing.assert_close(converted(model, 3)(tokens), before, rtol=1e-9, atol=1e-9)
    assert (converted(model, 2)(tokens) - before).abs().max() > 1e-3


def test_the_mean_of_heads_is_attended_as_one_head() -> None:
    B, H, G, T, S, D, M = 2, 6, 2, 3, 5, 4, 7
    x, w_k, w_v = normal(1, B, S, M), normal(2, H * D, M), normal(3, H * D, M)
    q = normal(4, B, H, T, D)
    k, v = ((x @ mean_pool_heads(w, H, G).mT).view(B, S, G, D).transpose(1, 2) for w in (w_k, w_v))
    means = []
    for w in (w_k, w_v):
        each = (x @ w.mT).view(B, S, H, D)
        means.append(torch.stack([each[:, :, :3].mean(dim=2), each[:, :, 3:].mean(dim=2)], dim=1))
    want, _ = attention_by_loops(q, *means)
    torch.testing.assert_close(attend(q, k, v), want, **EXACT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((normal(0, 12, 5), 6, 4), "6 heads cannot be averaged in equal groups to 4"),
        ((normal(0, 12, 5), 3, 6), "3 heads cannot be averaged in equal groups to 6"),
        ((normal(0, 12, 5), 5, 1), r"a weight \(12, 5\) do not divide into 5 heads"),
        ((torch.tensor(1.0), 1, 1), r"a weight \(\) do not divide into 1 heads"),
        ((normal(0, 12, 5), 0, 1), "num_kv_heads_from must be a positive integer, got 0"),
        ((normal(0, 12, 5), 6, 0), "num_kv_heads_to must be a positive integer, got 0"),
        ((normal(0, 12, 5), 6, 2.0), "num_kv_heads_to must be a positive integer, got 2.0"),
        ((normal(0, 12, 5), True, 1), "num_kv_heads_from must be a positive integer, got True"),
        (
            (torch.tensor([[1], [2]], dtype=torch.int8), 2, 1),  # the mean is 1.5
            "^a weight of torch.int8 would lose the fractions of its means$",
        ),
    ],
)
def test_heads_that_do_not_divide_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_pool_heads(*arguments)


# --- multi-head latent attention ------------------------------------------------------------


SIZES = {"B": 2, "H": 3, "T": 4, "S": 5, "C": 6, "D": 7, "R": 8, "E": 9}
AXES = ("BHTD", "BHTR", "BSC", "BSR", "HDC", "HEC")
NAMES = ("q_BHTD", "q_rope_BHTR", "latent_BSC", "k_rope_BSR", "up_k_HDC", "up_v_HEC")


@pytest.mark.parametrize(
    ("wrong", "letter", "message"),
    [
        (1, "H", "q_rope_BHTR has H = 1, but q_BHTD has 3"),
        (1, "T", "q_rope_BHTR has T = 1, but q_BHTD has 4"),
        (2, "B", "latent_BSC has B = 1, but q_BHTD has 2"),
        (3, "S", "k_rope_BSR has S = 1, but latent_BSC has 5"),
        (3, "R", "k_rope_BSR has R = 1, but q_rope_BHTR has 8"),
        (4, "H", "up_k_HDC has H = 1, but q_BHTD has 3"),
        (4, "C", "up_k_HDC has C = 1, but latent_BSC has 6"),
        (5, "C", "up_v_HEC has C = 1, but latent_BSC has 6"),
    ],
)
@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_shapes_that_broadcasting_would_hide_are_refused(
    wrong: int, letter: str, message: str, absorbed: bool
) -> None:
    shapes = [[SIZES[axis] for axis in axes] for axes in AXES]
    shapes[wrong][AXES[wrong].index(letter)] = 1
    inputs = [normal(i, *shape) for i, shape in enumerate(shapes)]
    with pytest.raises(ValueError, match=message):
        attend_latent(*inputs, absorbed=absorbed)


@pytest.mark.parametrize("wrong", range(6))
def test_latent_inputs_of_another_rank_are_refused(wrong: int) -> None:
    inputs = [normal(i, *(SIZES[axis] for axis in axes)) for i, axes in enumerate(AXES)]
    inputs[wrong] = inputs[wrong][None]
    with pytest.raises(ValueError, match=f"{NAMES[wrong]} must have {len(AXES[wrong])} axes"):
        attend_latent(*inputs, absorbed=True)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize(
    ("wrong", "dtype", "message"),
    [
        (0, torch.bfloat16, "q_rope_BHTR is of torch.float64, but q_BHTD is of torch.bfloat16"),
        (3, torch.float32, "k_rope_BSR is of torch.float32, but q_BHTD is of torch.float64"),
        (4, torch.float32, "up_k_HDC is of torch.float32, but q_BHTD is of torch.float64"),
        (5, torch.int64, "up_v_HEC must be of 16, 32 or 64-bit floating point, got torch.int64"),
        (0, torch.int32, "q_BHTD must be of 16, 32 or 64-bit floating point, got torch.int32"),
    ],
)
def test_latent_inputs_of_another_dtype_are_refused(
    wrong: int, dtype: torch.dtype, message: str, absorbed: bool
) -> None:
    inputs = [normal(i, *(SIZES[axis] for axis in axes)) for i, axes in enumerate(AXES)]
    inputs[wrong] = inputs[wrong].to(dtype)
    with pytest.raises(ValueError, match=f"^{message}$"):
        attend_latent(*inputs, absorbed=absorbed)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("large", ["query", "latent"])
def test_latent_sixteen_bits_are_computed_in_float32(large: str, absorbed: bool) -> None:
    # 4 * 300 * 100 is beyond float16's 65,504: in the absorbed query, or in the expanded key.
    half = {"dtype": torch.float16}
    query, latent = (300.0, 0.01) if large == "query" else (0.01, 300.0)
    out = attend_latent(
        torch.full((1, 1, 1, 4), query, **half),
        torch.zeros(1, 1, 1, 2, **half),
        torch.full((1, 3, 4), latent, **half),
        torch.zeros(1, 3, 2, **half),
        torch.full((1, 4, 4), 100.0, **half),
        torch.ones(1, 5, 4, **half),
        absorbed=absorbed,
    )
    assert out.dtype == torch.float16
    # Equal keys: the output is the value, four times one number of the latent.
    torch.testing.assert_close(out, torch.full((1, 1, 1, 5), 4 * latent, **half))
