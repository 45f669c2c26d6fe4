"""Filters against transformers' processors, draws against exact intervals, degenerate options."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import CASES, normal, seeded

from refimpl.sampling import (
    Penalties,
    Sampler,
    apply_temperature,
    draw,
    filter_min_p,
    filter_top_k,
    filter_top_p,
    greedy,
)

PROBABILITIES = st.lists(st.just(0.0) | st.floats(1e-12, 1.0), min_size=1, max_size=9).filter(
    lambda row: sum(row) > 0
)


def kept(logits: torch.Tensor) -> list[list[int]]:
    """The ids that a filter left, row by row."""
    return [(row > -math.inf).nonzero().flatten().tolist() for row in logits]


def no_ids() -> torch.Tensor:
    """The input ids that transformers' processors ask for and do not read."""
    return torch.zeros(1, 1, dtype=torch.long)


# --- greedy ---------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=5))
def test_greedy_is_the_lowest_of_the_best(rows: list[list[int]]) -> None:
    want = [row.index(max(row)) for row in rows]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        got = greedy(torch.tensor(rows, dtype=dtype))
        assert got.dtype == torch.int64
        assert got.tolist() == want


@pytest.mark.case("DEC-08")
def test_every_way_to_say_greedy_agrees_on_a_tie() -> None:
    logits = torch.tensor([CASES["DEC-08"]["inputs"]["logits"]], dtype=torch.float32)
    want = [CASES["DEC-08"]["expected"]["token"]]
    assert greedy(logits).tolist() == want
    for sampler in (Sampler(temperature=0), Sampler(top_k=1), Sampler(top_p=0)):
        assert sampler.is_greedy
        assert sampler(logits, seeded(0)).tolist() == want
        assert sampler(logits).tolist() == want
        one_hot = sampler.probabilities(logits)
        assert one_hot.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    wide = logits.repeat(1, 2000)
    assert Sampler(temperature=0)(wide).tolist() == want


def test_greedy_uses_no_random_number() -> None:
    generator = seeded(3)
    before = generator.get_state()
    Sampler(temperature=0)(normal(0, 2, 5), generator)
    assert torch.equal(generator.get_state(), before)
    Sampler()(normal(0, 2, 5), generator)
    assert not torch.equal(generator.get_state(), before)


# --- against transformers -------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-30, 0.1, 0.7, 1.0, 1.9, 50.0])
def test_temperature_equals_transformers(temperature: float) -> None:
    from transformers.generation.logits_process import TemperatureLogitsWarper

    logits = normal(1, 3, 17, dtype=torch.float32) * 4
    theirs = TemperatureLogitsWarper(temperature)(no_ids(), logits)
    ours = apply_temperature(logits, temperature)
    assert ours.dtype == torch.float32
    # Shifted by a constant a row, which no later step sees.
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1), atol=1e-6, rtol=1e-5)
    assert (ours.amax(-1) == 0).all()
    torch.testing.assert_close(
        ours, (logits - logits.amax(-1, keepdim=True)) / temperature, atol=0, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-46, 1e-300, 5e-324])
def test_temperature_near_zero_becomes_greedy(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3.0, -math.inf, 2.0]], dtype=dtype)
    assert apply_temperature(logits, temperature).softmax(-1).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    sampler = Sampler(temperature=temperature)
    assert sampler.probabilities(logits).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert sampler(logits, seeded(0)).tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e30, 3.5e38, 1e39, 1.7e308])
def test_temperature_without_bound_is_uniform(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3.0, -math.inf, 2.0]], dtype=dtype)
    want = torch.tensor([[1 / 3, 1 / 3, 0.0, 1 / 3]], dtype=torch.float64)
    warm = apply_temperature(logits, temperature).softmax(-1, dtype=torch.float64)
    torch.testing.assert_close(warm, want)
    torch.testing.assert_close(Sampler(temperature=temperature).probabilities(logits), want)


@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 18, 1000])
def test_top_k_equals_transformers(k: int) -> None:
    from transformers.generation.logits_process import TopKLogitsWarper

    for logits in (
        normal(2, 4, 17, dtype=torch.float32),
        torch.randint(0, 4, (6, 17), generator=seeded(1)).float(),  # many ties
    ):
        theirs = TopKLogitsWarper(k)(no_ids(), logits)
        assert torch.equal(filter_top_k(logits, k), theirs)


