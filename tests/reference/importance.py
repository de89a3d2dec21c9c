"""Stochastic reweighted gradients in plain numpy, one row at a time, for dense rows."""

from __future__ import annotations

import math

import numpy as np

from dsgd.kernels.order import draw_each, mix64_each
from reference.sgd import loss, rate, slope


def numbers(key, epoch, place):
    """Return the two random words of a place of an epoch, fed to the twin as the kernel has them."""
    stream = draw_each(mix64_each(np.array([key], np.uint64)), np.array([epoch], np.uint64))
    return draw_each(stream, np.array([2 * place, 2 * place + 1], np.uint64))


def choose(norms, uniform, words):
    """Return the row drawn, 1 / (n p) of it, and whether the draw was a uniform one."""
    n, whole = len(norms), norms.sum()
    share = uniform if whole > 0 else 1.0
    coin, word = ((int(w) >> 11) * 2.0**-53 for w in words)
    is_uniform = coin < share
    if is_uniform:
        row = ((int(words[1]) >> 32) * n) >> 32
    else:
        row = int(np.searchsorted(np.cumsum(norms), word * whole, side="right"))
    p = share / n + ((1 - share) * norms[row] / whole if whole > 0 else 0.0)
    return row, 1 / (n * p), is_uniform


def reweighted(
    X, y, sample_weight, *, n_epochs, uniform, key, loss_name, alpha, schedule, eta0, power_t, ahead=32, n_outputs=1
):
    """Return (weights (k, d), intercepts (k,), norms, sum of losses of the last epoch), with an L2 penalty."""
    n, d = X.shape
    W, b, t, norms = np.zeros((n_outputs, d)), np.zeros(n_outputs), 1, np.zeros(n)
    for epoch in range(1, n_epochs + 1):
        total = 0.0
        for first in range(0, n, ahead):
            places = range(first, min(n, first + ahead))
            # As of before the first of the steps.
            chosen = [(i, 1.0, True) if epoch == 1 else choose(norms, uniform, numbers(key, epoch, i)) for i in places]
            for row, weight, is_uniform in chosen:
                eta = rate(schedule, t, epoch, alpha, eta0, power_t)
                squares, before = 0.0, X[row] @ W.T + b
                W = W * max(0.0, 1 - eta * alpha)
                for k in range(n_outputs):
                    target = y[row] if n_outputs == 1 else (1.0 if y[row] == k else -1.0)
                    found = slope(loss_name, target, before[k], 0.1)
                    total += weight * loss(loss_name, target, before[k], 0.1)
                    squares += found**2
                    step = eta * weight * sample_weight[row] * found
                    W[k] -= step * X[row]
                    b[k] -= step
                if is_uniform:
                    norms[row] = sample_weight[row] * math.sqrt(squares * (X[row] @ X[row] + 1))
                t += 1
    return W, b, norms, total
