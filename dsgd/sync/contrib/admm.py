"""Consensus ADMM, with a barrier or with a server: ranks minimise their own objectives, and prices make them agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractRejoining, AbstractStrategy, LocalSteps
from dsgd.sync.period import Taxonomy
from dsgd.sync.server import (
    AbstractServerHandler,
    AbstractServerStrategy,
    Quorum,
    ServerMessage,
    await_epoch_model,
    push,
)
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import number


@dataclass
class ConsensusState(AbstractRejoining):
    """The state of consensus ADMM."""

    # z, equal on all ranks.
    consensus: FloatVector = field(metadata=ALIKE)
    # u_p of this rank.
    dual: FloatVector

    def rejoin(self, params: FloatVector) -> None:
        """Begin with no prices: those of other ranks, with other rows, need not cancel."""
        self.dual.fill(0.0)


def _pull(params: FloatVector, steps: LocalSteps, rho: float, consensus: FloatVector, dual: FloatVector) -> None:
    """Take an implicit step along the spring to ``consensus - dual``, in place."""
    strength = steps.rate_sum * rho
    if strength > 0.0:
        params -= params.dtype.type(strength / (1.0 + strength)) * (params - consensus + dual)


@dataclass(frozen=True)
class ADMM(AbstractStrategy[ConsensusState], AbstractLocalTerm[ConsensusState]):
    """Let ranks minimise their own objectives, and make them agree by prices, every `every` rows.

    Problem: averages of many local steps have a bias where ranks have rows of different kinds. A spring to the last
    average makes it smaller, and training slower (`FedProx`); ADMM makes it vanish, by a price for disagreeing.

    Update: minimise ``sum_p w_p f_p(x_p)`` such that all ``x_p = z``, w_p the share of the rows. With the dual vector
    u_p of each rank, in units of the model ("scaled form")::

        x_p <- about the minimum of f_p(x) + (rho / 2) ||x - z + u_p||^2
        z   <- sum_p w_p (x_p + u_p)
        u_p <- u_p + x_p - z

    The minimum is approached by the steps of a round, from where x_p is. The spring is applied every `stretch` rows
    (with a local rule, after every minibatch) as an implicit step, stable at any rate: with s the sum of the rates
    since the last time, ``x <- (x + s rho (z - u_p)) / (1 + s rho)``. Where nothing moves any more the models are
    equal, and ``grad f_p = -rho u_p``, of which the weighted sum is zero: z is the minimum of the whole, however few
    steps a round has. What is left is the drift of ranks within a stretch. Training returns z.

    In the first exchange, when all u_p are zero, z is the mean of the models; and as the weighted sum of all u_p stays
    zero, so it is after: ADMM averages as `LocalSGD` does, but does not throw away where each rank has got to.

    Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, and a pass over the model per
    stretch. Two more vectors per rank.

    Source: Boyd, Parikh, Chu, Peleato and Eckstein 2011 (consensus, in scaled form), with weights; a few gradient steps
    in the place of a minimum: Ouyang, He, Tran and Gray 2013 (stochastic ADMM).

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two exchanges.
    rho : float, default 0.001
        Strength of the spring, in the unit of the curvature of the loss, above zero. Models agree the sooner the
        larger it is; beyond one over the rates of a round it makes training slower.
    stretch : int, default 64
        Rows between two pulls.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(64, low=1)
    rho: float = number(0.001, low=0, open_low=True)
    stretch: int = number(64, low=1)
    weighs = "rows"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    def init(self, group: Group, params: FloatVector, weight: float) -> ConsensusState:
        """Return the model to start from as the one all agree on, and no prices."""
        return ConsensusState(params.copy(), np.zeros_like(params))

    def correct(self, params: FloatVector, steps: LocalSteps, state: ConsensusState) -> None:
        """Pull the model to where it would agree; see `AbstractLocalTerm.correct`."""
        _pull(params, steps, self.rho, state.consensus, state.dual)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: ConsensusState) -> None:
        """Find the consensus and raise prices; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        state.dual += vector
        state.consensus[:] = state.dual
        weighted_mean(group, state.consensus, weight)
        state.dual -= state.consensus

    def collect(self, group: Group, params: FloatVector, weight: float, state: ConsensusState) -> None:
        """Return the consensus."""
        if group.size > 1:
            params[:] = state.consensus


@dataclass
class WorkerState(AbstractRejoining):
    """The state of a worker."""

    # z at the end of the last epoch, or as it was answered since.
    consensus: FloatVector = field(metadata=ALIKE)
    # u_p.
    dual: FloatVector
    # ``x_p + u_p`` as the server knows it.
    told: FloatVector
    # How many messages z had had.
    version: AnyArray

    def rejoin(self, params: FloatVector) -> None:
        """Begin with no prices: those of other workers, with other rows, need not cancel."""
        self.told[:] = self.consensus
        self.dual.fill(0.0)


@final
class _ConsensusHandler(AbstractServerHandler):
    """Adds changes to the consensus; answers if some have come, and none that is to come is late."""

    def start(self) -> None:
        self._quorum = Quorum(self.model, self.strategy.arrivals)
        # Updates since the last message.
        self._age = dict.fromkeys(self.model.working, 0)

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        self.model.params += message.body
        self.model.version += 1
        is_full = self._quorum.count(worker)
        if not is_full or any(self._age[other] + 1 >= self.strategy.delay for other in self._quorum.to_come()):
            return []
        answered = self._quorum.release()
        for other in self._age:
            self._age[other] = 0 if other in answered else self._age[other] + 1
        return answered

    def settle(self) -> None:
        self._age = dict.fromkeys(self._age, 0)
        self.model.settle()


@dataclass(frozen=True)
class AsyncADMM(AbstractServerStrategy[WorkerState], AbstractLocalTerm[WorkerState]):
    """Let workers minimise their own objectives, and a server raise prices with those that have arrived.

    Problem: in `ADMM` all ranks wait for the slowest one. Update: as in `ADMM`, but z is updated once `arrivals`
    workers have sent ``x_p + u_p`` (the partial barrier), if of no other worker the last message is `delay` updates old
    (the bounded delay), from what each worker has sent last::

        z <- sum_p w_p (x_p + u_p as sent last)

    Only those that have arrived are answered. A worker sends what its sum has changed by since its last message, times
    its weight: so the server keeps one vector, whatever the number of workers. With ``arrivals`` the number of workers,
    or ``delay=1``, this is `ADMM`.

    As with all servers, each call of ``partial_fit`` begins afresh, here without prices: let calls be of some epochs.

    Cost per round and worker: a message to the server and one back, `dsgd.sync.server.message_bytes` each. The worker
    keeps three more vectors. Source: Zhang and Kwok 2014 (S arrivals, delay tau), with sums of rows and inexact minima
    as in `ADMM`.

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two exchanges.
    rho : float, default 0.001
        Strength of the spring; see `ADMM`.
    stretch : int, default 64
        Rows between two pulls.
    arrivals : int, default 1
        Workers of whom an update waits.
    delay : int, default 8
        Updates that the last message of a worker may be old. One waits for all workers.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(64, low=1)
    rho: float = number(0.001, low=0, open_low=True)
    stretch: int = number(64, low=1)
    arrivals: int = number(1, low=1)
    delay: int = number(8, low=1)
    weighs = "rows"
    taxonomy = Taxonomy("decentralised", "bounded", "change", "server")
    serves_by = _ConsensusHandler

    def init(self, group: Group, params: FloatVector, weight: float) -> WorkerState:
        """Return the model to start from as the one all agree on, and no prices."""
        return WorkerState(params.copy(), np.zeros_like(params), params.copy(), np.zeros(1, dtype=np.int64))

    def correct(self, params: FloatVector, steps: LocalSteps, state: WorkerState) -> None:
        """Pull the model to where it would agree; see `AbstractLocalTerm.correct`."""
        _pull(params, steps, self.rho, state.consensus, state.dual)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: WorkerState) -> None:
        """Say what has changed, and raise prices with the answer; see `AbstractStrategy.sync`."""
        state.dual += vector
        state.consensus[:] = vector.dtype.type(weight) * (state.dual - state.told)
        state.told[:] = state.dual
        push(group, state.consensus, state.version)
        state.dual -= state.consensus

    def settle(self, group: Group, params: FloatVector, state: WorkerState) -> None:
        """Take the consensus of the epoch; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, state.consensus)

    def collect(self, group: Group, params: FloatVector, weight: float, state: WorkerState) -> None:
        """Return the consensus; see `AbstractStrategy.collect`."""
        params[:] = state.consensus

    def served(self, params: FloatVector, state: WorkerState) -> tuple[FloatVector, int]:
        """Return the consensus; see `AbstractServerStrategy.served`."""
        return state.consensus, int(state.version[0])
