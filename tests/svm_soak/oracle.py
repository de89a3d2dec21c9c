"""What plain numpy says of a fitted machine, from the rows and its public attributes alone.

The kernel matrix comes from differences of rows, not from the products that solvers take, with a bound of what rounding
may add to a value that is computed from products. Nothing here is shared with the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from svm_soak.problems import Problem

_EPS = float(np.finfo(np.float64).eps)
#: A variable so near to a bound, as a share of it, may be meant to be at it: equal rows are dealt out one variable.
_AT_BOUND = 1e-11


@dataclass(frozen=True)
class Values:
    """A kernel matrix.

    Parameters
    ----------
    K : array, shape (n, n)
        Values in float64.
    noise : array, shape (n, n)
        By how much a careful program may be off, at most.
    """

    K: np.ndarray
    noise: np.ndarray


def kernel_values(problem: Problem) -> Values:
    """Return the kernel matrix of a problem; values that overflow are infinite."""
    parameters, name = problem.parameters, problem.kernel
    is_sparse = sp.issparse(problem.X)
    X = np.asarray(problem.X.todense() if is_sparse else problem.X, dtype=np.float64)
    if name == "precomputed":
        return Values(X, np.abs(X))
    if name == "callable":
        K = np.asarray(parameters["kernel"](X, X), dtype=np.float64)  # of float64 rows, as both libraries ask for it
        return Values(K, 1e2 * np.abs(K))
    n, d = X.shape
    gamma = _gamma(parameters.get("gamma", 1.0), X)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "rbf":
            K = np.exp(-gamma * cdist(X, X, "sqeuclidean"))
            # Of sparse rows that are half full products of dense ones cost less, and those may be centred or not.
            origins = (0.0, X.mean(axis=0)) if is_sparse else (X.mean(axis=0),)
            norms = np.max([np.linalg.norm(X - origin, axis=1) for origin in origins], axis=0)
            return Values(K, K * (1.0 + (d + 4) * gamma * (norms[:, None] + norms) ** 2))
        size = np.abs(X) @ np.abs(X).T * (d + 1)
        if name == "linear":
            return Values(X @ X.T, size)
        inner = gamma * (X @ X.T) + parameters["coef0"]
        size = gamma * size + abs(parameters["coef0"])
        if name == "sigmoid":
            return Values(np.tanh(inner), 2.0 + size * (1.0 - np.tanh(inner) ** 2))
        degree = parameters["degree"]
        return Values(inner**degree, (degree + 2) * size ** max(degree, 1) if degree else np.ones((n, n)))


def _gamma(gamma: float | str, X: np.ndarray) -> float:
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma == "scale":
        return 1.0 / (X.shape[1] * X.var()) if X.var() > 0 else 1.0
    return float(gamma)


@dataclass(frozen=True)
class Part:
    """One dual of a machine, of r variables for each of n samples, and the point that a machine has there.

    Minimise ½ (yα)'K(yα) + p'α over 0 ≤ α ≤ upper with y'α fixed, or the sum for each sign.

    Parameters
    ----------
    values : Values
        Kernel values of its samples.
    y, p, upper, alpha : arrays, shape (r, n)
        Signs, linear term, bounds and the point.
    by_sign : bool
        Whether the sum is fixed for each sign.
    threshold : float
        What the machine subtracts from sums.
    """

    values: Values
    y: np.ndarray
    p: np.ndarray
    upper: np.ndarray
    alpha: np.ndarray
    by_sign: bool = False
    threshold: float = 0.0

    @property
    def beta(self) -> np.ndarray:
        """The coefficients of samples, shape (n,)."""
        return np.asarray((self.y * self.alpha).sum(axis=0))

    @property
    def u(self) -> np.ndarray:
        """K beta, from the columns of samples that have a coefficient, shape (n,)."""
        used = np.flatnonzero(self.beta)
        return np.asarray(self.values.K[:, used] @ self.beta[used])

    @property
    def noise(self) -> float:
        """What rounding may make of an indicator, at most."""
        used = np.flatnonzero(self.beta)
        n = len(self.beta)
        size = np.abs(self.values.K[:, used])
        most = (self.values.noise[:, used] + n * size) @ np.abs(self.beta[used])
        rounding = _EPS * (most.max(initial=0.0) + 4.0 * np.abs(self.p).max(initial=0.0))
        return float(rounding + self.dealt * size.max(initial=0.0))

    @property
    def objective(self) -> float:
        """The value that is minimised."""
        return float(0.5 * self.beta @ self.u + (self.p * self.alpha).sum())

    @property
    def size(self) -> float:
        """Sum of the sizes of the terms of the objective: rounding is a share of this."""
        used = np.flatnonzero(self.beta)
        big = np.abs(self.beta[used])
        return float(big @ np.abs(self.values.K[np.ix_(used, used)]) @ big + (np.abs(self.p) * self.alpha).sum())

    @property
    def slope(self) -> float:
        """The largest indicator, in size."""
        return float(np.abs(self.u + self.y * self.p).max(initial=0.0) + np.abs(self.p).max(initial=0.0))

    @property
    def dealt(self) -> float:
        """By how much the variables may be off from what was solved, in sum, as equal rows share a variable."""
        return float(4.0 * _EPS * self.upper.sum())

    @property
    def gap(self) -> float:
        """The largest violation of optimality by variables that are not at a bound for certain."""
        return self.gap_at(_AT_BOUND)

    def gap_at(self, share: float) -> float:
        """Return the largest violation: max f over I_low less min f over I_up, of the worse group; or 0.

        Variables within a share of the upper bound from either bound are at it.
        """
        return max(0.0, *(most - least for least, most, _ in self._ends(share * self.upper)))

    def thresholds_at(self, share: float | None = None) -> tuple[float, float, float]:
        """Return between which two thresholds all are optimal, and LIBSVM's: the mean of f where variables are free.

        Or the middle, where none is. Variables are at a bound within a share of the upper one, or within what rounding
        of their sums may do.
        """
        found = []
        for least, most, free in self._ends(self.dealt if share is None else share * self.upper):
            ends = [end for end in (least, most) if np.isfinite(end)]
            middle = float(np.mean(ends)) if ends else 0.0
            found.append((min(ends, default=0.0), max(ends, default=0.0), free.mean() if len(free) else middle))
        low, high, found_by_rule = np.mean(found, axis=0)
        return float(low), float(high), float(found_by_rule)

    def _ends(self, slack: np.ndarray | float) -> list[tuple[float, float, np.ndarray]]:
        """Return of each group min f over I_up, max f over I_low, and f of the variables in both.

        Variables within the slack are at the bound that is nearer.
        """
        f, room = self.u + self.y * self.p, self.upper - self.alpha
        at_zero, at_upper = (self.alpha <= slack) & (self.alpha <= room), (room <= slack) & (room <= self.alpha)
        up = np.where(self.y > 0, ~at_upper, ~at_zero)
        low = np.where(self.y > 0, ~at_zero, ~at_upper)
        groups = [self.y > 0, self.y < 0] if self.by_sign else [np.ones(self.y.shape, dtype=np.bool_)]
        return [
            (float(f[up & g].min(initial=np.inf)), float(f[low & g].max(initial=-np.inf)), f[up & low & g])
            for g in groups
        ]

    @property
    def duality_gap(self) -> float:
        """How far the objective may be from the optimum: what the best threshold leaves of the slacks."""
        f, total = self.u + self.y * self.p, 0.0
        for g in [self.y > 0, self.y < 0] if self.by_sign else [np.ones(self.y.shape, dtype=np.bool_)]:
            slack = self.y[g] * (f[g][:, None] - f[g])  # for each threshold among the f
            losses = np.where(slack > 0.0, (self.upper[g] - self.alpha[g]) * slack, -self.alpha[g] * slack)
            losses = losses.sum(axis=1)
            total += float(losses.min(initial=np.inf)) if g.any() else 0.0
        return total


def find_parts(problem: Problem, values: Values, model: Any) -> list[Part]:
    """Return the duals that a fitted kernel machine, ours or scikit-learn's, has solved."""
    name, n = problem.estimator, problem.X.shape[0]
    weights = np.ones(n) if problem.weights is None else problem.weights
    coefs = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else np.asarray(model.dual_coef_)
    if name in {"SVC", "NuSVC"}:
        return _pairs(problem, values, model, coefs, weights)
    beta = np.zeros(n)
    beta[model.support_] = coefs[0]
    used = np.flatnonzero(weights > 0)
    values, beta, weights = _take(values, used), beta[used], weights[used]
    threshold = -float(model.intercept_[0])
    if name == "OneClassSVM":
        y = np.ones((1, len(used)))
        return [Part(values, y, 0.0 * y, weights[None], beta[None], threshold=threshold)]
    assert problem.y is not None
    z, y = problem.y[used].astype(np.float64), np.array([[1.0], [-1.0]]) * np.ones(len(used))
    upper = np.stack([weights, weights]) * problem.parameters["C"]
    alpha = np.stack([np.maximum(beta, 0.0), np.maximum(-beta, 0.0)])
    if name == "SVR":
        return [Part(values, y, problem.parameters["epsilon"] - y * z, upper, alpha, threshold=threshold)]
    return [Part(values, y, -y * z, upper, alpha, by_sign=True, threshold=threshold)]


