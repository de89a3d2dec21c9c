"""Fingerprints of rows, and the pass that sorts rows into the order of training."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.kernels.rng import GOLDEN, mix64
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, PointerVector

__all__ = ["fingerprint_dense", "fingerprint_sparse", "place_dense", "place_sparse"]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
# Column numbers and values enter a word through different odd multipliers, so that pairs of them do not collide.
_VALUE = np.uint64(0xD6E8FEB86659FD93)


@kernel
def fingerprint_dense(bits: AnyArray, out: AnyArray) -> None:
    """Add to `out` the fingerprint of every row: the wrap-around sum of a hash of (column, value) over its nonzeros.

    Parameters
    ----------
    bits : array of uint32 or uint64, shape (n_rows, n_features)
        The bits of the values. Zeros of both signs are left out, so a dense row and its sparse form agree.
    out : array of uint64, shape (n_rows,)
        Updated in place.
    """
    n_features = np.uint64(bits.shape[1])
    # Shifted left until the sign has left the word, zeros of both signs are zero and nothing else is.
    no_sign = np.uint64(65 - 8 * bits.itemsize)
    for i in range(np.uint64(bits.shape[0])):
        total = _ZERO
        for j in range(n_features):
            word = np.uint64(bits[i, j])
            hashed = mix64((j + _ONE) * GOLDEN + word * _VALUE)
            total += hashed if (word << no_sign) != _ZERO else _ZERO
        out[i] += total


@kernel
def fingerprint_sparse(bits: AnyArray, indices: AnyArray, indptr: AnyArray, out: AnyArray) -> None:
    """Add to `out` the fingerprint of every row; as `fingerprint_dense`.

    Parameters
    ----------
    bits : array of uint32 or uint64, shape (nnz,)
        The bits of the values.
    indices : array of uint32, shape (nnz,)
        Columns.
    indptr : array of uint64, shape (n_rows + 1,)
        Row starts.
    out : array of uint64, shape (n_rows,)
        Updated in place.
    """
    no_sign = np.uint64(65 - 8 * bits.itemsize)
    for i in range(np.uint64(out.shape[0])):
        total = _ZERO
        for j in range(indptr[i], indptr[i + _ONE]):
            word = np.uint64(bits[j])
            hashed = mix64((np.uint64(indices[j]) + _ONE) * GOLDEN + word * _VALUE)
            total += hashed if (word << no_sign) != _ZERO else _ZERO
        out[i] += total


@kernel
def place_dense(block: FloatMatrix, source: AnyArray, place: AnyArray, out: FloatMatrix) -> None:
    """Copy row ``source[v]`` of `block` to row ``place[v]`` of `out`, for every visit v."""
    n_features = np.uint64(block.shape[1])
    for v in range(np.uint64(source.shape[0])):
        row = np.uint64(source[v])
        target = np.uint64(place[v])
        for j in range(n_features):
            out[target, j] = block[row, j]


@kernel
def place_sparse(
    values: FloatVector,
    indices: AnyArray,
    indptr: AnyArray,
    source: AnyArray,
    place: AnyArray,
    out_values: FloatVector,
    out_indices: IndexVector,
    out_indptr: PointerVector,
) -> None:
    """Copy sparse row ``source[v]`` to row ``place[v]`` of the output, whose row starts are already right."""
    for v in range(np.uint64(source.shape[0])):
        row = np.uint64(source[v])
        first = indptr[row]
        target = out_indptr[np.uint64(place[v])]
        for j in range(indptr[row + _ONE] - first):
            out_values[target + j] = values[first + j]
            out_indices[target + j] = indices[first + j]
