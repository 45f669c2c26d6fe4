"""Loading a model and its tokenizer: a packaged GGUF, a folder of safetensors, or a hub name."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from refimpl.architecture import Architecture
from refimpl.model import Decoder
from refimpl.weights import folder, gguf
from refimpl.weights.locate import MODEL_NAME, MODEL_SHA256, cache_path, fetch, find_model, verify
from refimpl.weights.tokenizer import Tokenizer

__all__ = [
    "MODEL_NAME",
    "MODEL_SHA256",
    "Tokenizer",
    "cache_path",
    "fetch",
    "find_model",
    "load",
    "verify",
]


class UnknownModelError(ValueError):
    """A name that is neither the book's model nor a folder, a file or a hub name."""


def load(
    name: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32
) -> tuple[Decoder, Tokenizer]:
    """A decoder in ``dtype`` and its tokenizer.

    ``name`` is ``smollm2-135m`` (the packaged file), a path of a ``.gguf`` file, a folder with
    ``config.json``, ``tokenizer.json`` and safetensors, or a hub name ``owner/model``. Pickled
    weights are refused. Raises ``ValueError`` with one line for a file that is damaged or of a
    family that the decoder does not cover.
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"weights are loaded as 16, 32 or 64-bit floating point, got {dtype}")
    name = os.fspath(name)
    if name.lower() == MODEL_NAME:
        path = find_model()
        verify(path)
        return _from_gguf(path, dtype, name=MODEL_NAME)
    path = Path(os.path.expanduser(name))
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path, dtype)
    if path.is_dir():
        return _from_folder(path, dtype)
    if path.exists():
        raise ValueError(f"{name!r} is neither a folder nor a .gguf file; pickles are not read")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_folder(_hub_folder(name), dtype)
    raise UnknownModelError(
        f"no model {name!r}: give {MODEL_NAME}, a folder, a .gguf file or a hub name owner/model"
    )


def _from_gguf(
    path: Path, dtype: torch.dtype, name: str | None = None
) -> tuple[Decoder, Tokenizer]:
    with _damage(path):
        metadata, tensors = gguf.read_gguf(path, dtype)
        arch, renamed = gguf.decoder_tensors(metadata, tensors)
        arch = dataclasses.replace(arch, name=name or arch.name)
        return _build(arch, renamed, dtype), Tokenizer.from_gguf(metadata)


def _from_folder(path: Path, dtype: torch.dtype) -> tuple[Decoder, Tokenizer]:
    with _damage(path):
        arch, renamed = folder.decoder_tensors(path)
        return _build(arch, renamed, dtype), Tokenizer.from_folder(path)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn what a value of the wrong type or range raises somewhere inside into one line."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no message"
        raise ValueError(
            f"{path.name} is damaged: a value in it is not what it should be "
            f"({type(error).__name__}: {reason})"
        ) from error


def _hub_folder(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "tokenizer*.json", "chat_template.jinja", "*.safetensors*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise OSError(f"could not get {name!r} from the hub: {reason}") from error


def _build(arch: Architecture, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Decoder:
    """A decoder that holds ``tensors``, named as in :class:`Decoder`; all must be there and fit."""
    num_layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    if num_layers != arch.num_layers:
        raise ValueError(f"the weights hold {num_layers} layers, the config says {arch.num_layers}")
    try:
        with _NoInitialValues(), torch.device("meta"):
            model = Decoder(arch)
    except RuntimeError as error:  # more elements than 64 bits can count
        raise ValueError(f"the config asks for sizes that cannot be: {arch}") from error
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if arch.tie_embeddings and "embed.weight" in tensors:
        tensors = {**tensors, "head.weight": tensors["embed.weight"]}
    missing, extra = (
        sorted(expected.keys() - tensors.keys()),
        sorted(tensors.keys() - expected.keys()),
    )
    if missing or extra:
        raise ValueError(f"the weights do not fit: missing {missing[:3]}, not known {extra[:3]}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name} is {tuple(tensors[name].shape)}, the config says {shape}")
    model.load_state_dict({n: t.to(dtype) for n, t in tensors.items()}, assign=True)
    if arch.tie_embeddings:
        model.head.weight = model.embed.weight
    return model.requires_grad_(False).eval()


class _NoInitialValues(TorchFunctionMode):
    """Leaves out ``torch.nn.init``: every weight is about to be replaced by one from the file.

    Drawing on the meta device would also import torch's compiler, and Triton with it: 1.5 s.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)
