"""scikit-learn's generalised linear models by `dsgd.linear_model`: which are the same problem, and what they leave.

scikit-learn's tolerances bound a gradient, or the movement of a step. Ours are shares of the objective, and chosen
below so that the model is at least as near to its optimum. A fit that does not get there is scikit-learn's.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

#: Classes of `sklearn.linear_model`, and the parameters that mean the same to ours.
MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "ElasticNet": ("alpha", "l1_ratio", "fit_intercept"),
    "Lasso": ("alpha", "fit_intercept"),
    "LogisticRegression": ("C", "l1_ratio", "fit_intercept", "class_weight"),
    "PoissonRegressor": ("alpha", "fit_intercept"),
    "Ridge": ("alpha", "fit_intercept"),
}
#: Solvers of `Ridge` for sparse rows that neither draw random numbers nor depend on the intercept.
_RIDGE_SOLVERS: Final = ("auto", "lsqr", "sparse_cg")
_TOL: Final = 1e-2


def why_not(estimator: Any, given: Mapping[str, Any]) -> str:
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


def trained(estimator: Any, given: Mapping[str, Any], n_threads: int) -> Any:
    """Return our model of the same problem."""
    name = type(estimator).__name__
    estimator._validate_params()
    parameters = estimator.get_params(deep=False)
    if (parameters["max_iter"] or math.inf) < (type(estimator)().max_iter or 0):
        raise ArithmeticError("max_iter=... may ask for a model that is not yet at the optimum")
    chosen = {key: parameters[key] for key in MODELS[name]}
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


def take_over(estimator: Any, model: Any, X: Any) -> None:
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


def repeat_warnings(estimator: Any, fit: Any) -> None:
    """Let scikit-learn's fit warn of parameters that it will no longer take, before it finds that there are no rows."""
    defaults = inspect.signature(type(estimator)).parameters
    if any(
        getattr(estimator, key, None) is not defaults[key].default for key in ("n_jobs", "penalty") if key in defaults
    ):
        with contextlib.suppress(Exception):
            fit(type(estimator)(**estimator.get_params(deep=False)), None, None)
