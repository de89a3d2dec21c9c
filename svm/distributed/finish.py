r"""Finishing on one rank: the rows that still move are brought to rank 0, and coordinate descent ends there.

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

from dataclasses import dataclass

import numpy as np

from dsgd.kernels.rng import GOLDEN
from dsgd.svm.linear_solver.cocoa import outward_push
from dsgd.svm.linear_solver.dual_cd import Trend, make_lines
from dsgd.svm.linear_solver.kernels import cd_pass, pack_rows
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, certify, relative_gap
from dsgd.svm.linear_solver.rows import LinearRows, Team
from dsgd.types import FloatVector, IntVector

__all__ = ["room_for_survivors", "solve_survivors"]

#: A sweep is due when rank 0 made as many visits as this many passes over the survivors, or the rows of a rank.
_VISITS_PER_SWEEP = 5.0
#: So it is when the largest violation has fallen to this share of what it was in the first pass after that.
_REACH = 0.1
#: Survivors may have as many bytes as the rows of an average rank, and always these.
_SMALL_BYTES = 8 << 20
#: Thresholds that are tried, from the largest down, each half of the one before.
_N_THRESHOLDS = 16


@dataclass
class _Gathered:
    """The survivors as rank 0 knows them; `lines` as in `cd_pass`, with their dual variables."""

    problem: LinearProblem
    lines: FloatVector


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

    Parameters
    ----------
    problem : LinearProblem
        The problem, with the rows of this rank.
    start : LinearSolution
        Where to begin: its weights are the best so far, its dual variables what is improved.
    room : float
        Bytes that survivors may have on rank 0.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most visits of rank 0, in passes over the rows of an average rank.
    team : Team
        Joins the ranks.
    seed : int
        Seed of the order of visits.
    patience : float
        Such passes that may lie ahead: return unconverged when the rate at which the gap closes promises more.

    Returns
    -------
    LinearSolution
        The best weights met, and the last dual variables of this rank. Unconverged if the survivors are too many to
        be sent; at once if they are so from the first.
    """
    rows = problem.rows
    n_total, distance = team.totals(float(rows.n_rows), float(np.sum(np.abs(problem.targets))))
    share = max(1.0, n_total / team.n_ranks)
    threshold = 2.0 * distance / max(n_total, 1.0)  # in units of the targets; nearly all rows are within it at first
    beta = start.duals.copy()
    weights = team.add_up(rows.combine(beta, team))
    best, best_primal = start.weights, start.primal
    is_sent = np.zeros(rows.n_rows, bool)
    members: IntVector = np.empty(0, np.int64)  # rows of this rank in the pool, as they were sent, ...
    places: IntVector = np.empty(0, np.int64)  # ... and where they are there
    pool = _Gathered(_part(problem, members), np.empty(0))
    n_pool, work = 0, 0.0
    trend = Trend(tol)
    while True:
        scores = rows.scores(weights, team)
        primal, dual, _ = certify(problem, weights, beta, team, combined=weights, scores=scores)
        if primal < best_primal:
            best, best_primal = weights.copy(), primal
        gap = relative_gap(best_primal, dual)
        if gap <= tol or work >= max_iter * share or trend.passes_ahead(work / share, gap) > patience:
            break
        push = np.where(is_sent, np.inf, outward_push(problem, scores, beta))
        threshold, n_bytes = _choose_threshold(rows, push, threshold, room, team)
        room -= n_bytes
        if room < 0.0:
            break
        chosen = np.flatnonzero(push <= threshold)
        counts = np.zeros(team.n_ranks)
        counts[team.number] = chosen.shape[0]
        n_new = int(team.add_up(counts).sum())
        if n_pool + n_new == 0:
            break
        if n_new:
            _send(pool, problem, chosen, beta[chosen], team)
            begin = n_pool + int(counts[: team.number].sum())
            members = np.concatenate([members, chosen])
            places = np.concatenate([places, np.arange(begin, begin + chosen.shape[0])])
            is_sent[chosen] = True
            n_pool += n_new
        message, most = np.empty(rows.width + 2 + n_pool), _VISITS_PER_SWEEP * max(share, n_pool)
        if team.leads:
            message[: rows.width] = weights
            message[rows.width :][:2] = _visit(pool, message[: rows.width], most, seed + int(work))
            message[rows.width + 2 :] = pool.lines[5::8]
        team.agree(message)
        weights = message[: rows.width].copy()
        threshold = min(threshold, float(message[rows.width]))
        work += float(message[rows.width + 1])
        beta[members] = message[rows.width + 2 :][places]
    exact = team.add_up(rows.combine(beta, team))
    primal, dual, _ = certify(problem, best, beta, team, combined=exact)
    converged = relative_gap(primal, dual) <= max(tol, 1e-14)
    n_iter = start.n_iter + int(np.ceil(work / share))
    solver = f"{start.solver}, survivors" if n_pool else start.solver
    return LinearSolution(best, beta, primal, dual, n_iter, converged, solver)


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


