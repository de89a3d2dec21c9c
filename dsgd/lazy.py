"""Packages whose names are loaded when they are first used.

Problem: a worker that runs a rank needs one module of a package, and Python runs the package's ``__init__`` first. If
that loads all there is, estimators and with them scikit-learn, scipy and pandas, each of some dozens of processes that
share the cores of a host takes seconds of processor time before it trains at all.

Method: a package imports its names ``if TYPE_CHECKING`` only, where type checkers and readers look for them, and gets
the ``__getattr__`` of PEP 562 from `loaded_on_use`, which reads there what module each name is in.

Source: scientific Python's SPEC 1; its ``lazy_loader`` reads a stub file in the same way.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def loaded_on_use(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which loads a name from its module when it is first used."""
    module = vars(sys.modules[package])
    module["__dir__"] = lambda: sorted({*module, *module["__all__"]})

    def load(name: str) -> Any:
        home = _homes(package).get(name)
        if home is None:
            known = ", ".join(module["__all__"])
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {known}")
        module[name] = value = getattr(importlib.import_module(home), name)
        return value

    return load


@cache
def _homes(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers."""
    import ast  # takes longer than all else that `import dsgd` does

    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    blocks = [node.body for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
