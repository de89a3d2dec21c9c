r"""Dual coordinate descent with elimination of rows, stopped by the duality gap.

Problem: the dual of `dsgd.svm.linear_solver.problem`. One visit of row i, given ``w = sum b_j x_j``, finds the exact
minimum over its variable,

.. math:: b_i \leftarrow \operatorname{clip}\!\left(S_{\epsilon / H}\big(b_i - G / H\big), l_i, h_i\right), \qquad
          G = x_i \cdot w - y_i + \rho_i b_i, \quad H = \|x_i\|^2 + \rho_i,

S being soft thresholding, and keeps w up to date. Each pass visits the active rows in a new random order; it costs two
reads of their entries. A row whose variable is at a bound, or at zero, and is pushed outwards by more than the largest
violation of the pass before is eliminated.

Nothing rests on that guess. Between passes, at a fifth of their cost or so, a sweep over all rows computes P and D in
float64 and chooses the active rows afresh; the solver returns when ``(P - D) / P <= tol`` and on nothing else.

Source: Hsieh et al., ICML 2008, algorithm 3; Ho and Lin, JMLR 2012, algorithm 4. We depart from LIBLINEAR in the
stopping rule, in reactivating by a sweep instead of by restarting with all rows, and in the order of visits, which is a
function of the seed, the pass and the content of rows.
"""

from __future__ import annotations

import numpy as np

from dsgd.collectives import Team
from dsgd.kernels.order import GOLDEN
from dsgd.svm.linear_solver.kernels import cd_pass, cd_passes
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, certify, conclude, relative_gap
from dsgd.types import AnyArray, FloatVector

#: A sweep for the gap is due when this many visits per row were made since the last one.
_VISITS_PER_SWEEP = 3.0
#: So it is when the largest violation has fallen to this share of what it was in the first pass after that.
_REACH = 0.1
#: Below so many entries all passes between two sweeps are one call.
_SHORT = 2**20
#: Default number of passes before the rate of convergence is judged.
EARLIEST_JUDGEMENT = 10.0


class Trend:
    """Predicts from the gaps so far how many passes are left, if the gap keeps shrinking by a factor per pass."""

    def __init__(self, tol: float, earliest: float = EARLIEST_JUDGEMENT) -> None:
        self._tol = tol
        self._earliest = earliest
        self._seen: list[tuple[float, float]] = []

    def passes_ahead(self, passes: float, gap: float) -> float:
        """Take in a gap; return the passes left, 0 while it is too early to say."""
        self._seen.append((passes, gap))
        if passes < self._earliest:
            return 0.0
        # The rate over the later half: the first passes close the gap faster than those that follow.
        earlier = next(seen for seen in self._seen if seen[0] >= 0.4 * passes)
        rate = np.log(max(earlier[1], 1e-300) / max(gap, 1e-300)) / max(passes - earlier[0], 1e-300)
        return float(np.log(gap / self._tol) / rate) if rate > 0.0 else np.inf


def solve_dual_cd(
    problem: LinearProblem,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
    start: FloatVector | None = None,
    eliminate: bool = True,
    patience: float = np.inf,
    earliest: float = EARLIEST_JUDGEMENT,
) -> LinearSolution:
    """Solve by dual coordinate descent."""
    rows = problem.rows
    n_rows = rows.n_rows
    lines = make_lines(problem, start, team)
    weights = rows.combine(lines[5::8].copy(), team)
    active = np.arange(n_rows, dtype=np.uint32)
    n_active, threshold = n_rows, np.inf
    # Few rows are visited in all passes up to a sweep in one call; many in a call for each, which an interrupt ends.
    parts = (rows.values, rows.indices, rows.bias, problem.epsilon)
    is_short = rows.n_entries < _SHORT
    best, best_primal = weights.copy(), np.inf
    n_passes, work, visits, reach = 0, 0.0, 0, np.inf
    trend = Trend(tol, earliest)
    while True:
        if visits == 0 or visits >= _VISITS_PER_SWEEP * n_rows or n_active == 0 or threshold <= reach:
            limit = threshold if eliminate else np.inf
            beta = lines[5::8].copy()
            primal, dual, n_active = certify(
                problem, weights, beta, team, combined=weights, threshold=limit, active=active
            )
            if primal < best_primal:
                best, best_primal = weights.copy(), primal
            work += 0.5 * n_rows
            if relative_gap(best_primal, dual) <= tol or work >= max_iter * n_rows:
                break
            if trend.passes_ahead(work / n_rows, relative_gap(best_primal, dual)) > patience:
                break
            visits, reach = 0, -np.inf
            if n_active == 0:
                n_active, threshold = n_rows, np.inf
                active[:] = np.arange(n_rows)
        state = np.array([n_active, threshold, reach, 0.0, 0.0])
        most = _VISITS_PER_SWEEP * n_rows - visits if is_short else 1.0
        key = np.uint64((seed + n_passes * int(GOLDEN)) % 2**64)
        cd_passes(*parts, lines, weights, active, state, eliminate, _REACH, most, key)
        n_active, threshold, reach = int(state[0]), float(state[1]), float(state[2])
        n_passes, visits, work = n_passes + int(state[3]), visits + int(state[4]), work + float(state[4])
    return conclude(problem, best, beta, team, tol, int(np.ceil(work / n_rows)), "dual_cd")


def visit_rows(
    problem: LinearProblem,
    lines: FloatVector,
    weights: FloatVector,
    active: AnyArray,
    n_active: int,
    threshold: float,
    seed: int,
    number: int,
) -> tuple[int, float]:
    """Visit the active rows once, in the order that a seed has for the pass of a number."""
    rows = problem.rows
    n_left, worst = cd_pass(
        rows.values,
        rows.indices,
        rows.bias,
        problem.epsilon,
        lines,
        weights,
        active,
        np.uint64(n_active),
        threshold,
        np.uint64((seed + number * int(GOLDEN)) % 2**64),
    )
    return int(n_left), float(worst)


def make_lines(problem: LinearProblem, start: FloatVector | None, team: Team) -> FloatVector:
    """Return what `cd_pass` knows about the rows, a cache line for each, at the dual variables `start`."""
    rows = problem.rows
    space = np.zeros(8 * rows.n_rows + 8)
    offset = -space.ctypes.data % 64 // 8  # a line of eight numbers is to be one cache line, not parts of two
    lines = space[offset : offset + 8 * rows.n_rows].reshape(-1, 8)
    norms = rows.norms(team)
    columns = (problem.targets, problem.low, problem.high, problem.ridge, norms, start, rows.first, rows.last)

    def write(begin: int, end: int) -> None:
        for number, column in enumerate(columns):
            if column is not None:
                lines[begin:end, number] = column[begin:end]

    team.map(write, rows.n_rows)
    return lines.ravel()
