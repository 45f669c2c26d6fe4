"""Exercise of chapter 07 on what blocks free, answered with a number and its unit."""

import random

from labkit import answers
from labkit.tasks import Example, Mutant, Property, Task
from labkit.tasks.ch03.drawn import WIDTHS, gb_called_gib, nbytes, shape
from labkit.tasks.ch07.pool import dealt

Batch = tuple[tuple[int, ...], int, int, int, int, int, int, str]

# ── paging_frees ──────────────────────────────────────────────────────────────────────────────


def _frees_examples(*batches: Batch) -> list[Example]:
    """NumPy's count over the tensors reserved whole, less its count over the blocks dealt out."""
    examples = []
    for args in batches:
        lengths, max_tokens, P, L, _, G, D, dtype = args
        width, tensors = WIDTHS[dtype], 2 * L
        reserved = nbytes(width, *[(G, max_tokens, D) for _ in lengths for _ in range(tensors)])
        blocks = [block for n in lengths for block in dealt(n, P)]
        paged = nbytes(width, *[(G, P, D) for _ in blocks for _ in range(tensors)])
        examples.append(Example(args, reserved - paged))
    return examples


def _frees_plain(
    lengths,
    max_tokens,
    block_size,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    dtype,
):
    """Slots reserved less slots in blocks, times the bytes of a token."""
    width = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}[dtype]
    per_token = 2 * num_layers * num_kv_heads * head_dim * width
    paged = sum(-(-n // block_size) * block_size for n in lengths)
    return f"{(len(lengths) * max_tokens - paged) * per_token} B"


def _frees_by_request(
    lengths,
    max_tokens,
    block_size,
    num_layers,
    num_query_heads,
    num_kv_heads,
    head_dim,
    dtype,
):
    kib = num_layers * num_kv_heads * head_dim * {"FP32": 8, "BF16": 4, "FP16": 4, "FP8": 2}[dtype]
    free = 0
    for n in lengths:
        free += max_tokens - n
        if n % block_size:
            free -= block_size - n % block_size
    return f"{free * kib / 1024:.9f} KiB"


def _frees(slots: int, L: int, heads: int, D: int, dtype: str) -> str:
    return f"{max(0, slots) * 2 * L * heads * D * WIDTHS[dtype]} B"


def _unpaged(lengths: tuple[int, ...], max_tokens: int, P: int) -> int:
    return sum(max_tokens - -(-n // P) * P for n in lengths)


def _frees_to_the_token(lengths, max_tokens, P, L, H, G, D, dtype):
    return _frees(sum(max_tokens - n for n in lengths), L, G, D, dtype)


def _frees_packed(lengths, max_tokens, P, L, H, G, D, dtype):
    slots = len(lengths) * max_tokens - -(-sum(lengths) // P) * P
    return _frees(slots, L, G, D, dtype)


def _frees_longest(lengths, max_tokens, P, L, H, G, D, dtype):
    paged = -(-max(lengths) // P) * P
    return _frees(len(lengths) * (max_tokens - paged), L, G, D, dtype)


def _frees_one_request(lengths, max_tokens, P, L, H, G, D, dtype):
    return _frees(_unpaged(lengths[:1], max_tokens, P), L, G, D, dtype)


def _frees_taken(lengths, max_tokens, P, L, H, G, D, dtype):
    return _frees(sum(-(-n // P) * P for n in lengths), L, G, D, dtype)


def _frees_query_heads(lengths, max_tokens, P, L, H, G, D, dtype):
    return _frees(_unpaged(lengths, max_tokens, P), L, H, D, dtype)


def _frees_keys_alone(lengths, max_tokens, P, L, H, G, D, dtype):
    return f"{_unpaged(lengths, max_tokens, P) * L * G * D * WIDTHS[dtype]} B"


def _frees_gb_called_gib(lengths, max_tokens, P, L, H, G, D, dtype):
    return gb_called_gib(_unpaged(lengths, max_tokens, P) * 2 * L * G * D * WIDTHS[dtype])


def _draw_frees(seed: int) -> Batch:
    draw = random.Random(seed)
    _, L, H, G, D = shape(draw)
    max_tokens, P = draw.choice((2048, 4096, 8192)), draw.choice((16, 32, 64))
    lengths = tuple(draw.randint(20, max_tokens * 3 // 4) for _ in range(draw.randint(4, 6)))
    return lengths, max_tokens, P, L, H, G, D, draw.choice(("BF16", "FP8"))


PAGING_FREES = Task(
    name="paging_frees",
    chapter=7,
    title="What blocks free",
    minutes=5,
    points=3,
    level=2,
    spec=(
        "How much less memory the cache takes when requests that hold so many tokens get blocks "
        "of block_size slots as they grow, rather than max_tokens slots each from the start, as "
        "text such as '4.74 GB'."
    ),
    signature=(
        "paging_frees(lengths: tuple[int, ...], max_tokens: int, block_size: int, num_layers: int, "
        "num_query_heads: int, num_kv_heads: int, head_dim: int, dtype: str) -> str"
    ),
    properties=(
        Property(
            "half a reservation is in use",
            lambda: _frees_examples(((4,), 8, 4, 1, 2, 2, 1, "BF16")),
        ),
        Property(
            "a block that is partly filled is not free",
            lambda: _frees_examples(
                ((1,), 8, 4, 1, 2, 2, 1, "BF16"), ((9,), 24, 8, 3, 2, 2, 5, "BF16")
            ),
        ),
        Property(
            "each request has a last block of its own",
            lambda: _frees_examples(
                ((1, 2), 8, 4, 1, 2, 2, 1, "BF16"), ((3, 9, 17), 40, 8, 3, 2, 2, 5, "FP8")
            ),
        ),
        Property(
            "keys and values of the key-value heads",
            lambda: _frees_examples(((3, 9, 17), 40, 8, 3, 6, 2, 5, "FP32")),
        ),
        Property(
            "Llama-3-70B and Llama-2-13B",
            lambda: _frees_examples(
                ((130, 1000, 45, 700), 4096, 16, 80, 64, 8, 128, "BF16"),
                ((161, 338, 512, 1999), 2048, 16, 40, 40, 40, 128, "FP16"),
            ),
        ),
        Property(
            "a request that fills its reservation frees nothing",
            lambda: _frees_examples(((8,), 8, 4, 1, 2, 2, 1, "BF16")),
            edge=True,
        ),
    ),
    hints=(
        "Count slots first: how many are reserved, how many are in the blocks that are taken?",
        "Each request takes its tokens rounded up to whole blocks. A slot holds a key and a value "
        "for each layer and key-value head.",
        "(requests · max_tokens − Σ ceil(n / P) · P) · 2 · layers · kv heads · head dim · bytes.",
    ),
    mutants=(
        Mutant(
            "freed to the token",
            "the empty slots of each request's last block are not free: nobody else can use them "
            "while the block is held",
            _frees_to_the_token,
        ),
        Mutant(
            "requests packed together",
            "a block belongs to one request's tokens; the lengths are rounded up one by one, not "
            "their sum",
            _frees_packed,
        ),
        Mutant(
            "all as long as the longest",
            "that is what padding a batch costs; each request takes the blocks of its own length",
            _frees_longest,
        ),
        Mutant(
            "one request",
            "this is what the first request frees; add up all of them",
            _frees_one_request,
        ),
        Mutant(
            "what is taken",
            "this is what the blocks take; asked is the reservation less that",
            _frees_taken,
        ),
        Mutant(
            "query heads counted",
            "the factor is query heads over key-value heads: a slot holds the key-value heads",
            _frees_query_heads,
        ),
        Mutant(
            "keys alone",
            "a factor of 2 is missing: a slot holds a value beside each key",
            _frees_keys_alone,
        ),
        Mutant(
            "GB called GiB",
            "the size is divided by 1,000 for each step of the unit and labelled as if by 1,024: "
            "the factor is 1.024³ for GiB",
            _frees_gb_called_gib,
        ),
    ),
    answers=(_frees_plain, _frees_by_request),
    atol=0.0,
    rtol=answers.TOLERANCE,
    drive=answers.reading("B"),
    draw=_draw_frees,
    ask=lambda lengths, max_tokens, P, L, H, G, D, dtype: (
        f"{L} layers, {H} query heads, {G} key-value heads of {D} elements, a cache in {dtype}.\n"
        f"{len(lengths)} requests hold {', '.join(f'{n:,}' for n in lengths)} tokens; up to "
        f"{max_tokens:,} are allowed.\nWhat do blocks of {P} slots free against reserving "
        f"{max_tokens:,} each?"
    ),
    unit="B",
)
