"""The decoding loops: with and without a cache, against transformers, ragged, stopped, failing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CASES, GQA, MHA, MQA, TINY, hf_twin, seeded, tiny, token_ids

from refimpl import weights
from refimpl.architecture import Architecture
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.decode import generate, generate_naive
from refimpl.model import Decoder, fuse
from refimpl.model import decoder as refimpl_model
from refimpl.rope import rotary_table
from refimpl.sampling import Sampler, greedy

F64 = torch.float64
loops = pytest.mark.parametrize("loop", [generate, generate_naive], ids=["cached", "naive"])


def prompt(seed: int, length: int, arch: Architecture = GQA) -> list[int]:
    return token_ids(seed, arch.vocab_size, length).tolist()


def greedy_by_hand(decoder: Decoder, tokens: list[int], n: int) -> list[int]:
    """The whole sequence through the decoder for each token, the largest logit by Python."""
    tokens, new = list(tokens), []
    for _ in range(n):
        logits = decoder(torch.tensor([tokens]))[0, -1].tolist()
        new.append(logits.index(max(logits)))
        tokens.append(new[-1])
    return new


# --- equal to something else ----------------------------------------------------------------


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_both_loops_equal_transformers_and_the_hand_written_loop(arch: Architecture) -> None:
    decoder = tiny(arch, 7)
    twin = hf_twin(decoder)
    for length in (1, 2, 13):
        tokens = prompt(length, length, arch)
        want = greedy_by_hand(decoder, tokens, 20)
        theirs = twin.generate(torch.tensor([tokens]), max_new_tokens=20, do_sample=False)
        assert theirs[0, length:].tolist() == want
        assert generate_naive(decoder, tokens, max_new_tokens=20) == want
        assert generate(decoder, tokens, max_new_tokens=20) == want
        assert generate(fuse(decoder), tokens, max_new_tokens=20) == want
        assert len(set(want)) > 1


@given(
    name=st.sampled_from(list(TINY)),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    new=st.integers(0, 8),
    seed=st.integers(0, 200),
    sampled=st.booleans(),
)
@settings(max_examples=40)
def test_a_ragged_batch_equals_each_row_alone(
    name: str, lengths: list[int], new: int, seed: int, sampled: bool
) -> None:
    arch = TINY[name]
    decoder = tiny(arch, seed)
    prompts = [prompt(seed + i, n, arch) for i, n in enumerate(lengths)]
    want = [greedy_by_hand(decoder, row, new) for row in prompts]
    assert generate(decoder, prompts, max_new_tokens=new) == want
    assert generate_naive(decoder, prompts, max_new_tokens=new) == want
    if sampled:
        options = {"max_new_tokens": new, "sampler": Sampler(temperature=0.9, top_p=0.9)}
        one = generate(decoder, prompts, generator=seeded(seed), **options)
        assert one == generate_naive(decoder, prompts, generator=seeded(seed), **options)


@pytest.fixture(scope="module")
def real() -> tuple[Decoder, Any]:
    """The real model in float32."""
    return weights.load("smollm2-135m")


def test_on_the_real_model_both_loops_give_the_same_text(real: tuple[Decoder, Any]) -> None:
    decoder, tokenizer = real
    texts = ["The capital of France is", "Water boils at a temperature of"]
    prompts = [tokenizer.encode(text) for text in texts]
    assert len(prompts[0]) != len(prompts[1])
    margins = []

    def wary(logits_BV: torch.Tensor, _: Any) -> torch.Tensor:
        best = logits_BV.topk(2, dim=-1).values
        margins.append(float((best[:, 0] - best[:, 1]).min()))
        return greedy(logits_BV)

    together = generate(decoder, prompts, max_new_tokens=12, sampler=wary)
    assert min(margins) > 1e-3, "the two best logits are too close to compare ids"
    assert generate_naive(decoder, prompts, max_new_tokens=12) == together
    for row, tokens in enumerate(prompts):
        assert generate(decoder, tokens, max_new_tokens=12) == together[row]
        assert generate(fuse(decoder), tokens, max_new_tokens=12) == together[row]
    assert "Paris" in tokenizer.decode(together[0])


# --- the known failures ---------------------------------------------------------------------


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """The positions given to RoPE, a list per forward pass."""
    seen: list[list[list[int]]] = []

    def spy(positions_BT: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(positions_BT.tolist())
        return rotary_table(positions_BT, *rest)

    monkeypatch.setattr(refimpl_model, "rotary_table", spy)
    return seen


@pytest.mark.case("DEC-01")
@loops
def test_a_shorter_row_is_answered_as_if_alone(loop: Any, positions: list) -> None:
    row = CASES["DEC-01"]
    prompts, new = row["inputs"]["prompts"], row["inputs"]["max_new_tokens"]
    decoder = tiny(GQA, 3)
    got = loop(decoder, prompts, max_new_tokens=new)
    seen = [list(step) for step in positions]
    for tokens, ids in zip(prompts, got, strict=True):
        assert ids == greedy_by_hand(decoder, tokens, new)
    for want, first in zip(row["expected"]["first_positions"], seen[0], strict=True):
        assert first[: len(want)] == want
    if loop is generate:
        assert [position for (position,) in seen[1]] == row["expected"]["next_positions"]
    # Logits too, not only ids.
    padded = torch.tensor([prompts[0], prompts[1] + [0, 0]])
    logits = decoder(padded, lengths_B=[4, 2])
    alone = decoder(torch.tensor([prompts[1]]))
    torch.testing.assert_close(logits[1, :2], alone[0], atol=1e-10, rtol=1e-10)


@pytest.mark.case("DEC-03")
@loops
def test_a_row_that_stops_ends_once_and_leaves_the_other_alone(loop: Any, positions: list) -> None:
    row = CASES["DEC-03"]
    lengths, new = row["inputs"]["prompt_lengths"], row["inputs"]["max_new_tokens"]
    at = row["inputs"]["stop_step_of_row_0"]
    decoder = tiny(MQA, 9)
    prompts = [prompt(4 + i, n, MQA) for i, n in enumerate(lengths)]
    free = [greedy_by_hand(decoder, tokens, new) for tokens in prompts]
    stop = free[0][at - 1]
    assert stop not in free[0][: at - 1] + free[1], "choose another seed"
    positions.clear()
    cache = ContiguousCache(MQA, batch_size=2, max_tokens=8, dtype=F64)
    options = {"cache": cache} if loop is generate else {}
    got = loop(decoder, prompts, max_new_tokens=new, stop_tokens=[stop], **options)
    assert got == [free[0][:at], free[1]]
    assert [len(ids) for ids in got] == row["expected"]["lengths"]
    assert got[0].count(stop) == row["expected"]["stop_tokens_in_row_0"]
    if loop is generate:
        assert [step[1][0] for step in positions] == [0, 4, 5, 6], "positions go on by one"
        # All but the last token of each row, and nothing of the steps after a row had stopped.
        assert cache.num_tokens.tolist() == [1 + at - 1, 4 + new - 1]


@pytest.mark.case("DEC-04")
def test_offsets_advance_by_the_tokens_just_written(positions: list) -> None:
    row = CASES["DEC-04"]
    decoder = tiny(MHA, 1)
    tokens = prompt(5, row["inputs"]["prompt_length"], MHA)
    logits: list[torch.Tensor] = []

    def keep(logits_BV: torch.Tensor, _: Any) -> torch.Tensor:
        logits.append(logits_BV.clone())
        return greedy(logits_BV)

    n = row["inputs"]["single_tokens"] + 1
    new = generate(decoder, tokens, max_new_tokens=n, sampler=keep)
    assert [step[0][0] for step in positions] == row["expected"]["offsets"]
    for i, got in enumerate(logits):
        want = decoder(torch.tensor([tokens + new[:i]]))[:, -1]
        torch.testing.assert_close(got, want, atol=row["tolerance"], rtol=0)


@pytest.mark.case("DEC-05")
def test_the_first_token_of_all_is_stored() -> None:
    row = CASES["DEC-05"]["inputs"]
    arch = Architecture("one", 1, 12, 4, 2, 6, 20, 23, 30)
    decoder = tiny(arch, 2)
    tokens = prompt(0, row["prompt_length"], arch)
    cache = ContiguousCache(arch, max_tokens=9, dtype=F64)
    new = generate(decoder, tokens, max_new_tokens=row["max_new_tokens"], cache=cache)
    k, v = cache.read(0)
    layer = decoder.layers[0]
    x = decoder.embed.weight[tokens[0]]
    x = x / (x.pow(2).mean() + arch.norm_eps).sqrt() * layer.attention_norm.weight
    # At position 0 the rotation is the identity.
    for got, projection in ((k, layer.attention.k), (v, layer.attention.v)):
        want = (projection.weight @ x).reshape(2, 6)
        torch.testing.assert_close(got[0, :, 0], want, atol=1e-10, rtol=0)
        assert want.abs().min() > 0
    assert new == greedy_by_hand(decoder, tokens, row["max_new_tokens"])
    assert k.shape[2] == len(tokens) + len(new) - 1
    element = k.element_size()
    assert cache.num_bytes == 2 * 1 * 2 * 9 * 6 * element


@pytest.mark.case("DEC-07")
def test_a_row_does_not_depend_on_its_batch_where_the_margin_is_clear() -> None:
    row = CASES["DEC-07"]
    small, large = row["inputs"]["batches"]
    margin = row["expected"]["margin"]
    prompts = [prompt(i, 3 + i) for i in range(large)]
    exact = [generate(tiny(GQA, 6), tokens, max_new_tokens=9) for tokens in prompts]
    assert generate(tiny(GQA, 6), prompts, max_new_tokens=9) == exact
    decoder = tiny(GQA, 6, torch.float32)
    compared = 0
    padded = torch.tensor([tokens + [0] * (10 - len(tokens)) for tokens in prompts])
    lengths = [len(tokens) for tokens in prompts]
    together = decoder(padded, lengths_B=lengths)
    for i, n in enumerate(lengths):
        alone = decoder(padded[i : i + small, :n])[0]
        torch.testing.assert_close(together[i, :n], alone, atol=row["tolerance"], rtol=0)
        best = alone.topk(2, dim=-1).values
        clear = best[:, 0] - best[:, 1] > margin
        same = together[i, :n].argmax(-1) == alone.argmax(-1)
        assert same[clear].all()
        compared += int(clear.sum())
    assert compared > 0.9 * sum(lengths)


# --- stopping, streaming, sampling ----------------------------------------------------------


@loops
@pytest.mark.parametrize("new", [0, 1, 2])
def test_few_new_tokens(loop: Any, new: int) -> None:
    decoder = tiny(GQA)
    tokens = prompt(0, 5)
    want = greedy_by_hand(decoder, tokens, new)
    assert loop(decoder, tokens, max_new_tokens=new) == want
    assert loop(decoder, torch.tensor(tokens), max_new_tokens=new) == want
    assert loop(decoder, [tokens], max_new_tokens=new) == [want]
    assert loop(decoder, torch.tensor([tokens, tokens]), max_new_tokens=new) == [want, want]
    assert loop(decoder, [torch.tensor(tokens), tokens[:2]], max_new_tokens=new)[0] == want


@loops
@pytest.mark.parametrize(
    "prompts", [np.array([[3, 1], [4, 5]]), [np.array([3, 1]), np.array([4, 5])]]
)
def test_arrays_are_prompts(loop: Any, prompts: Any) -> None:
    assert loop(tiny(GQA), prompts, max_new_tokens=3) == loop(
        tiny(GQA), [[3, 1], [4, 5]], max_new_tokens=3
    )
    assert loop(tiny(GQA), prompts[0], max_new_tokens=3) == loop(
        tiny(GQA), [3, 1], max_new_tokens=3
    )


@loops
def test_the_prompt_is_left_alone(loop: Any) -> None:
    tokens, many = prompt(0, 5), [prompt(1, 3), prompt(2, 4)]
    loop(tiny(GQA), tokens, max_new_tokens=3)
    loop(tiny(GQA), many, max_new_tokens=3)
    assert (tokens, many) == (prompt(0, 5), [prompt(1, 3), prompt(2, 4)])


@loops
def test_stop_tokens_end_a_row_at_their_first_appearance(loop: Any) -> None:
    decoder = tiny(GQA, 8)
    tokens = prompt(1, 4)
    free = greedy_by_hand(decoder, tokens, 12)
    for stop in ([free[0]], [free[4]], [free[7], free[3]], tuple(set(range(37)) - set(free)), []):
        first = min([free.index(s) for s in stop if s in free], default=11)
        got = loop(decoder, tokens, max_new_tokens=12, stop_tokens=stop)
        assert got == free[: first + 1]
    # A stop token in the prompt does not stop anything.
    inside = [tokens[0]] if tokens[0] not in free else []
    assert inside, "choose another seed"
    assert loop(decoder, tokens, max_new_tokens=12, stop_tokens=inside) == free


@loops
def test_every_token_is_announced_in_order(loop: Any) -> None:
    decoder = tiny(MQA, 9)
    prompts = [prompt(4, 1, MQA), prompt(5, 4, MQA), prompt(6, 2, MQA)]
    free = [greedy_by_hand(decoder, tokens, 4) for tokens in prompts]
    stop = free[0][1]
    calls: list[tuple[int, int]] = []
    result = loop(
        decoder,
        prompts,
        max_new_tokens=4,
        stop_tokens=[stop],
        on_token=lambda row, token: calls.append((row, token)),
    )
    for row, ids in enumerate(result):
        assert [token for r, token in calls if r == row] == ids
    # Step by step, rows in order within a step.
    want = [
        (row, ids[step]) for step in range(4) for row, ids in enumerate(result) if step < len(ids)
    ]
    assert calls == want
    assert len(result[0]) == 2


def test_a_token_is_announced_before_the_next_is_computed() -> None:
    decoder = tiny(GQA)
    log: list[str] = []

    def sampler(logits_BV: torch.Tensor, _: Any) -> torch.Tensor:
        log.append("sample")
        return greedy(logits_BV)

    generate(
        decoder,
        prompt(0, 3),
        max_new_tokens=3,
        sampler=sampler,
        on_token=lambda *_: log.append("announce"),
    )
    assert log == ["sample", "announce"] * 3


@loops
def test_sampling_is_reproducible_and_follows_the_generator(loop: Any) -> None:
    decoder = tiny(GQA, 2)
    options = {"max_new_tokens": 15, "sampler": Sampler(temperature=1.4)}
    prompts = [prompt(0, 5), prompt(1, 2)]
    first = loop(decoder, prompts, generator=seeded(1), **options)
    assert first == loop(decoder, prompts, generator=seeded(1), **options)
    assert first != loop(decoder, prompts, generator=seeded(2), **options)
    assert first != loop(decoder, prompts, max_new_tokens=15)


def test_a_sampler_sees_the_logits_behind_each_rows_last_token() -> None:
    decoder = tiny(GQA, 2)
    prompts = [prompt(0, 5), prompt(1, 2)]
    seen: list[torch.Tensor] = []

    def sampler(logits_BV: torch.Tensor, generator: Any) -> torch.Tensor:
        assert generator is given_generator
        seen.append(logits_BV.clone())
        return greedy(logits_BV)

    given_generator = seeded(0)
    generate(decoder, prompts, max_new_tokens=1, sampler=sampler, generator=given_generator)
    for row, tokens in enumerate(prompts):
        want = decoder(torch.tensor([tokens]))[0, -1]
        torch.testing.assert_close(seen[0][row], want, atol=1e-10, rtol=0)


# --- a given cache --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["contiguous", "concatenating"])
def test_a_given_cache_is_continued(kind: str) -> None:
    decoder = tiny(GQA, 4)
    tokens = prompt(0, 11)
    cache: Any = ContiguousCache(GQA, max_tokens=22, dtype=F64)
    if kind == "concatenating":
        cache = ConcatenatingCache(GQA, dtype=F64)
    first = generate(decoder, tokens[:6], max_new_tokens=4, cache=cache)
    assert cache.num_tokens.tolist() == [9], "all but the last new token"
    follow = [first[-1], *tokens[6:]]
    second = generate(decoder, follow, max_new_tokens=8, cache=cache)
    whole = tokens[:6] + first + tokens[6:]
    assert second == greedy_by_hand(decoder, whole, 8)
    assert cache.num_tokens.tolist() == [22], "filled to the last slot"


def test_a_cache_of_even_rows_is_refused_where_rows_may_end_apart() -> None:
    decoder = tiny(GQA, 4)
    prompts = [prompt(0, 5), prompt(1, 5)]
    cache = ConcatenatingCache(GQA, batch_size=2, dtype=F64)
    with pytest.raises(ValueError, match=r"rows of one length: .* stop tokens \[3\] may end apart"):
        generate(decoder, prompts, max_new_tokens=4, cache=cache, stop_tokens=[3])
    with pytest.raises(ValueError, match=r"rows of one length: prompts of lengths \[5, 4\]"):
        generate(decoder, [prompts[0], prompts[1][:4]], max_new_tokens=4, cache=cache)
    assert cache.num_tokens.tolist() == [0, 0]
    want = [greedy_by_hand(decoder, row, 4) for row in prompts]
    assert generate(decoder, prompts, max_new_tokens=4, cache=cache) == want
    one = ConcatenatingCache(GQA, dtype=F64)
    stopped = generate(decoder, prompts[0], max_new_tokens=4, cache=one, stop_tokens=[want[0][1]])
    assert stopped == want[0][: want[0].index(want[0][1]) + 1]


@pytest.mark.parametrize("token", [-1, GQA.vocab_size])
@loops
def test_a_sampler_that_leaves_the_vocabulary_is_named(loop: Any, token: int) -> None:
    def sampler(logits_BV: torch.Tensor, generator: object = None) -> torch.Tensor:
        return torch.full((len(logits_BV),), token)

    with pytest.raises(ValueError, match=f"the sampler returned {token}, the vocabulary has 37"):
        loop(tiny(GQA, 4), [1, 2], max_new_tokens=3, sampler=sampler)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (torch.tensor([3]), r"torch.int64 of shape \(1,\)"),
        (torch.tensor(3), r"torch.int64 of shape \(\)"),
        (torch.tensor([3, 4, 5]), r"torch.int64 of shape \(3,\)"),
        (torch.tensor([[3], [4]]), r"torch.int64 of shape \(2, 1\)"),
        (torch.tensor([3.0, 4.0]), r"torch.float32 of shape \(2,\)"),
        (torch.tensor([True, False]), r"torch.bool of shape \(2,\)"),
        ([3, 4], r"\[3, 4\]"),
    ],
)
@loops
def test_a_sampler_returns_one_integer_a_row(loop: Any, returned: torch.Tensor, said: str) -> None:
    message = rf"one integer a row, a tensor of shape \(2,\), got {said}"
    with pytest.raises(ValueError, match=message):
        loop(tiny(GQA, 4), [[1, 2], [5]], max_new_tokens=3, sampler=lambda *_: returned)


def test_a_given_cache_with_ragged_rows_is_continued() -> None:
    decoder = tiny(GQA, 4)
    prompts = [prompt(0, 7), prompt(1, 3)]
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=20, dtype=F64)
    first = generate(decoder, prompts, max_new_tokens=3, cache=cache)
    then = [[first[0][-1], 5], [first[1][-1], 6, 7, 8]]
    second = generate(decoder, then, max_new_tokens=5, cache=cache)
    for row in range(2):
        whole = prompts[row] + first[row] + then[row][1:]
        assert second[row] == greedy_by_hand(decoder, whole, 5)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
def test_a_cache_of_another_dtype_can_be_given(kept: torch.dtype) -> None:
    decoder = tiny(GQA, 4)
    cache = ContiguousCache(GQA, max_tokens=30, dtype=kept)
    assert len(generate(decoder, prompt(0, 5), max_new_tokens=4, cache=cache)) == 4
    assert cache.read(0)[0].dtype == kept


def test_without_a_cache_no_more_slots_are_reserved_than_needed() -> None:
    made: list[tuple[int, int]] = []

    class Counting(Decoder):
        def forward(self, tokens_BT: torch.Tensor, **options: Any) -> torch.Tensor:
            cache = options["cache"]
            made.append((cache.max_tokens, cache.num_bytes))
            return super().forward(tokens_BT, **options)

    decoder = Counting(GQA).requires_grad_(False)
    generate(decoder, [prompt(0, 7), prompt(1, 3)], max_new_tokens=5)
    assert {slots for slots, _ in made} == {11}


# --- what is refused ------------------------------------------------------------------------

ROOM = GQA.max_context
BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "empty prompt": ([], {}, "prompt 0 is empty"),
    "empty tensor": (torch.tensor([], dtype=torch.long), {}, "prompt 0 is empty"),
    "empty row": ([[1, 2], []], {}, "prompt 1 is empty"),
    "id too high": ([1, 37], {}, "token id 37 is outside the vocabulary of 37"),
    "id negative": ([[1], [-2]], {}, "token id -2 is outside"),
    "floats": ([1.5, 2.0], {}, "1.5"),
    "float tensor": (torch.ones(3), {}, "integers, got torch.float32"),
    "bool tensor": (torch.ones(3, dtype=torch.bool), {}, "integers, got torch.bool"),
    "float array": (np.ones(3), {}, "integers, got torch.float64"),
    "array of text": (np.array([["a", "b"]] * 2), {}, "token ids must be integers, got an array"),
    "float rows": ([np.array([1.5])], {}, "token ids must be integers"),
    "three axes": (torch.ones(1, 1, 3, dtype=torch.long), {}, r"shape \(1, 1, 3\)"),
    "negative count": ([1], {"max_new_tokens": -1}, "at least 0, got -1"),
    "fractional count": ([1], {"max_new_tokens": 2.0}, "must be an integer, got 2.0"),
    "fractional stop token": (
        [1],
        {"stop_tokens": [2.5]},
        "stop_tokens must hold integers, got 2.5",
    ),
    "a mapping": ({"input_ids": [1]}, {}, "token ids must be integers"),
    "boolean count": ([1], {"max_new_tokens": True}, "must be an integer, got True"),
    "context": (
        [1] * 45,
        {"max_new_tokens": 7},
        "45 tokens and 7 new ones need 51 slots, the context has 50",
    ),
}


@loops
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_work(loop: Any, name: str) -> None:
    tokens, options, message = BAD[name]
    decoder = tiny(GQA)
    decoder.forward = None  # type: ignore[assignment]  # any work would be a TypeError
    with pytest.raises(ValueError, match=message) as caught:
        loop(decoder, tokens, **{"max_new_tokens": 2, **options})
    assert "\n" not in str(caught.value)


@loops
def test_the_context_can_be_filled(loop: Any) -> None:
    got = loop(tiny(GQA), [1] * 45, max_new_tokens=6)
    assert len(got) == 6


@pytest.mark.parametrize(
    ("tokens", "new", "message"),
    [
        ([1, 2, 3, 4], 3, "a prompt of 9 tokens and 3 new ones need 11 slots, the cache has 10"),
        ([[1], [2]], 1, "the cache has 1 rows, there are 2 prompts"),
        ([1, 99], 1, "token id 99"),
        ([], 1, "empty"),
    ],
)
def test_a_given_cache_is_left_alone_by_a_refusal(tokens: list, new: int, message: str) -> None:
    decoder = tiny(GQA)
    cache = ContiguousCache(GQA, max_tokens=10, dtype=F64)
    decoder(torch.tensor([prompt(0, 5)]), cache=cache)
    before = [x.clone() for x in cache.read(1)]
    with pytest.raises(ValueError, match=message):
        generate(decoder, tokens, max_new_tokens=new, cache=cache)
    assert cache.num_tokens.tolist() == [5]
    assert all(torch.equal(a, b) for a, b in zip(before, cache.read(1), strict=True))


@pytest.mark.parametrize("where", ["sampler", "on_token", "forward"])
def test_a_failure_on_the_way_leaves_a_given_cache_as_it_was(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = tiny(GQA)
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=30, dtype=F64)
    decoder(token_ids(0, 37, 2, 5), cache=cache, lengths_B=[5, 2])
    before = [x[row, :, :n].clone() for x in cache.read(1) for row, n in enumerate([5, 2])]
    calls = []

    def third_time_fails(*arguments: Any) -> torch.Tensor | None:
        calls.append(where)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return greedy(arguments[0]) if where == "sampler" else None

    options: dict[str, Any] = {} if where == "forward" else {where: third_time_fails}
    if where == "forward":
        monkeypatch.setattr(refimpl_model, "rotary_table", third_rotation_fails(calls))
    with pytest.raises(KeyboardInterrupt):
        generate(decoder, [[1, 2, 3], [4]], max_new_tokens=6, cache=cache, **options)
    assert len(calls) == 3
    assert cache.num_tokens.tolist() == [5, 2]
    after = [x[row, :, :n] for x in cache.read(1) for row, n in enumerate([5, 2])]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def third_rotation_fails(calls: list) -> Any:
    def table(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append("rotation")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rotary_table(*arguments)

    return table


def test_generation_records_no_gradients() -> None:
    decoder = Decoder(GQA)
    assert next(decoder.parameters()).requires_grad
    cache = ContiguousCache(GQA, max_tokens=9)
    generate(decoder, [1, 2, 3], max_new_tokens=3, cache=cache)
    assert not cache.read(0)[0].requires_grad
