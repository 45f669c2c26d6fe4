"""Exercise of chapter 02 on taking tokens back from a buffer, which is changed in place."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task

# ── truncate ──────────────────────────────────────────────────────────────────────────────────


def _run_truncate(function: Callable[..., Any], k_buffer, v_buffer, held_B, kept_B) -> Any:
    """The lengths returned and what both buffers then hold."""
    k_buffer, v_buffer = k_buffer.clone(), v_buffer.clone()
    valid = bool(((kept_B >= 0) & (kept_B <= held_B)).all())
    refused = False
    try:
        lengths = function(k_buffer, v_buffer, held_B, kept_B)
    except ValueError:
        if valid:
            raise
        refused, lengths = True, held_B
    if lengths is None:
        return None
    return {"refused": refused, "lengths": lengths, "k buffer": k_buffer, "v buffer": v_buffer}


def _truncate_example(
    held: list[int], kept: list[int], *, G: int = 1, D: int = 1, spare: int = 1
) -> Example:
    """What a row should hold, token by token, starting from nothing."""
    B, max_tokens = len(held), max(held) + spare
    buffers = np.full((2, B, G, max_tokens, D), np.nan, dtype=np.float32)
    after = buffers.copy()
    refused = any(not 0 <= k <= h for k, h in zip(kept, held, strict=True))
    lengths = list(held if refused else kept)
    for kv, b, g, s, d in np.ndindex(*buffers.shape):
        number = 1 + s + 10 * b + 30 * g + 100 * d
        number = -number if kv else number
        if s < held[b]:
            buffers[kv, b, g, s, d] = number
        if s < lengths[b]:
            after[kv, b, g, s, d] = number
    expected = {"refused": refused, "lengths": lengths, "k buffer": after[0], "v buffer": after[1]}
    shown = (
        f"k_buffer_BGSD of shape {buffers.shape[1:]} = {render(buffers[0])}, v_buffer_BGSD the "
        f"same, negative\nnum_tokens_B = {held}\nlengths_B = {kept}"
    )
    args = (*map(torch.tensor, buffers), torch.tensor(held), torch.tensor(kept))
    return Example(args, expected, shown=shown)


def _truncate_plain(k_buffer_BGSD, v_buffer_BGSD, num_tokens_B, lengths_B):
    """Check all rows first; then clear each row's tail."""
    if (lengths_B < 0).any() or (lengths_B > num_tokens_B).any():
        raise ValueError(f"rows hold {num_tokens_B.tolist()} tokens, kept {lengths_B.tolist()}")
    for row, length in enumerate(lengths_B.tolist()):
        k_buffer_BGSD[row, :, length:] = torch.nan
        v_buffer_BGSD[row, :, length:] = torch.nan
    return lengths_B.clone()


def _truncate_masked(k_buffer_BGSD, v_buffer_BGSD, num_tokens_B, lengths_B):
    for held, kept in zip(num_tokens_B.tolist(), lengths_B.tolist(), strict=True):
        if not 0 <= kept <= held:
            raise ValueError(f"cannot keep {kept} of {held} tokens")
    slot_S = torch.arange(k_buffer_BGSD.shape[2])
    gone_B1S1 = (slot_S >= lengths_B[:, None])[:, None, :, None]
    for buffer_BGSD in (k_buffer_BGSD, v_buffer_BGSD):
        buffer_BGSD.masked_fill_(gone_B1S1, float("nan"))
    return torch.minimum(num_tokens_B, lengths_B)


def _truncate_variant(k_buffer, v_buffer, held_B, kept_B, *, clear_from=None, values=True):
    """Truncate with one thing done wrong: which slots are cleared, and of which buffer."""
    if (kept_B < 0).any() or (kept_B > held_B).any():
        raise ValueError("shorter than empty, or longer than held")
    for row, start in enumerate((kept_B if clear_from is None else clear_from).tolist()):
        k_buffer[row, :, start:] = torch.nan
        if values:
            v_buffer[row, :, start:] = torch.nan
    return kept_B


def _truncate_stale(k_buffer, v_buffer, num_tokens_B, lengths_B):
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B, clear_from=num_tokens_B)


def _truncate_stale_length(k_buffer, v_buffer, num_tokens_B, lengths_B):
    _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B, clear_from=num_tokens_B)
    return num_tokens_B


def _truncate_length_kept(k_buffer, v_buffer, num_tokens_B, lengths_B):
    _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B)
    return num_tokens_B


def _truncate_values_kept(k_buffer, v_buffer, num_tokens_B, lengths_B):
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B, values=False)


def _truncate_shortest(k_buffer, v_buffer, num_tokens_B, lengths_B):
    shortest_B = lengths_B.min().expand(len(lengths_B))
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, shortest_B)


def _truncate_first_row(k_buffer, v_buffer, num_tokens_B, lengths_B):
    _truncate_variant(k_buffer[:1], v_buffer[:1], num_tokens_B[:1], lengths_B[:1])
    return lengths_B


