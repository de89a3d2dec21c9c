"""The study of elimination: what sample elimination saves in a kernel SVM, and what it costs.

Every repetition begins with another method, so that methods take turns and change places. `dsgd.study.svm_rounds`
predicts thousands of ranks phase by phase.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as ReferenceSVC  # noqa: N811

from dsgd.errors import DatasetError, InvalidParameterError
from dsgd.study import elimination_report as said
from dsgd.study.frame.data import MissingData, place
from dsgd.study.frame.rows import Row, Run
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import SOURCES
from dsgd.study.svm_problems import PROBLEMS, Problem, ProblemData, load_problem
from dsgd.svm import SVC, EliminationRecord
from dsgd.types import FloatMatrix

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["STUDY"]

# -- measuring -----------------------------------------------------------------------------------------------------

_WARM_UP_STEPS = 500


def _presets(chosen: Sequence[str]) -> list[str]:
    """Return presets in their usual order, the one without elimination first."""
    return [preset for preset in said.PRESETS if preset == "none" or preset in chosen]


def _methods(study: Study) -> list[str]:
    return [*_presets(study.presets), *([said.REFERENCE] if study.with_reference else [])]


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
    if run.method == said.REFERENCE:
        return row | {"converged": model.fit_status_ == 0}
    histories = model.elimination_history_
    if run.ranks is not None:  # from the first step to the proof, without placing rows and starting the job
        row["seconds"] = seconds = sum(history[-1].seconds for history in histories)
    if client is not None:
        totals = model.ledger_.totals()
        row["communication_s"] = sum(totals[f"{phase}_s"] for phase in ("encode", "wire", "wait")) / (run.ranks or 1)
        row |= {name: int(totals[name]) for name in ("bytes_sent", "control_bytes_sent")}
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
        "n_free": _count_free(model, data.problem.C),
        "curve": curve(histories),
    }


def _model(run: Run, method: str, problem: Problem, client: Client | None) -> Any:
    shared: dict[str, Any] = {"C": problem.C, "gamma": problem.gamma, "tol": run.tol, "cache_size": run.cache_mb}
    if method == said.REFERENCE:
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


# -- measure ------------------------------------------------------------------------------------------------------

#: Columns of a curve: steps, seconds, active samples, gap among them, rows found in the cache, kernel values computed.
CURVE_COLUMNS: Final = ("n_iter", "seconds", "n_active", "gap", "cache_hits", "kernel_evaluations")
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


# -- report --------------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    summary = said.summarise(rows)
    claims = said.check_elimination_claims(summary)
    answer, highlights = said.elimination_answer(summary, claims)
    problems, caches = summary.problems(), summary.caches()
    overviews = [said.overview_table(summary, cache) for cache in caches]
    tables = [said.elimination_table(summary, problem, cache) for problem in problems for cache in caches]
    shown = [table for table in (*overviews, said.ranks_table(summary)) if table.rows]
    grid = (
        f"presets {', '.join(_presets(study.presets))}; cache {' and '.join(study.caches)} (small: "
        f"{study.cache_share:.0%} of the kernel matrix in float32); "
        f"{study.repeats} repetition{'s' * (study.repeats > 1)}"
    )
    threads = "all threads" if study.n_threads is None else f"{study.n_threads} thread{'s' * (study.n_threads > 1)}"
    once = "Every run was made once: seconds vary from run to run by tens of per cent, counts do not."
    return {
        "answer": answer,
        "ran": [("Grid", grid), ("Solver", f"tol {study.tol:g}, kernel exp(-gamma ||x - z||²), {threads}")],
        "highlights": highlights,
        "doubts": [] if max(row["repeat"] for row in rows) else [once],
        "data": [said.problems_table(summary)],
        "claims": claims,
        "source": (
            f"The speed-ups are those of the abstracts of {SOURCES['shrinking'].reference}, from up to thousands of "
            "MPI processes. Tables and settings behind them were not at hand. The sequential baseline here is "
            "scikit-learn's SVC."
        ),
        "figures": said.elimination_figures(summary),
        "tables": shown,
        "details": [table for table in tables if table.rows],
    }


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
            said.PRESETS, "Values of elimination, as multi,auto.", choices=said.PRESETS, may_be_empty=True
        ),
        # "fits": the whole kernel matrix; "small": the share `cache_share` of it in float32.
        "caches": Option(
            ("small", "fits"), "small, fits or small,fits.", words=True, flags=("--cache",), choices=("small", "fits")
        ),
        "cache_share": Option(0.1, "The small cache, as a share of the kernel matrix.", demo=0.01),
        "ranks": Option(
            (1, 2), "Worker processes of the distributed runs, as 1,2; none for none.", least=1,
            may_be_empty=True,
        ),
        "rank_problems": Option(("clean", "noisy", "a9a"), may_be_empty=True, demo=("clean",)),
        "rank_presets": Option(("none", "multi"), choices=said.PRESETS, may_be_empty=True),
        "rank_repeats": Option(1, least=1),
        "repeats": Option(3, "Repetitions of each run.", least=1, demo=2),
        "n_threads": Option(
            None, "Threads of the runs in this process; all by default.", of=int, flags=("--threads",),
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
                "repeat": range(min(s.repeats, s.rank_repeats)), "solver": said.SOLVERS,
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
