"""Strategies whose ranks send gradients to a server, which steps along them.

Every worker takes its rows in batches. It sends the mean gradient of a batch, and continues from the model that it gets
back. All shards are cut into the same number of batches, whatever their length, so a gradient is weighted by its rows:
worker p, with n_p of n rows, sends ``(P n_p / n) g_p`` together with that factor, its share. P is the number of workers
that have rows.

A server takes few steps compared with a single rank, and its gradients are stale. If rates fall like 1 / t, as they do
by default, the model at the end of an epoch is therefore the mean over its last half (`dsgd.local.sgd`);
``suffix=0.0`` leaves the last model, as in the sources.

Cost per round and worker: a message to the server and one back, `dsgd.sync.server.message_bytes` each; two messages of
the gradient's length. The server's port carries 2 P of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.sync.period import EveryRows, Taxonomy
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

_EPSILON: Final = 1e-7


@dataclass
class PushState:
    """The state of a worker towards its server."""

    version: AnyArray

    def __post_init__(self) -> None:
        self.n_with_rows = 1.0


class AbstractPushStrategy(AbstractServerStrategy[PushState]):
    """Workers send the gradient of each batch; what the server does with it is the method.

    Attributes
    ----------
    batch : int
        Rows of a worker's gradient.
    suffix : float
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones.
    """

    batch: int
    suffix: float
    exchanges = "gradient"
    taxonomy = Taxonomy("centralised", "asynchronous", "gradient", "server")

    @final
    @property
    def period(self) -> EveryRows:
        """After every batch of the rank with the most rows."""
        return EveryRows(self.batch)

    @final
    def init(self, group: Group, params: FloatVector, weight: float) -> PushState:
        """Return the record of a worker that has the model of the server."""
        state = PushState(np.zeros(1, dtype=np.int64))
        with_rows = np.array([float(weight > 0.0)])
        group.allreduce(with_rows)
        state.n_with_rows = float(with_rows[0])
        return state

    @final
    def sync(self, group: Group, vector: FloatVector, weight: float, state: PushState) -> None:
        """Send the gradient and replace it by the model of the server; see `AbstractStrategy.sync`."""
        if (share := weight * state.n_with_rows) != 1.0:
            vector *= share
        push(group, vector, state.version, score=share)

    @final
    def settle(self, group: Group, params: FloatVector, state: PushState) -> None:
        """Replace the model by that of the server; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, params)

    @final
    def served(self, params: FloatVector, state: PushState) -> tuple[FloatVector, int]:
        """Return the model that the server gave last; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])


@final
class _EachStep(AbstractServerHandler):
    """Takes a step with each gradient."""

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        self.model.step(message.body, 1.0)
        self.model.version += 1
        return (worker,)


@dataclass(frozen=True)
class ASGD(AbstractPushStrategy):
    """Let a server take a step with every gradient as it comes.

    Problem: in a synchronous step everybody waits for the slowest worker.

    Update: worker p computes the gradient of a batch at the model ``x_{v - d}`` that it was given; when it arrives, at
    version v, ``x <- x - eta g_p(x_{v - d})``, and the worker is given the new model. The staleness d is the number of
    steps that others have taken meanwhile: P - 1 where all workers are equally fast. Steps are stable while ``eta h <=
    2 sin(pi / (2 (2 d + 1)))`` for a curvature h, so rates must fall about as 1 / P.

    Source: Dean et al. 2012; Recht et al. 2011 for the analysis; Tsitsiklis, Bertsekas and Athans 1986.

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source.

    Raises
    ------
    InvalidParameterError
        `batch` is not a positive integer or `suffix` not in [0, 1].
    """

    batch: int = number(8, low=1)
    suffix: float = number(0.5, low=0.0, high=1.0)
    serves_by = _EachStep


@final
class _StalenessAwareHandler(AbstractServerHandler):
    """Divides gradients by their staleness, and takes a step with several."""

    def start(self) -> None:
        usual = self.strategy.usual
        self._usual = max(1.0, len(self.model.working) / self.strategy.arrivals if usual is None else usual)
        self._sum = np.zeros_like(self.model.params)
        self._n, self._shares = 0, 0.0

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        share = min(1.0, self._usual / max(1, self.model.version - int(message.head["version"])))
        if share != 1.0:
            message.body *= message.body.dtype.type(share)
        self._sum += message.body
        self._shares += share
        self._n += 1
        if self._n == self.strategy.arrivals:
            self._step()
        return (worker,)

    def settle(self) -> None:
        self._step()
        self.model.settle()

    def _step(self) -> None:
        if self._n:
            # The step multiplies by the mean share, for the sake of the penalty; the gradients have theirs already.
            self._sum /= self._shares
            self.model.step(self._sum, self._shares / self._n)
            self.model.version += 1
            self._sum.fill(0.0)
            self._n, self._shares = 0, 0.0


@dataclass(frozen=True)
class StalenessAware(AbstractPushStrategy):
    """Let a server divide every gradient by its staleness.

    Problem: a gradient that was computed d steps ago belongs to the model of that time. At full rate, the gradients of
    late workers set the model back.

    Update: a gradient that was computed with version j of the model and goes into the step that makes version i + 1 of
    version i has the staleness ``d = i - j``, and its rate is multiplied by ``s = min(1, usual / max(d, 1))``, for the
    penalty too. After every c arrivals the server takes one step with all of them, each at its own rate and divided by
    c; the worker is answered at once. At the end of an epoch it takes one step with those that have arrived.

    The source calls this n-softsync, with ``c = P / n`` of P workers: between two gradients of a worker there are n
    steps, and that is what d is in the mean, a little less for few workers. With c = 1 (n = P) every gradient is a
    step, as in `ASGD`; with c = P (n = 1) gradients are one step old at most, and the rate is that of a batch of all
    workers.

    In the source ``usual`` is one. Rates are then shorter by what d usually is, and of rates c / (alpha t) only those
    with c of one or more forget as fast as 1 / t where training began; with c = 1 / P the first, long steps are felt
    until the end. So by default ``usual`` is n: gradients that are as old as all count in full, and those of workers
    that are later than others for less.

    What it minimises: ``sum_p n_p s_p f_p``, f_p being the mean loss of rank p and s_p the mean of s over its
    gradients: with unlike rows that is the whole only where all are equally old, or none is older than usual.

    Source: Zhang, Gupta, Lian and Liu 2016 (staleness-aware async-SGD, their equations 4 and 6).

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    arrivals : int, default 1
        c, the gradients that the server takes one step with; the source's n is the number of workers over it.
    usual : float or None, default None
        Staleness up to which a gradient counts in full, 1 or more; None is n, and 1 the source's.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source.

    Raises
    ------
    InvalidParameterError
        `batch` or `arrivals` is not a positive integer, `usual` is below 1 or `suffix` not in [0, 1].
    """

    batch: int = number(8, low=1)
    arrivals: int = number(1, low=1)
    usual: float | None = number(None, low=1.0)
    suffix: float = number(0.5, low=0.0, high=1.0)
    serves_by = _StalenessAwareHandler


@final
class _CompensatingHandler(AbstractServerHandler):
    """Corrects a gradient for the change of the model since its worker was given it."""

    def start(self) -> None:
        self._given = np.repeat(self.model.params[None], self.model.n_workers, axis=0)
        self._mean_square = np.zeros_like(self.model.params)

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        model, vector, strategy = self.model, message.body, self.strategy
        share = float(message.head["score"])
        if strategy.compensation and share:
            # The message holds the gradient times the share of the worker; a worker without rows has no share.
            if share != 1.0:
                vector /= vector.dtype.type(share)
            change = strategy.compensation * vector * (model.params - self._given[worker])
            if strategy.decay is not None:
                self._mean_square *= strategy.decay
                self._mean_square += (1.0 - strategy.decay) * (vector * vector)
                change /= np.sqrt(self._mean_square + _EPSILON)
            np.clip(change, -strategy.limit, strategy.limit, out=change)
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


@dataclass(frozen=True)
class DelayCompensatedASGD(AbstractPushStrategy):
    """Let a server correct every gradient for the change of its model since.

    Problem: a gradient that was computed at an old model is not that of the present one.

    Update: the server keeps the model b_p that it gave to each worker last. A gradient g of worker p becomes, at the
    model x, ``g + lambda g * g * (x - b_p)``: the first order of the gradient at x, with the outer product of g in the
    place of the Hessian and only its diagonal. Then ``x <- x - eta g``. With ``decay`` lambda adapts for each
    parameter, ``lambda / sqrt(m + 1e-7)`` with m the running mean of g * g. The outer product stands for the Hessian
    where the loss is a negative log-likelihood (log loss); for others it has the wrong scale. Where ``lambda g (x -
    b_p)`` is beyond one in size, as with long rows and large rates, the correction is larger than what it corrects and
    the expansion says nothing. It is then cut to one, without which training would diverge; ``limit=inf`` is the
    source's. With uneven shards, g is the gradient itself; its share weights the corrected gradient in the step.

    Source: Zheng et al. 2017 (DC-ASGD-c and DC-ASGD-a, algorithm 2); lambda 0.04 and, adaptive, 2 with decay 0.95. The
    server keeps P models.

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

    batch: int = number(8, low=1)
    compensation: float = number(0.04, low=0.0)
    decay: float | None = number(None, low=0.0, high=1.0, open_high=True)
    limit: float = number(1.0, low=0.0, high=math.inf)
    suffix: float = number(0.5, low=0.0, high=1.0)
    serves_by = _CompensatingHandler


