"""
Three machines for a curved boundary
====================================

Two moons cannot be separated by a line. An exact kernel SVM can, and proves how close it is
to the optimum; random features approximate the same kernel, and then gradient descent is
enough; a linear SVM shows what is lost without a kernel.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.pipeline import make_pipeline

from dsgd import SGDClassifier
from dsgd.kernel_approximation import RandomFeatures
from dsgd.svm import SVC, LinearSVC

X, y = make_moons(2_000, noise=0.25, random_state=0)
models = {
    "LinearSVC": LinearSVC(C=1.0, random_state=0),
    "random features": make_pipeline(
        RandomFeatures(300, gamma=2.0, random_state=0),
        SGDClassifier(alpha=1e-4, average=True, random_state=0),
    ),
    "SVC": SVC(C=1.0, gamma=2.0),
}
for model in models.values():
    model.fit(X, y)

# %%
# The SVMs come with a certificate: the gap over all samples, computed in float64 after
# training.

exact = models["SVC"]
print(
    f"SVC: gap {exact.gap_:.1e}, converged: {exact.converged_}, "
    f"{len(exact.support_)} of {len(X)} samples are support vectors"
)
print(f"LinearSVC: gap {np.max(models['LinearSVC'].gap_):.1e}")

# %%
# The shade is the decision function, and the line where it is zero.

across, up = np.meshgrid(np.linspace(-2, 3, 200), np.linspace(-1.5, 2, 200))
grid = np.column_stack([across.ravel(), up.ravel()])
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes, models.items(), strict=True):
    decision = model.decision_function(grid).reshape(across.shape)
    axis.contourf(across, up, np.clip(decision, -2, 2), levels=20, cmap="RdBu", alpha=0.7)
    axis.contour(across, up, decision, levels=[0.0], colors="black")
    axis.scatter(*X[::4].T, c=y[::4], cmap="RdBu", edgecolors="white", linewidths=0.3, s=12)
    axis.set_title(f"{name}: {model.score(X, y):.1%}")
plt.show()
