"""FLOPs against torch's own counter on the decoder, and pairs counted one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import TINY, readable_keys, tiny, token_ids
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from refimpl.architecture import Architecture
from refimpl.cache import ContiguousCache
from refimpl.model import fuse
from refimpl.roofline import attention_flops, forward_flops, linear_flops

SMOL = Architecture.named("smollm2-135m")


def counted(call: Any) -> int:
    """FLOPs of the matrix products that a call makes."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
@pytest.mark.parametrize(("batch", "stored", "new"), [(1, 0, 1), (3, 0, 7), (2, 5, 1), (4, 6, 9)])
def test_forward_flops_equal_torch_counter(
    arch: Architecture, batch: int, stored: int, new: int
) -> None:
    decoder = tiny(arch, dtype=torch.float32)
    cache = ContiguousCache(arch, batch_size=batch, max_tokens=stored + new)
    if stored:
        decoder(token_ids(0, arch.vocab_size, batch, stored), cache=cache)
    tokens = token_ids(1, arch.vocab_size, batch, new)
    got = counted(lambda: decoder(tokens, cache=cache))
    assert got == forward_flops(arch, new, stored, batch)
    assert got == batch * (linear_flops(arch, new) + attention_flops(arch, new, stored))


def test_a_fused_decoder_makes_the_same_products() -> None:
    arch = TINY["gqa"]
    tokens = token_ids(1, arch.vocab_size, 2, 7)
    fused = fuse(tiny(arch, dtype=torch.float32))
    with sdpa_kernel(SDPBackend.MATH):  # the counter does not know the CPU's fused kernel
        assert counted(lambda: fused(tokens)) == forward_flops(arch, 7, batch=2)


@pytest.mark.parametrize(("new", "stored"), [(1, 0), (1, 9), (5, 0), (4, 7)])
def test_causal_pairs_are_counted_one_by_one(new: int, stored: int) -> None:
    pairs = sum(len(readable_keys(new, stored + new, t)) for t in range(new))
    per_pair = 2 * 2 * SMOL.num_layers * SMOL.num_query_heads * SMOL.head_dim
    assert attention_flops(SMOL, new, stored, causal_only=True) == pairs * per_pair
    assert attention_flops(SMOL, new, stored) == new * (stored + new) * per_pair


def test_a_token_costs_two_flops_for_each_weight_it_passes() -> None:
    from refimpl.sizing import count_parameters

    parameters = count_parameters(SMOL)
    norms = (2 * SMOL.num_layers + 1) * SMOL.model_width
    # The tied matrix is read as output once; looking a token up costs nothing.
    assert linear_flops(SMOL, 1) == 2 * (parameters.total - norms)
    assert linear_flops(SMOL, 6, logits_for=1) == 6 * linear_flops(SMOL, 1) - 5 * 2 * (
        parameters.embedding
    )
    assert linear_flops(SMOL, 6, logits_for=0) == 6 * (
        linear_flops(SMOL, 1) - 2 * parameters.embedding
    )


def test_a_split_prompt_costs_the_same_but_for_the_rectangle() -> None:
    whole = forward_flops(SMOL, 10)
    split = forward_flops(SMOL, 6) + forward_flops(SMOL, 4, 6)
    skipped = 4 * SMOL.num_layers * SMOL.num_query_heads * SMOL.head_dim * 6 * 4
    assert whole - split == skipped
    assert forward_flops(SMOL, 0) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forward_flops(SMOL, -1), "num_new cannot be negative, got -1"),
        (lambda: forward_flops(SMOL, 1, -3), "num_stored cannot be negative, got -3"),
        (lambda: forward_flops(SMOL, 1, batch=-1), "batch cannot be negative, got -1"),
        (lambda: linear_flops(SMOL, 2, logits_for=-1), "logits_for cannot be negative, got -1"),
        (lambda: linear_flops(SMOL, 2, logits_for=3), "logits_for"),
        (lambda: forward_flops(SMOL, 1.0), r"num_new must be an integer, got 1\.0"),
        (lambda: forward_flops(SMOL, 1, batch=True), "batch must be an integer, got True"),
        (lambda: linear_flops(SMOL, 2, logits_for=1.5), r"logits_for must be an integer, got 1\.5"),
        (lambda: attention_flops(SMOL, 2, "3"), "num_stored must be an integer, got '3'"),
    ],
)
def test_bad_counts_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
