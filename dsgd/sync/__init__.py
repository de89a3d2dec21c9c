"""Synchronisation strategies, which decide when ranks exchange and what: one file for each family.

The rank loop (`dsgd.runtime.train`) calls them, and servers those in which ranks do not wait. Begin with `base`, then
`local`. `outer` is what SlowMo and DiLoCo share, `compression` what all share that average models.
`contrib` has strategies of which no more than the laws is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

_HOMES: Final = {
    "ADMM": "dsgd.sync.contrib.admm",
    "ADPSGD": "dsgd.sync.async_gossip",
    "ASGD": "dsgd.sync.parameter_server",
    "DPSGD": "dsgd.sync.gossip",
    "EASGD": "dsgd.sync.elastic",
    "SCAFFOLD": "dsgd.sync.federated",
    "SGP": "dsgd.sync.gossip",
    "STRATEGIES": "dsgd.sync.names",
    "AbstractAdaptation": "dsgd.sync.base",
    "AbstractLocalTerm": "dsgd.sync.base",
    "AbstractPeriod": "dsgd.sync.period",
    "AbstractStrategy": "dsgd.sync.base",
    "AnchorState": "dsgd.sync.federated",
    "AnytimeSGD": "dsgd.sync.contrib.anytime",
    "AsyncADMM": "dsgd.sync.contrib.admm",
    "AsyncEASGD": "dsgd.sync.elastic",
    "AsyncLeaderSGD": "dsgd.sync.leaders",
    "AutoState": "dsgd.sync.auto",
    "AutoSync": "dsgd.sync.auto",
    "BackupWorkers": "dsgd.sync.parameter_server",
    "CentreState": "dsgd.sync.elastic",
    "ChocoSGD": "dsgd.sync.gossip",
    "ChocoState": "dsgd.sync.gossip",
    "CompressionState": "dsgd.sync.compression",
    "Compressor": "dsgd.sync.compression",
    "ConsensusState": "dsgd.sync.contrib.admm",
    "ControlState": "dsgd.sync.federated",
    "Cut": "dsgd.sync.period",
    "DecoupledDiLoCo": "dsgd.sync.contrib.diloco",
    "DecoupledState": "dsgd.sync.contrib.diloco",
    "DelayCompensatedASGD": "dsgd.sync.parameter_server",
    "DiLoCo": "dsgd.sync.outer",
    "Downpour": "dsgd.sync.elastic",
    "DownpourState": "dsgd.sync.elastic",
    "EagerDiLoCo": "dsgd.sync.contrib.diloco",
    "EagerState": "dsgd.sync.contrib.diloco",
    "ElasticState": "dsgd.sync.elastic",
    "EpochAveraging": "dsgd.sync.local",
    "EveryBatch": "dsgd.sync.period",
    "EveryEpoch": "dsgd.sync.period",
    "EveryRows": "dsgd.sync.period",
    "Exchange": "dsgd.sync.base",
    "FedProx": "dsgd.sync.federated",
    "FollowerState": "dsgd.sync.leaders",
    "GrowingBatch": "dsgd.sync.period",
    "Hogwild": "dsgd.sync.hogwild",
    "InFlightState": "dsgd.sync.async_gossip",
    "LeaderSGD": "dsgd.sync.leaders",
    "LeaderState": "dsgd.sync.leaders",
    "LocalSGD": "dsgd.sync.local",
    "LocalSteps": "dsgd.sync.base",
    "MinibatchSGD": "dsgd.sync.minibatch",
    "MomentumPolicy": "dsgd.sync.averaging",
    "NoState": "dsgd.sync.base",
    "OftenThenRarely": "dsgd.sync.period",
    "Once": "dsgd.sync.period",
    "OneShotAveraging": "dsgd.sync.local",
    "OuterState": "dsgd.sync.outer",
    "OverlapSGP": "dsgd.sync.async_gossip",
    "PairState": "dsgd.sync.async_gossip",
    "Plan": "dsgd.sync.base",
    "PostLocalSGD": "dsgd.sync.local",
    "PushSumState": "dsgd.sync.gossip",
    "RoundClock": "dsgd.sync.period",
    "RoundState": "dsgd.sync.gossip",
    "Seen": "dsgd.sync.base",
    "SlowMo": "dsgd.sync.outer",
    "StaleSynchronous": "dsgd.sync.parameter_server",
    "StalenessAware": "dsgd.sync.parameter_server",
    "StreamingDiLoCo": "dsgd.sync.contrib.diloco",
    "StreamingState": "dsgd.sync.contrib.diloco",
    "Taxonomy": "dsgd.sync.period",
    "Weighing": "dsgd.sync.period",
    "WorkerState": "dsgd.sync.contrib.admm",
    "carry_over": "dsgd.sync.averaging",
    "check_combination": "dsgd.sync.federated",
    "common_factor": "dsgd.sync.compression",
    "mean_shares": "dsgd.sync.period",
    "slow_momentum_for": "dsgd.sync.outer",
    "streaming_for": "dsgd.sync.contrib.fragments",
    "weighted_mean": "dsgd.sync.averaging",
}

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
