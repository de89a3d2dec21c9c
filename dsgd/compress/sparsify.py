"""Compressors that send some of the entries: the largest, drawn ones, all that are not zero, or some of every bin.

`TopK`: the k entries of largest magnitude.

Update: ``decode(encode(v))`` is v where ``|v_i|`` is among the k largest, ties in favour of the lower place, and zero
elsewhere, with ``k = ceil(density n)``.

Cost per payload: `dsgd.compress.sparse.sparse_bytes`, about ``k (s + 1.6 / 8 + log2(1 / density) / 8)`` bytes for
values of s bytes. Summed over P ranks by an all-gather, each rank receives P - 1 of them.

It is biased, and without error feedback it stalls: wrap it in `ErrorFeedback`.

Source: Aji and Heafield 2017; Stich, Cordonnier and Jaggi 2018 (with memory); the sampled threshold as in Lin et al.
2018.

`RandomK`: k entries drawn at random, the same on all ranks.

Update: with one seed on all ranks, each draws the same k places, one from each of k parts of the vector;
``decode(encode(v))`` is v there and zero elsewhere. A sum of payloads is the payload of the sum, so ranks all-reduce k
numbers and no places travel.

Cost per payload: k s + 8 bytes for values of s bytes, ``k = ceil(density n)``; the word says which draw it is.

It keeps only the k / n-th part of a vector on average: wrap it in `ErrorFeedback`, which sends the rest later.

Source: Stich, Cordonnier and Jaggi 2018 (rand-k with memory); Wangni et al. 2018. Theirs draws without parts; here each
place is as likely to be drawn, up to rounding of n / k.

`NonZero`: the nonzero entries: lossless, and short for sparse data.

Problem: on wide sparse data a rank touches few of its weights between two synchronisations, and a round of a gradient
has no more entries than its rows have; all others are zeros, and need not be sent.

Update: ``decode(encode(v)) == v``.

Cost per payload: `dsgd.compress.sparse.sparse_bytes` for as many entries as are not zero; `dsgd.collectives` sums whole
vectors if that takes fewer bytes.

Source: the sparse all-reduce of Renggli et al. 2019 (SparCML), which also switches to dense vectors where they are
smaller; the places here are coded.

AdaComp: sends a varying number of entries from each bin of the vector.

Update, with r the memory and bins of L entries::

    r <- r + v;  H = r + v
    in each bin send every j with |H_j| >= max |r| of the bin, as sign(H_j) times the mean of the maxima of all bins
    r <- r - what was sent

so an entry is sent when one more vector like the last would make it the largest of its bin. Bins without anything but
zeros send nothing.

Cost per payload: that of the places (`dsgd.compress.sparse`), one bit each for the sign, and one number; how many there
are depends on the vector.

Source: Chen, Choi, Brand, Agrawal, Zhang and Gopalakrishnan 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import (
    WORD_BYTES,
    AbstractCompressor,
    AbstractMemory,
    AbstractMemoryless,
    NoMemory,
    as_words,
    words_for,
)
from dsgd.compress.sparse import (
    AbstractSparse,
    as_bits,
    check_density,
    check_places,
    encode_at,
    encode_sparse,
    largest,
    n_entries,
    place_words,
    sparse_bytes,
    unpack_places,
)
from dsgd.handover import ALIKE, OWN, SUMMED
from dsgd.kernels import bits as kernels
from dsgd.kernels.quantize import select_adaptive, strata
from dsgd.types import ByteVector, FloatVector, IndexVector, WordVector
from dsgd.validation import check_bool, check_numbers

#: With a sampled threshold, how many more than k entries may pass it.
_SLACK = 1.3


@dataclass(frozen=True)
class TopK(AbstractSparse[NoMemory], AbstractMemoryless):
    """Send the entries of largest magnitude.

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

    density: float = 0.01
    exact: bool = True
    needs_feedback = True

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        check_density("TopK(density=...)", self.density)
        check_bool("TopK(exact=...)", self.exact)

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
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
class StreamMemory(AbstractMemory):
    """The state of a compressor that draws random numbers.

    Parameters
    ----------
    key : array of uint64, shape (1,)
        Key of the random numbers of this rank.
    n_drawn : array of uint64, shape (1,)
        Vectors that have drawn from them.
    """

    key: WordVector = field(metadata=OWN)
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
class RandomK(AbstractCompressor[StreamMemory]):
    """Send entries drawn at random.

    Parameters
    ----------
    density : float, default 0.01
        Share of the entries that is sent.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1].
    """

    density: float = 0.01
    sparse = True
    linear = True
    needs_feedback = True

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        check_density("RandomK(density=...)", self.density)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> StreamMemory:
        """Return the start of the one stream of all ranks; see `AbstractCompressor.init`."""
        return stream_of(seed)

    def encode(self, vector: FloatVector, memory: StreamMemory) -> ByteVector:
        """Return the payload of the entries drawn; see `AbstractCompressor.encode`."""
        k = n_entries(vector.shape[0], self.density)
        words = memory.scratch.words(1 + words_for(8 * k * vector.itemsize))
        words[-1:] = 0
        key, number = memory.draw().tolist()
        words[0] = (key + number * _ODD) % 2**64
        kernels.take_at(vector, _places(words, k, vector.shape[0]), words[1:].view(vector.dtype)[:k])
        return words.view(np.uint8)

    def decode(self, payload: ByteVector, out: FloatVector, factor: float) -> None:
        """Add `factor` times the entries of a payload to `out`; see `AbstractCompressor.decode`."""
        k = n_entries(out.shape[0], self.density)
        words = as_words(payload, 1 + words_for(8 * k * out.itemsize))
        kernels.add_at(out, _places(words, k, out.shape[0]), words[1:].view(out.dtype)[:k], factor)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k values and a word; see `AbstractCompressor.payload_bytes`."""
        return WORD_BYTES * (1 + words_for(8 * n_entries(n, self.density) * itemsize))


def _places(words: WordVector, k: int, n: int) -> IndexVector:
    places = np.empty(k, np.uint32)
    strata(words[:1], n, places)
    return places


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


@dataclass
class ResidualMemory(AbstractMemory):
    """The state of a compressor with a memory of its own.

    Parameters
    ----------
    residual : array, shape (n,)
        What has not been sent, in the unit of the vectors.
    """

    residual: FloatVector = field(metadata=SUMMED)


@dataclass(frozen=True)
class AdaComp(AbstractCompressor[ResidualMemory]):
    """Send from each bin the entries that are about to be its largest.

    Parameters
    ----------
    bucket : int, default 500
        Entries of a bin.

    Raises
    ------
    InvalidParameterError
        `bucket` is not a positive integer.
    """

    bucket: int = 500
    sparse = True
    remembers = True

    def __post_init__(self) -> None:
        """Refuse empty bins."""
        check_numbers(self, "bucket", low=1, integer=True)

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
        n_signs = words_for(k)
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
        words = as_words(payload)
        k = check_places(words, n, 1 + words_for(int(words[0])) if words.shape[0] else 0)
        n_signs = words_for(k)
        signs = np.zeros(k, out.dtype)
        kernels.add_signs(words[2 : 2 + n_signs], signs, 1.0, -1.0)
        scale = factor * float(words[1:2].view(np.float64)[0])
        kernels.add_at(out, unpack_places(words[2 + n_signs :], k, n), signs, scale)

    def payload_bytes(self, n: int, itemsize: int) -> None:
        """Return None: it depends on the vector."""
