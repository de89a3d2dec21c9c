"""Draws problems: number ``n`` of a seed is the same wherever it is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import compute_class_weight

PRESETS = ("auto", "none", "single", "multi", "libsvm", "aggressive", "average", "conservative")

_ESTIMATORS = {
    "SVC": 0.42,
    "NuSVC": 0.14,
    "SVR": 0.14,
    "NuSVR": 0.1,
    "OneClassSVM": 0.1,
    "LinearSVC": 0.05,
    "LinearSVR": 0.05,
}
_KERNELS = {"rbf": 0.34, "linear": 0.14, "poly": 0.12, "sigmoid": 0.06, "precomputed": 0.22, "callable": 0.12}
#: (most samples, share): most problems are so small that one takes a few milliseconds.
_SIZES = ((12, 0.34), (40, 0.34), (120, 0.22), (300, 0.075), (512, 0.01), (700, 0.015))


@dataclass(frozen=True)
class Problem:
    """A problem, and how it is to be solved.

    Parameters
    ----------
    seed, number : int
        Where it was drawn.
    estimator : str
        The class, by the name that it has in scikit-learn and here.
    X : array or CSR matrix, shape (n, d)
        Rows, or the kernel matrix.
    y : array, shape (n,), or None
        Labels or targets.
    weights : array, shape (n,), or None
        Sample weights.
    parameters : dict
        What both libraries are told.
    ours : dict
        What only our class is told.
    n_ranks : int
        Ranks that solve it together, each a thread.
    block_size : int or None
        Variables of a block; None leaves the choice to the solver, for which most of these problems are one block.
    is_psd : bool
        Whether the kernel is positive semi-definite, so that all stationary points are optima.
    """

    seed: int
    number: int
    estimator: str
    X: Any
    y: np.ndarray | None
    weights: np.ndarray | None
    parameters: dict[str, Any]
    ours: dict[str, Any]
    n_ranks: int
    block_size: int | None
    is_psd: bool

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        kernel = self.parameters.get("kernel", "linear")
        return "callable" if callable(kernel) else str(kernel)

    @property
    def is_pairwise(self) -> bool:
        """Whether the published algorithm solves it."""
        return self.ours.get("solver") == "pairwise"

    def used(self) -> Problem:
        """Return the problem without rows of weight zero, which scikit-learn numbers wrongly in `support_`."""
        if self.weights is None or self.weights.all():
            return self
        rows = np.flatnonzero(self.weights)
        X = self.X[np.ix_(rows, rows)] if self.kernel == "precomputed" else self.X[rows]
        parameters = dict(self.parameters)
        if "class_weight" in parameters:
            classes = np.unique(self.y[rows])
            is_left = np.isin(self.y, classes)
            # The linear machines balance the weights of classes, the others their rows.
            by = {"sample_weight": self.weights[is_left]} if self.estimator.startswith("Linear") else {}
            balance = compute_class_weight(parameters["class_weight"], classes=classes, y=self.y[is_left], **by)
            parameters["class_weight"] = dict(zip(classes.tolist(), balance.tolist(), strict=True))
        y = None if self.y is None else self.y[rows]
        return replace(self, X=X, y=y, weights=self.weights[rows], parameters=parameters)

    def __str__(self) -> str:
        words = {key: getattr(value, "__name__", value) for key, value in {**self.parameters, **self.ours}.items()}
        said = ", ".join(f"{key}={value!r}" for key, value in words.items())
        form = "csr" if sp.issparse(self.X) else "dense"
        extra = "" if self.weights is None else ", weighted"
        return (
            f"{self.estimator}({said}) on {form} {self.X.dtype} {self.X.shape}{extra}, "
            f"{self.n_ranks} ranks, blocks of {self.block_size}"
        )


def laplacian(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return exp(-mean |a - b|)."""
    return np.exp(-np.abs(A[:, None, :] - B[None, :, :]).mean(axis=2))


