"""Rotation against complex numbers, both pairings, scaling against transformers, refusals."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import CASES, GQA, normal, tiny, token_ids

from refimpl.architecture import Architecture, RopeScaling
from refimpl.cache import ContiguousCache
from refimpl.model import Decoder
from refimpl.model import decoder as refimpl_model
from refimpl.rope import (
    frequencies,
    interleaved_to_half_split,
    rotary_table,
    rotate,
    rotate_interleaved,
)

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def turned(x: list[float], pairs: list[tuple[int, int]], position: int, theta: float) -> list:
    """Each pair as a complex number, multiplied by ``exp(i * position * theta ** (-2 j / D))``."""
    D, out = len(x), list(x)
    for j, (a, b) in enumerate(pairs):
        z = complex(x[a], x[b]) * cmath.exp(1j * position * theta ** (-2 * j / D))
        out[a], out[b] = z.real, z.imag
    return out


def halves(D: int) -> list[tuple[int, int]]:
    return [(j, j + D // 2) for j in range(D // 2)]


def neighbours(D: int) -> list[tuple[int, int]]:
    return [(2 * j, 2 * j + 1) for j in range(D // 2)]


def at(position: int, D: int, theta: float = 10_000.0) -> tuple[torch.Tensor, torch.Tensor]:
    return rotary_table(torch.tensor([position]), D, theta, dtype=torch.float64)


@pytest.mark.case("ROPE-01")
def test_the_two_pairings_on_four_numbers() -> None:
    row = CASES["ROPE-01"]
    x = torch.tensor(row["inputs"]["x"], dtype=torch.float64).reshape(1, 1, 1, 4)
    table = at(row["inputs"]["position"], 4, row["inputs"]["theta"])
    for function, name in ((rotate, "half_split"), (rotate_interleaved, "interleaved")):
        got = function(x, *table).flatten().tolist()
        assert got == pytest.approx(row["expected"][name], abs=row["tolerance"])
    origin = at(0, 4)
    assert torch.equal(rotate(x, *origin), x), "position 0 hides a wrong pairing"
    assert torch.equal(rotate_interleaved(x, *origin), x)


@pytest.mark.case("ROPE-01")
@given(
    half=st.integers(1, 6),
    position=st.integers(0, 50_000),
    theta=st.floats(2, 1e6),
    seed=st.integers(0, 1000),
)
def test_rotation_is_complex_multiplication(
    half: int, position: int, theta: float, seed: int
) -> None:
    D = 2 * half
    x = normal(seed, 2, 3, 1, D)
    table = at(position, D, theta)
    got, other = rotate(x, *table), rotate_interleaved(x, *table)
    for b in range(2):
        for h in range(3):
            row = x[b, h, 0].tolist()
            want = turned(row, halves(D), position, theta)
            assert got[b, h, 0].tolist() == pytest.approx(want, abs=1e-9)
            want = turned(row, neighbours(D), position, theta)
            assert other[b, h, 0].tolist() == pytest.approx(want, abs=1e-9)
    # A permutation of the axis maps one convention onto the other.
    order = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
    torch.testing.assert_close(rotate(x[..., order], *table), other[..., order], **EXACT)
    torch.testing.assert_close(got.norm(dim=-1), x.norm(dim=-1), atol=1e-11, rtol=1e-11)


@pytest.mark.case("ROPE-05")
def test_a_slice_of_the_table_starts_at_the_offset() -> None:
    row = CASES["ROPE-05"]["inputs"]
    n, offset, new = row["table_length"], row["offset"], row["new_tokens"]
    first, last = CASES["ROPE-05"]["expected"]["slice"]
    whole = rotary_table(torch.arange(n), 6)
    part = rotary_table(torch.arange(offset, offset + new), 6)
    for table, sliced in zip(whole, part, strict=True):
        assert torch.equal(table[first:last], sliced)
        assert not torch.equal(table[: last - first], sliced)


@pytest.mark.case("ROPE-05")
def test_decoding_rotates_by_the_offset_and_not_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(positions: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(positions.flatten().tolist())
        return rotary_table(positions, *rest)

    monkeypatch.setattr(refimpl_model, "rotary_table", spy)
    cache = ContiguousCache(GQA, max_tokens=9, dtype=torch.float64)
    tokens = token_ids(0, GQA.vocab_size, 1, 7)
    decoder = tiny(GQA)
    decoder(tokens[:, :5], cache=cache)
    decoder(tokens[:, 5:], cache=cache)
    assert seen == [[0, 1, 2, 3, 4], [5, 6]]


@pytest.mark.case("ROPE-05")
@given(
    m=st.integers(0, 999),
    n=st.integers(0, 999),
    shift=st.integers(0, 5000),
    half=st.integers(1, 8),
    theta=st.floats(10, 1e6),
    seed=st.integers(0, 100),
)
def test_scores_depend_on_distance_only(
    m: int, n: int, shift: int, half: int, theta: float, seed: int
) -> None:
    D = 2 * half
    q, k = normal(seed, 1, 1, 1, D), normal(seed + 1, 1, 1, 1, D)
    for function in (rotate, rotate_interleaved):

        def score(a: int, b: int, function=function) -> float:
            left, right = function(q, *at(a, D, theta)), function(k, *at(b, D, theta))
            return float((left * right).sum())

        assert score(m, n) == pytest.approx(score(m + shift, n + shift), abs=1e-9)
        if m >= n:
            assert score(m, n) == pytest.approx(score(m - n, 0), abs=1e-9)


@given(
    heads=st.integers(1, 4),
    half=st.integers(1, 4),
    width=st.integers(1, 5),
    position=st.integers(0, 9999),
    seed=st.integers(0, 100),
)
def test_reordered_weights_give_the_same_scores(
    heads: int, half: int, width: int, position: int, seed: int
) -> None:
    D = 2 * half
    wq, wk = normal(seed, heads * D, width), normal(seed + 1, heads * D, width)
    x, y = normal(seed + 2, width), normal(seed + 3, width)

    def head(weight: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return (weight @ vector).reshape(1, heads, 1, D)

    here, there = at(position, D), at(3, D)
    want = rotate_interleaved(head(wq, x), *here) * rotate_interleaved(head(wk, y), *there)
    wq, wk = interleaved_to_half_split(wq, heads), interleaved_to_half_split(wk, heads)
    got = rotate(head(wq, x), *here) * rotate(head(wk, y), *there)
    torch.testing.assert_close(got.sum(-1), want.sum(-1), **EXACT)


def test_reordering_by_hand() -> None:
    rows = torch.arange(12)[:, None] * torch.ones(1, 5)
    got = interleaved_to_half_split(rows, 2)[:, 0].int().tolist()
    assert got == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert interleaved_to_half_split(rows[:, 0], 3).int().tolist()[:4] == [0, 2, 1, 3]


@pytest.mark.parametrize(("rows", "heads"), [(12, 0), (12, 5), (12, 4), (6, -1)])
def test_rows_that_do_not_divide_into_pairs_are_refused(rows: int, heads: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows cannot be split into {heads} heads"):
        interleaved_to_half_split(torch.ones(rows, 2), heads)


SCALINGS = {
    "default": None,
    "linear": RopeScaling("linear", 4.0),
    "llama3": RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
    "llama3 narrow": RopeScaling("llama3", 3.0, 2.0, 9.0, 512),
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("head_dim", "theta"), [(128, 500_000.0), (10, 10_000.0), (64, 1e5)])
def test_frequencies_equal_transformers(name: str, head_dim: int, theta: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = SCALINGS[name]
    rope = {"rope_type": "default", "rope_theta": theta}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind == "llama3":
        rope |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_context,
        }
    config = LlamaConfig(
        hidden_size=3 * head_dim,
        num_attention_heads=3,
        head_dim=head_dim,
        max_position_embeddings=16_384,
        rope_parameters=rope,
    )
    if scaling is None:
        theirs = LlamaRotaryEmbedding(config).inv_freq
    else:
        theirs, factor = ROPE_INIT_FUNCTIONS[scaling.kind](config, torch.device("cpu"))
        assert factor == 1.0
    ours = frequencies(head_dim, theta, scaling)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours.float(), theirs, rtol=2e-6, atol=0)
    cos, sin = rotary_table(torch.arange(200), head_dim, theta, scaling)
    x = torch.zeros(1, 1, 1)
    their_cos, their_sin = LlamaRotaryEmbedding(config)(x, torch.arange(200)[None])
    torch.testing.assert_close(cos, their_cos[0, :, : head_dim // 2], atol=3e-5, rtol=0)
    torch.testing.assert_close(sin, their_sin[0, :, : head_dim // 2], atol=3e-5, rtol=0)


def test_llama3_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    plain, scaled = frequencies(128, 5e5), frequencies(128, 5e5, scaling)
    ratio = plain / scaled
    turns = 8192 * plain / (2 * math.pi)
    torch.testing.assert_close(ratio[turns > 4], torch.ones_like(ratio[turns > 4]))
    torch.testing.assert_close(ratio[turns < 1], 8 * torch.ones_like(ratio[turns < 1]))
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 2
    assert (between.diff() > 0).all()
    assert ((between > 1) & (between < 8)).all()


def test_angles_are_exact_at_large_positions() -> None:
    position, D, theta = 131_071, 8, 500_000.0
    cos, sin = rotary_table(torch.tensor([position]), D, theta)
    for j in range(D // 2):
        angle = position * theta ** (-2 * j / D)
        assert cos[0, j].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[0, j].item() == pytest.approx(math.sin(angle), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", [rotate, rotate_interleaved])
def test_dtype_and_shape_are_kept(function: object, dtype: torch.dtype) -> None:
    x = normal(0, 2, 3, 4, 6, dtype=dtype)
    cos, sin = rotary_table(torch.arange(8).reshape(2, 4), 6)
    assert cos.shape == (2, 4, 3)
    got = function(x, cos[:, None], sin[:, None])
    assert got.dtype == dtype
    assert got.shape == x.shape
    for b in range(2):
        want = function(x[b : b + 1], cos[b], sin[b])
        assert torch.equal(got[b : b + 1], want)


@pytest.mark.case("ROPE-02")
@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "ntk"])
def test_a_base_that_moves_with_the_length_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"'{kind}' is not supported.*cache"):
        RopeScaling(kind, 2.0)
    config = {
        "model_type": "llama",
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_hidden_layers": 1,
        "intermediate_size": 14,
        "vocab_size": 20,
        "max_position_embeddings": CASES["ROPE-02"]["inputs"]["max_context"],
        "rms_norm_eps": 1e-5,
    }
    Architecture.from_hf_config(config)
    for old, key in (("rope_scaling", "type"), ("rope_scaling", "rope_type")):
        # It can be sized: positions store nothing. It cannot be run.
        arch = Architecture.from_hf_config({**config, old: {key: kind, "factor": 2.0}})
        with pytest.raises(ValueError, match=f"'{kind}' is not supported"):
            Decoder(arch)
    arch = Architecture.from_hf_config(
        {**config, "rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}}
    )
    with pytest.raises(ValueError, match=f"'{kind}' is not supported"):
        Decoder(arch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frequencies(7, 1e4), "must be even, got 7"),
        (lambda: frequencies(0, 1e4), "must be even, got 0"),
        (lambda: frequencies(8, 0.0), "must be positive, got 0.0"),
        (lambda: rotary_table(torch.tensor([3, -2]), 8), "start at 0, got -2"),
        (lambda: rotate(torch.ones(1, 1, 2, 6), *rotary_table(torch.arange(2), 8)), "head dim 6"),
        (
            lambda: rotate_interleaved(torch.ones(1, 1, 2, 6), *rotary_table(torch.arange(2), 8)),
            "needs a table of width 3, got 4",
        ),
        (
            lambda: rotate(torch.ones(1, 1, 2, 6), torch.ones(2, 3), torch.ones(2, 1)),
            "head dim 6 needs a table of width 3, got 1",
        ),
        (
            lambda: rotate(torch.ones(1, 1, 2, 6).long(), *rotary_table(torch.arange(2), 6)),
            "only floating point can be rotated, got torch.int64",
        ),
        (
            lambda: rotate_interleaved(torch.ones(1, 1, 2, 5), *rotary_table(torch.arange(2), 4)),
            "rotation works on pairs: head dim must be even, got 5",
        ),
        (lambda: RopeScaling("linear", 0.5), "at least 1, got 0.5"),
        (lambda: RopeScaling("llama3", 2.0, 4.0, 4.0), "low_freq_factor"),
        (lambda: RopeScaling("llama3", 2.0, 1.0, 4.0, 0), "original_max_context"),
    ],
)
def test_bad_arguments_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
