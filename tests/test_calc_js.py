"""The site's calculator: its arithmetic, run by a JavaScript engine, against refimpl's."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from oracles import rows
from py_mini_racer import JSEvalException, MiniRacer

from labkit.kernels import ROOT
from refimpl import capacity, roofline, sizing, units
from refimpl.architecture import ATTENTION_KINDS, Architecture, Detail, Layer, zoo
from refimpl.hardware import ACCELERATORS, Accelerator

SITE = ROOT / "site"
sys.path.append(str(SITE))  # its modules import one another by their bare names
calculator = importlib.import_module("calculator")
SOURCE = (SITE / "_static" / "calc.js").read_text("utf-8")
DTYPES = tuple(sizing.BYTES_PER_ELEMENT)
MODELS = {name: Architecture.named(name) for name in zoo.names()}

# ── the engine ───────────────────────────────────────────────────────────────────────────────

# BigInt leaves as text with an n, infinities as null; both come back as what they were.
HARNESS = """
const out = (value) => JSON.stringify(value, (key, v) => typeof v === "bigint" ? `${v}n` : v);
const one = (c) => {
  const [m, a] = [calc.model(models[c.model]), accelerators[c.accelerator]];
  const [n, batch, bytes] = [c.context, c.batch, BigInt(c.bytes)];
  const step = {
    batch, context: n, numGpus: c.gpus, weightDtype: c.weights, cacheDtype: c.cache,
  };
  const compute = calc.computeDtype(a, c.weights);
  return {
    perToken: calc.kvBytesPerToken(m, c.cache),
    beyond: calc.kvBytesPerToken(m, c.cache, true),
    state: calc.fixedStateBytes(m, c.cache),
    request: calc.kvBytes(m, n, c.cache),
    batch: calc.kvBytes(m, n, c.cache, batch),
    parameters: calc.countParameters(m),
    weights: calc.weightBytes(m, c.weights),
    longest: calc.maxTokens(m, bytes, c.cache, batch),
    plan: calc.plan(m, a, { ...step, users: c.users, reserve: c.reserve }),
    compute,
    step: compute in a.peak_flops ? calc.decodeStep(m, a, step) : null,
  };
};
"""


def revived(value: Any) -> Any:
    """JSON from the engine with its BigInts as integers."""
    if isinstance(value, dict):
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return int(value[:-1]) if isinstance(value, str) and re.fullmatch(r"-?\d+n", value) else value


class Engine:
    """calc.js in an engine of its own, with the models and accelerators it is given."""

    def __init__(self, models: Sequence[Architecture], source: str = SOURCE) -> None:
        self.context = MiniRacer()
        self.context.eval(source)
        self.context.eval(HARNESS)
        known = {arch.name: calculator.model(arch) for arch in models}
        self.context.eval(f"const models = {json.dumps(known)};")
        known = {row.name: calculator.accelerator(row) for row in ACCELERATORS.values()}
        self.context.eval(f"const accelerators = {json.dumps(known)};")

    def __call__(self, expression: str) -> Any:
        return revived(json.loads(self.context.eval(f"out({expression})")))

    def all(self, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of many cases in one call."""
        return self(f"{json.dumps(cases)}.map(one)")


@pytest.fixture(scope="module")
def js() -> Engine:
    return Engine(list(MODELS.values()))


# ── the same by refimpl ──────────────────────────────────────────────────────────────────────

PLAN = {
    "memoryBytes": "memory_bytes",
    "reservedBytes": "reserved_bytes",
    "weightBytes": "fit.weight_bytes",
    "poolBytes": "fit.pool_bytes",
    "bytesPerUser": "fit.bytes_per_user",
    "users": "fit.users",
    "wholeUsers": "fit.whole_users",
    "tokens": "fit.tokens",
    "gpusNeeded": "fit.gpus_needed",
    "limit": "fit.limit",
}
STEP = {
    "weightBytes": "weight_bytes",
    "cacheBytes": "cache_bytes",
    "activationBytes": "activation_bytes",
    "bytes": "bytes",
    "flops": "flops",
    "memorySeconds": "memory_seconds",
    "computeSeconds": "compute_seconds",
    "seconds": "seconds",
    "bound": "bound",
    "intensity": "intensity",
    "tokensPerSecond": "tokens_per_second",
    "computeDtype": "compute_dtype",
}


