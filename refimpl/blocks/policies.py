"""Three ways of reserving memory for requests: at most, rounded up, and block by block."""

from dataclasses import dataclass
from typing import Protocol

from refimpl.architecture.checks import count
from refimpl.blocks.allocator import BlockAllocator
from refimpl.blocks.buddy import BuddyAllocator, rounded_up
from refimpl.blocks.table import BlockTable


@dataclass(frozen=True)
class Request:
    """A request that arrives at a step: its prompt, and the tokens it will turn out to need."""

    arrival: int
    num_prompt: int
    num_output: int

    def __post_init__(self) -> None:
        count("arrival", self.arrival, least=0)
        count("num_prompt", self.num_prompt)
        count("num_output", self.num_output)

    @property
    def num_tokens(self) -> int:
        """Slots it fills in the end. Its last token is given out, never fed back: it needs none."""
        return self.num_prompt + self.num_output - 1


@dataclass(eq=False)
class Job:
    """A request on its way: the tokens it has stored, and the memory it holds."""

    request: Request
    num_stored: int = 0
    start: int = 0  # of its range, where memory is contiguous
    table: BlockTable | None = None

    @property
    def num_next(self) -> int:
        """Tokens it will have stored after its next step: at first, its prompt."""
        return self.num_stored + 1 if self.num_stored else self.request.num_prompt


class Policy(Protocol):
    """A way of reserving memory for jobs, in a pool of ``num_slots`` slots."""

    name: str
    num_slots: int

    def needed(self, job: Job, num_tokens: int) -> int:
        """Slots that have to be reserved for the job to store ``num_tokens``."""

    def can_admit(self, job: Job, num_tokens: int) -> bool:
        """Whether those slots can be had now, in the form this policy needs them."""

    def admit(self, job: Job, num_tokens: int) -> None:
        """Reserve them."""

    def grow(self, job: Job) -> bool:
        """Make room for one more token, or say that there is none."""

    def release(self, job: Job) -> None:
        """Take everything back."""


class ContiguousMax:
    """One range of ``max_tokens`` slots for every request, whatever it will need."""

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        self.name = f"contiguous, {max_tokens:,} each"
        self.num_slots, self.max_tokens = count("num_slots", num_slots), max_tokens
        self._free = list(range(num_slots // count("max_tokens", max_tokens)))

    def needed(self, job: Job, num_tokens: int) -> int:
        if job.request.num_tokens > self.max_tokens:
            raise ValueError(
                f"{job.request} takes {job.request.num_tokens} slots, max_tokens is "
                f"{self.max_tokens}"
            )
        return self.max_tokens

    def can_admit(self, job: Job, num_tokens: int) -> bool:
        return bool(self._free)

    def admit(self, job: Job, num_tokens: int) -> None:
        job.start = self._free.pop() * self.max_tokens

    def grow(self, job: Job) -> bool:
        return True

    def release(self, job: Job) -> None:
        self._free.append(job.start // self.max_tokens)


class ContiguousPowerOfTwo:
    """A range of the next power of two, from a buddy allocator; final lengths known in advance."""

    def __init__(self, num_slots: int) -> None:
        self.name = "contiguous, power of two"
        self.num_slots = num_slots
        self.allocator = BuddyAllocator(num_slots)

    def needed(self, job: Job, num_tokens: int) -> int:
        return rounded_up(job.request.num_tokens)

    def can_admit(self, job: Job, num_tokens: int) -> bool:
        return self.needed(job, num_tokens) <= self.allocator.largest_free

    def admit(self, job: Job, num_tokens: int) -> None:
        job.start = self.allocator.allocate(job.request.num_tokens)

    def grow(self, job: Job) -> bool:
        return True

    def release(self, job: Job) -> None:
        self.allocator.free(job.start)


class Paged:
    """Blocks of ``block_size`` slots, taken when a token needs one and not before."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.name = f"paged, blocks of {block_size}"
        if count("num_slots", num_slots) % count("block_size", block_size):
            raise ValueError(f"{num_slots} slots are no whole number of blocks of {block_size}")
        self.num_slots = num_slots
        self.allocator = BlockAllocator(num_slots // block_size, block_size)

    def needed(self, job: Job, num_tokens: int) -> int:
        return -(-num_tokens // self.allocator.block_size) * self.allocator.block_size

    def can_admit(self, job: Job, num_tokens: int) -> bool:
        return self.allocator.can_allocate(num_tokens)

    def admit(self, job: Job, num_tokens: int) -> None:
        job.table = self.allocator.allocate(num_tokens)

    def grow(self, job: Job) -> bool:
        if not self.allocator.can_append(job.table):
            return False
        self.allocator.append(job.table)
        return True

    def release(self, job: Job) -> None:
        self.allocator.free(job.table)
