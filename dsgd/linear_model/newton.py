r"""Newton's method for models with a squared penalty or, on working sets, an L1 penalty; the systems that it solves.

**Systems.** Where columns depend on each other and are large, rounding is more than what the penalty adds to the
diagonal, and there is no Cholesky factor. So the matrix is scaled to a diagonal of ones, to which as much is added as
rounding may have taken, or ten or a hundred times that. The direction is then shorter where the data say nothing, and
certificates stay true.

Source: Higham 2002 (Accuracy and Stability of Numerical Algorithms), theorem 10.7: it has a factor if the least
eigenvalue of the scaled matrix is above a multiple of its size times the unit roundoff.

**One output** (`solve_l2`). The problem is that of `dsgd.linear_model.problem` with :math:`l_1 = 0`
and :math:`l_2 > 0`. A step solves

.. math:: (X^\top D X + l_2 I)\,\delta = X^\top\theta - l_2 w

with the curvatures D of the rows and columns about their means, which eliminates the intercept: by a Cholesky factor
of this matrix if there are few columns; of :math:`l_2 I + D^{1/2} X X^\top D^{1/2}` if there are few rows; else by
conjugate gradients with the diagonal as preconditioner, to a residual that falls with the gradient. Then it takes the
longest of the steps 1, 1/2, 1/4, ... that does not raise P. A squared loss needs one step.

Cost: ``n p**2`` operations a step for a factor, or two passes over X for each step of conjugate gradients.

Source: Lin, Weng and Keerthi, JMLR 2008 (trust region Newton methods for logistic regression); Dembo, Eisenstat and
Steihaug 1982 (the residual to go to).

**Several classes** (`solve_multinomial`), with a squared penalty: with scores :math:`F = X W^\top + b` of K classes and
probabilities P = softmax(F),

.. math:: P(W, b) = \tfrac12 l_2 \|W\|^2 - \sum_i c_i \log P_{i y_i}, \qquad
          D(Q) = -\sum_i c_i \sum_k Q_{ik} \log Q_{ik} - \frac{1}{2 l_2} \| X^\top \Theta \|^2

with :math:`\Theta = c\,(Y - Q)` for any probabilities Q whose weighted sums by class are those of Y (that is for the
intercepts; without them for any). A step solves the Newton system by conjugate gradients with the diagonal as
preconditioner, and takes the longest of the steps 1, 1/2, 1/4, ... that lowers P. Q is P, mixed with as little of a
constant row as gives it the sums of Y.

Cost: two passes over X for K columns a step of conjugate gradients.

Rows may be divided among ranks, which then take the same steps; docs/linear-models.rst says what they add up. Before
each step of conjugate gradients rank 0 sends two numbers, and at the end the change.

Source: Boehning 1992 (the Hessian); Fenchel's duality.

**Models with an L1 penalty: proximal Newton steps on working sets, with gap-safe screening.**

Problem: that of `dsgd.linear_model.problem` with :math:`l_1 > 0`. A round

1. computes the gradient over all rows and the columns, and the certificate; returns if the gap is small enough;
2. drops for good the columns whose weight the certificate proves to be zero;
3. chooses the working set: weights that are not zero, and the columns that violate optimality most, in their norms;
4. minimises over it the second-order model of the loss plus the penalty. For the squared loss this is the objective.
   The curvature is a matrix, with the intercept eliminated; that of the squared loss stays and grows with the working
   set. Extrapolated passes of coordinate descent find signs, and a Cholesky factor of the weights that are not zero
   then goes to their minimum, as far as the signs allow; where that takes a factor, it ends at a tenth of the largest
   violation, as the next working set is another one. Working sets too wide for a matrix are minimised by passes over
   columns;
5. takes the longest of the steps 1, 1/2, 1/4, ... that does not raise P.

Cost: a round reads all columns once and those of the working set about three times; the matrix of k columns takes
``n k**2`` operations, once.

Rows may be divided among ranks, which then take the same steps; docs/linear-models.rst says what they add up. Rank 0
solves the model of 4. Since passes over columns would add up a number for each, working sets on ranks are at most 3,000
columns: beyond, those that violate optimality most.

Source: Massias, Gramfort and Salmon, ICML 2018 (working sets); Bertrand and Massias, AISTATS 2021 (extrapolation);
Yuan, Ho and Lin, JMLR 2012 (proximal Newton); Lee, Battle, Raina and Ng, NeurIPS 2006 (steps to the minimum for given
signs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy  # loads its `special` when that is first used: ranks of a LinearSVC never do
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotrs

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.linear_model.columns import Columns, Gram, check_products, descend_columns, descend_gram
from dsgd.linear_model.problem import Certificate, Problem, Solution, certify, longest_step
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_TRIES: Final = 8


def inverse_of(matrix: FloatMatrix) -> Callable[[AnyArray], AnyArray]:
    """Return the product with the inverse of a matrix that is positive definite but for rounding."""
    check_products(matrix)
    # LAPACK itself: what scipy does around it takes longer than a small matrix.
    factor, failed = dpotrf(matrix, clean=False)
    scales: FloatVector | float = 1.0
    if failed:
        scales = 1.0 / np.sqrt(np.maximum(matrix.diagonal(), np.finfo(np.float64).tiny))
        scaled, p = scales[:, None] * matrix * scales, len(scales)
        for k in range(_TRIES):
            scaled[np.diag_indices(p)] = 1.0 + 10.0**k * p * np.finfo(np.float64).eps
            factor, failed = dpotrf(scaled, clean=False)
            if not failed:
                break
        else:
            raise InvalidDataError("The Hessian of the objective is not positive definite: scale the features.")
    # Raises `ValueError` if a vector is not finite.
    return lambda vector: scales * dpotrs(factor, np.asarray_chkfinite(scales * vector))[0]


def conjugate_gradients(
    multiply: Callable[[FloatMatrix, FloatMatrix], tuple[FloatMatrix, float]],
    precondition: Callable[[FloatMatrix], tuple[FloatMatrix, float, float]],
    target: FloatMatrix,
    share: float,
    most_steps: int,
) -> tuple[FloatMatrix, int]:
    """Solve a positive definite system until the size of the residual is a share of the first; return the steps too.

    Where ranks solve it together, what these two return must be equal on all of them.

    - `multiply`: returns, of a direction and the residual, the product with the matrix and that of the direction with
      it; one that is not above zero is the end.
    - `precondition`: returns, of a residual, the preconditioned one, the product of the two, and the size.
    """
    solution, residual = np.zeros_like(target), target.copy()
    scaled, product, size = precondition(residual)
    direction, goal, n_steps = scaled.copy(), share * size, 0
    while n_steps < most_steps and size > goal:
        n_steps += 1
        image, bent = multiply(direction, residual)
        if not bent > 0.0:
            break
        step = product / bent
        solution += step * direction
        residual -= step * image
        before = product
        scaled, product, size = precondition(residual)
        direction = scaled + (product / before) * direction
    return solution, n_steps


#: The widest matrix that is factored.
_MOST_FACTORED = 1500
_MOST_CG_STEPS = 500


def solve_l2(problem: Problem, weights: FloatVector, tol: float, max_iter: int) -> Solution:
    """Minimise P."""
    loss, columns = problem.loss, problem.columns
    scores = columns.scores(weights)
    intercept = problem.intercept(scores, 0.0)
    best: Solution | None = None
    first, n_iter = 0.0, 0
    while True:
        found = certify(problem, weights, scores + intercept)
        if best is None or found.gap <= best.gap:
            best = Solution(weights, intercept, found.gap, n_iter)
        if found.gap <= tol or n_iter == max_iter:
            break
        downhill = found.products - problem.l2 * weights
        length = float(np.linalg.norm(downhill))
        first = first or length
        # What is left of the gap falls with the square of the residual; a squared loss is solved in one step.
        share = 0.3 * (tol / found.gap) ** 0.5
        if not loss.is_quadratic:
            share = max(share, min(0.1, (length / first) ** 0.5))
        change = _newton_direction(columns, loss.curvature(loss.mean(scores + intercept)), problem.l2, downhill, share)
        n_iter += 1
        taken = longest_step(problem, weights, change, scores, intercept, found.primal)
        if taken is None:  # P is minimal to rounding
            break
        weights, scores, intercept = taken
    return Solution(best.weights, best.intercept, best.gap, n_iter)


def _newton_direction(
    columns: Columns, factors: FloatVector, l2: float, downhill: FloatVector, share: float
) -> FloatVector:
    """Return the solution of the Newton system."""
    n, p = columns.shape
    chosen = np.arange(p)
    if p <= _MOST_FACTORED:
        return inverse_of(Gram(columns, factors, l2, chosen).space)(downhill)
    means = columns.means(chosen, factors)
    if n <= _MOST_FACTORED and not columns.is_sparse:
        # (l2 I + A'A)^-1 = (I - A' (l2 I + A A')^-1 A) / l2
        rows, factor = columns.table, float(factors[0])
        if not (factors == factor).all():  # else columns are centred by them already
            rows, factor = (rows - means[:, None]) * np.sqrt(factors), 1.0
        inner = factor * (rows.T @ rows)
        inner[np.diag_indices(n)] += l2
        solved = factor * inverse_of(inner)(rows.T @ downhill)
        return np.asarray((downhill - rows @ solved) / l2)
    diagonal = columns.squares(factors) + l2

    def multiply(direction: FloatVector, residual: FloatVector) -> tuple[FloatVector, float]:
        moved = columns.scores(direction) - float(means @ direction)
        curved = columns.products(factors * moved) + l2 * direction
        return curved, float(direction @ curved)

    def precondition(residual: FloatVector) -> tuple[FloatVector, float, float]:
        scaled = residual / diagonal
        return scaled, float(residual @ scaled), float(np.linalg.norm(residual))

    return conjugate_gradients(multiply, precondition, downhill, share, _MOST_CG_STEPS)[0]


_MOST_CLASSES_STEPS = 300
_MOST_HALVINGS = 30


def row_sums(table: FloatMatrix) -> FloatVector:
    """Return the sum of each row, of a few numbers: numpy takes five times as long for them."""
    return table @ np.ones(table.shape[1])


def log_softmax(scores: FloatMatrix) -> FloatMatrix:
    """Return the logarithms of the softmax of each row, finite and of a few numbers."""
    lines = np.ascontiguousarray(scores.T)
    lines -= lines.max(axis=0)
    lines -= np.log(np.exp(lines).sum(axis=0))
    return np.ascontiguousarray(lines.T)


@dataclass(frozen=True)
class Multinomial:
    """A multinomial model to fit."""

    columns: Columns
    hot: FloatMatrix
    costs: FloatVector
    l2: float

    @property
    def team(self) -> Team:
        """The ranks among which the rows are divided."""
        return self.columns.team

    def primal(self, scores: FloatMatrix, weights: FloatMatrix) -> float:
        """Return P, given scores with intercepts, shape (n_rows, n_classes), and W, shape (n_classes, n_features)."""
        losses = -row_sums(log_softmax(scores) * self.hot)
        penalty = 0.5 * self.l2 * float((weights * weights).sum()) if self.team.leads else 0.0
        return self.team.totals(float(self.costs @ losses) + penalty)[0]

    def scores(self, weights: FloatMatrix) -> FloatMatrix:
        """Return X W', shape (n_rows, n_classes)."""
        table = self.columns.table
        return np.asarray(table @ weights.T if self.columns.is_sparse else table.T @ weights.T)

    def products(self, duals: FloatMatrix) -> FloatMatrix:
        """Return Theta' X of the rows that are here, shape (n_classes, n_features)."""
        table = self.columns.table
        return np.asarray(table.T @ duals if self.columns.is_sparse else table @ duals).T

    def derivatives(self, duals: FloatMatrix) -> FloatMatrix:
        """Return `products`, and in the last column the sums of Theta, shape (n_classes, n_features + 1)."""
        sums = duals.sum(axis=0) if self.columns.has_intercept else np.zeros(duals.shape[1])
        return np.column_stack([self.products(duals), sums])

    def add_up(self, matrix: FloatMatrix) -> FloatMatrix:
        """Return the sum of the matrices of ranks."""
        return self.team.add_up(np.ravel(matrix)).reshape(matrix.shape)

    def balanced(self, probabilities: FloatMatrix) -> FloatMatrix:
        """Return probabilities whose weighted sums by class are those of Y, if there are intercepts."""
        if not self.columns.has_intercept:
            return probabilities
        sums, wanted = self.add_up(np.stack([self.costs @ probabilities, self.costs @ self.hot]))
        mixed = float(np.max(1.0 - wanted / sums, initial=0.0))
        if mixed <= 0.0:
            return probabilities
        constant = np.maximum(wanted - (1.0 - mixed) * sums, 0.0)
        if not constant.any():  # the sums differ by rounding
            return probabilities
        balanced: FloatMatrix = (1.0 - mixed) * probabilities + mixed * (constant / constant.sum())
        return balanced

    def dual(self, probabilities: FloatMatrix) -> float:
        """Return D at balanced probabilities."""
        products = self.add_up(self.products(self.costs[:, None] * (self.hot - probabilities)))
        entropies = -row_sums(scipy.special.xlogy(probabilities, probabilities))
        squares = 0.5 * float((products * products).sum()) / self.l2 if self.team.leads else 0.0
        return self.team.totals(float(self.costs @ entropies) - squares)[0]


