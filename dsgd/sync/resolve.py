"""The strategy that a value of ``sync=`` stands for.

A package of its own makes its strategies known by names of their own, with entry points of the group
``dsgd.strategies``::

    [project.entry-points."dsgd.strategies"]
    mine = "my_package.my_module:MyStrategy"
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.sync.adpsgd import ADPSGD
from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.asgd import ASGD
from dsgd.sync.async_easgd import AsyncEASGD
from dsgd.sync.async_leader import AsyncLeaderSGD
from dsgd.sync.auto import AutoSync
from dsgd.sync.backup_workers import BackupWorkers
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.choco import ChocoSGD
from dsgd.sync.delay_compensated import DelayCompensatedASGD
from dsgd.sync.diloco import DiLoCo
from dsgd.sync.downpour import Downpour
from dsgd.sync.dpsgd import DPSGD
from dsgd.sync.easgd import EASGD
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.fedprox import FedProx
from dsgd.sync.hogwild import Hogwild
from dsgd.sync.leader import LeaderSGD
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.one_shot import OneShotAveraging
from dsgd.sync.overlap_sgp import OverlapSGP
from dsgd.sync.post_local import PostLocalSGD
from dsgd.sync.scaffold import SCAFFOLD
from dsgd.sync.sgp import SGP
from dsgd.sync.slowmo import SlowMo
from dsgd.sync.stale_synchronous import StaleSynchronous
from dsgd.sync.staleness_aware import StalenessAware

__all__ = ["STRATEGIES", "resolve"]

_GROUP = "dsgd.strategies"

#: Every strategy by its short name, which stands for it with its defaults, and pooled rates where it has any.
STRATEGIES: MappingProxyType[str, type[AbstractStrategy[Any]]] = MappingProxyType(
    {
        "local": LocalSGD,
        "epoch": EpochAveraging,
        "one-shot": OneShotAveraging,
        "auto": AutoSync,
        "post-local": PostLocalSGD,
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
        "scaffold": SCAFFOLD,
        "fedprox": FedProx,
        "asgd": ASGD,
        "staleness-aware": StalenessAware,
        "dc-asgd": DelayCompensatedASGD,
        "stale-synchronous": StaleSynchronous,
        "backup-workers": BackupWorkers,
        "downpour": Downpour,
        "async-easgd": AsyncEASGD,
        "async-leader": AsyncLeaderSGD,
        "adpsgd": ADPSGD,
        "hogwild": Hogwild,
    }
)


def resolve(sync: AbstractStrategy[Any] | int | str | None) -> AbstractStrategy[Any]:
    """Return the strategy that `sync` means.

    Parameters
    ----------
    sync : AbstractStrategy, int, str or None
        An integer n is ``LocalSGD(every=n)``; None is ``LocalSGD(rates="pooled")``, with which several ranks get as
        far in an epoch as one; a short name in `STRATEGIES` is that strategy with its defaults, and with pooled rates
        if it has such; one of an entry point is that strategy with its defaults, and so is ``"package.module:Name"``,
        which is imported. Workers must be able to import it too.

    Returns
    -------
    AbstractStrategy
        The strategy.

    Raises
    ------
    InvalidParameterError
        `sync` is something else; the text lists the choices.

    Examples
    --------
    >>> resolve(256)
    LocalSGD(every=256, overlap=False, momentum='keep', compressor=None, rates='own')
    >>> resolve("easgd")
    EASGD(every=256, beta=0.9)
    """
    if isinstance(sync, AbstractStrategy):
        return sync
    if sync is None:
        return LocalSGD(rates="pooled")
    if isinstance(sync, (int, np.integer)) and not isinstance(sync, bool):
        return LocalSGD(every=int(sync))
    if isinstance(sync, str) and sync in STRATEGIES:
        made: Any = STRATEGIES[sync]()
        pooled: AbstractStrategy[Any] = replace(made, rates="pooled") if "rates" in vars(made) else made
        return pooled
    if isinstance(sync, str) and (sync in _entry_points() or ":" in sync):
        return _imported(sync)
    names = ", ".join(repr(name) for name in [*STRATEGIES, *_entry_points()])
    classes = ", ".join(strategy.__name__ for strategy in STRATEGIES.values())
    raise InvalidParameterError(
        f"sync must be a positive number of samples, None, one of {names}, 'package.module:Name' of a strategy of your "
        f"own, or a strategy of dsgd.sync ({classes}). Got {sync!r}."
    )


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the strategies that installed packages have made known, by name."""
    return {point.name: point for point in entry_points(group=_GROUP)}


def _imported(text: str) -> AbstractStrategy[Any]:
    """Return the strategy, or the defaults of the class, that a name stands for."""
    known = _entry_points().get(text)
    try:
        if known is not None:
            found = known.load()
        else:
            module, _, name = text.partition(":")
            found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidParameterError(f"sync={text!r} cannot be imported: {error}.") from error
    try:
        strategy = found() if isinstance(found, type) else found
    except TypeError as error:
        raise InvalidParameterError(f"sync={text!r} cannot be made without parameters: {error}.") from error
    if not isinstance(strategy, AbstractStrategy):
        raise InvalidParameterError(
            f"sync={text!r} is a {type(strategy).__name__}, which is not a strategy of dsgd.sync."
        )
    return strategy
