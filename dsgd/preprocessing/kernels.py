"""Kernels of encoding, and categories of text.

Loops over the entries of columns: hashes of strings, sums of numbers, and rows in CSR.

Cost: a pass over the entries for each. Nothing is allocated, and nothing is as wide as the encoded rows are dense.

Texts as hashed counts of their words and n-grams, of length one.

The rows are those of scikit-learn's `HashingVectorizer` with its defaults: words of two and more letters, digits and
``_``, in lower case; MurmurHash3 of each n-gram says its feature and sign; rows are divided by their Euclidean norm.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.inputs.tables.base import Coded
from dsgd.inputs.tables.reading import utf8
from dsgd.kernels.jit import kernel, scalar

_MASK = np.uint64(0xFFFFFFFF)
_C1, _C2 = np.uint64(0xCC9E2D51), np.uint64(0x1B873593)
_FIVE, _ADDED = np.uint64(5), np.uint64(0xE6546B64)
_MIX1, _MIX2 = np.uint64(0x85EBCA6B), np.uint64(0xC2B2AE35)
_S8, _S10, _S13, _S15, _S16, _S17, _S19, _S24, _S32 = (np.uint64(s) for s in (8, 10, 13, 15, 16, 17, 19, 24, 32))

# Splits a double into two halves of 26 bits, whose products are exact (Dekker 1971).
_SPLIT = 134217729.0


@scalar
def _rotated(x, left, right):  # type: ignore[no-untyped-def]
    return ((x << left) | (x >> right)) & _MASK


@scalar
def _murmur(data, start, stop):  # type: ignore[no-untyped-def]
    """Return MurmurHash3 (x86, 32 bits, seed 0) of some bytes as a signed number; the one of `FeatureHasher`."""
    h = np.uint64(0)
    i = start
    while i + 4 <= stop:
        k = np.uint64(data[i]) | (np.uint64(data[i + 1]) << _S8)
        k |= (np.uint64(data[i + 2]) << _S16) | (np.uint64(data[i + 3]) << _S24)
        k = (_rotated((k * _C1) & _MASK, _S15, _S17) * _C2) & _MASK
        h = (_rotated(h ^ k, _S13, _S19) * _FIVE + _ADDED) & _MASK
        i += 4
    if i < stop:
        k = np.uint64(data[i])
        if i + 1 < stop:
            k |= np.uint64(data[i + 1]) << _S8
        if i + 2 < stop:
            k |= np.uint64(data[i + 2]) << _S16
        h ^= (_rotated((k * _C1) & _MASK, _S15, _S17) * _C2) & _MASK
    h ^= np.uint64(stop - start) & _MASK
    h = ((h ^ (h >> _S16)) * _MIX1) & _MASK
    h = ((h ^ (h >> _S13)) * _MIX2) & _MASK
    h ^= h >> _S16
    return np.int64(np.int32(np.uint32(h)))


@kernel
def hash_strings(data, offsets, scratch, n_prefix, out):  # type: ignore[no-untyped-def]
    """Write the hash of every string, after a prefix."""
    for s in range(out.shape[0]):
        n = offsets[s + 1] - offsets[s]
        for i in range(n):
            scratch[n_prefix + i] = data[offsets[s] + i]
        # The least number stands for no string at all.
        out[s] = max(_murmur(scratch, 0, n_prefix + n), -2147483647)


@scalar
def _is_of_word(byte):  # type: ignore[no-untyped-def]
    """Return whether a byte belongs to a word: a letter, a digit, ``_``, or part of a character beyond ASCII."""
    # Texts are in lower case already, and what is no letter beyond ASCII is a blank.
    return byte >= 128 or (byte >= 97 and byte <= 122) or (byte >= 48 and byte <= 57) or byte == 95


@kernel
def count_words(data, offsets, out):  # type: ignore[no-untyped-def]
    """Write the number of words of two characters and more of every document, as `hash_documents` finds them."""
    for d in range(out.shape[0]):
        n_words, n_characters = 0, 0
        for i in range(offsets[d], offsets[d + 1]):
            byte = data[i]
            if _is_of_word(byte):
                n_characters += 1 if byte < 128 or byte >= 192 else 0
            else:
                n_words += 1 if n_characters > 1 else 0
                n_characters = 0
        out[d] = n_words + (1 if n_characters > 1 else 0)


@kernel
def hash_documents(data, offsets, lengths, n_features, words, indptr, indices, values):  # type: ignore[no-untyped-def]
    """Write the hashed n-grams of documents as rows of CSR, in the order of the text, with duplicates."""
    text, begins, ends = words
    p = 0
    indptr[0] = 0
    for d in range(offsets.shape[0] - 1):
        n_words, n_bytes, n_characters, begin = 0, 0, 0, 0
        for i in range(offsets[d], offsets[d + 1] + 1):
            byte = data[i] if i < offsets[d + 1] else np.uint8(32)
            if _is_of_word(byte):
                text[n_bytes] = byte
                n_bytes += 1
                n_characters += 1 if byte < 128 or byte >= 192 else 0
                continue
            if n_characters > 1:
                begins[n_words], ends[n_words] = begin, n_bytes
                n_words += 1
                text[n_bytes] = 32
                n_bytes += 1
                begin = n_bytes
            else:
                n_bytes = begin
            n_characters = 0
        for n in range(lengths[0], lengths[1] + 1):
            for w in range(n_words - n + 1):
                h = _murmur(text, begins[w], ends[w + n - 1])
                indices[p] = abs(h) % n_features
                values[p] = 1.0 if h >= 0 else -1.0
                p += 1
        indptr[d + 1] = p


@scalar
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@scalar
def _square(x):  # type: ignore[no-untyped-def]
    product = x * x
    high = _SPLIT * x
    high = high - (high - x)
    low = x - high
    return product, ((high * high - product) + 2.0 * high * low) + low * low


@kernel
def add_moments(values, sums):  # type: ignore[no-untyped-def]
    """Add numbers and their squares to sums of twice the precision.

    - `sums`, shape (4,): the sum of the numbers as high and low part, and that of their squares (Dekker 1971; Knuth
      1969).
    """
    s, s_low, q, q_low = sums[0], sums[1], sums[2], sums[3]
    n, n_infinite = 0, 0
    for i in range(values.shape[0]):
        x = values[i]
        if x != x:
            continue
        n += 1
        if x - x != 0.0:
            n_infinite += 1
            continue
        s, rest = _two_sum(s, x)
        s_low += rest
        square, square_low = _square(x)
        q, rest = _two_sum(q, square)
        q_low += rest + square_low
    sums[0], sums[1] = _two_sum(s, s_low)
    sums[2], sums[3] = _two_sum(q, q_low)
    return n, n_infinite


@kernel
def write_rows(numbers, scaling, places, codes, hashes, hashed, first, out):  # type: ignore[no-untyped-def]
    """Write rows of CSR, with sorted indices, behind those that are there.

    - `scaling`, shape (3, d_numbers): what is subtracted from each, what it is then divided by, and the largest
      that it may then be.
    - `places`, shape (2, d_numbers): the feature of each, and the one that says that it is missing, -1 if none
      does.
    - `hashes`, shape (d_hashed, n): signed hashes of the columns that share hashed features; the least number
      stands for none.
    """
    indptr, indices, values = out
    row, p = first
    for r in range(numbers.shape[1]):
        for j in range(numbers.shape[0]):
            x = numbers[j, r]
            if x != x:
                if places[1, j] >= 0:
                    indices[p], values[p] = places[1, j], 1.0
                    p += 1
                continue
            x = min(max((x - scaling[0, j]) / scaling[1, j], -scaling[2, j]), scaling[2, j])
            if x != 0.0:
                indices[p], values[p] = places[0, j], x
                p += 1
        for j in range(codes.shape[0]):
            if codes[j, r] >= 0:
                indices[p], values[p] = codes[j, r], 1.0
                p += 1
        begin = p
        for j in range(hashes.shape[0]):
            h = np.int64(hashes[j, r])
            if h == -2147483648:
                continue
            feature = hashed[0] + abs(h) % hashed[1]
            at = p
            while at > begin and indices[at - 1] > feature:
                at -= 1
            if at > begin and indices[at - 1] == feature:
                values[at - 1] += 1.0 if h >= 0 else -1.0
                continue
            for k in range(p, at, -1):
                indices[k], values[k] = indices[k - 1], values[k - 1]
            indices[at], values[at] = feature, 1.0 if h >= 0 else -1.0
            p += 1
        row += 1
        indptr[row] = p
    return p


_NOT_OF_WORDS: Final = re.compile(r"[^\w]+")


def hashed_texts(texts: Coded, n_features: int, ngram_range: tuple[int, int], dtype: Any) -> Any:
    """Return hashed n-grams of texts."""
    # What is a letter beyond ASCII, and its lower case, Python says; compiled code takes all of it for letters then.
    data, offsets = utf8([_NOT_OF_WORDS.sub(" ", str(text).lower()) for text in texts.listed()])
    n = len(offsets) - 1
    n_words = np.empty(n, np.int64)
    count_words(data, offsets, n_words)
    # There are none longer than the longest text.
    high = min(ngram_range[1], int(n_words.max(initial=0)))
    low = min(ngram_range[0], high + 1)
    n_grams = sum(np.maximum(n_words - k + 1, 0) for k in range(low, high + 1))
    n_entries = int(np.sum(n_grams))
    longest = int(np.diff(offsets).max(initial=0))
    words = np.empty(longest + 2, np.uint8), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    indptr, indices, values = np.empty(n + 1, np.int64), np.empty(n_entries, np.int32), np.empty(n_entries)
    hash_documents(data, offsets, (low, high), n_features, words, indptr, indices, values)
    rows = sp.csr_array((values, indices, indptr), shape=(n, n_features))
    rows.sum_duplicates()
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    rows.data /= np.repeat(np.where(norms == 0, 1.0, norms), np.diff(rows.indptr))
    if (texts.codes < 0).any():
        rows = sp.vstack([rows, sp.csr_array((1, n_features))], format="csr")
    found = rows[texts.codes] if n else sp.csr_array((len(texts.codes), n_features))
    return found.astype(dtype)
