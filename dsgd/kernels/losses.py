"""The losses: a table of constants, and a scalar function that kernels call with the code of a loss.

With target y, prediction p, margin z = y p, r = p - y and a = abs(r), scikit-learn's definitions
(`sklearn/linear_model/_sgd_fast.pyx.tp`):

=========================== ============================================ =====================================
name                        loss                                         used by
=========================== ============================================ =====================================
hinge                       max(0, 1 - z)                                linear SVM
squared_hinge               max(0, 1 - z)^2                              L2-SVM
log_loss                    log(1 + exp(-z))                             logistic regression
modified_huber              max(0, 1 - z)^2 if z >= -1, else -4 z        Zhang, ICML 2004
perceptron                  max(0, -z)                                   perceptron
squared_error               (p - y)^2 / 2                                ridge regression
huber                       r^2 / 2 if a <= e, else e a - e^2 / 2        robust regression
epsilon_insensitive         max(0, a - e)                                SVR
squared_epsilon_insensitive max(0, a - e)^2                              L2-SVR
=========================== ============================================ =====================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dsgd.kernels.jit import scalar

__all__ = ["LOSSES", "MAX_SLOPE", "Loss", "loss_and_slope"]

#: Slopes are clipped to this size, as in scikit-learn: one absurd row must not throw the model to infinity.
MAX_SLOPE = 1e12

HINGE = 0
PERCEPTRON = 1
LOG_LOSS = 2
SQUARED_HINGE = 3
MODIFIED_HUBER = 4
SQUARED_ERROR = 5
HUBER = 6
EPSILON_INSENSITIVE = 7
SQUARED_EPSILON_INSENSITIVE = 8


@dataclass(frozen=True)
class Loss:
    """A row of the table of losses.

    Parameters
    ----------
    name : str
        Name, as in scikit-learn.
    code : int
        What kernels are given instead of the name.
    task : {"classification", "regression"}
        Whether targets are +1 and -1, or numbers. A regression loss can classify, on targets +1 and -1.
    source : str
        Where the loss comes from.
    curvature : float, default 1
        Most by which the slope changes over a unit of the prediction; of losses with a corner, the largest slope.
    """

    name: str
    code: int
    task: Literal["classification", "regression"]
    source: str
    curvature: float = 1.0

    @property
    def has_corner(self) -> bool:
        """Whether the slope jumps somewhere."""
        return self.code in (HINGE, PERCEPTRON, EPSILON_INSENSITIVE)


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        row.name: row
        for row in (
            Loss("hinge", HINGE, "classification", "Cortes and Vapnik 1995"),
            Loss("squared_hinge", SQUARED_HINGE, "classification", "Fan et al. 2008, LIBLINEAR", 2.0),
            Loss("log_loss", LOG_LOSS, "classification", "Cox 1958", 0.25),
            Loss("modified_huber", MODIFIED_HUBER, "classification", "Zhang 2004, eq. 8", 2.0),
            Loss("perceptron", PERCEPTRON, "classification", "Rosenblatt 1958"),
            Loss("squared_error", SQUARED_ERROR, "regression", "Gauss 1809"),
            Loss("huber", HUBER, "regression", "Huber 1964"),
            Loss("epsilon_insensitive", EPSILON_INSENSITIVE, "regression", "Drucker et al. 1997"),
            Loss("squared_epsilon_insensitive", SQUARED_EPSILON_INSENSITIVE, "regression", "Ho and Lin 2012", 2.0),
        )
    }
)


@scalar
def loss_and_slope(code: int, y: float, p: float, epsilon: float) -> tuple[float, float]:
    """Return a loss and its derivative with respect to the prediction.

    Parameters
    ----------
    code : int
        Code of the loss.
    y : float
        Target.
    p : float
        Prediction.
    epsilon : float
        Width of the tube (epsilon-insensitive losses) or of the quadratic part (huber).

    Returns
    -------
    loss, slope : float
        The loss, and its derivative clipped to +-`MAX_SLOPE`. At a kink the derivative scikit-learn takes.
    """
    # What follows p is on the path that one step waits for the other on. So the commonest losses, whose slope needs no
    # clipping, come first, and a product with 0 or 1 stands for a branch that nobody can predict.
    if code <= PERCEPTRON:
        gap = (0.0 if code == PERCEPTRON else 1.0) - p * y
        active = 1.0 if gap >= 0.0 else 0.0
        return max(gap, 0.0), -y * active
    curved: tuple[float, float] = _curved(code, y, p, epsilon)
    return curved


@scalar
def _curved(code: int, y: float, p: float, epsilon: float) -> tuple[float, float]:
    """Return loss and derivative for all codes but hinge and perceptron; as `loss_and_slope`."""
    if code == LOG_LOSS:
        z = p * y
        # exp of a negative number only: no overflow, and log1p keeps the digits that 1 + exp(-z) would lose.
        decay = math.exp(-abs(z))
        return math.log1p(decay) + max(-z, 0.0), -y * (decay if z > 0.0 else 1.0) / (1.0 + decay)
    if code <= MODIFIED_HUBER:
        gap = max(1.0 - p * y, 0.0)
        loss = gap * gap
        slope = -2.0 * y * gap
        if code == MODIFIED_HUBER and gap > 2.0:
            loss = 4.0 * (gap - 1.0)
            slope = -4.0 * y
    elif code == SQUARED_ERROR:
        slope = p - y
        loss = 0.5 * slope * slope
    elif code == HUBER:
        r = p - y
        slope = min(max(r, -epsilon), epsilon)
        loss = slope * (r - 0.5 * slope)
    else:
        r = p - y
        excess = max(abs(r) - epsilon, 0.0)
        sign = 1.0 if r > 0.0 else -1.0
        if code == EPSILON_INSENSITIVE:
            return excess, (sign if excess > 0.0 else 0.0)
        loss = excess * excess
        slope = 2.0 * sign * excess
    return loss, min(max(slope, -MAX_SLOPE), MAX_SLOPE)
