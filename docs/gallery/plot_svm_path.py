"""
A grid of C and gamma, solved exactly
=====================================

Tuning a kernel SVM means solving it for every pair of C and gamma. :func:`dsgd.svm.svm_path`
goes along the grid: every point starts at the solution of its neighbour, kernel values are
shared, and every solution has the same certificate as a fit of its own.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from dsgd.svm import SVC, svm_path

X, y = make_moons(3_000, noise=0.3, random_state=0)
X_valid, y_valid = make_moons(3_000, noise=0.3, random_state=1)
Cs = np.logspace(-1, 2, 13)
gammas = np.logspace(-1, 1, 5)

# %%
# The path beside one fit per point, in what most of the time goes into: values of the kernel.
# They are the same on every machine. The path saves more with more rows and a finer grid of C.

path = svm_path(X, y, Cs=Cs, gammas=gammas)
fits = [SVC(C=C, gamma=gamma).fit(X, y) for gamma in gammas for C in Cs]
fits_values = sum(fit.n_kernel_evaluations_ for fit in fits)
print(f"path: {path.n_kernel_evaluations / 1e6:.0f} million kernel values")
print(f"one fit per point: {fits_values / 1e6:.0f} million")
print(f"largest gap: {max(point.gap for point in path.points):.1e}")

# %%
# Scores on other rows, without building a model for each point.

scores = path.scores(X_valid, y_valid).reshape(len(gammas), len(Cs))
row, column = np.unravel_index(scores.argmax(), scores.shape)

figure, axis = plt.subplots(figsize=(6, 4.4), layout="constrained")
image = axis.pcolormesh(Cs, gammas, 100 * scores, shading="nearest", vmin=88, cmap="Blues")
axis.plot(Cs[column], gammas[row], "C1*", markersize=14)
axis.set(xscale="log", yscale="log", xlabel="C", ylabel="gamma")
axis.set_title(f"Best: C = {Cs[column]:.2g}, gamma = {gammas[row]:.2g}")
figure.colorbar(image, label="accuracy on other rows, %")
plt.show()

# %%
# The best point as a model, as a fit from the start would give it.

model = path.estimator(int(scores.argmax()))
print(f"{len(model.support_)} support vectors, accuracy {model.score(X_valid, y_valid):.3f}")
