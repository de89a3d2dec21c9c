"""The objective, and the layout of a model's parameters in one flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidParameterError
from dsgd.kernels.losses import LOSSES, Loss
from dsgd.kernels.penalties import PENALTIES
from dsgd.local.custom_loss import CustomLoss, loss_row
from dsgd.types import FloatMatrix, FloatVector


@dataclass(frozen=True)
class Objective:
    """The objective ``(1/n) sum_i s_i c_i loss(f(x_i), y_i) + alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)``.

    Of n visits, whose weights s estimators scale so that they add up to n over all ranks.
    With several outputs, one-vs-rest: the sum also goes over outputs, whose targets are +1 for their class and -1 for
    all others. With a loss that couples them (`is_coupled`) a row has one loss, and c_i is the positive weight of its
    class.
    """

    loss: str | CustomLoss = "hinge"
    penalty: str | None = "l2"
    alpha: float = 1e-4
    l1_ratio: float = 0.15
    epsilon: float = 0.1
    fit_intercept: bool = True
    n_outputs: int = 1
    positive_weights: tuple[float, ...] = ()
    negative_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.loss, CustomLoss) and self.loss not in LOSSES:
            raise InvalidParameterError(f"Objective(loss=...) must be one of {', '.join(LOSSES)}. Got {self.loss!r}.")
        if self.penalty not in PENALTIES:
            known = ", ".join(repr(name) for name in PENALTIES)
            raise InvalidParameterError(f"Objective(penalty=...) must be one of {known}. Got {self.penalty!r}.")
        if self.n_outputs < 1:
            raise InvalidParameterError(f"Objective(n_outputs=...) must be 1 or more. Got {self.n_outputs!r}.")
        for name, upper in (("alpha", math.inf), ("l1_ratio", 1.0), ("epsilon", math.inf)):
            value = getattr(self, name)
            if not (0.0 <= value <= upper and math.isfinite(value)):
                raise InvalidParameterError(f"Objective({name}=...) must be in [0, {upper}]. Got {value!r}.")
        low, high = self.row.bounds
        if not low <= self.epsilon <= high:
            raise InvalidParameterError(
                f"Objective(epsilon=...) must be in [{low}, {high}] with loss={self.loss!r}. Got {self.epsilon!r}."
            )
        for name in ("positive_weights", "negative_weights"):
            weights = getattr(self, name) or (1.0,) * self.n_outputs
            if len(weights) != self.n_outputs:
                raise InvalidParameterError(
                    f"Objective({name}=...) must have one entry per output, {self.n_outputs}. Got {len(weights)}."
                )
            object.__setattr__(self, name, tuple(float(weight) for weight in weights))

    @property
    def row(self) -> Loss:
        """What kernels know of the loss, in this process."""
        return loss_row(self.loss)

    @property
    def is_coupled(self) -> bool:
        """Whether the outputs share one loss, of which a step needs the predictions of all of them."""
        return self.row.is_coupled and self.n_outputs > 1

    @property
    def curvature(self) -> float:
        """Most by which slopes change over a unit of the predictions; of coupled outputs twice that of each alone."""
        return self.row.curvature * (2.0 if self.is_coupled else 1.0)

    @property
    def l1_share(self) -> float:
        """Share of L1 in the penalty."""
        share = PENALTIES[self.penalty].l1_share
        return float(self.l1_ratio if share is None else share)

    @property
    def strength(self) -> float:
        """alpha, or zero if there is no penalty."""
        return float(self.alpha) if PENALTIES[self.penalty].is_on else 0.0

    def class_weights(self) -> FloatMatrix:
        """Return the class weights, shape (2, n_outputs), float64: positive rows first."""
        return np.array([self.positive_weights, self.negative_weights], np.float64)


def n_params(n_features: int, n_outputs: int) -> int:
    """Return the length of the parameter vector: weights, then one intercept per output (zero if none is fitted)."""
    return n_outputs * (n_features + 1)


def pack(coef: ArrayLike, intercept: ArrayLike, *, sparse: bool, dtype: DTypeLike | None = None) -> FloatVector:
    """Return coefficients as a parameter vector."""
    weights = np.atleast_2d(np.asarray(coef, dtype))
    return np.concatenate(
        [(weights.T if sparse else weights).ravel(), np.asarray(intercept, weights.dtype).reshape(weights.shape[0])]
    )


def unpack(params: FloatVector, n_features: int, n_outputs: int, *, sparse: bool) -> tuple[FloatMatrix, FloatVector]:
    """Return coefficients, shape (n_outputs, n_features), and intercepts, shape (n_outputs,), as new arrays."""
    n_weights = n_features * n_outputs
    if params.shape != (n_weights + n_outputs,):
        raise InvalidParameterError(
            f"A model of {n_features} features and {n_outputs} outputs has {n_weights + n_outputs} parameters. "
            f"Got an array of shape {params.shape}."
        )
    weights = params[:n_weights]
    if sparse:
        coef = np.ascontiguousarray(weights.reshape(n_features, n_outputs).T)
    else:
        coef = weights.reshape(n_outputs, n_features)
    return coef.copy(), params[n_weights:].copy()
