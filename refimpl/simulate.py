"""Batches on a clock that counts decode steps: which slots work, and which wait."""

from collections.abc import Sequence
from dataclasses import dataclass

from refimpl.sizing.elements import check_count


@dataclass(frozen=True)
class StaticBatch:
    """A batch that starts together and is given back whole, when its longest request is done.

    ``lengths`` are the new tokens of each request. Slots and steps are counted, not seconds: how
    much a slot that waits costs depends on what the step is bound by.
    """

    lengths: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        """Decode steps until the last request is done."""
        return max(self.lengths)

    @property
    def utilisation(self) -> float:
        """Share of all slot-steps that make a token that somebody asked for."""
        return sum(self.lengths) / (len(self.lengths) * self.num_steps)

    def busy(self, step: int) -> int:
        """Requests that still run in ``step``, counted from 0."""
        check_count("step", step)
        return sum(length > step for length in self.lengths)

    def idle_share(self, start: int = 0, stop: int | None = None) -> float:
        """Share of the slots that wait in steps ``start`` to ``stop``; ``None`` is the end."""
        stop = self.num_steps if stop is None else stop
        check_count("start", start)
        check_count("stop", stop)
        if not start < stop <= self.num_steps:
            raise ValueError(
                f"steps {start} to {stop} are not a range of the {self.num_steps} there are"
            )
        busy = sum(min(length, stop) - min(length, start) for length in self.lengths)
        return 1 - busy / (len(self.lengths) * (stop - start))


def static_batch(lengths: Sequence[int]) -> StaticBatch:
    """The batch of requests that make ``lengths`` new tokens each, at least one."""
    lengths = tuple(lengths)
    if not lengths:
        raise ValueError("a batch needs at least one request, got none")
    for length in lengths:
        check_count("a request's length", length, least=1)
    return StaticBatch(lengths)
