"""Chapter 11's mistakes as somebody else would write them: the check knows them by what they do."""

import math

import numpy as np
import torch


def tokens_of_the_textbook_without_a_bonus(alpha, gamma):
    return 1.0 if gamma == 0 else (1 - alpha**gamma) / (1 - alpha) if alpha < 1 else gamma


def tokens_as_a_binomial_mean(alpha, gamma):
    chances = [
        math.comb(gamma, k) * alpha**k * (1 - alpha) ** (gamma - k) for k in range(gamma + 1)
    ]
    return 1 + sum(k * chance for k, chance in enumerate(chances))


def tokens_in_closed_form(alpha, gamma):
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def tokens_in_numpy(alpha, gamma):
    with np.errstate(invalid="ignore"):
        return (1 - np.float64(alpha) ** (gamma + 1)) / (1 - np.float64(alpha))


def greedy_by_mask(draft_tokens, best_tokens):
    equal = torch.tensor(draft_tokens) == torch.tensor(best_tokens)[: len(draft_tokens)]
    count = int(equal.sum())
    return count, best_tokens[count]


def greedy_by_slice(draft_tokens, best_tokens):
    if draft_tokens == best_tokens[: len(draft_tokens)]:
        return len(draft_tokens), best_tokens[len(draft_tokens)]
    return 0, best_tokens[0]


def residual_for_multinomial(target_probs_V, draft_probs_V):
    excess = target_probs_V - torch.minimum(target_probs_V, draft_probs_V)
    return excess if excess.sum() else target_probs_V


def residual_either_way(target_probs_V, draft_probs_V):
    larger = torch.maximum(target_probs_V, draft_probs_V)
    gap = larger - torch.minimum(target_probs_V, draft_probs_V)
    return gap.div(gap.sum()) if gap.sum() else target_probs_V


def residual_of_a_normaliser(target_probs_V, draft_probs_V):
    excess = torch.relu(target_probs_V - draft_probs_V)
    return torch.nn.functional.softmax(excess.double(), dim=-1)


def residual_divided(target_probs_V, draft_probs_V):
    excess = np.maximum(target_probs_V.numpy() - draft_probs_V.numpy(), 0)
    with np.errstate(invalid="ignore"):
        return excess / excess.sum()


