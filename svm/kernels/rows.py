"""Rows of samples: prepared for products, found by their numbers, and merged where they are equal.

Equal rows, in features and target, share their indicator, so a problem with one variable bounded by ΣC_i has the same
optimum, the same gap and the same decision function; its value is distributed again, one row after the other, each up
to its C_i. A row twice and a row of weight two are thus the same problem to the last bit, in whatever order rows come;
and sets with many equal rows become smaller. Merged rows are in an order given by their content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.jit import kernel as compiled
from dsgd.kernels.order import GOLDEN, mix64_each, sort_hashes
from dsgd.local.blocks import fingerprints as row_fingerprints
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


@dataclass(frozen=True)
class Rows:
    """Rows made ready for products; exactly one of the representations is set.

    - `dense`, shape (n, d) or (n, d + 2): dense rows; with rbf, scaled and augmented.
    - `sparse`: sparse rows; with rbf, scaled.
    - `offsets`, shape (n,): −γ‖x‖² of sparse rows with rbf, else zeros.
    - `plain`: rows for a callable, or the given kernel matrix.
    - `ids`, shape (n,): which rows of the given kernel matrix these are.
    """

    n: int
    dense: FloatMatrix | None = None
    sparse: tuple[AnyArray, AnyArray, AnyArray] | None = None
    n_columns: int = 0
    offsets: FloatVector | None = None
    plain: Any = None
    ids: AnyArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what was made for these rows, without what belongs to the caller."""
        parts = [self.dense, self.offsets, self.ids, *(self.sparse or ())]
        return sum(int(part.nbytes) for part in parts if part is not None)


def span(rows: Rows, start: int, stop: int) -> Rows:
    """Return rows start..stop, as views where they are held."""
    if rows.sparse is not None and rows.offsets is not None:
        values, indices, indptr = rows.sparse
        parts = (values, indices, indptr[start : stop + 1])
        return Rows(stop - start, sparse=parts, n_columns=rows.n_columns, offsets=rows.offsets[start:stop])
    return _pick(rows, stop - start, slice(start, stop))


def _pick(rows: Rows, n: int, which: AnyArray | slice) -> Rows:
    """Return n rows that are not sparse, by number or as a slice."""
    if rows.dense is not None:
        return Rows(n, dense=rows.dense[which])
    if rows.ids is not None:
        return Rows(n, plain=rows.plain, ids=rows.ids[which])
    return Rows(n, plain=rows.plain[which])


def cast_rows(rows: Rows, dtype: Any) -> Rows:
    """Convert rows prepared in float64 to those prepared in another type, to the last bit."""
    if rows.dense is not None:
        return replace(rows, dense=rows.dense.astype(dtype, copy=False))
    if rows.sparse is not None and rows.offsets is not None:
        values, indices, indptr = rows.sparse
        parts = (values.astype(dtype, copy=False), indices, indptr)
        return replace(rows, sparse=parts, offsets=rows.offsets.astype(dtype, copy=False))
    return rows


def take_rows(rows: Rows, index: AnyArray) -> Rows:
    """Return a copy of some prepared rows."""
    if rows.sparse is not None and rows.offsets is not None:
        parts = gather_csr(rows.sparse, index)
        return Rows(len(index), sparse=parts, n_columns=rows.n_columns, offsets=rows.offsets[index])
    return _pick(rows, len(index), index)


def concatenate_rows(rows: Rows, more: Rows) -> Rows:
    """Return rows of two kinds alike, one after the other."""
    n = rows.n + more.n
    if rows.dense is not None and more.dense is not None:
        return Rows(n, dense=np.concatenate([rows.dense, more.dense]))
    if rows.sparse is not None and more.sparse is not None and rows.offsets is not None and more.offsets is not None:
        values, indices, indptr = (np.concatenate([a, b]) for a, b in zip(rows.sparse, more.sparse, strict=True))
        indptr = np.concatenate([rows.sparse[2], more.sparse[2][1:] + rows.sparse[2][-1]])
        offsets = np.concatenate([rows.offsets, more.offsets])
        return Rows(n, sparse=(values, indices, indptr), n_columns=rows.n_columns, offsets=offsets)
    if rows.ids is not None and more.ids is not None:
        return Rows(n, plain=rows.plain, ids=np.concatenate([rows.ids, more.ids]))
    if sp.issparse(rows.plain):
        return Rows(n, plain=sp.vstack([rows.plain, more.plain], format="csr"))
    return Rows(n, plain=np.concatenate([rows.plain, more.plain]))


