"""Beam search: against transformers, against enumeration, over a cache that is given back."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import GQA, MHA, hf_twin, seeded, tiny, token_ids

from refimpl import weights
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.decode import Beams, beam_search, generate
from refimpl.decode.search import Rules, Search
from refimpl.model import Decoder
from refimpl.model import decoder as refimpl_model
from refimpl.rope import rotary_table
from refimpl.weights.peer import as_transformers

F64 = torch.float64
PENALTIES = [-1.0, 0.0, 0.5, 1.0, 2.0]
STOPPING: list[Any] = [True, False, "never"]


@functools.cache
def small(vocab_size: int, seed: int = 0) -> tuple[Decoder, Any]:
    """A decoder in float64 and transformers' twin; few tokens, so that stops come early."""
    arch = dataclasses.replace(MHA, vocab_size=vocab_size, num_layers=1, tie_embeddings=False)
    decoder = tiny(arch, seed)
    return decoder, hf_twin(decoder)


def prompts(seed: int, vocab_size: int, *shape: int) -> list:
    return token_ids(seed, vocab_size, *shape).tolist()


def searched_by_transformers(
    twin: Any, rows: list[list[int]], stop_tokens: tuple[int, ...], **options: Any
) -> list[Beams]:
    """What transformers' ``generate`` finds behind prompts of one length."""
    tokens = torch.tensor(rows)
    out = twin.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        eos_token_id=list(stop_tokens) or None,
        pad_token_id=0 if stop_tokens else None,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    # A pad may be a token too: the length is the number of beam indices that are not -1.
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    start = tokens.shape[1]
    found = [
        (ids[start : start + n], score)
        for ids, n, score in zip(
            out.sequences.tolist(), lengths, out.sequences_scores.tolist(), strict=True
        )
    ]
    each = len(found) // len(rows)
    return [
        Beams(*map(list, zip(*found[i : i + each], strict=True)))
        for i in range(0, len(found), each)
    ]


def log_probs_of(twin: Any, tokens: list[int], new: list[int]) -> float:
    """The summed log-probability of ``new`` behind ``tokens``, in one pass without a cache."""
    logits = twin(torch.tensor([tokens + new])).logits[0, len(tokens) - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, torch.tensor(new)[:, None]).sum())


def assert_same(got: list[Beams], want: list[Beams], atol: float = 2e-6) -> None:
    assert [beams.sequences for beams in got] == [beams.sequences for beams in want]
    for ours, theirs in zip(got, want, strict=True):
        assert ours.scores == pytest.approx(theirs.scores, rel=1e-6, abs=atol)


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    """A model, prompts and options with which transformers fills every beam."""
    vocab_size = draw(st.sampled_from([5, 6, 8, 13]))
    stop_tokens = draw(st.lists(st.integers(0, vocab_size - 1), unique=True, max_size=2))
    num_beams = draw(st.integers(2, min(vocab_size - len(stop_tokens), 8)))
    return {
        "model": (vocab_size, draw(st.integers(0, 3))),
        "stop_tokens": tuple(stop_tokens),
        "num_beams": num_beams,
        "num_return_sequences": draw(st.integers(1, num_beams)),
        "max_new_tokens": draw(st.integers(1, 7)),
        "length_penalty": draw(st.sampled_from(PENALTIES)),
        "early_stopping": draw(st.sampled_from(STOPPING)),
    }


# --- equal to transformers --------------------------------------------------------------------


