"""Strategies with a centre: ranks and centre pull each other, together or by a server, or a server adds up changes.

With a server the cost per round and worker is a message to it and one back, `dsgd.sync.server.message_bytes` each, and
a worker keeps one more vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import ALIKE
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.period import Taxonomy
from dsgd.sync.server import (
    QUESTION,
    AbstractServerHandler,
    AbstractServerStrategy,
    ServerMessage,
    await_epoch_model,
    push,
)
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import number


@dataclass
class CentreState:
    """The state of elastic averaging."""

    # The centre, equal on all ranks.
    centre: FloatVector = field(metadata=ALIKE)

    def __post_init__(self) -> None:
        self.scratch = np.empty_like(self.centre)


@dataclass(frozen=True)
class EASGD(AbstractStrategy[CentreState]):
    """Pull models and a centre towards each other every `every` rows.

    Problem: an average throws away where each rank has got to. Springs let ranks explore around a centre that only
    moves slowly, and rare exchanges then cost less accuracy.

    Update, in Jacobi form, both from old values, with a = beta / P::

        x_p    <- x_p - a (x_p - centre)
        centre <- (1 - beta) centre + beta (1 / P) sum_q x_q

    The sum of all models and the centre stays: the centre gains what the models lose. The centre is returned. With
    momentum in the local steps (`dsgd.local.Momentum` with ``nesterov=True``) it is EAMSGD.

    Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`: every rank holds the centre, so
    there is no server. One more vector per rank.

    Source: Zhang, Choromanska and LeCun 2015, equations 2 and 3 (synchronous), beta = 0.9 as recommended there. Springs
    are alike; of ranks with unequal shards the steps are scaled (`dsgd.sync.period`).

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    beta : float, default 0.9
        How far the centre moves to the mean of the models, in [0, 1]; each rank moves ``beta / P`` of its distance to
        the centre. 0 leaves all ranks alone.

    Raises
    ------
    InvalidParameterError
        A value is out of range; above 1 the centre would swing.
    """

    every: int = number(256, low=1)
    beta: float = number(0.9, low=0, high=1)
    weighs = "alike"
    ends_equal = False
    collects = False
    taxonomy = Taxonomy("decentralised", "synchronous", "change", "all-reduce")

    def init(self, group: Group, params: FloatVector, weight: float) -> CentreState:
        """Return the model to start from as the centre."""
        return CentreState(params.copy())

    def sync(self, group: Group, vector: FloatVector, weight: float, state: CentreState) -> None:
        """Exchange by springs; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        centre, pull = state.centre, state.scratch
        np.subtract(vector, centre, out=pull)
        # The mean distance is all that the centre needs; to sum distances keeps digits that models would lose.
        vector -= vector.dtype.type(self.beta / group.size) * pull
        weighted_mean(group, pull, 1.0 / group.size)
        pull *= vector.dtype.type(self.beta)
        centre += pull

    def collect(self, group: Group, params: FloatVector, weight: float, state: CentreState) -> None:
        """Return the centre."""
        if group.size > 1:
            params[:] = state.centre


@dataclass
class ElasticState:
    """The state of a worker."""

    # The centre at the end of the last epoch, equal on all workers.
    centre: FloatVector = field(metadata=ALIKE)
    # The number of exchanges it had had at its last answer to this worker.
    version: AnyArray


@final
class _CentreHandler(AbstractServerHandler):
    """Moves the centre to a worker's model, and answers with the way that it went."""

    def start(self) -> None:
        self._share = self.model.params.dtype.type(self.strategy.beta / self.model.n_workers)
        self._moved = np.zeros_like(self.model.params)

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        model = self.model
        np.subtract(message.body, model.params, out=self._moved)
        self._moved *= self._share
        model.params += self._moved
        model.version += 1
        return (worker,)

    def answer(self, worker: int, out: FloatVector) -> None:
        out[:] = self._moved


@dataclass(frozen=True)
class AsyncEASGD(AbstractServerStrategy[ElasticState]):
    """Let workers and the centre of a server pull each other.

    Problem: elastic averaging lets models explore on a spring, but as an all-reduce (`EASGD`) it waits for all of them.

    Update: after `every` rows of its own steps a worker sends its model x_p. The server computes ``d = a (x_p - c)``
    with ``a = beta / P``, adds it to the centre, ``c <- c + d``, and sends it back: ``x_p <- x_p - d``. What the one
    gains the other loses, so the sum of the centre and the models changes by steps alone. The centre is what training
    returns.

    The vector that a worker keeps is the centre at the end of the last epoch, from which training resumes after a
    failure. Source: Zhang, Choromanska and LeCun 2015 (algorithm 1; beta = 0.9).

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

    every: int = number(64, low=1)
    beta: float = number(0.9, low=0.0, high=1.0)
    weighs = "alike"
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "server")
    serves_by = _CentreHandler

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


@dataclass
class DownpourState:
    """The state of a worker."""

    # The model when it last sent or fetched.
    base: FloatVector = field(metadata=ALIKE)
    # How often it has sent.
    pushes: AnyArray


def steady_share(n_workers: int) -> float:
    """Return the largest s for which ``x_(k + 1) = x_k - s x_(k - d)`` does not swing, with d = P - 1.

    Its roots are those of ``z^(d + 1) - z^d + s``, real up to ``s = d^d / (d + 1)^(d + 1)``, where two of them meet.
    """
    delay = n_workers - 1
    return float((delay / n_workers) ** delay / n_workers)


@final
class _SumHandler(AbstractServerHandler):
    """Adds a share of each change."""

    def start(self) -> None:
        share, n_workers = self.strategy.share, self.model.n_workers
        self._share = self.model.params.dtype.type(steady_share(n_workers) if share is None else share)

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        message.body *= self._share
        self.model.params += message.body
        self.model.version += 1
        return (worker,) if message.head["kind"] == QUESTION else ()


@dataclass(frozen=True)
class Downpour(AbstractServerStrategy[DownpourState]):
    """Let a server add up the changes that workers make to their models.

    Problem: a message for every gradient is too many; a worker can take many steps between two of them.

    Update: a worker takes SGD steps on its rows. After `every` of them it sends the change since it last sent or
    fetched, ``d = x_p - b_p``, and the server adds a share of it, ``x <- x + s d``. Every `fetch_every` times, and at
    the end of an epoch, the worker waits for the model of the server and continues from it. A single worker takes plain
    SGD steps.

    With ``s = 1``, as in the source, the server adds the changes of P workers, so their rates add up too: if those of
    one rank are close to unstable, they must be P times smaller. ``s = 1 / P`` is not small enough: a change is P - 1
    messages old when it arrives, and if the steps of a round reach the worker's own minimum, the server follows ``x <-
    x - s x_old``, which oscillates and amplifies noise for s above ``(1 - 1 / P)^(P - 1) / P``. That is the default,
    with which the rates of one rank can be kept: 1, 1/4 and 0.11 for 1, 2 and 4 workers, 1 / (e P) for many. If rates
    fall like t^-p, more slowly than 1 / t, an epoch then gets ``1 / (s P^p)`` times less far than one of one rank;
    ``rates="pooled"`` compensates.

    Cost per round and worker: a message to the server and, every `fetch_every` rounds, one back. Source: Dean et al.
    2012 (algorithm 7.1, with n_push and n_fetch; they have Adagrad for the rates).

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two messages.
    fetch_every : int, default 1
        Messages after which a worker gets the model of the server.
    share : float or None, default None
        s, in (0, 1]; None is `steady_share` of the number of workers.
    rates : {"own", "pooled"}, default "own"
        ``"own"``: a worker steps at the rates of its own schedule. ``"pooled"``: rates of plain steps by row that fall
        more slowly than 1 / t are raised so that an epoch gets as far as one of one rank, as far as rows of that length
        allow (`dsgd.local.SGD.pooled_factor`).

    Raises
    ------
    InvalidParameterError
        A period is not a positive integer, `share` not in (0, 1], or there are no such rates.
    """

    every: int = number(64, low=1)
    fetch_every: int = number(1, low=1)
    share: float | None = number(None, low=0.0, high=1.0, open_low=True)
    rates: Literal["own", "pooled"] = "own"
    weighs = "alike"
    taxonomy = Taxonomy("centralised", "asynchronous", "change", "server")
    serves_by = _SumHandler

    def init(self, group: Group, params: FloatVector, weight: float) -> DownpourState:
        """Return the model to start from as the base of all changes."""
        return DownpourState(params.copy(), np.zeros(1, dtype=np.int64))

    def sync(self, group: Group, vector: FloatVector, weight: float, state: DownpourState) -> None:
        """Send what has changed, and maybe fetch; see `AbstractStrategy.sync`."""
        state.pushes += 1
        fetches = bool(state.pushes[0] % self.fetch_every == 0)
        change = vector - state.base
        push(group, change, np.zeros(1, dtype=np.int64), wants_answer=fetches)
        if fetches:
            vector[:] = change
        state.base[:] = vector

    def settle(self, group: Group, params: FloatVector, state: DownpourState) -> None:
        """Fetch the model of the server; see `AbstractUnderWay.settle`."""
        await_epoch_model(group, params)
        state.base[:] = params

    def served(self, params: FloatVector, state: DownpourState) -> tuple[FloatVector, int]:
        """Return the model; see `AbstractServerStrategy.served`."""
        return params, 0

    def lag(self, n_ranks: int, power: float) -> float:
        """Return how many times less far the server gets than one rank; see `AbstractStrategy.lag`."""
        share = steady_share(n_ranks) if self.share is None else self.share
        return float(n_ranks**-power / share)
