"""Synchronous SGD with backup workers: a step uses the first gradients that arrive, the rest are dropped.

Problem: a synchronous step takes as long as its slowest worker; asynchronous steps are stale.

Update: of P workers a step takes the first N = P - backups gradients of the current model,
``x <- x - eta (1 / N) sum g_p(x)``, and answers those workers. A gradient of an older model is dropped, and its worker
answered at once with the current one. P counts only workers that have rows; no step waits for the others. Gradients are
never stale, but those of slow workers are lost. The model therefore minimises ``sum_p k_p n_p f_p``, f_p being the mean
loss of rank p and k_p the share of its gradients that are used: not the loss of all rows, if ranks of different speed
have different rows. With ``backups=0`` it is `MinibatchSGD` with batches of P times ``batch`` rows. At the end of an
epoch, when fewer than N workers have rows left, a step takes all gradients that are still to come. The step counter
counts gradients: the rate is that of `ASGD` after as many of them. With b rows in each gradient, an epoch of n rows
gets ``N^p (b P)^(1 - p)`` times less far than one of steps by row, at rates c / t^p; ``rates="pooled"`` compensates.

Cost per round and worker: that of `ASGD`.

Source: Chen, Pan, Monga, Bengio and Jozefowicz 2016 (algorithms 3 and 4; their rates fall by the epoch, and so by the
rows that have been used).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from dsgd.sync.push import AbstractPushStrategy
from dsgd.sync.server import AbstractServerHandler, Model, ServerMessage
from dsgd.sync.taxonomy import Taxonomy
from dsgd.validation import check_choice, check_numbers

__all__ = ["BackupWorkers"]


@dataclass(frozen=True)
class BackupWorkers(AbstractPushStrategy):
    """Let a server step with the first gradients of a round, and drop those of the slowest workers.

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

    batch: int = 8
    backups: int = 1
    suffix: float = 0.5
    rates: Literal["own", "pooled"] = "own"
    taxonomy = Taxonomy("centralised", "synchronous", "gradient", "server")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "batch", low=1, integer=True)
        check_numbers(self, "backups", low=0, integer=True)
        check_numbers(self, "suffix", low=0.0, high=1.0)
        check_choice("BackupWorkers(rates=...)", self.rates, ("own", "pooled"))

    def lag(self, n_ranks: int, power: float) -> float:
        """Return how many times less far these steps get than steps by row; see `AbstractStrategy.lag`."""
        return float(self.wanted(n_ranks) ** power * (self.batch * n_ranks) ** (1.0 - power))

    def wanted(self, n_workers: int) -> int:
        """Return how many gradients a step takes."""
        return max(1, n_workers - self.backups)

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what steps with the first gradients of a round."""
        return _Desk(model, self.wanted(len(model.working)))


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, wanted: int) -> None:
        super().__init__(model)
        self._wanted = wanted
        self._sent = [0] * model.n_workers
        self._waiting: list[int] = []
        self._sum = np.zeros_like(model.params)

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        model = self.model
        self._sent[worker] += 1
        answered = []
        if message.head["version"] == model.version:
            self._sum += message.body
            self._waiting.append(worker)
        else:
            answered.append(worker)
        if len(self._waiting) >= min(self._wanted, len(self._waiting) + self._n_to_come()):
            answered += self._waiting
            self._step()
        return answered

    def settle(self) -> None:
        self._step()
        self.model.settle()

    def _step(self) -> None:
        if self._waiting:
            self._sum /= len(self._waiting)
            self.model.step(self._sum, 1.0)
            # Rates fall with the gradients that have been used.
            self.model.version += len(self._waiting)
            self._sum.fill(0.0)
            self._waiting = []

    def _n_to_come(self) -> int:
        """Return how many workers will still send something before the epoch of the fastest ends."""
        rounds = self.model.rounds
        end = -(-max(self._sent) // rounds) * rounds
        return sum(self._sent[worker] < end for worker in self.model.working if worker not in self._waiting)