def named(source: Any, names: dict[str, str]) -> dict[str, Any]:
    found = {}
    for theirs, ours in names.items():
        value = source
        for part in ours.split("."):
            value = getattr(value, part)
        found[theirs] = value
    return found


def by_refimpl(case: dict[str, Any], models: dict[str, Architecture]) -> dict[str, Any]:
    """What refimpl says to a case, under the names that calc.js uses."""
    arch, accelerator = models[case["model"]], ACCELERATORS[case["accelerator"]]
    context, batch, cache = case["context"], case["batch"], case["cache"]
    compute = case["weights"]
    if sizing.bytes_per_element(compute) < 2:
        compute = "bf16" if "bf16" in accelerator.peak_flops else "fp16"
    given = {"weight_dtype": case["weights"], "cache_dtype": cache, "num_gpus": case["gpus"]}
    step = None
    if compute in accelerator.peak_flops:
        step = roofline.decode_step(
            arch, accelerator, batch=batch, context=context, compute_dtype=compute, **given
        )
        step = named(step, STEP) | {"ridge": roofline.ridge(accelerator, compute)}
    users = {"users": case["users"], "reserve": case["reserve"]}
    # A plan ends with a step, so it wants a rate for bf16; what fits does not depend on it.
    able = replace(accelerator, peak_flops={"bf16": 1e12, **accelerator.peak_flops})
    able = replace(able, peak_flops={case["weights"]: 1e12, **able.peak_flops})
    found = capacity.plan(arch, able, context=context, **users, **given)
    count = sizing.count_parameters(arch)
    return {
        "perToken": sizing.kv_bytes_per_token(arch, cache),
        "beyond": sizing.kv_bytes_per_token(arch, cache, beyond_window=True),
        "state": sizing.fixed_state_bytes(arch, cache),
        "request": sizing.kv_bytes(arch, context, cache),
        "batch": sizing.kv_bytes(arch, context, cache, batch),
        "parameters": {name: getattr(count, name) for name in ("total", "active", "embedding")},
        "weights": sizing.weight_bytes(arch, case["weights"]),
        "longest": sizing.max_tokens(arch, int(case["bytes"]), cache, batch),
        "plan": named(found, PLAN),
        "compute": compute,
        "step": step,
    }


def differences(theirs: Any, ours: Any, experts: bool = False, where: str = "") -> Iterator[str]:
    """Where two results differ: integers at all, floats by more than 1e-12 of themselves.

    With ``experts``, the weights that a step reads are an expected number, rounded to bytes: two
    libraries may raise to a power a last bit apart, so one byte is let pass.
    """
    if isinstance(ours, dict):
        if not isinstance(theirs, dict) or theirs.keys() != ours.keys():
            yield f"{where}: {theirs!r}, refimpl says {ours!r}"
            return
        for key, value in ours.items():
            yield from differences(theirs[key], value, experts, f"{where}.{key}")
        return
    slack = 1 if experts and where in (".step.weightBytes", ".step.bytes") else 0
    if isinstance(ours, float):
        same = math.isclose(theirs, ours, rel_tol=1e-12, abs_tol=0)
    elif isinstance(ours, int):
        same = type(theirs) is int and abs(theirs - ours) <= slack
    else:
        same = theirs == ours
    if not same:
        yield f"{where}: {theirs!r}, refimpl says {ours!r}"


def compared(js: Engine, cases: Sequence[dict[str, Any]], models: dict[str, Architecture]) -> None:
    """Every case alike in both."""
    wrong = []
    for case, theirs in zip(cases, js.all(cases), strict=True):
        experts = any(layer.num_experts for layer in models[case["model"]].layers)
        found = list(differences(theirs, by_refimpl(case, models), experts))
        wrong += [f"{case}: {'; '.join(found)}"] if found else []
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, such as {wrong[0]}"


# ── cases ────────────────────────────────────────────────────────────────────────────────────


