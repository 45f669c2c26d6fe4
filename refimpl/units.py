"""Sizes as people write them: GiB is 2^30 bytes, GB is 10^9, and they differ by 7 percent."""

import math
import re
from fractions import Fraction

_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SI = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {
    "": 1,
    **{unit.lower(): 1024**power for power, unit in enumerate(_IEC)},
    **{unit.lower(): 1000**power for power, unit in enumerate(_SI)},
    # A bare letter is how people write token counts: a 32k context holds 32 x 1024 tokens.
    **{letter: 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
# Beyond any memory there is; it keeps numbers of thousands of digits out of every conversion.
_TOO_LARGE = 10**30


def _scaled(num_bytes: float, base: int, units: tuple[str, ...]) -> str:
    if num_bytes < 0:
        raise ValueError(f"a size in bytes cannot be negative, got {num_bytes}")
    if not num_bytes < _TOO_LARGE:  # NaN is not below it either
        raise ValueError(f"a size in bytes must be below 10**30, got {_shown(num_bytes)}")
    value, power = float(num_bytes), 0
    # 1023.999 KiB would print as 1024 KiB: step up as soon as the rounded figure reaches the base.
    while power + 1 < len(units) and round(value, 2) >= base:
        value, power = value / base, power + 1
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {units[power]}"


def format_bytes(num_bytes: float) -> str:
    """A size in binary units, two decimals at most: ``327680`` gives ``320 KiB``."""
    return _scaled(num_bytes, 1024, _IEC)


def format_si_bytes(num_bytes: float) -> str:
    """A size in decimal units, two decimals at most: ``141107412992`` gives ``141.11 GB``."""
    return _scaled(num_bytes, 1000, _SI)


def format_count(number: int) -> str:
    """A large count in words, four digits: ``1327186`` gives ``1.327 million``, ``8192`` itself."""
    if number < 0 or not number < _TOO_LARGE:
        raise ValueError(f"a count must be from 0 to below 10**30, got {_shown(number)}")
    for power, word in ((12, "trillion"), (9, "billion"), (6, "million")):
        # 999,960,000 would print as 1000 million: step up where the rounded figure reaches it.
        if number * 10**5 >= 99_995 * 10**power:
            value = number / 10**power
            return f"{value:,.0f} {word}" if value >= 999.95 else f"{value:.4g} {word}"
    return f"{number:,}"


def speedup(seconds_before: float, seconds_after: float) -> float:
    """How many times faster something became: time before over time after, in one unit.

    Below 1 it became slower. Raises ``ValueError`` unless both are positive and finite. What a
    speed-up of ``s`` saves of the time is the share ``1 - 1 / s``: twice as fast is half of it.
    """
    for name, value in (("before", seconds_before), ("after", seconds_after)):
        if not 0 < value < math.inf:
            raise ValueError(f"the time {name} must be positive and finite, got {value}")
    return seconds_before / seconds_after


def parse_size(text: str | int) -> int:
    """The integer that a readable size stands for.

    ``80GB`` is decimal, ``80GiB`` is binary, and a bare letter is binary as in context lengths:
    ``32k`` is 32,768. Raises ``ValueError`` for anything else, negative or fractional results and
    results of 10**30 or more included.
    """
    if isinstance(text, int) and abs(text) >= _TOO_LARGE:
        raise ValueError(f"the size {_shown(text)} is too large: it must be below 10**30")
    match = _SIZE.fullmatch(str(text))
    if match is None or match[2].lower() not in _FACTORS:
        raise ValueError(
            f"cannot read the size {_shown(text)}: write a number and one of k, GB, GiB, …"
        )
    if len(match[1]) > 100:
        raise ValueError(f"the size {_shown(text)} is too large: it must be below 10**30")
    value = Fraction(match[1]) * _FACTORS[match[2].lower()]  # a float would turn 4.1 kB to 4099.9…
    if value >= _TOO_LARGE:
        raise ValueError(f"the size {_shown(text)} is too large: it must be below 10**30")
    if value != int(value):
        raise ValueError(f"the size {text!r} is not a whole number: it gives {float(value)}")
    return int(value)


def _shown(value: object) -> str:
    """The value for a message; a number of very many digits by its length only."""
    if isinstance(value, int) and abs(value) >= 10**100:
        return "a number of more than 100 digits"
    text = str(value) if isinstance(value, int | float) else repr(value)
    return text if len(text) <= 100 else f"{text[:20]}… of {len(text)} characters"
