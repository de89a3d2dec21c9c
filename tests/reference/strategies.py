"""Synchronisation strategies in plain numpy: what becomes of the models of all ranks, one row each.

A twin is made of the strategy, the first model and the weights of the ranks; ``sync(models)`` returns the models after
an exchange, ``collect(models)`` the one that training returns. ``rates`` and ``losses`` are what ranks did in between.
"""

from __future__ import annotations

import numpy as np


def mixing(topology, size, k):
    """Return W of round k from the peers alone: Metropolis weights on undirected graphs, equal shares otherwise."""
    out = [set(topology.out_peers(i, size, k)) for i in range(size)]
    W = np.zeros((size, size))
    for i in range(size):
        for j in out[i]:
            W[j, i] = 1 / (1 + max(len(out[i]), len(out[j]))) if topology.symmetric else 1 / (1 + len(out[i]))
    return W + np.diag(1 - W.sum(axis=0))


def shares(topology, size, k):
    """Return the column-stochastic matrix in which every rank cuts what it has into equal parts."""
    W = np.zeros((size, size))
    for i in range(size):
        peers = [i, *topology.out_peers(i, size, k)]
        W[peers, i] = 1 / len(peers)
    return W


class Mean:
    """The weighted mean."""

    def __init__(self, strategy, first, weights):
        self.s, self.w, self.k = strategy, np.asarray(weights), 0
        self.start(np.array(first, dtype=float))

    def start(self, first):
        """Begin at a model."""

    def mean(self, models):
        """Return the weighted mean."""
        return self.w @ models

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        return np.tile(self.mean(models), (len(models), 1))

    def collect(self, models):
        """Return the model of training."""
        return models[0]


class Elastic(Mean):
    """Springs to a centre."""

    def start(self, first):
        """Begin at a model."""
        self.centre = first

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        pulled = models - (self.s.beta * self.w)[:, None] * (models - self.centre)
        self.centre = (1 - self.s.beta) * self.centre + self.s.beta * self.mean(models)
        return pulled

    def collect(self, models):
        """Return the model of training."""
        return self.centre


class Outer(Mean):
    """An outer step with momentum."""

    def __init__(self, strategy, first, weights, rate, beta, nesterov):
        self.rate, self.beta, self.nesterov = rate, beta, nesterov
        super().__init__(strategy, first, weights)

    def start(self, first):
        """Begin at a model."""
        self.x, self.u = first, 0 * first

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        delta = self.x - self.mean(models)
        self.u = self.beta * self.u + delta
        self.x = self.x - self.rate * (delta + self.beta * self.u if self.nesterov else self.u)
        return np.tile(self.x, (len(models), 1))


class Control(Mean):
    """Control variates; the models are those after corrected steps."""

    def start(self, first):
        """Begin at a model."""
        self.x, self.c, self.own = first, 0 * first, np.zeros((len(self.w), len(first)))

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        self.own = self.own - self.c + (self.x - models) / rates[:, None]
        self.x = self.x + self.s.rate * (self.mean(models) - self.x)
        self.c = self.mean(self.own)
        return np.tile(self.x, (len(models), 1))


class Leader(Mean):
    """Pulls to the best ranks."""

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        n, size = min(self.s.n_groups, len(models)), len(models)
        self.k, self.best = self.k + 1, int(np.argmin(losses))
        models = models.copy()
        if n > 1:
            for g in range(n):
                members = [r for r in range(size) if r * n // size == g]
                leader = models[members[int(np.argmin(losses[members]))]].copy()
                models[members] += self.s.pull * (leader - models[members])
        if n == 1 or self.k % self.s.global_every == 0:
            models += self.s.global_pull * (models[self.best].copy() - models)
        return models

    def collect(self, models):
        """Return the model of training."""
        return self.mean(models)


class Gossip(Mean):
    """Averages with neighbours."""

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        self.k += 1
        return mixing(self.s.topology, len(models), self.k - 1) @ models

    def collect(self, models):
        """Return the model of training."""
        return models.mean(axis=0)


class PushSum(Mean):
    """Masses and weights over a directed graph."""

    def start(self, first):
        """Begin at a model."""
        self.weight = np.ones(len(self.w))

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        W = shares(self.s.topology, len(models), self.k)
        mass, self.weight, self.k = W @ (self.weight[:, None] * models), W @ self.weight, self.k + 1
        return mass / self.weight[:, None]

    def collect(self, models):
        """Return the model of training."""
        return self.weight @ models / self.weight.sum()


class LatePushSum(Mean):
    """Masses and weights over a directed graph, of which what is sent arrives some rounds later."""

    def start(self, first):
        """Begin at a model."""
        self.weight, self.under_way = np.ones(len(self.w)), []

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        W = shares(self.s.topology, len(models), self.k)
        own = np.diag(W)
        mass = self.weight[:, None] * models
        self.under_way.append(((W - np.diag(own)) @ mass, (W - np.diag(own)) @ self.weight))
        mass, self.weight, self.k = own[:, None] * mass, own * self.weight, self.k + 1
        if self.k > self.s.delay:
            late, weight = self.under_way.pop(0)
            mass, self.weight = mass + late, self.weight + weight
        return mass / self.weight[:, None]

    def collect(self, models):
        """Return the model of training."""
        mass, weight = self.weight @ models, self.weight.sum()
        for late, of_late in self.under_way:
            mass, weight = mass + late.sum(axis=0), weight + of_late.sum()
        return mass / weight


class Choco(Mean):
    """Gossip of the largest entries of differences from public copies."""

    def start(self, first):
        """Begin at a model."""
        self.public = np.tile(first, (len(self.w), 1))

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        W = mixing(self.s.topology, len(models), 0)
        difference = models - self.public
        k = int(np.ceil(self.s.compressor.density * models.shape[1]))
        for row in difference:
            row[np.argsort(-np.abs(row))[k:]] = 0.0
        self.public = self.public + difference
        return models + self.s.gamma * (W @ self.public - self.public)

    def collect(self, models):
        """Return the model of training."""
        return models.mean(axis=0)
