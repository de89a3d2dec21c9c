"""The study of elimination: what sample elimination saves in a kernel SVM, and what it costs.

Every repetition begins with another method, so that methods take turns and change places. `simulate` predicts more
ranks from the counts of a fit on one; `dsgd.study.svm_rounds` predicts thousands of them, phase by phase.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as ReferenceSVC  # noqa: N811

from dsgd.collectives.model import LinkCost, n_levels
from dsgd.comm.frames import HEADER_BYTES
from dsgd.errors import DatasetError, InvalidParameterError
from dsgd.report import Axis, Band, Claim, Figure, Level, Line, Mark, Panel, Table, period_axis, span_of
from dsgd.report.figures import Dash
from dsgd.report.theme import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, SKY, TEXT, VERMILION, Colour
from dsgd.study.frame.data import MissingData, place
from dsgd.study.frame.report import tally, time_text
from dsgd.study.frame.rows import Cell, Row, Stat, cells_of, picked
from dsgd.study.frame.study import Batch, Grid, Option, Run, Study
from dsgd.study.published import SOURCES, STATEMENTS, Interval, Margin, Statement, exact, ratio, were_busy
from dsgd.study.svm_problems import PROBLEMS, Problem, ProblemData, load_problem
from dsgd.svm import SVC, EliminationRecord
from dsgd.svm.kernel_solver.direct import LARGEST_DIRECT
from dsgd.svm.kernel_solver.smo import solve_block
from dsgd.types import FloatMatrix
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "CURVE_COLUMNS", "PRESETS", "REFERENCE", "SOLVERS", "STUDY", "TEN_GIGABIT", "Counts", "EliminationCell",
    "EliminationSummary", "SimulatedTime", "cache_mb", "curve", "elimination_figures", "elimination_table",
    "overview_table", "ranks_table", "reuse", "serial_seconds", "simulate", "summarise",
]  # fmt: skip

# -- grid ----------------------------------------------------------------------------------------------------------

#: The presets of `dsgd.svm.SVC`, the one without elimination first.
PRESETS: Final = ("none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto")
#: The sequential baseline: scikit-learn's SVC, which is LIBSVM on one thread.
REFERENCE: Final = "scikit-learn"
#: "fits": the whole kernel matrix; "small": the share `cache_share` of it in float32.
CACHES: Final = ("small", "fits")
#: Values of ``solver``: by blocks, and the published algorithm, a pair of variables per step and exchange.
SOLVERS: Final = ("block", "pairwise")


# -- runner -------------------------------------------------------------------------------------------------------

_WARM_UP_STEPS = 500


def _presets(chosen: Sequence[str]) -> list[str]:
    """Return presets in their usual order, the one without elimination first."""
    return [preset for preset in PRESETS if preset == "none" or preset in chosen]


def _methods(study: Study) -> list[str]:
    return [*_presets(study.presets), *([REFERENCE] if study.with_reference else [])]


def cache_mb(study: Study, cache: str, n_rows: int) -> float:
    """Return the size of a cache in megabytes for so many rows.

    The one that fits has room for float64, which small problems and problems with a large C use.
    """
    matrix_mb = n_rows * n_rows / 2**20
    return max(1.0, round(8 * matrix_mb + 1, 1) if cache == "fits" else round(4 * study.cache_share * matrix_mb, 1))


def _decides(run: Run) -> Row:
    """Return what follows from the place of a run: methods take turns, and each repetition begins with another."""
    study, on_ranks = run.study, "ranks" in run.columns
    methods = _presets(study.rank_presets) if on_ranks else _methods(study)
    problem = next(one for one in study.problems if one.name == run.dataset)
    own = {} if on_ranks else {"solver": "block", "ranks": None}
    cache = "small" if on_ranks else run.cache
    return {
        "problem": run.dataset, "C": problem.C, "gamma": problem.gamma, "cache": cache,
        "method": methods[(run._turn + run.repeat) % len(methods)], "cache_mb": cache_mb(study, cache, run.rows),
        "threads": 1 if on_ranks else study.n_threads, **own,
    }  # fmt: skip


def _load(problem: Problem, dtype: str, rows: Sequence[Row]) -> ProblemData | MissingData:
    """Load a problem; of a set that is not here, what was measured before is kept."""
    del dtype
    try:
        return load_problem(problem)
    except DatasetError:
        sizes = [row["rows"] for row in rows if row["problem"] == problem.name and row["rows"] <= problem.rows]
        return MissingData(problem.name, range(max(sizes, default=0)), ())


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Train on one problem; yield the contents of the rows."""
    data, client = batch.data, batch.client
    described, warm = data.describe(), set[str]()
    blocks: list[Any] | None = None
    if client is not None:
        blocks, _ = place(client, (data.X, data.y), runs[0].ranks or 1, "shuffled")
    for run in runs:
        if run.solver not in warm:
            _warm_up(run, data, client, blocks)
            warm.add(run.solver)
        yield {**described, **_fit(run, data, client, blocks)}


