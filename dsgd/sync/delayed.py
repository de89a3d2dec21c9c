"""Delayed averaging: the mean of the models arrives one round late, so the exchange overlaps with steps.

Problem: while vectors are sent, cores idle, and while cores work, the wire does. On a slow wire each takes its share of
every round.

Update, for models x_p that the ranks had at the end of round k: the ranks continue from them, and at the end of round
k + 1, when ``mean_k = sum_q v_q x_q`` has arrived, each adds its correction::

    x_p <- x_p + (mean_k - x_p at the end of round k)

The corrections of all ranks, weighted by v (`dsgd.sync.weighing`), add up to zero: the mean of the models is that of
ranks that do not communicate at all. Only their distance from it is corrected, one round later than by an average
without delay.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`, in a thread of its own, and three passes
over the model. A round takes as long as the longer of steps and exchange, and not as both.

Source: Zhu, Lin, Lu et al. 2021 (delayed gradient averaging, algorithm 1, with a delay of one round and models in the
place of gradients); Wang, Liang and Joshi 2020 (overlap local SGD) pull towards an anchor instead.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from dsgd.collectives.group import Group
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatVector

__all__ = ["DelayedMean"]


class DelayedMean:
    """Exchanges the models of one round during the next; used by one rank in the order hold, start, finish.

    Between `start` and `finish` nothing else may use the group. The ledger counts the exchange in the round in which it
    runs: seconds of wire and wait then overlap those of compute.

    Parameters
    ----------
    group : Group
        The ranks of the gang.
    params : array, shape (n_params,)
        A model, for its length and dtype.
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
        """Wait for the mean, if one is under way, and add its correction to the model, in place.

        Raises
        ------
        AbortedError, GangTimeoutError, ProtocolError
            The exchange failed; see `AbstractTransport.exchange`.
        """
        if self._running is None:
            return
        self._running.result()
        self._running, self._is_held = None, False
        self._mean -= self._held
        params += self._mean

    def close(self) -> None:
        """Let the thread end, after the exchange that it may be in."""
        self._thread.shutdown()
