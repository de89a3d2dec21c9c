"""Sums over ranks of compressed vectors in plain numpy, with what ranks remember from one vector to the next."""

from __future__ import annotations

import numpy as np

from reference import compression


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
        total, self.kept = compression.gtopk(whole, self.k, self.policy, self.route)
        return total


class Adaptive(Sum):
    """AdaComp."""

    def __init__(self, width):
        self.width = width

    def __call__(self, vectors):
        """Return the sum of the compressed vectors."""
        whole = [kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        sent = [compression.adacomp(a, v, self.width) for a, v in zip(whole, vectors, strict=True)]
        self.kept = [a - part for a, part in zip(whole, sent, strict=True)]
        return np.sum(sent, axis=0)


class Deep(Sum):
    """Deep gradient compression on every rank."""

    def __init__(self, compressor):
        self.compressor = compressor

    def begin(self, size, n):
        """Begin with so many ranks."""
        self.ranks = [compression.DGC(self.compressor, n, size) for _ in range(size)]

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
        self.ranks = [compression.DeMo(self.compressor, n) for _ in range(size)]

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
