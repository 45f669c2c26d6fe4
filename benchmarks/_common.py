"""What every benchmark here shares: samples taken in turn, machine facts, tables."""

import datetime
import importlib.metadata
import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from refimpl import machine


def alternate(
    runs: Mapping[str, Callable[[], float]],
    repeats: int,
    *,
    after_round: Callable[[int], None] = lambda index: None,
) -> dict[str, list[float]]:
    """``repeats`` samples of each run, taken in turn and starting one further every round.

    A neighbour who takes the processor for ten seconds then slows all of them, not one of them,
    and no run is always the first after the pause.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    names = list(runs)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for index in range(repeats):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(runs[name]())
        after_round(index)
    return samples


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
