"""Several samples from one prompt: the law of each, the passes made, the cache left behind."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from oracles import GQA, MQA, hf_twin, seeded, tiny, token_ids
from scipy import stats
from torch import Tensor

from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.decode import generate, generate_samples
from refimpl.model import Decoder
from refimpl.model import decoder as refimpl_model
from refimpl.rope import rotary_table
from refimpl.sampling import Sampler, greedy

F64 = torch.float64


def prompt(seed: int, length: int) -> list[int]:
    return token_ids(seed, GQA.vocab_size, length).tolist()


class ByTable:
    """Draws by inverse transform from numbers given in advance: one for each step and row."""

    def __init__(self, uniform_TB: Tensor) -> None:
        self.uniform_TB, self.step = uniform_TB, 0

    def __call__(self, logits_BV: Tensor, _: Any) -> Tensor:
        cumulative_BV = logits_BV.softmax(-1).cumsum(-1)
        u_B1 = self.uniform_TB[self.step, :, None]
        self.step += 1
        return (cumulative_BV <= u_B1).sum(-1).clamp(max=logits_BV.shape[-1] - 1)


@pytest.mark.parametrize("num_samples", [1, 2, 5])
@pytest.mark.parametrize("kind", ["made", "given", "continued"])
def test_each_sample_is_the_generation_of_its_own_random_numbers(
    num_samples: int, kind: str
) -> None:
    decoder, tokens, new = tiny(GQA, 5), prompt(0, 6), 7
    uniform_TB = torch.rand(new, num_samples, generator=seeded(3), dtype=F64)
    cache = None
    start = 4 if kind == "continued" else 0
    if kind != "made":
        cache = ContiguousCache(GQA, max_tokens=12, dtype=F64)
    if start:
        decoder(torch.tensor([tokens[:start]]), cache=cache)
    options: dict[str, Any] = {"max_new_tokens": new, "stop_tokens": [4, 17, 30]}
    got = generate_samples(
        decoder,
        tokens[start:],
        num_samples=num_samples,
        sampler=ByTable(uniform_TB),
        cache=cache,
        **options,
    )
    want = [
        generate(decoder, tokens, sampler=ByTable(uniform_TB[:, i : i + 1]), **options)
        for i in range(num_samples)
    ]
    assert got == want
    if num_samples == 5:
        assert len(set(map(tuple, got))) == 5
        assert len(set(map(len, got))) > 1, "some stop early"


def test_two_tokens_follow_the_exact_law() -> None:
    decoder = tiny(dataclasses.replace(MQA, vocab_size=5), 3)
    tokens = [2, 0, 3]
    sampler = Sampler(temperature=2.0)
    n = 4000
    got = generate_samples(
        decoder, tokens, num_samples=n, max_new_tokens=2, sampler=sampler, generator=seeded(8)
    )
    twin = hf_twin(decoder)
    logits = twin(torch.tensor([[*tokens, first] for first in range(5)])).logits / 2.0
    first_V = logits[0, -2].softmax(-1)
    law_VV = first_V[:, None] * logits[:, -1].softmax(-1)
    counts_VV = torch.zeros(5, 5)
    for first, second in got:
        counts_VV[first, second] += 1
    assert (law_VV * n).min() > 5
    assert stats.chisquare(counts_VV.flatten(), (law_VV * n).flatten()).pvalue > 1e-3
    # Neighbouring rows are independent: the pairs of first tokens follow the product.
    pairs_VV = torch.zeros(5, 5)
    for (left, _), (right, _) in zip(got[::2], got[1::2], strict=True):
        pairs_VV[left, right] += 1
    product_VV = first_V[:, None] * first_V * n / 2
    keep = product_VV > 5
    statistic = ((pairs_VV - product_VV)[keep] ** 2 / product_VV[keep]).sum()
    assert stats.chi2.sf(float(statistic), int(keep.sum()) - 1) > 1e-3


def test_each_row_sees_the_logits_of_its_own_tokens() -> None:
    decoder, tokens = tiny(GQA, 2), prompt(1, 5)
    seen: list[Tensor] = []
    sampler = Sampler(temperature=1.5)

    def spy(logits_BV: Tensor, generator: Any) -> Tensor:
        assert generator is given
        seen.append(logits_BV.clone())
        return sampler(logits_BV, generator)

    given = seeded(0)
    got = generate_samples(
        decoder, tokens, num_samples=4, max_new_tokens=6, sampler=spy, generator=given
    )
    assert len(set(map(tuple, got))) == 4
    for row, new in enumerate(got):
        want = decoder(torch.tensor([tokens + new[:-1]]))[0, len(tokens) - 1 :]
        torch.testing.assert_close(
            torch.stack([logits[row] for logits in seen]), want, atol=1e-10, rtol=0
        )


def test_the_prompt_goes_through_the_model_once_in_one_row() -> None:
    passes: list[tuple[int, ...]] = []

    class Watched(Decoder):
        def forward(self, tokens_BT: Tensor, **options: Any) -> Tensor:
            passes.append(tuple(tokens_BT.shape))
            return super().forward(tokens_BT, **options)

    decoder = Watched(GQA).requires_grad_(False)
    generate_samples(decoder, prompt(0, 9), num_samples=6, max_new_tokens=4)
    assert passes == [(1, 9), (6, 1), (6, 1), (6, 1)]


def test_without_a_sampler_all_samples_are_greedy() -> None:
    decoder, tokens = tiny(GQA, 8), prompt(1, 4)
    free = generate(decoder, tokens, max_new_tokens=9)
    announced: list[tuple[int, int]] = []
    got = generate_samples(
        decoder,
        torch.tensor(tokens),
        num_samples=3,
        max_new_tokens=9,
        stop_tokens=[free[6]],
        on_token=lambda row, token: announced.append((row, token)),
    )
    want = free[: free.index(free[6]) + 1]
    assert got == [want] * 3
    assert announced == [(row, token) for token in want for row in range(3)]


def test_the_generator_decides() -> None:
    decoder, tokens = tiny(GQA, 2), prompt(0, 5)
    options: dict[str, Any] = {"num_samples": 3, "max_new_tokens": 12, "sampler": Sampler()}
    first = generate_samples(decoder, tokens, generator=seeded(1), **options)
    assert first == generate_samples(decoder, tokens, generator=seeded(1), **options)
    assert first != generate_samples(decoder, tokens, generator=seeded(2), **options)
    assert tokens == prompt(0, 5), "the prompt is left alone"


def test_the_cache_is_left_with_a_row_for_each_sample() -> None:
    decoder, tokens = tiny(GQA, 4), prompt(0, 5)
    cache = ContiguousCache(GQA, max_tokens=30, dtype=F64)
    first = generate_samples(
        decoder,
        tokens,
        num_samples=3,
        max_new_tokens=8,
        sampler=Sampler(temperature=2.0),
        generator=seeded(5),
        stop_tokens=[1, 4, 11, 25],
        cache=cache,
    )
    assert len(set(map(len, first))) > 1
    assert cache.num_tokens.tolist() == [5 + len(new) - 1 for new in first]
    follow = [[new[-1], 7, row] for row, new in enumerate(first)]
    second = generate(decoder, follow, max_new_tokens=4, cache=cache)
    for new, then, got in zip(first, follow, second, strict=True):
        assert got == generate(decoder, tokens + new + then[1:], max_new_tokens=4)


def test_nothing_runs_for_no_new_tokens() -> None:
    cache = ContiguousCache(GQA, max_tokens=9, dtype=F64)
    decoder = tiny(GQA)
    decoder.forward = None  # type: ignore[assignment]  # any work would be a TypeError
    got = generate_samples(decoder, [1, 2], num_samples=2, max_new_tokens=0, cache=cache)
    assert got == [[], []]
    assert cache.num_tokens.tolist() == [0]


@pytest.mark.parametrize("where", ["forward", "sampler", "on_token", "reorder"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_failure_on_the_way_leaves_a_given_cache_as_it_was(
    where: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = tiny(GQA, 4)
    cache = ContiguousCache(GQA, max_tokens=30, dtype=F64)
    decoder(torch.tensor([prompt(0, 5)]), cache=cache)
    before = [x.clone() for x in cache.read(1)]
    calls: list[str] = []

    def failing(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(where)
            if len(calls) == (1 if where == "reorder" else call):
                raise KeyboardInterrupt
            return function(*arguments)

        return called

    options: dict[str, Any] = {}
    if where == "forward":
        monkeypatch.setattr(refimpl_model, "rotary_table", failing(rotary_table))
    elif where == "reorder":
        monkeypatch.setattr(cache, "reorder", failing(cache.reorder))
    else:
        options[where] = failing({"sampler": lambda x, _: greedy(x), "on_token": print}[where])
    with pytest.raises(KeyboardInterrupt):
        generate_samples(decoder, [1, 2], num_samples=3, max_new_tokens=6, cache=cache, **options)
    assert calls
    assert cache.num_tokens.tolist() == [5]
    assert all(map(torch.equal, before, cache.read(1)))


def test_a_sampler_returns_one_token_a_sample() -> None:
    cache = ContiguousCache(GQA, max_tokens=6, dtype=F64)
    message = r"one integer a row, a tensor of shape \(3,\), got torch.int64 of shape \(1,\)"
    with pytest.raises(ValueError, match=message):
        generate_samples(
            tiny(GQA, 4),
            [1, 2],
            num_samples=3,
            max_new_tokens=4,
            sampler=lambda *_: torch.tensor([3]),
            cache=cache,
        )
    assert cache.num_tokens.tolist() == [0]


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no samples": ([1], {"num_samples": 0}, "num_samples must be at least 1, got 0"),
    "boolean": ([1], {"num_samples": True}, "num_samples must be an integer, got True"),
    "fractional": ([1], {"num_samples": 1.5}, "num_samples must be an integer, got 1.5"),
    "empty": ([], {}, "prompt 0 is empty"),
    "several": ([[1], [2]], {}, "samples are drawn from one prompt, got a list of 2"),
    "a list of one": ([[1]], {}, "samples are drawn from one prompt, got a list of 1"),
    "id": ([99], {}, "token id 99"),
    "negative": ([1], {"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
    "context": ([1] * 50, {}, "need 51 slots, the context has 50"),
    "cache room": (
        [1] * 4,
        {"cache": ContiguousCache(GQA, max_tokens=4, dtype=F64)},
        "need 5 slots, the cache has 4",
    ),
    "cache rows": (
        [1],
        {"cache": ContiguousCache(GQA, batch_size=2, max_tokens=4, dtype=F64)},
        "the cache has 2 rows, there are 1 prompts",
    ),
    "even cache": (
        [1],
        {"cache": ConcatenatingCache(GQA, dtype=F64), "stop_tokens": [3]},
        r"rows of one length: prompts of lengths \[1, 1\] with stop tokens \[3\] may end apart",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_work(name: str) -> None:
    tokens, options, message = BAD[name]
    decoder = tiny(GQA)
    decoder.forward = None  # type: ignore[assignment]  # any work would be a TypeError
    with pytest.raises(ValueError, match=message) as caught:
        generate_samples(decoder, tokens, **{"num_samples": 2, "max_new_tokens": 2, **options})
    assert "\n" not in str(caught.value)


def test_a_cache_of_even_rows_serves_samples_that_end_together() -> None:
    decoder, tokens = tiny(GQA, 4), prompt(0, 5)
    options: dict[str, Any] = {"num_samples": 3, "max_new_tokens": 4, "sampler": Sampler()}
    cache = ConcatenatingCache(GQA, dtype=F64)
    got = generate_samples(decoder, tokens, generator=seeded(1), cache=cache, **options)
    assert got == generate_samples(decoder, tokens, generator=seeded(1), **options)
    assert cache.num_tokens.tolist() == [8, 8, 8]
