"""Exercises of chapter 02 on rows of different length: who may read whom, and who stands where.

Both work on a batch padded in front. Its slots hold, row by row, ``num_pads_B`` pads and then
tokens; the ``num_new`` last of ``num_stored`` slots are those of this pass.
"""

import numpy as np
import torch

from labkit.tasks import Example, Mutant, Property, Task

Case = tuple[int, int, list[int]]


def _slots(num_stored: int, num_pads: int) -> list[int | None]:
    """What stands in each slot of a row: None for a pad, else the token's position."""
    return [None] * num_pads + list(range(num_stored - num_pads))


def _args(case: Case) -> tuple[int, int, torch.Tensor]:
    return case[0], case[1], torch.tensor(case[2])


# ── decode_mask ───────────────────────────────────────────────────────────────────────────────


def _decode_mask_examples(*cases: Case) -> list[Example]:
    """By position: a token may read tokens that stand no later, and pads are no tokens."""
    examples = []
    for case in cases:
        num_new, num_stored, pads = case
        rows = [_slots(num_stored, num_pads) for num_pads in pads]
        mask = [
            [[key is not None and query is not None and key <= query for key in row] for query in q]
            for row, q in ((row, row[num_stored - num_new :]) for row in rows)
        ]
        examples.append(Example(_args(case), np.array(mask, dtype=bool)))
    return examples


def _decode_mask_plain(num_new, num_stored, num_pads_B):
    """A key may be read if it is not later than the query's slot and not a pad."""
    key_S = torch.arange(num_stored)
    query_T = torch.arange(num_stored - num_new, num_stored)
    not_later_TS = key_S <= query_T[:, None]
    real_BS = key_S >= num_pads_B[:, None]
    return not_later_TS & real_BS[:, None, :]


def _decode_mask_cut(num_new, num_stored, num_pads_B):
    masks = []
    for num_pads in num_pads_B.tolist():
        mask = torch.tril(torch.ones(num_stored, num_stored, dtype=torch.bool))
        mask[:, :num_pads] = False
        masks.append(mask[num_stored - num_new :])
    return torch.stack(masks)


def _decode_mask_variant(T, S, pads, *, offset=None, causal=True, real=True):
    """The mask with one thing done wrong."""
    mask = torch.ones(len(pads), T, S, dtype=torch.bool)
    if causal:
        mask = mask.tril(S - T if offset is None else offset)
    return mask & (torch.arange(S) >= pads[:, None])[:, None] if real else mask


def _decode_mask_top_left(num_new, num_stored, num_pads_B):
    return _decode_mask_variant(num_new, num_stored, num_pads_B, offset=0)


def _decode_mask_pads_attended(num_new, num_stored, num_pads_B):
    return _decode_mask_variant(num_new, num_stored, num_pads_B, real=False)


def _decode_mask_future(num_new, num_stored, num_pads_B):
    return _decode_mask_variant(num_new, num_stored, num_pads_B, causal=False)


def _decode_mask_right_pads(num_new, num_stored, num_pads_B):
    causal = _decode_mask_variant(num_new, num_stored, num_pads_B, real=False)
    return causal & (torch.arange(num_stored) < num_stored - num_pads_B[:, None])[:, None]


def _decode_mask_position_for_slot(num_new, num_stored, num_pads_B):
    query_BT = torch.arange(num_stored - num_new, num_stored) - num_pads_B[:, None]
    key_S = torch.arange(num_stored)
    return (key_S <= query_BT[..., None]) & (key_S >= num_pads_B[:, None, None])


def _decode_mask_first_row(num_new, num_stored, num_pads_B):
    first = num_pads_B[:1].expand(len(num_pads_B))
    return _decode_mask_variant(num_new, num_stored, first)


def _decode_mask_most_pads(num_new, num_stored, num_pads_B):
    most = num_pads_B.max().expand(len(num_pads_B))
    return _decode_mask_variant(num_new, num_stored, most)


def _decode_mask_not_self(num_new, num_stored, num_pads_B):
    return _decode_mask_variant(num_new, num_stored, num_pads_B, offset=num_stored - num_new - 1)


def _decode_mask_inverted(num_new, num_stored, num_pads_B):
    return ~_decode_mask_variant(num_new, num_stored, num_pads_B)


