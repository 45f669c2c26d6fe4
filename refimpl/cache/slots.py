"""A pool of slots that several sequences share: a position is a label, and keys carry it too."""

import torch
from torch import Tensor

from refimpl.architecture import Architecture
from refimpl.cache.labels import SlotLabels
from refimpl.cache.protocol import Lengths, check_uniform, integers
from refimpl.rope import rotate_by


class SlotCache:
    """Slots in any order; each is free or holds one token of one sequence, at one position.

    Keys are stored rotated, so moving a token to another position takes two things: its label
    changes at once in :meth:`shift`, its keys turn by the sum of all shifts in
    :meth:`apply_shifts`, which works because ``R(p + delta) = R(delta) R(p)``. Turning once for
    many shifts also rounds once. Free slots hold NaN.

    Sequences are numbered ``0`` to ``num_sequences - 1``; where an operation takes ``None``, it
    means every sequence. Ranges of positions are half-open, and ``stop=None`` means to the end.
    An operation that raises has changed nothing.
    """

    def __init__(
        self,
        arch: Architecture,
        *,
        num_slots: int,
        num_sequences: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not dtype.is_floating_point:
            raise NotImplementedError(
                f"keys stored as {dtype} are codes, which cannot be rotated: a shift would have "
                "to dequantise, rotate and quantise again; this cache stores floating point"
            )
        check_uniform(arch)
        self.arch, self.dtype = arch, dtype
        self._table = SlotLabels(num_slots, num_sequences, arch.num_layers)
        shape = (arch.num_layers, arch.num_kv_heads, num_slots, arch.head_dim)
        self._k_LGPD = torch.full(shape, torch.nan, dtype=dtype)
        self._v_LGPD = torch.full(shape, torch.nan, dtype=dtype)

    @property
    def num_slots(self) -> int:
        """Slots in the pool, free ones included."""
        return len(self._table.labels)

    @property
    def num_sequences(self) -> int:
        """Sequences that may share the pool."""
        return self._table.num_sequences

    @property
    def num_tokens(self) -> Tensor:
        """Tokens that all layers hold, long ``[num_sequences]``."""
        held = [held for _, held in self._table.select() if held.num_layers == self.arch.num_layers]
        owners = [label.sequence for label in held]
        return torch.tensor([owners.count(sequence) for sequence in range(self.num_sequences)])

    @property
    def num_bytes(self) -> int:
        """Bytes that keys and values occupy, free slots included."""
        return self._k_LGPD.nbytes + self._v_LGPD.nbytes

    def positions(self, sequence: int) -> list[int]:
        """The positions a sequence holds, ascending, after every shift so far."""
        return [label.position for _, label in self._table.of(sequence)]

    def slots(self) -> list[tuple[int, int] | None]:
        """What each slot holds, as ``(sequence, position)``; ``None`` for a free one."""
        return [label and (label.sequence, label.position) for label in self._table.labels]

    def append(
        self, layer: int, sequence: int, positions_T: Lengths, k_GTD: Tensor, v_GTD: Tensor
    ) -> None:
        """Store one layer of new tokens, keys already rotated to ``positions_T``.

        A step gives the same positions to layer 0, which takes the first free slots, then to
        every other layer in turn. Raises for a position the sequence already holds, for too few
        free slots, and for keys or values of the wrong shape or dtype.
        """
        self._check_layer(layer)
        positions = integers("positions_T", positions_T)
        shape = (self.arch.num_kv_heads, len(positions), self.arch.head_dim)
        for name, x in (("k_GTD", k_GTD), ("v_GTD", v_GTD)):
            if x.shape != shape or x.dtype != self.dtype:
                raise ValueError(
                    f"{name} must be {shape} in {self.dtype}, got {tuple(x.shape)} in {x.dtype}"
                )
        self._table.check_new(layer, sequence, positions)
        indices = self._table.write(layer, sequence, positions)
        self._k_LGPD[layer][:, indices] = k_GTD
        self._v_LGPD[layer][:, indices] = v_GTD

    def read(self, layer: int, sequence: int) -> tuple[Tensor, Tensor]:
        """Copies ``[G, S, D]`` of a sequence's keys and values, in the order of positions.

        Raises while a shift is pending: the stored keys are not yet where their labels are.
        """
        self._check_layer(layer)
        held = [(i, label) for i, label in self._table.of(sequence) if label.num_layers > layer]
        waiting = [label.position for _, label in held if label.delta]
        if waiting:
            raise ValueError(
                f"sequence {sequence} has shifted keys at positions {waiting} that are not "
                "rotated yet: call apply_shifts() before read()"
            )
        indices = [index for index, _ in held]
        return self._k_LGPD[layer][:, indices], self._v_LGPD[layer][:, indices]

    def remove(self, sequence: int | None = None, start: int = 0, stop: int | None = None) -> None:
        """Free the slots of positions ``start`` to ``stop``; positions behind them stay as is."""
        for index, _ in self._table.select(sequence, start, stop):
            self._table.labels[index] = None
            self._k_LGPD[:, :, index] = torch.nan
            self._v_LGPD[:, :, index] = torch.nan

    def shift(self, sequence: int | None, start: int, stop: int | None, delta: int) -> None:
        """Move positions ``start`` to ``stop`` by ``delta``; keys follow in :meth:`apply_shifts`.

        All of them move at once, so the order of slots does not matter, and a position may be
        left and taken in one shift. Raises if a position would be negative or held twice.
        """
        (delta,) = integers("delta", [delta])
        self._table.shift(self._table.select(sequence, start, stop), delta)

    def apply_shifts(self) -> None:
        """Rotate the keys of every shifted token by the sum of its shifts, once, in all layers."""
        shifted = [(index, label) for index, label in self._table.select() if label.delta]
        if not shifted:
            return
        indices = [index for index, _ in shifted]
        deltas_T = torch.tensor([label.delta for _, label in shifted])
        self._k_LGPD[:, :, indices] = rotate_by(
            self._k_LGPD[:, :, indices], deltas_T, self.arch.rope_theta, self.arch.rope_scaling
        )
        for _, label in shifted:
            label.delta = 0

    def compact(self) -> int:
        """Slide the used slots together at the front, in their order; how many slots moved."""
        used = self._table.select()
        indices = [index for index, _ in used]
        for pool in (self._k_LGPD, self._v_LGPD):
            pool[:, :, : len(used)] = pool[:, :, indices]
            pool[:, :, len(used) :] = torch.nan
        free = [None] * (self.num_slots - len(used))
        self._table.labels = [*(label for _, label in used), *free]
        return sum(new != old for new, old in enumerate(indices))

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls, provided that no NaN was stored."""
        self._table.check_invariants()
        for index, label in enumerate(self._table.labels):
            written = label.num_layers if label else 0
            for pool in (self._k_LGPD, self._v_LGPD):
                empty = pool[:, :, index].isnan()
                assert not empty[:written].any(), f"slot {index} lost its data: {label}"
                assert empty[written:].all(), f"slot {index} holds data it should not: {label}"

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.arch.num_layers:
            raise ValueError(f"layer {layer} is outside 0 to {self.arch.num_layers - 1}")