def matching(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return how many features are equal, as integers."""
    return (A[:, None, :] == B[None, :, :]).sum(axis=2)


def products(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return inner products in the type of the rows."""
    return A @ B.T


def distance(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return minus the distance, which is positive semi-definite only where coefficients sum to zero."""
    return -np.sqrt(np.maximum(((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2), 0.0))


#: callable -> whether it is positive semi-definite.
_CALLABLES = {laplacian: True, matching: True, products: True, distance: False}


def draw(seed: int, number: int) -> Problem:
    """Return a problem: one of three of rows of few values, the others hard in other ways."""
    is_coarse = np.random.default_rng((seed, number, 2)).random() < 1 / 3
    return draw_coarse(seed, number) if is_coarse else draw_hard(seed, number)


def draw_coarse(seed: int, number: int) -> Problem:
    """Return a problem of few-valued rows, many of them equal, with tiny and huge C, and weights that add up."""
    rng = np.random.default_rng((seed, number, 3))
    estimator = _pick(rng, {"SVC": 0.7, "NuSVC": 0.08, "SVR": 0.12, "NuSVR": 0.04, "OneClassSVM": 0.06})
    n, d = int(rng.integers(4, 61)), int(rng.integers(1, 4))
    X = rng.integers(0, rng.integers(2, 6), (n, d)).astype(np.float64)
    if rng.random() < 0.3:
        X = X[rng.integers(0, rng.integers(2, n + 1), n)]
    parameters: dict[str, Any] = {"kernel": _pick(rng, {"rbf": 0.6, "linear": 0.25, "poly": 0.15})}
    if parameters["kernel"] != "linear":
        parameters["gamma"] = float(rng.choice([0.5, 1.0, 0.1]))
    if parameters["kernel"] == "poly":
        parameters |= {"degree": 2, "coef0": float(rng.integers(0, 2))}
    y = None
    if estimator.endswith("SVC"):
        y = rng.integers(0, int(_pick(rng, {"2": 0.7, "3": 0.2, "4": 0.1})), n)
        y[:2] = 0, 1
    elif estimator.endswith("SVR"):
        y = rng.integers(0, rng.integers(2, 5), n).astype(np.float64)
    weights = None
    if rng.random() < 0.4:
        values = [[0.1, 0.2, 0.3, 0.7], [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [1e-6, 1.0, 1e6]]
        weights = rng.choice(values[int(rng.integers(len(values)))], n)
        weights[:2] = np.maximum(weights[:2], 0.1)
    if estimator == "SVC" and rng.random() < 0.4:
        parameters["class_weight"] = "balanced" if rng.random() < 0.7 else dict.fromkeys(range(4), 1.0) | {1: 3.0}
    _draw_parameters(rng, estimator, parameters, weights, y)
    if "C" in parameters:
        low, high = [(-8, -2), (-3, 3), (2, 8)][int(rng.choice(3, p=[0.5, 0.3, 0.2]))]
        parameters["C"] = _power(rng, low, high)
    parameters["tol"] = float(rng.choice([1e-3, 1e-6]))
    block_size = int(rng.choice([2, 8, 64])) if rng.random() < 0.2 else None
    n_ranks = 2 + int(rng.random() < 0.4) if rng.random() < 0.04 else 1
    ours = _draw_ours(rng, estimator)
    ours.pop("max_iter", None)
    return Problem(seed, number, estimator, X, y, weights, parameters, ours, n_ranks, block_size, True)


def draw_hard(seed: int, number: int) -> Problem:
    """Return a problem of any kind."""
    rng = np.random.default_rng((seed, number))
    estimator = _pick(rng, _ESTIMATORS)
    n = _draw_size(rng)
    if estimator.startswith("Linear"):
        n = min(n, 200)
    kernel = "linear" if estimator.startswith("Linear") else _pick(rng, _KERNELS)
    parameters: dict[str, Any] = {}
    is_psd = True
    if kernel == "precomputed":
        X, is_psd, features = _draw_kernel_matrix(rng, n)
    else:
        X = features = _draw_rows(rng, n, dense=kernel == "callable")
    if not estimator.startswith("Linear"):
        is_psd = _draw_kernel(rng, kernel, parameters) and is_psd
    y = _draw_target(rng, estimator, features)
    weights = _draw_weights(rng, n)
    if weights is not None and "SVC" in estimator and (rng.random() < 0.8 or estimator.startswith("Linear")):
        _, some = np.unique(y, return_index=True)
        weights[some] = np.maximum(weights[some], 0.5)
    _draw_parameters(rng, estimator, parameters, weights, y)
    ours = {} if estimator.startswith("Linear") else _draw_ours(rng, estimator)
    n_ranks = 1
    if kernel != "precomputed" and not estimator.startswith("Linear") and rng.random() < 0.04:
        n_ranks = 2 + int(rng.random() < 0.4)
    block_size = int(rng.choice([2, 4, 8, 16, 64])) if rng.random() < 0.35 else None
    return Problem(seed, number, estimator, X, y, weights, parameters, ours, n_ranks, block_size, is_psd)


def _pick(rng: np.random.Generator, shares: dict[str, float]) -> str:
    names = list(shares)
    odds = np.array([shares[name] for name in names])
    return names[int(rng.choice(len(names), p=odds / odds.sum()))]


def _draw_size(rng: np.random.Generator) -> int:
    low = 2
    share = rng.random() * sum(part for _, part in _SIZES)
    for most, part in _SIZES:
        if share < part:
            return int(rng.integers(low, most + 1))
        share -= part
        low = most
    return _SIZES[-1][0]


def _power(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number of any size, now and then a round one."""
    power = rng.uniform(low, high)
    return float(10.0 ** (np.round(power) if rng.random() < 0.3 else power))


def _draw_rows(rng: np.random.Generator, n: int, *, dense: bool) -> Any:
    d = int(rng.choice([1, 2, 3, 5, 10, 30], p=[0.15, 0.25, 0.2, 0.2, 0.15, 0.05]))
    X = rng.normal(size=(n, d))
    kind = rng.choice(["plain", "whole", "unscaled", "clusters", "heavy", "steps", "far", "zero"])
    if kind == "whole":
        X = np.round(2 * X)
    elif kind == "unscaled":
        X = X * 10.0 ** rng.uniform(-2, 3, d) + 10.0 ** rng.uniform(0, 3.5, d)
    elif kind == "clusters":
        X = 0.1 * X + 3.0 * rng.normal(size=(int(rng.integers(1, 5)), d))[rng.integers(0, 1, n)]
        X[: n // 2] += 2.0
    elif kind == "heavy":
        X = np.clip(rng.standard_cauchy(size=(n, d)), -1e4, 1e4)
    elif kind == "steps":
        X = rng.integers(0, 2, (n, d)).astype(float)
    elif kind == "far":
        X = X + 10.0 ** rng.uniform(1, 5)
    elif kind == "zero" and rng.random() < 0.2:
        X[:] = 0.0
    if rng.random() < 0.25:
        X[:, rng.integers(0, d)] = rng.choice([0.0, 1.0, 1e3])
    if rng.random() < 0.25:
        X = X[rng.integers(0, max(1, n // int(rng.integers(1, 6))), n)]
    form = rng.random()
    if form < 0.15:
        return X.astype(np.float32)
    if form < 0.25:
        return np.round(np.clip(X, -1e6, 1e6)).astype(np.int64)
    if form < 0.4 and not dense:
        X[np.abs(X) < np.median(np.abs(X))] = 0.0
        return sp.csr_matrix(X.astype(np.float32) if rng.random() < 0.3 else X)
    return X


def _draw_kernel_matrix(rng: np.random.Generator, n: int) -> tuple[np.ndarray, bool, np.ndarray]:
    rank = int(rng.integers(1, min(n, 40) + 1))
    A = rng.normal(size=(n, rank))
    if rng.random() < 0.3:
        A = A[rng.integers(0, max(1, n // 3), n)]
    kind = rng.choice(["gram", "gram", "unit", "rbf", "indefinite", "shifted", "zero", "ones"])
    is_psd = kind not in {"indefinite", "shifted"}
    if kind == "unit":
        A = A / np.linalg.norm(A, axis=1, keepdims=True)
    K = A @ A.T
    if kind == "rbf":
        squares = np.diag(K)
        K = np.exp(-np.maximum(squares[:, None] + squares - 2 * K, 0.0) * _power(rng, -3, 2))
    elif kind == "indefinite":
        B = rng.normal(size=(n, n))
        K = 0.5 * (B + B.T)
    elif kind == "shifted":
        K = K - rng.uniform(0, rank) * np.eye(n)
    elif kind == "zero":
        K = np.zeros((n, n)) if rng.random() < 0.3 else np.diag(rng.uniform(0, 2, n))
    elif kind == "ones":
        K = np.ones((n, n)) + (np.eye(n) if rng.random() < 0.5 else 0.0)
    scale = _power(rng, -4, 4) if rng.random() < 0.4 else 1.0
    K = 0.5 * (K + K.T) * scale
    return (K.astype(np.float32) if rng.random() < 0.1 and is_psd is False else K), is_psd, A


def _draw_kernel(rng: np.random.Generator, kernel: str, parameters: dict[str, Any]) -> bool:
    """Draw the kernel's constants; return whether it is positive semi-definite."""
    parameters["kernel"] = kernel
    if kernel == "callable":
        functions = list(_CALLABLES)
        parameters["kernel"] = functions[int(rng.integers(len(functions)))]
        return _CALLABLES[parameters["kernel"]]
    if kernel in {"rbf", "poly", "sigmoid"}:
        form = rng.random()
        parameters["gamma"] = "scale" if form < 0.3 else "auto" if form < 0.4 else _power(rng, -12, 6)
        if form > 0.7:
            parameters["gamma"] = _power(rng, -3, 1)
    if kernel in {"poly", "sigmoid"}:
        parameters["coef0"] = float(rng.choice([0.0, 1.0, 0.5, -1.0, 100.0]))
    if kernel == "poly":
        parameters["degree"] = int(rng.choice([0, 1, 2, 3, 3, 4, 5, 7, 60]))
        return bool(parameters["coef0"] >= 0.0)
    return kernel != "sigmoid"


def _draw_target(rng: np.random.Generator, estimator: str, features: Any) -> np.ndarray | None:
    if estimator == "OneClassSVM":
        return None
    rows = np.asarray(features.todense()) if sp.issparse(features) else np.asarray(features, dtype=np.float64)
    n = len(rows)
    kind = rng.choice(["plane", "random", "one-sided", "few"], p=[0.45, 0.3, 0.15, 0.1])
    score = rows @ rng.normal(size=rows.shape[1])
    score = (score - score.mean()) / (score.std() or 1.0) + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=n)
    if estimator.endswith("SVR"):
        if kind == "random":
            score = np.round(rng.normal(size=n))
        elif kind == "one-sided":
            score = np.where(rng.random(n) < 0.05, 1.0, 0.0)
        elif kind == "few":
            score = np.full(n, 3.0)
        return score * (_power(rng, -3, 5) if rng.random() < 0.3 else 1.0)
    n_classes = 2 if rng.random() < 0.85 or n < 8 else int(rng.integers(3, 6))
    if kind == "plane":
        y = np.digitize(score, np.quantile(score, np.arange(1, n_classes) / n_classes))
    elif kind == "one-sided":
        y = np.zeros(n, dtype=np.int64)
        y[rng.integers(0, n)] = 1
    elif kind == "few":
        y = (rng.random(n) < 0.08).astype(np.int64)
    else:
        y = rng.integers(0, n_classes, n)
    if len(np.unique(y)) < 2:
        y[0], y[-1] = 0, 1
    return y


def _draw_weights(rng: np.random.Generator, n: int) -> np.ndarray | None:
    if rng.random() < 0.7:
        return None
    weights = rng.uniform(0.1, 3.0, n)
    if rng.random() < 0.5:
        weights[rng.random(n) < 0.3] = 0.0
    if rng.random() < 0.3:
        weights[rng.random(n) < 0.2] *= _power(rng, 2, 6)
    if rng.random() < 0.2:
        weights = np.round(weights)
    return weights if weights.any() else None


def _draw_parameters(
    rng: np.random.Generator,
    estimator: str,
    parameters: dict[str, Any],
    weights: np.ndarray | None,
    y: np.ndarray | None,
) -> None:
    if weights is not None and parameters.get("gamma") == "scale":
        parameters["gamma"] = "auto"  # the variance of rows with weights is another one here
    if estimator in {"NuSVC", "NuSVR", "OneClassSVM"}:
        parameters["nu"] = float(rng.choice([0.5, 0.1, 0.01, 0.9, 1.0, rng.uniform(0.01, 1.0)]))
        if estimator == "OneClassSVM" and weights is not None:
            parameters["nu"] = min(parameters["nu"], 0.9)  # with all of them LIBSVM writes beyond its arrays
    if estimator == "NuSVC" and y is not None and rng.random() < 0.8:
        share = np.bincount(y, weights=weights)
        share = share[share > 0]
        parameters["nu"] = float(parameters["nu"] * 2.0 * share.min() / (share.min() + share.max()))
    if estimator not in {"NuSVC", "OneClassSVM"}:
        narrow = rng.random() < 0.5
        parameters["C"] = _power(rng, -2, 3) if narrow else _power(rng, -3, 6 if "Linear" in estimator else 10)
    if estimator in {"SVR", "LinearSVR"}:
        parameters["epsilon"] = float(rng.choice([0.1, 0.0, 1e-6, 1.0, 10.0]))
    if estimator in {"SVC", "LinearSVC"} and rng.random() < 0.15:
        parameters["class_weight"] = "balanced"
    if estimator.startswith("Linear"):
        options = ["hinge", "squared_hinge"]
        if estimator == "LinearSVR":
            options = ["epsilon_insensitive", "squared_epsilon_insensitive"]
        parameters["loss"] = str(rng.choice(options))
        parameters["fit_intercept"] = bool(rng.random() < 0.8)
        return
    parameters["tol"] = float(rng.choice([1e-3, 0.1, 1e-2, 1e-5, 1e-8], p=[0.6, 0.1, 0.1, 0.15, 0.05]))
    parameters["cache_size"] = float(rng.choice([200.0, 1.0, 0.01, 0.0001], p=[0.5, 0.2, 0.2, 0.1]))


def _draw_ours(rng: np.random.Generator, estimator: str) -> dict[str, Any]:
    ours: dict[str, Any] = {"elimination": str(rng.choice(PRESETS, p=[0.3] + [0.1] * 7))}
    ours["n_jobs"] = 2 if rng.random() < 0.03 else 1
    if rng.random() < 0.05:
        ours["shrinking"] = False
    if rng.random() < 0.15:
        ours["max_iter"] = int(rng.choice([0, 1, 2, 10, 100, 1000]))
    if estimator == "SVC" and rng.random() < 0.1:
        ours["solver"] = "pairwise"
    return ours
