"""The payload of a sparse vector, shared by all compressors that select entries.

A payload is a word that counts the entries, their values in the precision of the vector, and their places: k ascending
numbers below n, of which each keeps ``l = floor(log2(n / k))`` low bits and the rest is a bit vector of
``k + (n - 1 >> l) + 1`` bits (`dsgd.kernels.bits.pack_ascending`). At a density of 0.001 a place takes 12 bits and not
32, at 0.01 it takes 8.6; where all entries are sent, places take nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from dsgd.compress.base import WORD_BYTES, AbstractCompressor, MemoryT, Scratch, as_words, words_for
from dsgd.errors import InvalidParameterError, ProtocolError
from dsgd.kernels import bits as kernels
from dsgd.kernels.select import DIGIT_BITS, MAX_SAMPLE, largest_magnitudes, places_length
from dsgd.types import AnyArray, ByteVector, FloatVector, IndexVector, WordVector
from dsgd.validation import check_number

_MOST_PLACES: Final = 2**32


def check_density(where: str, density: float) -> None:
    """Raise `InvalidParameterError` unless a density is in (0, 1]."""
    check_number(where, density, low=0.0, high=1.0, open_low=True)


def n_entries(n: int, density: float) -> int:
    """Return how many of n entries a density means: ``ceil(density n)``."""
    # A product that rounding has lifted above a whole number means that number.
    return min(n, int(np.ceil(density * n * (1.0 - 1e-12))))


def staged(density: float, warm_up: Sequence[float], rounds: int, n_seen: int) -> float:
    """Return the density after so many vectors: each of `warm_up` holds for `rounds` of them, and `density` from then.

    Source: Lin et al. 2018, which begin with dense gradients and send fewer entries from epoch to epoch.
    """
    stage = n_seen // int(rounds)
    return warm_up[stage] if stage < len(warm_up) else density


def place_words(k: int, n: int) -> tuple[int, int, int]:
    """Return the low bits of a place, and the words of the low and of the high parts of k places below n."""
    if k in (0, n):
        return 0, 0, 0
    low_bits = (n // k).bit_length() - 1
    return low_bits, words_for(k * low_bits), words_for(k + ((n - 1) >> low_bits) + 1)


def sparse_bytes(k: int, n: int, itemsize: int) -> int:
    """Return the bytes of a payload of k entries of n, of `itemsize` bytes each."""
    _, low, high = place_words(k, n)
    return WORD_BYTES * (1 + words_for(8 * k * itemsize) + low + high)


def as_bits(vector: FloatVector) -> AnyArray:
    """Return the bits of floats as unsigned words of their size; the same memory."""
    return vector.view(np.uint32 if vector.dtype.itemsize == 4 else np.uint64)


def largest(vector: FloatVector, k: int, most: int, seed: int, scratch: Scratch) -> IndexVector:
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


def encode_sparse(places: IndexVector, values: FloatVector, n: int, scratch: Scratch) -> ByteVector:
    """Return the payload of the entries `values` at ascending `places`, shapes (k,), of a vector of length n."""
    k = places.shape[0]
    low_bits, n_low, n_high = place_words(k, n)
    n_values = words_for(8 * values.nbytes)
    words = scratch.words(1 + n_values + n_low + n_high)
    words[0] = k
    words[n_values : n_values + 1] = 0
    words[1 : 1 + n_values].view(values.dtype)[:k] = values
    if n_high:
        low, high = words[1 + n_values : 1 + n_values + n_low], words[1 + n_values + n_low :]
        kernels.pack_ascending(places, low_bits, low, high)
    return words.view(np.uint8)


def encode_at(vector: FloatVector, places: IndexVector, scratch: Scratch) -> ByteVector:
    """Return the payload of the entries of a vector at ascending `places`."""
    values = scratch.take("values", places.shape[0], vector.dtype)
    kernels.take_at(vector, places, values)
    return encode_sparse(places, values, vector.shape[0], scratch)


def decode_sparse(payload: ByteVector, n: int, dtype: Any) -> tuple[IndexVector, FloatVector]:
    """Return the places and values of a payload, shapes (k,)."""
    words = as_words(payload)
    itemsize = np.dtype(dtype).itemsize
    k = check_places(words, n, words_for(8 * int(words[0]) * itemsize) if words.shape[0] else 0)
    n_values = words_for(8 * k * itemsize)
    values: FloatVector = words[1 : 1 + n_values].view(dtype)[:k]
    return unpack_places(words[1 + n_values :], k, n), values


class AbstractSparse(AbstractCompressor[MemoryT]):
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
