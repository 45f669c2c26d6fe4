"""What a decoder's shape is: the facts from which every size and count follows. No torch here."""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ZOO = Path(__file__).parent / "data" / "architectures.json"
# Families whose layers are RMSNorm, RoPE, grouped attention and SwiGLU, and nothing else.
_LLAMA_FAMILY = ("llama", "mistral", "smollm2")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those trained on.

    ``kind`` is ``linear`` (every frequency divided by ``factor``) or ``llama3`` (only the slow
    ones, with a smooth band between). Kinds that change with the current length, such as dynamic
    NTK, are refused: a cache of rotated keys would silently mix two bases.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ValueError(
                f"rope scaling {self.kind!r} is not supported: linear and llama3 are; a kind whose "
                "base depends on the current length cannot be used with a cache of rotated keys"
            )
        fields = ("factor", "low_freq_factor", "high_freq_factor", "original_max_context")
        for field in fields:
            _positive(field, getattr(self, field))
        if self.factor < 1:
            raise ValueError(f"rope scaling factor must be at least 1, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor must be positive and below high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.original_max_context < 1:
            raise ValueError(
                f"original_max_context must be at least 1, got {self.original_max_context}"
            )


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only transformer. Widths are numbers of elements, never bytes."""

    name: str
    num_layers: int
    model_width: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    max_context: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        for field in (
            "num_layers",
            "model_width",
            "num_query_heads",
            "num_kv_heads",
            "head_dim",
            "mlp_width",
            "vocab_size",
            "max_context",
        ):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a positive integer, got {value!r}")
        for field in ("rope_theta", "norm_eps"):
            _positive(field, getattr(self, field))
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"query heads must divide evenly among key-value heads, "
                f"got {self.num_query_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"rotation works on pairs: head_dim must be even, got {self.head_dim}")

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_query_heads // self.num_kv_heads

    @classmethod
    def named(cls, name: str) -> "Architecture":
        """The architecture of a model in the zoo; a name that is not there suggests near ones."""
        zoo = _zoo()
        if name.lower() not in zoo:
            near = difflib.get_close_matches(name.lower(), zoo, n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(zoo)}"
            raise ValueError(f"unknown model {name!r}{hint}")
        return zoo[name.lower()]

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> "Architecture":
        """The architecture that a ``config.json`` of the Llama family describes.

        Reads the keys of transformers 4 (``rope_theta``) and 5 (``rope_parameters``). A missing
        ``num_key_value_heads`` means one key-value head per query head; a missing ``head_dim`` is
        ``hidden_size / num_attention_heads``. Raises ``ValueError`` naming the key for anything
        that is missing or not supported.
        """
        model_type = _required(config, "model_type")
        if model_type not in _LLAMA_FAMILY:
            raise ValueError(
                f"model_type {model_type!r} is not supported: one of {', '.join(_LLAMA_FAMILY)}"
            )
        _refuse_what_the_decoder_lacks(config)
        width, heads = (
            _required_count(config, key) for key in ("hidden_size", "num_attention_heads")
        )
        head_dim = config.get("head_dim")
        if head_dim is None:
            if width % heads:
                raise ValueError(
                    f"head_dim is missing and hidden_size {width} is not a multiple of "
                    f"num_attention_heads {heads}"
                )
            head_dim = width // heads
        kv_heads = config.get("num_key_value_heads")
        theta, scaling = _rope(config)
        return cls(
            name=str(config.get("_name_or_path") or model_type),
            num_layers=_required(config, "num_hidden_layers"),
            model_width=width,
            num_query_heads=heads,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            mlp_width=_required(config, "intermediate_size"),
            vocab_size=_required(config, "vocab_size"),
            max_context=_required(config, "max_position_embeddings"),
            rope_theta=theta,
            rope_scaling=scaling,
            norm_eps=_required(config, "rms_norm_eps"),
            tie_embeddings=_flag(config, "tie_word_embeddings"),
        )


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"the config has no {key!r}")
    return config[key]


def _required_count(config: Mapping[str, Any], key: str) -> int:
    value = _required(config, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} must be a positive integer, got {value!r}")
    return value


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, got {value!r}")
    return value


def _positive(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def _refuse_what_the_decoder_lacks(config: Mapping[str, Any]) -> None:
    unsupported = {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "sliding_window": (None,),
        "pretraining_tp": (1,),
        "partial_rotary_factor": (1.0,),
        "quantization_config": (None,),
    }
    for key, allowed in unsupported.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            raise ValueError(f"{key} = {value!r} is not supported: only {allowed[0]!r} is")
    kinds = config.get("layer_types") or []
    if set(kinds) - {"full_attention"}:
        raise ValueError(f"layer_types = {kinds!r} is not supported: only 'full_attention' is")


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_parameters`` (5.x), or ``rope_theta`` and ``rope_scaling`` (4.x)."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old and new != old:
        raise ValueError(f"rope_parameters {new!r} and rope_scaling {old!r} contradict each other")
    if not isinstance(new or old or {}, Mapping):
        raise ValueError(f"rope parameters must be a mapping, got {new or old!r}")
    parameters = dict(new or old or {})
    theta = _agreed("rope_theta", parameters.pop("rope_theta", None), config.get("rope_theta"))
    theta = 10_000.0 if theta is None else theta
    _positive("rope_theta", theta)
    kind = _agreed("rope type", parameters.pop("rope_type", None), parameters.pop("type", None))
    kind = "default" if kind is None else kind
    if kind not in ("default", "linear", "llama3"):
        RopeScaling(kind, 1.0)  # raises, and says why
    if parameters.pop("partial_rotary_factor", None) not in (None, 1.0):
        raise ValueError("partial_rotary_factor below 1 is not supported")
    if kind == "default":
        parameters.pop("original_max_position_embeddings", None)
        if parameters:
            raise ValueError(f"rope type 'default' has no {sorted(parameters, key=str)[0]!r}")
        return float(theta), None
    needed = {"factor": "factor"}
    if kind == "llama3":
        needed |= {key: key for key in ("low_freq_factor", "high_freq_factor")}
        needed["original_max_position_embeddings"] = "original_max_context"
    for key in needed:
        if parameters.get(key) is None:
            raise ValueError(f"rope scaling {kind!r} has no {key!r}")
    unknown = sorted(parameters.keys() - needed - {"original_max_position_embeddings"})
    if unknown:
        raise ValueError(f"rope scaling {kind!r} does not know {unknown[0]!r}")
    return float(theta), RopeScaling(
        kind, **{name: parameters[key] for key, name in needed.items()}
    )


def _agreed(name: str, first: Any, second: Any) -> Any:
    """The value that one or both of two places give; they may not differ."""
    if first is not None and second is not None and first != second:
        raise ValueError(f"{name} is given as {first!r} and as {second!r}")
    return second if first is None else first


@cache
def _zoo() -> dict[str, Architecture]:
    rows = json.loads(_ZOO.read_text(encoding="utf-8"))["architectures"]
    return {row["name"]: Architecture(**row) for row in rows}
