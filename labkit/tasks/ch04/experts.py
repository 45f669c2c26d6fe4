"""Exercise of chapter 04: the experts that a batch touches."""

from fractions import Fraction
from math import comb

from labkit.tasks import Example, Mutant, Property, Task

# ── experts_read ──────────────────────────────────────────────────────────────────────────────


def _experts_examples(*routers: tuple[int, int, int]) -> list[Example]:
    """The distribution of how many are touched, token by token, in exact fractions."""
    examples = []
    for args in routers:
        num_experts, per_token, num_tokens = args
        chance = {0: Fraction(1)}
        for _ in range(num_tokens):
            after: dict[int, Fraction] = {}
            for touched, p in chance.items():
                for new in range(min(per_token, num_experts - touched) + 1):
                    ways = comb(num_experts - touched, new) * comb(touched, per_token - new)
                    q = p * Fraction(ways, comb(num_experts, per_token))
                    after[touched + new] = after.get(touched + new, Fraction(0)) + q
            chance = after
        mean = sum(touched * p for touched, p in chance.items())
        examples.append(Example(args, float(mean)))
    return examples


def _experts_plain(num_experts, experts_per_token, num_tokens):
    """Each expert is missed by every token with chance (1 − k/E)^B."""
    missed = (1 - experts_per_token / num_experts) ** num_tokens
    return num_experts * (1 - missed)


def _experts_token_by_token(num_experts, experts_per_token, num_tokens):
    touched = 0.0
    for _ in range(num_tokens):
        touched += experts_per_token * (num_experts - touched) / num_experts
    return touched


def _experts_no_overlap(E, k, B):
    return float(k * B)


def _experts_capped(E, k, B):
    return float(min(E, k * B))


def _experts_with_replacement(E, k, B):
    return E * (1 - (1 - 1 / E) ** (k * B))


def _experts_of_one(E, k, B):
    return float(k)


def _experts_all(E, k, B):
    return float(E)


def _experts_missed(E, k, B):
    return E * (1 - k / E) ** B


EXPERTS_READ = Task(
    name="experts_read",
    chapter=4,
    title="Experts of a batch",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "The expected number of different experts that a layer reads for num_tokens tokens, each "
        "of which chooses experts_per_token different ones, all choices equally likely and tokens "
        "independent."
    ),
    signature="experts_read(num_experts: int, experts_per_token: int, num_tokens: int) -> float",
    properties=(
        Property("one expert", lambda: _experts_examples((1, 1, 1))),
        Property(
            "one token reads what it chooses",
            lambda: _experts_examples((8, 2, 1), (64, 6, 1)),
        ),
        Property(
            "two tokens may choose the same",
            lambda: _experts_examples((2, 1, 2), (8, 2, 2), (5, 3, 2)),
        ),
        Property(
            "many tokens touch nearly all",
            lambda: _experts_examples((8, 2, 16), (64, 6, 32)),
        ),
        Property(
            "256 experts, 8 a token, as in DeepSeek-V3",
            lambda: _experts_examples((256, 8, 1), (256, 8, 32)),
        ),
        Property("no token reads none", lambda: _experts_examples((8, 2, 0)), edge=True),
    ),
    hints=(
        "Take one expert. How likely is it that a token does not choose it? That no token does?",
        "A token misses it with 1 − k/E, all of B tokens with (1 − k/E)^B. Expectations add up.",
        "E · (1 − (1 − k/E)^B).",
    ),
    mutants=(
        Mutant(
            "no overlap",
            "two tokens can choose the same expert, which is then read once: k · B is an upper "
            "limit, and soon exceeds the number of experts",
            _experts_no_overlap,
        ),
        Mutant(
            "capped at all",
            "min(E, k · B) lets tokens avoid each other's experts; chosen at random they overlap",
            _experts_capped,
        ),
        Mutant(
            "drawn with replacement",
            "a token chooses k different experts; this lets it choose one twice",
            _experts_with_replacement,
        ),
        Mutant(
            "one token's",
            "other tokens choose other experts; the batch does not share one choice",
            _experts_of_one,
        ),
        Mutant(
            "all of them",
            "an expert that no token chooses is not read: at small batches most are not",
            _experts_all,
        ),
        Mutant(
            "the ones missed",
            "this is the number that no token chooses; the rest is read",
            _experts_missed,
        ),
    ),
    answers=(_experts_plain, _experts_token_by_token),
    rtol=1e-6,
    atol=1e-9,
)
