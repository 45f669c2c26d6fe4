"""Bytes that sequences keep: keys and values, latents, windows, fixed states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refimpl.architecture import Architecture, Layer
from refimpl.sizing.elements import bytes_per_element, check_count, packed, scales


@dataclass(frozen=True)
class LayerBytes:
    """What one layer keeps of one sequence: ``held`` tokens of ``token_bytes``, a fixed state."""

    kind: str
    held: int
    token_bytes: int
    fixed_bytes: int

    @property
    def total(self) -> int:
        """Bytes of the layer: its tokens and its state."""
        return self.held * self.token_bytes + self.fixed_bytes


def kv_bytes_per_token(
    arch: Architecture,
    dtype: str = "bf16",
    *,
    beyond_window: bool = False,
    group_size: int | None = None,
    scale_bytes: int = 2,
    rope_dtype: str | None = None,
    indexer: bool = False,
) -> int:
    """Bytes that one token adds to the cache, every attention layer counted.

    For grouped attention that is 2 · layers · kv_heads · head_dim · bytes. ``beyond_window`` gives
    the growth once every window is full. With ``group_size``, each group of so many numbers of a
    vector (one head's key, say) has a scale of ``scale_bytes``; a zero point makes it 4. A latent
    layer's rotary key can stay in a ``rope_dtype`` of its own, which has no scale: FlashMLA's fp8
    entry keeps it in bf16. The keys of a sparse-attention ``indexer`` are left out unless asked
    for, and are then stored like the rest.
    """
    return sum(
        _token_bytes(layer, dtype, group_size, scale_bytes, rope_dtype, indexer)
        for layer in arch.layers
        if not (beyond_window and layer.window is not None)
    )


def layer_bytes(
    arch: Architecture,
    num_tokens: int,
    dtype: str = "bf16",
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
    rope_dtype: str | None = None,
    indexer: bool = False,
) -> tuple[LayerBytes, ...]:
    """What each layer keeps of one sequence of ``num_tokens``, first layer first.

    A sliding layer holds its last ``window`` tokens. A chunked layer starts anew with each chunk,
    but what is reserved for it is a whole chunk, so it is counted like a window. A fixed state is
    there, whole, from the first token on.
    """
    check_count("num_tokens", num_tokens)
    rows = []
    for layer in arch.layers:
        width = _token_bytes(layer, dtype, group_size, scale_bytes, rope_dtype, indexer)
        held = num_tokens if layer.window is None else min(num_tokens, layer.window)
        fixed = packed(layer.state_elements, dtype) if num_tokens else 0
        rows.append(LayerBytes(layer.kind, held if width else 0, width, fixed))
    return tuple(rows)


def kv_bytes(
    arch: Architecture,
    num_tokens: int,
    dtype: str = "bf16",
    batch: int = 1,
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
    rope_dtype: str | None = None,
    indexer: bool = False,
) -> int:
    """Bytes that ``batch`` sequences of ``num_tokens`` each keep, fixed state included.

    The state is at ``dtype`` and without convolution inputs (see :func:`fixed_state_bytes`). See
    :func:`layer_bytes` for windows and :func:`kv_bytes_per_token` for the options.
    """
    check_count("batch", batch)
    options = _options(group_size, scale_bytes, rope_dtype, indexer)
    return batch * sum(row.total for row in layer_bytes(arch, num_tokens, dtype, **options))


def fixed_state_bytes(arch: Architecture, dtype: str = "bf16", *, conv_taps: int = 0) -> int:
    """Bytes a sequence keeps whatever its length: linear attention and state-space layers.

    ``conv_taps`` adds the last inputs that their short convolutions keep, so many of each channel:
    the kernel's width where an engine keeps the whole window (transformers), one less where it
    keeps only the past (vLLM).
    """
    check_count("conv_taps", conv_taps)
    return sum(
        packed(layer.state_elements + conv_taps * layer.conv_channels, dtype)
        for layer in arch.layers
    )


def max_tokens(
    arch: Architecture,
    num_bytes: int,
    dtype: str = "bf16",
    batch: int = 1,
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
    rope_dtype: str | None = None,
    indexer: bool = False,
) -> int | None:
    """The longest sequence of which ``batch`` fit in ``num_bytes``; ``None`` if none is too long.

    The cache grows by less once windows are full, so this is no division: the result is the
    largest with ``kv_bytes(arch, result, dtype, batch) <= num_bytes``.
    """
    check_count("num_bytes", num_bytes)
    check_count("batch", batch, least=1)
    options = _options(group_size, scale_bytes, rope_dtype, indexer)

    def fits(tokens: int) -> bool:
        return kv_bytes(arch, tokens, dtype, batch, **options) <= num_bytes

    full = max(layer.window or 1 for layer in arch.layers)
    if fits(full) and not kv_bytes_per_token(arch, dtype, beyond_window=True):
        return None
    return _largest(fits)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where 0 does and so does all that is below one that does."""
    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _options(
    group_size: int | None, scale_bytes: int, rope_dtype: str | None, indexer: bool
) -> dict[str, Any]:
    return {
        "group_size": group_size,
        "scale_bytes": scale_bytes,
        "rope_dtype": rope_dtype,
        "indexer": indexer,
    }


def _token_bytes(
    layer: Layer,
    dtype: str,
    group_size: int | None,
    scale_bytes: int,
    rope_dtype: str | None,
    indexer: bool,
) -> int:
    vectors, total = list(layer.vectors), 0
    if rope_dtype is not None:
        bytes_per_element(rope_dtype)  # an unknown name is an error in every layer
        if layer.kind == "latent":
            number, width = vectors.pop()
            total = number * packed(width, rope_dtype)
    if indexer:
        vectors.append((1, layer.index_width))
    return total + sum(
        number * (packed(width, dtype) + scales(width, group_size, scale_bytes))
        for number, width in vectors
    )
