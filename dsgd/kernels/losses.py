"""Losses and their derivatives, and calls of those of users.

Calls of machine code by its address, from kernels that were compiled before that code was.

A kernel must not be compiled again for each function that a user brings, and lose its place on disk with that. So what
changes is a number: the address of a table of two addresses, of functions of two floats. The calls are marked as ones
that neither read nor write memory, so that kernels keep in registers what they would keep without them.

The losses: a table of constants, and a scalar function that kernels call with the code of a loss.

With target y, prediction p, margin z = y p, r = p - y and a = abs(r), scikit-learn's definitions
(`sklearn/linear_model/_sgd_fast.pyx.tp`):

=========================== ============================================ =====================================
name                        loss                                         used by
=========================== ============================================ =====================================
hinge                       max(0, 1 - z)                                linear SVM
squared_hinge               max(0, 1 - z)^2                              L2-SVM
log_loss                    log(1 + exp(-z))                             logistic regression
softmax                     log(sum_k exp(p_k)) - p_y                    multinomial logistic regression
modified_huber              max(0, 1 - z)^2 if z >= -1, else -4 z        Zhang, ICML 2004
perceptron                  max(0, -z)                                   perceptron
squared_error               (p - y)^2 / 2                                ridge regression
huber                       r^2 / 2 if a <= e, else e a - e^2 / 2        robust regression
epsilon_insensitive         max(0, a - e)                                SVR
squared_epsilon_insensitive max(0, a - e)^2                              L2-SVR
quantile                    max(e (y - p), (1 - e) (p - y))              quantile regression
poisson                     exp(p) - y p                                 counts
gamma                       p + y exp(-p)                                positive targets
tweedie                     exp(c p) / c + y exp(-d p) / d               positive targets, many zeros
=========================== ============================================ =====================================

Of softmax p_k are the predictions of all classes and y is one of them (`dsgd.kernels.softmax`); of two classes, which
have one prediction, it is log_loss. Here e is the parameter of the loss, c = 2 - e and d = e - 1. The last three are
half the deviance of a mean exp(p), in the Tweedie family of power 1, 2 and e, without the terms that depend on the
target alone, as in scikit-learn's `sklearn/_loss/_loss.pyx.tp`: a loss may be below zero.

A loss that is no row of the table has an address for its code, that of the addresses of its value and its slope.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import scalar
from dsgd.types import FloatVector


@intrinsic
def call_at(typing_context: Any, table: Any, place: Any, y: Any, p: Any) -> Any:
    """Return f(y, p), f being the C function ``double f(double, double)`` at a place of a table of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, place, y, p = arguments
        number = ir.DoubleType()
        function = ir.FunctionType(number, [number, number]).as_pointer()
        address = builder.gep(builder.inttoptr(table, function.as_pointer()), [place])
        return builder.call(builder.load(address), [y, p], attrs=("nounwind", "readnone"))

    return types.float64(types.int64, types.int64, types.float64, types.float64), generate


#: Slopes are clipped to this size, as in scikit-learn: one absurd row must not throw the model to infinity.
MAX_SLOPE = 1e12

#: Exponents are clipped to this size: slopes are clipped long before, and sums of losses stay finite.
MAX_EXPONENT = 500.0

#: From here on the code of a loss is an address: no system gives a program its first page.
ADDRESSES = 4096
HINGE, PERCEPTRON, LOG_LOSS, SQUARED_HINGE, MODIFIED_HUBER = range(5)
SQUARED_ERROR, HUBER, EPSILON_INSENSITIVE, SQUARED_EPSILON_INSENSITIVE, QUANTILE = range(5, 10)

#: Of these the mean is the exponential of the prediction.
POISSON, GAMMA, TWEEDIE = range(10, 13)


