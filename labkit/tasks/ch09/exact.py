"""What chapter 09's examples are computed with: the definitions, over all keys, in float64."""

import numpy as np
import torch
from torch import Tensor


def summed(scores_TS: np.ndarray, v_SD: np.ndarray) -> tuple[np.ndarray, ...]:
    """Maximum, sum of exp(score − maximum) and weighted values of each row, by definition.

    Rows without a readable key have −inf, 0 and 0.
    """
    top_T = scores_TS.max(axis=1, initial=-np.inf)
    base_T = np.where(np.isneginf(top_T), 0.0, top_T)
    weights_TS = np.exp(scores_TS - base_T[:, None])
    return top_T, weights_TS.sum(axis=1), weights_TS @ v_SD


def attention(scores_TS: np.ndarray, v_SD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output ``[T, D]`` and log-sum-exp ``[T]``; 0 and −inf for rows without a readable key."""
    top_T, sum_T, acc_TD = summed(scores_TS, v_SD)
    with np.errstate(divide="ignore"):
        lse_T = top_T + np.log(np.where(sum_T > 0, sum_T, 1.0))
    return acc_TD / np.where(sum_T > 0, sum_T, 1.0)[:, None], lse_T


def single(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    """The arrays as float32 tensors."""
    return tuple(torch.tensor(array, dtype=torch.float32) for array in arrays)
