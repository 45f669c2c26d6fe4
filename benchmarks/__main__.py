"""``python -m benchmarks``: every benchmark here, one after the other.

Each has options of its own, as in ``python -m benchmarks.paged --help``; the one that all share,
``--quick``, can be given here.
"""

import argparse
import sys

from benchmarks import attention, decode, kernels, paged, speculative


def main() -> int:
    """Exit status: the worst of the benchmarks'."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds of each")
    arguments = ["--quick"] if parser.parse_args().quick else []
    return max(run.main(arguments) for run in (decode, paged, attention, kernels, speculative))


if __name__ == "__main__":
    sys.exit(main())
