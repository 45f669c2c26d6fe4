"""Chapter 07: a pool of blocks while sequences take, share, copy and free them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import style
from figures.record import Data, Record
from figures.style import FAINT, INK, MARGIN, MUTED, PAPER, SMALL
from refimpl.blocks import BlockAllocator, BlockTable, num_blocks_for

# ── A pool, step by step ────────────────────────────────────────────────────────────────────────

Event = tuple[Any, ...]
_STORY: tuple[Event, ...] = (
    ("arrive", "A", 6),
    ("arrive", "B", 9),
    ("write", "A", 2),
    ("write", "A", 1),
    ("fork", "C", "A"),
    ("write", "C", 1),
    ("write", "A", 1),
    ("leave", "B"),
    ("arrive", "D", 14),
    ("leave", "A"),
)


def _colour(name: str) -> str:
    return style.SEQUENCES["ABCDE".index(name)]


def _listed(numbers: Sequence[int]) -> str:
    """``block 3``, or ``blocks 3, 5 and 6``."""
    *most, last = map(str, numbers)
    return f"blocks {', '.join(most)} and {last}" if most else f"block {last}"


def _blocks(allocator: BlockAllocator, tables: dict[str, BlockTable]) -> list[Data]:
    """Each physical block: which sequences hold it, and how many of its slots are written."""
    found: list[Data] = [{"holders": [], "filled": 0} for _ in range(allocator.num_blocks)]
    for name, table in sorted(tables.items()):
        for index, block in enumerate(table.blocks):
            filled = min(table.block_size, table.num_tokens - index * table.block_size)
            found[block]["holders"].append(name)
            found[block]["filled"] = max(found[block]["filled"], filled)
    return found


def _happen(allocator: BlockAllocator, tables: dict[str, BlockTable], event: Event) -> str:
    """Do to the pool what the event says; what happened, in words."""
    kind, name, *rest = event
    if kind == "arrive":
        tables[name] = allocator.allocate(rest[0])
        return f"{name} arrives, {rest[0]} tokens: takes {_listed(tables[name].blocks)}"
    if kind == "fork":
        tables[name] = allocator.fork(tables[rest[0]])
        return f"{name} forks from {rest[0]}: takes no block"
    if kind == "leave":
        held = tables[name].blocks.copy()
        allocator.free(tables.pop(name))
        freed = [block for block in held if not allocator.num_references(block)]
        kept = [block for block in held if block not in freed]
        others = f", {_listed(kept)} held by others" if kept else ""
        return f"{name} leaves: {_listed(freed)} free{others}"
    table, last, held = tables[name], tables[name].blocks[-1], len(tables[name].blocks)
    copies = allocator.append(table, rest[0])
    does = f"{name} writes {rest[0]}"
    if copies:
        return f"{does}: {_listed([last])} is shared, so {name} copies it to {table.blocks[-1]}"
    if len(table.blocks) > held:
        return f"{does}: takes {_listed(table.blocks[held:])}"
    return f"{does}: {_listed([last])} has room and is {name}'s alone"


def pool_data(num_blocks: int = 10, block_size: int = 4, story: tuple[Event, ...] = _STORY) -> Data:
    """A pool after each of a few events, as the allocator has it."""
    allocator = BlockAllocator(num_blocks, block_size)
    tables: dict[str, BlockTable] = {}
    frames = []
    before = _blocks(allocator, tables)
    for event in story:
        words = _happen(allocator, tables, event)
        allocator.check_invariants()
        now = _blocks(allocator, tables)
        frames.append(
            {
                "event": words,
                "blocks": now,
                "changed": [i for i in range(num_blocks) if now[i] != before[i]],
                "tables": {name: table.blocks.copy() for name, table in tables.items()},
                "tokens": {name: table.num_tokens for name, table in tables.items()},
                "used": allocator.num_used,
            }
        )
        before = now
    return {"num_blocks": num_blocks, "block_size": block_size, "frames": frames}


def _bands(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    holders: Sequence[str],
    strength: float,
) -> None:
    """A slot in the colours of those who hold it, one band each."""
    each = height / len(holders)
    for index, name in enumerate(holders):
        fill = style.tint(_colour(name), strength)
        axes.add_patch(Rectangle((x, y + index * each), width, each, facecolor=fill, lw=0))


def _held_block(
    axes: Axes, x: float, y: float, slot: float, height: float, size: int, held: Data, edge: str
) -> None:
    """A block in use: written slots in the colours of its holders, empty ones pale."""
    holders, filled = held["holders"], held["filled"]
    _bands(axes, x, y, filled * slot, height, holders, 1.0)
    if filled < size:
        _bands(axes, x + filled * slot, y, (size - filled) * slot, height, holders, 0.14)
    for index in range(1, size):
        at = x + index * slot
        axes.plot([at, at], [y, y + height], color=PAPER if index <= filled else FAINT, lw=0.8)
    style.block(axes, x, y, size * slot, height, "none", edge=edge)


def _pool_block(
    axes: Axes, x: float, y: float, slot: float, height: float, size: int, held: Data
) -> None:
    """One block with the letters of its holders; a free one is white."""
    holders = held["holders"]
    if not holders:
        style.block(axes, x, y, size * slot, height, PAPER)
        return
    _held_block(axes, x, y, slot, height, size, held, MUTED)
    each = height / len(holders)
    for index, name in enumerate(holders):
        axes.text(
            x + slot / 2 + 0.5,
            y + (index + 0.5) * each + (0.8 if len(holders) > 1 else 0),
            name,
            color=style.text_on(_colour(name)),
            fontsize=SMALL,
            fontweight="bold",
            ha="center",
            va="center_baseline",
        )


def _plot_pool(data: Data, title: str) -> Figure:
    pitch, height, gap = 46.0, 23.0, 4.0
    count, size = data["num_blocks"], data["block_size"]
    step = (style.WIDTH - 2 * MARGIN + gap) / count
    slot = (step - gap) / size
    figure, axes = style.canvas(68 + pitch * len(data["frames"]))
    top = style.headline(axes, title) + 4
    for block in range(count):
        x = MARGIN + block * step + size * slot / 2
        style.label(axes, x, top + 6, str(block), size=SMALL, colour=MUTED, ha="center")
    for index, frame in enumerate(data["frames"]):
        y = top + 22 + index * pitch
        style.label(axes, MARGIN, y, frame["event"])
        used = f"{frame['used']} of {count}"
        style.label(axes, style.WIDTH - MARGIN, y, used, size=SMALL, colour=MUTED, ha="right")
        for block, held in enumerate(frame["blocks"]):
            x = MARGIN + block * step
            _pool_block(axes, x, y + 9, slot, height, size, held)
        for block in frame["changed"]:
            x = MARGIN + block * step
            shape = Rectangle(
                (x, y + 9), size * slot, height, facecolor="none", edgecolor=INK, lw=1.8
            )
            axes.add_patch(shape)
    return figure


def _pool_takeaway(data: Data) -> str:
    *_, before, after = data["frames"]
    gone = (before["tables"].keys() - after["tables"].keys()).pop()
    freed = [block for block in after["changed"] if not after["blocks"][block]["holders"]]
    return (
        f"D takes {_listed(before['tables']['D'])}: any will do. "
        f"{gone} leaves, and frees {_listed(freed)} alone"
    )


POOL_FRAMES = Record(
    name="07_pool",
    data=pool_data,
    takeaway=_pool_takeaway,
    describe=lambda d: (
        f"""
        A pool of {d["num_blocks"]} blocks of {d["block_size"]} slots, one strip per event from top
        to bottom, blocks in the colours of the sequences that hold them, changes outlined:
        """
        + "; ".join(f"{f['event']}" for f in d["frames"])
        + f". At the end {d['frames'][-1]['used']} blocks are in use."
    ),
    plot=_plot_pool,
)

# ── Copy-on-write ───────────────────────────────────────────────────────────────────────────────


def cow_data(num_blocks: int = 4, block_size: int = 4, prompt: int = 6) -> Data:
    """A prompt forked to three sequences, each of which then writes a token of its own."""
    allocator = BlockAllocator(num_blocks, block_size)
    slots: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
    tables = {"A": allocator.allocate(prompt)}
    for position in range(prompt):
        block, slot = tables["A"].locate(position)
        slots[block][slot] = position + 1
    frames: list[Data] = []

    def show(event: str, written: tuple[int, int] | None = None, copy: Any = None) -> None:
        allocator.check_invariants()
        frames.append(
            {
                "event": event,
                "tables": {name: table.blocks.copy() for name, table in tables.items()},
                "references": [allocator.num_references(block) for block in range(num_blocks)],
                "holders": [held["holders"] for held in _blocks(allocator, tables)],
                "slots": [row.copy() for row in slots],
                "written": written,
                "copy": None if copy is None else list(copy),
            }
        )

    show(f"A holds a prompt of {prompt} tokens")
    for name in "BC":
        tables[name] = allocator.fork(tables["A"])
    show("B and C fork from A: no block is taken, nothing copied")
    for token, name in enumerate("ABC", start=prompt + 1):
        last = tables[name].blocks[-1]
        copies = allocator.append(tables[name])
        for source, target, filled in copies:
            slots[target][:filled] = slots[source][:filled]
        block, slot = tables[name].locate(tables[name].num_tokens - 1)
        slots[block][slot] = token
        if copies:
            words = f"{name} writes {token}: block {last} is shared, copied to {block}"
        else:
            words = f"{name} writes {token}: the last holder keeps block {block}"
        show(words, (block, slot), copies[0] if copies else None)
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "prompt": prompt,
        "frames": frames,
        "copied_blocks": sum(frame["copy"] is not None for frame in frames),
        "copied_slots": sum(frame["copy"][2] for frame in frames if frame["copy"]),
    }


_TABLE = 52.0


def _plot_cow(data: Data, title: str) -> Figure:
    pitch, slot, height, gap = 78.0, 13.0, 30.0, 7.0
    size, left = data["block_size"], 112.0
    figure, axes = style.canvas(80 + pitch * len(data["frames"]))
    top = style.headline(axes, title) + 6
    style.label(axes, MARGIN, top + 4, "tables", weight="bold")
    style.label(axes, MARGIN, top + 18, "logical", size=SMALL, colour=MUTED)
    for logical in range(2):
        x = _TABLE + 24 * logical + 11
        style.label(axes, x, top + 18, str(logical), size=SMALL, colour=MUTED, ha="center")
    style.label(axes, left, top + 4, "physical blocks", weight="bold")
    for block in range(data["num_blocks"]):
        x = left + block * (size * slot + gap) + size * slot / 2
        style.label(axes, x, top + 18, str(block), size=SMALL, colour=MUTED, ha="center")
    for index, frame in enumerate(data["frames"]):
        y = top + 34 + index * pitch
        style.label(axes, MARGIN, y, frame["event"])
        _cow_tables(axes, y + 16, frame["tables"])
        for block, held in enumerate(frame["slots"]):
            x = left + block * (size * slot + gap)
            holders = frame["holders"][block]
            _cow_block(axes, x, y + 18, slot, height, held, holders, frame["written"], block)
            number = frame["references"][block]
            words = f"held by {number}" if number else "free"
            colour = INK if number else MUTED
            style.label(
                axes, x + size * slot / 2, y + 56, words, size=SMALL, colour=colour, ha="center"
            )
        if frame["copy"]:
            source, target = (
                left + block * (size * slot + gap) + size * slot / 2 for block in frame["copy"][:2]
            )
            style.line(axes, [(source, y + 17), (source, y + 11), (target, y + 11)])
            style.arrow(axes, (target, y + 10.5), (target, y + 18))
    return figure


def _cow_tables(axes: Axes, y: float, tables: dict[str, list[int]]) -> None:
    """Each sequence's table: the physical block of every logical one."""
    for row, (name, blocks) in enumerate(tables.items()):
        at = y + 15 * row
        style.label(
            axes, _TABLE - 8, at + 7.5, name, ha="right", colour=_colour(name), weight="bold"
        )
        for logical, block in enumerate(blocks):
            fill = style.tint(_colour(name), 0.4)
            style.block(axes, _TABLE + 24 * logical, at, 22, 14, fill, str(block))


