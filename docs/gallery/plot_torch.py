"""
A neural network that exchanges less
====================================

Two ranks train a small network on two spirals. With ``sync=None`` they sum gradients in every
step, as torch's ``DistributedDataParallel`` does. Averaging the models every 16 batches sends
a sixteenth of the bytes.
"""

import matplotlib.pyplot as plt
import numpy as np
from torch import nn

from dsgd.sync import DiLoCo, LocalSGD
from dsgd.torch import TorchClassifier

random = np.random.default_rng(0)
y = np.arange(4_000) % 2
radius = 3.0 * random.random(len(y))
angle = 2.0 * radius + np.pi * y + 0.2 * random.normal(size=len(y))
X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]).astype(np.float32)


def network():
    """Return a new network: two hidden layers of 32."""
    return nn.Sequential(
        nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )


# %%
# Strategies count rows: 16 batches of 25 rows are 400.

ways = {
    "gradients, every step": None,
    "models, every 16 batches": LocalSGD(400),
    "DiLoCo, every 16 batches": DiLoCo(400),
}
nets = {}
for name, sync in ways.items():
    # With gradients the batch is that of both ranks together.
    batch = 50 if sync is None else 25
    net = TorchClassifier(
        network,
        lr=0.05,
        optimizer__momentum=0.9,
        batch_size=batch,
        max_epochs=10,
        sync=sync,
        n_jobs=2,
        random_state=0,
    )
    nets[name] = net.fit(X, y)
    print(
        f"{name:>25}: {net.score(X, y):.3f}, "
        f"{net.ledger_.totals()['bytes_sent'] / 1e6:.2f} MB sent"
    )

# %%
# Where the networks draw the line.

across, up = np.meshgrid(np.linspace(-3.5, 3.5, 150), np.linspace(-3.5, 3.5, 150))
grid = np.column_stack([across.ravel(), up.ravel()]).astype(np.float32)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained", sharey=True)
for axis, (name, net) in zip(axes, nets.items(), strict=True):
    chance = net.predict_proba(grid)[:, 1].reshape(across.shape)
    axis.contourf(across, up, chance, levels=20, cmap="RdBu", alpha=0.8)
    axis.scatter(*X[::5].T, c=y[::5], cmap="RdBu", edgecolors="white", linewidths=0.2, s=8)
    axis.set_title(name)
plt.show()
