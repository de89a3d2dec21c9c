"""Parallel SGD and support vector machines on Dask, with a tunable synchronisation period.

The names below are loaded when they are first used, so that ``import dsgd`` costs next to nothing and a worker that
only runs a rank never loads what it does not need.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dsgd.estimators import SGDClassifier, SGDRegressor
    from dsgd.inputs.rows import Rows
    from dsgd.jobs.detached import attach, submit
    from dsgd.ledger import Ledger
    from dsgd.study.comparison import compare

__all__ = ["Ledger", "Rows", "SGDClassifier", "SGDRegressor", "__version__", "attach", "compare", "submit"]

__version__: Final = version("dsgd")

_HOMES: Final = {
    "Ledger": "dsgd.ledger",
    "Rows": "dsgd.inputs.rows",
    "SGDClassifier": "dsgd.estimators",
    "SGDRegressor": "dsgd.estimators",
    "attach": "dsgd.jobs.detached",
    "compare": "dsgd.study.comparison",
    "submit": "dsgd.jobs.detached",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dsgd' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
