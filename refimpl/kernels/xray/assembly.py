"""Reading machine code as text: instructions with their source lines, counts, the inner loop."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# By target: what multiplies matrices, what copies to shared memory without passing registers,
# what goes through thread-local memory because registers ran out.
_MATRIX = re.compile(r"(U?H?G?Q?MMA|HMMA|HGMMA|UTC\w*MMA|IMMA|QGMMA|DMMA|v_mfma\w*|v_smfmac\w*)\b")
_COPY = re.compile(r"(LDGSTS|UTMALDG|UBLKCP|UTMASTG)\b")
_SPILL = re.compile(r"(STL|LDL|scratch_(?:load|store)\w*)\b")
_AMD_COPY = re.compile(r"(?:global|buffer)_load\w*\b.*\blds\b")

_SASS_LINE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
_SASS_CODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_SASS_BRANCH = re.compile(r"\bBRA\S*\b.*`\((\.L_x_\d+)\)")
_AMD_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_AMD_LINE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_AMD_CODE = re.compile(r"^\s+([a-z][a-z0-9_]+(?:\s+[^;]*?)?)\s*(?:;.*)?$")
_AMD_BRANCH = re.compile(r"^s_c?branch\S*\s+(\.LBB\d+_\d+)")
_LABEL = re.compile(r"^(\.L\w+):")
_END = re.compile(r"^(?:EXIT|s_endpgm)\b")


@dataclass(frozen=True)
class Instruction:
    """One instruction, and the file and line of the source that it was made for (0: unknown)."""

    text: str
    file: str
    line: int

    @property
    def opcode(self) -> str:
        """The operation without predicate and operands, up to the first dot."""
        return re.sub(r"^@!?U?P[T\d]\s+", "", self.text).split()[0].split(".")[0]


@dataclass(frozen=True)
class Listing:
    """The instructions of a kernel, and (first, last) of each jump back, in order."""

    instructions: tuple[Instruction, ...]
    jumps_back: tuple[tuple[int, int], ...]

    def count(self, kind: str) -> dict[str, int]:
        """Instructions by opcode that are of a kind: ``matrix``, ``copy`` or ``spill``."""
        return _count(self.instructions, kind)

    def inner_loop(self) -> tuple[Instruction, ...]:
        """The loop with the most matrix instructions; of several, the shortest. Else nothing.

        What lies behind the last exit are waits that the main path jumps out to; not loops of it.
        """
        ends = [i for i, x in enumerate(self.instructions) if _END.match(x.text)]
        last = ends[-1] if ends else len(self.instructions)
        best: tuple[int, int] = (0, 0)
        found: tuple[Instruction, ...] = ()
        for first, jump in self.jumps_back:
            body = self.instructions[first : jump + 1]
            work = sum(_count(body, "matrix").values())
            if jump < last and work and (work, -len(body)) > best:
                best, found = (work, -len(body)), body
        return found


def read_sass(text: str) -> Listing:
    """A listing of ``nvdisasm -g -c``."""
    return _read(text, _sass_place, _SASS_CODE, _SASS_BRANCH)


def read_amdgcn(text: str) -> Listing:
    """A listing of the AMDGPU assembler's text."""
    files: dict[str, str] = {}

    def place(line: str) -> tuple[str, int] | None:
        if match := _AMD_FILE.match(line):
            files[match[1]] = str(Path(match[2], match[3] or ""))
        match = _AMD_LINE.match(line)
        return (files.get(match[1], ""), int(match[2])) if match else None

    return _read(text.partition("\t.section\t.rodata")[0], place, _AMD_CODE, _AMD_BRANCH)


def _sass_place(line: str) -> tuple[str, int] | None:
    match = _SASS_LINE.match(line)
    return (match[1], int(match[2])) if match else None


def _read(text: str, place, code: re.Pattern[str], branch: re.Pattern[str]) -> Listing:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, int]] = []
    where = ("", 0)
    for line in text.splitlines():
        if match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif found := place(line):
            where = found
        elif match := code.match(line):
            if jump := branch.search(match[1]):
                target = labels.get(jump[1])
                if target is not None:
                    jumps.append((target, len(instructions)))
            instructions.append(Instruction(" ".join(match[1].split()), *where))
    return Listing(tuple(instructions), tuple(jumps))


def _count(instructions: tuple[Instruction, ...], kind: str) -> dict[str, int]:
    pattern = {"matrix": _MATRIX, "copy": _COPY, "spill": _SPILL}[kind]
    counts: Counter[str] = Counter()
    for x in instructions:
        if match := pattern.fullmatch(x.opcode):
            counts[match[0]] += 1
        elif kind == "copy" and _AMD_COPY.match(x.text):
            counts[f"{x.opcode} lds"] += 1
    return dict(counts)
