"""Tables over the numbers of samples: which samples are in a set, and at which place."""

from __future__ import annotations

import numpy as np

from dsgd.types import AnyArray, IntVector


def mask_of(ids: AnyArray, n: int) -> AnyArray:
    """Return which of n numbers are among some, bool, shape (n,); `numpy.isin` takes ten times as long."""
    mask = np.zeros(n, dtype=np.bool_)
    mask[ids] = True
    return mask


def find(ids: AnyArray, among: AnyArray) -> IntVector:
    """Return in which place of `among`, all different, each of some numbers is, −1 where in none; makes no table."""
    if not len(among):
        return np.full(len(ids), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    places = order[np.minimum(np.searchsorted(among, ids, sorter=order), len(among) - 1)]
    found: IntVector = np.where(among[places] == ids, places, -1)
    return found


def places_of(ids: AnyArray, n: int) -> IntVector:
    """Return in which place of `ids` each of n numbers is, −1 where in none, shape (n,)."""
    places = np.full(n, -1, dtype=np.int64)
    places[ids] = np.arange(len(ids))
    return places