def solve_multinomial(
    problem: Multinomial, weights: FloatMatrix, intercepts: FloatVector, tol: float, max_iter: int
) -> Solution:
    """Minimise P."""
    best: Solution | None = None
    scores, first, n_iter = problem.scores(weights) + intercepts, 0.0, 0
    while True:
        probabilities = np.exp(log_softmax(scores))
        primal = problem.primal(scores, weights)
        dual = problem.dual(problem.balanced(probabilities))
        problem.team.report(primal, dual)
        gap = max(primal - dual, 0.0)
        if best is None or gap <= best.gap:
            best = Solution(weights, intercepts, gap, n_iter)
        if gap <= tol or n_iter == max_iter:
            break
        duals = problem.costs[:, None] * (problem.hot - probabilities)
        downhill = problem.add_up(problem.derivatives(duals))
        downhill[:, :-1] -= problem.l2 * weights
        length = float(np.linalg.norm(downhill))
        first = first or length
        change = _direction(problem, probabilities, downhill, min(0.1, (length / first) ** 0.5))
        change = problem.team.agree(change.ravel()).reshape(change.shape)
        n_iter += 1
        moved = problem.scores(change[:, :-1]) + change[:, -1]
        step = 1.0
        for _ in range(_MOST_HALVINGS):
            if problem.primal(scores + step * moved, weights + step * change[:, :-1]) <= primal:
                break
            step *= 0.5
        else:  # P is minimal to rounding
            break
        weights, intercepts = weights + step * change[:, :-1], intercepts + step * change[:, -1]
        scores = scores + step * moved
    return Solution(best.weights, best.intercept, best.gap, n_iter)


