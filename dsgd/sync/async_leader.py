"""Asynchronous leader SGD: a server keeps the best model, and workers are pulled towards it.

Problem: in `LeaderSGD` all ranks wait for each other to find out which one leads.

Update: after `every` rows of its own steps a worker sends its model and its score, the mean training loss of these
rows. The server counts the messages of all workers. Once there are as many as workers, from whichever of them, the
model with the lowest score among them is the new leader z. Each worker that receives a new leader is pulled towards it
once, ``x_p <- x_p + pull (z - x_p)``, except the one whose model it is: in the source a leader's distance to itself is
zero, and here z is its own model of some steps ago, which would only hold it back. Fast workers send more messages and
so lead more often. Training returns the mean of all models, weighted by rows.

What it returns: as for `LeaderSGD` the minimum of the ranks' objectives weighted by how much they lead, where the rows
of ranks are of different kinds.

Cost per round and worker: a message to the server and one back, `message_bytes` each. The server keeps two models.

Source: Teng et al. 2019, whose counter of the steps of all workers is this one; there a server does not keep the
models, and all workers meet when it is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, LocalSteps
from dsgd.sync.leader import take_score
from dsgd.sync.server import AbstractServerHandler, AbstractServerStrategy, Model, ServerMessage, push
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_numbers

__all__ = ["AsyncLeaderSGD", "FollowerState"]


@dataclass
class FollowerState:
    """The state of a worker.

    Parameters
    ----------
    version : array of int64, shape (1,)
        Number of the leader that it was last pulled to.
    losses : array of float64, shape (2,)
        Sum of the losses since the last message, and their number.
    """

    version: AnyArray
    losses: FloatVector


@dataclass(frozen=True)
class AsyncLeaderSGD(AbstractServerStrategy[FollowerState], AbstractLocalTerm[FollowerState]):
    """Pull workers towards the best model, which a server keeps.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two messages. With few a worker leads whose rows happened to fit.
    pull : float, default 0.05
        Share of its distance to a new leader that a worker moves, in [0, 1]. The source takes 0.1.
    stretch : int or None, default None
        Rows after which losses are noted; None notes them once per call of the kernel.

    Raises
    ------
    InvalidParameterError
        `every` or `stretch` is not a positive integer, or `pull` not in [0, 1].
    """

    every: int = 256
    pull: float = 0.05
    stretch: int | None = None
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "server")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "pull", low=0.0, high=1.0)
        check_numbers(self, "stretch", low=1, integer=True, optional=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> FollowerState:
        """Return the record of a worker that knows no leader yet."""
        return FollowerState(np.zeros(1, dtype=np.int64), np.zeros(2))

    def correct(self, params: FloatVector, steps: LocalSteps, state: FollowerState) -> None:
        """Note the losses; see `AbstractLocalTerm.correct`."""
        state.losses += (steps.loss_sum, steps.n_rows)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: FollowerState) -> None:
        """Send model and score, and follow a new leader; see `AbstractStrategy.sync`."""
        score = take_score(state.losses)
        leader, before = vector.copy(), int(state.version[0])
        author = push(group, leader, state.version, score=score)
        if state.version[0] != before and author != group.rank:
            leader -= vector
            leader *= self.pull
            vector += leader

    def settle(self, group: Group, params: FloatVector, state: FollowerState) -> None:
        """Do nothing: a worker has its whole model, and the answer to its next message names the leader."""

    def collect(self, group: Group, params: FloatVector, weight: float, state: FollowerState) -> None:
        """Return the weighted mean of all models, the same on every rank."""
        weighted_mean(group, params, weight)

    def served(self, params: FloatVector, state: FollowerState) -> tuple[FloatVector, int]:
        """Return the model as the leader; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what knows the leader."""
        return _Desk(model)


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._candidate = model.params.copy()
        self._author = -1
        self._lowest = np.inf
        self._n = 0

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        model = self.model
        score = float(message.head["score"])
        if score < self._lowest:
            self._lowest = score
            self._candidate[:] = message.body
            self._author = worker
        self._n += 1
        if self._n >= model.n_workers:
            # If no score is a number, there is no leader.
            if self._lowest < np.inf:
                model.params[:] = self._candidate
                model.author = self._author
                model.version += 1
            self._lowest, self._n = np.inf, 0
        return (worker,)
