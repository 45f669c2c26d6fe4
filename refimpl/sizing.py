"""How many bytes a model and its cache occupy: exact counts from the architecture."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from refimpl.architecture import Architecture, Layer

BYTES_PER_ELEMENT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights: all, those a token passes through, and the embedding matrix."""

    total: int
    active: int
    embedding: int


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


def bytes_per_element(dtype: str) -> float:
    """Bytes of one number of ``dtype``; ``ValueError`` for a name that is not known."""
    if dtype not in BYTES_PER_ELEMENT:
        raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(BYTES_PER_ELEMENT)}")
    return BYTES_PER_ELEMENT[dtype]


def kv_bytes_per_token(
    arch: Architecture,
    dtype: str = "bf16",
    *,
    beyond_window: bool = False,
    group_size: int | None = None,
    scale_bytes: int = 2,
) -> int:
    """Bytes that one token adds to the cache, every attention layer counted.

    For grouped attention that is 2 · layers · kv_heads · head_dim · bytes. ``beyond_window`` gives
    the growth once every window is full. With ``group_size``, each group of so many numbers of a
    head's vector has a scale of ``scale_bytes`` besides (a scale and a zero point are 4 bytes).
    """
    return sum(
        _token_bytes(layer, dtype, group_size, scale_bytes)
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
) -> tuple[LayerBytes, ...]:
    """What each layer keeps of one sequence of ``num_tokens``, first layer first.

    A window holds its last ``window`` tokens and a chunk at most ``window`` (an engine reserves
    that many). A layer with a state keeps all of it from the first token on.
    """
    _count("num_tokens", num_tokens)
    rows = []
    for layer in arch.layers:
        held = num_tokens if layer.window is None else min(num_tokens, layer.window)
        fixed = _packed(layer.state_elements, dtype) if num_tokens else 0
        width = _token_bytes(layer, dtype, group_size, scale_bytes)
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
) -> int:
    """Bytes that ``batch`` sequences of ``num_tokens`` each keep, fixed state included."""
    _count("num_tokens", num_tokens)
    _count("batch", batch)
    rows = layer_bytes(arch, num_tokens, dtype, group_size=group_size, scale_bytes=scale_bytes)
    return batch * sum(row.total for row in rows)


def fixed_state_bytes(arch: Architecture, dtype: str = "bf16", *, conv: bool = False) -> int:
    """Bytes a sequence keeps whatever its length: linear attention and state-space layers.

    ``conv`` adds the last inputs that their short convolutions keep.
    """
    return sum(
        _packed(layer.state_elements + conv * layer.conv_elements, dtype) for layer in arch.layers
    )


def max_tokens(
    arch: Architecture,
    num_bytes: int,
    dtype: str = "bf16",
    batch: int = 1,
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
) -> int | None:
    """The longest sequence of which ``batch`` fit in ``num_bytes``; ``None`` if none is too long.

    The cache grows by less once windows are full, so this is no division: the result is the
    largest with ``kv_bytes(arch, result, …) <= num_bytes``.
    """
    _count("num_bytes", num_bytes)
    _count("batch", batch, least=1)

    def fits(tokens: int) -> bool:
        used = kv_bytes(arch, tokens, dtype, batch, group_size=group_size, scale_bytes=scale_bytes)
        return used <= num_bytes

    full = max((layer.window or 1 for layer in arch.layers), default=1)
    if fits(full) and not kv_bytes_per_token(arch, dtype, beyond_window=True):
        return None
    return _largest(fits)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where 0 does and everything below a fitting one does."""
    high = 1
    while fits(high):
        high *= 2
    low = high // 2 if high > 1 else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def count_parameters(arch: Architecture) -> Parameters:
    """Parameters of a decoder; a tied output matrix is counted once.

    ``active`` leaves out the routed experts that a token does not pass; embedding and head are in
    it whole.
    """
    outside = arch.embedding_parameters + arch.head_parameters + arch.other_parameters
    return Parameters(
        total=outside + sum(layer.parameters for layer in arch.layers),
        active=outside + sum(layer.active_parameters for layer in arch.layers),
        embedding=arch.embedding_parameters,
    )


def weight_bytes(
    arch: Architecture,
    dtype: str = "bf16",
    *,
    group_size: int | None = None,
    scale_bytes: int = 2,
) -> int:
    """Bytes of all weights at one ``dtype``, with a scale for each ``group_size`` of them."""
    total = count_parameters(arch).total
    return _packed(total, dtype) + _scales(total, group_size, scale_bytes)


def distinct_experts(num_experts: int, experts_per_token: int, batch_tokens: int) -> float:
    """How many experts ``batch_tokens`` tokens read together, expected: E · (1 − (1 − k/E)^B).

    Each token picks ``experts_per_token`` different ones, all sets equally likely and tokens
    independent. Real routers favour some experts, so this is an upper estimate.
    """
    _count("num_experts", num_experts)
    _count("experts_per_token", experts_per_token)
    _count("batch_tokens", batch_tokens)
    if experts_per_token > num_experts:
        raise ValueError(f"a token cannot read {experts_per_token} of {num_experts} experts")
    if not num_experts:
        return 0.0
    missed = Fraction(num_experts - experts_per_token, num_experts)
    return num_experts * (1.0 - float(missed) ** batch_tokens)


def _token_bytes(layer: Layer, dtype: str, group_size: int | None, scale_bytes: int) -> int:
    return sum(
        number * (_packed(width, dtype) + _scales(width, group_size, scale_bytes))
        for number, width in layer.vectors
    )


def _packed(elements: int, dtype: str) -> int:
    """Whole bytes of ``elements`` numbers; two 4-bit numbers share a byte."""
    bits = int(8 * bytes_per_element(dtype))
    return -(-elements * bits // 8)


def _scales(elements: int, group_size: int | None, scale_bytes: int) -> int:
    if group_size is None:
        return 0
    _count("group_size", group_size, least=1)
    _count("scale_bytes", scale_bytes)
    return -(-elements // group_size) * scale_bytes


def _count(name: str, value: int, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        rule = "cannot be negative" if least == 0 else f"must be at least {least}"
        raise ValueError(f"{name} {rule}, got {value}")
