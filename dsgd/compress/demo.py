"""Decoupled momentum: each rank has a momentum of its own, of which the strongest waves are sent and leave it.

Problem: the momentum of large models changes slowly where ranks agree and fast where they do not; to send all of it in
every step takes the bandwidth of a data centre.

Update, with momentum m of a rank, decay b, and g its vector::

    m <- b m + g
    q <- in every chunk of m, the part of the k strongest cosines (DCT-II)
    m <- m - q;  send q

and what comes out is ``magnitude sign(q_1 + ... + q_P)``, or with ``magnitude=None`` the sum. So what is sent and what
stays are the momentum. The cosines are orthonormal: of all vectors of k waves, q is the nearest one to m. With all of
them sent nothing stays, and the sum is that of plain gradients. With a decay of 1 and no sign this is error feedback
around the compressor that sends waves.

Cost per payload: k coefficients of each chunk and their places, `dsgd.compress.sparse.sparse_bytes`, so about ``k /
chunk`` of the entries; each rank gets those of all others. One vector of memory.

A sign knows no lengths: the step is as long near the optimum as far from it, so the rate must be small and fall.

Source: Peng, Quesnelle and Kingma 2024 (DeMo). There a chunk is a square tile of a matrix and here a
stretch of the vector; `Layerwise` lets the stretches begin with the tensors. A decay of 0.999 and a chunk of 64 are
theirs; k is from 1 to 32 there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dsgd.compress.base import AbstractCompressor, AbstractMemory
from dsgd.compress.sparse import decode_sparse, encode_at, sparse_bytes
from dsgd.handover import SUMMED
from dsgd.kernels import waves
from dsgd.types import ByteVector, FloatMatrix, FloatVector, IndexVector
from dsgd.validation import check_numbers


@dataclass
class DeMoMemory(AbstractMemory):
    """The state of `DeMo`.

    Parameters
    ----------
    momentum : array, shape (n,)
        What has not been sent, in the unit of the vectors.
    """

    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class DeMo(AbstractCompressor[DeMoMemory]):
    """Accumulate vectors with momentum and send the strongest waves of it.

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

    k: int = 8
    chunk: int = 64
    decay: float = 0.999
    magnitude: float | None = 1.0
    remembers = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_numbers(self, "k", "chunk", low=1, integer=True)
        check_numbers(self, "decay", low=0.0, high=1.0)
        check_numbers(self, "magnitude", low=0.0, open_low=True, optional=True)

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