def _direction(problem: Multinomial, probabilities: FloatMatrix, downhill: FloatMatrix, share: float) -> FloatMatrix:
    """Return the Newton direction, intercepts in the last column, up to a residual that is a share of the gradient."""
    costs, team = problem.costs, problem.team
    spreads = costs[:, None] * probabilities * (1.0 - probabilities)
    squares = [problem.columns.squares(np.ascontiguousarray(spreads[:, k])) for k in range(spreads.shape[1])]
    diagonal = np.column_stack([np.array(squares) + problem.l2, np.maximum(team.add_up(spreads.sum(axis=0)), 1e-12)])

    def multiply(direction: FloatMatrix, residual: FloatMatrix) -> tuple[FloatMatrix, float]:
        moved = problem.scores(direction[:, :-1]) + direction[:, -1]
        curved = costs[:, None] * probabilities * (moved - row_sums(probabilities * moved)[:, None])
        image, bent = problem.derivatives(curved), float((moved * curved).sum())
        if team.leads:
            image[:, :-1] += problem.l2 * direction[:, :-1]
            bent += problem.l2 * float((direction[:, :-1] ** 2).sum())
        sums = team.add_up(np.append(image, bent))
        return sums[:-1].reshape(image.shape), float(sums[-1])  # equal intercepts for all classes change nothing

    def precondition(residual: FloatMatrix) -> tuple[FloatMatrix, float, float]:
        scaled = residual / diagonal
        # Products of vectors may differ between ranks in the last bit: those of rank 0 count.
        numbers = np.array([float((residual * scaled).sum()), float(np.linalg.norm(residual))])
        product, size = team.agree(numbers).tolist()
        return scaled, product, size

    return conjugate_gradients(multiply, precondition, downhill, share, _MOST_CLASSES_STEPS)[0]


