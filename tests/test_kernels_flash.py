"""The Triton kernels against float64: forward, log-sum-exp, gradients; strides, margins, modes."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from notebook_tools import in_a_process
from oracles import attention_by_loops, normal, readable_keys, rows, seeded
from torch import Tensor

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is built for Linux only", allow_module_level=True)

from refimpl.attention import attend as plain_attend
from refimpl.kernels import MODE, flash, interpreter, naive, tl, triton
from refimpl.kernels.flash import Tiles, attend, attend_v1

CASES = rows("cases_flash.json")
SMALL = Tiles(16, 16)
# Largest error on standard-normal inputs, in units of max(1, |expected|).
TOLERANCE = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 2e-2}


def attention64(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and log-sum-exp in float64 that autograd can differentiate."""
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    allowed = torch.zeros(T, S, dtype=torch.bool)
    for t in range(T):
        allowed[t, readable_keys(T, S, t, causal=causal, window=window)] = True
    if mask is not None:
        allowed = (allowed & mask).expand(B, T, S)[:, None]
    empty = ~allowed.any(dim=-1, keepdim=True)
    k, v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(~allowed, -math.inf)
    lse = scores.masked_fill(empty, 0.0).logsumexp(dim=-1).masked_fill(empty[..., 0], -math.inf)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    return weights @ v, lse


def error(got: Tensor, want: Tensor) -> float:
    """The largest error in units of max(1, |want|); infinities must agree."""
    assert got.shape == want.shape
    finite = want.isfinite()
    assert torch.equal(got.double()[~finite], want[~finite])
    assert got[finite].isfinite().all()
    if not finite.any():
        return 0.0
    gap = (got.double() - want)[finite].abs() / want[finite].abs().clamp(min=1)
    return gap.max().item()


def inputs(seed: int, B: int, H: int, G: int, T: int, S: int, D: int, E: int) -> list[Tensor]:
    """Standard-normal q, k and v in float64."""
    shapes = ((B, H, T, D), (B, G, S, D), (B, G, S, E))
    return [normal(seed + i, *shape) for i, shape in enumerate(shapes)]


def check_all(
    x: list[Tensor], tolerance: float, tiles: Tiles = SMALL, **options: Any
) -> list[Tensor]:
    """Forward, log-sum-exp and the gradients through both, against float64; returns all five."""
    seen = {"causal": options.get("causal", True), "window": options.get("window")}
    seen["mask"] = options.get("mask_BTS")
    leaves = [y.detach().double().requires_grad_() for y in x]
    want, want_lse = attention64(*leaves, **seen)
    d_out = normal(90, *want.shape)
    d_lse = normal(91, *want_lse.shape) * want_lse.isfinite()
    d_out = d_out.to(x[0].dtype)
    given_ = [y.detach().requires_grad_() for y in x]
    out, lse = attend(*given_, tiles=tiles, return_lse=True, **options)
    assert out.dtype == x[0].dtype and lse.dtype == torch.float32
    finite = want_lse.isfinite()
    d_lse = d_lse.float()
    wanted = torch.autograd.grad(
        (want, want_lse.masked_fill(~finite, 0.0)), leaves, (d_out.double(), d_lse.double())
    )
    got = torch.autograd.grad((out, lse), given_, (d_out, d_lse))
    results = [(out, want), (lse, want_lse), *zip(got, wanted, strict=True)]
    names = ("out", "lse", "d_q", "d_k", "d_v")
    for name, (have, expected) in zip(names, results, strict=True):
        limit = tolerance if name != "lse" else min(tolerance, 1e-4)
        gap = error(have.detach(), expected.detach())
        assert gap <= limit, f"{name} is off by {gap:.2e}"
    return [have.detach() for have, _ in results]


def test_the_oracle_is_the_loops() -> None:
    for T, S, window in ((5, 8, None), (5, 8, 3), (8, 5, 2), (6, 6, None)):
        x = inputs(T, 2, 6, 2, T, S, 3, 4)
        mask = torch.rand(2, T, S, generator=seeded(T)) < 0.5
        for causal in (True, False):
            seen = {"causal": causal, "window": window if causal else None}
            seen["mask"] = mask if S == 8 else None
            for got, want in zip(attention64(*x, **seen), attention_by_loops(*x, **seen),
                                 strict=True):  # fmt: skip
                torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


