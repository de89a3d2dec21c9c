"""Synchronisation strategies, which decide when ranks exchange and what: one file for each family.

The rank loop (`dsgd.runtime.train`) calls them, and servers those in which ranks do not wait. Begin with `base`, then
`local`. `outer` is what SlowMo and DiLoCo share, `compression` what all share that average models.
`contrib` has strategies of which no more than the laws is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use
from dsgd.sync.resolve import resolve

if TYPE_CHECKING:
    from dsgd.sync.async_gossip import ADPSGD, InFlightState, OverlapSGP, PairState
    from dsgd.sync.auto import AutoState, AutoSync
    from dsgd.sync.averaging import MomentumPolicy, carry_over, weighted_mean
    from dsgd.sync.base import (
        AbstractAdaptation,
        AbstractLocalTerm,
        AbstractStrategy,
        Exchange,
        LocalSteps,
        NoState,
        Plan,
        Seen,
    )
    from dsgd.sync.compression import CompressionState, Compressor, common_factor
    from dsgd.sync.contrib.admm import ADMM, AsyncADMM, ConsensusState, WorkerState
    from dsgd.sync.contrib.anytime import AnytimeSGD
    from dsgd.sync.contrib.diloco import (
        DecoupledDiLoCo,
        DecoupledState,
        EagerDiLoCo,
        EagerState,
        StreamingDiLoCo,
        StreamingState,
    )
    from dsgd.sync.contrib.fragments import streaming_for
    from dsgd.sync.elastic import EASGD, AsyncEASGD, CentreState, Downpour, DownpourState, ElasticState
    from dsgd.sync.federated import SCAFFOLD, AnchorState, ControlState, FedProx, check_combination
    from dsgd.sync.gossip import DPSGD, SGP, ChocoSGD, ChocoState, PushSumState, RoundState
    from dsgd.sync.hogwild import Hogwild
    from dsgd.sync.leaders import AsyncLeaderSGD, FollowerState, LeaderSGD, LeaderState
    from dsgd.sync.local import EpochAveraging, LocalSGD, OneShotAveraging, PostLocalSGD
    from dsgd.sync.minibatch import MinibatchSGD
    from dsgd.sync.names import STRATEGIES
    from dsgd.sync.outer import DiLoCo, OuterState, SlowMo, slow_momentum_for
    from dsgd.sync.parameter_server import ASGD, BackupWorkers, DelayCompensatedASGD, StalenessAware, StaleSynchronous
    from dsgd.sync.period import (
        AbstractPeriod,
        Cut,
        EveryBatch,
        EveryEpoch,
        EveryRows,
        GrowingBatch,
        OftenThenRarely,
        Once,
        RoundClock,
        Taxonomy,
        Weighing,
        mean_shares,
    )


__all__ = [
    "ADMM",
    "ADPSGD",
    "ASGD",
    "DPSGD",
    "EASGD",
    "SCAFFOLD",
    "SGP",
    "STRATEGIES",
    "AbstractAdaptation",
    "AbstractLocalTerm",
    "AbstractPeriod",
    "AbstractStrategy",
    "AnchorState",
    "AnytimeSGD",
    "AsyncADMM",
    "AsyncEASGD",
    "AsyncLeaderSGD",
    "AutoState",
    "AutoSync",
    "BackupWorkers",
    "CentreState",
    "ChocoSGD",
    "ChocoState",
    "CompressionState",
    "Compressor",
    "ConsensusState",
    "ControlState",
    "Cut",
    "DecoupledDiLoCo",
    "DecoupledState",
    "DelayCompensatedASGD",
    "DiLoCo",
    "Downpour",
    "DownpourState",
    "EagerDiLoCo",
    "EagerState",
    "ElasticState",
    "EpochAveraging",
    "EveryBatch",
    "EveryEpoch",
    "EveryRows",
    "Exchange",
    "FedProx",
    "FollowerState",
    "GrowingBatch",
    "Hogwild",
    "InFlightState",
    "LeaderSGD",
    "LeaderState",
    "LocalSGD",
    "LocalSteps",
    "MinibatchSGD",
    "MomentumPolicy",
    "NoState",
    "OftenThenRarely",
    "Once",
    "OneShotAveraging",
    "OuterState",
    "OverlapSGP",
    "PairState",
    "Plan",
    "PostLocalSGD",
    "PushSumState",
    "RoundClock",
    "RoundState",
    "Seen",
    "SlowMo",
    "StaleSynchronous",
    "StalenessAware",
    "StreamingDiLoCo",
    "StreamingState",
    "Taxonomy",
    "Weighing",
    "WorkerState",
    "carry_over",
    "check_combination",
    "common_factor",
    "mean_shares",
    "resolve",
    "slow_momentum_for",
    "streaming_for",
    "weighted_mean",
]


__getattr__ = loaded_on_use(
    __name__,
    {
        ".async_gossip": "ADPSGD InFlightState OverlapSGP PairState",
        ".auto": "AutoState AutoSync",
        ".averaging": "MomentumPolicy carry_over weighted_mean",
        ".base": "AbstractAdaptation AbstractLocalTerm AbstractStrategy Exchange LocalSteps NoState Plan Seen",
        ".compression": "CompressionState Compressor common_factor",
        ".contrib.admm": "ADMM AsyncADMM ConsensusState WorkerState",
        ".contrib.anytime": "AnytimeSGD",
        ".contrib.diloco": "DecoupledDiLoCo DecoupledState EagerDiLoCo EagerState StreamingDiLoCo StreamingState",
        ".contrib.fragments": "streaming_for",
        ".elastic": "EASGD AsyncEASGD CentreState Downpour DownpourState ElasticState",
        ".federated": "SCAFFOLD AnchorState ControlState FedProx check_combination",
        ".gossip": "DPSGD SGP ChocoSGD ChocoState PushSumState RoundState",
        ".hogwild": "Hogwild",
        ".leaders": "AsyncLeaderSGD FollowerState LeaderSGD LeaderState",
        ".local": "EpochAveraging LocalSGD OneShotAveraging PostLocalSGD",
        ".minibatch": "MinibatchSGD",
        ".names": "STRATEGIES",
        ".outer": "DiLoCo OuterState SlowMo slow_momentum_for",
        ".parameter_server": "ASGD BackupWorkers DelayCompensatedASGD StaleSynchronous StalenessAware",
        ".period": (
            "AbstractPeriod Cut EveryBatch EveryEpoch EveryRows GrowingBatch OftenThenRarely Once RoundClock "
            "Taxonomy Weighing mean_shares"
        ),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
