"""Fill ``stepper.md``: the recorded passes as text, as a table, and as data for the browser.

Every number and sentence of the page is made in Python; ``_static/stepper.js`` shows what it gets.
"""

from __future__ import annotations

from html import escape
from typing import Any

import stepper
import stepper_words as words
from pages import script_data
from stepper_words import HEADS, Shown

from refimpl import sizing, weights
from refimpl.units import format_bytes

PROMPT = "The first law of thermodynamics states that"
NUM_NEW = 10


def run() -> Shown:
    """The run on the page: the real model, greedy, in float32."""
    model, tokenizer = weights.load("smollm2-135m")
    prompt = tokenizer.encode(PROMPT)
    passes = tuple(stepper.record(model, prompt, NUM_NEW, tuple(HEADS)))
    tokens = (*prompt, *(one.token for one in passes))
    return Shown(model.arch, tokens, tuple(tokenizer.decode([t]) for t in tokens), passes)


def values(shown: Shown) -> dict[str, str]:
    """What the placeholders of ``stepper.md`` stand for."""
    arch, prefill, last = shown.arch, shown.passes[0].cached, shown.passes[-1]
    cached, uncached = words.totals(shown.passes)[-1]
    on_first = words.head_shares(shown.passes)[list(HEADS).index((19, 9))]
    return {
        "prompt": PROMPT,
        "num_prompt": str(shown.num_prompt),
        "num_new": str(len(shown.passes)),
        "num_tokens": str(len(shown.tokens)),
        "num_slots": str(last.stop),
        "num_layers": str(arch.num_layers),
        "num_kv_heads": str(arch.num_kv_heads),
        "head_dim": str(arch.head_dim),
        "token_bytes": format_bytes(sizing.kv_bytes_per_token(arch, "fp32")),
        "token_bytes_bf16": format_bytes(sizing.kv_bytes_per_token(arch, "bf16")),
        "weight_bytes": format_bytes(words.weight_bytes(arch)),
        "prefill_scores": str(prefill.num_scores),
        "prefill_masked": str(prefill.num_scores - sum(range(1, prefill.num_queries + 1))),
        "last_keys": str(last.cached.num_keys),
        "last_read": format_bytes(last.cached.kv_bytes_read),
        "first_share": words.percent(on_first),
        "passes_cached": str(cached.num_queries),
        "passes_uncached": str(uncached.num_queries),
        "flops_cached": words.gflop(cached.flops),
        "flops_uncached": words.gflop(uncached.flops),
        "table": table(shown),
        "data": script_data(browser_data(shown)),
    }


def browser_data(shown: Shown) -> dict[str, Any]:
    """What ``stepper.js`` shows: texts ready to print, positions, and weights in [0, 1]."""
    shares = zip(HEADS, words.head_shares(shown.passes), strict=True)
    return {
        "tokens": [
            {"text": text.replace(" ", "␣"), "word": text.strip(), "id": token}
            for text, token in zip(shown.texts, shown.tokens, strict=True)
        ],
        "prompt": shown.num_prompt,
        "slots": shown.passes[-1].stop,
        "notes": words.notes(shown.arch),
        "heads": [words.head_label(head, share) for head, share in shares],
        "passes": [
            {
                "title": f"pass {one.number} of {len(shown.passes)}, "
                + ("prefill" if one.number == 1 else "decode"),
                "first": one.first,
                "stop": one.stop,
                "again": one.num_again,
                "captions": words.captions(shown, one),
                "counters": words.counters(shown, one),
                "weights": [[round(weight, 4) for weight in head] for head in one.weights],
            }
            for one in shown.passes
        ],
    }


def table(shown: Shown) -> str:
    """All passes as an HTML table, one row each."""
    columns = ("pass", "query rows T", "first token fed", "keys S", "cache held")
    columns += ("token-passes so far", "without a cache", "matrix products so far")
    columns += ("without a cache", "next token", "id", "probability")
    lines = ["<table>", "<thead><tr>", *(f'<th scope="col">{name}</th>' for name in columns)]
    lines += ["</tr></thead>", "<tbody>"]
    for one, (cached, uncached) in zip(shown.passes, words.totals(shown.passes), strict=True):
        cells = (
            str(one.number),
            str(one.cached.num_queries),
            shown.texts[one.first].strip(),
            str(one.cached.num_keys),
            format_bytes(one.held_bytes),
            str(cached.num_queries),
            str(uncached.num_queries),
            words.gflop(cached.flops),
            words.gflop(uncached.flops),
            shown.texts[one.stop].strip(),
            str(one.token),
            words.percent(one.probability),
        )
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])
