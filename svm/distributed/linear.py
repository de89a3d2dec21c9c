r"""A linear SVM on a cluster: the program that every rank runs.

Problem: `dsgd.svm.linear_solver.problem`, with the rows divided among ranks and one or several outputs. What the ranks
share is the weights, ``w = sum b_i x_i`` over all rows; dual variables stay with their rows. What travels is sums over
rows:

- Squared losses, on at least as many rows as columns: Newton's method (`dsgd.svm.linear_solver.newton`), whose
  gradient, products and step length are such sums.
- Other problems: rounds of CoCoA+ (`dsgd.svm.linear_solver.cocoa`) until the rows that survive elimination are few,
  `WARM_ROUNDS` at most; these finish on rank 0 (`dsgd.svm.distributed.finish`). If they stay too many, or coordinate
  descent does not get on, Newton's method goes on from there, on all ranks.
- One rank solves as a fit without a cluster does (`dsgd.svm.linear_solver.solve`).

Every one of them stops on the duality gap over the rows of all ranks, in float64, and all ranks stop at the same point:
decisions are taken from numbers that are equal on all ranks to the last bit (`dsgd.svm.linear_solver.rows.Team`).

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

from dsgd.errors import InvalidDataError
from dsgd.inputs import Block, widen
from dsgd.ledger import COMPUTE
from dsgd.runtime.rank import Rank
from dsgd.svm.certify.linear import count_proven
from dsgd.svm.distributed.finish import room_for_survivors, solve_survivors
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
from dsgd.svm.linear_solver.rows import LinearRows, Team, gather_rows
from dsgd.svm.linear_solver.solve import COLUMNS_PER_PASS, PATIENCE, SMOOTH_PATIENCE, solve_linear
from dsgd.types import AnyArray, FloatVector

__all__ = [
    "WARM_ROUNDS",
    "GapRecord",
    "LinearJob",
    "LinearPacker",
    "LinearResult",
    "LinearShare",
    "RankPeers",
    "train_linear",
]

#: Most rounds of CoCoA+ before another method has its turn.
WARM_ROUNDS: Final = 40
#: Survivors are sent when those that nothing pushes outwards fill this share of the room.
_LOOSE_SHARE: Final = 0.5
_PUBLISH_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class LinearShare:
    """The rows of one rank.

    Parameters
    ----------
    rows : LinearRows
        Merged and in order.
    targets : array of float64, shape (n_rows,)
        Class codes, or values.
    weights : array of float64, shape (n_rows,)
        Sample weights, summed over merged rows.
    """

    rows: LinearRows
    targets: FloatVector
    weights: FloatVector

    @property
    def n_rows(self) -> int:
        """Rows after merging."""
        return self.rows.n_rows


@dataclass(frozen=True)
class LinearPacker:
    """Makes the share of a rank from its blocks; sent to every rank.

    Parameters
    ----------
    classes : array or None
        All classes, sorted; None for regression.
    n_features : int
        Columns.
    dtype : str
        ``"float32"`` or ``"float64"``.
    sparse : bool
        Whether rows are CSR.
    bias : float
        The constant appended to every row.
    seed : int
        Seed of the order of rows.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    bias: float
    seed: int

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> LinearShare:
        """Return the rows of a rank, made of its blocks."""
        blocks = list(blocks)  # each is looked at several times
        matrices = [widen(X, self.n_features) for X, _, _ in blocks]
        if self.sparse:
            nothing: Any = sp.csr_array((0, self.n_features), dtype=self.dtype)
            X = matrices[0] if len(matrices) == 1 else sp.vstack([nothing, *matrices], format="csr")
        else:
            nothing = np.empty((0, self.n_features), self.dtype)
            X = matrices[0] if len(matrices) == 1 else np.concatenate([nothing, *matrices])
        targets = np.concatenate([np.empty(0), *(self._targets(y) for _, y, _ in blocks)])
        weights = np.concatenate([np.empty(0), *(np.ones(X.shape[0]) if w is None else w for X, _, w in blocks)])
        X = X.astype(self.dtype, copy=False)
        return LinearShare(*gather_rows(X, targets, weights, bias=self.bias, seed=self.seed))

    def _targets(self, y: AnyArray) -> AnyArray:
        return y if self.classes is None else np.searchsorted(self.classes, y)


