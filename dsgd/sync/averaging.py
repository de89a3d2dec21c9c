"""Averages of models: at once, with momentum, and delayed.

Ranks own different numbers of rows, some none, so a plain mean of their vectors is biased: all synchronous strategies
take ``v <- sum_r w_r v_r`` with ``w_r`` the share of rank r, by one all-reduce (`dsgd.collectives.allreduce_cost`).

**Momentum.** After an average, the velocity of a rank, or its running mean of squares, belongs to a model that it no
longer has. Papers and released code treat this differently, often without mentioning it.

Policies: ``"keep"`` leaves the memory of every rank alone (Lin et al. 2020; DiLoCo), ``"zero"`` resets it after every
synchronisation, ``"average"`` replaces it by the mean with the weights of the models (Yu, Jin and Yang 2019). Means of
squares stay non-negative under all three. Cost: nothing, or for ``"average"`` one more all-reduce for each vector that
the rule remembers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from dsgd.collectives.group import Group
from dsgd.ledger import ENCODE
from dsgd.types import FloatVector


def weighted_mean(group: Group, vector: FloatVector, weight: float) -> None:
    """Replace `vector` by its weighted mean over ranks, in place; bitwise equal on all of them.

    A rank with weight zero adds exact zeros, whatever its vector holds. A single rank with weight one keeps its vector
    bit for bit, so that training on one rank is plain SGD.

    Parameters
    ----------
    group : Group
        The ranks of the gang.
    vector : array, shape (n,)
        This rank's vector.
    weight : float
        Its share; the shares of a gang add up to one.
    """
    ledger = group.ledger
    timing = ledger.timing
    start = ledger.clock() if timing else 0.0
    if weight == 0.0:
        # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
        vector.fill(0.0)
    elif weight != 1.0:
        # As a plain float, so that a float32 vector is multiplied in float32 whatever type the weight came in.
        vector *= float(weight)
    if group.size == 1:
        return
    if timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    group.allreduce(vector)


#: What becomes of the momentum of a rank where models are averaged: it is kept, reset or averaged as well.
MomentumPolicy = Literal["keep", "zero", "average"]


def carry_over(policy: MomentumPolicy, group: Group, memory: Iterable[FloatVector], weight: float) -> None:
    """Apply the policy to the memory of a rule, in place; called by all ranks after their models are averaged.

    Parameters
    ----------
    policy : {"keep", "zero", "average"}
        The policy.
    group : Group
        The ranks of the gang.
    memory : iterable of arrays
        What the rule of this rank remembers.
    weight : float
        Share of this rank in the mean.
    """
    for vector in memory if policy != "keep" else ():
        if policy == "zero":
            vector.fill(0.0)
        else:
            weighted_mean(group, vector, weight)


StateT = TypeVar("StateT")


class AbstractBeside(ABC, Generic[StateT]):
    """A strategy that leaves something to be exchanged beside the steps of the next round.

    `sync` itself exchanges first what has not been: nothing is under way at the end of a round, and a kept state is
    whole.
    """

    @abstractmethod
    def beside(self, group: Group, weight: float, state: StateT) -> None:
        """Exchange what the last `sync` has left, if it has; called by all ranks, in a thread or by `sync`."""


class Beside:
    """Runs what a strategy has left to be exchanged in a thread, which alone may use the group until `finish`."""

    def __init__(self, group: Group, strategy: AbstractBeside[Any]) -> None:
        self._group, self._strategy = group, strategy
        self._thread = group.transport.helper("dsgd-beside")
        self._running: Future[None] | None = None

    def start(self, weight: float, state: Any) -> None:
        """Begin to exchange with this rank's share; does not wait."""
        self._running = self._thread.submit(self._strategy.beside, self._group, weight, state)

    def finish(self) -> None:
        """Wait for the exchange, if one is under way."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """Let the thread end, after the exchange that it may be in."""
        self._thread.shutdown()


def beside_for(group: Group, strategy: Any) -> Beside | None:
    """Return what runs exchanges of a strategy beside its steps; None if it has none, or on a single rank."""
    return Beside(group, strategy) if isinstance(strategy, AbstractBeside) and group.size > 1 else None


class DelayedMean:
    """Exchanges the models of one round during the next; used by one rank in the order hold, start, finish.

    Update, for models x_p that the ranks had at the end of round k: the ranks continue from them, and at the end of
    round k + 1, when ``mean_k = sum_q v_q x_q`` has arrived, each adds its correction::

        x_p <- x_p + (mean_k - x_p at the end of round k)

    The corrections of all ranks, weighted by v (`dsgd.sync.period`), add up to zero: the mean of the models is that of
    ranks that do not communicate at all. Only their distance from it is corrected, one round later than without delay.

    Cost per round: one all-reduce of the model in a thread of its own, and three passes over the model; a round takes
    as long as the longer of steps and exchange. Between `start` and `finish` nothing else may use the group. The ledger
    counts the exchange in the round in which it runs: seconds of wire and wait then overlap those of compute.

    Source: Zhu, Lin, Lu et al. 2021 (delayed gradient averaging, algorithm 1, with a delay of one round and models in
    the place of gradients); Wang, Liang and Joshi 2020 (overlap local SGD) pull towards an anchor instead.
    """

    def __init__(self, group: Group, params: FloatVector) -> None:
        self._group = group
        self._held = np.empty_like(params)
        self._mean = np.empty_like(params)
        self._is_held = False
        self._thread = group.transport.helper("dsgd-mean")
        self._running: Future[None] | None = None

    def hold(self, params: FloatVector) -> None:
        """Keep a copy of the model, which `start` will send."""
        self._held[:] = params
        self._mean[:] = params
        self._is_held = True

    def start(self, weight: float) -> None:
        """Begin to exchange the model that is held, if there is one, with this rank's share; does not wait."""
        if self._is_held:
            self._running = self._thread.submit(weighted_mean, self._group, self._mean, weight)

    def finish(self, params: FloatVector) -> None:
        """Wait for the mean, if one is under way, and add its correction to the model, in place."""
        if self._running is None:
            return
        self._running.result()
        self._running, self._is_held = None, False
        self._mean -= self._held
        params += self._mean

    def close(self) -> None:
        """Let the thread end, after the exchange that it may be in."""
        self._thread.shutdown()
