"""
Strategies on ranks with different rows
=======================================

In federated learning, and wherever data stay where they were made, ranks see different kinds
of rows. Here the classes are dealt to 16 ranks from a Dirichlet distribution, so that most
ranks see mostly one. Which strategy copes?

:func:`dsgd.compare` trains with all of them on the same rows from the same seeds and says
what differs by more than chance.
"""

import textwrap

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
    name="a9a",
)
print(textwrap.fill(found.answer, 90))

# %%
# ``print(found)`` shows tables, ``found.save("comparison.html")`` writes a page, and every
# number is in a data frame. The model that training returns, by strategy:

columns = ["objective", "test_accuracy", "bytes_sent", "messages"]
runs = found.to_frame().groupby("strategy", sort=False)
print(runs[columns].median().to_string(float_format="{:.4g}".format))

# %%
# The learning curves of the first seed, by rows, bytes and seconds. On this convex problem
# every strategy gets as far as a sequential run, and gossip sends least on the way. Change
# ``partition`` to ``"label-skewed"``, or the set, and see which of them still do.

curves = found.to_frame("curves").query("seed == 0 and strategy != 'sequential'")
across = {
    "rows": "rows visited",
    "bytes_sent": "bytes sent by all ranks",
    "seconds": "virtual seconds",
}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
for axis, (column, label) in zip(axes, across.items(), strict=True):
    for strategy, curve in curves.groupby("strategy", sort=False):
        axis.plot(curve[column], curve["objective"], ".-", label=strategy)
    axis.set(xscale="log", xlabel=label)
    axis.grid(alpha=0.3)
axes[0].set_ylabel("training objective")
axes[0].legend()
plt.show()
