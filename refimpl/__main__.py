"""``python -m refimpl``."""

import sys

from refimpl.cli import main

sys.exit(main())
