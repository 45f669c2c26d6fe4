"""Speculative decoding: the target's law by exact enumeration, the loop, the closed forms."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import normal, rows, seeded, token_ids
from torch import Tensor

from benchmarks import _common
from refimpl.sampling import Sampler, draw
from refimpl.speculative import (
    accept_or_resample,
    accept_probability,
    acceptance,
    acceptance_needed,
    best_gamma,
    expected_tokens,
    operations,
    rejection,
    residual,
    speedup,
    tokens_needed,
    verify,
)

CASES = rows("cases_speculative.json")
PUBLISHED = rows("published_speculative.json")
F64 = torch.float64
Law = tuple[Fraction, ...]


def law(*parts: int | str) -> Law:
    """A law from whole shares, or from fractions in words."""
    shares = [Fraction(part) for part in parts]
    return tuple(share / sum(shares) for share in shares)


def tensor(probs: Sequence[Fraction]) -> Tensor:
    return torch.tensor([float(p) for p in probs], dtype=F64)


# --- the law, by enumeration ------------------------------------------------------------------
#
# Shares are sixths, so every threshold that a uniform number is compared with is a multiple of
# 1 / lcm(1, ..., 6) = 1 / 60. The midpoints of 60 equal cells then stand for all numbers in their
# cells: counting them gives the law of the code as an exact fraction. torch.rand is replaced by
# these midpoints; which decision follows from them is the code's.

SHARES = 6
CELLS = math.lcm(*range(1, SHARES + 1))
MIDPOINTS = (torch.arange(CELLS, dtype=F64) + 0.5) / CELLS


def script(monkeypatch: pytest.MonkeyPatch, numbers: list[Tensor]) -> None:
    """Make ``torch.rand`` give these tensors in turn; each must be asked for in its shape."""
    left = list(numbers)

    def rand(shape: Sequence[int], **_: object) -> Tensor:
        given = left.pop(0)
        assert tuple(shape) == tuple(given.shape)
        return given

    monkeypatch.setattr(torch, "rand", rand)


class Decisions:
    """What ``accept_or_resample`` does with one pair of laws and one draft, for every cell."""

    def __init__(
        self, target: Law, draft: Law, token: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both = (CELLS, CELLS)
        first = MIDPOINTS[:, None].expand(both)
        second = MIDPOINTS[None].expand(both)
        script(monkeypatch, [first, second.reshape(-1, 1)])
        tokens, accepted = accept_or_resample(
            tensor(target).expand(*both, -1),
            tensor(draft).expand(*both, -1),
            torch.full(both, token),
            None,
        )
        assert torch.equal(accepted, accepted[:, :1].expand(both)), "the test uses one number"
        assert (tokens[accepted] == token).all()
        yes = accepted[:, 0]
        self.accept = Fraction(int(yes.sum()), CELLS)
        self.accept_at = MIDPOINTS[yes].tolist()
        self.reject_at = MIDPOINTS[~yes].tolist()
        self.replace_at: dict[int, list[float]] = {}
        if self.reject_at:
            row = tokens[~yes]
            assert torch.equal(row, row[:1].expand_as(row)), "the replacement uses the other"
            for number, other in zip(MIDPOINTS.tolist(), row[0].tolist(), strict=True):
                self.replace_at.setdefault(other, []).append(number)

    def outcome(self) -> dict[int | None, Fraction]:
        """The chance of keeping the draft (None), and of each replacement."""
        found: dict[int | None, Fraction] = {None: self.accept}
        for other, numbers in self.replace_at.items():
            found[other] = (1 - self.accept) * Fraction(len(numbers), CELLS)
        return found


def law_of_the_code(target: Law, draft: Law, monkeypatch: pytest.MonkeyPatch) -> Law:
    """The law of the token that comes out when the draft is drawn from ``draft``."""
    out = [Fraction(0)] * len(target)
    for token, chance in enumerate(draft):
        if chance:
            for other, share in Decisions(target, draft, token, monkeypatch).outcome().items():
                out[token if other is None else other] += chance * share
    return tuple(out)


ADVERSARIAL = {
    "equal": (law(1, 2, 3), law(1, 2, 3)),
    "disjoint": (law(0, 0, 4, 2), law(1, 5, 0, 0)),
    "overlapping at one": (law(0, 2, 4), law(5, 1, 0)),
    "draft one-hot": (law(1, 2, 2, 1), law(0, 0, 6, 0)),
    "draft one-hot where the target is 0": (law(1, 0, 5), law(0, 6, 0)),
    "target one-hot": (law(0, 6, 0, 0, 0), law(2, 1, 1, 1, 1)),
    "both one-hot, the same": (law(0, 6), law(0, 6)),
    "both one-hot, different": (law(6, 0, 0), law(0, 0, 6)),
    "draft with zeros": (law(1, 1, 1, 1, 2), law(3, 0, 3, 0, 0)),
    "target with zeros": (law(3, 0, 3, 0, 0), law(1, 1, 1, 1, 2)),
    "one token": (law(6), law(6)),
}


def random_law(source: random.Random, size: int) -> Law:
    """Sixths dealt out at random; some tokens get none."""
    dealt = Counter(source.randrange(size) for _ in range(SHARES))
    return law(*(dealt[token] for token in range(size)))


def random_pairs(seed: int, size: int, number: int) -> list[tuple[Law, Law]]:
    source = random.Random(seed)
    return [(random_law(source, size), random_law(source, size)) for _ in range(number)]


@pytest.mark.parametrize("pair", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_one_token_follows_the_target_exactly_for_adversarial_laws(
    pair: tuple[Law, Law], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair
    assert law_of_the_code(target, draft, monkeypatch) == target


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_one_token_follows_the_target_exactly_for_random_laws(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, draft in random_pairs(size, size, 12):
        assert law_of_the_code(target, draft, monkeypatch) == target


def laws_by_prefix(
    pairs: list[tuple[Law, Law]], size: int, gamma: int, seed: int
) -> dict[tuple[int, ...], int]:
    """Which of the pairs holds behind each prefix: laws depend on what came before."""
    source = random.Random(seed)
    prefixes = (p for n in range(gamma + 1) for p in itertools.product(range(size), repeat=n))
    return {prefix: source.randrange(len(pairs)) for prefix in prefixes}


def blocks_that_come_out(
    pairs: list[tuple[Law, Law]],
    size: int,
    gamma: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[tuple[int, ...], Fraction]:
    """The exact law of what :func:`verify` gives out, over all drafts and all random numbers."""
    at = laws_by_prefix(pairs, size, gamma, seed)
    decisions = {
        (which, token): Decisions(target, draft, token, monkeypatch)
        for which, (target, draft) in enumerate(pairs)
        for token in range(size)
        if draft[token]
    }
    bonus: list[dict[int, list[float]]] = []
    for target, _ in pairs:
        script(monkeypatch, [MIDPOINTS[:, None]])
        numbers: dict[int, list[float]] = {}
        for u, token in zip(
            MIDPOINTS.tolist(), draw(tensor(target).expand(CELLS, -1), None).tolist(), strict=True
        ):
            numbers.setdefault(token, []).append(u)
        bonus.append(numbers)

    source = random.Random(seed)
    weights, drafts, tests, others, lasts, prefixes = [], [], [], [], [], []

    def add(weight: Fraction, block: tuple[int, ...], test: list[float], other: float, last: float):
        # Numbers behind the decisive one must not matter: they are arbitrary.
        fill = [source.random() for _ in range(gamma - len(test))]
        failed = len(test) - 1
        weights.append(weight)
        drafts.append(block)
        tests.append(test + fill)
        others.append([other if i == failed else source.random() for i in range(gamma)])
        lasts.append([last])
        prefixes.append([at[block[:i]] for i in range(gamma + 1)])

    for block in itertools.product(range(size), repeat=gamma):
        weight, test = Fraction(1), []
        for i, token in enumerate(block):
            weight *= pairs[at[block[:i]]][1][token]
            if not weight:
                break
        if not weight:
            continue
        for i, token in enumerate(block):
            here = decisions[at[block[:i]], token]
            for other, share in here.outcome().items():
                if other is not None and share:
                    numbers = here.replace_at[other]
                    add(
                        weight * share,
                        block,
                        [*test, source.choice(here.reject_at)],
                        source.choice(numbers),
                        source.random(),
                    )
            weight *= here.accept
            if not weight:
                break
            test = [*test, source.choice(here.accept_at)]
        if weight:
            for numbers in bonus[at[block]].values():
                share = Fraction(len(numbers), CELLS)
                add(weight * share, block, test, source.random(), source.choice(numbers))

    targets = torch.stack([tensor(target) for target, _ in pairs])
    proposals = torch.stack([tensor(draft) for _, draft in pairs])
    where = torch.tensor(prefixes)
    script(
        monkeypatch,
        [
            torch.tensor(tests, dtype=F64).reshape(len(weights), gamma),
            torch.tensor(others, dtype=F64).reshape(-1, 1),
            torch.tensor(lasts, dtype=F64),
        ],
    )
    tokens, accepted = verify(
        targets[where],
        proposals[where[:, :gamma]],
        torch.tensor(drafts, dtype=torch.long).reshape(len(weights), gamma),
        None,
    )
    found: dict[tuple[int, ...], Fraction] = {}
    for weight, row, kept in zip(weights, tokens.tolist(), accepted.tolist(), strict=True):
        out = tuple(row[: kept + 1])
        found[out] = found.get(out, Fraction(0)) + weight
    return found


def follows_the_target(
    found: dict[tuple[int, ...], Fraction],
    pairs: list[tuple[Law, Law]],
    size: int,
    gamma: int,
    seed: int,
) -> bool:
    """Whether blocks, continued by the target where they ended early, have the target's law."""
    at = laws_by_prefix(pairs, size, gamma, seed)
    reached = {(): Fraction(0)}
    exact = {(): Fraction(1)}
    for _ in range(gamma + 1):
        longer: dict[tuple[int, ...], Fraction] = {}
        product: dict[tuple[int, ...], Fraction] = {}
        for prefix, mass in reached.items():
            for token, share in enumerate(pairs[at[prefix]][0]):
                text = (*prefix, token)
                longer[text] = mass * share + found.get(text, Fraction(0))
                product[text] = exact[prefix] * share
        reached, exact = longer, product
    return sum(found.values()) == 1 and reached == exact


