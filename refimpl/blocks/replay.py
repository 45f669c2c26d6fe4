"""One trace of requests under a policy, step by step, and where the slots go."""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from refimpl.architecture.checks import count, positive
from refimpl.blocks.policies import Job, Policy, Request


@dataclass(frozen=True)
class Usage:
    """Where the slots of the pool are after one step; the five kinds add up to all of them.

    ``token`` slots hold a token. ``future`` ones are reserved and will hold one before the request
    ends, ``internal`` ones are reserved and never will. ``external`` slots are free and enough for
    the request that waits, but not in a form it can have; ``unused`` are the free ones otherwise.
    """

    token: int
    future: int
    internal: int
    external: int
    unused: int
    num_running: int
    num_waiting: int

    @property
    def reserved(self) -> int:
        return self.token + self.future + self.internal

    @property
    def total(self) -> int:
        return self.reserved + self.external + self.unused


@dataclass(frozen=True)
class Replay:
    """What became of a trace: the slots after every step, and what the requests went through."""

    policy: str
    steps: tuple[Usage, ...]
    num_preempted: int  # times a running request had to give up its blocks
    num_recomputed: int  # tokens that were stored a second time because of that

    @property
    def useful(self) -> float:
        """Share of the reserved slots that hold a token, over all steps."""
        return sum(s.token for s in self.steps) / sum(s.reserved for s in self.steps)

    @property
    def peak_running(self) -> int:
        return max(step.num_running for step in self.steps)

    def shares(self, *, under_pressure: bool = False) -> dict[str, float]:
        """Mean share of each kind of slot in the whole pool; they add up to 1.

        ``under_pressure`` takes only the steps in which a request waits: those in which better
        use of the memory would have let another one run. Raises if there are none.
        """
        steps = [step for step in self.steps if step.num_waiting or not under_pressure]
        if not steps:
            raise ValueError("no request ever had to wait: the pool is larger than the trace needs")
        total = sum(step.total for step in steps)
        kinds = ("token", "future", "internal", "external", "unused")
        return {kind: sum(getattr(step, kind) for step in steps) / total for kind in kinds}


def replay(policy: Policy, trace: Sequence[Request]) -> Replay:
    """Run a trace: first come, first served; every running request stores one token a step.

    A request is admitted as soon as the policy can reserve what it needs, and nobody overtakes.
    Its prompt is stored in that step. Where no block is left for a running request, the one
    admitted last goes back to the head of the queue, and later stores its tokens again.

    Raises ``ValueError`` for an empty trace and for a request that no empty pool could hold.
    """
    queue = deque(Job(request) for request in sorted(trace, key=lambda request: request.arrival))
    if not queue:
        raise ValueError("the trace is empty")
    for job in queue:
        if policy.needed(job, job.request.num_tokens) > policy.num_slots:
            raise ValueError(f"{job.request} can never fit in {policy.num_slots} slots")
    running: list[Job] = []
    steps: list[Usage] = []
    step = num_preempted = num_recomputed = 0
    while queue or running:
        if not running:
            step = max(step, queue[0].request.arrival)
        num_preempted += _store(policy, running, queue)
        num_recomputed += _admit(policy, running, queue, step)
        steps.append(_usage(policy, running, [j for j in queue if j.request.arrival <= step]))
        for job in [job for job in running if job.num_stored == job.request.num_tokens]:
            running.remove(job)
            policy.release(job)
        step += 1
    return Replay(policy.name, tuple(steps), num_preempted, num_recomputed)


def draw_trace(
    num_requests: int,
    *,
    mean_prompt: float,
    mean_output: float,
    max_tokens: int,
    per_step: float = 1.0,
    seed: int = 0,
) -> list[Request]:
    """Requests with lengths drawn from exponential distributions, the same for the same seed.

    Lengths are rounded up, and cut so that a request takes at most ``max_tokens`` slots; the mean
    of what is drawn is therefore not exactly the mean asked for. ``per_step`` requests arrive in
    each step, evenly.
    """
    count("num_requests", num_requests)
    count("max_tokens", max_tokens, least=2)
    for name, value in {"mean_prompt": mean_prompt, "mean_output": mean_output}.items():
        positive(name, value)
    positive("per_step", per_step)
    numbers = random.Random(seed)

    def length(mean: float, most: int) -> int:
        return min(max(1, math.ceil(-mean * math.log(1 - numbers.random()))), most)

    trace = []
    for index in range(num_requests):
        prompt = length(mean_prompt, max_tokens - 1)
        output = length(mean_output, max_tokens - prompt + 1)
        trace.append(Request(int(index / per_step), prompt, output))
    return trace


def _store(policy: Policy, running: list[Job], queue: deque[Job]) -> int:
    """Every running request stores a token, oldest first; how many newest ones made room."""
    before = len(running)
    for job in list(running):
        while job in running and not policy.grow(job):
            victim = running.pop()
            policy.release(victim)
            queue.appendleft(victim)
        if job in running:
            job.num_stored += 1
    return before - len(running)


def _admit(policy: Policy, running: list[Job], queue: deque[Job], step: int) -> int:
    """Those at the head of the queue come in as long as they fit; how many tokens again."""
    again = 0
    while queue and queue[0].request.arrival <= step:
        job = queue[0]
        if not policy.can_admit(job, job.num_next):
            break
        running.append(queue.popleft())
        again += job.num_stored
        job.num_stored = job.num_next
        policy.admit(job, job.num_stored)
    return again


def _usage(policy: Policy, running: Sequence[Job], waiting: Sequence[Job]) -> Usage:
    token = future = reserved = external = 0
    for job in running:
        slots = policy.needed(job, job.num_stored)
        token += job.num_stored
        future += min(slots, job.request.num_tokens) - job.num_stored
        reserved += slots
    free = policy.num_slots - reserved
    if waiting and policy.needed(waiting[0], waiting[0].num_next) <= free:
        external = free
    return Usage(
        token=token,
        future=future,
        internal=reserved - token - future,
        external=external,
        unused=free - external,
        num_running=len(running),
        num_waiting=len(waiting),
    )
