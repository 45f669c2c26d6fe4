"""Reading a GGUF file: its header with struct, its blocks with NumPy."""

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.rope import interleaved_to_half_split

_LAYER = {
    "attn_norm": "attention_norm",
    "ffn_norm": "mlp_norm",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_output": "attention.o",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}
_SCALARS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
# What the decoder has no code for, and the values that switch it off.
_OFF: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0, 0.0),
    "rope.scale_linear": (1.0, 0.0),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0.0,),
    "expert_count": (0,),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_STRING, _ARRAY = 8, 9


def decoder_tensors(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Architecture, dict[str, Tensor]]:
    """The architecture and the tensors under the decoder's own names, rotated by halves."""
    arch = _architecture(metadata, tied="output.weight" not in tensors)
    heads = {"attention.q": arch.num_query_heads, "attention.k": arch.num_kv_heads}
    renamed = {}
    for name, tensor in tensors.items():
        new = _rename(name)
        for part, count in heads.items():
            if new.endswith(f"{part}.weight"):
                # llama.cpp rotates neighbours, this decoder rotates halves.
                tensor = interleaved_to_half_split(tensor, count)
        renamed[new] = tensor
    return arch, renamed


def _rename(name: str) -> str:
    top = {"token_embd": "embed", "output_norm": "norm", "output": "head"}
    module, _, leaf = name.rpartition(".")
    if module in top:
        return f"{top[module]}.{leaf}"
    block = module.split(".", 2)
    if block[0] == "blk" and len(block) == 3 and block[2] in _LAYER:
        return f"layers.{block[1]}.{_LAYER[block[2]]}.{leaf}"
    return name


def _architecture(metadata: Mapping[str, Any], *, tied: bool) -> Architecture:
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"the GGUF file holds a {kind!r} model: only 'llama' is read")

    def value(key: str) -> Any:
        return required(metadata, f"llama.{key}")

    for key, off in _OFF.items():
        if metadata.get(f"llama.{key}", off[0]) not in off:
            raise ValueError(f"'llama.{key}' is {metadata[f'llama.{key}']!r}: not supported")

    width, heads = value("embedding_length"), value("attention.head_count")
    return Architecture(
        name=str(metadata.get("general.name", "gguf")).lower(),
        num_layers=value("block_count"),
        model_width=width,
        num_query_heads=heads,
        num_kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=metadata.get("llama.rope.dimension_count", width // max(heads, 1)),
        mlp_width=value("feed_forward_length"),
        vocab_size=len(required(metadata, "tokenizer.ggml.tokens")),
        max_context=value("context_length"),
        rope_theta=metadata.get("llama.rope.freq_base", 10_000.0),
        norm_eps=round(value("attention.layer_norm_rms_epsilon"), 12),
        tie_embeddings=tied,
    )


def required(metadata: Mapping[str, Any], key: str) -> Any:
    """The value of a key; ``ValueError`` names one that is missing."""
    if key not in metadata:
        raise ValueError(f"the GGUF file has no {key!r}")
    return metadata[key]


def read_gguf(
    path: Path, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a GGUF v2 or v3 file holding F32, F16, Q8_0 or Q4_1.

    Every tensor is unpacked to float32 and then rounded to ``dtype``, one after the other, so that
    a model in 16 bits is never whole in memory in 32.

    Raises ``ValueError`` with one line if the file is not a GGUF file or ends too early.
    """
    data = path.read_bytes()
    cursor = _Cursor(data)
    try:
        metadata, infos = _read_header(cursor)
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ValueError(f"{path.name} is damaged: its header cannot be read") from error
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in infos:
        if kind not in _FORMATS:
            raise ValueError(f"{name} has GGUF type {kind}: only F32, F16, Q8_0 and Q4_1 are read")
        block, num_bytes, unpack = _FORMATS[kind]
        first = start + offset
        last = first + math.prod(shape) // block * num_bytes
        if last > len(data):
            raise ValueError(
                f"{path.name} is truncated: {name} ends at byte {last}, the file has {len(data)}"
            )
        raw = np.frombuffer(data, np.uint8, last - first, first)
        tensors[name] = torch.from_numpy(unpack(raw).reshape(shape)).to(dtype)
    return metadata, tensors


class _Cursor:
    """Reads little-endian values from bytes, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def scalar(self, code: struct.Struct) -> Any:
        (value,) = code.unpack_from(self.data, self.offset)
        self.offset += code.size
        return value

    def string(self) -> str:
        start = self.offset + 8
        stop = start + self.scalar(_U64)
        if stop > len(self.data):
            raise struct.error("a string is cut short")
        self.offset = stop
        return self.data[start:stop].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, count = self.scalar(_U32), self.scalar(_U64)
            return [self.value(kind) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def _read_header(
    cursor: _Cursor,
) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int, int]]]:
    cursor.offset = 4
    magic, version = cursor.data[:4], cursor.scalar(_U32)
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"not a GGUF file of version 2 or 3: it begins with {magic!r}, {version}")
    num_tensors, num_pairs = cursor.scalar(_U64), cursor.scalar(_U64)
    metadata = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar(_U32))
    infos = []
    for _ in range(num_tensors):
        name = cursor.string()
        dims = [cursor.scalar(_U64) for _ in range(cursor.scalar(_U32))]
        # GGUF lists the fastest axis first.
        infos.append((name, tuple(dims[::-1]), cursor.scalar(_U32), cursor.scalar(_U64)))
    return metadata, infos


def _unpack_q4_1(raw: np.ndarray) -> np.ndarray:
    """32 weights in 20 bytes: f16 step d and minimum m, then 16 bytes; w = q * d + m."""
    blocks = raw.reshape(-1, 20)
    step, low = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[..., None]
    packed = blocks[:, 4:]
    # Low nibbles are weights 0 to 15, high nibbles 16 to 31.
    weights = np.empty((len(blocks), 32), np.float32)
    weights[:, :16] = packed & 15
    weights[:, 16:] = packed >> 4
    weights *= step
    weights += low
    return weights


def _unpack_q8_0(raw: np.ndarray) -> np.ndarray:
    """32 weights in 34 bytes: f16 step d, then 32 signed bytes; w = q * d."""
    blocks = raw.reshape(-1, 34)
    step = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return blocks[:, 2:].view(np.int8) * step


# GGUF type: (weights in a block, bytes of a block, how to unpack).
_FORMATS: dict[int, tuple[int, int, Callable[[np.ndarray], np.ndarray]]] = {
    0: (1, 4, lambda raw: raw.view(np.float32).copy()),
    1: (1, 2, lambda raw: raw.view(np.float16).astype(np.float32)),
    3: (32, 20, _unpack_q4_1),
    8: (32, 34, _unpack_q8_0),
}
