"""Cosine transforms of the chunks of a vector, and sums of a few waves.

A chunk v of length L has the coefficients ``basis @ v``, with the orthonormal matrix of the DCT-II,
``basis[j, t] = sqrt((1 + [j > 0]) / L) cos(pi j (2 t + 1) / (2 L))``; those of all chunks in their order are one vector
of the length of the whole. Only the last chunk may be shorter, and has a basis of its own. Sums are taken in a fixed
order, so that all ranks decode the same bits.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.types import FloatMatrix, FloatVector, IndexVector

_ONE = np.uint64(1)


@kernel
def into_waves(vector: FloatVector, basis: FloatMatrix, last: FloatMatrix, out: FloatVector) -> None:
    """Write the coefficients of all chunks.

    - `vector`, shape (n,): the vector.
    - `basis`, shape (chunk, chunk): the waves of a chunk, one in each column.
    - `last`, shape (n % chunk, n % chunk): those of the last chunk, where it is shorter.
    - `out`, shape (n,): the coefficients.
    """
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
    """Find the k coefficients of largest magnitude of each chunk, NaN above all and the lower of two equal ones.

    - `coefficients`, shape (n,): of all chunks.
    - `k`: how many of each; all of a last chunk that is no longer.
    - `places`: as many places as there are such coefficients, ascending.
    """
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
    """Add a factor times the waves of some coefficients.

    - `out`, shape (n,): updated in place.
    - `places`, shape (k,): coefficients, below n.
    - `values`, shape (k,): what they are.
    - `basis`, `last`: the waves of a chunk and of a shorter last one, one in each row.
    """
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
