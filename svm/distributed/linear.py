r"""A linear SVM on a cluster: the program that every rank runs.

Problem: `dsgd.svm.linear_solver.problem`, with the rows divided among ranks and one or several outputs. What the ranks
share is the weights, ``w = sum b_i x_i`` over all rows; dual variables stay with their rows. What travels is sums over
rows:

- Squared losses, on at least as many rows as columns: Newton's method (`dsgd.svm.linear_solver.newton`), whose
  gradient, products and step length are such sums.
- Other problems: rounds of CoCoA+ (`dsgd.svm.linear_solver.cocoa`) until the rows that survive elimination are few,
  `WARM_ROUNDS` at most; these finish on rank 0 (`dsgd.svm.distributed.finish`). If too many remain, or coordinate
  descent makes no progress, Newton's method continues from there, on all ranks.
- One rank solves as a fit without a cluster does (`dsgd.svm.linear_solver.solve`).

Every one of them stops on the duality gap over the rows of all ranks, in float64, and all ranks stop at the same point:
decisions are taken from numbers that are equal on all ranks to the last bit (`dsgd.collectives.Team`).

For calibration curves a machine is trained on the rows outside of each fold (`dsgd.svm.distributed.held_out`), from the
weights of the machine of all rows and the dual variables of the fold before.

Rows are merged and ordered rank by rank: equal rows on two ranks stay two rows, which changes nothing but the path.

Source: the modules named; Zhuang, Chin, Juan and Lin, PAKDD 2015 (Newton's method with the rows divided).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs import widen
from dsgd.runtime.rank import Rank
from dsgd.svm.certify.linear import count_proven
from dsgd.svm.distributed.finish import room_for_survivors, solve_survivors
from dsgd.svm.distributed.held_out import HeldRows, HoldOut, fit_held_out
from dsgd.svm.linear_solver.cocoa import solve_cocoa
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import (
    LinearProblem,
    LinearSolution,
    balanced_factors,
    make_problem,
    one_vs_rest,
    relative_gap,
)
from dsgd.svm.linear_solver.rows import LinearRows, gather_rows
from dsgd.svm.linear_solver.solve import COLUMNS_PER_PASS, PATIENCE, SMOOTH_PATIENCE, solve_linear
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Most rounds of CoCoA+ before another method has its turn.
WARM_ROUNDS: Final = 40
#: Survivors are sent when those that nothing pushes outwards fill this share of the room.
_LOOSE_SHARE: Final = 0.5
_PUBLISH_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class LinearShare:
    """The rows of one rank."""

    rows: LinearRows
    targets: FloatVector
    weights: FloatVector
    held: HeldRows | None = None

    @property
    def n_rows(self) -> int:
        """Rows after merging."""
        return self.rows.n_rows


@dataclass(frozen=True)
class LinearPacker:
    """Makes the share of a rank from its blocks; sent to every rank."""

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    bias: float
    seed: int
    holds_out: bool = False

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> LinearShare:
        """Return the rows of a rank, made of its blocks."""
        blocks = list(blocks)  # each is looked at several times
        matrices = [widen(block[0], self.n_features) for block in blocks]
        if self.sparse:
            nothing: Any = sp.csr_array((0, self.n_features), dtype=self.dtype)
            X = matrices[0] if len(matrices) == 1 else sp.vstack([nothing, *matrices], format="csr")
        else:
            nothing = np.empty((0, self.n_features), self.dtype)
            X = matrices[0] if len(matrices) == 1 else np.concatenate([nothing, *matrices])
        targets = np.concatenate([np.empty(0), *(self._targets(block[1]) for block in blocks)])
        weights = np.concatenate([np.empty(0), *(_weights(block) for block in blocks)])
        X = X.astype(self.dtype, copy=False)
        share = LinearShare(*gather_rows(X, targets, weights, bias=self.bias, seed=self.seed))
        if not self.holds_out:
            return share
        numbers = np.concatenate([np.empty(0, np.int64), *(b[3] + np.arange(b[0].shape[0]) for b in blocks)])
        held = HeldRows.of(X, targets, weights, numbers, bias=self.bias, seed=self.seed)
        return replace(share, held=held)

    def _targets(self, y: AnyArray) -> AnyArray:
        return y if self.classes is None else np.searchsorted(self.classes, y)


def _weights(block: Any) -> FloatVector:
    return np.ones(block[0].shape[0]) if block[2] is None else np.asarray(block[2], dtype=np.float64)


@dataclass(frozen=True)
class LinearJob:
    """What to solve and when to stop; the same on every rank."""

    loss: str
    C: float
    epsilon: float
    penalizes_intercept: bool
    class_factors: FloatVector | str | None
    n_classes: int
    solver: str
    tol: float
    max_iter: int
    seed: int
    hold_out: HoldOut | None = None

    @property
    def n_outputs(self) -> int:
        """Problems to solve: one per class if there are more than two."""
        return self.n_classes if self.n_classes > 2 else 1

    def pose(self, data: LinearShare, factors: FloatVector, output: int) -> LinearProblem:
        """Return the problem of an output on some rows, for the factor of C of every class; regression has none."""
        costs = self.C * data.weights
        if self.n_classes:
            return one_vs_rest(self.loss, data.rows, data.targets, costs, factors, output, self.penalizes_intercept)
        return make_problem(self.loss, data.rows, data.targets, costs, self.epsilon, self.penalizes_intercept)

    def factors(self, sums: FloatVector) -> FloatVector:
        """Return the factor of C of every class, by the weights of the classes."""
        if isinstance(self.class_factors, str):
            return balanced_factors(sums)
        return np.ones(1) if self.class_factors is None else self.class_factors

    def solve(self, problem: LinearProblem, team: Team, start: LinearSolution | None = None) -> LinearSolution:
        """Solve a problem all of whose rows are here."""
        limits: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter, "team": team}
        return solve_linear(problem, self.solver, **limits, seed=self.seed, start=start)


@dataclass(frozen=True)
class GapRecord:
    """One certificate: a line of the history."""

    output: int
    stage: str
    seconds: float
    exchanges: int
    bytes_sent: int
    primal: float
    dual: float


@dataclass(frozen=True)
class LinearResult:
    """What training brings home.

    - `curves`, shape (2, m): the calibration curve of each output, on rank 0 where they were asked for.
    """

    solutions: list[LinearSolution]
    history: list[GapRecord] = field(default_factory=list)
    curves: list[FloatMatrix] = field(default_factory=list)


class Starts:
    """Where machines begin that differ from one of all rows by the rows of a fold."""

    def __init__(self, solutions: Sequence[LinearSolution], n_rows: int) -> None:
        self._weights = [solution.weights for solution in solutions]
        self._duals = np.zeros((len(solutions), n_rows))

    def of(self, output: int, problem: LinearProblem, kept: IntVector) -> LinearSolution:
        """Return the start of a problem of the rows `kept`."""
        duals = np.clip(self._duals[output, kept], problem.low, problem.high)
        return LinearSolution(self._weights[output], duals, np.inf, -np.inf, 0, False, "")

    def take(self, output: int, solution: LinearSolution, kept: IntVector) -> None:
        """Keep the dual variables of these rows for the next fold."""
        self._duals[output, kept] = solution.duals


def train_linear(rank: Rank, data: LinearShare, job: LinearJob) -> LinearResult:
    """Solve every output on this rank's rows together with the other ranks; a rank program."""
    history = _History(rank)
    solutions = []
    with contextlib.closing(Team(rank.n_threads, rank.group, rank.check, history.note)) as team:
        factors = _factors(data, job, team)
        for output in range(job.n_outputs):
            history.output, history.stage = output, ""
            problem = job.pose(data, factors, output)
            solution = _solve(problem, job, team, history)
            solutions.append(replace(solution, duals=np.empty(0), n_proven=count_proven(problem, solution, team)))
    return LinearResult(solutions, history.records, _fit_curves(rank, data, job, solutions))


