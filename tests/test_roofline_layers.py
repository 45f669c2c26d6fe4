"""FLOPs of layers that are not all alike: pairs counted one by one, products by torch's counter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import TINY, normal
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from refimpl.architecture import Architecture, Detail, Layer
from refimpl.attention import attend, attend_latent
from refimpl.roofline import attention_flops, attention_read_bytes, forward_flops, linear_flops

FULL = Layer(kind="full", num_query_heads=6, num_kv_heads=2, head_dim=10, value_dim=7)
LATENT = Layer(
    kind="latent",
    num_query_heads=5,
    num_kv_heads=1,
    head_dim=11,  # 8 without position and 3 with
    value_dim=6,
    latent_width=9,
    rope_width=3,
)


def of(*layers: Layer, **outside: Any) -> Architecture:
    """An architecture of exactly these layers, with nothing else that weighs unless told."""
    first = next((x for x in layers if x.num_kv_heads), Layer(kind="none"))
    parameters = {"embedding_parameters": 0, "head_parameters": 0, "other_parameters": 0}
    return Architecture(
        name="toy",
        num_layers=len(layers),
        model_width=outside.pop("model_width", 13),
        num_query_heads=first.num_query_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        mlp_width=0,
        vocab_size=outside.pop("vocab_size", 17),
        max_context=None,
        tie_embeddings=outside.pop("tie_embeddings", False),
        detail=Detail(layers=layers, unsupported="a toy", **{**parameters, **outside}),
    )


def counted(call: Any) -> int:
    """FLOPs of the matrix products that a call makes."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def pairs_one_by_one(layer: Layer, num_new: int, num_stored: int) -> int:
    """Count the pairs of a query and a key it may read, by what each kind of layer means."""
    found = 0
    for query in range(num_stored, num_stored + num_new):
        for key in range(query + 1):
            if layer.kind == "sliding" and query - key >= layer.window:
                continue
            if layer.kind == "chunked" and query // layer.window != key // layer.window:
                continue
            found += 1
    return found


@given(
    kind=st.sampled_from(["full", "sliding", "chunked"]),
    window=st.integers(1, 9),
    num_new=st.integers(0, 25),
    num_stored=st.integers(0, 25),
)
def test_pairs_are_counted_one_by_one(
    kind: str, window: int, num_new: int, num_stored: int
) -> None:
    layer = replace(FULL, kind=kind, window=None if kind == "full" else window)
    got = attention_flops(of(layer), num_new, num_stored, causal_only=True)
    # A pair costs a multiply-add in each of 10 dimensions of the key and 7 of the value, per head.
    assert got == pairs_one_by_one(layer, num_new, num_stored) * 2 * 6 * (10 + 7)


@pytest.mark.parametrize("window", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_a_decode_step_sees_what_the_window_leaves(kind: str, window: int) -> None:
    layer = replace(FULL, kind=kind, window=window)
    for context in (1, window - 1, window, window + 1, 2 * window, 2 * window + 1):
        pairs = attention_flops(of(layer), 1, context - 1, causal_only=True) // (2 * 6 * 17)
        last = context - 1
        reach = window if kind == "sliding" else last % window + 1
        assert pairs == min(context, reach) == pairs_one_by_one(layer, 1, last)


def test_the_rectangle_is_what_torch_multiplies() -> None:
    B, T, S = 1, 4, 9
    arch = of(FULL, replace(FULL, num_query_heads=4, num_kv_heads=1, head_dim=3))
    q, k, v = normal(0, B, 6, T, 10), normal(1, B, 2, S, 10), normal(2, B, 2, S, 7)
    other = normal(3, B, 4, T, 3), normal(4, B, 1, S, 3), normal(5, B, 1, S, 7)
    got = counted(lambda: (attend(q, k, v), attend(*other)))
    assert got == attention_flops(arch, T, S - T)


def latent_inputs(T: int, S: int) -> dict[str, torch.Tensor]:
    """Inputs of :func:`attend_latent` in the shape of ``LATENT``."""
    H, C, R, E = 5, 9, 3, 6
    D = 11 - R
    shapes = ((1, H, T, D), (1, H, T, R), (1, S, C), (1, S, R), (H, D, C), (H, E, C))
    names = ("q_BHTD", "q_rope_BHTR", "latent_BSC", "k_rope_BSR", "up_k_HDC", "up_v_HEC")
    return {name: normal(i, *s) for i, (name, s) in enumerate(zip(names, shapes, strict=True))}


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 8), (4, 4), (3, 10)])
def test_latent_attention_costs_what_torch_multiplies(T: int, S: int) -> None:
    x = latent_inputs(T, S)
    # The two matrices that expand a latent are applied to T new tokens in either form, and are
    # counted among the weights; expanding applies them to what is stored as well.
    weights = x["up_k_HDC"].numel() + x["up_v_HEC"].numel()
    for absorbed in (True, False):
        got = counted(lambda form=absorbed: attend_latent(**x, absorbed=form))
        assert got == attention_flops(of(LATENT), T, S - T, absorbed=absorbed) + 2 * T * weights


