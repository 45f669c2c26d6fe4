"""What every benchmark here shares: samples taken in turn, machine facts, tables."""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from refimpl import machine

# A round is quiet when everything else on the machine used less than this share of the cores.
QUIET = 0.05


@dataclasses.dataclass(frozen=True)
class Round:
    """One sample of every run, a figure taken after them, and what others used of the cores."""

    samples: Mapping[str, float]
    after: float
    others: float


class Neighbours:
    """What share of the machine's cores everything but this process uses, between two looks."""

    def __init__(self) -> None:
        self._before = self._look()

    def share(self) -> float:
        """0 to 1 since the last call, or since the start; 0 where the system does not tell."""
        before, self._before = self._before, self._look()
        busy, total, own = (now - then for now, then in zip(self._before, before, strict=True))
        return min(max((busy - own) / total, 0.0), 1.0) if total > 0 else 0.0

    @staticmethod
    def _look() -> tuple[float, float, float]:
        """Busy and all seconds of the cores, and those of this process."""
        listing = Path("/proc/stat")
        if not listing.is_file():
            return 0.0, 0.0, time.process_time()
        ticks = [int(word) for word in listing.read_text("ascii").split("\n", 1)[0].split()[1:9]]
        seconds = [value / os.sysconf("SC_CLK_TCK") for value in ticks]
        idle = seconds[3] + seconds[4]  # idle, and idle while a disk works
        return sum(seconds) - idle, sum(seconds), time.process_time()


def alternate(
    runs: Mapping[str, Callable[[], float]],
    repeats: int,
    *,
    after_round: Callable[[], float],
    patience: float = 0.0,
    neighbours: Callable[[], Callable[[], float]] = lambda: Neighbours().share,
) -> list[Round]:
    """``repeats`` rounds of one sample each, taken in turn and starting one further every round.

    A neighbour who takes the processor for ten seconds then slows all of them, not one of them,
    and no run is always the first after the pause. With ``patience``, rounds go on for up to that
    many seconds, each waiting for a quiet moment, until ``repeats`` of them were quiet; kept are
    those in which others used the least, a choice that does not look at our own times.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    names, rounds, deadline = list(runs), [], time.monotonic() + patience
    others = neighbours()
    while True:
        while time.monotonic() < deadline and others() > QUIET:
            time.sleep(1)
        others()
        first = len(rounds) % len(names)
        samples = {name: runs[name]() for name in names[first:] + names[:first]}
        rounds.append(Round(samples, after_round(), others()))
        quiet = sum(done.others <= QUIET for done in rounds)
        if len(rounds) >= repeats and (quiet >= repeats or time.monotonic() >= deadline):
            return sorted(rounds, key=lambda done: done.others)[:repeats]


def timed(
    work: Callable[[], object], calls: int = 1, wait: Callable[[], None] = lambda: None
) -> Callable[[], float]:
    """A run of some calls in a row, between two waits for the device: the seconds of one call."""

    def run() -> float:
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        return (time.perf_counter() - start) / calls

    return run


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times faster ours is: the median over rounds of theirs / ours."""
    return statistics.median(t / o for o, t in zip(ours, theirs, strict=True))


def spread(samples: Sequence[float]) -> float:
    """Half the distance between the quartiles, as a share of the median: how noisy the run was."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle


def machine_facts() -> dict[str, str]:
    """What a reader needs to judge the numbers: processor, cores, threads, versions, date."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {
        "processor": machine.processor_name(),
        "cores": str(machine.num_cores()),
        "threads": str(torch.get_num_threads()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **versions,
        "date": datetime.date.today().isoformat(),
    }


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns: the first two to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ("-" * (w - 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True))
    return "\n".join((line(headers), f"| {' | '.join(rule)} |", *map(line, rows)))


def write(path: Path, title: str, table: str, data: Mapping[str, object]) -> None:
    """Keep a run: ``.md`` for the table with the machine's facts, ``.json`` for every sample."""
    facts = machine_facts()
    if path.suffix == ".json":
        text = json.dumps({"title": title, "machine": facts, **data}, indent=1)
    elif path.suffix == ".md":
        card = "\n".join(f"- {key}: {value}" for key, value in facts.items())
        text = f"# {title}\n\n{card}\n\n{table}"
    else:
        raise ValueError(f"cannot write {path.name!r}: the name must end in .md or .json")
    path.write_text(text + "\n", encoding="utf-8")


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").strip().isdigit()


class Options(argparse.ArgumentParser):
    """A benchmark's options: those that all have, and what each adds to them."""

    def __init__(self, doc: str, *, quick: str, per: str) -> None:
        super().__init__(description=doc.splitlines()[0])
        self.add_argument("--quick", action="store_true", help=quick)
        self.add_argument(
            "--patience",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help=f"on a shared machine: how long to wait for undisturbed rounds, per {per}",
        )
        self.add_argument("--write", type=Path, metavar="FILE", help="keep the run: .md or .json")

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The options given; exits with a message where the run could not be written."""
        options = self.parse_args(argv)
        if options.write and options.write.suffix not in (".md", ".json"):
            self.error(f"--write {options.write.name!r}: the name must end in .md or .json")
        if options.write and not options.write.parent.is_dir():
            self.error(f"--write {str(options.write)!r}: there is no such folder")
        if not 0 <= options.patience < math.inf:
            self.error(f"--patience must be a finite number of seconds, got {options.patience}")
        return options
