"""Exercise of chapter 11 on the whole loop: greedy speculation, its stop tokens, its budget."""

from collections.abc import Callable
from typing import Any

from labkit.tasks import Example, Mutant, Property, Task

Model = Callable[[list[int]], Any]

# ── speculate_greedily ────────────────────────────────────────────────────────────────────────


def _best(tokens: list[int]) -> int:
    """What the toy target writes behind ``tokens``; order and length matter."""
    return (5 * tokens[-1] + 3 * sum(tokens[-4:-1]) + len(tokens)) % 13


def toy_target(tokens: list[int]) -> list[int]:
    """The best token behind each beginning of ``tokens``: one pass."""
    return [_best(tokens[: i + 1]) for i in range(len(tokens))]


def toy_draft(period: int) -> Callable[[list[int]], int]:
    """A draft that is wrong behind every text whose length is a multiple of ``period``."""

    def draft(tokens: list[int]) -> int:
        return (_best(tokens) + (len(tokens) % period == 0)) % 13

    return draft


def _run_loop(function: Callable[..., Any], target: Model, draft: Model, *args: Any) -> Any:
    """The tokens, and how many times the target was called for them."""
    calls = 0

    def counted(tokens: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        return target(tokens)

    tokens = function(counted, draft, *args)
    return None if tokens is None else {"tokens": list(tokens), "target calls": calls}


def _loop_example(
    period: int, prompt: list[int], gamma: int, max_new_tokens: int, stop_tokens: tuple[int, ...]
) -> Example:
    """Plain decoding, token by token; then count how far the draft would have followed it."""
    draft = toy_draft(period)
    text = [*prompt, *_written(prompt, max_new_tokens + gamma + 1)]
    new = text[len(prompt) :][:max_new_tokens]
    stops = [i for i, token in enumerate(new) if token in stop_tokens]
    new = new[: stops[0] + 1] if stops else new
    calls, place = 0, len(prompt)
    while place < len(prompt) + len(new):
        agrees = [draft(text[: place + i]) == text[place + i] for i in range(gamma)]
        place += [*agrees, False].index(False) + 1
        calls += 1
    shown = (
        f"target = toy target over 13 tokens\ndraft = wrong where the length of the text is a "
        f"multiple of {period}\nprompt = {prompt}\ngamma = {gamma}\nmax_new_tokens = "
        f"{max_new_tokens}\nstop_tokens = {stop_tokens}"
    )
    args = (toy_target, draft, prompt, gamma, max_new_tokens, stop_tokens)
    return Example(args, {"tokens": new, "target calls": calls}, shown=shown)


def _written(prompt: list[int], num_tokens: int) -> list[int]:
    """What plain decoding writes."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(_best(text))
    return text[len(prompt) :]


def _loop_plain(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    """Draft, verify in one call, keep what agrees and one more; look at every token that comes."""
    text, end = list(prompt), len(prompt) + max_new_tokens
    while len(text) < end:
        row = list(text)
        for _ in range(gamma):
            row.append(draft(row))
        drafts, best = row[len(text) :], target(row)[len(text) - 1 :]
        num_accepted = 0
        while num_accepted < gamma and drafts[num_accepted] == best[num_accepted]:
            num_accepted += 1
        for token in best[: num_accepted + 1]:
            text.append(token)
            if token in stop_tokens or len(text) == end:
                return text[len(prompt) :]
    return []


def _loop_cut_later(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new, stop = [], set(stop_tokens)
    while len(new) < max_new_tokens and not stop.intersection(new):
        row = [*prompt, *new]
        first = len(row)
        num_drafts = min(gamma, max_new_tokens - len(new) - 1)  # the pass gives one more
        for _ in range(num_drafts):
            row.append(draft(row))
        for i, best in enumerate(target(row)[first - 1 :], start=first):
            new.append(best)
            if i == len(row) or row[i] != best:
                break
    kept = [i + 1 for i, token in enumerate(new) if token in stop]
    return new[: kept[0]] if kept else new


def _drafted(draft: Model, text: list[int], gamma: int) -> list[int]:
    row = list(text)
    for _ in range(gamma):
        row.append(draft(row))
    return row[len(text) :]


def _verified(target: Model, text: list[int], drafts: list[int]) -> list[int]:
    """The tokens of a round: drafts that agree, and one of the target."""
    best = target([*text, *drafts])[len(text) - 1 :]
    n = [*(d == b for d, b in zip(drafts, best, strict=False)), False].index(False)
    return best[: n + 1]


def _cut(new: list[int], max_new_tokens: int, stop_tokens: tuple[int, ...]) -> list[int]:
    new = new[:max_new_tokens]
    stops = [i for i, token in enumerate(new) if token in stop_tokens]
    return new[: stops[0] + 1] if stops else new


def _rounds(verify: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """A loop with everything right but what ``verify(target, text, drafts)`` gives."""

    def loop(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
        new: list[int] = []
        while len(new) < max_new_tokens and not set(stop_tokens) & set(new):
            text = [*prompt, *new]
            new += verify(target, text, _drafted(draft, text, gamma))
        return _cut(new, max_new_tokens, stop_tokens)

    return loop


def _no_bonus(target, text, drafts):
    return _verified(target, text, drafts)[: max(1, len(drafts))]


def _one_by_one(target, text, drafts):
    out: list[int] = []
    for drafted in [*drafts, None]:
        out.append(target([*text, *out])[-1])
        if out[-1] != drafted:
            break
    return out


def _equal_positions(target, text, drafts):
    best = target([*text, *drafts])[len(text) - 1 :]
    n = sum(d == b for d, b in zip(drafts, best, strict=False))
    return [*drafts[:n], best[n]]


def _accept_all(target, text, drafts):
    return [*drafts, target([*text, *drafts])[-1]]


def _shifted(target, text, drafts):
    best = target([*text, *drafts])[len(text) :]
    n = [*(d == b for d, b in zip(drafts, best, strict=True)), False].index(False)
    return [*drafts[:n], best[min(n, len(best) - 1)]] if best else target(text)[-1:]


def _loop_one_by_one(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new: list[int] = []
    while len(new) < max_new_tokens and not (new and new[-1] in stop_tokens):
        new.append(target([*prompt, *new])[-1])
    return new


_loop_no_bonus = _rounds(_no_bonus)
_loop_one_by_one_in_rounds = _rounds(_one_by_one)
_loop_equal_positions = _rounds(_equal_positions)
_loop_accept_all = _rounds(_accept_all)
_loop_shifted = _rounds(_shifted)


def _loop_stop_at_the_end(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new: list[int] = []
    while len(new) < max_new_tokens and not (new and new[-1] in stop_tokens):
        text = [*prompt, *new]
        new += _verified(target, text, _drafted(draft, text, gamma))
    return new[:max_new_tokens]


def _loop_stop_keeps_block(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new: list[int] = []
    while len(new) < max_new_tokens and not set(stop_tokens) & set(new):
        text = [*prompt, *new]
        new += _verified(target, text, _drafted(draft, text, gamma))
    return new[:max_new_tokens]


def _loop_overshoots(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new: list[int] = []
    while len(new) < max_new_tokens and not set(stop_tokens) & set(new):
        text = [*prompt, *new]
        new += _verified(target, text, _drafted(draft, text, gamma))
    return _cut(new, len(new), stop_tokens)


def _loop_not_rolled_back(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new: list[int] = []
    read = list(prompt)  # what the draft model has read: rejected drafts stay in it
    while len(new) < max_new_tokens and not set(stop_tokens) & set(new):
        drafts = _drafted(draft, read, gamma)
        block = _verified(target, [*prompt, *new], drafts)
        new += block
        read += [*drafts, block[-1]]
    return _cut(new, max_new_tokens, stop_tokens)


def _loop_stop_dropped(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    new = _loop_plain(target, draft, prompt, gamma, max_new_tokens, stop_tokens)
    return new[:-1] if new and new[-1] in stop_tokens else new


def _loop_prompt_counted(target, draft, prompt, gamma, max_new_tokens, stop_tokens):
    left = max(0, max_new_tokens - len(prompt))
    return _loop_plain(target, draft, prompt, gamma, left, stop_tokens)


SPECULATE_GREEDILY = Task(
    name="speculate_greedily",
    chapter=11,
    title="The whole loop",
    minutes=15,
    points=5,
    level=3,
    spec=(
        "What greedy decoding with the target writes behind the prompt: max_new_tokens tokens, or "
        "up to and including the first of stop_tokens; in rounds of gamma drafts, with one call of "
        "the target each. target(tokens) lists its best token behind each beginning of tokens, "
        "draft(tokens) is the draft model's best next one."
    ),
    signature=(
        "speculate_greedily(target: Callable[[list[int]], list[int]], draft: Callable[[list[int]], "
        "int], prompt: list[int], gamma: int, max_new_tokens: int, stop_tokens: tuple[int, ...]) "
        "-> list[int]"
    ),
    properties=(
        Property(
            "one token, from the target",
            lambda: [_loop_example(1, [1], 1, 1, ())],
        ),
        Property(
            "the target's text, at γ + 1 tokens a call where the draft is always right",
            lambda: [
                _loop_example(99, [1, 4], 1, 4, ()),
                _loop_example(99, [7, 2, 3], 3, 12, ()),
            ],
        ),
        Property(
            "the target's text, with a draft that is sometimes or always wrong",
            lambda: [
                _loop_example(3, [1, 4], 2, 5, ()),
                _loop_example(5, [7, 2, 3], 4, 23, ()),
                _loop_example(1, [7, 2, 3], 4, 6, ()),
            ],
        ),
        Property(
            "never more than max_new_tokens, wherever in a round that is",
            lambda: [_loop_example(99, [3, 9], 4, n, ()) for n in (2, 3, 4, 6)],
        ),
        Property(
            "nothing behind a stop token, wherever in a round it stands",
            lambda: [
                _loop_example(99, [7, 2, 3], 4, 12, (token,)) for token in _written([7, 2, 3], 6)
            ],
        ),
        Property(
            "a stop token behind the last token that is wanted",
            lambda: [
                _loop_example(99, [7, 2, 3], 4, n, (_written([7, 2, 3], 3)[2],)) for n in (1, 2, 3)
            ],
        ),
        Property(
            "a stop token in the prompt is none",
            lambda: [_loop_example(4, [7, 2, 3], 3, 2, (2,))],
            edge=True,
        ),
        Property(
            "no token wanted; no drafts",
            lambda: [_loop_example(3, [1, 4], 2, 0, ()), _loop_example(3, [1, 4], 0, 3, ())],
            edge=True,
        ),
    ),
    hints=(
        "One round: gamma drafts behind the text, one call of the target on the text with them, "
        "the first difference. Which of the target's entries stands at the place of draft 0?",
        "best = target(text + drafts)[len(text) − 1 :]; accepted drafts are equal to best, so that "
        "a round gives best[: num_accepted + 1].",
        "Append these tokens one by one, and after each look whether it is a stop token or the "
        "last that is wanted; return at once if so.",
    ),
    mutants=(
        Mutant(
            "text behind a stop token",
            "a stop token among the accepted drafts ends the text right there; a test of the last "
            "token, or of whole rounds, lets the rest of the block through",
            _loop_stop_at_the_end,
            also=(_loop_stop_keeps_block,),
        ),
        Mutant(
            "more than was asked for",
            "the budget is looked at between rounds only: the last one can bring gamma tokens too "
            "many",
            _loop_overshoots,
        ),
        Mutant(
            "prompt counted in the budget",
            "max_new_tokens counts what is written; compare it with the new tokens, not with the "
            "length of the whole text",
            _loop_prompt_counted,
        ),
        Mutant(
            "stop token dropped",
            "the stop token is part of the text: whoever reads it has to see why it ended",
            _loop_stop_dropped,
        ),
        Mutant(
            "no token behind the last draft",
            "where all drafts are accepted the call has given one token more; without it the text "
            "is right and takes more calls",
            _loop_no_bonus,
        ),
        Mutant(
            "one call a token",
            "every token is asked for by a call of its own: the text is right, and the drafts have "
            "saved nothing; one call on the text with all drafts answers for each of them",
            _loop_one_by_one,
            also=(_loop_one_by_one_in_rounds,),
        ),
        Mutant(
            "equal positions counted",
            "agreement behind the first difference does not count: the target's entries there "
            "follow a rejected draft",
            _loop_equal_positions,
        ),
        Mutant(
            "accepts everything",
            "drafts are kept without a look at the target: the text is the draft's",
            _loop_accept_all,
        ),
        Mutant(
            "rows shifted by one",
            "target(tokens)[i] stands behind tokens[i]: draft 0 is compared with entry "
            "len(text) − 1, not len(text)",
            _loop_shifted,
        ),
        Mutant(
            "draft not rolled back",
            "rejected drafts stay in what the draft model reads: the text is still right, since "
            "the target decides, but after the first rejection drafts are hardly ever accepted",
            _loop_not_rolled_back,
        ),
    ),
    answers=(_loop_plain, _loop_cut_later),
    drive=_run_loop,
)
