"""
How often to synchronise
========================

Eight machines train one logistic regression. How long should each train alone before they
average their models? Here the period goes from 4 rows to 4,096, and ``sync="auto"`` finds one
by itself.

The machines are simulated: the arithmetic and the bytes are real, and a virtual clock is
charged for a network of 1 Gbit/s. So the numbers are the same wherever this runs. With
``client=Client(...)`` the same lines train on workers of your own.
"""

import matplotlib.pyplot as plt

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster

train = make_like("ijcnn1", n_rows=40_000, seed=0)
test = make_like("ijcnn1", n_rows=20_000, split="test", seed=0)
cluster = SimulatedCluster(ranks=8, network="1GbE", seed=0)


def fit(sync):
    """Return a fitted model; only the synchronisation differs."""
    return SGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        max_iter=8,
        tol=None,
        random_state=0,
        sync=sync,
        client=cluster,
    ).fit(train.X, train.y)


# %%
# Every model keeps a ledger of where its seconds and bytes went.

periods = [4, 16, 64, 256, 1024, 4096]
models = {period: fit(period) for period in periods}
auto = fit("auto")
print(auto.ledger_.summary())

# %%
# Three views of the same fits: what they cost in seconds and bytes, and what they learned.
# The last panel spans half a point, so the accuracy hardly depends on the period, while the
# time differs by a factor of hundreds.

panels = {
    "training time, virtual s": lambda model: model.ledger_.elapsed_s,
    "sent by all machines, MB": lambda model: model.ledger_.totals()["bytes_sent"] / 1e6,
    "test accuracy, %": lambda model: 100 * model.score(test.X, test.y),
}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for axis, (title, measure) in zip(axes, panels.items(), strict=True):
    axis.plot(
        periods, [measure(models[period]) for period in periods], "o-", label="fixed period"
    )
    axis.axhline(measure(auto), color="C1", linestyle="--", label='sync="auto"')
    axis.set(xscale="log", xlabel="period, rows", title=title)
    axis.grid(alpha=0.3)
axes[0].set_yscale("log")
axes[1].set_yscale("log")
middle = sum(axes[2].get_ylim()) / 2
axes[2].set_ylim(middle - 0.25, middle + 0.25)
axes[0].legend()
plt.show()

# %%
# What ``sync="auto"`` chose, and why:

for step in auto.sync_history_:
    print(
        f"after {step['rows']:>6} rows of a rank: "
        f"every {step['period']:>5} rows ({step['why']})"
    )
