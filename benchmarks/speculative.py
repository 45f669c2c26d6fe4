"""Speculative decoding of one sequence: every drafter beside plain cached decoding of one target.

    python benchmarks/speculative.py            about twenty minutes
    python benchmarks/speculative.py --quick    about five, noisier

On each kind of text all runs take turns in one process. The clock runs from the first round's end
to the last: prompts are in the caches by then. Tokens are chosen greedily. The prediction comes
from times measured in the same run: a pass of the target over γ + 1 tokens and over one, a draft
step, and the share of examined drafts that was accepted.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when run as a file

from benchmarks import _common
from refimpl import weights
from refimpl.cache import ContiguousCache
from refimpl.decode import generate
from refimpl.drafters import Drafter, ModelDrafter, PromptLookup, quantised_self, skipped_layers
from refimpl.model import Decoder, fuse
from refimpl.speculative import Speculation, generate_speculative, speedup
from refimpl.weights import Tokenizer

PLAIN = "plain, cached"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PASSAGE = Path(__file__).resolve().parents[1] / "labkit" / "data" / "passage.txt"
SKIPPED = range(12, 16)


@dataclasses.dataclass(frozen=True)
class Row:
    """One drafter on one kind of text. Seconds are medians over the rounds.

    ``acceptance`` is accepted over examined drafts, ``tokens_per_round`` what a pass of the target
    gave; both are None where there are none. ``cost_ratio`` is a draft step over a target step,
    ``verify_cost`` T(γ + 1) / T(1). ``same`` counts leading ids equal to those of plain decoding.
    """

    dtype: str
    text: str
    drafter: str
    gamma: int
    seconds_per_token: float
    times_plain: float
    spread: float
    acceptance: float | None
    tokens_per_round: float | None
    cost_ratio: float
    verify_cost: float
    predicted: float
    same: int
    new: int
    others: float
    samples: tuple[float, ...]


def prompts(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Three kinds of text: an instruction to answer, a text to repeat, prose to go on with."""
    paragraphs = PASSAGE.read_text(encoding="utf-8").split("\n\n")
    question = "Explain in a few sentences why the sea rises and falls twice a day."
    chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    copied = paragraphs[0]
    return {
        "chat": tokenizer.encode(chat),
        "copying": tokenizer.encode(f"{copied}\n\n{copied[: len(copied) // 4]}"),
        "prose": tokenizer.encode(paragraphs[1]),
    }


