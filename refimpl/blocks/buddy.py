"""A contiguous allocator whose ranges are powers of two: the buddy system.

Source: Knowlton, A fast storage allocator, CACM 8(10), 1965.
"""

from refimpl.architecture.checks import count


class OutOfRange(ValueError):
    """No free range is large enough, although the free slots together may be."""


class BuddyAllocator:
    """``num_slots`` slots, a power of two, given out as ranges of ``2^k`` at multiples of ``2^k``.

    A range too large is split in halves until it fits; when a range is freed and its other half
    is free as well, the two become one again. The address of the other half differs in one bit.
    """

    def __init__(self, num_slots: int) -> None:
        if count("num_slots", num_slots).bit_count() != 1:
            raise ValueError(f"num_slots must be a power of two, got {num_slots}")
        self.num_slots = num_slots
        self._free: dict[int, set[int]] = {num_slots: {0}}  # starts of free ranges by size
        self._used: dict[int, int] = {}  # size of each range given out, by its start

    @property
    def num_free(self) -> int:
        """Free slots, in however many ranges."""
        return self.num_slots - sum(self._used.values())

    @property
    def largest_free(self) -> int:
        """Slots of the largest free range; 0 where nothing is free."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    @property
    def ranges(self) -> dict[int, int]:
        """The ranges given out: their sizes by their starts."""
        return dict(self._used)

    def allocate(self, num_slots: int) -> int:
        """The start of a range of at least ``num_slots``, rounded up to a power of two."""
        size = rounded_up(num_slots)
        if size > self.largest_free:
            raise OutOfRange(
                f"no range of {size} slots is free: {self.num_free} are, the largest range has "
                f"{self.largest_free}"
            )
        found = min(free for free, starts in self._free.items() if starts and free >= size)
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:
            found //= 2
            self._free.setdefault(found, set()).add(start + found)
        self._used[start] = size
        return start

    def free(self, start: int) -> None:
        """Take a range back, and merge it with its other half as often as that is free."""
        if start not in self._used:
            raise ValueError(f"no range in use starts at {start}")
        size = self._used.pop(start)
        while size < self.num_slots and start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start, size = start & ~size, 2 * size
        self._free.setdefault(size, set()).add(start)

    def check_invariants(self) -> None:
        """Assert that free and used ranges tile all slots, and that no two halves are both free."""
        free = [(start, size) for size, starts in self._free.items() for start in starts]
        end = 0
        for start, size in sorted([*free, *self._used.items()]):
            assert start == end, f"slots {end} to {start} are in no range, or in two"
            assert start % size == 0 and size.bit_count() == 1, (start, size)
            end = start + size
        assert end == self.num_slots, f"ranges end at {end}"
        for start, size in free:
            assert size == self.num_slots or (start ^ size, size) not in free, (start, size)


def rounded_up(num_slots: int) -> int:
    """The smallest power of two that is at least ``num_slots``."""
    return 1 << (count("num_slots", num_slots) - 1).bit_length()