#: Up to this many columns all of them are the working set; above, it begins with no more.
_FEW_COLUMNS = 100
#: Columns that a round adds at least to those of weights that are not zero.
_LEAST_NEW = 50
#: The widest matrix that is made; and of sparse columns where curvatures jump, so that one of few entries is made anew
#: in each round: passes over them then take half as long.
_MOST_GRAM_COLUMNS, _MOST_OF_JUMPS = 3000, 1000
#: Columns of the matrix over those of the working set, above which passes go over a copy of their part of it.
_MOST_UNUSED = 1.2
#: The model is minimised until the largest violation is this share of that of all columns, if that takes no factor.
_INNER_SHARE = {True: 1e-2, False: 0.03}
#: The share that is good enough where it takes more: the next working set has other columns anyway.
_ROUGH_SHARE = 0.1
_MOST_CYCLES = 60
_GRAM_PASSES = 10
#: The time of a step of coordinate descent over that of an operation of a factor.
_PASS_COST = 4
_COLUMN_PASSES = 50
#: A share of P, or of a penalty, that is rounding.
_ROUNDING = 1e-14
#: Iterations on end in which neither P falls nor the gap is halved: they are as small as rounding lets them.
_MOST_LEVEL = 5
#: Where curvatures jump: the share of what the model promises by which P falls at least, and what is added to the
#: curvature of a weight, which that of all rows may leave at zero.
_SUFFICIENT, _LEAST_CURVATURE = 0.01, 1e-12
#: What is added to a diagonal that has no factor, as a share of it.
_APART, _TINY = 1e-10, float(np.finfo(np.float64).tiny)


