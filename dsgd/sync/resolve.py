"""The strategy that a value of ``sync=`` stands for.

A package of its own makes its strategies known by names of their own, with entry points of the group
``dsgd.strategies``, and compressors and topologies with those of ``dsgd.compressors`` and ``dsgd.topologies``::

    [project.entry-points."dsgd.strategies"]
    mine = "my_package.my_module:MyStrategy"
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.named import part_of
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.local import LocalSGD

_DEFAULT: Final = LocalSGD(rates="pooled")


def resolve(sync: AbstractStrategy[Any] | int | str | None) -> AbstractStrategy[Any]:
    """Return the strategy that `sync` means.

    Parameters
    ----------
    sync : AbstractStrategy, int, str or None
        An integer n is ``LocalSGD(every=n)``; None is ``LocalSGD(rates="pooled")``, with which several ranks get as
        far in an epoch as one; a short name in `STRATEGIES` is that strategy with its defaults, and with pooled rates
        if it has such; one of an entry point is that strategy with its defaults, and so is ``"package.module:Name"``,
        which is imported. Workers must be able to import it too. Parameters stand behind one more colon:
        ``"diloco:every=512,outer_rate=0.7"``, ``"minibatch:64"``; then all others have their defaults, as in
        ``DiLoCo(every=512, outer_rate=0.7)``.

    Returns
    -------
    AbstractStrategy
        The strategy.

    Raises
    ------
    InvalidParameterError
        `sync` is something else, and the text lists the choices; or the strategy has no such parameter, and the text
        lists those that it has.

    Examples
    --------
    >>> resolve(256)
    LocalSGD(every=256, overlap=False, momentum='keep', compressor=None, rates='own')
    >>> resolve("easgd")
    EASGD(every=256, beta=0.9)
    >>> resolve("dpsgd:every=64,topology=complete")
    DPSGD(every=64, topology=Complete(), keep_models=False)
    """
    if isinstance(sync, AbstractStrategy):
        return sync
    if sync is None:
        return _DEFAULT
    if isinstance(sync, (int, np.integer)) and not isinstance(sync, bool):
        return LocalSGD(every=int(sync))
    from dsgd.sync.names import STRATEGIES, STRATEGY_KIND  # all strategies: most fits need one, and that is named above

    if isinstance(sync, str) and sync in STRATEGIES:
        made: Any = STRATEGIES[sync]()
        pooled: AbstractStrategy[Any] = replace(made, rates="pooled") if "rates" in vars(made) else made
        return pooled
    if isinstance(sync, str):
        found: AbstractStrategy[Any] | None = part_of(STRATEGY_KIND, sync, f"sync={sync!r}")
        if found is not None:
            return found
    names = ", ".join(repr(name) for name in STRATEGY_KIND.all_names())
    classes = ", ".join(strategy.__name__ for strategy in STRATEGIES.values())
    raise InvalidParameterError(
        f"sync must be a positive number of samples, None, one of {names}, 'package.module:Name' of a strategy of your "
        "own, each with or without parameters ('diloco:every=512,outer_rate=0.7'), or a strategy of dsgd.sync "
        f"({classes}). Got {sync!r}."
    )