def _cow_block(
    axes: Axes,
    x: float,
    y: float,
    slot: float,
    height: float,
    tokens: list[int | None],
    holders: list[str],
    written: tuple[int, int] | None,
    block: int,
) -> None:
    """A block of numbered tokens, banded by holder; the slot just written in full colour."""
    for index, token in enumerate(tokens):
        at = x + index * slot
        if not holders or token is None:
            style.block(axes, at, y, slot, height, PAPER)
            continue
        fresh = written == (block, index)
        _bands(axes, at, y, slot, height, holders, 1.0 if fresh else 0.4)
        colour = style.text_on(_colour(holders[0])) if fresh else INK
        style.block(axes, at, y, slot, height, "none", edge=MUTED)
        axes.text(
            at + slot / 2,
            y + height / 2,
            str(token),
            color=colour,
            fontsize=SMALL,
            ha="center",
            va="center_baseline",
            fontweight="bold" if fresh else "normal",
        )


COW = Record(
    name="07_cow",
    data=cow_data,
    takeaway=lambda d: (
        f"Three writers into one shared block: {d['copied_blocks']} copies of "
        f"{d['copied_slots'] // d['copied_blocks']} slots, and the last holder writes in place"
    ),
    describe=lambda d: (
        f"""
        Block tables and a pool of {d["num_blocks"]} blocks of {d["block_size"]} slots in
        {len(d["frames"])} steps.
        """
        + " ".join(
            f"{f['event']}; blocks 0 to {d['num_blocks'] - 1} are held by "
            f"{', '.join(map(str, f['references']))}."
            for f in d["frames"]
        )
        + " Tables at the end: "
        + ", ".join(
            f"{name} {' and '.join(map(str, blocks))}"
            for name, blocks in d["frames"][-1]["tables"].items()
        )
        + "."
    ),
    plot=_plot_cow,
)

