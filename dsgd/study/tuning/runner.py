"""Running a study of the period: one row per set, policy and seed, written as it is made.

A period whose first epoch takes far longer than the best of the others takes to the target cannot be the best one: its
later epochs are not run. On a wire of tens of microseconds that spares the study most of its time, and none of its
results.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.data import StudyData, load_data, place
from dsgd.study.measure import objective, score
from dsgd.study.record import Record
from dsgd.study.rows import Row, StudyRun
from dsgd.study.tuning.grid import SEQUENTIAL, TuningRun, TuningStudy
from dsgd.study.tuning.summary import seconds_to
from dsgd.study.workers import cluster_where, place_name

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_tuning_study"]

# How many times as long as the best run to the target a first epoch may take before the others are left out.
_SLOW_PERIOD: Final = 2.0
_SLOW_RULE: Final = 20.0


def run_tuning_study(
    study: TuningStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Run what of a study is not yet in its file of rows; yield every run of the grid when it is finished.

    Each point of a curve is trained from the start: what the model of a run is worth is only known when it ends.

    Parameters
    ----------
    study : TuningStudy
        What to run.
    out : str or path-like
        Folder of the study; rows go to ``rows.jsonl`` in it.
    scheduler : str, optional
        Address of a cluster that is there already; its workers should have one thread each.
    force : bool, default False
        Run everything anew.
    command : str, optional
        What rows say they were made by; the command line of this process by default.

    Yields
    ------
    StudyRun
        In the order of datasets, seeds, policies.

    Raises
    ------
    ClusterUnreachableError
        No scheduler answers at the address.
    ClusterError
        The cluster has fewer workers than ranks.
    DatasetError
        A dataset can be neither found nor made.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    loaded = [load_data(source, study.dtype) for source in study.data]
    grids = [(data, study.runs(data.name, len(data.y), len(data.y_test))) for data in loaded]
    needed = study.network is None and not all(record.has(specs) for _, specs in grids)
    with cluster_where(needed, study.ranks, scheduler) as client:
        for data, specs in grids:
            yield from _run_placed(client, data, specs, record)


def _run_placed(client: Client | None, data: StudyData, specs: list[TuningRun], record: Record) -> Iterator[StudyRun]:
    """Run the policies on one dataset."""
    described, blocks = data.describe(), None
    target = best = math.inf
    for spec in specs:
        run = record.recall(spec)
        if run is None:
            if blocks is None and client is not None:
                # As an estimator deals the rows of an array.
                blocks = place(client, data.X, data.y, spec.study.ranks, "shuffled")
                # Loading compiled code is in no timing.
                _model(spec, client, 1).fit(blocks, None)
            slow = _SLOW_PERIOD if spec.every is not None else _SLOW_RULE
            run = record.add(spec, {**described, **_measure(spec, client, data, blocks, slow * best)})
        if spec.policy == SEQUENTIAL:
            target, best = run.row["curve"][-1]["objective"], math.inf
        elif spec.every is not None:
            best = min(best, seconds_to(run.row, target))
        yield run


def _measure(spec: TuningRun, client: Client | None, data: StudyData, blocks: Any, limit_s: float) -> Row:
    """Train a policy for each point of its curve; return what the row says of it."""
    study, sequential = spec.study, spec.policy == SEQUENTIAL
    where = client if study.network is None else SimulatedCluster(study.ranks, study.network)
    looks = [study.target_epochs] if sequential else study.looks()
    worth: dict[int, list[float]] = {}
    seconds: dict[int, list[float]] = {}
    accuracies: list[float] = []
    model = _model(spec, None, 1)
    for epochs in looks:
        accuracies = []
        # A virtual clock shows the same every time.
        for _ in range(1 if sequential or study.network is not None else study.repeats):
            model = _model(spec, None if sequential else where, epochs)
            model.fit(data.X, data.y) if sequential or blocks is None else model.fit(blocks, None)
            for record in model.fit_report_["epochs"]:
                seconds.setdefault(record["epoch"], []).append(record["seconds"])
            worth.setdefault(epochs, []).append(objective(model, data.X, data.y, loss=study.loss, alpha=study.alpha))
            test = score(model, data.X_test, data.y_test)["accuracy"]
            accuracies.append(float(test) if test is not None else math.nan)
        if min(seconds[1]) > limit_s:
            break
    curve = [
        # From the first sample to the end of the epoch, on the first rank.
        {"epoch": e, "seconds": statistics.median(seconds[e]), "objective": statistics.fmean(worth[e])}
        for e in sorted(worth)
    ]
    totals = model.ledger_.totals()
    spent = sum(totals[f"{phase}_s"] for phase in ("compute", "encode", "wire", "wait"))
    return {
        "curve": curve,
        "complete": curve[-1]["epoch"] == looks[-1],
        "test_accuracy": statistics.fmean(accuracies),
        "share": (totals["wire_s"] + totals["wait_s"]) / spent if spent else 0.0,
        "rounds": int(totals["rounds"]),
        "periods": model.sync_history_,
    }


def _model(spec: TuningRun, client: Client | SimulatedCluster | None, epochs: int) -> SGDClassifier:
    study = spec.study
    return SGDClassifier(
        loss=study.loss,
        alpha=study.alpha,
        max_iter=epochs,
        tol=None,
        random_state=spec.seed,
        sync=spec.strategy,
        n_jobs=None if isinstance(client, SimulatedCluster) else spec.ranks,
        client=client,
    )