DECODE_MASK = Task(
    name="decode_mask",
    chapter=2,
    title="Who may read whom, with a cache and pads",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "A bool [B, T, S] that is True where a query may read a key: of num_stored slots a row "
        "begins with num_pads_B pads, the num_new queries stand in its last slots, and each reads "
        "the tokens up to its own slot; pads read nothing and are read by nobody."
    ),
    signature="decode_mask(num_new: int, num_stored: int, num_pads_B: Tensor) -> Tensor",
    properties=(
        Property(
            "without pads, from an empty cache: the triangle",
            lambda: _decode_mask_examples((1, 1, [0]), (3, 3, [0])),
        ),
        Property(
            "the last query is aligned with the last slot",
            lambda: _decode_mask_examples((1, 3, [0]), (2, 5, [0])),
        ),
        Property(
            "each row's pads are hidden",
            lambda: _decode_mask_examples((1, 2, [1]), (1, 5, [2, 0]), (1, 6, [1, 4, 0])),
        ),
        Property(
            "a chunk behind a padded cache",
            lambda: _decode_mask_examples((2, 4, [1]), (3, 7, [2, 0, 3, 1])),
        ),
        Property(
            "a pad reads nothing",
            lambda: _decode_mask_examples((3, 3, [2]), (4, 5, [0, 3])),
        ),
    ),
    hints=(
        "Two conditions, of different shape: not later than the query, [T, S]; not a pad, [B, S].",
        "Query t stands in slot num_stored − num_new + t, whatever the pads: compare slots.",
        "(slot_S <= query_T[:, None]) & (slot_S >= num_pads_B[:, None])[:, None, :].",
    ),
    mutants=(
        Mutant(
            "mask aligned top left",
            "query t reads slots 0 to t, as if the cache were empty; in a decode step the new "
            "token would see slot 0 alone, here perhaps a pad",
            _decode_mask_top_left,
        ),
        Mutant(
            "pads attended",
            "the pads are visible: their keys take a share of every softmax, and the short rows "
            "come out wrong while the longest row is right",
            _decode_mask_pads_attended,
        ),
        Mutant(
            "future visible",
            "the queries read all tokens, later ones too; with one new token there are none",
            _decode_mask_future,
        ),
        Mutant(
            "pads sought on the right",
            "the last slots are hidden as if the pads stood there; they stand in front, and the "
            "last slots hold the newest tokens",
            _decode_mask_right_pads,
        ),
        Mutant(
            "position taken for slot",
            "the query's position, which skips the pads, is compared with the keys' slots, which "
            "do not: the newest tokens are hidden, as many as there are pads",
            _decode_mask_position_for_slot,
        ),
        Mutant(
            "one row's pads for all",
            "every row is masked with the same number of pads; each has its own",
            _decode_mask_first_row,
            also=(_decode_mask_most_pads,),
        ),
        Mutant(
            "own slot hidden",
            "a token may read itself: its slot is written before it is read",
            _decode_mask_not_self,
        ),
        Mutant(
            "True means hidden",
            "the mask is inverted: True marks a key that may be read",
            _decode_mask_inverted,
        ),
    ),
    answers=(_decode_mask_plain, _decode_mask_cut),
)


# ── decode_positions ──────────────────────────────────────────────────────────────────────────


def _decode_positions_examples(*cases: Case) -> list[Example]:
    examples = []
    for case in cases:
        num_new, num_stored, pads = case
        rows = [_slots(num_stored, num_pads)[num_stored - num_new :] for num_pads in pads]
        expected = [[0 if position is None else position for position in row] for row in rows]
        examples.append(Example(_args(case), np.array(expected)))
    return examples


def _decode_positions_plain(num_new, num_stored, num_pads_B):
    """A token's position is its slot less the pads in front of it."""
    slot_T = torch.arange(num_stored - num_new, num_stored)
    return (slot_T - num_pads_B[:, None]).clamp(min=0)


def _decode_positions_counted(num_new, num_stored, num_pads_B):
    real_BS = torch.arange(num_stored)[None, :] >= num_pads_B[:, None]
    before_BS = real_BS.long().cumsum(dim=-1) - real_BS.long()
    return before_BS[:, num_stored - num_new :]


def _decode_positions_restarted(num_new, num_stored, num_pads_B):
    return torch.arange(num_new).expand(len(num_pads_B), -1)


