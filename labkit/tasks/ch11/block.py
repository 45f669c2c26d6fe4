"""Exercise of chapter 11 on a block of drafts: one pass of the target, one row of tokens."""

import torch

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch11.exact import beyond, draw, law, owner, residual, tensor

# ── verify_block ──────────────────────────────────────────────────────────────────────────────


def _block_example(
    targets: str, drafts: str, tokens: list[int], uniforms: list[float], uniform: float
) -> Example:
    """Exact fractions, row by row: rows are set apart by ``|``."""
    target, draft = ([law(row) for row in rows.split("|")] for rows in (targets, drafts))
    expected: list[int] = []
    for i, token in enumerate(tokens):
        passed = min(target[i][token], draft[i][token])
        if owner([passed, draft[i][token] - passed], uniforms[i]):
            expected.append(owner(beyond(target[i], draft[i]), uniform))
            break
        expected.append(token)
    else:
        expected.append(owner(target[-1], uniform))
    shown = (
        f"target_probs_TV = {targets}\ndraft_probs_TV = {drafts}\ndraft_tokens = {tokens}\n"
        f"accept_uniforms = {uniforms}\ndraw_uniform = {uniform}"
    )
    stacked = [torch.stack([tensor(row) for row in rows]) for rows in (target, draft)]
    return Example((*stacked, tokens, uniforms, uniform), expected, shown=shown)


def _block_plain(target_probs_TV, draft_probs_TV, draft_tokens, accept_uniforms, draw_uniform):
    """Drafts one by one; the first that fails ends the block, and one token is drawn."""
    tokens, law_V = [], target_probs_TV[-1]
    for i, token in enumerate(draft_tokens):
        if accept_uniforms[i] * draft_probs_TV[i, token] >= target_probs_TV[i, token]:
            law_V = (target_probs_TV[i] - draft_probs_TV[i]).clamp(min=0)
            break
        tokens.append(token)
    cumulative_V = law_V.cumsum(dim=0) / law_V.sum()
    return [*tokens, int((cumulative_V <= draw_uniform).sum())]


def _block_at_once(target_probs_TV, draft_probs_TV, draft_tokens, accept_uniforms, draw_uniform):
    gamma = len(draft_tokens)
    each = torch.arange(gamma)
    target_T, draft_T = target_probs_TV[each, draft_tokens], draft_probs_TV[each, draft_tokens]
    stands_T = torch.tensor(accept_uniforms) < target_T / draft_T
    num_accepted = int(stands_T.int().cumprod(dim=0).sum())
    # Behind the last draft nothing was proposed: a draft's law of zeros leaves the target's.
    proposed_TV = torch.cat((draft_probs_TV, torch.zeros_like(target_probs_TV[:1])))
    excess_V = (target_probs_TV - proposed_TV)[num_accepted].clamp(min=0)
    last = torch.searchsorted(excess_V.cumsum(0), draw_uniform * excess_V.sum(), right=True)
    return [*draft_tokens[:num_accepted], int(last)]


def _stands(target_TV, draft_TV, tokens, uniforms) -> list[bool]:
    """Which drafts pass their test, each taken alone."""
    pairs = enumerate(zip(tokens, uniforms, strict=True))
    return [bool(u * draft_TV[i, token] < target_TV[i, token]) for i, (token, u) in pairs]


def _accepted(target_TV, draft_TV, tokens, uniforms) -> int:
    return [*_stands(target_TV, draft_TV, tokens, uniforms), False].index(False)


def _block_with(target_TV, draft_TV, tokens, uniforms, v, *, rejected_V, bonus_V) -> list[int]:
    """A block whose last token is drawn from ``rejected_V(i)`` or from ``bonus_V``."""
    n = _accepted(target_TV, draft_TV, tokens, uniforms)
    return [*tokens[:n], draw(rejected_V(n) if n < len(tokens) else bonus_V, v)]


