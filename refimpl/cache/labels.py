"""What each slot of a pool holds: bookkeeping without tensors, for :mod:`refimpl.cache.slots`."""

from collections.abc import Sequence
from dataclasses import dataclass

from refimpl.architecture.checks import count
from refimpl.cache.protocol import integers


@dataclass
class Label:
    """Whose token a slot holds, at which position, and what its keys still have to turn by."""

    sequence: int
    position: int
    delta: int = 0
    num_layers: int = 0  # layers written so far: fewer than all in the middle of a step


Held = list[tuple[int, Label]]  # slots that are not free: index and label


class SlotLabels:
    """One label, or ``None`` for a free slot, for each slot of a pool."""

    def __init__(self, num_slots: int, num_sequences: int, num_layers: int) -> None:
        count("num_slots", num_slots)
        count("num_sequences", num_sequences)
        self.num_sequences, self.num_layers = num_sequences, num_layers
        self.labels: list[Label | None] = [None] * num_slots

    def select(self, sequence: int | None = None, start: int = 0, stop: int | None = None) -> Held:
        """What is held in a range of positions, by one sequence or (``None``) by any."""
        if sequence is not None:
            self._check_sequence(sequence)
        first, last = integers("start and stop", [start, start if stop is None else stop])
        if not 0 <= first <= last:
            raise ValueError(f"a range needs 0 <= start <= stop, got start {start}, stop {stop}")
        return [
            (index, label)
            for index, label in enumerate(self.labels)
            if label is not None
            and sequence in (None, label.sequence)
            and first <= label.position
            and (stop is None or label.position < last)
        ]

    def of(self, sequence: int) -> Held:
        """What one sequence holds, in the order of positions."""
        self._check_sequence(sequence)
        return sorted(self.select(sequence), key=lambda held: held[1].position)

    def check_new(self, layer: int, sequence: int, positions: Sequence[int]) -> None:
        """Raise unless this is the next layer to write of all these positions."""
        if len(set(positions)) < len(positions) or min(positions, default=0) < 0:
            raise ValueError(f"positions_T must differ and not be negative, got {positions}")
        held = {label.position: label.num_layers for _, label in self.of(sequence)}
        for position in positions:
            if held.get(position, 0) != layer:
                raise ValueError(
                    f"layer {layer} of position {position} cannot be written now: sequence "
                    f"{sequence} holds {held.get(position, 0)} layers of it, and they come in order"
                )
        free = self.labels.count(None)
        if layer == 0 and len(positions) > free:
            raise ValueError(f"{len(positions)} tokens need a slot each, and {free} are free")

    def write(self, layer: int, sequence: int, positions: Sequence[int]) -> list[int]:
        """The slots that one more layer of these positions goes to; layer 0 takes free ones."""
        if layer == 0:
            free = [index for index, label in enumerate(self.labels) if label is None]
            for index, position in zip(free, positions, strict=False):
                self.labels[index] = Label(sequence, position)
        held = {label.position: (index, label) for index, label in self.of(sequence)}
        for position in positions:
            held[position][1].num_layers = layer + 1
        return [held[position][0] for position in positions]

    def shift(self, moving: Held, delta: int) -> None:
        """Move all of ``moving`` at once; raises, and moves none, if one cannot go there."""
        leaving = {index for index, _ in moving}
        staying = {
            (label.sequence, label.position)
            for index, label in self.select()
            if index not in leaving
        }
        for _, label in moving:
            position, problem = label.position + delta, None
            if position < 0:
                problem = "positions start at 0"
            elif (label.sequence, position) in staying:
                problem = f"sequence {label.sequence} already holds that position"
            elif label.num_layers < self.num_layers:
                problem = f"only {label.num_layers} of {self.num_layers} layers are written"
            if problem:
                raise ValueError(
                    f"shifting {label.position} by {delta} gives {position}: {problem}"
                )
        for _, label in moving:
            label.position += delta
            label.delta += delta

    def check_invariants(self) -> None:
        """Assert that no position is held twice and that every label is one that can be."""
        held = [(label.sequence, label.position) for _, label in self.select()]
        assert len(set(held)) == len(held), f"a position is held twice: {held}"
        for label in self.labels:
            if label is not None:
                assert 0 <= label.sequence < self.num_sequences, label
                assert label.position >= 0, label
                assert 0 < label.num_layers <= self.num_layers, label
                assert label.delta == 0 or label.num_layers == self.num_layers, label

    def _check_sequence(self, sequence: int) -> None:
        (number,) = integers("sequence", [sequence])
        if not 0 <= number < self.num_sequences:
            raise ValueError(
                f"sequence {sequence} is outside 0 to {self.num_sequences - 1}; "
                "None means every sequence, where an operation allows it"
            )
