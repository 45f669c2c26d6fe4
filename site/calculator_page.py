"""Fill ``calculator.md``: the facts for the browser, and a table of some models without it."""

from __future__ import annotations

from html import escape

import calculator
import pages

from refimpl import capacity, roofline, sizing
from refimpl.architecture import Architecture
from refimpl.hardware import ACCELERATORS, Accelerator
from refimpl.units import format_bytes, format_si_bytes

MODELS = (
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b-v0.1",
    "gemma-3-27b",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "jamba-v0.1",
    "deepseek-v2",
    "deepseek-v3",
)
GPU, NUM_GPUS, RESERVE = "h100-sxm", 8, 0.1
CONTEXT, BATCH = 32_768, 8
GROUP = 64


def values() -> dict[str, str]:
    """What the placeholders of ``calculator.md`` stand for."""
    facts = calculator.facts()
    return {
        "num_models": str(len(facts["models"])),
        "num_accelerators": str(len(ACCELERATORS)),
        "data": pages.script_data(facts),
        "group": str(GROUP),
        "scales": scales(),
        "num_gpus": str(NUM_GPUS),
        "accelerator": GPU,
        "reserve": f"{RESERVE:.0%}".replace("%", " %"),
        "context": f"{CONTEXT:,}",
        "batch": str(BATCH),
        "table": table(),
    }


def scales() -> str:
    """How much larger 4-bit numbers become with a 16-bit scale for each group of them."""
    arch = Architecture.named(MODELS[0])
    bare = sizing.kv_bytes_per_token(arch, "int4")
    more = sizing.kv_bytes_per_token(arch, "int4", group_size=GROUP) / bare - 1
    return f"{100 * more:.2f}".rstrip("0").rstrip(".") + " %"


def both(num_bytes: int) -> str:
    """A size in decimal and binary units."""
    return f"{format_si_bytes(num_bytes)} ({format_bytes(num_bytes)})"


def table() -> str:
    """Some models side by side as an HTML table, computed by refimpl."""
    columns = ("model", "weights", "cache a token", "cache a sequence", "sequences that fit")
    columns += ("step moves", "takes at least", "tokens/s at most")
    lines = ["<table>", "<thead><tr>", *(f'<th scope="col">{name}</th>' for name in columns)]
    lines += ["</tr></thead>", "<tbody>"]
    for name in MODELS:
        head, *cells = row(name)
        line = f'<th scope="row">{escape(head)}</th>'
        line += "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr>{line}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def row(name: str) -> list[str]:
    """One model's cells. A step is given only where its sequences fit."""
    arch, accelerator = Architecture.named(name), Accelerator.named(GPU)
    node = {"num_gpus": NUM_GPUS, "context": CONTEXT}
    plan = capacity.plan(arch, accelerator, users=BATCH, reserve=RESERVE, **node)
    fit = plan.fit
    cells = [
        calculator.origin(name)["title"],
        both(fit.weight_bytes),
        both(sizing.kv_bytes_per_token(arch)),
        both(fit.bytes_per_user),
        "weights do not fit" if fit.limit == "weights" else f"{fit.whole_users:,}",
    ]
    if fit.limit != "none":
        return [*cells, "–", "–", "–"]
    step = roofline.decode_step(arch, accelerator, batch=BATCH, **node)
    return [
        *cells,
        format_si_bytes(step.bytes),
        f"{1e3 * step.seconds:.2f} ms",
        f"{step.tokens_per_second:,.0f}",
    ]
