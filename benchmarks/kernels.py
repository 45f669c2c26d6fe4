"""The Triton attention kernel beside torch's own, on a GPU.

    python benchmarks/kernels.py            512 to 16,384 tokens
    python benchmarks/kernels.py --quick    fewer rounds, up to 4,096 tokens

Both take turns in one process on the same inputs, after their outputs were compared. A speed is
given as FLOPs of the two products over the time, the masked half left out under a causal mask.
"""

import dataclasses
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when run as a file

from benchmarks import _common
from benchmarks.attention import TORCH, Shape, check_equal
from refimpl.flash.costs import product_flops

KERNEL = "refimpl.kernels"
TOLERANCE = 2e-2  # of an output in 16 bits on standard-normal inputs
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
SHAPE = Shape(batch=1, num_query_heads=32, num_kv_heads=8, head_dim=128)


@dataclasses.dataclass(frozen=True)
class Row:
    """One length: median seconds of both, and how many times faster torch's kernel is."""

    mask: str
    num_tokens: int
    seconds: float
    seconds_of_torch: float
    times_slower: float
    teraflops: float
    largest_difference: float


def measure(
    shape: Shape,
    num_tokens: int,
    *,
    causal: bool,
    repeats: int,
    device: str,
    dtype: torch.dtype,
    patience: float = 0.0,
) -> Row:
    """Time both at one length; ``ValueError`` where their outputs differ by more than rounding."""
    from refimpl.kernels.flash import attend

    q, k, v = (x.to(device, dtype) for x in shape.inputs(num_tokens))
    works: dict[str, Callable[[], Tensor]] = {
        KERNEL: lambda: attend(q, k, v, causal=causal),
        TORCH: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
    }
    # The first calls, which compile the kernel, are not under the clock.
    difference = check_equal(works, num_tokens, TOLERANCE)
    wait, calls = (torch.cuda.synchronize, 10) if device == "cuda" else (lambda: None, 1)
    runs = {name: _common.timed(work, calls, wait) for name, work in works.items()}
    rounds = _common.alternate(runs, repeats, after_round=lambda: 0.0, patience=patience)
    samples = {name: [done.samples[name] for done in rounds] for name in runs}
    seconds = statistics.median(samples[KERNEL])
    heads = {"num_heads": shape.num_query_heads, "batch": shape.batch}
    flops = product_flops(num_tokens, shape.head_dim, **heads) / (2 if causal else 1)
    return Row(
        mask="causal" if causal else "none",
        num_tokens=num_tokens,
        seconds=seconds,
        seconds_of_torch=statistics.median(samples[TORCH]),
        times_slower=_common.ratio(samples[TORCH], samples[KERNEL]),
        teraflops=flops / seconds / 1e12,
        largest_difference=difference,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows for reading."""
    headers = ("mask", "tokens", "ms", "torch SDPA, ms", "SDPA's speed, times", "TFLOP/s")
    return _common.text_table(
        headers,
        [
            (
                row.mask,
                f"{row.num_tokens:,}",
                f"{row.seconds * 1e3:.3f}",
                f"{row.seconds_of_torch * 1e3:.3f}",
                f"{row.times_slower:.2f}",
                f"{row.teraflops:.1f}",
            )
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; says so and does nothing where there is no GPU."""
    parser = _common.Options(__doc__, quick="five rounds, up to 4,096 tokens", per="length")
    options = parser.read(argv)
    if not torch.cuda.is_available():
        print("kernels: skipped, torch sees no GPU on this machine")
        return 0
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 interprets kernels: unset it to time them")
    lengths = LENGTHS[:4] if options.quick else LENGTHS
    repeats = 5 if options.quick else 15
    settings = {"repeats": repeats, "device": "cuda", "dtype": torch.bfloat16}
    settings["patience"] = options.patience
    rows = [
        measure(SHAPE, num_tokens, causal=causal, **settings)
        for causal in (True, False)
        for num_tokens in lengths
    ]
    title = (
        f"Attention on {torch.cuda.get_device_name()}, batch {SHAPE.batch}, "
        f"{SHAPE.num_query_heads} query heads over {SHAPE.num_kv_heads}, head dim "
        f"{SHAPE.head_dim}, bf16, forward: {repeats} rounds"
    )
    print(f"{title}\n\n{table(rows)}")
    if options.write:
        _common.write(
            options.write, title, table(rows), {"rows": [dataclasses.asdict(r) for r in rows]}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
