"""How kernels run here, interpreted on the CPU or compiled for a GPU, decided in one place."""

import importlib.util
import os
import sys

INTERPRETER = "interpreter"
COMPILER = "compiler"
VARIABLE = "TRITON_INTERPRET"


def settle() -> str:
    """Import Triton in the right mode and return it: ``"interpreter"`` or ``"compiler"``.

    ``TRITON_INTERPRET`` decides where it is set: 1 interprets, 0 compiles. Compiling needs no GPU,
    launching does. Where it is not set, kernels are compiled if torch sees a GPU; otherwise it is
    set to 1 for this process and its children.

    Raises ``ImportError`` where there is no Triton, ``ValueError`` for another value of the
    variable, and ``RuntimeError`` if Triton was already imported in the other mode.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0, 1 or not set, got {asked!r}")
    try:
        found = importlib.util.find_spec("triton")
    except ValueError:  # a stub in its place, which has no specification
        found = None
    if found is None:
        raise ImportError(
            f"there is no Triton on this machine ({sys.platform}; it is built for Linux only): "
            "refimpl.flash computes the same attention in torch"
        )
    mode = {"0": COMPILER, "1": INTERPRETER}.get(asked) or _fitting()
    if mode == INTERPRETER and "triton" not in sys.modules:
        os.environ[VARIABLE] = "1"
    actual = _imported_mode()
    if actual != mode:
        raise RuntimeError(
            f"Triton was imported in {actual} mode before refimpl.kernels, which needs "
            f"{mode} mode here: import refimpl.kernels first (torch.compile and some models of "
            f"transformers import Triton too), or start Python with "
            f"{VARIABLE}={int(mode == INTERPRETER)}"
        )
    if mode == INTERPRETER:  # kernels that are defined later look at the variable again
        os.environ[VARIABLE] = "1"
    return mode


def _fitting() -> str:
    import torch

    return COMPILER if torch.cuda.is_available() else INTERPRETER


def _imported_mode() -> str:
    """The mode Triton is in; it is imported if it was not. Its own functions tell."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return COMPILER if isinstance(tl.max, JITFunction) else INTERPRETER
