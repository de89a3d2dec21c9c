"""Dense or sparse rows prepared for products: selection, casting, joining."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.jit import kernel as compiled
from dsgd.types import AnyArray, FloatMatrix, FloatVector


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
    sums = np.zeros(len(out))
    for i in range(np.uint64(rows.shape[0])):
        for j in range(np.uint64(rows.shape[1])):
            sums[j] += np.float64(rows[i, j])
    for j in range(np.uint64(len(out))):
        out[j] += sums[j]


def is_plain(rows: AnyArray) -> bool:
    """Return whether compiled code takes dense rows as they are; for each other kind numba would compile it again."""
    return rows.dtype in (np.float32, np.float64) and rows.flags.c_contiguous and rows.flags.writeable


@compiled
def centre_rows(rows, shift, scale, away, out):  # type: ignore[no-untyped-def]
    """Set away to rows less shift, and the first columns of out to these times scale: numpy takes a call for a row."""
    for i in range(np.uint64(rows.shape[0])):
        for j in range(np.uint64(rows.shape[1])):
            value = np.float64(rows[i, j]) - shift[j]
            away[i, j] = value
            out[i, j] = value * scale
