"""What caches whose rows are sequences of a batch have in common: lengths, and checks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.architecture.checks import count
from refimpl.cache.protocol import Lengths, check_uniform, integers


class Rows:
    """Row lengths per layer, and every check of what is appended, truncated or reordered."""

    max_tokens: int | None = None
    _k: Sequence[Tensor]  # one a layer
    _v: Sequence[Tensor]

    def __init__(self, arch: Architecture, batch_size: int, dtype: torch.dtype) -> None:
        count("batch_size", batch_size)
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
        self._select(rows)
        self._lengths = [[lengths[row] for row in rows] for lengths in self._lengths]

    def _forget(self, held: list[list[int]]) -> None:
        """Make sure that what lies between the lengths now and those held before is gone."""
        raise NotImplementedError

    def _select(self, rows: list[int]) -> None:
        """Make what is stored for row ``i`` what is stored for row ``rows[i]``."""
        raise NotImplementedError
