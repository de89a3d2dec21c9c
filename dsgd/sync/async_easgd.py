"""Asynchronous elastic averaging: each worker exchanges with the centre at its own pace.

Problem: elastic averaging lets models explore on a spring, but as an all-reduce (`EASGD`) it waits for all of them.

Update: after `every` rows of its own steps a worker sends its model x_p. The server computes ``d = a (x_p - c)`` with
``a = beta / P``, adds it to the centre, ``c <- c + d``, and sends it back: ``x_p <- x_p - d``. What the one gains the
other loses, so the sum of the centre and the models changes by steps alone. The centre is what training returns.

Cost per round and worker: a message to the server and one back, `message_bytes` each. The worker keeps one more vector,
the centre at the end of the last epoch, from which training resumes after a failure.

Source: Zhang, Choromanska and LeCun 2015 (algorithm 1; beta = 0.9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.server import (
    AbstractServerHandler,
    AbstractServerStrategy,
    Model,
    ServerMessage,
    await_epoch_model,
    push,
)
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_numbers

__all__ = ["AsyncEASGD", "ElasticState"]


@dataclass
class ElasticState:
    """The state of a worker.

    Parameters
    ----------
    centre : array, shape (n_params,)
        The centre at the end of the last epoch, equal on all workers.
    version : array of int64, shape (1,)
        The number of exchanges it had had at its last answer to this worker.
    """

    centre: FloatVector = field(metadata=ALIKE)
    version: AnyArray


@dataclass(frozen=True)
class AsyncEASGD(AbstractServerStrategy[ElasticState]):
    """Let workers and the centre of a server pull each other.

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two exchanges.
    beta : float, default 0.9
        P times the share of its distance to the centre that each of the two moves, in [0, 1]; with 0 workers are alone
        and the centre stays where it is.

    Raises
    ------
    InvalidParameterError
        `every` is not a positive integer or `beta` not in [0, 1].
    """

    every: int = 64
    beta: float = 0.9
    weighs = "alike"
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "server")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "beta", low=0.0, high=1.0)

    def init(self, group: Group, params: FloatVector, weight: float) -> ElasticState:
        """Return the model to start from as the centre."""
        return ElasticState(params.copy(), np.zeros(1, dtype=np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: ElasticState) -> None:
        """Pull and be pulled; see `AbstractStrategy.sync`."""
        moved = vector.copy()
        push(group, moved, state.version)
        vector -= moved

    def settle(self, group: Group, params: FloatVector, state: ElasticState) -> None:
        """Take note of the centre; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, state.centre)

    def collect(self, group: Group, params: FloatVector, weight: float, state: ElasticState) -> None:
        """Replace the model by the centre; see `AbstractStrategy.collect`."""
        params[:] = state.centre

    def served(self, params: FloatVector, state: ElasticState) -> tuple[FloatVector, int]:
        """Return the centre; see `AbstractServerStrategy.served`."""
        return state.centre, int(state.version[0])

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what keeps the centre."""
        return _Desk(model, self.beta)


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, beta: float) -> None:
        super().__init__(model)
        self._share = model.params.dtype.type(beta / model.n_workers)
        self._moved = np.zeros_like(model.params)

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        model = self.model
        np.subtract(message.body, model.params, out=self._moved)
        self._moved *= self._share
        model.params += self._moved
        model.version += 1
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        out[:] = self._moved
