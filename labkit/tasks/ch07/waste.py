"""Exercise of chapter 07 on the waste that blocks leave, answered with a number and its unit."""

import random
from fractions import Fraction

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes, shape

Pool = tuple[int, int, int, int, int, int, str]

# ── last_block_waste ──────────────────────────────────────────────────────────────────────────


def _waste_examples(*pools: Pool) -> list[Example]:
    """The mean over every fill of a last block, of NumPy's count of its empty slots."""
    examples = []
    for args in pools:
        P, num_sequences, L, _, G, D, dtype = args
        fills = range(1, P + 1)
        empty = [nbytes(WIDTHS[dtype], *[(G, P - fill, D)] * (2 * L)) for fill in fills]
        mean = sum(map(Fraction, empty)) / len(fills)
        examples.append(Example(args, float(sum(mean for _ in range(num_sequences)))))
    return examples


def _waste_plain(
    block_size, num_sequences, num_layers, num_query_heads, num_kv_heads, head_dim, dtype
):
    """(P − 1) / 2 empty slots a sequence, times the bytes of a token."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    per_token = 2 * num_layers * num_kv_heads * head_dim * width
    return f"{num_sequences * (block_size - 1) / 2 * per_token:.1f} B"


def _waste_by_fill(
    block_size, num_sequences, num_layers, num_query_heads, num_kv_heads, head_dim, dtype
):
    empty = [block_size - filled for filled in range(1, block_size + 1)]
    key_and_value = 2 * head_dim * {"FP32": 32, "BF16": 16, "FP16": 16, "FP8": 8}[dtype] // 8
    per_sequence = sum(empty) / len(empty) * key_and_value * num_kv_heads * num_layers
    return f"{per_sequence * num_sequences / 1024:.9f} KiB"


def _waste(slots: float, num_sequences: int, L: int, heads: int, D: int, dtype: str) -> str:
    return f"{slots * num_sequences * 2 * L * heads * D * WIDTHS[dtype]:.1f} B"


def _waste_half(P, num_sequences, L, H, G, D, dtype):
    return _waste(P / 2, num_sequences, L, G, D, dtype)


def _waste_none(P, num_sequences, L, H, G, D, dtype):
    return "0 B"


def _waste_whole(P, num_sequences, L, H, G, D, dtype):
    return _waste(P, num_sequences, L, G, D, dtype)


def _waste_worst(P, num_sequences, L, H, G, D, dtype):
    return _waste(P - 1, num_sequences, L, G, D, dtype)


def _waste_filled(P, num_sequences, L, H, G, D, dtype):
    return _waste((P + 1) / 2, num_sequences, L, G, D, dtype)


def _waste_once(P, num_sequences, L, H, G, D, dtype):
    return _waste((P - 1) / 2, 1, L, G, D, dtype)


def _waste_query_heads(P, num_sequences, L, H, G, D, dtype):
    return _waste((P - 1) / 2, num_sequences, L, H, D, dtype)


def _waste_keys_alone(P, num_sequences, L, H, G, D, dtype):
    return _waste((P - 1) / 4, num_sequences, L, G, D, dtype)


def _waste_gb_called_gib(P, num_sequences, L, H, G, D, dtype):
    return gb_called_gib((P - 1) / 2 * num_sequences * 2 * L * G * D * WIDTHS[dtype])


def _draw_waste(seed: int) -> Pool:
    draw = random.Random(seed)
    _, L, H, G, D = shape(draw)
    while H == 2 * G:  # a factor of 2 is to have one cause
        _, L, H, G, D = shape(draw)
    P, num_sequences = draw.choice((8, 16, 32, 64)), draw.choice((24, 48, 100, 200, 300))
    return P, num_sequences, L, H, G, D, draw.choice(("BF16", "FP8"))


LAST_BLOCK_WASTE = Task(
    name="last_block_waste",
    chapter=7,
    title="The waste that remains",
    minutes=4,
    points=2,
    level=2,
    spec=(
        "The expected size of all slots that are held and empty, as text such as '629 MB', when "
        "each of num_sequences has a last block that holds 1, 2, … or block_size tokens with "
        "equal chance and shares no block."
    ),
    signature=(
        "last_block_waste(block_size: int, num_sequences: int, num_layers: int, num_query_heads: "
        "int, num_kv_heads: int, head_dim: int, dtype: str) -> str"
    ),
    properties=(
        Property(
            "a block of one slot is never partly filled",
            lambda: _waste_examples((1, 1, 1, 2, 2, 1, "BF16")),
        ),
        Property(
            "the mean over a block's fills",
            lambda: _waste_examples(
                (2, 1, 1, 2, 2, 1, "BF16"),
                (3, 1, 1, 2, 2, 1, "BF16"),
                (16, 1, 3, 2, 2, 5, "BF16"),
            ),
        ),
        Property(
            "each sequence has a last block",
            lambda: _waste_examples((3, 7, 1, 2, 2, 1, "BF16"), (16, 5, 3, 2, 2, 5, "FP8")),
        ),
        Property(
            "keys and values of the key-value heads",
            lambda: _waste_examples((3, 7, 5, 6, 2, 1, "FP32")),
        ),
        Property(
            "Llama-3-70B, 256 sequences, blocks of 16 and of 64",
            lambda: _waste_examples(
                (16, 256, 80, 64, 8, 128, "BF16"), (64, 256, 80, 64, 8, 128, "BF16")
            ),
        ),
    ),
    hints=(
        "List what a last block of four slots may hold. How many are empty in each case?",
        "3, 2, 1 and 0: a block that is full is as likely as the others. The mean is (P − 1) / 2.",
        "sequences · (P − 1) / 2 · 2 · layers · kv heads · head dim · bytes an element.",
    ),
    mutants=(
        Mutant(
            "half a block",
            "P / 2 would be the mean of 0 to P empty slots; a block that is held has at least one "
            "token, so it is the mean of 0 to P − 1",
            _waste_half,
        ),
        Mutant(
            "nothing wasted",
            "blocks remove reserved memory and holes between sequences; the last block of each "
            "sequence is still partly empty",
            _waste_none,
        ),
        Mutant(
            "a whole block",
            "a last block without any token would not have been taken",
            _waste_whole,
        ),
        Mutant(
            "the worst case",
            "P − 1 empty slots are the most a sequence can have; asked is the mean",
            _waste_worst,
        ),
        Mutant(
            "what is filled",
            "(P + 1) / 2 is the mean number of tokens in a last block; the rest of it is empty",
            _waste_filled,
        ),
        Mutant(
            "one sequence",
            "each sequence has a last block of its own: multiply by num_sequences",
            _waste_once,
        ),
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads: a slot holds the key-value heads",
            _waste_query_heads,
        ),
        Mutant(
            "keys alone",
            "a factor of 2 is missing: an empty slot is one for a key and one for a value",
            _waste_keys_alone,
        ),
        Mutant(
            "GB called GiB",
            "the size is divided by 1,000 for each step of the unit and labelled as if by 1,024: "
            "the factor is 1.024² for MiB, 1.024³ for GiB",
            _waste_gb_called_gib,
        ),
    ),
    answers=(_waste_plain, _waste_by_fill),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_waste,
    ask=lambda P, num_sequences, L, H, G, D, dtype: (
        f"{L} layers, {H} query heads, {G} key-value heads of {D} elements, a cache in {dtype}.\n"
        f"{num_sequences} sequences in blocks of {P} slots, no block shared. What do the empty "
        "slots of their last blocks take, in the mean?"
    ),
    unit="B",
)
