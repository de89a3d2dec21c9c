"""k entries drawn at random, the same on all ranks.

Update: with one seed on all ranks, each draws the same k places, one from each of k parts of the vector;
``decode(encode(v))`` is v there and zero elsewhere. A sum of payloads is the payload of the sum, so ranks all-reduce k
numbers and no places travel.

Cost per payload: k s + 8 bytes for values of s bytes, ``k = ceil(density n)``; the word says which draw it is.

It keeps only the k / n-th part of a vector on average: wrap it in `ErrorFeedback`, which sends the rest later.

Source: Stich, Cordonnier and Jaggi 2018 (rand-k with memory); Wangni et al. 2018. Theirs draws without parts; here each
place is as likely to be drawn, up to rounding of n / k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, AbstractMemory, as_words, words_for
from dsgd.compress.sparse import check_density, n_entries
from dsgd.handover import ALIKE, OWN
from dsgd.kernels import bits as kernels
from dsgd.kernels.quantize import strata
from dsgd.types import ByteVector, FloatVector, IndexVector, WordVector

__all__ = ["RandomK", "StreamMemory", "stream_of"]

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
