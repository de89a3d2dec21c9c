"""Whole trainings in plain numpy, by the equations of the papers: the models of all ranks after every epoch.

The problem is ridge regression on a few rows, the steps are plain ones at a constant rate. Four ranks train for some
epochs, one of them is lost, three continue, and it joins again. A twin is made of the strategy and, where all ranks
exchange together, of the twin of its exchange; it has

``epoch(shards)``
    trains for an epoch, `shards` being the rows of each rank;
``models``
    the models of the ranks, one row each;
``take_over(size)``
    hands its state over to a new number of ranks;
``returned()``
    the model that training would return.

Here are the strategies whose ranks exchange together; `reference.async_trajectories` has those with servers, mailboxes
or shared memory, `reference.compression` the sums of compressed vectors.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from reference import compression as sums
from reference import strategies as rules

RATE, ALPHA = 0.05, 0.02
#: How many ranks there are, and for how many epochs.
GANGS = [(4, 5), (3, 3), (4, 4)]
N_ROWS, N_FEATURES = 48, 5
#: Rows between two exchanges.
EVERY = 8
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


def walk(model, X, y, change=lambda model, rows: model, stretch=1):
    """Return the model after a step on each row, and their mean loss; `change` is applied after every stretch."""
    losses, n = [], len(y)
    for k, (row, target) in enumerate(zip(X, y, strict=True)):
        r = residual(model, row, target)
        losses.append(r * r / 2)
        model = model - RATE * (r * np.append(row, 1.0) + penalty(model))
        if (k + 1) % stretch == 0 or k + 1 == n:
            model = change(model, k % stretch + 1)
    return model, float(np.mean(losses))


def parts_of(n_rows, n_rounds):
    """Return the rows of each of so many rounds, as equal as can be."""
    return [slice(n_rows * k // n_rounds, n_rows * (k + 1) // n_rounds) for k in range(n_rounds)]


class Averaging:
    """Local steps, and then what a twin of `reference.strategies` makes of the models."""

    def __init__(self, strategy, rule):
        self.s, self.number, self.size = strategy, 0, GANGS[0][0]
        self.models = np.tile(FIRST, (self.size, 1))
        self.rule = rule and rule(strategy, FIRST, np.full(self.size, 1 / self.size))
        self.begin()

    def begin(self):
        """Begin to train."""

    def parts(self, n_rows):
        """Return the rows of each round of an epoch."""
        return parts_of(n_rows, -(-n_rows // EVERY))

    def change(self, rank, model, rows):
        """Return what becomes of the model of a rank after steps on so many rows."""
        return model

    def walk(self, rank, X, y):
        """Let a rank take its steps, and return its model and loss."""
        return walk(self.models[rank], X, y, partial(self.change, rank), getattr(self.s, "stretch", None) or 1)

    def epoch(self, shards):
        """Train for an epoch."""
        self.number += 1
        for part in self.parts(len(shards[0][1])):
            stepped = [self.walk(rank, X[part], y[part]) for rank, (X, y) in enumerate(shards)]
            models, losses = map(np.array, zip(*stepped, strict=True))
            rates = np.full(self.size, RATE * (part.stop - part.start))
            self.models = self.exchange(models, rates, losses)

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
        if isinstance(rule, rules.Eager):
            rule.take_over(self.models)
        if hasattr(rule, "public"):
            rule.public = np.tile(rule.public.mean(axis=0), (size, 1))
        if hasattr(rule, "under_way"):
            rule.k = 0
        if hasattr(rule, "z"):
            rule.start(self.models[0])

    def returned(self):
        """Return the model of training."""
        return self.rule.collect(self.models)


class Often(Averaging):
    """Post-local SGD: first an exchange after every short round, later after every so many of them, and at the end."""

    def parts(self, n_rows):
        """Return the rows of each round of an epoch."""
        short = parts_of(n_rows, -(-n_rows // self.s.first))
        many = 1 if self.number <= self.s.epochs else self.s.every // self.s.first
        together = [short[k : k + many] for k in range(0, len(short), many)]
        return [slice(parts[0].start, parts[-1].stop) for parts in together]


class Seldom(Averaging):
    """One round an epoch."""

    def parts(self, n_rows):
        """Return all rows."""
        return [slice(0, n_rows)]


class Apart(Seldom):
    """Ranks that average once, at the end."""

    def exchange(self, models, rates, losses):
        """Return the models after no exchange but for the last."""
        ends = self.number == sum(epochs for _, epochs in GANGS)
        return super().exchange(models, rates, losses) if ends else models


class Anytime(Seldom):
    """Rounds that are long enough for all rows, which a rank takes up where its step counter says that it was."""

    steps = 0

    def epoch(self, shards):
        """Train for an epoch."""
        n = len(shards[0][1])
        super().epoch([(np.roll(X, -(self.steps % n), axis=0), np.roll(y, -(self.steps % n))) for X, y in shards])
        self.steps += n


class Controlled(Averaging):
    """SCAFFOLD: every step along ``g - c_p + c``."""

    def change(self, rank, model, rows):
        """Return the model after the correction of a rank."""
        return model - RATE * rows * (self.rule.c - self.rule.own[rank])


class Proximal(Averaging):
    """FedProx: every step is one of gradient and spring, the spring implicitly."""

    def begin(self):
        """Begin to train."""
        self.anchor = FIRST

    def change(self, rank, model, rows):
        """Return the model after the pull of a rank."""
        s = RATE * rows * self.s.mu
        return (model + s * self.anchor) / (1 + s)

    def exchange(self, models, rates, losses):
        """Return the mean, which is the next anchor."""
        models = super().exchange(models, rates, losses)
        self.anchor = models[0]
        return models


class Priced(Averaging):
    """Consensus ADMM: every step is one of gradient and spring to where the rank would agree, implicitly."""

    def change(self, rank, model, rows):
        """Return the model after the pull of a rank."""
        s, goal = RATE * rows * self.s.rho, self.rule.consensus - self.rule.dual[rank]
        return (model + s * goal) / (1 + s)

    def take_over(self, size):
        """Let all start from the mean of the models, without prices."""
        super().take_over(size)
        self.rule.dual = np.zeros((size, len(FIRST)))


class Compressed(Averaging):
    """Differences from the last model in common, summed by what `total` makes."""

    def __init__(self, strategy, rule, total=sums.Sum):
        super().__init__(strategy, None)
        self.total = total()
        self.total.begin(self.size, len(FIRST))

    def exchange(self, models, rates, losses):
        """Return the last common model plus the sum of the compressed differences."""
        common = self.models[0]
        return np.tile(common + self.total([(model - common) / self.size for model in models]), (self.size, 1))

    def take_over(self, size):
        """Let all start from the model in common; what has not been sent keeps its sum."""
        self.size, self.models = size, np.tile(self.models[0], (size, 1))
        self.total.take_over(size)

    def returned(self):
        """Return the model of training."""
        return self.models[0]


class Gradients(Compressed):
    """Steps of all ranks along the sum of their gradients."""

    def epoch(self, shards):
        """Take the steps of an epoch."""
        n = len(shards[0][1])
        for part in parts_of(n, -(-n * self.size // self.s.batch)):
            model = self.models[0]
            g = self.total([mean_gradient(model, X[part], y[part]) / self.size for X, y in shards])
            self.models = np.tile(model - RATE * (g + penalty(model)), (self.size, 1))


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
