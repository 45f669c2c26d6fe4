"""The X-ray: what compiles for which target, how it is read, occupancy by hand, the command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is built for Linux only", allow_module_level=True)

from refimpl.cli import main
from refimpl.kernels import xray
from refimpl.kernels.xray import Report, Request, assembly
from refimpl.kernels.xray.limits import TARGETS, occupancy

FORWARD = [Request(target=target, head_dim=D) for target in TARGETS for D in (64, 128)]
MATRIX = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "v_mfma_"}
STRIDED = Request(target="sm_80", head_dim=64, inner_stride=2)
SMALL = {"head_dim": 64, "block_t": 64}
OTHERS = [
    Request("flash-v1", "sm_80", **SMALL),
    Request("flash-dq", "sm_90", masked=True, **SMALL),
    Request("flash-dkv", "sm_80", windowed=True, **SMALL),
]


@pytest.fixture(scope="module")
def reports() -> dict[Request, Report]:
    """The forward kernel in bf16 on every target at two head dims, and some others."""
    asked = [*FORWARD, STRIDED, *OTHERS]
    return dict(zip(asked, xray.examine_all(asked), strict=True))


@pytest.mark.parametrize("request_", FORWARD, ids=lambda r: f"{r.target}-{r.head_dim}")
def test_the_forward_kernel_compiles_to_tensor_core_instructions(
    request_: Request, reports: dict[Request, Report]
) -> None:
    report = reports[request_]
    target = report.target
    assert request_.dtype == "bf16" and request_.inner_stride == 1
    assert report.tensor_core
    assert all(name.startswith(MATRIX[target.name]) for name in report.tensor_core)
    assert 0 < sum(report.tensor_core.values()) < len(report.loop) < report.num_instructions
    assert 0 < report.registers <= target.max_registers
    assert 0 < report.shared_bytes <= target.shared_per_block
    assert (report.tensor_columns > 0) is (target.name == "sm_100")
    assert report.occupancy.blocks >= 1 and report.occupancy.warps <= target.warps
    if target.name in ("sm_80", "sm_90"):
        assert not report.spills and report.stack_bytes == report.spill_instructions == 0
    if target.backend == "cuda":
        assert report.async_copy["LDGSTS"] > 0


@pytest.mark.parametrize("request_", OTHERS, ids=lambda r: r.kernel)
def test_the_other_kernels_compile_too(request_: Request, reports: dict[Request, Report]) -> None:
    report = reports[request_]
    assert set(report.tensor_core) == {MATRIX[request_.target]} and not report.spills
    assert report.loop and report.occupancy.blocks >= 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_inner_loop_says_which_source_it_came_from(
    target: str, reports: dict[Request, Report]
) -> None:
    report = reports[Request(target=target, head_dim=64)]
    products = [x for x in report.loop if x.opcode in report.tensor_core]
    assert products
    # The assembler may file a product under the line that made its operand: not all are asked.
    assert "tl.dot(" in xray.source_line(products[0])
    # What is in the loop: both products, the exponential; not the division after it.
    lines = {xray.source_line(x) for x in report.loop}
    for part in ("tl.dot(q_td", "tl.dot(p_ts", "tl.exp2(scores_ts"):
        assert any(part in line for line in lines), part
    assert not any("acc_te / sum_t" in line for line in lines)
    excerpt = report.excerpt(10)
    assert len(excerpt) == 10 and any(x.opcode in report.tensor_core for x in excerpt)
    assert report.excerpt(0) == ()


def test_other_strides_within_a_row_compile_but_lose_the_asynchronous_copies(
    reports: dict[Request, Report],
) -> None:
    fast, general = reports[Request(target="sm_80", head_dim=64)], reports[STRIDED]
    assert general.tensor_core
    assert sum(general.async_copy.values()) == 0 < sum(fast.async_copy.values())


def test_a_tile_that_does_not_fit_names_bytes_and_limit() -> None:
    request = Request(target="sm_80", head_dim=256, block_t=64, block_s=32, num_stages=6)
    with pytest.raises(ValueError, match=r"need [\d,]+ bytes of shared memory") as caught:
        xray.examine(request)
    said = str(caught.value)
    assert "sm_80 (A100) has at most 166,912" in said and "width 256 in bf16" in said
    need = int(said.partition("need ")[2].partition(" bytes")[0].replace(",", ""))
    # At least the keys and values of all stages but one.
    assert need >= 2 * 256 * 32 * 2 * (6 - 1) and need > 166_912


def test_a_compiler_that_gives_up_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xray, "_compile", lambda requests: [{"error": "PassManager failed"}])
    with pytest.raises(RuntimeError, match="flash does not compile for sm_90: PassManager failed"):
        xray.examine(Request())
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match="the compiling process ended with 1"):
        xray.examine(Request())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "flahs"}, "no kernel 'flahs'; did you mean flash"),
        ({"target": "sm_91"}, "no target 'sm_91'; did you mean sm_90"),
        ({"target": "x"}, "there is sm_80, sm_90, sm_100, gfx942"),
        ({"dtype": "bf61"}, "did you mean bf16"),
        ({"head_dim": 257}, "head_dim must be a whole number from 1 to 256, got 257"),
        ({"block_t": 48}, "block_t must be a power of two from 16 to 256, got 48"),
        ({"num_warps": True}, "num_warps must be a power of two from 1 to 16, got True"),
        ({"windowed": True, "causal": False}, "is causal"),
        ({"kernel": "flash-v1", "masked": True}, "flash-v1 takes no mask"),
    ],
)
def test_values_that_no_kernel_takes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**change)


# --- occupancy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "columns", "blocks", "bound"),
    [
        # 65,536 registers: 32 a thread for 2,048 threads is exactly all; 33 take a unit more.
        ("sm_80", 32, 0, 8, 0, 8, "warps"),
        ("sm_80", 33, 0, 8, 0, 6, "registers"),
        ("sm_90", 255, 0, 8, 0, 1, "registers"),
        ("sm_90", 128, 0, 8, 0, 2, "registers"),
        # 101 a thread are 3,328 a warp: 4 warps in each of 4 parts, in blocks of any size.
        ("sm_80", 101, 0, 1, 0, 16, "registers"),
        ("sm_90", 101, 0, 2, 0, 8, "registers"),
        ("sm_90", 255, 0, 4, 0, 2, "registers"),
        ("sm_90", 16, 0, 1, 0, 32, "blocks"),
        # 164 KiB hold two blocks of 81 KiB with the kibibyte that each reserves, not of 82.
        ("sm_80", 32, 81 * 1024, 4, 0, 2, "shared memory"),
        ("sm_80", 32, 82 * 1024, 4, 0, 1, "shared memory"),
        ("sm_90", 32, 227 * 1024, 4, 0, 1, "shared memory"),
        ("sm_100", 32, 1024, 4, 256, 2, "tensor memory"),
        # 512 vector registers for each lane of a SIMD: 128 leave room for 4 waves, 129 for 3.
        ("gfx942", 128, 0, 4, 0, 4, "registers"),
        ("gfx942", 129, 0, 4, 0, 3, "registers"),
        ("gfx942", 64, 0, 4, 0, 8, "warps"),
        ("gfx942", 64, 40 * 1024, 4, 0, 1, "shared memory"),
    ],
)
def test_occupancy_by_hand(
    target: str, registers: int, shared: int, warps: int, columns: int, blocks: int, bound: str
) -> None:
    fit = occupancy(
        TARGETS[target],
        registers=registers,
        shared=shared,
        num_warps=warps,
        tensor_columns=columns,
    )
    assert (fit.blocks, fit.bound_by) == (blocks, bound)
    assert fit.warps == blocks * warps and fit.share == fit.warps / TARGETS[target].warps


def test_a_block_that_does_not_fit_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no block fits on sm_90: registers allows none"):
        occupancy(TARGETS["sm_90"], registers=255, shared=0, num_warps=16)


def test_limits_carry_their_source() -> None:
    for name, target in TARGETS.items():
        assert name == target.name and target.source
        year, month = map(int, target.date.split("-"))
        assert 2020 <= year <= 2026 and 1 <= month <= 12
        assert target.shared_per_block + target.shared_reserved <= target.shared_bytes


# --- reading assembly ---------------------------------------------------------------------------

SASS = """
	//## File "/x/kernel.py", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P3 BRA `(.L_x_0) ;
