"""Counted traffic against an enumeration of tiles in plain Python, closed forms, published sums."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import normal, readable_keys

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is built for Linux only", allow_module_level=True)

from refimpl.kernels import flash, tl, traffic, triton
from refimpl.kernels.flash import Tiles

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

SHAPES: list[dict[str, Any]] = [
    {"T": 64, "S": 64, "D": 32, "causal": False},
    {"T": 64, "S": 64, "D": 32},
    {"T": 37, "S": 53, "D": 24, "E": 40, "B": 2, "H": 2, "G": 1},
    {"T": 53, "S": 37, "D": 16, "causal": False, "dtype": "bf16"},
    {"T": 50, "S": 20, "D": 16},
    {"T": 1, "S": 97, "D": 64, "H": 4, "G": 2, "dtype": "fp16"},
    {"T": 70, "S": 70, "D": 16, "window": 20},
    {"T": 33, "S": 80, "D": 48, "window": 16, "H": 3, "G": 3},
    {"T": 40, "S": 100, "D": 16, "block_t": 16, "block_s": 32},
    {"T": 100, "S": 40, "D": 16, "window": 5, "block_t": 32, "block_s": 16},
]


def named(shape: dict[str, Any]) -> str:
    """A short name of a shape for pytest."""
    return "-".join(f"{name}{value}" for name, value in shape.items())


class Problem:
    """One attention problem as sets of rows, tiles and readable keys; no kernel is looked at."""

    def __init__(self, shape: dict[str, Any]) -> None:
        known = {"B": 1, "H": 1, "G": 1, "dtype": "fp32", "causal": True, "window": None}
        known |= {"block_t": 16, "block_s": 16, **shape}
        self.B, self.H, self.G, self.T, self.S, self.D = (known[x] for x in "BHGTSD")
        self.E = known.get("E", self.D)
        self.size = BYTES[known["dtype"]]
        self.arguments = known
        self.query_tiles = _cut(self.T, known["block_t"])
        self.key_tiles = _cut(self.S, known["block_s"])
        self.block = (known["block_t"], known["block_s"])
        seen = {"causal": known["causal"], "window": known["window"]}
        self.keys = [set(readable_keys(self.T, self.S, t, **seen)) for t in range(self.T)]
        self.ever = set().union(*self.keys)

    def meets(self, queries: list[int], keys: list[int]) -> bool:
        """Whether any query of a tile may read any key of another."""
        return any(self.keys[t] & set(keys) for t in queries)

    def loaded(self, keys: list[int]) -> int:
        """Keys of a tile that are worth loading: those that some query may read."""
        return len(self.ever & set(keys))

    def products(self, *widths: int) -> int:
        """FLOPs of one tile's products over or into padded widths."""
        padded = sum(max(16, 2 ** (width - 1).bit_length()) for width in widths)
        return 2 * self.block[0] * self.block[1] * padded


def _cut(length: int, block: int) -> list[list[int]]:
    return [list(range(a, min(a + block, length))) for a in range(0, length, block)]


def flash_by_tiles(p: Problem) -> tuple[Counter, Counter, int]:
    """v2: for every query tile, the key tiles that it can see."""
    read, written, flops = Counter(), Counter(), 0
    for queries in p.query_tiles * (p.B * p.H):
        read["q"] += len(queries) * p.D * p.size
        written["out"] += len(queries) * p.E * p.size
        written["lse"] += len(queries) * 4
        for keys in p.key_tiles:
            if p.meets(queries, keys):
                read["k"] += p.loaded(keys) * p.D * p.size
                read["v"] += p.loaded(keys) * p.E * p.size
                flops += p.products(p.D, p.E)
    return read, written, flops


def flash_v1_by_tiles(p: Problem) -> tuple[Counter, Counter, int]:
    """v1: for every key tile, the query tiles; the first pass visits all, later ones reread."""
    read, written, flops = Counter(), Counter(), 0
    for number, keys in list(enumerate(p.key_tiles)) * (p.B * p.H):
        read["k"] += p.loaded(keys) * p.D * p.size
        read["v"] += p.loaded(keys) * p.E * p.size
        for queries in p.query_tiles:
            if number and not p.meets(queries, keys):
                continue
            read["q"] += len(queries) * p.D * p.size
            for name, width in (("out", p.E), ("peaks", 1), ("sums", 1)):
                read[name] += len(queries) * width * 4 * (number > 0)
                written[name] += len(queries) * width * 4
            flops += p.products(p.D, p.E)
    return read, written, flops


