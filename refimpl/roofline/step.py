"""One step on the roofline: what is moved, what is computed, and the least time of the two."""

from dataclasses import dataclass

from refimpl.hardware import Accelerator
from refimpl.roofline.flops import check_counts


@dataclass(frozen=True, kw_only=True)
class Step:
    """The least a step moves and computes, and so the least time: a bound, not a prediction.

    ``weight_bytes`` are read in this step, ``resident_weight_bytes`` occupy memory: an embedding
    table is resident whole and read by the row, and an expert that no token chose is not read.
    ``cache_bytes`` are read and written. ``num_tokens`` pass through the step, and arithmetic is in
    ``compute_dtype``.
    """

    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    resident_weight_bytes: int
    flops: int
    memory_seconds: float
    compute_seconds: float
    num_tokens: int
    compute_dtype: str

    @property
    def bytes(self) -> int:
        """All bytes that the step moves."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.bytes

    @property
    def seconds(self) -> float:
        """The least time: memory and arithmetic overlap, the slower one counts."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> str:
        """Which roof is reached first: ``memory`` or ``compute``."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"

    @property
    def tokens_per_second(self) -> float:
        """The most tokens that all sequences together can get, a second."""
        return self.num_tokens / self.seconds


def lower_bound(
    accelerator: Accelerator,
    *,
    flops: int,
    weight_bytes: int,
    cache_bytes: int = 0,
    activation_bytes: int = 0,
    resident_weight_bytes: int | None = None,
    num_tokens: int = 1,
    num_gpus: int = 1,
    dtype: str = "bf16",
) -> Step:
    """The bound for given FLOPs and given bytes: name every byte that the path in question moves.

    ``resident_weight_bytes`` are by default those read. ``num_gpus`` devices share everything
    evenly and talk for free. Raises ``ValueError`` for counts that are none, for nothing moved,
    and for a ``dtype`` whose rate the accelerator does not have.
    """
    resident = weight_bytes if resident_weight_bytes is None else resident_weight_bytes
    check_counts(
        flops=flops,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        activation_bytes=activation_bytes,
        resident_weight_bytes=resident,
        num_tokens=num_tokens,
        num_gpus=num_gpus,
    )
    moved = weight_bytes + cache_bytes + activation_bytes
    if not num_gpus:
        raise ValueError(f"num_gpus must be at least 1, got {num_gpus}")
    if not moved:
        raise ValueError(f"a step moves something, got {moved} bytes")
    return Step(
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        activation_bytes=activation_bytes,
        resident_weight_bytes=resident,
        flops=flops,
        memory_seconds=moved / (accelerator.bandwidth * num_gpus),
        compute_seconds=flops / (accelerator.peak(dtype) * num_gpus),
        num_tokens=num_tokens,
        compute_dtype=dtype,
    )


def ridge(accelerator: Accelerator, dtype: str = "bf16") -> float:
    """FLOPs per byte above which arithmetic, below which memory bounds a step."""
    return accelerator.ridge(dtype)
