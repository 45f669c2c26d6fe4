"""What one asks the X-ray for: a kernel, a target, the constants it is compiled with."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

import triton

from refimpl.kernels.xray.limits import TARGETS

KERNELS = ("flash", "flash-v1", "flash-dq", "flash-dkv")
DTYPES = ("bf16", "fp16", "fp32")


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


def _known(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"
        raise ValueError(f"no {name} {value!r}; {hint}")
