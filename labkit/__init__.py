"""What a reader, a class and an interviewer use around the reference implementation.

In a notebook::

    import labkit
    from labkit import check

    labkit.setup()

``import labkit`` loads nothing else: the names below arrive on first use, so that tools which
only read or write files (``labkit.build``) start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FROM_NOTEBOOK = (
    "figure",
    "predict",
    "ratio_of_medians",
    "reveal_prediction",
    "setup",
    "show",
    "table",
)
_SUBMODULES = ("build", "check", "mutants", "notebook", "sabotage", "tasks")

__all__ = ["check", *_FROM_NOTEBOOK]


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use (PEP 562)."""
    if name in _FROM_NOTEBOOK:
        value = getattr(import_module("labkit.notebook"), name)
    elif name in _SUBMODULES:
        value = import_module(f"labkit.{name}")
    else:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name the lazy attributes too, for completion."""
    return sorted({*globals(), *_FROM_NOTEBOOK, *_SUBMODULES})