def _decode_positions_restarted_behind_pads(num_new, num_stored, num_pads_B):
    return (torch.arange(num_new) - num_pads_B[:, None]).clamp(min=0)


def _decode_positions_pads_counted(num_new, num_stored, num_pads_B):
    return torch.arange(num_stored - num_new, num_stored).expand(len(num_pads_B), -1)


def _decode_positions_first_row(num_new, num_stored, num_pads_B):
    return _decode_positions_plain(num_new, num_stored, num_pads_B[:1].expand(len(num_pads_B)))


def _decode_positions_most_pads(num_new, num_stored, num_pads_B):
    most = num_pads_B.max().expand(len(num_pads_B))
    return _decode_positions_plain(num_new, num_stored, most)


def _decode_positions_advanced(num_new, num_stored, num_pads_B):
    slot_T = torch.arange(num_stored, num_stored + num_new)
    return (slot_T - num_pads_B[:, None]).clamp(min=0)


def _decode_positions_one_ahead(num_new, num_stored, num_pads_B):
    return _decode_positions_plain(num_new, num_stored, num_pads_B) + 1


def _decode_positions_one_for_all(num_new, num_stored, num_pads_B):
    first_B = (num_stored - num_new - num_pads_B).clamp(min=0)
    return first_B[:, None].expand(-1, num_new)


def _decode_positions_negative(num_new, num_stored, num_pads_B):
    return torch.arange(num_stored - num_new, num_stored) - num_pads_B[:, None]


DECODE_POSITIONS = Task(
    name="decode_positions",
    chapter=2,
    title="Who stands where",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "The absolute positions [B, T] of the num_new tokens in the last of num_stored slots, "
        "where a row begins with num_pads_B pads that are not counted; a pad itself gets 0."
    ),
    signature="decode_positions(num_new: int, num_stored: int, num_pads_B: Tensor) -> Tensor",
    properties=(
        Property(
            "from an empty cache without pads: 0, 1, 2, …",
            lambda: _decode_positions_examples((1, 1, [0]), (3, 3, [0])),
        ),
        Property(
            "a pass continues where the cache ends",
            lambda: _decode_positions_examples((1, 3, [0]), (2, 5, [0])),
        ),
        Property(
            "pads are not counted, and each row has its own",
            lambda: _decode_positions_examples((1, 3, [1]), (1, 5, [2, 0]), (3, 8, [1, 4, 0, 2])),
        ),
        Property(
            "a pad stands at 0: an embedding table has no other place for it",
            lambda: _decode_positions_examples((3, 3, [2]), (4, 5, [0, 3])),
            edge=True,
        ),
    ),
    hints=(
        "In which slots do the new tokens stand? How many of the slots before them are pads?",
        "Slot num_stored − num_new + t, less the row's pads: [T] against [B, 1] gives [B, T].",
        "A pad's slot less the pads is negative: clamp(min=0).",
    ),
    mutants=(
        Mutant(
            "positions restarted",
            "the new tokens are numbered from 0 in every pass; prefill is right, and each decoded "
            "token then claims to stand in front of what it follows",
            _decode_positions_restarted,
            also=(_decode_positions_restarted_behind_pads,),
        ),
        Mutant(
            "pads counted",
            "a token's slot is taken for its position; the pads in front of it are no tokens",
            _decode_positions_pads_counted,
        ),
        Mutant(
            "one row's pads for all",
            "all rows get the same positions; rows of different length end at different ones",
            _decode_positions_first_row,
            also=(_decode_positions_most_pads,),
        ),
        Mutant(
            "advanced before placing",
            "the new tokens are counted before they are placed, so each stands too far right; "
            "num_stored holds this pass's own slots already",
            _decode_positions_advanced,
            also=(_decode_positions_one_ahead,),
        ),
        Mutant(
            "a chunk at one position",
            "all new tokens get the first one's position; with one new token nothing shows, and "
            "a prompt prefilled in chunks is scrambled",
            _decode_positions_one_for_all,
        ),
        Mutant(
            "negative positions",
            "pads get positions below 0; indexing a table with −1 reads its last row, and some "
            "rotary tables refuse it",
            _decode_positions_negative,
        ),
    ),
    answers=(_decode_positions_plain, _decode_positions_counted),
)
