"""Exercise of chapter 02 on writing into a reserved buffer.

The function changes the buffers that it is given, so what counts is the buffers afterwards. Slots
that hold no token are NaN, before and after.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task

# ── append_and_read ───────────────────────────────────────────────────────────────────────────


def _run_append(function: Callable[..., Any], k_buffer, v_buffer, held, k, v) -> Any:
    """What is returned and what both buffers then hold."""
    k_buffer, v_buffer = k_buffer.clone(), v_buffer.clone()
    fits, refused = held + k.shape[1] <= k_buffer.shape[2], False
    try:
        returned = function(k_buffer, v_buffer, held, k, v)
    except ValueError:
        if fits:
            raise
        refused, returned = True, (k_buffer[:, :, :held], v_buffer[:, :, :held])
    if returned is None:
        return None
    return {"refused": refused, "returned": returned, "k buffer": k_buffer, "v buffer": v_buffer}


def _append_example(B: int, T: int, G: int, D: int, *, held: int, max_tokens: int) -> Example:
    """Every element has a number of its own; NumPy moves them one by one."""
    k_new, v_new = np.arange(1.0, 2 * B * T * G * D + 1, dtype=np.float32).reshape(2, B, T, G, D)
    buffers = np.full((2, B, G, max_tokens, D), np.nan, dtype=np.float32)
    old = buffers[:, :, :, :held]
    old[:] = -1 - np.arange(old.size, dtype=np.float32).reshape(old.shape)
    k_after, v_after = after = buffers.copy()
    refused = held + T > max_tokens
    if not refused:
        for b, t, g in np.ndindex(B, T, G):
            k_after[b, g, held + t], v_after[b, g, held + t] = k_new[b, t, g], v_new[b, t, g]
    length = held if refused else held + T
    returned = tuple(after[:, :, :, :length])
    expected = {
        "refused": refused,
        "returned": returned,
        "k buffer": k_after,
        "v buffer": v_after,
    }
    args = (*map(torch.tensor, buffers), held, torch.tensor(k_new), torch.tensor(v_new))
    shown = (
        f"k_buffer_BGSD, v_buffer_BGSD of shape {(B, G, max_tokens, D)}, NaN from slot {held} on\n"
        f"num_tokens = {held}\nk_BTGD = {render(k_new)}\nv_BTGD = {render(v_new)}"
    )
    return Example(args, expected, shown=shown)


def _append_plain(k_buffer_BGSD, v_buffer_BGSD, num_tokens, k_BTGD, v_BTGD):
    """Swap the axes, write behind the length, return views of what is held."""
    stop, max_tokens = num_tokens + k_BTGD.shape[1], k_buffer_BGSD.shape[2]
    if stop > max_tokens:
        raise ValueError(f"{stop} tokens do not fit into {max_tokens} slots")
    k_buffer_BGSD[:, :, num_tokens:stop] = k_BTGD.transpose(1, 2)
    v_buffer_BGSD[:, :, num_tokens:stop] = v_BTGD.transpose(1, 2)
    return k_buffer_BGSD[:, :, :stop], v_buffer_BGSD[:, :, :stop]


def _append_copied(k_buffer_BGSD, v_buffer_BGSD, num_tokens, k_BTGD, v_BTGD):
    held = []
    for buffer_BGSD, new_BTGD in ((k_buffer_BGSD, k_BTGD), (v_buffer_BGSD, v_BTGD)):
        T = new_BTGD.shape[1]
        if buffer_BGSD.shape[2] - num_tokens < T:
            raise ValueError(f"no room for {T} tokens behind {num_tokens}")
        slots_T = torch.arange(num_tokens, num_tokens + T)
        buffer_BGSD.index_copy_(2, slots_T, new_BTGD.permute(0, 2, 1, 3).contiguous())
        held.append(buffer_BGSD.narrow(2, 0, num_tokens + T))
    return tuple(held)


def _append_variant(
    buffers: tuple[Tensor, Tensor],
    held: int,
    new: tuple[Tensor, Tensor],
    *,
    swapped: bool = False,
    start: int | None = None,
    only_last: bool = False,
    whole: bool = False,
    checked: bool = True,
) -> tuple[Tensor, Tensor]:
    """Append with one thing done wrong."""
    T, max_tokens = new[0].shape[1], buffers[0].shape[2]
    if checked and held + T > max_tokens:
        raise ValueError("full")
    at = held if start is None else start
    for buffer, x in zip(buffers, new, strict=True):
        B, _, G, D = x.shape
        x = x.reshape(B, G, T, D) if swapped else x.transpose(1, 2)
        if only_last:
            x, at = x[:, :, -1:], held + T - 1
        room = buffer[:, :, at : at + x.shape[2]]
        room[:] = x[:, :, : room.shape[2]]
    stop = max_tokens if whole else held + T
    return buffers[0][:, :, :stop], buffers[1][:, :, :stop]


def _append_swapped(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), swapped=True)


def _append_at_zero(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), start=0)


def _append_one_early(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    start = max(num_tokens - 1, 0)
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), start=start)


def _append_only_last(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), only_last=True)


def _append_whole(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), whole=True)


def _append_k_into_v(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, k_BTGD))


def _append_grown(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    if num_tokens + k_BTGD.shape[1] > k_buffer.shape[2]:
        raise ValueError("full")
    return tuple(
        torch.cat((buffer[:, :, :num_tokens], x.transpose(1, 2)), dim=2)
        for buffer, x in ((k_buffer, k_BTGD), (v_buffer, v_BTGD))
    )


def _append_overrun(k_buffer, v_buffer, num_tokens, k_BTGD, v_BTGD):
    return _append_variant((k_buffer, v_buffer), num_tokens, (k_BTGD, v_BTGD), checked=False)


APPEND_AND_READ = Task(
    name="append_and_read",
    chapter=2,
    title="Write behind what is held",
    minutes=12,
    points=4,
    level=2,
    spec=(
        "Writes the T new tokens, which come as [B, T, G, D] from the projection, into the slots "
        "behind the first num_tokens of both buffers, and returns the keys and values of all "
        "num_tokens + T, [B, G, S, D] each; if they do not fit, a ValueError and nothing written."
    ),
    signature=(
        "append_and_read(k_buffer_BGSD: Tensor, v_buffer_BGSD: Tensor, num_tokens: int, "
        "k_BTGD: Tensor, v_BTGD: Tensor) -> tuple[Tensor, Tensor]"
    ),
    properties=(
        Property(
            "a buffer of one slot takes one token",
            lambda: [_append_example(1, 1, 1, 2, held=0, max_tokens=1)],
        ),
        Property(
            "a new token goes behind those held, up to the last slot",
            lambda: [
                _append_example(1, 1, 1, 2, held=1, max_tokens=2),
                _append_example(2, 1, 3, 5, held=6, max_tokens=7),
            ],
        ),
        Property(
            "several tokens at once, each under its own head",
            lambda: [
                _append_example(1, 2, 2, 1, held=0, max_tokens=2),
                _append_example(2, 4, 3, 5, held=3, max_tokens=7),
            ],
        ),
        Property(
            "slots not written are neither touched nor returned",
            lambda: [
                _append_example(1, 1, 1, 2, held=0, max_tokens=2),
                _append_example(2, 4, 3, 5, held=1, max_tokens=9),
            ],
        ),
        Property(
            "a token too many is a ValueError, and the buffers stay as they were",
            lambda: [
                _append_example(1, 1, 1, 2, held=1, max_tokens=1),
                _append_example(1, 3, 2, 1, held=2, max_tokens=4),
            ],
            edge=True,
        ),
    ),
    hints=(
        "Where do the new tokens begin and end on the axis S? Which two axes have to trade places?",
        "transpose(1, 2) trades T and G; reshape to the same shape only cuts the numbers anew.",
        "buffer[:, :, num_tokens:stop] = new.transpose(1, 2); return buffer[:, :, :stop]; check "
        "stop against buffer.shape[2] before writing anything.",
    ),
    mutants=(
        Mutant(
            "heads and positions swapped",
            "reshape or view cuts [B, T, G, D] anew into [B, G, T, D] without moving a number, so "
            "one token's heads become one head's tokens; with T = 1 or G = 1 nothing shows",
            _append_swapped,
        ),
        Mutant(
            "written at the start",
            "the new tokens overwrite slot 0 on; they belong behind the num_tokens already held",
            _append_at_zero,
        ),
        Mutant(
            "one slot early",
            "the first new token overwrites the last one held: num_tokens is the first free slot, "
            "not the last used one",
            _append_one_early,
        ),
        Mutant(
            "one token a call",
            "only the last of the T tokens is stored; decoding brings one token at a time, a "
            "prompt brings all of them",
            _append_only_last,
        ),
        Mutant(
            "whole buffer returned",
            "slots that were never written are returned too; whoever attends to them reads what "
            "was in memory before, here NaN",
            _append_whole,
        ),
        Mutant(
            "keys stored as values",
            "the buffer of values gets the keys; the shapes are the same, so nothing complains",
            _append_k_into_v,
        ),
        Mutant(
            "buffer not written",
            "the result is a concatenation and the buffers stay empty: the next step will not find "
            "these tokens, and each step copies everything",
            _append_grown,
        ),
        Mutant(
            "overrun dropped silently",
            "a slice beyond the end is cut short, and one token assigned to an empty slice is no "
            "error: the token is gone and the length is wrong from here on",
            _append_overrun,
        ),
    ),
    answers=(_append_plain, _append_copied),
    equal_nan=True,
    drive=_run_append,
)