def _fit_curves(
    rank: Rank, data: LinearShare, job: LinearJob, solutions: Sequence[LinearSolution]
) -> list[FloatMatrix]:
    """Return the calibration curves that the job asks for."""
    held, hold_out = data.held, job.hold_out
    if held is None or hold_out is None:
        return []
    starts, unheard = Starts(solutions, held.rows.n_rows), _History(rank)

    def train(rows: LinearRows, codes: IntVector, weights: FloatVector, kept: IntVector) -> list[FloatVector]:
        part = LinearShare(rows, codes.astype(np.float64), weights)
        factors = _factors(part, job, team)
        found = []
        for output in range(job.n_outputs):
            problem = job.pose(part, factors, output)
            solution = _solve(problem, job, team, unheard, starts.of(output, problem, kept))
            starts.take(output, solution, kept)
            found.append(solution.weights)
        return found

    with contextlib.closing(Team(rank.n_threads, rank.group, rank.check)) as team:
        return fit_held_out(held, hold_out, train, team)


def _factors(data: LinearShare, job: LinearJob, team: Team) -> FloatVector:
    """Return the factor of C of every class, for which "balanced" needs the rows of all ranks."""
    codes = data.targets.astype(np.int64) if job.n_classes else np.zeros(data.n_rows, np.int64)
    sums = team.add_up(np.bincount(codes, data.weights, max(job.n_classes, 1)).astype(np.float64))
    if not sums.any():
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")
    return job.factors(sums)


