"""When training stops: a decision that all ranks reach alike.

An output has stopped once its objective, loss and penalty, has not improved by `tol` for `n_iter_no_change` epochs in a
row. Training ends when every output has: outputs that have stopped train on until then, so an epoch is the same work
for all. scikit-learn, which trains one class after the other, ends each where it has stopped; `n_iter_` is the maximum
there too. With early stopping the validation score of all outputs together takes the place of the objectives. Outputs
that share one loss have one objective, and stop together. The adaptive schedule first divides its rate by five, and
gives up when that would be below 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final, Self

import numpy as np

from dsgd.local import SGD, AbstractState
from dsgd.runtime.train.job import TrainJob
from dsgd.types import FloatVector

_MIN_ETA: Final = 1e-6  # below this step size the adaptive schedule gives up, as in scikit-learn


@dataclass
class StopRule:
    """The state of the stopping rule."""

    best: list[float] = field(default_factory=lambda: [inf])
    n_bad: list[int] = field(default_factory=lambda: [0])
    stopped: bool = False

    @classmethod
    def begin(cls, job: TrainJob) -> Self:
        """Return the rule before the first epoch."""
        n_watched = 1 if job.early_stopping else job.optimizer.n_losses
        return cls([inf] * n_watched, [0] * n_watched)

    def update(self, objectives: FloatVector, score: float, job: TrainJob, state: AbstractState) -> bool:
        """Take in an epoch; return whether training ends. The adaptive schedule first takes smaller steps.

        - `objectives`, shape (n_losses,): of each output, or of all that share one loss, the mean loss of this
          epoch, each before its step, and the penalty.
        """
        tol, n_enough = -inf if job.tol is None else job.tol, job.n_iter_no_change
        # There are few: arrays would take longer than an epoch of few rows.
        for k, value in enumerate([-score] if job.early_stopping else objectives.tolist()):
            if self.n_bad[k] < n_enough:
                self.n_bad[k] = 0 if value <= self.best[k] - tol else self.n_bad[k] + 1
            if value < self.best[k]:  # which a value that is not a number is not
                self.best[k] = value
        if min(self.n_bad) < n_enough:
            return False
        optimizer = job.optimizer
        # Below the least rate the adaptive schedule gives up.
        if (
            isinstance(optimizer, SGD)
            and optimizer.schedule == "adaptive"
            and optimizer.eta0 * state.eta_scale > _MIN_ETA
        ):
            state.eta_scale /= 5.0
            self.n_bad = [0] * len(self.n_bad)
            return False
        self.stopped = True
        return True

    def as_vector(self) -> FloatVector:
        """Return the fields as numbers."""
        return np.array([self.stopped, *self.best, *self.n_bad], dtype=np.float64)

    @classmethod
    def from_vector(cls, vector: FloatVector) -> Self:
        """Return the rule that `as_vector` described."""
        best, n_bad = vector[1:].reshape(2, -1).tolist()
        return cls(best, [int(n) for n in n_bad], bool(vector[0]))
