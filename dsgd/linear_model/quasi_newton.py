r"""Models with a squared penalty alone, on many rows: a quasi-Newton method with the Hessian of a sample of rows.

Problem: that of `dsgd.linear_model.problem` with :math:`l_1 = 0` and :math:`l_2 > 0`, where dense rows are many more
than columns, or where rows of any shape are divided among ranks.

1. Newton's method on a sample of the rows, whose costs are raised to the sum of all: its minimum is where the method on
   all rows begins, and the Cholesky factor of its Hessian is the metric of that.
2. L-BFGS in this metric on all rows: a step reads each row once. The error of the metric is about the root of columns
   over rows of the sample, and a step multiplies the gradient by so much. It takes the longest of the steps 1, 1/2,
   1/4, ... that does not raise P. Should that take many steps, the metric is made anew, of all rows.
3. The certificate is computed where ``|gradient|**2 / (2 l2)``, which is the duality gap but for the intercept, is
   within the tolerance: one more pass.

A squared loss begins with the metric of all rows, and one step is enough. Where columns are too many for a matrix,
there is no sample, and each step solves the Newton system by conjugate gradients (`dsgd.linear_model.newton`).

Ranks run this in lock step (`dsgd.collectives.Team`): values, gradients and matrices are sums over all of them, and the
gap is over all rows. A step sends the gradient and the step itself, a matrix the square of its columns.

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

from dsgd.collectives import Team
from dsgd.linear_model.cholesky import inverse_of
from dsgd.linear_model.losses import AbstractLoss, SquaredLoss
from dsgd.linear_model.problem import Solution
from dsgd.linear_model.rows import Rows, SparseRows
from dsgd.types import FloatVector

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

#: The residual of a direction by conjugate gradients, as a share of the gradient: the gap falls by its square.
_MOST_LEFT, _MOST_CG_STEPS = 0.1, 500

#: What the curvature of the intercept is never below.
_LEAST = 1e-12
#: Rows per column from which a sample pays.
_MANY = 64

_Metric = Callable[[FloatVector], FloatVector]


@dataclass(frozen=True)
class SmoothProblem:
    """A model with a squared penalty alone."""

    rows: Rows | SparseRows
    loss: AbstractLoss
    l2: float

    @property
    def is_wide(self) -> bool:
        """Whether there are too many columns for a matrix of them."""
        return self.rows.shape[1] > _MOST_FACTORED

    def at(self, weights: FloatVector, team: Team) -> _Point:
        """Return what follows from weights, the last of which is the intercept."""
        means = np.empty(self.rows.shape[0])
        value, downhill = self.rows.differentiate(self.loss, weights[:-1], float(weights[-1]), means, team)
        if team.leads:
            downhill[:-1] -= self.l2 * weights[:-1]
            value += 0.5 * self.l2 * float(weights[:-1] @ weights[:-1])
        sums = team.add_up(np.append(downhill, value))
        return _Point(weights, float(sums[-1]), sums[:-1], means)

    def gap(self, point: _Point, team: Team) -> float:
        """Return the duality gap at a point, and report it."""
        duals = self.loss.duals(point.means)
        if self.rows.has_intercept:
            duals = self.loss.balanced(duals, team)
        sums = team.add_up(np.append(self.rows.products(duals, team), self.loss.dual_value(duals)))
        dual = _agreed(float(sums[-1]) - 0.5 * float(sums[:-1] @ sums[:-1]) / self.l2, team)
        team.report(point.value, dual)
        return max(point.value - dual, 0.0)

    def metric(self, point: _Point, team: Team) -> _Metric:
        """Return the product with the inverse of the Hessian at a point; of wide rows nearly."""
        p = self.rows.shape[1]
        factors = self.loss.curvature(point.means)
        # Without an intercept its row is empty; where all curvatures vanish, it nearly is.
        ridge = np.append(np.full(p, self.l2), _LEAST if self.rows.has_intercept else 1.0)
        if self.is_wide:
            diagonal = team.add_up(self.rows.squares(factors)) + ridge
            return lambda vector: self._solve_by_products(factors, ridge, diagonal, vector, team)
        matrix = team.add_up(self.rows.gram(factors, team).ravel()).reshape(p + 1, p + 1)
        matrix[np.diag_indices(p + 1)] += ridge
        return inverse_of(matrix)

    def _solve_by_products(
        self, factors: FloatVector, ridge: FloatVector, diagonal: FloatVector, downhill: FloatVector, team: Team
    ) -> FloatVector:
        """Return the product with the inverse Hessian by conjugate gradients, preconditioned by its diagonal."""
        # Minus the gradient of a squared loss of targets zero is minus the product with the Hessian.
        curved, scratch = SquaredLoss(np.zeros_like(factors), factors), np.empty_like(factors)
        solution, residual = np.zeros_like(downhill), downhill.copy()
        scaled = residual / diagonal
        direction, product = scaled, float(residual @ scaled)
        length = float(np.linalg.norm(downhill)) or 1.0
        for _ in range(_MOST_CG_STEPS):
            _, part = self.rows.differentiate(curved, direction[:-1], float(direction[-1]), scratch, team)
            # Ranks may differ in the last bit of the residual: that of rank 0 says when to stop.
            left = float(np.linalg.norm(residual)) / length if team.leads else 0.0
            sums = team.add_up(np.append(-part, left))
            if not sums[-1] > _MOST_LEFT:
                break
            bent = sums[:-1] + ridge * direction
            step = product / float(direction @ bent)
            solution += step * direction
            residual -= step * bent
            scaled = residual / diagonal
            product, before = float(residual @ scaled), product
            direction = scaled + (product / before) * direction
        return solution


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

    - `weights`, shape (n_features,): where to begin; where they are zero, the minimum of a sample is the beginning.
    """
    point, memory = _begin(problem, np.append(weights, intercept), team)
    best, n_iter, since = Solution(point.weights, 0.0, np.inf, 0), 0, 0
    while True:
        ends = n_iter == max_iter
        near = _agreed(0.5 * float(point.downhill[:-1] @ point.downhill[:-1]) / problem.l2, team)
        if ends or near <= tol:
            gap = problem.gap(point, team)
            if not gap > best.gap:
                best = Solution(point.weights, 0.0, gap, n_iter)
            if ends or gap <= tol:
                break
        if since == (1 if problem.is_wide else _PATIENCE):
            memory, since = _Memory(problem.metric(point, team)), 0
        taken = _step(problem, point, team.agree(memory.direction(point.downhill)), team)
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
    if problem.is_wide or problem.loss.is_quadratic:  # a sample is not worth it, or one step is the last
        point = problem.at(start, team)
        return point, _Memory(problem.metric(point, team))
    p = problem.rows.shape[1]
    n = team.totals(float(problem.rows.shape[0]))[0]
    sample = _sampled(problem, max(_ROWS_PER_COLUMN * p, min(n / _SHARE, _PASSES * n / p)), n)
    found = sample.at(start, team)
    metric = sample.metric(found, team)
    if start[:-1].any():
        return problem.at(start, team), _Memory(metric)
    for _ in range(_SAMPLE_STEPS):
        change = team.agree(metric(found.downhill))
        taken = _step(sample, found, change, team)
        if taken is None:
            break
        is_near = _agreed(float(change @ found.downhill), team) <= _SAMPLE_TOL * abs(taken.value)
        found = taken
        metric = sample.metric(found, team)
        if is_near:
            break
    point = problem.at(found.weights, team)
    if point.value <= team.totals(problem.loss.value(np.full(problem.rows.shape[0], start[-1])))[0]:
        return point, _Memory(metric)
    point = problem.at(start, team)  # the sample has misled: too few rows of a class, say
    return point, _Memory(problem.metric(point, team))


def _sampled(problem: SmoothProblem, n_rows: float, n_rows_of_all: float) -> SmoothProblem:
    """Return the problem of some of the rows, spread over them at random, always the same; of each rank its share."""
    loss = problem.loss
    present = np.flatnonzero(loss.costs > 0.0)
    if not present.size:
        return problem
    n_chosen = int(min(max(n_rows * loss.costs.shape[0] / n_rows_of_all, 1), present.shape[0]))
    bounds = np.linspace(0, present.shape[0], n_chosen + 1)
    places = bounds[:-1] + np.random.default_rng(0).random(n_chosen) * np.diff(bounds)
    chosen = present[places.astype(np.int64)]
    costs = loss.costs[chosen] * (loss.costs.sum() / loss.costs[chosen].sum())
    return SmoothProblem(problem.rows.take(chosen), type(loss)(loss.targets[chosen], costs), problem.l2)


def _agreed(number: float, team: Team) -> float:
    """Return the number of rank 0, from which all ranks take the same decision."""
    return float(team.agree(np.array([number]))[0])
