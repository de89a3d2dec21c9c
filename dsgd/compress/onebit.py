"""One bit per entry, which selects one of two means of its bucket.

Update, bucket by bucket: entries below zero become their mean, the others theirs; of all pairs of numbers these two
leave the least squared error given the bits.

Cost per payload of n entries: one bit an entry and two numbers a bucket.

It is biased: wrap it in `ErrorFeedback`.

Source: Seide, Fu, Droppo, Li and Yu 2014; a bucket is their column of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractMemoryless, NoMemory, as_words, words_for
from dsgd.compress.sparse import as_bits
from dsgd.kernels import quantize as kernels
from dsgd.kernels.bits import pack_signs
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["OneBit"]


@dataclass(frozen=True)
class OneBit(AbstractMemoryless):
    """Replace entries by one of two means of their bucket.

    Parameters
    ----------
    bucket : int, default 512
        Entries that share two means.

    Raises
    ------
    InvalidParameterError
        `bucket` is not a positive integer.
    """

    bucket: int = 512
    needs_feedback = True

    def __post_init__(self) -> None:
        """Refuse empty buckets."""
        check_numbers(self, "bucket", low=1, integer=True)

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return means and bits; see `AbstractCompressor.encode`."""
        n_buckets, n_means, n_signs = self._layout(vector.shape[0], vector.itemsize)
        words = memory.scratch.words(n_means + n_signs)
        means = words[:n_means].view(vector.dtype)[: 2 * n_buckets].reshape(n_buckets, 2)
        kernels.two_means(vector, self.bucket, means)
        pack_signs(as_bits(vector), words[n_means:])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the means to `out`; see `AbstractCompressor.decode`."""
        n_buckets, n_means, n_signs = self._layout(out.shape[0], out.itemsize)
        words = as_words(payload, n_means + n_signs)
        means = words[:n_means].view(out.dtype)[: 2 * n_buckets].reshape(n_buckets, 2)
        kernels.add_two_means(words[n_means:], self.bucket, means, out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of means and bits; see `AbstractCompressor.payload_bytes`."""
        _, n_means, n_signs = self._layout(n, itemsize)
        return WORD_BYTES * (n_means + n_signs)

    def _layout(self, n: int, itemsize: int) -> tuple[int, int, int]:
        n_buckets = -(-n // int(self.bucket))
        return n_buckets, words_for(16 * n_buckets * itemsize), words_for(n)
