"""Numbers and bytes of weights: all of them, and those that tokens pass through."""

from dataclasses import dataclass

from refimpl.architecture import Architecture
from refimpl.sizing.elements import check_count, packed, scales


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights: all, those a token passes through, and the embedding matrix."""

    total: int
    active: int
    embedding: int


def count_parameters(arch: Architecture, *, indexer: bool = False) -> Parameters:
    """Parameters of a decoder; a tied output matrix is counted once.

    ``active`` leaves out the routed experts that a token does not pass; embedding and head are in
    it whole. The weights of a sparse-attention ``indexer`` are left out unless asked for, as in the
    sizes that DeepSeek-V3.2 and its like are known by. Layers for predicting several tokens are
    never counted.
    """
    outside = arch.embedding_parameters + arch.head_parameters + arch.other_parameters
    outside += sum(layer.index_parameters for layer in arch.layers) if indexer else 0
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
    indexer: bool = False,
) -> int:
    """Bytes of all weights at one ``dtype``, with a scale for each ``group_size`` of them."""
    total = count_parameters(arch, indexer=indexer).total
    return packed(total, dtype) + scales(total, group_size, scale_bytes)


def distinct_experts(num_experts: int, experts_per_token: int, batch_tokens: int) -> float:
    """How many experts ``batch_tokens`` tokens read together, expected: E · (1 − (1 − k/E)^B).

    Each token picks ``experts_per_token`` different ones; all sets are equally likely and tokens
    independent. A router that favours some experts makes it fewer.
    """
    check_count("num_experts", num_experts, least=1)
    check_count("experts_per_token", experts_per_token)
    check_count("batch_tokens", batch_tokens)
    if experts_per_token > num_experts:
        raise ValueError(f"a token cannot read {experts_per_token} of {num_experts} experts")
    return num_experts * (1 - (1 - experts_per_token / num_experts) ** batch_tokens)
