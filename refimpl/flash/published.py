"""Measurements of FlashAttention as its authors printed them, dated, with what they compare.

They are quoted, not reproduced: each holds for its machine and its shapes. No torch.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Comparison:
    """Two printed measurements of the same work, ``before`` and ``after``, in ``unit``."""

    work: str
    before: float
    after: float
    unit: str
    source: str
    year: int

    @property
    def times(self) -> float:
        """How many times less it became."""
        return self.before / self.after

    @property
    def percent_more(self) -> float:
        """By how many percent it grew."""
        return 100 * (self.after / self.before - 1)


_FIGURE_2 = "GPT-2 medium, 1,024 tokens, head dim 64, 16 heads, batch 64, A100, both passes"
_FA1 = "FlashAttention, arXiv:2205.14135"
_SPLIT = "Flash-Decoding, PyTorch blog, 2023-10-12"

COMPARISONS = {
    "v1-traffic": Comparison(_FIGURE_2, 40.3, 4.4, "GB", f"{_FA1}, figure 2", 2022),
    "v1-time": Comparison(_FIGURE_2, 41.7, 7.3, "ms", f"{_FA1}, figure 2", 2022),
    "v1-flops": Comparison(_FIGURE_2, 66.6, 75.2, "GFLOP", f"{_FA1}, figure 2", 2022),
    "v1-gpt2-small": Comparison("training GPT-2 small", 9.5, 2.7, "days", f"{_FA1}, table 2", 2022),
    "v1-gpt2-medium": Comparison(
        "training GPT-2 medium", 21.0, 6.9, "days", f"{_FA1}, table 2", 2022
    ),
    "split-keys": Comparison(
        "attention of one decode step, batch 1, 65,536 keys", 2300.6, 64.4, "µs", _SPLIT, 2023
    ),
}

# Printed ranges of speed-ups of one version over the one before it, for the kernel alone.
V2_OVER_V1 = (1.7, 3.0)  # FlashAttention-2, arXiv:2307.08691, A100
V3_OVER_V2 = (1.5, 2.0)  # FlashAttention-3, arXiv:2407.08608, H100, FP16

# TFLOP/s of version 3's forward kernel, whole and without one of two things, on an H100 at a fixed
# clock of 1,830 MHz, FP16, head dim 128: table 2 of arXiv:2407.08608.
V3_WITHOUT = {"nothing": 661, "pipelining": 582, "warp specialisation": 570}


class Rates(NamedTuple):
    """What a multiprocessor does in a cycle: FLOPs of 16-bit products, and exponentials."""

    product_flops: int
    exponentials: int


# By key of :data:`refimpl.hardware.ACCELERATORS`; FlashAttention-4, arXiv:2603.05451.
PER_CYCLE = {"h100-sxm": Rates(4096, 16), "b200": Rates(8192, 16)}


@dataclass(frozen=True)
class Version:
    """One FlashAttention paper: what it added, and the share of a GPU's peak its kernel reached.

    ``teraflops`` is the highest speed printed for the kernel, None where only a share was printed;
    ``low`` and ``high`` are that share, of dense 16-bit peak, as the authors print it.
    ``accelerator`` is the key of the GPU in :data:`refimpl.hardware.ACCELERATORS`.
    """

    name: str
    date: str
    added: str
    accelerator: str
    teraflops: float | None
    low: float
    high: float
    source: str


# Forward and backward are not separated here: a range is what the abstract gives for the kernel.
VERSIONS = (
    Version(
        name="v1",
        date="2022-05",
        added="tiles, running softmax",
        accelerator="a100-80gb",
        teraflops=None,
        low=0.25,
        high=0.40,
        source="arXiv:2307.08691, abstract",
    ),
    Version(
        name="v2",
        date="2023-07",
        added="queries outside, parallel along N",
        accelerator="a100-80gb",
        teraflops=230,
        low=0.50,
        high=0.73,
        source="arXiv:2307.08691, abstract and section 1",
    ),
    Version(
        name="v2",
        date="2024-07",
        added="the same, on Hopper",
        accelerator="h100-sxm",
        teraflops=None,
        low=0.35,
        high=0.35,
        source="arXiv:2407.08608, abstract",
    ),
    Version(
        name="v3",
        date="2024-07",
        added="TMA, asynchrony, FP8",
        accelerator="h100-sxm",
        teraflops=740,
        low=0.75,
        high=0.75,
        source="arXiv:2407.08608, abstract",
    ),
    Version(
        name="v4",
        date="2026-03",
        added="tensor memory, exp in software",
        accelerator="b200",
        teraflops=1613,
        low=0.71,
        high=0.71,
        source="arXiv:2603.05451, abstract",
    ),
)