# ── The blocks of a beam search ─────────────────────────────────────────────────────────────────


def beams_data(
    num_beams: int = 4, block_size: int = 4, prompt: int = 10, steps: int = 12, seed: int = 23
) -> Data:
    """The blocks that beams hold after some steps whose parents are drawn at random.

    In a step every beam continues one of the beams before it: forks of the parents come first,
    then the old tables are freed, then every fork writes a token.
    """
    numbers = random.Random(seed)
    allocator = BlockAllocator(num_beams * num_blocks_for(prompt + steps, block_size), block_size)
    first = allocator.allocate(prompt)
    beams = [first, *(allocator.fork(first) for _ in range(num_beams - 1))]
    parents, copied = [], 0
    for _ in range(steps):
        parents.append(sorted(numbers.choices(range(num_beams), k=num_beams)))
        following = [allocator.fork(beams[parent]) for parent in parents[-1]]
        for table in beams:
            allocator.free(table)
        copied += len(allocator.append_all(following, [1] * num_beams))
        allocator.check_invariants()
        beams = following
    return {
        "num_beams": num_beams,
        "block_size": block_size,
        "prompt": prompt,
        "steps": steps,
        "parents": parents,
        "tables": [table.blocks.copy() for table in beams],
        "filled": beams[0].num_filled,
        "held": allocator.num_used,
        "peak": allocator.peak_used,
        "copied": copied,
        "unshared": num_beams * num_blocks_for(prompt + steps, block_size),
    }