def _block_goes_on(target_TV, draft_TV, tokens, uniforms, v):
    out = []
    for i, stands in enumerate(_stands(target_TV, draft_TV, tokens, uniforms)):
        out.append(tokens[i] if stands else draw(residual(target_TV[i], draft_TV[i]), v))
    return [*out, draw(target_TV[-1], v)]


def _block_no_bonus(target_TV, draft_TV, tokens, uniforms, v):
    return _block_plain(target_TV, draft_TV, tokens, uniforms, v)[: max(1, len(tokens))]


def _block_bonus_from_draft(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: residual(target_TV[i], draft_TV[i]),
        bonus_V=draft_TV[-1] if len(tokens) else target_TV[-1],
    )


def _block_bonus_row_before(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: residual(target_TV[i], draft_TV[i]),
        bonus_V=target_TV[max(0, len(tokens) - 1)],
    )


def _block_bonus_residual(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: residual(target_TV[i], draft_TV[i]),
        bonus_V=residual(target_TV[-1], draft_TV[-1]) if len(tokens) else target_TV[-1],
    )


def _block_shifted(target_TV, draft_TV, tokens, uniforms, v):
    shifted_TV = torch.cat((target_TV[1:], target_TV[-1:]))
    return _block_plain(shifted_TV, draft_TV, tokens, uniforms, v)


def _block_correction_row_behind(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: residual(target_TV[i + 1], draft_TV[i]),
        bonus_V=target_TV[-1],
    )


def _block_correction_target_behind(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: target_TV[i + 1],
        bonus_V=target_TV[-1],
    )


def _block_from_target(target_TV, draft_TV, tokens, uniforms, v):
    return _block_with(
        *(target_TV, draft_TV, tokens, uniforms, v),
        rejected_V=lambda i: target_TV[i],
        bonus_V=target_TV[-1],
    )


def _block_accept_all(target_TV, draft_TV, tokens, uniforms, v):
    return [*tokens, draw(target_TV[-1], v)]


def _block_no_correction(target_TV, draft_TV, tokens, uniforms, v):
    n = _accepted(target_TV, draft_TV, tokens, uniforms)
    return tokens[:n] if n < len(tokens) else [*tokens, draw(target_TV[-1], v)]


def _block_in_place(target_TV, draft_TV, tokens, uniforms, v):
    n = _accepted(target_TV, draft_TV, tokens, uniforms)
    if n < len(tokens):
        target_TV[n] -= draft_TV[n]
        target_TV[n].clamp_(min=0)
    return [*tokens[:n], draw(target_TV[n], v)]


_TARGETS = "1/2 1/4 1/8 1/8 | 1/8 1/8 1/2 1/4 | 1/4 1/4 1/4 1/4 | 1/8 3/8 1/8 3/8"
_DRAFTS = "1/4 1/4 1/4 1/4 | 1/2 1/8 1/8 1/4 | 1/2 1/8 1/4 1/8"

