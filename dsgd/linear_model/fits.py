"""The fit of a posed problem to rows of this process or of all ranks.

=========================================  =================================  =================================
problem                                    solver                             reads
=========================================  =================================  =================================
several classes                            `dsgd.linear_model.multinomial`    columns
an L1 penalty                              `dsgd.linear_model.sparse_newton`  columns
a squared one; ranks, or many dense rows   `dsgd.linear_model.quasi_newton`   rows, in the memory of the caller
a squared one; other rows, and `Ridge`'s   `dsgd.linear_model.newton`         columns
=========================================  =================================  =================================
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from dsgd.collectives import Team
from dsgd.linear_model.columns import make_columns
from dsgd.linear_model.multinomial import Multinomial, solve_multinomial
from dsgd.linear_model.newton import solve_l2
from dsgd.linear_model.objectives import Posed, PosedClasses
from dsgd.linear_model.problem import Problem, Solution
from dsgd.linear_model.quasi_newton import SmoothProblem, has_many_rows, solve_smooth
from dsgd.linear_model.rows import make_rows
from dsgd.linear_model.sparse_newton import solve_l1
from dsgd.types import FloatMatrix, FloatVector

#: Weights to begin at, shape (n_features,) or (n_classes, n_features), and intercepts, shape (n_outputs,).
Start: TypeAlias = tuple[FloatVector | FloatMatrix, FloatVector]


def fit_here(X: Any, posed: Posed | PosedClasses, start: Start | None, max_iter: int, team: Team) -> Solution:
    """Return the model of rows of this process."""
    if isinstance(posed, PosedClasses):
        return _fit_classes(X, posed, start, max_iter, team)
    if posed.l1 == 0.0 and not posed.loss.is_quadratic and has_many_rows(X):
        return _fit_rows(X, posed, start, max_iter, team)
    return _fit_columns(X, posed, start, max_iter, team)


def fit_on_ranks(X: Any, posed: Posed | PosedClasses, start: Start | None, max_iter: int, team: Team) -> Solution:
    """Return the model of the rows of all ranks, as `fit_here`: equal on every rank to the last bit."""
    if isinstance(posed, PosedClasses):
        return _fit_classes(X, posed, start, max_iter, team)
    fit = _fit_columns if posed.l1 > 0.0 else _fit_rows
    return fit(X, posed, start, max_iter, team)


def _fit_rows(X: Any, posed: Posed, start: Start | None, max_iter: int, team: Team) -> Solution:
    """Return the model with a squared penalty of some rows; without a start, from the minimum of a sample of them."""
    rows = make_rows(X, posed.has_intercept, team)
    weights, intercept = np.zeros(X.shape[1]), posed.base
    if start is not None:
        weights = start[0]
        if posed.has_intercept:
            intercept = float(start[1][0]) - posed.shift + float(rows.centres @ weights)
    # Ranks must begin at the same point to the last bit.
    begin = team.agree(np.append(weights, intercept))
    problem = SmoothProblem(rows, posed.loss, posed.l2)
    found = solve_smooth(problem, begin[:-1], float(begin[-1]), posed.tol, max_iter, team)
    return _uncentred(found, rows.centres, posed)


def _fit_columns(X: Any, posed: Posed, start: Start | None, max_iter: int, team: Team) -> Solution:
    """Return the model of one output, by way of columns."""
    columns = make_columns(X, posed.loss.costs, posed.has_intercept, team)
    problem = Problem(columns, posed.loss, posed.l1, posed.l2)
    solve = solve_l1 if posed.l1 > 0.0 else solve_l2
    found = solve(problem, np.zeros(X.shape[1]) if start is None else start[0], posed.tol, max_iter)
    return _uncentred(found, columns.centres, posed)


def _uncentred(found: Solution, centres: FloatVector, posed: Posed) -> Solution:
    """Return a solution of centred columns and shifted targets with the intercept of those that came."""
    intercept = found.intercept - float(centres @ found.weights) + posed.shift if posed.has_intercept else 0.0
    return Solution(found.weights, intercept, found.gap, found.n_iter, found.n_screened)


def _fit_classes(X: Any, posed: PosedClasses, start: Start | None, max_iter: int, team: Team) -> Solution:
    """Return the model of several classes."""
    columns = make_columns(X, posed.costs, posed.has_intercept, team)
    problem = Multinomial(columns, posed.hot, posed.costs, posed.l2)
    weights, intercepts = np.zeros((posed.hot.shape[1], X.shape[1])), posed.base
    # The intercept of a class that no fit has trained yet is far from any minimum: then all begin anew.
    if start is not None and posed.n_classes > 2 and start[0][posed.present].any(axis=1).all():
        weights = start[0][posed.present]
        # Ranks must begin at the same point to the last bit.
        intercepts = team.agree(start[1][posed.present] + weights @ columns.centres)
    found = solve_multinomial(problem, weights, intercepts, posed.tol, max_iter)
    free = found.intercept - np.mean(found.intercept)  # a constant for all classes changes nothing
    free = free - found.weights @ columns.centres if posed.has_intercept else np.zeros(len(posed.base))
    return _with_all_classes(Solution(found.weights, free, found.gap, found.n_iter), posed)


def _with_all_classes(found: Solution, posed: PosedClasses) -> Solution:
    """Return a solution with the classes that were not trained, whose probability is below rounding in any row.

    The mean of the other scores is zero in all rows, and the largest at least that.
    """
    weights = np.zeros((posed.n_classes, found.weights.shape[1]))
    intercepts = np.full(posed.n_classes, np.log(np.finfo(np.float64).eps))
    weights[posed.present], intercepts[posed.present] = found.weights, found.intercept
    if posed.n_classes == 2:  # one of them has costs
        return Solution(weights[1] - weights[0], float(intercepts[1] - intercepts[0]), found.gap, found.n_iter)
    return Solution(weights, intercepts, found.gap, found.n_iter)
