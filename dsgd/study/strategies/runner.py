"""Running the study of strategies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsgd.errors import DsgdError, InvalidDataError
from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.data import StudyData, load_data, place
from dsgd.study.frame.measure import objective, point, score, spent
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, by_ranks, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.study.strategies.grid import StrategyRun, StrategyStudy, family, looks

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_strategy_study"]


def run_strategy_study(
    study: StrategyStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: by ranks, datasets, seeds, strategies.

    Parameters and errors are those of `dsgd.study.run_study`.

    Every point of a curve is a separate training run from the same start and with the same seed, because the models of
    ranks in the middle of a run are not what training returns. A strategy that diverges raises `dsgd.DsgdError`.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    loaded = [load_data(source, study.dtype) for source in study.data]
    yield from run_grids(record, by_ranks(study, loaded, study.network), _measure, scheduler)


def _measure(client: Client | None, data: StudyData, runs: Sequence[StrategyRun]) -> Iterator[Row]:
    """Train the strategies on one dataset and one number of ranks; yield the contents of the rows."""
    described = data.describe()
    blocks = place(client or _simulated(runs[0]), data.X, data.y, runs[0].ranks, runs[0].study.partition)
    for run in runs:
        yield {**described, **_train(client, data, blocks, run)}


def _simulated(spec: StrategyRun) -> SimulatedCluster:
    assert spec.study.network is not None  # only simulated ranks have no client
    return SimulatedCluster(spec.ranks, spec.study.network, stragglers=spec.study.stragglers, seed=spec.seed)


def _train(client: Client | None, data: StudyData, blocks: list[Any], spec: StrategyRun) -> Row:
    """Train a strategy for each point of its curve; return the contents of its row."""
    study = spec.study
    model = SGDClassifier(
        loss=study.loss,
        alpha=study.alpha,
        learning_rate=spec.schedule,
        eta0=spec.eta0,
        tol=None,
        random_state=spec.seed,
        sync=spec.strategy,
        client=client or _simulated(spec),
        n_jobs=spec.ranks,
    )
    curve = []
    try:
        if client is not None:
            # Timings exclude loading compiled code.
            model.set_params(max_iter=1).fit(blocks, None)
        for epoch in looks(study.epochs):
            model.set_params(max_iter=epoch).fit(blocks, None)
            worth = objective(model, data.X, data.y, loss=study.loss, alpha=study.alpha)
            curve.append({**point(model, epoch), "objective": worth})
    except InvalidDataError as error:
        raise DsgdError(f"{spec.name} on {spec.ranks} ranks: {error} Leave it out, or lower --eta0.") from error
    test = score(model, data.X_test, data.y_test)
    return {
        "family": family(spec.strategy),
        "test_accuracy": test["accuracy"],
        "balanced_accuracy": test["balanced_accuracy"],
        "objective": curve[-1]["objective"],
        "train_s": curve[-1]["seconds"],
        **spent(model),
        "curve": curve,
    }
