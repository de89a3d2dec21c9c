"""Two compressors that send the entries beyond two thresholds, all above as one number and all below as another.

Problem: one bit for every entry is still a bit for every entry, and most entries of a gradient hardly matter. Entries
and their values, as `TopK` sends them, spend most of their bits on values, which matter less than that they come.

Update: with t- < 0 < t+ the thresholds, the entries ``v_i >= t+`` become m+, the entries ``v_i <= t-`` become m-, and
all others zero. `Threshold` has t+ = m+ = -t- = -m-, a number that is given: what is sent of an entry is one quantum,
however large it is, and the rest waits for the next vectors. `AdaptiveThreshold` chooses t+ and t- such that a given
share of the positive and of the negative entries is beyond them, and m+ and m- are the means of these, which of all
pairs of numbers leave the least squared error.

Cost per payload of k of n entries of s bytes: the places (`dsgd.compress.sparse`), one bit each, and two numbers; in
words of 64 bits ``1 + ceil(2 s / 8) + ceil(k / 64)`` and those of the places. Of `Threshold` k depends on the vector;
of the other it is the share, but for ties and rounding up.

Both are biased: wrap them in `ErrorFeedback`, as the sources do. Then nothing is lost.

Source: Strom 2015 (threshold; there a place takes 31 bits, and its sign the last one); Dryden, Moon, Jacobs and
Van Essen 2016 (adaptive; there thresholds may come from a sample). Both for gradients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from dsgd.compress.base import AbstractMemoryless, NoMemory, Scratch, as_words, words_for
from dsgd.compress.sparse import as_bits, check_density, check_places, largest, n_entries, place_words, unpack_places
from dsgd.kernels import bits as kernels
from dsgd.kernels.quantize import select_beyond
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["AdaptiveThreshold", "Threshold"]


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
        kernels.pack_signs(as_bits(signs), rest[:n_signs])
        if n_high:
            kernels.pack_ascending(places, low_bits, rest[n_signs : n_signs + n_low], rest[n_signs + n_low :])
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
        kernels.add_signs(rest[:n_signs], values, high, low)
        kernels.add_at(out, unpack_places(rest[n_signs:], k, n), values, factor)

    @final
    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""


@dataclass(frozen=True)
class Threshold(_AbstractTwoValued):
    """Send one quantum of each entry that has reached it.

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

    threshold: float = 0.001

    def __post_init__(self) -> None:
        """Refuse to send everything, or nothing."""
        check_numbers(self, "threshold", low=0.0, open_low=True)

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

    density: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        check_density("AdaptiveThreshold(density=...)", self.density)

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
