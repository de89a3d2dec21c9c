"""Running the study of elimination."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as ReferenceSVC  # noqa: N811

from dsgd.errors import DatasetError
from dsgd.study.elimination.grid import REFERENCE, EliminationRun, EliminationStudy
from dsgd.study.elimination.measure import curve, reuse, serial_seconds
from dsgd.study.elimination.problems import Problem, ProblemData, load_problem
from dsgd.study.frame.data import place
from dsgd.study.frame.missing import MissingData
from dsgd.study.frame.rows import ROWS_FILE, Row, StudyRun, read_rows
from dsgd.study.frame.runner import Record, run_grids
from dsgd.svm import SVC

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["find_problems", "run_elimination_study"]

_WARM_UP_STEPS = 500


def find_problems(
    study: EliminationStudy, out: str | os.PathLike[str] | None = None
) -> tuple[EliminationStudy, list[ProblemData | MissingData], list[str]]:
    """Load what a study trains on.

    Parameters
    ----------
    study : EliminationStudy
        The study.
    out : str or path-like, optional
        Its folder: of problems that are not on this machine and that have been measured there, the rows are kept.

    Returns
    -------
    study : EliminationStudy
        The same, with the available problems and their actual numbers of rows.
    data : list of ProblemData or MissingData
        Their rows, or what is left of them.
    skipped : list of str
        Why others are not there, and of which only rows are; if none is there a `DatasetError` says so.
    """
    measured = [] if out is None else read_rows(Path(out) / ROWS_FILE)
    problems, skipped, absent = list[Problem](), list[str](), dict[str, DatasetError]()
    data: list[ProblemData | MissingData] = []
    for problem in study.problems:
        try:
            found = load_problem(problem)
        except DatasetError as error:
            sizes = [row["rows"] for row in measured if row["problem"] == problem.name and row["rows"] <= problem.rows]
            if not sizes:
                absent[problem.name] = error
                continue
            skipped.append(f"{problem.name} is not here, and only what was measured before is kept: {error}")
            data.append(MissingData(problem.name, range(max(sizes)), ()))
            problems.append(replace(problem, rows=max(sizes)))
        else:
            data.append(found)
            problems.append(found.problem)
    if absent:
        skipped.append(_left_out(absent))
    if not data:
        raise DatasetError("; ".join(skipped))
    return replace(study, problems=tuple(problems)), data, skipped


def _left_out(absent: Mapping[str, DatasetError]) -> str:
    """Return the sentence on problems that are not on this machine."""
    *others, last = absent
    if not others:
        return f"{last} is left out: {absent[last]}"
    return f"{', '.join(others)} and {last} are left out. Of the first: {absent[others[0]]}"


def run_elimination_study(
    study: EliminationStudy,
    data: Sequence[ProblemData | MissingData],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the missing runs of a study; yield every run: those in this process, then by ranks and problems.

    Study and data are what `find_problems` returned; the others are those of `dsgd.study.run_study`. An untimed fit
    precedes the first timed one of a problem, so timings exclude loading compiled code.
    """
    record = Record(out, force=force, command=command)
    pairs = list(zip(data, study.problems, strict=True))
    grids = [(0, [(found, study.runs(problem)) for found, problem in pairs])]
    # One rank is this process.
    grids += [
        (ranks if ranks > 1 else 0, [(found, study.rank_runs(problem, ranks)) for found, problem in pairs])
        for ranks in sorted(set(study.ranks))
    ]
    yield from run_grids(record, grids, _measure)


def _measure(client: Client | None, data: ProblemData, runs: Sequence[EliminationRun]) -> Iterator[Row]:
    """Train on one problem; yield the contents of the rows."""
    described, warm = data.describe(), set[str]()
    blocks: list[Any] | None = None
    if client is not None:
        blocks, _ = place(client, (data.X, data.y), runs[0].ranks or 1, "shuffled")
    for run in runs:
        if run.solver not in warm:
            _warm_up(run, data, client, blocks)
            warm.add(run.solver)
        yield {**described, **_fit(run, data, client, blocks)}


def _fit(run: EliminationRun, data: ProblemData, client: Client | None, blocks: list[Any] | None) -> dict[str, Any]:
    """Train once; return seconds and counts."""
    model = _model(run, client)
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
    n_free = _count_free(model, run.problem.C)
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


def _model(run: EliminationRun, client: Client | None) -> Any:
    shared: dict[str, Any] = {
        "C": run.problem.C,
        "gamma": run.problem.gamma,
        "tol": run.study.tol,
        "cache_size": run.study.cache_mb(run.cache, run.problem.rows),
    }
    if run.method == REFERENCE:
        return ReferenceSVC(**shared)
    jobs = run.threads if client is None else run.ranks
    return SVC(**shared, elimination=run.method, solver=run.solver, client=client, n_jobs=jobs)


def _warm_up(run: EliminationRun, data: ProblemData, client: Client | None, blocks: list[Any] | None) -> None:
    """Fit once like the first timed run, so that compiled code, threads and memory are ready for all methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        X, y = (data.X, data.y) if blocks is None else (blocks, None)
        model = _model(replace(run, method="multi"), client)
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
