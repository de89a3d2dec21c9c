r"""Models with an L1 penalty: proximal Newton steps on working sets, with gap-safe screening.

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

Rows may be divided among ranks, which then take the same steps. With p columns and k in the working set, a round adds
up p numbers of eight bytes for the gradient, ``k (k + 1) / 2 + k + 1`` in two messages for the matrix, and three at
most in each of the others: two for the certificate, one for each step tried, and for the best intercept one (squared
loss) or one for each of its Newton steps, mostly two to four. Rank 0 solves the model of 4. and sends k numbers, and
those of the working set. For the squared loss only the products with columns that are new to the matrix are added up:
up to 100 columns take one matrix in all. Norms are added up once, 2 p + 1 numbers. Since passes over columns would add
up a number for each, working sets on ranks are at most 3,000 columns: beyond, those that violate optimality most.

Source: Massias, Gramfort and Salmon, ICML 2018 (working sets); Bertrand and Massias, AISTATS 2021 (extrapolation);
Yuan, Ho and Lin, JMLR 2012 (proximal Newton); Lee, Battle, Raina and Ng, NeurIPS 2006 (steps to the minimum for given
signs).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dsgd.linear_model.columns import Gram, descend_columns, descend_gram
from dsgd.linear_model.problem import Certificate, Problem, Solution, certify, longest_step
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

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
    least, n_iter = _LEAST_NEW, 0
    while True:
        found = certify(problem, weights, scores + intercept)
        if best is None or found.gap <= best.gap:
            best = Solution(weights.copy(), intercept, found.gap, n_iter)
        is_near = found.gap <= (tol * found.primal if is_relative else tol)
        is_wrong = is_relative and found.scale < 1.0 - _ROUNDING and not weights.any()
        if (is_near and not is_wrong) or n_iter == max_iter:
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
        limit, promise = found.primal, 0.0
        if problem.loss.jumps:
            falls = np.abs(weights + change).sum() - np.abs(weights).sum()
            promise = _SUFFICIENT * (problem.l1 * falls - (found.products - problem.l2 * weights) @ change)
            limit += _ROUNDING * limit  # near the optimum P falls by less than it is rounded by
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
    """Return the columns of the working set, ascending.

    Those of weights that are not zero, and the columns that violate optimality most, at most doubling the set; but
    at least `least`, so that columns that are near to a violation come with the last ones.
    """
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
        penalties = (problem.l1, problem.l2)
        descend_columns(
            columns.arrays, chosen, factors, means, curvatures, slopes, points, penalties, _COLUMN_PASSES, goal
        )
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