def boundaries(arch: Architecture) -> list[int]:
    """Contexts at which a window fills, moves or starts anew; two usual ones elsewhere."""
    windows = sorted({layer.window for layer in arch.layers if layer.window})
    if not windows:
        return [1, 2, 4096, 131_071]
    return [n for w in windows for n in (1, w - 1, w, w + 1, 2 * w, 2 * w + 1, 131_072)]


def zoo_cases() -> list[dict[str, Any]]:
    """Every model at its boundaries, the other inputs going round in cycles of coprime lengths."""
    cycles = {
        "weights": itertools.cycle(DTYPES),
        "cache": itertools.cycle([*DTYPES, "bf16"]),  # seven, so that all pairs come up
        "batch": itertools.cycle([1, 3, 32, 257, 4_000]),
        "accelerator": itertools.cycle(ACCELERATORS),
        "gpus": itertools.cycle([1, 8, 2, 72]),
        "reserve": itertools.cycle([0.1, 0.0, 0.05, 0.33, 0.1, 0.07, 0.9, 1e-7, 0.125]),
        "users": itertools.cycle([None, 1, 50]),
        # as text, since JSON numbers would lose the last digits
        "bytes": itertools.cycle(["0", "1000000", "999999999", f"{10**11}", f"{2**62 + 1}"]),
    }
    return [
        {"model": name, "context": context} | {key: next(values) for key, values in cycles.items()}
        for name, arch in MODELS.items()
        for context in boundaries(arch)
    ]


def test_the_cases_cover_what_they_should() -> None:
    cases = zoo_cases()
    assert len(cases) >= 200
    assert {case["model"] for case in cases} == set(MODELS)
    assert {case["accelerator"] for case in cases} == set(ACCELERATORS)
    pairs = {(case["weights"], case["cache"]) for case in cases}
    assert pairs == set(itertools.product(DTYPES, DTYPES))
    kinds = {layer.kind for case in cases for layer in MODELS[case["model"]].layers}
    assert kinds == {"full", "sliding", "chunked", "latent", "linear", "state", "none"}


def test_the_zoo_gives_what_refimpl_gives(js: Engine) -> None:
    compared(js, zoo_cases(), MODELS)


def odd_architecture(draw: random.Random, number: int) -> Architecture:
    """Layers of every kind with small odd widths, so that packed bits do not end on bytes."""
    kinds = ("full", "sliding", "chunked", "latent", "linear", "state", "none")

    def odd(high: int = 9) -> int:
        return 2 * draw.randint(0, high) + 1

    def layer(kind: str) -> Layer:
        sizes: dict[str, Any] = {"mixer_parameters": odd(99), "mlp_parameters": draw.choice([0, 7])}
        if kind in ATTENTION_KINDS:
            groups = 1 if kind == "latent" else odd(2)
            sizes |= {"num_query_heads": groups * odd(2), "num_kv_heads": groups}
            sizes |= {"head_dim": odd(), "value_dim": odd()}
        if kind == "latent":
            sizes |= {"latent_width": odd(), "rope_width": draw.choice([0, odd()])}
        if kind in ("sliding", "chunked"):
            sizes["window"] = draw.randint(1, 40)
        if kind in ("linear", "state"):
            sizes["state_elements"] = odd(40)
        if draw.random() < 0.4:
            experts = draw.randint(1, 9)
            sizes |= {"num_experts": experts, "experts_per_token": draw.randint(1, experts)}
            sizes["expert_parameters"] = odd(60)
        return Layer(kind=kind, **sizes)

    pool = [layer(draw.choice(kinds)) for _ in range(draw.randint(1, 4))] + [layer("full")]
    layers = tuple(draw.choices(pool, k=draw.randint(1, 9)))
    first = next((x for x in layers if x.kind in ATTENTION_KINDS), Layer(kind="none"))
    tied = draw.random() < 0.5
    detail = Detail(
        layers=layers,
        embedding_parameters=odd(300),
        head_parameters=0 if tied else odd(300),
        other_parameters=odd(20),
        unsupported="it is made up",
    )
    return Architecture(
        name=f"odd-{number}",
        num_layers=len(layers),
        model_width=odd(30),
        num_query_heads=first.num_query_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        mlp_width=odd(40),
        vocab_size=odd(50),
        max_context=None,
        tie_embeddings=tied,
        detail=detail,
    )


