"""Attention over N tokens: the score matrix at once, in tiles, and torch's own kernel.

    python benchmarks/attention.py            a few minutes
    python benchmarks/attention.py --quick    fewer rounds, up to 4,096 tokens

Time and memory of a forward pass, as shares of what the plain form needs in the same run. The
variants take turns in one process. Peak memory is what torch's allocator handed out above q, k and
v at the worst moment, output included: it is counted, and is the same in every run.
"""

import dataclasses
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Read when torch loads its profiler, which otherwise announces every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when run as a file

from benchmarks import _common
from refimpl import attention, flash

PLAIN, TILED, TORCH = "refimpl.attention", "refimpl.flash", "torch SDPA"
TOLERANCE = 5e-6  # of an output in float32 on standard-normal inputs, against float64
LENGTHS = (512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the inputs look like; queries and keys are of one length."""

    batch: int = 1
    num_query_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64

    def inputs(self, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal q, k and v in float32, the same in every run."""
        generator = torch.Generator().manual_seed(num_tokens)
        heads = (self.num_query_heads, self.num_kv_heads, self.num_kv_heads)
        return tuple(
            torch.randn(self.batch, num, num_tokens, self.head_dim, generator=generator)
            for num in heads
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant at one length. Seconds are medians over rounds, shares are of the plain form.

    ``others`` is the largest share of the cores that other processes used during a round.
    """

    mask: str
    num_tokens: int
    variant: str
    seconds: float
    share_of_time: float
    spread: float
    peak_bytes: int
    share_of_peak: float
    others: float
    samples: tuple[float, ...]


def variants(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> dict[str, Callable[[], Tensor]]:
    """The three computations, each with nothing left to do but to be called."""
    grouped = q.shape[1] != k.shape[1]
    return {
        PLAIN: lambda: attention.attend(q, k, v, causal=causal),
        TILED: lambda: flash.attend(q, k, v, causal=causal),
        TORCH: lambda: F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=grouped
        ),
    }


def check_equal(
    works: Mapping[str, Callable[[], Tensor]], num_tokens: int, tolerance: float = TOLERANCE
) -> float:
    """The largest difference from the first form; ``ValueError`` where it is no rounding."""
    want, *others = (work().float() for work in works.values())
    worst = 0.0
    for other in others:
        if other.shape != want.shape:
            raise ValueError(f"outputs have shapes {tuple(want.shape)} and {tuple(other.shape)}")
        difference = (other - want).abs().max().item()
        if not difference <= 2 * tolerance:  # also where it is NaN
            raise ValueError(
                f"outputs over {num_tokens} tokens differ by {difference:.3g}, allowed are "
                f"{2 * tolerance}: there is nothing to compare"
            )
        worst = max(worst, difference)
    return worst


def peak_allocated(work: Callable[[], object]) -> int:
    """The most bytes allocated at one time during ``work``, its result included.

    Sums the allocations and releases that torch's profiler records, so buffers inside an operator
    count too. What a matrix library allocates for itself is not torch's and does not.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = work()
    del result
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def measure(
    shape: Shape, num_tokens: int, *, causal: bool, repeats: int, patience: float = 0.0
) -> list[Row]:
    """One row per variant, all measured in turn, after they were found to agree."""
    works = variants(*shape.inputs(num_tokens), causal=causal)
    check_equal(works, num_tokens)
    peaks = {name: peak_allocated(work) for name, work in works.items()}
    runs = {name: _common.timed(work) for name, work in works.items()}
    rounds = _common.alternate(runs, repeats, after_round=lambda: 0.0, patience=patience)
    samples = {name: [done.samples[name] for done in rounds] for name in runs}
    return [
        Row(
            mask="causal" if causal else "none",
            num_tokens=num_tokens,
            variant=name,
            seconds=statistics.median(taken),
            share_of_time=_common.ratio(samples[PLAIN], taken),
            spread=_common.spread(taken),
            peak_bytes=peaks[name],
            share_of_peak=peaks[name] / peaks[PLAIN],
            others=max(done.others for done in rounds),
            samples=tuple(taken),
        )
        for name, taken in samples.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows for reading."""
    headers = (
        "mask",
        "variant",
        "tokens",
        "ms",
        "± %",
        "× plain's time",
        "peak MB",
        "% of plain's peak",
    )
    return _common.text_table(
        headers,
        [
            (
                row.mask,
                row.variant,
                f"{row.num_tokens:,}",
                f"{row.seconds * 1e3:.2f}",
                f"{row.spread:.0%}",
                f"{row.share_of_time:.2f}",
                f"{row.peak_bytes / 1e6:,.2f}",
                f"{row.share_of_peak:.2%}",
            )
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = _common.Options(
        __doc__, quick="three rounds, up to 4,096 tokens", per="length and mask"
    )
    parser.add_argument("--tokens", type=int, nargs="+", metavar="N", help="lengths to measure")
    parser.add_argument("--threads", type=int, metavar="N", help="threads for torch to use")
    options = parser.read(argv)
    lengths = options.tokens or (LENGTHS[:-1] if options.quick else LENGTHS)
    if min(lengths) < 1:
        parser.error(f"--tokens {min(lengths)}: give at least one token")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads {options.threads}: give at least one thread")

    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        report(Shape(), lengths, 3 if options.quick else 7, options.patience, options.write)
    finally:
        torch.set_num_threads(before)
    return 0


def report(
    shape: Shape, lengths: Sequence[int], repeats: int, patience: float, kept: Path | None
) -> None:
    """Measure every length with and without a causal mask; print, and write where asked."""
    rows: list[Row] = []
    for causal in (True, False):
        for num_tokens in lengths:
            print(f"causal {causal}, {num_tokens:,} tokens: measuring", file=sys.stderr, flush=True)
            rows += measure(shape, num_tokens, causal=causal, repeats=repeats, patience=patience)
    title = (
        f"Attention, batch {shape.batch}, {shape.num_query_heads} query heads over "
        f"{shape.num_kv_heads}, head dim {shape.head_dim}, fp32: {repeats} rounds"
    )
    notes = f"tiles of {flash.BLOCK_T} queries by {flash.BLOCK_S} keys"
    others = max(row.others for row in rows)
    if others > _common.QUIET:
        notes += (
            f"\nother processes used up to {others:.0%} of the cores: two threads that wait for "
            "each other suffer more than that; repeat with --patience 300 or --threads 1"
        )
    facts = ", ".join(f"{key} {value}" for key, value in _common.machine_facts().items())
    print(f"{title}\n{facts}\n{notes}\n\n{table(rows)}")
    if kept:
        data = {"shape": dataclasses.asdict(shape), "rows": [dataclasses.asdict(r) for r in rows]}
        _common.write(kept, title, f"{notes}\n\n{table(rows)}", data)


if __name__ == "__main__":
    sys.exit(main())
