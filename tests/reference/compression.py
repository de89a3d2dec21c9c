"""Compressors in plain numpy: dense vectors in, dense vectors out, nothing packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import fft

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(word: int) -> int:
    """Return the finaliser of splitmix64 with the constants "mix 13"."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def draw(key: int, counter: int) -> int:
    """Return number `counter` of the stream of `key`."""
    return mix64((key + (counter + 1) * GOLDEN) & MASK)


def chances(stream: np.ndarray, n: int) -> np.ndarray:
    """Return n numbers in [0, 1): half a word each."""
    key = draw(int(stream[0]), int(stream[1]))
    return np.array([(draw(key, i // 2) >> (32 * (i % 2))) % 2**32 / 2**32 for i in range(n)])


def top(vector: np.ndarray, k: int) -> np.ndarray:
    """Return a vector with all but its k largest magnitudes set to zero, the lower of two equal ones kept."""
    order = np.lexsort((np.arange(len(vector)), -np.abs(vector)))[:k]
    kept = np.zeros_like(vector)
    kept[order] = vector[order]
    return kept


def buckets(n: int, width: int) -> list[slice]:
    """Return the buckets of a vector."""
    return [slice(first, min(n, first + width)) for first in range(0, n, width)]


def qsgd(vector: np.ndarray, levels: int, width: int, stream: np.ndarray) -> np.ndarray:
    """Return a vector rounded at random to multiples of the norms of its buckets."""
    drawn = chances(stream, len(vector))
    out = np.zeros_like(vector)
    for part in buckets(len(vector), width):
        norm = vector.dtype.type(np.sqrt(np.sum(vector[part].astype(float) ** 2)))
        if norm > 0:
            exact = np.sqrt(np.sum(vector[part].astype(float) ** 2))
            level = np.abs(vector[part].astype(float)) * (levels / exact)
            whole = np.floor(level) + (drawn[part] < level - np.floor(level))
            out[part] = np.sign(vector[part]) * np.minimum(whole, levels) * (float(norm) / levels)
    return out


def ternary(vector: np.ndarray, scale: float, stream: np.ndarray) -> np.ndarray:
    """Return minus one, zero or one for each entry."""
    return np.sign(vector) * (chances(stream, len(vector)) < np.abs(vector.astype(float)) * (1.0 / scale))


def one_bit(vector: np.ndarray, width: int) -> np.ndarray:
    """Return a vector whose entries are one of two means of their bucket."""
    out = np.zeros_like(vector)
    for part in buckets(len(vector), width):
        low = vector[part] < 0
        for side in (low, ~low):
            if side.any():
                out[part][side] = vector[part][side].astype(float).mean()
    return out


def signed(vector: np.ndarray) -> np.ndarray:
    """Return the mean magnitude with the signs, plus for zero."""
    return np.where(vector < 0, -1.0, 1.0) * np.abs(vector.astype(float)).mean()


def brain_float(vector: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to the nearest of 8 bits of precision, ties to even."""
    mantissa, exponent = np.frexp(vector.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def threshold(vector: np.ndarray, quantum: float) -> np.ndarray:
    """Return a quantum, with its sign, for each entry that has reached it."""
    return np.where(np.abs(vector) >= quantum, np.copysign(quantum, vector), 0.0)


def adaptive_threshold(vector: np.ndarray, density: float) -> np.ndarray:
    """Return for the largest of the positive and of the negative entries the mean of each."""
    out = np.zeros_like(vector)
    for sign in (1.0, -1.0):
        side = np.sort((sign * vector)[sign * vector > 0])[::-1]
        if len(side):
            sent = sign * vector >= side[int(np.ceil(density * len(side) - 1e-9)) - 1]
            out[sent] = vector[sent].mean()
    return out


def adacomp(residual: np.ndarray, vector: np.ndarray, width: int) -> np.ndarray:
    """Return the compressed `residual`, which includes the last `vector` already."""
    ahead, parts = residual + vector, buckets(len(vector), width)
    tops = [np.abs(residual[part]).max() for part in parts]
    scale = np.mean([top for top in tops if top > 0]) if any(tops) else 0.0
    out = np.zeros_like(residual)
    for part, largest in zip(parts, tops, strict=True):
        if largest > 0:
            out[part] = np.where(np.abs(ahead[part]) >= largest, np.where(ahead[part] < 0, -scale, scale), 0.0)
    return out


class DeMo:
    """Peng et al. 2024, algorithm 1, on stretches of the vector: the strongest cosines of the momentum, by scipy."""

    def __init__(self, compressor: Any, n: int) -> None:
        self.compressor, self.momentum = compressor, np.zeros(n)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Return the waves that are sent, given the next `vector`."""
        c, sent = self.compressor, np.zeros(len(vector))
        self.momentum = c.decay * self.momentum + vector
        for begin in range(0, len(vector), c.chunk):
            part = slice(begin, begin + c.chunk)
            sent[part] = fft.idct(top(fft.dct(self.momentum[part], norm="ortho"), c.k), norm="ortho")
        self.momentum = self.momentum - sent
        return sent


class DGC:
    """Momentum correction and masking, with clipping."""

    def __init__(self, compressor: Any, n: int, size: int) -> None:
        self.compressor, self.size = compressor, size
        self.velocity, self.residual, self.seen = np.zeros(n), np.zeros(n), 0

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Return the compressed vector, given the next `vector`."""
        c = self.compressor
        if c.clip is not None:
            vector = vector * min(1.0, c.clip * self.size**-1.5 / np.linalg.norm(vector))
        if c.nesterov:
            self.velocity = c.momentum * (self.velocity + vector)
            self.residual = self.residual + self.velocity + vector
        else:
            self.velocity = c.momentum * self.velocity + vector
            self.residual = self.residual + self.velocity
        stage = self.seen // c.warm_up_rounds
        density = c.warm_up[stage] if stage < len(c.warm_up) else c.density
        self.seen += 1
        sent = top(self.residual, int(np.ceil(density * len(vector))))
        self.residual[sent != 0] = 0
        if c.masking:
            self.velocity[sent != 0] = 0
        return sent


def power_mean(matrices: list[np.ndarray], right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of matrices as PowerSGD has it, and the next row factors; `right` is (r, columns)."""
    mean = np.mean(matrices, axis=0)
    left, _ = np.linalg.qr(mean @ right.T)
    factors = left.T @ mean
    return left @ factors, factors


def gtopk(vectors: list[np.ndarray], k: int, policy: str, route: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return what all ranks apply and what each keeps, from what each has to send (dense)."""
    own = [top(vector, k) for vector in vectors]
    kept = [vector - sent for vector, sent in zip(vectors, own, strict=True)]
    held = {rank: sent.copy() for rank, sent in enumerate(own)}
    size = len(vectors)

    def merge(rank: int, upper: int) -> None:
        total = held[rank] + held[upper]
        held[rank] = top(total, k)
        if policy == "conserving":
            kept[rank] += total - held[rank]

    ranks = list(range(size))
    if route == "butterfly":
        folded = size - 2 ** int(np.log2(size))
        for pair in range(folded):
            merge(2 * pair, 2 * pair + 1)
        ranks = [2 * pair for pair in range(folded)] + list(range(2 * folded, size))
    while len(ranks) > 1:
        for lower, upper in zip(ranks[::2], ranks[1::2], strict=False):
            merge(lower, upper)
        ranks = ranks[::2]
    if policy == "put-back":
        for rank, sent in enumerate(own):
            kept[rank] += np.where(held[0] == 0, sent, 0.0)
    return held[0], kept
