"""Methods of scikit-learn's estimators that train and predict with our solvers, and what it does around them.

They take the place of scikit-learn's own in its classes, and ``fit`` sets the attributes that scikit-learn's ``fit``
sets, so classes, instances, pickles and everything else in scikit-learn are as before. Subclasses keep scikit-learn's
methods: their parameters may mean anything. Tolerances of its linear models bound a gradient, or the movement of a
step. Ours are shares of the objective, and chosen so that the model is at least as near to its optimum. A fit that does
not get there is scikit-learn's.

Around our fits: ``OneVsRestClassifier`` trains its machines one after another, and so do functions that validate on
folds. Each of our fits uses all cores, but cores wait for each other at the end of every step of a solver. So if the
estimator inside is one of ours and worth it, these loops run on threads, with one machine at a time on each.
``CalibratedClassifierCV`` fits its curves by dot products that BLAS divides among all cores, which at 40,000 rows takes
ten times the processor time of one core. Meanwhile BLAS has one thread, and each linear machine begins at the weights
of the one before (`dsgd.accel.searches`). All else stays scikit-learn's.

Cost: ``cache_size`` of kernel rows for each thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

import joblib
import numpy as np
import scipy.sparse as sp

from dsgd.accel import searches
from dsgd.accel.calls import SETTINGS, Call, note, note_refusal

#: Classes of `sklearn.linear_model`, and the parameters that mean the same to ours.
LINEAR_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "ElasticNet": ("alpha", "l1_ratio", "fit_intercept"),
    "Lasso": ("alpha", "fit_intercept"),
    "LogisticRegression": ("C", "l1_ratio", "fit_intercept", "class_weight"),
    "PoissonRegressor": ("alpha", "fit_intercept"),
    "Ridge": ("alpha", "fit_intercept"),
}
#: Solvers of `Ridge` for sparse rows that neither draw random numbers nor depend on the intercept.
_RIDGE_SOLVERS: Final = ("auto", "lsqr", "sparse_cg")
_TOL: Final = 1e-2


def _why_not_linear(estimator: Any, given: Mapping[str, Any]) -> str:
    """Return why a fit is another problem than ours, or pays nothing; empty if nothing is known."""
    parameters = estimator.get_params(deep=False)
    name = type(estimator).__name__
    if np.ndim(given["y"]) != 1:
        return "y is not one number or label for each row"
    if parameters.get("positive"):
        return "positive=True"
    if parameters.get("verbose"):
        return "verbose=..."
    if given.get("check_input") is False:
        return "fit(check_input=False)"
    if getattr(estimator, "_skl_callbacks", None):
        return "callbacks"
    if name == "LogisticRegression":
        return _why_not_logistic(parameters)
    if name == "Ridge":
        if not sp.issparse(given.get("X")):
            return "dense rows: scikit-learn's Cholesky factor takes as long as ours"
        if parameters["solver"] not in _RIDGE_SOLVERS:
            return f"solver={parameters['solver']!r}"
    return ""


def _why_not_logistic(parameters: Mapping[str, Any]) -> str:
    solver, penalty, l1_ratio = parameters["solver"], _penalty(parameters), _l1_ratio(parameters)
    if penalty is None or parameters["C"] == np.inf:
        return "no penalty"
    if parameters["dual"]:
        return "dual=True"
    if parameters.get("multi_class", "deprecated") not in ("auto", "deprecated", "multinomial"):
        return "multi_class=..."
    if solver == "liblinear":
        return "solver='liblinear' penalises the intercept"
    if l1_ratio is None or (l1_ratio != 0 and solver != "saga"):
        return f"solver={solver!r} with l1_ratio={l1_ratio!r}"
    return ""


def _penalty(parameters: Mapping[str, Any]) -> Any:
    """Return what the penalty is; from scikit-learn 1.8 on ``l1_ratio`` says it."""
    penalty = parameters["penalty"]
    return "elasticnet" if penalty == "deprecated" else penalty


def _l1_ratio(parameters: Mapping[str, Any]) -> float | None:
    of_norms: dict[Any, float | None] = {"l1": 1.0, "l2": 0.0}
    ratio = of_norms.get(_penalty(parameters), parameters["l1_ratio"])
    return ratio if ratio is None else float(ratio)


def _trained_linear(estimator: Any, given: Mapping[str, Any], n_threads: int) -> Any:
    """Return our model of the same problem."""
    name = type(estimator).__name__
    estimator._validate_params()
    parameters = estimator.get_params(deep=False)
    if (parameters["max_iter"] or math.inf) < (type(estimator)().max_iter or 0):
        raise ArithmeticError("max_iter=... may ask for a model that is not yet at the optimum")
    chosen = {key: parameters[key] for key in LINEAR_MODELS[name]}
    if name == "LogisticRegression":
        chosen["l1_ratio"] = _l1_ratio(parameters)
    # A relative residual; the gap is of its square.
    chosen["tol"] = parameters["tol"] ** 2 if name == "Ridge" else _TOL * parameters["tol"]
    if name in ("LogisticRegression", "PoissonRegressor"):
        chosen["n_jobs"] = n_threads
    model = getattr(importlib.import_module("dsgd.linear_model"), name)(**chosen)
    model.max_iter = max(model.max_iter, parameters["max_iter"] or 0)
    model._warn_unless = _refuse_unless
    return model.fit(given["X"], given["y"], sample_weight=given.get("sample_weight"))


def _refuse_unless(gap: float, tol: float) -> None:
    """Raise where a fit of its own would warn."""
    if not gap <= tol:
        raise ArithmeticError(f"a duality gap of {gap:.3g} after the last step")


def _take_over_linear(estimator: Any, model: Any, X: Any) -> None:
    """Set the attributes that scikit-learn's own fit would have set."""
    name, parameters = type(estimator).__name__, estimator.get_params(deep=False)
    dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
    found = {key: vars(model)[key] for key in ("n_features_in_", "feature_names_in_", "classes_") if key in vars(model)}
    found["coef_"] = np.asarray(model.coef_, dtype)
    if name == "LogisticRegression":
        found["intercept_"] = np.asarray(model.intercept_, dtype)
        found["n_iter_"] = np.array([model.n_iter_], np.int32)
    else:
        found["intercept_"] = dtype(model.intercept_) if parameters["fit_intercept"] else 0.0
        found["n_iter_"] = model.n_iter_
    if name in ("ElasticNet", "Lasso"):
        found["dual_gap_"] = dtype(model.dual_gap_)
    if name == "PoissonRegressor":
        found["_base_loss"] = estimator._get_loss()
    if name == "Ridge":
        found["solver_"] = "sparse_cg" if parameters["solver"] == "auto" else parameters["solver"]
        found["n_iter_"] = np.array([model.n_iter_], np.int32) if found["solver_"] == "lsqr" else None
    vars(estimator).pop("feature_names_in_", None)
    vars(estimator).update(found)


