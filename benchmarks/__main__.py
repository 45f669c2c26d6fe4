"""``python -m benchmarks``: every benchmark here, one after the other."""

import sys

from benchmarks import attention, decode, paged

sys.exit(max(benchmark.main() for benchmark in (attention, decode, paged)))
