"""Parallel SGD and support vector machines on Dask, with a tunable synchronisation period.

The names below are loaded when they are first used, so that ``import dsgd`` costs next to nothing and a worker that
only runs a rank never loads what it does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.estimators import SGDClassifier, SGDRegressor
    from dsgd.inputs.rows import Rows
    from dsgd.inputs.table_files import TableFiles
    from dsgd.jobs import attach, submit
    from dsgd.ledger import Ledger
    from dsgd.local import CustomLoss
    from dsgd.runtime.deployment import Gang
    from dsgd.saving import load
    from dsgd.study.comparison.compare import compare

    __version__: str

__all__ = [
    "CustomLoss",
    "Gang",
    "Ledger",
    "Rows",
    "SGDClassifier",
    "SGDRegressor",
    "TableFiles",
    "__version__",
    "attach",
    "compare",
    "load",
    "submit",
]


_load: Final = loaded_on_use(__name__)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _load(name)
    # What a package says of itself takes longer to read than all the rest here, and is seldom asked for.
    from importlib.metadata import version

    globals()["__version__"] = found = version("dsgd")
    return found