def _fit(run: Run, data: ProblemData, client: Client | None, blocks: list[Any] | None) -> dict[str, Any]:
    """Train once; return seconds and counts."""
    model = _model(run, run.method, data.problem, client)
    X, y = (data.X, data.y) if blocks is None else (blocks, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the row says it
        begin, cpu = time.perf_counter(), time.process_time()
        model.fit(X, y)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    row = {"seconds": seconds, "cpu_s": cpu, "n_iter": int(np.sum(model.n_iter_)), "n_support": len(model.support_)}
    if run.method == REFERENCE:
        return row | {"converged": model.fit_status_ == 0}
    histories = model.elimination_history_
    if run.ranks is not None:  # from the first step to the proof, without placing rows and starting the job
        row["seconds"] = seconds = sum(history[-1].seconds for history in histories)
    if client is not None:
        totals = model.ledger_.totals()
        row["communication_s"] = sum(totals[f"{phase}_s"] for phase in ("encode", "wire", "wait")) / (run.ranks or 1)
        row |= {name: int(totals[name]) for name in ("bytes_sent", "control_bytes_sent")}
    n_free = _count_free(model, data.problem.C)
    # Ranks divide kernel values and their use; one rank solves the blocks for all.
    serial_s = min(seconds, serial_seconds(histories, n_free)) if run.solver == "block" else 0.0
    return row | {
        "converged": bool(model.converged_),
        "gap": float(model.gap_),
        "objective": float(model.dual_objective_),
        "samples": sum(max(record.n_active for record in history) for history in histories),
        # The pairwise solver exchanges at every step, but records only some of them.
        "rounds": int(np.sum(model.n_iter_)) if run.solver == "pairwise" else _count_blocks(histories),
        "n_eliminated": int(model.n_eliminated_),
        "n_returned": int(model.n_returned_),
        "n_reconstructions": int(model.n_reconstructions_),
        "kernel_evaluations": int(model.n_kernel_evaluations_),
        **reuse(histories),
        "n_free": n_free,
        "row_bytes": _row_bytes(data.X),
        "parallel_s": seconds - serial_s,
        "serial_s": serial_s,
        "curve": curve(histories),
    }


def _model(run: Run, method: str, problem: Problem, client: Client | None) -> Any:
    shared: dict[str, Any] = {
        "C": problem.C,
        "gamma": problem.gamma,
        "tol": run.tol,
        "cache_size": run.cache_mb,
    }
    if method == REFERENCE:
        return ReferenceSVC(**shared)
    jobs = run.threads if client is None else run.ranks
    return SVC(**shared, elimination=method, solver=run.solver, client=client, n_jobs=jobs)


def _warm_up(run: Run, data: ProblemData, client: Client | None, blocks: list[Any] | None) -> None:
    """Fit once like the first timed run, so that compiled code, threads and memory are ready for all methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        X, y = (data.X, data.y) if blocks is None else (blocks, None)
        model = _model(run, "multi", data.problem, client)
        if run.solver == "pairwise":  # each of its steps runs the same code
            model.set_params(max_iter=_WARM_UP_STEPS)
        model.fit(X, y)


def _count_free(model: SVC, C: float) -> int:
    """Return how many support vectors have a coefficient below C in all their problems."""
    coefs: Any = model.dual_coef_
    largest = np.abs(coefs.toarray() if sp.issparse(coefs) else coefs).max(axis=0, initial=0.0)
    return int((largest < C).sum())


def _count_blocks(histories: Any) -> int:
    return sum(record.event == "block" for history in histories for record in history)


def _row_bytes(X: Any) -> float:
    """Return the mean bytes of a row on the wire: values in 8 bytes, columns of sparse rows in 4."""
    return float(12.0 * X.nnz / X.shape[0] if sp.issparse(X) else 8.0 * X.shape[1])


# -- measure ------------------------------------------------------------------------------------------------------

#: Columns of a curve: steps, seconds, active samples, gap among them, rows found in the cache, kernel values computed.
CURVE_COLUMNS: Final = ("n_iter", "seconds", "n_active", "gap", "cache_hits", "kernel_evaluations")
#: Variables of a block, and of the largest.
BLOCK: Final = 512
_LARGEST_BLOCK: Final = 2048
_POINTS: Final = 60

History = Sequence[EliminationRecord]


def curve(histories: Sequence[History]) -> dict[str, list[float]]:
    """Return a run as a table of points over its steps.

    Pairs of classes are solved side by side. A point lies at the same share of the run of every pair: steps, seconds
    and counts are summed, and the gap is the widest.
    """
    tables = [_table(history) for history in histories]
    if len(tables) == 1:
        points = tables[0]
        if len(points) > _POINTS + 1:
            # Evenly spaced steps, and both sides of every jump of the active samples: otherwise eliminations would look
            # gradual.
            even = np.searchsorted(points[:, 0], np.linspace(0.0, points[-1, 0], _POINTS))
            jumps = np.flatnonzero(np.abs(np.diff(points[:, 2])) > 0.03 * points[0, 2])
            points = points[np.unique(np.concatenate([even, jumps, jumps + 1, [len(points) - 1]]))]
    else:
        places = np.linspace(0.0, 1.0, _POINTS)
        parts = np.array([[_at(table, place) for place in places] for table in tables])
        points = parts.sum(axis=0)
        points[:, 3] = parts[:, :, 3].max(axis=0)
    return {name: [_short(value) for value in points[:, k]] for k, name in enumerate(CURVE_COLUMNS)}


def reuse(histories: Sequence[History]) -> dict[str, float]:
    """Return where the kernel values of a run came from."""
    computed = {"block": 0.0, "reconstruct": 0.0, "verify": 0.0}
    found = 0.0
    for history in histories:
        table = _table(history)
        for record, (before, after) in zip(history, pairwise(table), strict=True):
            # Old events are merged when samples are eliminated, and rows that move update their columns.
            kind = record.event if record.event in computed else "reconstruct"
            computed[kind] += after[5] - before[5]
            found += (after[4] - before[4]) * after[2]
    used = found + computed["block"]
    return {
        **{f"{kind}_evaluations": value for kind, value in computed.items()},
        "cache_share": found / used if used else 0.0,
    }


def serial_seconds(histories: Sequence[History], n_free: int) -> float:
    """Return the seconds of a run that more ranks do not divide: those of the steps inside blocks.

    A step passes once over the variables of its block. The history does not have their number, so it is taken to be the
    target of `dsgd.svm.kernel_solver.block`: an eighth of the samples and at most `BLOCK`, or once few samples are
    active one and a half times the free ones.
    """
    total = 0.0
    for history in histories:
        table = _table(history)
        base = min(BLOCK, max(64, int(table[0, 2]) // 8))
        for record, steps in zip(history, np.diff(table[:, 0]), strict=True):
            grown = min(_LARGEST_BLOCK, 3 * n_free // 2) if record.n_active <= 4 * _LARGEST_BLOCK else 0
            total += float(steps) * min(record.n_active, max(base, grown)) * step_seconds(BLOCK) / BLOCK
    return total


@functools.cache
def step_seconds(q: int, repeats: int = 7) -> float:
    """Return the seconds of a two-variable step in a block of q on this machine: the fastest of some solves."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(q, 4)), rng.choice([-1.0, 1.0], q)
    squares = (X * X).sum(axis=1)
    K = np.exp(-0.5 * (squares[:, None] + squares - 2.0 * X @ X.T))
    group, upper = np.zeros(q, dtype=np.int64), np.ones(q)
    best = np.inf
    for _ in range(repeats + 1):  # the first one loads compiled code
        alpha, f = np.zeros(q), -y
        begin = time.perf_counter()
        steps = solve_block(K, y, group, upper, alpha, f, 1e-3, 100 * q, 1)
        best = min(best, (time.perf_counter() - begin) / max(1, int(steps)))
    return best


def _table(history: History) -> FloatMatrix:
    """Return one line per record, and before it the start with all samples; columns as `CURVE_COLUMNS`."""
    lines = [[float(getattr(record, name)) for name in CURVE_COLUMNS] for record in history]
    everyone, gap = max((line[2] for line in lines), default=0.0), lines[0][3] if lines else 0.0
    return np.array([[0.0, 0.0, everyone, gap, 0.0, 0.0], *lines])


def _at(table: FloatMatrix, share: float) -> FloatMatrix:
    """Return the record that holds at a share of the steps."""
    place = int(np.searchsorted(table[:, 0], share * table[-1, 0], side="right")) - 1
    return np.asarray(table[max(place, 0)] if share < 1.0 else table[-1])


def _short(value: float) -> float:
    """Return five digits: curves are most of a file of rows."""
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


# -- model --------------------------------------------------------------------------------------------------------

_PAIR_BYTES: Final = 32  # two extremes and their places


#: TCP between two processes as `dsgd` does it (benchmarks/communication/transports.py), at 10 Gbit/s.
TEN_GIGABIT: Final = LinkCost(25e-6, 0.8e-9)


@dataclass(frozen=True)
class Counts:
    """Counts of a run on one rank."""

    solver: str
    kernel_values: int
    iterations: int
    rounds: int
    rows_sent: int
    reconstructions: int
    row_bytes: float
    parallel_s: float
    serial_s: float = 0.0


class SimulatedTime(NamedTuple):
    """Predicted seconds of a run on more ranks."""

    compute_s: float
    communication_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.compute_s + self.communication_s


def simulate(counts: Counts, ranks: int, link: LinkCost) -> SimulatedTime:
    """Return the predicted seconds on `ranks` ranks of a run with these counts on one rank."""
    check_number("simulate(ranks=...)", ranks, low=1)
    compute = counts.parallel_s / ranks + counts.serial_s
    if ranks == 1:
        return SimulatedTime(compute, 0.0)
    levels, latency, byte = n_levels(ranks), link.latency_s, link.byte_s
    allreduce = levels * (latency + (_PAIR_BYTES + HEADER_BYTES) * byte)
    row = counts.row_bytes * byte
    if counts.solver == "pairwise":
        # Two rows down a tree of L levels, each level a message of a whole row.
        messages = counts.rounds * (allreduce + 2 * levels * latency) + counts.rows_sent * levels * row
    else:
        # The extremes of both sides, the best candidates, their rows, and the answer.
        messages = counts.rounds * (3 * levels * latency + allreduce) + counts.rows_sent * row
    return SimulatedTime(compute, messages + counts.reconstructions * levels * latency)


# -- summary ------------------------------------------------------------------------------------------------------

_ORDER = {name: number for number, name in enumerate([*PRESETS, REFERENCE])}


class EliminationCell(Cell):
    """The runs of one problem, method, cache, solver and number of ranks, which differ in the repetition."""

    def ratio(self, base: EliminationCell, name: str) -> Stat | None:
        """Return a column over that of another cell, repetition by repetition."""
        below = {row["repeat"]: row.get(name) for row in base.rows}
        pairs = [(row.get(name), below.get(row["repeat"])) for row in self.rows]
        return Stat.of(above / under for above, under in pairs if above is not None and under)

    def by_repeat(self, name: str) -> dict[int, float]:
        """Return a column by repetition, where it is known."""
        return self.column(name, "repeat")

    def share_of_cache(self) -> float:
        """Return the share of the kernel matrix in float32 that the cache holds."""
        row = self.rows[0]
        return float(row["cache_mb"] * 2**20 / (4.0 * row["rows"] ** 2))

    def least_values(self) -> float | None:
        """Return how many kernel values any solver needs for a gap over all samples; None for more than two classes.

        With s support vectors among n samples, this gap depends on every value between a support vector and a sample,
        and a solver cannot know a value without computing it: s n - s (s - 1) / 2 values, as K is symmetric.
        """
        row = self.rows[0]
        if row["classes"] > 2 or row.get("samples") is None:
            return None
        samples = self.median("samples")
        support = samples * self.median("n_support") / float(row["rows"])
        return support * samples - support * (support - 1.0) / 2.0

    def distance(self, base: EliminationCell) -> float | None:
        """Return how far the dual objective lies from that of another cell, relative to it."""
        ours, other = self.stat("objective"), base.stat("objective")
        return (
            None if ours is None or other is None else abs(ours.median - other.median) / max(abs(other.median), 1e-300)
        )


@dataclass(frozen=True)
class EliminationSummary:
    """All cells of a study."""

    cells: Sequence[EliminationCell]

    def problems(self) -> list[str]:
        """Return the names of the problems, in the order of the study."""
        return list(dict.fromkeys(cell.problem for cell in self.cells))

    def caches(self) -> list[str]:
        """Return the sizes of the cache that were run."""
        return list(dict.fromkeys(cell.cache for cell in self.cells if cell.ranks is None))

    def cache_text(self, cache: str) -> str:
        """Return what a cache holds, such as "Cache of 1 to 3 % of the matrix"."""
        if cache == "fits":
            return "Cache that fits"
        shares = [cell.share_of_cache() for cell in self.cells if cell.cache == cache and cell.ranks is None]
        least, most = (f"{100.0 * share:.2g}" for share in (min(shares), max(shares)))
        return f"Cache of {least if least == most else f'{least} to {most}'} % of the matrix"

    def tight(self) -> str:
        """Return the smallest cache that was run; "small" where none was."""
        caches = self.caches()
        return "small" if "small" in caches or not caches else caches[0]

    def cell(
        self, problem: str, method: str, cache: str, *, solver: str = "block", ranks: int | None = None
    ) -> EliminationCell | None:
        """Return one cell, or None if it has not been run."""
        wanted = (problem, method, cache, solver, ranks)
        return next((c for c in self.cells if (c.problem, c.method, c.cache, c.solver, c.ranks) == wanted), None)

    def presets(self, problem: str, cache: str) -> list[EliminationCell]:
        """Return the cells of the presets on a problem, in one process, the one without elimination first."""
        return [
            cell
            for cell in self.cells
            if (cell.problem, cell.cache, cell.ranks) == (problem, cache, None) and cell.method != REFERENCE
        ]

    def distributed(self, problem: str, solver: str, method: str) -> list[EliminationCell]:
        """Return the distributed cells of a problem, by rising ranks."""
        found = [
            cell
            for cell in self.cells
            if (cell.problem, cell.solver, cell.method) == (problem, solver, method) and cell.ranks is not None
        ]
        return sorted(found, key=lambda cell: cell.ranks or 0)


def summarise(rows: Sequence[Row]) -> EliminationSummary:
    """Return the cells that the rows of a study fall into, in the order of the report."""
    cells = cells_of(rows, "problem", "method", "cache", "solver", "ranks", make=EliminationCell)
    place = {name: number for number, name in enumerate(dict.fromkeys(cell.problem for cell in cells))}
    return EliminationSummary(
        sorted(
            cells,
            key=lambda c: (place[c.problem], c.ranks or 0, c.solver, c.cache != "small", _ORDER[c.method]),
        )
    )


# -- claims -------------------------------------------------------------------------------------------------------

# With so many times fewer values goes so many times less time.
_AUTO_FASTER: Final = Margin(1.3)
# The promise of fewer values is made for a cache of a hundredth; small problems have the least cache there is, 1 MB.
_SMALL_CACHE: Final = 0.02


def check_elimination_claims(summary: EliminationSummary) -> list[Claim]:
    """Return the claims, each with the result of a study on each of its problems."""
    checks: tuple[Callable[[EliminationSummary, str], Claim | None], ...] = (
        _faster_than_sequential,
        _less_time,
        _less_time_on_ranks,
        _same_optimum,
        _fewer_values,
        _never_slower,
    )
    found = [check(summary, problem) for check in checks for problem in summary.problems()]
    return [claim for claim in found if claim is not None]


def _faster_than_sequential(summary: EliminationSummary, problem: str) -> Claim:
    cache = summary.tight()
    base, cells = summary.cell(problem, REFERENCE, cache), summary.presets(problem, cache)
    if base is None or not cells:
        return STATEMENTS["shrinking/sequential"].not_run(problem, "Needs scikit-learn's SVC and a preset.")
    best = min(cells, key=lambda cell: cell.median("seconds"))
    speedup = _inverse(best.ratio(base, "seconds"))
    alone = summary.cell(problem, "none", cache)
    share = _inverse(alone.ratio(base, "seconds")) if alone else None
    note = (
        f"Sequential baseline: scikit-learn's SVC (LIBSVM, one thread), {time_text(base.median('seconds'))}. "
        f"Best preset: {best.method}, {time_text(best.median('seconds'))} in one process"
    )
    if share is not None and speedup is not None:
        note += (
            f". Without any elimination it is {share.median:.1f}x already, from blocks, matrix products and threads; "
            f"elimination makes it {speedup.median / share.median:.2f} times that"
        )
    cores = best.rows[0]["machine"]["cores"]
    note += f". The published figure is from many nodes, ours from {cores} core{'s' * (cores > 1)}."
    found = ratio(base.by_repeat("seconds"), best.by_repeat("seconds"))
    if found is None:
        return STATEMENTS["shrinking/sequential"].not_run(problem, note)
    plain = f"{share.median:.1f}x: no elimination" if share else ""
    return STATEMENTS["shrinking/sequential"].judged(problem, found, note, busy=_busy(base, best), baseline=plain)


def _less_time(summary: EliminationSummary, problem: str) -> Claim:
    cache = summary.tight()
    base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)[1:]
    if base is None or not cells:
        return STATEMENTS["shrinking/saved"].not_run(problem, "Needs a preset beside none.")
    best = min(cells, key=lambda cell: _median(cell.ratio(base, "seconds")))
    note = _why(base, best, best.ratio(base, "kernel_evaluations"))
    return _saved(STATEMENTS["shrinking/saved"], base, best, note)


