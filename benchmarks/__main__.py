"""``python -m benchmarks``: every benchmark here, one after the other."""

import sys

from benchmarks import decode

sys.exit(decode.main())
