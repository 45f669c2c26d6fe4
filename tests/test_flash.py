"""flash against float64: running softmax, schedule of tiles, both passes, merging, memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import CASES, attention_by_loops, normal, readable_keys, rows, seeded

from refimpl import attention, flash
from refimpl.flash import schedule, tiled
from refimpl.flash.memory import peak_bytes

EXACT = {"atol": 1e-12, "rtol": 1e-12}
MERGING = rows("cases_tiled.json")
TOLERANCE = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 2e-2}
BLOCK_T, BLOCK_S = 8, 12
LENGTHS_T = (1, 2, BLOCK_T - 1, BLOCK_T, BLOCK_T + 1, 13, 2 * BLOCK_T, 29)
LENGTHS_S = (1, 2, BLOCK_S - 1, BLOCK_S, BLOCK_S + 1, 17, 2 * BLOCK_S + 1, 31)
BLOCKS = [(1, 1), (2, 3), (3, 2), (256, 512)]
some_blocks = pytest.mark.parametrize("blocks", BLOCKS, ids=lambda b: f"{b[0]}x{b[1]}")


def attend(*qkv: torch.Tensor, blocks: tuple[int, int], **options: object) -> torch.Tensor:
    """Tiled attention with given tile sizes."""
    return flash.attend(*qkv, block_t=blocks[0], block_s=blocks[1], **options)


def inputs(
    B: int, G: int, group: int, T: int, S: int, D: int, E: int, seed: int
) -> tuple[torch.Tensor, ...]:
    """Random q, k and v in float64."""
    return (
        normal(seed, B, G * group, T, D),
        normal(seed + 1, B, G, S, D),
        normal(seed + 2, B, G, S, E),
    )


def may_read(
    T: int, S: int, *, causal: bool = True, window: int | None = None, mask: torch.Tensor | None
) -> torch.Tensor:
    """What the definition allows, one pair at a time: bool ``[1 or B, T, S]``."""
    allowed = torch.zeros(1, T, S, dtype=torch.bool)
    for t in range(T):
        allowed[0, t, readable_keys(T, S, t, causal=causal, window=window)] = True
    return allowed if mask is None else allowed & mask


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and LSE with the whole score matrix in float64; torch differentiates it."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
    allowed = allowed[:, None]
    some = allowed.any(dim=-1, keepdim=True)
    # Rows without keys take part with scores of 0 and are cut off after: no NaN in any gradient.
    scores = scores.masked_fill(~allowed & some, -math.inf).masked_fill(~some, 0.0)
    out = torch.einsum("bhts,bhse->bhte", scores.softmax(-1) * some, v)
    return out, scores.logsumexp(-1).masked_fill(~some[..., 0], -math.inf)


def gradients(
    results: tuple[torch.Tensor, torch.Tensor], wrt: tuple[torch.Tensor, ...], seed: int
) -> tuple[torch.Tensor, ...]:
    """Of a random mixture of output and LSE; an LSE of minus infinity does not count."""
    out, lse = results
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    mixed = (out.double() * normal(seed, *out.shape)).sum()
    mixed = mixed + (lse.double() * normal(seed + 1, *lse.shape)).sum()
    return torch.autograd.grad(mixed, wrt)


def leaves(*tensors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Copies in a dtype that gradients are wanted of."""
    return tuple(x.detach().to(dtype, copy=True).requires_grad_() for x in tensors)


# --- the running softmax ----------------------------------------------------------------------


def test_the_running_softmax_in_numbers_to_follow_by_hand() -> None:
    # Scores ln 2, ln 8 | ln 4: sums over the running maximum are 1/4 + 1 and then 1/2 more.
    scores = torch.tensor([[2.0, 8.0, 4.0]], dtype=torch.float64).log()
    empty = flash.start(1, width=1, dtype=torch.float64)
    first = flash.fold(empty.max_T, empty.sum_T, scores[:, :2])
    assert first.max_T.exp().item() == pytest.approx(8)
    assert first.weights_TS.tolist() == [pytest.approx([0.25, 1.0])]
    assert first.sum_T.item() == pytest.approx(1.25)
    assert first.factor_T.item() == 0, "there was nothing before"
    second = flash.fold(first.max_T, first.sum_T, scores[:, 2:])
    assert second.factor_T.item() == 1, "the maximum stays"
    assert second.sum_T.item() == pytest.approx(1.75)
    unchanged = flash.fold(second.max_T, second.sum_T, scores[:, :0])
    assert torch.equal(unchanged.max_T, second.max_T) and (unchanged.factor_T == 1).all()
    assert torch.equal(unchanged.sum_T, second.sum_T) and unchanged.weights_TS.numel() == 0
    raised = flash.fold(second.max_T, second.sum_T, torch.tensor([[math.log(32)]]).double())
    assert raised.factor_T.item() == pytest.approx(8 / 32)
    assert raised.sum_T.item() == pytest.approx(1.75 / 4 + 1)


