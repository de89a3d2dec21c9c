r"""The joint multi-class SVM of Crammer and Singer, by the sequential dual method with elimination.

Problem: one vector of weights ``w_m`` per class, the weight of the constant column included,

.. math:: P(W) = \tfrac12 \sum_m \|w_m\|^2
          + \sum_i C_i \max_m \big( [m \ne y_i] + w_m \cdot x_i - w_{y_i} \cdot x_i \big),

and its dual, with ``w_m = sum_i a_im x_i``,

.. math:: D(A) = \sum_i a_{i y_i} - \tfrac12 \sum_m \|w_m\|^2, \qquad
          a_{im} \le C_i [m = y_i], \quad \sum_m a_{im} = 0.

One visit of row i computes its gradients ``g_m = [m != y_i] + w_m . x_i`` and takes the exact minimum over the row of
A: ``a_m = min(C_i [m = y_i], (beta - b_m) / |x_i|^2)`` with ``b_m = g_m - |x_i|^2 a_m`` and the beta that makes the row
sum to zero, found by sorting. A visit costs two reads of the row times the classes that are active in it. A class whose
variable is at its bound and pushed outwards is left out of its row, and a row of one class is left out of the pass.

Nothing rests on that guess: between passes a sweep over all rows and classes computes P and D in float64 and takes
everything in again, and the solver returns when ``(P - D) / P <= tol`` and on nothing else.

Source: Keerthi, Sundararajan, Chang, Hsieh and Lin, KDD 2008; Fan, Chang, Hsieh, Wang and Lin, JMLR 2008, appendix E
(the row's problem, elimination). The stopping rule and the order of visits are ours.
"""

from __future__ import annotations

import numpy as np

from dsgd.collectives import Team
from dsgd.kernels.jit import kernel
from dsgd.kernels.rng import GOLDEN, draw
from dsgd.svm.linear_solver.kernels import RowArrays, column_of
from dsgd.svm.linear_solver.problem import LinearSolution, relative_gap
from dsgd.svm.linear_solver.rows import LinearRows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["solve_crammer_singer"]

#: A sweep is due when this many visits per row were made since the last one, or when the largest violation has fallen
#: to this share of what it was in the first pass after it.
_VISITS_PER_SWEEP = 5.0
_REACH = 0.1
_ONE = np.uint64(1)
_HALF_WORD = np.uint64(32)


def solve_crammer_singer(
    rows: LinearRows,
    codes: IntVector,
    costs: FloatVector,
    n_classes: int,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
) -> LinearSolution:
    """Solve the joint problem of all classes.

    Parameters
    ----------
    rows : LinearRows
        The rows.
    codes : array of int64, shape (n_rows,)
        Classes, from 0.
    costs : array of float64, shape (n_rows,)
        C_i: C times the weights of class and sample.
    n_classes : int
        Classes, 2 or more.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most passes.
    team : Team
        Shares the sweeps; passes are sequential.
    seed : int
        Seed of the order of visits.

    Returns
    -------
    LinearSolution
        Weights of shape (n_classes, n_features + 1) and dual variables of shape (n_rows, n_classes).
    """
    n_rows, norms = rows.n_rows, rows.norms(team)
    duals = _first_duals(norms, codes, costs, n_classes)
    weights = np.zeros((rows.width, n_classes))
    everyone = np.flatnonzero((norms > 0.0) & (costs > 0.0)).astype(np.uint32)
    active, n_active = everyone.copy(), everyone.shape[0]
    # The numbers of the classes active in each row, and how many they are.
    slots = np.empty((n_rows, n_classes), np.uint32)
    sizes = np.empty(n_rows, np.uint32)
    best, primal, dual = weights.copy(), np.inf, 0.0
    n_passes, work, visits, reach, worst = 0, 0.0, np.inf, np.inf, 0.0
    while True:
        if visits >= _VISITS_PER_SWEEP * n_rows or n_active == 0 or worst <= reach:
            new_primal, dual = _certify(rows, codes, costs, weights, duals, weights, team)
            if new_primal < primal:
                best, primal = weights.copy(), new_primal
            if relative_gap(primal, dual) <= tol or work >= max_iter * n_rows:
                break
            slots[:], sizes[:] = np.arange(n_classes, dtype=np.uint32), n_classes
            active[:], n_active = everyone, everyone.shape[0]
            visits, reach = 0.0, -np.inf
            work += 0.5 * n_rows
        n_passes += 1
        visits += n_active
        work += n_active
        n_left, worst = _cs_pass(
            rows.arrays,
            (codes, costs, norms),
            weights,
            duals,
            (slots, sizes),
            active,
            np.uint64(n_active),
            np.uint64((seed + n_passes * int(GOLDEN)) % 2**64),
        )
        n_active = int(n_left)
        if reach < 0.0:
            reach = _REACH * worst
    exact = np.stack([rows.combine(np.ascontiguousarray(duals[:, m]), team) for m in range(n_classes)], axis=1)
    primal, dual = _certify(rows, codes, costs, best, duals, exact, team)
    converged = relative_gap(primal, dual) <= max(tol, 1e-14)
    n_iter = int(np.ceil(work / max(1, n_rows)))
    return LinearSolution(np.ascontiguousarray(best.T), duals, primal, dual, n_iter, converged, "crammer_singer")


def _first_duals(norms: FloatVector, codes: IntVector, costs: FloatVector, n_classes: int) -> FloatMatrix:
    """Return zeros except for rows of zeros, whose loss does not depend on the weights: theirs are optimal."""
    duals = np.zeros((norms.shape[0], n_classes))
    empty = np.flatnonzero(norms == 0.0)
    duals[empty, codes[empty]] = costs[empty]
    duals[empty, (codes[empty] + 1) % n_classes] = -costs[empty]
    return duals


