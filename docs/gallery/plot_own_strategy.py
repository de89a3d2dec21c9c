"""
A strategy of your own
======================

A strategy is a class with two methods: what a rank remembers, and what ranks do when a period
is over. This one takes the mean of all models, and goes on a little in the direction in which
the mean has just moved. :func:`dsgd.testing.check_strategy` holds it to the laws of the
strategies in the package.
"""

import textwrap
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster
from dsgd.sync import AbstractStrategy, LocalSGD, weighted_mean
from dsgd.testing import check_strategy


@dataclass
class Before:
    """What a rank remembers: the last mean."""

    mean: np.ndarray


@dataclass(frozen=True)
class Ahead(AbstractStrategy[Before]):
    """Every so many rows, x <- m + share (m - m_last)."""

    every: int = 256
    share: float = 0.4

    def init(self, group, params, weight):
        """Remember the model that all ranks begin with."""
        return Before(params.copy())

    def sync(self, group, vector, weight, state):
        """Take the mean in place, and go further."""
        weighted_mean(group, vector, weight)
        change = vector - state.mean
        state.mean[:] = vector
        vector += self.share * change


# %%
# The laws: ranks end equal, a seed repeats a fit, bytes are counted right, a checkpoint holds
# the state, and more. A strategy that breaks one is told which.

check_strategy(Ahead(every=8))


@dataclass(frozen=True)
class Careless(Ahead):
    """The same, but each rank adds its own noise."""

    def sync(self, group, vector, weight, state):
        """Take the mean, and spoil it."""
        super().sync(group, vector, weight, state)
        vector += 1e-3 * (group.rank + 1)


try:
    check_strategy(Careless(every=8))
except Exception as error:
    print(textwrap.fill(f"{type(error).__name__}: {str(error).splitlines()[0][:300]}", 90))

# %%
# What passes trains on threads, on workers and on simulated clusters. Here 8 ranks take small
# steps, where a push helps. Try it on your own data before you believe in it.

rows = make_like("a9a", n_rows=16_000, seed=0)
cluster = SimulatedCluster(8, "10GbE", seed=0)
ways = {
    "mean": LocalSGD(64),
    "share = 0.4": Ahead(64, 0.4),
    "share = 0.8": Ahead(64, 0.8),
}
figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, sync in ways.items():
    model = SGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        learning_rate="constant",
        eta0=0.002,
        max_iter=12,
        tol=None,
        random_state=0,
        sync=sync,
        client=cluster,
    ).fit(rows.X, rows.y)
    axis.plot(np.arange(1, 13), model.loss_curve_, ".-", label=name)
axis.set(xlabel="epoch", ylabel="training objective")
axis.grid(alpha=0.3)
axis.legend()
plt.show()