def naive_by_tiles(p: Problem) -> tuple[Counter, Counter, int]:
    """Three kernels, whole matrices between them, no tile skipped."""
    read, written = Counter(), Counter()
    heads, pairs = p.B * p.H, len(p.query_tiles) * len(p.key_tiles)
    for queries in p.query_tiles * heads:
        for keys in p.key_tiles:
            read["q"] += len(queries) * p.D * p.size
            read["k"] += len(keys) * p.D * p.size
            read["v"] += p.loaded(keys) * p.E * p.size
    written["scores"] = read["scores"] = heads * p.T * p.S * p.size
    written["weights"] = read["weights"] = heads * p.T * p.S * p.size
    written["out"] = heads * p.T * p.E * p.size
    return read, written, heads * pairs * p.products(p.D, p.E)


def backward_by_tiles(p: Problem) -> tuple[Counter, Counter, int]:
    """delta, then queries past keys, then keys past the queries of all heads of the group."""
    read, written, flops = Counter(), Counter(), 0
    heads = p.B * p.H
    rows = heads * p.T
    for name, width, size in (("out", p.E, p.size), ("d_out", p.E, p.size), ("d_lse", 1, 4)):
        read[name] += rows * width * size
    written["delta"] += rows * 4
    for queries in p.query_tiles * heads:
        _read_queries(read, p, queries)
        written["d_q"] += len(queries) * p.D * p.size
        for keys in p.key_tiles:
            if p.meets(queries, keys):
                read["k"] += p.loaded(keys) * p.D * p.size
                read["v"] += p.loaded(keys) * p.E * p.size
                flops += p.products(p.D, p.E, p.D)
    for keys in p.key_tiles * (p.B * p.G):
        read["k"] += p.loaded(keys) * p.D * p.size
        read["v"] += p.loaded(keys) * p.E * p.size
        written["d_k"] += len(keys) * p.D * p.size
        written["d_v"] += len(keys) * p.E * p.size
        for queries in p.query_tiles * (p.H // p.G):
            if p.meets(queries, keys):
                _read_queries(read, p, queries)
                flops += p.products(p.D, p.E, p.D, p.E)
    return read, written, flops


def _read_queries(read: Counter, p: Problem, queries: list[int]) -> None:
    read["q"] += len(queries) * p.D * p.size
    read["d_out"] += len(queries) * p.E * p.size
    read["lse"] += len(queries) * 4
    read["delta"] += len(queries) * 4


def check(kernel: str, by_tiles: Callable, shape: dict[str, Any]) -> None:
    """The count equals the enumeration: bytes of every tensor, and FLOPs."""
    problem = Problem(shape)
    counted = traffic.attention(kernel, **problem.arguments)
    read, written, flops = by_tiles(problem)
    assert counted.read == {name: n for name, n in read.items() if n}
    assert counted.written == {name: n for name, n in written.items() if n}
    assert counted.matmul_flops == flops
    assert counted.bytes_read == sum(read.values())
    assert counted.bytes_written == sum(written.values())


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_flash_equals_the_enumeration_of_tiles(shape: dict[str, Any]) -> None:
    check("flash", flash_by_tiles, shape)


@pytest.mark.parametrize("shape", [x for x in SHAPES if "window" not in x], ids=named)
def test_v1_equals_the_enumeration_of_tiles(shape: dict[str, Any]) -> None:
    check("flash-v1", flash_v1_by_tiles, shape)


@pytest.mark.parametrize("shape", [*SHAPES[:4], SHAPES[6]], ids=named)
def test_naive_equals_the_enumeration_of_tiles(shape: dict[str, Any]) -> None:
    check("naive", naive_by_tiles, shape)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], SHAPES[7]], ids=named)
