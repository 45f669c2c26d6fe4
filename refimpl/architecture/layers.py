"""One layer's facts: what it stores for a token, what it keeps for a sequence, what it weighs."""

from dataclasses import dataclass, fields

ATTENTION_KINDS = ("full", "sliding", "chunked", "latent")
KINDS = (*ATTENTION_KINDS, "linear", "state", "none")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a decoder. Widths and counts are numbers of elements, never bytes.

    ``kind`` says how tokens are mixed: ``full`` attention, the last ``window`` tokens
    (``sliding``), the tokens of the same chunk of ``window`` (``chunked``), attention over a
    compressed ``latent`` (MLA), a ``linear`` recurrence, a ``state`` space, or ``none`` (a layer
    that is only an MLP). A latent layer has one key-value head that every query head shares; its
    ``head_dim`` is the width of a query before absorption, ``value_dim`` that of a value.

    ``state_elements`` are kept per sequence, whatever its length; ``conv_channels`` counts the
    channels of a short convolution, which keeps a few past inputs of each. A sparse-attention
    indexer is counted apart: ``index_width`` is the key it stores for a token, beside what
    ``kv_elements`` counts, and ``index_parameters`` are its weights, beside ``parameters``.
    ``selected`` is the number of tokens that attention then reads at most, of those the indexer
    scored here or, where layers share it, in an earlier layer; 0 where attention reads all.
    ``mixer_parameters`` and ``mlp_parameters`` are read by every token: norms,
    routers and shared experts belong to them. Of ``num_experts`` routed experts of
    ``expert_parameters`` each, a token reads ``experts_per_token``.
    """

    kind: str
    num_query_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    latent_width: int = 0
    rope_width: int = 0
    index_width: int = 0
    index_parameters: int = 0
    selected: int = 0
    state_elements: int = 0
    conv_channels: int = 0
    mixer_parameters: int = 0
    mlp_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_parameters: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"layer kind {self.kind!r} is not known: one of {', '.join(KINDS)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("kind", "window"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{field.name} must be an integer from 0 on, got {value!r}")
        self._check_window()
        self._check_heads()
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"a token cannot read {self.experts_per_token} of {self.num_experts} experts"
            )

    def _check_window(self) -> None:
        window, windowed = self.window, self.kind in ("sliding", "chunked")
        if windowed and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise ValueError(f"a {self.kind} layer needs a window of at least 1, got {window!r}")
        if not windowed and window is not None:
            raise ValueError(f"a {self.kind} layer has no window, got {window!r}")

    def _check_heads(self) -> None:
        if self.kind not in ATTENTION_KINDS:
            return
        sizes = ["num_query_heads", "num_kv_heads", "head_dim", "value_dim"]
        if self.kind == "latent":
            sizes += ["latent_width", "rope_width"]
        for name in sizes:
            if not getattr(self, name) and name != "rope_width":
                raise ValueError(f"a {self.kind} layer needs {name} of at least 1")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"query heads must divide evenly among key-value heads, "
                f"got {self.num_query_heads} and {self.num_kv_heads}"
            )

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """What one token adds to this layer's cache, as pairs: how many vectors, how wide."""
        if self.kind == "latent":
            return ((1, self.latent_width), (1, self.rope_width))
        if self.kind in ATTENTION_KINDS:
            return ((self.num_kv_heads, self.head_dim), (self.num_kv_heads, self.value_dim))
        return ()

    @property
    def kv_elements(self) -> int:
        """Numbers that one token adds to the cache: keys and values, or latent and rotary key."""
        return sum(number * width for number, width in self.vectors)

    @property
    def parameters(self) -> int:
        """All weights of the layer, every expert included."""
        return self.always_read + self.num_experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes through."""
        return self.always_read + self.experts_per_token * self.expert_parameters

    @property
    def always_read(self) -> int:
        """Weights that every token passes through, whatever the router says."""
        return self.mixer_parameters + self.mlp_parameters
