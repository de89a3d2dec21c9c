"""Training of many models in one pass over the rows of an epoch, in threads.

Each thread has some of the panels and takes them all over a stretch of rows that a cache holds before it goes on to
the next, so rows are read from memory once an epoch, or once a thread, however many models there are. Between epochs
models stop by the rule of `fit` (`dsgd.runtime.train.decisions`), and their columns leave.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dsgd.local import SGD, Residency, Shard
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
    """Scale the losses of models so that the weights of the visits of their split add up to their number.

    A fit scales the weights (`dsgd.estimators.packing.weight_scale_of`); splits share them, and have class weights.

    - `n_visits`, `totals`, shape (n_splits,): visits that each split trains on, and the sum of their weights, over
      all ranks.
    """
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
