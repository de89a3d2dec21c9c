"""The nonzero entries: lossless, and short for sparse data.

Problem: on wide sparse data a rank touches few of its weights between two synchronisations, and a round of a gradient
has no more entries than its rows have; all others are zeros, and need not be sent.

Update: ``decode(encode(v)) == v``.

Cost per payload: `dsgd.compress.sparse.sparse_bytes` for as many entries as are not zero; `dsgd.collectives` sums whole
vectors if that takes fewer bytes.

Source: the sparse all-reduce of Renggli et al. 2019 (SparCML), which also switches to dense vectors where they are
smaller; the places here are coded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.compress.base import AbstractMemoryless, NoMemory
from dsgd.compress.sparse import AbstractSparse, encode_sparse
from dsgd.kernels import bits as kernels
from dsgd.types import ByteVector, FloatVector

__all__ = ["NonZero"]


@dataclass(frozen=True)
class NonZero(AbstractSparse[NoMemory], AbstractMemoryless):
    """Send the entries that are not zero; nothing is lost."""

    unbiased = True
    lossless = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the payload of all entries that are not zero; see `AbstractCompressor.encode`."""
        places = memory.scratch.take("places", vector.shape[0], np.uint32)
        values = memory.scratch.take("values", vector.shape[0], vector.dtype)
        k = kernels.take_nonzero(vector, places, values)
        return encode_sparse(places[:k], values[:k], vector.shape[0], memory.scratch)

    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""
