"""Compressors that send some of the entries: the largest, drawn ones, all that are not zero, or some of every bin.

**The payload.** It is a word that counts the entries, their values in the precision of the vector, and their places: k
ascending numbers below n, of which each keeps ``l = floor(log2(n / k))`` low bits and the rest is a bit vector of ``k +
(n - 1 >> l) + 1`` bits (`dsgd.kernels.bits.pack_ascending`). At a density of 0.001 a place takes 12 bits and not 32, at
0.01 it takes 8.6; where all entries are sent, places take nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from dsgd.compress import base
from dsgd.errors import InvalidParameterError, ProtocolError
from dsgd.handover import ALIKE, OWN, SUMMED
from dsgd.kernels import bits as kernels
from dsgd.kernels.bits import DIGIT_BITS, MAX_SAMPLE, largest_magnitudes, places_length
from dsgd.kernels.quantize import select_adaptive, strata
from dsgd.types import AnyArray, ByteVector, FloatVector, IndexVector, WordVector
from dsgd.validation import number

_MOST_PLACES: Final = 2**32


def n_entries(n: int, density: float) -> int:
    """Return how many of n entries a density means: ``ceil(density n)``."""
    # A product that rounding has lifted above a whole number means that number.
    return min(n, int(np.ceil(density * n * (1.0 - 1e-12))))


def staged(density: float, warm_up: Sequence[float], rounds: int, n_seen: int) -> float:
    """Return the density after n vectors: those of `warm_up` for `rounds` each (Lin et al. 2018), then `density`."""
    stage = n_seen // int(rounds)
    return warm_up[stage] if stage < len(warm_up) else density


def place_words(k: int, n: int) -> tuple[int, int, int]:
    """Return the low bits of a place, and the words of the low and of the high parts of k places below n."""
    if k in (0, n):
        return 0, 0, 0
    low_bits = (n // k).bit_length() - 1
    return low_bits, base.words_for(k * low_bits), base.words_for(k + ((n - 1) >> low_bits) + 1)


def sparse_bytes(k: int, n: int, itemsize: int) -> int:
    """Return the bytes of a payload of k entries of n, of `itemsize` bytes each."""
    _, low, high = place_words(k, n)
    return base.WORD_BYTES * (1 + base.words_for(8 * k * itemsize) + low + high)


def as_bits(vector: FloatVector) -> AnyArray:
    """Return the bits of floats as unsigned words of their size; the same memory."""
    return vector.view(np.uint32 if vector.dtype.itemsize == 4 else np.uint64)


def largest(vector: FloatVector, k: int, most: int, seed: int, scratch: base.Scratch) -> IndexVector:
    """Return the places of the k entries of largest magnitude, ascending, in scratch memory."""
    if vector.shape[0] > _MOST_PLACES:
        raise InvalidParameterError(
            f"Entries can be chosen from vectors of up to 2**32. Got a vector of {vector.shape[0]}; use QSGD or Half."
        )
    words = as_bits(vector)
    places: IndexVector = scratch.take("places", places_length(vector.shape[0], most), np.uint32)
    sample = scratch.take("sample", MAX_SAMPLE, words.dtype)
    counts = scratch.take("counts", 1 << DIGIT_BITS, np.int64)
    return places[: largest_magnitudes(words, k, most, seed, places, sample, counts)]


def encode_sparse(places: IndexVector, values: FloatVector, n: int, scratch: base.Scratch) -> ByteVector:
    """Return the payload of the entries `values` at ascending `places`, shapes (k,), of a vector of length n."""
    k = places.shape[0]
    low_bits, n_low, n_high = place_words(k, n)
    n_values = base.words_for(8 * values.nbytes)
    words = scratch.words(1 + n_values + n_low + n_high)
    words[0] = k
    words[n_values : n_values + 1] = 0
    words[1 : 1 + n_values].view(values.dtype)[:k] = values
    if n_high:
        low, high = words[1 + n_values : 1 + n_values + n_low], words[1 + n_values + n_low :]
        kernels.pack_ascending(places, low_bits, low, high)
    return words.view(np.uint8)


def encode_at(vector: FloatVector, places: IndexVector, scratch: base.Scratch) -> ByteVector:
    """Return the payload of the entries of a vector at ascending `places`."""
    values = scratch.take("values", places.shape[0], vector.dtype)
    kernels.take_at(vector, places, values)
    return encode_sparse(places, values, vector.shape[0], scratch)


def decode_sparse(payload: ByteVector, n: int, dtype: Any) -> tuple[IndexVector, FloatVector]:
    """Return the places and values of a payload, shapes (k,)."""
    words = base.as_words(payload)
    itemsize = np.dtype(dtype).itemsize
    k = check_places(words, n, base.words_for(8 * int(words[0]) * itemsize) if words.shape[0] else 0)
    n_values = base.words_for(8 * k * itemsize)
    values: FloatVector = words[1 : 1 + n_values].view(dtype)[:k]
    return unpack_places(words[1 + n_values :], k, n), values


class AbstractSparse(base.AbstractCompressor[base.MemoryT]):
    """Sends some entries and their places."""

    sparse = True

    @final
    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        places, values = decode_sparse(payload, out.shape[0], out.dtype)
        kernels.add_at(out, places, values, factor)


def check_places(words: WordVector, n: int, n_others: int) -> int:
    """Return how many entries a payload has, which its first word says."""
    k = int(words[0]) if words.shape[0] else -1
    if not 0 <= k <= n or words.shape[0] != 1 + n_others + sum(place_words(k, n)[1:]):
        raise ProtocolError(
            f"Expected a sparse payload of a vector of {n} entries, got {words.nbytes} bytes that claim {k}."
        )
    return k


def unpack_places(words: WordVector, k: int, n: int) -> IndexVector:
    """Return k places below n, ascending, from the words that hold them."""
    if k == n:
        return np.arange(n, dtype=np.uint32)
    places = np.empty(k, np.uint32)
    low_bits, n_low, _ = place_words(k, n)
    if k and not kernels.unpack_ascending(words[:n_low], words[n_low:], low_bits, n, places):
        raise ProtocolError(f"Expected {k} ascending places below {n}, got something else.")
    return places


#: With a sampled threshold, how many more than k entries may pass it.
_SLACK = 1.3


@dataclass(frozen=True)
class TopK(AbstractSparse[base.NoMemory], base.AbstractMemoryless):
    """Send the entries of largest magnitude.

    Update: ``decode(encode(v))`` is v where ``|v_i|`` is among the k largest, ties in favour of the lower place, and
    zero elsewhere, with ``k = ceil(density n)``.

    Cost per payload: about ``k (s + 1.6 / 8 + log2(1 / density) / 8)`` bytes for values of s bytes. Summed over P ranks
    by an all-gather, each rank receives P - 1 of them.

    It is biased, and without error feedback it stalls: wrap it in `ErrorFeedback`. Source: Aji and Heafield 2017;
    Stich, Cordonnier and Jaggi 2018 (with memory); the sampled threshold as in Lin et al. 2018.

    Parameters
    ----------
    density : float, default 0.01
        Share of the entries that is sent.
    exact : bool, default True
        Whether exactly k are sent. Otherwise all that pass a threshold found on a sample, if they are between k and
        1.3 k: one pass over the vector, and payloads of different lengths.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1].
    """

    density: float = number(0.01, low=0.0, high=1.0, open_low=True)
    exact: bool = True
    needs_feedback = True

    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
        """Return the payload of the largest entries; see `AbstractCompressor.encode`."""
        k = n_entries(vector.shape[0], self.density)
        places = largest(vector, k, k if self.exact else int(_SLACK * k), 0, memory.scratch)
        return encode_at(vector, places, memory.scratch)

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of k entries; see `AbstractCompressor.payload_bytes`."""
        return sparse_bytes(n_entries(n, self.density), n, itemsize) if self.exact else None


