"""Chapter 07's figures: what they draw is counted again, without an allocator and without tables.

Pools are modelled by intervals and by sums of lengths, sequences by the list of their tokens.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import figures
from figures import ch07, ch07_blocks
from refimpl.blocks.policies import Paged
from refimpl.blocks.replay import replay

ROOT = Path(__file__).resolve().parent.parent
SLOTS, LONGEST, BLOCK = 16_384, 2048, 16

# ── The trace and its waste ─────────────────────────────────────────────────────────────────────


def lengths() -> list[tuple[int, int, int]]:
    """Arrival, prompt and final tokens of each request, drawn by inverting the exponential."""
    numbers, found = random.Random(0), []
    for index in range(200):
        prompt = math.ceil(-161.31 * math.log(1 - numbers.random()))
        prompt = min(prompt, LONGEST - 1)
        output = math.ceil(-337.99 * math.log(1 - numbers.random()))
        found.append((4 * index, prompt, min(output, LONGEST + 1 - prompt)))
    return [(arrival, prompt, prompt + output - 1) for arrival, prompt, output in found]


def test_trace_is_an_exponential_one_with_published_means() -> None:
    drawn = [(r.arrival, r.num_prompt, r.num_tokens) for r in ch07.trace()]
    assert drawn == lengths()
    data = figures.data("07_waste")
    assert data["num_requests"] == 200
    assert data["mean_prompt"] == pytest.approx(161.31, rel=0.10)
    assert data["mean_output"] == pytest.approx(337.99, rel=0.10)
    assert data["tokens"] == sum(final for _, _, final in lengths())
    assert max(final for _, _, final in lengths()) <= LONGEST


def free_ranges(used: dict[int, int], start: int = 0, size: int = SLOTS) -> list[tuple[int, int]]:
    """Largest free ranges ``(size, start)`` of a power of two at a multiple of themselves."""
    inside = [s for s, length in used.items() if s < start + size and start < s + length]
    if not inside:
        return [(size, start)]
    if any(s <= start and start + size <= s + used[s] for s in inside):
        return []
    half = size // 2
    return free_ranges(used, start, half) + free_ranges(used, start + half, half)


class Model:
    """One policy as plain sums: what a request reserves, and where, if it matters where."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.used: dict[int, int] = {}  # reserved slots by start, of the contiguous policies
        self.ranges = free_ranges(self.used)

    def reserve(self, final: int, stored: int) -> int:
        if self.policy == "paged":
            return math.ceil(stored / BLOCK) * BLOCK
        return LONGEST if self.policy == "max" else 2 ** math.ceil(math.log2(final))

    def place(self, size: int) -> int | None:
        """The start of a range that fits: the smallest that does, leftmost first."""
        fitting = [(length, start) for length, start in self.ranges if length >= size]
        return min(fitting)[1] if fitting else None

    def change(self, start: int, size: int | None) -> None:
        if size is None:
            del self.used[start]
        else:
            self.used[start] = size
        self.ranges = free_ranges(self.used)


def simulate(policy: str) -> dict[str, float]:
    """The whole trace in one loop; jobs are lists ``[arrival, prompt, final, stored, start]``."""
    model = Model(policy)
    queue = [[*request, 0, None] for request in lengths()]
    running: list[list] = []
    sums, steps, step, peak, lost, again = Counter(), 0, 0, 0, 0, 0
    pressed = 0

    def reserved() -> int:
        return sum(model.reserve(job[2], job[3]) for job in running)

    while queue or running:
        if not running:
            step = max(step, queue[0][0])
        for job in list(running):
            if policy == "paged":
                while job in running and job[3] % BLOCK == 0 and reserved() + BLOCK > SLOTS:
                    queue.insert(0, running.pop())
                    lost += 1
            if job in running:
                job[3] += 1
        while queue and queue[0][0] <= step:
            job = queue[0]
            following = job[3] + 1 if job[3] else job[1]
            size = model.reserve(job[2], following)
            if policy == "paged":
                if reserved() + size > SLOTS:
                    break
            else:
                start = model.place(size)
                if start is None:
                    break
                model.change(start, size)
                job[4] = start
            again += job[3]
            job[3] = following
            running.append(queue.pop(0))
        peak, steps = max(peak, len(running)), steps + 1
        if queue and queue[0][0] <= step:
            pressed += 1
            held = sum(job[3] for job in running)
            later = sum(min(model.reserve(j[2], j[3]), j[2]) - j[3] for j in running)
            free = SLOTS - reserved()
            job = queue[0]
            enough = model.reserve(job[2], job[3] + 1 if job[3] else job[1]) <= free
            sums["token"] += held
            sums["future"] += later
            sums["internal"] += SLOTS - free - held - later
            sums["external" if enough else "unused"] += free
        for job in [job for job in running if job[3] == job[2]]:
            running.remove(job)
            if policy != "paged":
                model.change(job[4], None)
        step += 1
    kinds = ("token", "future", "internal", "external", "unused")
    shares = {kind: sums[kind] / (pressed * SLOTS) for kind in kinds}
    return shares | {"peak": peak, "steps": steps, "preempted": lost, "recomputed": again}