def _solve(
    problem: LinearProblem, job: LinearJob, team: Team, history: _History, start: LinearSolution | None = None
) -> LinearSolution:
    """Solve one output by the method, or the methods, that the job names."""
    if team.n_ranks == 1:
        # It certifies problems on some of the rows as well, which do not belong in the history.
        solution = job.solve(problem, team, start)
        history.stage = solution.solver
        team.report(solution.primal, solution.dual)
        return solution
    limits: dict[str, Any] = {"tol": job.tol, "max_iter": job.max_iter, "team": team}
    is_smooth = job.loss.startswith("squared")
    if job.solver == "newton" or (job.solver == "auto" and is_smooth and _has_more_rows(problem, team)):
        history.stage = "newton"
        return solve_newton(problem, **limits, start=start)
    history.stage = "cocoa"
    if job.solver == "cocoa":
        return solve_cocoa(problem, **limits, seed=job.seed, start=start)
    room = room_for_survivors(problem, team)
    rounds = min(WARM_ROUNDS, job.max_iter)
    limits["max_iter"] = rounds
    warm = solve_cocoa(problem, **limits, seed=job.seed, start=start, loose_bytes=_LOOSE_SHARE * room)
    limits["max_iter"] = job.max_iter
    if warm.converged or warm.n_iter >= job.max_iter:
        return warm
    history.stage = "survivors"
    patience = SMOOTH_PATIENCE if is_smooth else PATIENCE + problem.rows.width / COLUMNS_PER_PASS
    patience = patience if job.solver == "auto" else np.inf
    found = solve_survivors(problem, warm, room=room, **limits, seed=job.seed, patience=patience)
    if found.converged or found.n_iter >= job.max_iter:
        return found
    if job.solver == "auto":
        history.stage = "newton"
        last = solve_newton(problem, **limits, start=found)
    else:
        history.stage = "cocoa"
        last = solve_cocoa(problem, **limits, seed=job.seed, start=found)
    return replace(last, n_iter=found.n_iter + last.n_iter, solver=f"{found.solver}, {last.solver}")


def _has_more_rows(problem: LinearProblem, team: Team) -> bool:
    """Return whether there are at least as many rows on all ranks as columns."""
    return team.totals(float(problem.rows.n_rows))[0] >= problem.rows.width


class _History:
    """Records the certificates of rank 0, and publishes them to all that watch the job."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.output = 0
        self.stage = ""
        self.records: list[GapRecord] = []
        self._begin = self._published = time.perf_counter()

    def note(self, primal: float, dual: float) -> None:
        """Take in a certificate."""
        if self._rank.number != 0 or not self.stage:
            return
        now, ledger = time.perf_counter(), self._rank.ledger
        sent = int(ledger.records().totals["bytes_sent"])
        record = GapRecord(self.output, self.stage, now - self._begin, ledger.rounds, sent, primal, dual)
        self.records.append(record)
        if now - self._published > _PUBLISH_EVERY_S:
            self._published = now
            gap = relative_gap(primal, dual)
            event = {"output": self.output, "stage": self.stage, "gap": gap, "seconds": record.seconds}
            text = f"output {self.output}: {self.stage}, relative gap {gap:.2g}, {record.seconds:.2f} s"
            self._rank.publish({**event, "text": text})
