"""
When ranks are slow at random
=============================

On shared machines, every now and then a rank takes several times as long for the same rows.
Strategies whose ranks wait for each other then run at the speed of the slowest. Some do not
wait.

The 8 simulated machines have heavy-tailed times: most rounds are normal, and some take many
times as long.
"""

import matplotlib.pyplot as plt

import dsgd
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster

rows = make_like("ijcnn1", n_rows=16_000, seed=0)
methods = {
    "local SGD (all wait)": "local:every=64",
    "anytime (a time, not a number of rows)": "anytime:seconds=0.002",
    "ADPSGD (pairs, nobody waits)": "adpsgd:every=64",
}


def train(stragglers):
    """Return the curves of all methods on machines with such times."""
    cluster = SimulatedCluster(8, "10GbE", stragglers=stragglers, seed=0)
    found = dsgd.compare(methods, rows.X, rows.y, cluster=cluster, seeds=1, name="ijcnn1")
    return found.to_frame("curves").query("strategy != 'sequential'")


# %%
# The same rows and seeds on machines that are all alike, and on machines that are slow at
# random. Compare how far each curve moves to the right, and which of them ends lowest: who
# does not wait saves time, and averages less.

figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", sharey=True)
for axis, stragglers in zip(axes, ("none", "heavy-tail"), strict=True):
    curves = train(stragglers)
    for method, curve in curves.groupby("strategy", sort=False):
        axis.plot(curve["seconds"], curve["objective"], ".-", label=method)
    axis.set(
        xscale="log", yscale="log", xlabel="virtual seconds", title=f"stragglers: {stragglers}"
    )
    axis.grid(alpha=0.3)
axes[0].set_ylabel("training objective")
axes[1].legend(fontsize="small")
plt.show()
