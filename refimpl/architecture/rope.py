"""How a config states rotary positions, in the keys of transformers 4 and of transformers 5."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refimpl.architecture.checks import agreed, positive


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
            positive(field, getattr(self, field))
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


def read_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_parameters`` (5.x), or ``rope_theta`` and ``rope_scaling`` (4.x)."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old and new != old:
        raise ValueError(f"rope_parameters {new!r} and rope_scaling {old!r} contradict each other")
    if not isinstance(new or old or {}, Mapping):
        raise ValueError(f"rope parameters must be a mapping, got {new or old!r}")
    parameters = dict(new or old or {})
    theta = agreed("rope_theta", parameters.pop("rope_theta", None), config.get("rope_theta"))
    theta = 10_000.0 if theta is None else theta
    positive("rope_theta", theta)
    kind = agreed("rope type", parameters.pop("rope_type", None), parameters.pop("type", None))
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