VERIFY_BLOCK = Task(
    name="verify_block",
    chapter=11,
    title="A block of drafts",
    minutes=12,
    points=4,
    level=2,
    spec=(
        "The tokens that one pass of the target gives: the drafts up to the first that fails, then "
        "one drawn with draw_uniform, from that draft's residual or, where none fails, from the "
        "target's last row. Row i of target_probs_TV [γ+1, V] is the law behind the first i "
        "drafts; draft i, drawn from row i of draft_probs_TV [γ, V], fails where "
        "accept_uniforms[i] · draft ≥ target. A draw takes the first token whose cumulative "
        "probability is above the uniform."
    ),
    signature=(
        "verify_block(target_probs_TV: Tensor, draft_probs_TV: Tensor, draft_tokens: list[int], "
        "accept_uniforms: list[float], draw_uniform: float) -> list[int]"
    ),
    properties=(
        Property(
            "one draft that stands, and the token behind it",
            lambda: [_block_example("1/2 1/2 | 1/2 1/2", "1/4 3/4", [0], [0.25], 0.125)],
        ),
        Property(
            "all stand: the token behind them comes from the target's last row",
            lambda: [
                _block_example("1/2 1/2 | 1/4 3/4", "3/4 1/4", [0], [0.375], 0.375),
                _block_example(_TARGETS, _DRAFTS, [0, 2, 1], [0.25, 0.5, 0.75], 0.0625),
                _block_example(_TARGETS, _DRAFTS, [1, 3, 1], [0.25, 0.5, 0.75], 0.5625),
            ],
        ),
        Property(
            "one draft that fails: its replacement comes from its own row",
            lambda: [
                _block_example("1/4 3/4 | 1/2 1/2", "3/4 1/4", [0], [0.5], 0.125),
                _block_example(_TARGETS, _DRAFTS, [2, 2, 1], [0.75, 0.5, 0.5], 0.8125),
            ],
        ),
        Property(
            "the first that fails ends the block",
            lambda: [
                _block_example(_TARGETS, _DRAFTS, [0, 0, 1], [0.25, 0.375, 0.5], 0.0625),
                _block_example(_TARGETS, _DRAFTS, [0, 0, 0], [0.25, 0.375, 0.75], 0.6875),
                _block_example(_TARGETS, _DRAFTS, [1, 2, 0], [0.9375, 0.25, 0.5625], 0.3125),
                _block_example(_TARGETS, _DRAFTS, [3, 2, 0], [0.5625, 0.25, 0.25], 0.1875),
            ],
        ),
    ),
    hints=(
        "Go through the drafts in order and stop at the first that fails. How many tokens come out "
        "if it is the third of five?",
        "Exactly one token is drawn a round. Its law is max(target − draft, 0) of the row at which "
        "you stopped, or the target's last row if you did not.",
        "Set law = target_probs_TV[-1] first; in the loop, on a failure, set it to the residual of "
        "row i and break. Draw once behind the loop.",
    ),
    mutants=(
        Mutant(
            "goes on behind a rejection",
            "drafts behind a rejected one continue a text that is not there, and so do the "
            "target's laws behind them: tokens come out that no law of this text gave",
            _block_goes_on,
        ),
        Mutant(
            "no token behind the last draft",
            "where all stand, the last row of the pass is thrown away; the text is right, and each "
            "perfect round gives γ tokens for the price of γ + 1",
            _block_no_bonus,
        ),
        Mutant(
            "last token drawn from the draft",
            "the token behind the last draft has not been tested by anyone: it must come from the "
            "target",
            _block_bonus_from_draft,
        ),
        Mutant(
            "token behind the last draft from the row before",
            "row γ − 1 is the law at the last draft's own place; behind it comes row γ",
            _block_bonus_row_before,
        ),
        Mutant(
            "residual behind the last draft",
            "nothing was proposed behind the last draft, so nothing has to be taken off: the whole "
            "last row is the law",
            _block_bonus_residual,
        ),
        Mutant(
            "rows shifted by one",
            "row i is the law before draft i is known; row i + 1 has read the draft it is to test. "
            "Acceptance falls, and what comes out follows no law of the target",
            _block_shifted,
        ),
        Mutant(
            "replacement from the row behind",
            "row i + 1 is the law behind the draft that was just rejected; its replacement stands "
            "in its place, so it comes from row i",
            _block_correction_row_behind,
            also=(_block_correction_target_behind,),
        ),
        Mutant(
            "replaced from the target",
            "the target's own law in place of the residual: what the draft proposes too often "
            "comes out too often",
            _block_from_target,
        ),
        Mutant(
            "accepts everything",
            "no draft is tested: γ + 1 tokens a pass, nearly all of them from the draft's law",
            _block_accept_all,
        ),
        Mutant(
            "rejected without a replacement",
            "the block ends before the rejected draft and nothing is drawn: a round whose first "
            "draft fails gives no token, and what remains has lost what the residual would bring",
            _block_no_correction,
        ),
        Mutant(
            "target overwritten",
            "the residual is computed in place: whoever reads target_probs_TV after the call, for "
            "log-probabilities or for a second try, finds other numbers",
            _block_in_place,
        ),
    ),
    answers=(_block_plain, _block_at_once),
)