def _saved(statement: Statement, base: EliminationCell, best: EliminationCell, note: str) -> Claim:
    """Return a claim on the share of time that a preset saves."""
    share = ratio(best.by_repeat("seconds"), base.by_repeat("seconds"))
    if share is None:
        return statement.not_run(base.problem, "Needs both in one repetition.")
    saved = share.mapped(lambda left: 1.0 - left)
    return statement.judged(base.problem, saved, note, busy=_busy(base, best), baseline="0 %: no elimination")


def _busy(*cells: EliminationCell) -> bool:
    return any(were_busy(cell.rows) for cell in cells)


def _why(base: EliminationCell, best: EliminationCell, values: Stat | None) -> str:
    """Return what decides how much elimination can save on a problem."""
    samples = base.median("samples")
    note = (
        f"Best preset {best.method}: {time_text(base.median('seconds'))} -> {time_text(best.median('seconds'))}, "
        f"kernel values {100.0 * (1.0 - _median(values)):.0f} % fewer."
    )
    support = base.median("n_support") / base.median("rows")
    needed = base.median("kernel_evaluations") / (samples * samples)
    if base.rows[0]["classes"] > 2:
        return note + " Every pair of classes is a small problem of its own, whose kernel matrix fits the cache."
    if base.rows[0]["method"] == "none" and samples <= LARGEST_DIRECT:
        return note + (
            f" Up to {LARGEST_DIRECT:,} samples are solved with all rows kept, whatever the cache is, unless asked to"
            " eliminate: there is nothing to save."
        )
    if base.median("cache_share") > 0.9:
        note += f" {base.median('cache_share'):.0%} of the values came from the cache anyway."
    if support > 0.4:
        note += f" {support:.0%} of the samples are support vectors: few can be left out for good."
    elif needed < 1.0:
        note += (
            f" Without elimination {needed:.2f} n² values are computed in all, so most rows are needed once: there is "
            "little to save."
        )
    return note


