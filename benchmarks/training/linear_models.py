"""Generalised linear models beside scikit-learn, celer, skglm and glum: seconds of whole fits on one core, in turns.

Every method has a tolerance at which its objective is within some 1e-6 of the least that any has found, as a share of
the objective at zero, and in the cases "to 1e-9" within that; the error that it reached is beside its seconds. Methods
whose package is not installed are left out. The certificate of ours is ``dual_gap_``, in the same units: it is never
below the error.

    python -m benchmarks run linear_models [--quick] [--only "lasso wide/10"]
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import linear_model as peers

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, table
from dsgd.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge

PAGE = "linear-models"
QUICK_S = 60
QUICK = "a tenth of the rows and columns, one turn"
REPEATS = (5, 1)
ONE_THREAD = True

OURS = "dsgd"
#: Tolerances of a Lasso for errors of some 1e-6 or less; those of skglm are violations, of others gaps.
LOOSE = {OURS: 1e-6, "scikit-learn": 1e-6, "celer": 1e-6, "skglm": 1e-5}
#: For errors of some 1e-6 where nearly as many weights as rows are not zero: gaps are a hundred times as large there.
ROUGH = {OURS: 3e-4, "scikit-learn": 1e-4, "celer": 1e-4, "skglm": 1e-5}
#: For errors of some 1e-9 there.
TIGHT = {OURS: 1e-6, "scikit-learn": 1e-6, "celer": 1e-6, "skglm": 1e-7}


def dense(n: int, p: int) -> tuple[Any, Any]:
    """Return dense rows, and scores of a fifth of the columns, at most fifty."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((n, p)), np.zeros(p)
    w[: min(50, p // 5)] = rng.standard_normal(min(50, p // 5))
    return X, X @ w / max(1.0, np.linalg.norm(w))


def correlated(n: int, p: int) -> tuple[Any, Any]:
    """Return dense rows whose neighbouring columns correlate by 0.9, and scores of at most fifty columns."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((n, p)), np.zeros(p)
    for j in range(1, p):
        X[:, j] = 0.9 * X[:, j - 1] + np.sqrt(1 - 0.9**2) * X[:, j]
    chosen = rng.choice(p, min(50, p // 5), replace=False)
    w[chosen] = rng.standard_normal(len(chosen))
    return X, X @ w / max(1.0, np.linalg.norm(w))


def sparse(n: int, p: int, per_row: int) -> tuple[Any, Any]:
    """Return sparse rows whose columns are the rarer the higher their number, as those of texts, and scores."""
    rng = np.random.default_rng(0)
    columns = (p * rng.random(n * per_row) ** 3).astype(np.int64)
    X = sp.csr_matrix((rng.random(n * per_row) + 0.5, (np.repeat(np.arange(n), per_row), columns)), (n, p))
    w = np.where(rng.random(p) < 0.02, rng.standard_normal(p), 0.0)
    scores = X @ w
    return X, scores / max(1e-9, float(scores.std()))


def installed(package: str, name: str) -> Any:
    """Return a class of a package, None if that is not installed."""
    try:
        return getattr(importlib.import_module(package), name)
    except ImportError:
        return None


def squared_error(model: Any, X: Any, y: Any) -> float:
    """Return half the mean squared error."""
    return 0.5 * float(np.mean((y - X @ np.ravel(model.coef_) - np.ravel(model.intercept_)[0]) ** 2))


def lasso(X: Any, scores: Any, share: float, tols: Any = LOOSE) -> tuple[dict[str, Any], Any, Any, float]:
    """Return the methods of a Lasso, the targets, the objective, and its value at zero."""
    y = scores + 0.3 * np.random.default_rng(1).standard_normal(len(scores))
    centred = y - y.mean()
    alpha = float(np.abs(X.T @ centred).max()) / len(y) * share
    methods = {
        OURS: Lasso(alpha, tol=tols[OURS]),
        "scikit-learn": peers.Lasso(alpha, tol=tols["scikit-learn"], max_iter=100_000),
        "celer": (made := installed("celer", "Lasso")) and made(alpha, tol=tols["celer"]),
        "skglm": (made := installed("skglm", "Lasso")) and made(alpha, tol=tols["skglm"]),
    }
    return (
        methods,
        y,
        lambda m: squared_error(m, X, y) + alpha * float(np.abs(m.coef_).sum()),
        0.5 * float(np.mean(centred**2)),
    )


def logistic(X: Any, scores: Any, l1: float, C: float) -> tuple[dict[str, Any], Any, Any, float]:
    """Return the same of a logistic regression."""
    y = np.where(scores + 0.3 * np.random.default_rng(1).logistic(size=len(scores)) > 0, 1, -1)

    def objective(m: Any) -> float:
        w, margins = np.ravel(m.coef_), y * (X @ np.ravel(m.coef_) + np.ravel(m.intercept_)[0])
        return C * float(np.logaddexp(0.0, -margins).sum()) + l1 * np.abs(w).sum() + (1 - l1) / 2 * float(w @ w)

    n = len(y)
    glum = installed("glum", "GeneralizedLinearRegressor")
    options: dict[str, Any] = {"family": "binomial", "alpha": 1 / (C * n), "l1_ratio": l1, "gradient_tol": 1e-6}
    skglm = installed("skglm", "SparseLogisticRegression") if l1 else None
    own: dict[str, Any] = {"C": C, "l1_ratio": l1}
    methods = {
        OURS: LogisticRegression(**own, tol=1e-6),
        "LIBLINEAR": peers.LogisticRegression(**own, solver="liblinear", tol=1e-5, intercept_scaling=100.0),
        "scikit-learn": None if l1 else peers.LogisticRegression(**own, tol=1e-6, max_iter=10_000),
        "skglm": skglm and skglm(1 / (C * n), tol=1e-7),
        # It holds a dense matrix of second derivatives.
        "glum": glum and glum(**options) if X.shape[1] <= 1000 else None,
    }
    return methods, (y > 0).astype(np.float64), objective, C * n * float(np.log(2.0))


def ridge(X: Any, scores: Any, alpha: float) -> tuple[dict[str, Any], Any, Any, float]:
    """Return the same of a ridge regression."""
    y = scores + 0.3 * np.random.default_rng(1).standard_normal(len(scores))
    methods = {
        OURS: Ridge(alpha, tol=1e-6),
        "scikit-learn": peers.Ridge(alpha, tol=1e-4),
    }
    n = len(y)
    return methods, y, lambda m: 2 * n * squared_error(m, X, y) + alpha * float(m.coef_ @ m.coef_), n * float(np.var(y))


def poisson(X: Any, scores: Any, alpha: float) -> tuple[dict[str, Any], Any, Any, float]:
    """Return the same of a Poisson regression."""
    y = np.random.default_rng(1).poisson(np.exp(np.minimum(0.5 * scores, 3.0))).astype(np.float64)

    def objective(m: Any) -> float:
        scores = X @ m.coef_ + m.intercept_
        return float(np.mean(np.exp(scores) - y * scores) + alpha / 2 * float(m.coef_ @ m.coef_))

    glum = installed("glum", "GeneralizedLinearRegressor")
    methods = {
        OURS: PoissonRegressor(alpha=alpha, tol=1e-6),
        "scikit-learn": peers.PoissonRegressor(alpha=alpha, tol=1e-6, max_iter=10_000),
        "newton-cholesky": peers.PoissonRegressor(alpha=alpha, tol=1e-6, solver="newton-cholesky"),
        "glum": glum and glum(family="poisson", alpha=alpha, l1_ratio=0.0, gradient_tol=1e-6),
    }
    return methods, y, objective, 1.0


CASES: dict[str, Callable[[int], Any]] = {
    **{
        f"lasso {name}/{d}": lambda k, make=make, d=d: (X := make(k), lasso(*X, 1 / d))
        for d in (10, 100)
        for name, make in {
            "wide": lambda k: dense(1_000 // k, 5_000 // k),
            "tall": lambda k: dense(100_000 // k, 100),
            "sparse": lambda k: sparse(20_000 // k, 50_000 // k, 100),
        }.items()
    },
    "lasso correlated/1000": lambda k: (X := correlated(1_000 // k, 5_000 // k), lasso(*X, 1e-3, ROUGH)),
    "lasso correlated/1000 to 1e-9": lambda k: (X := correlated(1_000 // k, 5_000 // k), lasso(*X, 1e-3, TIGHT)),
    "logistic l2 dense": lambda k: (X := dense(100_000 // k, 50), logistic(*X, 0.0, 1.0)),
    "logistic l1 dense": lambda k: (X := dense(100_000 // k, 50), logistic(*X, 1.0, 0.01)),
    "logistic l2 sparse": lambda k: (X := sparse(20_000 // k, 100_000 // k, 100), logistic(*X, 0.0, 1.0)),
    "logistic l1 sparse": lambda k: (X := sparse(20_000 // k, 100_000 // k, 100), logistic(*X, 1.0, 1.0)),
    "ridge tall": lambda k: (X := dense(100_000 // k, 100), ridge(*X, 1.0)),
    "ridge wide": lambda k: (X := dense(1_000 // k, 5_000 // k), ridge(*X, 100.0)),
    "ridge sparse": lambda k: (X := sparse(20_000 // k, 50_000 // k, 100), ridge(*X, 10.0)),
    "poisson": lambda k: (X := dense(100_000 // k, 50), poisson(*X, 1e-3)),
}


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore")  # of peers that stop at a limit: their error says so
    heads = ("case", "method", "s:.3f", "seconds over ours:.2f", "error:.1e", "certified:.1e")
    with table("whole fits on one core; errors are shares of the objective at zero", *heads) as line:
        for case in options.only:
            (X, _), (methods, y, objective, scale) = CASES[case](10 if options.quick else 1)
            methods = {name: model for name, model in methods.items() if model is not None}
            works = {name: partial(model.fit, X, y) for name, model in methods.items()}
            turns = in_turns(works, options.repeats, warm_up=1)
            values = {name: objective(model) for name, model in methods.items()}
            least = min(*values.values(), values[OURS])
            ours = [one.seconds for one in turns[OURS]]
            for name, model in methods.items():
                error = (values[name] - least) / scale
                certified = model.dual_gap_ / scale if name == OURS else None
                over = ratio([one.seconds for one in turns[name]], ours)
                seconds = median_s(turns[name])
                rows.add(case=case, method=name, seconds=seconds, over_ours=over, error=error, certified=certified)
                line(case, name, seconds, over, error, certified)
