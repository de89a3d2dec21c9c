"""Running the study of strategies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsgd.errors import DsgdError
from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison.training import DivergedError, Held, looks, train_curve
from dsgd.study.frame.data import StudyData, load_or_keep
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, by_ranks, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.study.strategies.grid import StrategyRun, StrategyStudy

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
    ranks in the middle of a run are not what training returns. A strategy that diverges raises `DsgdError`.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    loaded = [load_or_keep(source, study.dtype, record.rows()) for source in study.data]
    yield from run_grids(record, by_ranks(study, loaded, study.network), _measure, scheduler)


def _measure(client: Client | None, data: StudyData, runs: Sequence[StrategyRun]) -> Iterator[Row]:
    """Train the strategies on one dataset and one number of ranks; yield what rows say of them."""
    described, first = data.describe(), runs[0]
    held = Held(client or _simulated(first), data, first.ranks, first.study.partition)
    for run in runs:
        yield {**described, **_train(run, held if client else replace(held, where=_simulated(run)))}


def _simulated(spec: StrategyRun) -> SimulatedCluster:
    assert spec.study.network is not None  # only simulated ranks have no client
    return SimulatedCluster(spec.ranks, spec.study.network, stragglers=spec.study.stragglers, seed=spec.seed)


def _train(spec: StrategyRun, held: Held) -> Row:
    """Train a strategy for each point of its curve; return what the row says of it."""
    study = spec.study
    model = SGDClassifier(
        loss=study.loss,
        alpha=study.alpha,
        learning_rate=spec.schedule,
        eta0=spec.eta0,
        tol=None,
        random_state=spec.seed,
        sync=spec.strategy,
    )
    try:
        return train_curve(model, held, looks(study.epochs))
    except DivergedError as error:
        raise DsgdError(f"{spec.name} on {spec.ranks} ranks: {error} Leave it out, or lower --eta0.") from error