@dataclass(frozen=True)
class LinearJob:
    """What to solve and when to stop; the same on every rank.

    Parameters
    ----------
    loss : str
        One of `LOSSES`.
    C : float
        Weight of the losses.
    epsilon : float
        Half the width of the tube, in regression.
    penalizes_intercept : bool
        Whether the intercept counts in the penalty.
    class_factors : array, shape (n_classes,), "balanced" or None
        Factors of C by class; None for regression.
    n_classes : int
        How many classes; 0 for regression.
    solver : {"auto", "newton", "dual_cd", "cocoa"}
        ``"auto"`` is what the module describes; ``"dual_cd"`` the same without Newton's method, ``"cocoa"`` CoCoA+
        alone.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most rounds, passes and Newton steps, of each method.
    seed : int
        Seed of the order of visits.
    """

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

    @property
    def n_outputs(self) -> int:
        """Problems to solve: one per class if there are more than two."""
        return self.n_classes if self.n_classes > 2 else 1


@dataclass(frozen=True)
class GapRecord:
    """One certificate: a line of the history.

    Parameters
    ----------
    output : int
        Which output, from 0.
    stage : str
        The method that was at work.
    seconds : float
        Since training began on rank 0.
    exchanges : int
        Collectives so far.
    bytes_sent : int
        Bytes that rank 0 has sent so far.
    primal, dual : float
        The two values, over all rows.
    """

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

    Parameters
    ----------
    solutions : list of LinearSolution
        One per output; dual variables stay with the rows, so there are none here.
    history : list of GapRecord
        Every certificate, in order.
    """

    solutions: list[LinearSolution]
    history: list[GapRecord] = field(default_factory=list)


def train_linear(rank: Rank, data: LinearShare, job: LinearJob) -> LinearResult:
    """Solve every output on this rank's rows together with the other ranks; a rank program.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : LinearShare
        Its rows.
    job : LinearJob
        What to do.

    Returns
    -------
    LinearResult
        Equal on every rank, but for the seconds and bytes of the history.

    Raises
    ------
    InvalidDataError
        All sample weights are zero.
    """
    link = RankPeers(rank)
    solutions = []
    with contextlib.closing(Team(rank.n_threads, link, link.note)) as team:
        factors = _factors(data, job, team)
        for output in range(job.n_outputs):
            link.output = output
            problem = _problem(data, job, factors, output)
            solution = _solve(problem, job, team, link)
            solutions.append(replace(solution, duals=np.empty(0), n_proven=count_proven(problem, solution, team)))
    return LinearResult(solutions, link.history)


def _problem(data: LinearShare, job: LinearJob, factors: FloatVector, output: int) -> LinearProblem:
    costs = job.C * data.weights
    if job.n_classes:
        return one_vs_rest(job.loss, data.rows, data.targets, costs, factors, output, job.penalizes_intercept)
    return make_problem(job.loss, data.rows, data.targets, costs, job.epsilon, job.penalizes_intercept)


def _factors(data: LinearShare, job: LinearJob, team: Team) -> FloatVector:
    """Return the factor of C of every class, for which "balanced" needs the rows of all ranks."""
    codes = data.targets.astype(np.int64) if job.n_classes else np.zeros(data.n_rows, np.int64)
    sums = team.add_up(np.bincount(codes, data.weights, max(job.n_classes, 1)).astype(np.float64))
    if not sums.any():
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")
    if isinstance(job.class_factors, str):
        return balanced_factors(sums)
    return np.ones(1) if job.class_factors is None else job.class_factors


def _solve(problem: LinearProblem, job: LinearJob, team: Team, link: RankPeers) -> LinearSolution:
    """Solve one output by the method, or the methods, that the job names."""
    limits: dict[str, Any] = {"tol": job.tol, "max_iter": job.max_iter, "team": team}
    if team.n_ranks == 1:
        # It certifies problems on some of the rows as well, which do not belong in the history.
        with contextlib.closing(Team(team.n_threads, link)) as quiet:
            solution = solve_linear(problem, job.solver, **limits | {"team": quiet}, seed=job.seed)
        link.stage = solution.solver
        team.report(solution.primal, solution.dual)
        return solution
    is_smooth = job.loss.startswith("squared")
    if job.solver == "newton" or (job.solver == "auto" and is_smooth and _has_more_rows(problem, team)):
        link.stage = "newton"
        return solve_newton(problem, **limits)
    link.stage = "cocoa"
    if job.solver == "cocoa":
        return solve_cocoa(problem, **limits, seed=job.seed)
    room = room_for_survivors(problem, team)
    rounds = min(WARM_ROUNDS, job.max_iter)
    warm = solve_cocoa(problem, **limits | {"max_iter": rounds}, seed=job.seed, loose_bytes=_LOOSE_SHARE * room)
    if warm.converged or warm.n_iter >= job.max_iter:
        return warm
    link.stage = "survivors"
    patience = SMOOTH_PATIENCE if is_smooth else PATIENCE + problem.rows.width / COLUMNS_PER_PASS
    patience = patience if job.solver == "auto" else np.inf
    found = solve_survivors(problem, warm, room=room, **limits, seed=job.seed, patience=patience)
    if found.converged or found.n_iter >= job.max_iter:
        return found
    if job.solver == "auto":
        link.stage = "newton"
        last = solve_newton(problem, **limits, start=found)
    else:
        link.stage = "cocoa"
        last = solve_cocoa(problem, **limits, seed=job.seed, start=found)
    return replace(last, n_iter=found.n_iter + last.n_iter, solver=f"{found.solver}, {last.solver}")


def _has_more_rows(problem: LinearProblem, team: Team) -> bool:
    """Return whether there are at least as many rows on all ranks as columns."""
    return team.totals(float(problem.rows.n_rows))[0] >= problem.rows.width


class RankPeers:
    """The other ranks, as solvers see them: every exchange is a round of the ledger.

    Parameters
    ----------
    rank : Rank
        This member of the gang; all of them make their peers at the same point.

    Attributes
    ----------
    output, stage : int, str
        What is being solved, and by which method: for the history.
    history : list of GapRecord
        The certificates; on rank 0.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.output = 0
        self.stage = ""
        self.history: list[GapRecord] = []
        self._exchanges = 0
        self._begin = self._published = time.perf_counter()
        rank.ledger.begin_round("setup")  # ranks begin when their workers do
        rank.group.barrier()
        rank.ledger.end_round()
        self._since = rank.ledger.clock()

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._rank.size

    @property
    def number(self) -> int:
        """Number of this rank, from 0."""
        return self._rank.number

    def add_up(self, vector: FloatVector) -> None:
        """Replace a vector by its sum over ranks."""
        self._open()
        self._rank.group.allreduce(vector)
        self._close()

    def follow(self, vector: FloatVector) -> None:
        """Replace a vector by that of rank 0."""
        self._open()
        self._rank.group.broadcast(vector)
        self._close()

    def gather(self, vector: AnyArray) -> list[AnyArray]:
        """Return the vectors of all ranks on rank 0."""
        self._open()
        parts = self._rank.group.gather(np.ascontiguousarray(vector))
        self._close()
        return parts or []

    def note(self, primal: float, dual: float) -> None:
        """Take down a certificate, and show it to whoever watches the job."""
        if self.number != 0:
            return
        now = time.perf_counter()
        sent = int(self._rank.ledger.records().totals["bytes_sent"])
        record = GapRecord(self.output, self.stage, now - self._begin, self._exchanges, sent, primal, dual)
        self.history.append(record)
        if now - self._published > _PUBLISH_EVERY_S:
            self._published = now
            gap = relative_gap(primal, dual)
            event = {"output": self.output, "stage": self.stage, "gap": gap, "seconds": record.seconds}
            text = f"output {self.output}: {self.stage}, relative gap {gap:.2g}, {record.seconds:.2f} s"
            self._rank.publish({**event, "text": text})

    def _open(self) -> None:
        self._rank.check()
        ledger = self._rank.ledger
        ledger.begin_round("sync")
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - self._since)

    def _close(self) -> None:
        self._rank.ledger.end_round()
        self._exchanges += 1
        self._since = self._rank.ledger.clock()