def _plot_beams(data: Data, title: str) -> Figure:
    left, height, gap = 54.0, 26.0, 8.0
    size, tables = data["block_size"], data["tables"]
    step = (style.WIDTH - MARGIN - left + gap) / len(tables[0])
    slot = (step - gap) / size
    figure, axes = style.canvas(84 + height * len(tables) + 26)
    top = style.headline(axes, title) + 22
    style.label(axes, MARGIN, top - 9, "beam", size=SMALL, colour=MUTED)
    for logical in range(len(tables[0])):
        x = left + logical * step + size * slot / 2
        words = str(logical)
        style.label(axes, x, top - 9, words, size=SMALL, colour=MUTED, ha="center")
    names = "ABCDE"[: len(tables)]
    for row, name in enumerate(names):
        y = top + (row + 0.5) * height
        style.label(axes, MARGIN + 12, y, name, colour=_colour(name), weight="bold")
    for logical in range(len(tables[0])):
        column = [table[logical] for table in tables]
        filled = size if logical + 1 < len(tables[0]) else data["filled"]
        x = left + logical * step
        for block in dict.fromkeys(column):
            rows = [row for row, held in enumerate(column) if held == block]
            y, tall = top + rows[0] * height + 2, len(rows) * height - 4
            held = {"holders": [names[row] for row in rows], "filled": filled}
            _held_block(axes, x, y, slot, tall, size, held, INK)
    for logical in range(1, len(tables[0])):
        pairs = {(table[logical - 1], table[logical]) for table in tables}
        _branches(axes, data, logical, pairs, left + logical * step - gap, gap, top, height)
    y = top + height * len(tables) + 14
    words = (
        "logical blocks from left to right; one outline is one physical block",
        f"{data['copied']} blocks were copied on the way; at most {data['peak']} were in use",
    )
    for line, text in enumerate(words):
        style.label(axes, MARGIN, y + 14 * line, text, size=SMALL, colour=MUTED)
    return figure