def _certify(
    rows: LinearRows,
    codes: IntVector,
    costs: FloatVector,
    weights: FloatMatrix,
    duals: FloatMatrix,
    combined: FloatMatrix,
    team: Team,
) -> tuple[float, float]:
    """Return P(weights) and D(duals), given the sums of rows times their dual variables."""

    def part(i: int, j: int) -> float:
        return float(_cs_losses(rows.take(slice(i, j)).arrays, codes[i:j], costs[i:j], weights))

    loss = sum(team.map(part, rows.n_rows))
    gain = float(duals[np.arange(rows.n_rows), codes].sum())
    return 0.5 * float(np.vdot(weights, weights)) + loss, gain - 0.5 * float(np.vdot(combined, combined))


@kernel
def _cs_losses(rows: RowArrays, codes: IntVector, costs: FloatVector, weights: FloatMatrix) -> float:
    """Return the sum of the losses of the rows."""
    values, indices, first, last, bias = rows
    n_classes, scores = np.uint64(weights.shape[1]), np.empty(weights.shape[1])
    end = np.uint64(weights.shape[0]) - _ONE
    total = 0.0
    for i in range(np.uint64(codes.shape[0])):
        for m in range(n_classes):
            scores[m] = bias * weights[end, m]
        for j in range(last[i] - first[i]):
            value = np.float64(values[first[i] + j])
            column = column_of(indices, j, first[i] + j)
            for m in range(n_classes):
                scores[m] += value * weights[column, m]
        own = np.uint64(codes[i])
        worst = 0.0
        for m in range(n_classes):
            if m != own:
                worst = max(worst, 1.0 + scores[m] - scores[own])
        total += costs[i] * worst
    return total


@kernel
def _cs_pass(
    rows: RowArrays,
    of_rows: tuple[IntVector, FloatVector, FloatVector],
    weights: FloatMatrix,
    duals: FloatMatrix,
    classes: tuple[AnyArray, AnyArray],
    active: AnyArray,
    n_active: np.uint64,
    key: np.uint64,
) -> tuple[np.uint64, float]:
    """Visit the active rows once in random order; the module has the formulas.

    `of_rows` are codes, costs and squared norms. `classes` are the numbers of the classes of every row, shape (n_rows,
    n_classes), and how many of them, from the first on, are active. `weights`, shape (n_features + 1, n_classes), and
    `duals` are updated in place. Returns the rows that stay active and the largest violation.
    """
    values, indices, first, last, bias = rows
    codes, costs, norms = of_rows
    slots, sizes = classes
    end = np.uint64(weights.shape[0]) - _ONE
    gradients, levels, ordered = np.empty(duals.shape[1]), np.empty(duals.shape[1]), np.empty(duals.shape[1])
    for place in range(n_active):
        other = place + (((draw(key, place) >> _HALF_WORD) * (n_active - place)) >> _HALF_WORD)
        active[place], active[other] = active[other], active[place]
    worst = 0.0
    position = np.uint64(0)
    while position < n_active:
        i = np.uint64(active[position])
        own, cost, norm = np.uint64(codes[i]), costs[i], norms[i]
        begin, length, size = first[i], last[i] - first[i], np.uint64(sizes[i])
        mine, variables = slots[i], duals[i]
        for m in range(size):
            gradients[m] = (0.0 if mine[m] == own else 1.0) + bias * weights[end, np.uint64(mine[m])]
        for j in range(length):
            value = np.float64(values[begin + j])
            column = column_of(indices, j, begin + j)
            line = weights[column]
            for m in range(size):
                gradients[m] += value * line[np.uint64(mine[m])]
        lowest, highest = np.inf, -np.inf
        for m in range(size):
            limit = cost if mine[m] == own else 0.0
            if variables[np.uint64(mine[m])] < limit:
                lowest = min(lowest, gradients[m])
            highest = max(highest, gradients[m])
        slot = np.uint64(0)
        while slot < size:
            limit = cost if mine[slot] == own else 0.0
            if variables[np.uint64(mine[slot])] >= limit and gradients[slot] < lowest:
                size -= _ONE
                mine[slot], mine[size] = mine[size], mine[slot]
                gradients[slot] = gradients[size]
            else:
                slot += _ONE
        sizes[i] = size
        if size <= _ONE:
            n_active -= _ONE
            active[position] = active[n_active]
            active[n_active] = np.uint32(i)
            continue
        position += _ONE
        if highest - lowest <= 1e-14:
            continue
        worst = max(worst, highest - lowest)
        # Sort what the levels would be if every class were free, the largest first.
        for m in range(size):
            levels[m] = gradients[m] - norm * variables[np.uint64(mine[m])]
            level = levels[m] + (norm * cost if mine[m] == own else 0.0)
            rank = np.uint64(m)
            while rank > 0 and ordered[rank - _ONE] < level:
                ordered[rank] = ordered[rank - _ONE]
                rank -= _ONE
            ordered[rank] = level
        beta = ordered[0] - norm * cost
        count = _ONE
        while count < size and beta < count * ordered[count]:
            beta += ordered[count]
            count += _ONE
        beta /= count
        for m in range(size):
            limit = cost if mine[m] == own else 0.0
            new = min(limit, (beta - levels[m]) / norm)
            gradients[m] = new - variables[np.uint64(mine[m])]
            variables[np.uint64(mine[m])] = new
        for m in range(size):
            weights[end, np.uint64(mine[m])] += bias * gradients[m]
        for j in range(length):
            value = np.float64(values[begin + j])
            column = column_of(indices, j, begin + j)
            line = weights[column]
            for m in range(size):
                line[np.uint64(mine[m])] += value * gradients[m]
    return n_active, worst
