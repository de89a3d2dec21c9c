"""Synchronisation strategies, which decide when ranks exchange and what: one file each.

The rank loop (`dsgd.runtime.train`) calls them, and servers those in which ranks do not wait. Begin with `base`, then
`local_sgd`. `outer` is what SlowMo and DiLoCo share, `compression` what all share that average models.
`contrib` has strategies of which no more than the laws is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use
from dsgd.sync.resolve import resolve

if TYPE_CHECKING:
    from dsgd.sync.adpsgd import ADPSGD, PairState
    from dsgd.sync.asgd import ASGD
    from dsgd.sync.async_easgd import AsyncEASGD, ElasticState
    from dsgd.sync.async_leader import AsyncLeaderSGD, FollowerState
    from dsgd.sync.auto import AutoState, AutoSync
    from dsgd.sync.averaging import weighted_mean
    from dsgd.sync.backup_workers import BackupWorkers
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
    from dsgd.sync.choco import ChocoSGD, ChocoState
    from dsgd.sync.combine import check_combination
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
    from dsgd.sync.delay_compensated import DelayCompensatedASGD
    from dsgd.sync.diloco import DiLoCo
    from dsgd.sync.downpour import Downpour, DownpourState
    from dsgd.sync.dpsgd import DPSGD, RoundState
    from dsgd.sync.easgd import EASGD, CentreState
    from dsgd.sync.epoch_averaging import EpochAveraging
    from dsgd.sync.fedprox import AnchorState, FedProx
    from dsgd.sync.hogwild import Hogwild
    from dsgd.sync.leader import LeaderSGD, LeaderState
    from dsgd.sync.local_sgd import LocalSGD
    from dsgd.sync.minibatch import MinibatchSGD
    from dsgd.sync.momentum import MomentumPolicy, carry_over
    from dsgd.sync.names import STRATEGIES
    from dsgd.sync.one_shot import OneShotAveraging
    from dsgd.sync.outer import OuterState
    from dsgd.sync.overlap_sgp import InFlightState, OverlapSGP
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
    )
    from dsgd.sync.post_local import PostLocalSGD
    from dsgd.sync.scaffold import SCAFFOLD, ControlState
    from dsgd.sync.sgp import SGP, PushSumState
    from dsgd.sync.slowmo import SlowMo, slow_momentum_for
    from dsgd.sync.stale_synchronous import StaleSynchronous
    from dsgd.sync.staleness_aware import StalenessAware
    from dsgd.sync.taxonomy import Taxonomy
    from dsgd.sync.weighing import Weighing, mean_shares

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
    "ADPSGD": "dsgd.sync.adpsgd",
    "ASGD": "dsgd.sync.asgd",
    "DPSGD": "dsgd.sync.dpsgd",
    "EASGD": "dsgd.sync.easgd",
    "SCAFFOLD": "dsgd.sync.scaffold",
    "SGP": "dsgd.sync.sgp",
    "STRATEGIES": "dsgd.sync.names",
    "AbstractAdaptation": "dsgd.sync.base",
    "AbstractLocalTerm": "dsgd.sync.base",
    "AbstractPeriod": "dsgd.sync.period",
    "AbstractStrategy": "dsgd.sync.base",
    "AnchorState": "dsgd.sync.fedprox",
    "AnytimeSGD": "dsgd.sync.contrib.anytime",
    "AsyncADMM": "dsgd.sync.contrib.admm",
    "AsyncEASGD": "dsgd.sync.async_easgd",
    "AsyncLeaderSGD": "dsgd.sync.async_leader",
    "AutoState": "dsgd.sync.auto",
    "AutoSync": "dsgd.sync.auto",
    "BackupWorkers": "dsgd.sync.backup_workers",
    "CentreState": "dsgd.sync.easgd",
    "ChocoSGD": "dsgd.sync.choco",
    "ChocoState": "dsgd.sync.choco",
    "CompressionState": "dsgd.sync.compression",
    "Compressor": "dsgd.sync.compression",
    "ConsensusState": "dsgd.sync.contrib.admm",
    "ControlState": "dsgd.sync.scaffold",
    "Cut": "dsgd.sync.period",
    "DecoupledDiLoCo": "dsgd.sync.contrib.diloco",
    "DecoupledState": "dsgd.sync.contrib.diloco",
    "DelayCompensatedASGD": "dsgd.sync.delay_compensated",
    "DiLoCo": "dsgd.sync.diloco",
    "Downpour": "dsgd.sync.downpour",
    "DownpourState": "dsgd.sync.downpour",
    "EagerDiLoCo": "dsgd.sync.contrib.diloco",
    "EagerState": "dsgd.sync.contrib.diloco",
    "ElasticState": "dsgd.sync.async_easgd",
    "EpochAveraging": "dsgd.sync.epoch_averaging",
    "EveryBatch": "dsgd.sync.period",
    "EveryEpoch": "dsgd.sync.period",
    "EveryRows": "dsgd.sync.period",
    "Exchange": "dsgd.sync.base",
    "FedProx": "dsgd.sync.fedprox",
    "FollowerState": "dsgd.sync.async_leader",
    "GrowingBatch": "dsgd.sync.period",
    "Hogwild": "dsgd.sync.hogwild",
    "InFlightState": "dsgd.sync.overlap_sgp",
    "LeaderSGD": "dsgd.sync.leader",
    "LeaderState": "dsgd.sync.leader",
    "LocalSGD": "dsgd.sync.local_sgd",
    "LocalSteps": "dsgd.sync.base",
    "MinibatchSGD": "dsgd.sync.minibatch",
    "MomentumPolicy": "dsgd.sync.momentum",
    "NoState": "dsgd.sync.base",
    "OftenThenRarely": "dsgd.sync.period",
    "Once": "dsgd.sync.period",
    "OneShotAveraging": "dsgd.sync.one_shot",
    "OuterState": "dsgd.sync.outer",
    "OverlapSGP": "dsgd.sync.overlap_sgp",
    "PairState": "dsgd.sync.adpsgd",
    "Plan": "dsgd.sync.base",
    "PostLocalSGD": "dsgd.sync.post_local",
    "PushSumState": "dsgd.sync.sgp",
    "RoundClock": "dsgd.sync.period",
    "RoundState": "dsgd.sync.dpsgd",
    "Seen": "dsgd.sync.base",
    "SlowMo": "dsgd.sync.slowmo",
    "StaleSynchronous": "dsgd.sync.stale_synchronous",
    "StalenessAware": "dsgd.sync.staleness_aware",
    "StreamingDiLoCo": "dsgd.sync.contrib.diloco",
    "StreamingState": "dsgd.sync.contrib.diloco",
    "Taxonomy": "dsgd.sync.taxonomy",
    "Weighing": "dsgd.sync.weighing",
    "WorkerState": "dsgd.sync.contrib.admm",
    "carry_over": "dsgd.sync.momentum",
    "check_combination": "dsgd.sync.combine",
    "common_factor": "dsgd.sync.compression",
    "mean_shares": "dsgd.sync.weighing",
    "slow_momentum_for": "dsgd.sync.slowmo",
    "streaming_for": "dsgd.sync.contrib.fragments",
    "weighted_mean": "dsgd.sync.averaging",
}

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
