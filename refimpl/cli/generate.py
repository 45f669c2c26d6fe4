"""``generate``: continue a prompt, token by token, and say how fast that went."""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from refimpl.cli import text

if TYPE_CHECKING:
    from refimpl.model import Decoder
    from refimpl.weights import Tokenizer

HELP = "continue a prompt with the real model"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, the model, how to sample, which code runs."""
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--max-new-tokens", type=text.positive, default=64, metavar="N")
    parser.add_argument(
        "--model", default="smollm2-135m", metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="default: %(default)s")
    parser.add_argument("--chat", action="store_true", help="ask PROMPT in the chat template")
    parser.add_argument(
        "--temperature",
        type=text.number,
        metavar="T",
        help="0 is greedy, the default; with another sampling option the default is 1",
    )
    parser.add_argument("--top-k", type=text.whole, metavar="K")
    parser.add_argument("--top-p", type=text.number, metavar="P")
    parser.add_argument("--min-p", type=text.number, metavar="P")
    parser.add_argument("--seed", type=text.whole, default=0, metavar="N", help="default: 0")
    parser.add_argument("--naive", action="store_true", help="no cache: recompute every step")
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--fused", action="store_true", help="fewer, larger kernels (default)")
    code.add_argument("--plain", action="store_true", help="the decoder as the chapters build it")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a stream")


def run(options: argparse.Namespace) -> int:
    """Stream the text to stdout and the measurements to stderr."""
    sampler = _sampler(options)
    with text.patience(f"loading {options.model}"):
        model, tokenizer = _load(options)
    if options.chat:
        tokens = tokenizer.encode_chat([{"role": "user", "content": options.prompt}])
    else:
        tokens = tokenizer.encode(options.prompt)
    if not tokens:
        raise ValueError("the prompt is empty: decoding needs at least one token")
    stream = tokenizer.stream()

    def show(token: int) -> None:
        if not options.json and token != tokenizer.eos_id:
            sys.stdout.write(stream.push(token))
            sys.stdout.flush()

    if hasattr(sys.stdout, "reconfigure"):  # a terminal without UTF-8 shows ? instead of failing
        sys.stdout.reconfigure(errors="replace")
    report = _decode(options, model, tokenizer, sampler, tokens, show)
    if options.json:
        print(json.dumps(report))
    else:
        print(stream.flush(), flush=True)
        print(_table(report), file=sys.stderr)
    return 0


def _sampler(options: argparse.Namespace) -> Any:
    from refimpl.sampling import Sampler

    chosen = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(options, name)) is not None
    }
    return Sampler(**chosen) if chosen else Sampler(temperature=0)


def _load(options: argparse.Namespace) -> tuple["Decoder", "Tokenizer"]:
    import torch

    from refimpl import model as models
    from refimpl import weights
    from refimpl.cli import fetch, near

    name = options.model
    if not any(sign in name for sign in "/\\.") and name.lower() != weights.MODEL_NAME:
        raise ValueError(f"unknown model {name!r}{near(name, [weights.MODEL_NAME])}")
    try:
        model, tokenizer = weights.load(name, dtype=getattr(torch, DTYPES[options.dtype]))
    except weights.UnknownModelError:
        raise
    except (OSError, ValueError) as error:  # the file is absent, damaged or of another family
        raise OSError(f"{error}{fetch.advice(name)}") from error
    return model if options.plain else models.pack(models.fuse(model)), tokenizer


def _decode(
    options: argparse.Namespace,
    model: "Decoder",
    tokenizer: "Tokenizer",
    sampler: Any,
    tokens: list[int],
    show: Any,
) -> dict[str, Any]:
    import torch

    from refimpl.cache import ContiguousCache
    from refimpl.decode import generate, generate_naive

    times = []

    def on_token(row: int, token: int) -> None:
        times.append(time.perf_counter())
        show(token)

    settings = {
        "max_new_tokens": options.max_new_tokens,
        "sampler": sampler,
        "generator": torch.Generator().manual_seed(options.seed),
        "stop_tokens": [tokenizer.eos_id],
        "on_token": on_token,
    }
    cache = None
    if options.naive:
        start = time.perf_counter()
        new = generate_naive(model, tokens, **settings)
    else:
        # The last token is never fed back. A request beyond the context is refused by generate.
        slots = min(len(tokens) + options.max_new_tokens - 1, model.arch.max_context)
        cache = ContiguousCache(model.arch, max_tokens=slots, dtype=model.dtype)
        start = time.perf_counter()
        new = generate(model, tokens, cache=cache, **settings)
    prefill, decode = times[0] - start, times[-1] - times[0]
    stopped = new[-1] == tokenizer.eos_id
    return {
        "model": model.arch.name,
        "dtype": options.dtype,
        "code": "plain" if options.plain else "fused",
        "prompt": options.prompt,
        "text": tokenizer.decode(new[:-1] if stopped else new),
        "tokens": new,
        "stop": "end" if stopped else "length",
        "num_prompt_tokens": len(tokens),
        "num_new_tokens": len(new),
        "prefill_seconds": prefill,
        "prefill_tokens_per_second": len(tokens) / prefill,
        "decode_seconds": decode,
        "decode_tokens_per_second": (len(new) - 1) / decode if len(new) > 1 else None,
        "cache_bytes": cache.num_bytes if cache is not None else 0,
        "cache_slots": cache.max_tokens if cache is not None else 0,
    }


def _table(report: dict[str, Any]) -> str:
    from refimpl.units import format_bytes

    end = "end of text" if report["stop"] == "end" else "--max-new-tokens"
    speed = report["decode_tokens_per_second"]
    cache = "none, every step recomputes all tokens"
    if report["cache_bytes"]:
        cache = (
            f"{format_bytes(report['cache_bytes'])} "
            f"({report['cache_bytes']:,} bytes, {report['cache_slots']:,} slots)"
        )
    rows = (
        ("model", f"{report['model']}, {report['dtype']}, {report['code']}"),
        (
            "prefill",
            f"{report['num_prompt_tokens']} tokens, "
            f"{report['prefill_tokens_per_second']:.1f} tokens/s",
        ),
        (
            "decode",
            f"{report['num_new_tokens']} tokens, "
            + (f"{speed:.1f} tokens/s" if speed else "the first comes from the prefill"),
        ),
        ("stopped at", end),
        ("cache", cache),
    )
    return "\n".join(f"{name:<11} {value}" for name, value in rows)
