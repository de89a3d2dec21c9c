"""Averaging per epoch: local SGD with the longest period that still scores an averaged model every epoch.

Problem: on a slow wire, or with large shards, even rare averages inside an epoch cost more than they bring.

Update: every rank walks all its rows, then ``x_p <- sum_q (n_q / n) x_q``.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; one round per epoch.

Source: McDonald, Hall and Mann 2010 (iterative parameter mixing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.collectives.group import Group
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, Exchange, NoState
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.period import EveryEpoch
from dsgd.types import FloatVector

__all__ = ["EpochAveraging"]


@dataclass(frozen=True)
class EpochAveraging(AbstractStrategy[NoState]):
    """Average the models at the end of every epoch.

    Parameters
    ----------
    momentum : {"keep", "zero", "average"}, default "keep"
        What becomes of the memory of a local rule at an average; see `dsgd.sync.momentum`.

    Raises
    ------
    InvalidParameterError
        There is no such policy.
    """

    momentum: MomentumPolicy = "keep"
    exchanges: ClassVar[Exchange] = "model"

    def __post_init__(self) -> None:
        check_momentum("EpochAveraging(momentum=...)", self.momentum)

    @property
    def period(self) -> EveryEpoch:
        """At the end of every epoch."""
        return EveryEpoch()

    def init(self, group: Group, params: FloatVector, weight: float) -> NoState:
        """Return an empty record."""
        return NoState()

    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState) -> None:
        """Replace the model by the weighted mean of all models; see `AbstractStrategy.sync`."""
        weighted_mean(group, vector, weight)

    def collect(self, group: Group, params: FloatVector, weight: float, state: NoState) -> None:
        """Do nothing: the ranks have equal models."""