def _less_time_on_ranks(summary: EliminationSummary, problem: str) -> Claim | None:
    for solver in ("pairwise", "block"):
        without = summary.distributed(problem, solver, "none")
        if not without or (without[-1].ranks or 1) < 2:
            continue
        base = without[-1]
        others = [
            cell
            for cell in summary.cells
            if (cell.problem, cell.solver, cell.ranks) == (problem, solver, base.ranks) and cell.method != "none"
        ]
        if not others:
            continue
        best = min(others, key=lambda cell: _median(cell.ratio(base, "seconds")))
        values = best.ratio(base, "kernel_evaluations")
        note = (
            f"{solver} solver on {base.ranks} processes, {best.method}: {time_text(base.median('seconds'))} -> "
            f"{time_text(best.median('seconds'))}, kernel values {100.0 * (1.0 - _median(values)):.0f} % fewer."
        )
        return _saved(STATEMENTS["shrinking/saved-on-ranks"], base, best, note)
    return None


def _same_optimum(summary: EliminationSummary, problem: str) -> Claim:
    base = {cell.cache: cell for cell in summary.cells if cell.problem == problem and cell.method == "none"}
    found = [
        (distance, cell)
        for cell in summary.cells
        if cell.problem == problem and cell.cache in base and (distance := cell.distance(base[cell.cache])) is not None
    ]
    if all(cell.method == "none" for _, cell in found):
        return STATEMENTS["dsgd/elimination-optimum"].not_run(problem, "Needs a preset beside none.")
    worst, cell = max(found, key=lambda pair: pair[0])
    gaps = [row["gap"] for _, c in found for row in c.rows]
    open_ = sum(not row["converged"] for _, c in found for row in c.rows)
    tol = cell.rows[0]["tol"]
    note = f"Widest gap over all samples in float64: {max(gaps):.2g} (tol {tol:g}); farthest preset: {cell.method}."
    if open_:
        note += f" {open_} runs stopped with an open gap."
        return STATEMENTS["dsgd/elimination-optimum"].said(problem, f"{worst:.1e}", "fails", note)
    return STATEMENTS["dsgd/elimination-optimum"].judged(problem, exact(worst), note)


def _fewer_values(summary: EliminationSummary, problem: str) -> Claim:
    base, auto = summary.cell(problem, "none", "small"), summary.cell(problem, "auto", "small")
    if base is None or auto is None:
        return STATEMENTS["dsgd/elimination-values"].not_run(problem, "Needs auto and the small cache.")
    values, seconds = _inverse(auto.ratio(base, "kernel_evaluations")), _inverse(auto.ratio(base, "seconds"))
    if values is None or seconds is None:
        return STATEMENTS["dsgd/elimination-values"].not_run(problem, "Nothing was computed.")
    faster = ratio(base.by_repeat("seconds"), auto.by_repeat("seconds")) or Interval(1.0, 0.0, math.inf, 1)
    ours = f"{values.median:.2f}x, {faster.text('{:.2f}x'.format)}"
    note = _why(base, auto, auto.ratio(base, "kernel_evaluations"))
    least = base.least_values()
    if least is not None:
        limit = base.median("kernel_evaluations") / least
        note += f" The proof alone needs as many values as leave {limit:.1f}x at most"
        note += (
            ": the promise cannot be kept here." if limit < STATEMENTS["dsgd/elimination-values"].margin.least else "."
        )
    # Values are counted and the same in every run: if there are too many, seconds do not matter.
    verdict = _AUTO_FASTER.verdict(faster)
    if values.median < STATEMENTS["dsgd/elimination-values"].margin.least:
        verdict = "fails"
    elif _busy(base, auto):
        verdict = "undecided"
    share = base.share_of_cache()
    if share > _SMALL_CACHE:
        note = f"The promise is for a cache of 1/100 of the matrix, this one holds 1/{1 / share:.0f}. {note}"
        verdict = "not run"
    return STATEMENTS["dsgd/elimination-values"].said(problem, ours, verdict, note, baseline="1x: no elimination")


