"""Decoupled DiLoCo: a server takes outer steps with the changes of as many workers as a quorum has.

Problem: in `DiLoCo` all ranks wait for the slowest one, and none can go on while another is away.

Update: after `every` rows of its own steps a worker sends what it has changed, ``d_p = y_p - x_p``, with y_p the model
that it has had from the server, and waits. As soon as `quorum` workers have sent theirs, the server, which serves W
workers with rows, takes a Nesterov step and answers those that wait with the new model; the others come into a later
step, with changes from an older model::

    g = (1 / W) sum of the changes that have come
    u <- beta u + g;  x <- x - rate (g + beta u)

No change is dropped, and each counts for a W-th, so that a small quorum takes many small steps. With a quorum of all
workers every step is that of `DiLoCo` where ranks have as many rows. In the last round of an epoch the server does not
wait for more than there are. Its momentum is in no checkpoint: training that resumes begins with none.

Cost per round and worker: a message to the server and one back, `dsgd.sync.server.message_bytes` each. The server keeps
three vectors, a worker one more.

Source: the asynchronous learners and quorum of Decoupled DiLoCo (Google DeepMind 2026), without its fragments, grace
windows and radial averages; changes from older models as in Liu, Chhaparia, Douillard et al. 2024 (asynchronous local
SGD).
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

__all__ = ["DecoupledDiLoCo", "DecoupledState"]


@dataclass
class DecoupledState:
    """The state of a worker.

    Parameters
    ----------
    base : array, shape (n_params,)
        y, the model that it has had from the server.
    version : array of int64, shape (1,)
        Its number.
    """

    base: FloatVector = field(metadata=ALIKE)
    version: AnyArray


@dataclass(frozen=True)
class DecoupledDiLoCo(AbstractServerStrategy[DecoupledState]):
    """Let a server take Nesterov steps with the changes of a quorum of workers.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two messages.
    quorum : int or None, default None
        Workers whose changes a step waits for, all of them at most; None is all but one.
    outer_rate : float, default 0.7
        Rate of the outer step.
    outer_momentum : float, default 0.3
        beta, in [0, 1). Changes from older models act as momentum, too: the smaller the quorum, the less is needed.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 2048
    quorum: int | None = None
    outer_rate: float = 0.7
    outer_momentum: float = 0.3
    taxonomy = Taxonomy("decentralised", "asynchronous", "change", "server")
    weighs = "alike"

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "quorum", low=1, integer=True, optional=True)
        check_numbers(self, "outer_rate", low=0, open_low=True)
        check_numbers(self, "outer_momentum", low=0, high=1, open_high=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> DecoupledState:
        """Return the model to start from as that of the server."""
        return DecoupledState(params.copy(), np.zeros(1, dtype=np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: DecoupledState) -> None:
        """Send what has changed, and wait for a step; see `AbstractStrategy.sync`."""
        change = state.base - vector
        push(group, change, state.version)
        vector[:] = state.base[:] = change

    def settle(self, group: Group, params: FloatVector, state: DecoupledState) -> None:
        """Take up the model of the server; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, params)
        state.base[:] = params

    def collect(self, group: Group, params: FloatVector, weight: float, state: DecoupledState) -> None:
        """Do nothing: since the epoch has ended all ranks have the model of the server."""

    def served(self, params: FloatVector, state: DecoupledState) -> tuple[FloatVector, int]:
        """Return the model; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])

    def wanted(self, n_workers: int) -> int:
        """Return how many of so many workers are a quorum."""
        return max(1, min(n_workers, n_workers - 1 if self.quorum is None else int(self.quorum)))

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what takes the outer steps."""
        return _Desk(model, self)


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, strategy: DecoupledDiLoCo) -> None:
        super().__init__(model)
        self._strategy = strategy
        self._wanted = strategy.wanted(len(model.working))
        self._sent = [0] * model.n_workers
        self._waiting: list[int] = []
        self._sum, self._velocity = np.zeros_like(model.params), np.zeros_like(model.params)

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        self._sent[worker] += 1
        self._sum += message.body
        self._waiting.append(worker)
        if len(self._waiting) < min(self._wanted, len(self._waiting) + self._n_to_come()):
            return []
        answered, self._waiting = self._waiting, []
        self._step()
        return answered

    def _step(self) -> None:
        """Take an outer step with what has come."""
        model, kind = self.model, self.model.params.dtype.type
        beta = kind(self._strategy.outer_momentum)
        self._sum /= len(model.working)
        self._velocity *= beta
        self._velocity += self._sum
        self._sum += beta * self._velocity
        self._sum *= kind(self._strategy.outer_rate)
        model.params -= self._sum
        model.version += 1
        self._sum.fill(0.0)

    def _n_to_come(self) -> int:
        """Return how many workers will still send something before the epoch ends."""
        rounds = self.model.rounds
        end = -(-max(self._sent) // rounds) * rounds
        return sum(self._sent[worker] < end for worker in self.model.working if worker not in self._waiting)