def _repeat_warnings(estimator: Any, fit: Any) -> None:
    """Let scikit-learn's fit warn of parameters that it will no longer take, before it finds that there are no rows."""
    defaults = inspect.signature(type(estimator)).parameters
    if any(
        getattr(estimator, key, None) is not defaults[key].default for key in ("n_jobs", "penalty") if key in defaults
    ):
        with contextlib.suppress(Exception):
            fit(type(estimator)(**estimator.get_params(deep=False)), None, None)


#: Modules of our estimators of the same names.
_OURS: Final = {
    **dict.fromkeys(("LinearSVC", "LinearSVR", "NuSVC", "NuSVR", "OneClassSVM", "SVC", "SVR"), "dsgd.svm"),
    **dict.fromkeys(("SGDClassifier", "SGDRegressor"), "dsgd.estimators"),
    **dict.fromkeys(LINEAR_MODELS, "dsgd.linear_model"),
}

# Predictions of fewer products of entries are over before ours have begun.
_MOST_PRODUCTS_OF_A_TINY_PREDICTION: Final = 2_000_000
_TINY: Final = "too small to be worth it"

# More steps for each row are taken only where a nu leaves next to no margin: ours finds it with care, LIBSVM does not.
_MOST_STEPS_PER_ROW: Final = 30
_worth: Final = searches.Worth()

#: Of fitted estimators with a kernel: ours, or None if there is none, and the attributes that it stands for.
_models: Final[weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]]] = weakref.WeakKeyDictionary()


def accelerated_methods(plain: type) -> dict[str, Callable[..., Any]]:
    """Return the methods that take the place of those of a class."""
    made = {"fit": _fitting(plain, plain.fit)}  # type: ignore[attr-defined]
    if _kind_of(plain.__name__) == "kernel":
        for method in ("decision_function", "predict"):
            if hasattr(plain, method):
                made[method] = _predicting(plain, getattr(plain, method))
    return made


