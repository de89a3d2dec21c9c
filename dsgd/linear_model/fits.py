"""The solver that a model gets, and fits to rows of this process or of all ranks.

=========================================  =================================  =================================
problem                                    solver                             reads
=========================================  =================================  =================================
several classes                            `dsgd.linear_model.newton`         columns
an L1 penalty                              `dsgd.linear_model.newton`  columns
a squared one; ranks, or many dense rows   `dsgd.linear_model.quasi_newton`   rows, in the memory of the caller
a squared one; other rows, and `Ridge`'s   `dsgd.linear_model.newton`         columns
=========================================  =================================  =================================

Where rows are divided among ranks, each keeps its rows; what travels is sums over rows, of which the file of each
solver says how many. The gap is over the rows of all ranks. All ranks take the same steps, and return the same model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.inputs.blocks import widen
from dsgd.linear_model.columns import make_columns
from dsgd.linear_model.newton import Multinomial, solve_l1, solve_l2, solve_multinomial
from dsgd.linear_model.problem import AbstractObjective, Posed, PosedClasses, Problem, Solution
from dsgd.linear_model.quasi_newton import SmoothProblem, has_many_rows, make_rows, solve_smooth
from dsgd.runtime.pools import limit_blas
from dsgd.runtime.rank import Rank
from dsgd.types import AnyArray, FloatMatrix, FloatVector

#: Weights to begin at, shape (n_features,) or (n_classes, n_features), and intercepts, shape (n_outputs,).
Start: TypeAlias = tuple[FloatVector | FloatMatrix, FloatVector]


def fit_rows(
    X: Any,
    targets: FloatVector,
    weights: FloatVector,
    objective: AbstractObjective,
    start: Start | None,
    max_iter: int,
    team: Team,
    *,
    on_ranks: bool = False,
) -> tuple[Solution, float]:
    """Return the model of rows of this process, or of all ranks, equal on all to the last bit, and the gap to reach."""
    # What overflows is refused, or shows in the gap.
    with limit_blas(1), np.errstate(all="ignore"), closing(team):
        posed = objective.pose(targets, weights, team)
        if isinstance(posed, PosedClasses):
            return _fit_classes(X, posed, start, max_iter, team), posed.tol
        by_rows = posed.l1 == 0.0 and (on_ranks or (not posed.loss.is_quadratic and has_many_rows(X)))
        return (_fit_rows if by_rows else _fit_columns)(X, posed, start, max_iter, team), posed.tol


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
    # Classes that were not trained have a probability below rounding in any row: the mean of the other scores is zero
    # in all rows, and the largest at least that.
    weights = np.zeros((posed.n_classes, X.shape[1]))
    intercepts = np.full(posed.n_classes, np.log(np.finfo(np.float64).eps))
    weights[posed.present], intercepts[posed.present] = found.weights, free
    if posed.n_classes == 2:  # one of them has costs
        return Solution(weights[1] - weights[0], float(intercepts[1] - intercepts[0]), found.gap, found.n_iter)
    return Solution(weights, intercepts, found.gap, found.n_iter)


@dataclass(frozen=True)
class RankRows:
    """The rows of one rank."""

    X: Any
    targets: FloatVector
    weights: FloatVector

    @property
    def n_rows(self) -> int:
        """How many rows there are, for the report."""
        return len(self.weights)


@dataclass(frozen=True)
class Packer:
    """Makes the rows of a rank from its blocks; sent to every rank."""

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> RankRows:
        """Return the rows of a rank, which may be none."""
        blocks = list(blocks)  # each is looked at several times
        parts = [widen(block[0], self.n_features) for block in blocks]
        shape = (0, self.n_features)
        if len(parts) == 1:
            X = parts[0]
        elif self.sparse:
            X = sp.vstack([sp.csr_array(shape, dtype=self.dtype), *parts], format="csr")
        else:
            X = np.concatenate([np.empty(shape, self.dtype), *parts])
        targets = [
            np.zeros(X.shape[0]) if y is None else y if self.classes is None else np.searchsorted(self.classes, y)
            for X, y, *_ in blocks
        ]
        weights = [np.ones(block[0].shape[0]) if block[2] is None else block[2] for block in blocks]
        return RankRows(
            X.astype(self.dtype, copy=False),
            np.concatenate([np.empty(0), *targets]).astype(np.float64, copy=False),
            np.concatenate([np.empty(0), *weights]).astype(np.float64, copy=False),
        )


@dataclass(frozen=True)
class RankResult:
    """What training brings home, equal on every rank but for the certificates, which rank 0 has."""

    solution: Solution
    tol: float
    certificates: list[dict[str, Any]] = field(default_factory=list)


def train_rows(
    rank: Rank, data: RankRows, objective: AbstractObjective, start: Start | None, max_iter: int
) -> RankResult:
    """Fit a model to the rows of all ranks; a rank program."""
    begin, certificates = time.perf_counter(), list[dict[str, Any]]()

    def note(primal: float, dual: float) -> None:
        if rank.number == 0:
            seconds = time.perf_counter() - begin
            found = {"seconds": seconds, "exchanges": rank.ledger.rounds, "primal": primal, "dual": dual}
            certificates.append(found)
            rank.publish({**found, "text": f"gap {max(primal - dual, 0.0):.2g}, {seconds:.2f} s"})

    team = Team(rank.n_threads, rank.group, rank.check, note)
    solution, tol = fit_rows(data.X, data.targets, data.weights, objective, start, max_iter, team, on_ranks=True)
    return RankResult(solution, tol, certificates)