def _visit(pool: _Gathered, weights: FloatVector, most_visits: float, seed: int) -> tuple[float, float]:
    """Run coordinate descent over the pool, in place; return the last threshold of elimination, and the visits."""
    problem = pool.problem
    n_active = problem.rows.n_rows
    active = np.arange(n_active, dtype=np.uint32)
    threshold, reach, visits, n_passes = np.inf, -np.inf, 0.0, 0
    while n_active and visits < most_visits and threshold > reach:
        n_passes += 1
        n_left, worst = cd_pass(
            problem.rows.values,
            problem.rows.indices,
            problem.rows.bias,
            problem.epsilon,
            pool.lines,
            weights,
            active,
            np.uint64(n_active),
            threshold,
            np.uint64((seed + n_passes * int(GOLDEN)) % 2**64),
        )
        visits += n_active
        n_active, threshold = int(n_left), float(worst)
        reach = _REACH * threshold if reach < 0.0 else reach
    return threshold, visits


def _send(pool: _Gathered, problem: LinearProblem, chosen: IntVector, duals: FloatVector, team: Team) -> None:
    """Add some rows of every rank to the pool of rank 0, rank by rank."""
    part = _part(problem, chosen)
    rows = part.rows
    columns = np.stack([part.targets, part.low, part.high, part.ridge, duals, (rows.last - rows.first).astype(float)])
    described = team.gather(columns.T.ravel())
    values = team.gather(rows.values)
    indices = None if rows.indices is None else team.gather(rows.indices)
    if not team.leads:
        return
    known = pool.problem
    targets, low, high, ridge, arrived, lengths = np.concatenate(described).reshape(-1, 6).T
    first, last = _bounds(np.concatenate([(known.rows.last - known.rows.first).astype(np.int64), lengths.astype(int)]))
    pool.problem = LinearProblem(
        LinearRows(
            np.concatenate([known.rows.values, *values]),
            None if indices is None else np.concatenate([known.rows.indices, *indices]),
            first,
            last,
            rows.n_features,
            rows.bias,
        ),
        np.concatenate([known.targets, targets]),
        np.concatenate([known.low, low]),
        np.concatenate([known.high, high]),
        np.concatenate([known.ridge, ridge]),
        known.epsilon,
    )
    pool.lines = make_lines(pool.problem, np.concatenate([pool.lines[5::8], arrived]))


def _part(problem: LinearProblem, chosen: IntVector) -> LinearProblem:
    """Return some rows of a problem as one of their own, their entries copied next to each other."""
    rows = problem.rows.take(chosen)
    first, last = _bounds((rows.last - rows.first).astype(np.int64))
    values = np.empty(rows.n_entries, rows.values.dtype)
    indices = None if rows.indices is None else np.empty(rows.n_entries, rows.indices.dtype)
    pack_rows(rows.values, rows.indices, rows.first, rows.last, values, indices)
    packed = LinearRows(values, indices, first, last, rows.n_features, rows.bias)
    return LinearProblem(
        packed,
        problem.targets[chosen],
        problem.low[chosen],
        problem.high[chosen],
        problem.ridge[chosen],
        problem.epsilon,
    )


def _bounds(lengths: IntVector) -> tuple[np.ndarray, np.ndarray]:
    ends = np.zeros(lengths.shape[0] + 1, np.uint64)
    np.cumsum(lengths, out=ends[1:])
    return ends[:-1], ends[1:]
