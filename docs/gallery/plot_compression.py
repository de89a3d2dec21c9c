"""
What a compressed gradient costs in accuracy
============================================

Eight simulated machines on 1 Gbit/s sum the gradients of a wide logistic regression after every batch. A compressor
sends less: only the largest entries, or every entry in fewer bits. Error feedback adds what was left out to the next
gradient.
"""

import matplotlib.pyplot as plt

from dsgd import SGDClassifier
from dsgd.compress import QSGD, ErrorFeedback, Half, RandomK, Sign, TopK
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster
from dsgd.sync import MinibatchSGD

rows = make_like("epsilon", n_rows=4_000, seed=0)
cluster = SimulatedCluster(ranks=8, network="1GbE", seed=0)
compressors = {
    "whole": None,
    "half precision": Half(),
    "QSGD, 7 levels": QSGD(7),
    "top 1 %, feedback": ErrorFeedback(TopK(0.01)),
    "random 1 %, feedback": ErrorFeedback(RandomK(0.01)),
    "sign, feedback": ErrorFeedback(Sign()),
}
models = {}
for name, compressor in compressors.items():
    sync = MinibatchSGD(batch=64, compressor=compressor)
    models[name] = SGDClassifier(
        loss="log_loss", alpha=1e-4, max_iter=6, tol=None, random_state=0, sync=sync, client=cluster
    ).fit(rows.X, rows.y)

# %%
# The objective after six epochs against the bytes of a machine: down and to the left is better.

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, model in models.items():
    megabytes = model.ledger_.totals()["bytes_sent"] / 8e6
    axis.plot(megabytes, model.loss_curve_[-1], "o")
    axis.annotate(name, (megabytes, model.loss_curve_[-1]), textcoords="offset points", xytext=(6, 4))
axis.set(xscale="log", xlabel="sent by a machine, MB", ylabel="objective after six epochs")
axis.margins(x=0.25)
axis.grid(alpha=0.3)
plt.show()

# %%
# And the virtual seconds, which include waiting for the network:

for name, model in models.items():
    print(f"{name:>20}: {model.ledger_.elapsed_s:6.2f} s, objective {model.loss_curve_[-1]:.4f}")
