"""Loss and score of a model on the rows of a rank, as sums that ranks can add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dsgd.kernels.evaluate import evaluate_rows
from dsgd.kernels.losses import LOSSES
from dsgd.local.objective import Objective
from dsgd.local.shard import Residency, Shard
from dsgd.types import FloatVector

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """Sums over rows; those of several ranks add up entry by entry.

    Parameters
    ----------
    loss_sum : float
        Loss, times row weight, times class weight, summed over outputs.
    weight_sum : float
        Row weight.
    n_rows : float
        Rows, counted as often as they are visited.
    n_correct : float
        Row weight of the rows classified correctly; without meaning for regression.
    sq_error_sum, y_sum, y2_sum : float
        Squared error, target and squared target, each times row weight; without meaning for several outputs.
    """

    loss_sum: float = 0.0
    weight_sum: float = 0.0
    n_rows: float = 0.0
    n_correct: float = 0.0
    sq_error_sum: float = 0.0
    y_sum: float = 0.0
    y2_sum: float = 0.0

    def as_vector(self) -> FloatVector:
        """Return the sums as a float64 vector of seven, to reduce over ranks."""
        return np.array(list(vars(self).values()), np.float64)

    @classmethod
    def from_vector(cls, sums: ArrayLike) -> Evaluation:
        """Return the evaluation whose `as_vector` is `sums`."""
        return cls(*(float(value) for value in np.asarray(sums)))

    @property
    def mean_loss(self) -> float:
        """Loss per unit of row weight; NaN without rows."""
        return self.loss_sum / self.weight_sum if self.weight_sum else float("nan")

    @property
    def accuracy(self) -> float:
        """Share of the row weight classified correctly; NaN without rows."""
        return self.n_correct / self.weight_sum if self.weight_sum else float("nan")

    @property
    def r2(self) -> float:
        """Coefficient of determination, ``1 - sum (y - p)^2 / sum (y - mean y)^2``; NaN where it has no meaning."""
        if not self.weight_sum:
            return float("nan")
        spread = self.y2_sum - self.y_sum**2 / self.weight_sum
        return 1.0 - self.sq_error_sum / spread if spread > 0.0 else float("nan")


def evaluate(
    params: FloatVector, shard: Shard, objective: Objective, start: int = 0, stop: int | None = None
) -> Evaluation:
    """Evaluate a model on rows of a shard.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model, dtype of the shard.
    shard : Shard
        The rows.
    objective : Objective
        Gives loss, outputs and class weights.
    start, stop : int, optional
        Rows; all if not given.

    Returns
    -------
    Evaluation
        The sums.
    """
    sums = np.zeros(7)
    stop = shard.n_rows if stop is None else stop
    residency = None if shard.mapping is None else Residency(shard, start)
    # Sums go on where they stopped, so that cuts change no bit of them.
    step = max(1, stop - start if residency is None else residency.stride)
    for low in range(start, stop, step):
        high = min(stop, low + step)
        evaluate_rows(
            shard.values.reshape(-1),
            shard.indices,
            shard.indptr,
            shard.targets,
            shard.weights,
            objective.class_weights(),
            params,
            np.zeros(objective.n_outputs, shard.dtype),
            sums,
            LOSSES[objective.loss].code,
            float(objective.epsilon),
            shard.n_features,
            low,
            high,
        )
        if residency is not None:
            residency.at(high)
    return Evaluation.from_vector(sums)