def gather_csr(csr: tuple[AnyArray, AnyArray, AnyArray], index: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return some rows of a CSR matrix; scipy takes as long for 256 of them as their products do."""
    values, indices, indptr = csr
    ends = np.zeros(len(index) + 1, dtype=indptr.dtype)
    np.cumsum(indptr[index + 1] - indptr[index], out=ends[1:])
    size = int(ends[-1])
    out = np.empty(size, dtype=values.dtype), np.empty(size, dtype=indices.dtype), ends
    gather_rows(values, indices, indptr, index, *out)
    return out


@compiled
def gather_rows(values, indices, indptr, index, out_values, out_indices, out_indptr):  # type: ignore[no-untyped-def]
    """Copy rows of a CSR matrix to where `out_indptr` says."""
    for k in range(len(index)):
        source, target = indptr[index[k]], out_indptr[k]
        for p in range(out_indptr[k + 1] - target):
            out_values[target + p] = values[source + p]
            out_indices[target + p] = indices[source + p]


@compiled
def sum_squares(values, indptr, out):  # type: ignore[no-untyped-def]
    """Set out[i] to the sum of squares of row i of a CSR matrix, in float64."""
    for i in range(len(out)):
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            total += np.float64(values[p]) * np.float64(values[p])
        out[i] = total


@compiled
def sum_columns(rows, out):  # type: ignore[no-untyped-def]
    """Add dense rows to out, one after the other, as numpy does, which takes a call for each of short ones."""
    sums = np.empty(len(out))
    sums[:] = 0.0  # Numba compiles `np.zeros` for as long as all of this
    for i in range(np.uint64(rows.shape[0])):
        for j in range(np.uint64(rows.shape[1])):
            sums[j] += np.float64(rows[i, j])
    for j in range(np.uint64(len(out))):
        out[j] += sums[j]


def is_plain(rows: AnyArray) -> bool:
    """Return whether compiled code takes dense rows as they are; for each other kind numba would compile it again."""
    return rows.dtype in (np.float32, np.float64) and rows.flags.c_contiguous and rows.flags.writeable


@compiled
def centre_rows(rows, shift, gamma, out):  # type: ignore[no-untyped-def]
    """Set rows of out to (√(2γ) x, −γ‖x‖², 1) of rows less shift, as rbf multiplies them."""
    scale, d = np.sqrt(2.0 * gamma), np.uint64(rows.shape[1])
    for i in range(np.uint64(rows.shape[0])):
        square = 0.0
        for j in range(d):
            value = np.float64(rows[i, j]) - shift[j]
            square += value * value
            out[i, j] = value * scale
        out[i, d], out[i, d + np.uint64(1)] = -gamma * square, 1.0


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


def merge_rows(X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
    """Return one row of each kind, by prints of content and target, who represents each, and summed weights."""
    return merge_prints(fingerprints(X, target), weights, lambda rows, others: rows_are_equal(X, target, rows, others))


def merge_prints(
    prints: AnyArray, weights: FloatVector, are_equal: Callable[[IntVector, IntVector], bool]
) -> tuple[IntVector, IntVector, FloatVector]:
    """Merge rows by fingerprints as `merge_rows` does; none if two with one fingerprint differ (``are_equal``)."""
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
    """Return the sums of the weights of each of n owners, rounded once, as bounds of many rows are those of one."""
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
    return mix64_each(row_fingerprints(X) ^ mix64_each(bits + GOLDEN))


def distribute(merged: FloatMatrix, owner: IntVector, costs: FloatVector, total: FloatVector) -> FloatMatrix:
    """Return the coefficients of all rows, shape (k, n): those of equal ones filled up to bounds, one by one."""
    used = owner >= 0
    counts = np.bincount(owner[used], minlength=merged.shape[1])
    out = np.where(used & (counts[owner] == 1), merged[:, owner], 0.0)
    if counts.max(initial=0) <= 1:  # as mostly: no rows are equal
        return out
    rows = np.flatnonzero(used & (counts[owner] > 1))
    rows = rows[np.argsort(owner[rows], kind="stable")]
    for line, filled in zip(merged, out, strict=True):
        filled[rows] = _filled(line, owner[rows], costs[rows], total)
    return out


def _filled(merged: FloatVector, of: IntVector, costs: FloatVector, total: FloatVector) -> FloatVector:
    """Return the coefficients of rows that are in the order of their owners `of`."""
    size = np.abs(merged)
    bound = np.where(np.isfinite(costs), costs, size[of])  # without a bound the first takes all
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
    found: FloatVector = np.sign(merged[of]) * np.where(size[of] >= total[of], bound, amount)
    return found


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
