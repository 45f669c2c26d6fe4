"""What a multiprocessor of each target offers, and how many blocks of a kernel fit on it."""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True)
class Target:
    """Limits per multiprocessor (NVIDIA's SM, AMD's compute unit) and per block.

    ``registers`` are 32-bit registers of a whole multiprocessor, ``schedulers`` the parts it is
    divided into (each warp lives in one), ``register_unit`` the number of registers per thread
    times ``warp_size`` that are handed out at a time. Sizes are in bytes. ``tensor_columns`` is
    the width of Blackwell's tensor memory, 0 elsewhere.
    """

    name: str
    example: str
    backend: str
    arch: int | str
    warp_size: int
    warps: int
    blocks: int
    registers: int
    register_unit: int
    max_registers: int
    shared_bytes: int
    shared_per_block: int
    shared_reserved: int
    tensor_columns: int
    source: str
    date: str
    schedulers: int = 4


_CUDA = (
    "NVIDIA CUDA C++ Programming Guide, technical specifications per compute capability; "
    "tuning guide of the architecture"
)
_NVIDIA = {
    "backend": "cuda",
    "warp_size": 32,
    "warps": 64,
    "blocks": 32,
    "registers": 65_536,
    "register_unit": 256,
    "max_registers": 255,
    "shared_reserved": 1_024,
    "source": _CUDA,
}

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        row.name: row
        for row in (
            Target(
                "sm_80",
                "A100",
                arch=80,
                shared_bytes=164 * 1024,
                shared_per_block=163 * 1024,
                tensor_columns=0,
                date="2020-05",
                **_NVIDIA,
            ),
            Target(
                "sm_90",
                "H100",
                arch=90,
                shared_bytes=228 * 1024,
                shared_per_block=227 * 1024,
                tensor_columns=0,
                date="2022-03",
                **_NVIDIA,
            ),
            Target(
                "sm_100",
                "B200",
                arch=100,
                shared_bytes=228 * 1024,
                shared_per_block=227 * 1024,
                tensor_columns=512,
                date="2024-03",
                **_NVIDIA,
            ),
            Target(
                "gfx942",
                "MI300X",
                backend="hip",
                arch="gfx942",
                warp_size=64,
                warps=32,
                blocks=16,
                registers=4 * 512 * 64,
                register_unit=8 * 64,
                max_registers=512,
                shared_bytes=64 * 1024,
                shared_per_block=64 * 1024,
                shared_reserved=0,
                tensor_columns=0,
                source="AMD CDNA 3 instruction set guide; occupancy of LLVM's AMDGPU back end",
                date="2023-12",
            ),
        )
    }
)


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """Blocks of a kernel that one multiprocessor holds at once, and what stops the next one.

    ``limits`` maps each resource to the blocks it would allow alone; ``share`` is resident warps
    over the most there can be.
    """

    blocks: int
    warps: int
    share: float
    bound_by: str
    limits: Mapping[str, int]


def occupancy(
    target: Target, *, registers: int, shared: int, num_warps: int, tensor_columns: int = 0
) -> Occupancy:
    """Work out the occupancy from registers per thread and shared bytes and warps per block.

    Registers are handed out to a warp in units and live in one of the schedulers' parts, so as many
    warps fit as fit into each part. Raises ``ValueError`` where not even one block fits.
    """
    per_warp = math.ceil(registers * target.warp_size / target.register_unit)
    per_warp *= target.register_unit
    warps_per_part = target.registers // target.schedulers // per_warp
    limits = {
        "warps": target.warps // num_warps,
        "blocks": target.blocks,
        "registers": warps_per_part * target.schedulers // num_warps,
    }
    if shared:
        limits["shared memory"] = target.shared_bytes // (shared + target.shared_reserved)
    if tensor_columns:
        limits["tensor memory"] = target.tensor_columns // tensor_columns
    bound_by = min(limits, key=limits.__getitem__)
    blocks = limits[bound_by]
    if blocks == 0:
        raise ValueError(f"no block fits on {target.name}: {bound_by} allows none")
    warps = blocks * num_warps
    return Occupancy(blocks, warps, warps / target.warps, bound_by, MappingProxyType(limits))