@dataclass(frozen=True)
class Loss:
    """A row of the table of losses.

    - `task`: whether targets are +1 and -1, or numbers. A regression loss can classify, on targets +1 and -1.
    - `curvature`: most by which the slope changes over a unit of the prediction; of losses with a corner, the
      largest slope.
    - `is_coupled`: whether several classes share one loss, that of `dsgd.kernels.softmax`, and are not trained each
      against the rest. With one output such a loss is that of its code.
    """

    name: str
    code: int
    task: Literal["classification", "regression"]
    source: str
    curvature: float = 1.0
    parameter: str | None = None
    bounds: tuple[float, float] = (0.0, math.inf)
    is_coupled: bool = False

    @property
    def has_corner(self) -> bool:
        """Whether the slope jumps somewhere."""
        return self.code in (HINGE, PERCEPTRON, EPSILON_INSENSITIVE, QUANTILE)

    @property
    def has_log_link(self) -> bool:
        """Whether predictions are the logarithm of a mean."""
        return POISSON <= self.code <= TWEEDIE

    def at_zero(self, targets: FloatVector, parameter: float) -> FloatVector:
        """Return the losses of predictions of zero, without kernels; infinite for a loss that is not in the table."""
        size = np.abs(targets)
        if self.task == "classification":
            return np.full_like(targets, {LOG_LOSS: math.log(2.0), PERCEPTRON: 0.0}.get(self.code, 1.0))
        if self.code == SQUARED_ERROR:
            return 0.5 * targets**2
        if self.code == HUBER:
            slope = np.minimum(size, parameter)
            return slope * (size - 0.5 * slope)
        if self.code in (EPSILON_INSENSITIVE, SQUARED_EPSILON_INSENSITIVE):
            excess = np.maximum(size - parameter, 0.0)
            return excess if self.code == EPSILON_INSENSITIVE else excess**2
        if self.code == QUANTILE:
            return size * np.where(targets < 0.0, 1.0 - parameter, parameter)
        if not self.has_log_link:
            return np.full_like(targets, np.inf)
        power = {POISSON: 1.0, GAMMA: 2.0}.get(self.code, parameter)
        rising = 1.0 / (2.0 - power) if power < 2.0 else 0.0
        return rising + (targets / (power - 1.0) if power > 1.0 else 0.0 * targets)

    def takes_zero(self, parameter: float) -> bool:
        """Return whether a target of a loss with a log link may be zero, and not only above it."""
        return self.code == POISSON or (self.code == TWEEDIE and parameter < 2.0)


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        row.name: row
        for row in (
            Loss("hinge", HINGE, "classification", "Cortes and Vapnik 1995"),
            Loss("squared_hinge", SQUARED_HINGE, "classification", "Fan et al. 2008, LIBLINEAR", 2.0),
            Loss("log_loss", LOG_LOSS, "classification", "Cox 1958", 0.25),
            Loss("softmax", LOG_LOSS, "classification", "Cox 1966", 0.25, is_coupled=True),
            Loss("modified_huber", MODIFIED_HUBER, "classification", "Zhang 2004, eq. 8", 2.0),
            Loss("perceptron", PERCEPTRON, "classification", "Rosenblatt 1958"),
            Loss("squared_error", SQUARED_ERROR, "regression", "Gauss 1809"),
            Loss("huber", HUBER, "regression", "Huber 1964", 1.0, "epsilon"),
            Loss("epsilon_insensitive", EPSILON_INSENSITIVE, "regression", "Drucker et al. 1997", 1.0, "epsilon"),
            Loss(
                "squared_epsilon_insensitive",
                SQUARED_EPSILON_INSENSITIVE,
                "regression",
                "Ho and Lin 2012",
                2.0,
                "epsilon",
            ),
            Loss("quantile", QUANTILE, "regression", "Koenker and Bassett 1978", 1.0, "quantile", (0.0, 1.0)),
            Loss("poisson", POISSON, "regression", "Nelder and Wedderburn 1972", math.inf),
            Loss("gamma", GAMMA, "regression", "Nelder and Wedderburn 1972", math.inf),
            Loss("tweedie", TWEEDIE, "regression", "Jorgensen 1987", math.inf, "tweedie_power", (1.0, 2.0)),
        )
    }
)


