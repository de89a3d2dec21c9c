"""Which solver a dual gets, the direct solver of small problems, and the start from weights of linear ones.

===================================  =====================  ==========================================================
dual                                 solver                 why
===================================  =====================  ==========================================================
``solver="pairwise"``                `pairwise`             asked for: the published algorithm, for studies
a small pair of classes              `pairs`                most time of the others would go into calls
a linear kernel                      `linear_solver` first  a pass over rows instead of a kernel row; `FIRST_STEPS` of
                                                            the others before it, where rows are few or wide
at most `LARGEST_DIRECT` variables   `solve_directly`       all rows that are needed fit into memory, and a round of
                                                            `block` would cost more than its steps
others; divided among ranks;         `block`                rows come and go; samples are left out
elimination asked for
===================================  =====================  ==========================================================

A limit of steps applies to kernel solvers alone, and elimination that was asked for needs one as the first solver.

**The direct solver** (docs/svm.rst): members, whose rows over all samples lie in memory in float64. A round takes as
new members the samples that violate optimality most, solves the problem of all members to a tenth of the gap, and adds
the rows of those that moved to u = K(yα). Every sample with a coefficient is a member, so the proof over all samples
costs no kernel value.

It ends when the proof holds, steps are spent, proofs no longer see the gap fall where rounding may hide it, or the run
stands still (`dsgd.svm.kernel_solver.elimination`). Every round takes a step, has a new member, or leads to a proof.
Cost: n kernel values for each of m members, mostly a small multiple of the number of support vectors, and m² more
numbers of memory. Source: SMO as in `dsgd.svm.kernel_solver.smo`, over an active set that only grows.

**A linear kernel from weights.** With k(x, z) = x'z the dual is that of a linear machine whose intercept is not
penalised (`dsgd.svm.linear_solver.problem`). A step on two variables costs n kernel values; a visit of coordinate
descent one row, and a Newton step one pass over the rows: ten to thousands of times less work.

The error of the sum of its dual variables is taken from the free ones; then u = X(X'yα) is computed over all samples in
float64, and the kernel solver continues to its own proof, mostly without a step. On few rows, or many columns, the
kernel solver begins, and the linear one follows if that does not end soon. Of two starts the one with the lower dual
objective is taken, so nothing is lost if the linear solver makes little progress.

Source: the solvers are those of `dsgd.svm.linear_solver.solve`; the combination is ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Elimination, EliminationRecord, Standstill
from dsgd.svm.kernel_solver.pairwise import solve_pairwise
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, refuse, tell, worth
from dsgd.svm.kernel_solver.smo import advance, extremes, pick_worst
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.linear_solver.problem import LinearProblem, LinearRows, LinearSolution
from dsgd.svm.linear_solver.solve import solve_linear
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: Largest number of variables of such a problem: all rows of so many take 32 megabytes. A start with known sums needs
#: few rows in blocks, but here the rows of all samples with coefficients.
LARGEST_DIRECT, _LARGEST_KNOWN = 2048, 512

#: Members that a round adds, at least, and in units of those there are. Fewer are more rounds, more are more rows that
#: never move. Rows may take at least as long as the rest of the round, in units of `KernelMatrix.value_cost`.
_FEWEST, _SHARE = 16, 0.25
_ROUND_COST = 30_000

#: How far a round closes the gap of its members; the last go to the tolerance.
_BY_ROUND = 0.1

#: Proofs in a row that may fail without halving the gap: the gap is then rounding only.
_MAX_ATTEMPTS = 3

#: Largest number of steps between two proofs: indicators that are only updated drift.
_STEPS = 100_000

#: And of a round: who watches for a standstill takes the lowest gap of many, which may rise and fall.
_ROUND_STEPS = 12_500


def solve_dual(
    dual: Dual,
    matrix: KernelMatrix,
    *,
    tol: float,
    max_iter: int,
    elimination: Elimination,
    is_pairwise: bool = False,
    linear_rows: Callable[[], Any] | None = None,
) -> Solution:
    """Solve the dual to `tol`, by the solver that suits it; `linear_rows` returns those of a linear kernel."""
    limits: dict[str, Any] = {"tol": tol, "elimination": elimination}
    is_idle = elimination.starts_idle()

    def run(start: Dual, limit: int) -> Solution:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused, not warned of
            if is_pairwise:
                return solve_pairwise(start, matrix, max_iter=limit, **limits)
            is_here = matrix.peers.is_alone and len(matrix.active) == matrix.n and matrix.dtype == np.float64
            most = LARGEST_DIRECT if start.u is None else min(LARGEST_DIRECT, _LARGEST_KNOWN)
            if is_idle and is_here and start.y.size <= most:
                return solve_directly(start, matrix, tol=tol, max_iter=limit)
            return solve(start, matrix, max_iter=limit, **limits)

    if linear_rows is None or is_pairwise or max_iter >= 0 or not has_linear_start(dual):
        return run(dual, max_iter)
    return solve_from_weights(dual, linear_rows(), run, tol=tol, pool=matrix.pool, may_begin=is_idle)


def solve_directly(dual: Dual, matrix: KernelMatrix, *, tol: float, max_iter: int) -> Solution:
    """Solve the dual to `tol`; unconverged if steps ran out, rounding hides the gap, or nothing came nearer."""
    begin = time.perf_counter()
    limit = max_iter if max_iter >= 0 else max(10_000_000, 100 * matrix.n)
    members, counts = _Members(dual, matrix), Counts()

    def record(event: str) -> None:
        seconds = time.perf_counter() - begin
        counts.n_rounds += event == "block"
        counts.history.append(EliminationRecord(event, counts.n_iter, matrix.n, gap, 0, matrix.n_evaluations, seconds))

    unproven, target, standstill = 0, 0.9 * tol, Standstill(matrix.n)
    lowest, n_failed, is_stuck, has_grown = np.inf, 0, False, True
    gap = members.begin()
    while True:
        matrix.pool.check()
        if not members.is_finite:
            raise refuse(matrix.kernel)
        is_blind = not has_grown and gap < np.finfo(np.float64).eps * members.largest * float(members.alpha.sum())
        is_through, is_suspected = gap < target or is_blind or is_stuck, standstill.is_suspected(counts.n_iter, gap)
        if is_through or is_suspected or counts.n_iter >= limit or unproven >= _STEPS:
            gap, unproven = members.renew(), 0
            record("verify")
            if is_through:
                n_failed = 0 if gap < 0.5 * lowest else n_failed + 1
                target *= 0.5
            lowest = min(lowest, gap)
            if gap < tol or counts.n_iter >= limit or n_failed >= _MAX_ATTEMPTS:
                break
            if is_suspected and standstill.is_certain(*worth(dual, members.alpha, members.u)):
                break
        record("block")
        has_grown = len(members.ids) < matrix.n and members.take(members.pick())
        aim = target if len(members.ids) == matrix.n else max(target, _BY_ROUND * gap)
        made, gap = members.solve(aim, min(limit - counts.n_iter, _ROUND_STEPS))
        is_stuck = made == 0 and not has_grown
        counts.n_iter += made
        unproven += made
    counts.n_rounds, counts.n_evaluations = max(1, counts.n_rounds), matrix.n_evaluations
    return members.conclude(tol, counts)


class _Members:
    """The variables of a problem, its indicators, and the members with their rows."""

    def __init__(self, dual: Dual, matrix: KernelMatrix) -> None:
        n = matrix.n
        self._matrix, self._dual, self._n_groups = matrix, dual, dual.n_groups
        self.alpha: FloatMatrix = dual.alpha.astype(np.float64)
        self.u: FloatVector = np.zeros(n)
        #: The members, in the order in which they came.
        self.ids: IntVector = np.empty(0, dtype=np.int64)
        #: The largest size of a kernel value among members; NaN where one is.
        self.largest = 0.0
        # Rows of members, and room for values among their variables; pages that are not written take no memory.
        memory = matrix.lend(n * n + dual.y.size**2)
        self._flat, self._block = memory[: n * n], memory[n * n :]
        self._variables = (self.u, dual.y * dual.p, dual.y, dual.upper, self.alpha, dual.group)
        self._extremes = np.empty(self._n_groups), np.empty(self._n_groups)
        self._slot_of, self._keys = np.full(n, -1), np.empty(dual.y.size)
        self._picked: IntVector = np.empty(n + dual.y.size, dtype=np.int64)
        self._fewest = max(_FEWEST, int(_ROUND_COST / (n * matrix.value_cost)))

    @property
    def is_finite(self) -> bool:
        """Whether the values between members, and the sums of all, are finite."""
        return isfinite(self.largest + self.u.sum())

    def begin(self) -> float:
        """Make those with variables above zero members, or all if they are few; return the gap over all samples."""
        n = len(self.u)
        self.take(np.arange(n) if n <= self._fewest else np.flatnonzero(self.alpha.any(axis=0)))
        return self.renew()

    def renew(self) -> float:
        """Sum u again; return the gap over all samples."""
        return self.solve(0.0, 0)[1]

    def conclude(self, tol: float, counts: Counts) -> Solution:
        """Return what `conclude` does of the variables, whose u was summed last."""
        told, dual = np.empty(4 + self._n_groups), self._dual
        tell(self.u, *(each.ravel() for each in self._variables[1:]), float((dual.y * dual.alpha).sum()), told)
        gap, duality_gap, objective = told[:3].tolist()
        if not (self.is_finite and isfinite(objective)):
            raise refuse(self._matrix.kernel)
        # It is infinite when no pair can move.
        return Solution(self.alpha, self.u, told[4:], max(gap, 0.0), duality_gap, objective, gap < tol, counts)

    def pick(self) -> IntVector:
        """Return the samples that become members next: the worst violators, as many of each side."""
        room = max(self._fewest, int(_SHARE * len(self.ids))) // (2 * self._n_groups)
        room, scratch = min(max(1, room), len(self._keys)), (self._keys, self._picked)
        n_held = len(self.ids)
        return self._picked[: pick_worst(*self._variables, *self._extremes, self._slot_of, n_held, room, *scratch)]

    def take(self, samples: IntVector) -> bool:
        """Make samples members, whose rows are then computed; return whether there were any."""
        if not len(samples):
            return False
        n, before = len(self.u), len(self.ids)
        self.ids = np.concatenate([self.ids, samples])
        self._slot_of[samples] = np.arange(before, len(self.ids))
        self._matrix.fill_rows(samples, self._flat[before * n : len(self.ids) * n].reshape(-1, n))
        return True

    def solve(self, tol: float, max_steps: int) -> tuple[int, float]:
        """Solve the problem of the members to `tol`; return the steps made and the gap over all samples."""
        rows = self._flat, self._block
        steps, gap, largest = advance(self._slot_of, *rows, *self._variables, *self._extremes, tol, max_steps)
        self.largest = max(float(largest), self.largest)
        return int(steps), float(gap)


#: From so many rows on the linear solver begins, if they are so many per column.
_MANY, _PER_COLUMN = 512, 20

#: Steps per sample that the kernel solver has where it begins.
FIRST_STEPS = 50

#: Relative duality gaps to reach, in units of the tolerance, and passes and Newton steps at most. With the first the
#: criterion of the kernel solver mostly holds, which looks at the worst sample.
_GOALS = (1e-4, 1e-8)
_MOST_PASSES = 300

#: A variable closer to a bound than this share of it is at the bound.
_SNAP = 1e-7

#: Balancing shrinks variables by no more than this, or it was more than rounding of a solution.
_LEAST_SHRINKING = 0.9
_REPAIRS = 20


def has_linear_start(dual: Dual) -> bool:
    """Return whether a dual is that of a linear machine: one sum, that is zero, and a start at zero."""
    return not dual.by_sign and dual.u is None and not dual.alpha.any()


def weights_begin(n: int, d: int) -> bool:
    """Return whether the linear solver begins on n rows of d columns."""
    return n >= _MANY and n >= _PER_COLUMN * d


def solve_from_weights(
    dual: Dual, X: Any, run: Callable[[Dual, int], Solution], *, tol: float, pool: Pool, may_begin: bool = True
) -> Solution:
    """Solve the dual of a linear kernel; the steps are those of all runs, passes and Newton steps included."""
    n, found = dual.y.shape[1], None
    if not (may_begin and weights_begin(n, X.shape[1])):
        found = run(dual, FIRST_STEPS * dual.y.size)
        if found.converged:
            return found
    start, n_iter = _begin(dual, X, tol, pool)
    if found is not None and found.objective <= _objective(start):
        start = replace(dual, alpha=found.alpha, u=found.u)
    solution = run(start, -1)
    before = Counts(n_iter)
    if found is not None:
        # Kernel values and hits are counted by the matrix, in all runs.
        before += replace(found.counts, n_evaluations=0, n_hits=0)
    return replace(solution, counts=before + solution.counts)


def _begin(dual: Dual, X: Any, tol: float, pool: Pool) -> tuple[Dual, int]:
    """Return the dual with what the linear solver has found as its start, and its passes and Newton steps."""
    problem, team = _problem(dual, X), Team(pool.n_threads, listener=lambda primal, dual: pool.check())
    best, n_iter = dual, 0
    try:
        for goal in _GOALS:
            found = solve_linear(problem, "auto", tol=goal * tol, max_iter=_MOST_PASSES, team=team)
            n_iter += found.n_iter
            start = _start(dual, problem, found, team)
            if best is dual or _objective(start) < _objective(best):
                best = start
            if _gap(start) < 0.9 * tol or not found.converged:
                break
    finally:
        team.close()
    return best, n_iter


def _problem(dual: Dual, X: Any) -> LinearProblem:
    """Return the same problem as that of a linear machine."""
    values, indices, n_columns = X, None, X.shape[1]
    if sp.issparse(X):
        present, places = np.unique(X.indices, return_inverse=True)  # wide rows have few columns of many
        values, indices, ends = X.data, places.astype(np.uint32), X.indptr.astype(np.uint64)
        n_columns = len(present)
    else:
        ends = np.arange(X.shape[0] + 1, dtype=np.uint64) * np.uint64(n_columns)
    rows = LinearRows(np.ascontiguousarray(values).ravel(), indices, ends[:-1], ends[1:], n_columns, 1.0)
    ridge = np.zeros(rows.n_rows)
    if len(dual.y) == 1:
        y, upper = dual.y[0], dual.upper[0]
        low, high = np.where(y > 0, 0.0, -upper), np.where(y > 0, upper, 0.0)
        return LinearProblem(rows, -y * dual.p[0], low, high, ridge, 0.0, penalizes_intercept=False)
    targets, epsilon = 0.5 * (dual.p[1] - dual.p[0]), 0.5 * float(dual.p[0, 0] + dual.p[1, 0])
    return LinearProblem(rows, targets, -dual.upper[1], dual.upper[0], ridge, epsilon, penalizes_intercept=False)


def _start(dual: Dual, problem: LinearProblem, found: LinearSolution, team: Team) -> Dual:
    """Return the dual with feasible variables next to those of a linear machine, and u for them."""
    # The variables before those of one sign were shrunk so that all sum to zero: most were at their bounds.
    beta = found.duals.copy()
    for side, bounds in ((beta > 0.0, problem.high), (beta < 0.0, problem.low)):
        largest = float((beta[side] / bounds[side]).max(initial=0.0))
        if _LEAST_SHRINKING < largest < 1.0:
            beta[side] /= largest
    alpha: FloatMatrix = np.clip(dual.y * beta, 0.0, dual.upper)
    alpha[alpha < _SNAP * dual.upper] = 0.0
    alpha = np.where(alpha > (1.0 - _SNAP) * dual.upper, dual.upper, alpha)
    alpha = _repaired(dual, alpha)
    weights = problem.rows.combine((dual.y * alpha).sum(axis=0), team)
    weights[-1] = 0.0  # that of the constant column is no part of the kernel
    return replace(dual, alpha=alpha, u=problem.rows.scores(weights, team))


def _repaired(dual: Dual, alpha: FloatMatrix) -> FloatMatrix:
    """Return variables whose sum yα is zero: free ones make room first, each by its share of what it has."""
    is_free = (alpha > 0.0) & (alpha < dual.upper)
    for _ in range(_REPAIRS):
        excess = float((dual.y * alpha).sum())
        if abs(excess) <= 1e-15 * float(alpha.sum()):
            break
        room = np.where(dual.y * excess > 0.0, alpha, dual.upper - alpha)
        free = np.where(is_free, room, 0.0)
        room = free if float(free.sum()) >= abs(excess) else room
        share = min(1.0, abs(excess) / float(room.sum()))
        alpha = np.clip(alpha - np.sign(excess) * share * dual.y * room, 0.0, dual.upper)
    return alpha


def _gap(start: Dual) -> float:
    """Return the largest violation of a start over all samples."""
    group, ends = np.zeros(start.y.shape, dtype=np.int64), np.empty((2, 1))
    return float(extremes(start.u, start.y * start.p, start.y, start.upper, start.alpha, group, ends[0], ends[1]))


def _objective(start: Dual) -> float:
    beta = (start.y * start.alpha).sum(axis=0)
    return (0.5 * float(beta @ start.u) if start.u is not None else 0.0) + float((start.p * start.alpha).sum())
