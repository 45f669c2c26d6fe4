"""Triton kernels: one source that runs compiled on a GPU and interpreted on a CPU.

Importing this package decides which of the two it is, once, before Triton is imported for the
first time (see :mod:`refimpl.kernels.mode`): Triton's own library is built for one of them while
it is imported. Nothing outside this package imports Triton, and :mod:`refimpl` never imports this.
A kernel of one's own starts with ``from refimpl.kernels import tl, triton``.
"""

from refimpl.kernels.mode import INTERPRETER, settle

MODE = settle()

if MODE == INTERPRETER:
    from refimpl.kernels import interpreter

    interpreter.mend()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

__all__ = ["MODE", "tl", "triton"]
