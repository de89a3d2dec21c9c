r"""Dual coordinate descent, in one process with elimination of rows and on all ranks at once (CoCoA+).

**One process** (`solve_dual_cd`), with elimination of rows, stopped by the duality gap. The problem is the dual of
`dsgd.svm.linear_solver.problem`. One visit of row i, given ``w = sum b_j x_j``, finds the exact minimum over its
variable,

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

**All ranks** (`solve_cocoa`): CoCoA+, with one sum of the changes per round. The problem is the dual of
`dsgd.svm.linear_solver.problem`, its rows divided among K ranks that all know ``w = sum b_j x_j``. In a round, rank k
changes its own variables by some d, best for

.. math:: \sum_{i \in k} t_i(b_i + d_i) - w \cdot u - \tfrac{\sigma'}{2} \|u\|^2, \qquad u = \sum_{i \in k} d_i x_i,

with :math:`t_i(b) = y_i b - \epsilon |b| - \tfrac12 \rho_i b^2`. The changes of all ranks are added up, ``w`` gains the
sum of their u, and with :math:`\sigma' = K` the dual value cannot fall, however much the ranks' rows overlap.

Nothing but the safety factor sets the local problem apart from coordinate descent in one process: with
``v = w + sigma' u`` and ``c = sigma' b`` a visit is

.. math:: c_i \leftarrow \operatorname{clip}\!\left(S_{\epsilon / H}\big(c_i - G / H\big), \sigma' l_i,
          \sigma' h_i\right), \quad G = x_i \cdot v - y_i + \tfrac{\rho_i}{\sigma'} c_i, \quad
          H = \|x_i\|^2 + \tfrac{\rho_i}{\sigma'},

which is the visit above for the problem with intervals times, and ridge divided by,
sigma'. One body serves both; with one rank they are the same method.

Rows are eliminated by a sweep at the common ``w`` alone, since v runs ahead of it. The sweep also adds up the
certificate, which travels with the round that follows. A round costs d + 5 numbers summed over ranks (the change of w,
two for the certificate, three for the plan) and nothing else: no row moves.

More ranks mean more rounds, as sigma' grows with them: the method is good for a start, and for 1e-3 or so of the
optimum, not for its last digits. `dsgd.svm.distributed.linear` says what follows it.

Source: Ma, Smith, Jaggi, Jordan, Richtarik and Takac, ICML 2015 (CoCoA+, adding). We depart from it in the order of
visits, in elimination, and in the certificate, which is a duality gap over all rows and not an estimate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsgd.collectives import Team
from dsgd.kernels.order import GOLDEN
from dsgd.svm.linear_solver.kernels import REACH, cd_passes, measure
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, certify, conclude, relative_gap
from dsgd.types import AnyArray, FloatVector

#: A sweep for the gap is due when this many visits per row were made since the last one.
_VISITS_PER_SWEEP = 3.0

#: Of few rows it is due later: a sweep takes as long as so many reads of entries. Nor is it due later than if a pass
#: had `FEW_ENTRIES`, so that those left to `max_iter` are not gone before the rate is known.
_READS_PER_SWEEP = 2**16
FEW_ENTRIES = 1024

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
        before, self._seen = self._seen, [*self._seen, (passes, gap)]
        if passes < self._earliest or not before:
            return 0.0
        # The rate over the later half: the first passes close the gap faster than those that follow.
        earlier = next((seen for seen in before if seen[0] >= 0.4 * passes), before[-1])
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
    is_short = rows.n_entries < _SHORT
    per_sweep = n_rows * max(_VISITS_PER_SWEEP, _READS_PER_SWEEP / max(rows.n_entries, FEW_ENTRIES))
    best, best_primal = weights.copy(), np.inf
    n_passes, work, visits, reach = 0, 0.0, 0, np.inf
    trend = Trend(tol, earliest)
    while True:
        if visits == 0 or visits >= per_sweep or n_active == 0 or threshold <= reach:
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
            # Who has patience for so many passes goes on with another method, and does so before `max_iter` ends it.
            left = max_iter - work / n_rows if np.isfinite(patience) else np.inf
            if trend.passes_ahead(work / n_rows, relative_gap(best_primal, dual)) > min(patience, left):
                break
            visits, reach = 0, -np.inf
            if n_active == 0:
                n_active, threshold = n_rows, np.inf
                active[:] = np.arange(n_rows)
        most = per_sweep - visits if is_short else 1.0
        state = np.array([n_active, threshold, reach, n_passes, 0.0, most, eliminate])
        make_passes(problem, lines, weights, active, state, seed)
        n_active, threshold, reach, n_passes = int(state[0]), float(state[1]), float(state[2]), int(state[3])
        visits, work = visits + int(state[4]), work + float(state[4])
    return conclude(problem, best, beta, team, tol, int(np.ceil(work / n_rows)), "dual_cd")


def make_passes(
    problem: LinearProblem, lines: FloatVector, weights: FloatVector, active: AnyArray, state: FloatVector, seed: int
) -> None:
    """Make passes over the active rows, in the orders that a seed has for those behind the number in the state."""
    rows, key = problem.rows, np.uint64((seed + int(state[3]) * int(GOLDEN)) % 2**64)
    cd_passes(rows.values, rows.indices, rows.bias, problem.epsilon, lines, weights, active, state, key)


def make_lines(problem: LinearProblem, start: FloatVector | None, team: Team) -> FloatVector:
    """Return what `cd_passes` knows about the rows, a cache line for each, at the dual variables `start`."""
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


#: Numbers in a message beside the change of the weights: loss, dual terms, visits, votes for a sweep, loose bytes.
_EXTRA = 5


def solve_cocoa(
    problem: LinearProblem,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
    start: LinearSolution | None = None,
    eliminate: bool = True,
    loose_bytes: float = -1.0,
) -> LinearSolution:
    """Solve by CoCoA+ rounds; return the best weights met, equal on all ranks, and this rank's dual variables."""
    rows = problem.rows
    n_rows, width = rows.n_rows, rows.width
    n_total, n_sharing = team.totals(float(n_rows), float(n_rows > 0))
    beta = np.zeros(n_rows) if start is None else start.duals
    # A rank without rows changes nothing, so the others need not make room for it.
    local = _LocalProblem(problem, beta, max(n_sharing, 1.0), team)
    weights = np.zeros(width) if start is None else team.add_up(rows.combine(beta, team))
    best, best_primal, dual = weights.copy(), np.inf, -np.inf
    active = np.arange(n_rows, dtype=np.uint32)
    n_active, worst, reach = n_rows, np.inf, np.inf
    visits, must_sweep = 0.0, True
    n_rounds = 0
    while n_rounds < max_iter:
        n_rounds += 1
        message = np.zeros(width + _EXTRA)
        swept, at = must_sweep, weights
        if swept:
            visits, reach = 0.0, -np.inf
            beta, at = local.duals(), weights.copy()
            limit = worst if eliminate else np.inf
            scores = rows.scores(weights, team)
            loss, terms, kept = measure(scores, problem.terms, beta, limit, active)
            n_active = int(kept) or n_rows
            active[int(kept) : n_active] = np.arange(n_active - int(kept))  # all of them, if none were left
            own = 0.5 * float(weights @ weights) if team.leads else 0.0
            message[width : width + 2] = loss + own, terms - own
            if loose_bytes >= 0.0:
                message[width + 4] = rows.take(np.flatnonzero(outward_push(problem, scores, beta) <= 0.0)).n_bytes
        message[:width], worst = local.visit(weights, active, n_active, seed, n_rounds)
        reach = REACH * worst if reach < 0.0 else reach
        message[width + 2 : width + 4] = n_active, worst <= reach
        team.add_up(message)
        weights += message[:width]
        if swept:
            primal, dual = float(message[width]), float(message[width + 1])
            if primal < best_primal:
                best, best_primal = at, primal
            team.report(primal, dual)
            if relative_gap(best_primal, dual) <= tol or message[width + 4] <= loose_bytes:
                break
        visits += float(message[width + 2])
        must_sweep = visits >= _VISITS_PER_SWEEP * n_total or message[width + 3] >= team.n_ranks
    else:
        beta = local.duals()
        if certify(problem, weights, beta, team, combined=weights)[0] < best_primal:
            best = weights
    return conclude(problem, best, beta, team, tol, n_rounds, "cocoa")