def odd_cases(number: int) -> tuple[list[dict[str, Any]], dict[str, Architecture]]:
    draw = random.Random(7)
    archs = [odd_architecture(draw, n) for n in range(number)]
    # An architecture that keeps nothing has no user to divide by: the zoo has none.
    archs = [arch for arch in archs if sizing.kv_bytes(arch, 1, "int4")]
    cases = []
    for arch in archs:
        windows = [layer.window for layer in arch.layers if layer.window] or [20]
        around = draw.choice(windows)
        for context in (1, max(1, around - 1), around, around + 1, draw.randint(1, 99)):
            case = {
                "model": arch.name,
                "context": context,
                "weights": draw.choice(DTYPES),
                "cache": draw.choice(DTYPES),
                "batch": draw.randint(1, 40),
                "accelerator": draw.choice(list(ACCELERATORS)),
                "gpus": draw.randint(1, 5),
                "reserve": draw.choice([0, 0.25, 0.999]),
                "users": draw.choice([None, 3]),
                "bytes": str(draw.randint(0, 30_000)),
            }
            cases.append(case)
    return cases, {arch.name: arch for arch in archs}


def test_layers_of_odd_widths_give_what_refimpl_gives() -> None:
    cases, models = odd_cases(60)
    assert len(cases) > 200
    compared(Engine(list(models.values())), cases, models)


def test_numbers_past_two_to_the_53_are_exact(js: Engine) -> None:
    case = {
        "model": "llama-3.1-405b",
        "context": 2**30 - 35,
        "weights": "fp8",
        "cache": "fp32",
        "batch": 2**20 - 1,
        "accelerator": "b200",
        "gpus": 65_537,
        "reserve": 0.037,
        "users": 2**20 - 1,
        "bytes": str(10**20 + 7),
    }
    (found,) = js.all([case])
    exact = (2**20 - 1) * (2**30 - 35) * 126 * 2 * 8 * 128 * 4  # batch, tokens, layers, K and V
    assert found["batch"] == exact
    assert int(float(exact)) != exact  # a double would have lost it
    compared(js, [case], MODELS)


# ── published numbers and closed forms, without refimpl's arithmetic ─────────────────────────

PUBLISHED = {name: row for name, row in rows("models.json").items() if not row["unverified"]}


def test_published_sizes_of_48_models(js: Engine) -> None:
    names = [name for name in PUBLISHED if name != "kimi-linear-48b"]  # two patterns in its row
    sizes = "m => [calc.kvBytesPerToken(m, 'fp16'), calc.kvBytesPerToken(m, 'bf16', true),"
    sizes += "calc.countParameters(m).total]"
    found = js(f"{json.dumps(names)}.map(name => calc.model(models[name])).map({sizes})")
    assert len(names) == 47
    for name, got in zip(names, found, strict=True):
        row = PUBLISHED[name]
        cache = [row[f"kv_bytes_per_token_16bit{end}"] for end in ("", "_beyond_window")]
        assert got[:2] == cache, name
        assert row["parameters"] is None or got[2] == row["parameters"], name