@pytest.mark.parametrize(
    ("size", "gamma"),
    [(2, 4), (3, 1), (3, 3), (3, 4), (4, 2), (4, 3), (5, 1), (5, 2), (5, 4), (4, 0)],
)
def test_a_block_follows_the_target_exactly(
    size: int, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_size = [pair for pair in ADVERSARIAL.values() if len(pair[0]) == size]
    pairs = [*same_size, *random_pairs(10 * size + gamma, size, 5)]
    found = blocks_that_come_out(pairs, size, gamma, 7, monkeypatch)
    assert max(map(len, found)) == gamma + 1
    assert follows_the_target(found, pairs, size, gamma, 7)


WRONG = {
    "accepts everything": (
        "accept_probability",
        lambda target, draft, token: torch.ones(token.shape, dtype=F64),
    ),
    "resamples from the target": ("residual", lambda target, draft: target),
    "deletes the rejected token only": (
        "residual",
        lambda target, draft: target.where(draft <= target, 0.0) + 1e-12,
    ),
    "accepts with the target's probability": (
        "accept_probability",
        lambda target, draft, token: target.gather(-1, token[..., None]).squeeze(-1),
    ),
}


@pytest.mark.parametrize(("name", "function"), WRONG.values(), ids=WRONG)
def test_the_enumeration_sees_each_usual_mistake(
    name: str, function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(law(3, 2, 1), law(1, 4, 1)), (law(1, 1, 4), law(2, 3, 1))]
    monkeypatch.setattr(rejection, name, function)
    assert law_of_the_code(*pairs[0], monkeypatch) != pairs[0][0]
    found = blocks_that_come_out(pairs, 3, 2, 1, monkeypatch)
    assert not follows_the_target(found, pairs, 3, 2, 1)


@pytest.mark.case("SPEC-01")
def test_the_law_in_the_ratio_must_be_the_one_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    row = CASES["SPEC-01"]
    target, draft = law(*row["inputs"]["target"]), law(*row["inputs"]["draft"])
    want = law(*row["expected"]["law"])
    assert law_of_the_code(target, draft, monkeypatch) == want
    best = draft.index(max(draft))
    certain = law(*(int(token == best) for token in range(len(draft))))
    assert law_of_the_code(target, certain, monkeypatch) == want
    # The best token is proposed every time, and tested as if it had been drawn.
    mixed = Decisions(target, draft, best, monkeypatch).outcome()
    wrong = [mixed.get(token, Fraction(0)) for token in range(len(draft))]
    wrong[best] += mixed[None]
    assert wrong == [Fraction(x) for x in row["expected"]["greedy_draft_sampled_law"]]


@pytest.mark.case("SPEC-03")
def test_the_residual_is_a_difference_of_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    row = CASES["SPEC-03"]
    target, draft = law(*row["inputs"]["target"]), law(*row["inputs"]["draft"])
    assert law_of_the_code(target, draft, monkeypatch) == law(*row["expected"]["law"])
    # Only token 0 can be rejected here, so deleting the rejected token deletes it.
    monkeypatch.setattr(
        rejection, "residual", lambda p, q: torch.cat((0 * p[..., :1], p[..., 1:]), dim=-1)
    )
    assert law_of_the_code(target, draft, monkeypatch) == law(*row["expected"]["deleted_law"])


@pytest.mark.case("SPEC-05")
def test_nothing_is_changed_in_place() -> None:
    given = CASES["SPEC-05"]["inputs"]
    T, V = given["positions"], given["vocab_size"]
    laws = [normal(given["seed"] + i, T + 1 - i, V).softmax(-1) for i in range(2)]
    drafts = token_ids(given["seed"], V, T)
    kept = [x.clone() for x in (*laws, drafts)]
    first = verify(*laws, drafts, seeded(1))
    assert all(torch.equal(x, y) for x, y in zip((*laws, drafts), kept, strict=True))
    again = verify(*laws, drafts, seeded(1))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    outcomes = {tuple(verify(*laws, drafts, seeded(i))[0].tolist()) for i in range(30)}
    assert len(outcomes) > 1


@pytest.mark.case("SPEC-07")
def test_logits_are_no_probabilities() -> None:
    row = CASES["SPEC-07"]
    probs = torch.tensor([row["inputs"]["probs"]], dtype=F64)
    token = torch.tensor([1])
    accept_or_resample(probs, probs, token, seeded(0))
    with pytest.raises(ValueError, match="logits go through a sampler first"):
        accept_or_resample(probs.log(), probs, token, seeded(0))
    with pytest.raises(ValueError, match="logits go through a sampler first"):
        accept_or_resample(probs, probs.log(), token, seeded(0))
    twice = Sampler().probabilities(probs)  # what a second softmax makes of them
    want = torch.tensor([row["expected"]["second_softmax"]], dtype=F64)
    torch.testing.assert_close(twice, want, rtol=0, atol=row["tolerance"])
    once = Sampler().probabilities(probs.log())
    torch.testing.assert_close(once, probs)


def test_a_law_of_16_bits_is_told_what_it_lacks() -> None:
    probs = torch.softmax(torch.arange(9.0), 0).bfloat16()
    with pytest.raises(ValueError, match="a law of 16 bits is normalised again"):
        acceptance(probs, probs)
    again = probs.double() / probs.double().sum()
    assert float(acceptance(again, again)) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("function", [accept_probability, residual])
def test_single_steps_refuse_other_vocabularies(function: Callable[..., Tensor]) -> None:
    five, three, one = (torch.ones(n, dtype=F64) / n for n in (5, 3, 1))
    token = () if function is residual else (torch.tensor(0),)
    for target, draft in ((five, three), (three, one), (one, five)):
        said = f"{len(target)} in the target, {len(draft)} in the draft"
        with pytest.raises(ValueError, match=said):
            function(target, draft, *token)


def test_thresholds_lie_where_the_fractions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    # The cells above are too coarse to see a threshold that is slightly off: here are its sides.
    for target, draft in [*ADVERSARIAL.values(), *random_pairs(3, 4, 20)]:
        for token, (p, q) in enumerate(zip(target, draft, strict=True)):
            if not q:
                continue
            edge = float(min(Fraction(1), p / q))
            sides = [max(0.0, edge - 1e-12), min(edge + 1e-12, 1 - 2**-53)]
            script(
                monkeypatch, [torch.tensor(sides, dtype=F64), torch.full((2, 1), 0.5, dtype=F64)]
            )
            laws = (tensor(target).expand(2, -1), tensor(draft).expand(2, -1))
            _, accepted = accept_or_resample(*laws, torch.tensor([token] * 2), None)
            assert accepted.tolist() == [p > 0, p >= q]


@pytest.mark.parametrize("pair", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_decisions_by_themselves(pair: tuple[Law, Law]) -> None:
    target, draft = pair
    for token, (p, q) in enumerate(zip(target, draft, strict=True)):
        got = accept_probability(tensor(target), tensor(draft), torch.tensor(token))
        want = min(Fraction(1), p / q) if q else Fraction(p > 0)
        assert float(got) == pytest.approx(float(want), abs=1e-15)
    missing = [max(Fraction(0), p - q) for p, q in zip(target, draft, strict=True)]
    want = [x / sum(missing) for x in missing] if sum(missing) else list(target)
    torch.testing.assert_close(
        residual(tensor(target), tensor(draft)), tensor(want), rtol=0, atol=1e-15
    )
    shared = sum(min(p, q) for p, q in zip(target, draft, strict=True))
    assert float(acceptance(tensor(target), tensor(draft))) == pytest.approx(float(shared))
    total_variation = sum(abs(p - q) for p, q in zip(target, draft, strict=True)) / 2
    assert shared == 1 - total_variation


def test_sampled_frequencies_fit_the_target() -> None:
    from scipy.stats import chisquare

    n, V, gamma = 200_000, 5, 2
    for seed, temperature in ((1, 1.0), (2, 3.0)):
        target = (normal(seed, V) * 1.2).softmax(-1)
        proposal = (normal(seed + 10, V) * 1.2 / temperature).softmax(-1)
        generator = seeded(seed)
        drafts = draw(proposal.expand(n, -1), generator)
        tokens, accepted = accept_or_resample(
            target.expand(n, -1), proposal.expand(n, -1), drafts, generator
        )
        counts = torch.bincount(tokens, minlength=V).numpy()
        assert chisquare(counts, (target * n).numpy()).pvalue > 0.001
        assert chisquare(counts, (proposal * n).numpy()).pvalue < 1e-9, "it can fail"
        alpha = float(acceptance(target, proposal))
        assert accepted.double().mean() == pytest.approx(alpha, abs=5 * (0.25 / n) ** 0.5)
        # A block whose laws do not depend on what came before: its length is geometric.
        block = draw(proposal.expand(n * gamma, -1), generator).reshape(n, gamma)
        out, kept = verify(
            target.expand(n, gamma + 1, -1), proposal.expand(n, gamma, -1), block, generator
        )
        mean = float(kept.double().mean()) + 1
        assert mean == pytest.approx(expected_tokens(alpha, gamma), abs=0.01)
        given_out = torch.arange(gamma + 1) <= kept[:, None]
        counts = torch.bincount(out[given_out], minlength=V)
        expected = (target * int(given_out.sum())).numpy()
        assert chisquare(counts.numpy(), expected).pvalue > 0.001


def test_any_leading_dimensions() -> None:
    target, proposal = normal(1, 2, 3, 4, 7).softmax(-1), normal(2, 2, 3, 4, 7).softmax(-1)
    drafts = token_ids(3, 7, 2, 3, 4)
    tokens, accepted = accept_or_resample(target, proposal, drafts, seeded(4))
    assert tokens.shape == accepted.shape == drafts.shape
    flat = accept_or_resample(
        target.reshape(24, 7), proposal.reshape(24, 7), drafts.reshape(24), seeded(4)
    )
    assert torch.equal(tokens.reshape(24), flat[0]) and torch.equal(accepted.reshape(24), flat[1])
    token, kept = accept_or_resample(target[0, 0, 0], proposal[0, 0, 0], torch.tensor(2), seeded(0))
    assert token.shape == kept.shape == () and kept.dtype == torch.bool
    out, count = verify(target, proposal[..., :3, :], drafts[..., :3], seeded(5))
    assert (out.shape, count.shape) == ((2, 3, 4), (2, 3))
    none, zero = verify(target[0, 0, :1], proposal[0, 0, :0], drafts[0, 0, :0], seeded(6))
    assert none.tolist() == draw(target[0, 0, :1], seeded(6)).tolist() and int(zero) == 0


def test_equal_laws_are_never_rejected_and_lost_digits_do_no_harm() -> None:
    probs = normal(1, 999, 13).softmax(-1)
    drafts = draw(probs, seeded(2))
    tokens, accepted = accept_or_resample(probs, probs, drafts, seeded(3))
    assert accepted.all() and torch.equal(tokens, drafts)
    # In 16 bits a row sums to 1 only nearly; a draft above the target everywhere has no residual.
    target = torch.tensor([0.5, 0.499999, 0.0])
    tokens, accepted = accept_or_resample(
        target.expand(50, -1), torch.tensor([0.500003, 0.5, 0.0]).expand(50, -1),
        torch.ones(50, dtype=torch.long), seeded(1),
    )  # fmt: skip
    assert set(tokens.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": normal(0, 3, 5)}, "target_probs must hold probabilities"),
        ({"draft": normal(0, 3, 5)}, "draft_probs must hold probabilities"),
        ({"target": torch.full((3, 5), math.nan)}, "must hold probabilities"),
        ({"target": torch.ones(3, 5, dtype=torch.long)}, "floating-point tensor"),
        ({"draft": torch.full((3, 4), 0.25)}, "vocabularies differ: 5 in the target, 4 in the"),
        ({"draft": torch.full((2, 5), 0.2)}, r"target_probs is \(3, 5\), draft_probs \(2, 5\)"),
        ({"token": torch.tensor([0, 5, 1])}, "token 5 is outside the vocabulary of 5"),
        ({"token": torch.tensor([0, -1, 1])}, "token -1 is outside"),
        ({"token": torch.tensor([0, 1])}, "one token for each law"),
        ({"token": torch.tensor([0.0, 1.0, 2.0])}, "tokens must be integers"),
    ],
)
def test_what_is_no_law_or_no_token_is_refused(change: dict[str, Tensor], said: str) -> None:
    given = {
        "target": torch.full((3, 5), 0.2),
        "draft": torch.full((3, 5), 0.2),
        "token": torch.tensor([0, 1, 2]),
    } | change
    with pytest.raises(ValueError, match=said):
        accept_or_resample(given["target"], given["draft"], given["token"], seeded(0))


def test_a_block_of_the_wrong_length_is_refused() -> None:
    laws = torch.full((4, 5), 0.2)
    with pytest.raises(ValueError, match="4 drafts need 5 target laws"):
        verify(laws, laws, torch.tensor([0, 1, 2, 3]), seeded(0))


# --- closed forms -----------------------------------------------------------------------------


def test_expected_tokens_against_sums_and_simulation() -> None:
    for alpha, gamma in itertools.product([Fraction(0), Fraction(1, 3), Fraction(9, 10)], range(6)):
        # Exactly k drafts stand with α^k (1 - α), all of them with α^γ; one token more each time.
        ended = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma))
        want = ended + (gamma + 1) * alpha**gamma
        assert expected_tokens(float(alpha), gamma) == pytest.approx(float(want), rel=1e-14)
    assert expected_tokens(1, 4) == 5
    assert expected_tokens(1 - 1e-12, 4) == pytest.approx(5, abs=1e-10)
    for alpha in (5e-324, 4e-22, 2**-54, 1e-16, 2**-53):  # where 1 - alpha is 1, and around
        assert expected_tokens(alpha, 4) == pytest.approx(1, abs=1e-15)
        assert best_gamma(alpha, 0.1) == 0
    peaked = tensor([Fraction(1), Fraction(0)]), torch.tensor([4e-22, 1.0], dtype=F64)
    assert 0 < float(acceptance(*peaked)) < 1e-21
    assert speedup(float(acceptance(*peaked)), 4, 0.25) == pytest.approx(0.5)
    source = random.Random(5)
    tries = [next((k for k in range(3) if source.random() > 0.7), 3) + 1 for _ in range(40_000)]
    assert sum(tries) / len(tries) == pytest.approx(expected_tokens(0.7, 3), abs=0.03)


