"""Whether two values are the same, and if not, the one sentence that says where they differ.

Used by :func:`labkit.check.same` in chapters and by the checks of the exercises, so that both
report a difference in the same words. Tensors, arrays, numbers and nested lists of numbers count
as values of one kind: a right answer is right in any container.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Number
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Difference:
    """How two values differ: ``kind`` is type, shape, dtype, nan or values."""

    kind: str
    text: str
    index: tuple[int, ...] | None = None


def as_array(value: Any) -> np.ndarray | None:
    """``value`` as a NumPy array, or None where it is not a rectangular block of numbers."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # NumPy has no bfloat16; float32 holds each of its values exactly.
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, Fraction):
        value = float(value)
    if isinstance(value, (list, tuple)) and any(
        isinstance(x, (torch.Tensor, np.ndarray, list, tuple)) for x in value
    ):
        parts = [as_array(x) for x in value]
        if any(x is None for x in parts) or len({x.shape for x in parts}) > 1:
            return None
        return np.stack(parts)
    if isinstance(value, (np.ndarray, np.generic, Number, list, tuple)):
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            return None
        return array if array.dtype.kind in "biufO" and _all_numbers(array) else None
    return None


def family(array: np.ndarray) -> str:
    """``bool``, ``integer`` or ``float``: kinds that must not be confused."""
    if array.dtype.kind == "O":
        return "float" if any(isinstance(x, float) for x in array.flat) else "integer"
    return {"b": "bool", "i": "integer", "u": "integer"}.get(array.dtype.kind, "float")


def difference(
    got: Any,
    expected: Any,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    equal_nan: bool = False,
    strict_family: bool = True,
    where: str = "",
) -> Difference | None:
    """The first difference between ``got`` and ``expected``, or None.

    Floats agree within ``atol + rtol * |expected|``; integers, booleans and infinities agree
    exactly. NaN agrees with nothing unless ``equal_nan``. With ``strict_family`` False, 1, 1.0 and
    True are one value, and a single number may come in an array of one element.
    """
    options = {
        "atol": atol,
        "rtol": rtol,
        "equal_nan": equal_nan,
        "strict_family": strict_family,
    }
    a, b = as_array(got), as_array(expected)
    if a is not None and b is not None:
        return _difference_of_arrays(a, b, where=where, **options)
    prefix = f"{where}: " if where else ""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if list(got) != list(expected):
            return Difference("shape", f"{prefix}expected keys {list(expected)}, got {list(got)}")
        pairs = [(f"{where}[{key!r}]", got[key], expected[key]) for key in expected]
    elif _is_sequence(expected) and _is_sequence(got):
        if len(got) != len(expected):
            return Difference("shape", f"{prefix}expected {len(expected)} items, got {len(got)}")
        pairs = [
            (f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(got, expected, strict=True))
        ]
    elif a is not None or b is not None or type(got) is not type(expected):
        return Difference("type", f"{prefix}expected {describe(expected)}, got {describe(got)}")
    elif got != expected:
        return Difference("values", f"{prefix}expected {expected!r}, got {got!r}")
    else:
        return None
    for place, x, y in pairs:
        found = difference(x, y, where=place, **options)
        if found is not None:
            return found
    return None


def describe(value: Any) -> str:
    """What kind of thing ``value`` is, in a few words: ``a float tensor of shape (2, 3)``."""
    if value is None:
        return "None"
    array = as_array(value)
    if array is None:
        return f"a {type(value).__name__}"
    if array.ndim == 0:
        return f"the {family(array)} {render(value)}"
    holder = {torch.Tensor: "tensor", np.ndarray: "array"}.get(type(value), type(value).__name__)
    return f"a {family(array)} {holder} of shape {array.shape}"


def render(value: Any, width: int = 88) -> str:
    """``value`` as short, deterministic text: numbers to six digits, long arrays by shape.

    A mapping takes a line for each key.
    """
    if isinstance(value, (str, bytes)) or value is None:
        return repr(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {render(x, width)}" for key, x in value.items())
    array = as_array(value)
    if array is None:
        if _is_sequence(value):
            inner = ", ".join(render(x, width) for x in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        return repr(value)
    if array.ndim == 0:
        return _number(array.item())
    text = _nested(array.tolist())
    if len(text) <= width:
        return text
    head = ", ".join(_number(x) for x in array.ravel()[:4].tolist())
    return f"shape {array.shape}: {head}, …"


def size(value: Any) -> int:
    """How many numbers (or other leaves) ``value`` holds."""
    array = as_array(value)
    if array is not None:
        return array.size
    if isinstance(value, Mapping):
        return sum(size(x) for x in value.values())
    return sum(size(x) for x in value) if _is_sequence(value) else 1


def _difference_of_arrays(
    a: np.ndarray,
    b: np.ndarray,
    *,
    atol: float,
    rtol: float,
    equal_nan: bool,
    strict_family: bool,
    where: str,
) -> Difference | None:
    prefix = f"{where}: " if where else ""
    if not strict_family and b.ndim == 0 and a.size == 1:
        a = a.reshape(())
    if a.shape != b.shape:
        return Difference("shape", f"{prefix}expected shape {b.shape}, got {a.shape}")
    if strict_family and a.size and family(a) != family(b):
        return Difference("dtype", f"{prefix}expected {family(b)} values, got {family(a)} values")
    agrees = _agreement(a, b, atol, rtol, equal_nan)
    if agrees.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~agrees)[0])
    mine, wanted = a[index], b[index]
    kind = "nan" if _is_nan(mine) or _is_nan(wanted) else "values"
    text = f"expected {render(wanted)}, got {render(mine)}"
    if render(wanted) == render(mine):  # they differ beyond the six digits shown
        text = f"expected {wanted!s}, got {mine!s}"
    if kind == "nan" and _is_nan(mine) and _is_nan(wanted):
        text = "both are NaN, which proves nothing (equal_nan=True accepts it)"
    if a.ndim:
        place = index[0] if a.ndim == 1 else index
        text = f"at index {place} {text} ({int((~agrees).sum())} of {a.size} differ)"
    return Difference(kind, prefix + text, index)


def _agreement(
    a: np.ndarray, b: np.ndarray, atol: float, rtol: float, equal_nan: bool
) -> np.ndarray:
    if family(b) != "float":
        # As Python objects: 2**60 + 1 and its nearest float must not pass for one value.
        same_kind = a.dtype.kind in "biu" and b.dtype.kind in "biu"
        return np.asarray(a == b if same_kind else a.astype(object) == b.astype(object), dtype=bool)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        agrees = (np.abs(x - y) <= atol + rtol * np.abs(y)) & np.isfinite(y)
    agrees |= x == y  # infinities of one sign, which no tolerance covers
    return agrees | (np.isnan(x) & np.isnan(y)) if equal_nan else agrees


def _is_nan(x: Any) -> bool:
    return isinstance(x, (float, np.floating)) and math.isnan(x)


def _all_numbers(array: np.ndarray) -> bool:
    return array.dtype.kind != "O" or all(isinstance(x, (int, float)) for x in array.flat)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _number(x: Any) -> str:
    if isinstance(x, (bool, int)):
        return str(x)
    if math.isnan(x):
        return "nan"
    return f"{x:.6g}"


def _nested(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_nested(x) for x in value) + "]"
    return _number(value)
