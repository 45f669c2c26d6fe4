"""A chapter notices when the reference implementation is perturbed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from labkit import sabotage
from labkit.kernels import ROOT
from labkit.sabotage import Target, perturb, uses

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))
SAMPLED = 2


@pytest.mark.case("NB-17")
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_sample_of_perturbations_turns_the_chapter_red(path: Path) -> None:
    # Unperturbed, the chapter is green: that is what nbval shows in the same `make test`.
    targets = uses(sabotage.chapter_code(path))
    perturbed = 0
    for target in sabotage.sample(targets, len(targets), seed=path.read_bytes()):
        outcome = sabotage.settled(path, target)
        assert outcome.ok, f"{target} ({outcome.perturbation}): {outcome.verdict}"
        perturbed += outcome.red
        if perturbed == SAMPLED:
            break
    assert perturbed == SAMPLED


# --- what is perturbed, and how ---------------------------------------------------------------


class Pair(NamedTuple):
    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class Fact:
    name: str
    flag: bool
    size: int


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b) and a == b


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, False),
        (3, 4),
        (2.0, 2.02),
        (0.0, 0.01),
        ("1.0 GiB", "1.0 GiB~"),
        ([5, 6], [6, 6]),
        ((object, 6), (object, 7)),
        ({"a": None, "b": 1.0}, {"a": None, "b": 1.01}),
        (Pair("x", 1), Pair("x~", 1)),
        (Fact("x", True, 9), Fact("x", True, 10)),
        (torch.tensor([[7, 8]]), torch.tensor([[8, 8]])),
        (torch.tensor([1.0, -torch.inf]), torch.tensor([1.01, -torch.inf])),
        (torch.zeros(2), torch.full((2,), 0.01)),
        (torch.tensor([True, True]), torch.tensor([False, True])),
        (torch.tensor(5), torch.tensor(6)),
    ],
)
def test_perturb(value: Any, expected: Any) -> None:
    changed, what = perturb(value)
    assert same(changed, expected), what
    assert what != "opaque"
    assert not same(changed, value)


@pytest.mark.parametrize("value", [None, object(), [], torch.empty(0), torch.nn.Linear(1, 1)])
def test_what_cannot_be_perturbed_is_said(value: Any) -> None:
    assert perturb(value)[1] == "opaque"


def test_the_original_is_left_alone() -> None:
    tensor, items = torch.tensor([1, 2]), [1, 2]
    perturb(tensor)
    perturb(items)
    assert tensor.tolist() == items == [1, 2]


# --- what a chapter uses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from refimpl import units\nunits.format_bytes(1)", ["format_bytes"]),
        ("from refimpl import units as u\nf = u.parse_size", ["parse_size"]),
        ("import refimpl.units\nrefimpl.units.format_bytes(1)", ["format_bytes"]),
        ("import refimpl.units as u\nu.format_bytes(1)", ["format_bytes"]),
        ("from refimpl.attention import attend\nattend(q, k, v)", ["attend"]),
        ("from refimpl import units\nformat_bytes = 1\nformat_bytes", []),
        ("from refimpl.cache import ContiguousCache", []),
        (
            "from refimpl import cache\nc = cache.ContiguousCache(arch)\n"
            "c.read(0)\nc.num_bytes\nrows.append(1)\nc._rows",
            ["ContiguousCache.num_bytes", "ContiguousCache.read"],
        ),
        (
            "from refimpl import weights\nmodel, tok = weights.load('x')\nmodel(t)\ntok.encode('')",
            ["Decoder.forward", "Tokenizer.encode", "load"],
        ),
        (
            "from refimpl.sampling import Sampler\ns = Sampler(top_k=3)\ns.probabilities(x)",
            ["Sampler.probabilities"],
        ),
        (
            "from refimpl.model import Decoder\ndef f(m: Decoder): return m(1)",
            ["Decoder.forward"],
        ),
        (
            "from refimpl.architecture import Architecture\nArchitecture.named('smollm2-135m')",
            ["Architecture.named"],
        ),
    ],
)
def test_uses(source: str, expected: list[str]) -> None:
    assert sorted(target.name for target in uses(source)) == expected


def test_the_sample_moves_with_the_text_and_skips_what_is_opaque() -> None:
    targets = [
        Target("refimpl.units", f) for f in ("format_bytes", "format_si_bytes", "parse_size")
    ]
    opaque = Target("refimpl.weights", "load")
    assert sabotage.is_opaque(opaque)
    picks = {tuple(sabotage.sample([*targets, opaque], 2, bytes([i]))) for i in range(20)}
    assert len(picks) > 1
    assert all(opaque not in pick and len(pick) == 2 for pick in picks)
    assert sabotage.sample(targets, 2, b"x") == sabotage.sample(targets[::-1], 2, b"x")


# --- in the kernel ----------------------------------------------------------------------------

TINY = [
    "from refimpl import units",
    "print(units.format_bytes(2048))",
    "size = units.parse_size('32k')",
]
TINY_OUTPUTS = [None, "2 KiB\n", None]


@pytest.fixture
def tiny(write_notebook: Callable[..., Path]) -> Path:
    """A chapter that shows what one function gives and calls another without looking."""
    return write_notebook(TINY, TINY_OUTPUTS)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("format_bytes", "red at Cell 1"),
        ("parse_size", "SURVIVED"),
        ("format_si_bytes", "NEVER CALLED"),
    ],
)
def test_perturbed_in_the_kernel(tiny: Path, name: str, verdict: str) -> None:
    outcome = sabotage.run(tiny, Target("refimpl.units", name))
    assert outcome.verdict == verdict
    assert outcome.ok is verdict.startswith("red")
    assert "LABKIT_SABOTAGE" not in os.environ


def test_a_red_timing_cell_is_run_again(
    write_notebook: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_notebook(["x = 1", ("assert x", ["nbval-ignore-output"])])
    verdicts = [sabotage.Outcome(None, True, "Cell 1", ""), sabotage.Outcome(None, False, "", "")]
    monkeypatch.setattr(sabotage, "run", lambda *_: verdicts.pop(0))
    assert not sabotage.settled(path).red
    verdicts[:] = [sabotage.Outcome(None, True, "Cell 0", "")]
    assert sabotage.settled(path).red, "any other red cell counts at once"


def test_a_function_that_is_not_there_is_an_error(tiny: Path) -> None:
    with pytest.raises(RuntimeError, match="not perturbed"):
        sabotage.run(tiny, Target("refimpl.units", "no_such_function"))


def test_every_module_that_holds_a_function_gets_the_perturbed_one() -> None:
    import subprocess
    import sys

    code = (
        "from labkit.sabotage import Target, apply\n"
        "import sys, refimpl.model, refimpl.decode, refimpl.rope\n"
        "old = refimpl.rope.rotate\n"
        "ours = [m for n, m in sys.modules.items() if n.startswith('refimpl')]\n"
        "holders = [m for m in ours if vars(m).get('rotate') is old]\n"
        "assert len(holders) > 1, 'the model imports rotate by name'\n"
        "apply(Target('refimpl.rope', 'rotate'))\n"
        "new = refimpl.rope.rotate\n"
        "assert new is not old\n"
        "assert all(vars(m)['rotate'] is new for m in holders)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)


def test_a_call_that_returns_nothing_is_dropped_and_properties_are_perturbed() -> None:
    import subprocess
    import sys

    code = (
        "import torch\n"
        "from labkit.sabotage import Target, apply\n"
        "from refimpl.architecture import Architecture\n"
        "from refimpl.cache import ContiguousCache\n"
        "arch = Architecture.named('smollm2-135m')\n"
        "made = lambda: ContiguousCache(arch, batch_size=1, max_tokens=4)\n"
        "size = made().num_bytes\n"
        "said = []\n"
        "apply(Target('refimpl.cache', 'ContiguousCache.num_bytes'), said.append)\n"
        "assert made().num_bytes == size + 1\n"
        "apply(Target('refimpl.cache', 'ContiguousCache.append'), said.append)\n"
        "cache = made()\n"
        "cache.append(0, torch.ones(1, 3, 2, 64), torch.ones(1, 3, 2, 64))\n"
        "assert cache.num_tokens.tolist() == [0]\n"
        "assert said == ['int + 1', 'call dropped'], said\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)


def test_what_a_context_manager_hands_out_is_perturbed() -> None:
    from contextlib import contextmanager

    from labkit import sabotage

    left = []

    @contextmanager
    def count():
        try:
            yield 5
        finally:
            left.append(True)

    said: list[str] = []
    with sabotage._wrap(count, said.append)() as value:
        assert value == 6
    assert said == ["int + 1"] and left == [True]


def test_a_dtype_is_no_tensor() -> None:
    import torch

    from labkit.sabotage import perturb

    assert perturb(torch.float32) == (torch.float32, "opaque")
