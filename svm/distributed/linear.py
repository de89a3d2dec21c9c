"""Linear SVMs on a cluster: the rank program, the last rows on rank 0, and calibration curves.

**Survivors** (`solve_survivors`): a run is finished on rank 0, with the few rows whose variables still change. The dual
of `dsgd.svm.linear_solver.problem` on the rows of a gang, near its solution. Most variables sit at an end of their
interval, or at zero, and are pushed outwards: they stay, and so only enter through ``w = sum b_i x_i``. The others, the
survivors of elimination, are few.

Every rank sends its survivors to rank 0, each row once. Rank 0 visits them as `dsgd.svm.linear_solver.descent`
does, against the true ``w``, then hands out ``w`` and the variables of the survivors. All ranks sweep their rows at
once: that gives the certificate over all rows of all ranks, and finds rows that were left out wrongly, which are sent
after the others. So it is coordinate descent whose sweeps are divided and whose passes are not.

Which rows survive is a matter of room: of the rows that are least pushed outwards, as many go as half the room left
holds. Where not even those do that nothing pushes outwards, the solver gives up: it is too early, or they are too many.

Cost: every survivor once, 48 bytes and 4 + s for each entry of s bytes (s if rows are dense); then per sweep d + 2
numbers and one for each survivor from rank 0, and some twenty summed over ranks.

Source: the way LIBLINEAR ends (Hsieh et al., ICML 2008), with the rows elsewhere; the division of the sweep is ours.

**Curves** (`fit_held_out`), from scores of rows that a machine was not trained on. Rows are taken once more, each by
itself: equal rows may be in different folds, so they are not merged. Folds are those of all rows
(`dsgd.svm.calibration`), assigned on rank 0. The machine of each fold is trained by all ranks on those of their rows
that are not in it, and scores its rows where they are; rank 0 collects the scores and fits the curves.

Cost: the rows a second time, and five fits; docs/linear-svm.rst says what is sent.

**The rank program** (`train_linear`). The problem is `dsgd.svm.linear_solver.problem`, with the rows divided among
ranks and one or several outputs. What the ranks share is the weights, ``w = sum b_i x_i`` over all rows; dual variables
stay with their rows. What travels is sums over rows:

- Squared losses, on at least as many rows as columns: Newton's method (`dsgd.svm.linear_solver.newton`).
- Other problems: `WARM_ROUNDS` of CoCoA+ (`dsgd.svm.linear_solver.descent`) at most, then the survivors, as above. If
  too many remain, or coordinate descent makes no progress, Newton's method continues from there, on all ranks.

Every one of them stops on the duality gap over the rows of all ranks, in float64, and all ranks stop at the same point:
decisions are taken from numbers that are equal on all ranks to the last bit (`dsgd.collectives.Team`).

For calibration curves machines begin at the weights of that of all rows and the dual variables of the fold before.

Rows are merged and ordered rank by rank: equal rows on two ranks stay two rows, which changes nothing but the path.

Source: the modules named; Zhuang, Chin, Juan and Lin, PAKDD 2015 (Newton's method with the rows divided).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.linear_model.fits import Packer
from dsgd.runtime.rank import Rank
from dsgd.svm.certify import count_proven
from dsgd.svm.linear_solver.descent import Trend, make_lines, make_passes, outward_push, solve_cocoa
from dsgd.svm.linear_solver.kernels import REACH
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import (
    LinearProblem,
    LinearRows,
    LinearSolution,
    certify,
    conclude,
    gather_rows,
    make_problem,
    relative_gap,
)
from dsgd.svm.linear_solver.solve import COLUMNS_PER_PASS, PATIENCE, SMOOTH_PATIENCE, solve_linear
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: A sweep is due when rank 0 made as many visits as this many passes over the survivors, or the rows of a rank.
_VISITS_PER_SWEEP = 5.0

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
    """Go on by coordinate descent on rank 0 over the rows that survive elimination, unless they are too many."""
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
            state = np.array([n_active, threshold, np.inf, n_passes - 1, 0.0, 1.0, True])
            make_passes(self._problem, self.lines, weights, active, state, seed)
            n_active, threshold = int(state[0]), float(state[1])
            reach = REACH * threshold if reach < 0.0 else reach
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


@dataclass(frozen=True)
class HoldOut:
    """What curves are to be fitted; the same on every rank."""

    method: str
    classes: AnyArray
    seed: int | None


@dataclass(frozen=True)
class HeldRows:
    """The rows of one rank, none of them merged."""

    rows: LinearRows
    codes: IntVector
    weights: FloatVector
    places: IntVector
    all_numbers: IntVector
    all_codes: IntVector

    @classmethod
    def of(cls, X: Any, codes: AnyArray, weights: FloatVector, numbers: IntVector, **gathering: Any) -> HeldRows:
        """Return the rows of blocks, or of arrays, as `gather_rows` has them by what else it is given."""
        codes = codes.astype(np.int64)
        # With a target of its own no row is equal to another.
        rows, own, weights = gather_rows(X, np.arange(len(codes)), weights, **gathering)
        places = own.astype(np.int64)
        return cls(rows, codes[places], weights, places, numbers, codes)


def fit_held_out(
    held: HeldRows, hold_out: HoldOut, train: Callable[[LinearRows, IntVector, FloatVector, IntVector], Any], team: Team
) -> list[FloatMatrix]:
    """Return the curve of every output, on rank 0; none on the others."""
    # Loads scikit-learn, which a rank that fits no curves does without.
    from dsgd.svm.calibration import N_FOLDS, assign_folds, fit_curve

    # Rank 0 assigns the folds of all rows, from their numbers and codes.
    n = int(team.totals(float(len(held.all_numbers)))[0])
    numbers, codes = team.gather(held.all_numbers), team.gather(held.all_codes)
    of_all: AnyArray = np.empty(n, dtype=np.uint8)
    if team.leads:
        ordered = np.empty(n, dtype=np.int64)
        ordered[np.concatenate(numbers)] = np.concatenate(codes)
        of_all = assign_folds(ordered, hold_out.classes, hold_out.seed)
    folds = team.agree(of_all)[held.all_numbers[held.places]]
    scores: list[FloatMatrix] = []
    order: list[IntVector] = []
    for number in range(N_FOLDS):
        out, kept = np.flatnonzero(folds == number), np.flatnonzero(folds != number)
        machine = train(held.rows.take(kept), held.codes[kept], held.weights[kept], kept)
        scores.append(np.stack([held.rows.take(out).scores(weights, team) for weights in machine]))
        order.append(out)
    n_outputs, placed = len(scores[0]), np.concatenate(order)
    codes = team.gather(held.codes[placed])
    counts = team.gather(held.weights[placed])
    found = [team.gather(np.concatenate([part[k] for part in scores])) for k in range(n_outputs)]
    if not team.leads:
        return []
    label, count = np.concatenate(codes), np.concatenate(counts)
    positive = range(n_outputs) if n_outputs > 1 else [1]
    return [
        fit_curve(hold_out.method, np.concatenate(parts), label == code, count)
        for code, parts in zip(positive, found, strict=True)
    ]


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

    rows: Packer
    bias: float
    seed: int
    holds_out: bool = False

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> LinearShare:
        """Return the rows of a rank, made of its blocks."""
        blocks = list(blocks)  # each is looked at several times
        packed = self.rows(blocks, rank_number)
        arrays = packed.X, packed.targets, packed.weights
        share = LinearShare(*gather_rows(*arrays, bias=self.bias, seed=self.seed))
        if not self.holds_out:
            return share
        numbers = np.concatenate([np.empty(0, np.int64), *(b[3] + np.arange(b[0].shape[0]) for b in blocks)])
        return replace(share, held=HeldRows.of(*arrays, numbers, bias=self.bias, seed=self.seed))


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
        targets, costs = data.targets, self.C * data.weights
        if self.n_classes:  # with more than two, factors apply to the rows of an output's own class
            is_binary = self.n_classes == 2
            own = targets == (1 if is_binary else output)
            costs = costs * np.where(own, factors[1 if is_binary else output], factors[0] if is_binary else 1.0)
            targets = np.where(own, 1.0, -1.0)
        return make_problem(self.loss, data.rows, targets, costs, self.epsilon, self.penalizes_intercept)

    def factors(self, sums: FloatVector) -> FloatVector:
        """Return the factor of C of every class, by the weights of the classes."""
        if isinstance(self.class_factors, str):  # "balanced"
            present = sums > 0.0
            return np.where(present, sums.sum() / (present.sum() * np.where(present, sums, 1.0)), 1.0)
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
    """What training brings home; on rank 0 with the calibration curves that were asked for."""

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
    prefers_newton = job.solver == "auto" and is_smooth
    if job.solver == "newton" or (prefers_newton and team.totals(float(problem.rows.n_rows))[0] >= problem.rows.width):
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
