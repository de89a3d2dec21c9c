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
    """Springs to a centre: Zhang, Choromanska and LeCun 2015, equations 2 and 3, with alpha = beta / P."""

    def start(self, first):
        """Begin at a model."""
        self.centre = first

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        pulled = models - self.s.beta / len(models) * (models - self.centre)
        self.centre = (1 - self.s.beta) * self.centre + self.s.beta * models.mean(axis=0)
        return pulled

    def collect(self, models):
        """Return the model of training."""
        return self.centre


class Consensus(Mean):
    """Consensus ADMM in scaled form: Boyd et al. 2011, section 7.1; the models are those after local steps."""

    def start(self, first):
        """Begin at a model."""
        self.consensus, self.dual = first, np.zeros((len(self.w), len(first)))

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange, which are those before it."""
        self.consensus = self.mean(models + self.dual)
        self.dual = self.dual + models - self.consensus
        return models

    def collect(self, models):
        """Return the model of training."""
        return self.consensus


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


class Streaming(Outer):
    """Outer steps of one fragment after the other, taken up some rounds later: Douillard et al. 2025, algorithm 2."""

    def __init__(self, strategy, first, weights):
        self.late = []
        super().__init__(strategy, first, weights, strategy.outer_rate, strategy.outer_momentum, True)

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        n, F = len(self.x), min(self.s.fragments, len(self.x))
        f = np.arange(n)[n * (self.k % F) // F : n * (self.k % F + 1) // F]
        models = self.take_up(models.copy())
        delta = self.x[f] - self.mean(models[:, f])
        self.u[f] = self.beta * self.u[f] + delta
        self.x[f] -= self.rate * (delta + self.beta * self.u[f])
        self.late.append((self.k + self.s.delay, f, self.x[f].copy()))
        models = self.take_up(models)
        self.k += 1
        return models

    def take_up(self, models):
        """Return models with what is due."""
        due = [late for late in self.late if late[0] == self.k]
        self.late = [late for late in self.late if late[0] > self.k]
        for _, f, common in due:
            models[:, f] = (1 - self.s.mixing) * common + self.s.mixing * models[:, f]
        return models

    def collect(self, models):
        """Return the model of training."""
        return self.mean(models)


class Eager(Outer):
    """Every rank with an outer optimiser of its own, fed its fresh change and stale ones: Kale et al. 2025."""

    def __init__(self, strategy, first, weights):
        super().__init__(strategy, first, weights, strategy.outer_rate, strategy.outer_momentum, True)

    def start(self, first):
        """Begin at a model."""
        self.x = np.tile(first, (len(self.w), 1))
        self.u, self.change, self.stale = 0 * first, 0 * self.x, 0 * self.x

    def take_over(self, models):
        """Go on from models of other ranks, with the mean momentum and what has not come in yet of all changes."""
        self.u, self.x, self.stale = self.u.mean(axis=0), models, 0 * models + self.stale.mean(axis=0)

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        self.change = self.w[:, None] * (self.x - models)
        g = self.change + self.stale
        self.u = self.beta * self.u + g
        self.x = self.x - self.rate * (g + self.beta * self.u)
        self.stale = self.change.sum(axis=0) - self.change
        return self.x

    def collect(self, models):
        """Return the model of training."""
        return self.mean(models - self.rate * (1 + self.beta) * self.stale)


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
    """Assran et al. 2019, algorithm 1: x is the mass, w its weight, z = x / w; steps along gradients at z change x."""

    def start(self, first):
        """Begin at a model."""
        self.w, self.x = np.ones(len(self.w)), np.tile(first, (len(self.w), 1))
        self.z = self.x.copy()

    def step(self, models):
        """Take the local steps, which led from z to these models, on the masses."""
        self.x = self.x + (models - self.z)

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        self.step(models)
        P = shares(self.s.topology, len(models), self.k)
        self.x, self.w, self.k = P @ self.x, P @ self.w, self.k + 1
        self.z = self.x / self.w[:, None]
        return self.z

    def collect(self, models):
        """Return the model of training."""
        return self.x.sum(axis=0) / self.w.sum()


class LatePushSum(PushSum):
    """Algorithm 2: messages arrive some rounds later; at first as many are under way as if there always had been."""

    def start(self, first):
        """Begin at a model."""
        size, delay = len(self.w), self.s.delay
        graphs = [shares(self.s.topology, size, k) for k in range(delay)]
        self.w = 1 / (1 + sum(1 - np.diag(P) for P in graphs))
        on_way = [(P - np.diag(np.diag(P))) @ self.w for P in graphs]
        np.testing.assert_allclose(self.w.sum() + np.sum(on_way), size)
        self.under_way = [(np.outer(w, first), w) for w in on_way]
        self.x = np.outer(self.w, first)
        self.z = np.tile(first, (size, 1))

    def sync(self, models, rates=None, losses=None):
        """Return the models after an exchange."""
        self.step(models)
        P = shares(self.s.topology, len(models), self.k)
        own = np.diag(np.diag(P))
        self.under_way.append(((P - own) @ self.x, (P - own) @ self.w))
        late, weight = self.under_way.pop(0)
        self.x, self.w, self.k = own @ self.x + late, own @ self.w + weight, self.k + 1
        self.z = self.x / self.w[:, None]
        return self.z

    def collect(self, models):
        """Return the model of training."""
        return (self.x.sum(axis=0) + sum(x.sum(axis=0) for x, _ in self.under_way)) / len(self.w)


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
