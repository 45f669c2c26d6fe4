"""X-ray of a kernel: what the compiler makes of it for a GPU that need not be there.

A child process compiles it ahead of time, since this one may hold Triton as an interpreter.
Counts are of instructions in the code, not of their executions. Registers, instructions and
shared memory change with the version of Triton: read them, do not rely on them.
"""

import dataclasses
import difflib
import json
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import triton

from refimpl.kernels.mode import VARIABLE
from refimpl.kernels.xray.assembly import Instruction
from refimpl.kernels.xray.limits import TARGETS, Occupancy, Target, occupancy

KERNELS = ("flash", "flash-v1", "flash-dq", "flash-dkv")
DTYPES = ("bf16", "fp16", "fp32")
_TAKEN = (
    *("registers", "stack_bytes", "spill_instructions", "shared_bytes"),
    *("tensor_columns", "num_instructions"),
)


@dataclasses.dataclass(frozen=True)
class Request:
    """A kernel and the constants it is compiled with; ``inner_stride`` is that of q, k and v.

    ``kernel``: ``flash`` and ``flash-v1`` are forward passes in the loop order of v2 and v1,
    ``flash-dq`` and ``flash-dkv`` the two passes backward. Raises ``ValueError`` for a value that
    no kernel takes.
    """

    kernel: str = "flash"
    target: str = "sm_90"
    dtype: str = "bf16"
    head_dim: int = 128
    causal: bool = True
    windowed: bool = False
    masked: bool = False
    group: int = 4
    block_t: int = 128
    block_s: int = 64
    num_warps: int = 8
    num_stages: int = 2
    inner_stride: int = 1

    def __post_init__(self) -> None:
        for name, known in (("kernel", KERNELS), ("target", tuple(TARGETS)), ("dtype", DTYPES)):
            _known(name, getattr(self, name), known)
        wanted = {"head_dim": (1, 256), "group": (1, 1024), "inner_stride": (1, 2**31 - 1)}
        wanted |= {"block_t": (16, 256), "block_s": (16, 256)}
        wanted |= {"num_warps": (1, 16), "num_stages": (1, 8)}
        powers = ("block_t", "block_s", "num_warps")
        for name, (low, high) in wanted.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            kind = "a power of two" if name in powers else "a whole number"
            if not whole or not low <= value <= high or (name in powers and value & (value - 1)):
                raise ValueError(f"{name} must be {kind} from {low} to {high}, got {value!r}")
        if self.masked and self.kernel == "flash-v1":
            raise ValueError("flash-v1 takes no mask")
        if self.windowed and not self.causal:
            raise ValueError("a window counts the query's own key and is causal")

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time constants."""
        padded = max(16, triton.next_power_of_2(self.head_dim))
        inner = self.inner_stride
        constants = {
            "GROUP": self.group,
            "D": self.head_dim,
            "E": self.head_dim,
            "BLOCK_T": self.block_t,
            "BLOCK_S": self.block_s,
            "BLOCK_D": padded,
            "BLOCK_E": padded,
            "CAUSAL": self.causal,
            "WINDOWED": self.windowed,
            "WIDE": False,
            "Q_INNER": inner,
            "K_INNER": inner,
            "V_INNER": inner,
            "O_INNER": 1,
            "G_INNER": 1,
        }
        return constants if self.masked else constants | {"mask": None}


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
        raise RuntimeError(f"the compiling process failed: {done.stderr.strip()[-2000:]}")
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


def _known(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"
        raise ValueError(f"no {name} {value!r}; {hint}")
