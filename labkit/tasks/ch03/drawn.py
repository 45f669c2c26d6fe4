"""What the exercises with numbers share: widths, an independent count, shapes drawn by a seed."""

import random
from collections.abc import Callable

import numpy as np

WIDTHS = {"FP32": 4, "BF16": 2, "FP16": 2, "FP8": 1}
# Billions of parameters, layers, query heads, key-value heads, head dim: shapes that exist.
SHAPES = (
    (0.5, 24, 14, 2, 64),
    (0.6, 28, 16, 8, 128),
    (1.2, 16, 32, 8, 64),
    (2.6, 26, 8, 4, 256),
    (3.1, 36, 16, 2, 128),
    (3.2, 28, 24, 8, 128),
    (6.7, 32, 32, 32, 128),
    (6.9, 32, 71, 1, 64),
    (7.6, 28, 28, 4, 128),
    (8.0, 32, 32, 8, 128),
    (14.8, 48, 40, 8, 128),
    (27.2, 46, 32, 16, 128),
    (32.8, 64, 40, 8, 128),
    (35.0, 40, 64, 64, 128),
    (70.6, 80, 64, 8, 128),
    (405.9, 126, 128, 8, 128),
)


def nbytes(width: int, *shapes: tuple[int, ...]) -> float:
    """NumPy's own count over tensors that take no memory: one element repeated to each shape."""
    element = np.empty((), dtype=f"V{width}")
    return float(sum(np.broadcast_to(element, shape).nbytes for shape in shapes))


def gb_called_gib(num_bytes: float) -> str:
    """Divided by a power of 1,000, labelled as one of 1,024; below a kB the two are the same."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1000**power:
            return f"{num_bytes / 1000**power:.6g} {unit}"
    return f"{num_bytes:.0f} B"


def shape(draw: random.Random) -> tuple[int, int, int, int, int]:
    """Parameters, layers, query heads, key-value heads and head dim of a decoder that exists."""
    billions, *sizes = draw.choice(SHAPES)
    return round(billions * 10**9), *sizes


def last(holds: Callable[[int], bool]) -> int:
    """The last number for which something holds that, once lost, stays lost; 0 if it never does."""
    low, high = 0, 1
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