@given(
    scores=st.lists(st.floats(-700, 700) | st.just(-math.inf), min_size=1, max_size=12),
    cuts=st.sets(st.integers(0, 12)),
    seed=st.integers(0, 99),
)
def test_any_pieces_give_the_softmax_of_the_whole(
    scores: list[float], cuts: set[int], seed: int
) -> None:
    x = torch.tensor([scores], dtype=torch.float64)
    v = normal(seed, len(scores), 3)
    edges = sorted({0, len(scores), *(cut for cut in cuts if cut < len(scores))})
    running = flash.start(1, width=3, dtype=torch.float64)
    for a, b in itertools.pairwise(edges):
        running = flash.absorb(running, x[:, a:b], v[a:b])
    out, lse = flash.finish(running)
    top = max(scores)
    if top == -math.inf:
        assert out.tolist() == [[0.0, 0.0, 0.0]] and lse.item() == -math.inf
        return
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    assert lse.item() == pytest.approx(top + math.log(total), rel=1e-13, abs=1e-12)
    want = [math.fsum(w * e for w, e in zip(weights, c, strict=True)) / total for c in v.T.tolist()]
    assert out[0].tolist() == pytest.approx(want, rel=1e-11, abs=1e-12)


def test_without_the_maximum_float32_overflows_and_with_it_does_not() -> None:
    scores = torch.tensor([[88.0, 89.0, 90.0]])
    assert scores.exp().sum() == math.inf
    running = flash.start(1, width=1)
    for s in range(3):
        running = flash.absorb(running, scores[:, [s]], torch.tensor([[float(s)]]))
    out, lse = flash.finish(running)
    assert lse.item() == pytest.approx(90 + math.log(1 + math.exp(-1) + math.exp(-2)), rel=1e-6)
    want = (math.exp(-1) + 2) / (1 + math.exp(-1) + math.exp(-2))
    assert out.item() == pytest.approx(want, rel=1e-6)


def test_a_piece_without_keys_changes_nothing() -> None:
    running = flash.absorb(flash.start(2, width=3), torch.ones(2, 4), torch.ones(4, 3))
    assert flash.absorb(running, torch.ones(2, 0), torch.ones(0, 3)) is running


# --- the schedule -----------------------------------------------------------------------------


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (5, 5), (4, 11), (9, 4), (7, 12), (0, 3)])
@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (3, 2), (4, 4), (16, 5)])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 20])
def test_tiles_are_what_the_pairs_in_them_say(
    T: int, S: int, blocks: tuple[int, int], window: int | None
) -> None:
    for causal in (True, False) if window is None else (True,):
        covered = []
        for tile in flash.tiles(T, S, *blocks, causal=causal, window=window):
            pairs = list(
                itertools.product(
                    range(tile.t_start, tile.t_stop), range(tile.s_start, tile.s_stop)
                )
            )
            covered += pairs
            seen = [s in readable_keys(T, S, t, causal=causal, window=window) for t, s in pairs]
            want = "full" if all(seen) else "partial" if any(seen) else "skipped"
            assert tile.kind == want
            assert tile.num_pairs == len(pairs)
            assert 0 < tile.t_stop - tile.t_start <= blocks[0]
            assert 0 < tile.s_stop - tile.s_start <= blocks[1]
        assert sorted(covered) == list(itertools.product(range(T), range(S)))


def test_causal_tiles_number_half_and_a_diagonal() -> None:
    kinds = [tile.kind for tile in flash.tiles(4096, 4096, 64, 64)]
    assert [kinds.count(kind) for kind in ("full", "partial", "skipped")] == [2016, 64, 2016]
    kinds = [tile.kind for tile in flash.tiles(1024, 1024, 128, 128, window=256)]
    # Eight rows: own tile and the one two back are cut, the one between is full.
    assert [kinds.count(kind) for kind in ("full", "partial", "skipped")] == [7, 14, 43]


def test_tiles_come_row_by_row_and_only_when_asked() -> None:
    order = [(tile.t_start, tile.s_start) for tile in flash.tiles(5, 7, 2, 3)]
    assert order == sorted(order)
    endless = flash.tiles(10**9, 10**9, 1, 1)
    assert next(endless) == flash.Tile(0, 1, 0, 1, "full")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((-1, 4, 2, 2), {}, "num_new cannot be negative, got -1"),
        ((4, 2.0, 2, 2), {}, "num_stored must be an integer, got 2.0"),
        ((4, 4, 0, 2), {}, "block_t must be at least 1, got 0"),
        ((4, 4, 2, True), {}, "block_s must be an integer, got True"),
        ((4, 4, 2, 2), {"window": 0}, "window must be at least 1, got 0"),
        ((4, 4, 2, 2), {"window": 3, "causal": False}, "needs causality, got window 3"),
    ],
)
def test_sizes_that_make_no_tiles_are_refused(
    arguments: tuple, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        flash.tiles(*arguments, **options)


def test_exactly_the_tiles_that_are_not_skipped_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visited: list[flash.Tile] = []
    visit = tiled._visit

    def count(*arguments: object) -> object:
        visited.append(arguments[5])
        return visit(*arguments)

    monkeypatch.setattr(tiled, "_visit", count)
    q, k, v = inputs(B=1, G=1, group=2, T=29, S=31, D=4, E=3, seed=0)
    for options in ({}, {"causal": False}, {"window": 5}):
        visited.clear()
        attend(q, k, v, blocks=(4, 3), **options)
        every = list(flash.tiles(29, 31, 4, 3, **options))
        assert visited == [tile for tile in every if tile.kind != "skipped"]
        if options != {"causal": False}:
            assert 0 < len(visited) < len(every)


# --- forward and backward ---------------------------------------------------------------------


@pytest.mark.parametrize("T", LENGTHS_T)
def test_lengths_around_the_tiles_forward_and_backward(T: int) -> None:
    for S in LENGTHS_S:
        for options in ({}, {"causal": False}, {"window": 1}, {"window": BLOCK_S}):
            x = inputs(B=2, G=2, group=3, T=T, S=S, D=5, E=7, seed=T + 100 * S)
            q, k, v = leaves(*x, dtype=torch.float64)
            allowed = may_read(T, S, **options, mask=None)
            want = dense(q, k, v, allowed, 5**-0.5)
            got = attend(q, k, v, blocks=(BLOCK_T, BLOCK_S), return_lse=True, **options)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, **EXACT)
            pairs = zip(gradients(got, (q, k, v), 3), gradients(want, (q, k, v), 3), strict=True)
            for a, b in pairs:
                torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_the_dense_oracle_agrees_with_loops() -> None:
    q, k, v = inputs(B=2, G=2, group=2, T=6, S=4, D=3, E=5, seed=1)
    mask = torch.rand(2, 6, 4, generator=seeded(1)) < 0.7
    want = attention_by_loops(q, k, v, window=2, mask=mask)
    got = dense(q, k, v, may_read(6, 4, window=2, mask=mask), 3**-0.5)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