def _truncate_one_kept(k_buffer, v_buffer, num_tokens_B, lengths_B):
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B, clear_from=lengths_B + 1)


def _truncate_one_lost(k_buffer, v_buffer, num_tokens_B, lengths_B):
    start_B = (lengths_B - 1).clamp(min=0)
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, lengths_B, clear_from=start_B)


def _truncate_removed(k_buffer, v_buffer, num_tokens_B, lengths_B):
    return _truncate_variant(k_buffer, v_buffer, num_tokens_B, num_tokens_B - lengths_B)


def _truncate_grows(k_buffer, v_buffer, num_tokens_B, lengths_B):
    return _truncate_variant(k_buffer, v_buffer, lengths_B, lengths_B)


def _truncate_negative(k_buffer, v_buffer, num_tokens_B, lengths_B):
    if (lengths_B > num_tokens_B).any():
        raise ValueError("longer than held")
    for row, start in enumerate(lengths_B.tolist()):
        k_buffer[row, :, start:] = torch.nan
        v_buffer[row, :, start:] = torch.nan
    return lengths_B


TRUNCATE = Task(
    name="truncate",
    chapter=2,
    title="Take tokens back",
    minutes=10,
    points=3,
    level=2,
    spec=(
        "Forgets all but the first lengths_B tokens of each row: fills the slots behind them with "
        "NaN in both buffers and returns how many tokens each row now holds; if a row is to keep "
        "more than it holds or fewer than none, a ValueError and nothing changed."
    ),
    signature=(
        "truncate(k_buffer_BGSD: Tensor, v_buffer_BGSD: Tensor, num_tokens_B: Tensor, "
        "lengths_B: Tensor) -> Tensor"
    ),
    properties=(
        Property(
            "keeping everything changes nothing",
            lambda: [_truncate_example([1], [1]), _truncate_example([3], [3], spare=2)],
        ),
        Property(
            "what is taken back is gone",
            lambda: [
                _truncate_example([3], [2]),
                _truncate_example([5], [1], G=3, D=2, spare=3),
            ],
        ),
        Property(
            "each row keeps its own number of tokens",
            lambda: [
                _truncate_example([4, 4], [3, 2]),
                _truncate_example([5, 3, 6], [2, 3, 4], G=2, D=5, spare=2),
            ],
        ),
        Property(
            "a row can be emptied",
            lambda: [_truncate_example([2], [0]), _truncate_example([4, 3], [1, 0], G=2)],
            edge=True,
        ),
        Property(
            "a row cannot keep more than it holds",
            lambda: [_truncate_example([2], [3], spare=3), _truncate_example([4, 2], [1, 3])],
            edge=True,
        ),
        Property(
            "a row cannot keep fewer than none",
            lambda: [_truncate_example([2], [-1]), _truncate_example([4, 2], [1, -1])],
            edge=True,
        ),
    ),
    hints=(
        "Three things change: keys, values, and the count. Which slots, row by row?",
        "Row b is cleared from lengths_B[b] on: both buffers, all heads.",
        "Compare lengths_B with 0 and num_tokens_B before clearing anything; return lengths_B.",
    ),
    mutants=(
        Mutant(
            "stale tail",
            "the keys and values that were taken back are still in their slots: any reader that "
            "goes by another length than the new one finds them, plausible and wrong",
            _truncate_stale,
            also=(_truncate_stale_length,),
        ),
        Mutant(
            "length not shortened",
            "the slots are cleared but the old count is returned, so the next token is written "
            "behind a hole and attention reads the hole",
            _truncate_length_kept,
        ),
        Mutant(
            "values forgotten",
            "the keys are cleared and the values are not",
            _truncate_values_kept,
        ),
        Mutant(
            "one length for all rows",
            "every row is cut to the shortest; a draft accepted in one row is not to be lost "
            "because another row's was rejected",
            _truncate_shortest,
        ),
        Mutant(
            "first row only",
            "the other rows keep their tails: index the batch by row, and clear each",
            _truncate_first_row,
        ),
        Mutant(
            "one token too many kept",
            "clearing begins one slot late: tokens 0 to length − 1 are kept, so slot length is the "
            "first to clear",
            _truncate_one_kept,
        ),
        Mutant(
            "last kept token lost",
            "clearing begins one slot early and takes the last token that was to be kept",
            _truncate_one_lost,
        ),
        Mutant(
            "taken as the number to remove",
            "lengths_B says how many tokens to keep, not how many to take away",
            _truncate_removed,
        ),
        Mutant(
            "grown by truncation",
            "a row is said to hold more tokens than were ever written to it; the slots between "
            "are NaN, or somebody's old keys",
            _truncate_grows,
        ),
        Mutant(
            "negative length kept",
            "−1 clears the last slot of the buffer and comes back as a number of tokens",
            _truncate_negative,
        ),
    ),
    answers=(_truncate_plain, _truncate_masked),
    equal_nan=True,
    drive=_run_truncate,
)