def solve_l1(
    problem: Problem, weights: FloatVector, tol: float, max_iter: int, *, is_relative: bool = False
) -> Solution:
    """Minimise P.

    - `is_relative`: whether `tol` is a share of P. Then weights of zero are a solution only where they are the optimum:
      just above the C of `sklearn.svm.l1_min_c` they are within any usual tolerance of it.
    """
    norms = problem.norms()
    weights = np.where(norms > 0.0, weights, 0.0)
    scores = problem.columns.scores(weights)
    intercept = problem.intercept(scores, 0.0)
    is_open = norms > 0.0
    best: Solution | None = None
    model: Gram | None = None
    least, n_iter, lowest, n_level = _LEAST_NEW, 0, np.inf, 0
    while True:
        found = certify(problem, weights, scores + intercept)
        is_level = lowest - found.primal <= _ROUNDING * found.primal and best is not None and found.gap > 0.5 * best.gap
        n_level, lowest = n_level + 1 if is_level else 0, min(lowest, found.primal)
        if best is None or found.gap <= best.gap:
            best = Solution(weights.copy(), intercept, found.gap, n_iter)
        is_near = found.gap <= (tol * found.primal if is_relative else tol)
        is_wrong = is_relative and found.scale < 1.0 - _ROUNDING and not weights.any()
        if (is_near and not is_wrong) or n_iter == max_iter or n_level == _MOST_LEVEL:
            break
        near = found.scale * np.abs(found.products - problem.l2 * weights) + np.sqrt(2.0 * found.gap) * norms
        is_open &= near >= problem.l1
        if not is_open[weights != 0.0].all():  # proven to be zero
            weights = np.where(is_open, weights, 0.0)
            scores = problem.columns.scores(weights)
            intercept = problem.intercept(scores, intercept)
            found = certify(problem, weights, scores + intercept)
        chosen = _working_set(problem, weights, found, norms, is_open, least)
        change, model = _minimise(problem, weights, scores + intercept, found, chosen, model)
        n_iter += 1
        # Near the optimum P falls by less than it is rounded by, where the gap may still be much larger.
        limit, promise = found.primal + _ROUNDING * found.primal, 0.0
        if problem.loss.jumps:
            falls = np.abs(weights + change).sum() - np.abs(weights).sum()
            promise = _SUFFICIENT * (problem.l1 * falls - (found.products - problem.l2 * weights) @ change)
        taken = longest_step(problem, weights, change, scores, intercept, limit, promise)
        if taken is None:  # P is minimal to rounding
            if chosen.shape[0] >= min(np.count_nonzero(is_open), _most_columns(problem)):
                break
            least *= 2
            continue
        weights, scores, intercept = taken
    return Solution(best.weights, best.intercept, best.gap, n_iter, int(np.count_nonzero(~is_open)))


