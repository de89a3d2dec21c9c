"""PowerSGD: a low-rank matrix in place of the vector.

Update, for the vector seen as a matrix M of a rows and b columns, and V, r rows of b columns, from the last time (at
first drawn, with one seed on all ranks)::

    U = orthonormal rows of (V M');  W = U M;  V <- W;  decode gives U' W

one step of subspace iteration: over many vectors, U' W tends to the best approximation of rank r. It is linear in M for
a given U, so the mean over ranks takes two all-reduces, of V M' and of W, and no rank decodes payloads of others.

Cost: two all-reduces of r a and r b numbers.

It is biased: wrap it in `ErrorFeedback`.

Source: Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, AbstractMemory, as_words, words_for
from dsgd.handover import ALIKE
from dsgd.kernels import quantize as kernels
from dsgd.types import ByteVector, FloatMatrix, FloatVector
from dsgd.validation import check_numbers


@dataclass
class PowerMemory(AbstractMemory):
    """The state of `PowerSGD`.

    Parameters
    ----------
    right : array, shape (rank * n_columns,)
        The row factors of the last vector, one after the other.
    """

    right: FloatVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class PowerSGD(AbstractCompressor[PowerMemory]):
    """Send a matrix of low rank.

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

    rank: int = 2
    n_rows: int | None = None
    needs_feedback = True

    def __post_init__(self) -> None:
        """Refuse a shape that is not a matrix's."""
        check_numbers(self, "rank", low=1, integer=True)
        check_numbers(self, "n_rows", low=1, integer=True, optional=True)

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