shapes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "G": st.integers(1, 3),
        "group": st.integers(1, 4),
        "T": st.sampled_from((0, *LENGTHS_T)),
        "S": st.sampled_from((0, *LENGTHS_S)),
        "D": st.sampled_from((1, 3, 16, 40, 64)),
        "E": st.sampled_from((1, 5, 16, 24)),
        "seed": st.integers(0, 10_000),
    }
)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers in other places; what lies between and around them is NaN."""
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        B, H, T, D = x.shape
        buffer = torch.full((B + 1, H + 2, 2 * T + 3, D + 5), math.nan, dtype=x.dtype)
        view = buffer[1:, 1 : H + 1, 2 : 2 * T + 2 : 2, 3 : D + 3]
        view.copy_(x)
        return view
    if layout == "inner":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x


@given(shape=shapes, data=st.data())
def test_float32_is_within_5e_6_of_float64(shape: dict[str, int], data: st.DataObject) -> None:
    q, k, v = (x.float() for x in inputs(**shape))
    B, T, S, D = (shape[name] for name in "BTSD")
    layouts = st.sampled_from(("plain", "transposed", "sliced", "inner"))
    q, k, v = (laid_out(x, data.draw(layouts)).requires_grad_() for x in (q, k, v))
    causal = data.draw(st.booleans(), "causal")
    window = data.draw(st.none() | st.integers(1, S + 2), "window") if causal else None
    scale = data.draw(st.none() | st.floats(0.05, 0.5), "scale")
    blocks = data.draw(st.tuples(st.integers(3, 20), st.integers(3, 20)), "blocks")
    mask = None
    if data.draw(st.booleans(), "masked"):
        lead = data.draw(st.sampled_from([(), (1,), (B,)]), "lead")
        mask = torch.rand(*lead, T, S, generator=seeded(shape["seed"])) < 0.4
    got = attend(
        q,
        k,
        v,
        blocks=blocks,
        causal=causal,
        window=window,
        mask_BTS=mask,
        scale=scale,
        return_lse=True,
    )
    wide = leaves(q, k, v, dtype=torch.float64)
    allowed = may_read(T, S, causal=causal, window=window, mask=mask)
    want = dense(*wide, allowed, D**-0.5 if scale is None else scale)
    within = {"atol": TOLERANCE[torch.float32], "rtol": TOLERANCE[torch.float32]}
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, **within)
    pairs = zip(gradients(got, (q, k, v), 3), gradients(want, wide, 3), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.double(), b, **within)


def error_beside_torch(
    x: tuple[torch.Tensor, ...], dtype: torch.dtype, **options: object
) -> Iterator[tuple[str, float, float]]:
    """Largest errors of output and gradients against float64: ours, and SDPA's in that dtype."""
    T, S, D = x[0].shape[2], x[1].shape[2], x[0].shape[3]
    # What is compared with starts from the numbers as the narrow dtype holds them.
    narrow = [leaves(*x, dtype=dtype) for _ in range(2)]
    wide = leaves(*narrow[0], dtype=torch.float64)
    allowed = may_read(T, S, **options, mask=None)
    weight = normal(7, *x[0].shape[:3], x[2].shape[3])
    ours = flash.attend(*narrow[0], **options, block_t=16, block_s=24)
    theirs = F.scaled_dot_product_attention(*narrow[1], attn_mask=allowed[:, None], enable_gqa=True)
    want, _ = dense(*wide, allowed, D**-0.5)
    assert ours.dtype == dtype
    results = [(ours, narrow[0]), (theirs, narrow[1]), (want, wide)]
    for out, _ in results:
        out.backward(weight.to(out.dtype))
    for name, index in (("out", None), ("q", 0), ("k", 1), ("v", 2)):
        a, b, exact = ((out if index is None else wrt[index].grad).double() for out, wrt in results)
        yield name, (a - exact).abs().max().item(), (b - exact).abs().max().item()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 11}], ids=str)
