"""Exercise of chapter 02 that puts it together: a ragged batch through a cached loop."""

from collections.abc import Callable
from typing import Any

import torch

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch02.tiny import TinyDecoder

# ── cached_generate ───────────────────────────────────────────────────────────────────────────


def _run(function: Callable[..., Any], model, prompts, max_new_tokens, stop_tokens):
    """The new tokens, and whether the loop kept to what a cached one feeds."""
    model = model.fresh()
    new = function(model, prompts, max_new_tokens, stop_tokens)
    if new is None:
        return None
    allowed = len(prompts) * (max(map(len, prompts)) + max_new_tokens)
    return {"new tokens": new, "each token fed once": model.num_fed <= allowed}


def _example(
    vocab_size: int,
    seed: int,
    prompts: list[list[int]],
    max_new_tokens: int,
    stop_tokens: tuple[int, ...] = (),
) -> Example:
    """Each row alone, the whole text run again for every token."""
    model, rows = TinyDecoder(vocab_size, seed), []
    for prompt in prompts:
        new: list[int] = []
        while len(new) < max_new_tokens and not (new and new[-1] in stop_tokens):
            new.append(int(model.logits([*prompt, *new]).argmax()))
        rows.append(new)
    expected = {"new tokens": rows, "each token fed once": True}
    return Example((model, prompts, max_new_tokens, stop_tokens), expected)


def _ragged_with_stop(max_new_tokens: int, *positions: tuple[int, int]) -> Example:
    """Stops at tokens that the free run generates: ``positions`` are (row, step)."""
    prompts = [[31, 4, 15, 9, 26], [53], [58, 9, 7]]
    free = _example(61, 2, prompts, max_new_tokens).expected["new tokens"]
    stops = tuple(free[row][step] for row, step in positions)
    return _example(61, 2, prompts, max_new_tokens, (*stops, 60))


def _left_padded(model, prompts, max_new_tokens, stop_tokens=()):
    """Pads in front: all rows end together, and slot less pads is the position."""
    longest = max(len(prompt) for prompt in prompts)
    num_pads_B = torch.tensor([longest - len(prompt) for prompt in prompts])
    tokens_BT = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    new, running, stored = [[] for _ in prompts], set(range(len(prompts))), 0
    while running and max_new_tokens:
        slot_T = torch.arange(stored, stored + tokens_BT.shape[1])
        stored += len(slot_T)
        key_S = torch.arange(stored)
        positions_BT = (slot_T - num_pads_B[:, None]).clamp(min=0)
        mask_BTS = (key_S <= slot_T[:, None]) & (key_S >= num_pads_B[:, None, None])
        chosen_B = model(tokens_BT, positions_BT, mask_BTS)[:, -1].argmax(dim=-1)
        for row in sorted(running):
            new[row].append(int(chosen_B[row]))
            if new[row][-1] in stop_tokens or len(new[row]) == max_new_tokens:
                running.discard(row)
        tokens_BT = chosen_B[:, None]  # a finished row feeds a token that nobody looks at
    return new


def _right_padded(model, prompts, max_new_tokens, stop_tokens=()):
    lengths_B = torch.tensor([len(prompt) for prompt in prompts])
    B, longest = len(prompts), int(lengths_B.max())
    tokens_BT = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    slot_S = torch.arange(longest)
    real_BS = slot_S < lengths_B[:, None]
    mask_BTS = (slot_S[None, :] <= slot_S[:, None]) & real_BS[:, None]
    logits_BTV = model(tokens_BT, slot_S.expand(B, -1), mask_BTS)
    logits_BV = logits_BTV[torch.arange(B), lengths_B - 1]
    columns, done_B = [], torch.zeros(B, dtype=torch.bool)
    for step in range(max_new_tokens):
        chosen_B = logits_BV.argmax(dim=-1)
        columns.append(chosen_B.masked_fill(done_B, -1))
        done_B |= torch.tensor([int(token) in stop_tokens for token in chosen_B])
        if done_B.all() or step + 1 == max_new_tokens:
            break
        real_BS = torch.cat((real_BS, torch.ones(B, 1, dtype=torch.bool)), dim=1)
        logits_BV = model(chosen_B[:, None], (lengths_B + step)[:, None], real_BS[:, None])[:, 0]
    return [[int(column[row]) for column in columns if column[row] >= 0] for row in range(B)]


def _variant(
    model,
    prompts,
    limit,
    stops,
    *,
    decode_at="slot",
    pads_read=False,
    top_left=False,
    refeed=False,
    keep_stop=True,
    ends="row",
):
    """The left-padded loop with one thing done wrong."""
    longest = max(map(len, prompts))
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    whole = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    tokens, stored, new = whole, 0, [[] for _ in prompts]
    stopped: set[int] = set()
    for step in range(limit):
        slot = torch.arange(stored, stored + tokens.shape[1])
        stored += len(slot)
        positions = (slot - pads[:, None]).clamp(min=0)
        if step and (refeed or decode_at == "zero"):
            positions = torch.arange(len(slot)).expand(len(pads), -1)
            positions = (positions - (pads[:, None] if refeed else 0)).clamp(min=0)
        elif step and decode_at == "with pads":
            positions = slot.expand(len(pads), -1)
        key = torch.arange(stored)
        query = torch.arange(len(slot)) if top_left else slot
        mask = (key <= query[:, None]).expand(len(pads), -1, -1)
        if not pads_read:
            mask = mask & (key >= pads[:, None, None])
        chosen = model(tokens, positions, mask)[:, -1].argmax(-1)
        whole = torch.cat((whole, chosen[:, None]), dim=1)
        tokens = whole if refeed else chosen[:, None]
        for row, token in enumerate(chosen.tolist()):
            if (row not in stopped or ends == "never") and (keep_stop or token not in stops):
                new[row].append(token)
            if token in stops:
                stopped.add(row)
        if (ends == "any" and stopped) or len(stopped) == len(prompts):
            break
    return new