@given(p=st.floats(0.001, 0.999), seed=st.integers(0, 10_000), spread=st.floats(0.1, 6))
def test_top_p_equals_transformers(p: float, seed: int, spread: float) -> None:
    from transformers.generation.logits_process import TopPLogitsWarper

    logits = normal(seed, 3, 13, dtype=torch.float32) * spread
    # Where the mass before a token is p to within float32, the two may differ by rounding.
    before = logits.double().softmax(-1).sort(-1, descending=True).values
    before = before.cumsum(-1) - before
    assume((before - p).abs().min() > 1e-6)
    theirs = TopPLogitsWarper(p)(no_ids(), logits)
    assert torch.equal(filter_top_p(logits, p), theirs)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.3, 0.5, 0.74, 0.76, 1.0])
def test_top_p_among_ties_keeps_as_many_as_transformers(p: float) -> None:
    from transformers.generation.logits_process import TopPLogitsWarper

    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0, -40.0]])
    theirs = TopPLogitsWarper(p)(no_ids(), logits)
    ours = filter_top_p(logits, p)
    assert len(kept(ours)[0]) == len(kept(theirs)[0])
    if p < 1:
        assert kept(ours)[0] == list(range(max(1, math.ceil(p * 4)))), "equal tokens go by id"


@given(p=st.floats(0, 1), seed=st.integers(0, 10_000), spread=st.floats(0.1, 6))
def test_min_p_equals_transformers(p: float, seed: int, spread: float) -> None:
    from transformers.generation.logits_process import MinPLogitsWarper

    logits = normal(seed, 3, 13, dtype=torch.float32) * spread
    ratio = (logits.double() - logits.double().amax(-1, keepdim=True)).exp()
    assume((ratio - p).abs().min() > 1e-6 or p == 1)
    theirs = MinPLogitsWarper(p)(no_ids(), logits)
    assert torch.equal(filter_min_p(logits, p), theirs)