def _take(values: Values, rows: np.ndarray) -> Values:
    pairs = np.ix_(rows, rows)
    return Values(values.K[pairs], values.noise[pairs])


def _pairs(problem: Problem, values: Values, model: Any, coefs: np.ndarray, weights: np.ndarray) -> list[Part]:
    """Return the dual of each pair of classes; coefficients are laid out as scikit-learn documents it."""
    classes, codes = np.unique(problem.y[weights > 0]), np.zeros(len(weights), dtype=np.int64)
    codes[weights > 0] = np.searchsorted(classes, problem.y[weights > 0])
    all_coefs = np.zeros((len(classes) - 1, len(codes)))
    all_coefs[:, model.support_] = coefs
    parts = []
    # With two classes decision values are those of the second.
    thresholds = -np.ravel(model.intercept_) * (-1.0 if len(classes) == 2 else 1.0)
    for (a, b), threshold in zip(combinations(range(len(classes)), 2), thresholds.tolist(), strict=True):
        rows = np.flatnonzero(((codes == a) | (codes == b)) & (weights > 0))
        is_first = codes[rows] == a
        alpha = np.abs(np.where(is_first, all_coefs[b - 1, rows], all_coefs[a, rows]))
        y = np.where(is_first, 1.0, -1.0)
        if problem.estimator == "SVC":
            upper = problem.parameters["C"] * np.asarray(model.class_weight_)[codes[rows]] * weights[rows]
            taken = _take(values, rows)
            parts.append(Part(taken, y[None], -np.ones((1, len(rows))), upper[None], alpha[None], threshold=threshold))
            continue
        # The machine is divided by its margin; the sum of the variables of a class says by how much.
        total = 0.5 * problem.parameters["nu"] * weights[rows].sum()
        scale = total / alpha[is_first].sum()
        taken, ones = _take(values, rows), np.ones((1, len(rows)))
        bounds = weights[rows][None]
        parts.append(
            Part(taken, y[None], 0.0 * ones, bounds, scale * alpha[None], by_sign=True, threshold=scale * threshold)
        )
    return parts
