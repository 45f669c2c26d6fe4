"""Inline Markdown as runs of text that a typesetter understands, formulas included."""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from labkit.sheets.errors import SheetError

Run = dict[str, Any]

_MARKDOWN = MarkdownIt("commonmark").use(dollarmath_plugin, allow_space=False, allow_digits=False)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]|\d+(?:[.,]\d+)*|\s+|.", re.DOTALL)
_COMMANDS = {
    "alpha": "alpha", "beta": "beta", "gamma": "gamma", "theta": "theta", "sigma": "sigma",
    "tau": "tau", "varepsilon": "epsilon", "cdot": "dot.op", "times": "times", "le": "<=",
    "leq": "<=", "ge": ">=", "geq": ">=", "ne": "!=", "approx": "approx", "sim": "tilde.op",
    "infty": "infinity", "to": "arrow.r", "dots": "dots.h", "ldots": "dots.h", "cdots": "dots.h.c",
    "sum": "sum", "log": "log", "exp": "exp", "max": "max", "min": "min", "lfloor": "floor.l",
    "rfloor": "floor.r", "lceil": "ceil.l", "rceil": "ceil.r", "odot": "dot.o", "pm": "plus.minus",
    "quad": "quad", "left": "", "right": "", "big": "", "Big": "",
}  # fmt: skip
_SPACES = {"\\,": "thin", "\\;": "med", "\\ ": "space", "\\!": "", "\\%": "%", "\\$": "\\$"}
_WRAPPED = {"frac": 2, "tfrac": 2, "dfrac": 2, "sqrt": 1}
_UPRIGHT = ("mathrm", "text", "mathit", "operatorname")


def runs(markdown: str) -> list[Run]:
    """One paragraph as runs ``{kind: text | code | math, text, em, strong}``.

    Raises:
        SheetError: a list, a table, HTML, or a formula with a command that is not known here.
    """
    found: list[Run] = []
    for block in _MARKDOWN.parse(markdown):
        if block.type == "inline":
            found += [{"kind": "text", "text": " "}] if found else []
            found += _inline(block.children or [])
        elif block.type not in {"paragraph_open", "paragraph_close"}:
            raise SheetError(f"a sheet takes paragraphs only, not {block.type}: {markdown!r}")
    return found


def _inline(tokens: list[Any]) -> list[Run]:
    found: list[Run] = []
    em = strong = 0
    for token in tokens:
        style = {"em": em > 0, "strong": strong > 0}
        match token.type:
            case "text":
                found.append({"kind": "text", "text": quotes(token.content), **style})
            case "softbreak" | "hardbreak":
                found.append({"kind": "text", "text": " ", **style})
            case "code_inline":
                found.append({"kind": "code", "text": token.content, **style})
            case "math_inline":
                found.append({"kind": "math", "text": formula(token.content), **style})
            case "em_open" | "em_close":
                em += token.nesting
            case "strong_open" | "strong_close":
                strong += token.nesting
            case "link_open" | "link_close":
                pass
            case _:
                raise SheetError(f"a sheet cannot show {token.type}: {token.content!r}")
    return [run for run in found if run["text"]]


def quotes(text: str) -> str:
    """Typewriter quotes as a printer sets them."""
    text = re.sub(r'(^|(?<=[\s(]))"', "“", text).replace('"', "”")
    return re.sub(r"(^|(?<=[\s(]))'", "‘", text).replace("'", "’")


def formula(latex: str) -> str:
    """A LaTeX formula of the kind chapters use, in Typst's notation.

    >>> formula(r"N(N+1)/2"), formula(r"10^{-30}"), formula(r"\\tfrac1M")
    ('N ( N + 1 ) \\\\/ 2', '10 ^( - 30 )', 'frac( 1 , M )')
    """
    tokens = [token for token in _TOKEN.findall(latex) if not token.isspace()]
    parts = []
    while tokens:
        parts.append(_term(tokens, latex))
    return " ".join(part for part in parts if part)


def _term(tokens: list[str], latex: str) -> str:
    if not tokens:
        raise SheetError(f"the formula {latex!r} ends too early")
    token = tokens.pop(0)
    if token == "{":
        parts = []
        while tokens and tokens[0] != "}":
            parts.append(_term(tokens, latex))
        if not tokens:
            raise SheetError(f"a brace is open in {latex!r}")
        tokens.pop(0)
        return " ".join(part for part in parts if part)
    if token in "^_":
        return f"{token}( {_argument(tokens, latex)} )"
    if token in _SPACES:
        return _SPACES[token]
    if token.startswith("\\"):
        name = token[1:]
        if name in _UPRIGHT:
            return '"' + re.sub(r"\s", "", _term(tokens, latex)) + '"'
        if name in _WRAPPED:
            inside = " , ".join(_argument(tokens, latex) for _ in range(_WRAPPED[name]))
            return f"{'sqrt' if name == 'sqrt' else 'frac'}( {inside} )"
        if name not in _COMMANDS:
            raise SheetError(f"the formula {latex!r} uses {token}, which a sheet cannot set")
        return _COMMANDS[name]
    return {"/": "\\/", "#": "\\#", '"': '\\"', "&": "\\&"}.get(token, token)


def _argument(tokens: list[str], latex: str) -> str:
    """One argument; of a run of digits without braces LaTeX takes the first only."""
    if tokens and tokens[0].isdigit() and len(tokens[0]) > 1:
        tokens[0:1] = [tokens[0][0], tokens[0][1:]]
    return _term(tokens, latex)
