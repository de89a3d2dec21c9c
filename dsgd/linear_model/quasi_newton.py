r"""Models with a squared penalty alone, on many rows: a quasi-Newton method with the Hessian of a sample of rows.

Problem: that of `dsgd.linear_model.problem` with :math:`l_1 = 0` and :math:`l_2 > 0`, where dense rows are many more
than columns.

1. Newton's method on a sample of the rows, whose costs are raised to the sum of all: its minimum is where the method on
   all rows begins, and the Cholesky factor of its Hessian is the metric of that.
2. L-BFGS in this metric on all rows: a step reads each row once. The error of the metric is about the root of columns
   over rows of the sample, and a step multiplies the gradient by so much. It takes the longest of the steps 1, 1/2,
   1/4, ... that does not raise P. Should that take many steps, the metric is made anew, of all rows.
3. The certificate is computed where ``|gradient|**2 / (2 l2)``, which is the duality gap but for the intercept, is
   within the tolerance: one more pass.

Cost: a pass over the rows a step, about seven in all, and some matrices of a sixteenth of the rows.

Source: Liu and Nocedal, Math. Prog. 1989 (L-BFGS); Byrd, Chin, Neveitt and Nocedal, SIAM J. Optim. 2011 (the Hessian of
a sample); the warm start on it is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from dsgd.collectives import Team
from dsgd.linear_model.losses import AbstractLoss
from dsgd.linear_model.problem import Solution
from dsgd.linear_model.rows import Rows
from dsgd.types import FloatVector

__all__ = ["SmoothProblem", "has_many_rows", "solve_smooth"]

#: The widest matrix that is factored.
_MOST_FACTORED = 1500
#: The sample: at least so many rows per column, else a share of all of which a matrix takes no longer than some passes.
_ROWS_PER_COLUMN, _SHARE, _PASSES = 8, 16, 20
_SAMPLE_STEPS = 12
#: The Newton decrement, as a share of the objective, at which the sample is solved: its own error is larger.
_SAMPLE_TOL = 1e-5
_MEMORY = 10
_MOST_HALVINGS = 30
#: Steps after which a new metric is worth its making.
_PATIENCE = 12
#: The share of P below which a difference is rounding.
_ROUNDING = 1e-14

#: What the curvature of the intercept is never below.
_LEAST = 1e-12
#: Rows per column from which a sample pays.
_MANY = 64

_Metric = Callable[[FloatVector], FloatVector]


@dataclass(frozen=True)
class SmoothProblem:
    """A model with a squared penalty alone.

    Parameters
    ----------
    rows : Rows
        The rows.
    loss : AbstractLoss
        Their loss.
    l2 : float
        Weight of the penalty.
    """

    rows: Rows
    loss: AbstractLoss
    l2: float

    def at(self, weights: FloatVector, team: Team) -> _Point:
        """Return what follows from weights, the last of which is the intercept."""
        means = np.empty(self.rows.shape[0])
        value, downhill = self.rows.differentiate(self.loss, weights[:-1], float(weights[-1]), means, team)
        downhill[:-1] -= self.l2 * weights[:-1]
        return _Point(weights, value + 0.5 * self.l2 * float(weights[:-1] @ weights[:-1]), downhill, means)

    def gap(self, point: _Point, team: Team) -> float:
        """Return the duality gap at a point."""
        duals = self.loss.duals(point.means)
        if self.rows.has_intercept:
            duals = self.loss.balanced(duals)
        products = self.rows.products(duals, team)
        dual = self.loss.dual_value(duals)
        return max(point.value - dual + 0.5 * float(products @ products) / self.l2, 0.0)

    def metric(self, point: _Point, team: Team) -> _Metric:
        """Return the product with the inverse of the Hessian at a point."""
        p = self.rows.shape[1]
        matrix = self.rows.gram(self.loss.curvature(point.means), team)
        matrix[np.diag_indices(p)] += self.l2
        # Without an intercept its row is empty; where all curvatures vanish, it nearly is.
        matrix[p, p] += _LEAST if self.rows.has_intercept else 1.0
        factor = cho_factor(matrix, overwrite_a=True)
        return lambda vector: np.asarray(cho_solve(factor, vector))


@dataclass(frozen=True)
class _Point:
    """Weights with the intercept, P, minus its gradient, and what the model predicts."""

    weights: FloatVector
    value: float
    downhill: FloatVector
    means: FloatVector


@dataclass
class _Memory:
    """The metric, and the changes of weights and gradient that correct it."""

    metric: _Metric
    pairs: list[tuple[FloatVector, FloatVector]] = field(default_factory=list)

    def add(self, change: FloatVector, bend: FloatVector) -> None:
        """Take in a step and the change of the gradient along it."""
        if float(change @ bend) > 0.0:
            self.pairs = [*self.pairs[1 - _MEMORY :], (change, bend)]

    def direction(self, downhill: FloatVector) -> FloatVector:
        """Return the step: the two loops of L-BFGS."""
        vector, shares = downhill.copy(), []
        for change, bend in reversed(self.pairs):
            share = float(change @ vector) / float(change @ bend)
            vector -= share * bend
            shares.append(share)
        vector = self.metric(vector)
        for (change, bend), share in zip(self.pairs, reversed(shares), strict=True):
            vector += (share - float(bend @ vector) / float(change @ bend)) * change
        return vector


def has_many_rows(X: Any) -> bool:
    """Return whether this method is the one for rows of one process: dense ones, many more than columns."""
    return not sp.issparse(X) and X.shape[1] <= _MOST_FACTORED and X.shape[0] >= _MANY * X.shape[1]


def solve_smooth(
    problem: SmoothProblem, weights: FloatVector, intercept: float, tol: float, max_iter: int, team: Team
) -> Solution:
    """Minimise P.

    Parameters
    ----------
    problem : SmoothProblem
        The problem.
    weights : array of float64, shape (n_features,)
        Where to begin; where they are zero, the minimum of a sample is the beginning.
    intercept : float
        Likewise, of centred columns.
    tol : float
        The gap to reach.
    max_iter : int
        Most steps on all rows.
    team : Team
        Shares the rows.

    Returns
    -------
    Solution
        The weights of the least gap met.
    """
    point, memory = _begin(problem, np.append(weights, intercept), team)
    best, n_iter, since = Solution(point.weights, 0.0, np.inf, 0), 0, 0
    while True:
        ends = n_iter == max_iter
        near = 0.5 * float(point.downhill[:-1] @ point.downhill[:-1]) / problem.l2
        if ends or near <= tol:
            gap = problem.gap(point, team)
            if not gap > best.gap:
                best = Solution(point.weights, 0.0, gap, n_iter)
            if ends or gap <= tol:
                break
        if since == _PATIENCE:
            memory, since = _Memory(problem.metric(point, team)), 0
        taken = _step(problem, point, memory.direction(point.downhill), team)
        if taken is None and since > 0:
            memory, since = _Memory(problem.metric(point, team)), 0
            continue
        if taken is None:  # P is minimal to rounding
            gap = problem.gap(point, team)
            best = best if gap > best.gap else Solution(point.weights, 0.0, gap, n_iter)
            break
        memory.add(taken.weights - point.weights, point.downhill - taken.downhill)
        point, n_iter, since = taken, n_iter + 1, since + 1
    return Solution(best.weights[:-1].copy(), float(best.weights[-1]), best.gap, n_iter)


def _step(problem: SmoothProblem, point: _Point, change: FloatVector, team: Team) -> _Point | None:
    """Return the point after the longest of the steps 1, 1/2, ... that does not raise P, if any."""
    if not np.isfinite(change).all() or not change.any():
        return None
    limit = point.value + _ROUNDING * abs(point.value)
    for k in range(_MOST_HALVINGS):
        found = problem.at(point.weights + 0.5**k * change, team)
        if found.value <= limit:
            return found
    return None


def _begin(problem: SmoothProblem, start: FloatVector, team: Team) -> tuple[_Point, _Memory]:
    """Return where to begin on all rows, and the metric."""
    n, p = problem.rows.shape
    sample = _sampled(problem, int(max(_ROWS_PER_COLUMN * p, min(n / _SHARE, _PASSES * n / p))))
    found = sample.at(start, team)
    metric = sample.metric(found, team)
    if start[:-1].any():
        return problem.at(start, team), _Memory(metric)
    for _ in range(_SAMPLE_STEPS):
        change = metric(found.downhill)
        taken = _step(sample, found, change, team)
        if taken is None:
            break
        is_near = float(change @ found.downhill) <= _SAMPLE_TOL * abs(taken.value)
        found = taken
        metric = sample.metric(found, team)
        if is_near:
            break
    point = problem.at(found.weights, team)
    if point.value <= problem.loss.value(np.full(n, start[-1])):
        return point, _Memory(metric)
    point = problem.at(start, team)  # the sample has misled: too few rows of a class, say
    return point, _Memory(problem.metric(point, team))


def _sampled(problem: SmoothProblem, n_rows: int) -> SmoothProblem:
    """Return the problem of some of the rows, spread over them at random, always the same."""
    loss = problem.loss
    present = np.flatnonzero(loss.costs > 0.0)
    bounds = np.linspace(0, present.shape[0], min(n_rows, present.shape[0]) + 1)
    places = bounds[:-1] + np.random.default_rng(0).random(bounds.shape[0] - 1) * np.diff(bounds)
    chosen = present[places.astype(np.int64)]
    costs = loss.costs[chosen] * (loss.costs.sum() / loss.costs[chosen].sum())
    return SmoothProblem(problem.rows.take(chosen), type(loss)(loss.targets[chosen], costs), problem.l2)
