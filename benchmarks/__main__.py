"""``python -m benchmarks``: every benchmark here, one after the other."""

import sys

from benchmarks import decode, speculative

sys.exit(decode.main() or speculative.main())
