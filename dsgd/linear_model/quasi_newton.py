"""Models with a squared penalty alone, on many rows: a quasi-Newton method with the Hessian of a sample of rows.

**Rows** (`Rows`, `SparseRows`): passes that read each row once, shared by threads. A pass over the rows gives the loss,
its gradient and the predictions. Rows are read in the caller's own memory, in float32 or float64, and everything that
is added up is float64. Rows are divided into at most `_MOST_BLOCKS` blocks by their number alone, and the sums of
blocks are added up in order: any number of threads gives the same bits.

Columns of dense rows are centred by what the caller says, without a copy: scores and sums take the centres off. Sparse
rows are not centred, and their passes are SciPy's, on one thread.

**The method** (`solve_smooth`). The problem is that of `dsgd.linear_model.problem` with :math:`l_1 = 0` and :math:`l_2
> 0`, where dense rows are many more than columns, or where rows of any shape are divided among ranks.

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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.kernels.jit import inlined, kernel, scalar
from dsgd.linear_model.newton import conjugate_gradients, inverse_of
from dsgd.linear_model.problem import AbstractLoss, LogisticLoss, PoissonLoss, Solution, SquaredLoss
from dsgd.types import FloatMatrix, FloatVector, IntVector

_any_order = inlined({"reassoc", "contract"})
_CODES = {SquaredLoss: 0, LogisticLoss: 1, PoissonLoss: 2}
_MOST_BLOCKS, _BLOCK_ROWS = 64, 1024

#: Rows whose scores are computed together, so that a row is in the cache when its dual variable is known.
_CHUNK = 16

#: Entries of the block of rows that a matrix is added up from; half of a second-level cache.
_GRAM_ENTRIES = 1 << 16

#: Rows whose means are the centres.
_CENTRE_ROWS = 1000


@dataclass(frozen=True)
class Rows:
    """Rows of X with the scores ``(x_i - centres) . w + b``."""

    table: Any
    centres: FloatVector
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n, p = self.table.shape
        return n, p

    def take(self, chosen: IntVector) -> Rows:
        """Return a copy of some rows."""
        return replace(self, table=self.table[chosen])

    def differentiate(
        self, loss: AbstractLoss, weights: FloatVector, intercept: float, means: FloatVector, team: Team
    ) -> tuple[float, FloatVector]:
        """Return the loss and minus its gradient, over the rows.

        - returned: minus the gradient; its last entry, of the intercept, is zero in a model without one.
        """
        of_loss = _CODES[type(loss)], loss.targets, loss.costs
        model = weights, intercept - float(self.centres @ weights)

        def work(first: int, last: int, out: FloatMatrix) -> None:
            _differentiate(self.table, of_loss, model, (self._block_rows, first, last), means, out)

        sums = self._add_up(work, weights.shape[0] + 2, team)
        downhill = sums[:-1]
        downhill[:-1] -= self.centres * downhill[-1]
        if not self.has_intercept:
            downhill[-1] = 0.0
        return float(sums[-1]), downhill

    def products(self, duals: FloatVector, team: Team) -> FloatVector:
        """Return X' theta over the rows of centred columns, shape (n_features,)."""

        def work(first: int, last: int, out: FloatMatrix) -> None:
            _combine(self.table, duals, self._block_rows, first, last, out)

        sums = self._add_up(work, self.shape[1] + 1, team)
        products: FloatVector = sums[:-1] - self.centres * sums[-1]
        return products

    def gram(self, factors: FloatVector, team: Team) -> FloatMatrix:
        """Return the sum of ``d_i z_i z_i'``, z being a centred row and a one for the intercept."""
        n, p = self.shape
        roots = np.sqrt(factors)
        size = max(256, _GRAM_ENTRIES // (p + 1))
        parts = np.zeros((min(4, max(1, n // size)), p + 1, p + 1))  # so few that they take less than the rows

        def work(first: int, last: int) -> None:
            for number in range(first, last):
                begin, end = (n * k // parts.shape[0] for k in (number, number + 1))
                for start in range(begin, end, size):
                    stop = min(end, start + size)
                    block = self.table[start:stop]
                    ready = np.ones((stop - start, p + 1))
                    ready[:, :-1] = block - self.centres
                    ready *= roots[start:stop, None]
                    parts[number] += ready.T @ ready

        team.map(work, parts.shape[0])
        for part in parts[1:]:
            parts[0] += part
        total: FloatMatrix = parts[0]
        if not self.has_intercept:
            total[-1], total[:, -1] = 0.0, 0.0
        return total

    def squares(self, factors: FloatVector) -> FloatVector:
        """Return the diagonal of `gram`, shape (n_features + 1,)."""
        n, p = self.shape
        total = np.zeros(p + 1)
        size = max(1, _GRAM_ENTRIES // (p + 1))
        for start in range(0, n, size):
            part = slice(start, start + size)
            total[:-1] += factors[part] @ (self.table[part] - self.centres) ** 2
        total[-1] = factors.sum() if self.has_intercept else 0.0
        return total

    @property
    def _block_rows(self) -> int:
        return max(_BLOCK_ROWS, -(-self.shape[0] // _MOST_BLOCKS))

    def _add_up(self, work: Any, width: int, team: Team) -> FloatVector:
        """Return the sum of what `work` writes for each block, over blocks."""
        n_blocks = -(-self.shape[0] // self._block_rows)
        parts = np.zeros((max(n_blocks, 1), width))
        team.map(lambda first, last: work(first, last, parts), n_blocks)
        return np.asarray(parts.sum(axis=0))


@dataclass(frozen=True)
class SparseRows:
    """Rows of a CSR matrix with the scores ``x_i . w + b``; methods are those of `Rows`."""

    table: Any
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n, p = self.table.shape
        return n, p

    @property
    def centres(self) -> FloatVector:
        """What is taken off the columns: nothing."""
        return np.zeros(self.shape[1])

    def take(self, chosen: IntVector) -> SparseRows:
        """Return a copy of some rows."""
        return replace(self, table=self.table[chosen])

    def differentiate(
        self, loss: AbstractLoss, weights: FloatVector, intercept: float, means: FloatVector, team: Team
    ) -> tuple[float, FloatVector]:
        """Return the loss and minus its gradient, and write what the model predicts; see `Rows.differentiate`."""
        scores = self.table @ weights + intercept
        means[:] = loss.mean(scores)
        duals = loss.duals(means)
        mass = float(duals.sum()) if self.has_intercept else 0.0
        return loss.value(scores), np.append(self.products(duals, team), mass)

    def products(self, duals: FloatVector, team: Team) -> FloatVector:
        """Return X' theta, shape (n_features,)."""
        return np.asarray(self.table.T @ duals)

    def gram(self, factors: FloatVector, team: Team) -> FloatMatrix:
        """Return the sum of ``d_i z_i z_i'``, z being a row and a one for the intercept; see `Rows.gram`."""
        p = self.shape[1]
        total = np.zeros((p + 1, p + 1))
        total[:-1, :-1] = (self.table.T @ (sp.diags_array(factors) @ self.table)).toarray()
        if self.has_intercept:
            total[-1, :-1] = total[:-1, -1] = self.table.T @ factors
            total[-1, -1] = factors.sum()
        return total

    def squares(self, factors: FloatVector) -> FloatVector:
        """Return the diagonal of `gram`, shape (n_features + 1,)."""
        squared = self.table.multiply(self.table)
        return np.append(squared.T @ factors, factors.sum() if self.has_intercept else 0.0)


def make_rows(X: Any, has_intercept: bool, team: Team) -> Rows | SparseRows:
    """Return the rows of this rank, dense ones centred near the means of all ranks if there is an intercept."""
    if sp.issparse(X):
        return SparseRows(sp.csr_array(X, dtype=np.float64), has_intercept)
    table = np.ascontiguousarray(X)
    if not has_intercept:
        return Rows(table, np.zeros(X.shape[1]), False)
    # Any shift near the means keeps the digits: those of some rows will do.
    some = table[:: max(1, table.shape[0] // _CENTRE_ROWS)]
    sums = team.add_up(np.append(some.sum(axis=0, dtype=np.float64), float(some.shape[0])))
    return Rows(table, np.asarray(sums[:-1] / sums[-1]), True)


@_any_order
def _score(row: FloatVector, weights: FloatVector) -> float:
    total = 0.0
    for j in range(row.shape[0]):
        total += row[j] * weights[j]
    return total


@_any_order
def _add(row: FloatVector, dual: float, out: FloatVector) -> None:
    for j in range(row.shape[0]):
        out[j] += dual * row[j]


@scalar
def _value_and_mean(code: int, y: float, score: float) -> tuple[float, float]:
    """Return the loss and the prediction, by the code of the loss: squared, logistic, Poisson."""
    if code == 0:
        return 0.5 * (y - score) ** 2, score
    if code == 1:
        small = np.exp(-abs(score))
        mean = (1.0 if score >= 0.0 else small) / (1.0 + small)
        return max(score, 0.0) - y * score + np.log1p(small), mean
    mean = np.exp(score)
    return mean - y * score, mean


@kernel
def _differentiate(
    rows: FloatMatrix,
    loss: tuple[int, FloatVector, FloatVector],
    model: tuple[FloatVector, float],
    blocks: tuple[int, int, int],
    means: FloatVector,
    out: FloatMatrix,
) -> None:
    """Write X' theta, the sum of theta, and the loss of each block: of so many rows, from the first to the last."""
    (code, targets, costs), (weights, intercept), (block_rows, first_block, last_block) = loss, model, blocks
    width = weights.shape[0]
    for block in range(first_block, last_block):
        sums = out[block]
        total, mass = 0.0, 0.0
        end = min(targets.shape[0], (block + 1) * block_rows)
        for start in range(block * block_rows, end, _CHUNK):
            stop = min(end, start + _CHUNK)
            for i in range(start, stop):
                means[i] = _score(rows[i], weights) + intercept
            for i in range(start, stop):
                value, mean = _value_and_mean(code, targets[i], means[i])
                total += costs[i] * value
                means[i] = mean
            for i in range(start, stop):
                dual = costs[i] * (targets[i] - means[i])
                mass += dual
                _add(rows[i], dual, sums)
        sums[width], sums[width + 1] = mass, total


@kernel
def _combine(
    rows: FloatMatrix, duals: FloatVector, block_rows: int, first_block: int, last_block: int, out: FloatMatrix
) -> None:
    """Write X' theta and the sum of theta of each block."""
    for block in range(first_block, last_block):
        sums, mass = out[block], 0.0
        for i in range(block * block_rows, min(duals.shape[0], (block + 1) * block_rows)):
            _add(rows[i], duals[i], sums)
            mass += duals[i]
        sums[sums.shape[0] - 1] = mass


#: The widest matrix that is factored.
_MOST_FACTORED = 1500

#: The sample: at least so many rows, and per column, else a share of all of which a matrix takes no longer than some
#: passes.
_LEAST_ROWS, _ROWS_PER_COLUMN, _SHARE, _PASSES = 1536, 8, 16, 20
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
        length = float(np.linalg.norm(downhill)) or 1.0

        def multiply(direction: FloatVector, residual: FloatVector) -> tuple[FloatVector, float]:
            _, part = self.rows.differentiate(curved, direction[:-1], float(direction[-1]), scratch, team)
            # Ranks may differ in the last bit of the residual: that of rank 0 says when to stop.
            left = float(np.linalg.norm(residual)) / length if team.leads else 0.0
            sums = team.add_up(np.append(-part, left))
            image = sums[:-1] + ridge * direction
            return image, float(direction @ image) if sums[-1] > _MOST_LEFT else 0.0

        def precondition(residual: FloatVector) -> tuple[FloatVector, float, float]:
            scaled = residual / diagonal
            return scaled, float(residual @ scaled), 1.0

        return conjugate_gradients(multiply, precondition, downhill, 0.0, _MOST_CG_STEPS)[0]


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
    """Minimise P from `weights`; where they are zero, from the minimum of a sample."""
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
    sample = _sampled(problem, max(_LEAST_ROWS, _ROWS_PER_COLUMN * p, min(n / _SHARE, _PASSES * n / p)), n)
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