@pytest.mark.parametrize("policy", ["max", "pow2", "paged"])
def test_waste_is_what_a_pool_of_plain_sums_counts(policy: str) -> None:
    row = next(row for row in figures.data("07_waste")["rows"] if row["policy"] == policy)
    counted = simulate(policy)
    assert sum(row["shares"].values()) == pytest.approx(1)
    for kind, share in row["shares"].items():
        assert share == pytest.approx(counted[kind], abs=1e-12), kind
    for number in ("peak", "steps", "preempted", "recomputed"):
        assert row[number] == counted[number], number


def test_marks_are_the_published_shares_of_another_trace() -> None:
    rows = json.loads((ROOT / "tests" / "data" / "published_paged.json").read_text("utf-8"))
    parts = {row["id"]: row["expected"] for row in rows}["vllm.fig2"]
    data = figures.data("07_waste")
    marks = {row["policy"]: row["published"] for row in data["rows"]}
    assert marks == {"max": parts["max"][0], "pow2": parts["pow2"][0], "paged": parts["vllm"][0]}
    assert data["oracle"] == parts["oracle"][0]
    shares = [row["shares"]["token"] for row in data["rows"]]
    assert shares == sorted(shares)
    assert all(f"{number}" in figures.alt("07_waste") for number in (20.4, 26.8, 38.2, 96.3))


# ── A pool, step by step ────────────────────────────────────────────────────────────────────────


def test_pool_frames_agree_with_their_tables() -> None:
    data = figures.data("07_pool")
    size, before = data["block_size"], [{"holders": [], "filled": 0}] * data["num_blocks"]
    for frame in data["frames"]:
        expected = [{"holders": [], "filled": 0} for _ in range(data["num_blocks"])]
        for name in sorted(frame["tables"]):
            blocks, left = frame["tables"][name], frame["tokens"][name]
            assert len(blocks) == math.ceil(left / size)
            for block in blocks:
                expected[block]["holders"].append(name)
                expected[block]["filled"] = max(expected[block]["filled"], min(size, left))
                left -= size
        assert frame["blocks"] == expected
        assert frame["used"] == len(set(itertools.chain(*frame["tables"].values())))
        changed = [
            i for i, pair in enumerate(zip(before, expected, strict=True)) if pair[0] != pair[1]
        ]
        assert frame["changed"] == changed
        before = expected


def test_pool_tells_the_story_by_hand() -> None:
    frames = figures.data("07_pool")["frames"]
    told = [(frame["tables"], frame["tokens"], frame["event"].split(":")[0]) for frame in frames]
    A, B, C, D = [0, 1, 5], [2, 3, 4], [0, 1, 6], [7, 8, 9, 4]
    assert told == [
        ({"A": [0, 1]}, {"A": 6}, "A arrives, 6 tokens"),
        ({"A": [0, 1], "B": B}, {"A": 6, "B": 9}, "B arrives, 9 tokens"),
        ({"A": [0, 1], "B": B}, {"A": 8, "B": 9}, "A writes 2"),
        ({"A": A, "B": B}, {"A": 9, "B": 9}, "A writes 1"),
        ({"A": A, "B": B, "C": A}, {"A": 9, "B": 9, "C": 9}, "C forks from A"),
        ({"A": A, "B": B, "C": C}, {"A": 9, "B": 9, "C": 10}, "C writes 1"),
        ({"A": A, "B": B, "C": C}, {"A": 10, "B": 9, "C": 10}, "A writes 1"),
        ({"A": A, "C": C}, {"A": 10, "C": 10}, "B leaves"),
        ({"A": A, "C": C, "D": D}, {"A": 10, "C": 10, "D": 14}, "D arrives, 14 tokens"),
        ({"C": C, "D": D}, {"C": 10, "D": 14}, "A leaves"),
    ]
    consequences = [frame["event"].split(": ")[1] for frame in frames]
    assert consequences[3] == "takes block 5"
    assert consequences[5] == "block 5 is shared, so C copies it to 6"
    assert consequences[6] == "block 5 has room and is A's alone"
    assert consequences[7] == "blocks 2, 3 and 4 free"
    assert consequences[9] == "block 5 free, blocks 0 and 1 held by others"
    assert "blocks 7, 8, 9 and 4" in figures.get("07_pool").title


# ── Copy-on-write ───────────────────────────────────────────────────────────────────────────────


