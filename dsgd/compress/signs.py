"""Compressors that send a bit for an entry or less: signs, one bit with means, entries beyond thresholds."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from dsgd.compress.base import (
    WORD_BYTES,
    AbstractCompressor,
    AbstractMemory,
    AbstractMemoryless,
    NoMemory,
    Scratch,
    as_words,
    words_for,
)
from dsgd.compress.sparse import as_bits, check_places, largest, n_entries, place_words, unpack_places
from dsgd.handover import SUMMED
from dsgd.kernels import bits as bits_kernels
from dsgd.kernels import quantize as kernels
from dsgd.kernels.bits import add_signs, pack_signs
from dsgd.kernels.quantize import select_beyond
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import number


@dataclass(frozen=True)
class Sign(AbstractMemoryless):
    """Replace entries by their mean magnitude with their sign.

    Update: ``decode(encode(v)) = mean(|v|) sign(v)``, a contraction, so that with error feedback SGD converges
    (EF-SGD). The sign of zero is plus. Cost per payload of n entries: one bit an entry, and one number.

    Source: Karimireddy, Rebjock, Stich and Jaggi 2019 (EF-SGD).
    """

    needs_feedback = True

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the mean magnitude and the signs; see `AbstractCompressor.encode`."""
        words = memory.scratch.words(1 + words_for(vector.shape[0]))
        magnitudes = memory.scratch.take("magnitudes", vector.shape[0], vector.dtype)
        np.abs(vector, out=magnitudes)
        mean = float(magnitudes.mean(dtype=np.float64)) if vector.shape[0] else 0.0
        words[:1].view(np.float64)[0] = mean
        pack_signs(as_bits(vector), words[1:])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the signed mean to `out`; see `AbstractCompressor.decode`."""
        words = as_words(payload, 1 + words_for(out.shape[0]))
        size = factor * float(words[:1].view(np.float64)[0])
        add_signs(words[1:], out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of a number and n bits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * (1 + words_for(n))


@dataclass
class VoteMemory(AbstractMemory):
    """The state of `MajorityVote`."""

    # Running mean of the vectors; empty without momentum.
    momentum: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class MajorityVote(AbstractCompressor[VoteMemory]):
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
        words = memory.scratch.words(words_for(vector.shape[0]))
        pack_signs(as_bits(vector), words)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the magnitude with the signs to `out`; see `AbstractCompressor.decode`."""
        size = factor * self.magnitude
        add_signs(as_words(payload, words_for(out.shape[0])), out, size, -size)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of n bits; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * words_for(n)


@dataclass(frozen=True)
class OneBit(AbstractMemoryless):
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


class _AbstractTwoValued(AbstractMemoryless):
    """Sends places, a sign for each, and the number that each sign stands for."""

    sparse = True
    needs_feedback = True

    @abstractmethod
    def _thresholds(self, vector: FloatVector, scratch: Scratch) -> tuple[float, float]:
        """Return the largest entry below zero and the smallest above that are still sent."""

    @abstractmethod
    def _values(self, low: float, high: float) -> tuple[float, float]:
        """Return what is sent for entries below and above zero, given their means."""

    @final
    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return values, signs and places; see `AbstractCompressor.encode`."""
        n, scratch = vector.shape[0], memory.scratch
        thresholds = self._thresholds(vector, scratch)
        places = scratch.take("places", n, np.uint32)
        signs = scratch.take("signs", n, vector.dtype)
        k, low, high = select_beyond(vector, *thresholds, places, signs)
        places, signs = places[:k], signs[:k]
        n_values, n_signs = words_for(16 * vector.itemsize), words_for(k)
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
        n, n_values = out.shape[0], words_for(16 * out.itemsize)
        words = as_words(payload)
        k = check_places(words, n, n_values + words_for(int(words[0])) if words.shape[0] else 0)
        n_signs = words_for(k)
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

    def _thresholds(self, vector: FloatVector, scratch: Scratch) -> tuple[float, float]:
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

    def _thresholds(self, vector: FloatVector, scratch: Scratch) -> tuple[float, float]:
        # Not one of all magnitudes: if most entries of a side were larger, the other one would not be heard.
        side = scratch.take("side", vector.shape[0], vector.dtype)
        np.fmax(vector, 0, out=side)
        high = self._last_of(side, scratch)
        np.fmax(np.negative(vector, out=side), 0, out=side)
        return -self._last_of(side, scratch), high

    def _last_of(self, side: FloatVector, scratch: Scratch) -> float:
        """Return the smallest of the entries to be sent of one side, where all others are zero; infinity if none."""
        k = n_entries(int(np.count_nonzero(side)), self.density)
        return float(side[largest(side, k, k, 0, scratch)].min()) if k else math.inf

    def _values(self, low: float, high: float) -> tuple[float, float]:
        return low, high
