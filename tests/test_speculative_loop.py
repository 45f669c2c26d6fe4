"""The speculative loop on tiny float64 models: the same ids, the same law, the same cache."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import GQA, MHA, MQA, TINY, normal, rows, seeded, tiny, token_ids
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.cache import ConcatenatingCache, ContiguousCache, PagedCache
from refimpl.decode import generate
from refimpl.drafters import (
    Choose,
    Draft,
    ModelDrafter,
    PromptLookup,
    quantised_self,
    skipped_layers,
)
from refimpl.model import Decoder, fuse
from refimpl.sampling import Penalties, Sampler
from refimpl.speculative import (
    accept_probability,
    generate_speculative,
    keep_path,
    residual,
    tree_logits,
    tree_mask,
    tree_positions,
)

CASES = rows("cases_speculative.json")
F64 = torch.float64


def prompt(seed: int, length: int, arch: Architecture = GQA) -> list[int]:
    return token_ids(seed, arch.vocab_size, length).tolist()


def greedy_by_hand(decoder: Decoder, tokens: Sequence[int], n: int) -> list[int]:
    """The whole text through the decoder for each token, the largest logit by Python."""
    text, new = list(tokens), []
    for _ in range(n):
        logits = decoder(torch.tensor([text]))[0, -1].tolist()
        new.append(logits.index(max(logits)))
        text.append(new[-1])
    return new


class Scripted:
    """Proposes what it is told: for each row the continuation, from where the row stands."""

    def __init__(self, *continuations: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        self.vocab_size = None
        self.whole = [[*p, *c] for p, c in zip(prompts, continuations, strict=True)]
        self.asked: list[list[int]] = []

    def start(self, batch_size: int, max_tokens: int) -> None:
        self.asked.clear()

    def propose(
        self, rows: Sequence[Sequence[int]], counts: Sequence[int], choose: Choose
    ) -> list[Draft]:
        self.asked.append(list(counts))
        tokens = [
            whole[len(row) : len(row) + count]
            for whole, row, count in zip(self.whole, rows, counts, strict=True)
        ]
        return [Draft(list(draft), [None] * len(draft)) for draft in tokens]


def drafters(model: Decoder) -> dict[str, Any]:
    """One of each kind; the smaller model has another depth, width and cache."""
    arch = model.arch
    smaller = Architecture("smaller", 1, 12, 4, 2, 6, 20, arch.vocab_size, arch.max_context)
    group = 2 if arch.model_width % 2 == 0 else 1
    return {
        "smaller model": ModelDrafter(tiny(smaller, 5)),
        "itself": ModelDrafter(model),
        "prompt lookup": PromptLookup(),
        "int8": quantised_self(model, 8),
        "int4": quantised_self(model, 4, group=group),
        "skipped layers": skipped_layers(model, [arch.num_layers - 1]),
    }


@functools.cache
def plain(name: str, length: int) -> tuple[Decoder, list[int], list[int]]:
    """A model, a prompt and the 19 tokens that plain decoding puts behind it."""
    model = tiny(TINY[name], 2 if name == "llama3" else 24)
    text = prompt(length, length, TINY[name])
    want = greedy_by_hand(model, text, 19)
    assert want == generate(model, text, max_new_tokens=19)
    assert len(set(want)) > 2
    return model, text, want


KINDS = list(drafters(tiny(GQA)))
kinds = pytest.mark.parametrize("kind", KINDS)


# --- greedy: the same ids ---------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("gamma", [0, 1, 2, 4, 7])
def test_greedy_ids_are_those_of_plain_decoding(kind: str, gamma: int) -> None:
    for name, length in (("gqa", 6), ("llama3", 1)):
        model, text, want = plain(name, length)
        drafter = drafters(model)[kind]
        done = generate_speculative(model, drafter, text, max_new_tokens=19, gamma=gamma)
        assert done.tokens == want
        assert done.finished == ["length"]
        (counts,) = done.rounds
        assert len(counts) == done.target_passes
        assert sum(one.emitted for one in counts) == 19
        assert all(one.emitted == one.accepted + 1 for one in counts)
        assert all(one.accepted <= one.proposed <= gamma for one in counts)
        if kind == "itself" and gamma:
            assert done.accepted == done.proposed > 0
            assert done.target_passes == -(-19 // (gamma + 1))
        if not gamma:
            assert (done.proposed, done.target_passes) == (0, 19)


@kinds
def test_greedy_on_every_contiguous_cache_and_on_a_fused_model(kind: str) -> None:
    model, text, want = plain("gqa", 6)
    for target, cache in (
        (fuse(model), ContiguousCache(GQA, max_tokens=24, dtype=F64)),
        (model, ConcatenatingCache(GQA, dtype=F64)),
    ):
        done = generate_speculative(
            target, drafters(model)[kind], text, max_new_tokens=19, cache=cache
        )
        assert done.tokens == want
        assert cache.num_tokens.tolist() == [24], "everything but the last new token"


@kinds
@pytest.mark.parametrize("block_size", [1, 4, 5])
def test_greedy_on_blocks(kind: str, block_size: int) -> None:
    """Both caches in blocks: what a rejection frees is taken again, and nothing is lost."""
    model, text, want = plain("gqa", 6)
    num_blocks = -(-24 // block_size)
    cache = PagedCache(GQA, num_blocks=num_blocks, block_size=block_size, dtype=F64)
    drafter = drafters(model)[kind]
    if isinstance(drafter, ModelDrafter):
        own = drafter.model.arch
        drafter = ModelDrafter(
            drafter.model,
            make_cache=lambda B, n: PagedCache(
                own, batch_size=B, num_blocks=B * n, block_size=block_size, dtype=F64
            ),
        )
    done = generate_speculative(model, drafter, text, max_new_tokens=19, cache=cache)
    assert done.tokens == want
    assert cache.num_tokens.tolist() == [24]
    cache.check_invariants()
    if isinstance(drafter, ModelDrafter):
        drafter.cache.check_invariants()


@kinds
def test_a_ragged_batch_on_blocks_of_one_pool(kind: str) -> None:
    model = tiny(GQA, 24)
    prompts = [prompt(i, n) for i, n in enumerate((3, 9, 6))]
    want = [greedy_by_hand(model, text, 12) for text in prompts]
    cache = PagedCache(GQA, batch_size=3, num_blocks=18, block_size=4, dtype=F64)
    done = generate_speculative(
        model, drafters(model)[kind], prompts, max_new_tokens=12, cache=cache
    )
    assert done.tokens == want
    assert cache.num_tokens.tolist() == [14, 20, 17]
    cache.check_invariants()


@given(
    name=st.sampled_from(list(TINY)),
    kind=st.sampled_from(KINDS),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    new=st.integers(0, 9),
    gamma=st.integers(0, 5),
    seed=st.integers(0, 200),
    stop=st.booleans(),
)
@settings(max_examples=20)
def test_ragged_batches_with_stops_equal_each_row_alone(
    name: str, kind: str, lengths: list[int], new: int, gamma: int, seed: int, stop: bool
) -> None:
    arch = TINY[name]
    model = tiny(arch, seed)
    prompts = [prompt(seed + i, n, arch) for i, n in enumerate(lengths)]
    free = [greedy_by_hand(model, text, new) for text in prompts]
    stops = [free[0][new // 2]] if stop and new else []
    want = [row[: row.index(stops[0]) + 1] if set(stops) & set(row) else row for row in free]
    cache = ContiguousCache(
        arch, batch_size=len(prompts), max_tokens=max(lengths) + max(new - 1, 0), dtype=F64
    )
    heard: list[tuple[int, int]] = []
    done = generate_speculative(
        model,
        drafters(model)[kind],
        prompts,
        max_new_tokens=new,
        gamma=gamma,
        stop_tokens=stops,
        cache=cache,
        on_token=lambda row, token: heard.append((row, token)),
    )
    assert done.tokens == want
    for row, (ids, text) in enumerate(zip(want, prompts, strict=True)):
        assert [token for one, token in heard if one == row] == ids
        assert done.finished[row] == ("stop" if ids and ids[-1] in stops else "length")
        assert cache.num_tokens[row] == (len(text) + len(ids) - 1 if new else 0)


def test_tokens_are_announced_round_by_round_and_rows_in_order() -> None:
    model = tiny(GQA, 3)
    prompts = [prompt(1, 4), prompt(2, 6)]
    want = [greedy_by_hand(model, text, 7) for text in prompts]
    wrong = [*want[1][:1], (want[1][1] + 1) % 37, *want[1][2:]]
    heard: list[tuple[int, int]] = []
    done = generate_speculative(
        model,
        Scripted(want[0], wrong, prompts=prompts),
        prompts,
        max_new_tokens=7,
        gamma=2,
        on_token=lambda row, token: heard.append((row, token)),
    )
    assert done.tokens == want
    # Row 0 gains three a round; row 1 two in the first, then it agrees again.
    first, second = ([(row, token) for token in want[row]] for row in (0, 1))
    assert heard[:5] == first[:3] + second[:2]
    assert heard[5:11] == first[3:6] + second[2:5]
    assert [one.accepted for one in done.rounds[1]] == [1, 2, 1]


def test_a_given_cache_is_continued() -> None:
    model = tiny(GQA, 4)
    text = prompt(0, 11)
    cache = ContiguousCache(GQA, max_tokens=22, dtype=F64)
    first = generate_speculative(
        model, drafters(model)["int4"], text[:6], max_new_tokens=4, cache=cache
    )
    assert cache.num_tokens.tolist() == [9]
    follow = [first.tokens[-1], *text[6:]]
    second = generate_speculative(
        model, drafters(model)["itself"], follow, max_new_tokens=8, cache=cache
    )
    assert second.tokens == greedy_by_hand(model, text[:6] + first.tokens + text[6:], 8)
    assert cache.num_tokens.tolist() == [22], "filled to the last slot"


def test_the_stored_keys_are_those_of_plain_decoding() -> None:
    model = tiny(MHA, 2)
    text = prompt(3, 5, MHA)
    plain, other = (ContiguousCache(MHA, max_tokens=30, dtype=F64) for _ in range(2))
    want = generate(model, text, max_new_tokens=20, cache=plain)
    done = generate_speculative(
        model, drafters(model)["skipped layers"], text, max_new_tokens=20, cache=other
    )
    assert done.tokens == want and done.accepted < done.proposed
    for layer in range(MHA.num_layers):
        for one, two in zip(plain.read(layer), other.read(layer), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


# --- the known failures -----------------------------------------------------------------------


@pytest.mark.case("SPEC-10")
@kinds
def test_a_rejection_takes_back_and_does_not_reset(kind: str) -> None:
    row = CASES["SPEC-10"]
    model = tiny(GQA, 3)
    text = prompt(2, row["inputs"]["prompt_length"])
    new, gamma = row["inputs"]["max_new_tokens"], row["inputs"]["gamma"]
    want = greedy_by_hand(model, text, new)
    states: list[Any] = []

    class Watched(ContiguousCache):
        def truncate(self, lengths_B: Any) -> None:
            super().truncate(lengths_B)
            n = int(self.num_tokens[0])
            states.append([x[:, :, :n].clone() for layer in range(2) for x in self.read(layer)])

    cache = Watched(GQA, max_tokens=len(text) + new - 1, dtype=F64)
    done = generate_speculative(
        model, drafters(model)[kind], text, max_new_tokens=new, gamma=gamma, cache=cache
    )
    assert (done.tokens == want) is row["expected"]["equal"]
    for before, after in itertools.pairwise(states):
        for one, two in zip(before, after, strict=True):
            assert torch.equal(one, two[:, :, : one.shape[2]]), (
                "committed positions stay as they are"
            )


@pytest.mark.case("SPEC-11")
def test_a_stop_token_inside_a_block_ends_the_row_there() -> None:
    row = CASES["SPEC-11"]
    model = tiny(GQA, 3)
    text = prompt(1, 4)
    free = greedy_by_hand(model, text, 10)
    stop = free[row["inputs"]["stop_at"]]
    assert free.index(stop) == row["inputs"]["stop_at"], "choose another seed"
    for new, length, reason in zip(
        row["inputs"]["max_new_tokens"],
        row["expected"]["lengths"],
        row["expected"]["finished"],
        strict=True,
    ):
        cache = ContiguousCache(GQA, max_tokens=20, dtype=F64)
        heard: list[int] = []
        done = generate_speculative(
            model,
            Scripted(free, prompts=[text]),
            text,
            max_new_tokens=new,
            gamma=row["inputs"]["gamma"],
            stop_tokens=[stop],
            cache=cache,
            on_token=lambda _, token, heard=heard: heard.append(token),
        )
        assert done.tokens == heard == free[:length]
        assert done.finished == [reason]
        assert cache.num_tokens.tolist() == [len(text) + length - 1], "nothing behind it stays"


@pytest.mark.case("SPEC-12")
def test_never_more_tokens_than_asked_for() -> None:
    row = CASES["SPEC-12"]
    gamma, length = row["inputs"]["gamma"], row["inputs"]["prompt_length"]
    model = tiny(GQA, 3)
    text = prompt(1, length)
    free = greedy_by_hand(model, text, 12)
    for new, want in zip(row["inputs"]["max_new_tokens"], row["expected"]["lengths"], strict=True):
        always = Scripted(free, prompts=[text])
        # The cache has no slot to spare: one token too many would not fit.
        cache = ContiguousCache(GQA, max_tokens=length + new - 1, dtype=F64)
        done = generate_speculative(
            model, always, text, max_new_tokens=new, gamma=gamma, cache=cache
        )
        assert done.tokens == free[:want] and len(done.tokens) == want
        assert always.asked[0] == [min(gamma, new - 1)]


@pytest.mark.case("SPEC-15")
def test_a_seeded_row_does_not_depend_on_its_batch_and_a_plain_draw_is_one_number() -> None:
    row = CASES["SPEC-15"]
    model = tiny(MQA, 6)
    seeds = row["inputs"]["seeds"]
    prompts = [prompt(20 + i, 3 + i, MQA) for i in range(len(seeds) + 1)]
    options = {"max_new_tokens": 12, "gamma": 3, "sampler": Sampler(temperature=1.1, top_p=0.95)}

    def run(order: Sequence[int]) -> dict[int, list[int]]:
        generators = [
            seeded(seeds[i]) if i < len(seeds) and seeds[i] is not None else None for i in order
        ]
        drafter = ModelDrafter(tiny(MQA, 7))
        texts = [prompts[i] for i in order]
        done = generate_speculative(model, drafter, texts, generator=generators, **options)
        return dict(zip(order, done.tokens, strict=True))

    together, turned = run([0, 1, 2, 3]), run([2, 3, 1, 0])
    for i, seed in enumerate(seeds):
        if seed is not None:
            alone = run([i])[i]
            assert (together[i] == turned[i] == alone) is row["expected"]["equal"]
    assert together[0] != together[2]
    counted, used = seeded(4), seeded(4)
    generate_speculative(
        model, PromptLookup(), prompts[0], generator=used, **(options | {"max_new_tokens": 1})
    )
    draws = row["inputs"]["draws_of_no_draft"]
    torch.rand(draws, generator=counted, dtype=F64)
    assert torch.equal(counted.get_state(), used.get_state())


@pytest.mark.case("SPEC-16")
def test_a_seed_has_no_effect_at_temperature_0_and_has_one_at_1() -> None:
    row = CASES["SPEC-16"]
    model, text = tiny(GQA, 3), prompt(1, 4)

    def outputs(temperature: float) -> set[tuple[int, ...]]:
        found = set()
        for seed in range(row["inputs"]["seeds"]):
            drafter = ModelDrafter(tiny(GQA, 4))
            done = generate_speculative(
                model,
                drafter,
                text,
                max_new_tokens=5,
                sampler=Sampler(temperature=temperature),
                generator=seeded(seed),
            )
            found.add(tuple(done.tokens))
        return found

    cold = outputs(0)
    assert len(cold) == row["expected"]["different_at_0"]
    assert cold == {tuple(greedy_by_hand(model, text, 5))}
    assert len(outputs(1)) > 1


def penalised(logits: Sequence[float], history: Sequence[int], options: dict[str, float]) -> list:
    """The penalties by hand, one token at a time."""
    counts, out = Counter(history), []
    for token, logit in enumerate(logits):
        if counts[token]:
            r = options.get("repetition", 1.0)
            logit = logit / r if logit > 0 else logit * r
            logit -= options.get("frequency", 0.0) * counts[token] + options.get("presence", 0.0)
        out.append(logit)
    return out


@pytest.mark.case("SPEC-17")
def test_penalties_count_what_was_kept_once() -> None:
    given = CASES["SPEC-17"]["inputs"]
    arch = Architecture("four", 2, 12, 4, 2, 6, 20, given["vocab_size"], 60)
    model = tiny(arch, 8)
    text = [2, 0, 3]
    options = {"presence": given["presence"], "frequency": given["frequency"]}
    whole = list(text)
    for _ in range(given["max_new_tokens"]):
        logits = penalised(model(torch.tensor([whole]))[0, -1].tolist(), whole, options)
        whole.append(logits.index(max(logits)))
    want = whole[len(text) :]
    assert want != greedy_by_hand(model, text, len(want)), "the penalties matter"
    penalty = Penalties(**options)
    for gamma, kind in itertools.product(given["gammas"], ["itself", "smaller model"]):
        counted: list[Counter[int]] = []

        def process(logits_V: Tensor, history: Sequence[int], counted: list = counted) -> Tensor:
            counted.append(Counter(history))
            return penalty(logits_V, history)

        done = generate_speculative(
            model,
            drafters(model)[kind],
            text,
            max_new_tokens=len(want),
            gamma=gamma,
            process=process,
        )
        assert done.tokens == want
        assert (done.proposed > done.accepted) or kind == "itself"
        for n in range(len(want)):  # each prefix that was committed was counted, as it is
            assert Counter(whole[: len(text) + n]) in counted


@pytest.mark.case("SPEC-18")
def test_a_penalty_at_a_draft_position_knows_the_drafts_before_it() -> None:
    row = CASES["SPEC-18"]
    drafts, repetition = row["inputs"]["drafts"], row["inputs"]["repetition"]
    model, text = tiny(GQA, 3), prompt(1, 4)
    seen: dict[tuple[int, ...], list[float]] = {}
    penalty = Penalties(repetition=repetition)

    def process(logits_V: Tensor, history: Sequence[int]) -> Tensor:
        out = penalty(logits_V, history)
        seen.setdefault(tuple(history), out.tolist())
        return out

    generate_speculative(
        model,
        Scripted(drafts, prompts=[text]),
        text,
        max_new_tokens=len(drafts) + 1,
        gamma=len(drafts),
        process=process,
        sampler=Sampler(),  # every draft may stand, so every position matters
        generator=seeded(2),
    )
    for i in range(len(drafts) + 1):
        before = [*text, *drafts[:i]]
        sequential = model(torch.tensor([before]))[0, -1].tolist()
        want = penalised(sequential, before, {"repetition": repetition})
        assert seen[tuple(before)] == pytest.approx(want, abs=row["tolerance"])


# --- sampling: the same law -------------------------------------------------------------------


def exact_law(
    model: Decoder, text: list[int], sampler: Sampler, n: int, process: Any = lambda x, _: x
) -> dict[tuple, float]:
    """The law of the next ``n`` tokens, by running the model behind every text that can occur."""
    found = {(): 1.0}
    for _ in range(n):
        longer = {}
        for new, mass in found.items():
            logits = model(torch.tensor([[*text, *new]]))[0, -1]
            logits = process(logits, [*text, *new])
            probs = sampler.probabilities(logits[None])[0].tolist()
            longer |= {(*new, t): mass * p for t, p in enumerate(probs) if p > 0}
        found = longer
    return found


@pytest.mark.parametrize("kind", ["smaller model", "prompt lookup", "int4", "skipped layers"])
def test_the_sampled_law_is_that_of_the_target_with_its_filters(kind: str) -> None:
    from scipy.stats import chisquare

    model = tiny(MQA, 6)
    text = [5, 20, 13, 20]  # prompt lookup has something to find
    sampler = Sampler(temperature=1.4, top_k=9, top_p=0.95)
    exact = exact_law(model, text, sampler, 2)
    n = 500
    done = generate_speculative(
        model,
        drafters(model)[kind],
        [text] * n,
        max_new_tokens=3,
        gamma=2,
        sampler=sampler,
        generator=seeded(3),
    )
    assert n / 50 < done.accepted <= done.proposed
    counts = Counter(tuple(new[:2]) for new in done.tokens)
    assert set(counts) <= set(exact), "a token that the filters exclude came out"
    common = [new for new, mass in exact.items() if mass * n >= 5]
    observed = [counts[new] for new in common]
    expected = [exact[new] * n for new in common]
    observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    assert chisquare(observed, expected).pvalue > 0.001
    shifted = expected[1:] + expected[:1]
    assert chisquare(observed, shifted).pvalue < 1e-6, "it can fail"


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(0.6, top_k=5), Sampler(1.4, top_p=0.8), Sampler(1, min_p=0.05)]
)
def test_the_first_token_has_the_targets_law_over_fixed_logits(sampler: Sampler) -> None:
    """Summed over every draft and what becomes of it, with laws as the loop forms them."""
    target = sampler.probabilities(normal(1, 1, 41) * 2)[0]
    for proposal in (
        sampler.probabilities(normal(2, 1, 41) * 2)[0],
        sampler.probabilities(normal(1, 1, 41) * 2 + normal(3, 1, 41) / 4)[0],
        torch.nn.functional.one_hot(torch.tensor(7), 41).double(),
    ):
        out = torch.zeros(41, dtype=F64)
        for token in range(41):
            stands = float(accept_probability(target, proposal, torch.tensor(token)))
            out[token] += proposal[token] * stands
            out += proposal[token] * (1 - stands) * residual(target, proposal)
        torch.testing.assert_close(out, target, rtol=0, atol=1e-14)


FORBIDDEN = [3, 20, 28]


def only_allowed(logits_V: Tensor, history: Sequence[int]) -> Tensor:
    """A grammar: some tokens never come, and behind one of them it has nothing to say."""
    assert not set(history[4:]) & set(FORBIDDEN), "plain decoding never gets here"
    out = logits_V.clone()
    out[FORBIDDEN] = -torch.inf
    return out


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_nothing_is_asked_behind_a_draft_that_cannot_stand(place: int, gamma: int) -> None:
    model, text = tiny(MQA, 6), [5, 20, 13, 20]
    want = decode_with(model, text, 6, only_allowed)
    drafts = [*want[:place], FORBIDDEN[0], 1, 2, 3]
    for sampler in (None, Sampler(temperature=0.7)):
        done = generate_speculative(
            model,
            Scripted(drafts, prompts=[text]),
            text,
            max_new_tokens=6,
            gamma=gamma,
            process=only_allowed,
            sampler=sampler,
            generator=seeded(3),
        )
        assert len(done.tokens) == 6 and not set(done.tokens) & set(FORBIDDEN)
        assert sampler is not None or done.tokens == want


def decode_with(model: Decoder, text: list[int], n: int, process: Any) -> list[int]:
    whole = list(text)
    for _ in range(n):
        logits = process(model(torch.tensor([whole]))[0, -1], whole).tolist()
        whole.append(logits.index(max(logits)))
    return whole[len(text) :]


def test_a_forbidden_draft_leaves_the_law_alone() -> None:
    """A replacement comes from the residual: the draft that cannot stand is not just dropped."""
    from scipy.stats import chisquare

    model, text, n = tiny(MQA, 6), [5, 20, 13, 20], 1500
    sampler = Sampler(temperature=1.2, top_k=6)
    exact = exact_law(model, text, sampler, 2, only_allowed)
    best = max(range(29), key=lambda t: sum(p for new, p in exact.items() if new[0] == t))

    class Half(Scripted):
        """Proposes the best token or a forbidden one, a half each, and says so."""

        def propose(self, rows: Any, counts: Any, choose: Any) -> list[Draft]:
            law = torch.zeros(29, dtype=F64)
            law[[best, FORBIDDEN[0]]] = 0.5
            picks = [(best, FORBIDDEN[0])[(i + len(row)) % 2] for i, row in enumerate(rows)]
            return [
                Draft([pick, 1], [law, None]) if count == 2 else Draft([], [])
                for pick, count in zip(picks, counts, strict=True)
            ]

    done = generate_speculative(
        model,
        Half([], prompts=[[]]),
        [text] * n,
        max_new_tokens=3,
        gamma=2,
        sampler=sampler,
        process=only_allowed,
        generator=seeded(5),
    )
    counts = Counter(new[0] for new in done.tokens)
    first = Counter()
    for new, mass in exact.items():
        first[new[0]] += mass
    assert set(counts) <= set(first)
    observed, expected = [counts[t] for t in first], [n * first[t] for t in first]
    assert chisquare(observed, expected).pvalue > 0.001
    dropped = [n * (0.5 * first[t] + 0.5 * (t == best)) for t in first]
    assert chisquare(observed, dropped).pvalue < 1e-6, "it can fail"


# --- refusals and failures --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
        ({"max_new_tokens": True}, "got True"),
        ({"gamma": -1}, "gamma must be at least 0, got -1"),
        ({"gamma": 2.0}, "got 2.0"),
        ({"gamma": True}, "got True"),
        ({"tokens": []}, "prompt 0 is empty"),
        ({"tokens": [[1], []]}, "prompt 1 is empty"),
        ({"tokens": [1, 37]}, "token id 37 is outside the vocabulary of 37"),
        ({"tokens": torch.ones(2)}, "1-D or 2-D tensor of integers"),
        ({"tokens": ["a"]}, "token ids must be integers"),
        ({"max_new_tokens": 49}, "need 51 slots, the context has 50"),
        ({"cache": ContiguousCache(GQA, max_tokens=4, dtype=F64)}, "need 5 slots, the cache has 4"),
        (
            {"tokens": [[1], [2]], "cache": ContiguousCache(GQA, max_tokens=9)},
            "the cache has 1 row",
        ),
        (
            {"tokens": [[1], [2]], "cache": ConcatenatingCache(GQA, batch_size=2)},
            "keeps rows of one length",
        ),
        ({"generator": [None, None]}, "2 generators for 1 rows"),
        ({"generator": [5]}, "must hold torch.Generator or None, got 5"),
        ({"stop_tokens": 3}, "stop_tokens must be a list"),
        ({"sampler": lambda logits, generator: 0}, "sampler must be a Sampler or None"),
        ({"drafter": ModelDrafter(tiny(MQA))}, "vocabularies differ: 37 in the target, 29 in the"),
    ],
)
def test_bad_calls_are_refused_before_any_work(change: dict[str, Any], said: str) -> None:
    given = {
        "drafter": PromptLookup(),
        "tokens": [1, 2, 3],
        "max_new_tokens": 3,
    } | change
    with pytest.raises(ValueError, match=said):
        generate_speculative(tiny(GQA), given.pop("drafter"), given.pop("tokens"), **given)


def test_the_context_can_be_filled_to_its_end() -> None:
    model = tiny(GQA, 3)
    want = greedy_by_hand(model, [1, 2, 3], 48)
    for kind in ("itself", "int4", "prompt lookup"):
        done = generate_speculative(model, drafters(model)[kind], [1, 2, 3], max_new_tokens=48)
        assert done.tokens == want


def test_no_new_tokens_is_no_work() -> None:
    cache = ContiguousCache(GQA, max_tokens=9, dtype=F64)
    done = generate_speculative(tiny(GQA), PromptLookup(), [1, 2], max_new_tokens=0, cache=cache)
    assert (done.tokens, done.target_passes, done.finished) == ([], 0, ["length"])
    assert cache.num_tokens.tolist() == [0]
    assert done.acceptance != done.acceptance and done.tokens_per_round != done.tokens_per_round


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (Draft([40], [None]), "the drafter proposed 40, the vocabulary has 37"),
        (Draft([-1], [None]), "the drafter proposed -1"),
        (Draft([1, 2, 3, 4, 5], [None] * 5), "5 drafts where at most 4 were asked for"),
        (Draft([1, 2], [None, torch.ones(36) / 36]), r"law is \(36,\), the vocabulary has 37"),
        (None, "a Draft for each row, got None"),
    ],
)
def test_a_drafter_that_breaks_its_word_is_named_and_the_cache_restored(
    draft: Draft | None, said: str
) -> None:
    class Bad(Scripted):
        def propose(self, rows: Any, counts: Any, choose: Any) -> list[Draft]:
            if len(rows[0]) < 9:
                return [Draft([], [])]
            return [draft]

    model = tiny(GQA, 3)
    cache = ContiguousCache(GQA, max_tokens=40, dtype=F64)
    generate(model, prompt(1, 4), max_new_tokens=2, cache=cache)
    before = [x.clone() for x in cache.read(1)]
    with pytest.raises(ValueError, match=said):
        generate_speculative(
            model, Bad([], prompts=[[]]), prompt(2, 6), max_new_tokens=15, cache=cache
        )
    assert cache.num_tokens.tolist() == [5]
    for one, two in zip(before, cache.read(1), strict=True):
        assert torch.equal(one, two)


def test_tokens_and_laws_of_a_draft_must_match() -> None:
    with pytest.raises(ValueError, match="2 draft tokens, 1 laws"):
        Draft([1, 2], [None])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repetition": 0}, "repetition must be positive and finite, got 0"),
        ({"repetition": float("nan")}, "got nan"),
        ({"frequency": float("inf")}, "frequency must be finite"),
        ({"presence": float("nan")}, "presence must be finite"),
    ],
)
def test_penalties_out_of_range_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Penalties(**options)


def test_penalties_against_hand_and_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, history = normal(1, 23) * 3, [4, 9, 4, 4, 22, 0]
    kept = logits.clone()
    options = {"repetition": 1.7, "frequency": 0.3, "presence": -0.2}
    got = Penalties(**options)(logits, history)
    assert got.tolist() == pytest.approx(penalised(logits.tolist(), history, options), abs=1e-12)
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([history]), logits[None].clone())
    torch.testing.assert_close(Penalties(repetition=1.7)(logits, history), theirs[0])
    assert torch.equal(Penalties()(logits, history), logits)
    assert torch.equal(Penalties(2.0)(logits, []), logits) and torch.equal(logits, kept)


# --- trees ------------------------------------------------------------------------------------


@pytest.mark.case("SPEC-19")
def test_a_tree_is_verified_as_if_each_path_were_alone() -> None:
    row = CASES["SPEC-19"]
    parents, past = row["inputs"]["parents"], row["inputs"]["past"]
    assert tree_positions(parents, past) == row["expected"]["positions"]
    mask = tree_mask(parents, past)
    for node, ancestors in enumerate(row["expected"]["ancestors"]):
        want = [*range(past), *(past + i for i in ancestors)]
        assert mask[node].nonzero().flatten().tolist() == want
    text, nodes = prompt(1, past), prompt(2, len(parents))
    for model in (tiny(GQA, 3), fuse(tiny(GQA, 3)), tiny(TINY["llama3"], 2)):
        cache = ContiguousCache(model.arch, max_tokens=12, dtype=F64)
        model(torch.tensor([text]), cache=cache)
        logits = tree_logits(model, nodes, parents, cache)
        for node, ancestors in enumerate(row["expected"]["ancestors"]):
            path = [nodes[i] for i in ancestors]
            want = model(torch.tensor([[*text, *path]]))[0, -1]
            torch.testing.assert_close(logits[node], want, rtol=0, atol=row["tolerance"])


@pytest.mark.case("SPEC-21")
@pytest.mark.parametrize("kind", [ContiguousCache, ConcatenatingCache, PagedCache])
def test_after_a_branch_is_accepted_the_cache_holds_it_and_nothing_else(kind: Any) -> None:
    row = CASES["SPEC-21"]
    parents, past, path = (row["inputs"][key] for key in ("parents", "past", "path"))
    model = tiny(GQA, 3)
    text, nodes = prompt(1, past), prompt(2, len(parents))
    room = {ContiguousCache: {"max_tokens": 12}, PagedCache: {"num_blocks": 3, "block_size": 3}}
    cache = kind(GQA, dtype=F64, **room.get(kind, {}))
    model(torch.tensor([text]), cache=cache)
    tree_logits(model, nodes, parents, cache)
    keep_path(cache, GQA.num_layers, past, path)
    assert cache.num_tokens.tolist() == [row["expected"]["length"]]
    kept = [*text, *(nodes[i] for i in path)]
    alone = ContiguousCache(GQA, max_tokens=12, dtype=F64)
    model(torch.tensor([kept]), cache=alone)
    for layer in range(GQA.num_layers):
        for one, two in zip(cache.read(layer), alone.read(layer), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=row["tolerance"])
    after = model(torch.tensor([[7]]), cache=cache)[0, -1]
    want = model(torch.tensor([[*kept, 7]]))[0, -1]
    torch.testing.assert_close(after, want, rtol=0, atol=row["tolerance"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda cache: tree_positions([0], 3), "parent of node 0 must lie in -1 to -1: 0"),
        (lambda cache: tree_mask([-1, 1], 3), "parent of node 1 must lie in -1 to 0: 1"),
        (lambda cache: tree_mask([-2], 3), "-2"),
        (lambda cache: tree_mask([], 3), "at least one node"),
        (lambda cache: tree_logits(tiny(GQA), [1, 2], [-1], cache), "1 parents need as many"),
        (lambda cache: tree_logits(tiny(GQA), [37], [-1], cache), "from 0 to 36"),
        (lambda cache: keep_path(cache, 2, 3, [1, 0]), "must go up through the 1 nodes"),
        (lambda cache: keep_path(cache, 2, 3, [1]), "behind 3 tokens"),
        (lambda cache: keep_path(cache, 2, 3, [-1]), "must go up"),
    ],
)
def test_what_is_no_tree_or_no_path_is_refused(call: Any, said: str) -> None:
    cache = ContiguousCache(GQA, max_tokens=9, dtype=F64)
    tiny(GQA)(torch.tensor([prompt(1, 4)]), cache=cache)
    before = [x.clone() for x in cache.read(0)]
    with pytest.raises(ValueError, match=said):
        call(cache)
    assert cache.num_tokens.tolist() == [4]
    assert all(torch.equal(x, y) for x, y in zip(before, cache.read(0), strict=True))
