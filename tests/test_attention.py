"""attend against float64 loops and torch's SDPA; masks, windows, empty rows, NaN; MLA; soft cap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import CASES, attention_by_loops, normal, readable_keys, seeded

from refimpl import attention, flash
from refimpl.attention import attend, attend_latent, soft_cap, visible

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def zeros_and(values: list[float], T: int, D: int = 3) -> tuple[torch.Tensor, ...]:
    """Queries of zero, random keys, and one value per key: every readable key counts the same."""
    S = len(values)
    q = torch.zeros(1, 1, T, D, dtype=torch.float64)
    v = torch.tensor(values, dtype=torch.float64).reshape(1, 1, S, 1)
    return q, normal(1, 1, 1, S, D), v


shapes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "G": st.integers(1, 3),
        "group": st.integers(1, 3),
        "T": st.integers(1, 7),
        "S": st.integers(0, 9),
        "D": st.integers(1, 6),
        "E": st.integers(1, 6),
        "seed": st.integers(0, 10_000),
    }
)


def inputs(B: int, G: int, group: int, T: int, S: int, D: int, E: int, seed: int) -> tuple:
    """Random q, k and v in float64."""
    return (
        normal(seed, B, G * group, T, D),
        normal(seed + 1, B, G, S, D),
        normal(seed + 2, B, G, S, E),
    )


@given(shape=shapes, data=st.data())
def test_attend_equals_float64_loops(shape: dict[str, int], data: st.DataObject) -> None:
    q, k, v = inputs(**shape)
    B, T, S = shape["B"], shape["T"], shape["S"]
    causal = data.draw(st.booleans(), "causal")
    window = data.draw(st.none() | st.integers(1, S + 2), "window") if causal else None
    scale = data.draw(st.none() | st.floats(0.05, 2), "scale")
    mask = None
    if data.draw(st.booleans(), "masked"):
        lead = data.draw(st.sampled_from([(), (1,), (B,)]), "lead")
        mask = torch.rand(*lead, T, S, generator=seeded(shape["seed"])) < 0.6
    want, want_lse = attention_by_loops(
        q, k, v, causal=causal, window=window, mask=mask, scale=scale
    )
    got, lse = attend(
        q, k, v, causal=causal, window=window, mask_BTS=mask, scale=scale, return_lse=True
    )
    torch.testing.assert_close(got, want, **EXACT)
    torch.testing.assert_close(lse, want_lse, **EXACT)


@given(shape=shapes, data=st.data())
def test_attend_equals_torch_sdpa(shape: dict[str, int], data: st.DataObject) -> None:
    q, k, v = inputs(**{**shape, "S": shape["S"] + 1})
    B, T, S = shape["B"], shape["T"], shape["S"] + 1
    mask = torch.rand(B, T, S, generator=seeded(shape["seed"])) < 0.6
    mask[..., 0] = True  # SDPA's answer for a row without keys is NaN or 0, by version
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], enable_gqa=True)
    got = attend(q, k, v, causal=False, mask_BTS=mask)
    torch.testing.assert_close(got, want, **EXACT)
    if S >= T:
        lower = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        want = F.scaled_dot_product_attention(q, k, v, attn_mask=lower, enable_gqa=True)
        torch.testing.assert_close(attend(q, k, v), want, **EXACT)
    if S == T:
        want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(attend(q, k, v), want, **EXACT)


@pytest.mark.parametrize(("T", "S"), CASES["ATT-16"]["inputs"]["T_S"] + [[4, 3], [2, 0]])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 9])
def test_visible_is_the_definition(T: int, S: int, window: int | None) -> None:
    got = visible(T, S, window=window)
    for t in range(T):
        assert got[t].nonzero().flatten().tolist() == readable_keys(T, S, t, window=window)
    assert visible(T, S, causal=False).all()


def check_grid() -> None:
    """attend on every pair of lengths and windows of ATT-16, against loops."""
    row = CASES["ATT-16"]["inputs"]
    for T, S in row["T_S"]:
        for window in row["windows"]:
            q, k, v = inputs(B=2, G=2, group=3, T=T, S=S, D=4, E=7, seed=T + 10 * S)
            want, _ = attention_by_loops(q, k, v, window=window)
            torch.testing.assert_close(attend(q, k, v, window=window), want, **EXACT)


def shifted(shift: int, wider: int, top_left: bool = False) -> object:
    """visible with its diagonal or its window moved, as a wrong implementation has it."""

    def mutant(num_new: int, num_stored: int, **options: object) -> torch.Tensor:
        window = options["window"]
        query = torch.arange(num_new)[:, None] + (0 if top_left else num_stored - num_new)
        key = torch.arange(num_stored)[None, :]
        mask = key <= query + shift
        return mask if window is None else mask & (key > query - window - wider)

    return mutant


@pytest.mark.case("ATT-16")
@pytest.mark.parametrize(
    "mutant",
    [shifted(1, 0), shifted(-1, 0), shifted(0, 1), shifted(0, -1), shifted(0, 0, top_left=True)],
    ids=["sees one ahead", "not itself", "window + 1", "window - 1", "top left"],
)
def test_a_mask_that_is_off_by_one_is_caught(
    mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_grid()
    monkeypatch.setattr(attention, "visible", shifted(0, 0))
    check_grid()  # the stand-in itself is right when nothing is moved
    monkeypatch.setattr(attention, "visible", mutant)
    with pytest.raises(AssertionError):
        check_grid()


@pytest.mark.case("ATT-01")
def test_causal_mask_is_aligned_to_the_bottom_right() -> None:
    row = CASES["ATT-01"]
    q, k, v = zeros_and(row["inputs"]["v"], row["inputs"]["T"], row["inputs"]["D"])
    out = attend(q, k, v).flatten()
    torch.testing.assert_close(out.tolist(), row["expected"]["out"], **EXACT)
    assert out.tolist() != pytest.approx(row["expected"]["top_left"])
    last = attend(q[:, :, -1:], k, v)
    assert last.item() == pytest.approx(row["expected"]["single_query"], abs=1e-12)
    torch.testing.assert_close(last, attend(q[:, :, -1:], k, v, causal=False), **EXACT)


@pytest.mark.case("ATT-02")
def test_queries_without_keys_give_zero_and_minus_infinity() -> None:
    row = CASES["ATT-02"]
    q, k, v = zeros_and(row["inputs"]["v"], row["inputs"]["T"])
    out, lse = attend(q, k, v, return_lse=True)
    torch.testing.assert_close(out.flatten().tolist(), list(map(float, row["expected"]["out"])))
    # With scores of 0, exp(LSE) is the number of keys read.
    torch.testing.assert_close(
        lse.exp().flatten().tolist(), list(map(float, row["expected"]["exp_lse"])), **EXACT
    )
    assert visible(5, 3).sum(-1).tolist() == row["expected"]["counts"]


@pytest.mark.case("ATT-03")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_masked_row_is_zero_and_leaves_the_others_alone(dtype: torch.dtype) -> None:
    row = CASES["ATT-03"]["inputs"]
    q, k, v = inputs(B=1, G=1, group=1, T=3, S=3, D=4, E=5, seed=row["seed"])
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    mask[row["empty_row"]] = False
    out = attend(q.to(dtype), k.to(dtype), v.to(dtype), mask_BTS=mask)
    assert out.isfinite().all()
    assert (out[0, 0, row["empty_row"]] == 0).all()
    want, _ = attention_by_loops(q[:, :, :2], k[:, :, :2], v[:, :, :2])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 3e-2)
    torch.testing.assert_close(out[:, :, :2].double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.case("ATT-05")
def test_a_masked_key_never_wins_against_very_negative_scores() -> None:
    row = CASES["ATT-05"]["inputs"]
    q = torch.tensor(row["q"], dtype=torch.float32).reshape(1, 1, 1, 1)
    k = torch.tensor(row["k"], dtype=torch.float32).reshape(1, 1, 2, 1)
    v = torch.tensor(row["v"], dtype=torch.float32).reshape(1, 1, 2, 1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    mask[0, row["masked"]] = False
    out, lse = attend(q, k, v, mask_BTS=mask, scale=row["scale"], return_lse=True)
    assert out.item() == CASES["ATT-05"]["expected"]["out"]
    assert lse.item() == CASES["ATT-05"]["expected"]["lse"]
    out, lse = attend(q, k, v, mask_BTS=mask & False, scale=row["scale"], return_lse=True)
    assert out.item() == CASES["ATT-05"]["expected"]["out_all_masked"]
    assert lse.item() == -math.inf


@pytest.mark.case("ATT-06")
def test_a_window_counts_the_query_itself() -> None:
    row = CASES["ATT-06"]
    S, window = row["inputs"]["S"], row["inputs"]["window"]
    q, k, v = zeros_and(row["inputs"]["v"], S)
    assert visible(S, S, window=window).sum(-1).tolist() == row["expected"]["counts"]
    out = attend(q, k, v, window=window).flatten()
    torch.testing.assert_close(out.tolist(), list(map(float, row["expected"]["out"])), **EXACT)
    # An API with an inclusive left bound calls the same window W - 1: keys i - left to i.
    left = window - 1
    inclusive = torch.ones(S, S, dtype=torch.bool).tril().triu(-left)
    torch.testing.assert_close(
        attend(q, k, v, window=window), attend(q, k, v, mask_BTS=inclusive), **EXACT
    )
    q = normal(3, 1, 1, S, 3)
    for wide in (S, S + 1, 100):
        torch.testing.assert_close(attend(q, k, v, window=wide), attend(q, k, v), **EXACT)
    assert not torch.equal(attend(q, k, v, window=S - 1), attend(q, k, v))


@pytest.mark.case("ATT-06")
def test_a_window_is_what_transformers_means_by_it() -> None:
    from transformers.masking_utils import sliding_window_causal_mask_function

    T, S, W = 4, 9, 3
    theirs = sliding_window_causal_mask_function(W)
    want = [
        [bool(theirs(0, 0, torch.tensor(S - T + t), torch.tensor(s))) for s in range(S)]
        for t in range(T)
    ]
    assert visible(T, S, window=W).tolist() == want


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((-1, 3), "num_new must be an integer of at least 0, got -1"),
        ((3, -1), "num_stored must be an integer of at least 0, got -1"),
        ((2.0, 3), "num_new must be an integer of at least 0, got 2.0"),
        ((2, True), "num_stored must be an integer of at least 0, got True"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        visible(*lengths)


@pytest.mark.case("ATT-08")
def test_query_heads_of_a_group_are_neighbours() -> None:
    row = CASES["ATT-08"]
    H, G, S, D = (row["inputs"][name] for name in "HGSD")
    q = torch.zeros(1, H, S, D, dtype=torch.float64)
    v = torch.tensor(row["inputs"]["v_of_head"]).double().reshape(1, G, 1, 1).expand(1, G, S, 1)
    out = attend(q, normal(0, 1, G, S, D), v)
    assert out[0, :, -1, 0].tolist() == pytest.approx(row["expected"]["out_of_head"])
    q, k, v = inputs(B=2, G=3, group=4, T=5, S=6, D=7, E=8, seed=9)
    out = attend(q, k, v)
    for h in range(12):
        alone, _ = attention_by_loops(q[:, h : h + 1], k[:, [h // 4]], v[:, [h // 4]])
        torch.testing.assert_close(out[:, h : h + 1], alone, **EXACT)
    with pytest.raises(ValueError, match="multiple of key-value heads, got 12 and 5"):
        attend(q, normal(1, 2, 5, 6, 7), normal(2, 2, 5, 6, 8))


@pytest.mark.case("ATT-14")
def test_half_precision_products_do_not_overflow() -> None:
    row = CASES["ATT-14"]["inputs"]
    dtype = getattr(torch, row["dtype"])
    q = torch.full((1, 1, 1, row["D"]), row["q"], dtype=dtype)
    k = torch.full((1, 1, row["S"], row["D"]), row["k"], dtype=dtype)
    v = torch.tensor(row["v"], dtype=dtype).reshape(1, 1, 2, 1)
    assert (q.double() * k[:, :, :1].double()).sum() > torch.finfo(dtype).max
    out, lse = attend(q, k, v, return_lse=True)
    assert out.dtype == dtype
    assert out.item() == CASES["ATT-14"]["expected"]["out"]
    _, want = attention_by_loops(q, k, v)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_low_precision_error_is_no_larger_than_twice_sdpa(
    dtype: torch.dtype, spread: float
) -> None:
    q, k, v = (
        (x * spread).to(dtype) for x in inputs(B=2, G=2, group=3, T=33, S=70, D=32, E=16, seed=5)
    )
    want, _ = attention_by_loops(q, k, v)
    mask = torch.ones(33, 70, dtype=torch.bool).tril(37)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    ours = attend(q, k, v)
    assert ours.dtype == dtype
    error, their_error = ((x.double() - want).abs() for x in (ours, theirs))
    # In float32 the two differ by a product's order of summation: the largest is noisier.
    assert error.max() <= (4 if dtype == torch.float32 else 2) * their_error.max()
    assert error.mean() <= 2 * their_error.mean()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_no_query_may_read_never_reaches_the_output(poison: float, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in inputs(B=3, G=2, group=2, T=4, S=7, D=3, E=5, seed=2))
    lengths = torch.tensor([7, 5, 0])  # a row that is full, one that is not, one that is empty
    mask = (torch.arange(7) < lengths[:, None])[:, None].expand(3, 4, 7)
    clean, clean_lse = attend(q, k, v, causal=False, mask_BTS=mask, return_lse=True)
    unwritten = torch.arange(7)[None, None, :, None] >= lengths[:, None, None, None]
    dirty, dirty_lse = attend(
        q,
        k.masked_fill(unwritten, poison),
        v.masked_fill(unwritten, poison),
        causal=False,
        mask_BTS=mask,
        return_lse=True,
    )
    assert torch.equal(clean, dirty)
    assert torch.equal(clean_lse, dirty_lse)
    assert (dirty[2] == 0).all()
    # The same behind a causal window: key 0 is outside every query's window.
    k[:, :, :3], v[:, :, :3] = poison, poison
    assert attend(q, k, v, window=1).isfinite().all()


@pytest.mark.parametrize("form", [attend, flash.attend], ids=["plain", "tiled"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_no_query_may_read_never_reaches_a_gradient(form: Any, poison: float) -> None:
    q, k, v = inputs(B=1, G=2, group=2, T=3, S=6, D=5, E=4, seed=3)
    grads = []
    for hidden in (0.0, poison):
        k[:, :, :2], v[:, :, :2] = hidden, hidden  # window 2: keys 0 and 1 are nobody's
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        grads.append(torch.autograd.grad(form(*leaves, window=2).square().sum(), leaves))
    for clean, dirty in zip(*grads, strict=True):
        assert clean.isfinite().all()
        torch.testing.assert_close(dirty, clean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", [attend, flash.attend], ids=["plain", "tiled"])
def test_autocast_changes_nothing(form: Any) -> None:
    x = [y.float() for y in inputs(B=1, G=2, group=2, T=9, S=9, D=8, E=8, seed=4)]
    results = []
    for enabled in (False, True):
        leaves = [y.clone().requires_grad_() for y in x]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out, lse = form(*leaves, return_lse=True)
        grads = torch.autograd.grad(out.square().sum() + lse.sum(), leaves)
        assert lse.dtype == out.dtype == torch.float32
        results.append((out, lse, *grads))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_tensors_without_memory_have_shapes() -> None:
    q, k, v = (torch.empty(shape, device="meta") for shape in ((1, 4, 3, 8), *[(1, 2, 5, 8)] * 2))
    assert attend(q, k, v).shape == (1, 4, 3, 8)


def test_poison_that_a_query_may_read_does_show() -> None:
    q, k, v = inputs(B=1, G=1, group=1, T=2, S=3, D=2, E=2, seed=0)
    v[:, :, 1] = math.nan
    assert attend(q, k, v).isnan().all()


@pytest.mark.parametrize("empty", ["B", "T", "H"])
def test_an_empty_axis_gives_an_empty_result_of_the_right_shape(empty: str) -> None:
    size = {"B": 2, "H": 4, "T": 3} | {empty: 0}
    q = normal(0, size["B"], size["H"], size["T"], 5)
    k, v = normal(1, size["B"], 2, 6, 5), normal(2, size["B"], 2, 6, 7)
    out, lse = attend(q, k, v, return_lse=True)
    assert out.shape == (size["B"], size["H"], size["T"], 7)
    assert lse.shape == out.shape[:3]


def test_no_keys_at_all_give_zeros() -> None:
    q, k, v = normal(0, 2, 4, 3, 5), normal(1, 2, 2, 0, 5), normal(2, 2, 2, 0, 7)
    out, lse = attend(q, k, v, return_lse=True)
    assert torch.equal(out, torch.zeros(2, 4, 3, 7, dtype=out.dtype))
    assert (lse == -math.inf).all()


def test_scale_defaults_to_the_root_of_the_head_dim() -> None:
    q, k, v = inputs(B=1, G=1, group=2, T=3, S=4, D=5, E=6, seed=1)
    torch.testing.assert_close(attend(q, k, v), attend(q, k, v, scale=1 / math.sqrt(5)), **EXACT)
    assert not torch.allclose(attend(q, k, v), attend(q, k, v, scale=1.0))


def test_attend_leaves_its_inputs_alone() -> None:
    q, k, v = inputs(B=2, G=1, group=2, T=3, S=4, D=5, E=6, seed=1)
    mask = torch.ones(3, 4, dtype=torch.bool).tril()
    before = [x.clone() for x in (q, k, v, mask)]
    attend(q, k, v, mask_BTS=mask, window=2)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, mask), before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": normal(0, 2, 4, 5)}, "q_BHTD must have 4 axes"),
        (
            {"q": torch.zeros(2, 4, 3, 5, dtype=torch.int64)},
            "q_BHTD must be of 16, 32 or 64-bit floating point",
        ),
        (
            {name: normal(0, 2, 2, 6, 5).to(torch.float8_e4m3fn) for name in "qkv"},
            "q_BHTD must be of 16, 32 or 64-bit floating point, got torch.float8_e4m3fn",
        ),
        ({name: normal(0, 2, 2, 6, 0) for name in "qk"}, r"have head dim 0: shape \(2, 2, 6, 0\)"),
        ({"window": 1.5}, "got 1.5"),
        ({"window": True}, "got True"),
        ({"q": normal(0, 2, 4, 3, 5).float()}, "share a dtype, got torch.float32"),
        ({"v": normal(0, 2, 2, 5, 7)}, "agree in batch, heads and length"),
        ({"q": normal(0, 3, 4, 3, 5)}, "batch 3, keys of batch 2"),
        ({"q": normal(0, 2, 4, 3, 6)}, "head dim 6, keys 5"),
        ({"q": normal(0, 2, 3, 3, 5)}, "got 3 and 2"),
        ({"k": normal(0, 2, 0, 6, 5), "v": normal(0, 2, 0, 6, 7)}, "got 4 and 0"),
        ({"window": 0}, "got 0"),
        ({"window": -1}, "got -1"),
        ({"window": 2, "causal": False}, "got 2 with causal=False"),
        ({"window": np.int64(3)}, r"is an integer from 1 .* got np.int64\(3\)"),
        ({"scale": math.nan}, "scale must be a finite number, got nan"),
        ({"scale": True}, "scale must be a finite number, got True"),
        ({"mask_BTS": torch.ones(3, 6)}, "must be bool"),
        ({"mask_BTS": torch.ones(6, 3, dtype=torch.bool)}, "must be"),
        ({"mask_BTS": torch.ones(3, 3, 6, dtype=torch.bool)}, "must be"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    q, k, v = normal(0, 2, 4, 3, 5), normal(1, 2, 2, 6, 5), normal(2, 2, 2, 6, 7)
    arguments = {"q": q, "k": k, "v": v} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, **arguments)


# --- multi-head latent attention ------------------------------------------------------------


def latent_inputs(
    B: int, H: int, T: int, S: int, C: int, D: int, R: int, E: int, seed: int
) -> dict[str, torch.Tensor]:
    """Random inputs of attend_latent."""
    return {
        "q_BHTD": normal(seed, B, H, T, D),
        "q_rope_BHTR": normal(seed + 1, B, H, T, R),
        "latent_BSC": normal(seed + 2, B, S, C),
        "k_rope_BSR": normal(seed + 3, B, S, R),
        "up_k_HDC": normal(seed + 4, H, D, C) / C**0.5,
        "up_v_HEC": normal(seed + 5, H, E, C) / C**0.5,
    }


def latent_by_loops(
    x: dict[str, torch.Tensor], scale: float | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Expanded keys and values, one head and one position at a time."""
    B, H, _, D = x["q_BHTD"].shape
    S, R = x["k_rope_BSR"].shape[1:]
    E = x["up_v_HEC"].shape[1]
    k = torch.zeros(B, H, S, D + R, dtype=torch.float64)
    v = torch.zeros(B, H, S, E, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for s in range(S):
                k[b, h, s, :D] = x["up_k_HDC"][h] @ x["latent_BSC"][b, s]
                k[b, h, s, D:] = x["k_rope_BSR"][b, s]
                v[b, h, s] = x["up_v_HEC"][h] @ x["latent_BSC"][b, s]
    q = torch.cat((x["q_BHTD"], x["q_rope_BHTR"]), dim=-1)
    return attention_by_loops(q, k, v, scale=scale or (D + R) ** -0.5, mask=mask)[0]


@pytest.mark.case("ATT-10")
@pytest.mark.parametrize("absorbed", [False, True])
def test_absorption_keeps_the_scale_of_the_expanded_key(absorbed: bool) -> None:
    row = CASES["ATT-10"]
    size = row["inputs"]
    x = latent_inputs(
        B=1,
        H=size["H"],
        T=size["T"],
        S=size["T"],
        C=size["latent"],
        D=size["nope"],
        R=size["rope"],
        E=size["v"],
        seed=3,
    )
    got = attend_latent(**x, absorbed=absorbed)
    right, wrong = row["expected"]["scale"], row["expected"]["wrong_scale"]
    torch.testing.assert_close(got, latent_by_loops(x, right), **EXACT)
    torch.testing.assert_close(right, 10**-0.5)
    torch.testing.assert_close(wrong, 12**-0.5)
    assert (got - latent_by_loops(x, wrong)).abs().max() > 1e-3


@given(
    size=st.tuples(*[st.integers(1, 4)] * 3, *[st.integers(1, 7)] * 4),
    extra=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_latent_attention_equals_loops(size: tuple[int, ...], extra: int, seed: int) -> None:
    B, H, T, C, D, R, E = size
    x = latent_inputs(B=B, H=H, T=T, S=T + extra, C=C, D=D, R=R, E=E, seed=seed)
    mask = torch.rand(B, T, T + extra, generator=seeded(seed)) < 0.7
    want = latent_by_loops(x, mask=mask)
    for absorbed in (False, True):
        got = attend_latent(**x, absorbed=absorbed, mask_BTS=mask)
        torch.testing.assert_close(got, want, **EXACT)
        free = attend_latent(**x, absorbed=absorbed, causal=False)
        q = torch.cat((x["q_BHTD"], x["q_rope_BHTR"]), dim=-1)
        k = torch.cat(
            (
                torch.einsum("hdc,bsc->bhsd", x["up_k_HDC"], x["latent_BSC"]),
                x["k_rope_BSR"][:, None].expand(-1, H, -1, -1),
            ),
            dim=-1,
        )
        v = torch.einsum("hec,bsc->bhse", x["up_v_HEC"], x["latent_BSC"])
        torch.testing.assert_close(free, F.scaled_dot_product_attention(q, k, v), **EXACT)


# --- soft cap -------------------------------------------------------------------------------


@pytest.mark.case("ATT-13")
def test_soft_cap_is_finite_for_huge_scores() -> None:
    row = CASES["ATT-13"]
    scores = torch.tensor(row["inputs"]["scores"], dtype=torch.float32)
    cap = row["inputs"]["cap"]
    want = torch.tensor(row["expected"]["capped"])
    torch.testing.assert_close(soft_cap(scores, cap), want, atol=1e-5, rtol=0)
    huge = row["expected"]["finite_up_to"] * torch.tensor([1.0, -1.0])
    assert soft_cap(huge, cap).tolist() == [cap, -cap]


@given(score=st.floats(-1e6, 1e6), cap=st.floats(0.1, 100))
def test_soft_cap_is_the_formula_and_odd(score: float, cap: float) -> None:
    got = soft_cap(torch.tensor([score, -score], dtype=torch.float64), cap)
    assert got[0].item() == pytest.approx(cap * math.tanh(score / cap), rel=1e-12, abs=1e-300)
    assert got[1].item() == -got[0].item()
    assert abs(got[0].item()) <= cap


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan, math.inf])
def test_a_cap_that_is_not_positive_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        soft_cap(torch.ones(2), cap)