def test_the_step_that_is_worked_out_by_hand(js: Engine) -> None:
    """Llama-3-70B at batch 32 and 4,096 tokens on eight H100s, from its shape alone."""
    layers, width, heads, groups, dim, mlp, vocab = 80, 8192, 64, 8, 128, 28_672, 128_256
    matrices = layers * (2 * width * dim * (heads + groups) + 3 * width * mlp) + vocab * width
    read = matrices + layers * 2 * width + width + 32 * width  # norms; 32 rows of the embedding
    cache = 32 * 4096 * layers * 2 * groups * dim * 2
    activations = 2 * 32 * (4 * layers * width + vocab)
    flops = 32 * (2 * matrices + layers * 4 * heads * dim * 4096)
    given = "{batch: 32, context: 4096, numGpus: 8, weightDtype: 'bf16', cacheDtype: 'bf16'}"
    model = "calc.model(models['llama-3-70b'])"
    step = js(f"calc.decodeStep({model}, accelerators['h100-sxm'], {given})")
    assert (step["weightBytes"], step["cacheBytes"]) == (2 * read, cache)
    assert (step["activationBytes"], step["flops"]) == (activations, flops)
    assert step["bytes"] == 2 * read + cache + activations
    assert step["seconds"] == pytest.approx(step["bytes"] / 26.8e12, rel=1e-12)
    assert step["tokensPerSecond"] == pytest.approx(32 * 26.8e12 / step["bytes"], rel=1e-12)
    assert (step["bound"], round(cache / 1e9), round(2 * read / 1e9)) == ("memory", 43, 139)
    fit = js(
        f"calc.plan({model}, accelerators['h100-sxm'], {{numGpus: 8, context: 131072, users: 50,"
        "reserve: 0.1, weightDtype: 'bf16', cacheDtype: 'bf16'})"
    )
    weights = 2 * (matrices + layers * 2 * width + width + vocab * width)
    each = 131_072 * layers * 2 * groups * dim * 2
    assert fit["weightBytes"] == weights and fit["bytesPerUser"] == each
    assert fit["poolBytes"] == 576 * 10**9 - weights
    assert fit["wholeUsers"] == (576 * 10**9 - weights) // each == 10
    assert fit["gpusNeeded"] == math.ceil(Fraction(weights + 50 * each, 72 * 10**9)) == 32


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-27b", "deepseek-v3", "jamba-v0.1"])
def test_rates_approach_the_lower_of_their_ceilings(js: Engine, name: str) -> None:
    given = {"context": 4096, "numGpus": 8, "weightDtype": "fp8", "cacheDtype": "fp8"}
    call = f"(calc.model(models['{name}']), accelerators['h200'], "
    ceilings = js(f"calc.rateCeilings{call}{json.dumps(given)})")
    batches = [2**power for power in range(41)]
    steps = js(
        f"{json.dumps(batches)}.map(batch => calc.decodeStep{call}{{...{json.dumps(given)}, batch}}"
        ").tokensPerSecond)"
    )
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(min(ceilings.values()), rel=1e-5)
    assert all(rate <= min(ceilings.values()) * (1 + 1e-9) for rate in steps)