def test_speedup_is_tokens_over_time() -> None:
    for alpha, gamma, cost, wide in [(0.8, 4, 0.02, 1.14), (0.6, 2, 0.3, 1.0), (0.0, 5, 0.1, 2.0)]:
        gain = speedup(alpha, gamma, cost, wide)
        assert gain * (gamma * cost + wide) == pytest.approx(expected_tokens(alpha, gamma))
        assert tokens_needed(gain, gamma, cost, wide) == pytest.approx(
            expected_tokens(alpha, gamma)
        )
    assert speedup(0.8, 4, 0.02, 1.14) == pytest.approx(2.76, abs=0.005)
    assert speedup(0.8, 4, 0.02) == pytest.approx(3.11, abs=0.005)
    assert speedup(0.4, 0, 7.0) == 1


def test_the_best_gamma_is_the_best_by_trying_all() -> None:
    for alpha, cost in itertools.product([0.0, 0.2, 0.5, 0.62, 0.8, 0.95, 1.0], [0, 0.05, 0.3, 1]):
        best = best_gamma(alpha, cost)
        gains = [speedup(alpha, gamma, cost) if gamma else 1.0 for gamma in range(21)]
        assert gains[best] == pytest.approx(max(gains))
        assert all(gain < gains[best] for gain in gains[:best])
        # Corollary 3.9: it pays exactly where α exceeds the cost ratio.
        assert (best > 0) == (alpha > cost)
    assert best_gamma(0.9, 0.01, max_gamma=3) == 3
    # A pass that becomes dear with its width shortens the block.
    assert best_gamma(0.8, 0.02, lambda gamma: 1 + 0.2 * gamma) < best_gamma(0.8, 0.02)
    assert best_gamma(0.5, 0.02, 2.0) == 0