@pytest.mark.parametrize("size", [(37, 53, 64, 32), (61, 61, 40, 16), (1, 67, 16, 24)], ids=str)
def test_every_dtype_is_within_its_bound_or_twice_torch(
    dtype: torch.dtype, options: dict, size: tuple[int, ...]
) -> None:
    T, S, D, E = size
    x = inputs(B=2, G=2, group=3, T=T, S=S, D=D, E=E, seed=T)
    for name, ours, theirs in error_beside_torch(x, dtype, **options):
        assert ours <= max(TOLERANCE[dtype], 2 * theirs), name
        if name == "out":
            assert ours <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("spread", [6.0, 30.0])
def test_large_logits_are_no_worse_than_twice_torch(dtype: torch.dtype, spread: float) -> None:
    q, k, v = inputs(B=2, G=2, group=3, T=33, S=70, D=32, E=16, seed=5)
    for name, ours, theirs in error_beside_torch((q * spread, k * spread, v), dtype):
        assert ours <= max(TOLERANCE[dtype], 2 * theirs), name


def test_lse_is_float32_for_16_bits_and_float64_for_64() -> None:
    q, k, v = inputs(B=1, G=1, group=2, T=5, S=9, D=4, E=3, seed=2)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        narrow = [x.to(dtype) for x in (q, k, v)]
        out, lse = attend(*narrow, blocks=(2, 4), return_lse=True)
        assert out.dtype == dtype
        assert lse.dtype == torch.promote_types(dtype, torch.float32)
        _, want = attention_by_loops(*narrow)
        tolerance = 1e-12 if dtype == torch.float64 else 5e-6
        torch.testing.assert_close(lse.double(), want, atol=tolerance, rtol=tolerance)


