"""scikit-learn's stopping rule, on numbers that are equal on every rank.

Training ends once the training loss (or the validation score) has not improved by `tol` for `n_iter_no_change` epochs.
The adaptive schedule first divides its rate by five, and gives up when that would be below 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.local import SGD, AbstractState
from dsgd.runtime.train_job import EpochRecord, TrainJob
from dsgd.types import FloatVector

__all__ = ["StopRule"]

_MIN_ETA: Final = 1e-6  # below this step size the adaptive schedule gives up, as in scikit-learn


@dataclass
class StopRule:
    """What the rule remembers of the epochs so far.

    Parameters
    ----------
    best_loss, best_score : float
        Smallest training loss and largest validation score.
    n_bad : int
        Epochs in a row without improvement.
    stopped : bool
        Whether the rule has ended training.
    """

    best_loss: float = np.inf
    best_score: float = -np.inf
    n_bad: int = 0
    stopped: bool = False

    def update(self, record: EpochRecord, job: TrainJob, state: AbstractState) -> bool:
        """Take in an epoch; return whether training ends. The adaptive schedule first takes smaller steps."""
        tol = -np.inf if job.tol is None else job.tol
        if job.early_stopping:
            improved = record.validation_score >= self.best_score + tol
            self.best_score = max(self.best_score, record.validation_score)
        else:
            improved = record.train_loss <= self.best_loss - tol
            self.best_loss = min(self.best_loss, record.train_loss)
        self.n_bad = 0 if improved else self.n_bad + 1
        if self.n_bad < job.n_iter_no_change:
            return False
        optimizer = job.optimizer
        if isinstance(optimizer, SGD) and _may_slow_down(optimizer, state):
            state.eta_scale /= 5.0
            self.n_bad = 0
            return False
        self.stopped = True
        return True

    def as_vector(self) -> FloatVector:
        """Return the four fields as numbers."""
        return np.array([self.best_loss, self.best_score, self.n_bad, self.stopped], dtype=np.float64)

    @classmethod
    def from_vector(cls, vector: FloatVector) -> StopRule:
        """Return the rule that `as_vector` described."""
        return cls(float(vector[0]), float(vector[1]), int(vector[2]), bool(vector[3]))


def _may_slow_down(optimizer: SGD, state: AbstractState) -> bool:
    return optimizer.schedule == "adaptive" and optimizer.eta0 * state.eta_scale > _MIN_ETA
