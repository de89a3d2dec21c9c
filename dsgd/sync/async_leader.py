"""Asynchronous leader SGD: a server keeps the best models, and workers are pulled towards them.

Problem: in `LeaderSGD` all ranks wait for each other to find out which one leads.

Update: after `every` rows of its own steps a worker sends its model and its score, the mean training loss of these
rows. The server counts the messages of all workers. Once there are as many as workers, from whichever of them, the
model with the lowest score among them is the new leader z. Each worker is pulled towards a new leader once, when it
sends its next message, ``x_p <- x_p + pull (z - x_p)``, except the one whose model it is: in the source a leader's
distance to itself is zero, and here z is its own model of some steps ago, which would only hold it back. Fast workers
send more messages and so lead more often. Training returns the mean of all models, weighted by rows.

With groups, each of them has a leader z_j, the lowest score among its own messages, and every `global_every`-th time
there is one leader z of all, too. Then a worker of group j is pulled twice::

    x_p <- x_p + pull (z_j - x_p);  x_p <- x_p + global_pull (z - x_p)

A group that has sent nothing since the last time keeps its leader. The server, which has both models, pulls, and
answers with the model of the worker: groups cost not a byte.

What it returns: as for `LeaderSGD` the minimum of the ranks' objectives weighted by how much they lead, where the rows
of ranks are of different kinds.

Cost per round and worker: a message to the server and one back, `message_bytes` each. The server keeps two models, and
with n groups ``2 n + 1``.

Source: Teng et al. 2019, algorithm 1, whose counter of the steps of all workers is this one, and whose multiples of it
are those at which there are new leaders; there a server does not keep the models, and all workers meet when it is full.
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
        Share of its distance to a new leader that a worker moves, in [0, 1]; with groups, to that of its own. The
        source takes 0.1.
    stretch : int or None, default None
        Rows after which losses are noted; None notes them once per call of the kernel.
    n_groups : int, default 1
        Groups of consecutive ranks, each with its own leader; such as the workers of one host.
    global_pull : float, default 0.05
        With groups, the pull to the leader of all, in [0, 1]. The source takes 0.1.
    global_every : int, default 4
        Of how many times that there are new leaders of groups one brings a leader of all, too.

    Raises
    ------
    InvalidParameterError
        `every`, `stretch`, `n_groups` or `global_every` is not a positive integer, or a pull not in [0, 1].
    """

    every: int = 256
    pull: float = 0.05
    stretch: int | None = None
    n_groups: int = 1
    global_pull: float = 0.05
    global_every: int = 4
    collects = True
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "server")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "every", "n_groups", "global_every", low=1, integer=True)
        check_numbers(self, "pull", "global_pull", low=0.0, high=1.0)
        check_numbers(self, "stretch", low=1, integer=True, optional=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> FollowerState:
        """Return the record of a worker that knows no leader yet."""
        return FollowerState(np.zeros(1, dtype=np.int64), np.zeros(2))

    def correct(self, params: FloatVector, steps: LocalSteps, state: FollowerState) -> None:
        """Note the losses; see `AbstractLocalTerm.correct`."""
        state.losses += (steps.loss_sum, steps.n_rows)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: FollowerState) -> None:
        """Send model and score, and get the model after the pulls that are due; see `AbstractStrategy.sync`."""
        push(group, vector, state.version, score=take_score(state.losses))

    def settle(self, group: Group, params: FloatVector, state: FollowerState) -> None:
        """Do nothing: a worker has its whole model, and the answer to its next message names the leader."""

    def collect(self, group: Group, params: FloatVector, weight: float, state: FollowerState) -> None:
        """Return the weighted mean of all models, the same on every rank."""
        weighted_mean(group, params, weight)

    def served(self, params: FloatVector, state: FollowerState) -> tuple[FloatVector, int]:
        """Return the model as the leader; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what knows the leaders."""
        return _Desk(model, self)


@final
class _Desk(AbstractServerHandler):
    """Knows the leader of all, which is the model of the server, and those of groups, where there are several."""

    def __init__(self, model: Model, strategy: AsyncLeaderSGD) -> None:
        super().__init__(model)
        self._strategy = strategy
        n = min(int(strategy.n_groups), model.n_workers)
        self._group_of = [worker * n // model.n_workers for worker in range(model.n_workers)]
        # Who leads each group and with what model: nobody yet. A single group is led by the leader of all.
        self._authors = [-1] * n
        self._leaders = [model.params.copy() for _ in range(n if n > 1 else 0)]
        self._candidates = [model.params.copy() for _ in range(n)]
        self._forget()

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        group, score = self._group_of[worker], float(message.head["score"])
        if score < self._scores[group]:
            self._scores[group], self._new[group] = score, worker
            self._candidates[group][:] = message.body
        self._n += 1
        if self._n >= self.model.n_workers:
            self._elect()
        self._lead(worker, message.body, int(message.head["version"]))
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        """Leave the model of the worker, which has been pulled; see `AbstractServerHandler.answer`."""

    def _elect(self) -> None:
        """Let the lowest scores lead, if there are any that are numbers."""
        model, best = self.model, int(np.argmin(self._scores))
        if self._scores[best] < np.inf:
            model.version += 1
            if not self._leaders or model.version % self._strategy.global_every == 0:
                model.params[:] = self._candidates[best]
                model.author = self._new[best]
            for group, leader in enumerate(self._leaders):
                if self._scores[group] < np.inf:
                    leader[:] = self._candidates[group]
                    self._authors[group] = self._new[group]
        self._forget()

    def _forget(self) -> None:
        """Begin to count again."""
        n = len(self._candidates)
        self._n, self._scores, self._new = 0, [np.inf] * n, [-1] * n

    def _lead(self, worker: int, params: FloatVector, known: int) -> None:
        """Pull the model of a worker towards the leaders that are new to it, in place."""
        model, strategy = self.model, self._strategy
        if model.version == known:
            return
        if not self._leaders:
            self._pull(worker, params, model.author, model.params, strategy.pull)
            return
        group, every = self._group_of[worker], int(strategy.global_every)
        self._pull(worker, params, self._authors[group], self._leaders[group], strategy.pull)
        if model.version // every > known // every:
            self._pull(worker, params, model.author, model.params, strategy.global_pull)

    @staticmethod
    def _pull(worker: int, params: FloatVector, author: int, leader: FloatVector, strength: float) -> None:
        """Pull towards a leader, if there is one, and if it is another worker's."""
        if author not in (-1, worker):
            way = leader - params
            way *= way.dtype.type(strength)
            params += way
