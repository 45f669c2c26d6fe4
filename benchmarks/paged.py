"""Decoding on blocks beside decoding on one contiguous buffer, with the same model.

    python benchmarks/paged.py             about ten minutes
    python benchmarks/paged.py --quick     about two, noisier

For each dtype and batch the variants take turns in one process. What is timed is the decode step
alone, behind a context that is already in the cache. The context is random keys and values, the
same in every cache: what they say does not change the work. Physical blocks are in random order,
so that no two neighbours of a sequence lie side by side except by chance.
"""

import dataclasses
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when run as a file

from benchmarks import _common
from refimpl import weights
from refimpl.architecture import Architecture
from refimpl.cache import BlockPool, ContiguousCache, KVCache, PagedCache
from refimpl.decode import generate
from refimpl.model import Decoder, fuse, pack

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Largest difference of a logit between the caches. They hold the same numbers, but a kernel may
# add them up in another order when rows lie further apart.
TOLERANCE = {"bf16": 0.5, "fp32": 1e-3}
GATHER, ATTENTION = "reading the blocks alone", "attention alone"

Run = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant at one dtype and batch. Seconds are medians over the rounds.

    ``times_fastest`` compares with the faster of the contiguous variants, 1 being as fast;
    ``bytes_gathered`` is what a step copies out of the pool. ``others`` is the largest share of
    the cores that other processes used during a round.
    """

    dtype: str
    batch: int
    context: int
    block_size: int
    variant: str
    seconds_per_step: float
    times_fastest: float
    spread: float
    bytes_gathered: int
    others: float
    samples: tuple[float, ...]


def make_caches(
    arch: Architecture, dtype: torch.dtype, *, batch: int, context: int, steps: int, block_size: int
) -> tuple[ContiguousCache, PagedCache]:
    """Both caches with the same ``context - 1`` tokens in every row, and room for ``steps``."""
    per_row = -(-(context - 1 + steps) // block_size)
    order = list(range(batch * per_row))
    random.Random(0).shuffle(order)
    contiguous = ContiguousCache(
        arch, batch_size=batch, max_tokens=context - 1 + steps, dtype=dtype
    )
    pool = BlockPool(arch, num_blocks=len(order), block_size=block_size, dtype=dtype, order=order)
    paged = PagedCache.over(pool, [pool.allocator.allocate() for _ in range(batch)])
    numbers = torch.Generator().manual_seed(context)
    for layer in range(arch.num_layers):
        shape = (batch, arch.num_kv_heads, context - 1, arch.head_dim)
        k_BGTD, v_BGTD = (torch.randn(shape, generator=numbers).to(dtype) for _ in "kv")
        for cache in (contiguous, paged):
            cache.append(layer, k_BGTD, v_BGTD)
    return contiguous, paged


def check_equal(model: Decoder, caches: Sequence[KVCache], dtype: str) -> float:
    """The largest difference of a logit; ``ValueError`` if it says that the caches differ."""
    held = caches[0].num_tokens
    tokens_B1 = torch.arange(1, len(held) + 1)[:, None]
    logits = []
    for cache in caches:
        with torch.no_grad():
            logits.append(model(tokens_B1, cache=cache).float())
        cache.truncate(held)
    worst = max((other - logits[0]).abs().max().item() for other in logits)
    if not worst <= TOLERANCE[dtype]:
        raise ValueError(
            f"logits on blocks differ by {worst:.3g} in {dtype}, allowed are {TOLERANCE[dtype]}: "
            "there is nothing to compare"
        )
    return worst


def decode_run(model: Decoder, cache: KVCache, steps: int) -> Run:
    """A function that decodes ``steps`` tokens behind what is cached; seconds per step."""
    held = cache.num_tokens

    def run() -> float:
        times = [time.perf_counter()]

        def on_token(row: int, token: int) -> None:
            if row == 0:
                times.append(time.perf_counter())

        generate(model, [[1]] * len(held), max_new_tokens=steps, cache=cache, on_token=on_token)
        cache.truncate(held)
        taken = [stop - start for start, stop in itertools.pairwise(times)]
        return statistics.median(taken[1:] or taken)  # the first one also starts the call

    return run


def gather_run(cache: PagedCache) -> Run:
    """A function that reads every layer once, as a decode step does; seconds."""

    def run() -> float:
        start = time.perf_counter()
        for layer in range(cache.arch.num_layers):
            cache.read(layer)
        return time.perf_counter() - start

    return run


def attention_run(cache: ContiguousCache) -> Run:
    """A function that attends to every layer's stored tokens once, one query a row; seconds."""
    arch = cache.arch
    B, G, D = cache.batch_size, arch.num_kv_heads, arch.head_dim
    q_BGRD = torch.ones(B, G, arch.num_query_heads // G, D, dtype=cache.dtype)

    def run() -> float:
        start = time.perf_counter()
        for layer in range(arch.num_layers):
            F.scaled_dot_product_attention(q_BGRD, *cache.read(layer))
        return time.perf_counter() - start

    return run


def measure(
    model: Decoder,
    dtype: str,
    batch: int,
    context: int,
    *,
    block_size: int,
    steps: int,
    repeats: int,
    patience: float = 0.0,
) -> list[Row]:
    """One row per variant, all measured in turn."""
    contiguous, paged = make_caches(
        model.arch,
        DTYPES[dtype],
        batch=batch,
        context=context,
        steps=steps,
        block_size=block_size,
    )
    models = {"fused": fuse(model), "fused and packed": pack(fuse(model))}
    for each in models.values():
        check_equal(each, (contiguous, paged), dtype)
    runs = {f"contiguous, {name}": decode_run(m, contiguous, steps) for name, m in models.items()}
    runs |= {f"blocks, {name}": decode_run(m, paged, steps) for name, m in models.items()}
    runs |= {GATHER: gather_run(paged), ATTENTION: attention_run(contiguous)}
    gathered = {}
    for name, run in runs.items():  # the first run allocates and picks kernels
        before = paged.pool.bytes_gathered
        run()
        gathered[name] = (paged.pool.bytes_gathered - before) // (1 if name == GATHER else steps)
    rounds = _common.alternate(runs, repeats, after_round=lambda: 0.0, patience=patience)
    samples = {name: [done.samples[name] for done in rounds] for name in runs}
    fastest = min(
        (name for name in runs if name.startswith("contiguous")),
        key=lambda name: statistics.median(samples[name]),
    )
    return [
        Row(
            dtype=dtype,
            batch=batch,
            context=context,
            block_size=block_size,
            variant=name,
            seconds_per_step=statistics.median(taken),
            times_fastest=_common.ratio(taken, samples[fastest]),
            spread=_common.spread(taken),
            bytes_gathered=gathered[name],
            others=max(done.others for done in rounds),
            samples=tuple(taken),
        )
        for name, taken in samples.items()
    ]


def verdict(rows: Sequence[Row]) -> str:
    """What one dtype and batch say: blocks against the fastest, and the gather beside attention."""
    seconds: Mapping[str, float] = {row.variant: row.seconds_per_step for row in rows}
    best = max(
        (row for row in rows if row.variant.startswith("blocks")), key=lambda row: row.times_fastest
    )
    return (
        f"{best.dtype}, batch {best.batch}: {best.times_fastest:.2f} times the fastest contiguous "
        f"path; {best.bytes_gathered / 1e6:.1f} MB gathered a step; reading the blocks takes "
        f"{seconds[GATHER] / seconds[ATTENTION]:.1f} times as long as attending to them"
    )


def table(rows: Sequence[Row]) -> str:
    """The rows for reading; the parts of a step have no ratio to a whole one."""
    headers = (
        "dtype",
        "batch",
        "variant",
        "ms/step",
        "± %",
        "tokens/s",
        "× fastest contiguous",
        "MB gathered",
    )
    cells = []
    for row in rows:
        whole = row.variant not in (GATHER, ATTENTION)
        cells.append(
            (
                row.dtype,
                f"{row.batch}",
                row.variant,
                f"{row.seconds_per_step * 1e3:.2f}",
                f"{row.spread:.0%}",
                f"{row.batch / row.seconds_per_step:.1f}" if whole else "",
                f"{row.times_fastest:.2f}" if whole else "",
                f"{row.bytes_gathered / 1e6:.1f}",
            )
        )
    return _common.text_table(headers, cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = _common.Options(__doc__, quick="fewer rounds and steps", per="dtype and batch")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="ROWS")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--block-size", type=int, default=16, metavar="TOKENS")
    options = parser.read(argv)
    steps, repeats = (8, 3) if options.quick else (16, 9)
    if min(*options.batch, options.block_size, options.context - 1) < 1:
        parser.error(
            f"--batch {min(options.batch)}, --block-size {options.block_size}, --context "
            f"{options.context}: give at least one row, one slot a block, two tokens"
        )

    rows: list[Row] = []
    verdicts = []
    for dtype in options.dtype:
        model, _ = weights.load(weights.MODEL_NAME, dtype=DTYPES[dtype])
        for batch in options.batch:
            print(f"{dtype}, batch {batch}: measuring", file=sys.stderr, flush=True)
            new = measure(
                model,
                dtype,
                batch,
                options.context,
                block_size=options.block_size,
                steps=steps,
                repeats=repeats,
                patience=options.patience,
            )
            verdicts.append(verdict(new))
            rows += new
    title = (
        f"Decode on blocks of {options.block_size}, context {options.context:,}, "
        f"{weights.MODEL_NAME}: {repeats} rounds of {steps} steps"
    )
    others = max(row.others for row in rows)
    notes = "\n".join(verdicts)
    if others > _common.QUIET:
        notes += (
            f"\nother processes used up to {others:.0%} of the cores: two threads that wait for "
            "each other suffer more than that; repeat with --patience 300"
        )
    facts = ", ".join(f"{key} {value}" for key, value in _common.machine_facts().items())
    print(f"{title}\n{facts}\n{notes}\n\n{table(rows)}")
    if options.write:
        data = {"rows": [dataclasses.asdict(row) for row in rows]}
        _common.write(options.write, title, f"{notes}\n\n{table(rows)}", data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
