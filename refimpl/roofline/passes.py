"""A decode step and a prefill of a real architecture: bytes by origin, FLOPs, least time."""

from refimpl.architecture import Architecture, Layer
from refimpl.hardware import Accelerator
from refimpl.roofline.flops import attention_flops, check_counts, linear_flops
from refimpl.roofline.step import Step, lower_bound
from refimpl.sizing import (
    bytes_per_element,
    count_parameters,
    distinct_experts,
    layer_bytes,
    weight_bytes,
)
from refimpl.sizing.elements import packed


def decode_step(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    batch: int,
    context: int,
    num_new: int = 1,
    weight_dtype: str = "bf16",
    cache_dtype: str = "bf16",
    compute_dtype: str | None = None,
    num_gpus: int = 1,
    absorbed: bool = True,
    whiteboard: bool = False,
) -> Step:
    """One step of ``batch`` sequences that each hold ``context`` tokens once it is done.

    ``num_new`` is above 1 where several tokens of a sequence pass at once, as when drafts are
    verified. By origin:

    - weights: all but the routed experts that no token chose (their expected number, see
      :func:`refimpl.sizing.distinct_experts`) and all but the rows of an untied embedding table
      that the tokens look up; a tied table is read whole, as the output matrix;
    - cache: what the new tokens may read, and what is written for them (windows and chunks
      respected; a fixed state is read and written; a latent is read once for all heads);
    - activations: each mixer and each MLP reads its input and writes its output once, and logits
      are written. A large on-chip cache can hold the former: this part alone is not unavoidable.

    FLOPs are those of :func:`linear_flops` and of the pairs of :func:`attention_flops` that may
    attend. ``whiteboard=True`` counts as one does aloud instead: every weight is read, embedding
    table included, and costs 2 FLOPs a token (of experts, those chosen), and activations are
    nothing. ``compute_dtype`` is the precision of the arithmetic: by default that of the weights,
    or bf16 where those are 8 bits or fewer and are unpacked first. Scales are not counted, nor is a
    sparse-attention indexer or what it spares: see :func:`refimpl.roofline.sparse_read`.

    A lower bound on time, not a prediction: see :mod:`refimpl.roofline`.
    """
    check_counts(batch=batch, context=context, num_new=num_new)
    if not 1 <= num_new <= context:
        raise ValueError(f"num_new must be from 1 to the context of {context}, got {num_new}")
    return _step(
        arch,
        accelerator,
        batch,
        (num_new, context - num_new, num_new),
        (weight_dtype, cache_dtype, compute_dtype),
        num_gpus,
        absorbed,
        whiteboard,
    )


def prefill(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    num_tokens: int,
    batch: int = 1,
    num_stored: int = 0,
    logits_for: int = 1,
    weight_dtype: str = "bf16",
    cache_dtype: str = "bf16",
    compute_dtype: str | None = None,
    num_gpus: int = 1,
    absorbed: bool = False,
    whiteboard: bool = False,
) -> Step:
    """The pass over ``num_tokens`` of each of ``batch`` prompts, ``num_stored`` before them.

    Counted as in :func:`decode_step`. ``logits_for`` tokens of each prompt get logits: one, or
    none in a chunk that is not the last. Latent attention is expanded rather than absorbed, as
    engines do for long queries. Only the first token comes out of a prompt: ``num_tokens`` of the
    result counts the tokens passed.
    """
    check_counts(batch=batch, num_tokens=num_tokens, num_stored=num_stored, logits_for=logits_for)
    if num_tokens < 1:
        raise ValueError(f"a prefill needs at least one token, got {num_tokens}")
    return _step(
        arch,
        accelerator,
        batch,
        (num_tokens, num_stored, logits_for),
        (weight_dtype, cache_dtype, compute_dtype),
        num_gpus,
        absorbed,
        whiteboard,
    )


def attention_read_bytes(
    arch: Architecture, num_tokens: int, dtype: str = "bf16", *, absorbed: bool = True
) -> int:
    """Bytes of keys and values that the attention of one decode step goes through.

    For latent attention this is the difference between the two forms: ``absorbed``, every head
    reads the one stored latent; otherwise each head has a key and a value of its own, which a
    plain implementation writes out and reads. For all other layers both are the same.
    """
    check_counts(num_tokens=num_tokens)
    elements = 0
    for layer in arch.layers:
        width = layer.kv_elements
        if layer.kind == "latent" and not absorbed:
            width = layer.num_query_heads * (layer.head_dim + layer.value_dim)
        elements += width * (_read(layer, num_tokens - 1) + 1 if num_tokens else 0)
    return packed(elements, dtype)


