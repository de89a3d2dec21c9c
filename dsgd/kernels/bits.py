"""Packing signs, codes of a few bits and ascending integers into 64-bit words, and unpacking them.

Floats come as words of bits (``vector.view(np.uint32)``): their top bit is the sign, and for two finite floats the
other bits, read as an integer, order them by magnitude.

Ascending numbers below n are packed by the code of Elias and Fano: each keeps its low bits, as many as the logarithm of
the mean gap, and the high parts go into a bit vector in unary, where number i with high part h sets bit ``h + i``. That
takes ``2 + log2(n / k)`` bits a number, within half a bit of what any code of a random set needs, in a length that k
and n alone decide.

Source: Elias 1974; Fano 1971; Vigna 2013 (quasi-succinct indices).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import kernel, scalar
from dsgd.types import AnyArray, FloatVector, IndexVector, WordVector

# Unsigned: with signed indices Numba checks at every access whether they count from the end.
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_BITS = np.uint64(64)
_SHIFT = np.uint64(6)
_LAST = np.uint64(63)


@intrinsic
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Return how many bits below the lowest one that is set are not; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@scalar
def put_bits(words: WordVector, place: np.uint64, width: np.uint64, value: np.uint64) -> None:
    """Write `value`, below ``2**width``, at bit `place` of words that are zero from there on; width 1 to 64."""
    word, shift = place >> _SHIFT, place & _LAST
    words[word] |= value << shift
    if shift + width > _BITS:
        words[word + _ONE] |= value >> (_BITS - shift)


@scalar
def get_bits(words: WordVector, place: np.uint64, width: np.uint64) -> np.uint64:
    """Return the `width` bits from bit `place` on; width 1 to 64."""
    word, shift = place >> _SHIFT, place & _LAST
    value: np.uint64 = words[word] >> shift
    if shift + width > _BITS:
        value |= words[word + _ONE] << (_BITS - shift)
    return value & (~_ZERO >> (_BITS - width))


@kernel
def pack_ascending(numbers: IndexVector, low_bits: int, low: WordVector, high: WordVector) -> None:
    """Pack ascending numbers into words.

    - `numbers`, shape (k,): ascending, no two equal.
    - `low_bits`: bits of each number that are kept as they are.
    - `low`, shape (ceil(k low_bits / 64),): the low bits, overwritten.
    - `high`: the high parts, overwritten.
    """
    for j in range(np.uint64(low.shape[0])):
        low[j] = _ZERO
    for j in range(np.uint64(high.shape[0])):
        high[j] = _ZERO
    width = np.uint64(low_bits)
    mask = (_ONE << width) - _ONE
    for i in range(np.uint64(numbers.shape[0])):
        number = np.uint64(numbers[i])
        if width > _ZERO:
            put_bits(low, i * width, width, number & mask)
        place = (number >> width) + i
        high[place >> _SHIFT] |= _ONE << (place & _LAST)


@kernel
def unpack_ascending(low: WordVector, high: WordVector, low_bits: int, n: int, numbers: IndexVector) -> bool:
    """Write into `numbers`, shape (k,), what `pack_ascending` was given.

    - returned: whether the words hold k ascending numbers below n; nothing may be done with `numbers` otherwise.
    """
    width = np.uint64(low_bits)
    count = _ZERO
    k = np.uint64(numbers.shape[0])
    least = _ZERO
    for j in range(np.uint64(high.shape[0])):
        word = high[j]
        while word != _ZERO:
            if count == k:
                return False
            place = (j << _SHIFT) + _trailing_zeros(word)
            word &= word - _ONE  # clears the lowest bit that is set
            number = (place - count) << width
            if width > _ZERO:
                number |= get_bits(low, count * width, width)
            # Words come from a peer, and the numbers become indices of a vector of length n.
            if number < least or number >= np.uint64(n):
                return False
            least = number + _ONE
            numbers[count] = np.uint32(number)
            count += _ONE
    return bool(count == k)


@kernel
def take_at(vector: FloatVector, places: IndexVector, values: FloatVector) -> None:
    """Write into `values`, shape (k,), the entries of `vector` at `places`."""
    for i in range(np.uint64(places.shape[0])):
        values[i] = vector[np.uint64(places[i])]


@kernel
def take_nonzero(vector: FloatVector, places: IndexVector, values: FloatVector) -> np.int64:
    """Write the places and values of the entries that are not zero, ascending; return how many there are."""
    count = _ZERO
    for i in range(np.uint64(vector.shape[0])):
        if vector[i] != 0.0:
            places[count] = np.uint32(i)
            values[count] = vector[i]
            count += _ONE
    return np.int64(count)


@kernel
def put_at(vector: FloatVector, places: IndexVector, value: float) -> None:
    """Set the entries of `vector` at `places` to one value."""
    for i in range(np.uint64(places.shape[0])):
        vector[np.uint64(places[i])] = value


@kernel
def add_at(vector: FloatVector, places: IndexVector, values: FloatVector, factor: float) -> None:
    """Add `factor` times `values`, shape (k,), to the entries of `vector` at `places`."""
    scale = vector.dtype.type(factor)
    for i in range(np.uint64(places.shape[0])):
        vector[np.uint64(places[i])] += scale * values[i]


@kernel
def pack_signs(bits: AnyArray, words: WordVector) -> None:
    """Write one bit for each float: set where it is below zero.

    - `bits`, shape (n,): the floats as words.
    - `words`, shape (ceil(n / 64),): overwritten; bits beyond n are zero.
    """
    one = bits.dtype.type(1)
    top = bits.dtype.type(bits.itemsize * 8 - 1)
    sign = one << top
    n = np.uint64(bits.shape[0])
    whole = n >> _SHIFT
    for j in range(whole):
        word = _ZERO
        for b in range(_BITS):
            # Not the sign bit alone: minus zero is not below zero.
            word |= np.uint64(bits[(j << _SHIFT) + b] > sign) << b
        words[j] = word
    if whole < np.uint64(words.shape[0]):
        word = _ZERO
        for i in range(whole << _SHIFT, n):
            word |= np.uint64(bits[i] > sign) << (i & _LAST)
        words[whole] = word


@kernel
def add_signs(words: WordVector, out: FloatVector, positive: float, negative: float) -> None:
    """Add `negative` to the entries of `out`, shape (n,), whose bit is set, and `positive` to the others."""
    low = out.dtype.type(positive)
    high = out.dtype.type(negative)
    n = np.uint64(out.shape[0])
    for j in range(np.uint64(words.shape[0])):
        word = words[j]
        first = j << _SHIFT
        for b in range(min(_BITS, n - first)):
            out[first + b] += high if (word >> b) & _ONE else low


@kernel
def count_votes(ballots: AnyArray, words: WordVector) -> None:
    """Set each bit that more than half of the ballots have set.

    - `ballots`, shape (n_ballots, n_words): what `pack_signs` has written for each voter.
    - `words`, shape (n_words,): overwritten; zero where there are no ballots.
    """
    n_ballots = np.uint64(ballots.shape[0])
    for j in range(np.uint64(words.shape[0])):
        word = _ZERO
        for b in range(_BITS):
            total = _ZERO
            for i in range(n_ballots):
                total += (ballots[i, j] >> b) & _ONE
            word |= np.uint64(total + total > n_ballots) << b
        words[j] = word


@kernel
def pack_codes(codes: AnyArray, width: int, words: WordVector) -> None:
    """Pack codes of `width` bits, 1 to 32, one after the other.

    - `codes`, shape (n,): below ``2**width``.
    - `words`, shape (ceil(n width / 64),): overwritten; bits beyond the last code are zero.
    """
    bits = np.uint64(width)
    fill, word, j = _ZERO, _ZERO, _ZERO
    for i in range(np.uint64(codes.shape[0])):
        code = np.uint64(codes[i])
        word |= code << fill
        fill += bits
        if fill >= _BITS:
            words[j] = word
            j += _ONE
            fill -= _BITS
            # A shift by all bits of a code leaves nothing of it, which is what is wanted where it ended the word.
            word = code >> (bits - fill)
    if fill > _ZERO:
        words[j] = word


@kernel
def unpack_codes(words: WordVector, width: int, codes: AnyArray) -> None:
    """Write into `codes`, shape (n,), what `pack_codes` was given."""
    bits = np.uint64(width)
    mask = (_ONE << bits) - _ONE
    kind = codes.dtype.type
    place = _ZERO
    for i in range(np.uint64(codes.shape[0])):
        word, shift = place >> _SHIFT, place & _LAST
        value = words[word] >> shift
        if shift + bits > _BITS:
            value |= words[word + _ONE] << (_BITS - shift)
        codes[i] = kind(value & mask)
        place += bits
