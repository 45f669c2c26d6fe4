"""Exercise of chapter 11 on what speculation gains, answered with a number and its unit."""

import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import mean_tokens

Times = tuple[float, int, float, float, float]

# ── speculation_gain ──────────────────────────────────────────────────────────────────────────


def _gain_examples(*settings: Times) -> list[Example]:
    """Tokens of a mean round, one by one at the target's pace, over the time of the round."""
    examples = []
    for args in settings:
        alpha, gamma, *milliseconds = args
        draft, step, verify = (Fraction(str(x)) for x in milliseconds)
        plainly = mean_tokens(alpha, gamma) * step
        in_a_round = sum((draft for _ in range(gamma)), verify)
        examples.append(Example(args, float(plainly / in_a_round)))
    return examples


def _gain_plain(alpha, gamma, draft_ms, step_ms, verify_ms):
    """Expected tokens, times a plain step, over γ drafts and one wider pass."""
    tokens = sum(alpha**i for i in range(gamma + 1))
    return f"{tokens * step_ms / (gamma * draft_ms + verify_ms)} times"


def _gain_by_ratios(alpha, gamma, draft_ms, step_ms, verify_ms):
    tokens = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    round_in_steps = gamma * (draft_ms / step_ms) + verify_ms / step_ms
    return f"{100 * tokens / round_in_steps:.9f} %"


def _series(alpha: float, gamma: int) -> float:
    return sum(alpha**i for i in range(gamma + 1))


def _gain_free_verify(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{_series(alpha, gamma) / (gamma * draft_ms / step_ms + 1)} times"


def _gain_one_draft(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{_series(alpha, gamma) * step_ms / (draft_ms + verify_ms)} times"


def _gain_free_drafts(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{_series(alpha, gamma) * step_ms / verify_ms} times"


def _gain_one_draft_more(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{_series(alpha, gamma) * step_ms / ((gamma + 1) * draft_ms + verify_ms)} times"


def _gain_no_bonus(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{_series(alpha, gamma - 1) * step_ms / (gamma * draft_ms + verify_ms)} times"


def _gain_independent(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{(1 + alpha * gamma) * step_ms / (gamma * draft_ms + verify_ms)} times"


def _gain_all_accepted(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{(gamma + 1) * step_ms / (gamma * draft_ms + verify_ms)} times"


def _gain_one_by_one(alpha, gamma, draft_ms, step_ms, verify_ms):
    in_a_round = gamma * draft_ms + (gamma + 1) * verify_ms
    return f"{_series(alpha, gamma) * step_ms / in_a_round} times"


def _gain_inverted(alpha, gamma, draft_ms, step_ms, verify_ms):
    return f"{(gamma * draft_ms + verify_ms) / (_series(alpha, gamma) * step_ms)} times"


def _draw_gain(seed: int) -> Times:
    draw = random.Random(seed)
    step = draw.randint(150, 600)  # tenths of a millisecond
    gamma = draw.choice((2, 3, 4, 5, 7))
    alpha = draw.randint(50, 90) / 100
    draft = max(2, round(step * draw.choice((0.02, 0.04, 0.06, 0.11, 0.2))))
    wider = round(step * draw.uniform(1.04, 1.09) ** gamma)
    return alpha, gamma, draft / 10, step / 10, wider / 10


SPECULATION_GAIN = Task(
    name="speculation_gain",
    chapter=11,
    title="What speculation gains",
    minutes=5,
    points=3,
    level=2,
    spec=(
        "How many times faster than plain decoding text is written in rounds of gamma drafts, each "
        "accepted with probability alpha if all before it were, when a draft takes draft_ms, a "
        "plain step of the target step_ms and its pass over gamma + 1 tokens verify_ms, as text "
        "such as '2.76 times'."
    ),
    signature=(
        "speculation_gain(alpha: float, gamma: int, draft_ms: float, step_ms: float, verify_ms: "
        "float) -> str"
    ),
    properties=(
        Property(
            "drafts that cost nothing and are never accepted gain nothing",
            lambda: _gain_examples((0.0, 1, 0.0, 10.0, 10.0)),
        ),
        Property(
            "drafts take time, accepted or not",
            lambda: _gain_examples(
                (0.0, 1, 2.0, 10.0, 10.0), (0.5, 1, 2.0, 10.0, 10.0), (0.3, 5, 1.5, 10.0, 10.0)
            ),
        ),
        Property(
            "a wider pass takes longer",
            lambda: _gain_examples((0.5, 2, 1.0, 10.0, 13.0), (0.7, 5, 0.8, 10.0, 16.0)),
        ),
        Property(
            "α = 0.8 and γ = 4: 2.76 times where the wider pass takes 14 percent longer",
            lambda: _gain_examples((0.8, 4, 0.5, 25.0, 28.5), (0.8, 4, 0.5, 25.0, 25.0)),
        ),
        Property(
            "drafts that are always accepted",
            lambda: _gain_examples((1.0, 3, 1.0, 20.0, 23.0)),
            edge=True,
        ),
    ),
    hints=(
        "Compare the time of one round with the time that the tokens it gives take one by one.",
        "A round takes γ drafts, one after the other, and one pass of the target. It gives "
        "1 + α + … + α^γ tokens.",
        "tokens · step_ms / (γ · draft_ms + verify_ms).",
    ),
    mutants=(
        Mutant(
            "wider pass for free",
            "γ · c + 1, with c = draft_ms / step_ms, takes the pass over γ + 1 tokens for as fast "
            "as a plain step; measure it: 14 percent longer turns 3.11 times into 2.76, and "
            "a compute-bound batch leaves nothing",
            _gain_free_verify,
        ),
        Mutant(
            "one draft a round",
            "γ drafts are made one after the other, each a step of the draft model",
            _gain_one_draft,
        ),
        Mutant(
            "drafts for free",
            "only a drafter without a model, such as prompt lookup, costs nothing; drafts of a "
            "model take draft_ms each",
            _gain_free_drafts,
        ),
        Mutant(
            "one draft too many",
            "γ drafts are made; the last token of the round comes from the target's own pass",
            _gain_one_draft_more,
        ),
        Mutant(
            "no token behind the last draft",
            "the sum of the α^i goes up to γ: a perfect round gives γ + 1 tokens",
            _gain_no_bonus,
        ),
        Mutant(
            "drafts counted behind a rejection",
            "1 + α · γ counts drafts that pass behind a rejected one; they are thrown away with it",
            _gain_independent,
        ),
        Mutant(
            "all accepted",
            "γ + 1 tokens come out of a perfect round only; α says how many come out of a mean one",
            _gain_all_accepted,
        ),
        Mutant(
            "verified one by one",
            "verify_ms is the time of one pass over all γ + 1 tokens; that it is not paid per "
            "token is where the gain comes from",
            _gain_one_by_one,
        ),
        Mutant(
            "upside down",
            "this is time over time the wrong way round: plain decoding's speed over speculation's",
            _gain_inverted,
        ),
    ),
    answers=(_gain_plain, _gain_by_ratios),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("times"),
    draw=_draw_gain,
    ask=lambda alpha, gamma, draft_ms, step_ms, verify_ms: (
        f"A plain step of the target takes {step_ms} ms, its pass over {gamma + 1} tokens "
        f"{verify_ms} ms, a step of the draft model {draft_ms} ms.\nDrafts are accepted with "
        f"probability {alpha}; a round has {gamma}. How many times faster than plain decoding?"
    ),
    unit="times",
)
