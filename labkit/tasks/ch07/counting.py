"""Exercise of chapter 07 on the number of blocks."""

from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch07.pool import dealt

# ── blocks_needed ─────────────────────────────────────────────────────────────────────────────


def _needed_examples(*sizes: tuple[int, int]) -> list[Example]:
    """Deal the tokens out, one by one."""
    return [Example(args, len(dealt(*args))) for args in sizes]


def _needed_plain(num_tokens, block_size):
    """Rounded up: the last block may be partly filled."""
    return -(-num_tokens // block_size)


def _needed_counted(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + 1 if rest else full


def _needed_down(num_tokens, block_size):
    return num_tokens // block_size


def _needed_one_more(num_tokens, block_size):
    return num_tokens // block_size + 1


def _needed_nearest(num_tokens, block_size):
    return round(num_tokens / block_size)


def _needed_half_up(num_tokens, block_size):
    return int(num_tokens / block_size + 0.5)


def _needed_last_index(num_tokens, block_size):
    return max(num_tokens - 1, 0) // block_size


def _needed_power_of_two(num_tokens, block_size):
    count = -(-num_tokens // block_size)
    return 1 << (count - 1).bit_length() if count else 0


def _needed_slots(num_tokens, block_size):
    return -(-num_tokens // block_size) * block_size


def _needed_at_least_one(num_tokens, block_size):
    return max(1, -(-num_tokens // block_size))


BLOCKS_NEEDED = Task(
    name="blocks_needed",
    chapter=7,
    title="How many blocks",
    minutes=2,
    points=1,
    level=1,
    spec=(
        "How many blocks of block_size slots hold num_tokens tokens, when a block is taken only "
        "once the one before it is full."
    ),
    signature="blocks_needed(num_tokens: int, block_size: int) -> int",
    properties=(
        Property("one token in a block of one slot", lambda: _needed_examples((1, 1))),
        Property(
            "a block that is partly filled is taken whole",
            lambda: _needed_examples((1, 2), (5, 4), (9, 4), (11, 4), (33, 16), (48 * 16 + 7, 16)),
        ),
        Property(
            "a full block needs no other",
            lambda: _needed_examples((2, 2), (12, 4), (48, 16), (7, 1)),
        ),
        Property(
            "one token less than full",
            lambda: _needed_examples((3, 4), (11, 4), (47, 16)),
        ),
        Property("no token, no block", lambda: _needed_examples((0, 4)), edge=True),
    ),
    hints=(
        "Take blocks of four. How many for 3, 4 and 5 tokens?",
        "It is the quotient, rounded up.",
        "-(-num_tokens // block_size), or (num_tokens + block_size - 1) // block_size.",
    ),
    mutants=(
        Mutant(
            "rounded down",
            "the tokens of the last, partly filled block have no place: round up",
            _needed_down,
        ),
        Mutant(
            "one more behind a full block",
            "n // B + 1 takes a block too many when the last one is just full, which is the same "
            "as counting the next token already; prompts of exactly k · B tokens then fail where "
            "the table's length is compared with the tokens",
            _needed_one_more,
        ),
        Mutant(
            "rounded to the nearest",
            "a block that is less than half full is left out, and its tokens with it",
            _needed_nearest,
            also=(_needed_half_up,),
        ),
        Mutant(
            "index of the last block",
            "(n − 1) // B says which entry of the table the last token is in; entries are counted "
            "from 0, so there is one more",
            _needed_last_index,
        ),
        Mutant(
            "rounded to a power of two",
            "runs that double need a power of two; blocks come one at a time",
            _needed_power_of_two,
        ),
        Mutant(
            "slots, not blocks",
            "this is the number of slots in those blocks",
            _needed_slots,
        ),
        Mutant(
            "one for nothing",
            "a sequence without tokens has an empty table",
            _needed_at_least_one,
        ),
    ),
    answers=(_needed_plain, _needed_counted),
)
