"""Reading a folder of safetensors, as transformers writes them, for the Llama family."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from refimpl.architecture import Architecture

_TOP = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
_LAYER = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def decoder_tensors(folder: Path) -> tuple[Architecture, dict[str, Tensor]]:
    """The architecture and the tensors under the decoder's own names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder.name}/ has no config.json")
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder.name}/config.json is damaged: {error}") from error
    arch = Architecture.from_hf_config({"_name_or_path": folder.name, **config})
    if arch.detail is not None:
        raise ValueError(f"{folder.name}/ cannot be run here: {arch.detail.unsupported}")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        why = f"; {pickles[0]} is a pickle, which can run code and is not read" if pickles else ""
        raise ValueError(f"{folder.name}/ has no .safetensors file{why}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file.name} is damaged: {error}") from error
    renamed = {_rename(name): tensor for name, tensor in tensors.items()}
    if arch.tie_embeddings:
        renamed.pop("head.weight", None)
    renamed = {n: t for n, t in renamed.items() if not n.endswith("rotary_emb.inv_freq")}
    if "embed.weight" not in renamed:
        raise ValueError("the weights hold no 'model.embed_tokens.weight'")
    return arch, renamed


def _rename(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    if module in _TOP:
        return f"{_TOP[module]}.{leaf}"
    parts = module.split(".", 3)
    if parts[:2] == ["model", "layers"] and len(parts) == 4 and parts[3] in _LAYER:
        return f"layers.{parts[2]}.{_LAYER[parts[3]]}.{leaf}"
    return name


def to_hf_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's tensors under the names that transformers gives them."""
    top = {ours: theirs for theirs, ours in _TOP.items()}
    inner = {ours: theirs for theirs, ours in _LAYER.items()}
    renamed = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        parts = module.split(".", 2)
        if parts[0] == "layers":
            renamed[f"model.layers.{parts[1]}.{inner[parts[2]]}.{leaf}"] = tensor
        else:
            renamed[f"{top[module]}.{leaf}"] = tensor
    return renamed
