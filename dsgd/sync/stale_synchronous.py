"""Stale synchronous parallel: workers may be at most a few rounds ahead of the slowest.

Problem: without bounds, a slow worker sends gradients of models that are long outdated; with a barrier in every round,
it stops all others.

Update: as in `ASGD` the server steps with every gradient as it comes. A worker that has sent c of them is answered once
every other one has sent at least c - slack, and so reads a model that holds all that was sent up to then.
With ``slack=0`` all read the same model, which is a synchronous step with the sum of the gradients in the place of
their mean; without a bound it is `ASGD`.

Cost per round and worker: that of `ASGD`.

Source: Ho et al. 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from dsgd.sync.push import AbstractPushStrategy
from dsgd.sync.server import AbstractServerHandler, Model, ServerMessage
from dsgd.sync.taxonomy import Taxonomy
from dsgd.validation import check_numbers

__all__ = ["StaleSynchronous"]


@dataclass(frozen=True)
class StaleSynchronous(AbstractPushStrategy):
    """Let a server step with every gradient, and hold back workers that are too far ahead.

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

    batch: int = 8
    slack: int = 3
    suffix: float = 0.5
    taxonomy = Taxonomy("centralised", "bounded", "gradient", "server")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "batch", low=1, integer=True)
        check_numbers(self, "slack", low=0, integer=True)
        check_numbers(self, "suffix", low=0.0, high=1.0)

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what holds workers back."""
        return _Desk(model, self.slack)


@final
class _Desk(AbstractServerHandler):
    def __init__(self, model: Model, slack: int) -> None:
        super().__init__(model)
        self._slack = slack
        self._sent = [0] * model.n_workers
        self._waiting: list[int] = []

    def accept(self, worker: int, message: ServerMessage) -> list[int]:
        self.model.step(message.body, 1.0)
        self.model.version += 1
        self._sent[worker] += 1
        self._waiting.append(worker)
        limit = min(self._sent[other] for other in self.model.working) + self._slack
        answered = [other for other in self._waiting if self._sent[other] <= limit]
        self._waiting = [other for other in self._waiting if self._sent[other] > limit]
        return answered
