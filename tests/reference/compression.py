"""Compressors in plain numpy, nothing packed, and the sums over ranks that they make, with what ranks remember."""

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


class Sum:
    """The sum of whole vectors."""

    def begin(self, size, n):
        """Begin with so many ranks."""
        self.size, self.n = size, n
        self.kept = [np.zeros(n) for _ in range(size)]

    def take_over(self, size):
        """Give each rank an equal share of what has not been sent."""
        self.kept = [np.sum(self.kept, axis=0) / size for _ in range(size)]
        self.size = size

    def __call__(self, vectors):
        """Return the sum."""
        return np.sum(vectors, axis=0)


class Feedback(Sum):
    """Error feedback around `send`, which takes (vector, rank, round) and returns the compressed vector."""

    def __init__(self, send, decay=1.0):
        self.send, self.decay, self.number = send, decay, 0

    def __call__(self, vectors):
        """Return the sum of the compressed vectors."""
        whole = [self.decay * kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        sent = [self.send(vector, rank, self.number) for rank, vector in enumerate(whole)]
        self.kept = [vector - part for vector, part in zip(whole, sent, strict=True)]
        self.number += 1
        return np.sum(sent, axis=0)


class Halved(Feedback):
    """The sum is rounded once more, by the rank whose part it is: so short a vector is one part, of the last rank."""

    def __call__(self, vectors):
        """Return the rounded sum."""
        total = super().__call__(vectors)
        sent = self.send(total, len(vectors) - 1, self.number)
        self.kept[-1] = self.kept[-1] + total - sent
        return sent


class Unbiased(Feedback):
    """Unbiased compression, without memory."""

    def __call__(self, vectors):
        """Return the sum of the compressed vectors."""
        sent = [self.send(vector, rank, self.number) for rank, vector in enumerate(vectors)]
        self.number += 1
        return np.sum(sent, axis=0)


class Merged(Sum):
    """gTop-k."""

    def __init__(self, k, policy, route):
        self.k, self.policy, self.route = k, policy, route

    def __call__(self, vectors):
        """Return what the merges leave."""
        whole = [kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        total, self.kept = gtopk(whole, self.k, self.policy, self.route)
        return total


class Adaptive(Sum):
    """AdaComp."""

    def __init__(self, width):
        self.width = width

    def __call__(self, vectors):
        """Return the sum of the compressed vectors."""
        whole = [kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        sent = [adacomp(a, v, self.width) for a, v in zip(whole, vectors, strict=True)]
        self.kept = [a - part for a, part in zip(whole, sent, strict=True)]
        return np.sum(sent, axis=0)


class Deep(Sum):
    """Deep gradient compression on every rank."""

    def __init__(self, compressor):
        self.compressor = compressor

    def begin(self, size, n):
        """Begin with so many ranks."""
        self.ranks = [DGC(self.compressor, n, size) for _ in range(size)]

    def take_over(self, size):
        """Give each rank an equal share of velocities and residuals; clip by the new number of ranks."""
        before = self.ranks
        self.begin(size, len(before[0].velocity))
        for rank in self.ranks:
            rank.velocity = np.sum([each.velocity for each in before], axis=0) / size
            rank.residual = np.sum([each.residual for each in before], axis=0) / size
            rank.seen = before[0].seen

    def __call__(self, vectors):
        """Return the sum of the compressed vectors."""
        return np.sum([rank(vector) for rank, vector in zip(self.ranks, vectors, strict=True)], axis=0)


class Decoupled(Sum):
    """Decoupled momentum on every rank, and the sign of the sum."""

    def __init__(self, compressor):
        self.compressor = compressor

    def begin(self, size, n):
        """Begin with so many ranks."""
        self.ranks = [DeMo(self.compressor, n) for _ in range(size)]

    def take_over(self, size):
        """Give each rank an equal share of the momentum."""
        momentum = np.sum([rank.momentum for rank in self.ranks], axis=0) / size
        self.begin(size, len(momentum))
        for rank in self.ranks:
            rank.momentum = momentum.copy()

    def __call__(self, vectors):
        """Return the sum of what is sent, or its sign."""
        total = np.sum([rank(vector) for rank, vector in zip(self.ranks, vectors, strict=True)], axis=0)
        return total if self.compressor.magnitude is None else self.compressor.magnitude * np.sign(total)


class Vote(Sum):
    """Signum by majority: a tie is plus."""

    def __init__(self, momentum, magnitude):
        self.momentum, self.magnitude = momentum, magnitude

    def __call__(self, vectors):
        """Return the sign that most have sent."""
        self.kept = [self.momentum * u + (1 - self.momentum) * v for u, v in zip(self.kept, vectors, strict=True)]
        votes = np.sum([np.where(u < 0, -1, 1) for u in self.kept], axis=0)
        return self.magnitude * np.where(votes < 0, -1.0, 1.0)


class LowRank(Sum):
    """PowerSGD with feedback: one step of subspace iteration on the sum of the ranks' matrices."""

    def __init__(self, right):
        self.right = right

    def __call__(self, vectors):
        """Return the sum of matrices of low rank."""
        whole = [kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        n_columns = self.right.shape[1]
        matrices = [vector.reshape(-1, n_columns) for vector in whole]
        left, _ = np.linalg.qr(np.sum(matrices, axis=0) @ self.right.T)
        sent = [left @ (left.T @ matrix) for matrix in matrices]
        self.right = left.T @ np.sum(matrices, axis=0)
        self.kept = [vector - part.reshape(-1) for vector, part in zip(whole, sent, strict=True)]
        return np.sum(sent, axis=0).reshape(-1)
