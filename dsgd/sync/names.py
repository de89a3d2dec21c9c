"""Every strategy by its short name, and what texts may name in the parameters of one; see `dsgd.sync.resolve`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from dsgd.comm import topology
from dsgd.comm.topology import AbstractFixedGraph, AbstractTopology
from dsgd.compress.parse import COMPRESSORS
from dsgd.named import Kind
from dsgd.sync import adaptive
from dsgd.sync.adaptive import AbstractRule
from dsgd.sync.async_gossip import ADPSGD, OverlapSGP
from dsgd.sync.auto import AutoSync
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.contrib.admm import ADMM, AsyncADMM
from dsgd.sync.contrib.anytime import AnytimeSGD
from dsgd.sync.contrib.diloco import DecoupledDiLoCo, EagerDiLoCo, StreamingDiLoCo
from dsgd.sync.elastic import EASGD, AsyncEASGD, Downpour
from dsgd.sync.federated import SCAFFOLD, FedProx
from dsgd.sync.gossip import DPSGD, SGP, ChocoSGD
from dsgd.sync.hogwild import Hogwild
from dsgd.sync.leaders import AsyncLeaderSGD, LeaderSGD
from dsgd.sync.local import DESLOC, EpochAveraging, LocalSGD, OneShotAveraging, PostLocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.outer import DiLoCo, SlowMo
from dsgd.sync.parameter_server import ASGD, BackupWorkers, DelayCompensatedASGD, StalenessAware, StaleSynchronous

#: Every strategy by its short name, which stands for it with its defaults, and pooled rates where it has any.
STRATEGIES: MappingProxyType[str, type[AbstractStrategy[Any]]] = MappingProxyType(
    {
        "local": LocalSGD,
        "epoch": EpochAveraging,
        "one-shot": OneShotAveraging,
        "auto": AutoSync,
        "post-local": PostLocalSGD,
        "desloc": DESLOC,
        "minibatch": MinibatchSGD,
        "anytime": AnytimeSGD,
        "easgd": EASGD,
        "leader": LeaderSGD,
        "dpsgd": DPSGD,
        "sgp": SGP,
        "overlap-sgp": OverlapSGP,
        "choco": ChocoSGD,
        "slowmo": SlowMo,
        "diloco": DiLoCo,
        "eager-diloco": EagerDiLoCo,
        "streaming-diloco": StreamingDiLoCo,
        "scaffold": SCAFFOLD,
        "fedprox": FedProx,
        "admm": ADMM,
        "asgd": ASGD,
        "staleness-aware": StalenessAware,
        "dc-asgd": DelayCompensatedASGD,
        "stale-synchronous": StaleSynchronous,
        "backup-workers": BackupWorkers,
        "downpour": Downpour,
        "async-easgd": AsyncEASGD,
        "async-admm": AsyncADMM,
        "async-leader": AsyncLeaderSGD,
        "decoupled-diloco": DecoupledDiLoCo,
        "adpsgd": ADPSGD,
        "hogwild": Hogwild,
    }
)


def _classes(module: Any, base: type, *but: type) -> dict[str, type]:
    """Return the final classes of a kind in a module, by their names in small letters."""
    found = (getattr(module, name) for name in module.__all__)
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, base) and one not in (base, *but)]
    return {one.__name__.lower(): one for one in kinds}


#: What parameters of strategies may be, as texts name them.
TOPOLOGIES: Final = Kind(
    "topology", AbstractTopology, "dsgd.comm.topology",
    _classes(topology, AbstractTopology, AbstractFixedGraph), "dsgd.topologies",
)  # fmt: skip
_RULES: Final = Kind("rule", AbstractRule, "dsgd.sync.adaptive", _classes(adaptive, AbstractRule), "dsgd.rules")
#: Strategies, as texts name them.
STRATEGY_KIND: Final = Kind(
    "strategy", AbstractStrategy, "dsgd.sync", STRATEGIES, "dsgd.strategies", (COMPRESSORS, TOPOLOGIES, _RULES)
)
