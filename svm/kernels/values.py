"""Blocks of kernel values: one matrix product and one elementwise pass.

With rbf the product yields the exponent itself. Row x is stored as (√(2γ) x, −γ‖x‖², 1); the product of a left row with
the last two entries swapped and a right row is 2γ x'z − γ‖x‖² − γ‖z‖² = −γ‖x − z‖². Dense rows are centred first, which
changes no distance and keeps rounding small. CSR rows are multiplied with a densified block of left rows, the cost of a
value being the nonzeros of its right row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import kernel as compiled
from dsgd.svm.kernels.exponential import exponentials
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.rows import Rows
from dsgd.svm.kernels.tiles import fits, is_single, tile_values
from dsgd.types import AnyArray, FloatMatrix

_TILE = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
#: Left rows that are densified together, and of how many bytes each: 512 rows take 32 megabytes. Wider ones are given
#: the columns only that are there, and go in smaller parts.
_MOST_LEFT, _FEWEST_LEFT = 512, 16
_WIDEST_BYTES = 2**16


@dataclass(frozen=True)
class Left:
    """Left rows in the form that products want.

    - `rows`: dense rows, shape (q, d), or what sparse ones have besides their entries.
    - `columns`, shape (m, q): sparse rows, densified by columns.
    - `table`, shape (size, 2): which columns those are, by hashing (`make_table`), if they are not all.
    """

    rows: Rows
    columns: AnyArray | None = None
    table: AnyArray | None = None


def left_bytes(rows: Rows) -> int:
    """Return the bytes that a row takes as a left one."""
    if rows.sparse is not None:
        return min(rows.n_columns * int(rows.sparse[0].itemsize), _WIDEST_BYTES)
    if rows.ids is not None:
        return 8
    held = rows.dense if rows.dense is not None else rows.plain
    return 8 * int(held.shape[1])


def left_form(kernel: Kernel, rows: Rows) -> list[tuple[int, int, Left]]:
    """Return (start, stop, part) of the left rows; sparse rows come in parts whose densified form stays small.

    Of wide rows a part has the columns only that its rows have, and so few rows that there are not many.
    """
    if rows.sparse is not None and rows.offsets is not None:
        parts, begin = [], 0
        while begin < rows.n:
            parts.append(_densified_part(rows, *rows.sparse, begin))
            begin = parts[-1][1]
        return parts
    if rows.dense is not None and kernel.name == "rbf":
        swapped = rows.dense.copy()
        swapped[:, -2], swapped[:, -1] = rows.dense[:, -1], rows.dense[:, -2]
        return [(0, rows.n, Left(Rows(rows.n, dense=swapped)))]
    return [(0, rows.n, Left(rows))]


def _densified_part(
    rows: Rows, values: AnyArray, indices: AnyArray, indptr: AnyArray, begin: int
) -> tuple[int, int, Left]:
    """Return where a part of sparse left rows begins and ends, and the part."""
    end = min(rows.n, begin + _MOST_LEFT)
    places, n_columns, table = indices[indptr[begin] : indptr[end]], rows.n_columns, None
    if n_columns * values.itemsize > _WIDEST_BYTES:
        while True:
            present, places = np.unique(indices[indptr[begin] : indptr[end]], return_inverse=True)
            if len(present) * values.itemsize <= _WIDEST_BYTES or end - begin <= _FEWEST_LEFT:
                break
            end = begin + (end - begin) // 2
        n_columns, table = len(present), make_table(present)
    full = np.zeros((n_columns, end - begin), dtype=values.dtype)
    of = np.repeat(np.arange(end - begin), np.diff(indptr[begin : end + 1]))
    full[places, of] = values[indptr[begin] : indptr[end]]
    offsets = None if rows.offsets is None else rows.offsets[begin:end]
    return begin, end, Left(Rows(end - begin, offsets=offsets), full, table)


def tile_rows(kernel: Kernel, left: Left, right: Rows, out: AnyArray) -> tuple[AnyArray, AnyArray] | None:
    """Return left and right rows for the kernels of `dsgd.svm.kernels.tiles`, None where they are not of that kind.

    - `kernel`, `left`, `right`, `out`: as in `row_values`.
    """
    if left.rows.dense is None or right.dense is None or kernel.name not in {"rbf", "linear"}:
        return None
    return (left.rows.dense, right.dense) if fits(out, left.rows.dense, right.dense) else None


def row_values(kernel: Kernel, left: Left, right: Rows, out: AnyArray) -> None:
    """Set `out` to the values of left rows with right rows.

    - `out`, shape (q, right.n): where values go, float32 or float64.
    """
    tiled = tile_rows(kernel, left, right, out)
    if tiled is not None:
        tile_values(*tiled, out, kernel.name == "rbf", is_single(out.dtype))
        return
    if left.rows.ids is not None and right.ids is not None:
        out[:] = left.rows.plain[np.ix_(left.rows.ids, right.ids)]
        return
    if kernel.function is not None:
        values = kernel.function(left.rows.plain, right.plain)
        values = np.asarray(values.toarray() if sp.issparse(values) else values)
        if values.shape != out.shape:
            raise InvalidDataError(
                f"kernel(A, B) must return shape {out.shape}, one value per pair of rows. Got shape {values.shape}."
            )
        out[:] = values
        return
    if left.columns is not None and right.sparse is not None:
        scratch = np.empty((_TILE, left.columns.shape[1]), dtype=out.dtype)
        entries = right.sparse if left.table is None else narrow(right.sparse, left.table)
        sparse_products(*entries, left.columns, left.rows.offsets, right.offsets, out, 0, right.n, scratch)
    elif left.rows.dense is not None and right.dense is not None:
        np.matmul(left.rows.dense, right.dense.T, out=out)
    # Values that overflow are refused where a solution is made, once and with all that is to be said of them.
    with np.errstate(over="ignore", invalid="ignore"):
        _finish(kernel, out)


def block_values(kernel: Kernel, left: Rows, right: Rows, dtype: Any, out: AnyArray | None = None) -> FloatMatrix:
    """Return the matrix of values of all pairs, shape (left.n, right.n), in `out` if given."""
    if out is None:
        out = np.empty((left.n, right.n), dtype=dtype)
    for begin, end, part in left_form(kernel, left):
        row_values(kernel, part, right, out[begin:end])
    return out


def _finish(kernel: Kernel, out: AnyArray) -> None:
    """Turn products into kernel values, in place."""
    if kernel.name == "rbf":
        exponentials(out)
    elif kernel.name in {"poly", "sigmoid"}:
        np.multiply(out, out.dtype.type(kernel.gamma), out=out)
        np.add(out, out.dtype.type(kernel.coef0), out=out)
        if kernel.name == "sigmoid":
            np.tanh(out, out=out)
        elif kernel.degree == 3:
            np.multiply(out, out * out, out=out)
        elif kernel.degree == 2:
            np.multiply(out, out, out=out)
        else:
            np.power(out, out.dtype.type(kernel.degree), out=out)


@compiled
def sparse_products(values, indices, indptr, left, left_offsets, offsets, out, start, stop, scratch):  # type: ignore[no-untyped-def]
    """Set out[:, start:stop] = left' X[start:stop]' + offsets; left is (d, q), X is CSR, scratch is (16, q)."""
    q = left.shape[1]
    for first in range(start, stop, 16):
        size = min(16, stop - first)
        for r in range(size):
            row = scratch[r]
            for k in range(q):
                row[k] = left_offsets[k] + offsets[first + r]
            p, end = indptr[first + r], indptr[first + r + 1]
            while p + 1 < end:
                a, b = values[p], values[p + 1]
                one, two = left[indices[p]], left[indices[p + 1]]
                for k in range(q):
                    row[k] += a * one[k] + b * two[k]
                p += 2
            if p < end:
                a, one = values[p], left[indices[p]]
                for k in range(q):
                    row[k] += a * one[k]
        for k in range(q):
            for r in range(size):
                out[k, first + r] = scratch[r, k]


def make_table(columns: AnyArray) -> AnyArray:
    """Return a table of some columns, each once, and their places, shape (size, 2)."""
    table = np.full((2 ** max(4, int(2 * len(columns)).bit_length()), 2), -1, dtype=columns.dtype)
    fill_table(columns, table)
    return table


def narrow(csr: tuple[AnyArray, AnyArray, AnyArray], table: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return CSR rows less the entries whose columns are not in a table; columns are numbered by it."""
    values, indices, indptr = csr
    size = int(indptr[-1] - indptr[0])
    out = np.empty(size, dtype=values.dtype), np.empty(size, dtype=indices.dtype), np.zeros_like(indptr)
    narrow_rows(values, indices, indptr, table, *out)
    return out


@compiled
def fill_table(columns, table):  # type: ignore[no-untyped-def]
    """Put each column and its place into a table of a power of two, by open addressing."""
    mask = np.uint64(len(table) - 1)
    for place in range(len(columns)):
        slot = (np.uint64(columns[place]) * _GOLDEN >> np.uint64(32)) & mask
        while table[slot, 0] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot, 0], table[slot, 1] = columns[place], place


@compiled
def narrow_rows(values, indices, indptr, table, out_values, out_indices, out_indptr):  # type: ignore[no-untyped-def]
    """Keep the entries whose columns are in a table, under their places."""
    mask, count = np.uint64(len(table) - 1), np.uint64(0)
    for i in range(np.uint64(len(indptr) - 1)):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            column = indices[p]
            slot = (np.uint64(column) * _GOLDEN >> np.uint64(32)) & mask
            while table[slot, 0] >= 0 and table[slot, 0] != column:
                slot = (slot + np.uint64(1)) & mask
            if table[slot, 0] >= 0:
                out_values[count], out_indices[count] = values[p], table[slot, 1]
                count += np.uint64(1)
        out_indptr[i + np.uint64(1)] = count
