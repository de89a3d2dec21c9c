"""Whole trainings in plain numpy, by the equations of the papers: the models of all ranks after every epoch.

The problem is ridge regression on a few rows, the steps are plain ones at a constant rate. Four ranks train for some
epochs, one of them is lost, three go on, and it joins again. A twin has

``epoch(shards)``
    what becomes of the models in an epoch, `shards` being the rows of each rank;
``models``
    those of the ranks, one row each;
``take_over(size)``
    what becomes of all it remembers when there are so many ranks from here on;
``returned()``
    the model that training would return.
"""

from __future__ import annotations

import numpy as np

from reference import compression
from reference import strategies as rules
from reference.asynchronous import Server

RATE, ALPHA = 0.05, 0.02
#: How many ranks there are, and for how many epochs.
GANGS = [(4, 5), (3, 3), (4, 4)]
N_ROWS, N_FEATURES = 24, 5
FIRST = np.zeros(N_FEATURES + 1)


def rows():
    """Return features and targets: the same numbers on every machine, from no generator."""
    grid = np.arange(1, N_ROWS * N_FEATURES + 1).reshape(N_ROWS, N_FEATURES)
    X = np.round(np.sin(grid * grid % 97), 3)
    y = np.round(X @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 0.7 + 0.3 * np.cos(np.arange(N_ROWS)), 3)
    return X, y


def shards_of(size):
    """Return the rows of each rank: as many on each, in order."""
    X, y = rows()
    return list(zip(np.split(X, size), np.split(y, size), strict=True))


def residual(model, X, y):
    """Return predictions less targets."""
    return X @ model[:-1] + model[-1] - y


def penalty(model):
    """Return the gradient of the penalty, which leaves the intercept alone."""
    return ALPHA * np.append(model[:-1], 0.0)


def mean_gradient(model, X, y):
    """Return the mean gradient of the squared error over 2, without the penalty."""
    r = residual(model, X, y)
    return np.append(r @ X, r.sum()) / len(y)


def walk(model, X, y, change=lambda model: model):
    """Return the model after a step on each row, and their mean loss; `change` is applied after every step."""
    losses = []
    for row, target in zip(X, y, strict=True):
        r = residual(model, row, target)
        losses.append(r * r / 2)
        model = change(model - RATE * (r * np.append(row, 1.0) + penalty(model)))
    return model, float(np.mean(losses))


