"""Synchronisation strategies, which decide when ranks exchange and what: one file for each family.

The rank loop (`dsgd.runtime.train`) calls them, and servers those in which ranks do not wait. Begin with `base`, then
`local`. `outer` is what SlowMo and DiLoCo share, `compression` what all share that average models.
`contrib` has strategies of which no more than the laws is promised.
"""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use
from dsgd.sync.resolve import resolve

if TYPE_CHECKING:
    from dsgd.sync.async_gossip import ADPSGD, OverlapSGP
    from dsgd.sync.auto import AutoSync
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
    from dsgd.sync.compression import Compressor, common_factor
    from dsgd.sync.contrib.admm import ADMM, AsyncADMM
    from dsgd.sync.contrib.anytime import AnytimeSGD
    from dsgd.sync.contrib.diloco import (
        DecoupledDiLoCo,
        EagerDiLoCo,
        StreamingDiLoCo,
    )
    from dsgd.sync.elastic import EASGD, AsyncEASGD, Downpour
    from dsgd.sync.federated import SCAFFOLD, FedProx, check_combination
    from dsgd.sync.gossip import DPSGD, SGP, ChocoSGD
    from dsgd.sync.hogwild import Hogwild
    from dsgd.sync.leaders import AsyncLeaderSGD, LeaderSGD
    from dsgd.sync.local import DESLOC, EpochAveraging, LocalSGD, OneShotAveraging, PostLocalSGD
    from dsgd.sync.minibatch import MinibatchSGD
    from dsgd.sync.names import STRATEGIES
    from dsgd.sync.outer import DiLoCo, SlowMo
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
    "DESLOC",
    "DPSGD",
    "EASGD",
    "SCAFFOLD",
    "SGP",
    "STRATEGIES",
    "AbstractAdaptation",
    "AbstractLocalTerm",
    "AbstractPeriod",
    "AbstractStrategy",
    "AnytimeSGD",
    "AsyncADMM",
    "AsyncEASGD",
    "AsyncLeaderSGD",
    "AutoSync",
    "BackupWorkers",
    "ChocoSGD",
    "Compressor",
    "Cut",
    "DecoupledDiLoCo",
    "DelayCompensatedASGD",
    "DiLoCo",
    "Downpour",
    "EagerDiLoCo",
    "EpochAveraging",
    "EveryBatch",
    "EveryEpoch",
    "EveryRows",
    "Exchange",
    "FedProx",
    "GrowingBatch",
    "Hogwild",
    "LeaderSGD",
    "LocalSGD",
    "LocalSteps",
    "MinibatchSGD",
    "MomentumPolicy",
    "NoState",
    "OftenThenRarely",
    "Once",
    "OneShotAveraging",
    "OverlapSGP",
    "Plan",
    "PostLocalSGD",
    "RoundClock",
    "Seen",
    "SlowMo",
    "StaleSynchronous",
    "StalenessAware",
    "StreamingDiLoCo",
    "Taxonomy",
    "Weighing",
    "carry_over",
    "check_combination",
    "common_factor",
    "mean_shares",
    "resolve",
    "weighted_mean",
]


__getattr__ = loaded_on_use(__name__)