def will_be_ours(estimator: Any, X: Any, n_fits: int, *, load: bool = False) -> bool:
    """Return whether our solver would train an estimator, as far as that is known before the fit."""
    name = type(estimator).__name__
    is_patched = getattr(vars(type(estimator)).get("fit"), "_is_accelerated", False)
    if not is_patched or _why_not(estimator, {"X": X}):
        return False
    kind = _kind_of(name)
    if not _worth.is_ours(searches.estimated_seconds(X, kind), kind, n_fits):
        return False
    if load:
        getattr(importlib.import_module(_OURS[name]), name)
        _worth.loaded(kind)
    return True


def _kind_of(name: str) -> searches.Kind:
    if name.startswith("SGD"):
        return "sgd"
    if name in LINEAR_MODELS:
        return "glm"
    return "linear" if name.startswith("Linear") else "kernel"


def _fitting(plain: type, theirs: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) is not plain:
            return theirs(self, *args, **kwargs)
        _models.pop(self, None)
        try:
            given = dict(signature.bind(self, *args, **kwargs).arguments)
        except TypeError:  # arguments that it does not have, which it says itself
            return theirs(self, *args, **kwargs)
        return _fit(self, theirs, given, args, kwargs)

    fit._is_accelerated = True  # type: ignore[attr-defined]
    return fit


