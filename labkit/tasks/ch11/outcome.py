"""Exercise of chapter 11 on the law of what comes out, whatever the rule."""

from collections import defaultdict
from fractions import Fraction

import torch

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import beyond, floats, law, tensor

# ── output_law ────────────────────────────────────────────────────────────────────────────────


def _law_example(draft_text: str, accept_text: str, *rows: str) -> Example:
    """Follow every draft both ways, and every replacement: exact fractions. One row is for all."""
    draft, accept = law(draft_text), law(accept_text)
    replacement = [law(row) for row in (rows if len(rows) > 1 else rows * len(draft))]
    chance: dict[int, Fraction] = defaultdict(Fraction)
    for token, drafted in enumerate(draft):
        chance[token] += drafted * accept[token]
        for other, drawn in enumerate(replacement[token]):
            chance[other] += drafted * (1 - accept[token]) * drawn
    args = (tensor(draft), tensor(accept), torch.stack([tensor(row) for row in replacement]))
    return Example(args, torch.tensor(floats(chance[token] for token in range(len(draft)))))


def _law_of_rule(target_text: str, draft_text: str) -> Example:
    """The rule of speculative sampling itself."""
    target, draft = law(target_text), law(draft_text)
    pairs = zip(target, draft, strict=True)
    accept = [min(Fraction(1), t / d) if d else Fraction(1) for t, d in pairs]
    excess = beyond(target, draft)
    residual = [x / sum(excess) for x in excess]
    texts = (" ".join(map(str, probs)) for probs in (draft, accept, residual))
    return _law_example(*texts)


def _law_plain(draft_probs_V, accept_V, replacement_VV):
    """Drafts that stand, and what replaces those that do not."""
    stands_V = draft_probs_V * accept_V
    rejected_V = draft_probs_V * (1 - accept_V)
    return stands_V + rejected_V @ replacement_VV


def _law_listed(draft_probs_V, accept_V, replacement_VV):
    out = [0.0] * len(draft_probs_V)
    for x, drafted in enumerate(draft_probs_V.tolist()):
        accepted = drafted * float(accept_V[x])
        for y, drawn in enumerate(replacement_VV[x].tolist()):
            out[y] += (x == y) * accepted + (drafted - accepted) * drawn
    return torch.tensor(out)


def _law_accepted_alone(draft_V, accept_V, replacement_VV):
    return draft_V * accept_V


def _law_accepted_scaled(draft_V, accept_V, replacement_VV):
    stands_V = draft_V * accept_V
    total = stands_V.sum()
    return stands_V / total if total > 0 else stands_V


def _law_draft(draft_V, accept_V, replacement_VV):
    return draft_V.clone()


def _law_mean_row(draft_V, accept_V, replacement_VV):
    stands_V = draft_V * accept_V
    return stands_V + (1 - stands_V.sum()) * replacement_VV.mean(dim=0)


def _law_draft_row(draft_V, accept_V, replacement_VV):
    stands_V = draft_V * accept_V
    return stands_V + (1 - stands_V.sum()) * (draft_V @ replacement_VV)


def _law_not_weighed(draft_V, accept_V, replacement_VV):
    return draft_V * accept_V + (1 - accept_V) @ replacement_VV


def _law_transposed(draft_V, accept_V, replacement_VV):
    return draft_V * accept_V + replacement_VV @ (draft_V * (1 - accept_V))


def _law_always_replaced(draft_V, accept_V, replacement_VV):
    return draft_V @ replacement_VV


def _law_added(draft_V, accept_V, replacement_VV):
    return draft_V * accept_V + draft_V @ replacement_VV


OUTPUT_LAW = Task(
    name="output_law",
    chapter=11,
    title="The law of any rule",
    minutes=6,
    points=3,
    level=2,
    spec=(
        "The law [V] of the token that comes out of one round: token x is drafted with "
        "draft_probs_V[x] and stands with probability accept_V[x]; where it does not, the token is "
        "drawn from row x of replacement_VV."
    ),
    signature=(
        "output_law(draft_probs_V: Tensor, accept_V: Tensor, replacement_VV: Tensor) -> Tensor"
    ),
    properties=(
        Property(
            "everything accepted",
            lambda: [_law_example("1/4 3/4", "1 1", "1/2 1/2")],
        ),
        Property(
            "nothing accepted: the replacement's law",
            lambda: [
                _law_example("1/4 3/4", "0 0", "1/8 7/8"),
                _law_example("1/2 1/4 1/4", "0 0 0", "1/8 1/2 3/8"),
            ],
        ),
        Property(
            "a rejected token leaves its mass to its own row",
            lambda: [
                _law_example("1/4 3/4", "1 1/3", "1/2 1/2", "1 0"),
                _law_example("1/2 1/4 1/4", "3/4 1/2 0", "0 1/4 3/4", "1/8 7/8 0", "1/2 1/4 1/4"),
            ],
        ),
        Property(
            "min(1, target / draft) and the residual give the target: 1/2, 3/10, 1/5 and others",
            lambda: [
                _law_of_rule("1/2 3/10 1/5", "3/5 3/10 1/10"),
                _law_of_rule("1/2 1/4 1/16 3/16", "1/8 1/8 1/4 1/2"),
                _law_of_rule("1/4 1/2 1/4", "1 0 0"),
            ],
        ),
        Property(
            "the same target with two wrong rules: a greedy draft taken for a sampled one, and a "
            "replacement from the target without the rejected token",
            lambda: [
                _law_example("1 0 0", "5/6 1 1", "0 0 1"),
                _law_example("3/5 3/10 1/10", "5/6 1 1", "0 3/5 2/5", "5/7 0 2/7", "5/8 3/8 0"),
            ],
        ),
    ),
    hints=(
        "Draw the tree: which token is drafted, whether it stands, what is drawn if not. Multiply "
        "along the branches, add up per token.",
        "Token y comes out as a draft with draft[y] · accept[y]. It replaces x with "
        "draft[x] · (1 − accept[x]) · replacement[x, y].",
        "draft · accept + (draft · (1 − accept)) @ replacement.",
    ),
    mutants=(
        Mutant(
            "rejections lost",
            "a rejected draft is replaced by another token; without that branch the chances do not "
            "sum to 1",
            _law_accepted_alone,
        ),
        Mutant(
            "drafted again until accepted",
            "accepted mass scaled to sum to 1 is the law of drafting anew after each rejection, "
            "with no limit on the passes; here one replacement is drawn",
            _law_accepted_scaled,
        ),
        Mutant(
            "acceptance ignored",
            "this is the draft's own law, which is what comes out where everything is accepted",
            _law_draft,
        ),
        Mutant(
            "one row for all rejections",
            "which token was rejected says from which row the replacement comes; averaged over all "
            "drafts, tokens that always stand are counted among the rejected",
            _law_mean_row,
            also=(_law_draft_row,),
        ),
        Mutant(
            "rejection not weighed by the draft",
            "token x is rejected with draft[x] · (1 − accept[x]): it has to be drafted first",
            _law_not_weighed,
        ),
        Mutant(
            "rows and columns swapped",
            "row x is the law after x was rejected; read by columns, the chances no longer sum "
            "to 1",
            _law_transposed,
        ),
        Mutant(
            "always replaced",
            "accepted drafts stand; only the rejected part of each goes to its row",
            _law_always_replaced,
        ),
        Mutant(
            "replacement added on top",
            "a draft that stands is not replaced as well: weigh its row by 1 − accept",
            _law_added,
        ),
    ),
    answers=(_law_plain, _law_listed),
)
