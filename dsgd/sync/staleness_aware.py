"""Staleness-aware asynchronous SGD: old gradients count for less.

Problem: a gradient that was computed d steps ago points from where the model was; at full rate late workers throw the
model back.

Update, for a gradient of staleness d that arrives at the server: it is divided by ``max(d, 1)``. After every n arrivals
the server takes one step with their mean (n-softsync); the worker is answered at once. With n = 1 every gradient is a
step, as in `ASGD`.

Cost per round and worker: that of `ASGD`. The penalty is part of each step and is not divided.

Source: Zhang, Gupta, Lian and Liu 2016 (staleness-aware async-SGD, their equations 4 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dsgd.sync.pushed import AbstractPushStrategy
from dsgd.sync.server import AbstractDesk, Letter, Model
from dsgd.types import FloatVector
from dsgd.validation import check_number

__all__ = ["StalenessAware"]


@dataclass(frozen=True)
class StalenessAware(AbstractPushStrategy):
    """Let a server divide every gradient by its staleness.

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    arrivals : int, default 1
        Gradients that the server takes one step with.

    Raises
    ------
    InvalidParameterError
        One of them is not a positive integer.
    """

    batch: int = 8
    arrivals: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive."""
        check_number("StalenessAware(batch=...)", self.batch, low=1, integer=True)
        check_number("StalenessAware(arrivals=...)", self.arrivals, low=1, integer=True)

    def desk(self, model: Model) -> AbstractDesk:
        """Return what divides gradients by their staleness."""
        return _Desk(model, self.arrivals)


@final
class _Desk(AbstractDesk):
    def __init__(self, model: Model, arrivals: int) -> None:
        self._model, self._arrivals = model, arrivals
        self._sum = np.zeros_like(model.params)
        self._n = 0

    def accept(self, worker: int, letter: Letter) -> tuple[int, ...]:
        staleness = self._model.version - letter.version
        if staleness > 1:
            letter.body /= staleness
        self._sum += letter.body
        self._n += 1
        if self._n == self._arrivals:
            self.settle()
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        out[:] = self._model.params

    def settle(self) -> None:
        if self._n:
            self._sum /= self._n
            self._model.step(self._sum)
            self._model.version += 1
            self._sum.fill(0.0)
            self._n = 0
