"""How many bytes a model and its cache occupy: exact counts from the architecture."""

from dataclasses import dataclass

from refimpl.architecture import Architecture

BYTES_PER_ELEMENT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights: all, those a token passes through, and the embedding matrix."""

    total: int
    active: int
    embedding: int


def bytes_per_element(dtype: str) -> float:
    """Bytes of one number of ``dtype``; ``ValueError`` for a name that is not known."""
    if dtype not in BYTES_PER_ELEMENT:
        raise ValueError(f"unknown dtype {dtype!r}: one of {', '.join(BYTES_PER_ELEMENT)}")
    return BYTES_PER_ELEMENT[dtype]


def kv_bytes_per_token(arch: Architecture, dtype: str = "bf16") -> int:
    """Bytes of keys and values one token adds: 2 · layers · kv_heads · head_dim · bytes."""
    elements = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim
    return int(elements * bytes_per_element(dtype))


def kv_bytes(arch: Architecture, num_tokens: int, dtype: str = "bf16", batch: int = 1) -> int:
    """Bytes of keys and values of ``batch`` sequences of ``num_tokens`` each."""
    if num_tokens < 0 or batch < 0:
        raise ValueError(f"counts cannot be negative, got {num_tokens} tokens, batch {batch}")
    return batch * num_tokens * kv_bytes_per_token(arch, dtype)


def count_parameters(arch: Architecture) -> Parameters:
    """Parameters of a dense decoder; a tied output matrix is counted once."""
    M, D = arch.model_width, arch.head_dim
    attention = 2 * M * D * (arch.num_query_heads + arch.num_kv_heads)
    layer = attention + 3 * M * arch.mlp_width + 2 * M
    embedding = arch.vocab_size * M
    total = arch.num_layers * layer + M + embedding * (1 if arch.tie_embeddings else 2)
    return Parameters(total=total, active=total, embedding=embedding)
