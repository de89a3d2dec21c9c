"""Packages whose names are loaded when they are first used.

Problem: a worker that runs a rank needs one module of a package, and Python runs the package's ``__init__`` first. If
that loads all there is, estimators and with them scikit-learn, scipy and pandas, each of some dozens of processes that
share the cores of a host takes seconds of processor time before it trains at all.

Method: a package passes its modules and their names to `loaded_on_use`, and gets the ``__getattr__`` of PEP 562.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def loaded_on_use(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which loads a name from its module when it is first used.

    Names are separated by spaces, and modules are relative to the package if they begin with a dot. ``dir`` lists all.
    """
    homes = {name: home for home, of_home in names.items() for name in of_home.split()}
    module = vars(sys.modules[package])
    module["__dir__"] = lambda: sorted({*module, *module["__all__"]})

    def load(name: str) -> Any:
        if name not in homes:
            known = ", ".join(module["__all__"])
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {known}")
        home = importlib.import_module(homes[name], package)
        value = getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{home.__name__}.{name}")
        module[name] = value
        return value

    return load
