"""``size``: what models store and weigh, side by side.

``--json`` prints one object: ``context``, ``batch``, ``weight_dtype``, ``cache_dtype``,
``cache_group`` (numbers that share a scale, or null) and ``models``, a list of objects with

- ``model``, ``max_context`` (tokens, or null), ``layers`` (how many of each kind)
- ``parameters``, ``active_parameters``, ``embedding_parameters``
- ``weight_bytes``
- ``bytes_per_token``, ``bytes_per_token_beyond_window``, ``fixed_state_bytes``
- ``bytes_per_sequence``, ``cache_bytes`` (all sequences), ``cache_over_weights``
"""

import argparse
import json
from collections import Counter
from typing import Any

from refimpl.architecture import Architecture
from refimpl.cli import sizes, text
from refimpl.sizing import (
    count_parameters,
    fixed_state_bytes,
    kv_bytes,
    kv_bytes_per_token,
    weight_bytes,
)
from refimpl.units import format_bytes, format_count

HELP = "bytes of cache and weights of models, side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The models, the length and number of sequences, how numbers are stored."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help=sizes.MODEL_HELP)
    parser.add_argument("--batch", type=text.positive, default=1, metavar="N", help="sequences")
    parser.add_argument(
        "--cache-group",
        type=text.positive,
        metavar="N",
        help="numbers of the cache that share a 16-bit scale, which is counted; default: no scales",
    )
    sizes.add_numbers(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table, or the object."""
    models = [sizes.architecture(name) for name in options.models]
    report = {
        "context": options.context,
        "batch": options.batch,
        "weight_dtype": options.dtype,
        "cache_dtype": options.cache_dtype,
        "cache_group": options.cache_group,
        "models": [_facts(arch, options) for arch in models],
    }
    print(json.dumps(report) if options.json else _table(report))
    return 0


def _facts(arch: Architecture, options: argparse.Namespace) -> dict[str, Any]:
    scales = {"group_size": options.cache_group}
    dtype, context = options.cache_dtype, options.context
    parameters, weights = count_parameters(arch), weight_bytes(arch, options.dtype)
    cache = kv_bytes(arch, context, dtype, options.batch, **scales)
    return {
        "model": arch.name,
        "max_context": arch.max_context,
        "layers": dict(Counter(_kind(layer) for layer in arch.layers)),
        "parameters": parameters.total,
        "active_parameters": parameters.active,
        "embedding_parameters": parameters.embedding,
        "weight_bytes": weights,
        "bytes_per_token": kv_bytes_per_token(arch, dtype, **scales),
        "bytes_per_token_beyond_window": kv_bytes_per_token(
            arch, dtype, beyond_window=True, **scales
        ),
        "fixed_state_bytes": fixed_state_bytes(arch, dtype),
        "bytes_per_sequence": kv_bytes(arch, context, dtype, **scales),
        "cache_bytes": cache,
        "cache_over_weights": cache / weights,
    }


def _kind(layer: Any) -> str:
    return layer.kind if layer.window is None else f"{layer.kind} ({layer.window:,})"


def _table(report: dict[str, Any]) -> str:
    models = report["models"]
    tokens, batch = f"{report['context']:,} tokens", report["batch"]
    weights, cache = report["weight_dtype"], report["cache_dtype"]
    if report["cache_group"]:
        cache += f", a scale per {report['cache_group']}"

    def line(name: str, show: Any) -> list[str]:
        return [name, *(show(model) for model in models)]

    rows = [
        line("", lambda m: m["model"]),
        line("parameters", lambda m: format_count(m["parameters"])),
    ]
    if any(m["active_parameters"] != m["parameters"] for m in models):
        rows.append(line("  active for a token", lambda m: format_count(m["active_parameters"])))
    rows.append(line(f"weights, {weights}", lambda m: sizes.both(m["weight_bytes"])))
    for number in range(max(len(m["layers"]) for m in models)):
        rows.append(line("" if number else "layers", lambda m, n=number: _layers(m, n)))
    rows.append(line(f"cache per token, {cache}", lambda m: format_bytes(m["bytes_per_token"])))
    if any(m["bytes_per_token"] != m["bytes_per_token_beyond_window"] for m in models):
        show = lambda m: format_bytes(m["bytes_per_token_beyond_window"])  # noqa: E731
        rows.append(line("  once windows are full", show))
    if any(m["fixed_state_bytes"] for m in models):
        rows.append(line("fixed state", lambda m: format_bytes(m["fixed_state_bytes"])))
    rows.append(line(f"cache of {tokens}", lambda m: sizes.both(m["bytes_per_sequence"])))
    if batch > 1:
        rows.append(line(f"  of {batch:,} sequences", lambda m: sizes.both(m["cache_bytes"])))
    rows.append(line("cache / weights", lambda m: f"{m['cache_over_weights']:.3g}"))
    return "\n".join([sizes.table(rows), *_notes(report)])


def _layers(model: dict[str, Any], number: int) -> str:
    kinds = list(model["layers"].items())
    if number >= len(kinds):
        return ""
    kind, count = kinds[number]
    return f"{count} {'MLP only' if kind == 'none' else kind}"


def _notes(report: dict[str, Any]) -> list[str]:
    return [
        f"note: {model['model']} is made for {model['max_context']:,} tokens"
        for model in report["models"]
        if model["max_context"] is not None and report["context"] > model["max_context"]
    ]