def test_backward_equals_the_enumeration_of_tiles(shape: dict[str, Any]) -> None:
    check("flash-backward", backward_by_tiles, shape)


def test_the_numbers_of_one_head_of_256_tokens() -> None:
    shape = {"T": 256, "S": 256, "D": 64, "causal": False, "block_t": 64, "block_s": 64}
    naive, fused = traffic.attention("naive", **shape), traffic.attention("flash", **shape)
    assert (naive.bytes_read, naive.bytes_written) == (1_310_720, 589_824)
    assert (fused.bytes_read, fused.bytes_written) == (589_824, 66_560)
    assert naive.matmul_flops == fused.matmul_flops == 4 * 256 * 256 * 64
    assert [launch.kernel for launch in naive.launches] == [
        "scores_kernel",
        "softmax_kernel",
        "weighted_sum_kernel",
    ]
    assert [launch.programs for launch in (*naive.launches, *fused.launches)] == [16, 4, 4, 4]
    # The tile of queries, the running maximum and the rescaling cost work that is not a product.
    assert naive.exponentials == 256 * 256 and fused.exponentials == 256 * 256 + 4 * 256
    assert fused.vector_flops > naive.vector_flops


@pytest.mark.parametrize(("block_t", "block_s"), [(16, 16), (32, 16), (16, 64), (64, 32)])
def test_flash_is_the_closed_form(block_t: int, block_s: int) -> None:
    N, D, H = 64, 16, 2
    shape = {"T": N, "S": N, "D": D, "H": H, "G": 2, "block_t": block_t, "block_s": block_s}
    # Not causal: q once, k and v once for every query tile. 4 bytes a number.
    counted = traffic.attention("flash", **shape, causal=False)
    assert counted.bytes_read == 4 * H * N * D * (1 + 2 * N // block_t)
    assert counted.bytes_written == 4 * H * N * (D + 1)
    # Causal, square tiles: n (n + 1) / 2 of the n^2 pairs of tiles.
    if block_t == block_s:
        n = N // block_t
        counted = traffic.attention("flash", **shape)
        assert counted.bytes_read == 4 * H * D * (N + 2 * block_s * n * (n + 1) // 2)
        assert counted.matmul_flops == H * 4 * block_t * block_s * D * n * (n + 1) // 2


def test_v1_moves_its_output_for_every_tile_of_keys_and_computes_more() -> None:
    N, D, block = 128, 16, 32
    shape = {"T": N, "S": N, "D": D, "causal": False, "block_t": block, "block_s": block}
    first, second = traffic.attention("flash-v1", **shape), traffic.attention("flash", **shape)
    n = N // block
    assert first.bytes_read == 4 * (2 * N * D + n * N * D + (n - 1) * N * (D + 2))
    assert first.bytes_written == 4 * n * N * (D + 2)
    assert first.matmul_flops == second.matmul_flops
    # The division of the output by its sum at every step: (n - 1) more for each element.
    assert first.vector_flops > second.vector_flops
    assert (first.launches[0].programs, second.launches[0].programs) == (1, n)


# --- the counter itself -------------------------------------------------------------------------


@triton.jit
def sum_kernel(x, y, total, n, BLOCK: tl.constexpr):
    """Loads n of BLOCK numbers from x twice, writes BLOCK - 1 to y, adds one number to total."""
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    b = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    c = tl.exp(a * b + 1.0)
    tl.store(y + i, c, mask=i > 0)
    tl.atomic_add(total, tl.sum(c, 0))
    tl.store(y, tl.load(total))


def test_bytes_and_operations_of_a_kernel_counted_by_hand() -> None:
    x, y, total = normal(1, 8).float(), torch.zeros(8), torch.zeros(1)
    with traffic.count() as counted:
        sum_kernel[(1,)](x, y, total, 5, 8)
        sum_kernel[(1,)](x=x, y=y, total=total, n=3, BLOCK=8)
    assert [launch.read for launch in counted.launches] == [
        {"x": 2 * 5 * 4, "total": 4 + 4},
        {"x": 2 * 3 * 4, "total": 4 + 4},
    ]
    assert counted.written == {"y": 2 * (7 + 1) * 4, "total": 2 * 4}
    # For each of 8: a product, a sum, an exponential; a reduction of 8 is 7 sums.
    assert counted.vector_flops == 2 * (3 * 8 + 7)
    assert counted.exponentials == 2 * 8
    assert counted.matmul_flops == 0
    assert counted.launches[0].bytes_read == 48 and counted.bytes_written == 72


def test_halves_are_two_bytes_and_a_grid_may_be_a_function() -> None:
    x, y = torch.ones(8, dtype=torch.bfloat16), torch.zeros(8)
    with traffic.count() as counted:
        sum_kernel[lambda settings: (1,)](x, y, torch.zeros(1), 8, 8)
    assert counted.read["x"] == 2 * 8 * 2 and counted.launches[0].programs == 1


def test_arguments_in_the_same_memory_are_counted_together() -> None:
    packed = normal(1, 1, 1, 20, 48).float()
    q, k, v = packed[..., :16], packed[..., 16:32], packed[..., 32:]
    with traffic.count() as counted:
        flash.attend(q, k, v, causal=False, tiles=Tiles(32, 32))
    # The views interleave: a tile of q lies within the span of q alone or of several.
    assert sum(counted.read.values()) == 4 * 20 * 48
    with traffic.count() as counted:
        flash.attend(q, q, q, causal=False, tiles=Tiles(32, 32))
    assert counted.read == {"k|q|v": 3 * 4 * 20 * 16}


def test_counting_ends_with_the_block_also_after_an_error() -> None:
    from triton.runtime import interpreter as machine

    owners = (machine.InterpreterBuilder, machine.GridExecutor, machine.ReduceOps)
    before = [dict(vars(owner)) for owner in owners]
    x = normal(1, 1, 1, 4, 16).float()
    with pytest.raises(KeyError, match="stop"), traffic.count() as counted:
        flash.attend(x, x, x, tiles=Tiles(16, 16))
        raise KeyError("stop")
    assert [dict(vars(owner)) for owner in owners] == before
    assert len(counted.launches) == 1
    flash.attend(x, x, x, tiles=Tiles(16, 16))
    assert len(counted.launches) == 1


def test_counting_does_not_change_the_result() -> None:
    x = normal(1, 1, 2, 20, 16).float()
    plain = flash.attend(x, x, x, tiles=Tiles(16, 16))
    with traffic.count():
        counted = flash.attend(x, x, x, tiles=Tiles(16, 16))
    assert torch.equal(plain, counted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "flesh"}, "no kernel 'flesh': there is flash,"),
        ({"dtype": "fp8"}, "dtype must be fp32, fp16 or bf16, got 'fp8'"),
        ({"D": 300}, "width 300"),
        ({"block_t": 20}, "block_t must be a power of two"),
        ({"window": 0}, "got 0"),
    ],
)
def test_wrong_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        traffic.attention(**{"kernel": "flash", "T": 4, "S": 4, "D": 16, **change})


def test_where_kernels_are_compiled_a_child_process_counts() -> None:
    shape = {"T": 20, "S": 30, "D": 16, "H": 2, "G": 1, "window": 9, "block_t": 16, "block_s": 16}
    code = (
        "import json, sys\n"
        "from refimpl.kernels import MODE, traffic\n"
        f"counted = traffic.attention('flash', **{shape!r})\n"
        "try:\n"
        "    traffic.attention('flash', T=4, S=4, D=300)\n"
        "except ValueError as error:\n"
        "    refused = str(error)\n"
        "try:\n"
        "    with traffic.count():\n"
        "        raise SystemExit('counted while compiled')\n"
        "except RuntimeError as error:\n"
        "    said = str(error)\n"
        "print(json.dumps([MODE, counted.read, counted.written, refused, said]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    mode, read, written, refused, said = json.loads(done.stdout)
    here = traffic.attention("flash", **shape)
    assert mode == "compiler" and (read, written) == (here.read, here.written)
    assert "width 300" in refused and "TRITON_INTERPRET=1" in said
