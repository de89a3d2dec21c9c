"""SAGA and SVRG in plain numpy, one row at a time, for dense rows."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.order import draw_each, mix64_each
from reference.sgd import slope


def draws(key, epoch, n):
    """Return the rows that SAGA draws in an epoch, fed to the twin as the kernel has them."""
    stream = draw_each(mix64_each(np.array([key], np.uint64)), np.array([epoch], np.uint64))
    return [((int(word) >> 32) * n) >> 32 for word in draw_each(stream, np.arange(n, dtype=np.uint64))]


def reduced(X, y, sample_weight, *, method, n_epochs, step, loss_name, alpha, key, n_outputs=1, every=1):
    """Return (weights (k, d), intercepts (k,)); SAGA draws rows by `key`, SVRG takes them as they come."""
    n, d = X.shape
    rows = np.c_[X, np.ones(n)]
    W, slopes, mean = np.zeros((n_outputs, d + 1)), np.zeros((n, n_outputs)), np.zeros((n_outputs, d + 1))
    shrink = np.r_[np.full(d, 1 - step * alpha), 1.0]

    def slopes_at(model, i):
        targets = [y[i]] if n_outputs == 1 else [1.0 if y[i] == k else -1.0 for k in range(n_outputs)]
        return np.array(
            [sample_weight[i] * slope(loss_name, t, rows[i] @ w, 0.1) for t, w in zip(targets, model, strict=True)]
        )

    for epoch in range(1, n_epochs + 1):
        for i in draws(key, epoch, n) if method == "saga" else range(n):
            now = slopes_at(W, i)
            change = np.outer(now - slopes[i], rows[i])
            W = shrink * W - step * (change + mean)
            if method == "saga":
                mean, slopes[i] = mean + change / n, now
        if method == "svrg" and epoch % every == 0:
            slopes = np.array([slopes_at(W, i) for i in range(n)])
            mean = slopes.T @ rows / n
    return W[:, :d], W[:, d]