class Averaging:
    """Local steps, and then what a twin of `reference.strategies` makes of the models; `n_rounds` an epoch."""

    def __init__(self, make, n_rounds=lambda epoch: 1):
        self.make, self.n_rounds, self.number = make, n_rounds, 0
        self.size = GANGS[0][0]
        self.models = np.tile(FIRST, (self.size, 1))
        self.rule = make(FIRST, np.full(self.size, 1 / self.size))

    def change(self, rank):
        """Return what becomes of the model of a rank after each step."""
        return lambda model: model

    def epoch(self, shards):
        """Train for an epoch."""
        self.number += 1
        n = self.n_rounds(self.number)
        for k in range(n):
            losses = np.zeros(self.size)
            stepped = self.models.copy()
            length = len(shards[0][1])
            part = slice(length * k // n, length * (k + 1) // n)
            for rank, (X, y) in enumerate(shards):
                stepped[rank], losses[rank] = walk(self.models[rank], X[part], y[part], self.change(rank))
            rates = np.full(self.size, RATE * (part.stop - part.start))
            self.models = self.exchange(stepped, rates, losses)

    def exchange(self, models, rates, losses):
        """Return the models after an exchange."""
        return self.rule.sync(models, rates=rates, losses=losses)

    def take_over(self, size):
        """Let all start from the mean, in gossip from what it keeps, with what all had alike, and means of the rest."""
        mixes = isinstance(self.rule, (rules.Gossip, rules.PushSum, rules.Choco))
        model = self.returned() if mixes else self.models.mean(axis=0)
        self.size, self.models = size, np.tile(model, (size, 1))
        rule, rule.w = self.rule, np.full(size, 1 / size)
        if hasattr(rule, "own"):
            rule.own = np.tile(rule.own.mean(axis=0), (size, 1))
        if hasattr(rule, "public"):
            rule.public = np.tile(rule.public.mean(axis=0), (size, 1))
        if hasattr(rule, "under_way"):
            rule.k = 0
        if hasattr(rule, "z"):
            rule.start(self.models[0])

    def returned(self):
        """Return the model of training."""
        return self.rule.collect(self.models)


class Apart(Averaging):
    """Ranks that average once, at the end."""

    def exchange(self, models, rates, losses):
        """Return the models after no exchange but for the last."""
        ends = self.number == sum(epochs for _, epochs in GANGS)
        return super().exchange(models, rates, losses) if ends else models


class Anytime(Averaging):
    """Rounds that are long enough for all rows, which a rank takes up where its step counter says that it was."""

    steps = 0

    def epoch(self, shards):
        """Train for an epoch."""
        n = len(shards[0][1])
        super().epoch([(np.roll(X, -(self.steps % n), axis=0), np.roll(y, -(self.steps % n))) for X, y in shards])
        self.steps += n


class Controlled(Averaging):
    """SCAFFOLD: every step along ``g - c_p + c``."""

    def change(self, rank):
        """Return the correction of a rank."""
        correction = self.rule.c - self.rule.own[rank]
        return lambda model: model - RATE * correction


class Proximal(Averaging):
    """FedProx: every step is one of gradient and spring, the spring implicitly."""

    def __init__(self, make, mu):
        super().__init__(make)
        self.mu, self.anchor = mu, FIRST

    def change(self, rank):
        """Return the pull of a rank."""
        s = RATE * self.mu
        return lambda model: (model + s * self.anchor) / (1 + s)

    def exchange(self, models, rates, losses):
        """Return the mean, which is the next anchor."""
        models = super().exchange(models, rates, losses)
        self.anchor = models[0]
        return models


class Compressed(Averaging):
    """Differences from the last model in common, summed by `total`."""

    def __init__(self, total):
        self.total, self.number, self.n_rounds = total, 0, lambda epoch: 1
        self.size = GANGS[0][0]
        self.models = np.tile(FIRST, (self.size, 1))
        total.begin(self.size, len(FIRST))

    def exchange(self, models, rates, losses):
        """Return the last model in common and the sum of what is sent."""
        common = self.models[0]
        return np.tile(common + self.total([(model - common) / self.size for model in models]), (self.size, 1))

    def take_over(self, size):
        """Let all start from the model in common; what has not been sent keeps its sum."""
        self.size, self.models = size, np.tile(self.models[0], (size, 1))
        self.total.take_over(size)

    def returned(self):
        """Return the model of training."""
        return self.models[0]


class Outer(Compressed):
    """The same with outer momentum on the sum."""

    def __init__(self, total, rate, beta, nesterov):
        super().__init__(total)
        self.rate, self.beta, self.nesterov, self.u = rate, beta, nesterov, 0 * FIRST

    def exchange(self, models, rates, losses):
        """Return the model after an outer step."""
        delta = self.models[0] - super().exchange(models, rates, losses)[0]
        self.u = self.beta * self.u + delta
        step = delta + self.beta * self.u if self.nesterov else self.u
        return np.tile(self.models[0] - self.rate * step, (self.size, 1))


class Gradients(Compressed):
    """One step of all ranks along the sum of their gradients, by `total`."""

    def epoch(self, shards):
        """Take a step."""
        model = self.models[0]
        g = self.total([mean_gradient(model, X, y) / self.size for X, y in shards])
        self.models = np.tile(model - RATE * (g + penalty(model)), (self.size, 1))


class Served:
    """Workers that take turns around a server; `reference.asynchronous` has what it does with a gradient."""

    def __init__(self, method, n_rounds=2, **options):
        self.method, self.n_rounds, self.options = method, n_rounds, options
        self.model, self.size = FIRST, GANGS[0][0]
        self.take_over(self.size)

    def epoch(self, shards):
        """Let every worker send the gradients of its batches, one after the other, and all get the model."""
        n = self.n_rounds
        for k in range(n):
            for worker, (X, y) in enumerate(shards):
                part = slice(len(y) * k // n, len(y) * (k + 1) // n)
                self.server.gradient = lambda _, model, X=X[part], y=y[part]: mean_gradient(model, X, y)
                options = {name: value(self.size) if callable(value) else value for name, value in self.options.items()}
                self.server.arrive(worker, self.method, **options)
        self.server.settle()
        for worker in range(self.size):
            self.server.hand_out(worker)

    def take_over(self, size):
        """Let a new server go on from the model."""
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

    n_rounds_of = 2

    def __init__(self):
        self.size, self.number = GANGS[0][0], 0
        self.models = np.tile(FIRST, (self.size, 1))
        self.x = FIRST.copy()
        self.begin()

    def begin(self):
        """Begin with a gang."""

    def epoch(self, shards):
        """Train for an epoch."""
        n = self.n_rounds_of
        for k in range(n):
            for worker, (X, y) in enumerate(shards):
                part = slice(len(y) * k // n, len(y) * (k + 1) // n)
                self.models[worker], loss = walk(self.models[worker], X[part], y[part])
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

    def __init__(self, beta):
        self.beta = beta
        super().__init__()

    def meet(self, worker, loss):
        """Pull and be pulled."""
        moved = self.beta / self.size * (self.models[worker] - self.x)
        self.models[worker] = self.models[worker] - moved
        self.x = self.x + moved


class AsyncLeader(Posted):
    """Every worker but the leader itself is pulled to a new leader once."""

    def __init__(self, pull):
        self.pull, self.z, self.version, self.heard = pull, FIRST, 0, None
        super().__init__()

    def begin(self):
        """Begin with messages of nobody."""
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
                self.models[worker] = self.models[worker] + self.pull * (self.z - self.models[worker])

    def returned(self):
        """Return the mean of the models."""
        return self.models.mean(axis=0)


class Pairs(Posted):
    """AD-PSGD of ranks that look one after the other, each finding what those before it have sent."""

    def begin(self):
        """Begin with nothing under way; the count of exchanges goes on."""
        self.count = getattr(self, "count", 0)

    def epoch(self, shards):
        """Train for an epoch, and end what is under way."""
        n, size = -(-len(shards[0][1]) // 3), self.size
        asked, sent, answers = [], {}, {}
        for k in range(n):
            self.count += 1
            for rank, (X, y) in enumerate(shards):
                part = slice(len(y) * k // n, len(y) * (k + 1) // n)
                self.models[rank], _ = walk(self.models[rank], X[part], y[part])
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

    def __init__(self, orders):
        self.orders = orders
        super().__init__()

    def epoch(self, shards):
        """Train for an epoch."""
        for worker in self.orders[self.number]:
            self.models[:], _ = walk(self.models[worker], *shards[worker])
        self.number += 1

    def returned(self):
        """Return the model that all share."""
        return self.models[0]


class Sum:
    """The sum of vectors that travel whole."""

    def begin(self, size, n):
        """Begin with so many ranks."""
        self.size, self.n = size, n
        self.kept = [np.zeros(n) for _ in range(size)]

    def take_over(self, size):
        """Deal out what has not been sent."""
        self.kept = [np.sum(self.kept, axis=0) / size for _ in range(size)]
        self.size = size

    def __call__(self, vectors):
        """Return what comes out."""
        return np.sum(vectors, axis=0)


class Feedback(Sum):
    """Error feedback around what `send` makes of a vector; it takes (vector, rank, round)."""

    def __init__(self, send, decay=1.0):
        self.send, self.decay, self.number = send, decay, 0

    def __call__(self, vectors):
        """Return the sum of what is sent."""
        whole = [self.decay * kept + vector for kept, vector in zip(self.kept, vectors, strict=True)]
        sent = [self.send(vector, rank, self.number) for rank, vector in enumerate(whole)]
        self.kept = [vector - part for vector, part in zip(whole, sent, strict=True)]
        self.number += 1
        return np.sum(sent, axis=0)


class Halved(Feedback):
    """The sum is rounded once more, by the rank whose part it is: so short a vector is one part, of the last rank."""

    def __call__(self, vectors):
        """Return the sum as it is sent."""
        total = super().__call__(vectors)
        sent = self.send(total, len(vectors) - 1, self.number)
        self.kept[-1] = self.kept[-1] + total - sent
        return sent


class Unbiased(Feedback):
    """What is rounded at random is forgotten."""

    def __call__(self, vectors):
        """Return the sum of what is sent."""
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
        """Return the sum of what is sent."""
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
        """Deal out velocities and residuals; clip by the new number of ranks."""
        before = self.ranks
        self.begin(size, len(before[0].velocity))
        for rank in self.ranks:
            rank.velocity = np.sum([each.velocity for each in before], axis=0) / size
            rank.residual = np.sum([each.residual for each in before], axis=0) / size
            rank.seen = before[0].seen

    def __call__(self, vectors):
        """Return the sum of what is sent."""
        return np.sum([rank(vector) for rank, vector in zip(self.ranks, vectors, strict=True)], axis=0)


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


def trajectory(twin):
    """Return the models after every epoch, of all ranks, and the model that training returns."""
    after = []
    for number, (size, epochs) in enumerate(GANGS):
        if number:
            twin.take_over(size)
        for _ in range(epochs):
            twin.epoch(shards_of(size))
            after.append(np.array(twin.models))
    return after, np.array(twin.returned())
