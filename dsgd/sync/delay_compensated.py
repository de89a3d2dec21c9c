"""Delay-compensated asynchronous SGD: a late gradient is corrected for the change of the model since.

Problem: a gradient that was computed at an old model is not that of the present one.

Update: the server keeps the model b_p that it gave to each worker last. A gradient g of worker p becomes, at the model
x, ``g + lambda g * g * (x - b_p)``: the first order of the gradient at x, with the outer product of g in the place of
the Hessian and only its diagonal. Then ``x <- x - eta g``. With ``decay`` lambda adapts for each parameter,
``lambda / sqrt(m + 1e-7)`` with m the running mean of g * g. The outer product stands for the Hessian where the
loss is a negative log-likelihood (log loss); for others it has the wrong scale. Where ``lambda g (x - b_p)`` is beyond
one in size, as with long rows and large rates, the correction is larger than what it corrects and the expansion says
nothing. It is then cut to one, without which training would diverge; ``limit=inf`` is the source's. With uneven shards,
g is the gradient itself; its share weights the corrected gradient in the step.

Cost per round and worker: that of `ASGD`. The server keeps P models.

Source: Zheng et al. 2017 (DC-ASGD-c and DC-ASGD-a, algorithm 2); lambda 0.04 and, adaptive, 2 with decay 0.95.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from dsgd.sync.push import AbstractPushStrategy
from dsgd.sync.server import AbstractServerHandler, Model, ServerMessage
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

__all__ = ["DelayCompensatedASGD"]

_EPSILON: Final = 1e-7


@dataclass(frozen=True)
class DelayCompensatedASGD(AbstractPushStrategy):
    """Let a server correct every gradient for the change of its model since.

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    compensation : float, default 0.04
        Lambda; 0 is `ASGD`.
    decay : float or None, default None
        Of the running mean of squared gradients that lambda is divided by the root of; None keeps lambda constant.
    limit : float, default 1.0
        Most by which a gradient is changed, as a share of it, entry by entry.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source.

    Raises
    ------
    InvalidParameterError
        `batch` is not a positive integer, `compensation` or `limit` is negative, `decay` is not in [0, 1) or `suffix`
        not in [0, 1].
    """

    batch: int = 8
    compensation: float = 0.04
    decay: float | None = None
    limit: float = 1.0
    suffix: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "batch", low=1, integer=True)
        check_numbers(self, "compensation", low=0.0)
        check_numbers(self, "decay", low=0.0, high=1.0, open_high=True, optional=True)
        check_numbers(self, "limit", low=0.0, high=math.inf)
        check_numbers(self, "suffix", low=0.0, high=1.0)

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what compensates delays."""
        return _Desk(model, self.compensation, self.decay, self.limit)


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, compensation: float, decay: float | None, limit: float) -> None:
        super().__init__(model)
        self._compensation, self._decay, self._limit = compensation, decay, limit
        self._given = np.repeat(model.params[None], model.n_workers, axis=0)
        self._mean_square = np.zeros_like(model.params)

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        model, vector, strength = self.model, message.body, self._compensation
        share = float(message.head["score"])
        if strength and share:
            # The message holds the gradient times the share of the worker; a worker without rows has no share.
            if share != 1.0:
                vector /= vector.dtype.type(share)
            change = strength * vector * (model.params - self._given[worker])
            if self._decay is not None:
                self._mean_square *= self._decay
                self._mean_square += (1.0 - self._decay) * (vector * vector)
                change /= np.sqrt(self._mean_square + _EPSILON)
            np.clip(change, -self._limit, self._limit, out=change)
            vector += vector * change
            if share != 1.0:
                vector *= vector.dtype.type(share)
        model.step(vector, 1.0)
        model.version += 1
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        out[:] = self._given[worker] = self.model.params

    def settle(self) -> None:
        """Leave the mean of the last models, and take note that all workers get it."""
        self.model.settle()
        self._given[:] = self.model.params