@given(
    search=searches(),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
@settings(max_examples=100)
def test_sequences_and_scores_are_those_of_transformers(
    search: dict[str, Any], shape: tuple[int, int], seed: int
) -> None:
    options = dict(search)
    model = options.pop("model")
    decoder, twin = small(*model)
    rows = prompts(seed, model[0], *shape)
    got = beam_search(decoder, rows, **options)
    want = searched_by_transformers(twin, rows, **options)
    assert_same(got, want)
    # The score is what it is said to be: a sum over the whole sequence, divided by a power.
    ids, score = got[0].sequences[-1], got[0].scores[-1]
    total = log_probs_of(twin, rows[0], ids) / len(ids) ** options["length_penalty"]
    assert score == pytest.approx(total, rel=1e-5, abs=1e-5)


@given(
    search=searches(),
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_prompts_of_any_lengths_are_searched_as_if_alone(
    search: dict[str, Any], lengths: list[int], seed: int
) -> None:
    options = dict(search)
    model = options.pop("model")
    decoder, twin = small(*model)
    rows = [prompts(seed + i, model[0], n) for i, n in enumerate(lengths)]
    want = [searched_by_transformers(twin, [row], **options)[0] for row in rows]
    assert_same(beam_search(decoder, rows, **options), want)


@pytest.mark.parametrize("kind", ["all equal", "twins"])
def test_equal_scores_fall_as_they_do_in_transformers(kind: str) -> None:
    """Models in which every token, or every token of a group, has the same logit."""
    decoder = tiny(dataclasses.replace(GQA, vocab_size=9, tie_embeddings=False), 1)
    head, embed = decoder.head.weight, decoder.embed.weight
    if kind == "all equal":
        head.zero_()
    for copy, original in ((1, 0), (3, 2), (4, 2), (7, 6)):
        head[copy], embed[copy] = head[original], embed[original]
    twin = hf_twin(decoder)
    ties = 0
    for i in range(40):
        pick = torch.randint(1 << 20, (6,), generator=seeded(i)).tolist()
        stop_tokens = ((), (3,), (2, 5))[pick[0] % 3]
        num_beams = 2 + pick[1] % (8 - len(stop_tokens))
        options = {
            "num_beams": num_beams,
            "num_return_sequences": num_beams,
            "max_new_tokens": 1 + pick[2] % 6,
            "length_penalty": PENALTIES[pick[3] % 5],
            "early_stopping": STOPPING[pick[4] % 3],
            "stop_tokens": stop_tokens,
        }
        row = prompts(i, 9, 1 + pick[5] % 5)
        got = beam_search(decoder, row, **options)
        assert_same([got], searched_by_transformers(twin, [row], **options))
        ties += len(set(got.scores)) < len(got.scores)
    assert ties > 25


def test_the_options_change_what_is_found() -> None:
    """What is compared above would show little if every option gave the same answer."""
    decoder, twin = small(8, 0)
    row = prompts(2, 8, 3)
    base = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 8, "stop_tokens": (0, 3)}
    found = {}
    for penalty, stopping in itertools.product(PENALTIES, STOPPING):
        options = {**base, "length_penalty": penalty, "early_stopping": stopping}
        found[penalty, stopping] = beam_search(decoder, row, **options)
        assert_same([found[penalty, stopping]], searched_by_transformers(twin, [row], **options))
    kinds = {key: str(beams.sequences) for key, beams in found.items()}
    assert len(set(kinds.values())) == 6
    assert any(len({kinds[penalty, s] for s in STOPPING}) == 3 for penalty in PENALTIES)


def test_never_looks_no_further_ahead_where_length_only_costs() -> None:
    """With a negative penalty a sum is worth most at the length it has, not at the longest."""
    rules = Rules(2, 50, -1.0, "never", 2, frozenset([0]))
    search = Search(rules)
    flat = [0.25] * 4
    search.step(torch.tensor([[0.09, 0.9, 0.006, 0.004]]).log())
    search.step(torch.tensor([[0.05, 0.94, 0.006, 0.004], flat]).log())
    assert search.ended == [[0], [1, 0]]
    # The best beam, [1, 1], scores 2 ln(0.9 * 0.94) = -0.33 now, better than the worst that has
    # ended, 2 ln(0.9 * 0.05) = -6.2, but would score -8.4 at length 50.
    assert not search.done
    search.step(torch.tensor([[0.9, 0.08, 0.015, 0.005], flat]).log())
    assert search.ended == [[1, 1, 0], [0]]
    want = [3 * math.log(0.9 * 0.94 * 0.9), math.log(0.09)]
    assert search.ended_scores.tolist() == pytest.approx(want, rel=1e-5)
    assert search.done


@pytest.fixture(scope="module")
def real() -> tuple[Decoder, Any, Any]:
    """The real model in float32, its tokenizer, and transformers' model with its weights."""
    decoder, tokenizer = weights.load("smollm2-135m")
    return decoder, tokenizer, as_transformers(decoder)


@pytest.mark.parametrize("num_beams", [2, 4, 8])
def test_on_the_real_model_too(real: tuple[Decoder, Any, Any], num_beams: int) -> None:
    decoder, tokenizer, peer = real
    rows = [tokenizer.encode(text) for text in ("The capital of France is", "Once upon a time,")]
    assert len(rows[0]) == len(rows[1])
    full_stop = tokenizer.encode(".")
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 9,
        "stop_tokens": tuple(full_stop),
    }
    got = beam_search(decoder, rows, **options)
    assert_same(got, searched_by_transformers(peer, rows, **options), atol=2e-5)
    assert any(ids[-1:] == full_stop and len(ids) < 9 for ids in got[0].sequences)
    # Two sequences whose scores are closer than rounding could change places on another machine.
    for scores in (got[0].scores, got[1].scores):
        assert min(a - b for a, b in itertools.pairwise(scores)) > 1e-3


