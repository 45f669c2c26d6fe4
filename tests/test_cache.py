"""The contiguous and the concatenating cache against lists of vectors, one per token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CASES, GQA, MHA, MQA, append_all, new_tokens, normal, tiny, token_ids

from refimpl.architecture import Architecture
from refimpl.attention import attend
from refimpl.cache import ConcatenatingCache, ContiguousCache, KVCache, SlotCache
from refimpl.sizing import kv_bytes_per_token

F64 = torch.float64
MAKERS = {
    "contiguous": lambda arch, B, **o: ContiguousCache(arch, batch_size=B, max_tokens=9, **o),
    "concatenating": lambda arch, B, **o: ConcatenatingCache(arch, batch_size=B, **o),
}
either = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def snapshot(cache: Any, arch: Architecture) -> list[Any]:
    """Everything a cache holds that can be seen from outside."""
    held = cache.num_tokens.tolist()
    seen: list[Any] = [held, cache.num_bytes]
    for layer in range(arch.num_layers):
        for x in cache.read(layer):
            seen.append([x[row, :, :n].tolist() for row, n in enumerate(held)])
    return seen


@either
@pytest.mark.parametrize("arch", [MHA, GQA, MQA], ids=lambda arch: arch.name)
def test_caches_follow_the_protocol(make: Any, arch: Architecture) -> None:
    cache = make(arch, 2)
    assert isinstance(cache, KVCache)
    assert cache.dtype == torch.float32
    assert cache.num_tokens.dtype == torch.int64
    assert cache.num_tokens.tolist() == [0, 0]
    for layer in range(arch.num_layers):
        k, v = cache.read(layer)
        assert k.shape == v.shape == (2, arch.num_kv_heads, 0, arch.head_dim)
    append_all(cache, arch, 4, 0)
    assert cache.num_tokens.tolist() == [4, 4]
    k, v = cache.read(arch.num_layers - 1)
    assert k.shape == v.shape == (2, arch.num_kv_heads, 4, arch.head_dim)
    assert k.dtype == v.dtype == torch.float32


@either
def test_tokens_count_only_once_every_layer_holds_them(make: Any) -> None:
    cache = make(MHA, 1, dtype=F64)
    for layer in range(MHA.num_layers):
        assert cache.num_tokens.tolist() == [0]
        cache.append(layer, *new_tokens(MHA, 1, 2, layer))
        assert cache.read(layer)[0].shape[2] == 2, "the layer itself can be read at once"
    assert cache.num_tokens.tolist() == [2]


@either
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_num_bytes_is_what_the_tensors_occupy(make: Any, dtype: torch.dtype) -> None:
    cache = make(GQA, 3, dtype=dtype)
    slots = 9 if isinstance(cache, ContiguousCache) else 0
    per_slot = 2 * 2 * 3 * 10 * (torch.finfo(dtype).bits // 8)
    assert cache.num_bytes == 3 * slots * per_slot
    append_all(cache, GQA, 5, 0)
    slots = 9 if isinstance(cache, ContiguousCache) else 5
    assert cache.num_bytes == 3 * slots * per_slot
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for layer in range(GQA.num_layers)
        for x in cache.read(layer)
    }
    assert cache.num_bytes == sum(storages.values()), "no hidden copies, no shared buffers"
    cache.reorder([0])
    assert cache.num_bytes == slots * per_slot
    if isinstance(cache, ConcatenatingCache):
        cache.truncate([2])
        assert cache.num_bytes == 2 * per_slot


def test_unwritten_slots_hold_nan() -> None:
    cache = ContiguousCache(GQA, batch_size=2, max_tokens=6, dtype=F64)
    append_all(cache, GQA, 4, 0, [4, 1])
    for layer in range(GQA.num_layers):
        for x in cache.read(layer):
            assert x[0].isfinite().all()
            assert x[1, :, :1].isfinite().all()
            assert x[1, :, 1:].isnan().all()
    cache.truncate([2, 1])
    append_all(cache, GQA, 3, 5, [0, 3])
    for layer in range(GQA.num_layers):
        for x in cache.read(layer):
            assert x[0, :, 2:].isnan().all(), "no stale tail after truncate"
            assert x[1].isfinite().all()


# --- random histories -----------------------------------------------------------------------


class Lists:
    """The plainest cache: per layer and row, a list of (key, value) of each token."""

    def __init__(self, arch: Architecture, B: int) -> None:
        self.held: list[list[list[tuple]]] = [
            [[] for _ in range(B)] for _ in range(arch.num_layers)
        ]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> None:
        for row, n in enumerate(lengths):
            self.held[layer][row] += [(k[row, :, t], v[row, :, t]) for t in range(n)]

    def truncate(self, lengths: list[int]) -> None:
        self.held = [[row[:n] for row, n in zip(rows, lengths, strict=True)] for rows in self.held]

    def reorder(self, order: list[int]) -> None:
        self.held = [[list(rows[i]) for i in order] for rows in self.held]

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.held[0]]


def check_equal(cache: Any, lists: Lists) -> None:
    assert cache.num_tokens.tolist() == lists.lengths
    for layer, rows in enumerate(lists.held):
        k, v = cache.read(layer)
        assert k.shape[2] == max(lists.lengths)
        for row, tokens in enumerate(rows):
            for t, (key, value) in enumerate(tokens):
                assert torch.equal(k[row, :, t], key)
                assert torch.equal(v[row, :, t], value)
        # What attention makes of it: junk behind a row's end never reaches the output.
        readable = torch.arange(k.shape[2]) < cache.num_tokens[:, None]
        q = normal(layer, k.shape[0], GQA.num_query_heads, 1, GQA.head_dim)
        out = attend(q, k, v, causal=False, mask_BTS=readable[:, None])
        assert out.isfinite().all()


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "truncate", "reorder"]),
        st.integers(0, 10),
        st.lists(st.integers(0, 10), min_size=4, max_size=4),
    ),
    min_size=1,
    max_size=9,
)


@given(steps=steps, B=st.integers(1, 3), capacity=st.sampled_from([1, 5, 8, 9]))
@settings(max_examples=120)
def test_any_history_of_ragged_rows(steps: list, B: int, capacity: int) -> None:
    cache = ContiguousCache(GQA, batch_size=B, max_tokens=capacity, dtype=F64)
    lists = Lists(GQA, B)
    for seed, (action, size, numbers) in enumerate(steps):
        B = len(lists.lengths)
        if action == "append":
            lengths = [min(n, size) for n in numbers[:B]]
            fits = all(h + n <= capacity for h, n in zip(lists.lengths, lengths, strict=True))
            for layer in range(GQA.num_layers):
                k, v = new_tokens(GQA, B, size, 100 * seed + layer)
                if not fits:
                    before = snapshot(cache, GQA)
                    with pytest.raises(ValueError, match="cache is full"):
                        cache.append(layer, k, v, lengths)
                    assert snapshot(cache, GQA) == before
                    continue
                cache.append(layer, k, v, torch.tensor(lengths) if seed % 2 else lengths)
                lists.append(layer, k, v, lengths)
        elif action == "truncate":
            lengths = [min(n, held) for n, held in zip(numbers, lists.lengths, strict=False)]
            cache.truncate(lengths if seed % 2 else torch.tensor(lengths))
            lists.truncate(lengths)
        else:
            order = [n % B for n in numbers[: 1 + size % 4]]
            cache.reorder(torch.tensor(order) if seed % 2 else order)
            lists.reorder(order)
        check_equal(cache, lists)


@given(steps=steps, B=st.integers(1, 3))
def test_any_history_of_equal_rows_in_both_caches(steps: list, B: int) -> None:
    caches = [
        ConcatenatingCache(GQA, batch_size=B, dtype=F64),
        ContiguousCache(GQA, batch_size=B, max_tokens=90, dtype=F64),
    ]
    lists = Lists(GQA, B)
    for seed, (action, size, numbers) in enumerate(steps):
        B = len(lists.lengths)
        if action == "append":
            n = min(size, numbers[0])
            for layer in range(GQA.num_layers):
                k, v = new_tokens(GQA, B, size, 100 * seed + layer)
                lists.append(layer, k, v, [n] * B)
                for cache in caches:
                    if n == size:
                        cache.append(layer, k, v)
                    else:
                        cache.append(layer, k, v, [n] * B)
        elif action == "truncate":
            lengths = [min(numbers[0], lists.lengths[0])] * B
            lists.truncate(lengths)
            for cache in caches:
                cache.truncate(lengths)
        else:
            order = [n % B for n in numbers[: 1 + size % 4]]
            lists.reorder(order)
            for cache in caches:
                cache.reorder(order)
        for cache in caches:
            check_equal(cache, lists)


@pytest.mark.parametrize("total", [8, 9])
def test_exactly_full_is_not_too_full(total: int) -> None:
    cache = ContiguousCache(GQA, batch_size=1, max_tokens=9, dtype=F64)
    append_all(cache, GQA, total, 0)
    append_all(cache, GQA, 9 - total, 1)
    assert cache.num_tokens.tolist() == [9]
    before = snapshot(cache, GQA)
    append_all(cache, GQA, 0, 2)
    assert snapshot(cache, GQA) == before
    with pytest.raises(ValueError, match=r"row 0 holds 9 tokens and 1 more make 10.*is 9"):
        append_all(cache, GQA, 1, 3)
    assert snapshot(cache, GQA) == before


# --- what must stay as it was ---------------------------------------------------------------

k_ok, v_ok = new_tokens(GQA, 2, 3, 50)
MISUSES: dict[str, tuple[Any, str]] = {
    "layer too high": (lambda c: c.append(2, k_ok, v_ok), "layer 2 is outside 0 to 1"),
    "layer negative": (lambda c: c.append(-1, k_ok, v_ok), "layer -1"),
    "read beyond the last layer": (lambda c: c.read(2), "layer 2 is outside 0 to 1"),
    "read a negative layer": (lambda c: c.read(-1), "layer -1"),
    "wrong batch": (lambda c: c.append(0, k_ok[:1], v_ok[:1]), r"k_BGTD must be \(2, 3, T, 10\)"),
    "wrong heads": (lambda c: c.append(0, k_ok[:, :2], v_ok[:, :2]), "k_BGTD must be"),
    "wrong head dim": (lambda c: c.append(0, k_ok[..., :8], v_ok[..., :8]), r"got \(2, 3, 3, 8\)"),
    "wrong value": (lambda c: c.append(0, k_ok, v_ok[..., :8]), "v_BGTD must be"),
    "heads and positions swapped": (
        lambda c: c.append(0, k_ok[:, :, :2].transpose(1, 2), v_ok[:, :, :2].transpose(1, 2)),
        "k_BGTD must be",
    ),
    "three axes": (lambda c: c.append(0, k_ok[0], v_ok[0]), "k_BGTD must be"),
    "key of another dtype": (lambda c: c.append(0, k_ok.float(), v_ok), "k_BGTD is torch.float32"),
    "value of another dtype": (lambda c: c.append(0, k_ok, v_ok.half()), "v_BGTD is torch.float16"),
    "fewer values": (lambda c: c.append(0, k_ok, v_ok[:, :, :2]), "k has 3 new tokens, v has 2"),
    "length too long": (lambda c: c.append(0, k_ok, v_ok, [3, 4]), r"lengths_B\[1\] is 4"),
    "length negative": (lambda c: c.append(0, k_ok, v_ok, [-1, 2]), r"lengths_B\[0\] is -1"),
    "too few lengths": (lambda c: c.append(0, k_ok, v_ok, [3]), "each of 2 rows, got 1"),
    "fractional length": (lambda c: c.append(0, k_ok, v_ok, [1.0, 2]), "integers, got 1.0"),
    "float lengths": (lambda c: c.append(0, k_ok, v_ok, torch.ones(2)), "integers"),
    "bool lengths": (lambda c: c.append(0, k_ok, v_ok, [True, 1]), "integers, got True"),
    "truncate longer": (lambda c: c.truncate([5, 5]), r"lengths_B\[0\] is 5, outside 0 to 4"),
    "truncate negative": (lambda c: c.truncate([-1, -1]), r"lengths_B\[0\] is -1"),
    "truncate fewer rows": (lambda c: c.truncate([1]), "each of 2 rows, got 1"),
    "truncate float": (lambda c: c.truncate(torch.tensor([1.0, 1.0])), "integers"),
    "truncate matrix": (lambda c: c.truncate(torch.tensor([[1, 1]])), "1-D"),
    "reorder beyond": (lambda c: c.reorder([0, 2]), r"rows_B\[1\] is 2, outside 0 to 1"),
    "reorder negative": (lambda c: c.reorder([-1]), r"rows_B\[0\] is -1"),
    "reorder empty": (lambda c: c.reorder([]), "at least one row"),
    "truncate one number": (lambda c: c.truncate(2), "a list or a 1-D tensor of integers, got 2"),
    "reorder float": (lambda c: c.reorder([0.5]), "integers, got 0.5"),
}


@either
@pytest.mark.parametrize("name", MISUSES)
def test_a_refused_operation_changes_nothing(make: Any, name: str) -> None:
    cache = make(GQA, 2, dtype=F64)
    append_all(cache, GQA, 4, 0)
    before = snapshot(cache, GQA)
    call, message = MISUSES[name]
    with pytest.raises(ValueError, match=message) as caught:
        call(cache)
    assert "\n" not in str(caught.value)
    assert snapshot(cache, GQA) == before
    append_all(cache, GQA, 2, 9)  # and it goes on working
    assert cache.num_tokens.tolist() == [6, 6]


@either
def test_integers_of_numpy_are_integers(make: Any) -> None:
    cache = make(GQA, 2, dtype=F64)
    append_all(cache, GQA, 4, 0)
    cache.truncate(np.array([3, 3]))
    assert cache.num_tokens.tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"must hold integers, got np.float64\(2.0\)"):
        cache.truncate(np.array([2.0, 2.0]))
    assert cache.num_tokens.tolist() == [3, 3]


def test_rows_of_different_length_are_refused_by_concatenation() -> None:
    cache = ConcatenatingCache(GQA, batch_size=2, dtype=F64)
    append_all(cache, GQA, 4, 0)
    before = snapshot(cache, GQA)
    with pytest.raises(ValueError, match=r"\[4, 4\] and \[3, 2\] are new; use ContiguousCache"):
        cache.append(0, k_ok, v_ok, [3, 2])
    with pytest.raises(ValueError, match=r"one length, got \[3, 2\]"):
        cache.truncate([3, 2])
    assert snapshot(cache, GQA) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0, "max_tokens": 4}, "batch_size must be a positive integer, got 0"),
        ({"batch_size": 1.0, "max_tokens": 4}, "batch_size must be a positive integer, got 1.0"),
        ({"batch_size": 1, "max_tokens": 0}, "max_tokens must be a positive integer, got 0"),
        ({"batch_size": 1, "max_tokens": 2.5}, "max_tokens must be a positive integer, got 2.5"),
        ({"batch_size": 1, "max_tokens": True}, "max_tokens must be a positive integer, got True"),
        ({"batch_size": 1, "max_tokens": 4, "dtype": torch.int8}, "got torch.int8"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContiguousCache(GQA, **options)
    options.pop("max_tokens")
    if "max_tokens" not in message:
        with pytest.raises(ValueError, match=message):
            ConcatenatingCache(GQA, **options)


@pytest.mark.parametrize("name", ["deepseek-v3", "jamba-v0.1", "kimi-linear-48b", "mamba-2.8b"])
def test_layers_of_other_shapes_are_refused(name: str) -> None:
    arch = Architecture.named(name)
    for make in (
        lambda: ContiguousCache(arch, max_tokens=2),
        lambda: ConcatenatingCache(arch),
        lambda: SlotCache(arch, num_slots=2),
    ):
        with pytest.raises(ValueError, match=f"of {name} .* one shape for all layers"):
            make()


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "gemma-3-270m"])
def test_layers_of_one_shape_are_held_whoever_runs_them(name: str) -> None:
    arch = Architecture.named(name)
    assert not arch.runnable
    cache = ContiguousCache(arch, max_tokens=3, dtype=torch.bfloat16)
    assert cache.num_bytes == 3 * kv_bytes_per_token(arch, "bf16")


# --- the known failures ---------------------------------------------------------------------


@pytest.mark.case("KV-01")
@either
def test_keys_and_values_stay_apart_through_every_mutator(make: Any) -> None:
    row = CASES["KV-01"]["inputs"]
    cache = make(GQA, 2, dtype=F64)
    for layer in range(GQA.num_layers):
        k = torch.full((2, 3, 4, 10), float(row["k"]), dtype=F64)
        k[1] += 10  # rows are distinguishable too
        cache.append(layer, k, k + (row["v"] - row["k"]))

    def check(rows: list[int], length: int) -> None:
        want = CASES["KV-01"]["expected"]
        for layer in range(GQA.num_layers):
            k, v = cache.read(layer)
            assert k.shape[2] == length
            for i, origin in enumerate(rows):
                assert (k[i] == want["k"] + 10 * origin).all()
                assert (v[i] == want["v"] + 10 * origin).all()

    check([0, 1], 4)
    cache.reorder([i for i in range(2) for _ in range(row["repeat"])])
    check([0, 0, 1, 1], 4)
    cache.reorder([2, 0])
    check([1, 0], 4)
    cache.reorder(row["select"])
    check([0, 1], 4)
    cache.reorder(row["select"])
    cache.truncate([row["kept"]] * 2)
    check([1, 0], row["kept"])


def test_copies_of_a_row_do_not_share_memory() -> None:
    cache = ContiguousCache(GQA, batch_size=1, max_tokens=4, dtype=F64)
    append_all(cache, GQA, 2, 0)
    cache.reorder([0, 0])
    append_all(cache, GQA, 1, 5)
    k, _ = cache.read(0)
    assert torch.equal(k[0, :, :2], k[1, :, :2])
    assert not torch.equal(k[0, :, 2], k[1, :, 2])


@pytest.mark.case("KV-11")
def test_a_longer_prompt_than_the_buffer_is_refused_before_any_write() -> None:
    row = CASES["KV-11"]["inputs"]
    decoder = tiny(GQA)
    cache = ContiguousCache(GQA, max_tokens=row["max_tokens"], dtype=F64)
    decoder(token_ids(0, GQA.vocab_size, 1, 3), cache=cache)
    before = snapshot(cache, GQA)
    prompt = token_ids(1, GQA.vocab_size, 1, row["prompt_length"])
    with pytest.raises(ValueError, match="3 tokens and 6 more make 9, but max_tokens is 5"):
        decoder(prompt, cache=cache)
    assert snapshot(cache, GQA) == before
    cache.truncate([0])
    with pytest.raises(ValueError, match="6 more make 6, but max_tokens is 5"):
        decoder(prompt, cache=cache)
    assert cache.num_tokens.tolist() == [0]
    decoder(prompt[:, :5], cache=cache)


@pytest.mark.case("KV-12")
def test_the_cache_is_as_wide_as_the_head_and_writes_stay_inside() -> None:
    row = CASES["KV-12"]
    size = row["inputs"]
    arch = Architecture(
        name="wide",
        num_layers=2,
        model_width=size["model_width"],
        num_query_heads=size["num_query_heads"],
        num_kv_heads=2,
        head_dim=size["head_dim"],
        mlp_width=30,
        vocab_size=19,
        max_context=200,
    )
    assert arch.model_width // arch.num_query_heads == row["expected"]["refused_width"]
    cache = ContiguousCache(arch, batch_size=3, max_tokens=100, dtype=F64)
    # The middle of a larger block of memory, with a guard on both sides.
    guard = 7
    blocks = {}
    for name in ("_k", "_v"):
        for layer, buffer in enumerate(getattr(cache, name)):
            block = torch.full((buffer.numel() + 2 * guard,), -5.5, dtype=F64)
            block[guard:-guard] = math.nan
            getattr(cache, name)[layer] = block[guard:-guard].view(buffer.shape)
            blocks[name, layer] = block
    narrow = torch.zeros(3, 2, 1, row["expected"]["refused_width"], dtype=F64)
    decoder = tiny(arch)
    weights = [parameter.clone() for parameter in decoder.parameters()]
    for step in range(size["writes"]):
        with pytest.raises(ValueError, match=r"must be \(3, 2, T, 8\), got \(3, 2, 1, 6\)"):
            cache.append(0, narrow, narrow)
        decoder(token_ids(step, 19, 3, 1), cache=cache, lengths_B=[1, step % 2, 0])
    assert cache.num_tokens.tolist() == [100, 50, 0]
    for block in blocks.values():
        assert (block[:guard] == -5.5).all()
        assert (block[-guard:] == -5.5).all()
        inside = block[guard:-guard].view(3, 2, 100, row["expected"]["width"])
        assert inside[0].isfinite().all()
        assert inside[1, :, :50].isfinite().all()
        assert inside[1, :, 50:].isnan().all()
        assert inside[2].isnan().all()
    after = list(decoder.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, after, strict=True))
