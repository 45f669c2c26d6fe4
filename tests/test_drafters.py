"""Drafters: what they propose, what their caches hold, and the real model with each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import GQA, MQA, rows, seeded, tiny, token_ids
from torch import Tensor

from refimpl import weights
from refimpl.architecture import Architecture
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.decode import generate
from refimpl.drafters import (
    ModelDrafter,
    PromptLookup,
    one_hot,
    quantised_self,
    skipped_layers,
    without_layers,
)
from refimpl.model import Decoder, fuse
from refimpl.sampling import Sampler, greedy
from refimpl.speculative import generate_speculative
from refimpl.weights import Tokenizer

CASES = rows("cases_speculative.json")
F64 = torch.float64


def best(row: int, logits_V: Tensor, history: Sequence[int]) -> tuple[int, None]:
    return int(greedy(logits_V[None])), None


# --- prompt lookup ----------------------------------------------------------------------------


@pytest.mark.case("SPEC-13")
def test_lookup_copies_what_followed_before() -> None:
    row = CASES["SPEC-13"]
    ids, n, count = (row["inputs"][key] for key in ("ids", "ngram", "count"))
    drafter = PromptLookup(max_ngram=n, min_ngram=n)
    assert drafter.lookup(ids, count) == row["expected"]["draft"]
    stopping = PromptLookup(max_ngram=n, min_ngram=n, stop_tokens=[row["inputs"]["stop"]])
    assert stopping.lookup(ids, count) == row["expected"]["stopped"]
    for either in (drafter, PromptLookup(max_ngram=n)):
        assert either.lookup(row["inputs"]["short"], count) == row["expected"]["short"]
        assert either.lookup(row["inputs"]["unmatched"], count) == row["expected"]["unmatched"]


def by_definition(ids: list[int], low: int, high: int, count: int) -> list[int]:
    """All earlier places of the longest end that has one; the latest with enough behind it."""
    for size in range(high, low - 1, -1):
        places = [
            stop
            for stop in range(size, len(ids))
            if size < len(ids) and ids[stop - size : stop] == ids[len(ids) - size :]
        ]
        if places:
            enough = [stop for stop in places if len(ids) - stop >= count]
            stop = max(enough) if enough else min(places)
            return ids[stop : stop + count]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 5),
)
def test_lookup_follows_its_definition(ids: list[int], low: int, more: int, count: int) -> None:
    drafter = PromptLookup(min_ngram=low, max_ngram=low + more)
    kept = list(ids)
    found = drafter.lookup(ids, count)
    assert found == by_definition(ids, low, low + more, count)
    assert drafter.lookup(tuple(ids), count) == found and ids == kept
    assert drafter.lookup(ids, 0) == []


def test_lookup_proposes_for_each_row_and_is_certain() -> None:
    drafter = PromptLookup()
    drafter.start(3, 99)
    one, two, three = drafter.propose([[1, 2, 3, 1], [4, 4], [5, 6]], [2, 3, 4], best)
    assert (one.tokens, one.probs) == ([2, 3], [None, None])
    assert two.tokens == [4] and three.tokens == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_ngram": 0}, "max_ngram must be an integer of at least 1, got 0"),
        ({"min_ngram": True}, "got True"),
        ({"max_ngram": 2.0}, "got 2.0"),
        ({"min_ngram": 4}, "min_ngram is 4, above max_ngram = 3"),
    ],
)
def test_lookup_refuses_bad_lengths(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PromptLookup(**options)


# --- a model with a cache ---------------------------------------------------------------------


@pytest.mark.case("SPEC-08")
@pytest.mark.parametrize("kind", [ContiguousCache, ConcatenatingCache])
def test_the_last_draft_of_an_accepted_block_is_written(kind: Any) -> None:
    row = CASES["SPEC-08"]
    gamma, count = row["inputs"]["gamma"], row["inputs"]["rounds"]
    model = tiny(GQA, 3)
    text = token_ids(2, 37, row["inputs"]["prompt_length"]).tolist()
    room = {"max_tokens": 40} if kind is ContiguousCache else {}
    drafter = ModelDrafter(
        tiny(GQA, 3), make_cache=lambda B, n: kind(GQA, batch_size=B, dtype=F64, **room)
    )
    seen: list[tuple[int, list[int]]] = []
    plain = drafter.propose

    def watched(texts: Any, counts: Any, choose: Any) -> Any:
        def choosing(row: int, logits_V: Tensor, history: Sequence[int]) -> tuple[int, None]:
            # Behind every draft: all tokens before it are stored, each once and in its place.
            assert drafter.cache.num_tokens.tolist() == [len(history)]
            want = model(torch.tensor([list(history)]))[0, -1]
            torch.testing.assert_close(logits_V, want, rtol=0, atol=row_tolerance)
            return best(row, logits_V, history)

        drafts = plain(texts, counts, choosing)
        seen.append((len(texts[0]), drafts[0].tokens))
        return drafts

    row_tolerance = row["tolerance"]
    drafter.propose = watched
    new = row["expected"]["tokens_a_round"] * count
    done = generate_speculative(model, drafter, text, max_new_tokens=new, gamma=gamma)
    assert done.tokens == generate(model, text, max_new_tokens=new)
    assert [one.emitted for one in done.rounds[0]] == [row["expected"]["tokens_a_round"]] * count
    assert done.accepted == done.proposed == gamma * count
    assert [len(drafts) for _, drafts in seen] == [gamma] * count
    assert [committed for committed, _ in seen] == [len(text) + 4 * i for i in range(count)]
    # Brought level with what was committed, the cache holds all but the last token.
    whole = [*text, *done.tokens]
    plain([whole], [1], best)
    assert drafter.cache.num_tokens.tolist() == [len(whole)]
    fresh = ContiguousCache(GQA, max_tokens=40, dtype=F64)
    model(torch.tensor([whole]), cache=fresh)
    for layer in range(GQA.num_layers):
        for one, two in zip(drafter.cache.read(layer), fresh.read(layer), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=row["tolerance"])


def test_drafts_are_those_of_the_model_whatever_was_rejected() -> None:
    model = tiny(MQA, 4)
    drafter = ModelDrafter(model)
    drafter.start(2, 40)
    texts = [token_ids(1, 29, 4).tolist(), token_ids(2, 29, 7).tolist()]
    for step in range(8):
        counts = [3, step % 4]
        drafts = drafter.propose(texts, counts, best)
        for text, count, draft in zip(texts, counts, drafts, strict=True):
            assert draft.tokens == (generate(model, text, max_new_tokens=count) if count else [])
            # Keep some, refuse the next, and add another: what the target might do.
            kept = draft.tokens[: step % (count + 1)]
            text += [*kept, (5 * step + 3) % 29]
    drafter.propose([[1, 2], [3]], [2, 2], best)
    assert drafter.propose([[1, 2], [3]], [0, 0], best)[0].tokens == []


def test_a_decoder_for_the_prompt_fills_the_cache_and_drafts_nothing() -> None:
    model, other = tiny(GQA, 3), tiny(GQA, 4)
    drafter = ModelDrafter(other, prefill=model)
    text = token_ids(1, 37, 15).tolist()
    drafter.start(1, 40)
    (draft,) = drafter.propose([text], [3], best)
    cache = ContiguousCache(GQA, max_tokens=40, dtype=F64)
    model(torch.tensor([text[:-1]]), cache=cache)
    assert draft.tokens == generate(other, text[-1:], max_new_tokens=3, cache=cache)
    # A few tokens are the draft's own business.
    drafter.start(1, 40)
    assert drafter.propose([text[:5]], [3], best)[0].tokens == generate(
        other, text[:5], max_new_tokens=3
    )
    with pytest.raises(ValueError, match="prefill must have the shape of the draft gqa"):
        ModelDrafter(model, prefill=tiny(MQA))


def test_a_drafter_is_started_and_has_room() -> None:
    drafter = ModelDrafter(tiny(GQA))
    with pytest.raises(ValueError, match="start the drafter for 1 rows"):
        drafter.propose([[1]], [1], best)
    drafter.start(2, 9)
    with pytest.raises(ValueError, match="start the drafter for 1 rows"):
        drafter.propose([[1]], [1], best)
    with pytest.raises(ValueError, match="grow to 51 tokens, the context of the draft gqa is 50"):
        drafter.start(1, 51)


def test_a_draft_with_a_shorter_context_is_refused_before_any_work() -> None:
    short = Architecture("short", 1, 12, 4, 2, 6, 20, GQA.vocab_size, 10)
    cache = ContiguousCache(GQA, max_tokens=20, dtype=F64)
    with pytest.raises(ValueError, match="context of the draft short is 10"):
        generate_speculative(
            tiny(GQA), ModelDrafter(tiny(short)), [1, 2, 3], max_new_tokens=9, cache=cache
        )
    assert cache.num_tokens.tolist() == [0]


def test_without_layers_is_the_decoder_of_the_others() -> None:
    model = tiny(Architecture("deep", 5, 12, 4, 2, 6, 20, 23, 40), 2)
    shorter = without_layers(model, [1, 3])
    assert shorter.arch.num_layers == 3 and model.arch.num_layers == 5 == len(model.layers)
    alone = tiny(shorter.arch)
    kept = {0: 0, 2: 1, 4: 2}
    state = {
        name.replace(f"layers.{old}.", f"layers.{new}."): x
        for old, new in kept.items()
        for name, x in model.state_dict().items()
        if name.startswith(f"layers.{old}.")
    }
    state |= {n: x for n, x in model.state_dict().items() if not n.startswith("layers.")}
    alone.load_state_dict(state)
    tokens = token_ids(1, 23, 2, 6)
    assert torch.equal(shorter(tokens), alone(tokens))
    assert shorter.layers[1].mlp.down.weight is model.layers[2].mlp.down.weight
    for wrong in ([5], [-1], range(5)):
        with pytest.raises(ValueError, match="some may be left out, not all"):
            without_layers(model, wrong)


def test_one_hot() -> None:
    assert one_hot(2, 4).tolist() == [0, 0, 1, 0]


def test_a_draft_names_the_law_it_was_drawn_from() -> None:
    """Through the sampler's filters, not the bare softmax."""
    model, sampler = tiny(GQA, 3), Sampler(temperature=0.6, top_k=4)
    drafter = ModelDrafter(tiny(GQA, 4))
    laws: list[Any] = []
    plain = drafter.propose

    def watched(texts: Any, counts: Any, choose: Any) -> Any:
        drafts = plain(texts, counts, choose)
        laws.extend(zip(texts[0:1] * len(drafts[0].tokens), drafts[0].probs, strict=True))
        return drafts

    drafter.propose = watched
    generate_speculative(
        model, drafter, [1, 2, 3], max_new_tokens=9, gamma=1, sampler=sampler, generator=seeded(1)
    )
    assert laws
    for _, probs_V in laws:
        assert int((probs_V > 0).sum()) == 4 and float(probs_V.sum()) == pytest.approx(1)


