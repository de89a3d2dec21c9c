"""Run the examples in the docstrings of every installed dsgd module; also proves that each of them can be imported."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path

import dsgd

# What cannot be imported without a package that need not be installed.
NEEDS = {
    "torch": ("dsgd.torch", "dsgd.study.networks"),
    "bokeh": ("dsgd.runtime.scheduler.dashboard",),
}


def main() -> int:
    """Test every module, and return how many examples failed."""
    failed = attempted = 0
    missing = tuple(name for need, names in NEEDS.items() if importlib.util.find_spec(need) is None for name in names)
    names = ["dsgd", *(module.name for module in pkgutil.walk_packages(dsgd.__path__, "dsgd."))]
    for name in names:
        if name.endswith("__main__") or name.startswith(missing):
            continue
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
        failed += result.failed
        attempted += result.attempted
    home = Path(dsgd.__file__).parent
    sys.stdout.write(f"{attempted} examples in {len(names)} modules of {home}, {failed} failed\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
