"""The votes of pairs of classes, as LIBSVM and scikit-learn count them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np

from dsgd.types import AnyArray, FloatMatrix

#: Numbers of pairs, each under both of its classes, that are held at once.
_HELD = 2**17


@lru_cache(maxsize=16)
def columns_of(k: int) -> AnyArray:
    """Return which pairs each of k classes is in, by the number of the other class, shape (k, k - 1)."""
    columns = np.empty((k, k), dtype=np.int64)
    for number, (a, b) in enumerate(combinations(range(k), 2)):
        columns[a, b] = columns[b, a] = number
    return columns[~np.eye(k, dtype=np.bool_)].reshape(k, k - 1)


def count_votes(is_first: AnyArray, k: int) -> FloatMatrix:
    """Return how many votes each of k classes has, by which class of each pair a row is given to, (n, k)."""
    return _by_class(is_first, k, lambda mine, leads: (mine == leads).sum(axis=2))


def break_ties(scores: FloatMatrix, k: int) -> FloatMatrix:
    """Return what the decision values of pairs add to votes: less than half a vote for each of k classes, (n, k)."""
    # One after the other: sums of the same numbers in another order have other last digits.
    sums = _by_class(scores, k, lambda mine, leads: np.cumsum(np.where(leads, mine, -mine), axis=2)[:, :, -1])
    return np.asarray(sums / (3 * (np.abs(sums) + 1)))


def _by_class(of_pairs: AnyArray, k: int, work: Callable[[AnyArray, AnyArray], AnyArray]) -> FloatMatrix:
    """Return what `work` makes of what each class has in its pairs, (n, k, k - 1), and of where it is the first."""
    columns, leads = columns_of(k), np.arange(k)[:, None] <= np.arange(k - 1)
    out, step = np.empty((len(of_pairs), k)), max(1, _HELD // (k * k))
    for start in range(0, len(of_pairs), step):
        out[start : start + step] = work(of_pairs[start : start + step, columns], leads)
    return out
