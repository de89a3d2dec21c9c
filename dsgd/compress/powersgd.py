"""Compressors that transform vectors: PowerSGD to a matrix of low rank, DeMo to waves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, AbstractMemory, as_words, words_for
from dsgd.compress.sparse import decode_sparse, encode_at, sparse_bytes
from dsgd.handover import ALIKE, SUMMED
from dsgd.kernels import quantize as kernels
from dsgd.kernels import waves
from dsgd.types import ByteVector, FloatMatrix, FloatVector, IndexVector
from dsgd.validation import number


@dataclass
class PowerMemory(AbstractMemory):
    """The state of `PowerSGD`."""

    # Shape (rank * n_columns,): The row factors of the last vector, one after the other.
    right: FloatVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class PowerSGD(AbstractCompressor[PowerMemory]):
    """Send a matrix of low rank.

    Update, for the vector seen as a matrix M of a rows and b columns, and V, r rows of b columns, from the last time
    (at first drawn, with one seed on all ranks)::

        U = orthonormal rows of (V M');  W = U M;  V <- W;  decode gives U' W

    This is one step of subspace iteration: over many vectors, U' W tends to the best approximation of rank r. It is
    linear in M for a given U, so the mean over ranks takes two all-reduces, of V M' and of W, and no rank decodes
    payloads of others.

    Cost: two all-reduces of r a and r b numbers. It is biased: wrap it in `ErrorFeedback`. Source: Vogels, Karimireddy
    and Jaggi 2019, algorithms 1 and 2.

    Parameters
    ----------
    rank : int, default 2
        Rank of the matrix that is sent.
    n_rows : int or None, default None
        Rows of the matrix that a vector is seen as; about the root of its length by default, which costs least.

    Raises
    ------
    InvalidParameterError
        A number is not a positive integer.
    """

    rank: int = number(2, low=1)
    n_rows: int | None = number(None, low=1)
    needs_feedback = True

    def shape(self, n: int) -> tuple[int, int]:
        """Return rows and columns of the matrix for a vector of length n, which is padded with zeros."""
        rows = max(1, math.isqrt(n)) if self.n_rows is None else min(int(self.n_rows), max(n, 1))
        return rows, -(-n // rows)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> PowerMemory:
        """Return row factors drawn from normal numbers, the same on all ranks; see `AbstractCompressor.init`."""
        drawn = np.random.default_rng(seed).standard_normal(int(self.rank) * self.shape(n)[1])
        return PowerMemory(drawn.astype(dtype))

    def matrix(self, vector: FloatVector, memory: PowerMemory) -> FloatMatrix:
        """Return a vector as a matrix in scratch memory."""
        rows, columns = self.shape(vector.shape[0])
        whole: FloatVector = memory.scratch.take("matrix", rows * columns, vector.dtype)
        whole[: vector.shape[0]] = vector
        whole[vector.shape[0] :] = 0
        return whole.reshape(rows, columns)

    def project(self, matrix: FloatMatrix, memory: PowerMemory) -> FloatMatrix:
        """Return the column factors before they are made orthonormal: V M', shape (rank, n_rows)."""
        return times_rows(memory.right.reshape(int(self.rank), matrix.shape[1]), matrix.T)

    def keep(self, right: FloatMatrix, memory: PowerMemory) -> None:
        """Keep row factors for the next vector, except zeros, which would stay zero: there the old ones are kept."""
        alive = right.any(axis=1)
        memory.right.reshape(right.shape)[alive] = right[alive]

    def encode(self, vector: FloatVector, memory: PowerMemory) -> ByteVector:
        """Return both factors; see `AbstractCompressor.encode`."""
        matrix = self.matrix(vector, memory)
        left = self.project(matrix, memory)
        kernels.orthonormalise(left)
        right = times_rows(left, matrix)
        self.keep(right, memory)
        words = memory.scratch.words(words_for(8 * (left.nbytes + right.nbytes)))
        words[-1:] = 0
        numbers = words.view(vector.dtype)
        numbers[: left.size] = left.reshape(-1)
        numbers[left.size : left.size + right.size] = right.reshape(-1)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the product of the factors to `out`; see `AbstractCompressor.decode`."""
        r, (rows, columns) = int(self.rank), self.shape(out.shape[0])
        numbers = as_words(payload, self.payload_bytes(out.shape[0], out.itemsize) // WORD_BYTES).view(out.dtype)
        left = numbers[: r * rows].reshape(r, rows)
        kernels.add_outer(left, numbers[r * rows : r * (rows + columns)].reshape(r, columns), out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of both factors; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(8 * int(self.rank) * sum(self.shape(n)) * itemsize)


def times_rows(rows: FloatMatrix, matrix: FloatMatrix) -> FloatMatrix:
    """Return ``rows @ matrix``, one row at a time: BLAS takes far longer for a product of two or three rows at once."""
    product = np.empty((rows.shape[0], matrix.shape[1]), rows.dtype)
    for row, out in zip(rows, product, strict=True):
        np.dot(row, matrix, out=out)
    return product


@dataclass
class DeMoMemory(AbstractMemory):
    """The state of `DeMo`."""

    # What has not been sent, in the unit of the vectors.
    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class DeMo(AbstractCompressor[DeMoMemory]):
    """Accumulate vectors with momentum and send the strongest waves of it.

    Problem: the momentum of large models changes slowly where ranks agree and fast where they do not; to send all of it
    in every step takes the bandwidth of a data centre.

    Update, with momentum m of a rank, decay b, and g its vector::

        m <- b m + g
        q <- in every chunk of m, the part of the k strongest cosines (DCT-II)
        m <- m - q;  send q

    What comes out is ``magnitude sign(q_1 + ... + q_P)``, or with ``magnitude=None`` the sum. So what is sent and what
    stays are the momentum. The cosines are orthonormal: of all vectors of k waves, q is the nearest one to m. With all
    of them sent nothing stays, and the sum is that of plain gradients. With a decay of 1 and no sign this is error
    feedback around the compressor that sends waves.

    Cost per payload: k coefficients of each chunk and their places, `dsgd.compress.sparse.sparse_bytes`, so about ``k /
    chunk`` of the entries; each rank gets those of all others. One vector of memory.

    A sign knows no lengths: the step is as long near the optimum as far from it, so the rate must be small and fall.
    Source: Peng, Quesnelle and Kingma 2024 (DeMo). There a chunk is a square tile of a matrix and here a stretch of the
    vector; `Layerwise` lets the stretches begin with the tensors. A decay of 0.999 and a chunk of 64 are theirs; k is
    from 1 to 32 there.

    Parameters
    ----------
    k : int, default 8
        Waves of each chunk that are sent.
    chunk : int, default 64
        Entries of a chunk; the last one of a vector may be shorter.
    decay : float, default 0.999
        Share of the momentum that is kept when a vector comes, in [0, 1].
    magnitude : float or None, default 1.0
        The magnitude of every entry that comes out of the sum over ranks, which has its sign; None is the sum itself.

    Raises
    ------
    InvalidParameterError
        `k` or `chunk` is not a positive integer, `decay` not in [0, 1], or `magnitude` not positive.
    """

    k: int = number(8, low=1)
    chunk: int = number(64, low=1)
    decay: float = number(0.999, low=0.0, high=1.0)
    magnitude: float | None = number(1.0, low=0.0, open_low=True)
    remembers = True

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> DeMoMemory:
        """Return a momentum of zeros; see `AbstractCompressor.init`."""
        return DeMoMemory(np.zeros(n, dtype))

    def encode(self, vector: FloatVector, memory: DeMoMemory) -> ByteVector:
        """Return the payload of the strongest waves; see `AbstractCompressor.encode`."""
        momentum, scratch, n = memory.momentum, memory.scratch, vector.shape[0]
        momentum *= momentum.dtype.type(self.decay)
        momentum += vector
        bases = self._bases(n, momentum.dtype)
        coefficients = scratch.take("coefficients", n, momentum.dtype)
        waves.into_waves(momentum, *(np.ascontiguousarray(basis.T) for basis in bases), coefficients)
        places: IndexVector = scratch.take("places", self._n_sent(n), np.uint32)
        waves.largest_of_chunks(coefficients, int(self.chunk), int(self.k), places)
        payload = encode_at(coefficients, places, scratch)
        self.decode(payload, momentum, -1.0)
        return payload

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the waves of a payload to `out`; see `AbstractCompressor.decode`."""
        places, values = decode_sparse(payload, out.shape[0], out.dtype)
        waves.add_waves(out, places, values, factor, *self._bases(out.shape[0], out.dtype))

    def finish(self, total: FloatVector) -> None:
        """Replace the sum over ranks by its signs, in place, where that is wanted."""
        if self.magnitude is not None:
            np.sign(total, out=total)
            total *= total.dtype.type(self.magnitude)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k coefficients of each chunk; see `AbstractCompressor.payload_bytes`."""
        return sparse_bytes(self._n_sent(n), n, itemsize)

    def _n_sent(self, n: int) -> int:
        whole, rest = divmod(n, int(self.chunk))
        return whole * min(int(self.k), int(self.chunk)) + min(int(self.k), rest)

    def _bases(self, n: int, dtype: Any) -> tuple[FloatMatrix, FloatMatrix]:
        """Return the waves of a chunk and those of the last one, where it is shorter."""
        return _cosines(int(self.chunk), dtype), _cosines(n % int(self.chunk), dtype)


@lru_cache(maxsize=32)
def _cosines(length: int, dtype: Any) -> FloatMatrix:
    """Return the orthonormal waves of a chunk, shape (length, length): one in each row, from slow to fast."""
    j, t = np.indices((length, length))
    basis = np.sqrt((1.0 + (j > 0)) / max(1, length)) * np.cos(np.pi * j * (2 * t + 1) / (2.0 * max(1, length)))
    return np.ascontiguousarray(basis.astype(dtype))
