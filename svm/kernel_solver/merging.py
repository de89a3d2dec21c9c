"""Merging rows that are equal in features and target, in an order given by their content.

Equal rows share their indicator, so a problem with one variable bounded by ΣC_i has the same optimum, the same gap and
the same decision function; its value is distributed again, one row after the other, each up to its C_i. A row twice and
a row of weight two are thus the same problem to the last bit, in whatever order rows come; and sets with many equal
rows become smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.order import sort_hashes
from dsgd.local.blocks import fingerprints as row_fingerprints
from dsgd.types import AnyArray, FloatVector, IntVector


def merge_rows(X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
    """Return which rows represent all, and who represents each.

    - returned: one row of each kind, in the order of the fingerprints of content and target.
    """
    return merge_prints(fingerprints(X, target), weights, lambda rows, others: rows_are_equal(X, target, rows, others))


def merge_prints(
    prints: AnyArray, weights: FloatVector, are_equal: Callable[[IntVector, IntVector], bool]
) -> tuple[IntVector, IntVector, FloatVector]:
    """Merge rows by their fingerprints, shape (n,); ``are_equal(rows, others)`` says whether pairs of rows are equal.

    Returns what `merge_rows` does; no rows are merged if any two with one fingerprint differ.
    """
    used = np.flatnonzero(weights > 0)
    order, ordered = sort_hashes(prints[used])
    is_new = np.ones(len(order), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    first, owner = order[is_new], np.empty(len(order), dtype=np.int64)
    owner[order] = np.cumsum(is_new) - 1
    del order, ordered, is_new  # of many rows the peak is here
    of_all = np.full(len(weights), -1, dtype=np.int64)
    if not are_equal(used, used[first][owner]):  # two contents with one 64-bit fingerprint
        of_all[used] = np.arange(len(used))
        return used, of_all, weights[used].astype(np.float64)
    of_all[used] = owner
    return used[first], of_all, sums_by(owner, weights[used], len(first))


def sums_by(owner: IntVector, weights: FloatVector, n: int) -> FloatVector:
    """Return the sums of the weights of each of n owners, rounded once: bounds of many rows must be those of one.

    One after another a hundred thousand equal weights would round to another sum than their product.
    """
    counts = np.bincount(owner, minlength=n)
    if counts.max(initial=0) <= 1:  # as mostly: no rows are equal
        return np.bincount(owner, weights=weights, minlength=n).astype(np.float64)
    total = np.zeros(n)
    ordered = weights[np.argsort(owner, kind="stable")].astype(np.longdouble)
    total[counts > 0] = np.add.reduceat(ordered, (np.cumsum(counts) - counts)[counts > 0])
    return total


def fingerprints(X: Any, target: FloatVector) -> AnyArray:
    """Return 64-bit fingerprints of rows and their targets, shape (n,)."""
    bits = np.ascontiguousarray(target, dtype=np.float64).view(np.uint64)
    with np.errstate(over="ignore"):
        return np.array(_mix(row_fingerprints(X) ^ _mix(bits + np.uint64(0x9E3779B97F4A7C15))))


def distribute(merged: FloatVector, owner: IntVector, costs: FloatVector, total: FloatVector) -> FloatVector:
    """Return the coefficients of all rows: those of equal rows are filled one after the other, each up to its bound."""
    out = np.zeros(len(owner))
    rows = np.flatnonzero(owner >= 0)
    is_alone = np.bincount(owner[rows], minlength=len(merged))[owner[rows]] == 1
    out[rows[is_alone]] = merged[owner[rows[is_alone]]]
    rows = rows[~is_alone]
    if not len(rows):  # as mostly: no rows are equal
        return out
    rows = rows[np.argsort(owner[rows], kind="stable")]
    of, size = owner[rows], np.abs(merged)
    bound = np.where(np.isfinite(costs[rows]), costs[rows], size[of])  # without a bound the first takes all
    # In the widest type: bounds may differ by many orders, and what comes before must leave the small ones as they are.
    sums = np.cumsum(bound, dtype=np.longdouble)
    filled = sums - bound
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    filled -= np.repeat(filled[starts], np.diff(starts, append=len(of)))
    amount = np.clip(size[of] - filled, 0.0, bound).astype(np.float64)
    rounding = (
        np.finfo(np.float64).eps * filled + np.finfo(np.longdouble).eps * sums
    )  # of what is distributed, and of sums
    amount[(filled > 0.0) & (amount < 4.0 * rounding)] = 0.0
    out[rows] = np.sign(merged[of]) * np.where(size[of] >= total[of], bound, amount)
    return out


def _mix(words: AnyArray) -> AnyArray:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


def rows_are_equal(X: Any, target: FloatVector, rows: IntVector, others: IntVector) -> bool:
    """Return whether all pairs of rows are equal, targets included."""
    differ = rows != others
    rows, others = rows[differ], others[differ]
    if not np.array_equal(target[rows], target[others]):
        return False
    for start in range(0, len(rows), 4096):
        a, b = X[rows[start : start + 4096]], X[others[start : start + 4096]]
        if (a != b).nnz if sp.issparse(X) else not np.array_equal(a, b):
            return False
    return True