@final
class _BoundedHandler(AbstractServerHandler):
    """Takes a step with each gradient, and holds workers back that are too far ahead."""

    def start(self) -> None:
        self._sent = [0] * self.model.n_workers
        self._waiting: list[int] = []

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        self.model.step(message.body, 1.0)
        self.model.version += 1
        self._sent[worker] += 1
        self._waiting.append(worker)
        limit = min(self._sent[other] for other in self.model.working) + self.strategy.slack
        answered = [other for other in self._waiting if self._sent[other] <= limit]
        self._waiting = [other for other in self._waiting if self._sent[other] > limit]
        return answered


@dataclass(frozen=True)
class StaleSynchronous(AbstractPushStrategy):
    """Let a server step with every gradient, and hold back workers that are too far ahead.

    Problem: without bounds, a slow worker sends gradients of models that are long outdated; with a barrier in every
    round, it stops all others.

    Update: as in `ASGD` the server steps with every gradient as it comes. A worker that has sent c of them is answered
    once every other one has sent at least c - slack, and so reads a model that holds all that was sent up to then. With
    ``slack=0`` all read the same model, which is a synchronous step with the sum of the gradients in the place of their
    mean; without a bound it is `ASGD`. Source: Ho et al. 2013.

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    slack : int, default 3
        Rounds that a worker may be ahead of the slowest.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source.

    Raises
    ------
    InvalidParameterError
        `batch` is not a positive integer, `slack` is negative or `suffix` not in [0, 1].
    """

    batch: int = number(8, low=1)
    slack: int = number(3, low=0)
    suffix: float = number(0.5, low=0.0, high=1.0)
    taxonomy = Taxonomy("centralised", "bounded", "gradient", "server")
    serves_by = _BoundedHandler