@scalar
def loss_and_slope(code: int, y: float, p: float, epsilon: float) -> tuple[float, float]:
    """Return a loss and its derivative with respect to the prediction.

    `code` may be the address of a table of two functions. The derivative is clipped to +-`MAX_SLOPE`; at a kink it is
    the one that scikit-learn takes.
    """
    if code <= SQUARED_ERROR:
        plain: tuple[float, float] = plain_loss(code, y, p)
        return plain
    rare: tuple[float, float] = _rare_loss(code, y, p, epsilon)
    return rare


@scalar
def plain_loss(code: int, y: float, p: float) -> tuple[float, float]:
    """Return loss and derivative for the codes up to `SQUARED_ERROR`, which have no parameter; as `loss_and_slope`."""
    # What follows p is on the path that one step waits for the other on. So the commonest losses, whose slope needs no
    # clipping, come first, and a product with 0 or 1 stands for a branch that nobody can predict.
    if code <= PERCEPTRON:
        gap = (0.0 if code == PERCEPTRON else 1.0) - p * y
        active = 1.0 if gap >= 0.0 else 0.0
        return max(gap, 0.0), -y * active
    if code == LOG_LOSS:
        z = p * y
        # exp of a negative number only: no overflow, and log1p keeps the digits that 1 + exp(-z) would lose.
        decay = math.exp(-abs(z))
        return math.log1p(decay) + max(-z, 0.0), -y * (decay if z > 0.0 else 1.0) / (1.0 + decay)
    if code == SQUARED_ERROR:
        slope = p - y
        loss = 0.5 * slope * slope
    else:
        gap = max(1.0 - p * y, 0.0)
        loss = gap * gap
        slope = -2.0 * y * gap
        if code == MODIFIED_HUBER and gap > 2.0:
            loss = 4.0 * (gap - 1.0)
            slope = -4.0 * y
    return loss, min(max(slope, -MAX_SLOPE), MAX_SLOPE)


@scalar
def _rare_loss(code: int, y: float, p: float, epsilon: float) -> tuple[float, float]:
    """Return loss and derivative for the other codes; as `loss_and_slope`."""
    if code == HUBER:
        r = p - y
        slope = min(max(r, -epsilon), epsilon)
        loss = slope * (r - 0.5 * slope)
    elif code <= SQUARED_EPSILON_INSENSITIVE:
        r = p - y
        excess = max(abs(r) - epsilon, 0.0)
        sign = 1.0 if r > 0.0 else -1.0
        if code == EPSILON_INSENSITIVE:
            return excess, (sign if excess > 0.0 else 0.0)
        loss = excess * excess
        slope = 2.0 * sign * excess
    elif code == QUANTILE:
        r = p - y
        slope = 1.0 - epsilon if r > 0.0 else -epsilon
        return slope * r, slope
    elif code >= ADDRESSES:
        slope = call_at(code, 1, y, p)
        # Not min and max, which would hide what is not a number.
        slope = MAX_SLOPE if slope > MAX_SLOPE else (-MAX_SLOPE if slope < -MAX_SLOPE else slope)
        return call_at(code, 0, y, p), slope
    else:
        power = 1.0 if code == POISSON else (2.0 if code == GAMMA else epsilon)
        # Not min and max, which would hide what is not a number.
        exponent = MAX_EXPONENT if p > MAX_EXPONENT else (-MAX_EXPONENT if p < -MAX_EXPONENT else p)
        rising = math.exp((2.0 - power) * exponent)
        falling = y * math.exp((1.0 - power) * exponent)
        slope = rising - falling
        loss = rising / (2.0 - power) if power < 2.0 else p
        loss += falling / (power - 1.0) if power > 1.0 else -y * p
    return loss, min(max(slope, -MAX_SLOPE), MAX_SLOPE)


@scalar
def least_loss(code: int, y: float, epsilon: float) -> float:
    """Return the least that a loss with a log link can be for a target, which is where the mean is the target."""
    if y <= 0.0:
        return 0.0
    loss, _ = loss_and_slope(code, y, math.log(y), epsilon)
    return float(loss)
