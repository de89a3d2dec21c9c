"""Quantisation of floats: random levels, two means, half precision, adaptive bins; an orthonormal basis and waves.

Random rounding draws by place: half a word of `draw(key, place // 2)` decides for the entry at `place`, so what
is drawn depends on the key alone.

**Cosine transforms of the chunks of a vector, and sums of a few waves.**

A chunk v of length L has the coefficients ``basis @ v``, with the orthonormal matrix of the DCT-II,
``basis[j, t] = sqrt((1 + [j > 0]) / L) cos(pi j (2 t + 1) / (2 L))``; those of all chunks in their order are one vector
of the length of the whole. Only the last chunk may be shorter, and has a basis of its own. Sums are taken in a fixed
order, so that all ranks decode the same bits.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.order import draw
from dsgd.types import AnyArray, ByteVector, FloatMatrix, FloatVector, IndexVector, WordVector

# Unsigned: with signed indices Numba checks at every access whether they count from the end.
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_THREE = np.uint64(3)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_UNIT = 2.0**-32
#: Ternary digits in a word: five in each byte, since 3**5 = 243.
_PER_WORD = np.uint64(40)
#: A row of which less than this share is left, once those above it are taken out, is taken for zero.
_SMALL = 1e-7


@scalar
def _chance(key: np.uint64, place: np.uint64) -> float:
    """Return a number in [0, 1) for a place."""
    word = draw(key, place >> _ONE)
    return float((word >> ((place & _ONE) * _HALF)) & _LOW_HALF) * _UNIT


@kernel
def quantise_levels(
    vector: FloatVector, levels: int, bucket: int, stream: WordVector, norms: FloatVector, codes: ByteVector
) -> None:
    """Round each entry at random to one of the multiples of its bucket's norm over `levels`.

    `norms` are euclidean, one for each bucket, NaN where an entry is not finite; `codes` are level plus `levels`, of
    which there are 1 to 127 above zero; `stream` is key and number of the draw.
    """
    key = draw(stream[0], stream[1])
    n = np.uint64(vector.shape[0])
    width = np.uint64(bucket)
    for b in range(np.uint64(norms.shape[0])):
        first, last = b * width, min(n, (b + _ONE) * width)
        total = 0.0
        for i in range(first, last):
            total += float(vector[i]) * float(vector[i])
        norm = np.sqrt(total)
        norms[b] = norm if norm < np.inf else np.nan
        scale = levels / norm if 0.0 < norm < np.inf else 0.0
        for i in range(first, last):
            level = abs(float(vector[i])) * scale if scale > 0.0 else 0.0
            whole = np.floor(level)
            drawn = np.int64(whole) + np.int64(_chance(key, i) < level - whole)
            drawn = min(drawn, np.int64(levels))  # the norm may have been rounded down
            codes[i] = np.uint8(levels + drawn if vector[i] > 0.0 else levels - drawn)


@kernel
def add_levels(
    codes: ByteVector, levels: int, bucket: int, norms: FloatVector, out: FloatVector, factor: float
) -> None:
    """Add `factor` times what `quantise_levels` has rounded to `out`, shape (n,)."""
    n = np.uint64(out.shape[0])
    width = np.uint64(bucket)
    for b in range(np.uint64(norms.shape[0])):
        step = out.dtype.type(factor * float(norms[b]) / levels)
        for i in range(b * width, min(n, (b + _ONE) * width)):
            out[i] += step * out.dtype.type(np.int64(codes[i]) - levels)


@kernel
def quantise_ternary(vector: FloatVector, scale: float, clip: float, stream: WordVector, codes: ByteVector) -> None:
    """Round each entry, clipped, at random to minus `scale`, zero or `scale`: codes 0, 1, 2."""
    key = draw(stream[0], stream[1])
    inverse = 1.0 / scale if scale > 0.0 else 0.0
    for i in range(np.uint64(vector.shape[0])):
        keeps = np.uint8(_chance(key, i) < min(abs(float(vector[i])), clip) * inverse)
        codes[i] = np.uint8(1) + keeps if vector[i] > 0.0 else np.uint8(1) - keeps


@kernel
def pack_ternary(codes: ByteVector, words: WordVector) -> None:
    """Pack codes 0, 1, 2, shape (n,), five into a byte; words, shape (ceil(n / 40),), are overwritten."""
    n = np.uint64(codes.shape[0])
    for j in range(np.uint64(words.shape[0])):
        first = j * _PER_WORD
        word = _ZERO
        for byte in range(np.uint64(8)):
            value = _ZERO
            for digit in range(np.uint64(5)):
                i = first + byte * np.uint64(5) + np.uint64(4) - digit
                value = value * _THREE + (np.uint64(codes[i]) if i < n else _ZERO)
            word |= value << (byte << _THREE)
        words[j] = word


@kernel
def unpack_ternary(words: WordVector, codes: ByteVector) -> None:
    """Write into `codes`, shape (n,), what `pack_ternary` was given."""
    n = np.uint64(codes.shape[0])
    for j in range(np.uint64(words.shape[0])):
        first = j * _PER_WORD
        for byte in range(np.uint64(8)):
            value = np.uint32((words[j] >> (byte << _THREE)) & np.uint64(255))
            for digit in range(np.uint64(5)):
                i = first + byte * np.uint64(5) + digit
                if i < n:
                    codes[i] = np.uint8(value % np.uint32(3))
                value //= np.uint32(3)


@kernel
def add_codes(codes: AnyArray, middle: int, step: float, out: FloatVector) -> None:
    """Add ``step * (code - middle)`` to the entries of `out`, shape (n,)."""
    size = out.dtype.type(step)
    for i in range(np.uint64(out.shape[0])):
        out[i] += size * out.dtype.type(np.int64(codes[i]) - middle)


@kernel
def two_means(vector: FloatVector, bucket: int, means: FloatMatrix) -> None:
    """Write the means of the entries below zero and of the others, bucket by bucket.

    Zero where a bucket has none of a kind; both NaN where an entry is, since the sign of a NaN may be either.
    """
    n = np.uint64(vector.shape[0])
    width = np.uint64(bucket)
    for b in range(np.uint64(means.shape[0])):
        high, low, n_low = 0.0, 0.0, 0
        first, last = b * width, min(n, (b + _ONE) * width)
        for i in range(first, last):
            value = float(vector[i])
            below = value < 0.0
            n_low += below
            high += 0.0 if below else value
            low += value if below else 0.0
        n_high = np.int64(last - first) - n_low
        means[b, 0] = high / n_high if n_high > 0 else 0.0
        means[b, 1] = high if np.isnan(high) else (low / n_low if n_low > 0 else 0.0)


@kernel
def add_two_means(words: WordVector, bucket: int, means: FloatMatrix, out: FloatVector, factor: float) -> None:
    """Add `factor` times the second mean of its bucket to an entry whose bit is set, times the first to the others."""
    n = np.uint64(out.shape[0])
    width = np.uint64(bucket)
    for b in range(np.uint64(means.shape[0])):
        high = out.dtype.type(factor * float(means[b, 0]))
        low = out.dtype.type(factor * float(means[b, 1]))
        for i in range(b * width, min(n, (b + _ONE) * width)):
            out[i] += low if (words[i >> np.uint64(6)] >> (i & np.uint64(63))) & _ONE else high


@kernel
def to_bfloat(bits: AnyArray, halves: AnyArray) -> None:
    """Round float32 bits, shape (n,), to their upper 16, to nearest and ties to even; a NaN stays one."""
    for i in range(np.uint64(bits.shape[0])):
        word = bits[i]
        rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        # Rounding could turn a NaN into infinity, so its quiet bit is set instead.
        is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        halves[i] = np.uint16((word >> np.uint32(16)) | np.uint32(0x40) if is_nan else rounded)


@kernel
def to_half(vector: FloatVector, bits: AnyArray, halves: AnyArray) -> None:
    """Round float32, shape (n,), to the bits of IEEE 754 halves, to nearest and ties to even.

    `bits` are the same floats as words; a magnitude beyond the largest half becomes infinity, a NaN stays one.
    """
    for i in range(np.uint64(bits.shape[0])):
        word = bits[i] & np.uint32(0x7FFFFFFF)
        odd = (word >> np.uint32(13)) & np.uint32(1)
        # The exponent is lowered by 112, and the 13 bits that go are rounded.
        half = (word - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13)
        if word < np.uint32(0x38800000):  # below 2**-14 halves are multiples of 2**-24
            half = np.uint32(np.rint(abs(vector[i]) * np.float32(2.0**24)))
        if word >= np.uint32(0x47800000):  # 65536 and more; 65520 and more are rounded there
            half = np.uint32(0x7C00)
        if word > np.uint32(0x7F800000):
            half = np.uint32(0x7E00)
        halves[i] = np.uint16(half | ((bits[i] >> np.uint32(16)) & np.uint32(0x8000)))


@kernel
def add_halves(halves: AnyArray, table: FloatVector, out: FloatVector, factor: float) -> None:
    """Add `factor` times the floats that `table`, shape (65536,), has for `halves` to `out`, shape (n,)."""
    scale = out.dtype.type(factor)
    for i in range(np.uint64(out.shape[0])):
        out[i] += scale * out.dtype.type(table[np.uint64(halves[i])])


@kernel
def strata(key: WordVector, n: int, places: IndexVector) -> None:
    """Draw one place from each of k parts of 0..n, as equal as can be; they are ascending."""
    k = np.uint64(places.shape[0])
    for i in range(k):
        first, last = i * np.uint64(n) // k, (i + _ONE) * np.uint64(n) // k
        places[i] = np.uint32(first + draw(key[0], i) % (last - first))


@kernel
def select_beyond(
    vector: FloatVector, low: float, high: float, places: IndexVector, signs: AnyArray
) -> tuple[int, float, float]:
    """Take the entries that are at most `low` or at least `high`, and those that are no number.

    Writes their places, ascending, and signs (one for what is no number); returns the means of either sign.
    """
    count, n_low = _ZERO, _ZERO
    sum_low, sum_high = 0.0, 0.0
    for i in range(np.uint64(vector.shape[0])):
        value = float(vector[i])
        if low < value < high:
            continue
        places[count] = np.uint32(i)
        if value <= low:
            sum_low += value
            n_low += _ONE
            signs[count] = -1.0
        else:
            sum_high += value
            signs[count] = 1.0
        count += _ONE
    n_high = count - n_low
    return int(count), float(sum_low / max(n_low, _ONE)), float(sum_high / max(n_high, _ONE))


@kernel
def select_adaptive(
    residual: FloatVector, vector: FloatVector, bucket: int, places: IndexVector, signs: AnyArray
) -> tuple[int, float]:
    """Take from each bin the entries that would reach its largest magnitude if the last vector came once more.

    `residual` is to be sent, with the last `vector` in it. Returns how many were taken, one in each bin that is not
    zero at least, and the mean of the largest magnitudes of these bins.
    """
    n = np.uint64(residual.shape[0])
    width = np.uint64(bucket)
    count = _ZERO
    total = 0.0
    n_bins = 0
    for first in range(_ZERO, n, width):
        last = min(n, first + width)
        top = residual.dtype.type(0)
        for i in range(first, last):
            magnitude = abs(residual[i])
            if not magnitude <= top:  # also true for NaN
                top = magnitude
                if np.isnan(top):  # it stays, whatever comes after it
                    break
        if top == 0.0:
            continue
        total += float(top)
        n_bins += 1
        for i in range(first, last):
            ahead = residual[i] + vector[i]
            if not abs(ahead) < top:
                places[count] = np.uint32(i)
                signs[count] = -1.0 if ahead < 0.0 else 1.0
                count += _ONE
    return int(count), total / n_bins if n_bins > 0 else 0.0


@kernel
def orthonormalise(basis: FloatMatrix) -> None:
    """Make rows orthonormal by Gram and Schmidt, twice, in one order; a row that depends on others becomes zero."""
    r, a = np.uint64(basis.shape[0]), np.uint64(basis.shape[1])
    for i in range(r):
        before = 0.0
        for j in range(a):
            before += float(basis[i, j]) * float(basis[i, j])
        for _ in range(2):  # after one pass, rounding errors may be all that is left of a nearly dependent row
            for h in range(i):
                dot = 0.0
                for j in range(a):
                    dot += float(basis[h, j]) * float(basis[i, j])
                for j in range(a):
                    basis[i, j] -= basis.dtype.type(dot * float(basis[h, j]))
        after = 0.0
        for j in range(a):
            after += float(basis[i, j]) * float(basis[i, j])
        # Of a row that the others explain, rounding is all that is left.
        keeps = after > _SMALL * _SMALL * before
        scale = 1.0 / np.sqrt(after) if keeps else 0.0
        for j in range(a):
            basis[i, j] = basis.dtype.type(float(basis[i, j]) * scale)


@kernel
def add_outer(left: FloatMatrix, right: FloatMatrix, out: FloatVector, factor: float) -> None:
    """Add `factor` times ``left.T @ right`` to `out`, row by row, each entry summed over r in order."""
    n, b = np.uint64(out.shape[0]), np.uint64(right.shape[1])
    for row in range(np.uint64(left.shape[1])):
        first = row * b
        if first >= n:
            break
        last = min(b, n - first)
        for h in range(np.uint64(left.shape[0])):
            scale = out.dtype.type(factor * float(left[h, row]))
            for j in range(last):
                out[first + j] += scale * right[h, j]


@kernel
def into_waves(vector: FloatVector, basis: FloatMatrix, last: FloatMatrix, out: FloatVector) -> None:
    """Write the coefficients of all chunks; waves are columns of `basis`, and for a shorter last chunk of `last`."""
    n, chunk = np.uint64(vector.shape[0]), np.uint64(basis.shape[0])
    whole = n // chunk * chunk
    for i in range(n):
        out[i] = 0.0
    for i in range(whole):
        t = i % chunk
        begin, value = i - t, vector[i]
        for j in range(chunk):
            out[begin + j] += value * basis[t, j]
    for row in range(n - whole):
        value = vector[whole + row]
        for j in range(n - whole):
            out[whole + j] += value * last[row, j]


@kernel
def largest_of_chunks(coefficients: FloatVector, chunk: int, k: int, places: IndexVector) -> None:
    """Find the places of the k largest coefficients of each chunk, NaN above all and the lower of two equal ones."""
    n, length, wanted = np.uint64(coefficients.shape[0]), np.uint64(chunk), np.uint64(k)
    found, begin = np.uint64(0), np.uint64(0)
    while begin < n:
        end = min(n, begin + length)
        # Places of a chunk so far, in falling order of magnitude.
        first, held = found, np.uint64(0)
        for i in range(begin, end):
            size = abs(coefficients[i])
            if size != size:
                size = np.inf
            at = first + held
            while at > first:
                other = abs(coefficients[places[at - _ONE]])
                if other != other or other >= size:
                    break
                if at < first + wanted:
                    places[at] = places[at - _ONE]
                at -= _ONE
            if at < first + wanted:
                places[at] = i
                held = min(wanted, held + _ONE)
        found = first + held
        # A few places that are nearly in order.
        for i in range(first + _ONE, found):
            place, at = places[i], np.uint64(i)
            while at > first and places[at - _ONE] > place:
                places[at] = places[at - _ONE]
                at -= _ONE
            places[at] = place
        begin = end


@kernel
def add_waves(
    out: FloatVector, places: IndexVector, values: FloatVector, factor: float, basis: FloatMatrix, last: FloatMatrix
) -> None:
    """Add a factor times the waves, one in each row of `basis` and `last`, of the coefficients at some places."""
    n, chunk = np.uint64(out.shape[0]), np.uint64(basis.shape[0])
    whole = n // chunk * chunk
    for i in range(np.uint64(places.shape[0])):
        place, value = np.uint64(places[i]), factor * values[i]
        if place < whole:
            j = place % chunk
            begin = place - j
            for t in range(chunk):
                out[begin + t] += value * basis[j, t]
        else:
            for t in range(n - whole):
                out[whole + t] += value * last[place - whole, t]
