"""Subclasses of scikit-learn's estimators that train with our solvers.

An accelerated estimator is an instance of scikit-learn's class, and ``fit`` sets the attributes that scikit-learn's
``fit`` sets, so everything else in scikit-learn works with it as before. It is pickled as scikit-learn's own class,
which loads where this package is not installed; only what joblib sends to its worker processes stays accelerated.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import importlib
import inspect
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import joblib
import numpy as np
import scipy.sparse as sp
import sklearn
from joblib.externals.loky.backend import reduction

from dsgd.accel.calls import SETTINGS, Call, note, note_refusal
from dsgd.accel.searches import n_fits_to_come, trained_in_chain
from dsgd.accel.similar import begin_near
from dsgd.accel.worth import Kind, Worth, estimated_seconds, prediction_seconds, shape_of

__all__ = ["accelerated", "n_threads", "will_be_ours"]

#: Modules of our estimators of the same names.
_OURS: Final = {
    **dict.fromkeys(("LinearSVC", "LinearSVR", "NuSVC", "NuSVR", "OneClassSVM", "SVC", "SVR"), "dsgd.svm"),
    **dict.fromkeys(("SGDClassifier", "SGDRegressor"), "dsgd.estimators"),
}
#: Where instances keep our fitted estimator.
_MODEL: Final = "_accelerated_model"
# Predictions of fewer products of entries are over before ours have begun.
_MOST_PRODUCTS_OF_A_TINY_PREDICTION: Final = 2_000_000
_TINY: Final = "too small to be worth it"

_worth: Final = Worth()
_made: Final[dict[str, type]] = {}


def accelerated(plain: type) -> type:
    """Return the accelerated subclass of an estimator of scikit-learn, the same one every time.

    Parameters
    ----------
    plain : type
        One of the classes in `dsgd.accel.patch.REPLACED`.
    """
    name = plain.__name__
    if name not in _made:
        _made[name] = _subclass(plain)
    return _made[name]


def __getattr__(name: str) -> type:
    # Where a worker of joblib looks up the class of an estimator that it is sent.
    if name not in _OURS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(
        "sklearn.linear_model._stochastic_gradient" if _kind_of(name) == "sgd" else "sklearn.svm._classes"
    )
    return accelerated(getattr(home, name))


def will_be_ours(estimator: Any, X: Any, n_fits: int, *, load: bool = False) -> bool:
    """Return whether our solver would train an estimator, as far as that is known before the fit.

    Parameters
    ----------
    estimator : object
        The estimator; False for all that are not accelerated.
    X : array-like, sparse matrix or DataFrame, shape (n, n_features)
        The rows.
    n_fits : int
        The number of such fits to come.
    load : bool, default False
        Whether to load our solver in that case, such as before several threads need it.
    """
    plain = type(estimator).__name__
    if type(estimator) is not _made.get(plain) or _why_not(estimator, {}):
        return False
    kind = _kind_of(plain)
    if not _worth.is_ours(estimated_seconds(X, kind), kind, n_fits):
        return False
    if load:
        getattr(importlib.import_module(_OURS[plain]), plain)
        _worth.loaded(kind)
    return True


def _kind_of(name: str) -> Kind:
    if name.startswith("SGD"):
        return "sgd"
    return "linear" if name.startswith("Linear") else "kernel"


def _subclass(plain: Any) -> type:
    signature = inspect.signature(plain.fit)

    @functools.wraps(plain.fit)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _fit(self, plain, signature, args, kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        state = {name: value for name, value in vars(self).items() if name != _MODEL}
        state["_sklearn_version"] = sklearn.__version__
        # A class of that name is scikit-learn's, so the function that makes an instance must be Python's.
        return copyreg._reconstructor, (plain, object, None), state  # type: ignore[attr-defined]

    def copied(self: Any) -> Any:
        return _rebuilt(type(self), dict(vars(self)))

    def deeply_copied(self: Any, memo: dict[int, Any]) -> Any:
        return _rebuilt(type(self), copy.deepcopy(vars(self), memo))

    members: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": plain.__doc__,
        "__reduce_ex__": reduce,
        "__copy__": copied,
        "__deepcopy__": deeply_copied,
        "fit": fit,
    }
    if _kind_of(plain.__name__) == "kernel":
        for method in ("decision_function", "predict"):
            if hasattr(plain, method):
                members[method] = _predicting(plain, method)
    made: type = type(plain)(plain.__name__, (plain,), members)
    reduction.register(made, _reduced_for_workers)
    return made


def _reduced_for_workers(estimator: Any) -> Any:
    return _rebuilt, (type(estimator), dict(vars(estimator)))


def _rebuilt(kind: Any, state: Mapping[str, Any]) -> Any:
    made = kind.__new__(kind)
    vars(made).update(state)
    return made


def _predicting(plain: Any, method: str) -> Callable[[Any, Any], Any]:
    theirs = getattr(plain, method)

    @functools.wraps(theirs)
    def predict(self: Any, X: Any) -> Any:
        vectors = vars(self).get("support_")
        rows, columns = shape_of(X)
        if vectors is None or rows * columns * len(vectors) < _MOST_PRODUCTS_OF_A_TINY_PREDICTION:
            return theirs(self, X)
        if _MODEL not in vars(self):
            estimated_s = prediction_seconds(X, len(vectors))
            if not _worth.is_ours(estimated_s, "kernel"):
                begin = time.perf_counter()
                found = theirs(self, X)
                _worth.spend(time.perf_counter() - begin, estimated_s, "kernel")
                return found
            vars(self)[_MODEL] = _taken_over_from(self)
        model = vars(self)[_MODEL]
        if model is None or not _is_as_fitted(self, model):
            return theirs(self, X)
        model.n_jobs = n_threads()
        return getattr(model, method)(X)

    return predict


def _taken_over_from(estimator: Any) -> Any:
    """Return our estimator with what scikit-learn has trained; None if it cannot be made."""
    name = type(estimator).__name__
    if callable(estimator.kernel):
        return None
    try:
        model = getattr(importlib.import_module(_OURS[name]), name).from_sklearn(estimator)
    except Exception as error:
        # Altered numbers, say: scikit-learn has the last word.
        note_refusal(name, _text_of(error))
        return None
    _worth.loaded("kernel")
    return model


def _text_of(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_as_fitted(estimator: Any, model: Any) -> bool:
    """Return whether no parameter has changed since `fit`: some of them change scikit-learn's predictions."""
    return all(getattr(model, name) is value for name, value in estimator.get_params(deep=False).items())


