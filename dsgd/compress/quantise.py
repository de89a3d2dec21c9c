"""Compressors that send every entry in fewer bits: half precision, stochastic levels, three values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from dsgd.compress.base import (
    WORD_BYTES,
    AbstractCompressor,
    AbstractMemoryless,
    NoMemory,
    Scratch,
    as_words,
    words_for,
)
from dsgd.compress.sparse import StreamMemory, stream_of
from dsgd.kernels import quantize as kernels
from dsgd.kernels.bits import pack_codes, unpack_codes
from dsgd.types import AnyArray, ByteVector, FloatVector
from dsgd.validation import number


@dataclass(frozen=True)
class Half(AbstractMemoryless):
    """Round floats to 16 bits.

    Update: entries are rounded to nearest, to IEEE 754 binary16 (11 bits of precision, magnitudes from 6e-8 to 65504;
    beyond that they become infinite) or to bfloat16 (8 bits of precision, the range of float32). float64 is rounded to
    float32 first.

    Cost: 2 n bytes. A sum over ranks goes in parts, one for each rank, which adds in the precision of the vectors and
    rounds once more: no sum of halves is ever rounded on the way (`dsgd.collectives.compressed_mean`).

    What is rounded away of a gradient is lost, as usual. In `ErrorFeedback`, which differences of models always have,
    it comes later, and so does what the second rounding leaves out, which the rank of that part keeps.

    Source: IEEE 754-2019; Intel 2018 (bfloat16). fp16 for what ranks exchange: Goyal et al. 2017.

    Parameters
    ----------
    format : {"float16", "bfloat16"}, default "float16"
        More precision, or more range.

    Raises
    ------
    InvalidParameterError
        There is no such format.
    """

    format: Literal["float16", "bfloat16"] = "float16"
    entrywise = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the halves; see `AbstractCompressor.encode`."""
        n = vector.shape[0]
        words = memory.scratch.words(words_for(16 * n))
        words[-1:] = 0
        self.round(vector, words.view(np.uint16)[:n], memory.scratch)
        return words.view(np.uint8)

    def round(self, vector: FloatVector, halves: AnyArray, scratch: Scratch) -> None:
        """Write the bits of rounded entries into `halves`, array of uint16, shape (n,)."""
        single = vector
        if vector.itemsize == 8:
            single = scratch.take("single", vector.shape[0], np.float32)
            with np.errstate(over="ignore"):
                single[:] = vector
        if self.format == "float16":
            kernels.to_half(single, single.view(np.uint32), halves)
        else:
            kernels.to_bfloat(single.view(np.uint32), halves)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the halves to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, words_for(16 * out.shape[0]))
        kernels.add_halves(words.view(np.uint16)[: out.shape[0]], _table(self.format), out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n halves in whole words; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(16 * n)


@cache
def _table(name: str) -> FloatVector:
    """Return the floats that all 65536 halves of a format stand for."""
    halves = np.arange(65536, dtype=np.uint16)
    if name == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class QSGD(AbstractCompressor[StreamMemory]):
    """Round entries at random to levels of the norm of their bucket.

    Update, in buckets of d entries with s levels: ``q_i = floor(s |v_i| / ||v||)``, plus one with the probability of
    what the floor has cut off; ``decode`` gives ``||v|| sign(v_i) q_i / s``, whose mean is v and whose variance is at
    most ``min(d / s^2, sqrt(d) / s) ||v||^2``.

    Cost per payload of n entries: ``ceil(log2(2 s + 1))`` bits an entry and one number a bucket. Summed over P ranks by
    an all-gather, each rank receives P - 1 payloads.

    Source: Alistarh, Grubic, Li, Tomioka and Vojnovic 2017; fixed-length codes in the place of theirs of Elias, which
    pay at one level only.

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

    levels: int = number(7, low=1, high=127)
    bucket: int = number(512, low=1)
    unbiased = True

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


#: Entries in a word of a payload.
TERNARY_PER_WORD = 40


@dataclass(frozen=True)
class TernGrad(AbstractCompressor[StreamMemory]):
    """Round entries at random to minus the scale, zero or the scale.

    Update: ``t_i = sign(v_i)`` with probability ``|v_i| / scale`` and zero otherwise, where scale is the largest
    magnitude; ``decode`` gives ``scale t_i``, whose mean is v and whose variance over the vector is ``scale ||v||_1 -
    ||v||_2^2``.

    In a sum all ranks use the largest scale among them, so that the sums are whole numbers between -P and P: each rank
    sums a part of the entries and passes the sums on (`dsgd.collectives.compressed_mean`).

    Cost: 1.6 bits an entry towards the rank that sums it, ``ceil(log2(2 P + 1))`` bits back, and an all-reduce of one
    number for the scale. Source: Wen et al. 2017, with clipping at 2.5 standard deviations as theirs (their section 4),
    after which the mean is the clipped vector.

    Parameters
    ----------
    clip : float or None, default None
        Magnitudes beyond so many standard deviations of the vector count as that. The published value is 2.5; None
        clips nothing; otherwise the mean over the random numbers is the clipped vector.

    Raises
    ------
    InvalidParameterError
        `clip` is not positive.
    """

    clip: float | None = number(None, low=0.0, open_low=True)
    unbiased = True

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> StreamMemory:
        """Return the start of this rank's random numbers; see `AbstractCompressor.init`."""
        return stream_of(seed, rank)

    def bounds(self, vector: FloatVector) -> tuple[float, float]:
        """Return the scale of a vector and where it is clipped; the scale is infinite where it is not finite."""
        if not vector.shape[0]:
            return 0.0, math.inf
        # A NaN passes maximum and minimum on.
        top = max(float(vector.max()), -float(vector.min()), 0.0)
        clip = math.inf if self.clip is None else self.clip * float(np.std(vector, dtype=np.float64))
        return min(top, clip) if math.isfinite(top) else math.inf, clip

    def encode(self, vector: FloatVector, memory: StreamMemory) -> ByteVector:
        """Return the scale and the digits; see `AbstractCompressor.encode`."""
        scale, clip = self.bounds(vector)
        words = memory.scratch.words(1 + -(-vector.shape[0] // TERNARY_PER_WORD))
        words[:1].view(np.float64)[0] = scale
        kernels.pack_ternary(self.digits(vector, scale, clip, memory), words[1:])
        return words.view(np.uint8)

    def digits(self, vector: FloatVector, scale: float, clip: float, memory: StreamMemory) -> ByteVector:
        """Return what entries are rounded to, plus one: 0, 1 or 2, shape (n,), in scratch memory."""
        codes: ByteVector = memory.scratch.take("codes", vector.shape[0], np.uint8)
        kernels.quantise_ternary(vector, scale, clip, memory.draw(), codes)
        return codes

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times what was rounded to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, 1 + -(-out.shape[0] // TERNARY_PER_WORD))
        codes = np.empty(out.shape[0], np.uint8)
        kernels.unpack_ternary(words[1:], codes)
        kernels.add_codes(codes, 1, factor * float(words[:1].view(np.float64)[0]), out)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a scale and n digits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * (1 + -(-n // TERNARY_PER_WORD))