def test_what_a_bar_shows_adds_up(js: Engine) -> None:
    cases = [case | {"batch": batch} for case in zoo_cases() for batch in (1, case["batch"])]
    call = """.map(c => {
      const given = { numGpus: c.gpus, context: c.context, users: c.batch, reserve: c.reserve,
        weightDtype: c.weights, cacheDtype: c.cache };
      const fit = calc.plan(calc.model(models[c.model]), accelerators[c.accelerator], given);
      return [fit, calc.occupancy(fit, c.batch)];
    })"""
    limits = set()
    for case, (fit, bar) in zip(cases, js(f"{json.dumps(cases)}{call}"), strict=True):
        over = bar.pop("over")
        assert all(part >= 0 for part in (over, *bar.values()))
        assert sum(bar.values()) == fit["memoryBytes"]
        cache = case["batch"] * fit["bytesPerUser"]
        assert bar["weights"] + bar["cache"] + over == fit["weightBytes"] + cache
        assert not (over and bar["free"])
        assert (over == 0) == (fit["limit"] == "none")
        limits.add(fit["limit"])
    assert limits == {"weights", "cache", "none"}


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def test_sizes_and_counts_read_as_refimpl_writes_them(js: Engine) -> None:
    draw = random.Random(11)
    numbers = [0, 1, 999, 1000, 1023, 1024, 1152, 1280, 999_995, 1_048_570, 141_107_412_992]
    numbers += [k * 2 ** (10 * p) // 8 for p in range(1, 6) for k in range(1, 40)]  # ties
    numbers += [k * 10 ** (3 * p) // 8 for p in range(1, 6) for k in range(1, 40)]
    numbers += [draw.randrange(10 ** draw.randint(1, 19)) for _ in range(2000)]
    texts = json.dumps([str(number) for number in numbers])
    found = js(
        f"{texts}.map(BigInt).map(n => [calc.formatBytes(n), calc.formatSiBytes(n),"
        "calc.formatCount(n), calc.grouped(n)])"
    )
    for number, got in zip(numbers, found, strict=True):
        formats = (units.format_bytes, units.format_si_bytes, units.format_count)
        assert got == [*(write(number) for write in formats), f"{number:,}"], number


def test_fixed_decimals_are_those_of_python(js: Engine) -> None:
    draw = random.Random(13)
    values = [k / 16 for k in range(0, 200)] + [draw.random() * 10**4 for _ in range(500)]
    for digits in (0, 1, 2, 3):
        found = js(f"{json.dumps(values)}.map(x => calc.fixed(x, {digits}))")
        assert found == [f"{value:.{digits}f}" for value in values]
    grouped = js("[1234.5, 0.12345, 1234567, '1234567.8912'].map(calc.grouped)")
    assert grouped == ["1,234.5", "0.12345", "1,234,567", "1,234,567.8912"]


@pytest.mark.parametrize(
    "text", ["1", "4096", "131072", "128k", "1.5k", "2M", " 32 K ", "1g", "0.5k"]
)
def test_counts_are_read_as_refimpl_reads_them(js: Engine, text: str) -> None:
    assert js(f"calc.parseCount('context', {json.dumps(text)}, 2**40)") == units.parse_size(text)


def test_counts_may_have_thousands_marked(js: Engine) -> None:
    assert js("calc.parseCount('context', '131,072', 2**40)") == 131_072


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


def refusal(js: Engine, expression: str) -> str:
    with pytest.raises(JSEvalException) as caught:
        js(expression)
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "abc", "1e5", "1.3k", "12,34", "1,5k", "0.5", "2g"]
)
def test_a_count_that_is_none_is_refused(js: Engine, text: str) -> None:
    said = refusal(js, f"calc.parseCount('context', {json.dumps(text)}, 2**30)")
    assert "context: write a whole number from 1 to 1,073,741,824" in said and f"'{text}'" in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("calc.kvBytes(m, 1.5, 'bf16')", "num_tokens must be an integer, got 1.5"),
        ("calc.kvBytes(m, NaN, 'bf16')", "num_tokens must be an integer, got NaN"),
        ("calc.kvBytes(m, true, 'bf16')", "num_tokens must be an integer, got true"),
        ("calc.kvBytes(m, '8', 'bf16')", "num_tokens must be an integer, got 8"),
        ("calc.kvBytes(m, -1, 'bf16')", "num_tokens must be at least 0, got -1"),
        ("calc.kvBytes(m, 2 ** 53, 'bf16')", "num_tokens must be an integer, got 9007199254740992"),
        ("calc.kvBytes(m, 8, 'bf16', -1n)", "batch must be at least 0, got -1"),
        ("calc.kvBytes(m, 8, 'fp4')", "unknown dtype 'fp4': one of fp32, bf16, fp16, fp8, int8"),
        ("calc.weightBytes(m, 'toString')", "unknown dtype 'toString'"),
        ("calc.maxTokens(m, 8, 'bf16', 0)", "batch must be at least 1, got 0"),
        ("calc.model({...models['gpt2'], vocab_size: 2 ** 60})", "vocab_size must be an integer"),
        (
            "calc.model({...models['gpt2'], vocab_size: -5})",
            "vocab_size must be at least 0",
        ),
        ("calc.decodeStep(m, a, {...g, batch: 0})", "batch must be at least 1, got 0"),
        ("calc.decodeStep(m, a, {...g, context: 0})", "context must be at least 1, got 0"),
        ("calc.decodeStep(m, a, {...g, numGpus: 0})", "num_gpus must be at least 1, got 0"),
        ("calc.decodeStep(m, a, g)", "v100 has no rate for 'bf16': it has fp32, fp16"),
        ("calc.plan(m, a, {...g, reserve: 1})", "reserve must be a share from 0 to below 1, got 1"),
        ("calc.plan(m, a, {...g, reserve: -0.1})", "reserve must be a share from 0 to below 1"),
        ("calc.plan(m, a, {...g, reserve: NaN})", "reserve must be a share from 0 to below 1"),
        ("calc.plan(m, a, {...g, users: 0})", "users must be at least 1, got 0"),
        ("calc.plan(m, a, {...g, context: 0})", "context must be at least 1, got 0"),
        (
            "calc.plan(calc.model({...models['gpt2'], layers: [{kind: 'none', count: 3}]}), a, g)",
            "gpt2 keeps nothing of a sequence: users take no memory",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(js: Engine, call: str, said: str) -> None:
    given = "{batch: 2, context: 9, numGpus: 1, weightDtype: 'bf16', cacheDtype: 'bf16'}"
    setup = f"const m = calc.model(models['gpt2']), a = accelerators.v100, g = {given};"
    assert said in refusal(js, f"(() => {{ {setup} return {call}; }})()")


# ── the comparison can fail; the file is what it says ────────────────────────────────────────


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(a + b - 1n) / b", "a / b"),  # packed bits rounded down
        ("min(tokens, layer.window)", "tokens"),  # windows forgotten
        ("min(stored, layer.window - 1n)", "min(stored, layer.window)"),  # one token too many
        ("stored % layer.window", "min(stored, layer.window - 1n)"),  # chunks as windows
        ("stored ? 2n : 1n", "1n"),  # states read and not written
        ("[1n, layer.rope_width]", "[2n, layer.rope_width]"),  # latents stored twice
        ("layer.count * layerTokenBytes(layer, dtype))", "layerTokenBytes(layer, dtype))"),
        ("arch.tied ? arch.embedding_parameters : rows", "rows"),  # tied tables are read whole
        ("** drawn", "** (drawn - 1)"),
        ('inside("experts_per_token")', 'inside("num_experts")'),
        ('kind === "none" ? 0n : 1n', 'kind === "none" ? 1n : 1n'),
        ("4n * layer.state_elements", "2n * layer.state_elements"),
        ("bits(weightDtype) >= 16n", "bits(weightDtype) >= 8n"),  # 8-bit arithmetic assumed
        ("(denominator - reserved)", "denominator"),  # nothing reserved
        ("while (high - low > 1n)", "while (high - low > 2n)"),
    ],
)
def test_a_mistake_in_the_script_is_seen(right: str, wrong: str) -> None:
    assert SOURCE.count(right) == 1, right
    cases, models = odd_cases(30)
    with pytest.raises(AssertionError, match="differ, such as"):
        compared(Engine(list(models.values()), SOURCE.replace(right, wrong)), cases[::3], models)