def _step(
    arch: Architecture,
    accelerator: Accelerator,
    batch: int,
    tokens: tuple[int, int, int],
    dtypes: tuple[str, str, str | None],
    num_gpus: int,
    absorbed: bool,
    whiteboard: bool,
) -> Step:
    """The bound for ``tokens`` (new, stored, with logits) of each sequence, in three ``dtypes``."""
    num_new, num_stored, logits_for = tokens
    weight_dtype, cache_dtype, compute_dtype = dtypes
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if compute_dtype is None:
        compute_dtype = weight_dtype if bytes_per_element(weight_dtype) >= 2 else "bf16"
    linear = linear_flops(arch, num_new, logits_for=logits_for)
    if whiteboard:
        linear = 2 * num_new * count_parameters(arch).active
    attention = attention_flops(arch, num_new, num_stored, causal_only=True, absorbed=absorbed)
    moved = 0 if whiteboard else _activations(arch, num_new, logits_for)
    return lower_bound(
        accelerator,
        flops=batch * (linear + attention),
        weight_bytes=weights_read(
            arch, batch * num_new, batch * logits_for, weight_dtype, whiteboard=whiteboard
        ),
        cache_bytes=batch * cache_traffic(arch, num_new, num_stored, cache_dtype),
        activation_bytes=packed(batch * moved, compute_dtype),
        resident_weight_bytes=weight_bytes(arch, weight_dtype),
        num_tokens=batch * num_new,
        num_gpus=num_gpus,
        dtype=compute_dtype,
    )


def weights_read(
    arch: Architecture,
    num_tokens: int,
    num_logits: int,
    dtype: str = "bf16",
    *,
    whiteboard: bool = False,
) -> int:
    """Bytes of weights that a pass of ``num_tokens`` reads, ``num_logits`` of them with logits."""
    outside = arch.other_parameters
    table, head = arch.embedding_parameters, arch.head_parameters
    whole = whiteboard or (arch.tie_embeddings and num_logits)
    outside += table if whole else min(table, num_tokens * arch.model_width)
    outside += head if whiteboard or num_logits else 0
    experts = sum(
        layer.expert_parameters
        * distinct_experts(layer.num_experts, layer.experts_per_token, num_tokens)
        for layer in arch.layers
        if layer.num_experts
    )
    always = outside + sum(layer.always_read for layer in arch.layers)
    return packed(always, dtype) + round(experts * bytes_per_element(dtype))


def cache_traffic(arch: Architecture, num_new: int, num_stored: int, dtype: str = "bf16") -> int:
    """Bytes of cache that a pass of one sequence reads of the past and writes for new tokens."""
    total = 0
    for layer, row in zip(arch.layers, layer_bytes(arch, 1, dtype), strict=True):
        total += row.token_bytes * (_read(layer, num_stored) + _written(layer, num_new, num_stored))
        total += row.fixed_bytes * (2 if num_stored else 1)
    return total


def _read(layer: Layer, num_stored: int) -> int:
    """Stored tokens that a token right after them may read."""
    if layer.kind == "sliding":
        return min(num_stored, layer.window - 1)
    return num_stored % layer.window if layer.kind == "chunked" else num_stored


def _written(layer: Layer, num_new: int, num_stored: int) -> int:
    """New tokens that are still kept once all have passed."""
    if layer.kind == "sliding":
        return min(num_new, layer.window)
    if layer.kind == "chunked":
        return min(num_new, (num_stored + num_new - 1) % layer.window + 1)
    return num_new


def _activations(arch: Architecture, num_new: int, logits_for: int) -> int:
    """Numbers of one sequence that pass between blocks, and logits."""
    blocks = sum(
        (layer.kind != "none") + bool(layer.mlp_parameters or layer.num_experts)
        for layer in arch.layers
    )
    return 2 * blocks * num_new * arch.model_width + logits_for * arch.vocab_size