def _never_slower(summary: EliminationSummary, problem: str) -> Claim:
    ratios: list[tuple[Interval, str, bool]] = []
    for cache in summary.caches():
        base, auto = summary.cell(problem, "none", cache), summary.cell(problem, "auto", cache)
        found = ratio(auto.by_repeat("seconds"), base.by_repeat("seconds")) if base and auto else None
        if base and auto and found is not None:
            ratios.append((found, cache, _busy(base, auto)))
    if not ratios:
        return STATEMENTS["dsgd/elimination-slower"].not_run(problem, "Needs auto.")
    worst, cache, busy = max(ratios, key=lambda found: found[0].estimate)
    more = worst.mapped(lambda times: times - 1.0)
    return STATEMENTS["dsgd/elimination-slower"].judged(
        problem, more, f"Time over that of none, {cache} cache.", busy=busy
    )


def _median(stat: Stat | None) -> float:
    return stat.median if stat else 1.0


def _inverse(stat: Stat | None) -> Stat | None:
    return stat.under() if stat else None


# -- tables -------------------------------------------------------------------------------------------------------


def elimination_data_table(summary: EliminationSummary) -> Table:
    """Return what the study trained on."""
    first: dict[str, Row] = {}
    for cell in summary.cells:
        if cell.method != REFERENCE:
            first.setdefault(cell.problem, cell.rows[0])
    columns: dict[str, Callable[[Row], str]] = {
        "problem": lambda row: row["problem"],
        "what": lambda row: row["text"],
        "rows": lambda row: f"{row['rows']:,}",
        "features": lambda row: f"{row['features']:,}",
        "non-zero": lambda row: f"{row['density']:.1%}",
        "classes": lambda row: f"{row['classes']}",
        "C": lambda row: f"{row['C']:g}",
        "gamma": lambda row: f"{row['gamma']}",
        "support vectors": lambda row: f"{row['n_support'] / row['rows']:.0%}",
        "of them free": lambda row: f"{row['n_free'] / max(1, row['n_support']):.0%}",
        "source": lambda row: row["source"],
        "checksum": lambda row: row.get("checksum", "-"),
    }
    note = "Support vectors as a share of the rows; free: below C."
    return Table.of("Problems", first.values(), columns, note, n_text=2)


def elimination_table(summary: EliminationSummary, problem: str, cache: str) -> Table:
    """Return one row per method on a problem with this cache."""
    base = summary.cell(problem, "none", cache)
    cells = summary.presets(problem, cache)
    reference = summary.cell(problem, REFERENCE, cache)
    rows = [_line(cell, base) for cell in cells]
    if reference is not None:
        blank = ["-"] * 8
        rows.append(
            (reference.method, _figure(reference.median("seconds")), _ratio(reference, base, "seconds"),
             f"{reference.median('n_iter'):,.0f}", *blank)
        )  # fmt: skip
    columns = (
        "elimination", "seconds", "x none", "steps", "1e6 kernel values", "x none", "from cache", "left out",
        "came back", "renewals", "gap", "objective",
    )  # fmt: skip
    size = f", {cells[0].rows[0]['cache_mb']:g} MB" if cells else ""
    note = (
        "Medians over the repetitions; x none: median of the ratios to the run without elimination. From cache: of the "
        "values that blocks used. Left out, came back: samples, each time counted; as many came back as were left out "
        "wrongly. Objective: distance of the dual objective from that without elimination, relative."
    )
    return Table(f"{problem}, {_CACHES[cache]}{size}", columns, rows, note)


def overview_table(summary: EliminationSummary, cache: str) -> Table:
    """Return one row per problem with this cache: the savings of elimination."""
    rows: list[tuple[str, ...]] = []
    for problem in summary.problems():
        base, cells = summary.cell(problem, "none", cache), summary.presets(problem, cache)
        if base is None:
            continue
        reference, auto = summary.cell(problem, REFERENCE, cache), summary.cell(problem, "auto", cache)
        fewest = min(cells, key=lambda cell: cell.median("kernel_evaluations"))
        fastest = min(cells, key=lambda cell: cell.median("seconds"))
        distances = [distance for cell in cells if (distance := cell.distance(base)) is not None]
        least = base.least_values()
        rows.append(
            (
                problem,
                _figure(reference.median("seconds")) if reference else "-",
                _figure(base.median("seconds")),
                _figure(auto.median("seconds")) if auto else "-",
                _ratio(auto, base, "kernel_evaluations") if auto else "-",
                "-" if least is None else f"{least / base.median('kernel_evaluations'):.2f}",
                _ratio(auto, base, "seconds") if auto else "-",
                f"{fewest.method} {_ratio(fewest, base, 'kernel_evaluations')}",
                f"{fastest.method} {_ratio(fastest, base, 'seconds')}",
                f"{sum(cell.median('n_returned') for cell in cells):,.0f}",
                f"{max(distances):.0e}",
            )
        )
    columns = (
        "problem", "scikit-learn s", "none s", "auto s", "auto: values x none", "least possible", "time x none",
        "fewest values", "fastest", "came back", "objective",
    )  # fmt: skip
    note = (
        "Medians. Least possible: the values between support vectors and samples, each once, which a gap over all "
        "samples needs whatever the solver does, x none. Came back: samples left out wrongly, over all presets. "
        "Objective: the largest relative distance of a preset's dual objective from that without elimination."
    )
    return Table(f"What elimination saves, {_CACHES[cache]}", columns, rows, note)


def ranks_table(summary: EliminationSummary, ranks: Sequence[int]) -> Table:
    """Return times by ranks: measured, and simulated on these numbers of ranks."""
    rows: list[tuple[str, ...]] = []
    for problem in summary.problems():
        for solver in SOLVERS:
            methods = dict.fromkeys(
                cell.method
                for cell in summary.cells
                if cell.problem == problem and cell.solver == solver and cell.ranks is not None
            )
            for method in methods:
                cells = summary.distributed(problem, solver, method)
                base = cells[0].median("seconds")
                for cell in cells:
                    wire = cell.stat("communication_s")
                    wire_s = wire.median if wire else None
                    rows.append(_on_ranks(cell, cell.ranks, "measured", cell.median("seconds"), wire_s, base))
                for n in ranks if cells[0].ranks == 1 else ():
                    found = simulated(cells[0], n)
                    rows.append(_on_ranks(cells[0], n, "simulated", found.total_s, found.communication_s, base))
    columns = (
        "problem", "solver", "elimination", "ranks", "", "seconds", "communication", "x 1 rank", "kernel values"
    )  # fmt: skip
    note = (
        "Measured: worker processes of one thread each on this machine. Simulated: the kernel values and steps that "
        "one rank counted, divided among the ranks, and messages by the cost model (25 us, 10 Gbit/s); see "
        "dsgd.study.elimination.simulate. Waiting for the slowest rank is not in it."
    )
    return Table("Ranks", columns, rows, note, n_text=3)


