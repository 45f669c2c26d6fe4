"""What the commands share: reading values, showing paths, a word when something takes long."""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def whole(text: str, low: int = 0) -> int:
    """An integer of at least ``low`` that fits in 63 bits, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < low:
        raise argparse.ArgumentTypeError(f"{value} is too small: at least {low}")
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"{value} is too large: below 2**63")
    return value


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    return whole(text, low=1)


def number(text: str) -> float:
    """A finite number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if value != value or abs(value) == float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not finite")
    return value


def short(path: Path) -> str:
    """The path as a person would write it: from here, else from home, else whole."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)


@contextmanager
def patience(what: str, after: float = 2.0) -> Iterator[None]:
    """Says ``what`` on stderr if the block takes longer than ``after`` seconds."""
    timer = threading.Timer(after, lambda: print(f"{what} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