class _LocalProblem:
    """The problem of one rank in a round: intervals times, and ridge divided by, the safety factor (sigma' above)."""

    def __init__(self, problem: LinearProblem, beta: FloatVector, safety: float, team: Team) -> None:
        self._problem, self._safety = problem, safety
        low, high, ridge = safety * problem.low, safety * problem.high, problem.ridge / safety
        self._scaled = replace(problem, low=low, high=high, ridge=ridge)
        self._lines = make_lines(self._scaled, safety * beta, team)

    def visit(
        self, weights: FloatVector, active: AnyArray, n_active: int, seed: int, number: int
    ) -> tuple[FloatVector, float]:
        """Visit the active rows; return by how much that changes the weights, and the largest violation met."""
        ahead = weights.copy()
        # Nothing is eliminated: `ahead` is not the weights that the test is about.
        state = np.array([n_active, np.inf, np.inf, number - 1, 0.0, 1.0, False])
        make_passes(self._problem, self._lines, ahead, active, state, seed)
        return (ahead - weights) / self._safety, float(state[1])

    def duals(self) -> FloatVector:
        """Return the dual variables; what was clipped to an end of its interval is that end to the last bit."""
        problem, scaled = self._problem, self._lines[5::8]
        below = np.where(scaled <= self._scaled.low, problem.low, scaled / self._safety)
        return np.where(scaled >= self._scaled.high, problem.high, below)


def outward_push(problem: LinearProblem, scores: FloatVector, beta: FloatVector) -> FloatVector:
    """Return how far derivatives push variables out of their interval, or back to zero; above 0: right to stay."""
    slope = scores - problem.targets + problem.ridge * beta
    up, down = slope + problem.epsilon, slope - problem.epsilon
    at_zero = np.minimum(np.where(problem.high > 0.0, up, np.inf), np.where(problem.low < 0.0, -down, np.inf))
    at_end = np.where(beta >= problem.high, -up, np.where(beta <= problem.low, down, -1.0))
    push: FloatVector = np.where(beta == 0.0, at_zero, at_end)
    return push
