"""Packed matrices compute what plain ones do, and leave alone what they cannot pack."""

from __future__ import annotations

import pytest
import torch
from oracles import TINY, tiny, token_ids
from torch import nn

from refimpl.architecture import Architecture
from refimpl.cache import ContiguousCache
from refimpl.model import Decoder, PackedLinear, fuse, pack, packed

archs = pytest.mark.parametrize("arch", TINY.values(), ids=TINY)
needs_packing = pytest.mark.skipif(
    not packed.can_pack(torch.float32), reason="this processor or torch has no blocked products"
)


def packed_parts(model: Decoder) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, PackedLinear)]


@needs_packing
@archs
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_packed_decoder_computes_the_same(arch: Architecture, fused: bool) -> None:
    plain = tiny(arch, 3, torch.float32)
    fast = pack(fuse(plain) if fused else plain)
    assert packed_parts(fast) and not packed_parts(plain)
    assert not any(isinstance(part, nn.Linear) for part in fast.modules())
    tokens = token_ids(2, arch.vocab_size, 3, 20)
    exact = tiny(arch, 3, torch.float64)(tokens)
    torch.testing.assert_close(fast(tokens).double(), exact, rtol=1e-4, atol=1e-4)
    cache = ContiguousCache(arch, batch_size=3, max_tokens=20)
    chunks = [fast(tokens[:, a:b], cache=cache) for a, b in ((0, 11), (11, 12), (12, 20))]
    torch.testing.assert_close(torch.cat(chunks, dim=1).double(), exact, rtol=1e-4, atol=1e-4)


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_a_packed_product_is_the_product(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    linear = nn.Linear(70, 45, bias=False).requires_grad_(False)
    linear.weight.copy_(torch.randn(45, 70, generator=generator))
    x = torch.randn(3, 70, rows, generator=generator).transpose(1, 2)  # strides as after a split
    want = x.double() @ linear.weight.double().T
    torch.testing.assert_close(PackedLinear(linear)(x).double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not packed.can_pack(torch.bfloat16), reason="no blocked products in bf16")
def test_in_bf16_it_is_as_close_to_exact_as_the_plain_product() -> None:
    generator = torch.Generator().manual_seed(5)
    linear = nn.Linear(576, 960, bias=False).to(torch.bfloat16).requires_grad_(False)
    linear.weight.copy_(torch.randn(960, 576, generator=generator))
    x = torch.randn(1, 576, generator=generator).bfloat16()
    exact = x.double() @ linear.weight.double().T
    got, plain = PackedLinear(linear)(x), linear(x)
    assert got.dtype == torch.bfloat16
    # One rounding of the result, 2^-9 of it, and sums in float32.
    assert ((got - exact).abs() <= 2**-8 * exact.abs() + 1e-3).all()
    assert (got - exact).abs().max() <= 1.5 * (plain - exact).abs().max()


@needs_packing
def test_packing_leaves_the_given_decoder_alone_and_shares_the_rest() -> None:
    plain = tiny(TINY["gqa"], 3, torch.float32)
    names = list(plain.state_dict())
    tokens = token_ids(2, plain.arch.vocab_size, 1, 6)
    before = plain(tokens)
    fast = pack(plain)
    plain.layers[0].attention.q.weight.mul_(2)  # the copy was taken before
    torch.testing.assert_close(fast(tokens), before, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain(tokens), before)
    assert list(plain.state_dict()) == names
    assert fast.embed is plain.embed and fast.norm is plain.norm
    assert fast.dtype == plain.dtype


def test_what_cannot_be_packed_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = tiny(TINY["gqa"], 3, torch.float64)
    assert not packed.can_pack(torch.float64)
    assert pack(wide) is wide

    def missing(*given: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    monkeypatch.setattr(PackedLinear, "forward", missing)
    narrow = tiny(TINY["gqa"], 3, torch.float32)
    assert pack(narrow) is narrow
