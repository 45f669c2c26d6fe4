"""Measurements of FlashAttention as its authors printed them, dated, with what they compare.

They are quoted, not reproduced: each holds for its machine and its shapes. No torch.
"""

from dataclasses import dataclass


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
