"""The calculators at the command line: tables to show, objects for scripts, one line for errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from refimpl import machine
from refimpl.architecture import Architecture
from refimpl.capacity import plan
from refimpl.cli import COMMANDS, main, sizes
from refimpl.cli import plan as plan_command
from refimpl.cli import roofline as roofline_command
from refimpl.cli import size as size_command
from refimpl.cli import spec as spec_command
from refimpl.hardware import ACCELERATORS, Accelerator
from refimpl.roofline import decode_step, prefill

SIDE_BY_SIDE = ["size", "llama-3-70b", "deepseek-v3", "mistral-7b-v0.1"]
SIDE_BY_SIDE += ["--context", "128k", "--batch", "8"]
FIFTY = ["plan", "llama-3-70b", "--gpus", "8xh100-sxm", "--context", "128k", "--users", "50"]
STEP = ["roofline", "llama-3-70b", "--gpus", "8xh100-sxm", "--batch", "32"]
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 28,
    "vocab_size": 37,
    "max_position_embeddings": 50,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; nothing may go to stderr."""
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def found(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The one object that a command prints with ``--json``, strict JSON on one line."""
    text = shown([*arguments, "--json"], capsys)
    assert text.count("\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def keys(value: Any) -> set[str]:
    """Every key of an object and of the objects in it, but not the kinds of layers."""
    if isinstance(value, dict):
        inner = [keys(v) for k, v in value.items() if k != "layers"]
        return set(value).union(*inner)
    return set().union(*(keys(v) for v in value)) if isinstance(value, list) else set()


# --- tables -----------------------------------------------------------------------------------


def test_models_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(SIDE_BY_SIDE, capsys)
    rows = {re.split(r"  +", line.strip())[0]: line for line in text.splitlines()}
    assert text.splitlines()[0].split() == SIDE_BY_SIDE[1:4]
    for name, figures in {
        "parameters": ["70.55 billion", "671 billion", "7.242 billion"],
        "active for a token": ["70.55 billion", "37.55 billion", "7.242 billion"],
        "weights, bf16": ["141.11 GB (131.42 GiB)", "1.34 TB (1.22 TiB)", "14.48 GB (13.49 GiB)"],
        "layers": ["80 full", "61 latent", "32 sliding (4,096)"],
        "cache per token, bf16": ["320 KiB", "68.62 KiB", "128 KiB"],
        "once windows are full": ["320 KiB", "68.62 KiB", "0 B"],
        "cache of 131,072 tokens": [
            "42.95 GB (40 GiB)",
            "9.21 GB (8.58 GiB)",
            "536.87 MB (512 MiB)",
        ],
        "of 8 sequences": ["343.6 GB (320 GiB)", "73.69 GB (68.62 GiB)", "4.29 GB (4 GiB)"],
        "cache / weights": ["2.44", "0.0549", "0.297"],
    }.items():
        assert re.split(r"  +", rows[name].strip())[1:] == figures
    assert "note: llama-3-70b is made for 8,192 tokens" in text
    assert "deepseek-v3 is made" not in text
    assert max(map(len, text.splitlines())) <= 100, "it does not fit on a slide"


def test_fifty_users_at_128k(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(FIFTY, capsys)
    rows = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in text.splitlines()}
    for name, figures in {
        "memory": ["640 GB (596.05 GiB)"],
        "reserve of 10 %": ["64 GB (59.6 GiB)"],
        "weights": ["141.11 GB (131.42 GiB)"],
        "left for the cache": ["434.89 GB (405.03 GiB)"],
        "cache of one user": ["42.95 GB (40 GiB)"],
        "users": ["10.1 of 50"],
        "as asked": ["42.95 GB", "434.89 GB", "10.1", "32", "cache"],
        "latent of 512 + 64, 8-bit": [
            *("6.04 GB", "434.89 GB", "72.0", "7", "fits"),
            "another model, and rounding",
        ],
        "32 GPUs": ["42.95 GB", "2.16 TB", "50.4", "32", "fits", "money, and traffic between"],
    }.items():
        assert rows[name] == figures
    assert "1.327 million" in text
    assert "Memory for the cache is the limit." in text
    # 141.1 GB of weights but for the embedding table, ten users of 42.95 GB: 26.8 TB/s.
    assert "A step of 10 users moves 568.56 GB and takes at least 21.21 ms, bound by memory" in text
    assert "A bound, not a prediction." in text
    assert "key-value head" not in text  # eight heads on eight GPUs
    assert max(map(len, text.splitlines())) <= 140


def test_a_step_on_the_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([*STEP, "--whiteboard"], capsys)
    assert "26.8 TB/s, 7,912 TFLOP/s in bf16, ridge 295.2 FLOP/byte" in text
    assert re.search(r"weights, bf16 +141\.11 GB  77% +141\.11 GB +\d+%\n", text)
    assert re.search(r"cache, bf16 +42\.95 GB  23% ", text)
    assert re.search(r"all bytes +184\.06 GB ", text)
    assert re.search(r"at least +6\.87 ms ", text)
    assert re.search(r"bound by +memory +compute\n", text)
    assert "The cache outweighs the weights from batch 105.1 on." in text
    assert "No batch exceeds 113.1 FLOP/byte at 4,096 tokens; the ridge is 295.2." in text
    assert "up to 1,499 tokens" in text
    assert "bounds, not predictions" in text
    fits = [line.endswith("does not fit") for line in text.splitlines() if "memory" in line[60:]]
    assert fits == [False] * 9 + [True]  # 512 sequences of 4,096 tokens are 687 GB
    read = shown(STEP, capsys)
    assert "All weights occupy 141.11 GB." in read
    assert re.search(r"weights, bf16 +139\.01 GB ", read)  # of the table, 32 rows
    assert max(map(len, read.splitlines()[1:])) <= 115


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "llama-3-70b", "--gpus", "h100-sxm"], "The weights do not fit."),
        (["plan", "llama-3-8b", "--gpus", "h100-sxm", "--users", "4"], "All fit."),
        (["plan", "llama-3-8b", "--gpus", "1 x H100 SXM"], "Memory for the cache is the limit."),
        (["plan", "smollm2-135m", "--gpus", "l4", "--reserve", "50%"], "reserve of 50 %"),
        (["plan", "llama-3-70b", "--gpus", "8xh100-sxm", "--memory", "80GiB"], "1.457 million"),
        (["size", "llama-3-8b", "--cache-dtype", "int4", "--cache-group", "64"], "34 KiB"),
        (["plan", "deepseek-v3", "--gpus", "8xh200"], "note: with 1 key-value head(s) on 8 GPUs"),
        (["size", "falcon-mamba-7b"], "fixed state"),
        (["roofline", "falcon-mamba-7b", "--gpus", "l4"], "The cache outweighs"),
        (["roofline", "llama-3-8b", "--gpus", "v100", "--dtype", "fp16"], "in fp16"),
        (["roofline", "deepseek-v3", "--gpus", "8xh200", "--dtype", "fp8"], "bf16, ridge 206.0"),
    ],
)
def test_what_else_tables_say(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in shown(arguments, capsys)


# --- objects ----------------------------------------------------------------------------------

SIZE_KEYS = {
    *("context", "batch", "weight_dtype", "cache_dtype", "cache_group", "models", "model"),
    *("max_context", "layers", "parameters", "active_parameters", "embedding_parameters"),
    *("weight_bytes", "bytes_per_token", "bytes_per_token_beyond_window", "fixed_state_bytes"),
    *("bytes_per_sequence", "cache_bytes", "cache_over_weights"),
}
STEP_KEYS = {
    *("weight_bytes", "cache_bytes", "activation_bytes", "bytes", "resident_weight_bytes"),
    *("flops", "intensity", "memory_seconds", "compute_seconds", "seconds", "bound"),
    *("num_tokens", "compute_dtype", "tokens_per_second"),
}
ROOFLINE_KEYS = STEP_KEYS | {
    *("model", "accelerator", "num_gpus", "bandwidth", "peak_flops", "ridge", "context", "batch"),
    *("weight_dtype", "cache_dtype", "whiteboard", "is_bound", "crossover_batch"),
    *("intensity_ceiling", "compute_bound_context", "decode", "prefill", "sweep", "fits"),
}
PLAN_KEYS = {
    *("model", "max_context", "accelerator", "num_gpus", "context", "users_asked"),
    *("weight_dtype", "cache_dtype", "reserve", "memory_bytes", "reserved_bytes", "step"),
    *("batch", "bytes", "seconds", "bound", "tokens_per_second", "levers", "name", "cost"),
    *("weight_bytes", "pool_bytes", "bytes_per_user", "tokens", "users", "whole_users"),
    *("gpus_needed", "limit"),
}
SPEC_KEYS = {
    *("alpha", "gamma", "cost_ratio", "verify_cost", "expected_tokens", "speedup", "operations"),
    *("best_gamma", "best_speedup", "acceptance_needed", "times", "sweep"),
}


@pytest.mark.parametrize(
    ("module", "arguments", "expected"),
    [
        (size_command, SIDE_BY_SIDE, SIZE_KEYS),
        (roofline_command, STEP, ROOFLINE_KEYS),
        (plan_command, FIFTY, PLAN_KEYS),
        (spec_command, ["spec", "0.8"], SPEC_KEYS),
    ],
    ids=["size", "roofline", "plan", "spec"],
)
def test_every_key_is_documented_and_every_documented_key_is_there(
    module: ModuleType,
    arguments: list[str],
    expected: set[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert keys(found(arguments, capsys)) == expected
    documented = set(re.findall(r"``([a-z_]+)``", module.__doc__))
    assert expected <= documented
    values = {"size", "roofline", "plan", "spec", "weights", "cache", "none"}
    assert documented - expected <= values


def test_sizes_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = found(SIDE_BY_SIDE, capsys)
    assert (report["context"], report["batch"]) == (131_072, 8)
    llama, deepseek, mistral = report["models"]
    assert llama["bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    assert llama["cache_bytes"] == 8 * llama["bytes_per_sequence"] == 8 * 131_072 * 327_680
    assert (llama["parameters"], llama["embedding_parameters"]) == (70_553_706_496, 1_050_673_152)
    assert llama["cache_over_weights"] == llama["cache_bytes"] / llama["weight_bytes"]
    assert deepseek["bytes_per_token"] == 61 * 576 * 2
    assert deepseek["layers"] == {"latent": 61}
    assert deepseek["active_parameters"] < deepseek["parameters"] / 10
    assert mistral["bytes_per_sequence"] == 4096 * 131_072 and mistral["fixed_state_bytes"] == 0
    assert mistral["bytes_per_token_beyond_window"] == 0
    scaled = found([*SIDE_BY_SIDE, "--cache-dtype", "int8", "--cache-group", "128"], capsys)
    assert scaled["cache_group"] == 128
    assert scaled["models"][0]["bytes_per_token"] == 2 * 80 * 8 * (128 + 2)


def test_a_step_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = found([*STEP, "--dtype", "fp8", "--compute-dtype", "fp8"], capsys)
    arch, h100 = Architecture.named("llama-3-70b"), ACCELERATORS["h100-sxm"]
    given = {"weight_dtype": "fp8", "compute_dtype": "fp8", "num_gpus": 8}
    step = decode_step(arch, h100, batch=32, context=4096, **given)
    assert report["decode"]["seconds"] == step.seconds
    assert report["decode"]["bytes"] == step.bytes
    assert report["prefill"]["flops"] == prefill(arch, h100, num_tokens=4096, **given).flops
    assert report["peak_flops"] == 8 * 1979e12 and report["bandwidth"] == 8 * 3.35e12
    assert report["ridge"] == 1979e12 / 3.35e12 and report["is_bound"] is True
    assert [step["batch"] for step in report["sweep"]] == [2**n for n in range(10)]
    assert report["sweep"][5] == {"batch": 32, "fits": True, **report["decode"]}
    # 70.6 GB of weights and batches of 1.342 GB in 640 GB
    assert [step["fits"] for step in report["sweep"]] == [True] * 9 + [False]


def test_a_plan_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = found([*FIFTY, "--reserve", "0"], capsys)
    arch, h100 = Architecture.named("llama-3-70b"), ACCELERATORS["h100-sxm"]
    same = plan(arch, h100, num_gpus=8, context=131_072, users=50, reserve=0)
    assert (report["users"], report["tokens"]) == (same.fit.users, same.fit.tokens)
    assert report["reserve"] == 0 and report["reserved_bytes"] == 0
    assert [lever["name"] for lever in report["levers"]] == [lever.name for lever in same.levers]
    assert report["step"]["batch"] == 11 and report["step"]["bound"] == "memory"
    poor = found(["plan", "llama-3-70b", "--gpus", "l4"], capsys)
    assert poor["step"] is None and poor["users_asked"] is None and poor["gpus_needed"] is None


def test_no_cache_and_no_end_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    report = found(["roofline", "falcon-mamba-7b", "--gpus", "l4"], capsys)
    assert report["compute_bound_context"] is None


# --- models and machines ----------------------------------------------------------------------


def test_a_config_is_read_from_a_file_or_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    for name in (str(path), str(tmp_path)):
        (model,) = found(["size", name], capsys)["models"]
        assert model["model"] == name
        assert model["bytes_per_token"] == 2 * 3 * 2 * 10 * 2
    text = shown(["size", str(path), "smollm2-135m", "--context", "64"], capsys)
    assert f"note: {path} is made for 50 tokens" in text


def test_a_hub_name_is_asked_for_its_config_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    asked = []

    def download(*given: str) -> str:
        asked.append(given)
        if given[0] == "no/body":
            raise RuntimeError("there is\nno network")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    (model,) = found(["size", "some/body"], capsys)["models"]
    assert model["model"] == "some/body" and asked == [("some/body", "config.json")]
    assert main(["size", "no/body"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        "python -m refimpl: could not get the config of 'no/body' from the hub: "
        "there is no network\n"
    )


def test_here_is_this_machine_as_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Accelerator("laptop", 16 * 10**9, 2e10, {"fp32": 1e11, "bf16": 2e11}, "me", "2026-01")
    monkeypatch.setattr(machine, "measure", lambda: here)
    report = found(["roofline", "smollm2-135m", "--gpus", "here"], capsys)
    assert (report["accelerator"], report["bandwidth"], report["ridge"]) == ("laptop", 2e10, 10.0)
    report = found(["plan", "smollm2-135m", "--gpus", "2xHere", "--memory", "8GB"], capsys)
    assert report["memory_bytes"] == 16 * 10**9


# --- speculation ------------------------------------------------------------------------------

SPEC = ["spec", "0.8", "--gamma", "4", "--cost", "0.02"]


def test_what_a_draft_buys(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([*SPEC, "--verify-cost", "1.14"], capsys)
    rows = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in text.splitlines()}
    # 1 + 0.8 + 0.64 + 0.512 + 0.4096 tokens in 4 · 0.02 + 1.14 steps, for 5 tokens' arithmetic.
    assert rows["tokens from a target pass"] == ["3.36"]
    assert rows["times plain decoding"] == ["2.76"]
    assert rows["times its arithmetic"] == ["1.49"]
    assert re.search(r"\n4 +3\.36 +2\.76\n", text)
    assert "Best gamma up to 20: 12, 3.42 times" in text
    assert "accepted independently" in text
    assert "No block up to 20 beats plain decoding." in shown(
        ["spec", "0.1", "--cost", "0.2"], capsys
    )
    # The published thresholds for 2 to 5 times at this cost, a free verify and the best block.
    assert "2 times: 0.56  3 times: 0.73  4 times: 0.81  5 times: 0.86" in shown(SPEC, capsys)
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_draft_buys_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = found([*SPEC], capsys)
    tokens = [sum(0.8**i for i in range(n + 1)) for n in range(21)]
    assert report["expected_tokens"] == pytest.approx(tokens[4])
    assert report["speedup"] == pytest.approx(tokens[4] / 1.08)
    assert report["operations"] == pytest.approx(5 / tokens[4])
    gains = [tokens[n] / (0.02 * n + 1) for n in range(21)]
    assert report["best_gamma"] == gains.index(max(gains))
    assert report["best_speedup"] == pytest.approx(max(gains))
    for row in report["sweep"]:
        assert row["speedup"] == pytest.approx(gains[row["gamma"]])
    assert [row["times"] for row in report["acceptance_needed"]] == [2, 3, 4, 5]
    dear = found(["spec", "0.5", "--cost", "1"], capsys)
    assert (dear["best_gamma"], dear["best_speedup"]) == (0, 1)
    assert {row["alpha"] for row in dear["acceptance_needed"]} == {None}


# --- wrong values -----------------------------------------------------------------------------

PLAN, ROOF = (["plan", "llama-3-8b"], ["roofline", "llama-3-8b"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["size"], "required: MODEL"),
        (["size", "llama-3-7b"], "unknown model 'llama-3-7b'; did you mean llama-3"),
        (["size", "llama-3-8b", "--context", "0"], "--context: '0' is too small: at least 1"),
        (["size", "llama-3-8b", "--context", "4x"], "cannot read the size '4x'"),
        (["size", "llama-3-8b", "--context", "1.5"], "'1.5' is not a whole number"),
        (["size", "llama-3-8b", "--context", "9" * 40], "too large"),
        (["size", "llama-3-8b", "--batch", "0"], "--batch: 0 is too small"),
        (["size", "llama-3-8b", "--dtype", "fp7"], "invalid choice: 'fp7'"),
        (["size", "llama-3-8b", "--cache-group", "0"], "--cache-group: 0 is too small"),
        (["size", "llama-3-8b", "--contxt", "8k"], "did you mean --context or"),
        (["size", "nowhere/config.json"], "there is no file 'nowhere/config.json'"),
        (["size", "./nowhere"], "there is no file './nowhere'"),
        (["spec"], "required: ALPHA"),
        (["spec", "1.2"], "alpha must lie in 0 to 1, got 1.2"),
        (["spec", "nan"], "'nan' is not finite"),
        (["spec", "x"], "'x' is not a number"),
        (["spec", "0.5", "--gamma", "-1"], "-1"),
        (["spec", "0.5", "--gamma", "2.5"], "'2.5' is not a whole number"),
        (["spec", "0.5", "--cost", "-0.1"], "cost_ratio must be at least 0 and finite, got -0.1"),
        (["spec", "0.5", "--verify-cost", "0"], "verify_cost must be above 0"),
        (["spec", "0.5", "--gama", "2"], "did you mean --gamma?"),
        ([*PLAN], "required: --gpus"),
        ([*PLAN, "--gpus", "8xh100"], "unknown accelerator 'h100'; did you mean h100-sxm or h100-"),
        ([*PLAN, "--gpus", "0xl4"], "cannot read '0xl4': at least one"),
        ([*PLAN, "--gpus", ""], "cannot read ''"),
        ([*PLAN, "--gpus", "l4", "--users", "-1"], "-1"),
        ([*PLAN, "--gpus", "l4", "--reserve", "100%"], "from 0 to below 1, got 1.0"),
        ([*PLAN, "--gpus", "l4", "--reserve", "nan"], "'nan' is not finite"),
        ([*PLAN, "--gpus", "l4", "--reserve", "x%"], "'x' is not a number"),
        ([*PLAN, "--gpus", "l4", "--memory", "5XB"], "cannot read the size '5XB'"),
        ([*PLAN, "--gpus", "l4", "more"], "unexpected argument 'more'"),
        ([*ROOF, "--gpus", "v100"], "v100 has no rate for 'bf16': it has fp32, fp16"),
        ([*ROOF, "--gpus", "l4", "--compute-dtype", "int4"], "l4 has no rate for 'int4'"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and said in captured.err, captured.err
    assert "quote a prompt" not in captured.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot read"),
        ("[1]", "holds no JSON object"),
        ("{}", "the config has no 'model_type'"),
        ('{"model_type": "teapot"}', "'teapot'"),
        (b"\xff\xfe\x00", "cannot read"),
    ],
)
def test_a_file_that_is_no_config_is_named(
    content: str | bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["size", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and said in captured.err and str(path) in captured.err


# --- the tool itself --------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [SIDE_BY_SIDE, STEP, FIFTY], ids=lambda a: a[0])
def test_the_calculators_run_without_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.modules['torch'] = None; from refimpl.cli import main; "
        f"sys.exit(main({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert arguments[1] in done.stdout and done.stderr == ""


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("size", "roofline", "plan"):
        text = shown([name, "--help"], capsys)
        assert COMMANDS[name].HELP in text
        for option in ("--context", "--dtype", "--cache-dtype", "--json"):
            assert option in text


@pytest.mark.parametrize(
    ("text", "value"), [("10%", 0.1), (" 12.5 % ", 0.125), ("0.05", 0.05), ("0", 0.0)]
)
def test_shares_are_read_as_people_write_them(text: str, value: float) -> None:
    assert sizes.share(text) == pytest.approx(value)


def test_columns_are_aligned() -> None:
    rows = [["", "a", "b"], ["long name", "1", "words"], ["x", "1,000", "w"]]
    assert sizes.table(rows) == (
        "               a      b\nlong name      1  words\nx          1,000      w"
    )
    assert sizes.table(rows, words=(0, 2)).splitlines()[2] == "x          1,000  w"
