"""Staleness-aware asynchronous SGD: old gradients get smaller rates.

Problem: a gradient that was computed d steps ago belongs to the model of that time. At full rate, the gradients of late
workers set the model back.

Update: a gradient that was computed with version j of the model and goes into the step that makes version i + 1 of
version i has the staleness ``d = i - j``, and its rate is multiplied by ``s = min(1, usual / max(d, 1))``, for the
penalty too. After every c arrivals the server takes one step with all of them, each at its own rate and divided by c;
the worker is answered at once. At the end of an epoch it takes one step with those that have arrived.

The source calls this n-softsync, with ``c = P / n`` of P workers: between two gradients of a worker there are n steps,
and that is what d is in the mean, a little less for few workers. With c = 1 (n = P) every gradient is a step, as in
`ASGD`; with c = P (n = 1) gradients are one step old at most, and the rate is that of a batch of all workers.

In the source ``usual`` is one. Rates are then shorter by what d usually is, and of rates c / (alpha t) only those with
c of one or more forget as fast as 1 / t where training began; with c = 1 / P the first, long steps are felt until the
end. So by default ``usual`` is n: gradients that are as old as all count in full, and those of workers that are later
than others for less.

What it minimises: ``sum_p n_p s_p f_p``, f_p being the mean loss of rank p and s_p the mean of s over its gradients:
with unlike rows that is the whole only where all are equally old, or none is older than usual.

Cost per round and worker: that of `ASGD`.

Source: Zhang, Gupta, Lian and Liu 2016 (staleness-aware async-SGD, their equations 4 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dsgd.sync.push import AbstractPushStrategy
from dsgd.sync.server import AbstractServerHandler, Model, ServerMessage
from dsgd.validation import check_numbers

__all__ = ["StalenessAware"]


@dataclass(frozen=True)
class StalenessAware(AbstractPushStrategy):
    """Let a server divide every gradient by its staleness.

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

    batch: int = 8
    arrivals: int = 1
    usual: float | None = None
    suffix: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive."""
        check_numbers(self, "batch", "arrivals", low=1, integer=True)
        check_numbers(self, "usual", low=1.0, optional=True)
        check_numbers(self, "suffix", low=0.0, high=1.0)

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what divides gradients by their staleness."""
        usual = len(model.working) / self.arrivals if self.usual is None else self.usual
        return _Desk(model, self.arrivals, max(1.0, usual))


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, arrivals: int, usual: float) -> None:
        super().__init__(model)
        self._arrivals, self._usual = arrivals, usual
        self._sum = np.zeros_like(model.params)
        self._n = 0
        self._shares = 0.0

    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        share = min(1.0, self._usual / max(1, self.model.version - int(message.head["version"])))
        if share != 1.0:
            message.body *= message.body.dtype.type(share)
        self._sum += message.body
        self._shares += share
        self._n += 1
        if self._n == self._arrivals:
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
