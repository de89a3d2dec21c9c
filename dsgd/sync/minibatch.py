"""Minibatch SGD: ranks share out a batch, sum their gradients and take the same step.

Problem: local models drift apart; here there is only one model at any time, at the price of a message per step.

Update: with B rows over all ranks in a batch and B_p of them on rank p, ``g <- sum_p (B_p / B) g_p`` where ``g_p`` is
the mean gradient of rank p's rows; then every rank takes the same step with ``g``.

Cost per round: one all-reduce of the gradient, `dsgd.collectives.allreduce_cost`; ``ceil(rows / batch)`` rounds per
epoch.

Source: Dekel, Gilad-Bachrach, Shamir and Xiao 2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dsgd.collectives.group import Group
from dsgd.errors import InvalidParameterError
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, Exchange, NoState
from dsgd.sync.period import EveryBatch
from dsgd.types import FloatVector

__all__ = ["MinibatchSGD"]


@dataclass(frozen=True)
class MinibatchSGD(AbstractStrategy[NoState]):
    """Take one step per batch, with the gradient of the whole batch.

    Parameters
    ----------
    batch : int, default 32
        Rows of a batch, over all ranks together.

    Raises
    ------
    InvalidParameterError
        `batch` is not a positive integer.
    """

    batch: int = 32
    exchanges: ClassVar[Exchange] = "gradient"

    def __post_init__(self) -> None:
        """Refuse a batch that is not a positive number of rows."""
        if isinstance(self.batch, bool) or not isinstance(self.batch, (int, np.integer)) or self.batch < 1:
            raise InvalidParameterError(
                f"MinibatchSGD(batch=...) must be a positive number of rows. Got {self.batch!r}."
            )

    @property
    def period(self) -> EveryBatch:
        """After every batch."""
        return EveryBatch(self.batch)

    def init(self, group: Group, params: FloatVector, weight: float) -> NoState:
        """Return an empty record."""
        return NoState()

    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState) -> None:
        """Replace the gradient by the weighted mean of all gradients; see `AbstractStrategy.sync`."""
        weighted_mean(group, vector, weight)

    def collect(self, group: Group, params: FloatVector, weight: float, state: NoState) -> None:
        """Do nothing: the ranks have equal models."""
