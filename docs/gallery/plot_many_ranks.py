"""
A thousand ranks, before you rent them
======================================

What would training cost on 1,024 machines, and which method pays there?
:func:`dsgd.sim.predict` answers without rows and without threads: it plays or sums up the
messages of a round, and charges them to the network that you describe.
"""

import matplotlib.pyplot as plt

from dsgd.compress import ErrorFeedback, TopK
from dsgd.sim import SimulatedCluster, predict
from dsgd.sync import MinibatchSGD

N_ROWS, N_PARAMS, ENTRIES_PER_ROW = 2**24, 25_000, 100
RANKS = [2**power for power in range(1, 11)]

# %%
# The job is one epoch over 16.8 million rows of 100 entries, with a model of 25,000 weights.
# More ranks have fewer rows each, and therefore fewer rounds of the same period.

top_entries = MinibatchSGD(compressor=ErrorFeedback(TopK(0.01)))
ways = {
    "models, every 64 rows": (64, "local"),
    "models, every 1,024 rows": (1_024, "local"),
    "gradients, top 1 %, every 64 rows": (64, top_entries),
    "gossip, every 64 rows": (64, "sgp:topology=exponential"),
}


def epoch(ranks, network, period, sync):
    """Return seconds and bytes of an epoch on so many ranks."""
    return predict(
        SimulatedCluster(ranks, network),
        n_params=N_PARAMS,
        rows=period,
        entries=period * ENTRIES_PER_ROW,
        rounds=N_ROWS // (ranks * period),
        sync=sync,
    )


networks = ("1GbE", "100GbE")
costs = {
    (network, way): [epoch(ranks, network, *ways[way]) for ranks in RANKS]
    for network in networks
    for way in ways
}

# %%
# The dotted line is the time of the rows alone, divided evenly. The distance to it is the
# network: sums and gossip send about as much in a round whatever the number of ranks, and there
# are half as many rounds on twice the ranks. One curve falls more slowly on the slow network:
# every rank gets the entries that each of the others chose, which are more on more ranks. From
# some 180 ranks on all these entries together would be longer than the gradient, which is then
# summed whole, as without compression.

figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
alone = predict(
    SimulatedCluster(1, "1GbE"),
    n_params=N_PARAMS,
    rows=1_024,
    entries=1_024 * ENTRIES_PER_ROW,
    rounds=N_ROWS // 1_024,
).seconds
for axis, network in zip(axes, networks, strict=True):
    for way in ways:
        axis.plot(RANKS, [cost.seconds for cost in costs[network, way]], "o-", label=way)
    axis.plot(RANKS, [alone / ranks for ranks in RANKS], "k:", label="rows alone")
    axis.set(xlabel="ranks", title=network)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("an epoch, predicted seconds")
axes[1].legend(fontsize="small")
plt.show()

# %%
# At 1,024 ranks:

for (network, way), found in costs.items():
    print(f"{network:>6}, {way:<33}: {found[-1].seconds:8.2f} s")

# %%
# Two limits. These are seconds per epoch, not to a given accuracy: a long period or a sparse
# gradient may need more epochs. And the rates of these networks are nominal: measure your own
# with :func:`dsgd.sim.calibrate`, which returns the cluster to pass here.
