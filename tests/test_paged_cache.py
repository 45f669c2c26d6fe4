"""The paged cache against lists of vectors, and against a contiguous cache inside a model.

Slots that no sequence can read are filled with NaN after every step, whatever they held before: a
read that strays into a neighbour's block, a released one or a stale tail shows as NaN or as a
wrong number.
"""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracles import (
    GQA,
    LLAMA3,
    MHA,
    MQA,
    append_all,
    attention_by_loops,
    new_tokens,
    normal,
    rows,
    tiny,
    token_ids,
)
from torch import Tensor

from refimpl import weights
from refimpl.architecture import Architecture
from refimpl.attention import attend
from refimpl.blocks import OutOfBlocks, slot_offset
from refimpl.cache import BlockPool, ContiguousCache, KVCache, PagedCache
from refimpl.cache.pool import padded
from refimpl.decode import generate
from refimpl.model import Decoder, fuse
from refimpl.sizing import kv_bytes_per_token

CASES = rows("cases_paged.json")
F64 = torch.float64


def shuffled(num_blocks: int, seed: int) -> list[int]:
    order = list(range(num_blocks))
    random.Random(seed).shuffle(order)
    return order


def on_pool(pool: BlockPool, batch_size: int) -> PagedCache:
    """A cache of empty rows over a pool."""
    return PagedCache.over(pool, [pool.allocator.allocate() for _ in range(batch_size)])


def poison(pool: BlockPool) -> None:
    """NaN in every slot that no table can read."""
    N, P = pool.allocator.num_blocks, pool.block_size
    unreadable_NP = torch.ones(N, P, dtype=torch.bool)
    for table in pool.allocator.tables:
        for position in range(table.num_tokens):
            unreadable_NP[table.locate(position)] = False
    for x_LNGPD in (pool.k_LNGPD, pool.v_LNGPD):
        x_LNGPD.permute(1, 3, 0, 2, 4)[unreadable_NP] = torch.nan


def snapshot(cache: PagedCache) -> list[Any]:
    """Everything that can be seen of a cache and of its pool."""
    allocator = cache.pool.allocator
    seen: list[Any] = [cache.num_tokens.tolist(), allocator.free_blocks, allocator.num_used]
    seen += [(tuple(t.blocks), t.num_tokens) for t in cache.tables]
    seen += [x.numpy().tobytes() for x in (cache.pool.k_LNGPD, cache.pool.v_LNGPD)]
    return seen


# --- any history ------------------------------------------------------------------------------

Row = list[list[tuple[Tensor, Tensor]]]  # per layer: key and value [G, D] of each token


