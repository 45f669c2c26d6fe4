"""What accelerators can do at most: memory, bandwidth and matrix rates as their makers state them.

All rates are dense. Data sheets of NVIDIA since Ampere print rates with 2:4 structured sparsity,
twice what a model with ordinary weights can get; those are halved here. All sizes are decimal, as
on the sheet: 80 GB is 80 · 10^9 bytes. No program reaches these figures; they are ceilings.
"""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

_NODE = re.compile(r"(?:(\d{1,6})\s*[x×*]\s*)?(\S.*)", re.IGNORECASE)  # 8xh100-sxm


@dataclass(frozen=True)
class Accelerator:
    """A device as the roofline sees it: bytes it holds, bytes and operations per second.

    ``peak_flops`` maps a dtype to dense operations per second of matrix products in it; ``fp32``
    is the plain rate, ``tf32`` that of rounded inputs. ``source`` and ``date`` (year and month of
    the announcement, or of the measurement) say where the figures come from. Raises ``ValueError``
    for figures that are not positive and finite.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    peak_flops: Mapping[str, float] = field(hash=False)
    source: str
    date: str
    note: str = ""

    def __post_init__(self) -> None:
        memory = self.memory_bytes
        if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
            raise ValueError(f"memory_bytes must be a positive integer, got {memory!r}")
        if not self.peak_flops:
            raise ValueError(f"{self.name} needs a peak for at least one dtype")
        for name, value in {"bandwidth": self.bandwidth, **self.peak_flops}.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    def peak(self, dtype: str = "bf16") -> float:
        """Operations per second of matrix products in ``dtype``; an error names what there is."""
        if dtype not in self.peak_flops:
            raise ValueError(
                f"{self.name} has no rate for {dtype!r}: it has {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]

    def ridge(self, dtype: str = "bf16") -> float:
        """Operations per byte at which memory and arithmetic take equally long."""
        return self.peak(dtype) / self.bandwidth

    @classmethod
    def named(cls, name: str) -> "Accelerator":
        """The accelerator of that name; a name that is not there suggests near ones."""
        key = "-".join(name.lower().split())
        if key not in ACCELERATORS:
            begun = [known for known in ACCELERATORS if key and known.startswith(key)]
            near = begun or difflib.get_close_matches(key, ACCELERATORS, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(
                f"unknown accelerator {name!r}{hint or '; known: ' + ', '.join(ACCELERATORS)}"
            )
        return ACCELERATORS[key]


def parse_node(text: str) -> tuple[int, str]:
    """How many accelerators of which name: ``8xh100-sxm`` gives ``(8, "h100-sxm")``.

    Without a number there is one. Raises ``ValueError`` for no name or a count of 0.
    """
    match = _NODE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"cannot read {text!r}: write a count and a name, as in 8xh100-sxm")
    count = 1 if match[1] is None else int(match[1])
    if count < 1:
        raise ValueError(f"cannot read {text!r}: at least one accelerator is needed")
    return count, match[2]


def conversion_cycles(num_elements: int, per_cycle: Sequence[float]) -> float:
    """Cycles that one multiprocessor needs to send numbers through a chain of instructions.

    ``per_cycle`` are the results each instruction of the chain gives in a cycle, all its lanes
    together; the instructions are taken to wait for one another, so their times add up. It is how
    FlashMLA counts the unpacking of an fp8 latent (its notes of September 2025).
    """
    if num_elements < 0:
        raise ValueError(f"num_elements cannot be negative, got {num_elements}")
    for rate in per_cycle:
        if not 0 < rate < math.inf:
            raise ValueError(f"a rate must be positive and finite, got {rate} results per cycle")
    return sum(num_elements / rate for rate in per_cycle)


def _row(
    name: str,
    gigabytes: int,
    gigabytes_per_second: float,
    teraflops: dict[str, float],
    source: str,
    date: str,
    note: str = "",
) -> Accelerator:
    peaks = {dtype: rate * 1e12 for dtype, rate in teraflops.items()}
    memory, bandwidth = gigabytes * 10**9, gigabytes_per_second * 1e9
    return Accelerator(name, memory, bandwidth, peaks, source, date, note)


_HOPPER = {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp16": 989, "fp8": 1979, "int8": 1979}
_AMPERE = {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624, "int4": 1248}

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        row.name: row
        for row in (
            _row(
                "v100",
                32,
                900,
                {"fp32": 15.7, "fp16": 125},
                "NVIDIA V100 data sheet (SXM2, 32 GB)",
                "2018-03",
                "also sold with 16 GB; no bf16",
            ),
            _row("a100-40gb", 40, 1555, _AMPERE, "NVIDIA A100 data sheet (SXM4, 40 GB)", "2020-05"),
            _row("a100-80gb", 80, 2039, _AMPERE, "NVIDIA A100 data sheet (SXM4, 80 GB)", "2020-11"),
            _row(
                "h100-sxm",
                80,
                3350,
                _HOPPER,
                "NVIDIA H100 data sheet (SXM5)",
                "2022-03",
                "sheet: 1,979 in bf16 with sparsity; 989.4 to four figures",
            ),
            _row(
                "h100-pcie",
                80,
                2000,
                {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513, "int8": 1513},
                "NVIDIA H100 data sheet (PCIe)",
                "2022-03",
                "sheet: 1,513 in bf16 with sparsity",
            ),
            _row(
                "h200",
                141,
                4800,
                _HOPPER,
                "NVIDIA H200 data sheet (SXM)",
                "2023-11",
                "the arithmetic of an H100 with more and faster memory",
            ),
            _row(
                "b200",
                180,
                8000,
                {"fp32": 75, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500},
                "NVIDIA DGX B200 and HGX B200 data sheets, one of eight GPUs",
                "2024-03",
                "the chip carries 192 GB, of which 180 are offered; one sheet says 7.7 TB/s",
            ),
            _row(
                "mi300x",
                192,
                5300,
                {
                    "fp32": 163.4,
                    "tf32": 653.7,
                    "bf16": 1307.4,
                    "fp16": 1307.4,
                    "fp8": 2614.9,
                    "int8": 2614.9,
                },
                "AMD Instinct MI300X data sheet",
                "2023-12",
            ),
            _row(
                "l4",
                24,
                300,
                {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5, "int8": 242.5},
                "NVIDIA L4 data sheet",
                "2023-03",
                "sheet: 242 in bf16 with sparsity",
            ),
            _row(
                "l40s",
                48,
                864,
                {
                    "fp32": 91.6,
                    "tf32": 183,
                    "bf16": 362.05,
                    "fp16": 362.05,
                    "fp8": 733,
                    "int8": 733,
                },
                "NVIDIA L40S data sheet",
                "2023-08",
            ),
            _row(
                "rtx-4090",
                24,
                1008,
                {
                    "fp32": 82.6,
                    "tf32": 82.6,
                    "bf16": 165.2,
                    "fp16": 165.2,
                    "fp8": 330.3,
                    "int8": 660.6,
                    "int4": 1321.2,
                },
                "NVIDIA Ada GPU architecture white paper, table 2",
                "2022-09",
                "sums in fp32, as models need; fp16 with fp16 sums has twice the rate",
            ),
        )
    }
)
