"""Multinomial logistic regression by SGD in plain numpy, one row at a time."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax, softmax

from reference.sgd import rate


def gradient(X, y, sample_weight, W, b):
    """Return the sum over rows of the weighted gradients with respect to (W, b), shape (k, d + 1)."""
    slopes = softmax(X @ W.T + b, axis=1) - (y[:, None] == np.arange(len(b)))
    return (sample_weight[:, None] * slopes).T @ np.column_stack([X, np.ones(len(X))])


def sequential(
    X, y, sample_weight, *, class_weight, n_epochs, alpha, share, schedule, eta0, power_t, average, intercept_decay
):
    """Return (W, b, their averages over the iterates, sum of losses of the last epoch); `share` is that of L1."""
    k, d, t, n_averaged, owed = len(class_weight), X.shape[1], 1, 0, 0.0
    W, b, received = np.zeros((k, d)), np.zeros(k), np.zeros((k, d))
    mean_W, mean_b = W.copy(), b.copy()
    for epoch in range(1, n_epochs + 1):
        loss_sum = 0.0
        for x, label, weight in zip(X, y.astype(int), sample_weight, strict=True):
            eta, scores = rate(schedule, t, epoch, alpha, eta0, power_t), W @ x + b
            loss_sum -= log_softmax(scores)[label]
            update = -eta * weight * class_weight[label] * (softmax(scores) - (np.arange(k) == label))
            W = W * max(0.0, 1 - (1 - share) * eta * alpha) + np.outer(update, x)
            b = b + update * intercept_decay
            if share > 0:
                owed += share * alpha * eta
                after = np.where(W > 0, np.maximum(0, W - (owed + received)), np.minimum(0, W + (owed - received)))
                received += after - W
                W = after
            if 0 < average <= t:
                n_averaged += 1
                mean_W, mean_b = mean_W + (W - mean_W) / n_averaged, mean_b + (b - mean_b) / n_averaged
            t += 1
    return W, b, mean_W, mean_b, loss_sum