def n_threads() -> int:
    """Return how many threads a fit may use: one inside a parallel loop, and no more than OMP_NUM_THREADS says."""
    backend, _ = joblib.parallel.get_active_backend()
    if (backend.nesting_level or 0) > 0:
        return 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores: int = joblib.cpu_count()
    return min(cores, int(given)) if given.isdigit() and int(given) > 0 else cores


def _why_not(estimator: Any, given: Mapping[str, Any]) -> str:
    """Return what our solvers do not support in a fit; empty if nothing is known."""
    parameters = estimator.get_params(deep=False)
    if parameters.get("warm_start"):
        return "warm_start=True"
    if parameters.get("average"):
        return "average=...: partial_fit could not go on from here"
    if callable(parameters.get("kernel")):
        return "the kernel is a function"
    if parameters.get("dual") is False and parameters.get("loss") in ("hinge", "epsilon_insensitive"):
        return "loss and dual=False: LIBLINEAR has no such solver, and says so"
    found = [name for name in ("coef_init", "intercept_init") if given.get(name) is not None]
    return f"fit({found[0]}=...)" if found else ""


def _fit(self: Any, plain: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    vars(self).pop(_MODEL, None)
    given = dict(signature.bind(self, *args, **kwargs).arguments)
    X, kind = given.get("X"), _kind_of(plain.__name__)
    reason, expected = _why_not(self, given), False
    estimated_s = estimated_seconds(X, kind)
    if not reason and not _worth.is_ours(estimated_s, kind, n_fits_to_come()):
        reason, expected = _TINY, True
    begin = time.perf_counter()
    model = None
    if not reason:
        try:
            model = _trained(self, plain, given)
            _worth.loaded(kind)
        except Exception as error:
            # Whatever it is, scikit-learn has the last word: it may know how, or raises what scripts expect.
            reason = _text_of(error)
    if model is None:
        begin = time.perf_counter()
        plain.fit(self, *args, **kwargs)
        seconds = time.perf_counter() - begin
        if expected:
            _worth.spend(seconds, estimated_s, kind)
        note(Call(plain.__name__, shape_of(X), "scikit-learn", seconds, reason), expected=expected)
        return self
    _take_over(self, model)
    seconds = time.perf_counter() - begin
    compared_s = _seconds_of_theirs(self, plain, args, kwargs) if SETTINGS.compare else None
    note(Call(plain.__name__, shape_of(X), "dsgd", seconds, compared_s=compared_s), expected=True)
    return self


def _trained(estimator: Any, plain: Any, given: Mapping[str, Any]) -> Any:
    """Return our estimator with the same parameters, fitted to the same rows."""
    kind = getattr(importlib.import_module(_OURS[plain.__name__]), plain.__name__)
    parameters = estimator.get_params(deep=False)
    is_sgd = _kind_of(plain.__name__) == "sgd"
    if is_sgd and given.get("sample_weight") is not None:
        _refuse_copies(given["sample_weight"])
    # More ranks of SGD would be another algorithm; SVMs are exact on any number of threads.
    parameters["n_jobs"] = 1 if is_sgd else n_threads()
    weights = given.get("sample_weight")
    if plain.__name__ in ("SVC", "SVR"):
        model = trained_in_chain(kind, parameters, given["X"], given.get("y"), weights)
        if model is not None:
            return model
    if plain.__name__ == "LinearSVC":
        model = kind(**parameters)
        with begin_near(model, parameters):
            return model.fit(given["X"], given.get("y"), sample_weight=weights)
    if weights is None:
        return kind(**parameters).fit(given["X"], given.get("y"))
    if parameters.get("gamma") == "scale":
        parameters["gamma"] = _unweighted_scale(given["X"])
    model = kind(**parameters).fit(given["X"], given.get("y"), sample_weight=weights)
    return model if _kind_of(plain.__name__) != "kernel" else model.set_params(gamma=estimator.gamma)


def _unweighted_scale(X: Any) -> float:
    """Return the gamma that "scale" stands for in scikit-learn, where rows count once whatever their weights are."""
    if sp.issparse(X):
        variance = float(X.multiply(X).mean() - X.mean() ** 2)
    else:
        X = np.asarray(X, dtype=None if getattr(X, "dtype", None) == np.float32 else np.float64)
        variance = float(X.var())
    return 1.0 / (X.shape[1] * variance) if variance else 1.0


def _refuse_copies(weights: Any) -> None:
    """Raise unless every row of these weights is visited once, so that both objectives are the same.

    In our SGD a weight of two is two rows, each with its own step on the penalty, and a weight of zero is no row.
    """
    from dsgd.errors import IncompatiblePartsError
    from dsgd.local.order import count_visits

    if np.any(count_visits(np.asarray(weights, np.float64)) != 1):
        raise IncompatiblePartsError("sample_weight=...: weights of zero, or above one and a half, are copies of rows")


def _take_over(estimator: Any, model: Any) -> None:
    """Set the attributes that scikit-learn's own fit would have set."""
    fitted, parameters = model.to_sklearn(), estimator.get_params(deep=False)
    vars(estimator).update({name: value for name, value in vars(fitted).items() if name not in parameters})
    if _kind_of(type(estimator).__name__) == "kernel":
        vars(estimator)[_MODEL] = model


def _seconds_of_theirs(estimator: Any, plain: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    other = plain(**estimator.get_params(deep=False))
    begin = time.perf_counter()
    other.fit(*args, **kwargs)
    return time.perf_counter() - begin
