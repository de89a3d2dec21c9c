"""A compressor from outside the package: every entry in eight bits, as a share of the largest."""

from dataclasses import dataclass

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractMemoryless, NoMemory, as_words, words_for
from dsgd.types import ByteVector, FloatVector

__all__ = ["EightBits"]


@dataclass(frozen=True)
class EightBits(AbstractMemoryless):
    """Round x / max |x| to a multiple of 1 / 127: a word for the largest, a byte for each."""

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return whole words of 64 bits, in memory that the next vector overwrites."""
        n = vector.shape[0]
        words = memory.scratch.words(1 + words_for(8 * n))
        words[1:][-1:] = 0  # what is left of the last word
        largest = float(np.abs(vector).max(initial=0.0))
        words[:1].view(np.float64)[0] = largest
        scaled = vector * (127.0 / largest if largest > 0.0 else 0.0)
        words[1:].view(np.int8)[:n] = np.rint(scaled)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the vector to `out`; a payload of another length is refused."""
        n = out.shape[0]
        words = as_words(payload, 1 + words_for(8 * n))
        largest = words[:1].view(np.float64)[0]
        out += (factor * largest / 127.0) * words[1:].view(np.int8)[:n]

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a payload, the same for all vectors of this length."""
        return WORD_BYTES * (1 + words_for(8 * n))
