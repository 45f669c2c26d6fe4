"""The numbers of a sheet: expressions over ``refimpl``, evaluated when the sheet is made."""

from __future__ import annotations

import ast
import dataclasses
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.sheets.errors import SheetError
from refimpl import blocks, cache, capacity, decode, roofline, sizing, speculative, units
from refimpl.architecture import Architecture
from refimpl.blocks import policies, replay
from refimpl.cache import ConcatenatingCache, ContiguousCache, KVCache
from refimpl.flash import costs, published
from refimpl.hardware import Accelerator

NUMBER = re.compile(r"(?<![\w.-])\d+(?:[,_]\d{3})*(?:\.\d+)?")
"""A number, not a digit inside a name such as Llama-3-70B or bf16."""
SYMBOLS = re.compile(r"\$[^$]+\$|`[^`]+`")
"""Formulas and code, whose digits are symbols."""


@dataclass
class Counts:
    """What a loop asked of its model: tokens pushed through, and scores per head and layer.

    Scores are counted as a matrix product forms them, the masked ones included.
    """

    passes: int = 0
    scores: int = 0


class _CountingModel:
    """Stands where a decoder stands in refimpl's loops, and counts instead of computing."""

    dtype = torch.float32

    def __init__(self, max_context: int) -> None:
        self.arch = dataclasses.replace(
            Architecture.named("smollm2-135m"),
            num_layers=1,
            model_width=2,
            num_query_heads=1,
            num_kv_heads=1,
            head_dim=2,
            vocab_size=2,
            max_context=max_context,
        )
        self.counts = Counts()

    def __call__(
        self, tokens_BT: Tensor, *, cache: KVCache | None = None, lengths_B: Any = None
    ) -> Tensor:
        B, T = tokens_BT.shape
        stored = 0
        if cache is not None:
            stored = int(cache.num_tokens.max())
            new = torch.zeros(B, 1, T, 2)
            cache.append(0, new, new)
        self.counts.passes += B * T
        self.counts.scores += B * T * (stored + T)
        return torch.zeros(B, T, self.arch.vocab_size)


def run_loop(name: str, prompt: int, new: int) -> Counts:
    """Run ``refimpl.decode``'s loop of that name on a model that only counts."""
    model = _CountingModel(prompt + new)
    getattr(decode, name)(model, [0] * prompt, max_new_tokens=new)
    return model.counts


def rows_written(new: int) -> int:
    """Rows that ``ConcatenatingCache`` writes over ``new`` steps from empty: all, every step."""
    grown = ConcatenatingCache(_CountingModel(new).arch)
    written, row = 0, torch.zeros(1, 1, 1, 2)
    for _ in range(new):
        before = grown.read(0)[0]
        grown.append(0, row, row)
        after = grown.read(0)[0]
        written += (row if after.data_ptr() == before.data_ptr() else after).shape[2]
    return written


def stored_bytes(arch: Architecture, num_tokens: int, dtype: str) -> int:
    """Bytes that the buffers of a real ``ContiguousCache`` of this shape occupy.

    The buffers are made on the meta device: they have their true size and no memory.
    """
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    with torch.device("meta"):
        return ContiguousCache(arch, max_tokens=num_tokens, dtype=dtypes[dtype]).num_bytes


NAMES: dict[str, Any] = {
    "accelerator": Accelerator.named,
    "architecture": Architecture.named,
    "blocks": blocks,
    "cache": cache,
    "capacity": capacity,
    "costs": costs,
    "policies": policies,
    "published": published,
    "replay": replay,
    "roofline": roofline,
    "run_loop": run_loop,
    "rows_written": rows_written,
    "sizing": sizing,
    "speculative": speculative,
    "stored_bytes": stored_bytes,
    "units": units,
    "len": len,
    "range": range,
    "round": round,
    "sum": sum,
}


def evaluate(given: Mapping[str, Any], expressions: Mapping[str, str]) -> dict[str, Any]:
    """Values by name: the inputs as they are, then each expression, which may use those before.

    Raises:
        SheetError: an expression that names nothing (a typed number), or that fails.
    """
    values = dict(given)
    for name, expression in expressions.items():
        nodes = list(ast.walk(ast.parse(str(expression), mode="eval")))
        if not any(isinstance(node, ast.Name) for node in nodes):
            raise SheetError(f"{name}: {expression!r} is typed, not computed")
        try:
            # The expressions are the book's own, as its cells are.
            values[name] = eval(str(expression), {"__builtins__": {}, **NAMES, **values})
        except Exception as error:
            raise SheetError(f"{name}: {expression!r} fails: {error}") from error
    return values


def fill(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with each ``{name:format}`` replaced; ``SheetError`` for a number typed into it."""
    literal = "".join(before for before, *_ in string.Formatter().parse(text))
    typed = NUMBER.findall(SYMBOLS.sub("", literal))
    if typed:
        raise SheetError(f"{', '.join(typed)} is typed in {text!r}: compute it under `values`")
    try:
        return text.format_map(values)
    except (KeyError, ValueError, TypeError) as error:
        raise SheetError(f"cannot fill {text!r}: {error!r}") from error


def numbers(text: str, *, formulas: bool = False) -> set[str]:
    """Numbers in a text, separators of thousands removed; those in formulas only on demand."""
    text = text if formulas else SYMBOLS.sub("", re.sub(r"[Cc]hapters? \d+", "", text))
    return {re.sub("[,_]", "", found) for found in NUMBER.findall(text)}
