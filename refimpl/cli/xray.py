"""``xray``: what Triton makes of an attention kernel for a GPU, which need not be there.

``--json`` prints one object with ``kernel`` and ``reports``, a list with one object per target:
``target``, ``example`` (a GPU of it), ``dtype``, ``head_dim``, ``causal``, ``windowed``,
``masked``, ``group``, ``block_t``, ``block_s``, ``num_warps``, ``num_stages``, ``inner_stride``,
``registers`` and
``max_registers`` (a thread), ``stack_bytes``, ``spill_instructions``, ``spills``, ``shared_bytes``
and ``max_shared_bytes`` (a block), ``tensor_columns``, ``num_instructions``,
``num_loop_instructions``, ``tensor_core`` and ``async_copy`` (counts by instruction),
``occupancy`` (``blocks``, ``warps``, ``share``, ``bound_by``, ``limits`` in blocks by resource),
``limits_source``, ``limits_date``, ``triton`` (its version), and ``excerpt``: a list of objects
with ``instruction``, ``file``, ``line``, ``source``.
"""

import argparse
import dataclasses
import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refimpl.cli import text
from refimpl.units import format_bytes

if TYPE_CHECKING:
    from refimpl.kernels.xray import Report

HELP = "a kernel's machine code: registers, spills, tensor cores, occupancy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The kernel, the target, the tile. Names are checked where kernels are, for near misses."""
    parser.add_argument("kernel", metavar="KERNEL", help="flash, flash-v1, flash-dq or flash-dkv")
    parser.add_argument(
        "--target", default="sm_90", metavar="NAME", help="sm_80, sm_90, sm_100, gfx942, or all"
    )
    parser.add_argument("--dtype", default="bf16", metavar="NAME", help="bf16, fp16 or fp32")
    numbers = {
        "--head-dim": (128, "width of a head, 1 to 256"),
        "--block-t": (128, "queries in a tile"),
        "--block-s": (64, "keys in a tile"),
        "--num-warps": (8, "warps that share a tile"),
        "--num-stages": (2, "key tiles under way at once"),
        "--group": (4, "query heads for each key-value head"),
        "--inner-stride": (1, "distance of neighbours in a row of q, k and v"),
    }
    for name, (default, meaning) in numbers.items():
        said = f"{meaning}; default {default}"
        parser.add_argument(name, type=text.positive, default=default, metavar="N", help=said)
    parser.add_argument("--non-causal", action="store_true", help="queries read later keys too")
    parser.add_argument("--windowed", action="store_true", help="with a sliding window")
    parser.add_argument("--masked", action="store_true", help="with a stored mask")
    parser.add_argument(
        "--lines", type=text.whole, default=24, metavar="N", help="of the inner loop; default 24"
    )
    parser.add_argument("--json", action="store_true", help="a JSON object instead of text")


def run(options: argparse.Namespace) -> int:
    """Print the reports, or the object."""
    from refimpl.kernels import xray

    names = [field.name for field in dataclasses.fields(xray.Request)]
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    given["causal"] = not options.non_causal
    targets = list(xray.TARGETS) if options.target == "all" else [options.target]
    requests = [xray.Request(**{**given, "target": target}) for target in targets]
    with text.patience(f"compiling for {', '.join(targets)}", after=1.0):
        reports = xray.examine_all(requests)
    if options.json:
        found = [_object(report, options.lines) for report in reports]
        print(json.dumps({"kernel": options.kernel, "reports": found}))
    else:
        print("\n\n".join(_text(report, options.lines) for report in reports))
    return 0


def _object(report: "Report", lines: int) -> dict[str, Any]:
    found = dataclasses.asdict(report.request)
    del found["kernel"]
    for field in dataclasses.fields(report):
        if field.name not in ("request", "occupancy", "loop"):
            found[field.name] = getattr(report, field.name)
    occupancy = report.occupancy
    return found | {
        "example": report.target.example,
        "max_registers": report.target.max_registers,
        "max_shared_bytes": report.target.shared_per_block,
        "spills": report.spills,
        "num_loop_instructions": len(report.loop),
        "occupancy": {
            **{name: getattr(occupancy, name) for name in ("blocks", "warps", "share", "bound_by")},
            "limits": dict(occupancy.limits),
        },
        "limits_source": report.target.source,
        "limits_date": report.target.date,
        "triton": importlib.metadata.version("triton"),
        "excerpt": _excerpt(report, lines),
    }


def _excerpt(report: "Report", lines: int) -> list[dict[str, Any]]:
    from refimpl.kernels.xray import source_line

    return [
        {
            "instruction": x.text,
            "file": Path(x.file).name,
            "line": x.line,
            "source": source_line(x),
        }
        for x in report.excerpt(lines)
    ]


def _text(report: "Report", lines: int) -> str:
    version = importlib.metadata.version("triton")
    asked, target, fit = report.request, report.target, report.occupancy
    kind = ("causal" if asked.causal else "not causal") + ", windowed" * asked.windowed
    kind += ", masked" * asked.masked
    rows = {
        "registers a thread": f"{report.registers} of {target.max_registers}",
        "spilled": f"{report.stack_bytes:,} B a thread, "
        f"{report.spill_instructions} instructions that touch it",
        "shared memory a block": f"{format_bytes(report.shared_bytes)} of "
        f"{format_bytes(target.shared_per_block)}",
        "tensor memory a block": f"{report.tensor_columns} of {target.tensor_columns} columns",
        "tensor-core instructions": _counts(report.tensor_core),
        "asynchronous copies": _counts(report.async_copy),
        "instructions": f"{report.num_instructions:,}, {len(report.loop):,} in the inner loop",
        "blocks at once": f"{fit.blocks}, bound by {fit.bound_by}",
        "occupancy": f"{fit.warps} of {target.warps} warps, {fit.share:.1%}",
        "blocks that would fit": ", ".join(f"{name} {n}" for name, n in fit.limits.items()),
    }
    if not target.tensor_columns:
        del rows["tensor memory a block"]
    head = [
        f"{asked.kernel} on {target.name} ({target.example}), Triton {version}: "
        f"{asked.dtype}, head dim {asked.head_dim}, {kind}",
        f"tiles of {asked.block_t} queries and {asked.block_s} keys, {asked.num_warps} warps, "
        f"{asked.num_stages} stages, inner stride {asked.inner_stride}",
        "",
    ]
    said = [f"{name:<24}  {value}" for name, value in rows.items()]
    shown = _excerpt(report, lines)
    if shown:
        said += ["", f"inner loop, {len(shown)} of {len(report.loop):,} instructions:"]
        wide = max(len(x["instruction"]) for x in shown)
        last = ""
        for x in shown:
            place = f"{x['file']}:{x['line']}  {x['source']}"
            said.append(f"  {x['instruction']:<{wide}}  {'' if place == last else place}".rstrip())
            last = place
    return "\n".join([*head, *said, "", f"limits: {target.source} ({target.date})"])


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"
