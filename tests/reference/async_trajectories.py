"""Whole trainings whose ranks take turns instead of meeting: servers, pairs and threads on one model.

Twins as in `reference.trajectories`, in plain numpy, by the equations of the papers.
"""

from __future__ import annotations

import numpy as np

from reference import compression
from reference.asynchronous import Server
from reference.trajectories import EVERY, FIRST, GANGS, RATE, Averaging, mean_gradient, parts_of, penalty, walk


class Served:
    """Workers that take turns around a server; `reference.asynchronous` has what it does with a gradient."""

    def __init__(self, strategy, rule, method, **options):
        self.method, self.options = method, options
        self.take_over(GANGS[0][0])

    def epoch(self, shards):
        """Let every worker send the gradients of its batches, one after the other, and all get the model."""
        n = len(shards[0][1])
        for part in parts_of(n, -(-n // EVERY)):
            for worker, (X, y) in enumerate(shards):
                self.server.gradient = lambda _, model, X=X[part], y=y[part]: mean_gradient(model, X, y)
                options = {name: value(self.size) if callable(value) else value for name, value in self.options.items()}
                self.server.arrive(worker, self.method, **options)
        self.server.settle()
        for worker in range(self.size):
            self.server.hand_out(worker)

    def take_over(self, size):
        """Let a new server continue from the model."""
        before = getattr(self, "server", None)
        self.size = size
        self.server = Ridge(FIRST if before is None else before.x, size, RATE, None)

    @property
    def models(self):
        """The model that all get at the end of an epoch."""
        return np.tile(self.server.x, (self.size, 1))

    def returned(self):
        """Return the model of the server."""
        return self.server.x


class Ridge(Server):
    """A server whose steps have the penalty, at the model as it is, and at the rate of the step."""

    def step(self, g, share=1.0):
        """Take a step along the gradient, the penalty at so much of the rate."""
        super().step(g + share * penalty(self.x))


class Posted(Averaging):
    """Workers with models of their own and a server, which take turns after every round."""

    def __init__(self, strategy, rule):
        self.x = FIRST.copy()
        super().__init__(strategy, rule)

    def epoch(self, shards):
        """Train for an epoch."""
        parts = self.parts(len(shards[0][1]))
        self.n_rounds = len(parts)
        for part in parts:
            for worker, (X, y) in enumerate(shards):
                self.models[worker], loss = self.walk(worker, X[part], y[part])
                self.meet(worker, loss)
        self.settle()

    def settle(self):
        """End an epoch."""

    def take_over(self, size):
        """Let all start from the mean of the models."""
        self.size, self.models = size, np.tile(self.models.mean(axis=0), (size, 1))
        self.begin()

    def returned(self):
        """Return the model of the server."""
        return self.x


class Downpour(Posted):
    """Workers pour what they have changed, less than all of it, into the model of the server."""

    def begin(self):
        """Take the models of the server for those that changes are from."""
        self.base = self.models.copy()
        late = self.size - 1
        self.share = (late / self.size) ** late / self.size

    def meet(self, worker, loss):
        """Pour, and fetch."""
        self.x = self.x + self.share * (self.models[worker] - self.base[worker])
        self.models[worker] = self.base[worker] = self.x

    def settle(self):
        """Let all fetch."""
        self.models[:] = self.base[:] = self.x


class AsyncElastic(Posted):
    """A worker and the centre pull each other."""

    def meet(self, worker, loss):
        """Pull and be pulled."""
        moved = self.s.beta / self.size * (self.models[worker] - self.x)
        self.models[worker] = self.models[worker] - moved
        self.x = self.x + moved


class AsyncConsensus(Posted):
    """Workers are answered at once with the consensus of what all have sent last."""

    def begin(self):
        """Begin without prices."""
        self.known = np.tile(self.x, (self.size, 1))
        self.told, self.dual = self.known.copy(), 0 * self.known

    def change(self, worker, model, rows):
        """Return the model after the pull of a worker."""
        s, goal = RATE * rows * self.s.rho, self.known[worker] - self.dual[worker]
        return (model + s * goal) / (1 + s)

    def meet(self, worker, loss):
        """Send model and price, and raise the price."""
        said = self.models[worker] + self.dual[worker]
        self.x = self.x + (said - self.told[worker]) / self.size
        self.told[worker] = said
        self.known[worker] = self.x
        self.dual[worker] = said - self.x

    def settle(self):
        """Let all know the consensus."""
        self.known[:] = self.x


class AsyncLeader(Posted):
    """Every worker but the leader itself is pulled to a new leader once."""

    z, version, heard = FIRST, 0, None

    def begin(self):
        """Begin without messages."""
        self.messages = []
        if self.heard is None:
            self.heard = [0] * self.size
        else:
            # A new server has no leader but the first worker's model and the count that worker has heard of.
            self.z, self.version = self.models[0].copy(), self.heard[0]
            self.heard = [self.heard[0]] * self.size
        self.author = -1

    def meet(self, worker, loss):
        """Send model and loss, and follow."""
        self.messages.append((loss, worker, self.models[worker].copy()))
        if len(self.messages) == self.size:
            _, self.author, self.z = min(self.messages, key=lambda message: message[0])
            self.version, self.messages = self.version + 1, []
        if self.heard[worker] != self.version:
            self.heard[worker] = self.version
            if worker != self.author:
                self.models[worker] = self.models[worker] + self.s.pull * (self.z - self.models[worker])

    def returned(self):
        """Return the mean of the models."""
        return self.models.mean(axis=0)


class Decoupled(Posted):
    """A server that takes Nesterov steps with the changes of a quorum, which wait for it."""

    def begin(self):
        """Begin without momentum."""
        self.x, self.base, self.u, self.number = self.models[0].copy(), self.models.copy(), 0 * FIRST, 0
        self.waiting, self.sum, self.sent = [], 0 * FIRST, [0] * self.size

    def meet(self, worker, loss):
        """Send what has changed."""
        self.sum = self.sum + (self.base[worker] - self.models[worker])
        self.waiting.append(worker)
        self.sent[worker] += 1
        come = sum(self.sent[w] < self.n_rounds for w in range(self.size) if w not in self.waiting)
        if len(self.waiting) >= min(self.s.wanted(self.size), len(self.waiting) + come):
            g = self.sum / self.size
            self.u = self.s.outer_momentum * self.u + g
            self.x = self.x - self.s.outer_rate * (g + self.s.outer_momentum * self.u)
            self.models[self.waiting] = self.base[self.waiting] = self.x
            self.waiting, self.sum = [], 0 * FIRST

    def settle(self):
        """Give all the model."""
        self.models[:] = self.base[:] = self.x
        self.sent = [0] * self.size


class AsyncLeaders(Posted):
    """Teng et al. 2019, algorithm 1: leaders of groups when the common counter is full, now and then one of all."""

    heard = None

    def begin(self):
        """Begin without messages and leaders, with the count that the first worker has heard of."""
        self.messages, self.author, self.z = [], None, None
        self.leaders = {}
        self.version = self.heard[0] if self.heard else 0
        self.heard = [self.version] * self.size

    def meet(self, worker, loss):
        """Send model and loss, and follow."""
        n, every, group = self.s.n_groups, self.s.global_every, worker * self.s.n_groups // self.size
        self.messages.append((loss, worker, self.models[worker].copy()))
        if len(self.messages) == self.size:
            self.version += 1
            for g in range(n):
                own = [message for message in self.messages if message[1] * n // self.size == g]
                if own:
                    self.leaders[g] = min(own, key=lambda message: message[0])[1:]
            if self.version % every == 0:
                self.author, self.z = min(self.messages, key=lambda message: message[0])[1:]
            self.messages = []
        before, self.heard[worker] = self.heard[worker], self.version
        if before == self.version:
            return
        author, leader = self.leaders[group]
        if author != worker:
            self.models[worker] = self.models[worker] + self.s.pull * (leader - self.models[worker])
        if self.version // every > before // every and self.author != worker:
            self.models[worker] = self.models[worker] + self.s.global_pull * (self.z - self.models[worker])

    def returned(self):
        """Return the mean of the models."""
        return self.models.mean(axis=0)


class Pairs(Posted):
    """AD-PSGD of ranks that look one after the other, each finding what those before it have sent."""

    def begin(self):
        """Begin with nothing under way; the count of exchanges continues."""
        self.count = getattr(self, "count", 0)

    def epoch(self, shards):
        """Train for an epoch, and end what is under way."""
        size = self.size
        asked, sent, answers = [], {}, {}
        for part in self.parts(len(shards[0][1])):
            self.count += 1
            for rank, (X, y) in enumerate(shards):
                self.models[rank], _ = self.walk(rank, X[part], y[part])
                if rank % 2:
                    for active, passive in [each for each in asked if each[1] == rank]:
                        answers[active] = self.hear(passive, sent[active])
                        asked.remove((active, passive))
                    continue
                if rank in answers:
                    self.add(rank, sent.pop(rank), answers.pop(rank))
                if rank not in sent:
                    key = compression.mix64(0) ^ rank
                    asked.append((rank, 1 + 2 * (compression.draw(key, self.count) % (size // 2))))
                    sent[rank] = self.models[rank].copy()
        for active, passive in asked:
            answers[active] = self.hear(passive, sent[active])
        for active in sent:
            self.add(active, sent[active], answers[active])

    def hear(self, passive, theirs):
        """Return the model of a passive rank, which takes the mean."""
        own = self.models[passive].copy()
        self.models[passive] = (own + theirs) / 2
        return own

    def add(self, active, sent, theirs):
        """Add what an active rank has missed."""
        self.models[active] = self.models[active] + (theirs - sent) / 2

    def returned(self):
        """Return the mean of the models."""
        return self.models.mean(axis=0)


class Serial(Posted):
    """Hogwild whose threads run one after the other, in a given order in every epoch, on rows without zeros."""

    def __init__(self, strategy, rule, orders):
        self.orders = orders
        super().__init__(strategy, rule)

    def epoch(self, shards):
        """Train for an epoch."""
        for worker in self.orders[self.number]:
            self.models[:], _ = walk(self.models[worker], *shards[worker])
        self.number += 1

    def returned(self):
        """Return the model that all share."""
        return self.models[0]
