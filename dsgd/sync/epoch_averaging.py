"""Averaging once per epoch.

Problem: on a slow wire, or with large shards, even rare averages inside an epoch cost more than they bring.

Update: every rank walks all its rows, then ``x_p <- sum_q v_q x_q`` with v of `dsgd.sync.weighing`.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; one round per epoch.

Source: McDonald, Hall and Mann 2010 (iterative parameter mixing).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.compression import AbstractAveraging, Compressor, check_compressor
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.period import EveryEpoch

__all__ = ["EpochAveraging"]


@dataclass(frozen=True)
class EpochAveraging(AbstractAveraging):
    """Average the models at the end of every epoch.

    Parameters
    ----------
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; see `dsgd.sync.momentum`.
    compressor : AbstractCompressor, "auto" or None, default None
        How the difference from the last common model is encoded; what a biased compressor leaves out is sent later.
        ``"auto"`` sends the changed weights and loses nothing; None sends whole models. See `dsgd.sync.compression`.

    Raises
    ------
    InvalidParameterError
        There is no such policy, or no such compressor.
    IncompatiblePartsError
        The compressor cannot be used for what is exchanged.
    """

    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    weighs = "rates"

    def __post_init__(self) -> None:
        check_momentum(self)
        check_compressor(self)

    @property
    def period(self) -> EveryEpoch:
        """At the end of every epoch."""
        return EveryEpoch()
