"""Exercise of chapter 09 on how many blocks of a kernel a multiprocessor holds at once."""

from labkit.tasks import Example, Mutant, Property, Task

Kernel = tuple[int, int, int, int, int, int]

_A100 = 65_536, 164 * 1024, 64  # registers, bytes of shared memory and warps of a multiprocessor
_H100 = 65_536, 228 * 1024, 64

# ── blocks_per_unit ───────────────────────────────────────────────────────────────────────────


def _block_examples(*kernels: Kernel) -> list[Example]:
    """Blocks are taken in one after the other, warp by warp, until something runs out."""
    examples = []
    for args in kernels:
        registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps = args
        handed_out = 0
        while handed_out < 32 * registers:
            handed_out += 256
        resident, warps = 0, 0
        while True:
            for _ in range(num_warps):
                unit_registers -= handed_out
                warps += 1
            unit_shared -= shared_bytes
            if min(unit_registers, unit_shared, unit_warps - warps) < 0:
                break
            resident += 1
        examples.append(Example(args, resident))
    return examples


def _blocks_plain(registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps):
    """Each resource allows some; the scarcest decides."""
    per_warp = -(-registers * 32 // 256) * 256
    limits = [unit_registers // (per_warp * num_warps), unit_warps // num_warps]
    if shared_bytes:
        limits.append(unit_shared // shared_bytes)
    return min(limits)


def _blocks_tried(registers, shared_bytes, num_warps, unit_registers, unit_shared, unit_warps):
    per_thread = (registers + 7) // 8 * 8
    n = 0
    while (
        (n + 1) * num_warps * 32 * per_thread <= unit_registers
        and (n + 1) * shared_bytes <= unit_shared
        and (n + 1) * num_warps <= unit_warps
    ):
        n += 1
    return n


def _limits(registers, shared, warps, of_registers, of_shared, of_warps) -> tuple[int, int, int]:
    """Blocks that each resource allows alone: registers, shared memory, warps."""
    per_block = -(-registers * 32 // 256) * 256 * warps
    by_shared = of_shared // shared if shared else of_warps
    return of_registers // per_block, by_shared, of_warps // warps


def _blocks_exact_registers(registers, shared, warps, of_registers, of_shared, of_warps):
    rest = _limits(registers, shared, warps, of_registers, of_shared, of_warps)[1:]
    return min(of_registers // (registers * 32 * warps), *rest)


def _blocks_rounded_by_block(registers, shared, warps, of_registers, of_shared, of_warps):
    rest = _limits(registers, shared, warps, of_registers, of_shared, of_warps)[1:]
    per_block = -(-registers * 32 * warps // 256) * 256
    return min(of_registers // per_block, *rest)


def _blocks_warps_for_threads(registers, shared, warps, of_registers, of_shared, of_warps):
    rest = _limits(registers, shared, warps, of_registers, of_shared, of_warps)[1:]
    return min(of_registers // (registers * warps), *rest)


def _blocks_threads_for_warps(registers, shared, warps, of_registers, of_shared, of_warps):
    rest = _limits(registers, shared, warps, of_registers, of_shared, of_warps)[:2]
    return min(*rest, of_warps // (32 * warps))


def _blocks_largest(*kernel):
    return max(_limits(*kernel))


def _blocks_no_registers(*kernel):
    return min(_limits(*kernel)[1:])


def _blocks_no_shared(*kernel):
    by_registers, _, by_warps = _limits(*kernel)
    return min(by_registers, by_warps)


def _blocks_no_warps(registers, shared, warps, of_registers, of_shared, of_warps):
    by_registers = _limits(registers, shared, warps, of_registers, of_shared, of_warps)[0]
    return min(by_registers, of_shared // shared) if shared else by_registers


def _blocks_rounded_up(registers, shared, warps, of_registers, of_shared, of_warps):
    per_block = -(-registers * 32 // 256) * 256 * warps
    by_shared = -(-of_shared // shared) if shared else of_warps
    return min(-(-of_registers // per_block), by_shared, -(-of_warps // warps))


def _blocks_at_least_one(*kernel):
    return max(1, min(_limits(*kernel)))


BLOCKS_PER_UNIT = Task(
    name="blocks_per_unit",
    chapter=9,
    title="How many fit at once",
    minutes=5,
    points=2,
    level=2,
    spec=(
        "How many blocks of a kernel one multiprocessor holds at once: a thread uses registers "
        "registers, a block has num_warps warps of 32 threads and uses shared_bytes of shared "
        "memory; the multiprocessor has unit_registers registers, unit_shared bytes and room for "
        "unit_warps warps. Registers are handed out to a warp in units of 256."
    ),
    signature=(
        "blocks_per_unit(registers: int, shared_bytes: int, num_warps: int, unit_registers: int, "
        "unit_shared: int, unit_warps: int) -> int"
    ),
    properties=(
        Property(
            "a small kernel: everything allows sixteen",
            lambda: _block_examples((32, 1024, 4, 65_536, 16_384, 64)),
        ),
        Property(
            "the scarcest decides, whichever it is",
            lambda: _block_examples(
                (128, 8192, 4, *_A100), (40, 65_536, 4, *_A100), (24, 2048, 8, *_A100)
            ),
        ),
        Property(
            "what is left over is too little for one more",
            lambda: _block_examples(
                (168, 40_000, 4, *_A100), (96, 50_000, 8, *_H100), (48, 9000, 12, *_A100)
            ),
        ),
        Property(
            "registers are handed out to each warp in units of 256",
            lambda: _block_examples(
                (81, 16_384, 8, *_H100), (129, 1024, 4, *_A100), (10, 100, 4, 4608, 99_999, 64)
            ),
        ),
        Property(
            "few registers and room for many warps",
            lambda: _block_examples((16, 8, 4, 8192, 65_536, 4096)),
        ),
        Property(
            "a kernel that uses no shared memory",
            lambda: _block_examples((64, 0, 4, *_A100)),
            edge=True,
        ),
        Property(
            "a kernel that does not fit at all",
            lambda: _block_examples((255, 200_000, 8, *_A100)),
            edge=True,
        ),
    ),
    hints=(
        "Ask each resource alone how many blocks it would allow. Which of the answers counts?",
        "A warp takes 32 · registers, rounded up to a multiple of 256, and a block num_warps times "
        "that. The smallest of three quotients, each rounded down.",
        "min(unit_registers // (per_warp · num_warps), unit_shared // shared_bytes, "
        "unit_warps // num_warps), leaving out shared memory where none is used.",
    ),
    mutants=(
        Mutant(
            "registers to the last one",
            "a warp is given registers in units of 256, which is 8 a thread: 81 cost as much as 88",
            _blocks_exact_registers,
            also=(_blocks_rounded_by_block,),
        ),
        Mutant(
            "warps taken for threads",
            "registers are counted by thread, and a warp has 32 of them",
            _blocks_warps_for_threads,
        ),
        Mutant(
            "threads taken for warps",
            "the room is counted in warps, 64 of them or 2,048 threads: num_warps is what a block "
            "takes of it",
            _blocks_threads_for_warps,
        ),
        Mutant(
            "largest limit",
            "a block needs all of its resources: the scarcest decides, not the most plentiful",
            _blocks_largest,
        ),
        Mutant(
            "registers ignored",
            "every thread of every resident block keeps its registers, since nothing is swapped "
            "out: 65,536 of them are soon gone",
            _blocks_no_registers,
        ),
        Mutant(
            "shared memory ignored",
            "resident blocks keep their tiles in shared memory at once: it is divided among them",
            _blocks_no_shared,
        ),
        Mutant(
            "warps ignored",
            "a multiprocessor tracks so many warps and no more, however little they use",
            _blocks_no_warps,
        ),
        Mutant(
            "rounded up",
            "a block that fits only in part waits outside: round each quotient down",
            _blocks_rounded_up,
        ),
        Mutant(
            "always one",
            "a kernel that asks for more than there is does not run at all: 0 blocks is an error "
            "at launch, not a slow kernel",
            _blocks_at_least_one,
        ),
    ),
    answers=(_blocks_plain, _blocks_tried),
)
