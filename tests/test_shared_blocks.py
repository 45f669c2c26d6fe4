"""Beams and samples on blocks: the same tokens, each shared block held once, all given back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import GQA, hf_twin, seeded, tiny, token_ids
from torch import Tensor

from refimpl.blocks import BlockAllocator, OutOfBlocks
from refimpl.cache import BlockPool, ContiguousCache, PagedCache
from refimpl.decode import beam_search, generate_samples
from refimpl.model import Decoder
from refimpl.sampling import Sampler

F64 = torch.float64
ARCH = dataclasses.replace(GQA, vocab_size=9, tie_embeddings=False, max_context=200)


def prompt(seed: int, length: int) -> list[int]:
    return token_ids(seed, ARCH.vocab_size, length).tolist()


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


class Watching(Decoder):
    """A decoder that notes, after each pass, the blocks in use and what every row has been fed."""

    def watch(self, cache: PagedCache) -> None:
        self.used: list[int] = []
        self.histories: list[list[list[int]]] = []
        self._rows: list[list[int]] = [[] for _ in cache.tables]
        self._allocator = cache.pool.allocator
        reorder = cache.reorder

        def noted(rows_B: Any) -> None:
            reorder(rows_B)
            self._rows = [list(self._rows[row]) for row in rows_B]

        cache.reorder = noted  # type: ignore[method-assign]

    def forward(self, tokens_BT: Tensor, *, cache: Any = None, lengths_B: Any = None) -> Tensor:
        logits_BTV = super().forward(tokens_BT, cache=cache, lengths_B=lengths_B)
        fed = [tokens_BT.shape[1]] * len(tokens_BT) if lengths_B is None else lengths_B
        for row, new, n in zip(self._rows, tokens_BT.tolist(), fed, strict=True):
            row += new[:n]
        self.histories.append([list(row) for row in self._rows])
        self.used.append(self._allocator.num_used)
        self._allocator.check_invariants()
        return logits_BTV


def watching(seed: int = 4) -> Watching:
    decoder = Watching(ARCH).double()
    decoder.load_state_dict(tiny(ARCH, seed).state_dict())
    return decoder.requires_grad_(False)


def in_any_order(num_blocks: int, block_size: int, num_rows: int, seed: int) -> PagedCache:
    """A cache over a pool whose free blocks come in a random order."""
    order = torch.randperm(num_blocks, generator=seeded(seed)).tolist()
    pool = BlockPool(ARCH, num_blocks=num_blocks, block_size=block_size, dtype=F64, order=order)
    return PagedCache.over(pool, [pool.allocator.allocate() for _ in range(num_rows)])


LENGTHS = {1: [1, 4], 2: [1, 3, 4, 5], 3: [2, 3, 4, 7], 16: [15, 16, 17], 64: [5, 63, 64, 65]}


@given(
    data=st.data(),
    block_size=st.sampled_from(list(LENGTHS)),
    num_prompts=st.integers(1, 3),
    num_beams=st.integers(2, 7),
    stop_tokens=st.sampled_from([(), (3,), (2, 6)]),
    early_stopping=st.sampled_from([True, False, "never"]),
    seed=st.integers(0, 50),
)
@settings(max_examples=40)
def test_a_search_on_blocks_finds_what_it_finds_on_rows(
    data: st.DataObject, block_size: int, num_prompts: int, seed: int, **options: Any
) -> None:
    lengths = [data.draw(st.sampled_from(LENGTHS[block_size])) for _ in range(num_prompts)]
    rows = [prompt(seed + i, n) for i, n in enumerate(lengths)]
    options |= {"max_new_tokens": 6, "num_return_sequences": options["num_beams"]}
    decoder = tiny(ARCH, 4)
    cache = in_any_order(400, block_size, num_prompts, seed)
    got = beam_search(decoder, rows, cache=cache, **options)
    want = beam_search(decoder, rows, **options)
    assert [beams.sequences for beams in got] == [beams.sequences for beams in want]
    for ours, plain in zip(got, want, strict=True):
        assert ours.scores == pytest.approx(plain.scores, rel=1e-6)
    # Nothing is held but the prompts, and they are whole.
    assert cache.num_tokens.tolist() == lengths
    assert cache.pool.allocator.num_used == sum(blocks_for(n, block_size) for n in lengths)
    cache.pool.allocator.check_invariants()
    for row, tokens in enumerate(rows):
        alone = ContiguousCache(ARCH, max_tokens=len(tokens), dtype=F64)
        decoder(torch.tensor([tokens]), cache=alone)
        for paged, plain in zip(cache.read(1), alone.read(1), strict=True):
            torch.testing.assert_close(paged[row, :, : len(tokens)], plain[0], atol=1e-12, rtol=0)


def test_a_search_on_blocks_is_that_of_transformers() -> None:
    decoder, tokens = tiny(ARCH, 4), prompt(2, 7)
    out = hf_twin(decoder).generate(
        torch.tensor([tokens]),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=9,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    cache = PagedCache(ARCH, num_blocks=60, block_size=3, dtype=F64)
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9, "cache": cache}
    got = beam_search(decoder, tokens, **options)
    assert got.sequences == out.sequences[:, 7:].tolist()
    assert got.scores == pytest.approx(out.sequences_scores.tolist(), rel=1e-5)


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("length", [30, 31, 32, 33])
def test_beams_hold_one_block_for_each_beginning_they_have(block_size: int, length: int) -> None:
    """A block is held once by all beams that agree up to its end: beginnings are counted."""
    decoder = watching()
    cache = PagedCache(ARCH, num_blocks=400, block_size=block_size, dtype=F64)
    decoder.watch(cache)
    beam_search(decoder, prompt(0, length), num_beams=6, max_new_tokens=14, cache=cache)
    assert [len(rows) for rows in decoder.histories] == [1] + [6] * 13
    unshared = []
    for used, rows in zip(decoder.used, decoder.histories, strict=True):
        beginnings = {
            tuple(row[: min(start + block_size, len(row))])
            for row in rows
            for start in range(0, len(row), block_size)
        }
        assert used == len(beginnings)
        unshared.append(sum(blocks_for(len(row), block_size) for row in rows))
    assert unshared[-1] == 6 * blocks_for(length + 13, block_size)
    assert max(decoder.used) < max(unshared) / (2 if block_size < 16 else 1)
    assert cache.pool.allocator.num_used == blocks_for(length, block_size)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("length", [15, 16, 17])
def test_samples_share_the_full_blocks_of_the_prompt(block_size: int, length: int) -> None:
    decoder = watching()
    cache = PagedCache(ARCH, num_blocks=300, block_size=block_size, dtype=F64)
    decoder.watch(cache)
    options: dict[str, Any] = {"num_samples": 5, "max_new_tokens": 8, "sampler": Sampler()}
    got = generate_samples(decoder, prompt(0, length), cache=cache, generator=seeded(1), **options)
    plain = generate_samples(tiny(ARCH, 4), prompt(0, length), generator=seeded(1), **options)
    assert got == plain
    assert len(set(map(tuple, got))) == 5
    shared = length // block_size
    each = [blocks_for(length + new, block_size) - shared for new in range(1, 8)]
    assert decoder.used == [blocks_for(length, block_size), *(shared + 5 * n for n in each)]
    assert cache.num_tokens.tolist() == [length + 7] * 5


@pytest.mark.parametrize("way", ["beams", "samples"])
def test_a_pool_that_runs_out_on_the_way_is_left_as_it_was(way: str) -> None:
    decoder = tiny(ARCH, 4)
    context = prompt(0, 6)
    # 6 tokens held, 3 more in the prompt, 5 rows: one pass fits, the next does not.
    cache = PagedCache(ARCH, num_blocks=9, block_size=4, dtype=F64)
    decoder(torch.tensor([context]), cache=cache)
    before = [x.clone() for x in cache.read(1)]
    tables = [list(table.blocks) for table in cache.tables]
    assert cache.pool.allocator.num_used == 2
    lowest: list[int] = []

    class Noting(Decoder):
        def forward(self, tokens_BT: Tensor, **options: Any) -> Tensor:
            logits_BTV = super().forward(tokens_BT, **options)
            lowest.append(cache.pool.allocator.num_free)
            return logits_BTV

    noting = Noting(ARCH).double()
    noting.load_state_dict(decoder.state_dict())
    noting.requires_grad_(False)
    with pytest.raises(OutOfBlocks):
        if way == "beams":
            beam_search(noting, [1, 2, 3], num_beams=5, max_new_tokens=12, cache=cache)
        else:
            generate_samples(noting, [1, 2, 3], num_samples=5, max_new_tokens=12, cache=cache)
    assert len(lowest) > 1, "it had begun"
    assert cache.num_tokens.tolist() == [6]
    assert [list(table.blocks) for table in cache.tables] == tables
    assert all(map(torch.equal, before, cache.read(1)))
    assert cache.pool.allocator.num_used == 2
    cache.pool.allocator.check_invariants()
    # With fewer rows it fits, and the result is that of the whole context.
    got = beam_search(decoder, [1, 2, 3], num_beams=2, max_new_tokens=5, cache=cache)
    assert got == beam_search(decoder, [*context, 1, 2, 3], num_beams=2, max_new_tokens=5)


def test_other_sequences_of_the_pool_are_left_alone() -> None:
    decoder = tiny(ARCH, 4)
    pool = BlockPool(ARCH, num_blocks=60, block_size=3, dtype=F64)
    allocator: BlockAllocator = pool.allocator
    caches = [PagedCache.over(pool, [allocator.allocate()]) for _ in range(2)]
    decoder(torch.tensor([prompt(1, 10)]), cache=caches[0])
    before = [x.clone() for x in caches[0].read(1)]
    beam_search(decoder, prompt(2, 8), num_beams=5, max_new_tokens=9, cache=caches[1])
    generate_samples(decoder, [4], num_samples=3, max_new_tokens=9, cache=caches[1])
    assert all(map(torch.equal, before, caches[0].read(1)))
    allocator.check_invariants()
