"""What the reader's own machine can do, measured: how fast it reads memory and multiplies."""

import ctypes
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from refimpl.hardware import Accelerator

# Far beyond any last-level cache of a laptop, and still small against its memory.
_BUFFER_BYTES = 512 * 2**20
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Where Linux says how much memory a container may use; the second is of the older interface.
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


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
    if not isinstance(num_bytes, int) or num_bytes < 2**20 or num_bytes % 8:
        raise ValueError(f"num_bytes must be at least 2**20 and a multiple of 8, got {num_bytes!r}")
    count = num_bytes // 8
    words = torch.ones(count, dtype=torch.int64)

    def read() -> None:
        assert int(words.sum()) == count, "the sum did not read every word"

    return num_bytes / _median_seconds(read, passes)


def matmul_rate(dtype: str = "fp32", *, width: int = 1024, passes: int = 7) -> float:
    """Operations per second of a square matrix product in ``dtype``: the median pass.

    A multiply-add is two. The inputs have ``width`` rows and columns: large enough that arithmetic
    and not memory sets the time, and the shape a matrix product likes best. A model's own matrices
    run at this rate or below it. It is what torch reaches here, not what the processor could do.

    Raises ``ValueError`` for a dtype other than fp32, bf16 and fp16, a width under 64, or no pass.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"no rate is measured for {dtype!r}: one of {', '.join(_DTYPES)}")
    if not isinstance(width, int) or isinstance(width, bool) or width < 64:
        raise ValueError(f"width must be at least 64, got {width!r}")
    a, b = (
        torch.randn(width, width, generator=torch.Generator().manual_seed(seed)).to(_DTYPES[dtype])
        for seed in (0, 1)
    )
    out = torch.empty_like(a)
    return 2 * width**3 / _median_seconds(lambda: torch.mm(a, b, out=out), passes)


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or less where a container is given less."""
    limits = [_physical_bytes()]
    for path in _CONTAINER_LIMITS:
        if path.is_file() and (text := path.read_text(encoding="utf-8").strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def measure(dtypes: Sequence[str] = ("fp32", "bf16")) -> Accelerator:
    """This machine as an accelerator: memory, read bandwidth, matrix rate in each dtype.

    Takes a second or two. What else runs meanwhile lowers the figures, and clocks that rise and
    fall with heat move them by tens of percent: measure next to what is compared with them. A
    dtype that the processor has no instructions for is emulated, and shows a low rate.

    Raises ``ValueError`` for no dtype, a bare string, or a dtype of which no rate is measured.
    """
    if isinstance(dtypes, str):
        raise ValueError(f"dtypes must be a sequence of names, got {dtypes!r}")
    if not dtypes:
        raise ValueError("name at least one dtype to measure")
    return Accelerator(
        name=processor_name(),
        memory_bytes=memory_bytes(),
        bandwidth=read_bandwidth(),
        peak_flops={dtype: matmul_rate(dtype) for dtype in dtypes},
        source=f"measured with torch {torch.__version__}, {torch.get_num_threads()} threads",
        date=datetime.date.today().strftime("%Y-%m"),
    )


measure_this_machine = measure


def _median_seconds(work: Callable[[], object], passes: int) -> float:
    """The middle of ``passes`` times, after one that warms up and is not counted."""
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes!r}")
    seconds = []
    for _ in range(passes + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _physical_bytes() -> int:
    if sys.platform == "win32":

        class Status(ctypes.Structure):  # MEMORYSTATUSEX
            _fields_ = (
                ("length", ctypes.c_ulong),
                ("load", ctypes.c_ulong),
                *((name, ctypes.c_ulonglong) for name in ("total", "b", "c", "d", "e", "f", "g")),
            )

        status = Status(length=ctypes.sizeof(Status))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return status.total
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
