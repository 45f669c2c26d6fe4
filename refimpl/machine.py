"""What the reader's own machine can do, measured: so far, how fast it reads memory."""

import os
import platform
import statistics
import time
from pathlib import Path

import torch

# Far beyond any last-level cache of a laptop, and still small against its memory.
_BUFFER_BYTES = 512 * 2**20


def num_cores() -> int:
    """Processor cores this process may run on; a container or ``taskset`` can allow fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """The processor's own name, or its instruction set where the system does not tell."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "hardware") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def read_bandwidth(*, num_bytes: int = _BUFFER_BYTES, passes: int = 7) -> float:
    """Bytes per second at which all torch threads together read memory: the median pass.

    A pass sums a buffer of 64-bit integers. A decode step reads weights and writes next to
    nothing, so a copy would be the wrong yardstick: half of its traffic, or two thirds where a
    written line is read first, is not reading. A sum writes nothing either, and one addition per
    8 bytes keeps up with memory, which a matrix-vector product in bf16 does not on every machine.
    The first pass, which also maps the pages, is not counted.

    Raises ``ValueError`` for a buffer under 1 MiB or not a multiple of 8 bytes, or no pass.
    """
    if num_bytes < 2**20 or num_bytes % 8:
        raise ValueError(f"num_bytes must be at least 2**20 and a multiple of 8, got {num_bytes}")
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    count = num_bytes // 8
    words = torch.ones(count, dtype=torch.int64)
    seconds = []
    for _ in range(passes + 1):
        start = time.perf_counter()
        total = words.sum()
        seconds.append(time.perf_counter() - start)
        assert int(total) == count, "the sum did not read every word"
    return num_bytes / statistics.median(seconds[1:])
