"""``plan``: how many users of a context fit on a node, what ends it, and what would help.

``--json`` prints one object: ``model``, ``max_context``, ``accelerator``, ``num_gpus``,
``context``, ``users_asked`` (or null), ``weight_dtype``, ``cache_dtype``, ``reserve`` (a share),
``memory_bytes``, ``reserved_bytes``, the fields of a lever for the plan as asked, ``step`` (null if
no user fits; else ``batch``, ``bytes``, ``seconds``, ``bound``, ``tokens_per_second``: a lower
bound on time) and ``levers``, a list of objects with

- ``name``, ``cost`` (what it asks for), ``num_gpus``, ``context``
- ``weight_bytes``, ``pool_bytes``, ``bytes_per_user``, ``tokens``
- ``users`` (fractions of one included), ``whole_users``
- ``gpus_needed`` (for the users asked for, or null), ``limit`` (``weights``, ``cache``, ``none``)
"""

import argparse
import dataclasses
import json
from typing import Any

from refimpl.capacity import Fit, Plan, plan
from refimpl.cli import sizes, text
from refimpl.units import format_count, format_si_bytes

HELP = "users that fit on a node, the limit, and what would help"
LIMITS = {
    "weights": "the weights do not fit",
    "cache": "memory for the cache is the limit",
    "none": "all fit",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the node, the promise."""
    parser.add_argument("model", metavar="MODEL", help=sizes.MODEL_HELP)
    sizes.add_node(parser)
    parser.add_argument("--users", type=text.positive, metavar="N", help="at once; default: open")
    parser.add_argument(
        "--reserve",
        type=sizes.share,
        default=0.1,
        metavar="SHARE",
        help="of all memory, for all but weights and cache: 10%% (default), 0.05",
    )
    sizes.add_numbers(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table, or the object."""
    arch = sizes.architecture(options.model)
    count, accelerator = sizes.accelerator(options)
    found = plan(
        arch,
        accelerator,
        num_gpus=count,
        context=options.context,
        users=options.users,
        reserve=options.reserve,
        weight_dtype=options.dtype,
        cache_dtype=options.cache_dtype,
    )
    print(json.dumps(_report(found)) if options.json else _text(found))
    return 0


def _report(found: Plan) -> dict[str, Any]:
    step = found.step
    if step is not None:
        names = ("bytes", "seconds", "bound", "tokens_per_second")
        step = {"batch": step.num_tokens} | {name: getattr(step, name) for name in names}
    return {
        "model": found.arch.name,
        "max_context": found.arch.max_context,
        "accelerator": found.accelerator.name,
        "users_asked": found.users_asked,
        "weight_dtype": found.weight_dtype,
        "cache_dtype": found.cache_dtype,
        "reserve": found.reserve,
        "memory_bytes": found.memory_bytes,
        "reserved_bytes": found.reserved_bytes,
        **_fit(found.fit),
        "step": step,
        "levers": [_fit(lever) for lever in found.levers],
    }


def _fit(fit: Fit) -> dict[str, Any]:
    return dataclasses.asdict(fit) | {"whole_users": fit.whole_users, "tokens": fit.tokens}


def _text(found: Plan) -> str:
    fit, asked = found.fit, found.users_asked
    head = (
        f"{found.arch.name} on {found.num_gpus} x {found.accelerator.name}, {found.context:,} "
        f"tokens a user; weights {found.weight_dtype}, cache {found.cache_dtype}"
    )
    rows = [
        ["memory", sizes.both(found.memory_bytes)],
        [f"reserve of {100 * found.reserve:.4g} %", sizes.both(found.reserved_bytes)],
        ["weights", sizes.both(fit.weight_bytes)],
        ["left for the cache", sizes.both(fit.pool_bytes)],
        ["  in tokens", format_count(fit.tokens)],
        ["cache of one user", sizes.both(fit.bytes_per_user)],
        ["users", f"{fit.users:,.1f}" + (f" of {asked:,}" if asked else "")],
    ]
    lines = [head, "", sizes.table(rows), "", *_sentences(found)]
    levers = _levers(found)
    last = len(levers[0]) - 1
    return "\n".join([*lines, "", sizes.table(levers, words=(0, last - 1, last))])


def _sentences(found: Plan) -> list[str]:
    limit = LIMITS[found.fit.limit]
    lines = [limit[0].upper() + limit[1:] + "."]
    step, longest = found.step, found.arch.max_context
    if step is not None:
        each = step.tokens_per_second / step.num_tokens
        lines.append(
            f"A step of {step.num_tokens:,} users moves {format_si_bytes(step.bytes)} and takes at "
            f"least {step.seconds * 1e3:,.2f} ms, bound by {step.bound}: at most {each:,.1f} "
            "tokens/s each. A bound, not a prediction."
        )
    if longest is not None and found.context > longest:
        lines.append(f"note: {found.arch.name} is made for {longest:,} tokens")
    heads = min((x.num_kv_heads for x in found.arch.layers if x.num_kv_heads), default=None)
    if heads is not None and heads < found.num_gpus:
        lines.append(
            f"note: with {heads} key-value head(s) on {found.num_gpus} GPUs this supposes that "
            "attention is split by sequence; split by head, the cache is held several times"
        )
    return lines


def _levers(found: Plan) -> list[list[str]]:
    asked = found.users_asked
    gpus = [f"GPUs for {asked:,}"] if asked else []
    rows = [["lever", "a user", "pool", "users", *gpus, "limit", "what it asks for"]]
    for lever in found.levers:
        amounts = (format_si_bytes(lever.bytes_per_user), format_si_bytes(lever.pool_bytes))
        needed = [f"{lever.gpus_needed:,}"] if asked else []
        figures = (*amounts, f"{lever.users:,.1f}", *needed)
        limit = "fits" if lever.limit == "none" else lever.limit
        rows.append([lever.name, *figures, limit, lever.cost])
    return rows
