"""Custom losses: two functions of target and prediction, compiled in every process that trains.

Kernels are compiled once, for all losses. They receive a custom loss as the address of a table of two addresses
(`dsgd.kernels.calls`), which is valid in one process only. So the functions travel, and every process compiles them
when it first trains.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numba import cfunc, njit, types
from numba.core.errors import NumbaError
from numba.extending import is_jitted

from dsgd.errors import InvalidParameterError
from dsgd.kernels.losses import LOSSES, Loss
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
    """Return a function as numba's, which pickles by its content and is made once in a process that gets many copies.

    Errors of arithmetic are numbers here, as in all kernels, unless the user has compiled the function otherwise.
    """
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
