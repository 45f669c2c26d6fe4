"""Sparse reading: what attention reads when an indexer picks the tokens, and what that costs."""

from dataclasses import dataclass

from refimpl.architecture import Architecture
from refimpl.roofline.flops import check_counts
from refimpl.sizing import kv_bytes, layer_bytes
from refimpl.sizing.elements import packed, scales


@dataclass(frozen=True)
class SparseRead:
    """Bytes that the attention of one decode step reads of one sequence, and what is stored.

    ``chosen`` are the entries of the tokens picked, ``index`` the indexer's keys of all tokens,
    ``dense`` the entries of all tokens, which is also what is stored of them.
    """

    chosen: int
    index: int
    dense: int

    @property
    def read(self) -> int:
        """Bytes read: the entries picked, and every key of the indexer to pick them."""
        return self.chosen + self.index

    @property
    def stored(self) -> int:
        """Bytes held: no entry is given up, and the indexer's keys are held besides."""
        return self.dense + self.index

    @property
    def saving(self) -> float:
        """How many times fewer bytes are read than by dense attention."""
        return self.dense / self.read


def sparse_read(
    arch: Architecture,
    num_tokens: int,
    dtype: str = "bf16",
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
    rope_dtype: str | None = None,
    index_dtype: str = "fp8",
    index_group_size: int | None = 128,
    index_scale_bytes: int = 4,
) -> SparseRead:
    """What sparse attention reads of a sequence of ``num_tokens``, its newest token included.

    Entries are stored as :func:`refimpl.sizing.kv_bytes_per_token` says. The indexer's keys are
    fp8 with a float32 scale for each 128 numbers unless told otherwise, as in DeepSeek-V3.2
    (arXiv:2512.02556); it scores every token, so their read grows with the context. Where layers
    share an indexer, its keys are stored and read once. Raises ``ValueError`` for an architecture
    of which no layer selects tokens.
    """
    check_counts(num_tokens=num_tokens)
    if not any(layer.selected for layer in arch.layers):
        raise ValueError(f"{arch.name} has no layer that selects tokens: its attention reads all")
    options = {"group_size": group_size, "scale_bytes": scale_bytes, "rope_dtype": rope_dtype}
    rows = layer_bytes(arch, num_tokens, dtype, **options)
    chosen = sum(
        row.token_bytes * (min(row.held, layer.selected) if layer.selected else row.held)
        for layer, row in zip(arch.layers, rows, strict=True)
    )
    key_bytes = sum(
        packed(layer.index_width, index_dtype)
        + scales(layer.index_width, index_group_size, index_scale_bytes)
        for layer in arch.layers
    )
    dense = kv_bytes(arch, num_tokens, dtype, **options)
    return SparseRead(chosen=chosen, index=num_tokens * key_bytes, dense=dense)
