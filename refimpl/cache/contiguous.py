"""The two contiguous caches: one reserved at once and written in place, one that concatenates."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.cache.protocol import Lengths, check_uniform, integers


class _Rows:
    """Row lengths per layer, and every check that the two caches below share."""

    max_tokens: int | None = None
    _k: list[Tensor]  # one a layer, [B, G, slots, D]
    _v: list[Tensor]

    def __init__(self, arch: Architecture, batch_size: int, dtype: torch.dtype) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not dtype.is_floating_point:
            raise ValueError(f"keys and values are stored as floating point, got {dtype}")
        check_uniform(arch)
        self.arch, self.dtype = arch, dtype
        self._lengths = [[0] * batch_size for _ in range(arch.num_layers)]

    @property
    def batch_size(self) -> int:
        return len(self._lengths[0])

    @property
    def num_tokens(self) -> Tensor:
        return torch.tensor([min(row) for row in zip(*self._lengths, strict=True)])

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (*self._k, *self._v))

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.arch.num_layers:
            raise ValueError(f"layer {layer} is outside 0 to {self.arch.num_layers - 1}")

    def _check_append(
        self, layer: int, k: Tensor, v: Tensor, lengths_B: Lengths | None
    ) -> list[int]:
        """The number of new tokens of each row; raises before anything is written."""
        self._check_layer(layer)
        expected = (self.batch_size, self.arch.num_kv_heads, None, self.arch.head_dim)
        for name, x in (("k_BGTD", k), ("v_BGTD", v)):
            fits = x.dim() == 4 and all(
                want is None or want == size for want, size in zip(expected, x.shape, strict=True)
            )
            if not fits:
                B, G, _, D = expected
                raise ValueError(f"{name} must be ({B}, {G}, T, {D}), got {tuple(x.shape)}")
            if x.dtype != self.dtype:
                raise ValueError(f"{name} is {x.dtype}, this cache stores {self.dtype}")
        if k.shape != v.shape:
            raise ValueError(f"k has {k.shape[2]} new tokens, v has {v.shape[2]}")
        added = [k.shape[2]] * self.batch_size
        if lengths_B is not None:
            added = self._check_rows("lengths_B", lengths_B, 0, added)
        for row, (held, new) in enumerate(zip(self._lengths[layer], added, strict=True)):
            if self.max_tokens is not None and held + new > self.max_tokens:
                raise ValueError(
                    f"the cache is full: row {row} holds {held} tokens and {new} more make "
                    f"{held + new}, but max_tokens is {self.max_tokens}"
                )
        return added

    def _check_rows(
        self, name: str, values: Lengths, low: int, high: Sequence[int], size: int | None = None
    ) -> list[int]:
        """``values`` as plain integers, each inside ``low`` to ``high``."""
        rows = integers(name, values)
        size = self.batch_size if size is None else size
        if len(rows) != size:
            raise ValueError(f"{name} needs one entry for each of {size} rows, got {len(rows)}")
        for row, (value, limit) in enumerate(zip(rows, high, strict=True)):
            if not low <= value <= limit:
                raise ValueError(f"{name}[{row}] is {value}, outside {low} to {limit}")
        return rows

    def truncate(self, lengths_B: Lengths) -> None:
        """Forget all but each row's first tokens; raises if a row holds fewer."""
        kept = self._check_rows("lengths_B", lengths_B, 0, self.num_tokens.tolist())
        held, self._lengths = self._lengths, [list(kept) for _ in self._lengths]
        self._forget(held)

    def reorder(self, rows_B: Lengths) -> None:
        """Make row ``i`` a copy of what row ``rows_B[i]`` was; the batch takes the new length."""
        rows = integers("rows_B", rows_B)
        if not rows:
            raise ValueError("rows_B is empty: a cache has at least one row")
        last = self.batch_size - 1
        rows = self._check_rows("rows_B", rows, 0, [last] * len(rows), len(rows))
        index = torch.tensor(rows)
        for buffers in (self._k, self._v):
            buffers[:] = [buffer.index_select(0, index) for buffer in buffers]
        self._lengths = [[lengths[row] for row in rows] for lengths in self._lengths]

    def _forget(self, held: list[list[int]]) -> None:
        """Make sure that what lies between the lengths now and those held before is gone."""
        raise NotImplementedError


class ContiguousCache(_Rows):
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
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        self.max_tokens = max_tokens
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


class ConcatenatingCache(_Rows):
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
