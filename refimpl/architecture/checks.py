"""Values read from outside, checked before they are used."""

import math
from collections.abc import Mapping
from typing import Any


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` if it is an integer of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        rule = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return value


def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """True or false; ``default`` where the key is absent or null."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, got {value!r}")
    return value


def positive(name: str, value: Any) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def agreed(name: str, first: Any, second: Any) -> Any:
    """The value that one or both of two places give; they may not differ."""
    if first is not None and second is not None and first != second:
        raise ValueError(f"{name} is given as {first!r} and as {second!r}")
    return second if first is None else first
