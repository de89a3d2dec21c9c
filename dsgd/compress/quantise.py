"""Compressors that send entries in few bits or one: half precision, levels, three values, signs, thresholds."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, final

import numpy as np

from dsgd.compress import base
from dsgd.compress.sparse import (
    StreamMemory,
    as_bits,
    check_places,
    largest,
    n_entries,
    place_words,
    stream_of,
    unpack_places,
)
from dsgd.handover import SUMMED
from dsgd.kernels import bits as bits_kernels
from dsgd.kernels import quantize as kernels
from dsgd.kernels.bits import add_signs, pack_codes, pack_signs, unpack_codes
from dsgd.kernels.quantize import select_beyond
from dsgd.types import AnyArray, ByteVector, FloatVector
from dsgd.validation import number


@dataclass(frozen=True)
class Half(base.AbstractMemoryless):
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

    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
        """Return the halves; see `AbstractCompressor.encode`."""
        n = vector.shape[0]
        words = memory.scratch.words(base.words_for(16 * n))
        words[-1:] = 0
        self.round(vector, words.view(np.uint16)[:n], memory.scratch)
        return words.view(np.uint8)

    def round(self, vector: FloatVector, halves: AnyArray, scratch: base.Scratch) -> None:
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
        words = base.as_words(payload, base.words_for(16 * out.shape[0]))
        kernels.add_halves(words.view(np.uint16)[: out.shape[0]], _table(self.format), out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n halves in whole words; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * base.words_for(16 * n)


@cache
def _table(name: str) -> FloatVector:
    """Return the floats that all 65536 halves of a format stand for."""
    halves = np.arange(65536, dtype=np.uint16)
    if name == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class QSGD(base.AbstractCompressor[StreamMemory]):
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
        words = base.as_words(payload, n_norms + n_codes)
        codes = np.empty(n, np.uint8)
        unpack_codes(words[n_norms:], self.code_bits, codes)
        norms = words[:n_norms].view(out.dtype)[:n_buckets]
        kernels.add_levels(codes, self.levels, self.bucket, norms, out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of norms and levels; see `AbstractCompressor.payload_bytes`."""
        _, _, n_norms, n_codes = self._layout(n, itemsize)
        return base.WORD_BYTES * (n_norms + n_codes)

    @property
    def code_bits(self) -> int:
        """Bits of an entry: ``ceil(log2(2 levels + 1))``."""
        return (2 * int(self.levels)).bit_length()

    def _layout(self, n: int, itemsize: int) -> tuple[int, int, int, int]:
        n_buckets = -(-n // int(self.bucket))
        return n, n_buckets, base.words_for(8 * n_buckets * itemsize), base.words_for(n * self.code_bits)


#: Entries in a word of a payload.
TERNARY_PER_WORD = 40


@dataclass(frozen=True)
class TernGrad(base.AbstractCompressor[StreamMemory]):
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
        words = base.as_words(payload, 1 + -(-out.shape[0] // TERNARY_PER_WORD))
        codes = np.empty(out.shape[0], np.uint8)
        kernels.unpack_ternary(words[1:], codes)
        kernels.add_codes(codes, 1, factor * float(words[:1].view(np.float64)[0]), out)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a scale and n digits; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * (1 + -(-n // TERNARY_PER_WORD))


@dataclass(frozen=True)
class Sign(base.AbstractMemoryless):
    """Replace entries by their mean magnitude with their sign.

    Update: ``decode(encode(v)) = mean(|v|) sign(v)``, a contraction, so that with error feedback SGD converges
    (EF-SGD). The sign of zero is plus. Cost per payload of n entries: one bit an entry, and one number.

    Source: Karimireddy, Rebjock, Stich and Jaggi 2019 (EF-SGD).
    """

    needs_feedback = True

    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
        """Return the mean magnitude and the signs; see `AbstractCompressor.encode`."""
        words = memory.scratch.words(1 + base.words_for(vector.shape[0]))
        magnitudes = memory.scratch.take("magnitudes", vector.shape[0], vector.dtype)
        np.abs(vector, out=magnitudes)
        mean = float(magnitudes.mean(dtype=np.float64)) if vector.shape[0] else 0.0
        words[:1].view(np.float64)[0] = mean
        pack_signs(as_bits(vector), words[1:])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the signed mean to `out`; see `AbstractCompressor.decode`."""
        words = base.as_words(payload, 1 + base.words_for(out.shape[0]))
        size = factor * float(words[:1].view(np.float64)[0])
        add_signs(words[1:], out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a number and n bits; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * (1 + base.words_for(n))


@dataclass
class VoteMemory(base.AbstractMemory):
    """The state of `MajorityVote`."""

    # Running mean of the vectors; empty without momentum.
    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class MajorityVote(base.AbstractCompressor[VoteMemory]):
    """Let ranks vote on the sign of each entry.

    Update: ``u <- m u + (1 - m) v`` (m is 0 for plain signSGD), each rank sends ``sign(u)``, and what comes out is
    ``magnitude`` times the sign that most ranks have sent. The sign of zero, and a tie, is plus.

    Cost: votes are counted in parts, one for each rank: a bit up and a bit down for each entry
    (`dsgd.collectives.compressed_mean`).

    A vote knows no lengths: its step is as long near the optimum as far from it, so the rate must fall.
    There are convex functions on which it does not converge without feedback (Karimireddy et al. 2019).

    Source: Bernstein, Wang, Azizzadenesheli and Anandkumar 2018 (signSGD, majority vote, Signum).

    Parameters
    ----------
    momentum : float, default 0.0
        Share of the running mean that is kept when a vector comes; 0.9 is Signum.
    magnitude : float, default 1.0
        The magnitude of every entry that comes out.

    Raises
    ------
    InvalidParameterError
        `momentum` is not in [0, 1), or `magnitude` is not positive.
    """

    momentum: float = number(0.0, low=0.0, high=1.0, open_high=True)
    magnitude: float = number(1.0, low=0.0, open_low=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> VoteMemory:
        """Return a momentum of zeros; see `AbstractCompressor.init`."""
        return VoteMemory(np.zeros(n if self.momentum else 0, dtype))

    def encode(self, vector: FloatVector, memory: VoteMemory) -> ByteVector:
        """Return the signs; see `AbstractCompressor.encode`."""
        if self.momentum:
            running = memory.momentum
            running *= running.dtype.type(self.momentum)
            running += (vector.dtype.type(1.0 - self.momentum)) * vector
            vector = running
        words = memory.scratch.words(base.words_for(vector.shape[0]))
        pack_signs(as_bits(vector), words)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the magnitude with the signs to `out`; see `AbstractCompressor.decode`."""
        size = factor * self.magnitude
        add_signs(base.as_words(payload, base.words_for(out.shape[0])), out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n bits; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * base.words_for(n)


@dataclass(frozen=True)
class OneBit(base.AbstractMemoryless):
    """Replace entries by one of two means of their bucket.

    Update, bucket by bucket: entries below zero become their mean, the others theirs; of all pairs of numbers these two
    leave the least squared error given the bits.

    Cost per payload of n entries: one bit an entry and two numbers a bucket. It is biased: wrap it in `ErrorFeedback`.

    Source: Seide, Fu, Droppo, Li and Yu 2014; a bucket is their column of a matrix.

    Parameters
    ----------
    bucket : int, default 512
        Entries that share two means.

    Raises
    ------
    InvalidParameterError
        `bucket` is not a positive integer.
    """

    bucket: int = number(512, low=1)
    needs_feedback = True

    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
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
        words = base.as_words(payload, n_means + n_signs)
        means = words[:n_means].view(out.dtype)[: 2 * n_buckets].reshape(n_buckets, 2)
        kernels.add_two_means(words[n_means:], self.bucket, means, out, factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of means and bits; see `AbstractCompressor.payload_bytes`."""
        _, n_means, n_signs = self._layout(n, itemsize)
        return base.WORD_BYTES * (n_means + n_signs)

    def _layout(self, n: int, itemsize: int) -> tuple[int, int, int]:
        n_buckets = -(-n // int(self.bucket))
        return n_buckets, base.words_for(16 * n_buckets * itemsize), base.words_for(n)


class _AbstractTwoValued(base.AbstractMemoryless):
    """Sends places, a sign for each, and the number that each sign stands for."""

    sparse = True
    needs_feedback = True

    @abstractmethod
    def _thresholds(self, vector: FloatVector, scratch: base.Scratch) -> tuple[float, float]:
        """Return the largest entry below zero and the smallest above that are still sent."""

    @abstractmethod
    def _values(self, low: float, high: float) -> tuple[float, float]:
        """Return what is sent for entries below and above zero, given their means."""

    @final
    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
        """Return values, signs and places; see `AbstractCompressor.encode`."""
        n, scratch = vector.shape[0], memory.scratch
        thresholds = self._thresholds(vector, scratch)
        places = scratch.take("places", n, np.uint32)
        signs = scratch.take("signs", n, vector.dtype)
        k, low, high = select_beyond(vector, *thresholds, places, signs)
        places, signs = places[:k], signs[:k]
        n_values, n_signs = base.words_for(16 * vector.itemsize), base.words_for(k)
        low_bits, n_low, n_high = place_words(k, n)
        words = scratch.words(1 + n_values + n_signs + n_low + n_high)
        words[0] = k
        words[1 : 1 + n_values].view(vector.dtype)[:2] = self._values(low, high)
        rest = words[1 + n_values :]
        bits_kernels.pack_signs(as_bits(signs), rest[:n_signs])
        if n_high:
            bits_kernels.pack_ascending(places, low_bits, rest[n_signs : n_signs + n_low], rest[n_signs + n_low :])
        return words.view(np.uint8)

    @final
    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        n, n_values = out.shape[0], base.words_for(16 * out.itemsize)
        words = base.as_words(payload)
        k = check_places(words, n, n_values + base.words_for(int(words[0])) if words.shape[0] else 0)
        n_signs = base.words_for(k)
        low, high = words[1 : 1 + n_values].view(out.dtype)[:2]
        rest = words[1 + n_values :]
        values = np.zeros(k, out.dtype)
        bits_kernels.add_signs(rest[:n_signs], values, high, low)
        bits_kernels.add_at(out, unpack_places(rest[n_signs:], k, n), values, factor)

    @final
    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""


@dataclass(frozen=True)
class Threshold(_AbstractTwoValued):
    """Send one quantum of each entry that has reached it.

    Problem: one bit for every entry is still a bit for every entry, and most entries of a gradient hardly matter.
    Entries and their values, as `TopK` sends them, spend most of their bits on values, which matter less than that they
    come.

    Update: with the quantum t the entries ``v_i >= t`` become t, the entries ``v_i <= -t`` become -t, and all others
    zero: what is sent of an entry is one quantum, however large it is, and the rest waits for the next vectors. It is
    biased: wrap it in `ErrorFeedback`, as the source does. Then nothing is lost.

    Cost per payload of k of n entries of s bytes: the places, as in `TopK`, one bit each, and two numbers; in words of
    64 bits ``1 + ceil(2 s / 8) + ceil(k / 64)`` and those of the places. k depends on the vector.

    Source: Strom 2015, for gradients; there a place takes 31 bits, and its sign the last one.

    Parameters
    ----------
    threshold : float, default 0.001
        The quantum, in the unit of what is sent: gradients times the share of the rank in their mean, or changes of
        models. An entry that keeps growing by more than this in every vector is sent ever later: choose it as large as
        what a few vectors add to the entries that matter.

    Raises
    ------
    InvalidParameterError
        `threshold` is not a positive number.
    """

    threshold: float = number(0.001, low=0.0, open_low=True)

    def _thresholds(self, vector: FloatVector, scratch: base.Scratch) -> tuple[float, float]:
        return -self.threshold, self.threshold

    def _values(self, low: float, high: float) -> tuple[float, float]:
        # What is not finite must not look as if it were.
        return (
            -self.threshold if math.isfinite(low) else low,
            self.threshold if math.isfinite(high) else high,
        )


@dataclass(frozen=True)
class AdaptiveThreshold(_AbstractTwoValued):
    """Send a share of the positive and of the negative entries, the largest, as the mean of each.

    Update: with t- < 0 < t+ such that a given share of the positive and of the negative entries is beyond them, the
    entries ``v_i >= t+`` become their mean, the entries ``v_i <= t-`` theirs, and all others zero; of all pairs of
    numbers these means leave the least squared error. It is biased: wrap it in `ErrorFeedback`.

    Cost: that of `Threshold`, where k is the share, but for ties and rounding up. Source: Dryden, Moon, Jacobs and Van
    Essen 2016, for gradients; there thresholds may come from a sample.

    Parameters
    ----------
    density : float, default 0.01
        The share of the positive entries that is sent, and of the negative ones, rounded up; all entries that are as
        large as the last of them are sent, too.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1].
    """

    density: float = number(0.01, low=0.0, high=1.0, open_low=True)

    def _thresholds(self, vector: FloatVector, scratch: base.Scratch) -> tuple[float, float]:
        # Not one of all magnitudes: if most entries of a side were larger, the other one would not be heard.
        side = scratch.take("side", vector.shape[0], vector.dtype)
        np.fmax(vector, 0, out=side)
        high = self._last_of(side, scratch)
        np.fmax(np.negative(vector, out=side), 0, out=side)
        return -self._last_of(side, scratch), high

    def _last_of(self, side: FloatVector, scratch: base.Scratch) -> float:
        """Return the smallest of the entries to be sent of one side, where all others are zero; infinity if none."""
        k = n_entries(int(np.count_nonzero(side)), self.density)
        return float(side[largest(side, k, k, 0, scratch)].min()) if k else math.inf

    def _values(self, low: float, high: float) -> tuple[float, float]:
        return low, high