def _restarted(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, decode_at="zero")


def _pads_counted(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, decode_at="with pads")


def _pads_attended(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, pads_read=True)


def _top_left(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, top_left=True)


def _fed_again(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, refeed=True)


def _stop_dropped(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, keep_stop=False)


def _all_stop(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, ends="any")


def _keep_writing(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, stop_tokens, ends="never")


def _keep_writing_to_the_limit(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens, ())


def _one_too_many(model, prompts, max_new_tokens, stop_tokens=()):
    return _variant(model, prompts, max_new_tokens + 1, stop_tokens)


CACHED_GENERATE = Task(
    name="cached_generate",
    chapter=2,
    title="The cached loop on a ragged batch",
    minutes=30,
    points=6,
    level=3,
    spec=(
        "For each of prompts the list of new token ids that greedy decoding yields, at most "
        "max_new_tokens and ending with the first of stop_tokens generated, where "
        "model(tokens_BT, positions_BT, mask_BTS) keeps keys and values of all slots fed so far "
        "and reads those that the mask allows; all rows go through it together, each token once."
    ),
    signature=(
        "cached_generate(model, prompts: list[list[int]], max_new_tokens: int, "
        "stop_tokens: tuple[int, ...] = ()) -> list[list[int]]"
    ),
    properties=(
        Property(
            "the prompt's last position chooses the first new token",
            lambda: [_example(11, 1, [[2]], 1), _example(61, 2, [[31, 4, 10]], 1)],
        ),
        Property(
            "each step feeds one token, behind all that is stored",
            lambda: [_example(11, 1, [[2]], 3), _example(61, 2, [[31, 4, 15, 9]], 8)],
        ),
        Property(
            "a row of a ragged batch gives what it gives alone",
            lambda: [
                _example(61, 2, [[31, 4], [53]], 1),
                _example(61, 2, [[31, 4, 15, 9, 26], [53], [58, 9, 7]], 7),
            ],
        ),
        Property(
            "a row ends with its stop token, and the others go on",
            lambda: [
                _ragged_with_stop(6, (1, 2)),
                _ragged_with_stop(7, (0, 1), (2, 3)),
                _ragged_with_stop(5, (0, 0), (1, 1), (2, 2)),
            ],
        ),
        Property(
            "max_new_tokens = 0 gives empty lists",
            lambda: [_example(11, 1, [[2, 5], [3]], 0)],
            edge=True,
        ),
        Property(
            "a stop token in a prompt ends nothing",
            lambda: [_example(61, 2, [[31, 4], [53]], 3, (31, 53))],
            edge=True,
        ),
    ),
    hints=(
        "Pad in front with token 0, so that the last column is every row's last token. A first "
        "pass feeds all of it, each later one a column [B, 1].",
        "Count the slots stored. Position = slot − pads of the row; a key is read if it is in a "
        "slot not later than the query's and not a pad's.",
        "A finished row still needs a token in its column, which one does not matter; append only "
        "to rows that run, and leave when none does.",
    ),
    mutants=(
        Mutant(
            "positions restarted",
            "a decoded token is placed at position 0; the first token of each row is right, since "
            "prefill starts at 0 anyway, and all others stand in front of what they follow",
            _restarted,
        ),
        Mutant(
            "pads counted in decode",
            "prefill skips the pads when it counts and decode does not, so distances jump at the "
            "seam; a constant shift of the whole row would have done no harm",
            _pads_counted,
        ),
        Mutant(
            "pads attended",
            "the short rows read the pads in front of them; the longest row has none and is right",
            _pads_attended,
        ),
        Mutant(
            "mask aligned top left",
            "a decoded token reads slot 0 alone; it stands in the last slot and reads all of them",
            _top_left,
        ),
        Mutant(
            "prompt fed again",
            "the whole text is fed in every step, behind what the model keeps already: it reads "
            "everything twice, and the work saved is spent again",
            _fed_again,
        ),
        Mutant(
            "finished rows keep writing",
            "a row goes on after its stop token as long as another row runs",
            _keep_writing,
            also=(_keep_writing_to_the_limit,),
        ),
        Mutant(
            "first stop ends all",
            "the loop leaves when one row has stopped; the others are cut short",
            _all_stop,
        ),
        Mutant(
            "stop token dropped",
            "a row ends, but its stop token is not in the result",
            _stop_dropped,
        ),
        Mutant(
            "one token too many",
            "the loop yields max_new_tokens + 1 tokens: the prefill's token counts as well",
            _one_too_many,
        ),
    ),
    answers=(_left_padded, _right_padded),
    drive=_run,
)
