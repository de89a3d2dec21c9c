"""Classes that can be saved, and trial values.

The classes that a file of a model may name.

A file holds names alone, and each stands for a class in this table: nothing that a file says is imported.

**Whether a model that was read can be used: its fields are of their types, and it predicts a row.**

Problem: the checksum of a file says that it is as somebody wrote it, and not that its arrays fit each other. A model
whose arrays do not would end in any error of numpy's in its first prediction, long after it was loaded.

Method: a record is compared with the annotations of its class, and a model that says how many columns it takes answers
for one row of them. No list of attributes is kept, which every new one would have to enter.

Cost: a prediction of one row. What compiled code indexes by is checked where it is read, before.
"""

from __future__ import annotations

import types
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Final, Literal, get_args, get_origin

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from dsgd.errors import DsgdError, InvalidDataError
from dsgd.runtime.checkpoints.container import DamagedError

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
    "dsgd.local": ("AbstractRule", "AbstractReduction", "AbstractCycle", "Importance"),
    "dsgd.local.features": ("RandomMap",),
    "dsgd.sim": ("RunRecord", "SimulatedCluster", "Network", "Compute", "AbstractStragglers"),
    "dsgd.collectives.cost": ("Link",),
    "dsgd.runtime": ("Gang", "Restart", "Shrink", "Timeouts"),
    "dsgd.svm": ("Elimination", "EliminationRecord"),
    "dsgd.preprocessing.layout": ("Layout", "Numbers", "OneHot"),
    "dsgd.runtime.checkpoints.checkpoint": ("SavedState",),
}


@cache
def record_of(name: str) -> type[Any] | None:
    """Return the record of a name, None if there is none."""
    for home, bases in _RECORDS.items():
        module = import_module(home)
        found = getattr(module, name, None)
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


#: What answers for rows, where a model has it.
_METHODS: Final = ("predict", "decision_function", "predict_proba", "transform")

#: Wider rows are tried as CSR: what a file says of its width takes no memory then.
_MOST_DENSE: Final = 1 << 16


def zeros(n_features: Any, *, sparse: bool) -> Any:
    """Return a row of zeros; None where it would be wide and has to be dense."""
    if not isinstance(n_features, Integral) or n_features < 1:
        raise DamagedError(f"its n_features_in_ is {n_features!r}")
    if n_features <= _MOST_DENSE:
        return np.zeros((1, int(n_features)))
    return sp.csr_matrix((1, int(n_features))) if sparse else None


def check_use(model: Any) -> None:
    """Refuse a fitted model whose attributes do not fit each other."""
    if not any(name.endswith("_") and name[0] != "_" for name in vars(model)):
        return
    what, row = "repr", None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of names that the row does not have
            repr(model)
            row = model._row_to_try()
            for what in _METHODS if row is not None else ():
                method = getattr(model, what, None)
                if method is not None:
                    _check_answer(method, row, len(getattr(model, "classes_", ())))
    except NotFittedError:
        return
    except (DsgdError, DamagedError) as error:
        # Other parameters may be set, and columns of a table may hold what this row does not.
        is_table = getattr(row, "dtype", np.dtype(float)).hasobject
        if isinstance(error, DamagedError) or (isinstance(error, InvalidDataError) and not is_table):
            raise DamagedError(f"its {type(model).__name__} does not answer ({what}: {error})") from error
    except Exception as error:
        raise DamagedError(
            f"the attributes of its {type(model).__name__} do not fit each other ({what}: {type(error).__name__}: "
            f"{error})"
        ) from error


def _check_answer(method: Any, row: Any, n_classes: int) -> None:
    answer = method(row)
    shape, dtype = np.shape(answer), answer.dtype
    if shape[:1] != (1,) or (method.__name__ == "predict" and len(shape) != 1) or dtype.kind == "c":
        raise DamagedError(f"of one row it makes {shape}, {dtype}")
    n = shape[1] if len(shape) > 1 else 1
    are_as_many = n in ((1,) if n_classes == 2 else (n_classes, n_classes * (n_classes - 1) // 2))
    if method.__name__ == "decision_function" and n_classes and not are_as_many:
        raise DamagedError(f"its decisions of {n_classes} classes are {n}")
    if dtype.kind == "f" and not np.isfinite(answer.data if sp.issparse(answer) else answer).all():
        raise DamagedError("of a row of zeros it makes numbers that are not finite")


def check_fields(kind: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse fields of other types than their class says; a record with a `__post_init__` checks itself."""
    typed: Any = kind
    hints = {} if hasattr(kind, "__post_init__") else _hints(typed)
    for name, value in given.items():
        if not _fits(value, hints.get(name, Any)):
            raise DamagedError(f"{kind.__name__}({name}=...) is {value!r:.80}")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    known = typing.get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type, items included; what is no plain type holds for all."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(value is part or (isinstance(value, str) and value == part) for part in parts)
    if origin is types.NoneType:
        return value is None
    if origin in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if origin is int else Real)
    if origin is bool:
        return isinstance(value, (bool, np.bool_))
    if origin is Any or not isinstance(origin, type):
        return True
    if not isinstance(value, origin):
        return False
    return all(_fits(item, part) for item, part in _items(value, origin, parts))


def _items(value: Any, origin: type[Any], parts: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container, each with its type."""
    if not parts or not issubclass(origin, (tuple, list, frozenset, Mapping)):
        return ()
    if issubclass(origin, Mapping):
        return [(each, part) for item in value.items() for each, part in zip(item, parts, strict=True)]
    if origin is tuple and parts[-1] is not Ellipsis:
        # One that is too long or too short has an item of no type.
        return zip(value, parts, strict=True) if len(value) == len(parts) else [(value, types.NoneType)]
    return ((item, parts[0]) for item in value)
