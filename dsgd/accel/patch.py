"""Replace methods of classes and functions of scikit-learn, and put them back."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Any, Final

from dsgd.accel.calls import SETTINGS, clear_calls

#: Modules that scripts import from, and their classes whose fits and predictions are replaced.
REPLACED: Final = {
    "sklearn.svm": ("LinearSVC", "LinearSVR", "NuSVC", "NuSVR", "OneClassSVM", "SVC", "SVR"),
    "sklearn.linear_model": (
        "ElasticNet",
        "Lasso",
        "LogisticRegression",
        "PoissonRegressor",
        "Ridge",
        "SGDClassifier",
        "SGDRegressor",
    ),
}
#: Modules with classes of which one method is wrapped: its name, and the module and function that wrap it.
WRAPPED: Final = {
    "sklearn.model_selection": {
        "GridSearchCV": ("_run_search", "dsgd.accel.searches", "told"),
        "RandomizedSearchCV": ("_run_search", "dsgd.accel.searches", "told"),
    },
    "sklearn.multiclass": {"OneVsRestClassifier": ("fit", "dsgd.accel.classes", "side_by_side")},
    "sklearn.calibration": {"CalibratedClassifierCV": ("fit", "dsgd.accel.classes", "calibrated")},
}
#: Modules with functions that are wrapped, and the module and function that wrap them.
FUNCTIONS: Final = {
    "sklearn.model_selection": dict.fromkeys(
        ("cross_val_predict", "cross_val_score", "cross_validate", "learning_curve", "validation_curve"),
        ("dsgd.accel.classes", "folds_side_by_side"),
    )
}
_MODULES: Final = (*REPLACED, *WRAPPED)
_NAMES: Final = (
    *(name for names in REPLACED.values() for name in names),
    *(n for names in WRAPPED.values() for n in names),
    *(n for names in FUNCTIONS.values() for n in names),
)
#: What has been changed: the function of a module, or methods of its class, as they were; None for inherited ones.
_originals: Final[dict[tuple[str, str], Any]] = {}


def install(*, verbose: bool = False, compare: bool = False, exclude: Collection[str] = ()) -> None:
    """Let classes of ``sklearn.svm`` and ``sklearn.linear_model`` train and predict by the solvers of this package.

    The classes stay the same, so it does not matter whether they were imported before. Their modules are imported, the
    solvers only when they are needed. A second call changes the settings.

    Parameters
    ----------
    verbose : bool, default False
        Whether to list every fit on standard error, with its solver and seconds.
    compare : bool, default False
        Whether to repeat each of our fits with scikit-learn, on a copy, to tell what was saved.
    exclude : collection of str, default ()
        Names of classes to leave as they are: those that train, or ``GridSearchCV``, ``RandomizedSearchCV``,
        ``OneVsRestClassifier`` and ``CalibratedClassifierCV``, which otherwise share work among their fits, or do them
        side by side, as ``cross_validate``, ``cross_val_score``, ``cross_val_predict``, ``learning_curve`` and
        ``validation_curve`` do.

    Raises
    ------
    ValueError
        A name in `exclude` is none of these.
    """
    excluded = frozenset([exclude] if isinstance(exclude, str) else exclude)
    if unknown := sorted(excluded.difference(_NAMES)):
        raise ValueError(f"install(exclude=...) has no class {unknown[0]!r}; it knows {', '.join(_NAMES)}.")
    SETTINGS.verbose, SETTINGS.compare, SETTINGS.excluded = verbose, compare, excluded
    if not SETTINGS.is_on:
        clear_calls()
    SETTINGS.is_on = True
    for name in _MODULES:
        _change(importlib.import_module(name))


def uninstall() -> None:
    """Put scikit-learn's methods and functions back. Estimators keep what they have learned."""
    SETTINGS.is_on = False
    for module, name in list(_originals):
        _put_back(sys.modules[module], name)


def is_installed() -> bool:
    """Return whether classes of scikit-learn are accelerated."""
    return SETTINGS.is_on


def _change(module: ModuleType) -> None:
    """Change the classes and functions of a module that are not excluded, and put back those that are."""
    home = module.__name__
    for name in (*REPLACED.get(home, ()), *WRAPPED.get(home, ()), *FUNCTIONS.get(home, ())):
        is_changed = (home, name) in _originals
        if name in SETTINGS.excluded and is_changed:
            _put_back(module, name)
        elif name not in SETTINGS.excluded and not is_changed:
            _accelerate(module, name)


def _accelerate(module: ModuleType, name: str) -> None:
    kind: Any = getattr(module, name)
    if name in FUNCTIONS.get(module.__name__, ()):
        home, wrapper = FUNCTIONS[module.__name__][name]
        _originals[module.__name__, name] = kind
        _set_function(module, name, getattr(importlib.import_module(home), wrapper)(kind))
        return
    if module.__name__ in REPLACED:
        from joblib.externals.loky.backend import reduction

        from dsgd.accel.classes import accelerated_methods

        methods = accelerated_methods(kind)
        reduction.register(kind, _reduced_for_workers)
    else:
        method, home, wrapper = WRAPPED[module.__name__][name]
        methods = {method: getattr(importlib.import_module(home), wrapper)(getattr(kind, method))}
    _originals[module.__name__, name] = {method: vars(kind).get(method) for method in methods}
    for method, function in methods.items():
        setattr(kind, method, function)


def _set_function(module: ModuleType, name: str, function: Any) -> None:
    """Set a function in the module that scripts import it from, and where it is made, in which pickles look for it."""
    setattr(module, name, function)
    setattr(sys.modules[function.__module__], name, function)


def _put_back(module: ModuleType, name: str) -> None:
    original = _originals.pop((module.__name__, name))
    if name in FUNCTIONS.get(module.__name__, ()):
        _set_function(module, name, original)
        return
    kind = getattr(module, name)
    for method, own in original.items():
        if own is None:
            delattr(kind, method)
        else:
            setattr(kind, method, own)


def _reduced_for_workers(estimator: Any) -> Any:
    """Return what joblib sends to its worker processes, which then accelerate what this one does."""
    excluded = SETTINGS.excluded if is_installed() else None
    return _rebuilt, (type(estimator), dict(vars(estimator)), excluded, SETTINGS.origin or os.getpid())


def _rebuilt(kind: Any, state: dict[str, Any], excluded: frozenset[str] | None, origin: int) -> Any:
    if origin != os.getpid():  # not what a worker sends back
        SETTINGS.origin = origin
        if excluded is None:
            uninstall()
        elif excluded != SETTINGS.excluded or not is_installed():
            install(exclude=excluded)
    made = kind.__new__(kind)
    vars(made).update(state)
    return made
