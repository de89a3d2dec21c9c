"""scikit-learn's stopping rule, on numbers that are equal on every rank.

An output has stopped once its objective, loss and penalty, has not improved by `tol` for `n_iter_no_change` epochs in a
row. Training ends when every output has: outputs that have stopped train on until then, which does them good and costs
no exchange of its own, so an epoch is the same work for all. scikit-learn, which trains one class after the other, ends
each where it has stopped; `n_iter_` is the maximum there too. With early stopping the validation score of all outputs
together takes the place of the objectives.

The adaptive schedule first divides its rate by five, and gives up when that would be below 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from dsgd.local import SGD, AbstractState
from dsgd.runtime.train_job import TrainJob
from dsgd.types import FloatVector

__all__ = ["StopRule"]

_MIN_ETA: Final = 1e-6  # below this step size the adaptive schedule gives up, as in scikit-learn


@dataclass
class StopRule:
    """What the rule remembers of the epochs so far.

    Parameters
    ----------
    best : array of float64, shape (n_watched,)
        The smallest value so far of what is watched: the objective of each output, or the validation score, negated.
    n_bad : array of float64, shape (n_watched,)
        Epochs in a row without improvement of each; once there are enough of them, they stay.
    stopped : bool
        Whether the rule has ended training.
    """

    best: FloatVector = field(default_factory=lambda: np.full(1, np.inf))
    n_bad: FloatVector = field(default_factory=lambda: np.zeros(1))
    stopped: bool = False

    @classmethod
    def begin(cls, job: TrainJob) -> Self:
        """Return the rule before the first epoch."""
        n_watched = 1 if job.early_stopping else job.optimizer.n_outputs
        return cls(np.full(n_watched, np.inf), np.zeros(n_watched))

    def update(self, objectives: FloatVector, score: float, job: TrainJob, state: AbstractState) -> bool:
        """Take in an epoch; return whether training ends. The adaptive schedule first takes smaller steps.

        Parameters
        ----------
        objectives : array of float64, shape (n_outputs,)
            Of each output the mean loss of this epoch, each before its step, and the penalty.
        score : float
            The validation score; without meaning where it does not decide.
        job : TrainJob
            Has `tol` and `n_iter_no_change`.
        state : AbstractState
            That of the optimiser, for the adaptive schedule.
        """
        tol = -np.inf if job.tol is None else job.tol
        values = np.array([-score]) if job.early_stopping else objectives
        has_stopped = self.n_bad >= job.n_iter_no_change
        improved = values <= self.best - tol
        self.n_bad = np.where(has_stopped, self.n_bad, np.where(improved, 0.0, self.n_bad + 1.0))
        self.best = np.fmin(self.best, values)
        if (self.n_bad < job.n_iter_no_change).any():
            return False
        optimizer = job.optimizer
        if isinstance(optimizer, SGD) and _may_slow_down(optimizer, state):
            state.eta_scale /= 5.0
            self.n_bad = np.zeros_like(self.n_bad)
            return False
        self.stopped = True
        return True

    def as_vector(self) -> FloatVector:
        """Return the fields as numbers."""
        return np.concatenate([[float(self.stopped)], self.best, self.n_bad])

    @classmethod
    def from_vector(cls, vector: FloatVector) -> Self:
        """Return the rule that `as_vector` described."""
        best, n_bad = vector[1:].reshape(2, -1).copy()
        return cls(best, n_bad, bool(vector[0]))


def _may_slow_down(optimizer: SGD, state: AbstractState) -> bool:
    return optimizer.schedule == "adaptive" and optimizer.eta0 * state.eta_scale > _MIN_ETA
