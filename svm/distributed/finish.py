r"""Finishing a linear SVM on rank 0, with the few rows whose variables still change.

Problem: the dual of `dsgd.svm.linear_solver.problem` on the rows of a gang, near its solution. Most variables sit at an
end of their interval, or at zero, and are pushed outwards: they stay, and so only enter through ``w = sum b_i x_i``.
The others, the survivors of elimination, are few.

Method: every rank sends its survivors to rank 0, each row once. Rank 0 visits them as `dsgd.svm.linear_solver.dual_cd`
does, against the true ``w``, then hands out ``w`` and the variables of the survivors. All ranks sweep their rows at
once: that gives the certificate over all rows of all ranks, and finds rows that were left out wrongly, which are sent
after the others. So it is coordinate descent whose sweeps are divided and whose passes are not.

Which rows survive is a matter of room: of the rows that are least pushed outwards, as many go as half the room left
holds. Where not even those do that nothing pushes outwards, the solver gives up: it is too early, or they are too many.

Cost: every survivor once, 48 bytes and 4 + s for each entry of s bytes (s if rows are dense); then per sweep d + 2
numbers and one for each survivor from rank 0, and some twenty summed over ranks.

Source: the way LIBLINEAR ends (Hsieh et al., ICML 2008), with the rows elsewhere; the division of the sweep is ours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsgd.collectives import Team
from dsgd.svm.linear_solver.cocoa import outward_push
from dsgd.svm.linear_solver.dual_cd import Trend, make_lines, visit_rows
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, certify, conclude, relative_gap
from dsgd.svm.linear_solver.rows import LinearRows
from dsgd.types import FloatVector, IntVector

#: A sweep is due when rank 0 made as many visits as this many passes over the survivors, or the rows of a rank.
_VISITS_PER_SWEEP = 5.0
#: So it is when the largest violation has fallen to this share of what it was in the first pass after that.
_REACH = 0.1
#: Survivors may have as many bytes as the rows of an average rank, and always these.
_SMALL_BYTES = 8 << 20
#: Thresholds that are tried, from the largest down, each half of the one before.
_N_THRESHOLDS = 16


def solve_survivors(
    problem: LinearProblem,
    start: LinearSolution,
    *,
    room: float,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
    patience: float = np.inf,
) -> LinearSolution:
    """Go on from a solution by coordinate descent on rank 0 over the rows that survive elimination.

    - returned: the best weights met, and the last dual variables of this rank. Unconverged if the survivors are too
      many to be sent; at once if they are so from the first.
    """
    rows = problem.rows
    n_total, distance = team.totals(float(rows.n_rows), float(np.sum(np.abs(problem.targets))))
    share = max(1.0, n_total / team.n_ranks)
    threshold = 2.0 * distance / max(n_total, 1.0)  # in units of the targets; nearly all rows are within it at first
    beta = start.duals.copy()
    weights = team.add_up(rows.combine(beta, team))
    best, best_primal = start.weights, start.primal
    pool, work, trend = _Pool(problem), 0.0, Trend(tol)
    while True:
        scores = rows.scores(weights, team)
        primal, dual, _ = certify(problem, weights, beta, team, combined=weights, scores=scores)
        if primal < best_primal:
            best, best_primal = weights.copy(), primal
        gap = relative_gap(best_primal, dual)
        if gap <= tol or work >= max_iter * share or trend.passes_ahead(work / share, gap) > patience:
            break
        push = np.where(pool.is_sent, np.inf, outward_push(problem, scores, beta))
        threshold, n_bytes = _choose_threshold(rows, push, threshold, room, team)
        room -= n_bytes
        if room < 0.0:
            break
        chosen = np.flatnonzero(push <= threshold)
        pool.add(chosen, beta[chosen], team)
        if pool.n == 0:
            break
        message, most = np.empty(rows.width + 2 + pool.n), _VISITS_PER_SWEEP * max(share, pool.n)
        if team.leads:
            message[: rows.width] = weights
            message[rows.width :][:2] = pool.visit(message[: rows.width], most, seed + int(work))
            message[rows.width + 2 :] = pool.lines[5::8]
        team.agree(message)
        weights = message[: rows.width].copy()
        threshold = min(threshold, float(message[rows.width]))
        work += float(message[rows.width + 1])
        beta[pool.members] = message[rows.width + 2 :][pool.places]
    n_iter = start.n_iter + int(np.ceil(work / share))
    solver = f"{start.solver}, survivors" if pool.n else start.solver
    return conclude(problem, best, beta, team, tol, n_iter, solver)


def room_for_survivors(problem: LinearProblem, team: Team) -> float:
    """Return how many bytes of rows rank 0 may take in: as many as an average rank has, or a small number."""
    return max(float(_SMALL_BYTES), team.totals(float(problem.rows.n_bytes))[0] / team.n_ranks)


def _choose_threshold(
    rows: LinearRows, push: FloatVector, largest: float, room: float, team: Team
) -> tuple[float, float]:
    """Return the push up to which rows are to be sent, and how many bytes those of all ranks have."""
    ladder = np.append(largest * 0.5 ** np.arange(_N_THRESHOLDS), 0.0)
    sizes = team.add_up(np.array([rows.take(np.flatnonzero(push <= limit)).n_bytes for limit in ladder], np.float64))
    fits = np.flatnonzero(sizes <= 0.5 * room)
    rung = int(fits[0]) if fits.size else _N_THRESHOLDS
    return float(ladder[rung]), float(sizes[rung])


class _Pool:
    """The survivors of all ranks, on rank 0."""

    def __init__(self, problem: LinearProblem) -> None:
        self._own = problem
        self.n = 0
        self.is_sent = np.zeros(problem.rows.n_rows, bool)
        self.members: IntVector = np.empty(0, np.int64)
        self.places: IntVector = np.empty(0, np.int64)
        rows = problem.rows
        nothing = replace(rows, values=rows.values[:0], indices=None if rows.indices is None else rows.indices[:0])
        self._problem = replace(problem, rows=nothing).take(self.members)
        self.lines: FloatVector = np.empty(0)

    def add(self, chosen: IntVector, duals: FloatVector, team: Team) -> None:
        """Take in some rows of every rank, rank by rank; `duals` are the variables of those of this one."""
        counts = np.zeros(team.n_ranks)
        counts[team.number] = chosen.shape[0]
        n_new = int(team.add_up(counts).sum())
        if not n_new:
            return
        self._send(chosen, duals, team)
        begin = self.n + int(counts[: team.number].sum())
        self.members = np.concatenate([self.members, chosen])
        self.places = np.concatenate([self.places, np.arange(begin, begin + chosen.shape[0])])
        self.is_sent[chosen] = True
        self.n += n_new

    def visit(self, weights: FloatVector, most_visits: float, seed: int) -> tuple[float, float]:
        """Run coordinate descent over the pool, in place; return the last threshold of elimination, and the visits."""
        n_active = self._problem.rows.n_rows
        active = np.arange(n_active, dtype=np.uint32)
        threshold, reach, visits, n_passes = np.inf, -np.inf, 0.0, 0
        while n_active and visits < most_visits and threshold > reach:
            n_passes += 1
            visits += n_active
            n_active, threshold = visit_rows(
                self._problem, self.lines, weights, active, n_active, threshold, seed, n_passes
            )
            reach = _REACH * threshold if reach < 0.0 else reach
        return threshold, visits

    def _send(self, chosen: IntVector, duals: FloatVector, team: Team) -> None:
        """Send rows of every rank to rank 0, and append them to those it has."""
        known, part = self._problem, self._own.take(chosen)
        lengths = (part.rows.last - part.rows.first).astype(np.int64)
        places = np.repeat(part.rows.first.astype(np.int64) - _starts(lengths)[:-1], lengths)
        places += np.arange(places.shape[0])
        described = team.gather(np.stack([*part.terms[:4], duals, lengths]).T.ravel())
        values = team.gather(part.rows.values[places])
        indices = None if part.rows.indices is None else team.gather(part.rows.indices[places])
        if not team.leads:
            return
        *terms, arrived, lengths = np.concatenate(described).reshape(-1, 6).T
        here = (known.rows.last - known.rows.first).astype(np.int64)
        starts = _starts(np.concatenate([here, lengths.astype(np.int64)])).astype(np.uint64)
        rows = replace(
            known.rows,
            values=np.concatenate([known.rows.values, *values]),
            indices=None if indices is None else np.concatenate([known.rows.indices, *indices]),
            first=starts[:-1],
            last=starts[1:],
        )
        targets, low, high, ridge = (np.concatenate(pair) for pair in zip(known.terms[:4], terms, strict=True))
        self._problem = replace(known, rows=rows, targets=targets, low=low, high=high, ridge=ridge)
        self.lines = make_lines(self._problem, np.concatenate([self.lines[5::8], arrived]), team)


def _starts(lengths: IntVector) -> IntVector:
    """Return where consecutive rows of some lengths start, and where the last of them ends."""
    return np.concatenate([[0], np.cumsum(lengths)])
