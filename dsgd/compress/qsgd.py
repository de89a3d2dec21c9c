"""QSGD: random rounding to a few levels of the norm.

Update, in buckets of d entries with s levels: ``q_i = floor(s |v_i| / ||v||)``, plus one with the probability of what
the floor has cut off; ``decode`` gives ``||v|| sign(v_i) q_i / s``, whose mean is v and whose variance is at most
``min(d / s^2, sqrt(d) / s) ||v||^2``.

Cost per payload of n entries: ``ceil(log2(2 s + 1))`` bits an entry and one number a bucket. Summed over P ranks by an
all-gather, each rank receives P - 1 payloads.

Source: Alistarh, Grubic, Li, Tomioka and Vojnovic 2017; fixed-length codes in the place of theirs of Elias, which pay
at one level only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, as_words, words_for
from dsgd.compress.randomk import StreamMemory, stream_of
from dsgd.kernels import quantize as kernels
from dsgd.kernels.bits import pack_codes, unpack_codes
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["QSGD"]


@dataclass(frozen=True)
class QSGD(AbstractCompressor[StreamMemory]):
    """Round entries at random to levels of the norm of their bucket.

    Parameters
    ----------
    levels : int, default 7
        Levels above zero, at most 127; 1, 7 and 127 make the most of 2, 4 and 8 bits.
    bucket : int, default 512
        Entries that share a norm.

    Raises
    ------
    InvalidParameterError
        A number is out of its range.
    """

    levels: int = 7
    bucket: int = 512
    unbiased = True

    def __post_init__(self) -> None:
        """Refuse levels that do not fit a byte, and empty buckets."""
        check_numbers(self, "levels", low=1, high=127, integer=True)
        check_numbers(self, "bucket", low=1, integer=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> StreamMemory:
        """Return the start of this rank's random numbers; see `AbstractCompressor.init`."""
        return stream_of(seed, rank)

    def encode(self, vector: FloatVector, memory: StreamMemory) -> ByteVector:
        """Return norms and levels; see `AbstractCompressor.encode`."""
        n, n_buckets, n_norms, n_codes = self._layout(vector.shape[0], vector.itemsize)
        words = memory.scratch.words(n_norms + n_codes)
        words[n_norms - 1 : n_norms] = 0
        norms = words[:n_norms].view(vector.dtype)[:n_buckets]
        codes = memory.scratch.take("codes", n, np.uint8)
        kernels.quantise_levels(vector, self.levels, self.bucket, memory.draw(), norms, codes)
        pack_codes(codes, self.code_bits, words[n_norms:])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times what was rounded to `out`; see `AbstractCompressor.decode`."""
        n, n_buckets, n_norms, n_codes = self._layout(out.shape[0], out.itemsize)
        words = as_words(payload, n_norms + n_codes)
        codes = np.empty(n, np.uint8)
        unpack_codes(words[n_norms:], self.code_bits, codes)
        norms = words[:n_norms].view(out.dtype)[:n_buckets]
        kernels.add_levels(codes, self.levels, self.bucket, norms, out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of norms and levels; see `AbstractCompressor.payload_bytes`."""
        _, _, n_norms, n_codes = self._layout(n, itemsize)
        return WORD_BYTES * (n_norms + n_codes)

    @property
    def code_bits(self) -> int:
        """Bits of an entry: ``ceil(log2(2 levels + 1))``."""
        return (2 * int(self.levels)).bit_length()

    def _layout(self, n: int, itemsize: int) -> tuple[int, int, int, int]:
        n_buckets = -(-n // int(self.bucket))
        return n, n_buckets, words_for(8 * n_buckets * itemsize), words_for(n * self.code_bits)
