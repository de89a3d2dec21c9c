"""Running the study of the period, on real worker processes or simulated ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.data import StudyData, load_or_keep, place
from dsgd.study.frame.measure import objective, score, spent
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, by_ranks, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.study.msf.grid import RunSpec, Study
from dsgd.sync import EpochAveraging, LocalSGD

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_study"]


def run_study(
    study: Study,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run of the grid when it is finished.

    For each number of ranks a cluster of that many worker processes of one thread each is started on this machine and
    closed again. The rows of a dataset are sent to its workers once and stay there for all runs. A short fit precedes
    the first timed one, so timings exclude loading compiled code. Simulated ranks need no workers.

    Parameters
    ----------
    study : Study
        What to run.
    out : str or path-like
        Folder of the study; rows go to ``rows.jsonl`` in it.
    scheduler : str, optional
        Address of an existing cluster; its workers should have one thread each.
    force : bool, default False
        Repeat all runs.
    command : str, optional
        The command recorded in rows; the command line of this process by default.

    Yields
    ------
    StudyRun
        In the order of ranks, datasets, seeds, periods.

    Raises
    ------
    ClusterUnreachableError
        No scheduler answers at the address.
    ClusterError
        The cluster has fewer workers than ranks.
    DatasetError
        A dataset can be neither found nor generated.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    loaded = [load_or_keep(source, study.dtype, record.rows()) for source in study.data]
    yield from run_grids(record, by_ranks(study, loaded, study.network), _measure, scheduler)


def _measure(client: Client | None, data: StudyData, runs: Sequence[RunSpec]) -> Iterator[Row]:
    """Train on one dataset and one number of ranks; yield the contents of the rows."""
    study, described = runs[0].study, data.describe()
    where = client or SimulatedCluster(runs[0].ranks, study.network or "InfiniBand")
    blocks, _ = place(where, (data.X, data.y), runs[0].ranks, study.partition)
    # Loading compiled code is in no timing.
    _model(runs[0], where, max_iter=1).fit(blocks, None)
    for run in runs:
        model = _model(run, where, max_iter=study.epochs).fit(blocks, None)
        yield {**described, **_worth(model, data, study), **_cost(model)}


def _model(spec: RunSpec, where: Client | SimulatedCluster, *, max_iter: int) -> SGDClassifier:
    study = spec.study
    return SGDClassifier(
        loss=study.loss,
        alpha=study.alpha,
        learning_rate=study.schedule,
        fit_intercept=study.fit_intercept,
        max_iter=max_iter,
        tol=None,
        random_state=spec.seed,
        # One rank has no peers: its epochs are not cut into rounds.
        sync=EpochAveraging() if spec.every is None else LocalSGD(every=spec.every),
        n_jobs=spec.ranks,
        client=where,
        # Messages over TCP, as in the published study: on one host rounds would otherwise run inside one compiled loop,
        # where a synchronisation costs almost nothing and there is little to save.
        transport="auto" if isinstance(where, SimulatedCluster) else "tcp",
    )


def _worth(model: SGDClassifier, data: StudyData, study: Study) -> dict[str, float | None]:
    """Return the quality of the averaged model."""
    test, train = score(model, data.X_test, data.y_test), score(model, data.X, data.y)
    return {
        "test_accuracy": test["accuracy"],
        "balanced_accuracy": test["balanced_accuracy"],
        "f1": test["f1"],
        "train_accuracy": train["accuracy"],
        "objective": objective(model, data.X, data.y, loss=study.loss, alpha=study.alpha),
    }


def _cost(model: SGDClassifier) -> dict[str, Any]:
    """Return the costs of the run: seconds by phase and bytes (summed over ranks), memory, and the curve."""
    report: dict[str, Any] = model.fit_report_
    curve = [
        {name: record[name] for name in ("epoch", "seconds", "train_loss", "dispersion")} for record in report["epochs"]
    ]
    return {
        # From the first sample to the last synchronisation, on the first rank; placing the data is in elapsed_s only.
        "train_s": curve[-1]["seconds"],
        "elapsed_s": report["elapsed_s"],
        **spent(model),
        "dispersion": curve[-1]["dispersion"],
        "peak_rss_bytes": int(report["peak_rss_bytes"]),
        "curve": curve,
    }
