"""``roofline``: the least a decode step and a prefill move and compute, and the least time.

``--json`` prints one object: ``model``, ``accelerator``, ``num_gpus``, ``bandwidth`` (bytes a
second, all GPUs), ``peak_flops`` (a second, all GPUs, in ``compute_dtype``), ``ridge`` (FLOP/byte),
``context``, ``batch``, ``weight_dtype``, ``cache_dtype``, ``compute_dtype``, ``whiteboard``,
``is_bound`` (always true: times are lower bounds), ``crossover_batch`` (null if there is no cache),
``intensity_ceiling`` (FLOP/byte), ``compute_bound_context`` (tokens, or null), and

- ``decode`` and ``prefill``: objects with ``weight_bytes``, ``cache_bytes``, ``activation_bytes``,
  ``bytes``, ``resident_weight_bytes``, ``flops``, ``intensity``, ``memory_seconds``,
  ``compute_seconds``, ``seconds``, ``bound``, ``num_tokens``, ``tokens_per_second``
- ``sweep``: a list of such objects for decode steps, each with its ``batch`` and whether weights
  and cache of it fit in memory with nothing reserved (``fits``)
"""

import argparse
import dataclasses
import json
import math
from typing import Any

from refimpl.cli import sizes, text
from refimpl.roofline import (
    Step,
    compute_bound_context,
    crossover_batch,
    decode_step,
    decode_sweep,
    intensity_ceiling,
    prefill,
)
from refimpl.sizing import kv_bytes
from refimpl.units import format_count, format_si_bytes

