"""The protocol that every cache of keys and values follows."""

import operator
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from refimpl.architecture import Architecture

Lengths = Tensor | Sequence[int]


@runtime_checkable
class KVCache(Protocol):
    """What a model needs of a cache, and what a decoding loop needs to take tokens back.

    A step appends to every layer in turn. ``num_tokens`` counts, per row, the tokens that all
    layers hold, so in the middle of a step it is still the count from before it.
    """

    dtype: torch.dtype

    def append(
        self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor, lengths_B: Lengths | None = None
    ) -> None:
        """Store ``T`` new tokens of one layer; with ``lengths_B``, only each row's first ones."""

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, G, S, D]`` with ``S`` the longest row; shorter rows end in junk."""

    def truncate(self, lengths_B: Lengths) -> None:
        """Forget all but each row's first tokens."""

    def reorder(self, rows_B: Lengths) -> None:
        """Make row ``i`` a copy of what row ``rows_B[i]`` was; the batch takes the new length."""

    @property
    def num_tokens(self) -> Tensor:
        """Tokens held, long ``[B]``."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the keys and values occupy, reserved slots included."""


def integers(name: str, values: Lengths) -> list[int]:
    """``values`` as plain integers; raises ``ValueError`` for anything else."""
    if isinstance(values, Tensor):
        if values.is_floating_point() or values.dtype == torch.bool or values.dim() != 1:
            raise ValueError(
                f"{name} must be a 1-D tensor of integers, got {values.dtype} of shape "
                f"{tuple(values.shape)}"
            )
        return values.tolist()
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list or a 1-D tensor of integers, got {values!r}")
    return [_integer(name, value) for value in values]


def check_uniform(arch: Architecture) -> None:
    """``ValueError`` unless every layer stores one key and one value of head dim per head."""
    stored = (arch.num_kv_heads, arch.head_dim)
    for index, layer in enumerate(arch.layers):
        if layer.vectors != (stored, stored):
            raise ValueError(
                f"layer {index} of {arch.name} ({layer.kind}) does not store {stored[0]} keys and "
                f"values of {stored[1]}: this cache has one shape for all layers"
            )


def _integer(name: str, value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} must hold integers, got {value!r}") from error
