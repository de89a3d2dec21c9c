"""Asynchronous SGD: a server takes a step with every gradient on arrival.

Problem: in a synchronous step everybody waits for the slowest worker.

Update: worker p computes the gradient of a batch at the model x_{v - d} that it was given; when it arrives, at version
v, ``x <- x - eta g_p(x_{v - d})``, and the worker is given the new model. The staleness d is the number of steps that
others have taken meanwhile: P - 1 where all workers are equally fast. Steps are stable while ``eta h <= 2 sin(pi /
(2 (2 d + 1)))`` for a curvature h, so rates must fall about as 1 / P.

Cost per round and worker: a message to the server and one back, `message_bytes` each; two messages of the gradient's
length. The server's port carries 2 P of them.

Source: Dean et al. 2012; Recht et al. 2011 for the analysis; Tsitsiklis, Bertsekas and Athans 1986.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from dsgd.sync.push import AbstractPushStrategy
from dsgd.sync.server import AbstractServerHandler, Model, ServerMessage
from dsgd.validation import check_numbers

__all__ = ["ASGD"]


@dataclass(frozen=True)
class ASGD(AbstractPushStrategy):
    """Let a server take a step with every gradient as it comes.

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

    batch: int = 8
    suffix: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a batch that is not a positive number of rows."""
        check_numbers(self, "batch", low=1, integer=True)
        check_numbers(self, "suffix", low=0.0, high=1.0)

    def handler(self, model: Model) -> AbstractServerHandler:
        """Return what takes a step with each gradient."""
        return _Desk(model)


@final
class _Desk(AbstractServerHandler):
    def accept(self, worker: int, message: ServerMessage) -> tuple[int, ...]:
        self.model.step(message.body, 1.0)
        self.model.version += 1
        return (worker,)
