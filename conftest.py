"""How notebooks are tested: nbval, with four decisions of ours.

* Outputs are compared letter by letter only where they can be equal: Linux on x86-64, the Python
  minor and the package versions of constraints.txt. Elsewhere cells still run and their asserts
  still count (nbval's lax mode). The first line of the report says which of the two it was.
* What a cell writes to stderr is not compared: it is other packages' warnings. Warnings raised
  from a line of refimpl are errors, in tests and in kernels.
* A kernel that does not start is tried once more, and the report says so. A cell is never retried.
* Workers share the cores: each notebook gets as many threads as there are cores per worker.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

from labkit.kernels import kernel_environment
from labkit.pins import reason_not_strict


class KernelStartWarning(UserWarning):
    """A notebook's kernel did not start and was started a second time."""


def start_twice(kernel_class: type) -> type:
    """Return a subclass of nbval's ``RunningKernel`` that starts again if it does not start."""

    class PatientKernel(kernel_class):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().__init__(*args, **kwargs)
            except RuntimeError as error:
                warnings.warn(
                    f"kernel did not start ({error}); starting it once more",
                    KernelStartWarning,
                    stacklevel=2,
                )
                if hasattr(self, "km"):
                    self.stop()
                super().__init__(*args, **kwargs)

    return PatientKernel


def pytest_configure(config: pytest.Config) -> None:
    """Fix the environment, choose strict or lax comparison, make kernels patient."""
    import nbval.plugin

    # Before any test module imports torch; workers and kernels inherit it.
    workers = getattr(config.option, "numprocesses", None) or 1
    is_set = "OMP_NUM_THREADS" in os.environ
    threads = None if is_set else max(1, min(2, (os.cpu_count() or 1) // workers))
    os.environ.update(kernel_environment(threads))
    if not getattr(nbval.plugin.RunningKernel, "is_patient", False):
        nbval.plugin.RunningKernel = start_twice(nbval.plugin.RunningKernel)
        nbval.plugin.RunningKernel.is_patient = True
    config.not_strict = reason_not_strict()
    if config.not_strict:
        config.option.nbval_lax = True


def pytest_report_header(config: pytest.Config) -> str:
    """Say how outputs are compared."""
    if config.not_strict:
        return f"nbval: asserts only, outputs not compared: {config.not_strict}"
    return "nbval: outputs compared letter by letter"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave stderr out of nbval's comparison."""
    notebook = item.parent
    if hasattr(notebook, "skip_compare") and "stderr" not in notebook.skip_compare:
        notebook.skip_compare += ("stderr",)