.L_x_1:
	//## File "/x/kernel.py", line 7
        /*0020*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
	//## File "/x/kernel.py", line 8 inlined at "/x/other.py", line 2
        /*0030*/              @P0  HMMA.16816.F32.BF16 R8, R4, R6, RZ ;
        /*0040*/                   STL [R1], R8 ;
.L_x_2:
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/              @!P2 BRA `(.L_x_1) ;
.L_x_0:
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_1) ;
"""

AMD = """
	.file	1 "/x" "kernel.py"
forward_kernel:
	.loc	1 3 0 prologue_end             ; kernel.py:3:0
	s_load_dwordx4 s[0:3], s[0:1], 0x0
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
	.loc	1 7 31 is_stmt 1               ; kernel.py:7:31
	buffer_load_dwordx4 v4, s[4:7], 0 offen lds
	v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]
	scratch_store_dword off, v0, s32        ; 4-byte Folded Spill
	s_cbranch_scc1 .LBB0_1
	s_endpgm
	.section	.rodata,"a",@progbits
	s_nop 0
"""


def test_sass_is_read() -> None:
    listing = assembly.read_sass(SASS)
    assert [x.opcode for x in listing.instructions] == [
        *("LDC", "BRA", "LDGSTS", "HMMA", "STL", "BRA", "BRA", "EXIT", "BRA")
    ]
    assert [(x.file, x.line) for x in listing.instructions[:4]] == [
        *[("/x/kernel.py", 3)] * 2,
        ("/x/kernel.py", 7),
        ("/x/kernel.py", 8),
    ]
    assert listing.count("matrix") == {"HMMA": 1}
    assert listing.count("copy") == {"LDGSTS": 1} and listing.count("spill") == {"STL": 1}
    # Not the wait on itself, which has no product, and not the jump from behind the exit.
    assert [x.opcode for x in listing.inner_loop()] == ["LDGSTS", "HMMA", "STL", "BRA", "BRA"]


def test_amdgcn_is_read() -> None:
    listing = assembly.read_amdgcn(AMD)
    assert len(listing.instructions) == 6
    assert listing.count("matrix") == {"v_mfma_f32_32x32x8_bf16": 1}
    assert listing.count("copy") == {"buffer_load_dwordx4 lds": 1}
    assert listing.count("spill") == {"scratch_store_dword": 1}
    assert [x.line for x in listing.inner_loop()] == [7, 7, 7, 7]
    assert listing.inner_loop()[0].file == "/x/kernel.py"


def test_code_without_a_loop_has_no_inner_loop() -> None:
    assert assembly.read_sass(SASS.replace("@!P2 BRA `(.L_x_1)", "NOP")).inner_loop() == ()


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def at_hand(reports: dict[Request, Report], monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Answer from the reports already made; the requests are recorded."""
    asked: list[Request] = []

    def examine_all(requests: list[Request]) -> list[Report]:
        asked.extend(requests)
        return [reports[request] for request in requests]

    monkeypatch.setattr(xray, "examine_all", examine_all)
    return asked


def test_the_command_prints_the_report(
    at_hand: list[Request], reports: dict[Request, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["xray", "flash", "--target", "sm_90"]) == 0
    said = capsys.readouterr().out
    assert at_hand == [Request()]
    report = reports[at_hand[0]]
    assert said.startswith("flash on sm_90 (H100), Triton ")
    assert f"registers a thread        {report.registers} of 255" in said
    assert f"{report.tensor_core['HGMMA']} HGMMA" in said
    assert f"bound by {report.occupancy.bound_by}" in said
    assert "24 of" in said and "forward.py:" in said and "tl.dot(" in said


def test_the_command_prints_one_object(
    at_hand: list[Request], reports: dict[Request, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["xray", "flash", "--target", "all", "--head-dim", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernel"] == "flash"
    assert [x["target"] for x in found["reports"]] == list(TARGETS)
    for shown, request in zip(found["reports"], at_hand, strict=True):
        report = reports[request]
        assert shown["head_dim"] == 64 and shown["registers"] == report.registers
        assert shown["tensor_core"] == report.tensor_core
        assert shown["num_loop_instructions"] == len(report.loop)
        assert shown["occupancy"]["limits"] == dict(report.occupancy.limits)
        assert shown["spills"] is report.spills
        assert len(shown["excerpt"]) == 24
        assert all("/" not in line["file"] for line in shown["excerpt"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["xray"], "KERNEL"),
        (["xray", "flas"], "no kernel 'flas'; did you mean flash"),
        (["xray", "flash", "--target", "sm90"], "no target 'sm90'; did you mean sm_90"),
        (["xray", "flash", "--dtype", "fp8"], "no dtype 'fp8'; did you mean"),
        (["xray", "flash", "--block-t", "100"], "block_t must be a power of two"),
        (["xray", "flash", "--head-dim", "0"], "0 is too small"),
        (["xray", "flash", "--windowed", "--non-causal"], "a window counts"),
        (["xray", "flash", "--tagret", "sm_90"], "did you mean --target"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and said in captured.err


def test_help_names_the_kernels_and_targets_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xray", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in (*xray.KERNELS, *TARGETS, *xray.DTYPES):
        assert name in text


def test_without_triton_the_command_says_why() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; from refimpl.cli import main; "
        "sys.exit(main(['xray', 'flash']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout == ""
    assert "there is no Triton on this machine" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_compiler_that_dies_is_one_line_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    died = subprocess.CompletedProcess([], returncode=-9, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: died)
    assert main(["xray", "flash"]) == 1
    said = capsys.readouterr().err
    assert "the compiling process ended with -9" in said and said.count("\n") == 1