def test_exact_is_not_bit_identical() -> None:
    q, k, v = (x.float() for x in inputs(B=1, G=2, group=2, T=70, S=90, D=16, E=24, seed=3))
    results = [attend(q, k, v, blocks=blocks) for blocks in ((70, 90), (16, 24), (5, 7))]
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])
    for got in results:
        torch.testing.assert_close(got, attention.attend(q, k, v), atol=5e-6, rtol=0)
    assert torch.equal(attend(q, k, v, blocks=(5, 7)), results[2]), "the same tiles, the same bits"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 2},
        {"mask": True},
        {"scale": 0.7, "causal": False, "mask": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(("T", "S"), [(3, 5), (5, 3)])
def test_gradcheck_in_float64(T: int, S: int, options: dict) -> None:
    options = dict(options)
    if options.pop("mask", False):
        options["mask_BTS"] = torch.rand(1, T, S, generator=seeded(T)) < 0.6
    q, k, v = leaves(*inputs(B=1, G=2, group=2, T=T, S=S, D=2, E=3, seed=1), dtype=torch.float64)

    def both(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = attend(*x, blocks=(2, 2), return_lse=True, **options)
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(both, (q, k, v))


def test_kept_for_the_backward_pass_are_inputs_output_and_two_numbers_a_row() -> None:
    q, k, v = leaves(*inputs(B=2, G=1, group=3, T=19, S=23, D=4, E=5, seed=0), dtype=torch.float64)
    kept: list[tuple[int, ...]] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out, lse = attend(q, k, v, blocks=(4, 4), return_lse=True)
    assert sorted(kept) == sorted(tuple(x.shape) for x in (q, k, v, out, lse, lse))


def test_only_what_needs_a_gradient_has_a_graph() -> None:
    q, k, v = inputs(B=1, G=1, group=1, T=3, S=4, D=2, E=2, seed=0)
    assert not attend(q, k, v, blocks=(2, 2)).requires_grad
    v.requires_grad_()
    with torch.no_grad():
        assert not attend(q, k, v, blocks=(2, 2)).requires_grad
    (grad,) = torch.autograd.grad(attend(q, k, v, blocks=(2, 2)).sum(), v)
    assert grad.sum().item() == pytest.approx(3 * 2), "each row's weights sum to 1"


@pytest.mark.parametrize("expanded", ["batch", "heads"])
def test_expanded_inputs_are_read_in_place(expanded: str) -> None:
    q, k, v = inputs(B=3, G=2, group=2, T=9, S=14, D=5, E=4, seed=4)
    axis = 0 if expanded == "batch" else 1
    q, k, v = (x.narrow(axis, 0, 1).expand_as(x) for x in (q, k, v))
    want = attention_by_loops(q, k, v, window=6)
    got = attend(q, k, v, blocks=(4, 5), window=6, return_lse=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@some_blocks
def test_what_no_query_may_read_reaches_neither_output_nor_gradient(
    poison: float, dtype: torch.dtype, blocks: tuple[int, int]
) -> None:
    x = tuple(y.to(dtype) for y in inputs(B=3, G=2, group=2, T=4, S=7, D=3, E=5, seed=2))
    lengths = torch.tensor([7, 5, 0])  # a row that is full, one that is not, one that is empty
    mask = (torch.arange(7) < lengths[:, None])[:, None].expand(3, 4, 7)
    unwritten = torch.arange(7)[None, None, :, None] >= lengths[:, None, None, None]
    options = {"blocks": blocks, "causal": False, "mask_BTS": mask, "return_lse": True}
    clean = leaves(*x, dtype=dtype)
    dirty = leaves(x[0], *(y.masked_fill(unwritten, poison) for y in x[1:]), dtype=dtype)
    results = [attend(*y, **options) for y in (clean, dirty)]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert (results[1][0][2] == 0).all()
    both = zip(gradients(results[0], clean, 5), gradients(results[1], dirty, 5), strict=True)
    for a, b in both:
        assert torch.equal(a, b)
    # The same behind a causal window: keys before it are outside every query's window.
    q, k, v = (y.clone() for y in x)
    k[:, :, :3], v[:, :, :3] = poison, poison
    assert attend(q, k, v, blocks=blocks, window=1).isfinite().all()


@some_blocks
def test_poison_that_a_query_may_read_does_show(blocks: tuple[int, int]) -> None:
    q, k, v = inputs(B=1, G=1, group=1, T=2, S=3, D=2, E=2, seed=0)
    v[:, :, 1] = math.nan
    assert attend(q, k, v, blocks=blocks).isnan().all()


@pytest.mark.parametrize("empty", ["B", "T", "S", "H"])
def test_an_empty_axis_gives_an_empty_result_or_zeros(empty: str) -> None:
    size = {"B": 2, "H": 4, "T": 3, "S": 6} | {empty: 0}
    q = normal(0, size["B"], size["H"], size["T"], 5).requires_grad_()
    k = normal(1, size["B"], 2, size["S"], 5).requires_grad_()
    v = normal(2, size["B"], 2, size["S"], 7).requires_grad_()
    out, lse = attend(q, k, v, blocks=(2, 4), return_lse=True)
    assert out.shape == (size["B"], size["H"], size["T"], 7)
    assert lse.shape == out.shape[:3]
    if empty == "S":
        assert (out == 0).all() and (lse == -math.inf).all()
    for x, grad in zip((q, k, v), gradients((out, lse), (q, k, v), 0), strict=True):
        assert grad.shape == x.shape
        assert (grad == 0).all()


def test_inputs_are_left_alone() -> None:
    q, k, v = inputs(B=2, G=1, group=2, T=5, S=6, D=4, E=3, seed=1)
    mask = torch.ones(5, 6, dtype=torch.bool).tril()
    before = [x.clone() for x in (q, k, v, mask)]
    q.requires_grad_()
    attend(q, k, v, blocks=(2, 3), mask_BTS=mask, window=2, scale=1.0).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, mask), before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": normal(0, 2, 4, 5)}, "q_BHTD must have 4 axes"),
        ({"q": normal(0, 2, 4, 3, 5).float()}, "share a dtype, got torch.float32"),
        ({"q": normal(0, 2, 3, 3, 5)}, "got 3 and 2"),
        ({"v": normal(0, 2, 2, 5, 7)}, "agree in batch, heads and length"),
        ({"window": 0}, "got 0"),
        ({"window": True}, "got True"),
        ({"window": 2, "causal": False}, "got 2 with causal=False"),
        ({"mask_BTS": torch.ones(3, 6)}, "must be bool"),
        ({"mask_BTS": torch.ones(128, 256, dtype=torch.bool)}, r"got \(128, 256\)"),
        ({"scale": math.nan}, "scale must be a finite number, got nan"),
        ({"scale": math.inf}, "scale must be a finite number, got inf"),
        ({"block_t": 0}, "block_t must be at least 1, got 0"),
        ({"block_s": 2.0}, r"block_s must be an integer, got 2\.0"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    q, k, v = normal(0, 2, 4, 3, 5), normal(1, 2, 2, 6, 5), normal(2, 2, 2, 6, 7)
    arguments = {"q": q, "k": k, "v": v} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(ValueError, match=message):
        flash.attend(q, k, v, **arguments)


# --- known failures, as for the plain form ----------------------------------------------------


def zeros_and(values: list[float], T: int, D: int = 3) -> tuple[torch.Tensor, ...]:
    """Queries of zero, random keys, and one value per key: every readable key counts the same."""
    q = torch.zeros(1, 1, T, D, dtype=torch.float64)
    v = torch.tensor(values, dtype=torch.float64).reshape(1, 1, -1, 1)
    return q, normal(1, 1, 1, len(values), D), v


@pytest.mark.case("ATT-01")
@some_blocks
def test_causal_tiles_are_aligned_to_the_bottom_right(blocks: tuple[int, int]) -> None:
    row = CASES["ATT-01"]
    q, k, v = zeros_and(row["inputs"]["v"], row["inputs"]["T"], row["inputs"]["D"])
    out = attend(q, k, v, blocks=blocks).flatten().tolist()
    assert out == pytest.approx(row["expected"]["out"], abs=1e-12)
    last = attend(q[:, :, -1:], k, v, blocks=blocks).item()
    assert last == pytest.approx(row["expected"]["single_query"], abs=1e-12)


@pytest.mark.case("ATT-02")
@some_blocks
def test_queries_without_keys_give_zero_and_minus_infinity(blocks: tuple[int, int]) -> None:
    row = CASES["ATT-02"]
    q, k, v = zeros_and(row["inputs"]["v"], row["inputs"]["T"])
    out, lse = attend(q, k, v, blocks=blocks, return_lse=True)
    assert out.flatten().tolist() == pytest.approx(row["expected"]["out"], abs=1e-12)
    assert lse.exp().flatten().tolist() == pytest.approx(row["expected"]["exp_lse"], abs=1e-12)


@pytest.mark.case("ATT-03")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@some_blocks
def test_a_masked_row_is_zero_and_leaves_the_others_alone(
    dtype: torch.dtype, blocks: tuple[int, int]
) -> None:
    row = CASES["ATT-03"]["inputs"]
    q, k, v = (x.to(dtype) for x in inputs(B=1, G=1, group=1, T=3, S=3, D=4, E=5, seed=row["seed"]))
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    mask[row["empty_row"]] = False
    out = attend(q, k, v, blocks=blocks, mask_BTS=mask)
    assert out.isfinite().all()
    assert (out[0, 0, row["empty_row"]] == 0).all()
    want, _ = attention_by_loops(q[:, :, :2], k[:, :, :2], v[:, :, :2])
    tolerance = TOLERANCE.get(dtype, 1e-12)
    torch.testing.assert_close(out[:, :, :2].double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.case("ATT-05")
@some_blocks
def test_a_masked_key_never_wins_against_very_negative_scores(blocks: tuple[int, int]) -> None:
    row, want = CASES["ATT-05"]["inputs"], CASES["ATT-05"]["expected"]
    q = torch.tensor(row["q"], dtype=torch.float32).reshape(1, 1, 1, 1)
    k, v = (torch.tensor(row[name]).float().reshape(1, 1, 2, 1) for name in "kv")
    mask = torch.ones(1, 2, dtype=torch.bool)
    mask[0, row["masked"]] = False
    for allowed, out_want, lse_want in (
        (mask, want["out"], want["lse"]),
        (mask & False, want["out_all_masked"], -math.inf),
    ):
        out, lse = attend(
            q, k, v, blocks=blocks, mask_BTS=allowed, scale=row["scale"], return_lse=True
        )
        assert (out.item(), lse.item()) == (out_want, lse_want)


@pytest.mark.case("ATT-06")
@some_blocks
def test_a_window_counts_the_query_itself(blocks: tuple[int, int]) -> None:
    row = CASES["ATT-06"]
    S, window = row["inputs"]["S"], row["inputs"]["window"]
    q, k, v = zeros_and(row["inputs"]["v"], S)
    out, lse = attend(q, k, v, blocks=blocks, window=window, return_lse=True)
    assert out.flatten().tolist() == pytest.approx(row["expected"]["out"], abs=1e-12)
    assert lse.exp().flatten().tolist() == pytest.approx(row["expected"]["counts"])
    q = normal(3, 1, 1, S, 3)
    for wide in (S, S + 1, 100):
        full = attend(q, k, v, blocks=blocks)
        torch.testing.assert_close(attend(q, k, v, blocks=blocks, window=wide), full, **EXACT)


@pytest.mark.case("ATT-08")
@some_blocks
def test_query_heads_of_a_group_are_neighbours(blocks: tuple[int, int]) -> None:
    row = CASES["ATT-08"]
    H, G, S, D = (row["inputs"][name] for name in "HGSD")
    q = torch.zeros(1, H, S, D, dtype=torch.float64)
    v = torch.tensor(row["inputs"]["v_of_head"]).double().reshape(1, G, 1, 1).expand(1, G, S, 1)
    out = attend(q, normal(0, 1, G, S, D), v, blocks=blocks)
    for position in range(S):
        assert out[0, :, position, 0].tolist() == pytest.approx(row["expected"]["out_of_head"])


@pytest.mark.case("ATT-10")
@some_blocks
def test_absorbed_latent_attention_runs_in_tiles_under_the_scale_of_the_expanded_key(
    blocks: tuple[int, int],
) -> None:
    size = CASES["ATT-10"]["inputs"]
    H, T, C, D, R, E = (size[name] for name in ("H", "T", "latent", "nope", "rope", "v"))
    q, q_rope = normal(1, 1, H, T, D), normal(2, 1, H, T, R)
    latent, k_rope = normal(3, 1, 1, T, C), normal(4, 1, 1, T, R)
    up_k, up_v = normal(5, H, D, C), normal(6, H, E, C)
    absorbed = torch.cat((torch.einsum("bhtd,hdc->bhtc", q, up_k), q_rope), dim=-1)
    scale = CASES["ATT-10"]["expected"]["scale"]
    stored = torch.cat((latent, k_rope), dim=-1)
    read = attend(absorbed, stored, latent, blocks=blocks, scale=scale)
    got = torch.einsum("bhtc,hec->bhte", read, up_v)
    k = torch.cat(
        (torch.einsum("bsc,hdc->bhsd", latent[:, 0], up_k), k_rope.expand(1, H, T, R)), dim=-1
    )
    v = torch.einsum("bsc,hec->bhse", latent[:, 0], up_v)
    want, _ = attention_by_loops(torch.cat((q, q_rope), dim=-1), k, v)
    torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.case("ATT-14")
@some_blocks
def test_half_precision_products_do_not_overflow(blocks: tuple[int, int]) -> None:
    row = CASES["ATT-14"]["inputs"]
    dtype = getattr(torch, row["dtype"])
    q = torch.full((1, 1, 1, row["D"]), row["q"], dtype=dtype)
    k = torch.full((1, 1, row["S"], row["D"]), row["k"], dtype=dtype)
    v = torch.tensor(row["v"], dtype=dtype).reshape(1, 1, 2, 1)
    out, lse = attend(q, k, v, blocks=blocks, return_lse=True)
    assert out.dtype == dtype and out.item() == CASES["ATT-14"]["expected"]["out"]
    _, want = attention_by_loops(q, k, v)
    torch.testing.assert_close(lse.double(), want, rtol=1e-6, atol=0)


def check_grid() -> None:
    """Tiled attention on every pair of lengths and windows of ATT-16, against loops."""
    row = CASES["ATT-16"]["inputs"]
    for T, S in row["T_S"]:
        for window in row["windows"]:
            q, k, v = inputs(B=2, G=2, group=3, T=T, S=S, D=4, E=7, seed=T + 10 * S)
            want, _ = attention_by_loops(q, k, v, window=window)
            for blocks in BLOCKS:
                got = attend(q, k, v, blocks=blocks, window=window)
                torch.testing.assert_close(got, want, **EXACT)


def moved(nearest: int = 0, beyond: int = 0, top_left: bool = False) -> Callable[..., object]:
    """A schedule that classifies with its diagonal or its window moved."""
    right = schedule._tile

    def mutant(T: int, S: int, *edges: int | bool | None) -> flash.Tile:
        *edges, causal, window = edges
        t_start, t_stop, s_start, s_stop = edges
        wider = None if window is None else max(window + beyond, 1)
        shift = T - S if top_left else nearest
        kind = right(T, S + shift, *edges, causal, wider).kind
        return flash.Tile(t_start, t_stop, s_start, s_stop, kind)

    return mutant


@pytest.mark.case("ATT-16")
@pytest.mark.parametrize(
    "mutant",
    [moved(nearest=1), moved(nearest=-1), moved(beyond=1), moved(beyond=-1), moved(top_left=True)],
    ids=["sees one ahead", "not itself", "window + 1", "window - 1", "top left"],
)
def test_a_schedule_that_is_off_by_one_is_caught(
    mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_grid()
    monkeypatch.setattr(schedule, "_tile", moved())
    check_grid()  # the stand-in itself is right when nothing is moved
    monkeypatch.setattr(schedule, "_tile", mutant)
    with pytest.raises(AssertionError):
        check_grid()


# --- parts of the keys, merged ----------------------------------------------------------------


@pytest.mark.case("FLA-08")
@some_blocks
def test_two_parts_merge_by_natural_log_sum_exps(blocks: tuple[int, int]) -> None:
    row = MERGING["FLA-08"]
    parts = []
    for values, lse_want in zip(row["inputs"]["parts"], row["expected"]["lse"], strict=True):
        q, k, v = zeros_and(values, T=1)
        out, lse = attend(q, k, v, blocks=blocks, causal=False, return_lse=True)
        assert lse.item() == pytest.approx(lse_want, abs=row["tolerance"])
        parts.append((out, lse))
    out, lse = flash.merge(*zip(*parts, strict=True))
    assert lse.item() == pytest.approx(row["expected"]["merged_lse"], abs=row["tolerance"])
    assert out.item() == pytest.approx(row["expected"]["out"], abs=row["tolerance"])
    # Logarithms to base 2 are not what merge takes: the result shows it.
    wrong, _ = flash.merge([out for out, _ in parts], [lse / math.log(2) for _, lse in parts])
    assert abs(wrong.item() - row["expected"]["out"]) > 0.1


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 13), max_size=6),
    order=st.randoms(use_true_random=False),
    window=st.none() | st.integers(1, 15),
    seed=st.integers(0, 999),
)
def test_parts_in_any_number_and_order_give_the_whole(
    cuts: list[int], order: object, window: int | None, seed: int
) -> None:
    T, S = 5, 13
    q, k, v = inputs(B=2, G=2, group=2, T=T, S=S, D=3, E=4, seed=seed)
    allowed = may_read(T, S, window=window, mask=None)[0]
    edges = [0, *sorted(cuts), S]
    parts = [
        attend(
            q,
            k[:, :, a:b],
            v[:, :, a:b],
            blocks=(2, 3),
            causal=False,
            mask_BTS=allowed[:, a:b],
            return_lse=True,
        )
        for a, b in itertools.pairwise(edges)
    ]
    order.shuffle(parts)
    want = attention_by_loops(q, k, v, window=window)
    got = flash.merge(*zip(*parts, strict=True))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **EXACT)
    stacked = flash.merge(*(torch.stack(x) for x in zip(*parts, strict=True)))
    assert all(torch.equal(a, b) for a, b in zip(got, stacked, strict=True))


def test_merging_in_steps_is_merging_at_once() -> None:
    outs, lses = normal(0, 4, 2, 3, 5, 6), 50 * normal(1, 4, 2, 3, 5)
    want = flash.merge(outs, lses)
    first = flash.merge(outs[:2], lses[:2])
    second = flash.merge(outs[2:], lses[2:])
    got = flash.merge(*zip(first, second, strict=True))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_an_empty_part_is_not_looked_at() -> None:
    outs, lses = normal(0, 3, 1, 2, 4, 5), normal(1, 3, 1, 2, 4)
    outs[1], lses[1] = math.nan, -math.inf
    got, lse = flash.merge(outs, lses)
    want = flash.merge(outs[[0, 2]], lses[[0, 2]])
    assert torch.equal(got, want[0]) and torch.equal(lse, want[1])
    outs[:, :, 0], lses[:, :, 0] = math.nan, -math.inf  # a head for which no part has read
    got, lse = flash.merge(outs, lses)
    assert (got[:, 0] == 0).all() and (lse[:, 0] == -math.inf).all()
    assert got.isfinite().all()


@pytest.mark.parametrize("shift", [0.0, 3e4, -3e4])
def test_only_differences_of_log_sum_exps_count(shift: float) -> None:
    outs = torch.tensor([2.0, 10.0]).reshape(2, 1, 1)
    lses = torch.tensor([0.0, math.log(3)]).reshape(2, 1) + shift
    out, lse = flash.merge(outs, lses)
    assert out.item() == pytest.approx((2 + 3 * 10) / 4, rel=1e-3 if shift else 1e-6)
    assert lse.item() == pytest.approx(shift + math.log(4), rel=1e-6)


def test_16_bit_parts_are_summed_in_float32() -> None:
    outs = torch.full((300, 1, 1), 1.0, dtype=torch.float16)
    out, lse = flash.merge(outs, torch.zeros(300, 1))
    assert out.dtype == torch.float16 and out.item() == 1.0
    assert lse.item() == pytest.approx(math.log(300), rel=1e-6)


def test_gradients_flow_through_parts_and_merging() -> None:
    T, S = 4, 6
    q, k, v = leaves(*inputs(B=1, G=2, group=2, T=T, S=S, D=2, E=3, seed=1), dtype=torch.float64)
    allowed = may_read(T, S, mask=None)[0]
    allowed[1] = False

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [
            attend(
                q,
                k[:, :, a:b],
                v[:, :, a:b],
                blocks=(2, 2),
                causal=False,
                mask_BTS=allowed[:, a:b],
                return_lse=True,
            )
            for a, b in ((0, 1), (1, 4), (4, 6))
        ]
        out, lse = flash.merge(*zip(*parts, strict=True))
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(whole, (q, k, v))


@pytest.mark.parametrize(
    ("outs", "lses", "message"),
    [
        ([], [], "got 0 and 0"),
        ([torch.ones(2, 3)], [], "got 1 and 0"),
        ([torch.ones(2, 3), torch.ones(2, 4)], [torch.ones(2)] * 2, r"got \(2, 4\)"),
        ([torch.ones(2, 3), torch.ones(2, 3).half()], [torch.ones(2)] * 2, "torch.float16"),
        ([torch.ones(2, 3)], [torch.ones(3)], r"needs an LSE \(2,\), got \(3,\)"),
        ([torch.ones(2, 3)], [torch.ones(2).half()], "float32 or all float64, got torch.float16"),
        ([torch.ones(2, 3)] * 2, [torch.ones(2), torch.ones(2).double()], "got torch.float64"),
    ],
)
def test_parts_that_do_not_fit_are_refused(outs: list, lses: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flash.merge(outs, lses)


# --- memory -----------------------------------------------------------------------------------


def test_peak_is_counted_exactly() -> None:
    before = torch.ones(1000)

    def work() -> torch.Tensor:
        a = before + 1  # 4,000 bytes
        b = torch.cat((a, a))  # 8,000 more, the peak
        del a
        return b[:5].clone()  # 8,000 and 20

    assert peak_bytes(work) == 12_000
    assert peak_bytes(lambda: before.add_(1)) == 0, "what was there before does not count"
    assert peak_bytes(lambda: before.view(10, 100).T) == 0, "nor does a view"
    assert peak_bytes(lambda: [before.clone() for _ in range(3)]) == 12_000
    assert peak_bytes(lambda: None) == 0


@pytest.mark.parametrize("causal", [True, False])
def test_peak_grows_linearly_forward_and_backward(causal: bool) -> None:
    def forward(N: int) -> int:
        q, k, v = (torch.zeros(1, heads, N, 16) for heads in (4, 2, 2))
        return peak_bytes(lambda: attend(q, k, v, blocks=(128, 256), causal=causal))

    def both(N: int) -> int:
        q, k, v = (torch.zeros(1, heads, N, 16, requires_grad=True) for heads in (4, 2, 2))
        return peak_bytes(
            lambda: attend(q, k, v, blocks=(128, 256), causal=causal).sum().backward()
        )

    for peak in (forward, both):
        short, middle, long = (peak(N) for N in (512, 1024, 1536))
        assert long - middle == middle - short > 0
    # All that grows is the output, the LSE and its remainder: 4 heads of 16 + 2 numbers.
    assert forward(1024) - forward(512) == 512 * 4 * 18 * 4


def test_peak_at_8192_tokens_is_below_2_percent_of_one_score_matrix() -> None:
    q, k, v = (torch.zeros(1, heads, 8192, 64) for heads in (4, 2, 2))
    plain = peak_bytes(lambda: attention.attend(q[:, :, :512], k[:, :, :512], v[:, :, :512]))
    assert plain > 4 * 512 * 512 * 4, "the plain form holds the score matrix, and more"
    assert peak_bytes(lambda: flash.attend(q, k, v)) < 0.02 * 4 * 8192 * 8192 * 4
