"""
Strategies on ranks with different rows
=======================================

In federated learning, and wherever data stay where they were made, ranks see different kinds of rows. Here the
classes are dealt to 16 ranks from a Dirichlet distribution, so that most ranks see mostly one. Which strategy copes?

:func:`dsgd.compare` trains with all of them on the same rows from the same seeds and says what differs by more than
chance.
"""

import matplotlib.pyplot as plt

import dsgd
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster

rows = make_like("a9a", n_rows=8_000, seed=0)

# %%
# Methods are what ``sync=`` takes; texts name a strategy with its parameters.

found = dsgd.compare(
    {
        "local SGD": "local:every=64",
        "SCAFFOLD": "scaffold:every=64",
        "FedProx": "fedprox:every=64",
        "gossip": "sgp:every=64,topology=exponential",
    },
    rows.X,
    rows.y,
    cluster=SimulatedCluster(16, "1GbE"),
    seeds=2,
    partition="dirichlet:0.3",
)
print(found)

# %%
# The learning curves, by rows, bytes, messages and seconds. On this convex problem every strategy comes to the
# objective of a sequential run, and gossip sends least on the way. Change ``partition`` to ``"label-skewed"``, or the
# set, and see who is left.

found.plot()
plt.show()
