"""Exercise of chapter 11 on what replaces a rejected draft."""

import torch

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import beyond, floats, law, tensor

# ── residual ──────────────────────────────────────────────────────────────────────────────────


def _residual_examples(*pairs: tuple[str, str]) -> list[Example]:
    """What is missing to the target beside the shared mass, over the chance of a rejection."""
    examples = []
    for texts in pairs:
        target, draft = map(law, texts)
        shared = sum(min(t, d) for t, d in zip(target, draft, strict=True))
        missing = beyond(target, draft) if shared < 1 else target
        rejected = 1 - shared if shared < 1 else 1
        expected = floats(x / rejected for x in missing)
        examples.append(Example((tensor(target), tensor(draft)), torch.tensor(expected)))
    return examples


def _residual_plain(target_probs_V, draft_probs_V):
    """max(target − draft, 0), scaled to sum to 1."""
    excess_V = (target_probs_V - draft_probs_V).clamp(min=0)
    total = excess_V.sum()
    return excess_V / total if total > 0 else target_probs_V


def _residual_lists(target_probs_V, draft_probs_V):
    pairs = zip(target_probs_V.tolist(), draft_probs_V.tolist(), strict=True)
    excess = [max(target - draft, 0.0) for target, draft in pairs]
    if not any(excess):
        return target_probs_V.clone()
    return torch.tensor([x / sum(excess) for x in excess])


def _scaled(masses_V, instead_V):
    return masses_V / masses_V.sum() if masses_V.sum() > 0 else instead_V


def _residual_target(target_V, draft_V):
    return target_V.clone()


def _residual_not_scaled(target_V, draft_V):
    excess_V = (target_V - draft_V).clamp(min=0)
    return excess_V if excess_V.any() else target_V.clone()


def _residual_absolute(target_V, draft_V):
    return _scaled((target_V - draft_V).abs(), target_V)


def _residual_swapped(target_V, draft_V):
    return _scaled((draft_V - target_V).clamp(min=0), target_V)


def _residual_not_clamped(target_V, draft_V):
    total = (target_V - draft_V).clamp(min=0).sum()
    return (target_V - draft_V) / total if total > 0 else target_V.clone()


def _residual_difference(target_V, draft_V):
    return target_V - draft_V


def _residual_softmax(target_V, draft_V):
    return (target_V - draft_V).clamp(min=0).softmax(dim=0)


def _residual_softmax_difference(target_V, draft_V):
    return (target_V - draft_V).softmax(dim=0)


def _residual_best_removed(target_V, draft_V):
    kept_V = target_V.clone()
    kept_V[draft_V.argmax()] = 0
    return _scaled(kept_V, target_V)


def _residual_unless(target_V, draft_V):
    return _scaled(target_V * (1 - draft_V), target_V)


def _residual_nan(target_V, draft_V):
    excess_V = (target_V - draft_V).clamp(min=0)
    return excess_V / excess_V.sum()


RESIDUAL = Task(
    name="residual",
    chapter=11,
    title="What replaces a rejected draft",
    minutes=4,
    points=2,
    level=1,
    spec=(
        "The law [V] from which a token is drawn where a draft was rejected: what the target gives "
        "each token beyond the draft, scaled to sum to 1; the target itself where it nowhere gives "
        "more."
    ),
    signature="residual(target_probs_V: Tensor, draft_probs_V: Tensor) -> Tensor",
    properties=(
        Property(
            "laws that share nothing: all of the target is missing",
            lambda: _residual_examples(("0 1", "1 0")),
        ),
        Property(
            "one token is missing",
            lambda: _residual_examples(("1/4 3/4", "3/4 1/4"), ("1/2 3/10 1/5", "3/5 3/10 1/10")),
        ),
        Property(
            "several tokens are missing, each in proportion",
            lambda: _residual_examples(
                ("1/2 1/4 1/8 1/8", "1/8 1/8 1/4 1/2"),
                ("3/8 1/16 1/4 5/16", "1/8 1/2 1/8 1/4"),
            ),
        ),
        Property(
            "a draft that is certain",
            lambda: _residual_examples(("1/2 3/8 1/8", "1 0 0"), ("1/2 3/8 1/8", "0 0 1")),
        ),
        Property(
            "a draft that leaves tokens out",
            lambda: _residual_examples(("1/8 1/4 1/8 3/8 1/8", "1/2 0 1/4 1/4 0")),
        ),
        Property(
            "equal laws: nothing is ever rejected, and nothing may be NaN",
            lambda: _residual_examples(("1/4 3/4", "1/4 3/4")),
            edge=True,
        ),
    ),
    hints=(
        "Draw two bar charts over one another. The part of the target's bars above the draft's is "
        "what accepted drafts do not bring.",
        "max(target − draft, 0), token by token, and then divided by its sum.",
        "excess = (target − draft).clamp(min=0); excess / excess.sum() if the sum is above 0, else "
        "the target.",
    ),
    mutants=(
        Mutant(
            "target in place of the residual",
            "tokens that the draft over-proposes have had their share from accepted drafts; drawn "
            "from the target again, they come out too often, and fluent text hides it",
            _residual_target,
        ),
        Mutant(
            "not normalised",
            "the excess sums to the chance of a rejection, not to 1: torch.multinomial scales it "
            "silently, an inverse-CDF draw runs off its end",
            _residual_not_scaled,
        ),
        Mutant(
            "absolute difference",
            "tokens of which the draft gives too much are drawn as replacements too: exactly those "
            "that were just rejected come back",
            _residual_absolute,
        ),
        Mutant(
            "subtracted the wrong way",
            "draft − target is what there is too much of; every replacement is a token that should "
            "come out less often",
            _residual_swapped,
        ),
        Mutant(
            "negative probabilities kept",
            "the difference is below 0 where the draft gives more; such tokens need none, so clamp "
            "at 0 before scaling",
            _residual_not_clamped,
            also=(_residual_difference,),
        ),
        Mutant(
            "softmax for scaling",
            "softmax gives tokens without any excess exp(0), a share of their own; divide by the "
            "sum",
            _residual_softmax,
            also=(_residual_softmax_difference,),
        ),
        Mutant(
            "likeliest draft struck out",
            "only the draft's best token is taken out of the target; what it proposes of other "
            "tokens is then given out twice",
            _residual_best_removed,
        ),
        Mutant(
            "target times what the draft leaves",
            "target · (1 − draft) is no difference of masses: a token of which the draft gives all "
            "that is needed is still drawn",
            _residual_unless,
        ),
        Mutant(
            "NaN for equal laws",
            "where draft and target are equal the excess sums to 0, and 0 / 0 is NaN; in a batch "
            "that row reaches the draw, though it rejects nothing",
            _residual_nan,
        ),
    ),
    answers=(_residual_plain, _residual_lists),
)
