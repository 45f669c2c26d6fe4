"""Start Jupyter kernels that are this interpreter, in surroundings that do not vary."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from traitlets import default

ROOT = Path(__file__).resolve().parent.parent


class ThisInterpreter(KernelSpecManager):
    """Answers every kernel name with a kernel of the interpreter that is running.

    A 'python3' kernelspec found on a machine may belong to any Python; the notebooks must run
    in the environment they are built and tested in.
    """

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the spec of the running interpreter, whatever the name."""
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


class ThisKernelManager(AsyncKernelManager):
    """A kernel manager that starts :class:`ThisInterpreter`."""

    @default("kernel_spec_manager")
    def _this_interpreter(self) -> KernelSpecManager:
        return ThisInterpreter(parent=self)


def refimpl_modules() -> list[str]:
    """Return the dotted names of refimpl's modules, from the files alone."""
    base = ROOT / "refimpl"
    names = []
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def kernel_environment(threads: int | None = None) -> dict[str, str]:
    """Return the environment notebooks run in: offline, seeded, quiet, a fixed thread count.

    A warning raised from a line of refimpl is an error (Python's own ``-W`` syntax wants module
    names spelled out); a warning from any other package is noise and stays one.
    """
    env = dict(os.environ)
    env.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TQDM_DISABLE="1",
        PYTHONHASHSEED="0",
        PYTHONWARNINGS=",".join(
            ["ignore:IProgress not found", *(f"error:::{name}" for name in refimpl_modules())]
        ),
        JUPYTER_PLATFORM_DIRS="1",
        PYDEVD_DISABLE_FILE_VALIDATION="1",
    )
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env.setdefault("OMP_NUM_THREADS", "2")
    # OpenMP threads spin while they wait for each other. On a machine with anything else to do
    # that was measured to cost a factor of 7 to 20; sleeping instead costs 3 % on an idle one.
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The tree that is built and tested is the one that is imported, wherever this Python looks.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    return env