class AnyHistory(RuleBasedStateMachine):
    """Several caches over one pool grow, shrink, fork, reorder their rows and leave."""

    num_steps = num_full = 0

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from([1, 2, 3, 4]),
        seed=st.integers(0, 99),
        B=st.integers(1, 3),
    )
    def start(self, num_blocks: int, block_size: int, seed: int, B: int) -> None:
        order = shuffled(num_blocks, seed)
        self.pool = BlockPool(
            GQA, num_blocks=num_blocks, block_size=block_size, dtype=F64, order=order
        )
        type(self).num_steps -= 1  # the invariant runs after this too, which is no step
        self.seed = 0
        self.held: list[tuple[PagedCache, list[Row]]] = []
        self.add(B)

    def add(self, B: int) -> None:
        rows = [[[] for _ in range(GQA.num_layers)] for _ in range(B)]
        self.held.append((on_pool(self.pool, B), rows))

    def pick(self, choice: int) -> tuple[PagedCache, list[Row]]:
        return self.held[choice % len(self.held)]

    @precondition(lambda self: len(self.held) < 3)
    @rule(B=st.integers(1, 3))
    def another_cache(self, B: int) -> None:
        self.add(B)

    @rule(
        choice=st.integers(0, 2),
        T=st.integers(0, 6),
        numbers=st.lists(st.integers(0, 6), min_size=4, max_size=4),
        ragged=st.booleans(),
    )
    def append(self, choice: int, T: int, numbers: list[int], ragged: bool) -> None:
        cache, lists = self.pick(choice)
        lengths = [min(n, T) if ragged else T for n in numbers[: len(lists)]]
        for layer in range(GQA.num_layers):
            self.seed += 1
            k, v = new_tokens(GQA, len(lists), T, self.seed)
            before = snapshot(cache)
            try:
                cache.append(layer, k, v, lengths if ragged else None)
            except ValueError:  # the first layer takes the blocks for all of them
                assert layer == 0
                assert snapshot(cache) == before
                most = max(len(row[0]) + n for row, n in zip(lists, lengths, strict=True))
                needed = self.pool.allocator.num_needed(cache.tables, lengths)
                assert needed > self.pool.allocator.num_free or most > cache.max_tokens
                type(self).num_full += 1
                return
            for b, (row, n) in enumerate(zip(lists, lengths, strict=True)):
                row[layer] += [(k[b, :, t], v[b, :, t]) for t in range(n)]

    @rule(choice=st.integers(0, 2), numbers=st.lists(st.integers(0, 12), min_size=4, max_size=4))
    def truncate(self, choice: int, numbers: list[int]) -> None:
        cache, lists = self.pick(choice)
        kept = [min(n, len(row[0])) for n, row in zip(numbers, lists, strict=False)]
        cache.truncate(kept)
        for row, n in zip(lists, kept, strict=True):
            for tokens in row:
                del tokens[n:]

    @rule(choice=st.integers(0, 2), order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, choice: int, order: list[int]) -> None:
        cache, lists = self.pick(choice)
        order = [n % len(lists) for n in order]
        used = self.pool.allocator.num_used
        cache.reorder(order)
        lists[:] = [[list(tokens) for tokens in lists[row]] for row in order]
        assert self.pool.allocator.num_used <= used, "no block is taken"

    @precondition(lambda self: len(self.held) < 3)
    @rule(choice=st.integers(0, 2))
    def fork(self, choice: int) -> None:
        cache, lists = self.pick(choice)
        twins = [self.pool.allocator.fork(table) for table in cache.tables]
        copies = [[list(tokens) for tokens in row] for row in lists]
        self.held.append((PagedCache.over(self.pool, twins), copies))

    @precondition(lambda self: len(self.held) > 1)
    @rule(choice=st.integers(0, 2))
    def free(self, choice: int) -> None:
        cache, _ = self.held.pop(choice % len(self.held))
        cache.free()
        with pytest.raises(ValueError, match="freed"):
            cache.free()

    @invariant()
    def every_row_reads_its_tokens(self) -> None:
        type(self).num_steps += 1
        poison(self.pool)
        self.pool.allocator.check_invariants()
        for cache, lists in self.held:
            cache.check_invariants()
            lengths = [len(row[0]) for row in lists]
            assert cache.num_tokens.tolist() == lengths
            for layer in range(GQA.num_layers):
                k, v = cache.read(layer)
                assert k.shape[2] == v.shape[2] == max(lengths)
                for b, row in enumerate(lists):
                    for x, tokens in (
                        (k, [t[0] for t in row[layer]]),
                        (v, [t[1] for t in row[layer]]),
                    ):
                        if tokens:
                            assert torch.equal(x[b, :, : len(tokens)], torch.stack(tokens, dim=1))
                readable = torch.arange(max(lengths)) < cache.num_tokens[:, None]
                q = normal(layer, len(lists), GQA.num_query_heads, 1, GQA.head_dim)
                out = attend(q, k, v, causal=False, mask_BTS=readable[:, None])
                assert out.isfinite().all()


def test_any_history() -> None:
    AnyHistory.num_steps = AnyHistory.num_full = 0
    run_state_machine_as_test(
        AnyHistory, settings=settings(max_examples=70, stateful_step_count=50)
    )
    assert AnyHistory.num_steps >= 2000
    assert AnyHistory.num_full >= 50, "pools are small enough to be full now and then"


# --- in a model -------------------------------------------------------------------------------


def logits_step_by_step(model: Decoder, cache: Any, prompts: list[list[int]], steps: int) -> Tensor:
    """Logits ``[steps + 1, B, V]`` behind each row's last token, feeding back the best one."""
    lengths = [len(prompt) for prompt in prompts]
    padded = [prompt + [0] * (max(lengths) - len(prompt)) for prompt in prompts]
    logits = model(torch.tensor(padded), cache=cache, lengths_B=lengths)
    seen = [logits[torch.arange(len(prompts)), torch.tensor(lengths) - 1]]
    for _ in range(steps):
        best = seen[-1].argmax(dim=-1, keepdim=True)
        seen.append(model(best, cache=cache)[:, -1])
    return torch.stack(seen)


