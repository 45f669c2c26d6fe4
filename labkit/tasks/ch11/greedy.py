"""Exercise of chapter 11 on the greedy special case: how far draft and target agree."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import shared_beginning

# ── greedy_accept ─────────────────────────────────────────────────────────────────────────────


def _run_greedy(function: Callable[..., Any], draft_tokens, best_tokens) -> Any:
    """Both results by name."""
    result = function(draft_tokens, best_tokens)
    if result is None:
        return None
    num_accepted, next_token = result
    return {"num_accepted": num_accepted, "next_token": next_token}


def _greedy_examples(*blocks: tuple[list[int], list[int]]) -> list[Example]:
    """What draft and target begin with alike; behind it the target goes on."""
    examples = []
    for drafts, best in blocks:
        shared = shared_beginning(drafts, best)
        expected = {"num_accepted": shared, "next_token": best[shared]}
        examples.append(Example((drafts, best), expected))
    return examples


def _greedy_plain(draft_tokens, best_tokens):
    """Up to the first difference; there the target's own token stands."""
    num_accepted = 0
    while num_accepted < len(draft_tokens):
        if draft_tokens[num_accepted] != best_tokens[num_accepted]:
            break
        num_accepted += 1
    return num_accepted, best_tokens[num_accepted]


def _greedy_zipped(draft_tokens, best_tokens):
    for i, (draft, best) in enumerate(zip(draft_tokens, best_tokens, strict=False)):
        if draft != best:
            return i, best
    return len(draft_tokens), best_tokens[-1]


def _greedy_positions(drafts, best):
    count = sum(d == b for d, b in zip(drafts, best, strict=False))
    return count, best[count]


def _greedy_last(drafts, best):
    return _greedy_plain(drafts, best)[0], best[-1]


def _greedy_keeps_draft(drafts, best):
    count, following = _greedy_plain(drafts, best)
    return count, (drafts[count] if count < len(drafts) else following)


def _greedy_one_on(drafts, best):
    count, _ = _greedy_plain(drafts, best)
    return count, best[min(count + 1, len(best) - 1)]


def _greedy_with_next(drafts, best):
    count, following = _greedy_plain(drafts, best)
    return count + 1, following


def _greedy_all_or_nothing(drafts, best):
    count = len(drafts) if drafts == best[:-1] else 0
    return count, best[count]


def _greedy_shifted(drafts, best):
    count, _ = _greedy_plain(drafts, [*best[1:], -1])
    return count, best[count]


def _greedy_everything(drafts, best):
    return len(drafts), best[-1]


GREEDY_ACCEPT = Task(
    name="greedy_accept",
    chapter=11,
    title="Greedy: how far they agree",
    minutes=3,
    points=1,
    level=1,
    spec=(
        "How many drafts greedy decoding accepts, and the token behind them: best_tokens[i] is the "
        "target's best token behind the first i drafts, so there is one more of them than drafts."
    ),
    signature="greedy_accept(draft_tokens: list[int], best_tokens: list[int]) -> tuple[int, int]",
    properties=(
        Property(
            "an accepted draft, and the token behind it",
            lambda: _greedy_examples(([5], [5, 7])),
        ),
        Property(
            "a rejected draft is replaced",
            lambda: _greedy_examples(([4], [5, 7]), ([4, 6], [5, 7, 8])),
        ),
        Property(
            "the first difference ends the block",
            lambda: _greedy_examples(
                ([5, 6, 8], [5, 7, 8, 9]),
                ([3, 9, 2, 6, 1], [3, 9, 4, 6, 1, 8]),
                ([3, 9, 2, 6, 5], [3, 9, 2, 6, 1, 8]),
            ),
        ),
        Property(
            "all accepted: the token behind the last draft",
            lambda: _greedy_examples(([5, 6, 8], [5, 6, 8, 9])),
        ),
        Property(
            "text that repeats itself",
            lambda: _greedy_examples(([4, 4, 4], [4, 4, 5, 4]), ([6, 6], [7, 6, 6])),
        ),
        Property("no drafts", lambda: _greedy_examples(([], [5])), edge=True),
    ),
    hints=(
        "Put draft_tokens above best_tokens. Where do they differ for the first time?",
        "Everything before that is accepted. At the difference the target says what it would have "
        "written.",
        "Count i up while i < γ and draft_tokens[i] == best_tokens[i]; return i, best_tokens[i].",
    ),
    mutants=(
        Mutant(
            "equal positions counted",
            "agreement behind the first difference is worth nothing: there best_tokens continues a "
            "draft that is not written",
            _greedy_positions,
        ),
        Mutant(
            "last token of the pass",
            "best_tokens[−1] follows all the drafts; after a rejection the correction is the entry "
            "at the rejected place",
            _greedy_last,
        ),
        Mutant(
            "rejected draft kept",
            "the token behind the accepted ones is the draft that was just rejected: the text is "
            "the draft's at that place, and no longer the target's",
            _greedy_keeps_draft,
        ),
        Mutant(
            "correction skipped",
            "best_tokens[num_accepted + 1] comes behind the rejected draft; one token is missing "
            "from the text",
            _greedy_one_on,
        ),
        Mutant(
            "correction counted as accepted",
            "the last token of a round comes from the target, not from the draft; counted as "
            "accepted, the acceptance rate never falls to 0 and the cache is cut one too late",
            _greedy_with_next,
        ),
        Mutant(
            "all or nothing",
            "accepted drafts before the first difference stand; giving them up costs the round's "
            "gain and leaves the text right, so that only the clock notices",
            _greedy_all_or_nothing,
        ),
        Mutant(
            "rows shifted by one",
            "draft i is compared with the token behind it; best_tokens[i] stands at the place of "
            "draft i. Nearly everything is rejected",
            _greedy_shifted,
        ),
        Mutant(
            "everything accepted",
            "no draft is compared with the target: the text is the draft's",
            _greedy_everything,
        ),
    ),
    answers=(_greedy_plain, _greedy_zipped),
    drive=_run_greedy,
)
