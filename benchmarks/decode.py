"""Decoding one sequence: this repository's decoder beside transformers, and beside the bound.

    python benchmarks/decode.py            about ten minutes
    python benchmarks/decode.py --quick    about one, noisier

For each dtype and context the variants take turns in one process. What is timed is the decode
step alone: the context is already in the cache, and each run generates the same number of tokens
from there. The bound is what a step has to read, weights and cache, at the bandwidth measured
between the rounds of the same run.
"""

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when run as a file

from benchmarks import _common
from refimpl import machine, weights
from refimpl.architecture import Architecture
from refimpl.cache import ContiguousCache
from refimpl.decode import generate
from refimpl.model import Decoder, fuse, pack
from refimpl.sizing import count_parameters, kv_bytes
from refimpl.weights.peer import as_transformers

PEER = "transformers generate"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Largest difference of a logit from the peer's. The weights are the same, so in fp32 only the
# order of additions differs; in bf16 every intermediate is rounded to 8 bits, 30 layers deep.
TOLERANCE = {"bf16": 2.0, "fp32": 1e-3}

Run = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant at one dtype and context. Seconds are medians over the rounds.

    ``others`` is the largest share of the cores that other processes used during a round.
    """

    dtype: str
    context: int
    variant: str
    seconds_per_token: float
    times_peer: float
    spread: float
    bytes_per_token: int
    bytes_per_second: float
    others: float
    samples: tuple[float, ...]

    @property
    def bound_seconds(self) -> float:
        """The time that reading alone takes."""
        return self.bytes_per_token / self.bytes_per_second

    @property
    def share_of_bound(self) -> float:
        """1 would be a step that does nothing but read, at full bandwidth."""
        return self.bound_seconds / self.seconds_per_token


def bytes_read(arch: Architecture, context: int, dtype: str) -> int:
    """Bytes that one decode step at batch 1 cannot avoid reading: weights once, cache once.

    The embedding table is not read, only one row of it; a tied output matrix is the same memory
    and is read whole.
    """
    parameters = count_parameters(arch)
    read = parameters.total - (0 if arch.tie_embeddings else parameters.embedding)
    return read * DTYPES[dtype].itemsize + kv_bytes(arch, context, dtype)


def check_equal(model: Decoder, peer: torch.nn.Module, dtype: str, num_tokens: int = 64) -> float:
    """The largest difference of a logit; ``ValueError`` if it says that the models differ."""
    tokens_BT = _prompt(model.arch, min(num_tokens, model.arch.max_context))[None]
    with torch.no_grad():
        theirs = peer(tokens_BT, use_cache=False).logits.float()
        worst = max(
            (ours(tokens_BT).float() - theirs).abs().max().item()
            for ours in (model, fuse(model), pack(fuse(model)))
        )
    if not worst <= TOLERANCE[dtype]:
        raise ValueError(
            f"logits differ from transformers' by {worst:.3g} in {dtype}, allowed are "
            f"{TOLERANCE[dtype]}: there is nothing to compare"
        )
    return worst


def own_run(model: Decoder, prompt_T: torch.Tensor, steps: int) -> Run:
    """A function that decodes ``steps`` tokens behind the prompt and gives seconds per step."""
    *context, last = prompt_T.tolist()
    cache = ContiguousCache(model.arch, max_tokens=len(prompt_T) + steps, dtype=model.dtype)
    if context:
        with torch.no_grad():
            model(torch.tensor([context]), cache=cache)

    def run() -> float:
        times = [time.perf_counter()]
        generate(
            model,
            [last],
            max_new_tokens=steps,
            cache=cache,
            on_token=lambda row, token: times.append(time.perf_counter()),
        )
        cache.truncate([len(context)])
        return _seconds_per_step(times)

    return run


def peer_run(peer: torch.nn.Module, prompt_T: torch.Tensor, steps: int) -> Run:
    """The same for transformers' ``generate`` with its default, growing cache."""
    from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):
        """Called once a token; never stops."""

        def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object):
            times.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    times: list[float] = []
    clock = StoppingCriteriaList([Clock()])
    cache = DynamicCache(config=peer.config)
    if len(prompt_T) > 1:
        with torch.no_grad():
            peer(prompt_T[None, :-1], cache=cache, use_cache=True)

    def run() -> float:
        times[:] = [time.perf_counter()]
        peer.generate(
            prompt_T[None],
            attention_mask=torch.ones_like(prompt_T)[None],
            cache=cache,
            max_new_tokens=steps,
            do_sample=False,
            stopping_criteria=clock,
        )
        cache.crop(-steps)
        return _seconds_per_step(times)

    return run