_GOLDEN = 0x9E3779B97F4A7C15
_ODD = 0xD1342543DE82EF95


@dataclass
class StreamMemory(base.AbstractMemory):
    """The state of a compressor that draws random numbers."""

    # Key of the random numbers of this rank.
    key: WordVector = field(metadata=OWN)
    # Vectors that have drawn from them.
    n_drawn: WordVector = field(metadata=ALIKE)

    def draw(self) -> WordVector:
        """Return the stream of the next vector, shape (2,): the key, and how many vectors have drawn before."""
        stream = np.concatenate([self.key, self.n_drawn])
        self.n_drawn += np.uint64(1)
        return stream


def stream_of(seed: int, rank: int = 0) -> StreamMemory:
    """Return the random numbers of a rank, from which no vector has drawn."""
    key = np.array([(seed * _GOLDEN + rank * _ODD) % 2**64], dtype=np.uint64)
    return StreamMemory(key, np.zeros(1, dtype=np.uint64))


@dataclass(frozen=True)
class RandomK(base.AbstractCompressor[StreamMemory]):
    """Send entries drawn at random.

    Update: with one seed on all ranks, each draws the same k places, one from each of k parts of the vector;
    ``decode(encode(v))`` is v there and zero elsewhere. A sum of payloads is the payload of the sum, so ranks
    all-reduce k numbers and no places travel.

    Cost per payload: k s + 8 bytes for values of s bytes, ``k = ceil(density n)``; the word says which draw it is. It
    keeps only the k / n-th part of a vector on average: wrap it in `ErrorFeedback`, which sends the rest later.

    Source: Stich, Cordonnier and Jaggi 2018 (rand-k with memory); Wangni et al. 2018. Theirs draws without parts; here
    each place is as likely to be drawn, up to rounding of n / k.

    Parameters
    ----------
    density : float, default 0.01
        Share of the entries that is sent.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1].
    """

    density: float = number(0.01, low=0.0, high=1.0, open_low=True)
    sparse = True
    needs_feedback = True

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> StreamMemory:
        """Return the start of the one stream of all ranks; see `AbstractCompressor.init`."""
        return stream_of(seed)

    def encode(self, vector: FloatVector, memory: StreamMemory) -> ByteVector:
        """Return the payload of the entries drawn; see `AbstractCompressor.encode`."""
        k = n_entries(vector.shape[0], self.density)
        words = memory.scratch.words(1 + base.words_for(8 * k * vector.itemsize))
        words[-1:] = 0
        key, number = memory.draw().tolist()
        words[0] = (key + number * _ODD) % 2**64
        kernels.take_at(vector, _places(words, k, vector.shape[0]), words[1:].view(vector.dtype)[:k])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        k = n_entries(out.shape[0], self.density)
        words = base.as_words(payload, 1 + base.words_for(8 * k * out.itemsize))
        kernels.add_at(out, _places(words, k, out.shape[0]), words[1:].view(out.dtype)[:k], factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k values and a word; see `AbstractCompressor.payload_bytes`."""
        return base.WORD_BYTES * (1 + base.words_for(8 * n_entries(n, self.density) * itemsize))


def _places(words: WordVector, k: int, n: int) -> IndexVector:
    places = np.empty(k, np.uint32)
    strata(words[:1], n, places)
    return places


@dataclass(frozen=True)
class NonZero(AbstractSparse[base.NoMemory], base.AbstractMemoryless):
    """Send the entries that are not zero; nothing is lost.

    Problem: on wide sparse data a rank touches few of its weights between two synchronisations, and a round of a
    gradient has no more entries than its rows have; all others are zeros, and need not be sent. Update:
    ``decode(encode(v)) == v``.

    Cost per payload: that of `TopK` for as many entries as are not zero; `dsgd.collectives` sums whole vectors if that
    takes fewer bytes.

    Source: the sparse all-reduce of Renggli et al. 2019 (SparCML), which also switches to dense vectors where they are
    smaller; the places here are coded.
    """

    unbiased = True
    lossless = True

    def encode(self, vector: FloatVector, memory: base.NoMemory) -> ByteVector:
        """Return the payload of all entries that are not zero; see `AbstractCompressor.encode`."""
        places = memory.scratch.take("places", vector.shape[0], np.uint32)
        values = memory.scratch.take("values", vector.shape[0], vector.dtype)
        k = kernels.take_nonzero(vector, places, values)
        return encode_sparse(places[:k], values[:k], vector.shape[0], memory.scratch)

    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""


@dataclass
class ResidualMemory(base.AbstractMemory):
    """The state of a compressor with a memory of its own."""

    # What has not been sent, in the unit of the vectors.
    residual: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class AdaComp(base.AbstractCompressor[ResidualMemory]):
    """Send from each bin the entries that are about to be its largest.

    Update, with r the memory and bins of L entries::

        r <- r + v;  H = r + v
        in each bin send every j with |H_j| >= max |r| of the bin, as sign(H_j) times the mean of the maxima of all bins
        r <- r - what was sent

    So an entry is sent when one more vector like the last would make it the largest of its bin. Bins without anything
    but zeros send nothing.

    Cost per payload: that of the places, as in `TopK`, one bit each for the sign, and one number; how many there are
    depends on the vector. Source: Chen, Choi, Brand, Agrawal, Zhang and Gopalakrishnan 2018.

    Parameters
    ----------
    bucket : int, default 500
        Entries of a bin.

    Raises
    ------
    InvalidParameterError
        `bucket` is not a positive integer.
    """

    bucket: int = number(500, low=1)
    sparse = True
    remembers = True

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> ResidualMemory:
        """Return a memory of zeros; see `AbstractCompressor.init`."""
        return ResidualMemory(np.zeros(n, dtype))

    def encode(self, vector: FloatVector, memory: ResidualMemory) -> ByteVector:
        """Return places, signs and scale, and keep the rest; see `AbstractCompressor.encode`."""
        n, scratch = vector.shape[0], memory.scratch
        places = scratch.take("places", n, np.uint32)
        signs = scratch.take("signs", n, vector.dtype)
        memory.residual += vector
        k, scale = select_adaptive(memory.residual, vector, self.bucket, places, signs)
        places, signs = places[:k], signs[:k]
        low_bits, n_low, n_high = place_words(k, n)
        n_signs = base.words_for(k)
        words = scratch.words(2 + n_signs + n_low + n_high)
        words[0] = k
        words[1:2].view(np.float64)[0] = scale
        kernels.pack_signs(as_bits(signs), words[2 : 2 + n_signs])
        rest = words[2 + n_signs :]
        if n_high:
            kernels.pack_ascending(places, low_bits, rest[:n_low], rest[n_low:])
        kernels.add_at(memory.residual, places, signs, -scale)
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        n = out.shape[0]
        words = base.as_words(payload)
        k = check_places(words, n, 1 + base.words_for(int(words[0])) if words.shape[0] else 0)
        n_signs = base.words_for(k)
        signs = np.zeros(k, out.dtype)
        kernels.add_signs(words[2 : 2 + n_signs], signs, 1.0, -1.0)
        scale = factor * float(words[1:2].view(np.float64)[0])
        kernels.add_at(out, unpack_places(words[2 + n_signs :], k, n), signs, scale)

    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""