def test_acceptance_needed_for_two_to_five_times() -> None:
    found = [acceptance_needed(times, 0.02) for times in (2, 3, 4, 5)]
    assert [round(alpha, 2) for alpha in found] == [0.56, 0.73, 0.81, 0.86]
    for times, alpha in zip((2, 3, 4, 5), found, strict=True):
        gamma = best_gamma(alpha, 0.02)
        assert speedup(alpha, gamma, 0.02) == pytest.approx(times, rel=1e-6)
    assert acceptance_needed(1, 0.5) == 0
    assert acceptance_needed(20, 0.02) is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: expected_tokens(1.1, 2), "alpha must lie in 0 to 1, got 1.1"),
        (lambda: expected_tokens(math.nan, 2), "got nan"),
        (lambda: expected_tokens(True, 2), "got True"),
        (lambda: expected_tokens(0.5, -1), "gamma must be an integer of at least 0, got -1"),
        (lambda: expected_tokens(0.5, 2.0), "got 2.0"),
        (lambda: expected_tokens(0.5, True), "got True"),
        (lambda: speedup(0.5, 2, -0.1), "cost_ratio must be at least 0 and finite, got -0.1"),
        (lambda: speedup(0.5, 2, math.inf), "got inf"),
        (lambda: speedup(0.5, 2, 0.1, 0), "verify_cost must be above 0"),
        (lambda: best_gamma(2, 0.1), "alpha must lie in 0 to 1, got 2"),
        (lambda: best_gamma(0.5, 0.1, max_gamma=-2), "got -2"),
        (lambda: operations(0.5, 2, math.nan), "draft_operations"),
        (lambda: acceptance_needed(0.5, 0.1), "times must be at least 1 and finite, got 0.5"),
        (lambda: tokens_needed(0, 2, 0.1), "times must be above 0"),
    ],
)
def test_closed_forms_refuse_what_is_out_of_range(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def stated(row: dict[str, Any]) -> Any:
    """What a published row states."""
    given = row["inputs"]
    if row["quantity"] == "operations_and_speed":
        return [operations(**given), speedup(**given, cost_ratio=0.0)]
    if row["quantity"] == "best_speedups":
        cost = given["cost_ratio"]
        return [speedup(a, best_gamma(a, cost), cost) for a in given["alphas"]]
    if row["quantity"] == "ratio":
        return _common.ratio([given["speculative_ms"]], [given["plain_ms"]])
    if row["quantity"] == "tokens_needed":
        times = _common.ratio([given["speculative_ms"]], [given["plain_ms"]])
        return tokens_needed(times, given["gamma"], given["draft_ms"] / given["plain_ms"])
    return {"speedup": speedup, "expected_tokens": expected_tokens}[row["quantity"]](**given)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_are_reproduced(name: str) -> None:
    row = PUBLISHED[name]
    got, printed = stated(row), row["expected"]
    if "computed" in row:  # what the printed inputs give; the row's source says what was printed
        assert got == pytest.approx(row["computed"], abs=0.006)
    if name in ("lev.t4.EnDe.T5-large.t1", "chen.xsum.nucleus"):
        assert got != pytest.approx(printed, abs=row["tolerance"]), "it is the printed number"
    else:
        assert got == pytest.approx(printed, abs=row["tolerance"])


def test_the_chapter_says_of_the_wider_pass_what_the_benchmark_found() -> None:
    root = Path(__file__).resolve().parents[1]
    section = (root / "benchmarks" / "README.md").read_text("utf-8").split("## Speculation")[1]
    lines = [
        line for line in section.splitlines() if line.startswith(("| chat", "| copy", "| prose"))
    ]
    found = sorted({float(line.split("|")[-3]) for line in lines})
    assert len(lines) == 15
    said = f"{found[0]:.2f} to {found[-1]:.2f}"
    assert f"A pass over five tokens costs {said} passes over one." in section
    chapter = (root / "chapters" / "11_speculative_sampling.md").read_text("utf-8")
    assert f"The benchmark of this book has {said} for SmolLM2 in BF16 on two cores" in chapter