def _branches(
    axes: Axes,
    data: Data,
    logical: int,
    pairs: set[tuple[int, int]],
    x: float,
    gap: float,
    top: float,
    height: float,
) -> None:
    """Lines from each block to those that continue it."""

    def middle(at: int, block: int) -> float:
        rows = [row for row, table in enumerate(data["tables"]) if table[at] == block]
        return top + (sum(rows) / len(rows) + 0.5) * height

    for before, after in sorted(pairs):
        ends = middle(logical - 1, before), middle(logical, after)
        style.line(axes, [(x, ends[0]), (x + gap, ends[1])], colour=MUTED)


BEAMS = Record(
    name="07_beams",
    data=beams_data,
    takeaway=lambda d: (
        f"{d['num_beams']} beams of {d['prompt'] + d['steps']} tokens hold {d['held']} blocks, "
        f"not {d['unshared']}: full blocks of a common past are stored once"
    ),
    describe=lambda d: (
        f"""
        The blocks of {d["num_beams"]} beams after {d["steps"]} steps from a prompt of
        {d["prompt"]} tokens, blocks of {d["block_size"]} slots, parents drawn at random.
        Columns are logical blocks, rows beams, and a block that several beams hold is drawn once
        across their rows. Blocks from left to right:
        """
        + ", ".join(
            str(len({table[at] for table in d["tables"]})) for at in range(len(d["tables"][0]))
        )
        + f""" different ones, {d["held"]} together against {d["unshared"]} without sharing. At
        most {d["peak"]} were in use, and {d["copied"]} partly filled blocks were copied on the way.
        """
    ),
    plot=_plot_beams,
)

FIGURES = (POOL_FRAMES, COW, BEAMS)