class Clock:
    """Seconds a token from the end of the first round on; a round is one pass of the target."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, row: int, token: int) -> None:
        self.times.append(time.perf_counter())

    def seconds_per_token(self, first: int) -> float:
        """Tokens ``first`` and on, by the time from the last one before them."""
        return (self.times[-1] - self.times[first - 1]) / (len(self.times) - first)


def plain_run(model: Decoder, prompt: list[int], new: int) -> tuple[Callable[[], float], list[int]]:
    """A function that decodes and gives seconds a token, and the list its ids go to."""
    ids: list[int] = []

    def run() -> float:
        clock = Clock()
        ids[:] = generate(model, prompt, max_new_tokens=new, on_token=clock)
        return clock.seconds_per_token(1)

    return run, ids


def speculative_run(
    model: Decoder, drafter: Drafter, prompt: list[int], new: int, gamma: int
) -> tuple[Callable[[], float], list[Speculation]]:
    """The same with a drafter; the last result is kept in the list."""
    kept: list[Speculation] = []

    def run() -> float:
        clock = Clock()
        kept[:] = [
            generate_speculative(
                model, drafter, prompt, max_new_tokens=new, gamma=gamma, on_token=clock
            )
        ]
        return clock.seconds_per_token(kept[0].rounds[0][0].emitted)

    return run, kept


def pass_run(model: Decoder, prompt: list[int], num_tokens: int) -> Callable[[], float]:
    """Seconds of a pass over ``num_tokens`` tokens behind the prompt: the median of three."""
    cache = ContiguousCache(model.arch, max_tokens=len(prompt) + num_tokens, dtype=model.dtype)
    tokens_BT = torch.tensor([[*prompt, *prompt][:num_tokens]])
    with torch.no_grad():
        model(torch.tensor([prompt]), cache=cache)

    def run() -> float:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            with torch.no_grad():
                model(tokens_BT, cache=cache)
            taken.append(time.perf_counter() - start)
            cache.truncate([len(prompt)])
        return statistics.median(taken)

    return run


def measure(
    model: Decoder,
    drafters: Mapping[str, Drafter],
    dtype: str,
    text: str,
    prompt: list[int],
    *,
    new: int,
    gamma: int,
    repeats: int,
    patience: float = 0.0,
) -> list[Row]:
    """One row for plain decoding and one a drafter, all measured in turn."""
    runs, kept = {}, {}
    runs[PLAIN], plain_ids = plain_run(model, prompt, new)
    for name, drafter in drafters.items():
        runs[name], kept[name] = speculative_run(model, drafter, prompt, new, gamma)
    passes = {"T(1)": pass_run(model, prompt, 1), "T(γ + 1)": pass_run(model, prompt, gamma + 1)}
    for name, drafter in drafters.items():
        if isinstance(drafter, ModelDrafter):
            passes[f"draft {name}"] = pass_run(drafter.model, prompt, 1)
    every = runs | passes
    for run in every.values():
        run()  # the first run allocates and picks kernels
    rounds = _common.alternate(every, repeats, after_round=lambda: 0.0, patience=patience)
    samples = {name: [done.samples[name] for done in rounds] for name in every}
    verify_cost = 1 / _common.ratio(samples["T(γ + 1)"], samples["T(1)"])
    others = max(done.others for done in rounds)
    rows = []
    for name in runs:
        done = kept[name][0] if name in kept else None
        draft = samples.get(f"draft {name}")
        cost = 1 / _common.ratio(draft, samples["T(1)"]) if draft else 0.0
        drafted = done is not None and done.proposed > 0
        ids = done.tokens if done else plain_ids
        rows.append(
            Row(
                dtype=dtype,
                text=text,
                drafter=name,
                gamma=gamma if done else 0,
                seconds_per_token=statistics.median(samples[name]),
                times_plain=_common.ratio(samples[name], samples[PLAIN]),
                spread=_common.spread(samples[name]),
                acceptance=done.acceptance if drafted else None,
                tokens_per_round=done.tokens_per_round if done else None,
                cost_ratio=cost,
                verify_cost=verify_cost,
                predicted=predict(done, gamma, cost, verify_cost) if done else 1.0,
                same=_common_length(ids, plain_ids),
                new=new,
                others=others,
                samples=tuple(samples[name]),
            )
        )
    return rows


def predict(done: Speculation, gamma: int, cost_ratio: float, verify_cost: float) -> float:
    """The speed-up that the closed form gives for the acceptance seen.

    A round without a draft, as prompt lookup has many, is a plain step: rounds are weighed by what
    they give and what they cost.
    """
    drafted = [one for one in done.rounds[0] if one.proposed]
    if not drafted:
        return 1.0
    plain = len(done.rounds[0]) - len(drafted)
    block = gamma * cost_ratio + verify_cost
    tokens = speedup(done.acceptance, gamma, cost_ratio, verify_cost) * block
    return (len(drafted) * tokens + plain) / (len(drafted) * block + plain)


def table(rows: Sequence[Row]) -> str:
    """The rows for reading."""
    headers = ("dtype", "text", "drafter", "ms/token", "± %", "× plain", "predicted", "accepted")
    headers += ("tokens/pass", "c", "T(γ+1)/T(1)", "same ids")
    return _common.text_table(
        headers,
        [
            (
                row.dtype,
                row.text,
                row.drafter,
                f"{row.seconds_per_token * 1e3:.1f}",
                f"{row.spread:.0%}",
                f"{row.times_plain:.2f}",
                f"{row.predicted:.2f}",
                "-" if row.acceptance is None else f"{row.acceptance:.2f}",
                "1.00" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
                f"{row.cost_ratio:.2f}",
                f"{row.verify_cost:.2f}",
                f"{row.same} of {row.new}",
            )
            for row in rows
        ],
    )


def make_drafters(model: Decoder) -> dict[str, Drafter]:
    """Every drafter that needs no other model, the losers included."""
    return {
        "int4 self": quantised_self(model, 4),
        "int8 self": quantised_self(model, 8),
        "prompt lookup": PromptLookup(),
        "without layers 12-15": skipped_layers(model, SKIPPED),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = _common.Options(__doc__, quick="fewer rounds and tokens", per="kind of text")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=["bf16"])
    parser.add_argument("--gamma", type=int, default=4, metavar="N", help="drafts in a block")
    options = parser.read(argv)
    new, repeats = (48, 3) if options.quick else (96, 7)
    if options.gamma < 1:
        parser.error(f"--gamma {options.gamma}: give at least one draft")

    rows: list[Row] = []
    for dtype in options.dtype:
        plain, tokenizer = weights.load(weights.MODEL_NAME, dtype=DTYPES[dtype])
        model = fuse(plain)
        drafters = make_drafters(model)
        for text, prompt in prompts(tokenizer).items():
            print(f"{dtype}, {text}, {len(prompt)} tokens: measuring", file=sys.stderr, flush=True)
            rows += measure(
                model,
                drafters,
                dtype,
                text,
                prompt,
                new=new,
                gamma=options.gamma,
                repeats=repeats,
                patience=options.patience,
            )
    title = (
        f"Speculation, batch 1, γ = {options.gamma}, {weights.MODEL_NAME}: {repeats} rounds of "
        f"{new} tokens"
    )
    others = max(row.others for row in rows)
    notes = f"other processes used up to {others:.0%} of the cores"
    if others > _common.QUIET:
        notes += ": repeat with --patience 300"
    facts = ", ".join(f"{key} {value}" for key, value in _common.machine_facts().items())
    print(f"{title}\n{facts}\n{notes}\n\n{table(rows)}")
    if options.write:
        data = {"rows": [dataclasses.asdict(row) for row in rows]}
        _common.write(options.write, title, f"{notes}\n\n{table(rows)}", data)
    return 0


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Leading ids that are equal."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


if __name__ == "__main__":
    sys.exit(main())
