"""What Triton's interpreter needs to be right in bfloat16, and fast enough for a laptop.

Measured on Triton 3.7.1. The interpreter keeps a bfloat16 as the 16 bits of a NumPy integer. Loads
and stores are right, but ``tl.dot`` and arithmetic work on the bit patterns, a cast from float32
cuts bits off instead of rounding, and a bfloat16 constant is an ``AttributeError``. And each call
of a function such as ``tl.max`` within a kernel patches the whole of ``triton.language`` anew.

:func:`mend` replaces these methods for the process; kernels stay as they are written for a GPU.
What the compiler does with bfloat16 (on tensor cores: exact products, sums in float32) is what a
mended ``tl.dot`` does, up to the order of the sum.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    InterpreterError,
    ReduceOps,
    ScanOps,
    TensorHandle,
)


def widen(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bit patterns (uint16): exact, since float32 only adds bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """The bfloat16 bit patterns (uint16) nearest to some values; ties go to the even one.

    Overflow gives infinity and NaN stays NaN, as in IEEE 754.
    """
    with np.errstate(over="ignore"):
        wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, rounded).astype(np.uint16)


def mend() -> None:
    """Replace the methods; a second call changes nothing. Raises what :func:`verify` does."""
    if getattr(InterpreterBuilder, "is_mended", False):
        return
    if not getattr(InterpreterBuilder, "is_widened", False):
        _widen_methods()
    # Overflow checks of integers are computed for every operation and reported in debug mode only.
    builder = triton_interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    verify(builder)
    _patch_once_per_launch()
    InterpreterBuilder.is_mended = True


def _widen_methods() -> None:
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_dot"):
        setattr(InterpreterBuilder, name, _widened(getattr(InterpreterBuilder, name)))
    InterpreterBuilder.cast_impl = _cast(InterpreterBuilder.cast_impl)
    InterpreterBuilder.create_fp_to_fp = _cast(InterpreterBuilder.create_fp_to_fp)
    InterpreterBuilder.get_bf16 = lambda self, value: TensorHandle(
        narrow(np.array([value])), tl.bfloat16
    )
    for operations in (ReduceOps, ScanOps):
        operations.apply_impl = _reduced(operations.apply_impl)
    InterpreterBuilder.is_widened = True


def verify(builder: InterpreterBuilder) -> None:
    """Raise ``RuntimeError`` where a product, a sum or a rounding of bfloat16 is not right."""
    values = np.array([[1.0, 3.0], [-2.5, 0.5]], dtype=np.float32)
    a = TensorHandle(narrow(values), tl.bfloat16)
    zero = TensorHandle(np.zeros((2, 2), np.float32), tl.float32)
    third = TensorHandle(np.full((2, 2), 1 / 3, np.float32), tl.float32)
    right = (
        np.array_equal(builder.create_dot(a, a, zero, None, 0).data, values @ values),
        np.array_equal(widen(builder.create_fadd(a, a).data), 2 * values),
        np.array_equal(builder.cast_impl(a, tl.float32).data, values),
        np.all(builder.cast_impl(third, tl.bfloat16).data == 0x3EAB),  # 1/3 rounds up
        np.array_equal(widen(_sum_of_rows(a).data), values.sum(axis=1)),
    )
    if not all(right):
        raise RuntimeError(
            "this version of Triton does not interpret bfloat16 as refimpl.kernels expects; "
            "constraints.txt names the version that does"
        )


def _sum_of_rows(handle: TensorHandle) -> TensorHandle:
    tensor = tl.core.tensor(handle, tl.block_type(handle.dtype, list(handle.data.shape)))
    (total,) = ReduceOps(1, tl.standard._sum_combine, keep_dims=False).apply((tensor,))
    return total.handle


def _is_bf16(handle: Any) -> bool:
    return isinstance(handle, TensorHandle) and handle.dtype.scalar == tl.bfloat16


def _as_fp32(handle: Any) -> Any:
    return TensorHandle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _widened(method: Callable) -> Callable:
    """The method in float32 where operands are bfloat16, its result rounded once."""

    def mended(self: InterpreterBuilder, *arguments: Any) -> TensorHandle:
        narrow_inputs = [_is_bf16(x) for x in arguments]
        if not any(narrow_inputs):
            return method(self, *arguments)
        result = method(self, *map(_as_fp32, arguments))
        # A dot's result has the type of its accumulator, a comparison's is boolean.
        last = [
            is_narrow
            for x, is_narrow in zip(arguments, narrow_inputs, strict=True)
            if isinstance(x, TensorHandle)
        ][-1]
        if last and result.data.dtype == np.float32:
            return TensorHandle(narrow(result.data), tl.bfloat16)
        return result

    return mended


def _reduced(method: Callable) -> Callable:
    """A reduction or scan in float32 where its inputs are bfloat16, its results rounded once."""

    def mended(self: ReduceOps | ScanOps, inputs: tuple) -> Any:
        if not any(_is_bf16(x.handle) for x in inputs):
            return method(self, inputs)
        wide = [self.to_tensor(_as_fp32(x.handle).data, _wide_type(x)) for x in inputs]
        results = method(self, tuple(wide))
        several = isinstance(results, list | tuple)
        rounded = [
            _rounded(result) if _is_bf16(x.handle) else result
            for x, result in zip(inputs, results if several else [results], strict=False)
        ]
        return [*rounded, *results[len(rounded) :]] if several else rounded[0]

    return mended


def _wide_type(tensor: Any) -> Any:
    return tl.float32 if _is_bf16(tensor.handle) else tensor.dtype


def _rounded(tensor: Any) -> Any:
    if tensor.dtype.scalar != tl.float32:  # an index
        return tensor
    kind = tl.block_type(tl.bfloat16, tensor.shape) if tensor.type.is_block() else tl.bfloat16
    return tl.core.tensor(TensorHandle(narrow(tensor.handle.data), tl.bfloat16), kind)


def _cast(method: Callable) -> Callable:
    """A cast that rounds where it ends in bfloat16 and is exact where it starts there."""

    def mended(self: InterpreterBuilder, src: Any, dst_type: Any, *rounding: Any) -> TensorHandle:
        ends, starts = dst_type.scalar == tl.bfloat16, _is_bf16(src)
        if ends and starts:
            return src
        if ends:
            if src.dtype.scalar.is_fp8():  # kept as bits as well
                src = method(self, src, tl.float32, *rounding)
            return TensorHandle(narrow(src.data), tl.bfloat16)
        if starts:
            wide = _as_fp32(src)
            return (
                wide if dst_type.scalar == tl.float32 else method(self, wide, dst_type, *rounding)
            )
        return method(self, src, dst_type, *rounding)

    return mended


def _patch_once_per_launch() -> None:
    """Let a function that a kernel calls patch ``triton.language`` at its first call only."""
    called: set[Any] = set()
    launch, call = GridExecutor.__call__, InterpretedFunction.__call__

    def launched(self: GridExecutor, *arguments: Any, **options: Any) -> None:
        called.clear()
        try:
            launch(self, *arguments, **options)
        finally:
            called.clear()

    def called_again(self: InterpretedFunction, *arguments: Any, **options: Any) -> Any:
        if self.fn not in called:
            called.add(self.fn)
            return call(self, *arguments, **options)
        try:
            return self.rewrite()(*arguments, **options)
        except InterpreterError:
            raise
        except Exception as error:
            raise InterpreterError(repr(error)) from error

    GridExecutor.__call__, InterpretedFunction.__call__ = launched, called_again
