"""The command line: ``python -m benchmarks list``, ``run NAME [options]`` and ``quick [--out FOLDER]``."""

from __future__ import annotations

import sys

from benchmarks.common.suite import main

if __name__ == "__main__":
    sys.exit(main())