def measure(
    model: Decoder,
    peer: torch.nn.Module,
    dtype: str,
    context: int,
    *,
    steps: int,
    repeats: int,
    patience: float = 0.0,
    bandwidth: Callable[[], float] = lambda: machine.read_bandwidth(),
) -> list[Row]:
    """One row per variant, all measured in turn; the bandwidth is taken after every round."""
    prompt_T = _prompt(model.arch, context)
    runs = {
        PEER: peer_run(peer, prompt_T, steps),
        "refimpl, plain": own_run(model, prompt_T, steps),
        "refimpl, fused": own_run(fuse(model), prompt_T, steps),
        "refimpl, fused and packed": own_run(pack(fuse(model)), prompt_T, steps),
    }
    for run in runs.values():
        run()  # the first run allocates and picks kernels
    rounds = _common.alternate(runs, repeats, after_round=bandwidth, patience=patience)
    samples = {name: [done.samples[name] for done in rounds] for name in runs}
    # Halfway through the run the cache is half the new tokens longer than the context.
    read = bytes_read(model.arch, context + steps // 2, dtype)
    return [
        Row(
            dtype=dtype,
            context=context,
            variant=name,
            seconds_per_token=statistics.median(taken),
            times_peer=_common.ratio(taken, samples[PEER]),
            spread=_common.spread(taken),
            bytes_per_token=read,
            bytes_per_second=statistics.median(done.after for done in rounds),
            others=max(done.others for done in rounds),
            samples=tuple(taken),
        )
        for name, taken in samples.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows for reading."""
    headers = (
        "dtype",
        "variant",
        "context",
        "ms/token",
        "± %",
        "tokens/s",
        "× transformers",
        "MB read",
        "bound, ms",
        "share of bound",
    )
    return _common.text_table(
        headers,
        [
            (
                row.dtype,
                row.variant,
                f"{row.context:,}",
                f"{row.seconds_per_token * 1e3:.2f}",
                f"{row.spread:.0%}",
                f"{1 / row.seconds_per_token:.1f}",
                f"{row.times_peer:.2f}",
                f"{row.bytes_per_token / 1e6:.1f}",
                f"{row.bound_seconds * 1e3:.2f}",
                f"{row.share_of_bound:.0%}",
            )
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = _common.Options(__doc__, quick="fewer rounds and steps", per="dtype and context")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--context", type=int, nargs="+", default=[128, 2048], metavar="TOKENS")
    options = parser.read(argv)
    steps, repeats = (16, 3) if options.quick else (32, 9)
    if min(options.context) < 1:
        parser.error(f"--context {min(options.context)}: give at least one token")

    rows: list[Row] = []
    for dtype in options.dtype:
        model, _ = weights.load(weights.MODEL_NAME, dtype=DTYPES[dtype])
        peer = as_transformers(model)
        worst = check_equal(model, peer, dtype)
        print(f"{dtype}: logits within {worst:.2g} of transformers'", file=sys.stderr)
        for context in options.context:
            print(f"{dtype}, context {context:,}: measuring", file=sys.stderr, flush=True)
            rows += measure(
                model, peer, dtype, context, steps=steps, repeats=repeats, patience=options.patience
            )
    title = f"Decode, batch 1, {weights.MODEL_NAME}: {repeats} rounds of {steps} steps"
    speeds = [row.bytes_per_second / 1e9 for row in rows]
    low, high = min(speeds), max(speeds)
    others = max(row.others for row in rows)
    notes = f"read bandwidth in this run: {low:.1f} to {high:.1f} GB/s"
    if others > _common.QUIET:
        notes += (
            f"\nother processes used up to {others:.0%} of the cores: two threads that wait for "
            "each other suffer more than that; repeat with --patience 300"
        )
    facts = ", ".join(f"{key} {value}" for key, value in _common.machine_facts().items())
    print(f"{title}\n{facts}\n{notes}\n\n{table(rows)}")
    if options.write:
        data = {"rows": [dataclasses.asdict(row) for row in rows]}
        _common.write(options.write, title, f"{notes}\n\n{table(rows)}", data)
    return 0


def _prompt(arch: Architecture, num_tokens: int) -> torch.Tensor:
    """Token ids ``[T]``, the same on every machine; what they say does not change the work."""
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randint(arch.vocab_size, (num_tokens,), generator=generator)


def _seconds_per_step(times: Sequence[float]) -> float:
    """The median step; the first one also starts the call and is left out when it can be."""
    steps = [stop - start for start, stop in itertools.pairwise(times)]
    return statistics.median(steps[1:] or steps)


if __name__ == "__main__":
    sys.exit(main())