OPTIONS = list(itertools.product([0.4, 1.0, 1.7], [0, 3, 50], [0.35, 0.8, 1.0], [0.0, 0.15, 0.6]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_options_together_equal_transformers_chain(dtype: torch.dtype) -> None:
    """transformers itself puts its processors in order; 81 settings, so that order shows."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=9,
        vocab_size=11,
    )
    model = LlamaForCausalLM(config)
    logits = (normal(5, 6, 11) * 3).to(dtype)
    orders = set()
    for temperature, top_k, top_p, min_p in OPTIONS:
        chain = model._get_logits_processor(
            generation_config=GenerationConfig(
                do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
            ),
            input_ids_seq_length=1,
            encoder_input_ids=no_ids(),
            prefix_allowed_tokens_fn=None,
            logits_processor=[],
        )
        orders.add(tuple(type(step).__name__ for step in chain))
        theirs = chain(no_ids(), logits.float()).softmax(-1)  # generate converts to float32
        sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        ours = sampler.probabilities(logits)
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours.sum(-1), torch.ones(6, dtype=torch.float64))
        torch.testing.assert_close(ours.float(), theirs, atol=1e-6, rtol=1e-5)
    full = max(orders, key=len)
    assert full == (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    )


def test_the_order_of_the_options_matters_here() -> None:
    logits = normal(5, 6, 11) * 3
    hot_first = filter_top_p(apply_temperature(logits, 1.7), 0.8)
    hot_last = apply_temperature(filter_top_p(logits, 0.8), 1.7)
    assert kept(hot_first) != kept(hot_last)


# --- filters by themselves ------------------------------------------------------------------


@pytest.mark.case("SMP-01")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_token_that_crosses_p_stays(dtype: torch.dtype) -> None:
    row = CASES["SMP-01"]
    logits = torch.tensor([row["inputs"]["probs"]], dtype=dtype).log()
    for p, want in zip(row["inputs"]["p"], row["expected"]["kept"], strict=True):
        assert kept(filter_top_p(logits, p)) == [want]
    assert kept(filter_top_p(logits.flip(-1), 0.6)) == [[2, 3]]


@given(PROBABILITIES, st.floats(0, 1))
def test_top_p_is_the_smallest_set_by_exact_sums(row: list[float], p: float) -> None:
    total = sum(map(Fraction, row))
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    want, mass = [], Fraction(0)
    for index in order:
        assume(p in (0, 1) or abs(mass / total - Fraction(p)) > Fraction(1, 10**12))
        if want and (mass / total >= p or row[index] == 0):
            break
        want.append(index)
        mass += Fraction(row[index])
    logits = torch.tensor([row], dtype=torch.float64).log()
    got = kept(filter_top_p(logits, p))[0]
    if p == 1:
        want = [i for i, x in enumerate(row) if x > 0]
    assert got == sorted(want)


@pytest.mark.parametrize(
    ("function", "off"), [(filter_top_k, 0), (filter_top_p, 1.0), (filter_min_p, 0.0)]
)
def test_a_filter_that_is_off_changes_nothing(function: object, off: float) -> None:
    logits = normal(0, 3, 7) * 50
    assert torch.equal(function(logits, off), logits)


@given(st.integers(0, 500), st.integers(1, 8), st.floats(0, 1), st.floats(0, 1))
def test_filters_keep_what_they_keep_unchanged(seed: int, k: int, p: float, m: float) -> None:
    logits = normal(seed, 2, 7) * 3
    original = logits.clone()
    for got in (filter_top_k(logits, k), filter_top_p(logits, p), filter_min_p(logits, m)):
        assert torch.equal(got.where(got > -math.inf, logits), logits)
        best = logits.argmax(-1)
        assert torch.equal(got.argmax(-1), best), "the best token always stays"
    assert torch.equal(logits, original), "the input is left alone"


def test_rows_are_filtered_each_by_itself() -> None:
    logits = normal(3, 5, 9)
    for function, value in ((filter_top_k, 3), (filter_top_p, 0.6), (filter_min_p, 0.4)):
        together = function(logits, value)
        alone = torch.cat([function(row[None], value) for row in logits])
        assert torch.equal(together, alone)
        assert len({tuple(ids) for ids in kept(together)}) > 1


@pytest.mark.case("SMP-02")
def test_degenerate_options_are_greedy_or_off() -> None:
    row = CASES["SMP-02"]
    logits = torch.tensor([row["inputs"]["logits"]], dtype=torch.float32)
    want = row["expected"]["token"]
    for sampler in (Sampler(temperature=0), Sampler(top_p=0)):
        assert {int(sampler(logits, seeded(i))) for i in range(20)} == {want}
    assert kept(filter_top_p(logits, 0)) == [[want]]
    assert torch.equal(filter_top_k(logits, 0), logits), "0 means off"
    torch.testing.assert_close(Sampler(top_k=0).probabilities(logits), logits.double().softmax(-1))
    for options in row["expected"]["refused"]:
        with pytest.raises(ValueError, match=str(next(iter(options.values())))):
            Sampler(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be 0 .* got -1"),
        ({"temperature": math.nan}, "got nan"),
        ({"temperature": math.inf}, "got inf"),
        ({"top_k": -1}, "top_k .* got -1"),
        ({"top_k": 2.5}, "got 2.5"),
        ({"top_k": 2.0}, "positive integer, got 2.0"),
        ({"top_k": True}, "got True"),
        ({"top_p": 1.5}, "top_p must lie in 0 to 1, got 1.5"),
        ({"top_p": -0.1}, "got -0.1"),
        ({"top_p": math.nan}, "got nan"),
        ({"min_p": 1.1}, "min_p must lie in 0 to 1, got 1.1"),
        ({"min_p": -1}, "got -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(**options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: apply_temperature(x, 0), "got 0"),
        (lambda x: apply_temperature(x, -2), "got -2"),
        (lambda x: apply_temperature(x, math.nan), "got nan"),
        (lambda x: filter_top_k(x, -1), "got -1"),
        (lambda x: filter_top_k(x, 1.0), "got 1.0"),
        (lambda x: greedy(x * math.nan), "NaN"),
        (lambda x: greedy(torch.tensor([[1.0, math.nan, 2.0]])), "NaN"),
        (lambda x: Sampler()(x * math.inf, seeded(0)), "best logit must be finite"),
        (lambda x: filter_top_p(x, 1.01), "got 1.01"),
        (lambda x: filter_top_p(x, -0.01), "got -0.01"),
        (lambda x: filter_min_p(x, 2), "got 2"),
        (lambda x: Sampler()(x * math.nan, seeded(0)), "NaN"),
        (lambda x: Sampler(temperature=0)(x * math.nan), "NaN"),
        (lambda x: Sampler(temperature=0)(x - math.inf), "best logit must be finite"),
        (lambda x: Sampler(temperature=0).probabilities(x - math.inf), "must be finite"),
        (lambda x: greedy(torch.cat([x, x - math.inf])), "a row's best logit must be finite"),
        (lambda x: Penalties()(x[0], [0, 7, 3]), "history holds 7, the vocabulary has 3"),
        (lambda x: Penalties()(x[0], [3]), "history holds 3, the vocabulary has 3"),
        (lambda x: Penalties()(x[0], [2, -1]), "history holds -1, the vocabulary has 3"),
        (lambda x: Sampler().probabilities(x * math.nan), "NaN"),
        (lambda x: Sampler()(x - math.inf, seeded(0)), "best logit must be finite"),
        (lambda x: draw(x * 0, seeded(0)), "not all 0"),
        (lambda x: draw(torch.tensor([[0.5, -0.1]]), seeded(0)), "at least 0"),
        (lambda x: draw(torch.tensor([[0.5, math.nan]]), seeded(0)), "finite"),
        (lambda x: draw(torch.tensor([[0.5, math.inf]]), seeded(0)), "finite"),
    ],
)
def test_bad_calls_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.ones(1, 3))


# --- the draw -------------------------------------------------------------------------------


@given(st.lists(PROBABILITIES, min_size=1, max_size=4), st.integers(0, 10_000))
def test_a_draw_inverts_the_cumulative_sum(rows: list[list[float]], seed: int) -> None:
    width = max(map(len, rows))
    probs = torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)
    tokens = draw(probs, seeded(seed)).tolist()
    uniforms = torch.rand(len(rows), 1, generator=seeded(seed), dtype=torch.float64).flatten()
    for row, token, uniform in zip(rows, tokens, uniforms.tolist(), strict=True):
        assert row[token] > 0, "a token of probability 0 is never drawn"
        edges = list(itertools.accumulate(map(Fraction, row), initial=Fraction(0)))
        u, slack = Fraction(uniform) * edges[-1], edges[-1] / 10**12
        assert edges[token] - slack <= u <= edges[token + 1] + slack


def test_a_draw_is_reproducible_and_takes_one_number_a_row() -> None:
    probs = normal(1, 4, 9).softmax(-1)
    first, again, other = seeded(5), seeded(5), seeded(6)
    draws = [draw(probs, first).tolist() for _ in range(20)]
    assert draws == [draw(probs, again).tolist() for _ in range(20)]
    assert draws != [draw(probs, other).tolist() for _ in range(20)]
    counted = seeded(5)
    torch.rand(20 * 4, generator=counted, dtype=torch.float64)
    assert torch.equal(counted.get_state(), first.get_state())


def test_rows_need_not_be_normalised() -> None:
    probs = normal(1, 4, 9).softmax(-1)
    for scale in (1e-200, 3.0, 1e200):
        assert torch.equal(draw(probs * scale, seeded(2)), draw(probs, seeded(2)))


@given(
    st.lists(st.sampled_from([0.0, 5e-324, 1e-323, 1e-322, 2e-308]), min_size=1, max_size=5).filter(
        any
    ),
    st.integers(0, 10_000),
)
def test_the_smallest_numbers_draw_a_token_that_has_mass(row: list[float], seed: int) -> None:
    """u times a subnormal total can round up to the total, behind the last token."""
    token = draw(torch.tensor([row], dtype=torch.float64), seeded(seed)).item()
    assert token < len(row) and row[token] > 0


@pytest.mark.parametrize("row", [[5e-324, 0.0], [5e-324, 5e-324, 0.0], [0.0, 5e-324]])
def test_a_subnormal_row_ends_at_its_last_token_with_mass(row: list[float]) -> None:
    probs = torch.tensor([row], dtype=torch.float64)
    assert {draw(probs, seeded(seed)).item() for seed in range(40)} == {
        token for token, mass in enumerate(row) if mass
    }


@pytest.mark.parametrize("zeros", [[0, 1], [3, 5], [5]])
def test_extreme_uniforms_stay_inside(zeros: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.tensor([[0.3, 0.1, 0.25, 0.05, 0.2, 0.1]], dtype=torch.float64)
    probs[0, zeros] = 0
    positive = probs[0].nonzero().flatten().tolist()
    for u, want in ((0.0, positive[0]), (1 - 2**-53, positive[-1])):
        monkeypatch.setattr(
            torch, "rand", lambda shape, u=u, **_: torch.full(tuple(shape), u, dtype=torch.float64)
        )
        for scale in (1.0, 1 / 3, 1e-12, 7.1):
            assert draw(probs * scale, None).tolist() == [want]


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=0.6, top_k=5), Sampler(1.3, 0, 0.8, 0.05)]
)
def test_frequencies_of_draws_fit_the_distribution(sampler: Sampler) -> None:
    from scipy.stats import chisquare

    logits = normal(11, 1, 8, dtype=torch.float32)
    probs = sampler.probabilities(logits)[0]
    n = 20_000
    tokens = sampler(logits.expand(n, -1), seeded(123))
    counts = torch.bincount(tokens, minlength=8)
    assert counts[probs == 0].sum() == 0
    inside = probs > 0
    assert chisquare(counts[inside].numpy(), (probs[inside] * n).numpy()).pvalue > 0.01
    wrong = probs[inside].roll(1) * n
    assert chisquare(counts[inside].numpy(), wrong.numpy()).pvalue < 1e-6, "it can fail"