# --- forward and backward -----------------------------------------------------------------------

EDGES = [1, 2, 13, 15, 16, 17, 31, 32, 33, 37]


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another layout of memory, surrounded by NaN where there is room."""
    if layout == "heads last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "transposed":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "sliced":
        B, H, T, D = x.shape
        buffer = torch.full((B + 1, H + 1, 2 * T + 3, D + 5), math.nan, dtype=x.dtype)
        view = buffer[1:, 1:, 3::2, 2 : 2 + D]
        return view.copy_(x)
    return x.contiguous()


@given(
    size=st.fixed_dictionaries(
        {
            "B": st.integers(1, 2),
            "G": st.integers(1, 2),
            "group": st.integers(1, 3),
            "T": st.sampled_from(EDGES),
            "S": st.sampled_from(EDGES),
            "D": st.sampled_from([1, 8, 16, 24, 33]),
            "E": st.sampled_from([3, 16, 20, 40]),
        }
    ),
    dtype=st.sampled_from(list(TOLERANCE)),
    layouts=st.tuples(*[st.sampled_from(["contiguous", "heads last", "transposed", "sliced"])] * 3),
    causal=st.booleans(),
    window=st.none() | st.sampled_from([1, 2, 7, 16, 17, 40]),
    lead=st.none() | st.sampled_from(["", "1", "B"]),
    tiles=st.sampled_from([SMALL, Tiles(32, 16), Tiles(16, 32)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_any_shape_layout_and_mask_equals_float64(
    size: dict[str, int],
    dtype: torch.dtype,
    layouts: tuple[str, ...],
    causal: bool,
    window: int | None,
    lead: str | None,
    tiles: Tiles,
    seed: int,
) -> None:
    mask = None
    if lead is not None:
        batch = {"": (), "1": (1,), "B": (size["B"],)}[lead]
        mask = torch.rand(*batch, size["T"], size["S"], generator=seeded(seed)) < 0.5
    size["H"] = size["G"] * size.pop("group")
    x = [y.to(dtype) for y in inputs(seed, **size)]
    x = [laid_out(y, layout) for y, layout in zip(x, layouts, strict=True)]
    seen = {"causal": causal, "window": window if causal else None, "mask_BTS": mask}
    check_all(x, TOLERANCE[dtype], tiles, **seen)


@pytest.mark.case("FLA-02")
@pytest.mark.parametrize(("T", "S"), CASES["FLA-02"]["inputs"]["T_S"])
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_that_differ_or_end_inside_a_tile(T: int, S: int, causal: bool) -> None:
    block = CASES["FLA-02"]["inputs"]["block"]
    x = [y.float() for y in inputs(T + 50 * S, 1, 2, 1, T, S, 12, 20)]
    want, want_lse = attention_by_loops(*x, causal=causal)
    tiles = Tiles(block, block)
    for run in (attend, attend_v1):
        out, lse = run(*x, causal=causal, tiles=tiles, return_lse=True)
        assert error(out, want) < CASES["FLA-02"]["tolerance"]
        assert error(lse, want_lse) < CASES["FLA-02"]["tolerance"]
    assert error(naive.attend_naive(*x, causal=causal, tiles=tiles), want) < 1e-5


@pytest.mark.case("FLA-01")
@pytest.mark.parametrize("D", [*CASES["FLA-01"]["inputs"]["head_dims"], 256])
def test_every_column_of_a_head_counts(D: int) -> None:
    row = CASES["FLA-01"]["inputs"]
    n, large = row["length"], row["large_from"]
    x = [y.float() for y in inputs(D, 1, 2, 1, n, n, D, D)]
    plain = attend(*x, tiles=SMALL)
    if large < D:
        cut, _ = attention_by_loops(*(y[..., :large] for y in x))
        assert (plain[..., :large].double() - cut).abs().max() > 1e-2
    for y in x:
        y[..., large:] *= row["factor"]
    want, want_lse = attention_by_loops(*x)
    out, lse = attend(*x, tiles=SMALL, return_lse=True)
    assert error(out, want) < CASES["FLA-01"]["tolerance"]
    assert error(lse, want_lse) < CASES["FLA-01"]["tolerance"]


@pytest.mark.case("FLA-13")
@pytest.mark.parametrize("D", CASES["FLA-13"]["inputs"]["head_dims"])
def test_sizes_that_are_no_powers_of_two(D: int) -> None:
    row = CASES["FLA-13"]["inputs"]
    for S in range(row["first"], row["last"] + 1, row["step"]):
        x = [y.float() for y in inputs(S, 1, 1, 1, 3, S, D, D)]
        want, _ = attention_by_loops(*x)
        assert error(attend(*x, tiles=SMALL), want) < CASES["FLA-13"]["tolerance"], S


@pytest.mark.case("FLA-13")
@given(data=st.data())
@settings(max_examples=CASES["FLA-13"]["inputs"]["random_shapes"])
def test_fifty_random_shapes(data: st.DataObject) -> None:
    T, S, D, E = (data.draw(st.integers(1, 45)) for _ in range(4))
    x = [y.float() for y in inputs(T + S, 1, 2, 2, T, S, D, E)]
    want, want_lse = attention64(*(y.double() for y in x), causal=True, window=None)
    out, lse = attend(*x, tiles=Tiles(32, 32), return_lse=True)
    assert error(out, want) < CASES["FLA-13"]["tolerance"]
    assert error(lse, want_lse) < CASES["FLA-13"]["tolerance"]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_dtypes_at_the_tiles_a_gpu_uses(dtype: torch.dtype) -> None:
    x = [y.to(dtype) for y in inputs(7, 1, 2, 1, 67, 130, 64, 64)]
    check_all(x, TOLERANCE[dtype], Tiles(128, 64))


@pytest.mark.parametrize(("T", "S"), [(5, 5), (21, 18), (18, 40)])
@pytest.mark.parametrize("window", [40, 2**31 - 11, 2**31 - 1, 2**31, 2**40])
def test_a_window_of_all_keys_and_more_hides_none(T: int, S: int, window: int) -> None:
    x = [y.float() for y in inputs(3, 1, 2, 1, T, S, 16, 8)]
    check_all(x, 5e-6, window=window)
    want = attend(*x, tiles=SMALL)
    assert torch.equal(attend(*x, window=window, tiles=SMALL), want)
    assert error(attend_v1(*x, window=window, tiles=SMALL), want) < 5e-6
    assert error(naive.attend_naive(*x, window=window, tiles=SMALL), want) < 5e-6


def test_a_view_of_the_other_sign_is_read_as_it_is() -> None:
    complex_ = [torch.complex(y.float(), y.float()).conj() for y in inputs(4, 1, 2, 1, 9, 9, 16, 8)]
    x = [y.imag for y in complex_]
    assert all(y.is_neg() for y in x)
    want, _ = attention64(*(y.double() for y in x), causal=True, window=None)
    for form in (attend, attend_v1, naive.attend_naive):
        assert error(form(*x, tiles=SMALL), want) < 5e-6
    leaves = [y.resolve_neg().clone().requires_grad_() for y in x]
    d_out = torch.complex(want.float(), want.float()).conj().imag
    assert d_out.is_neg()
    mine = torch.autograd.grad(attend(*leaves, tiles=SMALL), leaves, d_out)
    theirs = torch.autograd.grad(plain_attend(*leaves), leaves, d_out.resolve_neg())
    assert all(error(a, b) < 5e-6 for a, b in zip(mine, theirs, strict=True))


def test_no_heads_have_no_gradient() -> None:
    q, k, v = (torch.zeros(1, h, 5, 16, requires_grad=True) for h in (0, 1, 1))
    grads = torch.autograd.grad(attend(q, k, v, tiles=SMALL).sum(), (q, k, v))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize("window", [1, 5, 16, 100])
def test_windows_and_groups(window: int) -> None:
    x = [y.float() for y in inputs(window, 1, 3, 1, 35, 41, 16, 24)]
    check_all(x, 5e-6, window=window)
    want, want_lse = attention64(*(y.double() for y in x), causal=True, window=window)
    out, lse = attend_v1(*x, window=window, tiles=SMALL, return_lse=True)
    assert error(out, want) < 5e-6 and error(lse, want_lse) < 5e-6
    assert error(naive.attend_naive(*x, window=window, tiles=SMALL), want) < 5e-6


def test_a_row_without_keys_gives_zero_and_minus_infinity_and_no_gradient() -> None:
    x = [y.float() for y in inputs(3, 1, 2, 1, 21, 4, 16, 8)]
    out, lse, d_q, _, _ = check_all(x, 5e-6)
    assert (out[:, :, :17] == 0).all() and lse[:, :, :17].isneginf().all()
    assert (d_q[:, :, :17] == 0).all() and (d_q[:, :, 17:] != 0).any()
    out, lse = attend_v1(*x, tiles=SMALL, return_lse=True)
    assert (out[:, :, :17] == 0).all() and lse[:, :, :17].isneginf().all()


@pytest.mark.parametrize(("T", "S"), [(0, 3), (3, 0), (0, 0)])
def test_no_queries_or_no_keys(T: int, S: int) -> None:
    x = [y.float().requires_grad_() for y in inputs(1, 2, 2, 1, T, S, 16, 24)]
    for run in (attend, attend_v1):
        out, lse = run(*x, causal=False, tiles=SMALL, return_lse=True)
        assert out.shape == (2, 2, T, 24) and (out == 0).all() and lse.isneginf().all()
    assert (naive.attend_naive(*x, causal=False) == 0).all()
    attend(*x, causal=False, tiles=SMALL).sum().backward()
    assert all((y.grad == 0).all() for y in x)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("factor", [30.0, 1000.0])
def test_large_logits_err_no_more_than_twice_what_torch_errs(
    dtype: torch.dtype, factor: float
) -> None:
    q, k, v = inputs(5, 1, 2, 2, 24, 40, 32, 32)
    x = [(q * factor).to(dtype), k.to(dtype), v.to(dtype)]
    want, _ = attention64(*(y.double() for y in x), causal=False, window=None)
    peer = error(F.scaled_dot_product_attention(*x), want)
    out, lse = attend(*x, causal=False, tiles=SMALL, return_lse=True)
    assert lse.isfinite().all() and lse.max() > 88.8  # exp of it would not fit into float32
    assert error(out, want) <= 2 * max(peer, 5e-7)


def test_the_log_sum_exp_is_a_natural_logarithm() -> None:
    q = torch.zeros(1, 1, 1, 16)
    for keys in (2, 3):
        k, v = torch.ones(1, 1, keys, 16), torch.full((1, 1, keys, 16), float(keys))
        for run in (attend, attend_v1):
            out, lse = run(q, k, v, return_lse=True, tiles=SMALL)
            assert lse.item() == pytest.approx(math.log(keys), abs=1e-6)
            assert (out == keys).all()


def test_exact_is_not_bit_identical() -> None:
    x = [y.float() for y in inputs(2, 1, 1, 1, 33, 65, 32, 32)]
    want, _ = attention64(*(y.double() for y in x), causal=True, window=None)
    results = [attend(*x, tiles=Tiles(16, block)) for block in (16, 32, 64)]
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])
    assert all(error(out, want) < 5e-6 for out in results)


def test_the_scale_is_an_argument() -> None:
    x = [y.float() for y in inputs(4, 1, 2, 2, 9, 12, 16, 16)]
    want, want_lse = attention_by_loops(*x, scale=0.4)
    for run in (attend, attend_v1):
        out, lse = run(*x, scale=0.4, tiles=SMALL, return_lse=True)
        assert error(out, want) < 5e-6 and error(lse, want_lse) < 5e-6
    assert error(naive.attend_naive(*x, scale=0.4, tiles=SMALL), want) < 5e-6


def test_it_is_differentiated_once() -> None:
    x = [y.float().requires_grad_() for y in inputs(4, 1, 1, 1, 3, 4, 16, 16)]
    (d_q,) = torch.autograd.grad(attend(*x, tiles=SMALL).square().sum(), x[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_q.sum().backward()
    assert not attend_v1(*x, tiles=SMALL).requires_grad


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.case("FLA-07")
def test_views_give_the_bits_that_copies_give() -> None:
    row = CASES["FLA-07"]["inputs"]
    T, S, D = row["T"], row["S"], row["D"]
    k = normal(1, 2, 2, row["row_step"] * S, D).float()[:, :, :: row["row_step"]]
    v = normal(2, 2, 2, D, S).float().transpose(2, 3)
    q = normal(3, 2, 1, T, D).float().expand(2, 4, T, D)
    assert k.stride(2) == 2 * D and v.stride(3) == S and q.stride(1) == 0
    d_out = normal(4, 1, 1, T, 1).float().expand(2, 4, T, D)
    runs = []
    for given_ in ((q, k, v, d_out), tuple(x.contiguous() for x in (q, k, v, d_out))):
        leaves = [x.detach().requires_grad_() for x in given_[:3]]
        out, lse = attend(*leaves, tiles=SMALL, return_lse=True)
        grads = torch.autograd.grad(out, leaves, given_[3])
        runs.append([out, lse, *grads, attend_v1(*leaves, tiles=SMALL)])
    for view, copy in zip(*runs, strict=True):
        assert torch.equal(view, copy)
    want, _ = attention_by_loops(q, k, v)
    assert error(runs[0][0].detach(), want) < 5e-6


@pytest.mark.case("FLA-03")
def test_margins_are_neither_read_nor_written() -> None:
    row = CASES["FLA-03"]["inputs"]
    T, S, D, block, margin = (row[name] for name in ("T", "S", "D", "block", "margin"))
    tiles = Tiles(block, block)

    def within_nan(x: Tensor) -> Tensor:
        buffer = torch.full([n + 2 * margin for n in x.shape], math.nan)
        inner = buffer[tuple(slice(margin, margin + n) for n in x.shape)]
        return inner.copy_(x)

    x = [within_nan(y.float()) for y in inputs(8, 1, 2, 1, T, S, D, D)]
    check_all(x, CASES["FLA-03"]["tolerance"], tiles)
    out = within_nan(torch.full((1, 2, T, D), 7.0))
    lse = torch.full((1, 2, T), 7.0)
    options = {"causal": True, "window": 0, "scale": D**-0.5, "tiles": tiles}
    flash.forward(*x, None, out, lse, **options)
    want, _ = attention_by_loops(*x)
    assert error(out, want) < CASES["FLA-03"]["tolerance"]
    whole = out.as_strided([n + 2 * margin for n in out.shape], out.stride(), 0)
    assert whole.isnan().sum() == whole.numel() - out.numel()


def test_a_key_that_no_query_may_read_is_not_read() -> None:
    x = [y.float() for y in inputs(9, 1, 2, 1, 5, 40, 16, 16)]
    window = 8  # the queries stand at 35 to 39: keys 0 to 27 are nobody's
    clean = check_all(x, 5e-6, window=window)
    x[1][:, :, :28] = x[2][:, :, :28] = math.nan
    leaves = [y.requires_grad_() for y in x]
    out, lse = attend(*leaves, window=window, tiles=SMALL, return_lse=True)
    assert torch.equal(out, clean[0]) and torch.equal(lse, clean[1])
    d_q, d_k, d_v = torch.autograd.grad(out.sum(), leaves)
    assert d_q.isfinite().all()
    assert (d_k[:, :, :28] == 0).all() and (d_v[:, :, :28] == 0).all()
    assert torch.equal(attend_v1(*x, window=window, tiles=SMALL).isnan(), out.isnan())
    assert naive.attend_naive(*x, window=window, tiles=SMALL).isfinite().all()


def test_a_key_that_a_mask_hides_from_all_is_not_read() -> None:
    x = [y.float() for y in inputs(9, 2, 2, 1, 20, 40, 16, 16)]
    hidden = [0, 7, 19, 33]
    mask = torch.rand(20, 40, generator=seeded(1)) < 0.7
    mask[:, hidden] = False
    clean = check_all(x, 5e-6, mask_BTS=mask)
    x[1][:, :, hidden] = x[2][:, :, hidden] = math.nan
    leaves = [y.requires_grad_() for y in x]
    out, lse = attend(*leaves, mask_BTS=mask, tiles=SMALL, return_lse=True)
    assert torch.equal(out, clean[0]) and torch.equal(lse, clean[1])
    d_q, d_k, d_v = torch.autograd.grad(out.sum(), leaves)
    assert all(y.isfinite().all() for y in (d_q, d_k, d_v))
    assert (d_k[:, :, hidden] == 0).all() and (d_v[:, :, hidden] == 0).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_offsets_that_do_not_fit_into_31_bits(axis: int) -> None:
    # 2^31 elements of 16 bits are reserved, of which a few pages are ever touched.
    far = 2**30
    shape = [1, 1, 3, 16]
    shape[axis] = 3
    strides = [0, 0, 16, 1]
    strides[axis] = far
    storage = torch.empty(2 * far + 64, dtype=torch.float16)
    k = storage.as_strided(shape, strides)
    k.copy_(normal(1, *shape))
    q, v = normal(2, *shape[:2], 4, 16).half(), normal(3, *shape).half()
    check_all([q, k, v], 5e-3)
    check_all([normal(4, *shape).half(), normal(5, *shape).half(), k], 5e-3)
    check_all([k, normal(6, *shape).half(), v], 5e-3)
    want, _ = attention_by_loops(q, k, v)
    assert error(attend_v1(q, k, v, tiles=SMALL), want) < 5e-3
    assert error(naive.attend_naive(q, k, v, tiles=SMALL), want) < 5e-3


# --- what does not fit --------------------------------------------------------------------------


@pytest.mark.case("FLA-12")
def test_a_mask_of_another_length_is_refused_and_a_tail_is_not_read() -> None:
    row = CASES["FLA-12"]["inputs"]
    T, S = row["tensors"]
    q, k, v = (y.float() for y in inputs(1, 2, 1, 1, T, S, 16, 16))
    for run in (attend, plain_attend):
        with pytest.raises(ValueError, match="mask_BTS must be"):
            run(q, k, v, mask_BTS=torch.ones(*row["mask"], dtype=torch.bool))
        with pytest.raises(ValueError, match="mask_BTS must be"):
            run(q, k, v, mask_BTS=torch.ones(T, S))
    x = [y.float() for y in inputs(2, 2, 1, 1, row["T"], row["S"], 16, 16)]
    want, _ = attention_by_loops(*x)
    tiles = Tiles(16, row["block"])
    assert error(attend(*x, tiles=tiles), want) < CASES["FLA-12"]["tolerance"]
    # A mask for one sequence serves all of them; the second is not left at zero.
    mask = torch.rand(row["T"], row["S"], generator=seeded(3)) < 0.5
    want, _ = attention_by_loops(*x, mask=mask[None])
    out = attend(*x, mask_BTS=mask, tiles=tiles)
    assert error(out, want) < CASES["FLA-12"]["tolerance"] and (out[1] != 0).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": normal(0, 2, 4, 3)}, "q_BHTD must have 4 axes"),
        ({"q": normal(0, 2, 4, 3, 16)}, "q_BHTD is torch.float64"),
        ({"k": normal(0, 2, 2, 6, 16).half()}, "k_BGSD is torch.float16"),
        ({"k": normal(0, 2, 2, 5, 16).float()}, "shapes do not fit"),
        ({"k": normal(0, 2, 2, 6, 15).float()}, "shapes do not fit"),
        ({"q": normal(0, 3, 4, 3, 16).float()}, "shapes do not fit"),
        ({"q": normal(0, 2, 3, 3, 16).float()}, "multiple of key-value heads, got 3 and 2"),
        ({"v": normal(0, 2, 2, 6, 257).float()}, "v_BGSE has width 257"),
        ({"q": normal(0, 2, 4, 3, 0).float()}, "width 0"),
        ({"window": 0}, "got 0"),
        ({"window": True}, "got True"),
        ({"window": 2.0}, "got 2.0"),
        ({"window": 2, "causal": False}, "got 2 with causal=False"),
        ({"tiles": (64, 64)}, r"tiles must be Tiles or None, got \(64, 64\)"),
        ({"scale": math.nan}, "scale must be a finite number"),
        ({"scale": True}, "scale must be a finite number"),
    ],
)
@pytest.mark.parametrize("run", [attend, attend_v1, naive.attend_naive])
def test_inputs_that_do_not_fit_are_refused(run: Any, change: dict, message: str) -> None:
    x = dict(zip("qkv", (y.float() for y in inputs(0, 2, 4, 2, 3, 6, 16, 7)), strict=True))
    x |= change
    tensors = [x.pop(name) for name in "qkv"]
    with pytest.raises(ValueError, match=message):
        run(*tensors, **x)


@pytest.mark.parametrize(
    "value",
    [{"block_t": 24}, {"block_s": 8}, {"block_s": 512}, {"num_warps": 3}, {"num_stages": 0},
     {"block_t": True}, {"block_t": 16.0}],
)  # fmt: skip
def test_tiles_that_no_kernel_takes_are_refused(value: dict[str, Any]) -> None:
    (name,) = value
    with pytest.raises(ValueError, match=f"{name} must be"):
        Tiles(**value)


# --- bfloat16 under the interpreter -------------------------------------------------------------


def test_bfloat16_bits_are_those_of_torch() -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    floats = bits.view(torch.bfloat16)
    wide = interpreter.widen(bits.numpy().view("uint16"))
    assert torch.equal(torch.from_numpy(wide).nan_to_num(7.5), floats.float().nan_to_num(7.5))
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=seeded(1)).to(torch.int32)
    halfway = (bits.to(torch.int32) << 16) + 2**15  # ties between two neighbours
    for x in (patterns, halfway, halfway - 1, halfway + 1):
        values = x.view(torch.float32)
        got = torch.from_numpy(interpreter.narrow(values.numpy()).view("int16"))
        assert torch.equal(
            got.view(torch.bfloat16).nan_to_num(7.5), values.bfloat16().nan_to_num(7.5)
        )
        assert torch.equal(got.view(torch.bfloat16).isnan(), values.isnan())


@triton.jit
def product_kernel(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def arithmetic_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, x + y)
    tl.store(out + N + i, x * y)
    tl.store(out + 2 * N + i, x / y)
    tl.store(out + 3 * N + i, tl.where(x < y, x, tl.full([N], 3.5, tl.bfloat16)))
    tl.store(out + 4 * N + i, (x.to(tl.float32) * 1.001).to(tl.bfloat16))
    tl.store(out + 5 * N + i, x.to(tl.float16).to(tl.bfloat16))
    tl.store(out + 6 * N + i, -x)
    tl.store(out + 7 * N + i, tl.maximum(x, y))
    tl.store(out + 8 * N + i, tl.zeros([N], tl.bfloat16) + tl.max(x, 0).to(tl.bfloat16))


@pytest.mark.case("FLA-05")
def test_bfloat16_products_are_those_of_the_integers() -> None:
    row = CASES["FLA-05"]["inputs"]
    N = row["size"]
    a, b = (
        torch.randint(row["low"], row["high"] + 1, (N, N), generator=seeded(seed))
        for seed in (1, 2)
    )
    for dtype in (torch.bfloat16, torch.float16):
        out = torch.empty(N, N)
        product_kernel[(1,)](a.to(dtype), b.to(dtype), out, N)
        assert torch.equal(out.long(), a @ b)
    # One key: whatever the score, attention returns its value.
    v = a.bfloat16()[None, None, :1]
    q, k = b.bfloat16()[None, None], b.bfloat16()[None, None, :1]
    assert torch.equal(attend(q, k, v, causal=False, tiles=SMALL), v.expand(1, 1, N, N))


def test_bfloat16_arithmetic_is_that_of_torch() -> None:
    N = 64
    a, b = (normal(seed, N).bfloat16() for seed in (3, 4))
    out = torch.empty(9 * N, dtype=torch.bfloat16)
    arithmetic_kernel[(1,)](a, b, out, N)
    want = [
        a + b,
        a * b,
        a / b,
        torch.where(a < b, a, 3.5),
        (a.float() * 1.001).bfloat16(),
        a.half().bfloat16(),
        -a,
        torch.maximum(a, b),
        a.max().expand(N),
    ]
    for i, expected in enumerate(want):
        assert torch.equal(out[i * N : (i + 1) * N], expected), i


@triton.jit
def reducing_kernel(x, out, N: tl.constexpr):
    rows, columns = tl.arange(0, 4), tl.arange(0, N)
    x_rn = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(out + rows, tl.sum(x_rn, 1))
    tl.store(out + 4 + rows, tl.max(x_rn, 1))
    tl.store(out + 8 + rows, tl.min(x_rn, 1))
    tl.store(out + 12 + rows, tl.argmax(x_rn, 1).to(tl.float32))
    tl.store(out + 16, tl.sum(x_rn))
    tl.store(out + 17 + rows[:, None] * N + columns[None, :], tl.cumsum(x_rn, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reductions_and_scans_in_every_dtype(dtype: torch.dtype) -> None:
    N = 8
    x = torch.tensor([1.0, -3, 2, -0.5, 4, 0.25, -8, 6]).repeat(4, 1)
    x = (x * torch.tensor([1.0, -2, 0.5, -1])[:, None]).to(dtype)  # every sum is exact in 16 bits
    out = torch.full((17 + 4 * N,), torch.nan)
    reducing_kernel[(1,)](x, out, N)
    x = x.float()
    want = [x.sum(1), x.amax(1), x.amin(1), x.argmax(1).float(), x.sum()[None], x.cumsum(1)]
    assert torch.equal(out, torch.cat([y.flatten() for y in want]))


@triton.jit
def eight_bits_kernel(x, out, N: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, N)
    eight = tl.load(x + i).to(KIND)
    tl.store(out + i, eight.to(tl.float32))
    tl.store(out + N + i, eight.to(tl.bfloat16).to(tl.float32))


@pytest.mark.parametrize("kind", [tl.float8e5, tl.float8e4nv])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eight_bits_and_back(dtype: torch.dtype, kind: Any) -> None:
    x = torch.tensor([1.0, 2, 3, -0.5], dtype=dtype)  # exact in all of them
    out = torch.full((8,), torch.nan)
    eight_bits_kernel[(1,)](x, out, 4, kind)
    assert torch.equal(out, torch.cat((x, x)).float())


def test_an_interpreter_that_stays_wrong_is_refused_again() -> None:
    done = in_a_process(
        "import triton.runtime.interpreter as I\n"
        "right = I.InterpreterBuilder.create_dot\n"
        "def wrong(self, *x):\n"
        "    one = right(self, *x)\n"
        "    return I.TensorHandle(one.data * 1.5, one.dtype)\n"
        "I.InterpreterBuilder.create_dot = wrong\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        import refimpl.kernels\n"
        "        print('accepted')\n"
        "    except RuntimeError as error:\n"
        "        print('refused')\n",
        TRITON_INTERPRET="1",
    )
    assert done.stdout.split() == ["refused", "refused"], done.stderr


def test_an_interpreter_with_other_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter as machine

    interpreter.verify(machine.interpreter_builder)
    for name in ("create_dot", "create_fadd", "cast_impl"):
        with monkeypatch.context() as patch:
            wrong = machine.TensorHandle(torch.zeros(2, 2).numpy(), tl.float32)
            patch.setattr(machine.InterpreterBuilder, name, lambda *arguments, x=wrong: x)
            with pytest.raises(RuntimeError, match="does not interpret bfloat16"):
                interpreter.verify(machine.interpreter_builder)
    with monkeypatch.context() as patch:
        nothing = tl.core.tensor(
            machine.TensorHandle(np.zeros(2, np.uint16), tl.bfloat16),
            tl.block_type(tl.bfloat16, [2]),
        )
        patch.setattr(machine.ReduceOps, "apply_impl", lambda *arguments: nothing)
        with pytest.raises(RuntimeError, match="does not interpret bfloat16"):
            interpreter.verify(machine.interpreter_builder)


# --- modes --------------------------------------------------------------------------------------


def test_these_tests_are_interpreted() -> None:
    assert MODE == "interpreter"


@pytest.mark.parametrize(
    ("code", "environment", "said"),
    [
        ("import triton, refimpl.kernels", {}, "imported in compiler mode before refimpl.kernels"),
        (
            "import os, triton; os.environ['TRITON_INTERPRET'] = '0'; import refimpl.kernels",
            {"TRITON_INTERPRET": "1"},
            "imported in interpreter mode before refimpl.kernels",
        ),
        ("import refimpl.kernels", {"TRITON_INTERPRET": "yes"}, "must be 0, 1 or not set"),
        (
            "import torch; from refimpl.kernels.flash import attend\n"
            "x = torch.zeros(1, 1, 1, 16); attend(x, x, x)",
            {"TRITON_INTERPRET": "0"},
            "the tensors are on cpu: move them, or start Python with TRITON_INTERPRET=1",
        ),
    ],
    ids=["compiled first", "interpreted first", "no such mode", "no GPU"],
)
def test_the_wrong_mode_is_a_clear_error(code: str, environment: dict[str, str], said: str) -> None:
    done = in_a_process(code, **environment)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


def test_without_a_gpu_the_mode_is_set_before_triton_is_imported() -> None:
    code = (
        "import os, refimpl.kernels as kernels, triton.language as tl; "
        "print(kernels.MODE, os.environ['TRITON_INTERPRET'], type(tl.max).__name__)"
    )
    assert in_a_process(code).stdout == "interpreter 1 InterpretedFunction\n"
    code = (
        "import sys, refimpl.kernels as kernels, refimpl.kernels.forward; "
        "print(kernels.MODE, 'torch' in sys.modules)"
    )
    assert in_a_process(code, TRITON_INTERPRET="0").stdout == "compiler False\n"