def _working_set(
    problem: Problem, weights: FloatVector, found: Certificate, norms: FloatVector, is_open: AnyArray, least: int
) -> IntVector:
    """Return the weights that are not zero, and the worst violators: at most twice as many, at least `least`."""
    candidates, most = np.flatnonzero(is_open), _most_columns(problem)
    if candidates.shape[0] <= min(_FEW_COLUMNS, most):
        return candidates
    slopes = (problem.l2 * weights - found.products)[candidates]
    # The distance of the dual point to the constraint of a column, not scaled until no column exceeds it: scaled, that
    # of rare columns, whose norms are small, is large even where they violate most.
    distances: FloatVector = (problem.l1 - np.abs(slopes)) / norms[candidates]
    is_zero = weights[candidates] == 0.0
    n_kept = candidates.shape[0] - int(np.count_nonzero(is_zero))
    n_violating = int(np.count_nonzero(is_zero & (np.abs(slopes) > problem.l1)))
    size = n_kept + max(least, min(n_violating, max(n_kept, _FEW_COLUMNS)))
    if candidates.shape[0] <= min(size, most):
        return candidates
    distances[~is_zero] = -np.inf
    if size > most:
        size, distances = most, -_violations(slopes, weights[candidates], problem.l1)
    chosen: IntVector = np.sort(candidates[np.argpartition(distances, size - 1)[:size]])
    return problem.columns.team.agree(chosen)  # which of equal ones are taken may depend on the machine


def _most_columns(problem: Problem) -> int:
    """Return the largest working set: passes over the columns of wider ones are for rows of one process."""
    return problem.columns.shape[1] if problem.columns.team.n_ranks == 1 else _MOST_GRAM_COLUMNS


