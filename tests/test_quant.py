"""Weights in 8 and 4 bits: the nearest codes by brute force, products by the matrix written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import GQA, normal, tiny, token_ids

from refimpl.model import PackedLinear, QuantisedLinear, fuse, quantise
from refimpl.model.packed import _packed
from refimpl.quant import (
    Int4Weights,
    Int8Weights,
    QuantisedMatrix,
    can_multiply,
    products,
    quantise_int4,
    quantise_int8,
)

F64 = torch.float64
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# How far a product may be from the one with the matrix written out, relative to the largest: both
# round every sum once, to 8 bits in bfloat16.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def by_hand_int8(weight: torch.Tensor) -> list[list[float]]:
    """Row by row and entry by entry, in Python."""
    out = []
    for row in weight.tolist():
        scale = max(map(abs, row)) / 127
        out.append([scale * min(range(-127, 128), key=lambda c: abs(x - c * scale)) for x in row])
    return out


def by_hand_int4(weight: torch.Tensor, group: int) -> list[list[float]]:
    """Group by group, the nearest of 16 even steps from the least to the largest."""
    out = []
    for row in weight.tolist():
        values: list[float] = []
        for start in range(0, len(row), group):
            part = row[start : start + group]
            low, high = min(part), max(part)
            steps = [low + (high - low) * code / 15 for code in range(16)]
            values += [min(steps, key=lambda step: abs(x - step)) for x in part]
        out.append(values)
    return out


def test_codes_are_the_nearest_by_trying_all() -> None:
    weight = normal(1, 5, 12) * torch.tensor([1.0, 30.0, 1e-4, 1e6, 3.0], dtype=F64)[:, None]
    for kept, want in (
        (quantise_int8(weight), by_hand_int8(weight)),
        (quantise_int4(weight, 4), by_hand_int4(weight, 4)),
        (quantise_int4(weight, 12), by_hand_int4(weight, 12)),
    ):
        want = torch.tensor(want, dtype=F64)
        scale = weight.abs().amax(1, keepdim=True)
        assert ((kept.dequantise() - want).abs() <= 1e-12 * scale).all()
        assert kept.shape == (5, 12)


@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([1, 2, 3, 6]))
def test_errors_are_at_most_half_a_step(seed: int, rows: int, group: int) -> None:
    weight = normal(seed, rows, 6) * 10 ** (seed % 9 - 4)
    eight, four = quantise_int8(weight), quantise_int4(weight, group)
    slack = 1 + 1e-9
    off = (eight.dequantise() - weight).abs()
    assert (off <= slack * eight.scales[:, None] / 2).all()
    off = (four.dequantise() - weight).abs().unflatten(1, (-1, group))
    tiny_ = weight.abs().max() * 1e-12
    assert (off <= slack * four.scales[..., None] / 2 + tiny_).all()
    assert four.codes.dtype == torch.uint8 and int(four.codes.max()) <= 15
    assert four.group == group and four.scales.shape == (rows, 6 // group)
    assert eight.codes.dtype == torch.int8 and int(eight.codes.min()) >= -127


def test_ends_and_even_groups() -> None:
    weight = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 3.0, -2.0, -2.0], [-1.0, 0.0, 0.5, 1.0]])
    for kept in (quantise_int4(weight, 2), quantise_int4(weight, 4), quantise_int8(weight)):
        assert torch.equal(kept.dequantise()[0], weight[0])
        assert (kept.dequantise()[2, [0, 3]] - weight[2, [0, 3]]).abs().max() < 1e-6
    assert torch.equal(quantise_int4(weight, 2).dequantise()[1], weight[1])
    # -128 has no opposite; 127 steps on each side treat both signs alike.
    assert torch.equal(quantise_int8(-weight).codes, -quantise_int8(weight).codes)


def test_in_bfloat16_codes_fit_the_scale_as_stored() -> None:
    weight = normal(3, 4, 64, dtype=torch.bfloat16)
    for kept in (quantise_int8(weight), quantise_int4(weight)):
        assert kept.scales.dtype == torch.bfloat16
        scale = kept.scales.float()[:, None] if isinstance(kept, Int8Weights) else None
        if scale is None:
            scale = kept.scales.float().repeat_interleave(kept.group, dim=1)
        # Half a step, the ends cut off by a scale rounded down, and the entry rounded to 8 bits.
        off = (kept.dequantise().float() - weight.float()).abs()
        assert (off <= scale * (0.5 + 127 * 2**-8) + weight.float().abs() * 2**-8).all()
        assert off.mean() < scale.mean() / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "group"),
    [(16, 32, 32), (48, 64, 32), (80, 192, 64), (5, 12, 4), (24, 32, 32), (16, 48, 16)],
)
def test_a_product_is_that_of_the_matrix_written_out(
    rows: int, columns: int, group: int, dtype: torch.dtype
) -> None:
    weight = normal(rows, rows, columns).to(dtype)
    for kept in (quantise_int8(weight), quantise_int4(weight, group)):
        exact = kept.dequantise().double()
        fast, plain = QuantisedMatrix(kept), QuantisedMatrix(kept, plain=True)
        assert not plain.is_fast
        for shape in ((1,), (5,), (2, 3)):
            x = normal(columns, *shape, columns).to(dtype)
            want = x.double() @ exact.T
            for matrix in (fast, plain):
                got = matrix(x)
                assert (got.shape, got.dtype) == (want.shape, dtype)
                assert (got.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


@pytest.mark.skipif(
    not can_multiply(4, torch.bfloat16) or not can_multiply(8, torch.bfloat16),
    reason="this torch has no kernel for codes here",
)
def test_the_kernels_are_used_where_they_fit_and_hold_half_or_a_quarter_of_the_bytes() -> None:
    weight = normal(1, 48, 96, dtype=torch.bfloat16)
    eight, four = QuantisedMatrix(quantise_int8(weight)), QuantisedMatrix(quantise_int4(weight))
    assert eight.is_fast and four.is_fast
    assert eight.num_bytes == 48 * 96 + 48 * 2
    # Two codes a byte, and two numbers of two bytes for every 32 of them.
    assert four.num_bytes == 48 * 96 // 2 + 48 * 3 * 2 * 2
    assert weight.nbytes == 48 * 96 * 2
    assert not QuantisedMatrix(quantise_int4(normal(1, 24, 96, dtype=torch.bfloat16))).is_fast
    assert not QuantisedMatrix(quantise_int4(weight, 16)).is_fast
    assert not QuantisedMatrix(quantise_int8(weight.double())).is_fast
    # In bfloat16 torch's kernel for int8 reads beyond the end of rows of this length.
    assert not QuantisedMatrix(quantise_int8(normal(1, 16, 24, dtype=torch.bfloat16))).is_fast


def test_without_the_kernels_everything_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise NotImplementedError("not on this machine")

    monkeypatch.setattr(products, "_multiply", missing)
    weight, x = normal(1, 16, 32, dtype=torch.float32), normal(2, 3, 32, dtype=torch.float32)
    for bits, kept in ((8, quantise_int8(weight)), (4, quantise_int4(weight))):
        assert not can_multiply(bits, torch.float32)
        matrix = QuantisedMatrix(kept)
        assert not matrix.is_fast
        torch.testing.assert_close(matrix(x), x @ kept.dequantise().T)
        parts = [kept.codes, kept.scales] + ([kept.middles] if bits == 4 else [])
        assert matrix.num_bytes == sum(part.nbytes for part in parts)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: quantise_int8(torch.ones(3)), "floating-point matrix"),
        (lambda: quantise_int8(torch.ones(3, 4, dtype=torch.int8)), "got torch.int8"),
        (lambda: quantise_int4(torch.ones(0, 4), 2), "floating-point matrix"),
        (lambda: quantise_int8(torch.full((2, 2), math.nan)), "NaN or infinity"),
        (lambda: quantise_int4(torch.full((2, 2), math.inf), 2), "NaN or infinity"),
        (lambda: quantise_int4(torch.ones(3, 4), 3), "divides the 4 columns: 3"),
        (lambda: quantise_int4(torch.ones(3, 4), 0), "0"),
        (lambda: quantise_int4(torch.ones(3, 4), True), "True"),
        (lambda: quantise_int4(torch.ones(3, 4), 2.0), "2.0"),
        (lambda: can_multiply(3, torch.float32), "8 or 4 bits, got 3"),
        (lambda: quantise(tiny(GQA), 16), "8 or 4 bits, got 16"),
        (lambda: quantise(tiny(GQA), 4), "divides the 24 columns: 32"),
        (lambda: quantise(quantise(tiny(GQA), 8), 4, group=4), "before it is packed: Quantised"),
    ],
)
def test_what_cannot_be_quantised_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_packed_model_is_not_quantised_by_half() -> None:
    packed = _packed(tiny(GQA, 1, torch.float32))
    assert isinstance(packed.head, PackedLinear)
    with pytest.raises(ValueError, match="before it is packed: PackedLinear"):
        quantise(packed, 8)


def test_x_must_have_the_dtype_and_the_columns() -> None:
    matrix = QuantisedMatrix(quantise_int8(normal(1, 3, 6)))
    with pytest.raises(ValueError, match=r"x must be torch\.float64 with 6 columns, got"):
        matrix(torch.ones(2, 6))
    with pytest.raises(ValueError, match=r"of shape \(2, 5\)"):
        matrix(torch.ones(2, 5, dtype=F64))


@pytest.mark.parametrize(("bits", "group"), [(8, 32), (4, 4), (4, 2)])
def test_a_quantised_model_is_the_model_with_those_matrices(bits: int, group: int) -> None:
    model = tiny(GQA, 5)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    tokens = token_ids(1, GQA.vocab_size, 2, 7)
    written = tiny(GQA, 5)
    written.head.weight = torch.nn.Parameter(model.head.weight.clone(), requires_grad=False)
    for name, module in written.named_modules():
        if isinstance(module, torch.nn.Linear):
            eight = bits == 8 or name == "head"
            kept = quantise_int8(module.weight) if eight else quantise_int4(module.weight, group)
            module.weight = torch.nn.Parameter(kept.dequantise(), requires_grad=False)
    want = written(tokens)
    for subject in (model, fuse(model)):
        small = quantise(subject, bits, group=group)
        torch.testing.assert_close(small(tokens), want, rtol=0, atol=1e-9)
        kinds = [type(m) for m in small.modules() if isinstance(m, QuantisedLinear)]
        assert len(kinds) == 1 + GQA.num_layers * (7 if subject is model else 4)
        assert small.embed is model.embed and small.dtype == model.dtype
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert (want - model(tokens)).abs().max() > 1e-4, "it is another model"


def test_what_holds_the_codes_says_its_shape() -> None:
    kept = Int4Weights(
        torch.zeros(3, 8, dtype=torch.uint8), torch.ones(3, 2), torch.full((3, 2), 8.0)
    )
    assert (kept.shape, kept.group) == ((3, 8), 4)
    assert (kept.dequantise() == 0).all()