# --- equal to enumeration ---------------------------------------------------------------------


def every_sequence(
    twin: Any, row: list[int], vocab_size: int, depth: int, stop_tokens: tuple[int, ...]
) -> dict[tuple[int, ...], float]:
    """All sequences there are, with the sums of their log-probabilities."""
    found: dict[tuple[int, ...], float] = {}
    running: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, depth + 1):
        longer = {}
        logits = twin(torch.tensor([row + list(ids) for ids in running])).logits[:, -1].double()
        log_probs = logits.log_softmax(-1).tolist()
        for (ids, total), own in zip(running.items(), log_probs, strict=True):
            for token in range(vocab_size):
                ended = token in stop_tokens or length == depth
                (found if ended else longer)[(*ids, token)] = total + own[token]
        running = longer
        if not running:
            break
    return found


@given(
    vocab_size=st.integers(2, 4),
    seed=st.integers(0, 2),
    stop_tokens=st.lists(st.integers(0, 3), unique=True, max_size=2),
    depth=st.integers(1, 4),
    length_penalty=st.sampled_from(PENALTIES),
    early_stopping=st.sampled_from(STOPPING),
)
@settings(max_examples=50)
def test_with_a_beam_for_everything_the_search_is_exhaustive(
    vocab_size: int, seed: int, stop_tokens: list, depth: int, **options: Any
) -> None:
    decoder, twin = small(vocab_size, seed)
    row = prompts(seed, vocab_size, 3)
    every = every_sequence(twin, row, vocab_size, depth, tuple(stop_tokens))
    assert len(every) <= vocab_size**depth
    score = {ids: s / len(ids) ** options["length_penalty"] for ids, s in every.items()}
    got = beam_search(
        decoder,
        row,
        num_beams=vocab_size**depth,
        max_new_tokens=depth,
        num_return_sequences=len(every),
        stop_tokens=stop_tokens,
        **options,
    )
    assert sorted(map(tuple, got.sequences)) == sorted(every)
    want = [score[tuple(ids)] for ids in got.sequences]
    assert got.scores == pytest.approx(want, rel=1e-5, abs=1e-5)
    assert got.scores == sorted(got.scores, reverse=True)


@given(
    vocab_size=st.integers(2, 5),
    seed=st.integers(0, 2),
    stop_tokens=st.lists(st.integers(0, 4), unique=True, max_size=3),
    num_beams=st.integers(1, 12),
    depth=st.integers(1, 5),
    early_stopping=st.sampled_from(STOPPING),
)
@settings(max_examples=60)
def test_as_many_sequences_come_back_as_were_asked_for(
    vocab_size: int, seed: int, stop_tokens: list, num_beams: int, depth: int, early_stopping: Any
) -> None:
    decoder, twin = small(vocab_size, seed)
    row = prompts(seed, vocab_size, 2)
    exist = len(every_sequence(twin, row, vocab_size, depth, tuple(stop_tokens)))
    options: dict[str, Any] = {
        "num_beams": num_beams,
        "max_new_tokens": depth,
        "early_stopping": early_stopping,
        "stop_tokens": stop_tokens,
    }
    wanted = min(num_beams, exist)
    got = beam_search(decoder, row, num_return_sequences=wanted, **options)
    assert len(got.scores) == len({tuple(ids) for ids in got.sequences}) == wanted
    if num_beams > exist:
        with pytest.raises(ValueError, match=f"but only {exist} sequences of up to {depth} new"):
            beam_search(decoder, row, num_return_sequences=exist + 1, **options)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_one_beam_is_greedy(early_stopping: bool) -> None:
    decoder, _ = small(8)
    stopped = 0
    for seed in range(12):
        row = prompts(seed, 8, 4)
        want = generate(decoder, row, max_new_tokens=9, stop_tokens=[2, 6])
        options = {"max_new_tokens": 9, "stop_tokens": [2, 6], "early_stopping": early_stopping}
        assert beam_search(decoder, row, num_beams=1, **options).sequences == [want]
        stopped += len(want) < 9
    assert 2 < stopped < 12


