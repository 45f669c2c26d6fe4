"""The decoder against transformers' Llama; ragged rows, chunks, truncation, failures, fusing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import GQA, LINEAR, LLAMA3, MHA, MQA, TINY, hf_twin, normal, tiny, token_ids

from refimpl.architecture import Architecture
from refimpl.cache import ConcatenatingCache, ContiguousCache
from refimpl.model import Decoder, RMSNorm, fuse

F64 = torch.float64
EXACT = {"atol": 1e-10, "rtol": 1e-10}
# A row of a batch and the row alone sum in another order: a few units of float32's last place.
FLOAT32 = {"atol": 2e-5, "rtol": 2e-5}
archs = pytest.mark.parametrize("arch", TINY.values(), ids=TINY)


def new_cache(arch: Architecture, batch: int = 1, dtype: torch.dtype = F64) -> ContiguousCache:
    return ContiguousCache(arch, batch_size=batch, max_tokens=40, dtype=dtype)


def stored(cache: Any, arch: Architecture) -> list[Any]:
    """What the cache holds, for comparing before and after."""
    held = cache.num_tokens.tolist()
    tensors = [x for layer in range(arch.num_layers) for x in cache.read(layer)]
    return [held, *([x[row, :, :n].tolist() for row, n in enumerate(held)] for x in tensors)]


# --- transformers ---------------------------------------------------------------------------


@archs
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (F64, 1e-10)])
def test_logits_equal_transformers(arch: Architecture, dtype: torch.dtype, limit: float) -> None:
    decoder = tiny(arch, seed=4, dtype=dtype)
    tokens = token_ids(1, arch.vocab_size, 3, 19)
    want = hf_twin(decoder)(tokens).logits
    got = decoder(tokens)
    assert got.dtype == dtype
    assert got.shape == (3, 19, arch.vocab_size)
    assert (got - want).abs().max() < limit
    assert want.std() > 0.3, "logits that are all alike would prove nothing"


@archs
def test_cached_steps_equal_transformers_without_a_cache(arch: Architecture) -> None:
    decoder = tiny(arch, seed=5)
    tokens = token_ids(2, arch.vocab_size, 2, 23)
    want = hf_twin(decoder)(tokens, use_cache=False).logits
    cache = new_cache(arch, 2)
    got = [decoder(tokens[:, :9], cache=cache)]
    got += [decoder(tokens[:, t : t + 1], cache=cache) for t in range(9, 23)]
    torch.testing.assert_close(torch.cat(got, dim=1), want, **EXACT)


def test_scaling_of_positions_makes_a_difference() -> None:
    for arch in (LINEAR, LLAMA3):
        tokens = token_ids(1, arch.vocab_size, 1, 31)
        plain = dataclasses.replace(arch, rope_scaling=None)
        assert (tiny(arch)(tokens) - tiny(plain)(tokens)).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_rms_norm_equals_torch(dtype: torch.dtype) -> None:
    norm = RMSNorm(11, 1e-3)
    norm.weight = torch.nn.Parameter(normal(0, 11).to(dtype), requires_grad=False)
    x = (normal(1, 3, 5, 11) * 20).to(dtype)
    x[0, 0] = 0
    want = torch.nn.functional.rms_norm(x.double(), (11,), norm.weight.double(), 1e-3)
    got = norm(x)
    assert got.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


def test_random_weights_depend_on_the_generator_only() -> None:
    first, same, other = tiny(GQA, 1), tiny(GQA, 1), tiny(GQA, 2)
    for a, b, c in zip(first.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not a.requires_grad
    assert first.dtype == F64
    assert tiny(GQA, 1, torch.bfloat16).dtype == torch.bfloat16
    assert first.head.weight is first.embed.weight, "tied"
    assert tiny(MQA).head.weight is not tiny(MQA).embed.weight


# --- causality, rows, chunks ----------------------------------------------------------------


@archs
def test_a_later_token_changes_nothing_before_it(arch: Architecture) -> None:
    decoder = tiny(arch)
    tokens = token_ids(0, arch.vocab_size, 1, 12)
    changed = tokens.clone()
    changed[0, 7] = (tokens[0, 7] + 1) % arch.vocab_size
    before, after = decoder(tokens), decoder(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], **EXACT)
    assert (before[:, 7:] - after[:, 7:]).abs().amin(dim=1).max() > 1e-4


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@given(
    name=st.sampled_from(["gqa", "mqa", "llama3"]),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    held=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    cached=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=40)
def test_ragged_rows_equal_each_row_alone(
    dtype: torch.dtype, name: str, lengths: list[int], held: list[int], cached: bool, seed: int
) -> None:
    arch, B, T = TINY[name], len(lengths), max(lengths)
    decoder = tiny(arch, seed, dtype)
    tolerance = EXACT if dtype == F64 else FLOAT32
    held = held[:B] if cached else [0] * B
    first = token_ids(seed, arch.vocab_size, B, max(*held, 1))
    then = token_ids(seed + 1, arch.vocab_size, B, T)
    cache = new_cache(arch, B, dtype) if cached else None
    if cached and any(held):
        decoder(first, cache=cache, lengths_B=held)
    got = decoder(then, cache=cache, lengths_B=torch.tensor(lengths) if seed % 2 else lengths)
    if cached:
        totals = [h + n for h, n in zip(held, lengths, strict=True)]
        assert cache.num_tokens.tolist() == totals
    for row, (h, n) in enumerate(zip(held, lengths, strict=True)):
        if n:
            alone = torch.cat((first[row, :h], then[row, :n]))[None]
            want = decoder(alone)[0, h:]
            torch.testing.assert_close(got[row, :n], want, **tolerance)


def test_pads_are_neither_read_nor_stored() -> None:
    decoder = tiny(GQA)
    tokens = token_ids(0, GQA.vocab_size, 2, 6)
    other = tokens.clone()
    other[1, 4:] = (tokens[1, 4:] + 5) % GQA.vocab_size
    caches = [new_cache(GQA, 2), new_cache(GQA, 2)]
    one, two = (
        decoder(x, cache=cache, lengths_B=[6, 4])
        for x, cache in zip((tokens, other), caches, strict=True)
    )
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1, :4], two[1, :4])
    assert stored(caches[0], GQA) == stored(caches[1], GQA)
    step = token_ids(3, GQA.vocab_size, 2, 1)
    one, two = (decoder(step, cache=cache) for cache in caches)
    assert torch.equal(one, two)
    assert one.isfinite().all(), "unwritten slots hold NaN"


def test_lengths_that_are_all_full_change_nothing() -> None:
    decoder = tiny(MHA)
    tokens = token_ids(0, MHA.vocab_size, 2, 6)
    torch.testing.assert_close(decoder(tokens, lengths_B=[6, 6]), decoder(tokens), **EXACT)


@given(
    name=st.sampled_from(list(TINY)),
    cuts=st.lists(st.integers(1, 17), max_size=6),
    kind=st.sampled_from(["contiguous", "concatenating"]),
    seed=st.integers(0, 100),
)
def test_chunks_of_any_size_give_the_same_logits(
    name: str, cuts: list[int], kind: str, seed: int
) -> None:
    arch = TINY[name]
    decoder = tiny(arch, seed)
    tokens = token_ids(seed, arch.vocab_size, 2, 18)
    cache = new_cache(arch, 2)
    if kind == "concatenating":
        cache = ConcatenatingCache(arch, batch_size=2, dtype=F64)
    edges = [0, *sorted(set(cuts)), 18]
    got = [decoder(tokens[:, a:b], cache=cache) for a, b in itertools.pairwise(edges)]
    torch.testing.assert_close(torch.cat(got, dim=1), decoder(tokens), **EXACT)
    assert cache.num_tokens.tolist() == [18, 18]


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    keep=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    seed=st.integers(0, 100),
)
def test_truncating_equals_never_having_gone_further(
    lengths: list[int], keep: list[int], seed: int
) -> None:
    B = len(lengths)
    decoder = tiny(GQA, seed)
    tokens = token_ids(seed, GQA.vocab_size, B, max(lengths))
    keep = [min(k, n) for k, n in zip(keep, lengths, strict=False)]
    then = token_ids(seed + 1, GQA.vocab_size, B, 3)
    further = new_cache(GQA, B)
    decoder(tokens, cache=further, lengths_B=lengths)
    decoder(then[:, :2], cache=further)
    further.truncate(keep)
    got = decoder(then, cache=further)
    never = new_cache(GQA, B)
    if any(keep):
        decoder(tokens, cache=never, lengths_B=keep)
    torch.testing.assert_close(got, decoder(then, cache=never), **EXACT)
    for row, k in enumerate(keep):
        alone = decoder(torch.cat((tokens[row, :k], then[row]))[None])[0, k:]
        torch.testing.assert_close(got[row], alone, **EXACT)


def test_reordered_rows_continue_as_the_rows_they_were() -> None:
    decoder = tiny(MQA)
    tokens = token_ids(0, MQA.vocab_size, 3, 7)
    cache = new_cache(MQA, 3)
    decoder(tokens, cache=cache, lengths_B=[7, 3, 5])
    cache.reorder([2, 0, 0, 1])
    step = token_ids(1, MQA.vocab_size, 4, 1)
    got = decoder(step, cache=cache)
    for row, (origin, n) in enumerate([(2, 5), (0, 7), (0, 7), (1, 3)]):
        alone = decoder(torch.cat((tokens[origin, :n], step[row]))[None])[0, -1]
        torch.testing.assert_close(got[row, 0], alone, **EXACT)


# --- dtypes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [False, True])
def test_a_cache_of_another_dtype_rounds_and_no_more(kept: torch.dtype, fused: bool) -> None:
    decoder = tiny(GQA, dtype=torch.float32)
    decoder = fuse(decoder) if fused else decoder
    tokens = token_ids(0, GQA.vocab_size, 2, 15)
    cache = new_cache(GQA, 2, kept)
    got = torch.cat(
        [decoder(tokens[:, :8], cache=cache), decoder(tokens[:, 8:], cache=cache)], dim=1
    )
    assert got.dtype == torch.float32
    assert cache.read(0)[0].dtype == kept
    error = (got - decoder(tokens)).abs().max()
    assert error < 60 * torch.finfo(kept).eps
    if kept != torch.float32:
        assert error > torch.finfo(kept).eps / 60, "the cache did store in fewer bits"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_stay_near_float64(dtype: torch.dtype) -> None:
    decoder = tiny(GQA, dtype=dtype)
    exact = Decoder(GQA).to(F64)
    exact.load_state_dict(decoder.state_dict())
    tokens = token_ids(0, GQA.vocab_size, 2, 15)
    got, want = decoder(tokens), exact(tokens)
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() < 40 * torch.finfo(dtype).eps


def test_token_ids_of_32_bits_are_read() -> None:
    decoder = tiny(GQA)
    tokens = token_ids(0, GQA.vocab_size, 2, 5)
    assert torch.equal(decoder(tokens.int()), decoder(tokens))


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim"])
def test_a_cache_of_another_model_is_refused(field: str) -> None:
    changed = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 12}[field]
    assert changed != getattr(GQA, field) and GQA.num_query_heads % 2 == 0
    cache = ContiguousCache(dataclasses.replace(GQA, **{field: changed}), max_tokens=9, dtype=F64)
    message = f"the cache is for {field} = {changed}, the model has {getattr(GQA, field)}"
    with pytest.raises(ValueError, match=message):
        tiny(GQA)(token_ids(0, GQA.vocab_size, 1, 4), cache=cache)
    assert cache.num_tokens.tolist() == [0]


# --- what is refused, and what then stays ---------------------------------------------------

ok = token_ids(0, GQA.vocab_size, 2, 3)
MISUSES: dict[str, tuple[dict[str, Any], str]] = {
    "one axis": ({"tokens_BT": ok[0]}, r"shape \[B, T\], got torch.int64 of shape \(3,\)"),
    "floats": ({"tokens_BT": ok.float()}, "must be integers .* got torch.float32"),
    "booleans": ({"tokens_BT": ok > 3}, "must be integers .* got torch.bool"),
    "no token": ({"tokens_BT": ok[:, :0]}, r"empty: shape \(2, 0\)"),
    "no row": ({"tokens_BT": ok[:0]}, r"empty: shape \(0, 3\)"),
    "id too high": ({"tokens_BT": ok.clone().fill_(37)}, "id 37 is outside the vocabulary of 37"),
    "id negative": ({"tokens_BT": ok.clone().fill_(-1)}, "id -1 is outside"),
    "wrong rows": ({"tokens_BT": ok[:1]}, "cache has 2 rows, tokens_BT has 1"),
    "too few lengths": ({"lengths_B": [3]}, r"2 values from 0 to 3, got \[3\]"),
    "length too long": ({"lengths_B": [3, 4]}, r"from 0 to 3, got \[3, 4\]"),
    "length negative": ({"lengths_B": [-1, 2]}, r"from 0 to 3, got \[-1, 2\]"),
    "fractional length": ({"lengths_B": [1.5, 2]}, "lengths_B"),
    "float lengths": ({"lengths_B": torch.tensor([1.5, 2.0])}, "lengths_B"),
    "cache full": ({"tokens_BT": ok.repeat(1, 2)}, "7 tokens and 6 more make 13.* is 12"),
    "context full": (
        {"tokens_BT": ok.repeat(1, 15)},
        "52 tokens do not fit: the context of gqa is 50",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
@pytest.mark.parametrize("fused", [False, True])
def test_bad_input_is_refused_and_the_cache_stays(name: str, fused: bool) -> None:
    decoder = fuse(tiny(GQA)) if fused else tiny(GQA)
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=12, dtype=F64)
    decoder(token_ids(3, GQA.vocab_size, 2, 7), cache=cache)
    before = stored(cache, GQA)
    arguments, message = MISUSES[name]
    with pytest.raises(ValueError, match=message) as caught:
        decoder(**{"tokens_BT": ok, "cache": cache, **arguments})
    assert "\n" not in str(caught.value)
    assert stored(cache, GQA) == before
    decoder(ok, cache=cache)


def test_the_context_may_be_filled_to_the_last_position() -> None:
    decoder = tiny(GQA)
    tokens = token_ids(0, GQA.vocab_size, 1, GQA.max_context + 1)
    cache = ConcatenatingCache(GQA, dtype=F64)
    decoder(tokens[:, : GQA.max_context], cache=cache)
    for bad in (tokens[:, :1], tokens):
        with pytest.raises(ValueError, match="do not fit"):
            decoder(bad, cache=cache)
    with pytest.raises(ValueError, match="51 tokens do not fit"):
        decoder(tokens)
    # Pads do not count against the context.
    short = ContiguousCache(GQA, batch_size=2, max_tokens=50, dtype=F64)
    decoder(tokens[:, :48].repeat(2, 1), cache=short, lengths_B=[48, 3])
    decoder(tokens[:, :4].repeat(2, 1), cache=short, lengths_B=[2, 4])
    assert short.num_tokens.tolist() == [50, 7]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", [ContiguousCache, ConcatenatingCache])
def test_a_failure_in_mid_pass_leaves_the_cache_as_it_was(
    kind: type, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ragged and kind is ConcatenatingCache:
        pytest.skip("this cache holds rows of one length only")
    decoder = tiny(MHA)
    options = {"max_tokens": 20} if kind is ContiguousCache else {}
    cache = kind(MHA, batch_size=2, dtype=F64, **options)
    decoder(token_ids(0, MHA.vocab_size, 2, 5), cache=cache, lengths_B=[5, 2] if ragged else None)
    before = stored(cache, MHA)
    step = token_ids(1, MHA.vocab_size, 2, 3)

    def fail(*_: Any) -> None:
        assert cache.read(0)[0].shape[2] == 8, "the first layers had been written"
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(decoder.layers[-1].mlp, "forward", fail)
        with pytest.raises(Interrupted):
            decoder(step, cache=cache)
    assert stored(cache, MHA) == before
    got = decoder(step, cache=cache)
    fresh = kind(MHA, batch_size=2, dtype=F64, **options)
    decoder(token_ids(0, MHA.vocab_size, 2, 5), cache=fresh, lengths_B=[5, 2] if ragged else None)
    assert torch.equal(got, decoder(step, cache=fresh))


def test_forward_keeps_nothing_in_the_model() -> None:
    decoder = tiny(GQA)
    names = set(dict(decoder.named_buffers()))
    cache = new_cache(GQA)
    tokens = token_ids(0, GQA.vocab_size, 1, 6)
    first = decoder(tokens, cache=cache)
    assert torch.equal(decoder(tokens), decoder(tokens))
    assert torch.equal(decoder(tokens), first)
    assert set(dict(decoder.named_buffers())) == names == set()


# --- fuse -----------------------------------------------------------------------------------


@archs
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(F64, EXACT), (torch.float32, FLOAT32)], ids=["f64", "f32"]
)
def test_a_fused_decoder_computes_the_same(
    arch: Architecture, dtype: torch.dtype, tolerance: dict
) -> None:
    plain = tiny(arch, 3, dtype)
    fused = fuse(plain)
    tokens = token_ids(2, arch.vocab_size, 3, 20)
    want = plain(tokens)
    torch.testing.assert_close(fused(tokens), want, **tolerance)
    for edges in ([0, 20], [0, 7, 8, 9, 20], [0, 1, 2, 19, 20]):
        cache = new_cache(arch, 3, dtype)
        got = [fused(tokens[:, a:b], cache=cache) for a, b in itertools.pairwise(edges)]
        torch.testing.assert_close(torch.cat(got, dim=1), want, **tolerance)
    lengths = [20, 4, 11]
    ragged, plain_ragged = new_cache(arch, 3, dtype), new_cache(arch, 3, dtype)
    got, want = fused(tokens, cache=ragged, lengths_B=lengths), want
    for row, n in enumerate(lengths):
        torch.testing.assert_close(got[row, :n], want[row, :n], **tolerance)
    plain(tokens, cache=plain_ragged, lengths_B=lengths)
    for T in (1, 3):
        step = token_ids(T, arch.vocab_size, 3, T)
        got, want = fused(step, cache=ragged), plain(step, cache=plain_ragged)
        assert got.isfinite().all()
        torch.testing.assert_close(got, want, **tolerance)


def test_fusing_leaves_the_plain_decoder_alone() -> None:
    plain = tiny(GQA)
    names = list(plain.state_dict())
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    tokens = token_ids(2, GQA.vocab_size, 1, 6)
    before = plain(tokens)
    fused = fuse(plain)
    fused(tokens)
    assert list(plain.state_dict()) == names
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items())
    assert torch.equal(plain(tokens), before)
    assert not hasattr(plain.layers[0].attention, "qkv")
    assert not hasattr(fused.layers[0].attention, "q")
    assert fused.embed is plain.embed
    assert fused.arch is plain.arch
    assert fused.dtype == plain.dtype


def test_fused_weights_are_those_of_the_plain_decoder() -> None:
    fused = fuse(tiny(GQA))
    names = {name.split(".", 2)[-1] for name, _ in fused.named_parameters() if "layers" in name}
    assert names == {
        "attention_norm.weight",
        "attention.o.weight",
        "attention.qkv.weight",
        "mlp_norm.weight",
        "mlp.gate_up.weight",
        "mlp.down.weight",
    }
    total = sum(p.numel() for p in fused.parameters())
    assert total == sum(p.numel() for p in tiny(GQA).parameters())
    assert not any(math.isnan(float(p.sum())) for p in fused.parameters())
