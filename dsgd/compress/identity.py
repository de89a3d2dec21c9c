"""No compression, for comparison and as the limit case of all others.

Update: ``decode(encode(v)) == v``, bit for bit.

Cost: n s bytes for n elements of s bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractMemoryless, NoMemory, as_words, words_for
from dsgd.types import ByteVector, FloatVector


@dataclass(frozen=True)
class Identity(AbstractMemoryless):
    """Send vectors unchanged."""

    unbiased = True
    linear = True
    entrywise = True
    lossless = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the bytes of a vector; see `AbstractCompressor.encode`."""
        words = memory.scratch.words(words_for(8 * vector.nbytes))
        words[-1:] = 0
        words.view(vector.dtype)[: vector.shape[0]] = vector
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the vector of a payload to `out`; see `AbstractCompressor.decode`."""
        vector = as_words(payload, words_for(8 * out.nbytes)).view(out.dtype)[: out.shape[0]]
        out += vector if factor == 1.0 else vector * out.dtype.type(factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n elements in whole words; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(8 * n * itemsize)