def accept_and_draw_again(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    ratio = min(1.0, float(target_probs_V[token]) / max(float(draft_probs_V[token]), 1e-30))
    if accept_uniform < ratio:
        return token, True
    masses = target_probs_V.tolist()
    other = 0
    while sum(masses[: other + 1]) <= draw_uniform:
        other += 1
    return other, False


def accept_if_best(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    best = max(range(len(target_probs_V)), key=target_probs_V.tolist().__getitem__)
    return (token, True) if token == best else (best, False)


def accept_with_the_letters_swapped(p, q, token, accept_uniform, draw_uniform):
    ratio = q[token] / p[token] if p[token] else math.inf
    if accept_uniform < min(1, ratio):
        return token, True
    rest = (p - q).clamp(min=0)
    rest = rest / rest.sum()
    return int(torch.searchsorted(rest.cumsum(0), draw_uniform, right=True)), False


def accept_all_drafts(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    return int(torch.tensor(token)), draft_probs_V.sum() > 0


def accept_or_anything_else(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    if accept_uniform * draft_probs_V[token] < target_probs_V[token]:
        return token, True
    others = [x if i != token else 0.0 for i, x in enumerate(target_probs_V.tolist())]
    ends = np.cumsum(others) / sum(others)
    return int(np.searchsorted(ends, draw_uniform, side="right")), False


def accept_up_to_the_ratio(target_probs_V, draft_probs_V, token, accept_uniform, draw_uniform):
    target, draft = float(target_probs_V[token]), float(draft_probs_V[token])
    if target >= draft * accept_uniform:
        return token, True
    excess = (target_probs_V - draft_probs_V).relu()
    return int((excess.cumsum(0) <= draw_uniform * excess.sum()).sum()), False


def law_of_trying_again(draft_probs_V, accept_V, replacement_VV):
    stands = torch.einsum("v,v->v", draft_probs_V, accept_V)
    return torch.nn.functional.normalize(stands, p=1, dim=0)


def law_by_columns(draft_probs_V, accept_V, replacement_VV):
    rejected = draft_probs_V - draft_probs_V * accept_V
    return draft_probs_V * accept_V + (replacement_VV * rejected).sum(dim=1)


def law_without_rejections(draft_probs_V, accept_V, replacement_VV):
    return [float(d) * float(a) for d, a in zip(draft_probs_V, accept_V, strict=True)]


def _number(law_V, uniform):
    return int((law_V.cumsum(0) <= uniform * law_V.sum()).sum())


def _first_failing(target, draft, tokens, uniforms):
    for i, token in enumerate(tokens):
        if uniforms[i] >= target[i, token] / draft[i, token]:
            return i
    return len(tokens)


def block_position_by_position(target, draft, tokens, uniforms, uniform):
    out = list(tokens)
    for i, token in enumerate(tokens):
        if uniforms[i] >= target[i, token] / draft[i, token]:
            out[i] = _number((target[i] - draft[i]).relu(), uniform)
    return [*out, _number(target[len(tokens)], uniform)]


def block_of_drafts_alone(target, draft, tokens, uniforms, uniform):
    n = _first_failing(target, draft, tokens, uniforms)
    if n == len(tokens):
        return list(tokens)
    return [*tokens[:n], _number((target[n] - draft[n]).relu(), uniform)]


def block_padded_with_the_last_draft(target, draft, tokens, uniforms, uniform):
    n = _first_failing(target, draft, tokens, uniforms)
    padded = torch.cat((draft, draft[-1:]))
    return [*tokens[:n], _number((target[n] - padded[n]).relu(), uniform)]


def block_resampled(target, draft, tokens, uniforms, uniform):
    n = _first_failing(target, draft, tokens, uniforms)
    return [*tokens[:n], _number(target[n], uniform)]


def block_with_work_in_place(target, draft, tokens, uniforms, uniform):
    n = _first_failing(target, draft, tokens, uniforms)
    if n < len(tokens):
        target[n].sub_(draft[n]).clamp_(min=0).div_(target[n].sum())
    return [*tokens[:n], _number(target[n], uniform)]


def keep_all_that_was_emitted(num_tokens, gamma, num_accepted):
    emitted = num_accepted + 1
    return tuple(min(num_tokens + emitted, held + num_tokens + gamma) for held in (0, -1))


def keep_one_length_for_both(num_tokens, gamma, num_accepted):
    committed = num_tokens + num_accepted + 1
    return [committed - 1] * 2


def keep_what_was_run(num_tokens, gamma, num_accepted):
    held = num_tokens - 1
    return held + len(range(gamma + 1)), held + len(range(gamma))


def gain_of_the_paper(alpha, gamma, draft_ms, step_ms, verify_ms):
    c = draft_ms / step_ms
    tokens = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return f"{tokens / (gamma * c + 1):.6f} x"


def gain_of_a_free_draft(alpha, gamma, draft_ms, step_ms, verify_ms):
    tokens, chance = 1.0, 1.0
    for _ in range(gamma):
        chance *= alpha
        tokens += chance
    return f"{100 * tokens / (verify_ms / step_ms)} %"


def lookup_from_the_left(tokens, ngram, num_draft):
    for start in range(len(tokens) - ngram):
        if tokens[start : start + ngram] == tokens[-ngram:]:
            return tokens[start + ngram :][:num_draft]
    return []


def lookup_from_the_right(tokens, ngram, num_draft):
    for start in reversed(range(len(tokens) - ngram)):
        if tokens[start : start + ngram] == tokens[-ngram:]:
            return tokens[start + ngram :][:num_draft]
    return []


def lookup_up_to_the_end(tokens, ngram, num_draft):
    for start in range(len(tokens) - ngram, -1, -1):
        if tokens[start : start + ngram] == tokens[-ngram:]:
            return tokens[start + ngram : start + ngram + num_draft]
    return []


def _speculate(target, draft, prompt, gamma, max_new_tokens, stop_tokens, *, finished, limit=None):
    text = list(prompt)
    while len(text) - len(prompt) < max_new_tokens:
        row = list(text)
        while len(row) < len(text) + gamma:
            row.append(draft(row))
        best, n = target(row), len(text)
        while n < len(row) and row[n] == best[n - 1]:
            n += 1
        fresh = [*row[len(text) : n], best[n - 1]]
        text += fresh
        if finished(fresh):
            break
    return text[len(prompt) :][:limit]


def loop_that_looks_at_the_last(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    return _speculate(
        *(target, draft, prompt, gamma, max_new_tokens, stop_tokens),
        finished=lambda fresh: fresh[-1] in stop_tokens,
        limit=max_new_tokens,
    )


def loop_that_returns_whole_blocks(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    out = _speculate(
        *(target, draft, prompt, gamma, max_new_tokens, stop_tokens),
        finished=lambda fresh: any(token in stop_tokens for token in fresh),
    )
    for i, token in enumerate(out):
        if token in stop_tokens:
            return out[: i + 1]
    return out


def loop_of_the_target_alone(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    out = []
    while len(out) < max_new_tokens:
        out.append(target(prompt + out)[-1])
        if out[-1] in stop_tokens:
            break
    return out


REWRITTEN = [
    (
        "expected_tokens",
        "no token behind the last draft",
        tokens_of_the_textbook_without_a_bonus,
    ),
    ("expected_tokens", "drafts counted behind a rejection", tokens_as_a_binomial_mean),
    ("expected_tokens", "0 / 0 at α = 1", tokens_in_closed_form),
    ("expected_tokens", "0 / 0 at α = 1", tokens_in_numpy),
    ("greedy_accept", "equal positions counted", greedy_by_mask),
    ("greedy_accept", "all or nothing", greedy_by_slice),
    ("residual", "not normalised", residual_for_multinomial),
    ("residual", "absolute difference", residual_either_way),
    ("residual", "softmax for scaling", residual_of_a_normaliser),
    ("residual", "NaN for equal laws", residual_divided),
    ("accept_or_resample", "accepts everything", accept_all_drafts),
    ("accept_or_resample", "resamples from the target", accept_and_draw_again),
    ("accept_or_resample", "compares best tokens", accept_if_best),
    ("accept_or_resample", "ratio inverted", accept_with_the_letters_swapped),
    ("accept_or_resample", "only the rejected token struck out", accept_or_anything_else),
    ("accept_or_resample", "accepts at exactly 0", accept_up_to_the_ratio),
    ("output_law", "drafted again until accepted", law_of_trying_again),
    ("output_law", "rows and columns swapped", law_by_columns),
    ("output_law", "rejections lost", law_without_rejections),
    ("verify_block", "goes on behind a rejection", block_position_by_position),
    ("verify_block", "no token behind the last draft", block_of_drafts_alone),
    ("verify_block", "residual behind the last draft", block_padded_with_the_last_draft),
    ("verify_block", "replaced from the target", block_resampled),
    ("verify_block", "target overwritten", block_with_work_in_place),
    ("tokens_to_keep", "correction counted as read", keep_all_that_was_emitted),
    ("tokens_to_keep", "last draft taken for read", keep_one_length_for_both),
    ("tokens_to_keep", "nothing taken back", keep_what_was_run),
    ("speculation_gain", "wider pass for free", gain_of_the_paper),
    ("speculation_gain", "drafts for free", gain_of_a_free_draft),
    ("prompt_lookup", "first place", lookup_from_the_left),
    ("prompt_lookup", "latest place, whatever follows", lookup_from_the_right),
    ("prompt_lookup", "finds the row's own end", lookup_up_to_the_end),
    ("speculate_greedily", "text behind a stop token", loop_that_looks_at_the_last),
    ("speculate_greedily", "more than was asked for", loop_that_returns_whole_blocks),
    ("speculate_greedily", "one call a token", loop_of_the_target_alone),
]
