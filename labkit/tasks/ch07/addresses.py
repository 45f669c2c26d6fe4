"""Exercises of chapter 07 on where a token lies: its slot, and the numbers before it."""

from itertools import chain, islice

import torch

from labkit.tasks import Example, Mutant, Property, Task

# ── slot_of ───────────────────────────────────────────────────────────────────────────────────


def _slot_examples(*places: tuple[list[int], int, int]) -> list[Example]:
    """Write down every slot of the pool, cut it into blocks, walk the table's blocks in order."""
    examples = []
    for table, position, block_size in places:
        slots = list(range((max(table) + 1) * block_size))
        blocks = [slots[i : i + block_size] for i in range(0, len(slots), block_size)]
        walk = chain.from_iterable(blocks[block] for block in table)
        examples.append(Example((table, position, block_size), next(islice(walk, position, None))))
    return examples


def _slot_plain(block_table, position, block_size):
    """The table says which block, the remainder which slot of it."""
    logical, slot = divmod(position, block_size)
    return block_table[logical] * block_size + slot


def _slot_listed(block_table, position, block_size):
    slots = []
    for block in block_table:
        first = block * block_size
        slots.extend(range(first, first + block_size))
    return slots[position]


def _slot_logical(table, position, block_size):
    return position // block_size * block_size + position % block_size


def _slot_swapped(table, position, block_size):
    slot, logical = divmod(position, block_size)
    return table[logical % len(table)] * block_size + slot