HELP = "least bytes, FLOPs and time of a decode step and a prefill"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BOUND = "These are bounds, not predictions: what is measured lies above, often twice as high."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the accelerators, the step."""
    parser.add_argument("model", metavar="MODEL", help=sizes.MODEL_HELP)
    sizes.add_node(parser)
    parser.add_argument("--batch", type=text.positive, default=1, metavar="N", help="sequences")
    sizes.add_numbers(parser)
    parser.add_argument(
        "--compute-dtype",
        choices=("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"),
        help="of the arithmetic; default: that of the weights, bf16 if those are 8 bits or fewer",
    )
    parser.add_argument(
        "--whiteboard",
        action="store_true",
        help="count as one does aloud: all weights read, 2 FLOPs for each, no activations",
    )


def run(options: argparse.Namespace) -> int:
    """Print the table, or the object."""
    arch = sizes.architecture(options.model)
    count, accelerator = sizes.accelerator(options)
    given = {
        "weight_dtype": options.dtype,
        "cache_dtype": options.cache_dtype,
        "whiteboard": options.whiteboard,
    }
    crossover = crossover_batch(arch, options.context, **given)
    given |= {"compute_dtype": options.compute_dtype, "num_gpus": count}
    here = {"batch": options.batch, "context": options.context}
    decode = decode_step(arch, accelerator, **here, **given)
    contexts = [options.context]
    sweep = decode_sweep(arch, accelerator, batches=BATCHES, contexts=contexts, **given)
    room = count * accelerator.memory_bytes - decode.resident_weight_bytes
    most = max(0, room) // kv_bytes(arch, options.context, options.cache_dtype)
    dtype = decode.compute_dtype
    report = {
        "model": arch.name,
        "accelerator": accelerator.name,
        "num_gpus": count,
        "bandwidth": count * accelerator.bandwidth,
        "peak_flops": count * accelerator.peak(dtype),
        "ridge": accelerator.ridge(dtype),
        **here,
        "weight_dtype": options.dtype,
        "cache_dtype": options.cache_dtype,
        "compute_dtype": dtype,
        "whiteboard": options.whiteboard,
        "is_bound": True,
        "crossover_batch": None if math.isinf(crossover) else crossover,
        "intensity_ceiling": intensity_ceiling(arch, accelerator, options.context, **given),
        "compute_bound_context": compute_bound_context(arch, accelerator, **given),
        "decode": _step(decode),
        "prefill": _step(prefill(arch, accelerator, num_tokens=options.context, **given)),
        "sweep": [
            {"batch": batch, "fits": batch <= most, **_step(step)}
            for (batch, _), step in sweep.items()
        ],
    }
    print(json.dumps(report) if options.json else _text(report, accelerator.source))
    return 0


def _step(step: Step) -> dict[str, Any]:
    derived = ("bytes", "intensity", "seconds", "bound", "tokens_per_second")
    return dataclasses.asdict(step) | {name: getattr(step, name) for name in derived}


def _text(report: dict[str, Any], source: str) -> str:
    steps = (report["decode"], report["prefill"])
    tokens = f"{report['context']:,} tokens"
    head = (
        f"{report['model']} on {report['num_gpus']} x {report['accelerator']}: "
        f"{format_si_bytes(report['bandwidth'])}/s, {report['peak_flops'] / 1e12:,.4g} TFLOP/s "
        f"in {report['compute_dtype']}, ridge {report['ridge']:.1f} FLOP/byte ({source})"
    )
    rows = [["", f"decode, {report['batch']:,} x {tokens}", f"prefill, {tokens}"]]
    for name, dtype in (("weight", "weight_dtype"), ("cache", "cache_dtype"), ("activation", None)):
        label = f"{name}s" if name != "cache" else name
        label += f", {report[dtype]}" if dtype else ""
        rows.append([label, *(_part(step, name) for step in steps)])
    rows += [
        ["all bytes", *(format_si_bytes(step["bytes"]) for step in steps)],
        ["FLOPs", *(format_count(step["flops"]) for step in steps)],
        ["FLOP/byte", *(f"{step['intensity']:,.1f}" for step in steps)],
        ["bound by", *(step["bound"] for step in steps)],
        ["at least", *(_time(step["seconds"]) for step in steps)],
        ["tokens/s at most", *(f"{step['tokens_per_second']:,.0f}" for step in steps)],
    ]
    sweep = [
        ["batch", "bytes", "FLOP/byte", "at least", "tokens/s at most", "a user", "bound by", ""]
    ]
    for step in report["sweep"]:
        rate, batch = step["tokens_per_second"], step["batch"]
        amounts = (format_si_bytes(step["bytes"]), f"{step['intensity']:.1f}")
        rates = (f"{rate:,.0f}", f"{rate / batch:,.1f}")
        fits = "" if step["fits"] else "does not fit"
        sweep.append([f"{batch}", *amounts, _time(step["seconds"]), *rates, step["bound"], fits])
    resident = format_si_bytes(steps[0]["resident_weight_bytes"])
    lines = [head, f"All weights occupy {resident}. {BOUND}", "", sizes.table(rows), ""]
    return "\n".join(
        [*lines, f"decode steps at {tokens}", sizes.table(sweep, words=(6, 7)), "", *_ends(report)]
    )


def _part(step: dict[str, Any], origin: str) -> str:
    part = step[f"{origin}_bytes"]
    return f"{format_si_bytes(part)} {part / step['bytes']:4.0%}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.2f} us"


def _ends(report: dict[str, Any]) -> list[str]:
    crossover, longest = report["crossover_batch"], report["compute_bound_context"]
    lines = []
    if crossover is not None:
        lines.append(f"The cache outweighs the weights from batch {crossover:,.1f} on.")
    ceiling = f"{report['intensity_ceiling']:,.1f} FLOP/byte at {report['context']:,} tokens"
    lines.append(f"No batch exceeds {ceiling}; the ridge is {report['ridge']:.1f}.")
    if longest is None:
        lines.append("At any context a large enough batch is bound by arithmetic.")
    elif longest:
        lines.append(f"A large enough batch is bound by arithmetic up to {longest:,} tokens.")
    else:
        lines.append("No batch is bound by arithmetic, at any context.")
    return lines
