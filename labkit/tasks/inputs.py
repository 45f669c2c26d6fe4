"""Inputs of examples that are the same on every machine."""

import numpy as np
import torch
from torch import Tensor


def normal(seed: int, *shape: int) -> Tensor:
    """Float32 noise from a fixed NumPy stream."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def double(x: Tensor) -> np.ndarray:
    """``x`` in float64, for an oracle that uses no torch arithmetic."""
    return x.double().numpy()
