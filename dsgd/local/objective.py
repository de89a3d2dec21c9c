"""The objective of training: losses, custom ones too, penalties, sums over the rows of a rank, and deviances.

Kernels are compiled once, for all losses. They receive a custom loss as the address of a table of two addresses
(`dsgd.kernels.losses`), which is valid in one process only. So the functions travel, and every process compiles them
when it first trains.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numba.core.errors import NumbaError
from numba.extending import is_jitted
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.kernels.losses import LOSSES, Loss, least_loss
from dsgd.kernels.scaled import PENALTIES
from dsgd.kernels.sgd import add_deviances, evaluate_rows
from dsgd.kernels.softmax import evaluate_softmax_rows
from dsgd.local.base import Evaluation
from dsgd.local.shard import Residency, Shard
from dsgd.types import AnyArray, FloatMatrix, FloatVector
from dsgd.validation import check_number

#: Predictions at which value and slope are compared: zero, where training begins, and others that are no round numbers.
_PREDICTIONS: Final = (0.0, -1.87, -0.61, 0.38, 2.23)

#: How far from them; differences have about eight digits there.
_STEP: Final = 1e-5

#: By how much of it a slope may differ from a difference.
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, repr=False)
class CustomLoss:
    """A custom loss for `SGDClassifier` and `SGDRegressor`: its value and its slope.

    Both are functions of two floats, written in the subset of Python that numba compiles: arithmetic, conditions,
    ``math``. They are called for every row, without the interpreter. A classifier calls them with targets +1 and -1,
    with more than two classes once for each class against the rest. The slope is clipped to +-1e12, as for every loss.

    The functions and all numbers they refer to are fixed when the loss is created. It can be pickled, even with
    lambdas.

    Parameters
    ----------
    value : callable
        ``value(y, p)``: the loss of a prediction p for the target y.
    slope : callable
        ``slope(y, p)``: its derivative with respect to p; at a corner any slope between those on both sides.
    curvature : float or None, default None
        The largest change of the slope per unit of the prediction. `SAGA` and `SVRG` derive the length of their steps
        from it; with several ranks, it limits how far rates are raised. None means that there is no bound.

    Raises
    ------
    InvalidParameterError
        `value` or `slope` is not a function of two arguments, or `curvature` is not positive. Raised by ``fit``: a
        function does not compile or is not finite, or `slope` is not the slope of `value`.

    Examples
    --------
    An expectile: predictions that are too low cost nine times as much.

    >>> import numpy as np
    >>> from dsgd import CustomLoss, SGDRegressor
    >>> def value(y, p):
    ...     return (0.9 if y > p else 0.1) * (p - y) ** 2
    >>> def slope(y, p):
    ...     return (1.8 if y > p else 0.2) * (p - y)
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(2000, 2)), rng.normal(size=2000)
    >>> model = SGDRegressor(CustomLoss(value, slope, curvature=1.8), random_state=0).fit(X, y)
    >>> bool(0.7 < model.intercept_[0] < 1.0)  # the expectile of a normal variable is 0.86
    True
    """

    value: Callable[[float, float], float]
    slope: Callable[[float, float], float]
    curvature: float | None = None

    def __post_init__(self) -> None:
        for name in ("value", "slope"):
            _check_function(f"CustomLoss({name}=...)", getattr(self, name))
            object.__setattr__(self, name, _jitted(getattr(self, name)))
        if self.curvature is not None:
            check_number("CustomLoss(curvature=...)", self.curvature, low=0.0, open_low=True)

    def __repr__(self) -> str:
        given = "" if self.curvature is None else f", curvature={self.curvature!r}"
        return f"CustomLoss({self.value.__name__}, {self.slope.__name__}{given})"

    def check(self, where: str, targets: Sequence[float]) -> None:
        """Raise `InvalidParameterError` unless the slope is that of the value, for some targets.

        Parameters
        ----------
        where : str
            The parameter, for the message.
        targets : sequence of float
            Targets that the loss takes.
        """
        _table_of(self)
        for y in targets:
            for p in _PREDICTIONS:
                value, slope = self._at(where, y, p)
                sides = [(self._at(where, y, p + step)[0] - value) / step for step in (-_STEP, _STEP)]
                room = _ROUNDING * max(1.0, abs(slope))
                # At a corner both sides differ, and any slope between them will do.
                if not min(sides) - room <= slope <= max(sides) + room:
                    raise InvalidParameterError(
                        f"{where}: the slope of {self!r} is not that of its value. At y={y!r} and p={p!r} it is "
                        f"{slope:.6g}, and differences of the value are {sides[0]:.6g} and {sides[1]:.6g}."
                    )

    def _at(self, where: str, y: float, p: float) -> tuple[float, float]:
        """Return value and slope at a target and a prediction, both finite."""
        found = []
        for name in ("value", "slope"):
            try:
                found.append(float(getattr(self, name)(y, p)))
            except ArithmeticError as error:
                raise InvalidParameterError(
                    f"{where}: {name} of {self!r} fails at y={y!r} and p={p!r}: {error}."
                ) from error
            if not math.isfinite(found[-1]):
                raise InvalidParameterError(
                    f"{where}: {name} of {self!r} must be finite. At y={y!r} and p={p!r} it is {found[-1]!r}."
                )
        return found[0], found[1]


def loss_row(loss: str | CustomLoss) -> Loss:
    """Return what kernels know of a loss, compiled for this process if it is the user's own."""
    if isinstance(loss, str):
        return LOSSES[loss]
    curvature = math.inf if loss.curvature is None else float(loss.curvature)
    return Loss(repr(loss), int(_table_of(loss)[0].ctypes.data), "regression", "the user", curvature)


