"""Candidates of a search, and training them side by side.

Training of many models in one pass over the rows of an epoch, in threads.

Each thread has some of the panels and takes them all over a stretch of rows that a cache holds before it goes on to
the next, so rows are read from memory once an epoch, or once a thread, however many models there are. Between epochs
models stop by the rule of `fit` (`dsgd.runtime.train.decisions`), and their columns leave.

Candidates: which parameters may differ between columns, and the models that they make on each split.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.packing import Packer
from dsgd.estimators.start import check_parameters, optimizer_of
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.rows import LocalRows, Rows
from dsgd.inputs.shared import scratch_folder
from dsgd.local import SGD, Residency, Shard
from dsgd.local.blocks import Selection
from dsgd.local.columns import Column, Panel, deal, make_panels, regroup
from dsgd.local.shard import arrange, epoch_order
from dsgd.runtime.train.decisions import StopRule
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix

#: Rows that all panels of a thread visit before the next ones are read: what a core's own cache holds.
_STRETCH_BYTES: Final = 1 << 20

# A call of a kernel visits every weight once: it must be long beside that.
_ROWS_PER_WEIGHT: Final = 8


@dataclass
class Model:
    """One candidate on the training rows of one split: what is trained, when it stops, and where it is."""

    candidate: int
    split: int
    optimizer: SGD
    tol: float | None
    n_iter_no_change: int
    max_iter: int
    n_iter: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    converged: bool = field(default=False, init=False)
    problem: str = field(default="", init=False)
    coef: FloatMatrix | None = field(default=None, init=False)
    intercept: FloatVector | None = field(default=None, init=False)
    # What the stopping rule reads of a job and of a state.
    early_stopping: bool = field(default=False, init=False)
    eta_scale: float = field(default=1.0, init=False)
    rule: StopRule = field(init=False)

    def __post_init__(self) -> None:
        n = self.optimizer.n_outputs
        self.rule = StopRule([math.inf] * n, [0] * n)

    def end_epoch(self, objectives: FloatVector, seconds: float) -> bool:
        """Take in an epoch; return whether training ends."""
        self.n_iter += 1
        self.seconds += seconds
        if not np.isfinite(objectives).all():
            self.problem = (
                f"Floating-point under-/overflow occurred at epoch #{self.n_iter}. Scaling input data with "
                "StandardScaler or MinMaxScaler might help; so might a smaller eta0."
            )
            return True
        terms: Any = self
        self.converged = self.rule.update(objectives, math.nan, terms, terms)
        return self.converged or self.n_iter >= self.max_iter


def weigh(models: Sequence[Model], n_visits: FloatVector, totals: FloatVector) -> None:
    """Scale losses so that the weights of the visits of a split, over all ranks, add up to their number."""
    factors = (n_visits / totals).astype(np.float32).tolist()
    for model in models:
        objective, factor = model.optimizer.objective, factors[model.split]
        if factor != 1.0:
            positive, negative = (objective.class_weights() * factor).tolist()
            scaled = replace(objective, positive_weights=tuple(positive), negative_weights=tuple(negative))
            model.optimizer = replace(model.optimizer, objective=scaled)


class Training:
    """Trains models, epoch by epoch, until each has stopped."""

    def __init__(self, shard: Shard, kept: AnyArray, models: Sequence[Model], n_threads: int = 1) -> None:
        self.models, self._shard, self._kept, self._n_threads = list(models), shard, kept, n_threads
        columns = [
            Column(number, output, model.split, model.optimizer)
            for number, model in enumerate(models)
            for output in range(model.optimizer.n_outputs)
        ]
        self._panels = make_panels(columns, shard, n_threads)
        self._order: IntMatrix = epoch_order(shard.n_rows, None, 0)
        self.n_epochs = 0
        entries = max(1, shard.entries(0, shard.n_rows) // max(1, shard.n_rows))
        stretch = _STRETCH_BYTES * shard.n_rows // max(1, shard.nbytes)
        self._stretch = max(64, stretch, _ROWS_PER_WEIGHT * shard.n_features // entries)

    @property
    def running(self) -> set[int]:
        """The numbers of the models that have not stopped."""
        return {number for panel in self._panels for number in panel.models}

    def run(self, n_epochs: float = math.inf) -> None:
        """Train until so many epochs are over, counted from the first, or no model is left."""
        with ThreadPoolExecutor(self._n_threads) as threads:
            while self._panels and self.n_epochs < n_epochs:
                self._epoch(threads)

    def stop(self, numbers: Collection[int]) -> None:
        """Take models out of training as they are."""
        leaving = self.running.intersection(numbers)
        if leaving:
            self.settle(leaving)
            self._panels = regroup(self._panels, self.running - leaving, self._shard, self._n_threads)

    def settle(self, numbers: Collection[int]) -> None:
        """Write the present weights of models that are in training into their records."""
        for panel in self._panels:
            for c, column in enumerate(panel.columns):
                if column.model in numbers:
                    model = self.models[column.model]
                    if model.coef is None or model.intercept is None:
                        k = model.optimizer.n_outputs
                        model.coef = np.zeros((k, self._shard.n_features), self._shard.dtype)
                        model.intercept = np.zeros(k, self._shard.dtype)
                    model.coef[column.output], model.intercept[column.output] = panel.model(c)

    def _epoch(self, threads: ThreadPoolExecutor) -> None:
        begin = time.perf_counter()
        shard = self._shard
        self.n_epochs += 1
        arrange(self._order, shard.n_rows, shard.seed, self.n_epochs)
        for panel in self._panels:
            panel.start_epoch([self._eta_scale(column.model) for column in panel.columns])
        self._visit_all(threads)
        self._end_epoch((time.perf_counter() - begin) / sum(len(panel.columns) for panel in self._panels))

    def _eta_scale(self, number: int) -> float:
        """Return what the rates of a model are multiplied by in the epoch that begins."""
        return self.models[number].eta_scale

    def _visit_all(self, threads: ThreadPoolExecutor) -> None:
        """Take all panels over all rows."""
        shard, shares = self._shard, self._dealt()
        residency = Residency(shard, order=self._order)
        step = max(1, shard.n_rows if shard.mapping is None else residency.stride)
        for low in range(0, shard.n_rows, step):
            high = min(shard.n_rows, low + step)
            begun = [threads.submit(self._walk, share, low, high) for share in shares]
            for each in begun:
                each.result()
            residency.at(high)

    def _walk(self, panels: Sequence[Panel], start: int, stop: int) -> None:
        """Take panels over the rows start..stop, all of them over one stretch before the next."""
        for low in range(start, stop, self._stretch):
            for panel in panels:
                kept = self._kept[panel.columns[0].split]
                panel.run(self._shard, kept, self._order, low, min(stop, low + self._stretch))

    def _dealt(self) -> list[list[Panel]]:
        """Return the panels of each thread that has some."""
        return [share for share in deal(self._panels, self._n_threads, lambda panel: panel.cost) if share]

    def _end_epoch(self, seconds: float) -> None:
        """Let the stopping rule of each model look at its objectives; `seconds` are those of a column."""
        ended = [
            number
            for number, values in self._objectives().items()
            if self.models[number].end_epoch(values, seconds * len(values))
        ]
        self.stop(ended)

    def _objectives(self) -> dict[int, FloatVector]:
        """Return the objectives of the outputs of each model in training, by its number."""
        running = sorted(self.running)
        objectives: dict[int, FloatVector] = {n: np.zeros(self.models[n].optimizer.n_outputs) for n in running}
        for panel in self._panels:
            for column, value in zip(panel.columns, panel.objectives().tolist(), strict=True):
                objectives[column.model][column.output] = value
        return objectives


#: The parameters that a column has of its own, or that say when it stops or is averaged.
OF_COLUMNS: Final = frozenset(
    (
        *("alpha", "class_weight", "epsilon", "eta0", "fit_intercept", "l1_ratio", "learning_rate", "loss"),
        *("max_iter", "n_iter_no_change", "penalty", "power_t", "quantile", "sync", "tol", "tweedie_power"),
    )
)
# What columns do without, and its value then.
_WITHOUT: Final[Mapping[str, Any]] = {
    "average": False,
    "checkpoint": None,
    "early_stopping": False,
    "features": None,
    "optimizer": None,
    "restore_best": False,
    "resume_from": None,
    "sampling": "uniform",
    "scoring": None,
}

# What else the ranks of a cluster do without.
_ON_CLUSTER: Final[Mapping[str, Any]] = {"elastic": False, "on_failure": "raise", "out_of_core": False}


@dataclass(frozen=True)
class PackedRows:
    """All rows in the order of training, and which of them each split trains on."""

    shard: Shard
    kept: AnyArray


def check_base(estimator: Any) -> None:
    """Raise where columns cannot be what an estimator trains."""
    if not isinstance(estimator, AbstractSGD):
        raise InvalidParameterError(
            "SGDSearchCV(estimator=...) must be an SGDClassifier or SGDRegressor of dsgd: columns of one weight matrix "
            f"are models that are linear in the same rows. Got {estimator!r}. Use GridSearchCV for pipelines, or "
            "transform the rows before."
        )
    for given in _others(estimator, _WITHOUT):
        raise IncompatiblePartsError(
            f"SGDSearchCV takes plain steps by row: {given} does not go with it. Leave it out, set it on "
            "best_estimator_ afterwards, or use GridSearchCV."
        )


def _others(estimator: AbstractSGD, plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters of an estimator, and fields of its `dsgd.Gang`, that have other values than plain ones."""
    parameters = {**estimator._deployment.get_params(), **estimator.get_params(deep=False)}
    for name, value in plain.items():
        if parameters[name] is not value and parameters[name] != value:
            yield f"{type(estimator).__name__}({name}={parameters[name]!r})"


