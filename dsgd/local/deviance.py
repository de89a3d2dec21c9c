"""Regression with a log link: its means, the targets it takes, and the share of the deviance that a model explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.kernels.evaluate import add_deviances
from dsgd.kernels.losses import LOSSES, least_loss
from dsgd.local.base import Evaluation
from dsgd.types import AnyArray


@dataclass(frozen=True)
class Deviance:
    """A loss with a log link: half a deviance of targets from the mean that a model predicts the logarithm of."""

    loss: str
    parameter: float

    def means(self, scores: AnyArray) -> AnyArray:
        """Return the exponentials of predicted logarithms; the largest finite number where it is exceeded."""
        largest = np.finfo(scores.dtype).max
        with np.errstate(over="ignore"):
            return np.minimum(np.exp(scores), largest)  # type: ignore[no-any-return]

    def check_targets(self, least: float) -> None:
        """Raise `InvalidDataError` if the least of all targets is one that the deviance has no meaning for."""
        takes_zero = LOSSES[self.loss].takes_zero(self.parameter)
        if least < 0.0 or (least == 0.0 and not takes_zero):
            power = f" and tweedie_power={self.parameter!r}" if self.loss == "tweedie" else ""
            raise InvalidDataError(
                f"y must be {'zero or more' if takes_zero else 'above zero'} with loss={self.loss!r}{power}. "
                f"Its least value is {least!r}."
            )

    def sums(self, y: AnyArray, scores: AnyArray, weights: AnyArray | None) -> Evaluation:
        """Return the sums over rows that `explained` reads."""
        y, scores = np.asarray(y, np.float64), np.asarray(scores, np.float64)
        weights = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
        sums = np.zeros(7)
        add_deviances(y, scores, weights, LOSSES[self.loss].code, float(self.parameter), sums)
        return Evaluation.from_vector(sums)

    def explained(self, found: Evaluation) -> float:
        """Return D2, the share of the deviance from the mean target that a model explains, or NaN."""
        if not found.weight_sum:
            return float("nan")
        mean = found.y_sum / found.weight_sum
        # The loss of a constant model is linear in the target: its sum is that of as many rows of the mean target.
        least = least_loss(LOSSES[self.loss].code, mean, float(self.parameter))
        spread = found.weight_sum * least + found.y2_sum
        return 1.0 - found.sq_error_sum / spread if spread > 0.0 else float("nan")
