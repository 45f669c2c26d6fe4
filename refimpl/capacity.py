"""What fits: how many tokens and users a node holds beside the weights, and what would help."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from refimpl.architecture import ATTENTION_KINDS, Architecture, Detail, Layer
from refimpl.hardware import Accelerator
from refimpl.roofline import Step, decode_step
from refimpl.sizing import bytes_per_element, kv_bytes, max_tokens, weight_bytes
from refimpl.sizing.elements import check_count

# The levers that make another model: what Gemma 3 and DeepSeek-V2 do, on this model's layers.
_WINDOW, _WINDOW_PERIOD = 4096, 6
_LATENT_WIDTH, _ROPE_WIDTH = 512, 64
_GROUP, _SCALE_BYTES = 64, 4  # numbers of a 4-bit cache that share a 16-bit scale and zero point


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What one choice holds. ``users`` of ``context`` tokens fit, in fractions of one.

    ``pool_bytes`` is what weights and reserve leave for the cache, 0 where the weights do not fit.
    ``gpus_needed`` is the least number that holds the users asked for, ``None`` where none were
    asked for. ``limit`` names what ends it: ``weights`` (they do not fit), ``cache`` (no room for
    more of it) or ``none`` (all users asked for fit).
    """

    name: str
    num_gpus: int
    context: int
    weight_bytes: int
    pool_bytes: int
    bytes_per_user: int
    users: float
    gpus_needed: int | None
    limit: str
    cost: str = ""

    @property
    def whole_users(self) -> int:
        """Users that fit whole."""
        return self.pool_bytes // self.bytes_per_user

    @property
    def tokens(self) -> int:
        """Tokens that fit, held as sequences of ``context`` tokens."""
        return self.pool_bytes * self.context // self.bytes_per_user


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A model on a node: what fits, what ends it, and what each lever would change.

    ``reserved_bytes`` are kept for activations, workspace and fragmentation. ``step`` is the bound
    on a decode step of the users that fit (of those asked for at most); ``None`` where not one
    fits. The first of ``levers`` is the plan itself.
    """

    arch: Architecture
    accelerator: Accelerator
    num_gpus: int
    context: int
    users_asked: int | None
    reserve: float
    weight_dtype: str
    cache_dtype: str
    memory_bytes: int
    reserved_bytes: int
    fit: Fit
    step: Step | None
    levers: tuple[Fit, ...]


def plan(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    num_gpus: int = 1,
    context: int,
    users: int | None = None,
    reserve: float = 0.1,
    weight_dtype: str = "bf16",
    cache_dtype: str = "bf16",
) -> Plan:
    """How many ``users`` of ``context`` tokens fit on ``num_gpus``, and what would fit more.

    ``reserve`` is the share of all memory that neither weights nor cache may use. Memory is taken
    as one pool: splitting it loses what a GPU cannot give away, and where attention is split over
    more GPUs than there are key-value heads (one, for a latent) each holds a copy.

    Raises ``ValueError`` for counts below 1, a reserve outside 0 to 1, and a model that keeps
    nothing of its sequences.
    """
    _check(num_gpus, context, users, reserve)
    asked = _Question(accelerator, num_gpus, context, users, reserve, weight_dtype, cache_dtype)
    fit = asked.fit("as asked", arch)
    memory = num_gpus * accelerator.memory_bytes
    return Plan(
        arch=arch,
        accelerator=accelerator,
        num_gpus=num_gpus,
        context=context,
        users_asked=users,
        reserve=reserve,
        weight_dtype=weight_dtype,
        cache_dtype=cache_dtype,
        memory_bytes=memory,
        reserved_bytes=memory - asked.usable(),
        fit=fit,
        step=asked.step(arch, fit.whole_users),
        levers=(fit, *_levers(arch, asked, fit)),
    )


def _check(num_gpus: int, context: int, users: int | None, reserve: float) -> None:
    counts = {"num_gpus": num_gpus, "context": context} | (
        {} if users is None else {"users": users}
    )
    for name, value in counts.items():
        check_count(name, value, least=1)
    if not isinstance(reserve, int | float) or isinstance(reserve, bool) or not 0 <= reserve < 1:
        raise ValueError(f"reserve must be a share from 0 to below 1, got {reserve!r}")


@dataclass(frozen=True)
class _Question:
    accelerator: Accelerator
    num_gpus: int
    context: int
    users: int | None
    reserve: float
    weight_dtype: str
    cache_dtype: str

    def usable(self) -> int:
        """Bytes of all GPUs that are not reserved."""
        return math.floor(self.num_gpus * self._usable_each())

    def _usable_each(self) -> Fraction:
        # The reserve as it is written: 0.1 is a tenth, not the float next to it.
        return self.accelerator.memory_bytes * (1 - Fraction(str(self.reserve)))

    def step(self, arch: Architecture, whole_users: int) -> Step | None:
        """The bound on a decode step of the users that fit, of those asked for at most."""
        batch = whole_users if self.users is None else min(self.users, whole_users)
        if not batch:
            return None
        return decode_step(
            arch,
            self.accelerator,
            batch=batch,
            context=self.context,
            num_gpus=self.num_gpus,
            weight_dtype=self.weight_dtype,
            cache_dtype=self.cache_dtype,
        )

    def fit(self, name: str, arch: Architecture, cost: str = "", *, scales: bool = False) -> Fit:
        """What fits under this question; ``scales`` adds those of a 4-bit cache."""
        group = {"group_size": _GROUP, "scale_bytes": _SCALE_BYTES} if scales else {}
        weights = weight_bytes(arch, self.weight_dtype)
        each = kv_bytes(arch, self.context, self.cache_dtype, **group)
        if not each:
            raise ValueError(f"{arch.name} keeps nothing of a sequence: users take no memory")
        room = self.usable() - weights
        pool = max(0, room)
        needed = None
        if self.users is not None:
            needed = math.ceil(Fraction(weights + self.users * each) / self._usable_each())
        enough = self.users is not None and room >= self.users * each
        return Fit(
            name=name,
            num_gpus=self.num_gpus,
            context=self.context,
            weight_bytes=weights,
            pool_bytes=pool,
            bytes_per_user=each,
            users=pool / each,
            gpus_needed=needed,
            limit="weights" if room < 0 else "none" if enough else "cache",
            cost=cost,
        )


def _levers(arch: Architecture, asked: _Question, fit: Fit) -> Iterator[Fit]:
    """What would change the answer, one thing at a time; what cannot help is left out."""
    weights, cache = (bytes_per_element(d) for d in (asked.weight_dtype, asked.cache_dtype))
    eight = replace(asked, cache_dtype="fp8")
    if cache > 1:
        yield eight.fit("8-bit cache", arch, "range and rounding of keys and values")
    if cache > 0.5:
        four = replace(asked, cache_dtype="int4")
        cost = f"rounding; a scale and a zero point per {_GROUP} are counted"
        yield four.fit("4-bit cache", arch, cost, scales=True)
    if weights > 1:
        cost = "rounding of the weights"
        yield replace(asked, weight_dtype="fp8").fit("8-bit weights", arch, cost)
        if cache > 1:
            both = replace(eight, weight_dtype="fp8")
            yield both.fit("8-bit weights and cache", arch, "rounding of both")
    full = any(layer.kind == "full" for layer in arch.layers)
    if full and asked.context > _WINDOW:
        name = f"window of {_WINDOW:,} in {_WINDOW_PERIOD - 1} of {_WINDOW_PERIOD} layers"
        yield asked.fit(name, _windowed(arch), "another model: far tokens in few layers")
    if full:
        name = f"latent of {_LATENT_WIDTH} + {_ROPE_WIDTH}"
        latent = asked.fit(name, _latent(arch), "another model: latent attention throughout")
        if latent.bytes_per_user < fit.bytes_per_user:
            yield latent
            if cache > 1:
                yield eight.fit(f"{name}, 8-bit", _latent(arch), "another model, and rounding")
    more = 2 * asked.num_gpus if fit.gpus_needed is None else fit.gpus_needed
    if more > asked.num_gpus:
        yield replace(asked, num_gpus=more).fit(f"{more} GPUs", arch, "money, and traffic between")
    if asked.users is not None and fit.limit == "cache":
        shorter = max_tokens(arch, fit.pool_bytes, asked.cache_dtype, asked.users)
        if shorter:
            name = f"at most {shorter:,} tokens each"
            yield replace(asked, context=shorter).fit(name, arch, "a smaller promise")


def _windowed(arch: Architecture) -> Architecture:
    """The same with a sliding window in five of six of the layers that attend to everything."""

    def change(layer: Layer, index: int) -> Layer:
        if index % _WINDOW_PERIOD == _WINDOW_PERIOD - 1:
            return layer
        return replace(layer, kind="sliding", window=_WINDOW)

    return _changed(arch, change)


def _latent(arch: Architecture) -> Architecture:
    """The same with a latent in place of keys and values; its weights are taken as unchanged."""

    def change(layer: Layer, index: int) -> Layer:
        sizes = {"latent_width": _LATENT_WIDTH, "rope_width": _ROPE_WIDTH}
        return replace(layer, kind="latent", num_kv_heads=1, **sizes)

    return _changed(arch, change)


def _changed(arch: Architecture, change: Callable[[Layer, int], Layer]) -> Architecture:
    """The architecture with every full-attention layer changed; each is told its number."""
    layers, index = [], 0
    for layer in arch.layers:
        full = layer.kind == "full"
        layers.append(change(layer, index) if full else layer)
        index += full
    first = next(layer for layer in layers if layer.kind in ATTENTION_KINDS)
    detail = Detail(
        layers=tuple(layers),
        embedding_parameters=arch.embedding_parameters,
        head_parameters=arch.head_parameters,
        other_parameters=arch.other_parameters,
        unsupported="it is a variant for sizing only",
    )
    heads = (first.num_query_heads, first.num_kv_heads, first.head_dim)
    named = dict(zip(("num_query_heads", "num_kv_heads", "head_dim"), heads, strict=True))
    return replace(arch, detail=detail, **named)
