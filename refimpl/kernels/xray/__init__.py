"""X-ray of a kernel: what the compiler makes of it for a GPU that need not be there.

A child process compiles it ahead of time, since this one may hold Triton as an interpreter.
Counts are of instructions in the code, not of their executions. Registers, instructions and
shared memory change with the version of Triton: read them, do not rely on them.
"""

import dataclasses
import json
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from refimpl.kernels.mode import VARIABLE
from refimpl.kernels.xray.assembly import Instruction
from refimpl.kernels.xray.limits import TARGETS, Occupancy, Target, occupancy
from refimpl.kernels.xray.request import DTYPES, KERNELS, Request

__all__ = [
    "DTYPES",
    "KERNELS",
    "TARGETS",
    "Report",
    "Request",
    "examine",
    "examine_all",
    "source_line",
]

_TAKEN = (
    *("registers", "stack_bytes", "spill_instructions", "shared_bytes"),
    *("tensor_columns", "num_instructions"),
)


@dataclasses.dataclass(frozen=True)
class Report:
    """What one kernel became on one target.

    ``registers`` per thread; ``stack_bytes`` of thread-local memory, where spilled registers go,
    and ``spill_instructions`` that touch it; ``shared_bytes`` and ``tensor_columns`` (Blackwell's
    tensor memory) per block; ``tensor_core`` and ``async_copy`` count instructions by opcode;
    ``loop`` is the inner loop.
    """

    request: Request
    registers: int
    stack_bytes: int
    spill_instructions: int
    shared_bytes: int
    tensor_columns: int
    num_instructions: int
    tensor_core: dict[str, int]
    async_copy: dict[str, int]
    occupancy: Occupancy
    loop: tuple[Instruction, ...]

    @property
    def target(self) -> Target:
        return TARGETS[self.request.target]

    @property
    def spills(self) -> bool:
        """Whether registers ran out."""
        return self.stack_bytes > 0 or self.spill_instructions > 0

    def excerpt(self, lines: int = 24) -> tuple[Instruction, ...]:
        """Some consecutive instructions of the inner loop, from just before its first product."""
        kinds = tuple(self.tensor_core)
        first = next((i for i, x in enumerate(self.loop) if x.opcode in kinds), 0)
        begin = max(0, first - 4)
        return self.loop[begin : begin + lines]


def source_line(instruction: Instruction) -> str:
    """The source that an instruction was made for, or an empty string."""
    return linecache.getline(instruction.file, instruction.line).strip()


def examine(request: Request) -> Report:
    """Compile one kernel and report on it; see :func:`examine_all`."""
    return examine_all([request])[0]


def examine_all(requests: Sequence[Request]) -> list[Report]:
    """Compile kernels one after the other in one child process, which is left alone with them.

    Raises ``ValueError`` naming bytes and limit where a tile does not fit the shared memory of its
    target, and ``RuntimeError`` with the compiler's message where it gives up.
    """
    return [
        _report(request, answer)
        for request, answer in zip(requests, _compile(requests), strict=True)
    ]


def _compile(requests: Sequence[Request]) -> list[dict[str, Any]]:
    asked = [
        {
            "kernel": x.kernel,
            "target": x.target,
            "dtype": x.dtype,
            "constants": x.constants(),
            "num_warps": x.num_warps,
            "num_stages": x.num_stages,
        }
        for x in requests
    ]
    with tempfile.TemporaryDirectory() as cache:  # Triton's: lines of source are not in its keys
        done = subprocess.run(
            [sys.executable, "-m", "refimpl.kernels.xray.child"],
            input=json.dumps(asked),
            env={**os.environ, VARIABLE: "0", "TRITON_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(
            f"the compiling process ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _report(request: Request, answer: dict[str, Any]) -> Report:
    target = TARGETS[request.target]
    if "error" in answer:
        raise RuntimeError(
            f"{request.kernel} does not compile for {target.name}: {answer['error']}"
        )
    shared = answer["shared_bytes"]
    if shared > target.shared_per_block:
        raise ValueError(
            f"tiles of {request.block_t} queries and {request.block_s} keys of width "
            f"{request.head_dim} in {request.dtype} with {request.num_stages} stages need "
            f"{shared:,} bytes of shared memory; a block on {target.name} ({target.example}) has "
            f"at most {target.shared_per_block:,}"
        )
    return Report(
        request=request,
        tensor_core=answer["matrix"],
        async_copy=answer["copies"],
        occupancy=occupancy(
            target,
            registers=answer["registers"],
            shared=shared,
            num_warps=request.num_warps,
            tensor_columns=answer["tensor_columns"],
        ),
        loop=tuple(Instruction(*x) for x in answer["loop"]),
        **{name: answer[name] for name in _TAKEN},
    )
