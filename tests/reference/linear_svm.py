"""Linear SVMs in plain numpy: the losses as they are written in books, and coordinate descent row by row."""

from __future__ import annotations

import numpy as np


def loss(name, y, f, epsilon):
    """Return the loss of scores f."""
    if name == "hinge":
        return np.maximum(0.0, 1.0 - y * f)
    if name == "squared_hinge":
        return np.maximum(0.0, 1.0 - y * f) ** 2
    error = np.maximum(0.0, np.abs(y - f) - epsilon)
    return error if name == "epsilon_insensitive" else error**2


def primal(name, X, y, costs, w, epsilon=0.0):
    """Return the objective; X holds the constant column."""
    return 0.5 * w @ w + costs @ loss(name, y, X @ w, epsilon)


def dual(name, X, y, costs, alpha, epsilon=0.0):
    """Return the dual objective in the form of LIBLINEAR: signed variables alpha with w = sum alpha_i x_i."""
    w = X.T @ alpha
    value = y @ alpha - epsilon * np.abs(alpha).sum() - 0.5 * w @ w
    return value - (np.sum(alpha**2 / (4.0 * costs)) if name.startswith("squared") else 0.0)


def dual_cd(name, X, y, costs, passes, epsilon=0.0):
    """Run dual coordinate descent over the rows in order; return w and the dual variables."""
    n, d = X.shape
    w, alpha = np.zeros(d), np.zeros(n)
    for _ in range(passes):
        for i in range(n):
            ridge = 0.5 / costs[i] if name.startswith("squared") else 0.0
            high = np.inf if name.startswith("squared") else costs[i]
            low = -high
            if name.endswith("hinge"):
                low, high = (0.0, high) if y[i] > 0 else (-high, 0.0)
            curvature = X[i] @ X[i] + ridge
            slope = X[i] @ w - y[i] + ridge * alpha[i]
            if curvature == 0.0:
                continue
            point = alpha[i] - slope / curvature
            tube = (0.0 if name.endswith("hinge") else epsilon) / curvature
            new = np.clip(np.sign(point) * max(0.0, abs(point) - tube), low, high)
            w += (new - alpha[i]) * X[i]
            alpha[i] = new
    return w, alpha
