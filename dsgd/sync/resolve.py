"""What a user may write for ``sync=`` and the strategy it means."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.one_shot import OneShotAveraging

__all__ = ["resolve"]


def resolve(sync: AbstractStrategy[Any] | int | str | None) -> AbstractStrategy[Any]:
    """Return the strategy that `sync` means.

    Parameters
    ----------
    sync : AbstractStrategy, int, {"epoch", "one-shot"} or None
        An integer n is ``LocalSGD(every=n)``; None is ``LocalSGD()``.

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
    LocalSGD(every=256, overlap=False, momentum='keep')
    """
    if isinstance(sync, AbstractStrategy):
        return sync
    if sync is None:
        return LocalSGD()
    if isinstance(sync, (int, np.integer)) and not isinstance(sync, bool):
        return LocalSGD(every=int(sync))
    if isinstance(sync, str) and sync == "epoch":
        return EpochAveraging()
    if isinstance(sync, str) and sync == "one-shot":
        return OneShotAveraging()
    raise InvalidParameterError(
        "sync must be a positive number of samples, 'epoch', 'one-shot', None, or a strategy of dsgd.sync "
        f"(LocalSGD, EpochAveraging, OneShotAveraging, MinibatchSGD, AnytimeSGD). Got {sync!r}."
    )
