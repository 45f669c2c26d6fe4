"""How many bytes a model and its cache occupy: exact counts from the architecture."""

from refimpl.sizing.cache import (
    LayerBytes,
    fixed_state_bytes,
    kv_bytes,
    kv_bytes_per_token,
    layer_bytes,
    max_tokens,
)
from refimpl.sizing.elements import BYTES_PER_ELEMENT, bytes_per_element
from refimpl.sizing.parameters import (
    Parameters,
    count_parameters,
    distinct_experts,
    weight_bytes,
)

__all__ = [
    "BYTES_PER_ELEMENT",
    "LayerBytes",
    "Parameters",
    "bytes_per_element",
    "count_parameters",
    "distinct_experts",
    "fixed_state_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "layer_bytes",
    "max_tokens",
    "weight_bytes",
]
