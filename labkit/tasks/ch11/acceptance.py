"""Exercise of chapter 11 on one draft: the test, and the draw where it fails."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import beyond, draw, law, owner, residual, tensor

# ── accept_or_resample ────────────────────────────────────────────────────────────────────────


def _run_accept(function: Callable[..., Any], *args: Any) -> Any:
    """Both results by name."""
    result = function(*args)
    if result is None:
        return None
    token, accepted = result
    return {"token": token, "accepted": accepted}


def _accept_examples(*drafts: tuple[str, str, int, float, float]) -> list[Example]:
    """Exact fractions: who owns the point, of what the draft passes and of what is missing."""
    examples = []
    for target_text, draft_text, token, u, v in drafts:
        target, draft = law(target_text), law(draft_text)
        passed = min(target[token], draft[token])
        fails = draft[token] - passed
        # Of the draft's mass at this token the first part passes, the rest fails.
        accepted = passed > 0 and owner([passed, fails], u) == 0
        result = token if accepted else owner(beyond(target, draft), v)
        args = (tensor(target), tensor(draft), token, u, v)
        shown = (
            f"target_probs_V = {target_text}\ndraft_probs_V = {draft_text}\n"
            f"token = {token}\naccept_uniform = {u}\ndraw_uniform = {v}"
        )
        examples.append(Example(args, {"token": result, "accepted": accepted}, shown=shown))
    return examples


def _accept_plain(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    """The draft stands with probability min(1, target / draft); else draw from the residual."""
    if accept_uniform * draft_probs_V[token] < target_probs_V[token]:
        return token, True
    residual_V = (target_probs_V - draft_probs_V).clamp(min=0)
    cumulative_V = residual_V.cumsum(dim=0) / residual_V.sum()
    return int((cumulative_V <= draw_uniform).sum()), False


def _accept_lists(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    target, draft = target_probs_V.tolist(), draft_probs_V.tolist()
    ratio = target[token] / draft[token] if draft[token] else float(target[token] > 0)
    if accept_uniform < ratio:
        return token, True
    excess = [max(0.0, a - b) for a, b in zip(target, draft, strict=True)]
    ends = list(accumulate(excess))
    return bisect_right(ends, draw_uniform * ends[-1]), False


def _accept_everything(target_V, draft_V, token, u, v):
    return token, True


def _accept_then_target(target_V, draft_V, token, u, v):
    if u * draft_V[token] < target_V[token]:
        return token, True
    return draw(target_V, v), False


def _accept_best(target_V, draft_V, token, u, v):
    best = int(target_V.argmax())
    return best, token == best


def _accept_best_then_residual(target_V, draft_V, token, u, v):
    if token == int(target_V.argmax()):
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_inverted(target_V, draft_V, token, u, v):
    if u * target_V[token] < draft_V[token]:
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_above(target_V, draft_V, token, u, v):
    if u * draft_V[token] > target_V[token]:
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_above_clamped(target_V, draft_V, token, u, v):
    if u * draft_V[token] >= target_V[token]:
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_softmax_twice(target_V, draft_V, token, u, v):
    return _accept_plain(target_V.softmax(0), draft_V.softmax(0), token, u, v)


def _accept_softmax_target(target_V, draft_V, token, u, v):
    return _accept_plain(target_V.softmax(0), draft_V, token, u, v)


def _accept_rejected_struck_out(target_V, draft_V, token, u, v):
    if u * draft_V[token] < target_V[token]:
        return token, True
    others_V = target_V.clone()
    others_V[token] = 0
    return draw(others_V, v), False


def _accept_with_target(target_V, draft_V, token, u, v):
    if u < target_V[token]:
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_not_scaled(target_V, draft_V, token, u, v):
    if u * draft_V[token] < target_V[token]:
        return token, True
    cumulative_V = residual(target_V, draft_V).cumsum(dim=0)
    return min(int((cumulative_V <= v).sum()), len(target_V) - 1), False


def _accept_one_uniform(target_V, draft_V, token, u, v):
    return _accept_plain(target_V, draft_V, token, u, u)


def _accept_at_zero(target_V, draft_V, token, u, v):
    if u * draft_V[token] <= target_V[token]:
        return token, True
    return draw(residual(target_V, draft_V), v), False


def _accept_not_proposed(target_V, draft_V, token, u, v):
    if draft_V[token] == 0:
        return token, True
    return _accept_plain(target_V, draft_V, token, u, v)


_WIDE = ("1/2 1/4 1/16 3/16", "1/8 1/8 1/4 1/2")
_CASE = ("1/2 3/10 1/5", "3/5 3/10 1/10")

ACCEPT_OR_RESAMPLE = Task(
    name="accept_or_resample",
    chapter=11,
    title="Accept or resample",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "The token that one draft leads to, and whether it is the draft: it stands with "
        "probability min(1, target / draft), that is where accept_uniform · draft < target at "
        "token; else the first token is taken whose cumulative residual probability, normalised "
        "and in the order of ids, is above draw_uniform."
    ),
    signature=(
        "accept_or_resample(target_probs_V: Tensor, draft_probs_V: Tensor, token: int, "
        "accept_uniform: float, draw_uniform: float) -> tuple[int, bool]"
    ),
    properties=(
        Property(
            "equal laws: the draft stands",
            lambda: _accept_examples(("1/2 1/2", "1/2 1/2", 0, 0.25, 0.75)),
        ),
        Property(
            "a token of which the target gives more always stands",
            lambda: _accept_examples(
                ("3/4 1/4", "1/2 1/2", 0, 0.875, 0.25), (*_WIDE, 1, 0.9375, 0.125)
            ),
        ),
        Property(
            "a token that the target gives less stands as often as target / draft says",
            lambda: _accept_examples(
                ("1/4 3/4", "1/2 1/2", 0, 0.375, 0.25),
                ("1/4 3/4", "1/2 1/2", 0, 0.625, 0.25),
                (*_WIDE, 3, 0.3125, 0.125),
                (*_WIDE, 3, 0.4375, 0.125),
                (*_CASE, 0, 0.75, 0.5),
                (*_CASE, 0, 0.875, 0.5),
            ),
        ),
        Property(
            "what replaces it comes from the residual, drawn with a number of its own",
            lambda: _accept_examples(
                (*_WIDE, 2, 0.5, 0.0625),
                (*_WIDE, 2, 0.5, 0.65625),
                (*_WIDE, 2, 0.9375, 0.875),
                (*_WIDE, 3, 0.9375, 0.3125),
                ("1/8 1/4 1/8 3/8 1/8", "1/2 1/8 1/4 1/8 0", 0, 0.5, 0.09375),
                ("1/8 1/4 1/8 3/8 1/8", "1/2 1/8 1/4 1/8 0", 0, 0.5, 0.53125),
                ("1/8 1/4 1/8 3/8 1/8", "1/2 1/8 1/4 1/8 0", 2, 0.5625, 0.90625),
            ),
        ),
        Property(
            "a draft that is certain",
            lambda: _accept_examples(
                ("1/4 1/2 1/4", "1 0 0", 0, 0.1875, 0.9375),
                ("1/4 1/2 1/4", "1 0 0", 0, 0.3125, 0.9375),
                ("1/4 1/2 1/4", "1 0 0", 0, 0.3125, 0.4375),
            ),
        ),
        Property(
            "a token that the target gives nothing is rejected, at 0 as well",
            lambda: _accept_examples(
                ("0 3/4 1/4", "1/2 1/4 1/4", 0, 0.0, 0.5), ("0 1", "1/2 1/2", 0, 0.0, 0.25)
            ),
            edge=True,
        ),
        Property(
            "a token that neither law gives anything, drawn before the filter",
            lambda: _accept_examples(("0 3/4 1/4", "0 1/4 3/4", 0, 0.5, 0.5)),
            edge=True,
        ),
    ),
    hints=(
        "Two questions, a random number for each: does the draft stand, and if not, what does?",
        "Compare accept_uniform · draft_probs_V[token] with target_probs_V[token]. If it fails, "
        "the law to draw from is max(target − draft, 0) over its sum.",
        "cumulative = excess.cumsum(0) / excess.sum(); the token is how many of its entries are "
        "≤ draw_uniform.",
    ),
    mutants=(
        Mutant(
            "accepts everything",
            "the target is not asked: what comes out follows the draft's law, the larger model is "
            "run for nothing, and the text still reads well",
            _accept_everything,
        ),
        Mutant(
            "resamples from the target",
            "a rejected draft is replaced from the target itself: tokens that the draft proposes "
            "too often come out too often again, since their accepted share is not taken off; draw "
            "from max(target − draft, 0)",
            _accept_then_target,
        ),
        Mutant(
            "compares best tokens",
            "that is the rule of greedy decoding: whatever the temperature, the draft stands only "
            "as the target's most likely token, and rarer tokens come out too seldom or never",
            _accept_best,
            also=(_accept_best_then_residual,),
        ),
        Mutant(
            "ratio inverted",
            "the test is target / draft, not draft / target: this keeps every token that the draft "
            "gives too much and rejects those that are missing. Papers swap the letters p and q",
            _accept_inverted,
        ),
        Mutant(
            "accepts above the ratio",
            "the draft stands where the uniform is below target / draft; the other way round a "
            "token is rejected the more surely, the more the target wants it",
            _accept_above,
            also=(_accept_above_clamped,),
        ),
        Mutant(
            "softmax applied twice",
            "these are probabilities already; a second softmax flattens them: drafts stand that "
            "should fail, and a replacement can be a token that the target gives nothing",
            _accept_softmax_twice,
            also=(_accept_softmax_target,),
        ),
        Mutant(
            "only the rejected token struck out",
            "the replacement is drawn from the target without the rejected token; other tokens "
            "that the draft gives enough of are drawn again. Subtract the draft everywhere",
            _accept_rejected_struck_out,
        ),
        Mutant(
            "accepts with the target's probability",
            "that is the ratio only for a draft that is certain, whose law is one-hot; for a token "
            "drawn from draft_probs_V divide by its probability there",
            _accept_with_target,
        ),
        Mutant(
            "residual not normalised",
            "the cumulative excess ends at the chance of a rejection, not at 1: larger uniforms "
            "run off the end, to whatever token stands there",
            _accept_not_scaled,
        ),
        Mutant(
            "one uniform for both",
            "after a rejection accept_uniform is known to be large, so that drawing with it never "
            "reaches the first tokens of the residual; take the other number",
            _accept_one_uniform,
        ),
        Mutant(
            "accepts at exactly 0",
            "a uniform can be 0, and 0 ≤ 0 lets a token pass that the target gives nothing; the "
            "test is <, not ≤",
            _accept_at_zero,
        ),
        Mutant(
            "accepts what was not proposed",
            "a draft of probability 0 makes the ratio 0 / 0, and this takes it for 1: a token "
            "drawn before top-k or top-p was applied gets past the target's filter",
            _accept_not_proposed,
        ),
    ),
    answers=(_accept_plain, _accept_lists),
    drive=_run_accept,
)
