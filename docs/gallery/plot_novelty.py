"""
What is normal, and how far off is too far
==========================================

Two more machines with kernels. :class:`dsgd.svm.OneClassSVM` learns where rows lie, from rows
without labels, and flags those that lie elsewhere. :class:`dsgd.svm.SVR` fits a curve and
ignores errors smaller than epsilon.
"""

import matplotlib.pyplot as plt
import numpy as np

from dsgd.svm import SVR, OneClassSVM

random = np.random.default_rng(0)

# %%
# Normal rows of two machines, by load and temperature, both standardised. The detector never
# sees a fault; ``nu`` is the share of normal rows that it may leave outside.

centres = np.array([[-1.5, -1.0], [1.2, 0.8]])
normal = centres[random.integers(0, 2, 1_200)] + 0.45 * random.normal(size=(1_200, 2))
train, fresh = normal[:800], normal[800:]
faults = random.uniform(-4, 4, size=(300, 2))

detectors = {nu: OneClassSVM(nu=nu, gamma=0.7).fit(train) for nu in (0.01, 0.05, 0.2)}
for nu, detector in detectors.items():
    print(
        f"nu = {nu:<4}: outside are {np.mean(detector.predict(train) < 0):5.1%} of training "
        f"rows, {np.mean(detector.predict(fresh) < 0):5.1%} of fresh normal rows, "
        f"{np.mean(detector.predict(faults) < 0):5.1%} of faults"
    )

# %%
# A noisy curve with outliers, and tubes of two widths. Rows inside the tube have no part in
# the model: a wider tube needs fewer support vectors.

x = np.sort(random.uniform(0, 10, 400))
y = np.sin(x) + 0.15 * random.normal(size=len(x))
y[::40] += 2.0
curves = {
    epsilon: SVR(C=5.0, gamma=0.5, epsilon=epsilon).fit(x[:, None], y) for epsilon in (0.1, 0.4)
}

# %%
# On the left, the boundary for each nu; some faults lie among the normal rows, and no detector
# can tell those. On the right, one row in forty lies two units too high. The loss grows only
# linearly, so they lift the curve by a fraction of that, most where the tube is wide.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
across, up = np.meshgrid(np.linspace(-4, 4, 150), np.linspace(-4, 4, 150))
grid = np.column_stack([across.ravel(), up.ravel()])
for color, (nu, detector) in enumerate(detectors.items()):
    decision = detector.decision_function(grid).reshape(across.shape)
    axes[0].contour(across, up, decision, levels=[0.0], colors=f"C{color}")
    axes[0].plot([], [], f"C{color}", label=f"nu = {nu}")
axes[0].scatter(*fresh.T, s=6, color="0.5", label="normal")
axes[0].scatter(*faults.T, s=10, color="C3", marker="x", linewidths=0.8, label="fault")
axes[0].set(xlabel="load, standardised", ylabel="temperature, standardised")
axes[0].legend(fontsize="x-small", loc="lower right")
for axis, (epsilon, curve) in zip(axes[1:], curves.items(), strict=True):
    fitted = curve.predict(x[:, None])
    axis.scatter(x, y, s=5, color="0.6")
    axis.scatter(x[curve.support_], y[curve.support_], s=8, color="C1", label="support vectors")
    axis.plot(x, fitted, "C0")
    axis.fill_between(x, fitted - epsilon, fitted + epsilon, color="C0", alpha=0.2)
    axis.set(
        xlabel="x", ylabel="y", title=f"epsilon = {epsilon}: {len(curve.support_)} of {len(x)}"
    )
    axis.legend(fontsize="x-small")
plt.show()