def test_the_script_is_pure_and_fetches_nothing() -> None:
    code = re.sub(r"//.*", "", SOURCE)
    names = r"document|window\.|location|navigator|history|fetch|XMLHttp|import|require|eval"
    assert not re.search(rf"\b(?:{names}|Date|Math\.random|set(?:Timeout|Interval))\b", code)
    assert "https:" not in SOURCE and "http:" not in SOURCE
    assert code.count("const calc = ") == 1


# ── the facts on the page ────────────────────────────────────────────────────────────────────


def test_the_facts_hold_every_model_and_accelerator_as_refimpl_has_them(js: Engine) -> None:
    facts = json.loads(json.dumps(calculator.facts()))
    assert [row["name"] for row in facts["models"]] == list(MODELS)
    for row in facts["models"]:
        arch, entry = MODELS[row["name"]], zoo.entry(row["name"])
        assert (row["title"], row["date"], row["note"]) == (entry.title, entry.date, entry.note)
        assert all(part in row["source"] for part in entry.source)
        assert bool(row["unverified"]) == bool(entry.unverified)
        assert row["max_context"] == arch.max_context
        assert sum(group["count"] for group in row["layers"]) == arch.num_layers
        rebuilt = [
            Layer(**{key: value for key, value in group.items() if key != "count"})
            for group in row["layers"]
            for _ in range(group["count"])
        ]
        apart = {"index_width": 0, "index_parameters": 0, "selected": 0, "conv_channels": 0}
        key = repr
        assert sorted(rebuilt, key=key) == sorted(
            (replace(layer, **apart) for layer in arch.layers), key=key
        )
    for row in facts["accelerators"]:
        ours = ACCELERATORS[row["name"]]
        assert Accelerator(**row) == ours
    assert {name: int(bits) for name, bits in js("calc.BITS").items()} == {
        name: 8 * size for name, size in sizing.BYTES_PER_ELEMENT.items()
    }


def test_a_number_that_a_browser_would_round_stops_the_page() -> None:
    huge = replace(MODELS["llama-3-8b"], vocab_size=2**53)
    with pytest.raises(ValueError, match="vocab_size is 9007199254740992"):
        calculator.model(huge)