def test_a_huge_penalty_does_not_hide_what_has_ended() -> None:
    """Scores far below any fixed number that stands for 'impossible'."""
    decoder, twin = small(4)
    row = prompts(0, 4, 2)
    every = every_sequence(twin, row, 4, 4, (1,))
    score = {ids: s / len(ids) ** -25.0 for ids, s in every.items()}
    assert min(score.values()) < -1e14
    got = beam_search(
        decoder,
        row,
        num_beams=256,
        num_return_sequences=len(every),
        max_new_tokens=4,
        stop_tokens=[1],
        length_penalty=-25.0,
    )
    assert got.scores == pytest.approx(sorted(score.values(), reverse=True), rel=1e-4)


# --- the cache --------------------------------------------------------------------------------


class Watched(Decoder):
    """A decoder that notes the shape of each pass, and fails at one of them."""

    passes: list[tuple[int, ...]]
    fails_at: int | None = None

    def forward(self, tokens_BT: torch.Tensor, **options: Any) -> torch.Tensor:
        self.passes.append(tuple(tokens_BT.shape))
        logits_BTV = super().forward(tokens_BT, **options)
        if len(self.passes) == self.fails_at:
            logits_BTV[-1, -1, 1] = torch.nan
        return logits_BTV


def watched(fails_at: int | None = None) -> Watched:
    decoder = Watched(GQA).double()
    decoder.load_state_dict(tiny(GQA, 4).state_dict())
    decoder.passes, decoder.fails_at = [], fails_at
    return decoder.requires_grad_(False)


def contents(cache: Any, lengths: list[int]) -> list[torch.Tensor]:
    """Copies of what each row holds, of the last layer."""
    return [x[row, :, :n].clone() for x in cache.read(1) for row, n in enumerate(lengths)]


def test_each_prompt_goes_through_the_model_once() -> None:
    decoder = watched()
    beam_search(decoder, [prompts(0, 37, 7), prompts(1, 37, 3)], num_beams=5, max_new_tokens=4)
    assert decoder.passes == [(2, 7), (10, 1), (10, 1), (10, 1)]


def test_no_pass_is_made_for_what_is_over() -> None:
    decoder, _ = small(8)
    rows = [prompts(0, 8, 3), prompts(4, 8, 3)]
    options: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 8}
    options |= {"stop_tokens": [5], "early_stopping": True}
    steps = [max(map(len, beam_search(decoder, row, **options).sequences)) for row in rows]
    counted: list[int] = []

    class Counting(ContiguousCache):
        def append(self, layer: int, k: Any, v: Any, lengths_B: Any = None) -> None:
            if layer == 0:
                counted.append(k.shape[0] * k.shape[2] if lengths_B is None else sum(lengths_B))
            super().append(layer, k, v, lengths_B)

    cache = Counting(decoder.arch, batch_size=2, max_tokens=10, dtype=F64)
    beam_search(decoder, rows, cache=cache, **options)
    assert min(steps) < max(steps) < 8
    assert counted == [6] + [2 * sum(n > t for n in steps) for t in range(1, max(steps))]


