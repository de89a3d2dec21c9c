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
from functools import lru_cache
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.rows import project_sparse
from dsgd.local.shard import Shard, epoch_order, spans
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix

# Of the transformed rows: about what a core's second cache holds.
_BLOCK_BYTES: Final = 1 << 20


def entries_of(X: Any) -> tuple[Any, Any, Any]:
    """Return what `CosineMap.write` reads of an array or a CSR matrix: values, indices and indptr, or None."""
    return (X.data, X.indices, X.indptr) if sp.issparse(X) else (X, None, None)


def blocks_of(n_rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield the rows, so many at a time that they stay in the cache."""
    stride = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for first in range(0, n_rows, stride):
        yield slice(first, min(n_rows, first + stride))


@dataclass(frozen=True)
class CosineMap:
    """The map from a row to its random features."""

    frequencies: FloatMatrix
    offsets: FloatVector

    @property
    def n_components(self) -> int:
        """Features of a row."""
        return int(self.offsets.shape[0])

    def write(
        self, values: FloatMatrix | FloatVector, indices: AnyArray | None, indptr: AnyArray | None, out: FloatMatrix
    ) -> None:
        """Write the features of rows, a block at a time: no more memory is needed than the features take."""
        scale = out.dtype.type(math.sqrt(2.0 / self.n_components))
        for rows in blocks_of(out.shape[0], out.shape[1] * out.itemsize):
            part = out[rows]
            if indptr is None:
                np.dot(values[rows], self.frequencies, out=part)
            else:
                # Row starts of the block, entries of all rows: nothing is copied.
                project_sparse(values, indices, indptr[rows.start : rows.stop + 1], self.frequencies, part)
            part += self.offsets
            np.cos(part, out=part)
            part *= scale


@dataclass(frozen=True)
class RandomMap:
    """What a map is drawn from: whoever has it draws the same map, so that none is sent."""

    kernel: str
    gamma: float
    n_components: int
    orthogonal: bool
    seed: int

    def draw(self, n_features: int, random: np.random.RandomState, dtype: Any) -> CosineMap:
        """Return the map that a stream draws, whatever the seed; the same from the same state of it."""
        frequencies = _orthogonal if self.orthogonal else FREQUENCIES[self.kernel]
        drawn = frequencies(self.gamma, (n_features, self.n_components), random)
        offsets = random.uniform(0.0, 2.0 * np.pi, size=self.n_components)
        return CosineMap(np.ascontiguousarray(drawn, dtype), offsets.astype(dtype))

    def drawn(self, n_features: int, dtype: Any) -> CosineMap:
        """Return the map for rows of so many columns; threads of a process share it."""
        return _drawn(self, n_features, np.dtype(dtype).name)


@lru_cache(maxsize=4)
def _drawn(given: RandomMap, n_features: int, dtype: str) -> CosineMap:
    return given.draw(n_features, np.random.RandomState(given.seed), dtype)


class FeatureBlocks:
    """Blocks of rows of a shard as dense rows of features, in memory that is used again and again."""

    def __init__(self, drawn: CosineMap) -> None:
        self._map = drawn
        size = drawn.frequencies.itemsize
        n_rows = max(1, _BLOCK_BYTES // (size * drawn.n_components))
        self._values = np.empty((n_rows, drawn.n_components), drawn.frequencies.dtype)
        self._targets, self._weights = np.empty((2, n_rows), drawn.frequencies.dtype)
        #: Where a gradient of a block goes, before it is added to that of others.
        self.gradient: FloatVector = np.zeros(0, drawn.frequencies.dtype)

    def over(self, shard: Shard, order: IntMatrix | None, start: int, stop: int) -> Iterator[tuple[Shard, IntMatrix]]:
        """Yield the rows at the places start..stop, a block at a time, and the order in which a block is walked."""
        n_most, filled = self._values.shape[0], 0
        for first, last in [(start, stop)] if order is None else spans(order, start, stop):
            while first < last:
                until = min(last, first + n_most - filled)
                self._fill(shard, first, until, filled)
                filled, first = filled + until - first, until
                if filled == n_most:
                    yield self._block(filled)
                    filled = 0
        if filled:
            yield self._block(filled)

    def none_of(self, shard: Shard) -> tuple[Shard, IntMatrix]:
        """Return a block without rows, after the first row, if there is one, has loaded what makes features."""
        self._fill(shard, 0, min(1, shard.n_rows), 0)
        return self._block(0)

    def _fill(self, shard: Shard, first: int, last: int, at: int) -> None:
        part, end = shard.packed(first, last), at + last - first
        self._map.write(part.values, part.indices, part.indptr, self._values[at:end])
        self._targets[at:end] = part.targets
        self._weights[at:end] = part.weights

    def _block(self, n: int) -> tuple[Shard, IntMatrix]:
        block = Shard(self._values[:n], None, None, self._targets[:n], self._weights[:n], self._map.n_components)
        return block, epoch_order(n, None, 0)


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
