"""
What a compressed gradient costs in accuracy
============================================

Eight simulated machines on 100 Mbit/s sum the gradients of a wide logistic regression after
every batch. A compressor sends less: only the largest entries, or every entry in fewer bits.
Error feedback adds what was left out to the next gradient.
"""

import matplotlib.pyplot as plt

from dsgd import SGDClassifier
from dsgd.compress import QSGD, ErrorFeedback, Half, Sign, TopK
from dsgd.datasets import make_like
from dsgd.sim import Link, Network, SimulatedCluster
from dsgd.sync import MinibatchSGD

rows = make_like("epsilon", n_rows=4_000, seed=0)
cable = Link(byte_s=80e-9, overhead_s=50e-6)  # 100 Mbit/s, 50 microseconds a message
cluster = SimulatedCluster(
    ranks=8, network=Network("100 Mbit/s", between=cable, inside=cable), seed=0
)
compressors = {
    "whole": None,
    "half precision": Half(),
    "QSGD, 7 levels": QSGD(7),
    "top 1 %, feedback": ErrorFeedback(TopK(0.01)),
    "top 10 %, feedback": ErrorFeedback(TopK(0.1)),
    "sign, feedback": ErrorFeedback(Sign()),
}
models = {}
for name, compressor in compressors.items():
    sync = MinibatchSGD(batch=64, compressor=compressor)
    models[name] = SGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        max_iter=6,
        tol=None,
        random_state=0,
        sync=sync,
        client=cluster,
    ).fit(rows.X, rows.y)

# %%
# The objective after six epochs, against the bytes of a machine and against virtual seconds,
# which include waiting for the network: down and to the left is better.

across = {
    "sent by a machine, MB": lambda model: model.ledger_.totals()["bytes_sent"] / 8e6,
    "training time, virtual s": lambda model: model.ledger_.elapsed_s,
}
figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
for axis, (label, measure) in zip(axes, across.items(), strict=True):
    for name, model in models.items():
        axis.plot(measure(model), model.loss_curve_[-1], "o", label=name)
    axis.set(xscale="log", xlabel=label)
    axis.xaxis.set_minor_formatter("")  # less than a decade: its labels would overlap
    axis.grid(alpha=0.3)
axes[0].set_ylabel("objective after six epochs")
axes[1].legend()
plt.show()

# %%
# The same in numbers:

for name, model in models.items():
    print(
        f"{name:>18}: {model.ledger_.elapsed_s:6.2f} s, objective {model.loss_curve_[-1]:.4f}"
    )