def test_published_flops_of_a_latent_pair() -> None:
    # DeepSeek-V3's shape: heads · 2 · (576 + 512) absorbed, heads · 2 · (192 + 128) expanded.
    shape = {"head_dim": 192, "value_dim": 128, "latent_width": 512, "rope_width": 64}
    arch = of(replace(LATENT, num_query_heads=128, **shape))
    assert attention_flops(arch, 1) == 278_528
    assert attention_flops(arch, 1, absorbed=False) == 81_920
    assert attention_flops(arch, 1) / attention_read_bytes(arch, 1) == pytest.approx(242, abs=0.5)


def test_bytes_attention_reads_are_those_of_the_tensors() -> None:
    S = 10
    x = latent_inputs(1, S)
    stored = x["latent_BSC"].numel() + x["k_rope_BSR"].numel()
    keys = torch.einsum("bsc,hdc->bhsd", x["latent_BSC"], x["up_k_HDC"])
    keys = torch.cat((keys, x["k_rope_BSR"][:, None].expand(-1, 5, -1, -1)), dim=-1)
    values = torch.einsum("bsc,hec->bhse", x["latent_BSC"], x["up_v_HEC"])
    expanded = keys.numel() + values.numel()
    arch = of(LATENT, replace(FULL, kind="sliding", window=4))
    seen = 4 * 2 * (10 + 7)  # of two heads, four tokens back
    for dtype, size in (("fp32", 4), ("bf16", 2), ("fp8", 1)):
        assert attention_read_bytes(arch, S, dtype) == (stored + seen) * size
        got = attention_read_bytes(arch, S, dtype, absorbed=False)
        assert got == (expanded + seen) * size
    assert attention_read_bytes(arch, 0) == 0


class Experts(nn.Module):
    """A router, routed experts of three matrices, and one expert that every token passes."""

    def __init__(self, M: int, F: int, num_experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(M, num_experts, bias=False)
        self.shared = nn.ModuleList(nn.Linear(*s, bias=False) for s in ((M, F), (M, F), (F, M)))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(*s, bias=False) for s in ((M, F), (M, F), (F, M)))
            for _ in range(num_experts)
        )

    def forward(self, x_TM: torch.Tensor) -> torch.Tensor:
        out = []
        for x, scores in zip(x_TM, self.router(x_TM), strict=True):
            parts = [self.shared, *(self.experts[i] for i in scores.topk(self.chosen).indices)]
            for gate, up, down in parts:
                out.append(down(torch.relu(gate(x[None])) * up(x[None])))
        return torch.stack(out)


def numel(module: nn.Module) -> int:
    """Weights of a module."""
    return sum(p.numel() for p in module.parameters())


def test_a_token_pays_for_the_experts_it_passes_and_no_others() -> None:
    M, F, E, k, T = 13, 5, 7, 3, 4
    block = Experts(M, F, E, k)
    layer = Layer(
        kind="none",
        mlp_parameters=numel(block.router) + numel(block.shared),
        num_experts=E,
        experts_per_token=k,
        expert_parameters=numel(block.experts[0]),
    )
    got = counted(lambda: block(normal(0, T, M).float()))
    assert got == linear_flops(of(layer), T) == forward_flops(of(layer), T)
    every = 2 * T * numel(block)
    assert got < every


def test_the_output_matrix_is_applied_to_the_tokens_with_logits() -> None:
    M, V = 13, 17
    for tied in (False, True):
        outside = {"embedding_parameters": V * M, "head_parameters": 0 if tied else V * M}
        arch = of(Layer(kind="none", mlp_parameters=100), tie_embeddings=tied, **outside)
        head = nn.Linear(M, V, bias=False)
        body = 2 * 5 * 100
        assert linear_flops(arch, 5) == body + counted(lambda h=head: h(torch.zeros(5, M)))
        for rows in (0, 2):
            logits = counted(lambda h=head, n=rows: h(torch.zeros(n, M)))
            assert linear_flops(arch, 5, logits_for=rows) == body + logits


def test_a_recurrent_layer_updates_and_reads_its_state_for_each_token() -> None:
    D, E, heads = 4, 3, 2
    layer = Layer(kind="linear", state_elements=heads * D * E)
    arch = of(layer)
    q, k, v = normal(0, heads, 1, D), normal(1, heads, D, 1), normal(2, heads, 1, E)
    once = counted(lambda: q @ (k @ v))  # the outer product that is added, and the reading
    for stored in (0, 1000):
        assert attention_flops(arch, 5, stored) == 5 * once
        assert attention_flops(arch, 5, stored, causal_only=True) == 5 * once


@pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
def test_uniform_layers_listed_one_by_one_cost_the_same(arch: Architecture) -> None:
    norms = (2 * arch.num_layers + 1) * arch.model_width
    listed = replace(
        arch,
        detail=Detail(
            layers=arch.layers,
            embedding_parameters=arch.embedding_parameters,
            head_parameters=arch.head_parameters,
            other_parameters=arch.other_parameters,
            unsupported="listed",
        ),
    )
    assert attention_flops(listed, 3, 5) == attention_flops(arch, 3, 5)
    # Listed, a layer does not say which of its weights are those of norms: they are counted too.
    assert linear_flops(listed, 3, logits_for=1) == (
        linear_flops(arch, 3, logits_for=1) + 2 * 3 * norms
    )
