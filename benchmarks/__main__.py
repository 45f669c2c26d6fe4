"""``python -m benchmarks``: every benchmark here, one after the other."""

import sys

from benchmarks import decode, paged, speculative

sys.exit(decode.main() or paged.main() or speculative.main())
