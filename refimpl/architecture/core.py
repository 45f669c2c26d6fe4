"""``Architecture``: the facts about a decoder from which every size and count follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from refimpl.architecture.checks import count, positive
from refimpl.architecture.layers import ATTENTION_KINDS, Layer
from refimpl.architecture.rope import RopeScaling


@dataclass(frozen=True)
class Detail:
    """What an architecture has that the uniform Llama layout does not say.

    ``layers`` lists every layer; ``head_parameters`` leaves out an output matrix that is the
    embedding matrix; ``other_parameters`` are what stands outside layers, embedding and head: the
    last norm, learned positions, projections. ``unsupported`` says why ``refimpl.model`` cannot run
    it.
    """

    layers: tuple[Layer, ...]
    embedding_parameters: int
    head_parameters: int
    other_parameters: int
    unsupported: str

    def __post_init__(self) -> None:
        for name in ("embedding_parameters", "head_parameters", "other_parameters"):
            count(name, getattr(self, name), least=0)
        if not self.layers or not all(isinstance(layer, Layer) for layer in self.layers):
            raise ValueError(f"layers must be a tuple of at least one Layer, got {self.layers!r}")


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only transformer. Widths are numbers of elements, never bytes.

    Without ``detail`` every layer is alike, of the Llama family: RMSNorm, rotary positions,
    grouped attention, SwiGLU, no biases. ``refimpl.model`` runs exactly those. With ``detail`` the
    layers are listed one by one and the fields here describe them loosely: heads and head dim are
    those of the first attention layer (0 where there is none), ``mlp_width`` that of the first MLP
    or expert, ``max_context`` and the rotary base ``None`` where the config states none.
    """

    name: str
    num_layers: int
    model_width: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    max_context: int | None
    rope_theta: float | None = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float | None = 1e-5
    tie_embeddings: bool = False
    detail: Detail | None = None

    def __post_init__(self) -> None:
        for field in ("num_layers", "model_width", "vocab_size"):
            count(field, getattr(self, field))
        if self.detail is not None:
            self._check_detail(self.detail)
            return
        for field in ("num_query_heads", "num_kv_heads", "head_dim", "mlp_width", "max_context"):
            count(field, getattr(self, field))
        for field in ("rope_theta", "norm_eps"):
            positive(field, getattr(self, field))
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"query heads must divide evenly among key-value heads, "
                f"got {self.num_query_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"rotation works on pairs: head_dim must be even, got {self.head_dim}")

    def _check_detail(self, detail: Detail) -> None:
        if len(detail.layers) != self.num_layers:
            raise ValueError(
                f"num_layers is {self.num_layers}, but {len(detail.layers)} layers are listed"
            )
        for field in ("num_query_heads", "num_kv_heads", "head_dim", "mlp_width"):
            count(field, getattr(self, field), least=0)
        if self.max_context is not None:
            count("max_context", self.max_context)
        first = next((x for x in detail.layers if x.kind in ATTENTION_KINDS), Layer(kind="none"))
        for field in ("num_query_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) != getattr(first, field):
                raise ValueError(
                    f"{field} is {getattr(self, field)}, but the first attention layer has "
                    f"{getattr(first, field)}"
                )

    @property
    def runnable(self) -> bool:
        """Whether ``refimpl.model.Decoder`` can run it."""
        return self.detail is None

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head; 0 where nothing attends."""
        return self.num_query_heads // self.num_kv_heads if self.num_kv_heads else 0

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer, first to last."""
        if self.detail is not None:
            return self.detail.layers
        M, D = self.model_width, self.head_dim
        layer = Layer(
            kind="full",
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=D,
            value_dim=D,
            mixer_parameters=2 * M * D * (self.num_query_heads + self.num_kv_heads) + M,
            mlp_parameters=3 * M * self.mlp_width + M,
        )
        return (layer,) * self.num_layers

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding."""
        if self.detail is not None:
            return self.detail.embedding_parameters
        return self.vocab_size * self.model_width

    @property
    def head_parameters(self) -> int:
        """Weights of the output matrix, unless it is the embedding matrix."""
        if self.detail is not None:
            return self.detail.head_parameters
        return 0 if self.tie_embeddings else self.vocab_size * self.model_width

    @property
    def other_parameters(self) -> int:
        """Weights outside layers, embedding and head: the last norm, learned positions."""
        return self.model_width if self.detail is None else self.detail.other_parameters

    @classmethod
    def named(cls, name: str) -> "Architecture":
        """The architecture of a model in the zoo; a name that is not there suggests near ones."""
        from refimpl.architecture.zoo import named

        return named(name)

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> "Architecture":
        """The architecture that a ``config.json`` describes: its text decoder, layer by layer.

        Reads what transformers' classes write, in the keys of 4.x and of 5.x, the forms that older
        models ship with, and a nested ``text_config``. A missing ``num_key_value_heads`` means one
        key-value head per query head; a missing ``head_dim`` is ``hidden_size`` shared among the
        query heads; a window longer than the context is none. A switch that is left out means what
        the family's class takes it to mean; no size does: ``ValueError`` names the key that is
        missing, and any model type, layer type or value that cannot be read.
        """
        from refimpl.architecture.reading import read

        return read(config)