@pytest.mark.parametrize("kind", ["contiguous", "concatenating"])
def test_a_given_cache_is_continued_and_keeps_the_prompt(kind: str) -> None:
    decoder = tiny(GQA, 4)
    tokens = prompts(0, 37, 11)
    cache: Any = ContiguousCache(GQA, max_tokens=16, dtype=F64)
    if kind == "concatenating":
        cache = ConcatenatingCache(GQA, dtype=F64)
    decoder(torch.tensor([tokens[:6]]), cache=cache)
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6, "stop_tokens": [9]}
    got = beam_search(decoder, tokens[6:], cache=cache, **options)
    assert got == beam_search(decoder, tokens, **options)
    assert_same([got], searched_by_transformers(hf_twin(decoder), [tokens], **options))
    assert cache.num_tokens.tolist() == [11]
    plain = ContiguousCache(GQA, max_tokens=11, dtype=F64)
    decoder(torch.tensor([tokens[:6]]), cache=plain)
    decoder(torch.tensor([tokens[6:]]), cache=plain)
    assert all(map(torch.equal, contents(cache, [11]), contents(plain, [11])))


def test_ragged_rows_of_a_given_cache_are_continued() -> None:
    decoder = tiny(GQA, 4)
    wholes = [prompts(0, 37, 9), prompts(1, 37, 4)]
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=13, dtype=F64)
    decoder(
        torch.tensor([wholes[0][:5], [*wholes[1][:1], 0, 0, 0, 0]]), cache=cache, lengths_B=[5, 1]
    )
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 5}
    got = beam_search(decoder, [wholes[0][5:], wholes[1][1:]], cache=cache, **options)
    assert got == [beam_search(decoder, whole, **options) for whole in wholes]
    assert cache.num_tokens.tolist() == [9, 4]


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
def test_a_cache_of_another_dtype_can_be_given(kept: torch.dtype) -> None:
    cache = ContiguousCache(GQA, max_tokens=30, dtype=kept)
    got = beam_search(tiny(GQA), [1, 2], num_beams=3, max_new_tokens=4, cache=cache)
    assert len(got.sequences[0]) == 4
    assert cache.read(0)[0].dtype == kept