def _minimise(
    problem: Problem,
    weights: FloatVector,
    scores: FloatVector,
    found: Certificate,
    chosen: IntVector,
    model: Gram | None,
) -> tuple[FloatVector, Gram | None]:
    """Return the change of all weights to the minimum of the model on the chosen ones, and the matrix to keep."""
    loss, columns = problem.loss, problem.columns
    is_exact = loss.is_quadratic
    factors, l2 = loss.curvature(loss.mean(scores)), problem.l2
    l2 += _LEAST_CURVATURE if loss.jumps else 0.0
    is_wide = chosen.shape[0] > (_MOST_OF_JUMPS if loss.jumps and columns.is_sparse else _MOST_GRAM_COLUMNS)
    if not is_wide:
        # The matrix of a quadratic loss stays the same: columns that are there may stay in the working set.
        new = chosen if model is None or not is_exact else np.setdiff1d(chosen, model.chosen, assume_unique=True)
        if model is None or not is_exact or model.chosen.shape[0] + new.shape[0] > _MOST_GRAM_COLUMNS:
            model = Gram(columns, factors, l2, chosen)
        else:
            model.extend(new)
        if model.chosen.shape[0] <= _MOST_UNUSED * chosen.shape[0]:
            chosen = model.chosen
    points, slopes = weights[chosen], problem.l2 * weights[chosen] - found.products[chosen]
    worst = float(_violations(slopes, points, problem.l1).max(initial=0.0))
    goal = _INNER_SHARE[is_exact] * worst
    if is_wide or model is None:  # of one process
        means = columns.means(chosen, factors)
        curvatures = columns.squares(factors)[chosen] + l2
        model_of = factors, means, curvatures, slopes, points
        descend_columns(columns.arrays, chosen, model_of, problem.l1, problem.l2, _COLUMN_PASSES, goal)
    else:
        if columns.team.leads:
            gram = model.part(chosen)
            for _ in range(_MOST_CYCLES):
                # As many passes as take the time of a factor.
                n_passes = max(_GRAM_PASSES, np.count_nonzero(points) ** 2 // (_PASS_COST * points.shape[0]))
                if descend_gram(gram, slopes, points, problem.l1, n_passes, goal) <= _ROUGH_SHARE * worst:
                    break
                _fit_signs(gram, slopes, points, problem.l1, loss.jumps)
        points = columns.team.agree(points)
    change = np.zeros_like(weights)
    change[chosen] = points - weights[chosen]
    return change, model


def _violations(slopes: FloatVector, points: FloatVector, l1: float) -> FloatVector:
    """Return how much each weight violates optimality."""
    at_zero = np.maximum(np.abs(slopes) - l1, 0.0)
    return np.where(points == 0.0, at_zero, np.abs(slopes + l1 * np.sign(points)))


def _fit_signs(gram: FloatMatrix, slopes: FloatVector, points: FloatVector, l1: float, jumps: bool) -> None:
    """Go towards the minimum over the weights that are not zero; a weight that would change its sign becomes zero."""
    active = np.flatnonzero(points)
    if not active.shape[0]:
        return
    part = gram[np.ix_(active, active)]
    old, signs = points[active], np.sign(points[active])
    gradient = slopes[active] + l1 * signs
    try:
        factor = cho_factor(part.T, check_finite=False)
    except LinAlgError:  # columns that depend on each other
        if not jumps:
            return  # coordinate descent goes on
        nearby = part.T.copy()
        nearby[np.diag_indices_from(nearby)] *= 1.0 + _APART
        try:
            factor = cho_factor(nearby, check_finite=False)
        except LinAlgError:
            return
    direction = -cho_solve(factor, gradient, check_finite=False)
    if not np.isfinite(direction).all():
        return
    ends, first = np.full(old.shape, np.inf), np.inf
    if jumps:  # rows with curvature may be fewer than weights: the last step goes to where the first weight is zero
        ends = np.where(direction * signs < 0.0, np.abs(old) / np.maximum(np.abs(direction), _TINY), np.inf)
        first = float(ends.min())
    for step in (1.0, 0.5, 0.25, 0.125, *([first] if first < 0.125 else [])):
        new = old + step * direction
        new[(new * signs < 0.0) | ((ends <= first) & (step == first))] = 0.0
        change = new - old
        if gradient @ change + 0.5 * change @ (part @ change) < 0.0:
            points[active] = new
            moved = np.zeros_like(slopes)
            moved[active] = change
            slopes += moved @ gram[: points.shape[0], : points.shape[0]]
            return