# --- the real model ---------------------------------------------------------------------------

TEXTS = (
    "The capital of France is",
    "Repeat this sentence twice: the tide turns when the moon has passed. The tide turns",
)
NEW, GAMMA = 64, 4


@pytest.fixture(scope="module")
def real() -> tuple[Decoder, Tokenizer]:
    """The real model in float32."""
    model, tokenizer = weights.load("smollm2-135m")
    return fuse(model), tokenizer


@pytest.fixture(scope="module")
def narrow() -> Decoder:
    """The real model in bfloat16, for which the kernels for codes are made."""
    return fuse(weights.load("smollm2-135m", dtype=torch.bfloat16)[0])


@pytest.fixture(scope="module")
def plain(real: tuple[Decoder, Tokenizer]) -> tuple[list[list[int]], list[list[int]], Any]:
    """The prompts, what plain decoding puts behind them, and how close the best two logits were."""
    model, tokenizer = real
    prompts = [tokenizer.encode(text) for text in TEXTS]
    margins: list[list[float]] = []

    def wary(logits_BV: Tensor, _: Any) -> Tensor:
        two = logits_BV.topk(2, dim=-1).values
        margins.append((two[:, 0] - two[:, 1]).tolist())
        return greedy(logits_BV)

    new = generate(model, prompts, max_new_tokens=NEW, sampler=wary)
    return prompts, new, margins


