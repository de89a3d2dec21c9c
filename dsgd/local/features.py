"""Random features of rows: vectors whose inner products approximate a kernel.

Problem: a kernel machine needs kernel values of all pairs of rows, a linear model of M features M numbers a row.

Update: with frequencies W, drawn from the Fourier transform of the kernel, and offsets b, uniform in [0, 2 pi)::

    phi(x) = sqrt(2 / M) cos(x W + b),   E[phi(x) . phi(z)] = k(x, z)

with an error of O(1 / sqrt(M)). Of ``exp(-gamma |x - z|^2)`` frequencies are normal with variance ``2 gamma``, of
``exp(-gamma |x - z|_1)`` they are Cauchy with scale gamma. Orthogonal frequencies of the former are, in blocks of as
many as there are columns, those of a random rotation, each scaled to the length that a normal vector has: still
unbiased, with less variance.

Cost: d M operations a row, or nnz M; a block of rows at a time is transformed while it is in the cache. Whoever has the
seed has the same frequencies, to the bit: streams of ``numpy.random.RandomState`` are the same in every version.

Source: Rahimi and Recht 2007 (Random features for large-scale kernel machines); Yu, Suresh, Choromanski, Holtmann-Rice
and Kumar 2016 (Orthogonal random features).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.features import project_sparse
from dsgd.types import AnyArray, FloatMatrix, FloatVector

__all__ = ["FREQUENCIES", "CosineMap", "blocks_of", "draw_map"]

# Of the transformed rows: about what a core's second cache holds.
_BLOCK_BYTES: Final = 1 << 20


def blocks_of(n_rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield the rows, so many at a time that they stay in the cache.

    Parameters
    ----------
    n_rows : int
        Rows.
    row_bytes : int
        Bytes of a row, once it is transformed.
    """
    stride = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for first in range(0, n_rows, stride):
        yield slice(first, min(n_rows, first + stride))


@dataclass(frozen=True)
class CosineMap:
    """The map from a row to its random features.

    Parameters
    ----------
    frequencies : array, shape (n_features, n_components)
        W.
    offsets : array, shape (n_components,)
        b, in the dtype of the frequencies.
    """

    frequencies: FloatMatrix
    offsets: FloatVector

    @property
    def n_components(self) -> int:
        """Features of a row."""
        return int(self.offsets.shape[0])

    def write(self, X: Any, out: FloatMatrix) -> None:
        """Write the features of rows, a block at a time: no more memory is needed than the features take.

        Parameters
        ----------
        X : array or CSR matrix, shape (n_rows, n_features)
            Rows, in the dtype of the frequencies.
        out : array, shape (n_rows, n_components)
            Overwritten; C-contiguous, in the same dtype.
        """
        scale = out.dtype.type(math.sqrt(2.0 / self.n_components))
        for rows in blocks_of(out.shape[0], out.shape[1] * out.itemsize):
            part = out[rows]
            if sp.issparse(X):
                # Row starts of the block, entries of the whole matrix: nothing is copied.
                project_sparse(X.data, X.indices, X.indptr[rows.start : rows.stop + 1], self.frequencies, part)
            else:
                np.dot(X[rows], self.frequencies, out=part)
            part += self.offsets
            np.cos(part, out=part)
            part *= scale


def draw_map(
    kernel: str,
    gamma: float,
    n_features: int,
    n_components: int,
    random: np.random.RandomState,
    *,
    orthogonal: bool = False,
    dtype: Any = np.float64,
) -> CosineMap:
    """Return a map for a kernel; the same from the same state of the same stream.

    Parameters
    ----------
    kernel : str
        A name in `FREQUENCIES`.
    gamma : float
        Its width, above 0.
    n_features, n_components : int
        Columns of the rows, and features.
    random : RandomState
        Draws frequencies, then offsets.
    orthogonal : bool, default False
        Whether frequencies are orthogonal in blocks; of ``"rbf"`` only.
    dtype : dtype, default float64
        Of frequencies and offsets, which are drawn in float64.
    """
    shape = n_features, n_components
    frequencies = _orthogonal(gamma, shape, random) if orthogonal else FREQUENCIES[kernel](gamma, shape, random)
    offsets = random.uniform(0.0, 2.0 * np.pi, size=n_components)
    return CosineMap(np.ascontiguousarray(frequencies, dtype), offsets.astype(dtype))


def _normal(gamma: float, shape: tuple[int, int], random: np.random.RandomState) -> AnyArray:
    return math.sqrt(2.0 * gamma) * random.normal(size=shape)


def _cauchy(gamma: float, shape: tuple[int, int], random: np.random.RandomState) -> AnyArray:
    return gamma * random.standard_cauchy(size=shape)


def _orthogonal(gamma: float, shape: tuple[int, int], random: np.random.RandomState) -> AnyArray:
    d, n_components = shape
    blocks = []
    for _ in range(-(-n_components // d)):
        rotation, triangle = np.linalg.qr(random.normal(size=(d, d)))
        # Without the signs some rotations would be likelier than others.
        rotation *= np.sign(np.diagonal(triangle))
        lengths = np.sqrt(random.chisquare(d, size=d))
        blocks.append(rotation * lengths)
    return math.sqrt(2.0 * gamma) * np.concatenate(blocks, axis=1)[:, :n_components]


#: By kernel: what draws its frequencies, in an array (n_features, n_components).
FREQUENCIES: Final = {"rbf": _normal, "laplacian": _cauchy}
