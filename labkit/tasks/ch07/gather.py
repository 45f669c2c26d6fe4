"""Exercise of chapter 07 on reading through a table. Slots that hold no token are NaN."""

import numpy as np
import torch

from labkit.compare import render
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import dealt

# ── gather_blocks ─────────────────────────────────────────────────────────────────────────────


def _gather_example(
    table: list[int], num_tokens: int, *, P: int, G: int = 1, D: int = 1, N: int = 0
) -> Example:
    """Tokens are dealt into the table's blocks one by one; other blocks belong to others."""
    N = N or max(table) + 1
    pool_NGPD = -1 - np.arange(N * G * P * D, dtype=np.float32).reshape(N, G, P, D)
    k_GSD = 1 + np.arange(G * num_tokens * D, dtype=np.float32).reshape(G, num_tokens, D)
    tokens = iter(range(num_tokens))
    for block, filled in zip(table, dealt(num_tokens, P), strict=False):
        pool_NGPD[block] = np.nan
        for slot in range(filled):
            pool_NGPD[block, :, slot] = k_GSD[:, next(tokens)]
    shown = (
        f"k_pool_NGPD of shape {pool_NGPD.shape} = {render(pool_NGPD)}\n"
        f"block_table = {table}\nnum_tokens = {num_tokens}"
    )
    return Example((torch.tensor(pool_NGPD), table, num_tokens), k_GSD, shown=shown)


def _gather_plain(k_pool_NGPD, block_table, num_tokens):
    """Blocks in the table's order, side by side, cut behind the last token."""
    block_size = k_pool_NGPD.shape[2]
    num_blocks = -(-num_tokens // block_size)
    blocks_GPD = [k_pool_NGPD[block] for block in block_table[:num_blocks]]
    return torch.cat(blocks_GPD, dim=1)[:, :num_tokens]


def _gather_by_position(k_pool_NGPD, block_table, num_tokens):
    position_S = torch.arange(num_tokens)
    block_S = torch.tensor(block_table)[position_S // k_pool_NGPD.shape[2]]
    k_SGD = k_pool_NGPD[block_S, :, position_S % k_pool_NGPD.shape[2]]
    return k_SGD.transpose(0, 1)


def _side_by_side(k_pool_NGPD, blocks):
    G, P, D = k_pool_NGPD.shape[1:]
    return k_pool_NGPD[blocks].transpose(0, 1).reshape(G, len(blocks) * P, D)


def _blocks_of(table, num_tokens, P):
    return list(table[: -(-num_tokens // P)])


def _gather_sorted(pool, table, num_tokens):
    blocks = sorted(_blocks_of(table, num_tokens, pool.shape[2]))
    return _side_by_side(pool, blocks)[:, :num_tokens]


def _gather_tail(pool, table, num_tokens):
    return _side_by_side(pool, _blocks_of(table, num_tokens, pool.shape[2]))


def _gather_tail_zeroed(pool, table, num_tokens):
    return _gather_tail(pool, table, num_tokens).nan_to_num(0.0)


def _gather_last_entry(pool, table, num_tokens):
    full, rest = divmod(num_tokens, pool.shape[2])
    blocks = [*table[:full], table[-1]] if rest else list(table[:full])
    return _side_by_side(pool, blocks)[:, :num_tokens]


def _gather_zero_skipped(pool, table, num_tokens):
    return _side_by_side(pool, [b for b in table if b > 0])[:, :num_tokens]


def _gather_reshaped(pool, table, num_tokens):
    blocks = _blocks_of(table, num_tokens, pool.shape[2])
    G, P, D = pool.shape[1:]
    return pool[blocks].reshape(G, len(blocks) * P, D)[:, :num_tokens]


def _gather_contiguous(pool, table, num_tokens):
    count = len(_blocks_of(table, num_tokens, pool.shape[2]))
    blocks = [(table[0] + i) % len(pool) for i in range(count)]
    return _side_by_side(pool, blocks)[:, :num_tokens]


def _gather_from_the_end(pool, table, num_tokens):
    return _gather_tail(pool, table, num_tokens)[:, -num_tokens:]


GATHER_BLOCKS = Task(
    name="gather_blocks",
    chapter=7,
    title="Read through the table",
    minutes=8,
    points=3,
    level=2,
    spec=(
        "The keys [G, S, D] of a sequence's S = num_tokens tokens in their order, from a pool [N, "
        "G, P, D]; block_table lists its blocks and may be padded with −1 behind them, and slots "
        "of those blocks that hold no token are NaN."
    ),
    signature=(
        "gather_blocks(k_pool_NGPD: Tensor, block_table: list[int], num_tokens: int) -> Tensor"
    ),
    properties=(
        Property("one token in one block", lambda: [_gather_example([0], 1, P=1, D=2)]),
        Property(
            "the order of the table, not of the pool",
            lambda: [
                _gather_example([1, 0], 2, P=1),
                _gather_example([4, 1, 2], 12, P=4, D=2, N=6),
            ],
        ),
        Property(
            "nothing behind the last token",
            lambda: [
                _gather_example([0], 1, P=2),
                _gather_example([3, 1], 5, P=4, D=3, N=5),
            ],
        ),
        Property(
            "each head its own tokens",
            lambda: [
                _gather_example([0, 1], 4, P=2, G=2),
                _gather_example([5, 2, 3], 11, P=4, G=3, D=2, N=7),
            ],
        ),
        Property(
            "padding of the table is never read, block 0 is",
            lambda: [
                _gather_example([1, -1], 1, P=2, N=3),
                _gather_example([3, 0, -1, -1], 7, P=4, G=2, D=3, N=6),
                _gather_example([0, 2, -1], 8, P=4, G=2, D=3, N=5),
            ],
        ),
    ),
    hints=(
        "How many entries of the table hold tokens? In which order, and how much of the last one?",
        "pool[blocks] is [n, G, P, D]: n and P belong side by side, and G stands between them.",
        "torch.cat([pool[b] for b in block_table[:n]], dim=1)[:, :num_tokens], with n blocks "
        "rounded up.",
    ),
    mutants=(
        Mutant(
            "blocks in the order of the pool",
            "the blocks are read by their number; the table's order is the order of the tokens, "
            "and in a pool that has been used for a while the two differ",
            _gather_sorted,
        ),
        Mutant(
            "tail not cut",
            "slots behind the last token are returned: here they are NaN, in a used pool the keys "
            "of whoever held the block before; cut at num_tokens",
            _gather_tail,
            also=(_gather_tail_zeroed,),
        ),
        Mutant(
            "last entry taken for the last block",
            "block_table[-1] may be padding, and −1 as an index is the last block of the pool, "
            "somebody else's; the last block is entry (num_tokens − 1) // P",
            _gather_last_entry,
        ),
        Mutant(
            "block 0 taken for padding",
            "block 0 is a block like any other; its tokens are missing here, and padding is −1 "
            "for that reason",
            _gather_zero_skipped,
        ),
        Mutant(
            "axes cut anew",
            "reshape moves no number: [n, G, P, D] read as [G, n · P, D] puts one block's heads "
            "one after another as if they were tokens; with one block or one head nothing shows",
            _gather_reshaped,
        ),
        Mutant(
            "blocks taken as one run",
            "the blocks behind the first in the pool are read, whoever they belong to; the table "
            "exists because a sequence's blocks need not be neighbours",
            _gather_contiguous,
        ),
        Mutant(
            "cut at the front",
            "the last num_tokens slots are kept; the empty ones are at the end of the last block",
            _gather_from_the_end,
        ),
    ),
    answers=(_gather_plain, _gather_by_position),
)
