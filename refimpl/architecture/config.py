"""A ``config.json`` with its keys checked as they are read."""

from collections.abc import Mapping, Sequence
from typing import Any

from refimpl.architecture.checks import count, flag

# transformers' own older names, read as the names that its classes write today.
_OLDER_NAMES = {"attention": "full_attention", "mamba": "linear_attention"}
# Layers are listed one by one; the deepest model here has 126.
_MOST_LAYERS = 10_000


class Config:
    """The keys of one decoder's configuration; whatever is read is checked and named.

    A key may be known under several names: the first is the one an error names. A value that two
    of them give differently is an error, and so is a null where a number is needed.
    """

    def __init__(self, data: Mapping[str, Any], model_type: str) -> None:
        self.data, self.model_type = data, model_type

    @property
    def name(self) -> str:
        """What the config calls the model, or its type."""
        return str(self.data.get("_name_or_path") or self.model_type)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        number = self.count("num_hidden_layers", "n_layer")
        if number > _MOST_LAYERS:
            raise ValueError(
                f"num_hidden_layers is {number}: more than {_MOST_LAYERS:,} are an error"
            )
        return number

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        if not self.has("hidden_size", "n_embd") and not self.has("head_dim"):
            raise ValueError("the config has no 'hidden_size' (or 'n_embd') and no 'head_dim'")
        return self.count("hidden_size", "n_embd")

    def value(self, *keys: str) -> Any:
        """The value given under one of ``keys``, or ``None``; two that differ are an error."""
        given = [(key, self.data[key]) for key in keys if self.data.get(key) is not None]
        for key, other in given[1:]:
            if other != given[0][1]:
                raise ValueError(f"{given[0][0]} is {given[0][1]!r}, but {key} is {other!r}")
        return given[0][1] if given else None

    def has(self, *keys: str) -> bool:
        """Whether one of ``keys`` is given and is not null."""
        return any(self.data.get(key) is not None for key in keys)

    def required(self, *keys: str) -> Any:
        """The value of a key without which the model cannot be described."""
        value = self.value(*keys)
        if value is None:
            others = f" (or {', '.join(map(repr, keys[1:]))})" if len(keys) > 1 else ""
            raise ValueError(f"the config has no {keys[0]!r}{others}")
        return value

    def count(self, *keys: str, least: int = 1) -> int:
        """A whole number that the config must give."""
        return count(keys[0], self.required(*keys), least)

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """A whole number that the config may leave out."""
        value = self.value(*keys)
        return None if value is None else count(keys[0], value, least)

    def nullable(self, *keys: str, least: int = 1) -> int | None:
        """A whole number or null, which here is a value too; the key itself must be there."""
        if not any(key in self.data for key in keys):
            self.required(*keys)
        return self.optional(*keys, least=least)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; ``default`` is what the family's class takes a missing key to mean."""
        return flag(self.data, key, default)

    def never(self, key: str, why: str) -> None:
        """Refuse a switch that this family does not know or that is not counted."""
        if self.data.get(key) not in (None, False):
            raise ValueError(f"{key} = {self.data[key]!r} in a {self.model_type} config: {why}")

    def names(self, key: str, length: int | None) -> list[str] | None:
        """A name for each layer (of any number, if ``None``), older names replaced; or ``None``."""
        value = self.value(key)
        if value is None:
            return None
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or not all(isinstance(name, str) for name in value):
            raise ValueError(f"{key} must be a list of names, got {value!r}")
        if length is not None and len(value) != length:
            raise ValueError(f"{key} lists {len(value)} layers, the config says {length}")
        return [_OLDER_NAMES.get(name, name) for name in value]

    def nested(self, key: str) -> "Config | None":
        """The configuration inside a configuration, or ``None``."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} must be a mapping, got {value!r}")
        return Config(value, self.model_type)

    def switches(self, key: str, length: int) -> list[bool] | None:
        """A list of 0 and 1 for each layer, or ``None``."""
        value = self.value(key)
        if value is None:
            return None
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or len(value) != length or not all(x in (0, 1) for x in value):
            raise ValueError(f"{key} needs 0 or 1 for each of {length} layers, got {value!r}")
        return [bool(x) for x in value]

    def layer_set(self, key: str, length: int) -> set[int] | None:
        """A list of layer numbers, from 0 on, or ``None``."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{key} must be a list of layer numbers, got {value!r}")
        for index in value:
            if count(key, index, least=0) >= length:
                raise ValueError(f"{key} names layer {index}, the model has {length}")
        return set(value)
