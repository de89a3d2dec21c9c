"""Synchronisation strategies, which decide when ranks exchange and what: one file each.

The rank loop (`dsgd.runtime.train`) calls them, and servers those in which ranks do not wait. Begin with `base`, then
`local_sgd`. `outer` is what SlowMo and DiLoCo share, `compression` what all share that average models.
"""

from dsgd.sync.admm import ADMM, ConsensusState
from dsgd.sync.adpsgd import ADPSGD, PairState
from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.asgd import ASGD
from dsgd.sync.async_admm import AsyncADMM, WorkerState
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
from dsgd.sync.decoupled import DecoupledDiLoCo, DecoupledState
from dsgd.sync.delay_compensated import DelayCompensatedASGD
from dsgd.sync.diloco import DiLoCo
from dsgd.sync.downpour import Downpour, DownpourState
from dsgd.sync.dpsgd import DPSGD, RoundState
from dsgd.sync.eager import EagerDiLoCo, EagerState
from dsgd.sync.easgd import EASGD, CentreState
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.fedprox import AnchorState, FedProx
from dsgd.sync.fragments import streaming_for
from dsgd.sync.hogwild import Hogwild
from dsgd.sync.leader import LeaderSGD, LeaderState
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.momentum import MomentumPolicy, carry_over
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
from dsgd.sync.resolve import STRATEGIES, resolve
from dsgd.sync.scaffold import SCAFFOLD, ControlState
from dsgd.sync.sgp import SGP, PushSumState
from dsgd.sync.slowmo import SlowMo, slow_momentum_for
from dsgd.sync.stale_synchronous import StaleSynchronous
from dsgd.sync.staleness_aware import StalenessAware
from dsgd.sync.streaming import StreamingDiLoCo, StreamingState
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
