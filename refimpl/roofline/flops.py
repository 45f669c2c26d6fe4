"""FLOPs of a forward pass, counted from the architecture; a multiply-add is two."""

from refimpl.architecture import ATTENTION_KINDS, Architecture, Layer
from refimpl.sizing.elements import check_count


def linear_flops(arch: Architecture, num_new: int, *, logits_for: int | None = None) -> int:
    """FLOPs of all weight matrices for ``num_new`` tokens.

    The output matrix is applied to ``logits_for`` tokens, by default to all of them. Of routed
    experts only those that a token passes are counted. Looking up an embedding costs nothing.
    For uniform decoders the matrices are counted exactly; where layers are listed one by one, each
    weight counts for two, those of norms and biases too (a thousandth or less of a large model).
    """
    rows = num_new if logits_for is None else logits_for
    check_counts(num_new=num_new, logits_for=rows)
    if rows > num_new:
        raise ValueError(f"logits_for is {rows}, but there are {num_new} new tokens")
    head = arch.head_parameters + (arch.embedding_parameters if arch.tie_embeddings else 0)
    if arch.detail is not None:
        body = sum(layer.active_parameters for layer in arch.layers) + arch.other_parameters
        return 2 * (num_new * body + rows * head)
    M, D = arch.model_width, arch.head_dim
    layer = 2 * M * D * (arch.num_query_heads + arch.num_kv_heads) + 3 * M * arch.mlp_width
    return 2 * (num_new * arch.num_layers * layer + rows * head)


def attention_flops(
    arch: Architecture,
    num_new: int,
    num_stored: int = 0,
    *,
    causal_only: bool = False,
    absorbed: bool = True,
) -> int:
    """FLOPs of scores and weighted values for new tokens that follow ``num_stored`` others.

    Counts the full ``T x S`` rectangle in every attention layer, as a plain matrix product with a
    mask does; ``causal_only`` counts just the pairs that causality, window or chunk let through.

    Latent attention is counted in its ``absorbed`` form, H · (2C + R) multiply-adds a pair. The
    other form expands keys and values: fewer per pair, but every stored token has to be expanded
    anew (the expansion of new tokens is in :func:`linear_flops` in both forms: it is the same
    matrix, moved). A recurrent layer updates and reads its state: 4 FLOPs for each element of it,
    which is the least that a linear recurrence needs.
    """
    check_counts(num_new=num_new, num_stored=num_stored)
    total = 0
    for layer in arch.layers:
        total += 4 * layer.state_elements * num_new
        if layer.kind in ATTENTION_KINDS:
            pairs = num_new * (num_stored + num_new)
            if causal_only:
                pairs = visible_pairs(layer, num_new, num_stored)
            total += pairs * pair_flops(layer, absorbed=absorbed)
        if layer.kind == "latent" and not absorbed:
            unrotated = layer.head_dim - layer.rope_width
            expanded = layer.num_query_heads * (unrotated + layer.value_dim)
            total += 2 * num_stored * layer.latent_width * expanded
    return total


def forward_flops(arch: Architecture, num_new: int, num_stored: int = 0, batch: int = 1) -> int:
    """Matrix-product FLOPs of one forward pass over ``num_new`` tokens a row.

    Norms, rotations, softmax and activations are not counted.
    """
    check_counts(batch=batch)
    return batch * (linear_flops(arch, num_new) + attention_flops(arch, num_new, num_stored))


def pair_flops(layer: Layer, *, absorbed: bool = True) -> int:
    """FLOPs of one query token and one key token in all heads of an attention layer."""
    key, value = layer.head_dim, layer.value_dim
    if layer.kind == "latent" and absorbed:
        key, value = layer.latent_width + layer.rope_width, layer.latent_width
    return 2 * layer.num_query_heads * (key + value)


def visible_pairs(layer: Layer, num_new: int, num_stored: int) -> int:
    """Pairs of a new token and a token it may read, in an attention layer, counted exactly."""
    first, last = num_stored, num_stored + num_new
    if layer.kind == "sliding":
        ramp = max(0, min(last, layer.window) - first)  # new tokens whose window is not full yet
        return ramp * first + ramp * (ramp + 1) // 2 + (num_new - ramp) * layer.window
    if layer.kind == "chunked":
        return _chunk_pairs(last, layer.window) - _chunk_pairs(first, layer.window)
    return num_new * first + num_new * (num_new + 1) // 2


def _chunk_pairs(num_tokens: int, chunk: int) -> int:
    whole, rest = divmod(num_tokens, chunk)
    return whole * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2


def check_counts(**counts: int) -> None:
    """Raise ``ValueError`` unless all are integers from 0 on."""
    for name, value in counts.items():
        check_count(name, value)