@pytest.fixture(scope="module")
def rounding(real: tuple[Decoder, Tokenizer], plain: Any) -> float:
    """How far logits of a pass over γ + 1 tokens are from those of single passes, measured."""
    model, prompts, new = real[0], plain[0], plain[1]
    worst = 0.0
    with torch.no_grad():
        for text, ids in zip(prompts, new, strict=True):
            caches = [
                ContiguousCache(model.arch, max_tokens=len(text) + GAMMA + 1) for _ in range(2)
            ]
            for cache in caches:
                model(torch.tensor([text]), cache=cache)
            block = ids[: GAMMA + 1]
            together = model(torch.tensor([block]), cache=caches[0])[0]
            single = [model(torch.tensor([[token]]), cache=caches[1])[0, 0] for token in block]
            worst = max(worst, float((together - torch.stack(single)).abs().max()))
    assert worst < 1e-2, "float32 rounding"
    return worst


@pytest.mark.parametrize("kind", ["int4", "int8", "skipped layers", "prompt lookup"])
def test_the_real_model_gives_the_same_ids_with_every_drafter(
    kind: str, real: tuple[Decoder, Tokenizer], narrow: Decoder, plain: Any, rounding: float
) -> None:
    model, (prompts, want, margins) = real[0], plain
    drafter: Any = PromptLookup()
    if kind == "skipped layers":
        drafter = skipped_layers(narrow, range(12, 16))
    elif kind != "prompt lookup":
        drafter = quantised_self(narrow, int(kind[-1]))
    done = generate_speculative(model, drafter, prompts, max_new_tokens=NEW, gamma=GAMMA)
    for row, (got, ids) in enumerate(zip(done.tokens, want, strict=True)):
        assert len(got) == NEW
        differ = [i for i in range(NEW) if got[i] != ids[i]]
        if differ:  # only where rounding may decide
            assert margins[differ[0]][row] <= 2 * rounding
    least = {"int4": 0.9, "int8": 0.9, "skipped layers": 0.3, "prompt lookup": 0.1}[kind]
    assert done.acceptance >= least
    assert done.target_passes < NEW
    assert done.tokens_per_round > 1
