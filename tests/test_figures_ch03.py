"""Chapter 03's figures: what they draw is counted again, on tensors and by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import figures
from figures import ch03

ROOT = Path(__file__).resolve().parent.parent


def test_grouping_draws_contiguous_groups_and_counts_what_tensors_hold() -> None:
    kinds = {kind["name"]: kind for kind in figures.data("03_grouping")["kinds"]}
    assert kinds["MHA"]["reads"] == list(range(8))
    assert kinds["GQA-8"]["reads"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert kinds["MQA"]["reads"] == kinds["MLA"]["reads"] == [0] * 8
    copies = torch.arange(2).repeat_interleave(4).tolist()
    assert kinds["GQA-8"]["reads"] == copies
    for name, heads in (("MHA", 64), ("GQA-8", 8), ("MQA", 1)):
        assert kinds[name]["numbers"] == torch.empty(2, heads, 128, device="meta").numel()
    assert kinds["MLA"]["numbers"] == 512 + 64


def test_grouping_refuses_groups_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="8 query heads do not divide into 3 groups"):
        ch03.grouping_data(drawn_groups=3)


def test_absorption_compares_real_tensors_of_deepseek_v2() -> None:
    data = figures.data("03_absorption")
    half = {"dtype": torch.bfloat16, "device": "meta"}
    latent = torch.empty(512, **half), torch.empty(64, **half)
    heads = torch.empty(128, 128 + 64, **half), torch.empty(128, 128, **half)
    assert data["latent_bytes"] == sum(x.nbytes for x in latent)
    assert data["heads_bytes"] == sum(x.nbytes for x in heads)


def test_zoo_holds_the_published_sizes_in_order() -> None:
    kinds = {kind["kind"]: kind["models"] for kind in figures.data("03_zoo")["kinds"]}
    size = {model["name"]: model["bytes"] for models in kinds.values() for model in models}
    beyond = {model["name"]: model["beyond"] for models in kinds.values() for model in models}
    assert len(size) >= 20
    for models in kinds.values():
        order = [model["bytes"] for model in models]
        assert order == sorted(order, reverse=True)
    assert size["OPT-175B"] == 2 * 96 * 12288 * 2
    assert size["Llama-3-70B"] == 2 * 80 * 8 * 128 * 2
    assert size["DeepSeek-V3"] == 61 * (512 + 64) * 2
    assert size["Falcon-7B"] == 2 * 32 * 64 * 2
    assert size["Jamba-v0.1"] == 4 * 2 * 8 * 128 * 2
    assert beyond["Gemma-3-27B"] == 10 * 2 * 16 * 128 * 2
    assert beyond["Llama-3-70B"] == size["Llama-3-70B"]


def test_drawing_needs_no_torch() -> None:
    code = (
        "import sys, figures\n"
        "for name in ('03_grouping', '03_absorption', '03_zoo'): figures.svg(name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
