"""Exercise of chapter 11 on the caches after a round: what is still true of the text."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import shared_beginning

# ── tokens_to_keep ────────────────────────────────────────────────────────────────────────────


def _run_keep(function: Callable[..., Any], num_tokens, gamma, num_accepted) -> Any:
    """Both lengths by name."""
    result = function(num_tokens, gamma, num_accepted)
    if result is None:
        return None
    target, draft = result
    return {"target": target, "draft": draft}


def _keep_examples(*rounds: tuple[int, int, int]) -> list[Example]:
    """Write down what each cache holds; what the new text begins with as well is still true."""
    examples = []
    for args in rounds:
        num_tokens, gamma, num_accepted = args
        text = list(range(num_tokens))
        drafts = [100 + i for i in range(gamma)]
        after = [*text, *drafts[:num_accepted], 200]  # the correction, or the token behind all
        target = [*text, *drafts]
        draft = (text + drafts)[:-1]  # each token drafted was read, but for the last
        held = {"target": target, "draft": draft}
        kept = {name: shared_beginning(cache, after) for name, cache in held.items()}
        examples.append(Example(args, kept))
    return examples


def _keep_plain(num_tokens, gamma, num_accepted):
    """The text but its last token; the draft model never read its own last draft."""
    kept = num_tokens + num_accepted
    return kept, min(kept, num_tokens + gamma - 1)


def _keep_by_removing(num_tokens, gamma, num_accepted):
    rejected = gamma - num_accepted
    target_held, draft_held = num_tokens + gamma, num_tokens + gamma - 1
    return target_held - rejected, draft_held - (rejected - 1 if rejected else 0)


def _clipped(num_tokens: int, gamma: int, target: int, draft: int) -> tuple[int, int]:
    """A cache cannot be cut to more than it holds."""
    return min(target, num_tokens + gamma), min(draft, num_tokens + gamma - 1)


def _keep_correction(n, gamma, accepted):
    return _clipped(n, gamma, n + accepted + 1, n + accepted + 1)


def _keep_correction_unclipped(n, gamma, accepted):
    return n + accepted + 1, n + accepted + 1


def _keep_everything(n, gamma, accepted):
    return n + gamma, n + gamma - 1


def _keep_before(n, gamma, accepted):
    return _clipped(n, gamma, n, n)


def _keep_lengths_before(n, gamma, accepted):
    return n - 1, n - 1


def _keep_nothing(n, gamma, accepted):
    return 0, 0


def _keep_one_short(n, gamma, accepted):
    return n + accepted - 1, n + accepted - 1


def _keep_same(n, gamma, accepted):
    return n + accepted, n + accepted


def _keep_draft_behind(n, gamma, accepted):
    return n + accepted, n + accepted - 1


def _keep_rejected(n, gamma, accepted):
    return _clipped(n, gamma, n + gamma - accepted, n + gamma - accepted)


TOKENS_TO_KEEP = Task(
    name="tokens_to_keep",
    chapter=11,
    title="What the caches keep",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "How many tokens the target's and the draft model's cache keep after a round. Before it "
        "the text had num_tokens tokens and each cache held all but the last. The target then read "
        "that one and all gamma drafts; the draft model read as many tokens as it drafted, that "
        "one and its drafts but the last. Now num_accepted drafts and one token of the target end "
        "the text. What is kept must be the text's own beginning, and as much of it as is held."
    ),
    signature="tokens_to_keep(num_tokens: int, gamma: int, num_accepted: int) -> tuple[int, int]",
    properties=(
        Property(
            "without drafts: the target has read the text, the draft model nothing new",
            lambda: _keep_examples((1, 0, 0), (6, 0, 0)),
        ),
        Property(
            "nothing accepted: the old text stays, every draft goes",
            lambda: _keep_examples((1, 1, 0), (7, 4, 0)),
        ),
        Property(
            "some accepted: the correction stands in no cache yet",
            lambda: _keep_examples((2, 3, 1), (7, 5, 4), (9, 4, 2)),
        ),
        Property(
            "all accepted: the draft model has not read its last draft",
            lambda: _keep_examples((2, 1, 1), (7, 3, 3)),
        ),
    ),
    hints=(
        "Write down, token by token, what each cache holds after the round, and below it the new "
        "text. How long do they agree?",
        "The token that ends the round was read by nobody yet: the target's cache keeps num_tokens "
        "+ num_accepted.",
        "The draft's keeps as many, unless it holds fewer: it has num_tokens + gamma − 1.",
    ),
    mutants=(
        Mutant(
            "correction counted as read",
            "the correction is known and not in the cache: one token more keeps the keys and "
            "values of the rejected draft in its place, and every later token attends to it",
            _keep_correction,
            also=(_keep_correction_unclipped,),
        ),
        Mutant(
            "nothing taken back",
            "rejected drafts stay in the cache and the text goes on behind them; acceptance falls "
            "and the output changes, with no error",
            _keep_everything,
        ),
        Mutant(
            "accepted drafts thrown away",
            "the caches are cut to the text before the round; accepted drafts had the right keys "
            "and values already, and are read a second time, or left out",
            _keep_before,
            also=(_keep_lengths_before,),
        ),
        Mutant(
            "reset",
            "a cache that is emptied reads the whole text again in every round, or, where only the "
            "new tokens are fed, continues a text without its beginning",
            _keep_nothing,
        ),
        Mutant(
            "one token short",
            "the text's last token before the round was read in it, first of all; cut one shorter, "
            "a token of the text is missing and all later positions are off by one",
            _keep_one_short,
        ),
        Mutant(
            "last draft taken for read",
            "where all are accepted, or none was drafted, the draft model holds one token less "
            "than the target: it never read the last one it wrote. Left out, the next drafts miss "
            "it, and acceptance falls after every perfect round",
            _keep_same,
        ),
        Mutant(
            "draft always one behind",
            "only after a perfect round the draft model is one token short; after a rejection it "
            "has read all that were accepted, and would read one of them twice",
            _keep_draft_behind,
        ),
        Mutant(
            "rejected for accepted",
            "num_accepted says how many drafts stay, not how many go",
            _keep_rejected,
        ),
    ),
    answers=(_keep_plain, _keep_by_removing),
    drive=_run_keep,
)
