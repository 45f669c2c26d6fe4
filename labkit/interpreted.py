"""Triton for the cells of a notebook: interpreted, also where there is a GPU.

``from labkit.interpreted import tl, triton`` gives both, in interpreter mode, so that a chapter
prints the same on every machine. Where there is no Triton (macOS, Windows), both are None, and a
cell that begins with the line ``# Triton`` prints why it is skipped instead of running.
"""

from __future__ import annotations

import os
import sys
from typing import Any

MARK = "# Triton"
VARIABLE = "TRITON_INTERPRET"


def replace_marked(lines: list[str]) -> list[str]:
    """The lines of a cell, or one line that says why they are skipped if the mark begins them."""
    if lines and lines[0].strip() == MARK:
        return [f"print('skipped: there is no Triton on this machine ({sys.platform})')\n"]
    return lines


def _load() -> tuple[Any, Any]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        from refimpl.kernels import tl, triton
    except RuntimeError:  # Triton is there already, and compiles
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        raise
    except ImportError:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and replace_marked not in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.append(replace_marked)
        return None, None
    return tl, triton


tl, triton = _load()

__all__ = ["MARK", "replace_marked", "tl", "triton"]
