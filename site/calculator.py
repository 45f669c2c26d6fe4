"""The facts that the calculator's page carries: shapes of models and peaks of accelerators.

``_static/calc.js`` computes with them what `refimpl` computes with an `Architecture`. They are read
when the site is rendered, so the page cannot know other models than the package does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from refimpl.architecture import Architecture, Layer, zoo
from refimpl.hardware import ACCELERATORS, Accelerator

EXACT = 2**53
"""A browser reads the numbers of JSON as doubles, which hold whole numbers below this exactly."""

# A sparse-attention indexer and short convolutions are counted apart in refimpl, and not here.
_LEFT_OUT = ("index_width", "index_parameters", "selected", "conv_channels")


def facts() -> dict[str, Any]:
    """Every model of the zoo and every accelerator, as ``calc.js`` takes them."""
    return {
        "models": [model(Architecture.named(name)) | origin(name) for name in zoo.names()],
        "accelerators": [accelerator(row) for row in ACCELERATORS.values()],
    }


def model(arch: Architecture) -> dict[str, Any]:
    """An architecture with its equal layers counted; what is 0 or absent is left out.

    ``uniform`` says that its matrices are known one by one, as those of the Llama family are.
    Raises ``ValueError`` for a number that a double does not hold.
    """
    groups = Counter(arch.layers)
    found = {
        "name": arch.name,
        "max_context": arch.max_context,
        "uniform": arch.runnable,
        "tie_embeddings": arch.tie_embeddings,
        "model_width": arch.model_width,
        "mlp_width": arch.mlp_width,
        "vocab_size": arch.vocab_size,
        "embedding_parameters": arch.embedding_parameters,
        "head_parameters": arch.head_parameters,
        "other_parameters": arch.other_parameters,
        "layers": [{"count": count, **_layer(layer)} for layer, count in groups.items()],
    }
    for values in (found, *found["layers"]):
        for key, value in values.items():
            if isinstance(value, int) and value >= EXACT:
                raise ValueError(f"{arch.name}: {key} is {value}, which a double does not hold")
    return found


def _layer(layer: Layer) -> dict[str, Any]:
    named = {field.name: getattr(layer, field.name) for field in fields(Layer)}
    return {key: value for key, value in named.items() if value and key not in _LEFT_OUT}


def origin(name: str) -> dict[str, Any]:
    """Title and source of a model, and what could not be confirmed there."""
    entry = zoo.entry(name)
    return {
        "title": entry.title,
        "source": "; ".join(entry.source),
        "date": entry.date,
        "unverified": "; ".join(entry.unverified),
        "note": entry.note,
    }


def accelerator(row: Accelerator) -> dict[str, Any]:
    """An accelerator's peaks: bytes, bytes a second, operations a second by dtype."""
    return {
        "name": row.name,
        "memory_bytes": row.memory_bytes,
        "bandwidth": row.bandwidth,
        "peak_flops": dict(row.peak_flops),
        "source": row.source,
        "date": row.date,
        "note": row.note,
    }