@pytest.mark.parametrize("where", ["prefill", "forward", "logits", "reorder", "giving back"])
def test_a_failure_on_the_way_leaves_a_given_cache_as_it_was(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=30, dtype=F64)
    tiny(GQA, 4)(token_ids(0, 37, 2, 5), cache=cache, lengths_B=[5, 2])
    before = contents(cache, [5, 2])
    decoder = watched(fails_at=3 if where == "logits" else None)
    failing_call = {"prefill": 1, "forward": 3, "reorder": 2, "giving back": 6}.get(where)
    error = ValueError if where == "logits" else KeyboardInterrupt
    calls: list[str] = []

    def failing(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(where)
            if len(calls) == failing_call:
                raise KeyboardInterrupt
            return function(*arguments)

        return called

    if where in ("prefill", "forward"):
        monkeypatch.setattr(refimpl_model, "rotary_table", failing(rotary_table))
    elif where != "logits":
        monkeypatch.setattr(cache, "reorder", failing(cache.reorder))
    with pytest.raises(error):
        beam_search(decoder, [[1, 2, 3], [4]], num_beams=3, max_new_tokens=6, cache=cache)
    assert failing_call is None or len(calls) >= failing_call
    assert cache.num_tokens.tolist() == [5, 2]
    assert all(map(torch.equal, before, contents(cache, [5, 2])))


# --- what is refused --------------------------------------------------------------------------

BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "empty prompt": ([], {}, "prompt 0 is empty"),
    "empty row": ([[1], []], {}, "prompt 1 is empty"),
    "id too high": ([37], {}, "token id 37 is outside the vocabulary of 37"),
    "no beams": ([1], {"num_beams": 0}, "num_beams must be at least 1, got 0"),
    "boolean beams": ([1], {"num_beams": True}, "num_beams must be an integer, got True"),
    "fractional beams": ([1], {"num_beams": 2.0}, "num_beams must be an integer, got 2.0"),
    "no new tokens": ([1], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    "negative tokens": ([1], {"max_new_tokens": -2}, "at least 0, got -2"),
    "none returned": ([1], {"num_return_sequences": 0}, "num_return_sequences must be at least 1"),
    "more than beams": (
        [1],
        {"num_return_sequences": 4},
        "num_return_sequences is 4, more than the 3 beams",
    ),
    "more than exist": (
        [1],
        {"num_beams": 40, "num_return_sequences": 38, "max_new_tokens": 1},
        "num_return_sequences is 38, but only 37 sequences of up to 1 new tokens exist",
    ),
    "early stopping": ([1], {"early_stopping": "always"}, "'never', got 'always'"),
    "numeric stopping": ([1], {"early_stopping": 1}, "True, False or 'never', got 1"),
    "penalty NaN": (
        [1],
        {"length_penalty": float("nan")},
        "length_penalty must be finite, got nan",
    ),
    "penalty inf": (
        [1],
        {"length_penalty": float("inf")},
        "length_penalty must be finite, got inf",
    ),
    "penalty text": ([1], {"length_penalty": "1"}, "length_penalty must be a number, got '1'"),
    "penalty bool": ([1], {"length_penalty": True}, "length_penalty must be a number, got True"),
    "penalty large": (
        [1],
        {"length_penalty": -51, "max_new_tokens": 4},
        "within 49.8 for up to 4 new tokens, got -51",
    ),
    "penalty huge": ([1], {"length_penalty": 10**400}, "scores would leave float32"),
    "stop token": ([1], {"stop_tokens": [2.5]}, "stop_tokens must hold integers, got 2.5"),
    "context": ([1] * 45, {"max_new_tokens": 7}, "need 51 slots, the context has 50"),
    "cache rows": (
        [[1], [2]],
        {"cache": ContiguousCache(GQA, max_tokens=9, dtype=F64)},
        "the cache has 1 rows, there are 2 prompts",
    ),
    "cache room": (
        [1] * 5,
        {"cache": ContiguousCache(GQA, max_tokens=6, dtype=F64), "max_new_tokens": 3},
        "a prompt of 5 tokens and 3 new ones need 7 slots, the cache has 6",
    ),
    "even cache": (
        [[1], [2]],
        {"cache": ConcatenatingCache(GQA, batch_size=2, dtype=F64), "stop_tokens": [3]},
        "ConcatenatingCache keeps rows of one length",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_work(name: str) -> None:
    tokens, options, message = BAD[name]
    decoder = tiny(GQA)
    decoder.forward = None  # type: ignore[assignment]  # any work would be a TypeError
    with pytest.raises(ValueError, match=message) as caught:
        beam_search(decoder, tokens, **{"num_beams": 3, "max_new_tokens": 2, **options})
    assert "\n" not in str(caught.value)


def test_the_largest_penalty_and_the_last_slot_are_accepted() -> None:
    options = {"num_beams": 2, "max_new_tokens": 6}
    got = beam_search(tiny(GQA), [1] * 45, length_penalty=-38.5, **options)
    assert torch.tensor(got.scores).isfinite().all()
    assert beam_search(tiny(GQA), [1], num_beams=2, max_new_tokens=1, length_penalty=1e9).scores


def test_the_search_records_no_gradients_and_leaves_the_prompt_alone() -> None:
    decoder = Decoder(GQA)
    assert next(decoder.parameters()).requires_grad
    cache = ContiguousCache(GQA, max_tokens=9)
    tokens = [1, 2, 3]
    beam_search(decoder, tokens, num_beams=2, max_new_tokens=3, cache=cache)
    assert not cache.read(0)[0].requires_grad
    assert tokens == [1, 2, 3]


def test_what_is_given_decides_the_form_of_the_result() -> None:
    decoder, tokens = tiny(GQA), prompts(0, 37, 4)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 3}
    one = beam_search(decoder, tokens, **options)
    sequences, scores = one
    assert [len(ids) for ids in sequences] == [3, 3] and len(scores) == 2
    assert all(type(token) is int for ids in sequences for token in ids)
    assert all(type(score) is float for score in scores)
    assert beam_search(decoder, torch.tensor(tokens), **options) == one
    assert beam_search(decoder, [tokens], **options) == [one]
    assert beam_search(decoder, torch.tensor([tokens, tokens]), **options) == [one, one]
