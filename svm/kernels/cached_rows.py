"""Compiled loops over cached kernel rows: sums, blocks, compaction, storage.

A cache is one flat array: the row in slot s begins at s times the stride.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel


@kernel
def add_rows(u, flat, stride, slots, coefs, start, stop):  # type: ignore[no-untyped-def]
    """Add coefs[s] times cached row slots[s] to u, columns start..stop, in float64."""
    # Slices: where an index is a sum of signed numbers, the loop is not vectorised, and takes six times as long.
    n, s, out, width = len(slots), 0, u[start:stop], np.uint64(stop - start)
    # Four rows at a time: u is read and written once for all of them.
    while s + 3 < n:
        first, second, third, fourth = (
            slots[s] * stride,
            slots[s + 1] * stride,
            slots[s + 2] * stride,
            slots[s + 3] * stride,
        )
        a, b = flat[first + start : first + stop], flat[second + start : second + stop]
        c, d = flat[third + start : third + stop], flat[fourth + start : fourth + stop]
        w, x, y, z = coefs[s], coefs[s + 1], coefs[s + 2], coefs[s + 3]
        for k in range(width):
            out[k] += (w * a[k] + x * b[k]) + (y * c[k] + z * d[k])
        s += 4
    while s < n:
        first, w = slots[s] * stride, coefs[s]
        a = flat[first + start : first + stop]
        for k in range(width):
            out[k] += w * a[k]
        s += 1


@kernel
def add_rows_of_slabs(u, flat, m, bounds, rows, coefs, start, stop):  # type: ignore[no-untyped-def]
    """Add coefs[s] times row rows[s] of a matrix of m rows to u; of it slabs start..stop of columns, each a matrix.

    They lie one after another; slab t has columns bounds[t] to bounds[t + 1].
    """
    for t in range(start, stop):
        begin, end = bounds[t], bounds[t + 1]
        add_rows(u[begin:end], flat[m * begin : m * end], end - begin, rows, coefs, np.int64(0), end - begin)


@kernel
def read_block(flat, stride, slots, positions, out, start, stop):  # type: ignore[no-untyped-def]
    """Set rows start..stop of `out` that are cached, and their mirror images among the columns of those that are not.

    Row positions[a] is held in slot slots[a], or not if that is negative.
    """
    for a in range(start, stop):
        if slots[a] >= 0:
            source = np.uint64(slots[a] * stride)
            for b in range(len(positions)):
                out[a, b] = flat[source + np.uint64(positions[b])]
                if slots[b] < 0:
                    out[b, a] = out[a, b]


@kernel
def compact_rows(flat, stride, slots, keep, start, stop):  # type: ignore[no-untyped-def]
    """Move the kept columns of the rows in `slots` (ascending), from start to stop, to their new places in `flat`.

    Row s goes to the place of s rows of the new width.
    """
    width = np.uint64(len(keep))
    # In place: slots ascend and rows become shorter, so no row is overwritten before it is read.
    for s in range(np.uint64(start), np.uint64(stop)):
        source, target = np.uint64(slots[s] * stride), s * width
        for k in range(width):
            flat[target + k] = flat[source + np.uint64(keep[k])]


@kernel
def move_rows(flat, n, slots, first, width, start, stop):  # type: ignore[no-untyped-def]
    """Move n values from the beginning of each slot slots[s], start <= s < stop, to row first + s of rows so wide.

    A slot is n values wide. A row may overlap its own new place, but no other's.
    """
    for s in range(start, stop):
        source, target = np.uint64(slots[s] * n), np.uint64((first + s) * width)
        if source < target < source + np.uint64(n):
            for k in range(n - 1, -1, -1):
                flat[target + np.uint64(k)] = flat[source + np.uint64(k)]
        else:
            for k in range(np.uint64(n)):
                flat[target + k] = flat[source + k]


@kernel
def store_rows(tile, flat, stride, slots, start):  # type: ignore[no-untyped-def]
    """Copy the first rows of a tile to cached row slots[s], columns start onwards."""
    width = np.uint64(tile.shape[1])
    for s in range(len(slots)):
        target, row = np.uint64(slots[s] * stride + start), tile[s]
        for k in range(width):
            flat[target + k] = row[k]
