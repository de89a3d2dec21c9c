"""Running the study of automatic periods.

The speed of a shared machine changes from minute to minute, so the policies of a seed take turns, fit by fit. A period
whose first epoch takes far longer than the best of the others needs to reach the target is not the best one, so its
later epochs are not run. Nor are those between the target and the end, where only the accuracy matters. This saves most
of the time of the study and changes none of its results.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dsgd.estimators import SGDClassifier
from dsgd.ledger import PHASES
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.data import StudyData, load_or_keep, place
from dsgd.study.frame.measure import objective, score
from dsgd.study.frame.missing import MissingData
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record
from dsgd.study.frame.workers import cluster_where, place_name
from dsgd.study.tuning.grid import SEQUENTIAL, TuningRun, TuningStudy
from dsgd.study.tuning.summary import targets_of

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_tuning_study"]

# A first epoch may take this multiple of the fastest time to the target before the later ones are skipped.
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
    """Make the missing runs of a study; yield every run: by datasets, those of one rank, then seeds, policies.

    Parameters and errors are those of `dsgd.study.run_study`.
    The runs of a seed are finished together.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    loaded = [load_or_keep(source, study.dtype, record.rows()) for source in study.data]
    grids = [(data, study.runs(data.name, len(data.y), len(data.y_test))) for data in loaded]
    needed = study.network is None and not all(
        isinstance(data, MissingData) or record.has(specs) for data, specs in grids
    )
    with cluster_where(needed, study.ranks, scheduler) as client:
        for data, specs in grids:
            if isinstance(data, MissingData):
                yield from record.kept(specs)
            else:
                yield from _run_placed(client, data, specs, record)


def _run_placed(client: Client | None, data: StudyData, specs: list[TuningRun], record: Record) -> Iterator[StudyRun]:
    """Run the policies on one dataset."""
    study, described, blocks = specs[0].study, data.describe(), None

    def alone(missing: list[TuningRun]) -> Iterator[Row]:
        for spec in missing:
            curve = _Curve(spec, None, data, None)
            curve.look(study.target_epochs)
            yield {**described, **curve.as_row()}

    def by_turns(missing: list[TuningRun]) -> list[Row]:
        nonlocal blocks
        where = client if study.network is None else SimulatedCluster(study.ranks, study.network)
        if blocks is None and where is not None:
            blocks, _ = place(where, (data.X, data.y), study.ranks, "shuffled")
            if client is not None:  # loading compiled code is in no timing
                _model(missing[0], client, 1).fit(blocks, None)
        curves = _by_turns([_Curve(spec, where, data, blocks) for spec in missing], targets[missing[0].seed])
        return [{**described, **curve.as_row()} for curve in curves]

    first = []
    for run in record.finish([spec for spec in specs if spec.policy == SEQUENTIAL], alone):
        first.append(run.row)
        yield run
    targets = targets_of(first)
    for seed in study.seeds:
        together = [spec for spec in specs if spec.seed == seed and spec.policy != SEQUENTIAL]
        yield from record.finish(together, by_turns)


def _by_turns(curves: list[_Curve], target: float) -> list[_Curve]:
    """Train all policies of a seed for each point of their curves, by turns; return them."""
    study, going = curves[0].spec.study, curves
    # A virtual clock shows the same every time.
    repeats = 1 if study.network is not None else study.repeats
    *looks, last = study.looks()
    for epochs in [*looks, *[last] * repeats]:
        for curve in going:
            if epochs == last or curve.objective > target:
                curve.look(epochs)
        fastest = study.target_epochs * min(curve.first_s for curve in curves)
        if epochs == study.looks()[0] and study.network is None:  # a machine may stall for a moment
            for curve in going:
                if curve.first_s > curve.patience * fastest:
                    curve.look(epochs)
        going = [curve for curve in going if curve.first_s <= curve.patience * fastest]
    return curves


class _Curve:
    """The quality of the models of a run after some epochs, and their seconds.

    Each point is a separate training run, because the quality of a model is known only at the end of training.

    Parameters
    ----------
    spec : TuningRun
        The run.
    where : Client, SimulatedCluster or None
        Where it is trained.
    data : StudyData
        The set.
    blocks : object
        Its rows if they have been placed, else None.
    """

    def __init__(self, spec: TuningRun, where: Client | SimulatedCluster | None, data: StudyData, blocks: Any) -> None:
        self.spec, self._where, self._data, self._blocks = spec, where, data, blocks
        self._worth: dict[int, list[float]] = {}
        self._seconds: dict[int, list[float]] = {}
        self._accuracies: list[float] = []
        self._model = _model(spec, where, 1)
        self.patience = _SLOW_PERIOD if spec.every is not None else _SLOW_RULE

    @property
    def objective(self) -> float:
        """The training objective at the last evaluation, infinite before the first."""
        return statistics.fmean(self._worth[max(self._worth)]) if self._worth else math.inf

    @property
    def first_s(self) -> float:
        """Seconds of the first epoch, at best."""
        return min(self._seconds[1])

    def look(self, epochs: int) -> None:
        """Train for so many epochs."""
        study, data = self.spec.study, self._data
        self._model = model = _model(self.spec, self._where, epochs)
        model.fit(data.X, data.y) if self._blocks is None else model.fit(self._blocks, None)
        for record in model.fit_report_["epochs"]:
            self._seconds.setdefault(record["epoch"], []).append(record["seconds"])
        if epochs not in self._worth:
            self._accuracies = []
        worth = objective(model, data.X, data.y, loss=study.loss, alpha=study.alpha)
        self._worth.setdefault(epochs, []).append(worth)
        test = score(model, data.X_test, data.y_test)["accuracy"]
        self._accuracies.append(float(test) if test is not None else math.nan)

    def as_row(self) -> Row:
        """Return the contents of the row of the run."""
        curve = [
            # From the first sample to the end of the epoch, on the first rank.
            {"epoch": e, "seconds": statistics.median(self._seconds[e]), "objective": statistics.fmean(self._worth[e])}
            for e in sorted(self._worth)
        ]
        totals = self._model.ledger_.totals()
        spent = sum(totals[f"{phase}_s"] for phase in PHASES)
        return {
            "curve": curve,
            "complete": curve[-1]["epoch"] >= self.spec.study.epochs,
            "test_accuracy": statistics.fmean(self._accuracies),
            "share": (totals["wire_s"] + totals["wait_s"]) / spent if spent else 0.0,
            "rounds": int(totals["rounds"]),
            "periods": self._model.sync_history_,
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
