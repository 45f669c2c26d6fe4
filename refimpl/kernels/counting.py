"""The wrappers around Triton's interpreter that count what a kernel reads, writes and computes."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

_COUNTED = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmod)
_UNCOUNTED = (np.abs, np.floor, np.ceil)


@dataclasses.dataclass
class Launch:
    """One launch of a kernel: bytes per argument, and operations.

    ``matmul_flops`` counts 2 for each multiply and add of ``tl.dot``. ``vector_flops`` counts the
    floating-point operations outside: one for each element of +, -, *, /, max, min, of a function
    such as exp, and n - 1 for a reduction of n. ``exponentials`` are among them.
    """

    kernel: str
    programs: int
    read: dict[str, int] = dataclasses.field(default_factory=dict)
    written: dict[str, int] = dataclasses.field(default_factory=dict)
    matmul_flops: int = 0
    vector_flops: int = 0
    exponentials: int = 0

    @property
    def bytes_read(self) -> int:
        return sum(self.read.values())

    @property
    def bytes_written(self) -> int:
        return sum(self.written.values())


class Counter:
    """Wraps methods of the interpreter so that they count into the launch that is running."""

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches
        self.now: Launch | None = None
        self.spans: dict[str, tuple[int, int]] = {}

    def builder_methods(self) -> dict[str, Callable]:
        """Wrappers by the name of the builder's method."""
        return {
            "create_masked_load": self.load,
            "create_masked_store": self.store,
            "create_atomic_rmw": self.atomic(1, 3),
            "create_atomic_cas": self.atomic(0, None),
            "create_dot": self.dot,
            "binary_op": self.binary,
            "unary_op": self.unary,
            "create_fma": self.fma,
        }

    def launch(self, original: Callable) -> Callable:
        def launched(executor: Any, *arguments: Any, **options: Any) -> None:
            names = dict(zip(executor.arg_names, arguments, strict=False)) | options
            self.spans = {name: _span(x) for name, x in names.items() if hasattr(x, "data_ptr")}
            grid = executor.grid
            if callable(grid):
                known = {k: v for k, v in names.items() if k in executor.arg_names}
                grid = grid(inspect.getcallargs(executor.fn, **known))
            name = executor.fn.__name__
            self.now = Launch(name, math.prod(int(n) for n in grid))
            original(executor, *arguments, **options)
            self.launches.append(self.now)

        return launched

    def owner(self, addresses: np.ndarray) -> str:
        low, high = int(addresses.min()), int(addresses.max())
        names = [name for name, (a, b) in self.spans.items() if a <= low and high < b]
        return "|".join(sorted(names)) or "unknown"

    def add(self, counts: dict[str, int], pointers: Any, mask: Any) -> None:
        active = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if active.size:
            width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            name = self.owner(active)
            counts[name] = counts.get(name, 0) + active.size * width

    def load(self, original: Callable) -> Callable:
        def loaded(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            self.add(self.now.read, pointers, mask)
            return original(builder, pointers, mask, *rest)

        return loaded

    def store(self, original: Callable) -> Callable:
        def stored(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.add(self.now.written, pointers, mask)
            return original(builder, pointers, value, mask, *rest)

        return stored

    def atomic(self, pointer_index: int, mask_index: int | None) -> Callable:
        """An atomic operation reads and writes what it names."""

        def wrap(original: Callable) -> Callable:
            def updated(builder: Any, *arguments: Any) -> Any:
                pointers = arguments[pointer_index]
                everything = np.ones(1, dtype=bool)
                mask = everything if mask_index is None else arguments[mask_index].data
                shown = type(pointers)(mask, pointers.dtype)
                self.add(self.now.read, pointers, shown)
                self.add(self.now.written, pointers, shown)
                return original(builder, *arguments)

            return updated

        return wrap

    def dot(self, original: Callable) -> Callable:
        def multiplied(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
            self.now.matmul_flops += 2 * a.data.size * b.data.shape[-1]
            return original(builder, a, b, *rest)

        return multiplied

    def binary(self, original: Callable) -> Callable:
        def computed(builder: Any, left: Any, right: Any, op: Any) -> Any:
            result = original(builder, left, right, op)
            if op in _COUNTED and left.dtype.scalar.is_floating():
                self.now.vector_flops += result.data.size
            return result

        return computed

    def unary(self, original: Callable) -> Callable:
        def computed(builder: Any, value: Any, op: Any) -> Any:
            if op not in _UNCOUNTED:
                self.now.vector_flops += value.data.size
                self.now.exponentials += value.data.size * (op in (np.exp, np.exp2))
            return original(builder, value, op)

        return computed

    def fma(self, original: Callable) -> Callable:
        def computed(builder: Any, *arguments: Any) -> Any:
            result = original(builder, *arguments)
            self.now.vector_flops += 2 * result.data.size
            return result

        return computed

    def reduction(self, original: Callable) -> Callable:
        def reduced(operation: Any, values: Any) -> Any:
            results = original(operation, values)
            first = values[0] if isinstance(values, tuple) else values
            result = results[0] if isinstance(results, list | tuple) else results
            if first.dtype.is_floating():
                self.now.vector_flops += first.handle.data.size - result.handle.data.size
            return results

        return reduced


def _span(x: Any) -> tuple[int, int]:
    """The first address of a tensor and the one past its last element."""
    if x.numel() == 0:
        return x.data_ptr(), x.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
