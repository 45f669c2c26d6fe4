"""The two contiguous caches: one reserved at once and written in place, one that concatenates."""

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.architecture.checks import count
from refimpl.cache.protocol import Lengths, integers
from refimpl.cache.rows import Rows


class _Buffers(Rows):
    """Keys and values in one tensor ``[B, G, slots, D]`` a layer: a row is a slice of each."""

    _k: list[Tensor]
    _v: list[Tensor]

    def _select(self, rows: list[int]) -> None:
        index = torch.tensor(rows)
        for buffers in (self._k, self._v):
            buffers[:] = [buffer.index_select(0, index) for buffer in buffers]


class ContiguousCache(_Buffers):
    """A buffer of ``max_tokens`` slots a row, reserved at once and written in place.

    Slots not yet written hold NaN: one that is read by mistake shows at once. ``read`` returns
    views of the buffer, so nothing is copied, and what they show changes with the next write.
    """

    def __init__(
        self,
        arch: Architecture,
        *,
        batch_size: int = 1,
        max_tokens: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(arch, batch_size, dtype)
        self.max_tokens = count("max_tokens", max_tokens)
        shape = (batch_size, arch.num_kv_heads, max_tokens, arch.head_dim)
        self._k, self._v = (
            [torch.full(shape, torch.nan, dtype=dtype) for _ in range(arch.num_layers)]
            for _ in "kv"
        )

    def append(
        self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor, lengths_B: Lengths | None = None
    ) -> None:
        """Store the new tokens behind each row's last one; see :class:`KVCache`."""
        added = self._check_append(layer, k_BGTD, v_BGTD, lengths_B)
        held = self._lengths[layer]
        if len(set(held)) == 1 and len(set(added)) == 1:
            start, stop = held[0], held[0] + added[0]
            self._k[layer][:, :, start:stop] = k_BGTD[:, :, : added[0]]
            self._v[layer][:, :, start:stop] = v_BGTD[:, :, : added[0]]
        else:
            for row, (start, new) in enumerate(zip(held, added, strict=True)):
                self._k[layer][row, :, start : start + new] = k_BGTD[row, :, :new]
                self._v[layer][row, :, start : start + new] = v_BGTD[row, :, :new]
        self._lengths[layer] = [start + new for start, new in zip(held, added, strict=True)]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views ``[B, G, S, D]`` of the longest row's slots; see :class:`KVCache`."""
        self._check_layer(layer)
        longest = max(self._lengths[layer])
        return self._k[layer][:, :, :longest], self._v[layer][:, :, :longest]

    def _forget(self, held: list[list[int]]) -> None:
        for layer, lengths in enumerate(self._lengths):
            for row, (kept, before) in enumerate(zip(lengths, held[layer], strict=True)):
                self._k[layer][row, :, kept:before] = torch.nan
                self._v[layer][row, :, kept:before] = torch.nan


class ConcatenatingCache(_Buffers):
    """A cache that grows by concatenation: reserves nothing, and copies everything every step.

    Its rows keep one length, so a batch in which one row stops before another cannot use it.
    """

    ragged = False

    def __init__(
        self, arch: Architecture, *, batch_size: int = 1, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(arch, batch_size, dtype)
        shape = (batch_size, arch.num_kv_heads, 0, arch.head_dim)
        self._k, self._v = (
            [torch.empty(shape, dtype=dtype) for _ in range(arch.num_layers)] for _ in "kv"
        )

    def append(
        self, layer: int, k_BGTD: Tensor, v_BGTD: Tensor, lengths_B: Lengths | None = None
    ) -> None:
        """Store the new tokens behind the old ones; rows of one length only."""
        added = self._check_append(layer, k_BGTD, v_BGTD, lengths_B)
        if len(set(self._lengths[layer])) > 1 or len(set(added)) > 1:
            raise ValueError(
                f"rows of different length cannot be concatenated: they hold "
                f"{self._lengths[layer]} and {added} are new; use ContiguousCache"
            )
        new = added[0]
        self._k[layer] = torch.cat((self._k[layer], k_BGTD[:, :, :new]), dim=2)
        self._v[layer] = torch.cat((self._v[layer], v_BGTD[:, :, :new]), dim=2)
        self._lengths[layer] = [held + new for held in self._lengths[layer]]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, G, S, D]``; see :class:`KVCache`."""
        self._check_layer(layer)
        return self._k[layer], self._v[layer]

    def truncate(self, lengths_B: Lengths) -> None:
        """Forget all but each row's first tokens; rows must keep one length."""
        if len(set(integers("lengths_B", lengths_B))) > 1:
            raise ValueError(f"rows must keep one length, got {integers('', lengths_B)}")
        super().truncate(lengths_B)

    def _forget(self, held: list[list[int]]) -> None:
        for buffers in (self._k, self._v):
            for layer, buffer in enumerate(buffers):
                buffers[layer] = buffer[:, :, : self._lengths[layer][0]].clone()
