"""The command line: what it streams, what it reports, and one line for everything wrong."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import hf_twin  # noqa: F401  (sets the hypothesis profile)

from refimpl import weights
from refimpl.cli import COMMANDS, doctor, main
from refimpl.cli import generate as generate_command
from refimpl.decode import generate
from refimpl.model import Decoder
from refimpl.sampling import Sampler
from refimpl.weights import Tokenizer, locate

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def loaded() -> tuple[Decoder, Tokenizer]:
    """The packaged model, read once."""
    return weights.load("smollm2-135m")


@pytest.fixture
def at_hand(loaded: tuple[Decoder, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make ``generate`` use the model already read; the calls to ``load`` are recorded."""
    calls: list[Any] = []

    def load(name: str, *, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Tokenizer]:
        calls.append((name, dtype))
        return loaded

    monkeypatch.setattr(weights, "load", load)
    return calls


# --- generate -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [[], ["--plain"], ["--fused"], ["--naive"]])
def test_the_stream_is_the_text_that_generate_gives(
    code: list[str],
    at_hand: list[Any],
    loaded: tuple[Decoder, Tokenizer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, tokenizer = loaded
    new = generate(model, tokenizer.encode(PROMPT), max_new_tokens=6)
    assert main(["generate", PROMPT, "--max-new-tokens", "6", *code]) == 0
    said = capsys.readouterr()
    assert said.out == tokenizer.decode(new) + "\n"
    assert "6 tokens" in said.err and "tokens/s" in said.err
    assert ("none, every step recomputes" in said.err) is (code == ["--naive"])
    assert ("plain" in said.err) is (code == ["--plain"])


def test_text_is_written_while_tokens_are_still_to_come(
    at_hand: list[Any], loaded: tuple[Decoder, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            events.append(text)
            return len(text)

        def flush(self) -> None:
            events.append("flushed")

    plain = Decoder.forward

    def forward(self: Decoder, *args: Any, **settings: Any) -> torch.Tensor:
        events.append("step")
        return plain(self, *args, **settings)

    monkeypatch.setattr(Decoder, "forward", forward)
    monkeypatch.setattr(sys, "stdout", Recorder())
    assert main(["generate", PROMPT, "--max-new-tokens", "3"]) == 0
    monkeypatch.undo()
    _, tokenizer = loaded
    first, second = [i for i, event in enumerate(events) if event == "step"][:2]
    between = events[first + 1 : second]
    new = generate(loaded[0], tokenizer.encode(PROMPT), max_new_tokens=1)
    assert between == [tokenizer.decode(new), "flushed"]


def test_sampling_options_reach_the_sampler_and_the_seed_decides(
    at_hand: list[Any], loaded: tuple[Decoder, Tokenizer], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    command = ["generate", PROMPT, "--max-new-tokens", "5", "--json"]
    options = ["--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"]
    texts = []
    for seed in (7, 7, 8):
        assert main([*command, *options, "--seed", str(seed)]) == 0
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
        expected = generate(
            model,
            tokenizer.encode(PROMPT),
            max_new_tokens=5,
            sampler=Sampler(temperature=1.5, top_k=40, top_p=0.95, min_p=0.01),
            generator=torch.Generator().manual_seed(seed),
        )
        assert texts[-1] == expected
    assert texts[0] == texts[1] != texts[2]


def test_a_filter_alone_samples_at_temperature_1(
    at_hand: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[Any] = []
    plain = generate_command._decode
    monkeypatch.setattr(
        generate_command, "_decode", lambda *given: (used.append(given[3]), plain(*given))[1]
    )
    for extra in ([], ["--top-k", "3"], ["--temperature", "0"]):
        assert main(["generate", PROMPT, "--max-new-tokens", "1", *extra]) == 0
    assert used == [Sampler(temperature=0), Sampler(top_k=3), Sampler(temperature=0)]
    assert used[0].is_greedy and not used[1].is_greedy


def test_json_holds_one_object_with_consistent_numbers(
    at_hand: list[Any], loaded: tuple[Decoder, Tokenizer], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    assert main(["generate", PROMPT, "--max-new-tokens", "4", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert said.err == "" and said.out.count("\n") == 1
    assert set(report) == {
        *("model", "dtype", "code", "prompt", "text", "tokens", "stop"),
        *("num_prompt_tokens", "num_new_tokens", "cache_bytes", "cache_slots"),
        *("prefill_seconds", "prefill_tokens_per_second"),
        *("decode_seconds", "decode_tokens_per_second"),
    }
    assert report["text"] == tokenizer.decode(report["tokens"])
    assert (report["stop"], report["num_new_tokens"]) == ("length", 4)
    # 2 · layers · kv heads · head dim · 4 bytes, for the prompt and all new tokens but the last.
    slots = len(tokenizer.encode(PROMPT)) + 3
    assert report["cache_slots"] == slots
    assert report["cache_bytes"] == 2 * 30 * 3 * 64 * 4 * slots
    rate = report["decode_tokens_per_second"]
    assert rate == pytest.approx(3 / report["decode_seconds"])
    assert at_hand == [("smollm2-135m", torch.float32)]


def test_it_stops_at_the_end_of_text_and_does_not_print_its_mark(
    at_hand: list[Any],
    loaded: tuple[Decoder, Tokenizer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, tokenizer = loaded
    new = generate(model, tokenizer.encode(PROMPT), max_new_tokens=4)
    monkeypatch.setattr(tokenizer, "eos_id", new[2])
    assert new[2] not in new[:2]
    assert main(["generate", PROMPT, "--max-new-tokens", "9"]) == 0
    said = capsys.readouterr()
    assert said.out == tokenizer.decode(new[:2]) + "\n"
    assert "stopped at  end of text" in said.err
    assert main(["generate", PROMPT, "--max-new-tokens", "9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tokens"], report["stop"]) == (new[:3], "end")
    assert report["text"] == tokenizer.decode(new[:2])


def test_chat_asks_in_the_template(
    at_hand: list[Any], loaded: tuple[Decoder, Tokenizer], capsys: pytest.CaptureFixture[str]
) -> None:
    _, tokenizer = loaded
    asked = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    assert main(["generate", PROMPT, "--chat", "--max-new-tokens", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_prompt_tokens"] == len(asked) > len(tokenizer.encode(PROMPT))
    assert report["decode_tokens_per_second"] is None


def test_dtype_is_what_the_model_is_loaded_in(
    at_hand: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", PROMPT, "--dtype", "bf16", "--max-new-tokens", "1"]) == 0
    assert at_hand == [("smollm2-135m", torch.bfloat16)]


def test_a_reader_that_goes_away_ends_it_without_a_traceback(
    at_hand: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        assert main(["generate", PROMPT, "--max-new-tokens", "2"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if not line.startswith("loading")] == []


def test_a_closed_stdout_is_no_reason_to_fail() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m refimpl fetch >&-', sys.executable],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# --- a character spread over several tokens ---------------------------------------------------


def pieces(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """What a stream shows, token by token, and at the end."""
    stream = tokenizer.stream()
    return [*(stream.push(token) for token in tokens), stream.flush()]


def test_a_character_is_shown_when_it_is_whole(loaded: tuple[Decoder, Tokenizer]) -> None:
    _, tokenizer = loaded
    text = "naïve 🌊🐙 漢字, e\u0301 and 👩\u200d🚀 — end"
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    shown = pieces(tokenizer, tokens)
    assert "".join(shown) == text and shown[-1] == ""
    assert "" in shown[:-1], "no token of this text ends inside a character: it tests nothing"
    assert not any("\ufffd" in piece for piece in shown)
    for length in range(len(tokens)):  # cut anywhere, also inside a character
        assert "".join(pieces(tokenizer, tokens[:length])) == tokenizer.decode(tokens[:length])


@given(st.data())
def test_any_tokens_show_what_decoding_them_at_once_gives(
    loaded: tuple[Decoder, Tokenizer], data: st.DataObject
) -> None:
    # Ids below 300 are nearly all single bytes: most sequences are not valid UTF-8.
    _, tokenizer = loaded
    token = st.integers(0, 300) | st.integers(0, tokenizer.vocab_size - 1)
    tokens = data.draw(st.lists(token, max_size=12))
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens)


# --- wrong values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a command: size, roofline, plan, spec, generate, xray, fetch, doctor"),
        (["generat", "x"], "'generat'; did you mean generate?"),
        (["Docter"], "did you mean doctor?"),
        (["qqq"], "there is size, roofline, plan, spec, generate, xray, fetch, doctor"),
        (["generate"], "PROMPT"),
        (["generate", "x", "y"], "'y'; quote a prompt"),
        (["generate", "x", "--temprature", "2"], "did you mean --temperature"),
        (["generate", "x", "--max", "3"], "'--max'"),
        (["generate", "x", "--max-new-tokens", "0"], "0 is too small: at least 1"),
        (["generate", "x", "--max-new-tokens", "many"], "'many' is not a whole number"),
        (["generate", "x", "--max-new-tokens", "9000"], "9000 slots, the context has 8192"),
        (["generate", "x", "--dtype", "bf17"], "'bf17'"),
        (["generate", "x", "--temperature", "-1"], "temperature must be 0"),
        (["generate", "x", "--temperature", "nan"], "'nan' is not finite"),
        (["generate", "x", "--top-k", "-2"], "-2 is too small"),
        (["generate", "x", "--top-p", "1.5"], "top_p must lie in 0 to 1, got 1.5"),
        (["generate", "x", "--min-p", "x"], "'x' is not a number"),
        (["generate", "x", "--seed", str(2**64)], "too large"),
        (["generate", "x", "--plain", "--fused"], "not allowed with"),
        (["generate", "x", "--model", "smollm-135m"], "did you mean smollm2-135m?"),
        (["generate", "\udced\udca0"], "is not text that UTF-8 can hold"),
        (["generate", ""], "the prompt is empty"),
        (["doctor", "--jsn"], "did you mean --json?"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, at_hand: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and said in captured.err, captured.err


@pytest.mark.parametrize("name", ["./nowhere", "~nobody/there/at-all", "/no/such/file.gguf"])
def test_a_model_that_is_not_there_is_a_wrong_value(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "x", "--model", name]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert f"no model {name!r}" in said.err


def test_it_runs_as_a_module_and_help_does_not_wait_for_torch() -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", "refimpl", "fetsh"], capture_output=True, text=True, timeout=120
    )
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert wrong.stderr == "python -m refimpl: unknown command 'fetsh'; did you mean fetch?\n"
    code = (
        "import sys; from refimpl.cli import main; code = main(['--help']); "
        "sys.exit(code or ('torch' in sys.modules) * 3)"
    )
    help_ = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert help_.returncode == 0, help_.stderr
    assert all(name in help_.stdout for name in COMMANDS)


def test_help_lists_only_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
    assert main(["--version"]) == 0
    capsys.readouterr()


# --- the model's file -------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that makes a small file which passes for the model, nowhere to be found yet."""
    content = b"GGUF, nearly"
    monkeypatch.setattr(locate, "MODEL_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.delenv("REFIMPL_MODEL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: None)

    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return make


def test_fetch_looks_in_the_variable_then_the_package_then_the_cache_then_downloads(
    small: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    downloads: list[Path] = []

    def download(folder: Path, target: Path) -> None:
        downloads.append(target)
        small(str(target))

    monkeypatch.setattr(locate, "_download_wheel", download)

    def found() -> str:
        assert main(["fetch"]) == 0
        return capsys.readouterr().out

    cached = f"cache/refimpl/{locate.MODEL_FILE}"
    assert f": {cached}, SHA-256" in found() and len(downloads) == 1
    assert cached in found() and len(downloads) == 1  # the second time it is there
    small("package/other-name.gguf")
    package = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "package")])
    monkeypatch.setattr(locate.importlib.util, "find_spec", lambda name: package)
    assert "package/other-name.gguf" in found()
    monkeypatch.setenv("REFIMPL_MODEL", str(small("mine.gguf")))
    assert ": mine.gguf" in found() and len(downloads) == 1


def test_fetch_says_what_to_do_when_there_is_no_network(
    small: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def download(folder: Path, target: Path) -> None:
        raise OSError("pip could not download it: no network")

    monkeypatch.setattr(locate, "_download_wheel", download)
    assert main(["fetch"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    *_, last = said.err.splitlines()
    assert last.endswith("no network; without a network, set REFIMPL_MODEL to a copy of the file")


@pytest.fixture
def truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first megabyte of the model, named by REFIMPL_MODEL."""
    path = tmp_path / "truncated.gguf"
    with weights.find_model().open("rb") as file:
        path.write_bytes(file.read(2**20))
    monkeypatch.setenv("REFIMPL_MODEL", str(path))
    return path


@pytest.mark.parametrize("command", [["fetch"], ["generate", "x"]])
def test_a_truncated_model_is_one_line_and_exit_code_1(
    command: list[str], truncated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert "truncated.gguf is not the expected file" in last
    assert last.endswith("REFIMPL_MODEL names the file: correct or unset it")


# --- doctor -----------------------------------------------------------------------------------


def examined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *names: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and report of ``doctor --json``, with only the named checks where any is named."""
    if names:
        chosen = {name: doctor.CHECKS[name] for name in names}
        monkeypatch.setattr(doctor, "CHECKS", chosen)
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_doctor_reports_every_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from refimpl import machine

    monkeypatch.setattr(machine, "read_bandwidth", lambda: 12.34e9)
    code, report = examined(capsys, monkeypatch)
    assert set(report) == {"ok", "checks"}
    rows = {row["name"]: row for row in report["checks"]}
    assert list(rows) == list(doctor.CHECKS)
    for row in rows.values():
        assert set(row) == {"name", "found", "fix", "ok"}
        assert row["ok"] is (row["fix"] is None) and row["found"]
    assert report["ok"] is all(row["ok"] for row in rows.values()) is (code == 0)
    assert rows["memory reads"]["found"] == "12.3 GB/s"
    assert f"torch {torch.__version__}" in rows["packages"]["found"]
    assert rows["model"]["ok"] and rows["python"]["ok"] and rows["packages"]["ok"]


def test_doctor_is_red_for_an_altered_model(
    truncated: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = examined(capsys, monkeypatch, "python", "model")
    assert code == 1 and not report["ok"]
    good, bad = report["checks"]
    assert good["ok"] and not bad["ok"] and bad["found"] == "damaged"
    assert "python -m refimpl fetch" in bad["fix"] and "REFIMPL_MODEL" in bad["fix"]
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("FAIL  model") and lines[2].strip().startswith("->")
    assert lines[-1] == "1 of 2 need attention"


def test_doctor_is_red_for_an_absent_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFIMPL_MODEL", "not-there.gguf")
    code, report = examined(capsys, monkeypatch, "model")
    assert (code, report["checks"][0]["found"]) == (1, "absent")


def test_doctor_compares_installed_versions_with_the_pins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy

    monkeypatch.setattr(doctor, "_checkout", lambda: tmp_path)
    code, report = examined(capsys, monkeypatch, "pins")
    assert code == 0 and "not a checkout" in report["checks"][0]["found"]
    pins = tmp_path / "constraints.txt"
    same = f"# made by hand\nnumpy=={numpy.__version__}\nnot-a-package==1.0 ; sys_platform == 'x'\n"
    # A build label after the + is not part of the version.
    pins.write_text(f"{same}torch=={torch.__version__.partition('+')[0]}\n", encoding="utf-8")
    code, report = examined(capsys, monkeypatch, "pins")
    assert code == 0 and report["checks"][0]["found"].startswith("2 of 2 installed")
    pins.write_text(f"{same}torch==1.0.0\n", encoding="utf-8")
    code, report = examined(capsys, monkeypatch, "pins")
    assert code == 1 and "pinned 1.0.0" in report["checks"][0]["fix"]
    assert "constraints.txt" in report["checks"][0]["fix"]


@pytest.mark.parametrize(
    ("asked", "gpu", "ok", "found"),
    [
        ("", False, True, "interpreter: there is no GPU here"),
        ("", True, True, "compiled for Some GPU"),
        ("1", True, True, "interpreter: TRITON_INTERPRET=1 asks for it"),
        ("0", False, False, "there is no GPU"),
        ("yes", False, False, "'yes'"),
    ],
)
def test_doctor_says_how_triton_would_run(
    asked: str,
    gpu: bool,
    ok: bool,
    found: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", asked)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    code, report = examined(capsys, monkeypatch, "triton mode")
    assert (code == 0) is ok and found in report["checks"][0]["found"]


@pytest.mark.parametrize(("platform", "ok"), [("linux", False), ("darwin", True)])
def test_doctor_misses_triton_only_where_it_exists(
    platform: str, ok: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", platform)
    code, report = examined(capsys, monkeypatch, "triton mode")
    assert (code == 0) is ok and report["checks"][0]["found"].startswith("absent")


def test_doctor_is_red_for_more_threads_than_cores_and_for_a_full_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from refimpl import machine

    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=2**20))
    code, report = examined(capsys, monkeypatch, "cores", "free disk")
    threads, disk = report["checks"]
    assert code == 1 and "OMP_NUM_THREADS=2" in threads["fix"]
    assert disk["found"] == "1 MiB" and "2 GiB" in disk["fix"]


def test_a_check_that_cannot_run_is_a_red_line_and_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> doctor.Check:
        raise ModuleNotFoundError("No module named 'torch'")

    def broken() -> doctor.Check:
        raise RuntimeError("cannot load libgomp")

    monkeypatch.setattr(doctor, "CHECKS", {"cores": missing, "memory reads": broken})
    code, report = examined(capsys, monkeypatch)
    assert code == 1
    assert [row["fix"] is not None for row in report["checks"]] == [True, True]
    assert "No module named 'torch'" in report["checks"][0]["found"]
    assert "libgomp" in report["checks"][1]["found"]