def _slot_from_one(table, position, block_size):
    return table[(position - 1) // block_size] * block_size + position % block_size


def _slot_shifted(table, position, block_size):
    logical, slot = divmod(max(position - 1, 0), block_size)
    return table[logical] * block_size + slot


def _slot_backwards(table, position, block_size):
    return table[-1 - position // block_size] * block_size + position % block_size


def _slot_first(table, position, block_size):
    return table[position // block_size] * block_size


def _slot_block_as_slot(table, position, block_size):
    return table[position // block_size] + position % block_size


def _slot_contiguous(table, position, block_size):
    return table[0] * block_size + position


SLOT_OF = Task(
    name="slot_of",
    chapter=7,
    title="Which slot",
    minutes=3,
    points=1,
    level=1,
    spec=(
        "The number of the slot that holds the token at a position: the pool's slots are numbered "
        "through, block 0 first, and block_table[i] is the block that holds the i-th block_size "
        "tokens of the sequence."
    ),
    signature="slot_of(block_table: list[int], position: int, block_size: int) -> int",
    properties=(
        Property("the first token of block 0", lambda: _slot_examples(([0], 0, 2))),
        Property(
            "a slot within a block",
            lambda: _slot_examples(([0], 1, 2), ([0], 2, 4)),
        ),
        Property(
            "the table says where the block lies",
            lambda: _slot_examples(([2], 1, 4), ([3, 1, 4], 6, 4), ([3, 1, 4], 10, 4)),
        ),
        Property(
            "the token behind a full block is the first of the next",
            lambda: _slot_examples(([1, 0], 2, 2), ([5, 2, 7], 16, 16), ([5, 2, 7], 32, 16)),
        ),
        Property(
            "the last token of a block is still in it",
            lambda: _slot_examples(([1, 0], 1, 2), ([5, 2, 7], 31, 16)),
        ),
        Property(
            "blocks of one slot",
            lambda: _slot_examples(([4, 0, 2], 2, 1)),
            edge=True,
        ),
    ),
    hints=(
        "Two questions: which entry of the table, and which slot of that block?",
        "divmod(position, block_size) answers both; before a block lie as many slots as all the "
        "blocks before it have.",
        "block_table[position // block_size] * block_size + position % block_size.",
    ),
    mutants=(
        Mutant(
            "logical block taken for the physical",
            "the table is never read: the position itself is returned, which is right only for a "
            "sequence that lies at the start of the pool in order",
            _slot_logical,
        ),
        Mutant(
            "block and slot swapped",
            "divmod gives the quotient first: position // block_size chooses the table's entry, "
            "the remainder the slot",
            _slot_swapped,
        ),
        Mutant(
            "positions counted from one",
            "the first token has position 0; counted from one, the token behind a full block is "
            "looked up in the block before it, and overwrites a token there",
            _slot_from_one,
            also=(_slot_shifted,),
        ),
        Mutant(
            "table read backwards",
            "the table's first entry holds the first tokens; this begins at its end",
            _slot_backwards,
        ),
        Mutant(
            "slot within the block left out",
            "this is the first slot of the right block: every token of a block would be written "
            "there, each over the one before",
            _slot_first,
        ),
        Mutant(
            "block number taken for a slot number",
            "a block has block_size slots, so its first slot is block · block_size; without the "
            "product neighbouring blocks overlap",
            _slot_block_as_slot,
        ),
        Mutant(
            "blocks taken as one run",
            "only the first entry of the table is read; from the second block on the tokens of "
            "whoever holds the blocks behind it are read",
            _slot_contiguous,
        ),
    ),
    answers=(_slot_plain, _slot_listed),
)


# ── row_offset ────────────────────────────────────────────────────────────────────────────────


def _row_examples(*rows: tuple[list[int], int, int, int, int, int]) -> list[Example]:
    """The storage offset that torch gives a view of a pool which takes no memory."""
    examples = []
    for args in rows:
        table, position, head, G, P, D = args
        pool_NGPD = torch.empty(max(table) + 1, G, P, D, device="meta")
        held = pool_NGPD[table[len(range(P, position + 1, P))]]  # full blocks before the token
        offset = held.select(0, head).select(0, position % P).storage_offset()
        examples.append(Example(args, offset))
    return examples


def _row_plain(block_table, position, head, num_kv_heads, block_size, head_dim):
    """Blocks before it, then heads, then slots, each head_dim numbers long."""
    logical, slot = divmod(position, block_size)
    block = block_table[logical]
    return ((block * num_kv_heads + head) * block_size + slot) * head_dim


def _row_by_strides(block_table, position, head, num_kv_heads, block_size, head_dim):
    stride_of_slot = head_dim
    stride_of_head = stride_of_slot * block_size
    stride_of_block = stride_of_head * num_kv_heads
    offset = block_table[position // block_size] * stride_of_block
    return offset + head * stride_of_head + position % block_size * stride_of_slot


def _row_int32(table, position, head, G, P, D):
    return (_row_plain(table, position, head, G, P, D) + 2**31) % 2**32 - 2**31


def _row_slots_first(table, position, head, G, P, D):
    return ((table[position // P] * P + position % P) * G + head) * D


def _row_not_elements(table, position, head, G, P, D):
    return (table[position // P] * G + head) * P + position % P


def _row_logical(table, position, head, G, P, D):
    return ((position // P * G + head) * P + position % P) * D


def _row_slot_of_one(table, position, head, G, P, D):
    return (table[position // P] * G + head) * P * D + position % P


def _row_no_heads(table, position, head, G, P, D):
    return (table[position // P] * P + position % P) * D + head * P * D


def _row_head_zero(table, position, head, G, P, D):
    return (table[position // P] * G * P + position % P) * D


ROW_OFFSET = Task(
    name="row_offset",
    chapter=7,
    title="What a kernel adds to the pointer",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "How many numbers lie before the key of one head at a position, in a contiguous pool of "
        "shape [N, G, P, D]: blocks, key-value heads, slots of a block, head dim."
    ),
    signature=(
        "row_offset(block_table: list[int], position: int, head: int, num_kv_heads: int, "
        "block_size: int, head_dim: int) -> int"
    ),
    properties=(
        Property(
            "nothing lies before the first key",
            lambda: _row_examples(([0], 0, 0, 1, 1, 2), ([0], 0, 0, 3, 4, 5)),
        ),
        Property(
            "slots lie side by side",
            lambda: _row_examples(([0], 1, 0, 1, 2, 3), ([0], 3, 0, 3, 4, 5)),
        ),
        Property(
            "a head lies behind all slots of the one before",
            lambda: _row_examples(([0], 0, 1, 2, 2, 1), ([0], 3, 2, 3, 4, 5)),
        ),
        Property(
            "the table says which block",
            lambda: _row_examples(([1], 0, 0, 2, 1, 1), ([6, 2, 4], 9, 1, 3, 4, 5)),
        ),
        Property(
            "pools of more than 2^31 numbers: 8 heads of 128, blocks of 16",
            lambda: _row_examples(
                ([131_071], 15, 7, 8, 16, 128),
                ([7, 131_072], 16, 0, 8, 16, 128),
                ([200_000], 3, 5, 8, 16, 128),
            ),
        ),
    ),
    hints=(
        "Walk the axes from the right: how far apart are two slots, two heads, two blocks?",
        "Slots are D apart, heads P · D, blocks G · P · D.",
        "((block_table[position // P] * G + head) * P + position % P) * D.",
    ),
    mutants=(
        Mutant(
            "wrapped at 32 bits",
            "the product passes 2^31 − 1 and comes back negative: block 131,072 begins at exactly "
            "2^31 here, so a kernel has to widen the block's number before it multiplies; small "
            "pools never show it",
            _row_int32,
        ),
        Mutant(
            "heads within slots",
            "this addresses a pool of shape [N, P, G, D]; here all slots of a head come before "
            "the next head, so another token's key is read",
            _row_slots_first,
        ),
        Mutant(
            "rows, not numbers",
            "this counts keys; each is head_dim numbers long",
            _row_not_elements,
        ),
        Mutant(
            "logical block taken for the physical",
            "position // block_size is an index into the table, not into the pool",
            _row_logical,
        ),
        Mutant(
            "slot counted as one number",
            "the next slot is head_dim numbers further, not one: the rows read overlap",
            _row_slot_of_one,
        ),
        Mutant(
            "block without its heads",
            "a block holds all heads, G · P · D numbers; counted as P · D, blocks overlap",
            _row_no_heads,
        ),
        Mutant(
            "first head only",
            "head is left out: every head would read the keys of head 0",
            _row_head_zero,
        ),
    ),
    answers=(_row_plain, _row_by_strides),
)
