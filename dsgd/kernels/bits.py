"""Packing signs, codes of a few bits and ascending integers into words; selecting the entries of largest magnitude.

Floats come as words of bits (``vector.view(np.uint32)``): their top bit is the sign, and for two finite floats the
other bits, read as an integer, order them by magnitude.

Ascending numbers below n are packed by the code of Elias and Fano: each keeps its low bits, as many as the logarithm of
the mean gap, and the high parts go into a bit vector in unary, where number i with high part h sets bit ``h + i``. That
takes ``2 + log2(n / k)`` bits a number, within half a bit of what any code of a random set needs, in a length that k
and n alone decide.

Source: Elias 1974; Fano 1971; Vigna 2013 (quasi-succinct indices).

**Exact selection of the entries of largest magnitude.**

Problem: to find the k largest of n numbers at the price of reading them once, where sorting moves them about and
quickselect reads them several times.

The bits of a float without its sign, read as an integer, order floats by magnitude (and NaN above infinity, so that it
is found and not lost). A sample of them gives a bound that somewhat more than k entries reach; one pass collects the
places of those, in blocks whose maximum is taken first, so that most blocks are passed over; a radix select over the
bits of the few collected finds the k-th largest, and the rest is left out. When the bound was not met by k entries, or
by too many, the radix select walks over all entries: three passes for float32, six for float64. The result is exact in
either case: the sample decides nothing but the time.

Equal magnitudes are taken in the order of their places, so the order is total and all ranks agree.

Source: radix select as in Alabi, Blanchard, Gordon and Steinbach 2012; the sampled bound as in Floyd and Rivest 1975.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.order import draw
from dsgd.types import AnyArray, FloatVector, IndexVector, IntVector, WordVector

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
    """Pack ascending numbers, none twice: `low_bits` of each as they are into `low`, the rest in unary into `high`."""
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
    """Write what `pack_ascending` was given into `numbers`; return whether words hold k ascending ones below n."""
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
    """Write one bit for each float, given as `bits`: set where it is below zero; bits beyond the last are zero."""
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
    """Set each bit that more than half of the ballots, shape (n_ballots, n_words), have set."""
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
    """Pack codes below ``2**width`` of `width` bits, 1 to 32, one after the other; bits beyond the last are zero."""
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


#: Bits of a digit of the radix select; a histogram has ``2**DIGIT_BITS`` counts.
DIGIT_BITS = 11
#: Entries in the sample that gives the first bound.
MAX_SAMPLE = 65536

_DIGIT = np.uint64(DIGIT_BITS)
_BLOCK = np.uint64(64)
# Unsigned: with signed indices Numba checks at every access whether they count from the end.
# A sample says little about more than a share of this.
_MIN_SHARE = 4


def places_length(n: int, k: int) -> int:
    """Return how many places `largest_magnitudes` may use as scratch: room for a bound that is too low."""
    return min(n, 3 * k + 4096) + int(_BLOCK)


@scalar
def kth_magnitude(
    bits: AnyArray, places: IndexVector | None, n: np.uint64, k: np.uint64, counts: IntVector
) -> tuple[np.uint64, np.uint64]:
    """Return the k-th largest magnitude of the first n entries (those at `places` if any), and how many are above."""
    kind = bits.dtype.type
    mask = ~kind(0) >> kind(1)
    left = np.uint64(bits.itemsize * 8 - 1)
    prefix = kind(0)
    rank = k
    while left > _ZERO:
        width = min(left, _DIGIT)
        left -= width
        shift = kind(left)
        digit = (kind(1) << kind(width)) - kind(1)
        for j in range(np.uint64(counts.shape[0])):
            counts[j] = 0
        # Room for this digit is at the end of the prefix; entries count that agree in all digits before it.
        known = prefix >> kind(width)
        for i in range(n):
            place = np.uint64(places[i]) if places is not None else i
            word = (bits[place] & mask) >> shift
            if word >> kind(width) == known:
                counts[np.uint64(word & digit)] += 1
        d = np.uint64(digit)
        while np.uint64(counts[d]) < rank:
            rank -= np.uint64(counts[d])
            d -= _ONE
        prefix = (prefix | kind(d)) << kind(min(left, _DIGIT))
    return np.uint64(prefix), k - rank


@scalar
def collect_from(bits: AnyArray, least: np.uint64, places: IndexVector) -> np.uint64:
    """Write the places of entries of magnitude `least` or more, ascending; return how many, or more than fit."""
    kind = bits.dtype.type
    mask = ~kind(0) >> kind(1)
    bound = kind(least)
    n = np.uint64(bits.shape[0])
    room = np.uint64(places.shape[0])
    count = _ZERO
    whole = n - n % _BLOCK
    for first in range(_ZERO, whole, _BLOCK):
        top = kind(0)
        for j in range(_BLOCK):
            top = max(top, bits[first + j] & mask)
        if top >= bound:
            # Each place is written, and counted only if it stays: no branch that data decide. So a block needs room.
            if count + _BLOCK > room:
                return room + _ONE
            for j in range(_BLOCK):
                places[count] = np.uint32(first + j)
                count += np.uint64(bits[first + j] & mask >= bound)
    for i in range(whole, n):
        if bits[i] & mask >= bound:
            if count == room:
                return room + _ONE
            places[count] = np.uint32(i)
            count += _ONE
    return count


@kernel
def largest_magnitudes(
    bits: AnyArray, k: int, most: int, seed: int, places: IndexVector, sample: AnyArray, counts: IntVector
) -> np.int64:
    """Write the places of the k entries of largest magnitude, ascending.

    - `most`: up to so many are taken where the first bound lets them through: k for exactly k of them.
    - `places`, shape (places_length(n, most),): the result at its front; the rest is scratch.
    """
    kind = bits.dtype.type
    mask = ~kind(0) >> kind(1)
    n = np.uint64(bits.shape[0])
    wanted = np.uint64(k)
    if wanted == _ZERO:
        return np.int64(0)
    n_sample = min(np.uint64(sample.shape[0]), n // np.uint64(16))
    found, bound, is_sampled = _ZERO, _ZERO, False
    if wanted * np.uint64(_MIN_SHARE) <= n and n_sample > _ZERO:
        stride = n // n_sample
        for i in range(n_sample):
            sample[i] = bits[i * stride + draw(np.uint64(seed), i) % stride]
        # Four standard deviations beyond the expected rank: the bound is almost never above the k-th largest.
        middle = float(k) * float(n_sample) / float(n)
        rank = np.uint64(middle + 4.0 * np.sqrt(middle) + 4.0) if most == k else np.uint64(middle + 1.0)
        bound, _ = kth_magnitude(sample, None, n_sample, min(rank, n_sample), counts)
        is_sampled = True
        # Of a vector that is mostly zeros, all others.
        found = collect_from(bits, max(bound, _ONE), places)
        if most > k and wanted <= found <= np.uint64(most):
            return np.int64(found)
    if found < wanted or found > np.uint64(places.shape[0]):
        if is_sampled and bound == _ZERO and found < wanted:
            n_above = found
        else:
            bound, n_above = kth_magnitude(bits, None, n, wanted, counts)
        kth = kind(bound)
        left = wanted - n_above
        count = _ZERO
        for i in range(n):
            word = bits[i] & mask
            if word >= kth:
                if word > kth:
                    places[count] = np.uint32(i)
                    count += _ONE
                elif left > _ZERO:
                    places[count] = np.uint32(i)
                    count += _ONE
                    left -= _ONE
        return np.int64(count)
    bound, n_above = kth_magnitude(bits, places, found, wanted, counts)
    kth = kind(bound)
    left = wanted - n_above
    count = _ZERO
    for i in range(found):
        word = bits[np.uint64(places[i])] & mask
        keeps = word > kth
        if word == kth and left > _ZERO:
            keeps = True
            left -= _ONE
        if keeps:
            places[count] = places[i]
            count += _ONE
    return np.int64(count)


@kernel
def spread_nonzero(vector: FloatVector, places: IndexVector) -> np.int64:
    """Write the places of entries that are not zero, evenly spread over them; return how many: all, or all that fit."""
    n = np.uint64(vector.shape[0])
    room = np.uint64(places.shape[0])
    total = _ZERO
    for i in range(n):
        total += np.uint64(vector[i] != 0.0)
    stride = max(_ONE, total // room)
    seen, count = _ZERO, _ZERO
    for i in range(n):
        if vector[i] != 0.0:
            if seen % stride == _ZERO and count < room:
                places[count] = np.uint32(i)
                count += _ONE
            seen += _ONE
    return np.int64(count)


@kernel
def merge_ascending(
    first_places: IndexVector,
    first_values: FloatVector,
    second_places: IndexVector,
    second_values: FloatVector,
    places: IndexVector,
    values: FloatVector,
) -> np.int64:
    """Add two sparse vectors, each of ascending places and values; of two at one place the first is added to first."""
    n_first, n_second = np.uint64(first_places.shape[0]), np.uint64(second_places.shape[0])
    i, j, count = _ZERO, _ZERO, _ZERO
    while i < n_first or j < n_second:
        if j == n_second or (i < n_first and first_places[i] < second_places[j]):
            places[count], values[count] = first_places[i], first_values[i]
            i += _ONE
        elif i == n_first or second_places[j] < first_places[i]:
            places[count], values[count] = second_places[j], second_values[j]
            j += _ONE
        else:
            places[count], values[count] = first_places[i], first_values[i] + second_values[j]
            i += _ONE
            j += _ONE
        count += _ONE
    return np.int64(count)
