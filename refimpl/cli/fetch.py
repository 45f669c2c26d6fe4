"""``fetch``: have the model on this machine, and know that it is the right file."""

import argparse
import os
import sys

from refimpl.cli import text

HELP = "find or download the model and verify its checksum"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the places to look are fixed."""


def run(options: argparse.Namespace) -> int:
    """Print where the model is; an ``OSError`` says what to do when it is not, or is not right."""
    from refimpl import weights

    try:
        path = weights.fetch(progress=lambda line: print(line, file=sys.stderr, flush=True))
    except (OSError, ValueError) as error:
        raise OSError(f"{error}{advice(weights.MODEL_NAME)}") from error
    print(f"{weights.MODEL_NAME}: {text.short(path)}, SHA-256 {weights.MODEL_SHA256} verified")
    return 0


def advice(model: str = "smollm2-135m") -> str:
    """What to add to an error about a model's file; empty for a model of the reader's own."""
    if model.lower() != "smollm2-135m":
        return ""
    if os.environ.get("REFIMPL_MODEL"):
        return "; REFIMPL_MODEL names the file: correct or unset it"
    return "; without a network, set REFIMPL_MODEL to a copy of the file"
