"""Averaging once per epoch.

Problem: on a slow wire, or with large shards, even rare averages inside an epoch cost more than they bring.

Update: every rank walks all its rows, then ``x_p <- sum_q v_q x_q`` with v of `dsgd.sync.weighing`.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; one round per epoch.

Source: McDonald, Hall and Mann 2010 (iterative parameter mixing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.collectives.group import Group
from dsgd.sync.base import AbstractStrategy, Exchange, NoState
from dsgd.sync.compression import CompressionState, Compressor, check_compressor, delta_mean, start_compression
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.period import EveryEpoch
from dsgd.sync.weighing import Weighing
from dsgd.types import FloatVector

__all__ = ["EpochAveraging"]


@dataclass(frozen=True)
class EpochAveraging(AbstractStrategy[NoState | CompressionState]):
    """Average the models at the end of every epoch.

    Parameters
    ----------
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; see `dsgd.sync.momentum`.
    compressor : AbstractCompressor, "auto" or None, default None
        How the difference from the last model in common travels; what a biased one leaves out is sent later. ``"auto"``
        sends the weights that have changed and loses nothing; None sends whole models. See `dsgd.sync.compression`.

    Raises
    ------
    InvalidParameterError
        There is no such policy, or no such compressor.
    IncompatiblePartsError
        The compressor cannot be used for what is exchanged.
    """

    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    exchanges: ClassVar[Exchange] = "model"
    weighs: ClassVar[Weighing] = "rates"

    def __post_init__(self) -> None:
        check_momentum("EpochAveraging(momentum=...)", self.momentum)
        check_compressor(self)

    @property
    def period(self) -> EveryEpoch:
        """At the end of every epoch."""
        return EveryEpoch()

    def init(self, group: Group, params: FloatVector, weight: float) -> NoState | CompressionState:
        """Return the model to start from and what the compressor remembers; without one, nothing."""
        return start_compression(self, group, params, keeps_model=True)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: NoState | CompressionState) -> None:
        """Replace the model by the weighted mean of all models; see `AbstractStrategy.sync`."""
        delta_mean(group, vector, weight, self.compressor, state)

    def collect(self, group: Group, params: FloatVector, weight: float, state: NoState | CompressionState) -> None:
        """Do nothing: the ranks have equal models."""
