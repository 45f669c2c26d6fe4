"""What a forward pass has to compute and to read: FLOPs counted from the architecture."""

from refimpl.architecture import Architecture


def linear_flops(arch: Architecture, num_new: int, *, logits_for: int | None = None) -> int:
    """FLOPs of all weight matrices for ``num_new`` tokens; a multiply-add is 2.

    The output matrix is applied to ``logits_for`` tokens, by default to all of them.
    """
    rows = num_new if logits_for is None else logits_for
    _check(num_new=num_new, logits_for=rows)
    if rows > num_new:
        raise ValueError(f"logits_for is {rows}, but there are {num_new} new tokens")
    M, D = arch.model_width, arch.head_dim
    layer = 2 * M * D * (arch.num_query_heads + arch.num_kv_heads) + 3 * M * arch.mlp_width
    return 2 * (num_new * arch.num_layers * layer + rows * M * arch.vocab_size)


def attention_flops(
    arch: Architecture, num_new: int, num_stored: int = 0, *, causal_only: bool = False
) -> int:
    """FLOPs of scores and weighted values for new tokens that follow ``num_stored`` others.

    Counts the full ``T x S`` rectangle, as a plain matrix product does; ``causal_only`` counts
    just the pairs that the causal mask lets through.
    """
    _check(num_new=num_new, num_stored=num_stored)
    pairs = num_new * (num_stored + num_new)
    if causal_only:
        pairs -= num_new * (num_new - 1) // 2
    return 4 * arch.num_layers * arch.num_query_heads * arch.head_dim * pairs


def forward_flops(arch: Architecture, num_new: int, num_stored: int = 0, batch: int = 1) -> int:
    """Matrix-product FLOPs of one forward pass over ``num_new`` tokens a row.

    Norms, rotations, softmax and activations are not counted.
    """
    _check(batch=batch)
    return batch * (linear_flops(arch, num_new) + attention_flops(arch, num_new, num_stored))


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if value < 0:
            raise ValueError(f"{name} cannot be negative, got {value}")
