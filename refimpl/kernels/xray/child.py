"""The child process of :mod:`refimpl.kernels.xray`: compiles kernels for targets not at hand.

It reads a JSON list of requests from stdin and prints a JSON list of answers as its last line.
Triton is imported with ``TRITON_INTERPRET=0`` here, and torch is not imported at all.
"""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from refimpl.kernels import backward, forward
from refimpl.kernels.xray.assembly import Listing, read_amdgcn, read_sass
from refimpl.kernels.xray.limits import TARGETS, Target

KERNELS = {
    "flash": forward.forward_kernel,
    "flash-v1": forward.forward_v1_kernel,
    "flash-dq": backward.d_query_kernel,
    "flash-dkv": backward.d_key_value_kernel,
}
_FLOATS = {"lse", "delta", "peaks", "sums"}  # pointers to float32 whatever the inputs are
_POINTERS = {"q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v"} | _FLOATS
_STRIDE = re.compile(r"(?:[qkvog]|mask)_[bhgts]")
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def main() -> None:
    """Answer every request; what one raises is its answer."""
    answers = []
    for request in json.load(sys.stdin):
        try:
            answers.append(compile_kernel(**request))
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    print("\n" + json.dumps(answers))


def source(kernel: str, dtype: str, constants: dict[str, Any]) -> ASTSource:
    """The kernel with the types of its arguments: pointers and strides are multiples of 16."""
    function = KERNELS[kernel]
    signature, hints = {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "mask":
            signature[name] = "*u8"
        elif name in _POINTERS:
            narrow = name not in _FLOATS and not (kernel == "flash-v1" and name == "out")
            signature[name] = f"*{dtype if narrow else 'fp32'}"
        else:
            signature[name] = "fp32" if name.startswith("scale") else "i32"
        if name in _POINTERS or _STRIDE.fullmatch(name):
            hints[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(function, signature, constants, hints)


def compile_kernel(
    kernel: str, target: str, dtype: str, constants: dict[str, Any], num_warps: int, num_stages: int
) -> dict[str, Any]:
    """Registers, memory and the listing of one kernel on one target."""
    place = TARGETS[target]
    constants = {
        name: value for name, value in constants.items() if name in KERNELS[kernel].arg_names
    }
    compiled = triton.compile(
        source(kernel, dtype, constants),
        target=GPUTarget(place.backend, place.arch, place.warp_size),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    read = _read_cubin if place.backend == "cuda" else _read_amdgcn
    facts, listing = read(compiled.asm, place)
    return {
        **facts,
        "shared_bytes": compiled.metadata.shared,
        "tensor_columns": getattr(compiled.metadata, "tmem_size", None) or 0,
        "num_instructions": len(listing.instructions),
        "matrix": listing.count("matrix"),
        "copies": listing.count("copy"),
        "spill_instructions": sum(listing.count("spill").values()),
        "loop": [dataclasses.astuple(x) for x in listing.inner_loop()],
    }


def _read_cubin(asm: dict[str, Any], target: Target) -> tuple[dict[str, int], Listing]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(asm["cubin"])
        usage = _run("cuobjdump", "--dump-resource-usage", str(path))
        listing = _run("nvdisasm", "-g", "-c", str(path))
    match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if match is None:
        raise RuntimeError(f"cuobjdump names no registers for {target.name}: {usage[:500]}")
    registers, stack, local = map(int, match.groups())
    return {"registers": registers, "stack_bytes": max(stack, local)}, read_sass(listing)


def _read_amdgcn(asm: dict[str, Any], target: Target) -> tuple[dict[str, int], Listing]:
    text = asm["amdgcn"]
    values = {}
    for name in ("vgpr_count", "private_segment_fixed_size"):
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        if match is None:
            raise RuntimeError(f"the assembly for {target.name} has no {name}")
        values[name] = int(match[1])
    facts = {
        "registers": values["vgpr_count"],
        "stack_bytes": values["private_segment_fixed_size"],
    }
    return facts, read_amdgcn(text)


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(_TOOLS / tool), *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
