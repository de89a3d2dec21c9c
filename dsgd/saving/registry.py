"""The classes that a file of a model may name.

A file holds names alone, and each stands for a class in this table: nothing that a file says is imported.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

#: Where the estimators and transformers are that can be saved, by name.
ESTIMATORS: Final = {
    "ColumnEncoder": "dsgd.preprocessing",
    "ElasticNet": "dsgd.linear_model",
    "Lasso": "dsgd.linear_model",
    "LinearSVC": "dsgd.svm",
    "LinearSVR": "dsgd.svm",
    "LogisticRegression": "dsgd.linear_model",
    "NuSVC": "dsgd.svm",
    "NuSVR": "dsgd.svm",
    "Nystroem": "dsgd.kernel_approximation",
    "OneClassSVM": "dsgd.svm",
    "PoissonRegressor": "dsgd.linear_model",
    "RandomFeatures": "dsgd.kernel_approximation",
    "Ridge": "dsgd.linear_model",
    "SGDClassifier": "dsgd.estimators",
    "SGDRegressor": "dsgd.estimators",
    "SGDSearchCV": "dsgd.model_selection",
    "SVC": "dsgd.svm",
    "SVMSearchCV": "dsgd.model_selection",
    "SVR": "dsgd.svm",
}

#: Modules with records that parameters and fitted attributes are made of, and the classes that these derive from, or
#: are. Making one of them stores and checks its fields, and does nothing else.
_RECORDS: Final = {
    "dsgd.sync": ("AbstractStrategy", "AbstractPeriod"),
    "dsgd.sync.adaptive": ("AbstractRule",),
    "dsgd.compress": ("AbstractCompressor",),
    "dsgd.comm.topology": ("AbstractTopology",),
    "dsgd.local": ("AbstractRule", "AbstractReduction", "AbstractCycle", "Importance", "RandomMap"),
    "dsgd.runtime": ("Restart", "Shrink", "Timeouts"),
    "dsgd.svm": ("Elimination", "EliminationRecord"),
    "dsgd.preprocessing.layout": ("Layout", "Numbers", "OneHot"),
    "dsgd.runtime.checkpoints.checkpoint": ("SavedState",),
}


@cache
def record_of(name: str) -> type[Any] | None:
    """Return the record of a name, None if there is none."""
    for home, bases in _RECORDS.items():
        module = import_module(home)
        found = getattr(module, name) if name in module.__all__ else None
        known = tuple(getattr(module, base) for base in bases)
        if isinstance(found, type) and is_dataclass(found) and issubclass(found, known):
            return found
    return None


def name_of_record(value: Any) -> str | None:
    """Return the name by which a file has an object, None if it is no record of the table."""
    kind = type(value)
    return kind.__name__ if is_dataclass(kind) and record_of(kind.__name__) is kind else None


@cache
def history() -> type[Any]:
    """Return the class of the histories of fits."""
    found: type[Any] = import_module("dsgd.inputs.callbacks").History
    return found
