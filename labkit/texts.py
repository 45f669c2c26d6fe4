"""Texts that come with the book, so that what is measured on them stays the same everywhere."""

from __future__ import annotations

from importlib import resources


def passage() -> str:
    """Return English prose of about 4,000 SmolLM2 tokens, on how tides are predicted.

    Written for this book, after the model it uses was trained. Paragraphs are one line
    each, with an empty line between them; ASCII only.
    """
    return resources.files("labkit").joinpath("data/passage.txt").read_text("ascii")