def _on_ranks(
    cell: EliminationCell, ranks: int | None, how: str, seconds: float, wire_s: float | None, base: float
) -> tuple[str, ...]:
    """Return a row of `ranks_table`: seconds of the ranks, those on the wire, and their ratio to `base` seconds."""
    share = "-" if wire_s is None else f"{wire_s / seconds:.0%}"
    what = (cell.problem, cell.solver, cell.method, str(ranks), how)
    return *what, _figure(seconds), share, f"{base / seconds:.2f}", _count(cell.median("kernel_evaluations"))


def counts_of(cell: EliminationCell) -> Counts:
    """Return the counts of the runs of a cell on one rank, medians over the repetitions."""
    # Every rank gets both rows of a pair; of a block, the rows of the variables that may move, at most all active ones.
    rounds = int(cell.median("rounds"))
    sent = 2 * rounds if cell.solver == "pairwise" else rounds * min(BLOCK // 2, int(cell.median("rows")))
    return Counts(
        cell.solver,
        int(cell.median("kernel_evaluations")),
        int(cell.median("n_iter")),
        rounds,
        sent,
        int(cell.median("n_reconstructions")),
        cell.median("row_bytes"),
        cell.median("parallel_s"),
        cell.median("serial_s"),
    )


def simulated(cell: EliminationCell, ranks: int) -> SimulatedTime:
    """Return the predicted seconds on more ranks of the runs of a cell on one rank."""
    return simulate(counts_of(cell), ranks, TEN_GIGABIT)


_CACHES: Final = {"small": "small cache", "fits": "cache that fits"}


def _line(cell: EliminationCell, base: EliminationCell | None) -> tuple[str, ...]:
    distance = cell.distance(base) if base else None
    return (
        cell.method,
        _figure(cell.median("seconds")),
        _ratio(cell, base, "seconds"),
        f"{cell.median('n_iter'):,.0f}",
        _figure(cell.median("kernel_evaluations") / 1e6),
        _ratio(cell, base, "kernel_evaluations"),
        f"{cell.median('cache_share'):.0%}",
        f"{cell.median('n_eliminated'):,.0f}",
        f"{cell.median('n_returned'):,.0f}",
        f"{cell.median('n_reconstructions'):,.0f}",
        f"{cell.median('gap'):.1e}",
        "-" if distance is None else f"{distance:.0e}",
    )


def _ratio(cell: EliminationCell, base: EliminationCell | None, name: str) -> str:
    stat = cell.ratio(base, name) if base else None
    return f"{stat.median:.2f}" if stat else "-"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _count(value: float) -> str:
    return f"{value / 1e6:,.3g}e6"


# -- plots --------------------------------------------------------------------------------------------------------

_LOOKS: Final[dict[str, tuple[Colour, str, Dash]]] = {
    "none": (GREY, "plus", "dashed"),
    "single": (PURPLE, "inverted_triangle", "dotdash"),
    "multi": (BLUE, "circle", "solid"),
    "libsvm": (ORANGE, "square", "dotdash"),
    "aggressive": (VERMILION, "x", "dotted"),
    "average": (GREEN, "triangle", "dashed"),
    "conservative": (SKY, "hex", "dashed"),
    "auto": (TEXT, "diamond", "solid"),
    REFERENCE: (MUTED, "star", "dotted"),
}
_SHOWN_GAPS: Final = {"none", "multi", "libsvm", "aggressive", "auto"}
_ALL_RANKS: Final = (1, 2, 4, 8)
_SOLVERS: Final[dict[str, tuple[str, Dash]]] = {"block": ("circle", "solid"), "pairwise": ("square", "dashed")}
_HEIGHT: Final = 270


def elimination_figures(summary: EliminationSummary) -> list[Figure]:
    """Return the figures for which the study has runs."""
    makers = (_active, _gap, _work, _time, _cache, _sequential, _ranks)
    return [figure for make in makers if (figure := make(summary)).panels]


# -- curves, one panel per problem -----------------------------------------------------------------------------------


def _active(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in cells:
            points = cell.rows[0]["curve"]
            share = [active / points["n_active"][0] for active in points["n_active"]]
            colour, _, dash = _LOOKS[cell.method]
            width = 2.4 if cell.method == "auto" else 1.5
            marks.append(Line(cell.method, [s / 1000 for s in points["n_iter"]], share, colour, dash=dash, width=width))
        x = Axis("steps on two variables, thousands", low=0.0)
        panels.append(Panel(title, x, Axis("samples still active", unit="%", low=0.0, high=1.04), marks))
    caption = (
        "Share of the samples that are still active, against the steps of the solver, with the small cache. A line "
        "that falls early saves most; one that rises again had left samples out wrongly and took them back. A line "
        "ends with the run, when all samples are checked in float64."
    )
    return Figure("active", "Who stays active", caption, panels, height=_HEIGHT)


def _gap(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in [cell for cell in cells if cell.method in _SHOWN_GAPS] or cells:
            points = cell.rows[0]["curve"]
            known = [(s, gap) for s, gap in zip(points["seconds"], points["gap"], strict=True) if gap and s]
            if known:
                x, y = zip(*known, strict=True)
                colour, _, dash = _LOOKS[cell.method]
                marks.append(Line(cell.method, x, y, colour, dash=dash, width=2.4 if cell.method == "auto" else 1.5))
        marks.append(Level(cells[0].rows[0]["tol"], "tol", MUTED, "solid"))
        gap = Axis("gap among active samples", "log")
        panels.append(Panel(title, Axis("time", unit="s", low=0.0), gap, marks))
    caption = (
        "Largest violation of optimality among the active samples against seconds, with the small cache; a run ends "
        "only when it is below tol over all samples."
    )
    return Figure("gap", "How the gap closes", caption, panels, height=_HEIGHT)


def _problems(summary: EliminationSummary) -> list[tuple[str, list[EliminationCell]]]:
    """Return the cells of the presets of each problem at the smallest cache, with a title."""
    found = []
    for name in summary.problems():
        if cells := summary.presets(name, summary.tight()):
            row = cells[0].rows[0]
            found.append((f"{name}: {row['rows']:,} rows, {row['n_support'] / row['rows']:.0%} SVs", cells))
    return found


# -- dots, one line per problem --------------------------------------------------------------------------------------


def _work(summary: EliminationSummary) -> Figure:
    axis = Axis("kernel values, as a multiple of none", "log", "x")
    panels = _dots(summary, axis, _to_none(summary, "kernel_evaluations"), [Level(1.0, "none", TEXT, "solid", "x")])
    caption = "As a multiple of what the run without elimination computes. Left of the line elimination saves work."
    return _sideways(summary, "work", "Kernel values computed", caption, panels)


def _time(summary: EliminationSummary) -> Figure:
    low, high = 1 - STATEMENTS["shrinking/saved"].margin.published, 1 - STATEMENTS["shrinking/saved"].margin.least
    marks: list[Mark] = [
        Band(low, high, "published: 30 to 60 % less", along="x"),
        Level(1.0, "none", TEXT, "solid", "x"),
    ]
    panels = _dots(summary, Axis("time, as a multiple of none", "log", "x"), _to_none(summary, "seconds"), marks)
    caption = (
        "As a multiple of the run without elimination, bars from the fastest to the slowest repetition. Grey: the "
        "published 30 to 60 % less."
    )
    return _sideways(summary, "time", "Time", caption, panels)


def _to_none(summary: EliminationSummary, name: str) -> Callable[[EliminationCell], Stat | None]:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, "none", cell.cache)
        return cell.ratio(base, name) if base and cell.method != "none" else None

    return pick


def _cache(summary: EliminationSummary) -> Figure:
    axis = Axis("share of the used kernel values that were cached", unit="%", low=-0.02, high=1.02)
    panels = _dots(summary, axis, lambda cell: cell.stat("cache_share"))
    caption = (
        "Of the kernel values that blocks used, the share that was found in the cache. Fewer active samples make "
        "shorter rows, of which more fit, so with a small cache the share rises. With one that fits it falls: what is "
        "left out would have been read from the cache."
    )
    return _sideways(summary, "cache", "What the cache gives", caption, panels)


def _sequential(summary: EliminationSummary) -> Figure:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, REFERENCE, cell.cache)
        return base.ratio(cell, "seconds") if base else None

    published = STATEMENTS["shrinking/sequential"].margin.least
    marks = [
        Level(1.0, "as fast", TEXT, "solid", "x"),
        Level(published, f"published: {published:.0f}x", VERMILION, along="x"),
    ]
    panels = _dots(summary, Axis("speed-up over scikit-learn's SVC", "log", "x"), pick, marks)
    caption = (
        "Speed-up over scikit-learn's SVC, which is LIBSVM on one thread with its own shrinking, at the same tolerance "
        "and cache."
    )
    return _sideways(summary, "sequential", "Against the sequential baseline", caption, panels)


def _sideways(summary: EliminationSummary, name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure:
    """Return a figure with a line for each problem, and a panel for each cache."""
    return Figure(name, title, caption, panels, 2, 90 + 46 * len(summary.problems()), "xy")


def _dots(
    summary: EliminationSummary, axis: Axis, pick: Callable[[EliminationCell], Stat | None], behind: Sequence[Mark] = ()
) -> list[Panel]:
    """Return a panel per cache, a band per problem, and in it a dot per preset with its range over repetitions."""
    problems = summary.problems()
    found = [
        (cell, stat)
        for problem in problems
        for cache in summary.caches()
        for cell in summary.presets(problem, cache)
        if (stat := pick(cell)) is not None
    ]
    methods = [method for method in PRESETS if any(cell.method == method for cell, _ in found)]
    side = Axis(
        ticks={float(n): name for n, name in enumerate(problems)}, low=-0.5, high=len(problems) - 0.5, grid=False,
        reverse=True,
    )  # fmt: skip
    panels = []
    for cache in summary.caches() if found else ():
        marks: list[Mark] = [Band(n - 0.5, n + 0.5) for n in range(0, len(problems), 2)]
        marks += behind
        for number, method in enumerate(methods):
            chosen = [(cell, stat) for cell, stat in found if (cell.cache, cell.method) == (cache, method)]
            offset = 0.72 * ((number + 0.5) / len(methods) - 0.5)
            colour, marker, _ = _LOOKS[method]
            if chosen:
                marks.append(
                    Line(
                        method,
                        [stat.median for _, stat in chosen],
                        [problems.index(cell.problem) + offset for cell, _ in chosen],
                        colour,
                        marker,
                        width=0.0,
                        size=8.0,
                        ranges=[(stat.low, stat.high) for _, stat in chosen],
                        ranges_along="x",
                        names=[f"{method} on {cell.problem}" for cell, _ in chosen],
                    )
                )
        panels.append(Panel(summary.cache_text(cache), axis, side, marks))
    return panels


# -- ranks -----------------------------------------------------------------------------------------------------------


def _ranks(summary: EliminationSummary) -> Figure:
    """Draw a panel per problem: seconds against ranks, full dots measured, rings simulated."""
    panels = []
    for problem in summary.problems():
        marks: list[Mark] = []
        for solver in SOLVERS:
            marker, dash = _SOLVERS[solver]
            for method in PRESETS:
                cells = summary.distributed(problem, solver, method)
                if not cells:
                    continue
                colour, label = _LOOKS[method][0], f"{solver}, {method}"
                if cells[0].ranks == 1:
                    seconds = [simulated(cells[0], ranks).total_s for ranks in _ALL_RANKS]
                    marks.append(
                        Line(f"{label}, simulated", _ALL_RANKS, seconds, colour, marker, "dotted", 1.4, hollow=True)
                    )
                ranks = [cell.ranks or 1 for cell in cells]
                marks.append(Line(label, ranks, [cell.median("seconds") for cell in cells], colour, marker, dash))
        if marks:
            panels.append(Panel(problem, period_axis("ranks", _ALL_RANKS), Axis("time", "log", "s"), marks))
    caption = (
        "Seconds against ranks. Full: measured, one thread per rank. Rings: simulated from what one rank counted, "
        "kernel values divided among the ranks and messages by the cost model; waiting is not in it."
    )
    return Figure("ranks", "More ranks", caption, panels, height=_HEIGHT)


# -- report -------------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    summary = summarise(rows)
    claims = check_elimination_claims(summary)
    ranks = ranks_table(summary, study.simulated_ranks)
    overviews = [overview_table(summary, cache) for cache in summary.caches()]
    tables = [
        elimination_table(summary, problem, cache) for problem in summary.problems() for cache in summary.caches()
    ]
    shown = [table for table in (*overviews, ranks) if table.rows]
    names = ("seconds", "kernel_evaluations", "n_iter", "n_eliminated", "n_returned", "n_reconstructions", "gap")
    keys = ("problem", "method", "cache", "solver", "ranks")
    return {
        "answer": _answer(summary, claims),
        "ran": [
            ("Grid", _grid(study)),
            ("Solver", f"tol {study.tol:g}, kernel exp(-gamma ||x - z||²), {_threads(study)}"),
        ],
        "highlights": _highlights(summary, claims),
        "doubts": _once(rows),
        "data": [elimination_data_table(summary)],
        "claims": claims,
        "source": (
            f"The speed-ups are those of the abstracts of {SOURCES['shrinking'].reference}, from up to thousands of "
            "MPI processes. Tables and settings behind them were not at hand. The sequential baseline here is "
            "scikit-learn's SVC."
        ),
        "figures": elimination_figures(summary),
        "tables": shown,
        "details": [table for table in tables if table.rows],
        "terminal": [*shown, *(tables if len(summary.problems()) == 1 else ())],
        "facts": {
            "cells": [
                {**picked(cell, *keys), "repeats": len(cell.rows), **cell.medians(*names)} for cell in summary.cells
            ]
        },
    }


@dataclass(frozen=True)
class _Gains:
    """The savings of auto with a small cache, a figure per problem."""

    values: list[float]
    seconds: list[float]
    single: list[float]
    wrong: float
    out: float


def _gains(summary: EliminationSummary) -> _Gains:
    values, seconds, single, wrong, out = [], [], [], 0.0, 0.0
    for problem in summary.problems():
        base, auto = summary.cell(problem, "none", "small"), summary.cell(problem, "auto", "small")
        reference = summary.cell(problem, REFERENCE, "small")
        if base is None or auto is None:
            continue
        less, faster = auto.ratio(base, "kernel_evaluations"), auto.ratio(base, "seconds")
        if less is not None and faster is not None:
            values.append(less.median)
            seconds.append(faster.median)
        if reference is not None and (times := reference.ratio(auto, "seconds")) is not None:
            single.append(times.median)
        for cell in summary.presets(problem, "small"):
            wrong += cell.median("n_returned")
            out += cell.median("n_eliminated")
    return _Gains(values, seconds, single, wrong, out)


def _highlights(summary: EliminationSummary, claims: Sequence[Claim]) -> list[tuple[str, str]]:
    """Return ranges over the problems, with a small cache."""
    gains = _gains(summary)
    found = [
        (f"{span_of(numbers, form)}x", text)
        for numbers, form, text in (
            (gains.values, "{:.2f}", "the kernel values of a run without elimination"),
            (gains.seconds, "{:.2f}", "the time of a run without elimination"),
            (gains.single, "{:.1f}", "as fast as scikit-learn's SVC"),
        )
        if numbers
    ]
    return [*found, (tally(claims), "claims hold here")]


def _answer(summary: EliminationSummary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two."""
    gains, count = _gains(summary), f"{tally(claims)} claims hold here."
    if not gains.values:
        return f"This study did not run both none and auto with a small cache. {count}"
    same = [claim.holds for claim in claims if claim.holds is not None and claim.name.startswith("Every preset")]
    every = "Every" if same and all(same) else "Not every"
    text = (
        f"With the small cache, elimination (auto) computed {span_of(gains.values, '{:.2f}')} times the kernel values "
        f"of a run without it, in {span_of(gains.seconds, '{:.2f}')} times the time. {every} preset ended at the same "
        f"optimum; {gains.wrong:,.0f} of {gains.out:,.0f} samples left out, over all presets, had to come back. "
    )
    if gains.single:
        text += f"Against scikit-learn's single thread auto was {span_of(gains.single, '{:.1f}')} times as fast. "
    return text + count


def _grid(study: Study) -> str:
    return (
        f"presets {', '.join(_presets(study.presets))}; cache {' and '.join(study.caches)} (small: "
        f"{study.cache_share:.0%} of the kernel matrix in float32); "
        f"{study.repeats} repetition{'s' * (study.repeats > 1)}"
    )


def _threads(study: Study) -> str:
    return "all threads" if study.n_threads is None else f"{study.n_threads} thread{'s' * (study.n_threads > 1)}"


def _once(rows: Sequence[Row]) -> list[str]:
    text = "Every run was made once: seconds vary from run to run by tens of per cent, counts do not."
    return [] if max(row["repeat"] for row in rows) else [text]


_SIZES: Final = {
    "clean": 5_000, "noisy": 5_000, "checkerboard": 8_000, "free-svs": 3_000, "a9a": 5_000, "w8a": 5_000,
    "ijcnn1": 8_000, "covtype": 4_000, "mnist": 4_000, "usps": 2_500,
}  # fmt: skip


def _check(study: Study) -> None:
    names = [problem.name for problem in study.problems]
    if len(set(names)) < len(names):
        raise InvalidParameterError(f"the study elimination: problems names one twice: {', '.join(names)}.")
    if not 0 < study.cache_share < 1:
        raise InvalidParameterError(f"the study elimination: cache_share={study.cache_share} must lie between 0 and 1.")


#: The study. It includes the run without elimination always, the baseline of the others.
STUDY: Final = Study(
    "elimination",
    "What does sample elimination save in a kernel SVM?",
    ("shrinking",),
    options={
        "problems": Option(
            tuple(PROBLEMS.values()),
            demo=tuple(replace(PROBLEMS[name], rows=rows) for name, rows in _SIZES.items()),
        ),
        "presets": Option(
            PRESETS, "Values of elimination, as multi,auto.", choices=PRESETS, may_be_empty=True
        ),
        # "fits": the whole kernel matrix; "small": the share `cache_share` of it in float32.
        "caches": Option(
            ("small", "fits"), "small, fits or small,fits.", words=True, flags=("--cache",), choices=("small", "fits")
        ),
        "cache_share": Option(0.1, "The small cache, as a share of the kernel matrix.", demo=0.01),
        "ranks": Option(
            (1, 2), "Worker processes of the distributed runs, as 1,2; none for none.", numbers=True, least=1,
            may_be_empty=True,
        ),
        "simulated_ranks": Option(
            (4, 8), "Ranks whose times are computed from counts, as 4,8; none for none.", flags=("--simulated",),
            numbers=True, least=1, may_be_empty=True,
        ),
        "rank_problems": Option(("clean", "noisy", "a9a"), may_be_empty=True, demo=("clean",)),
        "rank_presets": Option(("none", "multi"), choices=PRESETS, may_be_empty=True),
        "rank_repeats": Option(1, least=1),
        "repeats": Option(3, "Repetitions of each run.", least=1, demo=2),
        "n_threads": Option(
            None, "Threads of the runs in this process; all by default.", number=True, flags=("--threads",),
            panel="The machine",
        ),
        "tol": Option(1e-3, "Tolerance of the gap.", panel="The machine", above=0),
        "with_reference": Option(True, "Run scikit-learn's SVC too.", flags=("--reference/--no-reference",)),
    },
    grids=[
        Grid(
            lambda s: {
                "dataset": s.problems, "repeat": range(s.repeats), "cache": s.caches, "_turn": range(len(_methods(s))),
            },
            _measure, ("tol",), derive=_decides, load=_load,
        ),
        Grid(
            lambda s: {
                "ranks": sorted(s.ranks), "dataset": [one for one in s.problems if one.name in s.rank_problems],
                "repeat": range(min(s.repeats, s.rank_repeats)), "solver": SOLVERS,
                "_turn": range(len(_presets(s.rank_presets))),
            },
            _measure, ("tol",), derive=_decides, load=_load,
            workers=lambda run: run.ranks if run.ranks > 1 else 0,  # one rank is this process
        ),
    ],
    report=_report,
    about="Real sets that are not on this machine are left out.",
    examples=(
        "dsgd study elimination --demo --out demo/",
        "dsgd study elimination --problem a9a --problem clean --repeats 5 --out study/",
        "dsgd study elimination --problem covtype --rows 10000 --presets multi,auto --cache small --out study/",
    ),
    columns=("problem",),
    check=_check,
)  # fmt: skip