def _check_function(where: str, function: Any) -> None:
    if not is_jitted(function) and not inspect.isfunction(function):
        raise InvalidParameterError(
            f"{where} must be a function (y, p) in Python, or compiled by numba. Got {function!r}."
        )
    try:
        inspect.signature(function.py_func if is_jitted(function) else function).bind(0.0, 0.0)
    except TypeError as error:
        raise InvalidParameterError(
            f"{where} must be a function of two arguments, the target and the prediction: {error}. Got {function!r}."
        ) from error


@cache
def _jitted(function: Any) -> Any:
    """Return a function as Numba's, which pickles by its content; errors of arithmetic are numbers, as in kernels."""
    return function if is_jitted(function) else njit(error_model="numpy", nogil=True)(function)


@cache
def _table_of(loss: CustomLoss) -> tuple[Any, Any]:
    """Return the table of addresses that kernels are given, and what is at them; both stay as long as the process."""
    compiled, signature = [], types.float64(types.float64, types.float64)
    for name in ("value", "slope"):
        function = getattr(loss, name)
        try:
            compiled.append(cfunc(signature, nopython=True, error_model="numpy")(_caller(function)))
        except NumbaError as error:
            raise InvalidParameterError(
                f"CustomLoss({name}=...): numba cannot compile {function.__name__}(y, p) as a function of two floats "
                f"that returns one. {error}"
            ) from error
    return np.array([function.address for function in compiled], np.int64), compiled


def _caller(function: Any) -> Callable[[float, float], float]:
    """Return a function that calls one of numba's."""

    def call(y: float, p: float) -> float:
        return function(y, p)  # type: ignore[no-any-return]

    return call


@dataclass(frozen=True)
class Objective:
    """The objective ``(1/n) sum_i s_i c_i loss(f(x_i), y_i) + alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)``.

    Of n visits, whose weights s estimators scale so that they add up to n over all ranks.
    With several outputs, one-vs-rest: the sum also goes over outputs, whose targets are +1 for their class and -1 for
    all others. With a loss that couples them (`is_coupled`) a row has one loss, and c_i is the positive weight of its
    class.

    Parameters
    ----------
    loss : str or CustomLoss, default="hinge"
        A name in `dsgd.kernels.losses.LOSSES`, or two functions.
    penalty : {"l2", "l1", "elasticnet", "none", None}, default="l2"
        Penalty.
    alpha : float, default=1e-4
        Strength of the penalty.
    l1_ratio : float, default=0.15
        r of elasticnet.
    epsilon : float, default=0.1
        Parameter of the loss: the threshold of huber and of the epsilon-insensitive losses, the quantile of quantile,
        the power of tweedie.
    fit_intercept : bool, default=True
        Whether there is an intercept.
    n_outputs : int, default=1
        1 for two classes or regression, else the number of classes.
    positive_weights, negative_weights : tuple of float, length n_outputs
        Class weights c of the positive and negative rows of each output; one each if empty.

    Raises
    ------
    InvalidParameterError
        If a value is out of range.
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

    @cached_property
    def is_coupled(self) -> bool:
        """Whether the outputs share one loss, of which a step needs the predictions of all of them."""
        return self.row.is_coupled and self.n_outputs > 1

    @property
    def curvature(self) -> float:
        """Most by which slopes change over a unit of the predictions; of coupled outputs twice that of each alone."""
        return self.row.curvature * (2.0 if self.is_coupled else 1.0)

    @cached_property
    def l1_share(self) -> float:
        """Share of L1 in the penalty."""
        share = PENALTIES[self.penalty].l1_share
        return float(self.l1_ratio if share is None else share)

    @cached_property
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


def evaluate(
    params: FloatVector, shard: Shard, objective: Objective, start: int = 0, stop: int | None = None
) -> Evaluation:
    """Evaluate a model on rows of a shard."""
    sums, scores = np.zeros(7), np.zeros(objective.n_outputs, shard.dtype)
    given = shard.row_arrays(objective.class_weights()), shard.sparse, params, scores, sums
    stop = shard.n_rows if stop is None else stop
    residency = None if shard.mapping is None else Residency(shard, start)
    # Sums continue across cuts, so that cuts change no bit of them.
    step = max(1, stop - start if residency is None else residency.stride)
    for low in range(start, stop, step):
        high = min(stop, low + step)
        if objective.is_coupled:
            evaluate_softmax_rows(*given, low, high)
        else:
            evaluate_rows(*given, (objective.row.code, float(objective.epsilon)), low, high)
        if residency is not None:
            residency.at(high)
    return Evaluation.from_vector(sums)