def check_in_process(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise `IncompatiblePartsError` where candidates differ in what only ranks of a cluster have."""
    if any("sync" in each for each in settings):
        raise IncompatiblePartsError(
            "SGDSearchCV(param_grid=...) has sync, but in this process all columns train on one rank, for which a "
            "period changes nothing. Pass client=... to the estimator, a dsgd.sim.SimulatedCluster for one, or dask "
            "collections; or leave sync out."
        )


def check_on_cluster(estimator: AbstractSGD, X: Any, scorers: Mapping[str, Any]) -> None:
    """Raise `IncompatiblePartsError` where the ranks of a cluster cannot search as an estimator and scorers want it."""
    strange = [name for name, scorer in scorers.items() if not isinstance(scorer, str)]
    if strange:
        raise IncompatiblePartsError(
            "SGDSearchCV on a cluster scores where the rows are, by sums: scoring may be None, 'accuracy' of a "
            f"classifier or 'r2' of a regressor. Got {', '.join(strange)}."
        )
    if isinstance(X, Rows):
        raise IncompatiblePartsError(
            "SGDSearchCV on a cluster takes arrays or dask collections, and no Rows: pass X and y."
        )
    for given in _others(estimator, _ON_CLUSTER):
        raise IncompatiblePartsError(
            f"SGDSearchCV on a cluster does not go with {given}. Leave it out, or use GridSearchCV."
        )


def check_candidates(estimator: AbstractSGD, candidates: Sequence[Mapping[str, Any]]) -> list[AbstractSGD]:
    """Return an estimator for each candidate, each with good parameters."""
    if not candidates:
        raise InvalidParameterError("SGDSearchCV(param_grid=...) has no candidate.")
    strange = sorted({name for candidate in candidates for name in candidate} - OF_COLUMNS)
    if strange:
        raise IncompatiblePartsError(
            f"SGDSearchCV(param_grid=...) has {', '.join(strange)}: candidates may differ in "
            f"{', '.join(sorted(OF_COLUMNS))}. Set others on the estimator, or use GridSearchCV."
        )
    made = [clone(estimator).set_params(**candidate) for candidate in candidates]
    for each in made:
        check_parameters(each)
    return made


def pack_rows(estimator: AbstractSGD, rows: LocalRows, packer: Packer, splits: Sequence[tuple[Any, Any]]) -> PackedRows:
    """Return the rows in the order in which a fit of the estimator on all of them walks them."""
    X, y, weights = rows.block
    builder = packer.builder(scratch_folder() if packer.out_of_core else None, 0, copies=True)
    piece = None if packer.out_of_core else rows.piece
    block = X if piece is None else Selection(piece, None, X.shape[1])
    builder.look(block, packer.targets(y), weights)
    builder.place(block)
    walk = builder.walk
    shard = replace(builder.finish(), seed=packer.seed if packer.shuffle else None)
    kept = np.zeros((len(splits), shard.n_rows), np.uint8)
    for number, (train, _) in enumerate(splits):
        flags = np.zeros(rows.n_rows, np.uint8)
        flags[train] = 1
        if len(train) != int(flags.sum()):
            raise InvalidDataError(f"split {number} of cv trains on a row more than once; SGDSearchCV masks rows.")
        kept[number] = flags if walk is None else flags[walk]
        if not kept[number].any():
            raise InvalidDataError(f"split {number} of cv has no rows to train on, or none with a weight.")
    return PackedRows(shard, kept)


def make_models(
    candidates: Sequence[AbstractSGD], summary: BlockSummary, y: AnyArray, splits: Sequence[tuple[Any, Any]]
) -> list[Model]:
    """Return the models of all candidates on all splits, candidate by candidate."""
    summaries = [_of_split(summary, y, train, number) for number, (train, _) in enumerate(splits)]
    models = []
    for number, candidate in enumerate(candidates):
        for split, each in enumerate(summaries):
            objective = candidate._objective([each])
            if objective.is_coupled:
                raise IncompatiblePartsError(
                    f"SGDSearchCV trains every class in a column of its own, and loss={objective.loss!r} has one loss "
                    "for all of them: use loss='log_loss', or GridSearchCV."
                )
            optimizer = optimizer_of(candidate, objective, 0)
            models.append(
                Model(number, split, optimizer, candidate.tol, candidate.n_iter_no_change, candidate.max_iter)
            )
    return models


def _of_split(summary: BlockSummary, y: AnyArray, train: AnyArray, number: int) -> BlockSummary:
    """Return a summary with the class counts of the rows that a split trains on."""
    if summary.classes is None:
        return summary
    counts = np.bincount(np.searchsorted(summary.classes, y[train]), minlength=len(summary.classes))
    if not counts.all():
        missing = summary.classes[counts == 0]
        raise InvalidDataError(
            f"split {number} of cv trains on no row of {missing!r}. Take a splitter that stratifies, or fewer folds."
        )
    return replace(summary, counts=counts)
