"""Bytes that kernels ask of memory and operations they carry out, counted under the interpreter.

The count is exact and of requests: every element that an unmasked lane of a load or store names,
every product of a ``tl.dot`` on whole tiles, padding included. What caches save on a GPU, and what
a memory system fetches beyond the request, is not in it.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from refimpl.kernels import MODE
from refimpl.kernels.counting import Counter, Launch
from refimpl.kernels.mode import INTERPRETER, VARIABLE


@dataclasses.dataclass
class Traffic:
    """The launches of a block of code, in order, and their sums."""

    launches: list[Launch] = dataclasses.field(default_factory=list)

    @property
    def read(self) -> dict[str, int]:
        """Bytes read, by the name of the kernels' argument."""
        return self._by_name("read")

    @property
    def written(self) -> dict[str, int]:
        """Bytes written, by the name of the kernels' argument."""
        return self._by_name("written")

    @property
    def bytes_read(self) -> int:
        return sum(launch.bytes_read for launch in self.launches)

    @property
    def bytes_written(self) -> int:
        return sum(launch.bytes_written for launch in self.launches)

    @property
    def matmul_flops(self) -> int:
        return sum(launch.matmul_flops for launch in self.launches)

    @property
    def vector_flops(self) -> int:
        return sum(launch.vector_flops for launch in self.launches)

    @property
    def exponentials(self) -> int:
        return sum(launch.exponentials for launch in self.launches)

    def _by_name(self, which: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for launch in self.launches:
            for name, number in getattr(launch, which).items():
                sums[name] = sums.get(name, 0) + number
        return sums


@contextlib.contextmanager
def count() -> Iterator[Traffic]:
    """Count every launch of any Triton kernel in the block.

    Bytes are named after the kernel's arguments. Arguments that lie in the same memory cannot be
    told apart and are counted under their names joined by ``|``.

    Raises ``RuntimeError`` where kernels are compiled; :func:`attention` works there too.
    """
    if MODE != INTERPRETER:
        raise RuntimeError(
            "traffic is counted under the interpreter, and kernels are compiled here: call "
            f"traffic.attention, which counts in a child process, or set {VARIABLE}=1"
        )
    from triton.runtime import interpreter as machine

    traffic = Traffic()
    counter = Counter(traffic.launches)
    with contextlib.ExitStack() as patches:
        for owner, methods in (
            (machine.GridExecutor, {"__call__": counter.launch}),
            (machine.ReduceOps, {"apply_impl": counter.reduction}),
            (machine.InterpreterBuilder, counter.builder_methods()),
        ):
            for name, wrap in methods.items():
                original = getattr(owner, name)
                setattr(owner, name, wrap(original))
                patches.callback(setattr, owner, name, original)
        yield traffic


KERNELS = ("flash", "flash-v1", "flash-backward", "naive")


def attention(
    kernel: str = "flash", *, T: int, S: int, D: int, B: int = 1, H: int = 1, G: int = 1,
    E: int | None = None, dtype: str = "fp32", causal: bool = True, window: int | None = None,
    block_t: int = 64, block_s: int = 64,
) -> Traffic:  # fmt: skip
    """The traffic of one call of ``flash``, ``flash-v1``, ``flash-backward`` or ``naive``.

    ``flash-backward`` counts the backward pass alone. Where kernels are compiled here, the count
    is made by a child process under the interpreter. Raises ``ValueError`` for an unknown kernel
    or dtype, and what the kernels themselves refuse.
    """
    request = {name: value for name, value in locals().items()}
    if kernel not in KERNELS:
        raise ValueError(f"no kernel {kernel!r}: there is {', '.join(KERNELS)}")
    if dtype not in ("fp32", "fp16", "bf16"):
        raise ValueError(f"dtype must be fp32, fp16 or bf16, got {dtype!r}")
    return _here(**request) if MODE == INTERPRETER else _in_a_child(request)


def _here(
    kernel: str, B: int, H: int, G: int, T: int, S: int, D: int, E: int | None, dtype: str,
    causal: bool, window: int | None, block_t: int, block_s: int,
) -> Traffic:  # fmt: skip
    import torch

    from refimpl.kernels import flash, naive

    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    make = torch.Generator().manual_seed(0)
    shapes = ((B, H, T, D), (B, G, S, D), (B, G, S, D if E is None else E))
    q, k, v = (torch.randn(shape, generator=make).to(kinds[dtype]) for shape in shapes)
    options = {"causal": causal, "window": window, "tiles": flash.Tiles(block_t, block_s)}
    run = {"naive": naive.attend_naive, "flash-v1": flash.attend_v1}.get(kernel, flash.attend)
    if kernel != "flash-backward":
        with count() as traffic:
            run(q, k, v, **options)
        return traffic
    out = run(*(x.requires_grad_() for x in (q, k, v)), **options)
    with count() as traffic:
        out.backward(torch.ones_like(out))
    return traffic


def _in_a_child(request: dict[str, Any]) -> Traffic:
    environment = dict(os.environ) | {VARIABLE: "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    if answer is None:
        raise RuntimeError(
            f"the counting process ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
    if "error" in answer:
        raise ValueError(answer["error"])
    return Traffic([Launch(**launch) for launch in answer["launches"]])


def _child() -> None:
    try:
        answer = dataclasses.asdict(_here(**json.load(sys.stdin)))
    except ValueError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    _child()