def test_every_sequence_reads_its_own_tokens_through_its_table() -> None:
    data = figures.data("07_cow")
    prompt, writes = [1, 2, 3, 4, 5, 6], {"A": 7, "B": 8, "C": 9}
    for index, frame in enumerate(data["frames"]):
        written = dict(list(writes.items())[: max(0, index - 1)])
        assert list(frame["tables"]) == (["A"] if not index else ["A", "B", "C"])
        for name, blocks in frame["tables"].items():
            expected = prompt + ([written[name]] if name in written else [])
            read = [token for block in blocks for token in frame["slots"][block]]
            # A block that others still share may hold nothing beyond its owners' tokens.
            assert read == expected + [None] * (len(read) - len(expected)), (index, name)
        holders = [
            [name for name, blocks in frame["tables"].items() if block in blocks]
            for block in range(data["num_blocks"])
        ]
        assert frame["holders"] == holders
        assert frame["references"] == [len(names) for names in holders]
    assert [frame["copy"] for frame in data["frames"]] == [None, None, [1, 2, 2], [1, 3, 2], None]
    last = data["frames"][-1]
    assert last["tables"] == {"A": [0, 2], "B": [0, 3], "C": [0, 1]}
    assert last["references"] == [3, 1, 1, 1]
    assert (data["copied_blocks"], data["copied_slots"]) == (2, 4)


def test_a_prompt_of_whole_blocks_needs_no_copy() -> None:
    data = ch07_blocks.cow_data(num_blocks=5, block_size=4, prompt=8)
    assert data["copied_blocks"] == data["copied_slots"] == 0
    assert data["frames"][-1]["references"] == [3, 3, 1, 1, 1]


# ── Block size ──────────────────────────────────────────────────────────────────────────────────


def test_empty_slots_and_entries_are_counted_over_every_step() -> None:
    data = figures.data("07_block_size")
    stored = np.concatenate([np.arange(prompt, final + 1) for _, prompt, final in lengths()])
    assert data["num_steps"] == len(stored)
    assert data["mean_tokens"] == pytest.approx(stored.mean())
    for row in data["rows"]:
        size = row["block_size"]
        entries = np.ceil(stored / size)
        empty = entries * size - stored
        assert row["entries"] == pytest.approx(entries.mean())
        assert row["empty"] == pytest.approx(empty.mean(), abs=1e-9)
        assert row["share"] == pytest.approx(empty.sum() / (entries.sum() * size), abs=1e-12)
        assert row["expected"] == np.mean([-filled % size for filled in range(size)])
        assert row["empty"] == pytest.approx(row["expected"], rel=0.01)
        assert row["share"] == pytest.approx(row["expected_share"], rel=0.01)


def test_empty_share_is_that_of_a_pool_in_which_nobody_waits() -> None:
    data = ch07.block_size_data((4, 16), num_requests=12)
    for row in data["rows"]:
        result = replay(Paged(SLOTS, row["block_size"]), ch07.trace(12))
        assert result.num_preempted == 0
        assert all(step.num_waiting == 0 for step in result.steps)
        assert row["share"] == pytest.approx(1 - result.useful)


# ── The blocks of a beam search ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [23, 0, 1, 2])
def test_beams_share_the_full_blocks_of_their_common_past(seed: int) -> None:
    data = ch07_blocks.beams_data(seed=seed)
    if seed == 23:
        assert data == figures.data("07_beams")
    beams, size, prompt = data["num_beams"], data["block_size"], data["prompt"]
    texts = [list(range(prompt))] * beams  # every token is an object of its own
    copied, held = 0, []
    for step, parents in enumerate(data["parents"]):
        if len(texts[0]) % size:
            holders = [0] * beams if step == 0 else parents
            copied += beams - len(set(holders))
        texts = [[*texts[parent], (step, beam)] for beam, parent in enumerate(parents)]
        starts = range(0, len(texts[0]), size)
        columns = [len({tuple(text[: at + size]) for text in texts}) for at in starts]
        held.append(sum(columns))
    assert [len(set(column)) for column in zip(*data["tables"], strict=True)] == columns
    assert data["held"] == held[-1]
    assert data["peak"] == max(held)
    assert data["copied"] == copied
    assert data["unshared"] == beams * math.ceil((prompt + data["steps"]) / size)
    assert data["filled"] == (prompt + data["steps"]) % size
    for first, second in itertools.combinations(range(beams), 2):
        common = sum(1 for a, b in zip(texts[first], texts[second], strict=True) if a == b)
        tables = zip(data["tables"][first], data["tables"][second], strict=True)
        assert [a == b for a, b in tables] == [
            size * (n + 1) <= common for n in range(len(columns))
        ]


def test_drawing_needs_no_torch() -> None:
    names = [record.name for record in (*ch07.FIGURES, *ch07_blocks.FIGURES)]
    code = (
        "import sys, figures\n"
        f"for name in {names}: figures.svg(name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