@final
class _BackupHandler(AbstractServerHandler):
    """Takes a step with the first gradients of a round."""

    def start(self) -> None:
        self._quorum = Quorum(self.model, self.strategy.wanted(len(self.model.working)))
        self._sum = np.zeros_like(self.model.params)

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        is_fresh = bool(message.head["version"] == self.model.version)
        if is_fresh:
            self._sum += message.body
        answered = [] if is_fresh else [worker]
        return answered + self._step() if self._quorum.count(worker, waits=is_fresh) else answered

    def settle(self) -> None:
        self._step()
        self.model.settle()

    def _step(self) -> list[int]:
        used = self._quorum.release()
        if used:
            self._sum /= len(used)
            self.model.step(self._sum, 1.0)
            # Rates fall with the gradients that have been used.
            self.model.version += len(used)
            self._sum.fill(0.0)
        return used


@dataclass(frozen=True)
class BackupWorkers(AbstractPushStrategy):
    """Let a server step with the first gradients of a round, and drop those of the slowest workers.

    Problem: a synchronous step takes as long as its slowest worker; asynchronous steps are stale.

    Update: of P workers a step takes the first N = P - backups gradients of the current model, ``x <- x - eta (1 / N)
    sum g_p(x)``, and answers those workers. A gradient of an older model is dropped, and its worker answered at once
    with the current one. P counts only workers that have rows; no step waits for the others. Gradients are never stale,
    but those of slow workers are lost. The model therefore minimises ``sum_p k_p n_p f_p``, f_p being the mean loss of
    rank p and k_p the share of its gradients that are used: not the loss of all rows, if ranks of different speed have
    different rows. With ``backups=0`` it is `MinibatchSGD` with batches of P times ``batch`` rows. At the end of an
    epoch, when fewer than N workers have rows left, a step takes all gradients that are still to come. The step counter
    counts gradients: the rate is that of `ASGD` after as many of them. With b rows in each gradient, an epoch of n rows
    gets ``N^p (b P)^(1 - p)`` times less far than one of steps by row, at rates c / t^p; ``rates="pooled"``
    compensates.

    Source: Chen, Pan, Monga, Bengio and Jozefowicz 2016 (algorithms 3 and 4; their rates fall by the epoch, and so by
    the rows that have been used).

    Parameters
    ----------
    batch : int, default 8
        Rows of a worker's gradient.
    backups : int, default 1
        Workers that a step does not wait for. It waits for one at least.
    suffix : float, default 0.5
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones; 0 takes the last model, as in the source.
    rates : {"own", "pooled"}, default "own"
        ``"own"``: the rate of a step is that of the schedule. ``"pooled"``: rates of plain steps that fall more slowly
        than 1 / t are raised so that an epoch gets as far as one of steps by row, as far as rows of that length allow
        (`dsgd.local.SGD.pooled_factor`).

    Raises
    ------
    InvalidParameterError
        `batch` is not a positive integer, `backups` is negative, `suffix` not in [0, 1], or there are no such rates.
    """

    batch: int = number(8, low=1)
    backups: int = number(1, low=0)
    suffix: float = number(0.5, low=0.0, high=1.0)
    rates: Literal["own", "pooled"] = "own"
    taxonomy = Taxonomy("centralised", "synchronous", "gradient", "server")
    serves_by = _BackupHandler

    def lag(self, n_ranks: int, power: float) -> float:
        """Return how many times less far these steps get than steps by row; see `AbstractStrategy.lag`."""
        return float(self.wanted(n_ranks) ** power * (self.batch * n_ranks) ** (1.0 - power))

    def wanted(self, n_workers: int) -> int:
        """Return how many gradients a step takes."""
        return max(1, n_workers - self.backups)