def _predicting(plain: type, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def predict(self: Any, X: Any) -> Any:
        vectors = vars(self).get("support_") if type(self) is plain else None
        rows, columns = searches.shape_of(X)
        if vectors is None or rows * columns * len(vectors) < _MOST_PRODUCTS_OF_A_TINY_PREDICTION:
            return theirs(self, X)
        estimated_s = searches.prediction_seconds(X, len(vectors))
        model = _model_of(self, estimated_s)
        if model is not None:
            model.n_jobs = n_threads()
            return getattr(model, theirs.__name__)(X)
        begin = time.perf_counter()
        found = theirs(self, X)
        if self not in _models:  # not worth it, so far
            _worth.spend(time.perf_counter() - begin, estimated_s, "kernel")
        return found

    return predict


def _model_of(estimator: Any, estimated_s: float) -> Any:
    """Return our model of a fitted estimator; None where there is none, or loading it would not pay."""
    if estimator not in _models:
        if not _worth.is_ours(estimated_s, "kernel"):
            return None
        _models[estimator] = _taken_over_from(estimator), dict(vars(estimator))
    model, attributes = _models[estimator]
    # A script may change what was fitted, and parameters of which some change predictions.
    is_as_fitted = all(vars(estimator).get(name, vars) is value for name, value in attributes.items())
    return model if is_as_fitted else None


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
    parameters, name = estimator.get_params(deep=False), type(estimator).__name__
    if parameters.get("warm_start"):
        return "warm_start=True"
    if not all(map(_is_data, given.values())) or (
        isinstance(given.get("X"), (list, tuple)) and _names_files(given["X"])
    ):
        return "X, y or weights are names or a collection of dask"
    if name in LINEAR_MODELS and "y" in given:
        return _why_not_linear(estimator, given)
    if name == "NuSVC" and parameters["class_weight"] is not None:
        return "class_weight=...: scikit-learn leaves it out of the problem"
    if name == "LinearSVC" and parameters["multi_class"] == "crammer_singer":
        return 'multi_class="crammer_singer": dsgd.svm calls LIBLINEAR for it, too'
    if parameters.get("average"):
        return "average=...: partial_fit could not go on from here"
    if callable(parameters.get("kernel")):
        return "the kernel is a function"
    if parameters.get("dual") is False and parameters.get("loss") in ("hinge", "epsilon_insensitive"):
        return "loss and dual=False: LIBLINEAR has no such solver, and says so"
    found = [name for name in ("coef_init", "intercept_init") if given.get(name) is not None]
    return f"fit({found[0]}=...)" if found else ""


def _is_data(value: Any) -> bool:
    """Return whether ours takes a value for what scikit-learn does, not for a name or rows of a cluster."""
    return not isinstance(value, (str, PurePath)) and not hasattr(value, "__dask_graph__")


def _names_files(X: Any) -> bool:
    return isinstance(X, (list, tuple)) and len(X) > 0 and not _is_data(X[0])


def _fit(
    self: Any, theirs: Callable[..., Any], given: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    name = type(self).__name__
    X, kind = given.get("X"), _kind_of(name)
    reason, expected = _why_not(self, given), False
    estimated_s = searches.estimated_seconds(X, kind)
    if not reason and not _worth.is_ours(estimated_s, kind, searches.n_fits_to_come()):
        reason, expected = _TINY, True
    compared_s = _seconds_of_theirs(self, theirs, args, kwargs) if SETTINGS.compare and not reason else None
    begin = time.perf_counter()
    model = None
    if not reason:
        try:
            with searches.drawn_seed(self, given.get("y")) as seed:
                model = _trained(self, given, seed)
            _worth.loaded(kind)
        except Exception as error:
            # Whatever it is, scikit-learn has the last word: it may know how, or raises what scripts expect.
            reason = _text_of(error)
    if model is None:
        begin = time.perf_counter()
        theirs(self, *args, **kwargs)
        seconds = time.perf_counter() - begin
        if expected:
            _worth.spend(seconds, estimated_s, kind)
        note(Call(name, searches.shape_of(X), "scikit-learn", seconds, reason), expected=expected)
        return self
    _take_over(self, model, X)
    if kind == "glm":
        _repeat_warnings(self, theirs)
    seconds = time.perf_counter() - begin
    note(Call(name, searches.shape_of(X), "dsgd", seconds, compared_s=compared_s), expected=True)
    return self


def _trained(estimator: Any, given: Mapping[str, Any], seed: int | None) -> Any:
    """Return our estimator with the same parameters, fitted to the same rows."""
    name = type(estimator).__name__
    if name in LINEAR_MODELS:
        return _trained_linear(estimator, given, n_threads())
    kind = getattr(importlib.import_module(_OURS[name]), name)
    parameters = estimator.get_params(deep=False)
    if _kind_of(name) == "kernel" and parameters.get("random_state") is None:
        seed = None  # which leaves rows in their order
    parameters |= {"random_state": seed} if "random_state" in parameters else {}
    is_sgd = _kind_of(name) == "sgd"
    if is_sgd and given.get("sample_weight") is not None:
        _refuse_other_weights(given["sample_weight"])
    # More ranks of SGD would be another algorithm; SVMs are exact on any number of threads.
    parameters["n_jobs"] = 1 if is_sgd else n_threads()
    weights = given.get("sample_weight")
    if name in ("SVC", "SVR"):
        model = searches.trained_in_chain(estimator, kind, parameters, given["X"], given.get("y"), weights)
        if model is not None:
            return model
    if name == "LinearSVC":
        model = kind(**parameters)
        with searches.begin_near(model, parameters | {"random_state": None}):
            return model.fit(given["X"], given.get("y"), sample_weight=weights)
    if weights is not None and parameters.get("gamma") == "scale":
        parameters["gamma"] = _unweighted_scale(given["X"])
    model = kind(**parameters)
    if name == "NuSVC" and model.max_iter == -1:
        model.max_iter = _MOST_STEPS_PER_ROW * searches.shape_of(given["X"])[0]
        model._warn_if_open = lambda n_iter: None
    model.fit(given["X"], given.get("y"), **({} if weights is None else {"sample_weight": weights}))
    if vars(model).pop("_warn_if_open", None) is not None and max(model.n_iter_) >= model.max_iter:
        raise ArithmeticError("the margin is next to nothing")
    return model if _kind_of(name) != "kernel" else model.set_params(gamma=estimator.gamma)


def _unweighted_scale(X: Any) -> float:
    """Return the gamma that "scale" stands for in scikit-learn, where rows count once whatever their weights are."""
    if sp.issparse(X):
        variance = float(X.multiply(X).mean() - X.mean() ** 2)
    else:
        X = np.asarray(X, dtype=None if getattr(X, "dtype", None) == np.float32 else np.float64)
        variance = float(X.var())
    return 1.0 / (X.shape[1] * variance) if variance else 1.0


def _refuse_other_weights(weights: Any) -> None:
    """Raise unless every row is visited once, with a mean weight of one: both objectives are the same then."""
    from dsgd.errors import IncompatiblePartsError
    from dsgd.local.shard import count_visits

    given = np.asarray(weights, np.float64)
    if np.any(count_visits(given) != 1) or not math.isclose(given.mean(), 1.0, rel_tol=1e-6):
        raise IncompatiblePartsError("sample_weight=...: our loss is a mean by the weights, and theirs by the rows")


def _take_over(estimator: Any, model: Any, X: Any) -> None:
    """Set the attributes that scikit-learn's own fit would have set."""
    kind = _kind_of(type(estimator).__name__)
    if kind == "glm":
        _take_over_linear(estimator, model, X)
        return
    fitted, parameters = model.to_sklearn(), estimator.get_params(deep=False)
    vars(estimator).update({name: value for name, value in vars(fitted).items() if name not in parameters})
    if kind == "kernel":
        _models[estimator] = model, dict(vars(estimator))


def _seconds_of_theirs(estimator: Any, theirs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Return the seconds of the same fit by scikit-learn, which draws no number that the script would miss."""
    other = type(estimator)(**estimator.get_params(deep=False))
    if "random_state" in other.get_params(deep=False):
        other.set_params(random_state=0)
    begin = time.perf_counter()
    theirs(other, *args, **kwargs)
    return time.perf_counter() - begin


#: What a calibration fits at least, by cross-validation.
_FEWEST_FITS = 2
#: Folds where `cv` is None.
_FOLDS = 5


def side_by_side(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``fit`` of ``OneVsRestClassifier``, with machines of ours trained side by side on threads.

    That is so if ``n_jobs`` is None, outside other parallel loops and searches, and with as many classes as threads.
    """

    @functools.wraps(fit)
    def fit_machines(self: Any, X: Any, y: Any, **fit_params: Any) -> Any:
        with _threads_for(self.estimator, self.n_jobs, X, lambda: _count_machines(y)):
            return fit(self, X, y, **fit_params)

    return fit_machines


def folds_side_by_side(validate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of ``sklearn.model_selection``, with machines of ours trained side by side on threads.

    That is so under the same conditions, and if no function of the script's own finds the scores.
    """

    @functools.wraps(validate)
    def validate_folds(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
        scoring = options.get("scoring")
        if any(map(callable, scoring.values() if isinstance(scoring, dict) else [scoring])):
            return validate(estimator, X, y, **options)
        with _threads_for(estimator, options.get("n_jobs"), X, lambda: _count_fits(options)):
            return validate(estimator, X, y, **options)

    return validate_folds


def calibrated(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``fit`` of ``CalibratedClassifierCV``: ours begin near each other, and BLAS has one thread."""

    @functools.wraps(fit)
    def fit_calibrated(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if not will_be_ours(self._get_estimator(), X, _FEWEST_FITS):
            return fit(self, X, *args, **kwargs)
        from dsgd.runtime.pools import limit_blas

        with limit_blas(1), searches.near_fits():
            return fit(self, X, *args, **kwargs)

    return fit_calibrated


def _threads_for(
    estimator: Any, n_jobs: Any, X: Any, count: Callable[[], int]
) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which joblib trains so many machines of an estimator as `count` returns."""
    n = n_threads()
    # A search solves chains of fits, which know of each other in one thread only.
    is_alone = n_jobs is None and joblib.parallel.get_active_backend()[1] in (None, 1) and not searches.is_searching()
    # Folds of probabilities are drawn from one stream of random numbers, in the order of the fits.
    has_kernel = getattr(estimator, "kernel", None) is not None
    if n < 2 or not is_alone or not has_kernel or getattr(estimator, "probability", False) not in (False, "deprecated"):
        return contextlib.nullcontext()
    n_machines = count()
    if n_machines < n or not will_be_ours(estimator, X, n_machines, load=True):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = joblib.parallel_config(backend="threading", n_jobs=n)
    return context


def _count_fits(options: Mapping[str, Any]) -> int:
    """Return about how many fits a function does for these options; for splits of unknown number the fewest."""
    cv = options.get("cv")
    n_splits = _FOLDS if cv is None else cv if isinstance(cv, int) else _FEWEST_FITS
    return n_splits * max(1, np.size(options.get("train_sizes", 1)), np.size(options.get("param_range", 1)))


def _count_machines(y: Any) -> int:
    """Return the number of machines for labels or an indicator matrix; 0 for what scikit-learn refuses."""
    try:
        shape = getattr(y, "shape", None) or np.shape(y)
        if len(shape) > 1:
            return int(shape[1])
        n_classes = len(np.unique(np.asarray(y)))
    except (TypeError, ValueError):  # rows of several lengths, or numbers among strings
        return 0
    return n_classes if n_classes > 2 else 1