def prompts_of(lengths: list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    return [
        token_ids(seed + row, vocab_size, length).tolist() for row, length in enumerate(lengths)
    ]


EDGES = [
    (size, k, [n for n in (k * size - 1, k * size, k * size + 1) if n])
    for size in (1, 2, 3, 16, 64)
    for k in ((1, 2, 3) if size < 16 else (1, 2) if size == 16 else (1,))
]


@pytest.mark.parametrize(("block_size", "k", "lengths"), EDGES)
def test_generation_gives_the_ids_and_logits_of_the_contiguous_cache(
    block_size: int, k: int, lengths: list[int]
) -> None:
    model, steps = tiny(LLAMA3, 7), 4
    per_row = -(-(max(lengths) + steps) // block_size)
    for batch in [[n] for n in lengths] + [lengths]:
        num_blocks = per_row * len(batch) + 3
        prompts = prompts_of(batch, LLAMA3.vocab_size)
        contiguous = ContiguousCache(
            LLAMA3, batch_size=len(batch), max_tokens=max(batch) + steps, dtype=F64
        )
        want = logits_step_by_step(model, contiguous, prompts, steps)
        stops = [int(want[1, 0].argmax())]  # a row that has this token ends before the others
        wanted_ids = generate(model, prompts, max_new_tokens=steps, stop_tokens=stops)
        for order in (list(range(num_blocks)), shuffled(num_blocks, k)):
            pool = BlockPool(
                LLAMA3, num_blocks=num_blocks, block_size=block_size, dtype=F64, order=order
            )
            cache = on_pool(pool, len(batch))
            got = logits_step_by_step(model, cache, prompts, steps)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
            assert torch.equal(got.argmax(-1), want.argmax(-1))
            assert cache.num_tokens.tolist() == [n + steps for n in batch]
            used = sum(-(-(n + steps) // block_size) for n in batch)
            assert pool.allocator.num_used == used
            cache.check_invariants()
            cache.truncate([0] * len(batch))
            assert pool.allocator.num_used == 0
            ids = generate(model, prompts, max_new_tokens=steps, stop_tokens=stops, cache=cache)
            assert ids == wanted_ids
    # The whole sequence at once, without any cache, says the same as the last batch did.
    fed = want.argmax(-1)
    for row, prompt in enumerate(prompts):
        whole = model(torch.tensor([prompt + fed[:steps, row].tolist()]))[0, len(prompt) - 1 :]
        torch.testing.assert_close(want[:, row], whole, rtol=0, atol=1e-10)


@given(
    data=st.data(),
    block_size=st.sampled_from([1, 2, 3, 5]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
@settings(max_examples=25)
def test_any_order_of_physical_blocks(data: Any, block_size: int, lengths: list[int]) -> None:
    model = tiny(MQA, 2)
    num_blocks = sum(-(-(n + 3) // block_size) for n in lengths) + 2
    order = data.draw(st.permutations(range(num_blocks)))
    pool = BlockPool(MQA, num_blocks=num_blocks, block_size=block_size, dtype=F64, order=order)
    # Blocks that hold another sequence's tokens lie between.
    other = on_pool(pool, 1)
    append_all(other, MQA, block_size + 1, 50)
    prompts = prompts_of(lengths, MQA.vocab_size, 3)
    contiguous = ContiguousCache(MQA, batch_size=len(lengths), max_tokens=12, dtype=F64)
    want = logits_step_by_step(model, contiguous, prompts, 3)
    got = logits_step_by_step(model, on_pool(pool, len(lengths)), prompts, 3)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 11])
def test_a_prompt_in_pieces_is_the_prompt(chunk: int) -> None:
    model = tiny(GQA, 5)
    tokens_BT = token_ids(5, GQA.vocab_size, 2, 11)
    cache = PagedCache(GQA, batch_size=2, num_blocks=6, block_size=4, dtype=F64)
    parts = [model(piece, cache=cache) for piece in tokens_BT.split(chunk, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens_BT), rtol=0, atol=1e-11)
    cache.check_invariants()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_stored_has_the_dtype_asked_for(dtype: torch.dtype) -> None:
    model = tiny(MHA, 3, torch.float32)
    prompts = prompts_of([5, 8], MHA.vocab_size)
    contiguous = ContiguousCache(MHA, batch_size=2, max_tokens=12, dtype=dtype)
    paged = PagedCache(MHA, batch_size=2, num_blocks=9, block_size=3, dtype=dtype)
    want = logits_step_by_step(model, contiguous, prompts, 4)
    got = logits_step_by_step(model, paged, prompts, 4)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert paged.dtype == paged.read(0)[0].dtype == dtype
    assert paged.num_bytes == 9 * 3 * 2 * 3 * 5 * 6 * (torch.finfo(dtype).bits // 8)


def test_the_real_model_runs_on_blocks_unchanged() -> None:
    plain, tokenizer = weights.load(weights.MODEL_NAME)
    model = fuse(plain)
    prompts = [tokenizer.encode(text) for text in ("The capital of France is", "Water boils at a")]
    pool = BlockPool(model.arch, num_blocks=9, block_size=5, order=shuffled(9, 1))
    ids = generate(model, prompts, max_new_tokens=8, cache=on_pool(pool, 2))
    assert ids == generate(model, prompts, max_new_tokens=8)
    assert pool.allocator.num_used == sum(-(-(len(p) + 7) // 5) for p in prompts)


def test_rows_that_fork_share_their_past_and_differ_after_it() -> None:
    model = tiny(GQA, 6)
    prompt = prompts_of([10], GQA.vocab_size)[0]
    cache = PagedCache(GQA, num_blocks=12, block_size=4, dtype=F64)
    model(torch.tensor([prompt]), cache=cache)
    cache.reorder([0, 0, 0])
    pool = cache.pool
    assert pool.allocator.num_used == 3
    assert [pool.allocator.num_references(block) for block in cache.tables[0].blocks] == [3, 3, 3]
    tokens_B1 = torch.tensor([[3], [8], [21]])
    logits = model(tokens_B1, cache=cache)[:, -1]
    assert (pool.blocks_copied, pool.allocator.num_used) == (2, 5)
    for row, token in enumerate(tokens_B1[:, 0].tolist()):
        alone = model(torch.tensor([[*prompt, token]]))[0, -1]
        torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-11)
    # Beams: the first survives twice, the second ends, the third stays.
    cache.reorder([2, 0, 0])
    logits = model(torch.tensor([[1], [2], [9]]), cache=cache)[:, -1]
    for row, tail in enumerate([[21, 1], [3, 2], [3, 9]]):
        alone = model(torch.tensor([prompt + tail]))[0, -1]
        torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-11)
    cache.check_invariants()
    cache.free()
    assert pool.allocator.num_free == 12


# --- the cases --------------------------------------------------------------------------------


@pytest.mark.case("PAG-04")
def test_copies_on_write_move_data_and_leave_the_prompt_alone() -> None:
    given, expected = CASES["PAG-04"]["inputs"], CASES["PAG-04"]["expected"]
    pool = BlockPool(GQA, num_blocks=6, block_size=given["block_size"], dtype=F64)
    cache = on_pool(pool, 1)
    append_all(cache, GQA, given["prompt"], 40)
    prompt = [x.clone() for layer in range(2) for x in cache.read(layer)]
    cache.reorder([0] * given["children"])
    k = torch.tensor(given["tokens"], dtype=F64)[:, None, None, None].expand(-1, 3, 1, 10)
    for layer in range(GQA.num_layers):
        cache.append(layer, k, -k)
    assert pool.blocks_copied == expected["copies"]
    full, *_ = cache.tables[0].blocks
    assert pool.allocator.num_references(full) == expected["references_full"]
    for layer in range(GQA.num_layers):
        for x, before, sign in zip(cache.read(layer), prompt[2 * layer :], (1, -1), strict=False):
            for row, token in enumerate(given["tokens"]):
                assert torch.equal(x[row, :, : given["prompt"]], before[0])
                assert (x[row, :, given["prompt"]] == sign * token).all()


@pytest.mark.case("PAG-06")
@pytest.mark.parametrize("which", CASES["PAG-06"]["inputs"]["poison"])
@pytest.mark.parametrize("length", CASES["PAG-06"]["inputs"]["lengths"])
def test_what_was_never_written_reaches_no_output(length: int, which: str) -> None:
    given, tolerance = CASES["PAG-06"]["inputs"], CASES["PAG-06"]["tolerance"]
    k, v = new_tokens(GQA, 1, length, given["seed"])
    pool = BlockPool(
        GQA, num_blocks=4, block_size=given["block_size"], dtype=F64, order=[2, 0, 3, 1]
    )
    for name, x_LNGPD in (("k", pool.k_LNGPD), ("v", pool.v_LNGPD)):
        x_LNGPD.fill_(torch.nan if name in which else 0.0)
    cache = on_pool(pool, 1)
    for layer in range(2):
        cache.append(layer, k, v)
    for name, x_LNGPD in (("k", pool.k_LNGPD), ("v", pool.v_LNGPD)):
        if name not in which:  # taken blocks hold NaN of their own accord
            x_LNGPD.nan_to_num_(nan=0.0)
        empty = x_LNGPD.isnan().sum().item()  # of 2 layers, 4 blocks of 4 slots, 3 heads of 10
        assert empty == ((16 - length) * 2 * 30 if name in which else 0)
    q = normal(given["seed"] + 1, 1, GQA.num_query_heads, 1, GQA.head_dim)
    want, _ = attention_by_loops(q, k, v)
    torch.testing.assert_close(attend(q, *cache.read(0)), want, rtol=0, atol=tolerance)
    # A shorter row beside a longer one: its last block and what it does not have are masked.
    cache.reorder([0, 0])
    cache.truncate([length, 0])
    for x in cache.read(0):
        assert not x[0].isnan().any()
        assert x[1].isnan().all(), "a row that holds nothing has nothing to look up"
    readable = torch.arange(length) < torch.tensor([[length], [0]])
    both = attend(q.expand(2, -1, -1, -1), *cache.read(0), mask_BTS=readable[:, None])
    torch.testing.assert_close(both[:1], want, rtol=0, atol=tolerance)
    assert (both[1] == 0).all()


@pytest.mark.case("PAG-08")
def test_the_end_of_a_shorter_table_is_never_looked_up() -> None:
    case = CASES["PAG-08"]
    given = case["inputs"]
    size, lengths = given["block_size"], given["lengths"]
    taken = [block for table in given["tables"] for block in table]
    pool = BlockPool(GQA, num_blocks=4, block_size=size, dtype=F64, order=[*taken, 0])
    for x_LNGPD in (pool.k_LNGPD, pool.v_LNGPD):
        x_LNGPD[:, given["poison_block"]] = given["poison"]
    cache = on_pool(pool, 2)
    k, v = new_tokens(GQA, 2, max(lengths), given["seed"])
    cache.append(0, k, v, lengths)
    assert [table.blocks for table in cache.tables] == given["tables"]
    q = normal(given["seed"] + 1, 2, GQA.num_query_heads, 1, GQA.head_dim)
    readable = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    got_k, got_v = cache.read(0)
    out = attend(q, got_k, got_v, mask_BTS=readable[:, None])
    for row, n in enumerate(lengths):
        alone, _ = attention_by_loops(*(x[row : row + 1] for x in (q, k[:, :, :n], v[:, :, :n])))
        torch.testing.assert_close(out[row : row + 1], alone, rtol=0, atol=case["tolerance"])
    for x in (got_k, got_v):  # nothing was read from block 0, nor from any other, for the rest
        assert x[1, :, size:].isnan().all()
        assert not (x == given["poison"]).any()
    # The tables side by side end in padding, which is no block and no address.
    assert padded(given["tables"]).tolist() == [[1, 2], [3, given["padding"]]]
    assert padded([[], []]).shape == (2, 0)
    assert padded(given["tables"]).dtype == torch.int64
    with pytest.raises(ValueError, match="block -1 has no address"):
        slot_offset(given["padding"], 0, block_size=size, num_kv_heads=3, head_dim=10)


@pytest.mark.case("PAG-09")
def test_places_in_the_pool_are_64_bit() -> None:
    pool = BlockPool(MQA, num_blocks=5, block_size=2, dtype=F64)
    cache = on_pool(pool, 2)
    append_all(cache, MQA, 3, 0)
    rows_R, new_R = cache._places([1, 1], [3, 3], 2)
    assert rows_R.dtype == new_R.dtype == torch.int64
    sizes = {"block_size": 2, "num_kv_heads": 1, "head_dim": MQA.head_dim}
    want = [slot_offset(*t.locate(p), **sizes) for t in cache.tables for p in (1, 2)]
    assert (rows_R * MQA.head_dim).tolist() == want
    append_all(cache, MQA, 0, 0)
    assert cache.num_tokens.tolist() == [3, 3], "nothing to store is stored"


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_places_are_those_of_the_layout(G: int, P: int, data: Any) -> None:
    arch = Architecture("any", 1, 4, G, G, 2, 8, 9, 64)
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    pool = BlockPool(arch, num_blocks=24, block_size=P, dtype=F64, order=shuffled(24, G))
    cache = on_pool(pool, len(lengths))
    k, v = new_tokens(arch, len(lengths), 7, G * P)
    cache.append(0, k, v, lengths)
    for row, (table, length) in enumerate(zip(cache.tables, lengths, strict=True)):
        for position in range(length):
            block, slot = table.locate(position)
            for head in range(G):
                start = slot_offset(
                    block, slot, head=head, block_size=P, num_kv_heads=G, head_dim=2
                )
                stored = pool.k_LNGPD[0].flatten()[start : start + 2]
                assert torch.equal(stored, k[row, head, position])


# --- shapes, bytes, what must stay as it was --------------------------------------------------


@pytest.mark.parametrize("arch", [MHA, GQA, MQA], ids=lambda arch: arch.name)
def test_it_follows_the_protocol(arch: Architecture) -> None:
    cache = PagedCache(arch, batch_size=2, num_blocks=5, block_size=3)
    assert isinstance(cache, KVCache)
    assert cache.dtype == torch.float32
    assert (cache.num_tokens.dtype, cache.num_tokens.tolist()) == (torch.int64, [0, 0])
    assert cache.read(0)[0].shape == (2, arch.num_kv_heads, 0, arch.head_dim)
    for layer in range(arch.num_layers):
        assert cache.num_tokens.tolist() == [0, 0]
        cache.append(layer, *new_tokens(arch, 2, 4, layer, torch.float32))
        k, v = cache.read(layer)
        assert k.shape == v.shape == (2, arch.num_kv_heads, 4, arch.head_dim)
        assert k.dtype == v.dtype == torch.float32
    assert cache.num_tokens.tolist() == [4, 4]


def test_bytes_are_those_of_the_tensors() -> None:
    arch = Architecture.named("smollm2-135m")
    pool = BlockPool(arch, num_blocks=3, block_size=16, dtype=torch.bfloat16)
    assert pool.num_bytes == pool.k_LNGPD.nbytes + pool.v_LNGPD.nbytes
    assert pool.bytes_per_block == 16 * kv_bytes_per_token(arch, "bf16")
    cache = on_pool(pool, 1)
    assert cache.num_bytes == pool.num_bytes == 3 * pool.bytes_per_block
    append_all(cache, arch, 20, 0)
    assert pool.bytes_gathered == 0
    k, v = cache.read(4)
    assert pool.bytes_gathered == 2 * 16 * 2 * 3 * 64 * 2, "two whole blocks of one layer"
    assert k.shape == v.shape == (1, 3, 20, 64)


def test_bytes_gathered_count_every_row_for_itself() -> None:
    pool = BlockPool(GQA, num_blocks=9, block_size=4, dtype=F64)
    cache = on_pool(pool, 3)
    append_all(cache, GQA, 9, 0, [9, 4, 0])
    cache.read(1)
    assert pool.bytes_gathered == (3 + 1 + 0) * 4 * 2 * 3 * 10 * 8
    cache.reorder([0, 0, 0])  # shared blocks are gathered once for each row
    cache.read(1)
    assert pool.bytes_gathered == (4 + 9) * 4 * 2 * 3 * 10 * 8


def test_what_is_read_is_a_copy() -> None:
    cache = PagedCache(GQA, num_blocks=4, block_size=4, dtype=F64)
    append_all(cache, GQA, 5, 0)
    k, _ = cache.read(0)
    before = k.clone()
    cache.truncate([2])
    append_all(cache, GQA, 3, 9)
    assert torch.equal(k, before)
    k.fill_(7.0)
    assert not (cache.read(0)[0] == 7.0).any()


def test_a_taken_block_holds_nothing_of_its_former_owner() -> None:
    pool = BlockPool(GQA, num_blocks=2, block_size=4, dtype=F64)
    first = on_pool(pool, 1)
    append_all(first, GQA, 8, 0)
    first.free()
    assert pool.k_LNGPD.isfinite().all(), "free blocks keep what they held: a prefix may return"
    second = on_pool(pool, 1)
    append_all(second, GQA, 1, 5)
    (block,) = second.tables[0].blocks
    for x_LNGPD in (pool.k_LNGPD, pool.v_LNGPD):
        assert x_LNGPD[:, block, :, 1:].isnan().all()
        assert x_LNGPD[:, 1 - block].isfinite().all()


def test_no_stale_tail_after_truncate() -> None:
    cache = PagedCache(GQA, batch_size=2, num_blocks=6, block_size=4, dtype=F64)
    append_all(cache, GQA, 7, 0)
    cache.truncate([5, 7])
    pool, block = cache.pool, cache.tables[0].blocks[-1]
    for x_LNGPD in (pool.k_LNGPD, pool.v_LNGPD):
        assert x_LNGPD[:, block, :, :1].isfinite().all()
        assert x_LNGPD[:, block, :, 1:].isnan().all()
    for x in cache.read(0):
        assert x[0, :, 5:].isnan().all() and x[1].isfinite().all()
    # A block that others share keeps what they hold, and a copy takes only what was kept.
    cache.reorder([1, 1])
    cache.truncate([7, 5])
    assert all(x[0].isfinite().all() for x in cache.read(0))
    append_all(cache, GQA, 1, 9, [0, 1])
    block = cache.tables[1].blocks[-1]
    assert pool.blocks_copied == 1
    for x_LNGPD in (pool.k_LNGPD, pool.v_LNGPD):
        assert x_LNGPD[:, block, :, :2].isfinite().all()
        assert x_LNGPD[:, block, :, 2:].isnan().all()
    cache.check_invariants()


def test_a_full_pool_refuses_before_anything_is_written() -> None:
    pool = BlockPool(GQA, num_blocks=3, block_size=4, dtype=F64)
    cache, other = on_pool(pool, 2), on_pool(pool, 1)
    append_all(cache, GQA, 4, 0)
    append_all(other, GQA, 2, 3)
    before = snapshot(cache)
    k, v = new_tokens(GQA, 2, 1, 9)
    with pytest.raises(OutOfBlocks, match="out of blocks: 2 are needed and 0 are free"):
        cache.append(0, k, v)
    assert snapshot(cache) == before
    with pytest.raises(ValueError, match=r"row 0 holds 4 tokens and 9 more make 13, .* is 12"):
        cache.append(0, *new_tokens(GQA, 2, 9, 9))
    assert snapshot(cache) == before
    model = tiny(GQA, 4)
    with pytest.raises(OutOfBlocks):
        model(torch.tensor([[3], [4]]), cache=cache)
    assert snapshot(cache) == before
    other.free()
    with pytest.raises(OutOfBlocks, match="2 are needed and 1 are free"):
        cache.append(0, k, v)
    cache.append(0, k, v, [1, 0])
    with pytest.raises(OutOfBlocks):
        cache.append(1, k, v)  # the row that gave up its token in the first layer has no room


def test_generation_that_runs_out_leaves_the_cache_as_it_was() -> None:
    model = tiny(GQA, 4)
    pool = BlockPool(GQA, num_blocks=4, block_size=4, dtype=F64)
    cache, other = on_pool(pool, 1), on_pool(pool, 1)
    model(torch.tensor([[5, 6, 7]]), cache=cache)
    append_all(other, GQA, 5, 3)
    with pytest.raises(OutOfBlocks):
        generate(model, [8, 9], max_new_tokens=10, cache=cache)
    assert cache.num_tokens.tolist() == [3]
    assert pool.allocator.num_used == 3
    cache.check_invariants()
    with pytest.raises(ValueError, match="need 17 slots, the cache has 16"):
        generate(model, [8, 9], max_new_tokens=13, cache=cache)
    other.free()
    want = generate(model, [5, 6, 7, 8, 9], max_new_tokens=10)
    assert generate(model, [8, 9], max_new_tokens=10, cache=cache) == want


k_ok, v_ok = new_tokens(GQA, 2, 3, 50)
MISUSES: dict[str, tuple[Any, str]] = {
    "layer too high": (lambda c: c.append(2, k_ok, v_ok), "layer 2 is outside 0 to 1"),
    "read a negative layer": (lambda c: c.read(-1), "layer -1"),
    "wrong batch": (lambda c: c.append(0, k_ok[:1], v_ok[:1]), r"k_BGTD must be \(2, 3, T, 10\)"),
    "wrong head dim": (lambda c: c.append(0, k_ok[..., :8], v_ok[..., :8]), r"got \(2, 3, 3, 8\)"),
    "another dtype": (lambda c: c.append(0, k_ok.float(), v_ok), "k_BGTD is torch.float32"),
    "fewer values": (lambda c: c.append(0, k_ok, v_ok[:, :, :2]), "k has 3 new tokens, v has 2"),
    "length too long": (lambda c: c.append(0, k_ok, v_ok, [3, 4]), r"lengths_B\[1\] is 4"),
    "bool lengths": (lambda c: c.append(0, k_ok, v_ok, [True, 1]), "integers, got True"),
    "truncate longer": (lambda c: c.truncate([5, 5]), r"lengths_B\[0\] is 5, outside 0 to 4"),
    "truncate fewer rows": (lambda c: c.truncate([1]), "each of 2 rows, got 1"),
    "reorder beyond": (lambda c: c.reorder([0, 2]), r"rows_B\[1\] is 2, outside 0 to 1"),
    "reorder empty": (lambda c: c.reorder([]), "at least one row"),
    "another's table": (
        lambda c: PagedCache.over(c.pool, PagedCache(GQA, num_blocks=2).tables),
        "not a table in use here",
    ),
    "one table twice": (lambda c: PagedCache.over(c.pool, [c.tables[0]] * 2), "given twice"),
    "no table": (
        lambda c: PagedCache.over(c.pool, []),
        "batch_size must be a positive integer, got 0",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_refused_operation_changes_nothing(name: str) -> None:
    cache = PagedCache(GQA, batch_size=2, num_blocks=8, block_size=3, dtype=F64)
    append_all(cache, GQA, 4, 0)
    before = snapshot(cache)
    call, message = MISUSES[name]
    with pytest.raises(ValueError, match=message) as caught:
        call(cache)
    assert "\n" not in str(caught.value)
    assert snapshot(cache) == before
    append_all(cache, GQA, 2, 9)
    assert cache.num_tokens.tolist() == [6, 6]
    cache.check_invariants()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0, "num_blocks": 4}, "batch_size must be a positive integer, got 0"),
        ({"num_blocks": 0}, "num_blocks must be a positive integer, got 0"),
        ({"num_blocks": 4, "block_size": 0}, "block_size must be a positive integer, got 0"),
        ({"num_blocks": 4, "dtype": torch.int8}, "got torch.int8"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PagedCache(GQA, **options)
    with pytest.raises(ValueError, match="one shape for all layers"):
        BlockPool(Architecture.named("deepseek-v3"), num_blocks=2)


def test_rows_are_not_reordered_in_the_middle_of_a_step() -> None:
    cache = PagedCache(GQA, batch_size=2, num_blocks=8, block_size=3, dtype=F64)
    append_all(cache, GQA, 4, 0)
    cache.append(0, k_ok, v_ok)
    before = snapshot(cache)
    with pytest.raises(ValueError, match="in the middle of a step"):
        cache.reorder([1, 0])
    assert snapshot(cache) == before
    cache.truncate([4, 3])  # what one layer had is gone
    cache.reorder([1, 0])
    assert cache.num_tokens.tolist() == [3, 4]
    cache.check_invariants()


def test_a_table_changed_from_outside_is_seen() -> None:
    cache = PagedCache(GQA, batch_size=2, num_blocks=8, block_size=3, dtype=F64)
    append_all(cache, GQA, 4, 0)
    cache.pool.allocator.append(cache.tables[1])
    for use in (lambda: cache.read(0), lambda: cache.append(0, k_ok, v_ok), lambda: cache.free()):
        with pytest.raises(ValueError, match=r"held \[4, 4\] tokens and hold \[4, 5\]"):
            use()


def test_tables_that_exist_become_rows() -> None:
    pool = BlockPool(GQA, num_blocks=8, block_size=3, dtype=F64)
    long, short = on_pool(pool, 1), on_pool(pool, 1)
    append_all(long, GQA, 5, 0)
    append_all(short, GQA, 2, 9)
    both = PagedCache.over(pool, [*short.tables, *long.tables])
    assert both.num_tokens.tolist() == [2, 5]
    for x, one, other in zip(both.read(1), long.read(1), short.read(1), strict=True):
        assert torch.equal(x[1], one[0]) and torch.equal(x[0, :, :2], other[0])
    append_all(both, GQA, 1, 4)
    assert [table.num_tokens for table in (*long.tables, *short.tables)] == [6, 3]
    windowed = pool.allocator.fork(long.tables[0])
    pool.allocator.drop_head(windowed, 1)
    with pytest.raises(ValueError, match="a row starts at position 0"):
        PagedCache.over(pool, [windowed])
