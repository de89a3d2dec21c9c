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


def l1_primal(X, y, costs, w, penalties):
    """Return the objective of the squared hinge with absolute weights as the penalty; X holds the constant column."""
    return penalties @ np.abs(w) + costs @ loss("squared_hinge", y, X @ w, 0.0)


def l1_proximal_gradient(X, y, costs, penalties, steps):
    """Minimise `l1_primal` by accelerated proximal gradient; return w."""
    length = 1.0 / (2.0 * np.linalg.norm(X * np.sqrt(costs)[:, None], 2) ** 2)
    w = ahead = np.zeros(X.shape[1])
    momentum = 1.0
    for _ in range(steps):
        gradient = -2.0 * X.T @ (costs * y * np.maximum(0.0, 1.0 - y * (X @ ahead)))
        point = ahead - length * gradient
        new = np.sign(point) * np.maximum(np.abs(point) - length * penalties, 0.0)
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + (momentum - 1.0) / following * (new - w)
        w, momentum = new, following
    return w


def joint_primal(X, codes, costs, W):
    """Return the objective of Crammer and Singer; W has one row per class."""
    scores = X @ W.T
    rows = np.arange(len(codes))
    excess = 1.0 + scores - scores[rows, codes][:, None]
    excess[rows, codes] = 0.0
    return 0.5 * np.sum(W**2) + costs @ excess.max(axis=1)


def cocoa_round(name, parts, alphas, w, safety, epsilon=0.0):
    """Run a round of CoCoA+ in the terms of the paper: one pass over each part, rows in order, changes added up.

    `parts` holds (X, y, costs) per rank. Each local problem has the true variables, the gradient at
    ``w + safety * u`` and the curvature ``safety * |x|^2``; returns the new variables and the new w.
    """
    total = np.zeros_like(w)
    changed = []
    for (X, y, costs), alpha in zip(parts, alphas, strict=True):
        alpha, u = alpha.copy(), np.zeros_like(w)
        for i in range(len(y)):
            ridge = 0.5 / costs[i] if name.startswith("squared") else 0.0
            high = np.inf if name.startswith("squared") else costs[i]
            low = -high
            if name.endswith("hinge"):
                low, high = (0.0, high) if y[i] > 0 else (-high, 0.0)
            curvature = safety * (X[i] @ X[i]) + ridge
            point = alpha[i] - (X[i] @ (w + safety * u) - y[i] + ridge * alpha[i]) / curvature
            tube = (0.0 if name.endswith("hinge") else epsilon) / curvature
            new = np.clip(np.sign(point) * max(0.0, abs(point) - tube), low, high)
            u += (new - alpha[i]) * X[i]
            alpha[i] = new
        changed.append(alpha)
        total += u
    return changed, w + total
