"""Staleness-aware asynchronous SGD: old gradients count for less.

Problem: a gradient that was computed d steps ago points from where the model was; at full rate late workers throw the
model back.

Update: a gradient that was computed with version j of the model and goes into the step that makes version i + 1 of
version i has the staleness ``d = i - j``, and its rate is divided by ``max(d, 1)``, for the penalty too. After every c
arrivals the server takes one step with all of them, each at its own rate and divided by c; the worker is answered at
once. At the end of an epoch it takes one with those that have come.

The source calls this n-softsync, with ``c = P / n`` of P workers: between two gradients of a worker there are n steps,
and that is what d is in the mean, a little less for few workers. With c = 1 (n = P) every gradient is a step, as in
`ASGD`, and P workers that take turns have d = P - 1, so the rate that is given should be that much larger than for
`ASGD`. With c = P (n = 1) gradients are one step old at most, and the rate is that of a batch of all workers.

What it minimises: ``sum_p (n_p / tau_p) f_p``, f_p being the mean loss of rank p and tau_p the mean staleness of its
gradients, harmonic and at least one: with unlike rows that is the whole only where all are equally old.

Cost per round and worker: that of `ASGD`.

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
        c, the gradients that the server takes one step with; the source's n is the number of workers over it.

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
        self._shares = 0.0

    def accept(self, worker: int, letter: Letter) -> tuple[int, ...]:
        share = 1.0 / max(1, self._model.version - letter.version)
        if share != 1.0:
            letter.body *= letter.body.dtype.type(share)
        self._sum += letter.body
        self._shares += share
        self._n += 1
        if self._n == self._arrivals:
            self.settle()
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        out[:] = self._model.params

    def settle(self) -> None:
        if self._n:
            # The step multiplies by the mean share, for the sake of the penalty; the gradients have theirs already.
            self._sum /= self._shares
            self._model.step(self._sum, self._shares / self._n)
            self._model.version += 1
            self._sum.fill(0.0)
            self._n, self._shares = 0, 0.0
