"""
Who talks to whom: graphs of gossip
===================================

Ranks that gossip average with their neighbours only. How well news travel is a property of
the graph: its spectral gap, the share of a disagreement that one round of averaging removes
at least. Here 16 ranks have rows of different kinds, so there is something to disagree about.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss

from dsgd import SGDClassifier
from dsgd.comm.topology import Complete, Grid, Ring, mixing_matrix, spectral_gap
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster
from dsgd.sync import DPSGD, SCAFFOLD

RANKS = 16
rows = make_like("ijcnn1", n_rows=16_000, seed=0)
order = np.argsort(rows.y, kind="stable")  # a rank sees one class only, or nearly so
X, y = rows.X[order], rows.y[order]

# %%
# ``shuffle=False`` leaves the rows in this order, and each rank gets a piece of it. Each method
# is judged by the mean of the models of all ranks, on all rows. (``loss_curve_`` would tell
# something else: each rank's loss on its own rows, which is low if ranks disagree.)


def fit(sync):
    """Return a fitted model; only the strategy differs."""
    return SGDClassifier(
        loss="log_loss",
        alpha=1e-3,
        learning_rate="constant",
        eta0=0.02,
        max_iter=10,
        tol=None,
        shuffle=False,
        random_state=0,
        sync=sync,
        client=SimulatedCluster(RANKS, "10GbE"),
    ).fit(X, y)


graphs = {"ring": Ring(), "grid": Grid(), "complete": Complete()}
gaps = {name: spectral_gap(mixing_matrix(graph, RANKS)) for name, graph in graphs.items()}
models = {name: fit(DPSGD(64, graph, keep_models=True)) for name, graph in graphs.items()}
models["SCAFFOLD"] = fit(SCAFFOLD(64))
losses = {name: log_loss(y, model.predict_proba(X)) for name, model in models.items()}
megabytes = {name: model.ledger_.totals()["bytes_sent"] / 1e6 for name, model in models.items()}
for name, model in models.items():
    gap = f"gap {gaps[name]:.3f}" if name in gaps else "a sum of all"
    print(
        f"{name:>8}: {gap:>12}, log loss {losses[name]:.4f}, accuracy {model.score(X, y):.3f}, "
        f"{megabytes[name]:5.2f} MB sent"
    )

# %%
# On the left, how far the models of the ranks are from their mean at the end: the larger the
# gap, the more they agree. On the right, what that costs, and what it is good for.

figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for name, model in models.items():
    if name in graphs:
        each = model.rank_coef_.reshape(RANKS, -1)
        apart = np.linalg.norm(each - each.mean(axis=0), axis=1).mean()
        axes[0].plot(gaps[name], apart, "o", label=name)
    axes[1].plot(megabytes[name], losses[name], "o", label=name)
axes[0].set(xlabel="spectral gap", ylabel="mean distance from the mean model")
axes[1].set(xlabel="sent by all ranks, MB", ylabel="log loss of the mean model")
for axis in axes:
    axis.grid(alpha=0.3)
    axis.legend()
plt.show()
